"""Figure of a comparison: learning curves, and quality against cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from sightline.evaluation.metrics import METRICS
from sightline.files import write_atomically
from sightline.plots.figures import (
    around_curves,
    check_figure,
    content_of,
    drawing,
    new_figure,
    power_of_ten,
)
from sightline.recipe import MetricName

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

    from sightline.comparison.results import ComparisonResult, SystemResult, Validation

Point = tuple[float, float]

# Okabe & Ito (2008), distinguishable with colour blindness; without black, for dark backgrounds.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1")
_LINE_STYLES = ("-", "--", ":", "-.")  # for more systems than colours
_MARKERS = ("o", "s", "^", "D")
_OFFSET = 9.0  # points (1/72 inch) between systems that cost the same
_MAX_DISTANCE = 0.6  # of the height of an axis: baselines farther away are not drawn
_LEGEND_COLUMNS = 4
_LONGEST_NAME = 40


@dataclass(frozen=True)
class Theme:
    """The colours of everything but the data."""

    background: str = "#ffffff"
    ink: str = "#1f2933"
    grid: str = "#dfe4ea"


LIGHT = Theme()
DARK = Theme(background="#161b22", ink="#d8dee6", grid="#30363d")


def write_figure(comparison: ComparisonResult, path: Path) -> None:
    """Draw learning curves and quality against cost to a .png, .svg or .pdf file."""
    check_figure(path)
    write_atomically(path, draw(comparison, path.suffix.lower()[1:]))


def draw(
    comparison: ComparisonResult, form: str, *, parts: Sequence[str] = ("curves", "costs"), theme: Theme = LIGHT
) -> bytes:
    """The bytes of the figure's file."""
    drawers: dict[str, Callable[[ComparisonResult, Any], None]] = {"curves": _draw_curves, "costs": _draw_costs}
    heights = {"curves": 2.9 * max(1, len(_shown_values(comparison))) + 0.4, "costs": 3.6}
    style = {"font.size": 9, "axes.facecolor": theme.background, "figure.facecolor": theme.background}
    with drawing({**around_curves(theme.ink, theme.grid), **style}):
        legend = 0.3 + 0.22 * math.ceil(len(comparison.systems) / _LEGEND_COLUMNS)
        sizes = [heights[part] for part in parts]
        figure = new_figure(figsize=(12.5, sum(sizes) + legend), layout="constrained")
        below = figure.subfigures(len(parts) + 1, 1, height_ratios=[*sizes, legend], squeeze=False)[:, 0]
        for part, place in zip(parts, below, strict=False):
            drawers[part](comparison, place)
        _legend(comparison, below[-1])
        return content_of(figure, form, dpi=130)


# --- curves ------------------------------------------------------------------------------------------------------


def _draw_curves(comparison: ComparisonResult, place: SubFigure) -> None:
    """Rows: validation loss, and the metric if it was logged. Columns: steps, tokens, FLOPs, time."""
    values = _shown_values(comparison)
    scales = [each for each in _progressions(comparison) if any(_lines(s, each[0], "loss") for s in comparison.systems)]
    place.suptitle("Learning curves (validation)", fontsize=11, x=0.01, ha="left")
    if not scales or not values:
        place.text(0.5, 0.5, "no validation in metrics.jsonl", ha="center")
        return
    grid = place.subplots(len(values), len(scales), squeeze=False, sharey="row")
    for row, (value, title) in zip(grid, values, strict=True):
        for axes, (key, label, scale) in zip(row, scales, strict=True):
            _draw_lines(axes, comparison, key, value, scale)
            axes.set_xlabel(label)
        row[0].set_ylabel(title)


def _draw_lines(axes: Axes, comparison: ComparisonResult, key: str, value: str, scale: float) -> None:
    """Draw each system in its colour: seeds as thin lines, their mean as a bold one."""
    absent: list[str] = []
    for number, system in enumerate(comparison.systems):
        if not system.has_model or system.ensemble:  # ensembles have no learning curve
            continue
        lines = [[(x / scale, y) for x, y in line] for line in _lines(system, key, value)]
        style = _style(number)
        if not lines:
            absent.append(_short(system.name))
        elif len(lines) > 1:
            for line in lines:
                _draw_line(axes, line, color=style["color"], linewidth=0.7, alpha=0.5)
            mean = [(x / scale, y) for x, y in mean_line(system, key, value)]
            if mean:
                _draw_line(axes, mean, linewidth=2.2, **style)
        else:
            _draw_line(axes, lines[0], linewidth=1.8, **style)
    if absent:
        text = "not recorded: " + ", ".join(absent[:4]) + (", …" if len(absent) > 4 else "")
        axes.set_title(text, loc="right", fontsize=7, parse_math=False)
    axes.ticklabel_format(axis="x", style="sci", scilimits=(-2, 4), useMathText=False)


def _draw_line(axes: Axes, points: Sequence[Point], **style: Any) -> None:
    """Draw a line, or a marker for a single point."""
    marker = {"marker": "o", "markersize": 2 + style["linewidth"]} if len(points) == 1 else {}
    axes.plot(*zip(*points, strict=True), **style, **marker)


