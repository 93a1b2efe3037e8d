"""Peak memory and time of relative attention: the skewed form against one vector for each pair of positions.

Both compute q·a_{j−i} for all pairs of T positions (Shaw et al. 2018). The naive form looks up the (T, T, Dh) tensor of
vectors first; the skewed one (Huang et al. 2018, §3.4.1; src/sightline/layers/positions.py) multiplies the
queries with the vectors of each distance and then puts the products in place. Forward and backward, causal, a vector
for each distance. Memory is the peak of allocations beyond inputs, parameters and the incoming gradient: on a CPU from
torch.profiler, on CUDA max_memory_allocated. Each point is measured in its own process.

    python benchmarks/relative_memory.py --json docs/measurements/relative_memory.json
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from measuring import machine, peak_bytes, seconds_of, write_json
from sightline.layers.positions import Distances, RelativeKeys

FORMS = ("naive", "skewed")


@dataclass(frozen=True)
class Point:
    """One measurement to make."""

    form: str
    length: int
    batch: int
    heads: int
    head_width: int
    device: str
    threads: int
    rounds: int


def naive(layer: RelativeKeys, query: Tensor, distances: Distances) -> Tensor:
    """(B, H, T, Dh) → (B, H, T, S) with a vector for each pair of positions."""
    vectors = F.embedding(layer.index(distances.matrix()), layer.table)  # (T, S, Dh)
    batch, heads, count, width = query.shape
    rows = query.permute(2, 0, 1, 3).reshape(count, batch * heads, width)  # (T, B·H, Dh)
    return (rows @ vectors.mT).unflatten(1, (batch, heads)).permute(1, 2, 0, 3)  # (B, H, T, S)


def skewed(layer: RelativeKeys, query: Tensor, distances: Distances) -> Tensor:
    """(B, H, T, Dh) → (B, H, T, S) with a product for each distance."""
    return layer(query, distances)


COMPUTE: dict[str, Callable[[RelativeKeys, Tensor, Distances], Tensor]] = {"naive": naive, "skewed": skewed}


class Work:
    """A forward and a backward pass of one form, with its inputs already in memory."""

    def __init__(self, point: Point) -> None:
        torch.manual_seed(1)
        self.compute, device = COMPUTE[point.form], torch.device(point.device)
        shape = (point.batch, point.heads, point.length)
        self.layer = RelativeKeys(point.head_width, point.length, causal=True).to(device)
        self.query = torch.randn(*shape, point.head_width, device=device, requires_grad=True)
        self.pull = torch.randn(*shape, point.length, device=device).tril()  # causal
        self.distances = Distances.within(point.length, device)

    def step(self) -> tuple[Tensor, Tensor]:
        """The gradients."""
        scores = self.compute(self.layer, self.query, self.distances)
        found = torch.autograd.grad(scores, (self.query, self.layer.table), self.pull)
        return found[0], found[1]


def measure(point: Point) -> dict[str, Any]:
    """A point's peak memory and the median time of a step."""
    torch.set_num_threads(point.threads)
    work = Work(point)
    seconds_of(work.step, work.query.device)  # warm-up
    peak = peak_bytes(work.step, work.query.device)
    return asdict(point) | {
        "peak_bytes": peak,
        "seconds": statistics.median(seconds_of(work.step, work.query.device) for _ in range(point.rounds)),
    }


def check(point: Point) -> float:
    """The largest difference between the gradients of the two forms, as a share of the largest gradient."""
    torch.set_num_threads(point.threads)
    first, second = (Work(Point(**(asdict(point) | {"form": form}))).step() for form in FORMS)
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(first, second, strict=True))


def apart(function: Callable[[Point], Any], point: Point) -> Any:
    """Call the function in a new process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, (point,))


def table(rows: list[dict[str, Any]]) -> str:
    """Both forms side by side, in Markdown."""
    lines = [
        "| B | T | naive, MiB | skewed, MiB | times less | naive, ms | skewed, ms | times faster |",
        "|---|---|---|---|---|---|---|---|",
    ]
    found = {(row["batch"], row["length"], row["form"]): row for row in rows}
    for batch, length in dict.fromkeys((row["batch"], row["length"]) for row in rows):
        one, two = found[batch, length, "naive"], found[batch, length, "skewed"]
        memory = [row["peak_bytes"] / 2**20 for row in (one, two)]
        times = [row["seconds"] * 1e3 for row in (one, two)]
        cells = [str(batch), f"{length:,}", *(f"{size:,.1f}" for size in memory), f"{memory[0] / memory[1]:.1f}"]
        cells += [*(f"{each:,.1f}" for each in times), f"{times[0] / times[1]:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", default="128,256,512,1024,2048")
    parser.add_argument("--batches", default="1,8", help="sizes of the batch: what is saved does not grow with it")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--head-width", type=int, default=64)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    lengths = [int(length) for length in options.lengths.split(",")]
    batches = [int(batch) for batch in options.batches.split(",")]
    setting = {key: getattr(options, key) for key in ("heads", "head_width", "device", "threads", "rounds")}
    difference = apart(check, Point("naive", lengths[0], batches[0], **setting))
    print(f"gradients of the two forms differ by at most {difference:.1e} of the largest (T = {lengths[0]})")
    rows = []
    for batch, length, form in product(batches, lengths, FORMS):
        row = apart(measure, Point(form, length, batch, **setting))
        rows.append(row)
        found = f"{row['peak_bytes'] / 2**20:8,.1f} MiB, {row['seconds'] * 1e3:8,.1f} ms"
        print(f"B {batch:2} T {length:5,} {form:6}: {found}", flush=True)
    print(f"\n{table(rows)}")
    content = {"machine": machine(), "benchmark": "relative_memory", "gradient_difference": difference, "rows": rows}
    write_json(options.json, content)


if __name__ == "__main__":
    main()
