"""A recorded beam search as a picture: steps across, hypotheses of a step downwards, the best output in bold."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.inspection.alignment import visible
from sightline.inspection.beam_record import BeamRecord, Node
from sightline.inspection.pictures.captions import shortened
from sightline.inspection.pictures.figure_files import INK, LARGEST, check_figure, new_figure, plain_style, write_figure
from sightline.inspection.pictures.fonts import drawing, fonts_for

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

_DEEP, _MIDDLE, _PALE, _GREY = "#0b3260", "#4a93c8", "#cddff0", "#7b8794"
_ACROSS, _DOWN = 1.25, 0.36  # inches of a step and of a hypothesis
_LONGEST_LABEL = 11
_BOX: dict[str, dict[str, Any]] = {  # shape and colour both tell what became of it
    "best": {"boxstyle": "round,pad=0.3", "facecolor": _DEEP, "edgecolor": _DEEP, "linewidth": 1.6},
    "finished": {"boxstyle": "round,pad=0.3", "facecolor": _PALE, "edgecolor": _DEEP, "linewidth": 1.6},
    "continued": {"boxstyle": "round,pad=0.3", "facecolor": "white", "edgecolor": _MIDDLE, "linewidth": 1.0},
    "done": {"boxstyle": "round,pad=0.3", "facecolor": "white", "edgecolor": _MIDDLE, "linestyle": ":"},
    "outscored": {"boxstyle": "square,pad=0.15", "facecolor": "white", "edgecolor": "none"},
}
_MEANING = {
    "best": "best output",
    "finished": "finished",
    "continued": "went on",
    "done": "would have gone on; sentence done",
    "outscored": "outscored",
}


def draw_beam(record: BeamRecord, path: Path, *, title: str | None = None, dropped: bool = True) -> None:
    """Draw into memory, then write the file in one piece; `dropped=False` leaves out what was outscored."""
    check_figure(path)
    nodes = [node for node in record.nodes if dropped or node.fate != "outscored"]
    if not nodes:
        raise ValueError(f"there is nothing to draw in {path.name}: the record has no hypotheses")
    words = "".join(visible(node.piece) for node in nodes)
    rows = max(sum(node.step == step for node in nodes) for step in range(record.steps))
    size = min(_ACROSS * (record.steps + 0.4), LARGEST), min(_DOWN * (rows + 1.5), LARGEST)
    with drawing(plain_style(fonts_for(words + (title or "") + "…−"))):
        figure = new_figure(figsize=size, facecolor="white")
        axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        axes.set(xlim=(-0.7, record.steps - 0.3), ylim=(rows + 0.2, -1.3))
        axes.axis("off")
        _hypotheses(axes, record, nodes, dense=size[0] >= LARGEST)
        _legend(axes, dropped)
        if title:
            wrapped = textwrap.fill(title, max(50, round(size[0] * 11)))
            axes.text(-0.45, -1.5, wrapped, fontsize=11, fontweight="bold", ha="left", va="bottom")
        write_figure(figure, path)


def _hypotheses(axes: Axes, record: BeamRecord, nodes: list[Node], *, dense: bool) -> None:
    """Boxes with token and score, and lines to what they continue."""
    outputs = record.outputs()
    best = {node.number for node in record.line(outputs[0])} if outputs else set()
    places: dict[int, tuple[int, int]] = {}
    filled: dict[int, int] = {}
    for node in nodes:
        row = filled.get(node.step, 0)
        places[node.number], filled[node.step] = (node.step, row), row + 1
    for node in nodes:
        kind = _kind(node, best)
        x, y = places[node.number]
        if node.parent is not None and node.parent in places:
            before = places[node.parent]
            colour, width = (
                (_DEEP, 2.0) if kind == "best" else ("#cbd2d9", 0.7) if kind == "outscored" else (_MIDDLE, 0.9)
            )
            axes.plot([before[0], x], [before[1], y], color=colour, linewidth=width, zorder=1 if kind != "best" else 2)
        colour = "white" if kind == "best" else _GREY if kind == "outscored" else INK
        label = shortened(visible(node.piece), _LONGEST_LABEL) + f"  {node.score:.2f}".replace("-", "−")
        axes.text(
            x, y, label, fontsize=6 if dense else 7.5, color=colour, bbox=_BOX[kind], ha="center", va="center", zorder=3
        )
    for step in sorted(filled):
        axes.text(step, -0.85, str(step + 1), fontsize=8, color=_GREY, ha="center", va="center")


def _kind(node: Node, best: set[int]) -> str:
    if node.number in best:
        return "best"
    return "done" if node.fate in ("sentence done", "group done") else node.fate


def _legend(axes: Axes, dropped: bool) -> None:
    """What the boxes mean, one after the other below the picture, and what the number is."""
    from matplotlib.offsetbox import AnchoredOffsetbox, HPacker, TextArea

    parts: list[Artist] = [
        TextArea(_MEANING[kind], textprops={"fontsize": 8, "color": _text_colour(kind), "bbox": box})
        for kind, box in _BOX.items()
        if dropped or kind != "outscored"
    ]
    parts.append(TextArea("numbers: log-probability over length penalty", textprops={"fontsize": 8, "color": _GREY}))
    packed = HPacker(children=parts, pad=0, sep=18, align="center")
    axes.add_artist(
        AnchoredOffsetbox(
            "upper left", child=packed, frameon=False, bbox_to_anchor=(0, 0), bbox_transform=axes.transAxes
        )
    )


def _text_colour(kind: str) -> str:
    return "white" if kind == "best" else _GREY if kind == "outscored" else INK