def _lines(system: SystemResult, key: str, value: str) -> list[list[Point]]:
    """Points (progress, value) of each run that logged both."""
    lines = [[(each[key], each[value]) for each in _both(run.validations, key, value)] for run in system.runs]
    return [line for line in lines if line]


def mean_line(system: SystemResult, key: str, value: str) -> list[Point]:
    """The mean over the seeds, at the steps at which all were validated."""
    runs = [{each["step"]: each for each in _both(run.validations, key, value)} for run in system.runs]
    steps = sorted(set.intersection(*(set(run) for run in runs)))
    return [(fmean(run[step][key] for run in runs), fmean(run[step][value] for run in runs)) for step in steps]


def _both(validations: Sequence[Validation], key: str, value: str) -> list[Validation]:
    return [each for each in validations if {key, value, "step"} <= each.keys() and math.isfinite(each[value])]


def _progressions(comparison: ComparisonResult) -> list[tuple[str, str, float]]:
    """Key, label and unit of the horizontal axes."""
    longest = max((system.cost.seconds or 0.0 for system in comparison.systems), default=0.0)
    unit, size = ("hours", 3600.0) if longest > 7200 else ("minutes", 60.0) if longest > 120 else ("seconds", 1.0)
    return [
        ("step", "steps", 1.0),
        ("tokens", "target tokens", 1.0),
        ("flops", "training FLOPs", 1.0),
        ("seconds", f"{unit} of training", size),
    ]


def _shown_values(comparison: ComparisonResult) -> list[tuple[str, str]]:
    """The loss, and the first metric that some run logged."""
    seen = {key for system in comparison.systems for run in system.runs for each in run.validations for key in each}
    names = [*comparison.metrics, *(name for name in METRICS if name not in comparison.metrics)]
    metric = next((name for name in names if name in seen and name != "perplexity"), None)
    shown = [("loss", _loss_label(comparison))] if "loss" in seen else []
    return [*shown, (metric, METRICS[metric].name)] if metric else shown


def _loss_label(comparison: ComparisonResult) -> str:
    """Label the loss; losses of different tokenizers do not compare."""
    keys = [each.key for each in comparison.differences if each.key.startswith("tokenizer.")]
    same = {"tokenizer.dropout", "tokenizer.variants"}.issuperset(keys)  # these apply in training only
    return "loss (nats a token)" if same else "loss (nats a token;\ntokenizers differ, so do these)"


# --- quality against cost ----------------------------------------------------------------------------------------


def _draw_costs(comparison: ComparisonResult, place: SubFigure) -> None:
    metric = comparison.metrics[0]
    costs: list[tuple[str, list[float | None]]] = [
        ("training FLOPs", [system.cost.flops for system in comparison.systems]),
        ("parameters", [float(system.parameters) for system in comparison.systems]),
        ("sentences/s in decoding", [system.sentences_per_second for system in comparison.systems]),
    ]
    known = [(label, values) for label, values in costs if any(values)]
    title = f"{METRICS[metric].name} on {comparison.test.name} against cost"
    place.suptitle(title, fontsize=11, x=0.01, ha="left", parse_math=False)
    if not known:  # n-gram models have no parameters and take no FLOPs
        place.text(0.5, 0.5, "no cost was recorded", ha="center")
        return
    row = place.subplots(1, len(known), squeeze=False, sharey=True)[0]
    for axes, (label, values) in zip(row, known, strict=True):
        _draw_points(axes, comparison, metric, values)
        axes.set_xlabel(label)
    better = comparison.baseline.qualities[metric].better
    row[0].set_ylabel(f"{METRICS[metric].name} ({better} is better)")


def _draw_points(axes: Axes, comparison: ComparisonResult, metric: MetricName, costs: Sequence[float | None]) -> None:
    """Draw a point with its 95% interval for each system, and its runs as short strokes."""
    from matplotlib.transforms import ScaledTranslation

    offsets = _offsets(costs)
    for number, (system, cost) in enumerate(zip(comparison.systems, costs, strict=True)):
        if not cost:
            continue
        quality, colour = system.qualities[metric], _style(number)["color"]
        move = ScaledTranslation(offsets[number] / 72, 0, axes.get_figure(root=True).dpi_scale_trans)  # type: ignore[union-attr]
        style: dict[str, Any] = {"color": colour, "transform": axes.transData + move}
        # a bootstrap interval need not contain the value, and rounding may put the value outside
        reach = [[max(0.0, quality.value - quality.low)], [max(0.0, quality.high - quality.value)]]
        axes.update_datalim([(cost, quality.low), (cost, quality.high)])  # shifted points are ignored
        axes.errorbar([cost], [quality.value], yerr=reach, fmt=_marker(number), markersize=7, capsize=3, **style)
        if len(system.runs) > 1:
            values = [run.scores[metric].value for run in system.runs]
            axes.plot([cost] * len(values), values, "_", markersize=9, alpha=0.8, **style)
    axes.autoscale_view()
    present = [cost for cost in costs if cost]
    if max(present) > 3 * min(present):
        axes.set_xscale("log")
        _label_powers(axes)
        axes.margins(x=max(0.05, _margin(max(map(abs, offsets)) + _OFFSET, axes)))
    elif max(present) < 1.02 * min(present):  # nearly equal: avoid ticks in the sixth digit
        middle = (max(present) + min(present)) / 2
        axes.set_xlim(0.9 * middle, 1.1 * middle)
    else:
        axes.margins(x=max(0.12, _margin(max(map(abs, offsets)) + _OFFSET, axes)))
    if axes.get_xscale() == "linear":
        axes.ticklabel_format(axis="x", style="sci", scilimits=(-2, 4))
    _draw_levels(axes, comparison, metric)


