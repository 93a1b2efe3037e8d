"""Read and write files with one word a line: CoNLL-U, and columns (CoNLL-2003 and similar formats).

A tagged sentence is an `Example`: its words joined by single spaces, its labels likewise. A space inside a word or a
label becomes U+00A0, so that both sides always have the same count. Prediction reads a `TaggedSentence`, which keeps
its lines as they came and writes them with nothing but the labels changed.

CoNLL-U: https://universaldependencies.org/format.html. Column files: Tjong Kim Sang and De Meulder (2003).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sightline.data.sources import Example, Numbered
from sightline.data.text_files import DataError, LineLimit, read_lines
from sightline.recipe.sources import ColumnsSource, ConlluSource
from sightline.terminal import plural, short

CONLLU_COLUMNS = {"form": 2, "lemma": 3, "upos": 4, "xpos": 5, "feats": 6, "deprel": 8}  # counted from 1

_NEVER_BLANK = ("upos", "xpos", "deprel")  # elsewhere "_" has a meaning: no features, no lemma, or a "_"
_FORMS: dict[str, TaggedFormat] = {
    ".conllu": "conllu",
    ".tsv": "columns",
    ".conll": "columns",
    ".col": "columns",
    ".bio": "columns",
}
_BOUND = LineLimit(2**20, remedy="a line has one word and its labels")
_MOST_LINES = 100_000  # of a sentence
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")


def split_words(text: str) -> list[str]:
    """The words (or labels) of one side of a tagged example; none in an empty text."""
    return text.split(" ") if text else []


def join_words(words: Iterable[str]) -> str:
    """Words (or labels) as one text that `split_words` takes apart again; a space inside one becomes U+00A0."""
    words = list(words)
    if "" in words:
        raise ValueError(f"word {words.index('') + 1} of {len(words)} is empty; it would be lost between two spaces")
    return " ".join(word.replace(" ", INNER_SPACE) for word in words)


def format_of(path: Path) -> TaggedFormat | None:
    """The format of a file by its suffix, ignoring that of a compressed file; None: plain text."""
    plain = path.with_suffix("") if path.suffix.lower() in _COMPRESSED else path
    return _FORMS.get(plain.suffix.lower())


def read_conllu(path: Path, column: str = "upos") -> Iterator[Example]:
    """The sentences of a CoNLL-U file with the labels of one column."""
    if column not in CONLLU_COLUMNS:
        raise DataError(f"{path}: no column {column!r} to learn; choose one of {', '.join(CONLLU_COLUMNS)}")
    return _read(tagged_sentences(read_lines(path, _BOUND), "conllu", name=str(path)), column)


def read_columns(path: Path, word: int = 1, label: int = 2) -> Iterator[Example]:
    """The sentences of a column file, with words and labels from columns counted from 1."""
    if label < 1:
        raise DataError(f"{path}: label column {label}; columns are counted from 1")
    return _read(tagged_sentences(read_lines(path, _BOUND), "columns", word, name=str(path)), label)


def read_conllu_source(source: ConlluSource, paths: list[Path], limit: LineLimit) -> Numbered:
    """The examples of `kind: conllu`."""
    return enumerate(read_conllu(paths[0], source.column), 1)


def read_columns_source(source: ColumnsSource, paths: list[Path], limit: LineLimit) -> Numbered:
    """The examples of `kind: columns`."""
    return enumerate(read_columns(paths[0], source.word, source.label), 1)


def tagged_sentences(
    lines: Iterable[str], form: TaggedFormat, word: int = 1, *, name: str = "the input"
) -> Iterator[TaggedSentence]:
    """The sentences of a file, each as soon as it is complete; no line is lost.

    A sentence ends with its blank line; a further blank line, comments alone or a -DOCSTART- line make a sentence
    without words. `word` is the column of the words in column files; `name` is the name of the input in errors. Lines
    keep their line ends, if they have any.
    """
    if form == "conllu":
        return _blocks(lines, ConlluLines(name))
    if word < 1:
        raise DataError(f"{name}: word column {word}; columns are counted from 1")
    return _blocks(lines, ColumnLines(name, word))


@dataclass(frozen=True)
class TaggedSentence:
    """A sentence with all its lines. Spaces inside `words` are U+00A0, as in an `Example`."""

    lines: tuple[str, ...]
    words: tuple[str, ...]
    rows: tuple[int, ...]  # the lines of the words
    separator: str  # between columns: a tab, spaces, or "" if there is only one column
    form: TaggedFormat
    name: str
    first: int  # the number of the first line in the input

    def labels(self, column: str | int | None = None) -> list[str]:
        """The labels of the file: by default upos, or column 2."""
        number = self._number(column)
        labels = []
        for row in self.rows:
            cells = cells_of(_body(self.lines[row]), self.separator)
            if len(cells) < number:
                raise DataError(
                    f"{self._where(row)}: {plural(len(cells), 'column')}, and the label should be in column {number}; "
                    f"correct the line ({short(self.lines[row])}) or choose another column"
                )
            labels.append(inside(cells[number - 1]))
        return labels

    def tagged(self, labels: Sequence[str], column: str | int | None = None) -> list[str]:
        """The lines with these labels, one for each word, and otherwise unchanged.

        In tab-separated files, U+00A0 in a label is written as a space.
        """
        number = self._number(column)
        self._check(labels)
        lines = list(self.lines)
        for row, label in zip(self.rows, labels, strict=True):
            lines[row] = self._relabelled(row, label, number)
        return lines

    def _relabelled(self, row: int, label: str, number: int) -> str:
        line = self.lines[row]
        body = _body(line)
        end = line[len(body) :]
        cells = cells_of(body, self.separator)
        separator = self.separator or "\t"
        written = label.replace(" ", INNER_SPACE) if separator == " " else label.replace(INNER_SPACE, " ")
        if number == len(cells) + 1:
            return body + separator + written + end
        if number > len(cells):
            raise DataError(
                f"{self._where(row)}: {plural(len(cells), 'column')}, so a label cannot become column {number}; "
                f"correct the line ({short(line)}) or choose column {len(cells) + 1}"
            )
        if inside(cells[number - 1]) == label.replace(" ", INNER_SPACE):  # U+00A0 may be in the file
            return line
        return _with_cell(body, self.separator, number, written) + end

    def _check(self, labels: Sequence[str]) -> None:
        if len(labels) != len(self.words):
            raise ValueError(
                f"{self._where(0)}: {plural(len(labels), 'label')} for {plural(len(self.words), 'word')}; give one "
                "label for each word"
            )
        for label in labels:
            if not label.strip(" ") or any(mark in label for mark in "\t\n\r"):
                raise ValueError(f"{self._where(0)}: {label!r} cannot be a label: it is empty or would break the line")

    def _number(self, column: str | int | None) -> int:
        """The column counted from 1."""
        if self.form == "conllu":
            known = CONLLU_COLUMNS.get("upos" if column is None else str(column))
            if known is None:
                raise ValueError(f"no column {column!r} in CoNLL-U; choose one of {', '.join(CONLLU_COLUMNS)}")
            return known
        number = 2 if column is None else column
        if not isinstance(number, int) or number < 1:
            raise ValueError(f"column {column!r} of a column file; give a number, counted from 1")
        return number

    def _where(self, row: int) -> str:
        return f"{self.name}, line {self.first + row}"


def _blocks(lines: Iterable[str], layout: ConlluLines | ColumnLines) -> Iterator[TaggedSentence]:
    kept: list[str] = []
    words: dict[int, str] = {}  # by line
    for number, line in enumerate(lines, 1):
        body = _body(line)
        kept.append(line)
        if len(kept) > _MOST_LINES:
            raise DataError(
                f"{layout.name}, line {number - len(kept) + 1:,}: a sentence of more than {_MOST_LINES:,} lines; end "
                f"each sentence with an empty line"
            )
        if layout.blank(body):
            yield _block(kept, words, layout, number)
            kept, words = [], {}
            continue
        word = layout.word(body, number)
        if word is not None:
            words[len(kept) - 1] = word
    if kept:
        yield _block(kept, words, layout, number)


def _block(lines: list[str], words: dict[int, str], layout: ConlluLines | ColumnLines, last: int) -> TaggedSentence:
    layout.end_sentence(last)
    return TaggedSentence(
        lines=tuple(lines),
        words=tuple(words.values()),
        rows=tuple(words),
        separator=layout.separator,
        form=layout.form,
        name=layout.name,
        first=last - len(lines) + 1,
    )


def _read(blocks: Iterator[TaggedSentence], column: str | int) -> Iterator[Example]:
    """Sentences with words as examples; every word needs a label."""
    for block in blocks:
        if not block.words:
            continue
        labels = block.labels(column)
        missing = ("", "_") if column in _NEVER_BLANK else ("",)
        for row, word, label in zip(block.rows, block.words, labels, strict=True):
            if label in missing:
                raise DataError(
                    f"{block._where(row)}: {word!r} has no label in column {column} ({label!r}); "
                    f"fill it in, or choose another column"
                )
        yield Example(join_words(block.words), join_words(labels))


def _body(line: str) -> str:
    return line.rstrip("\r\n")


def _with_cell(body: str, separator: str, number: int, cell: str) -> str:
    """The line with another cell in one column."""
    if separator == " ":  # there may be several between cells
        start, stop = list(NOT_SPACE.finditer(body))[number - 1].span()
        return body[:start] + cell + body[stop:]
    cells = cells_of(body, separator)
    cells[number - 1] = cell
    return separator.join(cells)


TaggedFormat = Literal["conllu", "columns"]

INNER_SPACE = "\u00a0"
NOT_SPACE = re.compile("[^ ]+")

CONLLU_WIDTH = 10
_ID = re.compile(r"(?P<word>[1-9][0-9]*)|(?P<start>[1-9][0-9]*)-(?P<stop>[1-9][0-9]*)|[0-9]+\.[1-9][0-9]*")
_DOCUMENT = re.compile(r"-DOCSTART-(?=[ \t]|\Z)")


class ConlluLines:
    """CoNLL-U: which lines are words, and whether their ids are in order."""

    form: TaggedFormat = "conllu"
    separator = "\t"

    def __init__(self, name: str) -> None:
        self.name = name
        self._last = self._range = 0  # ids of the last word, and of the last word of a multiword token
        self._empty = 0  # empty nodes since that word

    def blank(self, body: str) -> bool:
        """Whether a line ends a sentence; it may contain spaces and tabs."""
        return not body.strip(" \t")

    def word(self, body: str, number: int) -> str | None:
        """The word of a line; None if it has none."""
        if body.startswith("#"):
            return None
        cells = body.split("\t")
        where = f"{self.name}, line {number}"
        if len(cells) != CONLLU_WIDTH:
            raise DataError(
                f"{where}: {plural(len(cells), 'column')} with tabs between them, and CoNLL-U has {CONLLU_WIDTH}; "
                f"correct the line ({short(body)}), or read the file as columns"
            )
        if not self._step(cells[0], where):
            return None
        return _word(cells[1], where, body)

    def end_sentence(self, number: int) -> None:
        """Called at a blank line or the end of the file, after line `number`."""
        if self._range > self._last:
            raise DataError(
                f"{self.name}, line {number}: the sentence ends with word {self._last}, and a multiword token goes "
                f"on to {self._range}; add the missing words or correct the token's id"
            )
        self._last = self._range = self._empty = 0

    def _step(self, id_: str, where: str) -> bool:
        """Whether it is the id of a word; ids must be consecutive."""
        match = _ID.fullmatch(id_)
        if match is None:
            raise DataError(f"{where}: {id_!r} is no id; write 7 for a word, 7-8 for a multiword token, 7.1 for none")
        following = self._last + 1
        if match["word"]:
            expected = str(following)
            fits = id_ == expected
            self._last, self._empty = following, 0
        elif match["start"]:
            expected = str(max(following, self._range + 1))
            fits = match["start"] == expected == str(following) and int(match["stop"]) >= following
            self._range = int(match["stop"])
        else:
            self._empty += 1
            expected = f"{self._last}.{self._empty}"
            fits = id_ == expected
        if not fits:
            raise DataError(
                f"{where}: id {id_} is out of order where {expected} should come; number the words of each sentence "
                f"1, 2, 3, and leave a blank line between sentences"
            )
        return match["word"] is not None


class ColumnLines:
    """Column files. The first line with a word decides how columns are separated, and the others must agree.

    With spaces, all lines need as many columns as the first: a line with more or fewer most likely has a word with a
    space in it, or misses one, and would silently be read wrongly.
    """

    form: TaggedFormat = "columns"

    def __init__(self, name: str, word: int) -> None:
        self.name = name
        self._word = word
        self._first: tuple[int, int] | None = None  # the number of the line that decided, and of its columns
        self.separator = "\t"

    def blank(self, body: str) -> bool:
        """Whether a line ends a sentence; it may contain spaces and tabs."""
        return not body.strip(" \t")

    def word(self, body: str, number: int) -> str | None:
        """The word of a line; None if it has none."""
        if _DOCUMENT.match(body):
            return None
        where = f"{self.name}, line {number}"
        if self._first is None:
            self.separator = "\t" if "\t" in body else " " if len(NOT_SPACE.findall(body)) > 1 else ""
            self._first = (number, len(cells_of(body, self.separator)))
        cells = cells_of(body, self.separator)
        decided, width = self._first
        if self.separator != "\t" and "\t" in body:
            raise DataError(f"{where}: a tab ({short(body)}), and line {decided} has none; use tabs throughout")
        if self.separator == " " and len(cells) != width:
            raise DataError(
                f"{where}: {plural(len(cells), 'column')} ({short(body)}), and line {decided} has {width}; "
                f"correct the line, or set all columns off by tabs if words have spaces in them"
            )
        if len(cells) < self._word:
            raise DataError(
                f"{where}: {plural(len(cells), 'column')}, and the word should be in column {self._word}; "
                f"correct the line ({short(body)}) or choose another column"
            )
        return _word(cells[self._word - 1], where, body)

    def end_sentence(self, number: int) -> None:
        """Column files have no state between sentences."""


def cells_of(body: str, separator: str) -> list[str]:
    """The cells of a line."""
    if separator == " ":
        return NOT_SPACE.findall(body)
    return body.split(separator) if separator else [body]


def inside(cell: str) -> str:
    """A cell as a word or label, without spaces around it."""
    return cell.strip(" ").replace(" ", INNER_SPACE)


def _word(cell: str, where: str, body: str) -> str:
    word = inside(cell)
    if not word:
        raise DataError(f"{where}: the word is empty ({short(body)}); write it in, or take the line out")
    return word


DETECTION_LINES = 200
_CONLLU_ID = re.compile(r"[0-9]+([-.][0-9]+)?")
_TAG = re.compile(r"[^a-z]*|[BIESLU]-\S+|\S", re.ASCII)  # as taggers write them: NN, B-Per, _, O


def detect_format(lines: Iterable[str], word: int, label: int, known: Collection[str]) -> TaggedFormat | None:
    """The format of a file that begins with these lines; None: plain text.

    CoNLL-U has ten columns separated by tabs, and an id in the first. Column files have tabs in every line, or the same
    number of words, of which the one in the label column is mostly a `known` label.
    """
    rows = [line for line in lines if line.strip(" \t") and not line.startswith(("#", "-DOCSTART-"))]
    if not rows:
        return None
    cells = [row.split("\t") for row in rows]
    if all(len(row) == CONLLU_WIDTH and _CONLLU_ID.fullmatch(row[0]) for row in cells):
        return "conllu"
    if all(len(row) == len(cells[0]) > 1 for row in cells):
        return "columns"
    spaced = [cells_of(row, " ") for row in rows]
    width = len(spaced[0])
    if any("\t" in row for row in rows) or width < max(2, word, label) or any(len(row) != width for row in spaced):
        return None
    labelled = sum(row[label - 1] in known or row[label - 1] == "_" for row in spaced)
    return "columns" if 2 * labelled > len(spaced) else None


def check_columns(blocks: Sequence[TaggedSentence], label: int, known: Collection[str]) -> None:
    """Refuse plain text that is read as columns, whose words would be replaced by labels."""
    rows = [(block, row) for block in blocks for row in block.rows if block.separator == " "]
    if not rows:
        return
    wrong: list[tuple[TaggedSentence, int, str]] = []
    for block, row in rows:
        cells = cells_of(block.lines[row].rstrip("\r\n"), " ")
        cell = cells[label - 1] if label <= len(cells) else cells[-1]
        if cell not in known and _TAG.fullmatch(cell) is None:
            wrong.append((block, row, cell))
    if 2 * len(wrong) > len(rows):
        block, row, cell = wrong[0]
        raise DataError(
            f"{block.name}, line {block.first + row}: {cell!r} would be a label (column {label}), and is none, like "
            f"most others there: this is plain text, which --format text reads; if it has columns, name that of the "
            f"labels with --column"
        )
