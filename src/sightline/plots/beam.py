"""Figure of a recorded beam search: steps from left to right, hypotheses of a step below each other.

A long search wraps into bands of a dozen steps; if these do not fit, the last steps are left out, with a note.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.plots.figures import INK, LARGEST, heading_lines, new_picture, shortened
from sightline.terminal import visible

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

    from sightline.inspection.beam import BeamRecord, Node

_DEEP, _MIDDLE, _PALE, _GREY = "#0b3260", "#4a93c8", "#cddff0", "#7b8794"
_ACROSS, _DOWN = 1.25, 0.36  # inches of a step and of a hypothesis
_BAND = 12  # most steps across
_LONGEST_LABEL = 11
_ROUND: dict[str, Any] = {"boxstyle": "round,pad=0.3", "facecolor": "white", "edgecolor": _MIDDLE}
_BOXES: dict[str, tuple[str, dict[str, Any]]] = {  # fate → its description and the style of its box
    "best": ("best output", {**_ROUND, "facecolor": _DEEP, "edgecolor": _DEEP, "linewidth": 1.6}),
    "finished": ("finished", {**_ROUND, "facecolor": _PALE, "edgecolor": _DEEP, "linewidth": 1.6}),
    "continued": ("continued", {**_ROUND, "linewidth": 1.0}),
    "done": ("unfinished when the search ended", {**_ROUND, "linestyle": ":"}),
    "outscored": ("outscored", {"boxstyle": "square,pad=0.15", "facecolor": "white", "edgecolor": "none"}),
}


@dataclass(frozen=True)
class _Bands:
    """Positions of hypotheses when the steps wrap into bands."""

    steps: int
    across: int  # steps of a band
    pitch: float  # rows from one band to the next

    @classmethod
    def of(cls, steps: int, rows: int) -> _Bands:
        pitch = rows + 1.5
        bands = min(ceil(steps / _BAND), max(1, int(LARGEST / (_DOWN * pitch))))
        steps = min(steps, bands * _BAND)
        return cls(steps, ceil(steps / bands), pitch)

    @property
    def height(self) -> float:
        return self.pitch * ceil(self.steps / self.across)

    def at(self, step: int, row: float) -> tuple[float, float]:
        return step % self.across, step // self.across * self.pitch + row

    def lines(self, before: tuple[int, int], here: tuple[int, int]) -> list[list[tuple[float, float]]]:
        """A line to the next step; between bands, one half leaves a band and the other enters the next."""
        if here[0] % self.across:
            return [[self.at(*before), self.at(*here)]]
        (x, y), (next_x, next_y) = self.at(*before), self.at(*here)
        half = (here[1] - before[1]) / 2
        return [[(x, y), (x + 0.5, y + half)], [(next_x - 0.5, next_y - half), (next_x, next_y)]]


def draw_beam(record: BeamRecord, path: Path, *, title: str | None = None) -> None:
    """Draw a beam search to a .png, .svg or .pdf file."""
    nodes = record.nodes
    if not nodes:
        raise ValueError(f"there is nothing to draw in {path.name}: the record has no hypotheses")
    bands = _Bands.of(record.steps, max(sum(node.step == step for node in nodes) for step in range(record.steps)))
    nodes = [node for node in nodes if node.step < bands.steps]
    size = _ACROSS * (bands.across + 0.4), min(_DOWN * bands.height, LARGEST)
    with new_picture(path, figsize=size) as figure:
        axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        axes.set(xlim=(-0.7, bands.across - 0.3), ylim=(bands.height - 1.3, -1.3))
        axes.axis("off")
        _hypotheses(axes, record, nodes, bands)
        _legend(axes, _left_out(record.steps, bands.steps))
        if title:
            wrapped = heading_lines(title, max(50, round(size[0] * 11)))
            axes.text(-0.45, -1.5, wrapped, fontsize=11, fontweight="bold", ha="left", va="bottom")


def _left_out(steps: int, drawn: int) -> str | None:
    if drawn == steps:
        return None
    return f"left out: step {steps}" if steps == drawn + 1 else f"left out: steps {drawn + 1} to {steps}"


def _hypotheses(axes: Axes, record: BeamRecord, nodes: list[Node], bands: _Bands) -> None:
    """Draw boxes with token and score, and lines to their parents."""
    best = record.best()
    places: dict[int, tuple[int, int]] = {}
    filled: dict[int, int] = {}
    for node in nodes:
        row = filled.get(node.step, 0)
        places[node.number], filled[node.step] = (node.step, row), row + 1
    for node in nodes:
        kind = _kind(node, best)
        if node.parent is not None and node.parent in places:
            colour, width = (
                (_DEEP, 2.0) if kind == "best" else ("#cbd2d9", 0.7) if kind == "outscored" else (_MIDDLE, 0.9)
            )
            for line in bands.lines(places[node.parent], places[node.number]):
                axes.plot(*zip(*line, strict=True), color=colour, linewidth=width, zorder=2 if kind == "best" else 1)
        label = shortened(visible(node.piece), _LONGEST_LABEL) + f"  {node.score:.2f}".replace("-", "−")
        how: dict[str, Any] = {"fontsize": 7.5, "color": _text_colour(kind), "bbox": _BOXES[kind][1], "zorder": 3}
        axes.text(*bands.at(*places[node.number]), label, ha="center", va="center", **how)
    for step in sorted(filled):
        axes.text(*bands.at(step, -0.85), str(step + 1), fontsize=8, color=_GREY, ha="center", va="center")


def _kind(node: Node, best: set[int]) -> str:
    if node.number in best:
        return "best"
    return "done" if node.fate in ("sentence done", "group done") else node.fate


def _legend(axes: Axes, left_out: str | None) -> None:
    """Draw the legend below the figure."""
    from matplotlib.offsetbox import AnchoredOffsetbox, HPacker, TextArea

    parts: list[Artist] = [
        TextArea(description, textprops={"fontsize": 8, "color": _text_colour(kind), "bbox": box})
        for kind, (description, box) in _BOXES.items()
    ]
    parts.append(TextArea("numbers: log-probability over length penalty", textprops={"fontsize": 8, "color": _GREY}))
    if left_out is not None:
        parts.append(TextArea(left_out, textprops={"fontsize": 8, "color": INK, "fontweight": "bold"}))
    packed = HPacker(children=parts, pad=0, sep=18, align="center")
    axes.add_artist(
        AnchoredOffsetbox(
            "upper left", child=packed, frameon=False, bbox_to_anchor=(0, 0), bbox_transform=axes.transAxes
        )
    )


def _text_colour(kind: str) -> str:
    return "white" if kind == "best" else _GREY if kind == "outscored" else INK
