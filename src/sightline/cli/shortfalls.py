"""Where a model falls short of what it was given or asked for: counted while it works, and told once when all is done.

The task says it of each text (`unknown`, `cut_short`, `ended_short`); here it is added up.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sightline.terminal import plural

if TYPE_CHECKING:
    from sightline.recipe import Decoding
    from sightline.tasks.base import Prediction, Task
    from sightline.text.tokenizer import Vocabulary

_SHOWN = 8  # pieces named, at most
_LONGEST = 40  # characters of each


class UnknownPieces:
    """Pieces of texts that no vocabulary holds."""

    def __init__(self, what: str, *, unit: str = "line") -> None:
        self.what, self.unit = what, unit
        self.count, self.texts, self.examples = 0, 0, dict[str, None]()

    def add(self, pieces: Sequence[str]) -> None:
        """Those of one text."""
        self.count += len(pieces)
        self.texts += bool(pieces)
        for piece in pieces:
            if len(self.examples) < _SHOWN:
                self.examples[piece] = None

    def notes(self) -> list[str]:
        """For a person to read; nothing where there are none."""
        if not self.count:
            return []
        where = f"{'on' if self.unit == 'line' else 'in'} {plural(self.texts, self.unit)}"
        shown = ", ".join(repr(_short(piece)) for piece in self.examples)
        why = "for they are not in the vocabulary"
        return [f"{self.what}, {why}: {plural(self.count, 'piece')} {where}, {shown}"]


class Shortfalls:
    """What a model does not know of the texts it is given, how many of them are cut, how many answers cannot go on."""

    def __init__(self, task: Task, options: Decoding, *, unit: str = "line") -> None:
        from sightline.tasks.incomplete import Incomplete

        self.task, self.options, self.unit = task, options, unit
        self.unknown, self.cut, self.ended = UnknownPieces("read as unknown", unit=unit), 0, 0
        self.incomplete = Incomplete()

    def read(self, texts: Sequence[str]) -> None:
        """Texts that are asked about."""
        self.cut += self.task.cut_short(texts)
        for text in texts:
            self.unknown.add(self.task.unknown(text))

    def wrote(self, answers: Sequence[Sequence[Prediction]]) -> None:
        """What was answered to texts."""
        self.ended += self.task.ended_short(answers)
        self.incomplete.add(answers)

    def notes(self) -> list[str]:
        """For a person to read."""
        ended = f"{plural(self.ended, self.unit)} ended where the learned positions of this model do"
        cut = f"{plural(self.cut, self.unit)} cut short (data.clean.cut_source)"
        notes = [*([ended] if self.ended else []), *([cut] if self.cut else []), *self.unknown.notes()]
        return [*notes, *self.incomplete.notes(self.task, self.options)]


def _short(piece: str) -> str:
    return piece if len(piece) <= _LONGEST else piece[: _LONGEST - 1] + "…"


def tell(notes: Sequence[str]) -> None:
    """On standard error, a line each."""
    for note in notes:
        print(f"sightline: {note}", file=sys.stderr)


def tell_unknown_target(vocabulary: Vocabulary, target: str | None) -> None:
    """Name what of an output that is forced no vocabulary holds; a label that is none is refused where it is read."""
    if target is not None and vocabulary.labels == "none":
        unknown = UnknownPieces("written as unknown (--target)", unit="text")
        unknown.add(vocabulary.target.unknown(target))
        tell(unknown.notes())
