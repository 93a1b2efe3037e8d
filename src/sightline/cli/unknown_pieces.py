"""What of an input a model could not read as it stands: counted, and told once when all is done."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sightline.plural import plural

if TYPE_CHECKING:
    from sightline.answering.answerer import Prediction
    from sightline.run import Run


class Unknown:
    """What the vocabulary does not know, and what was cut or ended short."""

    def __init__(self, what: str = "read as unknown", *, unit: str = "line") -> None:
        self.what, self.unit = what, unit
        self.count, self.lines, self.examples, self.cut, self.ended = 0, 0, dict[str, None](), 0, 0

    def look(self, run: Run, text: str) -> None:
        """What is unknown in a line, and whether it is cut."""
        self.cut += run.answerer.cut_short([text])
        self.add(run.vocabulary.source.unknown(text if run.recipe.data.noise is None else text.replace("[MASK]", "")))

    def add(self, pieces: Sequence[str]) -> None:
        """Those of a line."""
        if pieces:
            self.count += len(pieces)
            self.lines += 1
            for piece in pieces:
                if len(self.examples) < 8:
                    self.examples[piece] = None

    def see(self, run: Run, found: Sequence[list[Prediction]]) -> None:
        """What a language model wrote: whether it went on up to its last learned position, and could not go on."""
        longest = run.answerer.longest_source()
        if longest is not None and run.recipe.task == "language-model":
            self.ended += sum(len(guesses[0].tokens) >= longest for guesses in found)

    def tell(self) -> None:
        """On standard error, if there was anything."""
        if self.ended:
            what = f"{plural(self.ended, self.unit)} ended where the learned positions of this model do"
            print(f"sightline: {what}", file=sys.stderr)
        if self.cut:
            print(f"sightline: {plural(self.cut, self.unit)} cut short (data.clean.cut_source)", file=sys.stderr)
        if self.count:
            where = f"{'on' if self.unit == 'line' else 'in'} {plural(self.lines, self.unit)}"
            shown = ", ".join(repr(piece) for piece in self.examples)
            print(
                f"sightline: {self.what}, for they are not in the vocabulary: {plural(self.count, 'piece')} {where}, "
                f"{shown}",
                file=sys.stderr,
            )
