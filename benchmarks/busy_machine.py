"""The time of a training alone and beside another, by the number of CPU threads and how they wait for work.

python benchmarks/busy_machine.py --spin default own --rounds 15
python benchmarks/busy_machine.py --spin default own 20000 --rounds 15 --alone

Each training is a separate process; its time is that of the steps after the first twenty, from metrics.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WARM = 20  # steps that are not timed


def start(recipe: str, options: list[str], folder: Path, spin: str) -> subprocess.Popen[bytes]:
    """Start a training in the background.

    `spin` is `own` (threads and waiting as Sightline chooses them), `default` (as PyTorch does), or a GOMP_SPINCOUNT
    with the number of threads that Sightline chooses.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("GOMP_", "OMP_", "KMP_"))}
    if spin == "default":
        environment["SIGHTLINE_SPINCOUNT"] = "default"
        options = [*options, f"training.threads={os.cpu_count()}"]
    elif spin != "own":
        environment["GOMP_SPINCOUNT"] = spin
    words = [sys.executable, "-m", "sightline", "train", recipe, *options, f"training.log_every={WARM}"]
    words += ["training.validate_every=1000000", "training.samples=0", "training.device=cpu", "--out", str(folder)]
    return subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)


def seconds(folder: Path) -> float:
    """The duration of the steps after the first twenty."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [record for record in map(json.loads, lines) if record["kind"] == "train"]
    found: float = records[-1]["seconds"] - records[0]["seconds"]
    return found


def timed(recipe: str, options: list[str], spin: str, count: int, apart: float = 0.0) -> list[float]:
    """The seconds of `count` simultaneous trainings, each started `apart` seconds after the previous one."""
    with tempfile.TemporaryDirectory() as place:
        folders = [Path(place) / f"run-{number}" for number in range(count)]
        processes = []
        for number, folder in enumerate(folders):
            time.sleep(apart if number else 0.0)
            processes.append(start(recipe, options, folder, spin))
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
    parser.add_argument("--apart", type=float, default=0.0, help="seconds between the starts of the two trainings")
    parser.add_argument("--alone", action="store_true", help="measure trainings alone only")
    options = parser.parse_args()
    alone: dict[str, list[float]] = {spin: [] for spin in options.spin}
    beside: dict[str, list[float]] = {spin: [] for spin in options.spin}
    for number in range(options.rounds):
        for spin in options.spin[:: 1 if number % 2 else -1]:  # alternate the order
            alone[spin] += timed(options.recipe, options.set, spin, 1)
            if not options.alone:
                beside[spin] += timed(options.recipe, options.set, spin, 2, options.apart)
    base = options.spin[0]
    print(f"{options.recipe} {' '.join(options.set)}; {os.cpu_count()} cores, {options.rounds} rounds, medians")
    print(f"{'wait':<10} {'alone':>8} {f'to {base}':>12} {'two at once':>12} {'to one alone':>13}")
    for spin in options.spin:
        ratio = statistics.median(own / other for own, other in zip(alone[spin], alone[base], strict=True))
        line = f"{spin:<10} {statistics.median(alone[spin]):>7.2f}s {ratio:>11.3f}x"
        if beside[spin]:
            two = statistics.median(beside[spin])
            line += f" {two:>11.2f}s {two / statistics.median(alone[spin]):>12.2f}x"
        print(line, flush=True)


if __name__ == "__main__":
    main()
