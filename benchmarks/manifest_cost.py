"""The cost of checking manifest.json when a run is loaded: load times with and without, interleaved.

python benchmarks/manifest_cost.py runs/big --rounds 9
"""

from __future__ import annotations

import argparse
import statistics
import time
from concurrent.futures import Future
from pathlib import Path
from unittest.mock import patch

from sightline.files import checksum
from sightline.run import Run


def unchecked(run: Path, name: str = "") -> Future[None]:
    """Replaces `verified_later`; reads nothing."""
    done: Future[None] = Future()
    done.set_result(None)
    return done


def timed(run: Path, *, check: bool) -> float:
    """Seconds to load a run on the CPU."""
    started = time.perf_counter()
    if check:
        Run.load(run, device="cpu")
    else:
        with (
            patch("sightline.run.verified_later", unchecked),
            patch("sightline.run_folder.verify", lambda run: None),
            patch("sightline.data.locate.verify", lambda run: None),
        ):
            Run.load(run, device="cpu")
    return time.perf_counter() - started


def main() -> None:
    """Print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    weights = options.run / "model.safetensors"
    started = time.perf_counter()
    checksum(weights)
    alone = time.perf_counter() - started
    times: dict[bool, list[float]] = {True: [], False: []}
    for number in range(options.rounds + 1):
        for check in (True, False):
            seconds = timed(options.run, check=check)
            if number:  # the first round reads the file from the disk
                times[check].append(seconds)
    print(f"{weights.stat().st_size / 1e6:.0f} MB of weights; SHA-256 of them alone {alone:.2f} s")
    for check, name in ((False, "not checked"), (True, "checked")):
        print(f"load, {name:<12} median {statistics.median(times[check]):.2f} s, least {min(times[check]):.2f} s")


if __name__ == "__main__":
    main()
