"""Figure of each expert's share of the tokens during training: one band per expert, time from left to right.

Drawn from the train records of metrics.jsonl. An even share is pale grey, a larger one blue, a smaller one orange; the
last share is written on the right. Below is the share of choices dropped because their expert was full.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sightline.plots.figures import INK, around_curves, new_picture
from sightline.plots.matrices import colour_map
from sightline.run_folder import read_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from matplotlib.figure import Figure


_GRID = "#d5dbe1"
# distinguishable with colour blindness
_LITTLE_TO_MUCH = ("#8a4500", "#e08214", "#fdd9a8", "#eef0f2", "#b7d5ec", "#3d8bc4", "#0b3260")
_NUMBERED = 32  # experts in a layer; the numbers of more would overlap
_BAND, _LEAST, _MOST = 0.2, 0.9, 5.0  # inches of a band, and of a layer


@dataclass(frozen=True)
class ExpertShares:
    """The values of R train records."""

    steps: np.ndarray  # (R,)
    shares: dict[str, np.ndarray]  # by layer: (R, E), each row sums to one
    dropped: np.ndarray  # (R,)


def read_expert_shares(run: Path) -> ExpertShares:
    """Read the shares from the metrics.jsonl of a run folder."""
    path = run / "metrics.jsonl"
    records = [record for record in read_metrics(run) if record.get("kind") == "train" and "experts" in record]
    if not path.is_file():
        raise ValueError(f"{run} has no metrics.jsonl, where a training writes the shares; give the folder of one")
    if not records:
        raise ValueError(
            f"{path} has no expert shares: the model has no experts (model.….experts), or no step was logged yet "
            f"(training.log_every)"
        )
    layers = records[0]["experts"]
    return ExpertShares(
        np.array([record["step"] for record in records]),
        {layer: np.array([record["experts"][layer] for record in records]) for layer in layers},
        np.array([record["dropped"] for record in records]),
    )


def draw_expert_shares(run: Path, path: Path, *, title: str | None = None) -> None:
    """Draw the expert shares of a run to a .png, .svg or .pdf file."""
    recorded = read_expert_shares(run)
    heading = title or f"Share of each expert: {run.name}"
    style = {**around_curves(grid=_GRID), "axes.grid": False, "font.size": 9}
    heights = [min(_MOST, max(_LEAST, _BAND * shares.shape[1])) for shares in recorded.shares.values()]
    height = sum(heights) + 0.5 * len(heights) + 2.0
    shape = {"figsize": (9.0, height), "layout": "constrained"}
    with new_picture(path, style, dpi=150, margin=None, **shape) as figure:
        rows = figure.subplots(len(heights) + 1, 1, sharex=True, height_ratios=[*heights, 0.9], squeeze=False)[:, 0]
        most = max(float(_times(shares).max()) for shares in recorded.shares.values())
        peak = max(2.0, min(4.0, most))
        for axes, (layer, shares) in zip(rows, recorded.shares.items(), strict=False):
            image = _draw_layer(axes, layer, shares, recorded.steps, peak)
        _draw_dropped(rows[-1], recorded)
        _colour_bar(figure, image, list(rows[:-1]), peak, more=most > peak)
        figure.suptitle(heading, x=0.01, ha="left", fontsize=11)


def _times(shares: np.ndarray) -> np.ndarray:
    """Shares (R, E) as multiples of an even one."""
    times: np.ndarray = shares * shares.shape[1]
    return times


def _edges(steps: np.ndarray) -> np.ndarray:
    """(R + 1,): each record covers the steps since the previous one."""
    first = steps[0] - (steps[1] - steps[0] if len(steps) > 1 else steps[0])
    return np.concatenate([[max(0, first)], steps])


def _draw_layer(axes: Axes, layer: str, shares: np.ndarray, steps: np.ndarray, peak: float) -> QuadMesh:
    """Draw one band per expert, the first one on top."""
    from matplotlib.colors import TwoSlopeNorm

    count = shares.shape[1]
    image = axes.pcolormesh(
        _edges(steps),
        np.arange(count + 1) - 0.5,
        _times(shares).T,
        cmap=colour_map(_LITTLE_TO_MUCH),
        norm=TwoSlopeNorm(1.0, 0.0, peak),
        rasterized=True,
    )
    axes.invert_yaxis()
    axes.set_yticks(range(0, count, 1 if count <= _NUMBERED else max(1, count // 16)))
    axes.tick_params(axis="y", length=0, labelsize=7)
    axes.set_ylabel("expert")
    axes.set_title(f"{layer}, even share {1 / count:.1%}", loc="left", fontsize=9)
    axes.set_title("last", loc="right", fontsize=8)
    axes.spines[:].set_visible(False)
    axes.hlines(np.arange(1, count) - 0.5, *axes.get_xlim(), color="white", linewidth=1.2)
    if count <= _NUMBERED:
        beside: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
        for number, share in enumerate(shares[-1]):
            axes.annotate(f"{share:.1%}", (1.0, number), (4, 0), va="center", fontsize=7, **beside)
    return image


def _draw_dropped(axes: Axes, recorded: ExpertShares) -> None:
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    single: dict[str, Any] = {"marker": "o", "markersize": 4} if len(recorded.steps) == 1 else {}
    axes.plot(recorded.steps, recorded.dropped, color=INK, linewidth=1.6, clip_on=False, zorder=3, **single)
    axes.set_ylim(0, max(0.01, 1.15 * float(recorded.dropped.max())))
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=1 if recorded.dropped.max() < 0.1 else 0))
    axes.set_title("dropped, all layers together", loc="left", fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))
    axes.set_xlabel("step")
    axes.grid(axis="y")


def _colour_bar(figure: Figure, image: QuadMesh, rows: list[Axes], peak: float, *, more: bool) -> None:
    """`more`: some shares exceed the peak."""
    bar = figure.colorbar(image, ax=rows, fraction=0.03, pad=0.06, extend="max" if more else "neither", aspect=25)
    ticks = [0.0, 0.5, 1.0, *np.linspace(1.0, peak, 4)[1:]]
    bar.set_ticks(ticks, labels=["0", "½", "1 (even)", *(f"{tick:.2g}" for tick in ticks[3:])])
    bar.set_label("share of the tokens, in even shares")
    bar.outline.set_visible(False)
