"""Worked examples: numbered steps, each with formula, operands and result, for a terminal and for JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.text import Text

from sightline.inspection.arithmetic import decimals, number
from sightline.inspection.trace import to_json
from sightline.plots.terminal import NumberTable


class WholeTable(NumberTable):
    """Every row and column of a matrix."""

    rows_shown: ClassVar[int] = 10**9
    columns_shown: ClassVar[int] = 10**9


@dataclass(frozen=True)
class Result:
    """One result of a step: `name = formula`, its numbers, and the arithmetic of some of them."""

    name: str
    formula: str = ""
    values: Any = None  # a number, vector or matrix
    rows: Sequence[str] | None = None  # labels of a matrix
    columns: Sequence[str] | None = None
    arithmetic: Sequence[str] = ()
    note: str = ""
    shown: bool = True  # False: the arithmetic has the numbers already

    def record(self) -> dict[str, Any]:
        """For JSON."""
        parts = {"name": self.name, "formula": self.formula, "arithmetic": list(self.arithmetic), "note": self.note}
        values = None if self.values is None else to_json(np.asarray(self.values).tolist())
        return {**{key: part for key, part in parts.items() if part}, "values": values}

    def render(self) -> Iterator[RenderableType]:
        if self.shown or self.formula:
            title = Text(self.name, style="bold").append(f" = {self.formula}" if self.formula else "", style="italic")
            yield Padding(title, (0, 0, 0, 3), expand=False)
        if self.note:
            yield Padding(Text(self.note, style="dim"), (0, 0, 0, 5), expand=False)
        for line in self.arithmetic:
            yield Padding(Text(line), (0, 0, 0, 5), expand=False)
        if self.values is not None and self.shown:
            values = np.asarray(self.values)
            if not values.ndim:
                yield Text(f"     {number(values)}")
                return
            table = WholeTable(np.atleast_2d(values), self.rows, self.columns, number)
            yield Padding(table, (0, 0, 0, 5), expand=False)


@dataclass(frozen=True)
class WorkedStep:
    """A heading, a sentence or two, and the results of one step."""

    heading: str
    text: str = ""
    results: Sequence[Result] = ()
    key: str = ""  # by which a command names it

    def record(self) -> dict[str, Any]:
        """For JSON."""
        return {"step": self.heading, "text": self.text, "results": [each.record() for each in self.results]}


@dataclass(frozen=True)
class WorkedExample:
    """Steps in order, with a title; numbers have `digits` digits after the point."""

    title: str
    steps: Sequence[WorkedStep]
    digits: int
    about: dict[str, Any] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """For JSON, with all digits."""
        return {**self.about, "steps": [step.record() for step in self.steps]}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        with decimals(self.digits):
            parts = [part for step in self.steps for part in _rendered(step)]
            lines = [line for part in [Text(self.title, style="bold"), *parts] for line in console.render(part)]
        yield from lines


def _rendered(step: WorkedStep) -> Iterator[RenderableType]:
    yield Text("")
    yield Text(step.heading, style="bold cyan")
    if step.text:
        yield Padding(Text(step.text, style="dim"), (0, 0, 0, 3), expand=False)
    for result in step.results:
        yield from result.render()
