"""Files with one word a line, to sentences and back: CoNLL-U, or columns (CoNLL-2003 and its kin).

A tagged sentence is an `Example`: its words joined by single spaces, its labels likewise. A space inside a word or a
label stands there as U+00A0, so that both sides always count alike. For prediction a sentence is a `Block`, which
keeps its lines as they came and gives them back with nothing but the labels changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sightline.data.sources import DataError, Example, read_lines
from sightline.data.text_lines import Bound
from sightline.data.word_lines import INNER_SPACE, NOT_SPACE, ColumnLines, ConlluLines, Form, cells_of, inside
from sightline.terminal import plural
from sightline.text.shown import short

CONLLU_COLUMNS = {"form": 2, "lemma": 3, "upos": 4, "xpos": 5, "feats": 6, "deprel": 8}  # counted from 1

_NEVER_BLANK = ("upos", "xpos", "deprel")  # elsewhere "_" says something: no features, no lemma of its own, a "_"
_FORMS: dict[str, Form] = {
    ".conllu": "conllu",
    ".tsv": "columns",
    ".conll": "columns",
    ".col": "columns",
    ".bio": "columns",
}
_BOUND = Bound(2**20, remedy="a line has one word and its labels")
_MOST_LINES = 100_000  # of a sentence
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")


def words_of(text: str) -> list[str]:
    """The words (or labels) of one side of a tagged example; none in an empty text."""
    return text.split(" ") if text else []


def joined(words: Iterable[str]) -> str:
    """Words (or labels) as one text that `words_of` takes apart again; a space inside one becomes U+00A0."""
    words = list(words)
    if "" in words:
        raise ValueError(f"word {words.index('') + 1} of {len(words)} is empty; it would be lost between two spaces")
    return " ".join(word.replace(" ", INNER_SPACE) for word in words)


def form_of(path: Path) -> Form | None:
    """What a file's name says of its form (None: it is plain text), without the suffix of a compressed one."""
    plain = path.with_suffix("") if path.suffix.lower() in _COMPRESSED else path
    return _FORMS.get(plain.suffix.lower())


def read_conllu(path: Path, column: str = "upos") -> Iterator[Example]:
    """The sentences of a CoNLL-U file with the labels of one column."""
    if column not in CONLLU_COLUMNS:
        raise DataError(f"{path}: no column {column!r} to learn; choose one of {', '.join(CONLLU_COLUMNS)}")
    return _read(sentences(read_lines(path, _BOUND), "conllu", name=str(path)), column)


def read_columns(path: Path, word: int = 1, label: int = 2) -> Iterator[Example]:
    """The sentences of a column file, with words and labels from columns counted from 1."""
    if label < 1:
        raise DataError(f"{path}: label column {label}; columns are counted from 1")
    return _read(sentences(read_lines(path, _BOUND), "columns", word, name=str(path)), label)


def sentences(lines: Iterable[str], form: Form, word: int = 1, *, name: str = "the input") -> Iterator[Block]:
    """The lines in blocks of one sentence each, as soon as each is complete; no line is lost.

    A block ends with its blank line; a blank line more, comments alone or a -DOCSTART- line make a block without
    words. `word` is the column of the words, in column files; `name` is what errors call the input. Lines may come
    with their line ends or without, and keep them.
    """
    if form == "conllu":
        return _blocks(lines, ConlluLines(name))
    if word < 1:
        raise DataError(f"{name}: word column {word}; columns are counted from 1")
    return _blocks(lines, ColumnLines(name, word))


@dataclass(frozen=True)
class Block:
    """A sentence with all the lines around it. `words` are as in an `Example`: spaces inside them are U+00A0."""

    lines: tuple[str, ...]
    words: tuple[str, ...]
    rows: tuple[int, ...]  # where among the lines the words stand
    separator: str  # between columns: a tab, spaces, or "" in a file that has but one
    form: Form
    name: str
    first: int  # the number of the first line in the input

    def labels(self, column: str | int | None = None) -> list[str]:
        """The labels that stand there already: by default upos, or column 2."""
        number = self._number(column)
        labels = []
        for row in self.rows:
            cells = cells_of(_body(self.lines[row]), self.separator)
            if len(cells) < number:
                raise DataError(
                    f"{self._where(row)}: {plural(len(cells), 'column')}, and the label should be in column {number}; "
                    f"mend the line ({short(self.lines[row])}) or choose another column"
                )
            labels.append(inside(cells[number - 1]))
        return labels

    def tagged(self, labels: Sequence[str], column: str | int | None = None) -> list[str]:
        """The lines with these labels, one for each word, and all else byte for byte as it came.

        Where labels are set off by tabs, U+00A0 in a new label is written as the space it stands for.
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
                f"mend the line ({short(line)}) or choose column {len(cells) + 1}"
            )
        if inside(cells[number - 1]) == label.replace(" ", INNER_SPACE):  # its U+00A0 may be one from the start
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


def _blocks(lines: Iterable[str], layout: ConlluLines | ColumnLines) -> Iterator[Block]:
    kept: list[str] = []
    words: dict[int, str] = {}  # by their places among the lines
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


def _block(lines: list[str], words: dict[int, str], layout: ConlluLines | ColumnLines, last: int) -> Block:
    layout.end_sentence(last)
    return Block(
        lines=tuple(lines),
        words=tuple(words.values()),
        rows=tuple(words),
        separator=layout.separator,
        form=layout.form,
        name=layout.name,
        first=last - len(lines) + 1,
    )


def _read(blocks: Iterator[Block], column: str | int) -> Iterator[Example]:
    """Blocks with words as examples; every word must have its label."""
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
        yield Example(joined(block.words), joined(labels))


def _body(line: str) -> str:
    return line.rstrip("\r\n")


def _with_cell(body: str, separator: str, number: int, cell: str) -> str:
    """The line with another cell in one column."""
    if separator == " ":  # there may be several in a row
        start, stop = list(NOT_SPACE.finditer(body))[number - 1].span()
        return body[:start] + cell + body[stop:]
    cells = cells_of(body, separator)
    cells[number - 1] = cell
    return separator.join(cells)
