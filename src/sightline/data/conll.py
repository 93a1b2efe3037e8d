"""Read and write files with one word a line: CoNLL-U, and columns (CoNLL-2003 and similar formats).

A sentence is an `Example`: its words joined by single spaces, and its labels. A space inside a word or a label becomes
U+00A0, so that both sides have the same count. Prediction reads a `TaggedSentence`, which keeps its lines and changes
nothing but the labels.

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

TaggedFormat = Literal["conllu", "columns"]
Column = str | int  # a name in CoNLL-U; a number from 1 in column files

CONLLU_COLUMNS = {"form": 2, "lemma": 3, "upos": 4, "xpos": 5, "feats": 6, "deprel": 8}  # counted from 1
CONLLU_WIDTH = 10
INNER_SPACE = "\u00a0"

_NEVER_BLANK = ("upos", "xpos", "deprel")  # elsewhere "_" has a meaning: no features, no lemma, or a "_"
_SUFFIXES: dict[str, TaggedFormat] = {
    ".conllu": "conllu",
    ".tsv": "columns",
    ".conll": "columns",
    ".col": "columns",
    ".bio": "columns",
}
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
_LIMIT = LineLimit(2**20, remedy="a line has one word and its labels")
_MOST_LINES = 100_000  # of a sentence
_NOT_SPACE = re.compile("[^ ]+")
_ID = re.compile(r"(?P<word>[1-9][0-9]*)|(?P<start>[1-9][0-9]*)-(?P<stop>[1-9][0-9]*)|[0-9]+\.[1-9][0-9]*")
_DOCUMENT = re.compile(r"-DOCSTART-(?=[ \t]|\Z)")


def split_words(text: str) -> list[str]:
    """The words (or labels) of one side of a tagged example; none in an empty text."""
    return text.split(" ") if text else []


def join_words(words: Iterable[str]) -> str:
    """Words (or labels) as one text, which `split_words` splits again; a space inside one becomes U+00A0."""
    words = list(words)
    if "" in words:
        raise ValueError(f"word {words.index('') + 1} of {len(words)} is empty; it would be lost between two spaces")
    return " ".join(word.replace(" ", INNER_SPACE) for word in words)


def format_of(path: Path) -> TaggedFormat | None:
    """The format of a file by its suffix, ignoring that of a compressed file; None: plain text."""
    plain = path.with_suffix("") if path.suffix.lower() in _COMPRESSED else path
    return _SUFFIXES.get(plain.suffix.lower())


def read_conllu(path: Path, column: str = "upos") -> Iterator[Example]:
    """The sentences of a CoNLL-U file with the labels of one column."""
    if column not in CONLLU_COLUMNS:
        raise DataError(f"{path}: no column {column!r} to learn; choose one of {', '.join(CONLLU_COLUMNS)}")
    return _examples(tagged_sentences(read_lines(path, _LIMIT), "conllu", name=str(path)), column)


def read_columns(path: Path, word: int = 1, label: int = 2) -> Iterator[Example]:
    """The sentences of a column file, with words and labels from columns counted from 1."""
    if label < 1:
        raise DataError(f"{path}: label column {label}; columns are counted from 1")
    return _examples(tagged_sentences(read_lines(path, _LIMIT), "columns", word, name=str(path)), label)


def read_conllu_source(source: ConlluSource, paths: list[Path], limit: LineLimit) -> Numbered:
    """The examples of `kind: conllu`."""
    return enumerate(read_conllu(paths[0], source.column), 1)


def read_columns_source(source: ColumnsSource, paths: list[Path], limit: LineLimit) -> Numbered:
    """The examples of `kind: columns`."""
    return enumerate(read_columns(paths[0], source.word, source.label), 1)


def _examples(sentences: Iterator[TaggedSentence], column: Column) -> Iterator[Example]:
    """Sentences with words as examples; every word needs a label."""
    missing = ("", "_") if column in _NEVER_BLANK else ("",)
    for sentence in sentences:
        labels = sentence.labels(column)
        for row, word, label in zip(sentence.rows, sentence.words, labels, strict=True):
            if label in missing:
                raise DataError(
                    f"{sentence.place(row)}: {word!r} has no label in column {column} ({label!r}); "
                    f"fill it in, or choose another column"
                )
        if sentence.words:
            yield Example(join_words(sentence.words), join_words(labels))


@dataclass(frozen=True)
class TaggedSentence:
    """A sentence with all its lines. Spaces inside `words` are U+00A0, as in an `Example`."""

    lines: tuple[str, ...]
    words: tuple[str, ...]
    rows: tuple[int, ...]  # the lines of the words
    separator: str  # between columns: a tab, spaces, or "" if there is only one column
    form: TaggedFormat
    name: str  # of the input
    first: int  # the number of the first line in the input

    def labels(self, column: Column | None = None) -> list[str]:
        """The labels of the file: by default upos, or column 2."""
        number = self._number(column)
        labels = []
        for row in self.rows:
            cells = _cells(_without_end(self.lines[row]), self.separator)
            if len(cells) < number:
                raise DataError(
                    f"{self.place(row)}: {plural(len(cells), 'column')}, and the label should be in column {number}; "
                    f"correct the line ({short(self.lines[row])}) or choose another column"
                )
            labels.append(_inside(cells[number - 1]))
        return labels

    def tagged(self, labels: Sequence[str], column: Column | None = None) -> list[str]:
        """The lines with these labels, one for each word, and otherwise unchanged.

        In tab-separated files, U+00A0 in a label is written as a space.
        """
        number = self._number(column)
        if len(labels) != len(self.words):
            raise ValueError(
                f"{self.place(0)}: {plural(len(labels), 'label')} for {plural(len(self.words), 'word')}; give one "
                "label for each word"
            )
        lines = list(self.lines)
        for row, label in zip(self.rows, labels, strict=True):
            if not label.strip(" ") or any(mark in label for mark in "\t\n\r"):
                raise ValueError(f"{self.place(0)}: {label!r} cannot be a label: it is empty or would break the line")
            lines[row] = self._relabelled(row, label, number)
        return lines

    def _relabelled(self, row: int, label: str, number: int) -> str:
        line = self.lines[row]
        body = _without_end(line)
        end = line[len(body) :]
        cells = _cells(body, self.separator)
        if number > len(cells) + 1:
            raise DataError(
                f"{self.place(row)}: {plural(len(cells), 'column')}, so a label cannot become column {number}; "
                f"correct the line ({short(line)}) or choose column {len(cells) + 1}"
            )
        if number <= len(cells) and _inside(cells[number - 1]) == label.replace(" ", INNER_SPACE):
            return line  # keeps U+00A0 and spaces of the file
        spaced = self.separator == " "
        written = label.replace(" ", INNER_SPACE) if spaced else label.replace(INNER_SPACE, " ")
        if number > len(cells):
            return body + (self.separator or "\t") + written + end
        if spaced:  # there may be several spaces between cells
            start, stop = list(_NOT_SPACE.finditer(body))[number - 1].span()
            return body[:start] + written + body[stop:] + end
        cells[number - 1] = written
        return self.separator.join(cells) + end

    def _number(self, column: Column | None) -> int:
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

    def place(self, row: int) -> str:
        """The name of the input and the line number of a row, for error messages."""
        return f"{self.name}, line {self.first + row}"


def tagged_sentences(
    lines: Iterable[str], form: TaggedFormat, word: int = 1, *, name: str = "input"
) -> Iterator[TaggedSentence]:
    """The sentences of a file, each as soon as it is complete; together they have all lines.

    A sentence ends with its blank line; a further blank line, only comments or a -DOCSTART- line make a sentence
    without words. `word` is the column of the words in column files; `name` is the name of the input in errors. Lines
    keep their line ends, if they have any.
    """
    if form == "columns" and word < 1:
        raise DataError(f"{name}: word column {word}; columns are counted from 1")
    return _sentences(lines, ConlluLines() if form == "conllu" else ColumnLines(word), name)


def _sentences(lines: Iterable[str], parser: ConlluLines | ColumnLines, name: str) -> Iterator[TaggedSentence]:
    kept: list[str] = []
    words: dict[int, str] = {}  # by line
    number = 0

    def parse(body: str) -> str | None:
        try:
            return parser.word(body, number)
        except ValueError as error:
            raise DataError(f"{name}, line {number}: {error}") from error

    def sentence() -> TaggedSentence:
        parse("")  # for errors that show at the end of a sentence
        first = number - len(kept) + 1
        return TaggedSentence(
            tuple(kept), tuple(words.values()), tuple(words), parser.separator, parser.form, name, first
        )

    for number, line in enumerate(lines, 1):
        body = _without_end(line)
        kept.append(line)
        if len(kept) > _MOST_LINES:
            raise DataError(
                f"{name}, line {number - len(kept) + 1:,}: a sentence of more than {_MOST_LINES:,} lines; end each "
                f"sentence with an empty line"
            )
        if not body.strip(" \t"):
            yield sentence()
            kept, words = [], {}
        elif (word := parse(body)) is not None:
            words[len(kept) - 1] = word
    if kept:
        yield sentence()


class ConlluLines:
    """Finds the words of CoNLL-U lines and checks that their ids are in order."""

    form: TaggedFormat = "conllu"
    separator = "\t"

    def __init__(self) -> None:
        self._last = self._range = 0  # ids of the last word, and of the last word of a multiword token
        self._empty = 0  # empty nodes since that word

    def word(self, body: str, number: int) -> str | None:
        """The word of a line; None if it has none. An empty line ends a sentence."""
        if not body:
            if self._range > self._last:
                raise ValueError(
                    f"the sentence ends with word {self._last}, and a multiword token goes on to {self._range}; add "
                    f"the missing words or correct the token's id"
                )
            self._last = self._range = self._empty = 0
        if not body or body.startswith("#"):
            return None
        cells = body.split("\t")
        if len(cells) != CONLLU_WIDTH:
            raise ValueError(
                f"{plural(len(cells), 'column')} with tabs between them, and CoNLL-U has {CONLLU_WIDTH}; correct the "
                f"line ({short(body)}), or read the file as columns"
            )
        return _word(cells[1], body) if self._advance(cells[0]) else None

    def _advance(self, id_: str) -> bool:
        """Check that an id follows the ids before it; True for the id of a word."""
        match = _ID.fullmatch(id_)
        if match is None:
            raise ValueError(f"{id_!r} is no id; write 7 for a word, 7-8 for a multiword token, 7.1 for none")
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
            raise ValueError(
                f"id {id_} is out of order where {expected} should come; number the words of each sentence 1, 2, 3, "
                f"and leave a blank line between sentences"
            )
        return match["word"] is not None


class ColumnLines:
    """Finds the words of column files. The first line with a word sets the separator for all lines.

    With spaces, all lines need as many columns as the first: a line with more or fewer most likely has a word with a
    space in it, or lacks a cell.
    """

    form: TaggedFormat = "columns"

    def __init__(self, word: int) -> None:
        self._word = word
        self._first: tuple[int, int] | None = None  # the number of the first line with a word, and of its columns
        self.separator = "\t"

    def word(self, body: str, number: int) -> str | None:
        """The word of a line; None if it has none."""
        if not body or _DOCUMENT.match(body):
            return None
        if self._first is None:
            self.separator = "\t" if "\t" in body else " " if len(_NOT_SPACE.findall(body)) > 1 else ""
            self._first = (number, len(_cells(body, self.separator)))
        cells = _cells(body, self.separator)
        first, width = self._first
        if self.separator != "\t" and "\t" in body:
            raise ValueError(f"a tab ({short(body)}), and line {first} has none; use tabs throughout")
        if self.separator == " " and len(cells) != width:
            raise ValueError(
                f"{plural(len(cells), 'column')} ({short(body)}), and line {first} has {width}; correct the line, or "
                f"set all columns off by tabs if words have spaces in them"
            )
        if len(cells) < self._word:
            raise ValueError(
                f"{plural(len(cells), 'column')}, and the word should be in column {self._word}; correct the line "
                f"({short(body)}) or choose another column"
            )
        return _word(cells[self._word - 1], body)


def _without_end(line: str) -> str:
    return line.rstrip("\r\n")


def _cells(body: str, separator: str) -> list[str]:
    if separator == " ":
        return _NOT_SPACE.findall(body)
    return body.split(separator) if separator else [body]


def _inside(cell: str) -> str:
    """A cell as a word or label: without spaces around it, and with U+00A0 inside."""
    return cell.strip(" ").replace(" ", INNER_SPACE)


def _word(cell: str, body: str) -> str:
    if word := _inside(cell):
        return word
    raise ValueError(f"the word is empty ({short(body)}); write it in, or take the line out")


DETECTION_LINES = 200
_CONLLU_ID = re.compile(r"[0-9]+([-.][0-9]+)?")  # looser than _ID: errors are reported when the file is read
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
    spaced = [_cells(row, " ") for row in rows]
    width = len(spaced[0])
    if any("\t" in row for row in rows) or width < max(2, word, label) or any(len(row) != width for row in spaced):
        return None
    labelled = sum(row[label - 1] in known or row[label - 1] == "_" for row in spaced)
    return "columns" if 2 * labelled > len(spaced) else None


def check_columns(sentences: Sequence[TaggedSentence], label: int, known: Collection[str]) -> None:
    """Refuse plain text that is read as columns, whose words would be replaced by labels."""
    labels = []
    for sentence in sentences:
        for row in sentence.rows if sentence.separator == " " else ():
            cells = _cells(_without_end(sentence.lines[row]), " ")
            labels.append((cells[min(label, len(cells)) - 1], sentence.place(row)))
    wrong = [(cell, place) for cell, place in labels if cell not in known and _TAG.fullmatch(cell) is None]
    if 2 * len(wrong) > len(labels):
        cell, place = wrong[0]
        raise DataError(
            f"{place}: {cell!r} would be a label (column {label}), and is none, like most others there: this is plain "
            f"text, which --format text reads; if it has columns, name that of the labels with --column"
        )
