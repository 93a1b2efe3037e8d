"""How long a training takes alone and beside another, by how its OpenMP threads wait for work.

python benchmarks/busy_machine.py --spin default 10000 1000 0 --rounds 3

Each training is a process of its own. Time is that of the steps after the first twenty, from metrics.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

WARM = 20  # steps that are not timed


def start(recipe: str, options: list[str], folder: Path, spin: str) -> subprocess.Popen[bytes]:
    """A training in the background; `spin` is a GOMP_SPINCOUNT, `own` what Sightline chooses, `default` PyTorch's."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("GOMP_", "OMP_", "KMP_"))}
    if spin == "default":
        environment["SIGHTLINE_SPINCOUNT"] = "default"
    elif spin != "own":
        environment["GOMP_SPINCOUNT"] = spin
    words = [sys.executable, "-m", "sightline", "train", recipe, *options, f"training.log_every={WARM}"]
    words += ["training.validate_every=1000000", "training.samples=0", "training.device=cpu", "--out", str(folder)]
    return subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)


def seconds(folder: Path) -> float:
    """How long the steps after the first took."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [record for record in map(json.loads, lines) if record["kind"] == "train"]
    found: float = records[-1]["seconds"] - records[0]["seconds"]
    return found


def timed(recipe: str, options: list[str], spin: str, count: int) -> list[float]:
    """The seconds of so many trainings at once."""
    with tempfile.TemporaryDirectory() as place:
        folders = [Path(place) / f"run-{number}" for number in range(count)]
        processes = [start(recipe, options, folder, spin) for folder in folders]
        for process in processes:
            if process.wait() != 0:
                raise SystemExit(f"a training failed with exit code {process.returncode}")
        return [seconds(folder) for folder in folders]


def main() -> None:
    """Measure in turns, print medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="dates")
    parser.add_argument("--set", nargs="*", default=["training.limits.steps=120"], help="overrides of the recipe")
    parser.add_argument("--spin", nargs="+", default=["default", "own"])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    alone: dict[str, list[float]] = {spin: [] for spin in options.spin}
    beside: dict[str, list[float]] = {spin: [] for spin in options.spin}
    for _ in range(options.rounds):
        for spin in options.spin:
            alone[spin] += timed(options.recipe, options.set, spin, 1)
            beside[spin] += timed(options.recipe, options.set, spin, 2)
    base = statistics.median(alone[options.spin[0]])
    print(f"{options.recipe} {' '.join(options.set)}; {os.cpu_count()} cores, {options.rounds} rounds")
    print(f"{'wait':<10} {'alone':>8} {'':>7} {'two at once':>12} {'':>7}")
    for spin in options.spin:
        one, two = statistics.median(alone[spin]), statistics.median(beside[spin])
        print(f"{spin:<10} {one:>7.2f}s {one / base:>6.2f}x {two:>11.2f}s {two / base:>6.2f}x", flush=True)


if __name__ == "__main__":
    main()
