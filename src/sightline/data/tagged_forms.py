"""What form a file of words has, from its content: CoNLL-U, columns, or plain text, one sentence a line."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from sightline.data.sources import DataError
from sightline.data.tagged import Block
from sightline.data.word_lines import CONLLU_WIDTH, Form, cells_of

LOOKED_AT = 200  # lines
_CONLLU_ID = re.compile(r"[0-9]+([-.][0-9]+)?")
_TAG = re.compile(r"[^a-z]*|[BIESLU]-\S+|\S", re.ASCII)  # as taggers write them: NN, B-Per, _, O


def detect_form(lines: Iterable[str], word: int, label: int, known: Collection[str]) -> Form | None:
    """The form of a file that begins with these lines; None: plain text.

    CoNLL-U has ten columns with tabs between them, and an id in the first. Other columns have tabs in every line, or
    the same number of words, of which the one in the label column is mostly a label that is `known`.
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


def check_columns(blocks: Sequence[Block], label: int, known: Collection[str]) -> None:
    """Refuse plain text that is read as columns: its words stand where labels would be replaced, or put behind them."""
    rows = [(block, row) for block in blocks for row in block.rows if block.separator == " "]
    if not rows:
        return
    wrong: list[tuple[Block, int, str]] = []
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