def _draw_levels(axes: Axes, comparison: ComparisonResult, metric: MetricName) -> None:
    """Draw baselines without a model as horizontal lines, or name those far from all points."""
    low, high = axes.get_ylim()
    far: list[str] = []
    for number, system in enumerate(comparison.systems):
        value = system.qualities[metric].value
        if system.has_model:
            continue
        if low - _MAX_DISTANCE * (high - low) < value < high + _MAX_DISTANCE * (high - low):
            axes.axhline(value, linewidth=1.4, **_level(number))
        else:
            far.append(f"{_short(system.name)} {value:.2f}")
    if far:
        axes.set_title("beyond this axis: " + ", ".join(far), loc="right", fontsize=7, parse_math=False)


def _label_powers(axes: Axes) -> None:
    """Label at most three ticks of a decade, as 2·10⁷."""
    from matplotlib.ticker import LogFormatter

    class Powers(LogFormatter):
        def __call__(self, x: float, pos: int | None = None) -> str:
            label = power_of_ten(x) if super().__call__(x, pos) else ""
            return label if label.partition("·")[0] in ("2", "3", "6") or "·" not in label else ""

    axes.xaxis.set_major_formatter(Powers())
    axes.xaxis.set_minor_formatter(Powers(minor_thresholds=(1.0, 0.6)))  # within a decade, some between its ends


def _margin(points: float, axes: Axes) -> float:
    """The margin, as a share of the data's range, that leaves this many points (1/72 inch) free on both sides."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    share = min(0.4, points / 72 / (axes.get_window_extent().width / figure.dpi))
    return share / (1 - 2 * share)


def _offsets(costs: Sequence[float | None]) -> list[float]:
    """Horizontal shifts in points that separate systems of nearly equal cost."""
    logs = {number: math.log(cost) for number, cost in enumerate(costs) if cost}
    order = sorted(logs, key=lambda number: logs[number])
    near = 0.03 * max(logs[order[-1]] - logs[order[0]], 0.05)
    clusters: list[list[int]] = []
    for number in order:
        if clusters and logs[number] - logs[clusters[-1][-1]] <= near:
            clusters[-1].append(number)
        else:
            clusters.append([number])
    moved = [0.0] * len(costs)
    for cluster in clusters:
        for place, number in enumerate(sorted(cluster)):
            moved[number] = _OFFSET * (place - (len(cluster) - 1) / 2)
    return moved


# --- both --------------------------------------------------------------------------------------------------------


def _style(number: int) -> dict[str, Any]:
    """Colour and line style of a system."""
    rounds, colour = divmod(number, len(_COLOURS))
    return {"color": _COLOURS[colour], "linestyle": _LINE_STYLES[rounds % len(_LINE_STYLES)]}


def _level(number: int) -> dict[str, Any]:
    """Colour and line style of a system without a model."""
    return {"color": _COLOURS[number % len(_COLOURS)], "linestyle": (0, (6, 3))}


def _marker(number: int) -> str:
    return _MARKERS[number // len(_COLOURS) % len(_MARKERS)]


def _legend(comparison: ComparisonResult, place: SubFigure | Figure) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], linewidth=2.2, marker=_marker(number), markersize=5, **_style(number))
        if system.has_model
        else Line2D([], [], linewidth=1.4, **_level(number))
        for number, system in enumerate(comparison.systems)
    ]
    names = [_short(system.name) + _seeds(system) for system in comparison.systems]
    names[0] += " (baseline)"
    layout: dict[str, Any] = {"ncols": min(_LEGEND_COLUMNS, len(names)), "frameon": False}
    legend = place.legend(handles, names, loc="center", handlelength=4, **layout)  # long enough to show dashes
    for text in legend.get_texts():
        text.set_parse_math(False)  # names are not formulas


def _seeds(system: SystemResult) -> str:
    return f", {len(system.runs)} seeds" if len(system.runs) > 1 else ""


def _short(name: str) -> str:
    """Cut the middle: names of ensembles often share their beginning, names in a sweep their end."""
    half = _LONGEST_NAME // 2
    return name if len(name) <= _LONGEST_NAME else f"{name[: half - 1]}…{name[-half:]}"
