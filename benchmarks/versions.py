"""Speed of two versions of Sightline, side by side: training and decoding, interleaved.

    git worktree add ../before REVISION
    SIGHTLINE_CORPORA=... python benchmarks/versions.py ../before/src src --run runs/laptop --json versions.json

Each version runs in its own process and only through the public API (`sightline.train`, `sightline.load`). They take
turns (before, after, after, before, ...). A training turn is one short training; its speed is recorded by metrics.jsonl
between two of its steps, start-up excluded. A decoding turn predicts the first sentences of a test set. The table shows
the median ratio after / before over all pairs and its 95% interval (percentile bootstrap over pairs).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

WARMUP_STEPS = 10


@dataclass(frozen=True)
class Workload:
    """A training or decoding task of both versions, with options of `sightline.train` or `predict`."""

    name: str
    recipe: str = ""  # training: the recipe and its overrides
    overrides: tuple[str, ...] = ()
    steps: int = 60
    run: str = ""  # decoding: the run folder, and keywords of `predict`
    keywords: tuple[tuple[str, Any], ...] = ()


def training_rate(workload: Workload) -> float:
    """Tokens per second between step 10 and the last step of a short training."""
    import sightline

    steps = workload.steps + WARMUP_STEPS
    overrides = [
        *workload.overrides,
        f"training.limits.steps={steps}",
        f"training.log_every={WARMUP_STEPS}",
        f"training.validate_every={steps + 1}",
        "training.samples=0",
    ]
    with tempfile.TemporaryDirectory() as folder:
        sightline.train(workload.recipe, overrides, out=f"{folder}/run")
        lines = Path(folder, "run", "metrics.jsonl").read_text().splitlines()
    records = [record for record in map(json.loads, lines) if record["kind"] == "train"]
    first, last = records[0], [record for record in records if record["step"] <= steps][-1]
    return (last["tokens"] - first["tokens"]) / (last["seconds"] - first["seconds"])


def serve() -> None:
    """The process of a version: read one workload per line, write its speed."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # prints of trainings go to standard error
    loaded: dict[str, tuple[Any, list[str]]] = {}
    for line in sys.stdin:
        task = json.loads(line)
        workload = Workload(**{**task["workload"], "keywords": tuple(map(tuple, task["workload"]["keywords"]))})
        if workload.recipe:
            rate = training_rate(workload)
        else:
            if workload.run not in loaded:
                import sightline

                run = sightline.load(workload.run)
                examples = islice(run.test_examples(run.test_sets()[0]), task["sentences"])
                loaded[workload.run] = run, [example.source for example in examples]
            run, sources = loaded[workload.run]
            started = time.perf_counter()
            run.predict(sources, **dict(workload.keywords))
            rate = len(sources) / (time.perf_counter() - started)
        answers.write(f"{rate}\n")
        answers.flush()


class Version:
    """A version as the parent process sees it."""

    def __init__(self, source: Path, cache: str, sentences: int) -> None:
        self.sentences = sentences
        environment = {**os.environ, "PYTHONPATH": str(source.resolve()), "SIGHTLINE_CACHE": cache}
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
        )

    def rate(self, workload: Workload) -> float:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps({"workload": asdict(workload), "sentences": self.sentences}) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"{workload.name}: the process of one version died; run the workload alone to see why")
        return float(answer)


def interval(ratios: list[float], resamples: int = 10_000) -> tuple[float, float]:
    """The 95% percentile-bootstrap interval of the median."""
    draw = random.Random(1)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(resamples))
    return medians[int(0.025 * resamples)], medians[int(0.975 * resamples)]


def workloads(options: argparse.Namespace) -> list[Workload]:
    """Three trainings, and two searches with each run."""
    small = ("model.width=256", "training.batches.tokens=2048")
    if options.smoke:
        small = ("model.width=32", "training.batches.tokens=256")
    found = [
        Workload("train Transformer", "multi30k/laptop", (*small, "training.precision=float32"), options.steps),
        Workload("train Transformer bf16", "multi30k/laptop", (*small, "training.precision=bf16"), options.steps),
        Workload("train LSTM", "multi30k/lstm-additive", (*small, "training.precision=float32"), options.steps),
    ]
    for run in options.run:
        name = Path(run).name
        found += [
            Workload(f"greedy {name}", run=run, keywords=(("beam", 1),)),
            Workload(f"beam 5 {name}", run=run, keywords=(("beam", 5), *options.keyword)),
        ]
    return [each for each in found if options.only is None or options.only in each.name]


def keyword(text: str) -> tuple[str, Any]:
    """`length_penalty=1.0` as a name and a value."""
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def main() -> None:
    if sys.argv[1:] == ["--serve"]:
        serve()
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="the src folder of the version to compare with")
    parser.add_argument("after", type=Path, help="the src folder of the version to measure")
    parser.add_argument("--run", action="append", default=[], help="a run folder both versions can load; repeatable")
    parser.add_argument("--keyword", action="append", default=[], type=keyword, help="of beam searches, e.g. nbest=2")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--steps", type=int, default=60, help="training steps in a turn")
    parser.add_argument("--sentences", type=int, default=500, help="sentences decoded in a turn")
    parser.add_argument("--only", help="only workloads whose name contains this")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, to try the benchmark itself")
    parser.add_argument("--json", type=Path, help="where to save all turns")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as cache:
        versions = [Version(path, cache, options.sentences) for path in (options.before, options.after)]
        for workload in workloads(options):
            for version in versions:
                version.rate(workload)  # prepares the text, warms up
            pairs = []
            for number in range(options.pairs):
                order = (0, 1) if number % 2 == 0 else (1, 0)
                rates = {which: versions[which].rate(workload) for which in order}
                pairs.append((rates[0], rates[1]))
            ratios = [after / before for before, after in pairs]
            low, high = interval(ratios)
            median = statistics.median(ratios)
            rows.append({"workload": asdict(workload), "pairs": pairs, "median": median, "interval": [low, high]})
            middle = statistics.median(before for before, _ in pairs), statistics.median(after for _, after in pairs)
            print(
                f"{workload.name:32} before {middle[0]:9,.1f}/s  after {middle[1]:9,.1f}/s  "
                f"after / before {median:.3f} [{low:.3f}, {high:.3f}] over {len(pairs)} pairs",
                flush=True,
            )
            if options.json is not None:
                options.json.write_text(json.dumps({"pairs": options.pairs, "rows": rows}, indent=1) + "\n")
        for version in versions:
            version.process.terminate()


if __name__ == "__main__":
    main()
