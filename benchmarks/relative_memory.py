"""What the skewed form of relative attention saves: peak memory and time against the form with a vector for each pair.

Both compute q·a_{j−i} for all pairs of T positions (Shaw et al. 2018). The naive form looks up the (T, T, K) tensor of
vectors first; the skewed one (Huang et al. 2018, §3.4.1; src/sightline/layers/positions.py) multiplies the
queries with the vectors of each distance and then puts the products in place. Forward and backward, causal, a vector
for each distance. Memory is what the allocator had given out at its peak beyond inputs, parameters and the gradient
that comes in: on a CPU as torch.profiler counts it, on CUDA max_memory_allocated. Each point has a process of its own.

    python benchmarks/relative_memory.py --json docs/measurements/relative_memory.json
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import accumulate, product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

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
    """(B, H, T, K) → (B, H, T, S) by way of a vector for each pair of positions."""
    vectors = F.embedding(layer.index(distances.matrix()), layer.table)  # (T, S, K)
    batch, heads, count, width = query.shape
    rows = query.permute(2, 0, 1, 3).reshape(count, batch * heads, width)  # (T, B·H, K)
    return (rows @ vectors.mT).unflatten(1, (batch, heads)).permute(1, 2, 0, 3)  # (B, H, T, S)


def skewed(layer: RelativeKeys, query: Tensor, distances: Distances) -> Tensor:
    """The same by way of a product for each distance."""
    return layer(query, distances)


COMPUTE: dict[str, Callable[[RelativeKeys, Tensor, Distances], Tensor]] = {"naive": naive, "skewed": skewed}


class Work:
    """A forward and a backward pass of one form, with everything it is given already in memory."""

    def __init__(self, point: Point) -> None:
        torch.manual_seed(1)
        self.compute, device = COMPUTE[point.form], torch.device(point.device)
        shape = (point.batch, point.heads, point.length)
        self.layer = RelativeKeys(point.head_width, point.length, causal=True).to(device)
        self.query = torch.randn(*shape, point.head_width, device=device, requires_grad=True)
        self.pull = torch.randn(*shape, point.length, device=device).tril()  # later keys have no meaning
        self.distances = Distances.within(point.length, device)

    def step(self) -> tuple[Tensor, Tensor]:
        """The gradients."""
        scores = self.compute(self.layer, self.query, self.distances)
        found = torch.autograd.grad(scores, (self.query, self.layer.table), self.pull)
        return found[0], found[1]


def peak_bytes(work: Work) -> int:
    """The most that was allocated at once during a step, beyond what was there before."""
    if work.query.is_cuda:
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        work.step()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        work.step()
    assert found.profiler is not None
    events = [event for event in found.profiler.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return max(accumulate(event.nbytes() for event in events))


def seconds_of(work: Work) -> float:
    """How long a step takes; on a CPU in processor time, which other programs change little."""
    clock = time.perf_counter if work.query.is_cuda else time.process_time
    start = clock()
    work.step()
    if work.query.is_cuda:
        torch.cuda.synchronize()
    return clock() - start


def measure(point: Point) -> dict[str, Any]:
    """A point's peak memory and the median time of a step."""
    torch.set_num_threads(point.threads)
    work = Work(point)
    seconds_of(work)  # the first step is slower
    peak = peak_bytes(work)
    return asdict(point) | {
        "peak_bytes": peak,
        "seconds": statistics.median(seconds_of(work) for _ in range(point.rounds)),
    }


def check(point: Point) -> float:
    """The largest difference between the gradients of the two forms, as a share of the largest gradient."""
    torch.set_num_threads(point.threads)
    first, second = (Work(Point(**(asdict(point) | {"form": form}))).step() for form in FORMS)
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(first, second, strict=True))


def apart(function: Callable[[Point], Any], point: Point) -> Any:
    """In a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, (point,))


def processor() -> str:
    """The name of the processor, where Linux tells it."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


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
    if options.json is not None:
        machine = {"torch": torch.__version__, "python": platform.python_version(), "processor": processor()}
        if options.device != "cpu":
            machine["cuda"] = torch.cuda.get_device_name()
        options.json.parent.mkdir(parents=True, exist_ok=True)
        content = {"machine": machine, "benchmark": "relative_memory", "gradient_difference": difference, "rows": rows}
        options.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
