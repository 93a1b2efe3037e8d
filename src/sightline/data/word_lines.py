"""Which lines of a file stand for words, in CoNLL-U and in column files, and what is wrong with those that cannot.

CoNLL-U: https://universaldependencies.org/format.html. Column files: Tjong Kim Sang and De Meulder (2003).
"""

from __future__ import annotations

import re
from typing import Literal

from sightline.data.sources import DataError
from sightline.terminal import plural
from sightline.text.shown import short

Form = Literal["conllu", "columns"]

INNER_SPACE = "\u00a0"
NOT_SPACE = re.compile("[^ ]+")

CONLLU_WIDTH = 10
_ID = re.compile(r"(?P<word>[1-9][0-9]*)|(?P<start>[1-9][0-9]*)-(?P<stop>[1-9][0-9]*)|[0-9]+\.[1-9][0-9]*")
_DOCUMENT = re.compile(r"-DOCSTART-(?=[ \t]|\Z)")


class ConlluLines:
    """The lines of CoNLL-U: which are words, and whether their ids go on as they should."""

    form: Form = "conllu"
    separator = "\t"

    def __init__(self, name: str) -> None:
        self.name = name
        self._last = self._range = 0  # the id of the last word, and of the last that a multiword token covers
        self._empty = 0  # how many empty nodes there were since that word

    def blank(self, body: str) -> bool:
        """Whether a line ends a sentence; spaces and tabs alone are nothing."""
        return not body.strip(" \t")

    def word(self, body: str, number: int) -> str | None:
        """The word of a line; None where it has none of its own."""
        if body.startswith("#"):
            return None
        cells = body.split("\t")
        where = f"{self.name}, line {number}"
        if len(cells) != CONLLU_WIDTH:
            raise DataError(
                f"{where}: {plural(len(cells), 'column')} with tabs between them, and CoNLL-U has {CONLLU_WIDTH}; "
                f"mend the line ({short(body)}), or read the file as columns"
            )
        if not self._step(cells[0], where):
            return None
        return _word(cells[1], where, body)

    def end_sentence(self, number: int) -> None:
        """A blank line, or the end, after line `number`."""
        if self._range > self._last:
            raise DataError(
                f"{self.name}, line {number}: the sentence ends with word {self._last}, and a multiword token goes "
                f"on to {self._range}; add the words that are missing or mend the token's id"
            )
        self._last = self._range = self._empty = 0

    def _step(self, id_: str, where: str) -> bool:
        """Whether it is a word's id; it has to follow the one before."""
        match = _ID.fullmatch(id_)
        if match is None:
            raise DataError(f"{where}: {id_!r} is no id; write 7 for a word, 7-8 for a multiword token, 7.1 for none")
        following = self._last + 1
        if match["word"]:
            wanted = str(following)
            fits = id_ == wanted
            self._last, self._empty = following, 0
        elif match["start"]:
            wanted = str(max(following, self._range + 1))
            fits = match["start"] == wanted == str(following) and int(match["stop"]) >= following
            self._range = int(match["stop"])
        else:
            self._empty += 1
            wanted = f"{self._last}.{self._empty}"
            fits = id_ == wanted
        if not fits:
            raise DataError(
                f"{where}: id {id_} is out of order where {wanted} should come; number the words of each sentence "
                f"1, 2, 3, and leave a blank line between sentences"
            )
        return match["word"] is not None


class ColumnLines:
    """The lines of a column file. Its first word says how columns are set off, and the rest must agree.

    Where spaces do it, every line has to have as many columns as the first: a line with more or fewer is most likely
    one whose word has a space in it or got lost, and would be read wrongly without a trace.
    """

    form: Form = "columns"

    def __init__(self, name: str, word: int) -> None:
        self.name = name
        self._word = word
        self._first: tuple[int, int] | None = None  # the number of the line that decided, and of its columns
        self.separator = "\t"

    def blank(self, body: str) -> bool:
        """Whether a line ends a sentence; spaces and tabs alone are nothing."""
        return not body.strip(" \t")

    def word(self, body: str, number: int) -> str | None:
        """The word of a line; None where it has none of its own."""
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
                f"mend the line, or set all columns off by tabs if words have spaces in them"
            )
        if len(cells) < self._word:
            raise DataError(
                f"{where}: {plural(len(cells), 'column')}, and the word should be in column {self._word}; "
                f"mend the line ({short(body)}) or choose another column"
            )
        return _word(cells[self._word - 1], where, body)

    def end_sentence(self, number: int) -> None:
        """Sentences know nothing of each other here."""


def cells_of(body: str, separator: str) -> list[str]:
    """What stands in each column."""
    if separator == " ":
        return NOT_SPACE.findall(body)
    return body.split(separator) if separator else [body]


def inside(cell: str) -> str:
    """A cell as a word or label; spaces around it mean nothing."""
    return cell.strip(" ").replace(" ", INNER_SPACE)


def _word(cell: str, where: str, body: str) -> str:
    word = inside(cell)
    if not word:
        raise DataError(f"{where}: the word is empty ({short(body)}); write it in, or take the line out")
    return word
