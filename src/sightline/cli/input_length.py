"""How long a line of input may be: as a run's training suggests, so that one endless line does not take all memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from sightline.terminal import plural

if TYPE_CHECKING:
    from sightline.run import Run

MaxInputLength = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=2**24,
        help="Most tokens of an input line, by default 8 times the longest of the training or 4,096. A longer line has "
        "an empty output line, is reported and makes the exit code 1.",
    ),
]
_NAMED = 20  # lines


@dataclass
class InputLength:
    """The bound of one input, and which of its lines were beyond it."""

    run: Run
    tokens: int
    refused: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, run: Run, asked: int | None) -> InputLength:
        """As asked for, else what the run's recipe suggests."""
        return cls(run, asked or run.recipe.longest_input())

    @property
    def bytes(self) -> int:
        """The most bytes of a line: a longer one is not even read."""
        from sightline.recipe.data import longest_line

        return longest_line(self.tokens)

    def bounded(self, lines: Sequence[str], done: int) -> list[str]:
        """The lines, those that are too long as empty `LongLine`s; `done` lines went before."""
        found = [self._bounded(line) for line in lines]
        self.refused += [number for number, line in enumerate(found, done + 1) if is_long(line)]
        return found

    def _bounded(self, line: str) -> str:
        from sightline.data.text_lines import LongLine

        # A text has no more tokens than characters, but for characters of several bytes that BPE takes apart.
        if self.run.recipe.data.clean.cut_source is not None or 4 * len(line) <= self.tokens or is_long(line):
            return line
        tokens = len(self.run.vocabulary.source.encode(line))
        return line if tokens <= self.tokens else LongLine.of(len(line.encode("utf-8")))

    def check(self, lines: Sequence[str], what: str, done: int = 0) -> None:
        """Refuse lines where none can be left out; `done` lines went before."""
        self.bounded(lines, done)
        if self.refused:
            raise ValueError(
                f"{what}, {self.run.task.unit} {self.refused[0]:,}: more than {self._bound}, the most this run "
                f"reads in one; cut it into shorter ones"
            )

    def notes(self) -> list[str]:
        """What was refused, for a person to read."""
        if not self.refused:
            return []
        named = ", ".join(f"{number:,}" for number in self.refused[:_NAMED])
        rest = len(self.refused) - _NAMED
        return [
            f"{plural(len(self.refused), 'line')} too long (more than {self._bound}): {named}"
            f"{f' and {rest:,} more' if rest > 0 else ''}; the output is empty there. Cut the text into shorter "
            f"lines, or raise --max-input-length"
        ]

    @property
    def _bound(self) -> str:
        return f"{plural(self.tokens, 'token')} or {plural(self.bytes, 'byte')}"


def is_long(line: str) -> bool:
    """Whether this stands for a line that is too long."""
    from sightline.data.text_lines import LongLine

    return isinstance(line, LongLine)
