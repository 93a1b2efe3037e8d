"""Line plots: panels side by side with one legend below."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.evaluation.breakdowns import LengthBucket
from sightline.plots.figures import around_curves, breadth, new_picture, power_of_ten
from sightline.run_folder import read_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from sightline.inspection.corpus import LengthLoss
    from sightline.inspection.gradients import GradientFlow, Side


# Okabe & Ito (2008), distinguishable with colour blindness; markers distinguish more lines.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#1f2933")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_LONGEST_NAME = 48
_PANEL = 6.2  # inches
_FEW_TIMES = 100  # a panel that spans less shows few powers of ten


@dataclass(frozen=True)
class Series:
    """A line; `low` and `high` bound a band around it, and lines with the same `style` share colour and marker."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    style: int
    dashed: bool = False
    low: Sequence[float] = field(default=())
    high: Sequence[float] = field(default=())


@dataclass(frozen=True)
class Panel:
    """The lines of one pair of axes."""

    title: str
    x_label: str
    y_label: str
    lines: list[Series]
    log_x: bool = False
    log_y: bool = True


def draw_lines(panels: Sequence[Panel], path: Path, *, title: str | None = None) -> None:
    """Draw panels to a .png, .svg or .pdf file."""
    if not any(panel.lines for panel in panels):
        raise ValueError(f"there is nothing to draw in {path.name}: no panel has a line")
    names = list(dict.fromkeys(_short(line.label) for panel in panels for line in panel.lines))
    width = _PANEL * max(len(panels), 1) + 0.6
    columns = max(1, min(len(names), int(width * 12 / (max(map(breadth, names)) + 8))))
    height = 3.9 + 0.22 * math.ceil(len(names) / columns) + (0.5 if title else 0)
    style = {**around_curves(), "font.size": 10}
    shape = {"figsize": (width, height), "layout": "constrained"}
    with new_picture(path, style, dpi=150, margin=0.15, **shape) as figure:
        for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            _draw_panel(axes, panel)
        _legend(figure, columns)
        if title:
            figure.suptitle(textwrap.fill(title, round(width * 11)), fontsize=12, x=0.01, ha="left")


def _draw_panel(axes: Axes, panel: Panel) -> None:
    for line in panel.lines:
        _draw_line(axes, line, logarithmic=panel.log_y)
    if panel.log_y:
        _scale_by_logarithm(axes, [value for line in panel.lines for value in line.y if value > 0])
    if panel.log_x:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("")
    elif all(float(value).is_integer() for line in panel.lines for value in line.x):
        axes.locator_params(axis="x", integer=True)  # steps and tokens are whole numbers
    axes.set_title(panel.title, fontsize=11, loc="left")
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)


def _draw_line(axes: Axes, line: Series, *, logarithmic: bool) -> None:
    x, y = (
        line.x,
        [value if value > 0 or not logarithmic else math.nan for value in line.y],
    )  # gaps
    colour, marker = COLOURS[line.style % len(COLOURS)], _MARKERS[line.style % len(_MARKERS)]
    axes.plot(
        x,
        y,
        color=colour,
        linestyle="--" if line.dashed else "-",
        linewidth=1.8,
        marker=marker,
        markersize=4.5,
        markerfacecolor="white" if line.dashed else colour,
        markevery=1 if any(map(math.isnan, y)) else max(1, len(x) // 12),  # show single points between gaps
        label=_short(line.label),
    )
    if line.low and line.high:
        positive = [value for value in line.low if value > 0]
        floor = min(positive, default=0.0) if logarithmic else -math.inf  # a logarithmic axis has no zero
        low, there = [max(value, floor) for value in line.low], [not math.isnan(value) for value in y]
        axes.fill_between(x, low, line.high, where=there, color=colour, alpha=0.12, linewidth=0)


def _scale_by_logarithm(axes: Axes, values: Sequence[float]) -> None:
    """Make the y axis logarithmic; without positive values, write a note."""
    if not values:
        axes.text(0.5, 0.5, "no value above zero", transform=axes.transAxes, ha="center", va="center")
        axes.tick_params(bottom=False, left=False, labelbottom=False, labelleft=False)
        axes.grid(visible=False)
        return
    narrow = max(values) < _FEW_TIMES * min(values)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}" if narrow else _power)
    axes.yaxis.set_minor_formatter(_between if narrow else "")


def _power(value: float, _: float | None = None) -> str:
    """The label of a power of ten (10⁻⁴, but 0.1, 1 and 10); empty between powers."""
    exponent = round(math.log10(value)) if value > 0 else 0
    if value <= 0 or not math.isclose(value, 10.0**exponent, rel_tol=1e-6):
        return ""
    return f"{value:g}" if -2 < exponent < 4 else power_of_ten(value)


def _between(value: float, _: float | None = None) -> str:
    """Minor labels for a narrow range: twice and five times a power of ten."""
    first = float(f"{value:e}".split("e")[0])
    return f"{value:g}" if first in (2.0, 5.0) else ""


