"""Time and memory of a training step against the sequence length, for each kind of attention.

A stack of Transformer decoder layers over one sequence of random vectors, forward and backward: full attention with the
explicit kernel and with the fused one, local attention in blocks, memory-compressed attention, and both in turns (DMCA;
Liu et al. 2018). Memory is the peak of allocations beyond parameters, their gradients and the input: on CUDA
max_memory_allocated, on a CPU from torch.profiler. Points that do not fit into memory are marked. Slopes are of the
longest three lengths on logarithmic scales: 1 is linear, 2 is quadratic.

    python benchmarks/long_attention.py --json docs/measurements/long_attention.json --figure docs/long-attention.png
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import resource
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from measuring import machine, peak_bytes, seconds_of, write_json
from sightline.layers.layout import Packed
from sightline.layers.multi_head import MultiHeadAttention
from sightline.models.gradient_checkpointing import enable_gradient_checkpointing
from sightline.models.transformer.config import TransformerConfig
from sightline.models.transformer.modules import TransformerDecoder
from sightline.plots.lines import Panel, Series, draw_lines

FULL: dict[str, Any] = {"kind": "full"}
KINDS = ("full", "fused", "local", "compressed", "dmca")
NAMES = {"full": "full, explicit", "fused": "full, fused", "local": "local", "compressed": "compressed", "dmca": "DMCA"}


@dataclass(frozen=True)
class Setting:
    """The settings of all points."""

    device: str
    width: int
    heads: int
    layers: int
    feedforward: int
    block: int
    look_back: int
    stride: int
    recompute: bool
    rounds: int
    seconds: float


@dataclass(frozen=True)
class Point:
    """One measurement; None if it did not fit into memory."""

    kind: str
    length: int
    seconds: float | None = None  # the median round
    fastest: float | None = None
    slowest: float | None = None
    peak_bytes: int | None = None
    rounds: int = 0

    @property
    def out_of_memory(self) -> bool:
        return self.seconds is None


def spans(kind: str, setting: Setting) -> list[dict[str, Any]]:
    """The attention pattern of the layers."""
    local = {"kind": "local", "block": setting.block, "look_back": setting.look_back}
    compressed = {"kind": "compressed", "kernel": setting.stride, "stride": setting.stride}
    return {"full": [FULL], "fused": [FULL], "local": [local], "compressed": [compressed]}.get(
        kind, [local, compressed]
    )


class Work:
    """A training step of one stack over one sequence."""

    def __init__(self, kind: str, length: int, setting: Setting) -> None:
        torch.manual_seed(1)
        body = TransformerConfig.model_validate(
            {
                "layers": setting.layers,
                "heads": setting.heads,
                "feedforward": {"width": setting.feedforward},
                "attention": {"pattern": spans(kind, setting)},
                "dropout": 0.0,
            }
        )
        self.device = torch.device(setting.device)
        self.decoder = TransformerDecoder(body, setting.width, source=False).to(self.device).train()
        if setting.recompute:
            enable_gradient_checkpointing(self.decoder)
        for module in self.decoder.modules():
            if kind == "full" and isinstance(module, MultiHeadAttention):
                module.score.fused_scale = None  # forces the explicit kernel
        self.layout = Packed.of([length], self.device)
        self.x = torch.randn(length, setting.width, device=self.device)
        for parameter in self.decoder.parameters():
            parameter.grad = torch.zeros_like(parameter)

    def step(self) -> None:
        """Forward and backward, in bfloat16 on CUDA."""
        half = torch.autocast("cuda", torch.bfloat16) if self.device.type == "cuda" else contextlib.nullcontext()
        with half:
            features: Tensor = self.decoder.advance(self.x, self.decoder.begin_empty(1, self.x), self.layout)[0]
            loss = features.float().square().mean()
        loss.backward()


def measure(kind: str, length: int, setting: Setting) -> Point:
    """Measure a point, or record that it does not fit into memory."""
    try:
        work = Work(kind, length, setting)
        seconds_of(work.step, work.device)  # warm-up
        peak, rounds = peak_bytes(work.step, work.device), [seconds_of(work.step, work.device)]
        while len(rounds) < setting.rounds and sum(rounds) < setting.seconds:
            rounds.append(seconds_of(work.step, work.device))
        return Point(kind, length, statistics.median(rounds), min(rounds), max(rounds), peak, len(rounds))
    except (torch.OutOfMemoryError, MemoryError):
        return Point(kind, length)
    except RuntimeError as error:
        if "allocate memory" not in str(error):  # the error of PyTorch on a CPU
            raise
        return Point(kind, length)
    finally:
        gc.collect()
        if setting.device.startswith("cuda"):
            torch.cuda.empty_cache()


def slope(points: list[Point], what: str, last: int = 3) -> float | None:
    """The exponent of growth over the last lengths."""
    found = [(point.length, getattr(point, what)) for point in points if not point.out_of_memory][-last:]
    if len(found) < 2:
        return None
    x, y = np.log(np.array(found, dtype=float)).T
    return float(np.polyfit(x, y, 1)[0])


def of_kind(points: list[Point], kind: str) -> list[Point]:
    return [point for point in points if point.kind == kind]


def table(points: list[Point], kinds: list[str]) -> str:
    """Milliseconds and MiB of every kind, in Markdown; the last row has the slopes."""
    lines = [
        "| tokens | " + " | ".join(f"{NAMES[kind]}, ms | MiB" for kind in kinds) + " |",
        "|---" * (1 + 2 * len(kinds)) + "|",
    ]
    found = {(point.kind, point.length): point for point in points}
    for length in dict.fromkeys(point.length for point in points):
        cells = [f"{length:,}"]
        for kind in kinds:
            point = found[kind, length]
            if point.seconds is None or point.peak_bytes is None:
                cells += ["out of memory", "–"]
            else:
                cells += [f"{point.seconds * 1e3:,.1f}", f"{point.peak_bytes / 2**20:,.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    slopes = [slope(of_kind(points, kind), what) for kind in kinds for what in ("seconds", "peak_bytes")]
    ends = ["–" if each is None else f"n^{each:.2f}" for each in slopes]
    return "\n".join([*lines, f"| grows as | {' | '.join(ends)} |"])


def draw(points: list[Point], kinds: list[str], setting: Setting, path: Path) -> None:
    """Time and memory side by side; both scales logarithmic, so that a slope is a power of the length."""
    panels = []
    for what, title, unit, factor in (
        ("seconds", "Time", "milliseconds a step", 1e3),
        ("peak_bytes", "Memory", "MiB beyond parameters", 2**-20),
    ):
        lines = []
        for look, kind in enumerate(kinds):
            own = [point for point in of_kind(points, kind) if not point.out_of_memory]
            powers = [slope(of_kind(points, kind), each) for each in ("seconds", "peak_bytes")]
            shown = ", ".join("–" if each is None else f"n^{round(each, 1) + 0.0:.1f}" for each in powers)  # no -0.0
            y = [getattr(point, what) * factor for point in own]
            lines.append(Series(f"{NAMES[kind]} ({shown})", [point.length for point in own], y, look))
        panels.append(Panel(title, "tokens", unit, lines, log_x=True))
    title = f"One training step, {setting.layers} layers of width {setting.width} (below: how time and memory grow)"
    draw_lines(panels, path, title=title)


def parse() -> argparse.Namespace:
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if cuda else "cpu")
    parser.add_argument("--lengths", type=int, nargs="+", help="by default 512 to 16,384 on CUDA, to 4,096 on a CPU")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--width", type=int, help="by default 512 on CUDA, 128 on a CPU")
    parser.add_argument("--heads", type=int, help="by default one for 64 features on CUDA, for 32 on a CPU")
    parser.add_argument("--layers", type=int, default=4, help="as many local as compressed ones in DMCA")
    parser.add_argument("--feedforward", type=int, help="inner width; by default four times the width")
    parser.add_argument("--block", type=int, default=256)
    parser.add_argument("--look-back", type=int, default=0)
    parser.add_argument("--stride", type=int, default=3)
    parser.add_argument("--recompute", action="store_true", help="training.gradient_checkpointing")
    parser.add_argument("--rounds", type=int, default=5, help="most rounds of a point")
    parser.add_argument("--seconds", type=float, default=1.0, help="start no further round after this many")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--limit-gib", type=float, default=12, help="on a CPU: more counts as out of memory")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--draw", type=Path, metavar="JSON", help="measure nothing: draw this earlier result")
    return parser.parse_args()


def earlier(file: Path) -> tuple[list[Point], list[str], Setting]:
    """A result that was written with --json."""
    result = json.loads(file.read_text())
    rows = [{key: value for key, value in row.items() if key != "out_of_memory"} for row in result["rows"]]
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    return [Point(**row) for row in rows], kinds, Setting(**result["setting"])


def main() -> None:
    options = parse()
    if options.draw is not None:
        draw(*earlier(options.draw), options.figure or options.draw.with_suffix(".png"))
        return
    cuda = options.device.startswith("cuda")
    lengths = options.lengths or [512 * 2**power for power in range(6 if cuda else 4)]
    width = options.width or (512 if cuda else 128)
    setting = Setting(
        device=options.device,
        width=width,
        heads=options.heads or width // (64 if cuda else 32),
        feedforward=options.feedforward or 4 * width,
        **{name: getattr(options, name) for name in ("layers", "block", "look_back", "stride", "rounds", "seconds")},
        recompute=options.recompute,
    )
    torch.set_num_threads(options.threads)
    if not cuda:  # a point that does not fit must not exhaust the machine
        resource.setrlimit(resource.RLIMIT_AS, (int(options.limit_gib * 2**30),) * 2)
    points = []
    for kind in options.kinds:
        for length in lengths:
            point = measure(kind, length, setting)
            points.append(point)
            fits = point.seconds is not None and point.peak_bytes is not None
            cost = f"{point.seconds * 1e3:10,.1f} ms {point.peak_bytes / 2**20:10,.1f} MiB" if fits else "out of memory"  # type: ignore[operator]
            print(f"{NAMES[kind]:15} {length:6,} tokens: {cost}", flush=True)
    print(f"\n{table(points, options.kinds)}")
    if options.json is not None:
        slopes = {
            kind: {what: slope(of_kind(points, kind), what) for what in ("seconds", "peak_bytes")}
            for kind in options.kinds
        }
        rows = [asdict(point) | {"out_of_memory": point.out_of_memory} for point in points]
        content = {"machine": machine(), "benchmark": "long_attention", "setting": asdict(setting)}
        write_json(options.json, content | {"slopes": slopes, "rows": rows})
    if options.figure is not None:
        draw(points, options.kinds, setting, options.figure)


if __name__ == "__main__":
    main()
