"""Confusion matrices as figures and as tables for a terminal: rows are true labels, columns predicted ones.

Colours and percentages are shares of a row, so that errors of rare labels are as visible as those of frequent ones.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from sightline.plots.figures import INK, LARGEST, new_picture, shortened
from sightline.plots.matrices import (
    PALE_TO_DEEP,
    colour_bar,
    coloured_cells,
    row_shares,
    set_cells_apart,
    write_in_cells,
)
from sightline.plots.terminal import plain_text
from sightline.terminal import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

_NUMBERED_LABELS = 40  # the numbers of more labels would be too small
_EVERY_ZERO_LABELS = 6  # with more labels, zeros are left out to make errors visible
_LINE, _LINES = 26, 4  # most characters and lines of a label
_LONGEST_IN_TERMINAL = 24


class Confused(Protocol):
    """What is drawn, such as `sightline.evaluation.labels.Confusion`, which may not be imported here."""

    @property
    def labels(self) -> tuple[str, ...]: ...
    @property
    def counts(self) -> NDArray[np.int64]: ...  # (C, C): true, predicted
    @property
    def support(self) -> NDArray[np.int64]: ...  # (C,)
    @property
    def precision(self) -> NDArray[np.float64]: ...
    @property
    def recall(self) -> NDArray[np.float64]: ...
    @property
    def f1(self) -> NDArray[np.float64]: ...


# --- the picture -------------------------------------------------------------------------------------------------


def draw_confusion(confusion: Confused, path: Path, *, title: str | None = None) -> None:
    """Draw a confusion matrix to a .png, .svg or .pdf file."""
    if not confusion.labels:
        raise ValueError(f"there is nothing to draw in {path.name}: the confusion has no labels")
    cell = _cell_size(len(confusion.labels))
    side = cell * len(confusion.labels)  # labels are in the margin
    style = {"axes.labelcolor": INK, "axes.titlecolor": INK}
    with new_picture(path, style, figsize=(side, side)) as figure:
        axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        shares = row_shares(confusion.counts)
        image = _heat_map(axes, shares)
        _label(axes, confusion, cell)
        if len(confusion.labels) <= _NUMBERED_LABELS:
            _number(axes, confusion.counts, shares, image)
        colour_bar(figure, image, axes.inset_axes((1.0 + 0.2 / side, 0.0, 0.18 / side, 1.0)), "share of the row")
        if title:
            axes.set_title(textwrap.fill(title, max(60, round(side * 12))), fontsize=12, loc="left", pad=14)


def _cell_size(labels: int) -> float:
    """Inches of a cell: larger for few labels."""
    if labels <= 4:
        return 1.15
    if labels <= 10:
        return 0.85
    return 0.62 if labels <= _NUMBERED_LABELS else min(0.3, LARGEST / labels)


def _heat_map(axes: Axes, shares: NDArray[np.float64]) -> AxesImage:
    from matplotlib.patches import Rectangle

    image = coloured_cells(axes, shares, PALE_TO_DEEP, 0.0, 1.0, square=True)
    set_cells_apart(axes, *shares.shape, by=1.4 if len(shares) <= _NUMBERED_LABELS else 0.5)
    for place in range(len(shares)):  # frame the diagonal
        axes.add_patch(
            Rectangle((place - 0.47, place - 0.47), 0.94, 0.94, fill=False, edgecolor=INK, linewidth=1.1, zorder=3)
        )
    return image


def _label(axes: Axes, confusion: Confused, cell: float) -> None:
    lines = max(1, min(_LINES, int(cell / 0.15)))
    names = [_wrapped(visible(label), lines) for label in confusion.labels]
    rows = [f"{name} ({count:,})" for name, count in zip(names, confusion.support.tolist(), strict=True)]
    size = 9.5 if cell > 0.5 else 7
    widest = max(cell_len(line) for name in names for line in name.splitlines())
    tallest = max(len(name.splitlines()) for name in names)
    turned: dict[str, Any] = {}
    if widest * size * 0.0088 > cell:  # approximate inches of a letter
        # at 45° neighbouring labels are √½ cells apart, room for two lines
        angle = 45 if tallest <= 2 and cell > 0.5 else 90
        turned = {"rotation": angle, "ha": "left", "va": "center" if angle == 90 else "baseline"}
        turned["rotation_mode"] = "anchor"
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_xticks(range(len(names)), names, fontsize=size, color=INK, **turned)
    axes.set_yticks(range(len(rows)), rows, fontsize=size, color=INK)
    axes.tick_params(axis="both", which="major", pad=5)
    axes.set_xlabel("predicted", fontsize=11, labelpad=10, fontweight="bold")
    axes.set_ylabel("right (how many)", fontsize=11, labelpad=10, fontweight="bold")


def _number(axes: Axes, counts: NDArray[np.int64], shares: NDArray[np.float64], image: AxesImage) -> None:
    """Write counts and shares of the row into the cells."""
    size = 11 if len(counts) <= 4 else 9.5 if len(counts) <= 10 else 7.5
    few = len(counts) <= _EVERY_ZERO_LABELS
    texts = [
        [f"{count:,}\n{percentage(float(share))}" if count or few else "" for count, share in zip(*row, strict=True)]
        for row in zip(counts, shares, strict=True)
    ]
    write_in_cells(axes, image, texts, size=size)


def _wrapped(label: str, lines: int) -> str:
    """Wrap a label into lines; cut the middle of longer ones, since labels often differ at their ends."""
    room = _LINE * lines
    if len(label) > room:
        label = label[: room // 2 - 1] + "…" + label[len(label) - room // 2 + lines :]
    return textwrap.fill(label, _LINE, break_on_hyphens=False)


def percentage(share: float) -> str:
    """`12%`; 100% and 0% only for exact shares."""
    if 0 < share < 0.01:
        return "<1%"
    return ">99%" if 0.99 < share < 1 else f"{100 * share:.0f}%"


# --- the terminal ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TerminalConfusion:
    """Counts, in blocks that fit the console, then the scores of each label."""

    confusion: Confused

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        names = [shortened(visible(label), _LONGEST_IN_TERMINAL) for label in self.confusion.labels]
        numbered = [f"{number} {name}" for number, name in enumerate(names, start=1)]
        margin = max(map(cell_len, [*numbered, "right ↓ predicted →"]), default=0) + 2
        for start, stop, across in _blocks(names, self.confusion.counts, options.max_width - margin):
            yield self._counts(names if across else numbered, start, stop, across)
            yield Text("")
        yield self._scores(names, options.max_width)

    def _counts(self, names: Sequence[str], start: int, stop: int, across: bool) -> Table:
        table = _table()
        table.add_column("right ↓ predicted →", no_wrap=True)
        for place in range(start, stop):
            table.add_column(Text(names[place] if across else str(place + 1)), justify="right", no_wrap=True)
        shares = row_shares(self.confusion.counts)
        for row, name in enumerate(names):
            cells = [
                Text(str(count) if count else "·", style=_style(row == column, float(shares[row, column])))
                for column, count in enumerate(self.confusion.counts[row, start:stop].tolist(), start=start)
            ]
            table.add_row(Text(name), *cells)
        return table

    def _scores(self, names: Sequence[str], width: int) -> Table:
        table = _table()
        table.add_column("label", no_wrap=True)
        for heading in ("precision", "recall", "   F1", "support"):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("most often taken for", no_wrap=True)
        room = width - max(map(cell_len, [*names, "label"])) - sum(map(len, ("precision", "recall", "   F1"))) - 10
        room -= max(len("support"), len(str(self.confusion.support.max(initial=0))))
        scores = zip(self.confusion.precision, self.confusion.recall, self.confusion.f1, strict=True)
        for row, (name, several) in enumerate(zip(names, scores, strict=True)):
            written = [f"{each:.1f}" for each in several]
            taken = Text(shortened(_taken_for(names, self.confusion.counts[row], row), max(room, 20)))
            table.add_row(Text(name), *written, str(self.confusion.support[row]), taken)
        return table


def confusion_text(confusion: Confused, width: int = 100) -> str:
    """The tables as plain text without colours."""
    lines = plain_text(TerminalConfusion(confusion), width).splitlines()
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _blocks(names: Sequence[str], counts: NDArray[np.int64], room: int) -> Iterator[tuple[int, int, bool]]:
    """Split the columns into blocks that fit: (start, stop, labels instead of numbers as heads)."""
    longest = len(str(counts.max(initial=0)))
    if sum(max(cell_len(name), longest) + 2 for name in names) <= room:
        yield 0, len(names), True
        return
    fitting = max(1, room // (max(longest, len(str(len(names)))) + 2))
    for start in range(0, len(names), fitting):
        yield start, min(start + fitting, len(names)), False


def _taken_for(names: Sequence[str], counts: NDArray[np.int64], right: int) -> str:
    """The two labels most often predicted instead: `12 × sport, 3 × news`."""
    wrong = [(-int(count), column) for column, count in enumerate(counts) if count and column != right]
    return ", ".join(f"{-count} × {names[column]}" for count, column in sorted(wrong)[:2])


def _style(right: bool, share: float) -> str:
    if right:
        return "bold cyan"
    return "dim" if share == 0 else "yellow" if share >= 0.1 else ""


def _table() -> Table:
    return Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, header_style="bold")