def _legend(figure: Figure, columns: int) -> None:
    """A legend with each label once."""
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=columns, frameon=False, handlelength=3)


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else "…" + name[1 - _LONGEST_NAME :]


def draw_lengths(
    losses: Sequence[LengthLoss],
    qualities: Sequence[LengthBucket],
    path: Path,
    *,
    name: str,
    metric: str = "",
    title: str | None = None,
) -> None:
    """Draw loss and, if there are `qualities`, a metric by length; points are the middles of buckets."""
    lengths = [(each.low + each.high) / 2 for each in losses]
    loss = Series(name, lengths, [each.loss for each in losses], 0)
    panels = [Panel("loss by length", "tokens of the target", "nats a token", [loss], log_y=False)]
    if qualities:
        words = [(each.low + each.high) / 2 for each in qualities]
        scores = [each.scores[name] for each in qualities]
        quality = Series(name, words, scores, 0)
        panels.append(Panel("quality by length", "words of the reference", metric, [quality], log_y=False))
    draw_lines(panels, path, title=title)


_TITLES: dict[Side, str] = {"encoder": "states of the encoder", "decoder": "states of the decoder"}
_ACROSS = "steps from reading source token k to writing token t"
_ENOUGH = 6  # least number of pairs at a distance
_SMALLEST = 1e-37  # smaller numbers are denormal in single precision
_WITHIN = "distance between the answer t and the state k"


def draw_flows(flows: Sequence[GradientFlow], path: Path, *, title: str | None = None) -> None:
    """Draw a panel for each side."""
    both = any(len(flow.sides) == 2 for flow in flows)
    panels = [
        Panel(
            _TITLES[side] if both else "",
            _ACROSS if both and side == "encoder" else _WITHIN,
            "‖∂Lₜ/∂hₖ‖ (median, 10 to 90%)",
            _flow_lines(flows, side),
        )
        for side in _TITLES
        if any(flow.curve(side) for flow in flows)
    ]
    draw_lines(panels, path, title=title)


def _flow_lines(flows: Sequence[GradientFlow], side: Side) -> list[Series]:
    styles = {label: number for number, label in enumerate(dict.fromkeys(flow.label for flow in flows))}
    lines = []
    for flow in flows:
        curve = flow.curve(side)
        if curve is None:
            continue
        enough = _ENOUGH if max(curve.count, default=0) >= _ENOUGH else 1  # with few pairs, show all
        shown = [place for place, count in enumerate(curve.count) if count >= enough]
        while shown and curve.median[shown[-1]] <= _SMALLEST:  # zeros end the line
            shown.pop()
        values = ([row[place] for place in shown] for row in (curve.median, curve.low, curve.high))
        median, low, high = ([value if value > _SMALLEST else 0.0 for value in row] for row in values)
        label = f"{flow.label}, {'at initialisation' if flow.when == 'initialisation' else flow.when}"
        dashed = flow.when == "initialisation"
        distances = [curve.distances[place] for place in shown]
        lines.append(Series(label, distances, median, styles[flow.label], dashed, low, high))
    return lines


Norms = dict[str, list[tuple[int, float]]]  # part → (step, norm) in order


def read_layer_norms(run: Path) -> Norms:
    """Read the gradient norms of layers from metrics.jsonl."""
    norms: Norms = {}
    for record in read_metrics(run):
        for part, norm in record.get("layers", {}).items():
            norms.setdefault(part, []).append((int(record["step"]), float(norm)))
    if not norms:
        raise ValueError(
            f"{run / 'metrics.jsonl'} has no gradient norms of layers; train with training.log_layers=true to have them"
        )
    return norms


def draw_layer_norms(norms: Norms, path: Path, *, title: str | None = None) -> None:
    """Draw gradient norms over steps in panels for encoder, decoder and the rest."""
    groups: dict[str, list[str]] = {}
    for part in norms:
        side = part.split(".")[0]
        groups.setdefault(side if side in ("encoder", "decoder") else "beside", []).append(part)
    names = {"encoder": "encoder", "decoder": "decoder", "beside": "embeddings and output"}
    styles = {label: style for style, label in enumerate(dict.fromkeys(map(_part_label, norms)))}
    panels = [
        Panel(
            names[side], "step", "‖∂L/∂θ‖ before clipping", [_norm_line(norms, part, styles) for part in groups[side]]
        )
        for side in ("encoder", "decoder", "beside")
        if side in groups
    ]
    draw_lines(panels, path, title=title)


def _part_label(part: str) -> str:
    """A name without the side, so that both panels share a legend."""
    return part.removeprefix("encoder.").removeprefix("decoder.").replace("layers.", "layer ")


def _norm_line(norms: Norms, part: str, styles: dict[str, int]) -> Series:
    steps, values = ([pair[index] for pair in norms[part]] for index in (0, 1))
    return Series(_part_label(part), steps, values, styles[_part_label(part)])
