"""Gradient flow as a picture: several models on one logarithmic scale, at initialisation and after training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sightline.inspection.gradient_flow import SIDES, SMALLEST, Flow
from sightline.inspection.states import Side
from sightline.plots.lines import Line, Panel, draw_lines

_TITLES: dict[Side, str] = {"encoder": "states of the encoder", "decoder": "states of the decoder"}
_ACROSS = "steps from reading source token k to writing token t"
_ENOUGH = 6  # pairs at a distance; where there are fewer, a line says nothing
_WITHIN = "distance between the answer t and the state k"


def draw_flows(flows: Sequence[Flow], path: Path, *, title: str | None = None) -> None:
    """A panel for each side that is there."""
    both = any(len(flow.sides) == 2 for flow in flows)
    panels = [
        Panel(
            _TITLES[side] if both else "",
            _ACROSS if both and side == "encoder" else _WITHIN,
            "‖∂Lₜ/∂hₖ‖ (median, 10 to 90%)",
            _lines(flows, side),
        )
        for side in SIDES
        if any(flow.curve(side) for flow in flows)
    ]
    draw_lines(panels, path, title=title)


def _lines(flows: Sequence[Flow], side: Side) -> list[Line]:
    looks = {label: number for number, label in enumerate(dict.fromkeys(flow.label for flow in flows))}
    lines = []
    for flow in flows:
        curve = flow.curve(side)
        if curve is None:
            continue
        enough = _ENOUGH if max(curve.count, default=0) >= _ENOUGH else 1  # of very little, all is shown
        shown = [place for place, count in enumerate(curve.count) if count >= enough]
        while shown and curve.median[shown[-1]] <= SMALLEST:  # what is nothing ends the line; between, it breaks it
            shown.pop()
        values = ([row[place] for place in shown] for row in (curve.median, curve.low, curve.high))
        median, low, high = ([value if value > SMALLEST else 0.0 for value in row] for row in values)
        label = f"{flow.label}, {'at initialisation' if flow.when == 'initialisation' else flow.when}"
        dashed = flow.when == "initialisation"
        distances = [curve.distances[place] for place in shown]
        lines.append(Line(label, distances, median, looks[flow.label], dashed, low, high))
    return lines
