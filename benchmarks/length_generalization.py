"""Length generalization of each kind of positions: copying and reversing letters.

Trains the recipe lengths/transformer (1 to 40 letters) for each kind of positions, task and seed, as a sweep; tests
each greedily on up to 160 letters; writes all scores as JSON and draws them. Repeating the command resumes it. Learned
positions end with their table: for longer sequences the error of `sightline evaluate` is recorded.

    python benchmarks/length_generalization.py --jobs 14 --minutes 1.5 --device cuda --out runs/lengths \\
        --json docs/measurements/length_generalization.json --figure docs/length-generalization.png
    python benchmarks/length_generalization.py --draw docs/measurements/length_generalization.json --figure other.png
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from measuring import machine
from sightline.files import write_atomically
from sightline.recipe.loading import load_recipe
from sightline.run import Run
from sightline.sweeps import plan, sweep

RECIPE = "lengths/transformer"
KINDS = ("sinusoidal", "learned", "rotary", "alibi", "t5", "shaw", "none")
CHANGES = ("copy", "reverse")
LEARNED = 42  # positions of a learned table: 40 letters, a mark, and one to spare
EVERY = 1_000  # steps between validations, which decode
METRICS = {"exact": "sequences all right (%)", "wer": "symbol error rate (%)"}

# Okabe & Ito (2008), as in plots/comparison.py.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#1f2933")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
INK, GRID = "#1f2933", "#dfe4ea"


@dataclass(frozen=True)
class Trained:
    """A trained run of the sweep, and how to test it."""

    change: str
    kind: str
    seed: int
    folder: Path
    device: str
    threads: int

    @property
    def name(self) -> str:
        return f"{self.change} {self.kind} seed {self.seed}"


# --- training ----------------------------------------------------------------------------------------------------


def variant(change: str, kind: str, seed: int) -> dict[str, Any]:
    """The overrides of one run."""
    tests = load_recipe(RECIPE).data.tests
    found: dict[str, Any] = {"name": f"{change}-{kind}-{seed}", "seed": seed}
    for source in ("train.0", "validation", *(f"tests.{name}" for name in tests)):
        found[f"data.{source}.operation"] = change
    for side in ("encoder", "decoder"):
        found[f"model.{side}.positions.kind"] = kind
        if kind == "learned":
            found[f"model.{side}.positions.max_positions"] = LEARNED
    return found


def train_all(options: argparse.Namespace) -> list[Trained]:
    """Train all runs; failed ones are reported and left out."""
    variants = {
        f"{change}-{kind}-{seed}": (change, kind, seed)
        for seed in options.seeds
        for change in options.changes
        for kind in options.kinds
    }
    settings = [f"training.device={options.device}", "training.samples=0", f"training.validate_every={EVERY}"]
    settings.append("training.compile=false")  # compiling takes longer than training so small a model
    if options.steps is not None:
        settings.append(f"training.limits.steps={options.steps}")
    if options.minutes is not None:
        settings.append(f"training.limits.minutes={options.minutes}")
    planned = plan.plan_sweep(
        RECIPE, settings, variants=[variant(*each) for each in variants.values()], out=options.out
    )
    names = {run.folder: run.name for run in planned.runs}
    found = sweep.run_sweep(planned, jobs=options.jobs, compare=None)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = max(1, cores // options.jobs)
    return [
        Trained(*variants[names[folder]], folder, options.device, threads)
        for folder in found.finished
        if names.get(folder) in variants
    ]


# --- testing -----------------------------------------------------------------------------------------------------


def test(trained: Trained) -> dict[str, Any]:
    """The scores of a run at every length, or the error."""
    torch.set_num_threads(trained.threads)
    start = time.monotonic()
    run = Run.load(trained.folder, device=trained.device)
    records = [json.loads(line) for line in (trained.folder / "metrics.jsonl").read_text().splitlines()]
    last = [record for record in records if record["kind"] == "validation"][-1]
    return {
        "change": trained.change,
        "positions": trained.kind,
        "seed": trained.seed,
        "parameters": sum(parameter.numel() for parameter in run.model.parameters()),
        "steps": last["step"],
        "training_seconds": round(last["seconds"], 1),
        "tests": [_tested(run, name) for name in run.recipe.data.tests],
        "test_seconds": round(time.monotonic() - start, 1),
    }


def _tested(run: Run, name: str) -> dict[str, Any]:
    fewest, most = run.recipe.data.tests[name].lengths  # type: ignore[union-attr]
    where = {"on": name, "lengths": [fewest, most]}
    try:
        report = run.evaluate(name)
    except ValueError as error:  # longer than a table of learned positions
        return where | {"error": str(error)}
    scores = {
        key: {"value": score.value, "low": score.low, "high": score.high, "signature": score.signature}
        for key, score in zip(run.recipe.evaluation.metrics, report.scores, strict=True)
    }
    return where | {"sentences": report.sentences, "scores": scores}


def test_all(runs: list[Trained], jobs: int) -> Iterator[dict[str, Any]]:
    """Test several runs in parallel and print each result."""
    with multiprocessing.get_context("spawn").Pool(min(jobs, len(runs)), maxtasksperchild=1) as pool:
        for number, row in enumerate(pool.imap_unordered(test, runs), 1):
            line = f"[{number}/{len(runs)}] {row['change']:7} {row['positions']:10} seed {row['seed']}"
            print(f"{line}  {row['steps']:6,} steps  exact: {_line(row, 'exact')}", flush=True)
            yield row


def _line(row: dict[str, Any], metric: str) -> str:
    return "  ".join(
        f"{test['lengths'][1]}: {'—' if 'error' in test else format(test['scores'][metric]['value'], '.1f')}"
        for test in row["tests"]
    )


def table(rows: list[dict[str, Any]]) -> str:
    """Means over the seeds of both metrics, as Markdown tables."""
    lengths = [test["lengths"][1] for test in rows[0]["tests"]]
    lines = []
    for metric, title in METRICS.items():
        lines += ["", f"{title}, by the longest of the test", ""]
        lines += [f"| | positions | {' | '.join(map(str, lengths))} |", "|---|---|" + "---|" * len(lengths)]
        for change, kind in dict.fromkeys((row["change"], row["positions"]) for row in rows):
            means = dict(_means(rows, change, kind, metric))
            cells = [f"{means[length]:.1f}" if length in means else "error" for length in lengths]
            lines.append(f"| {change} | {kind} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _means(rows: list[dict[str, Any]], change: str, kind: str, metric: str) -> Iterator[tuple[int, float]]:
    """(length, mean over the seeds) where there are scores."""
    of = [row["tests"] for row in rows if (row["change"], row["positions"]) == (change, kind)]
    for tests in zip(*of, strict=True):
        values = [test["scores"][metric]["value"] for test in tests if "scores" in test]
        if values:
            yield tests[0]["lengths"][1], fmean(values)


# --- drawing -----------------------------------------------------------------------------------------------------


def draw(result: dict[str, Any], path: Path) -> None:
    """One column per task: exact matches above, symbol error rates below."""
    from sightline.plots.figures import around_curves, drawing, new_figure, write_figure

    rows = result["rows"]
    changes = list(dict.fromkeys(row["change"] for row in rows))
    kinds = [kind for kind in KINDS if any(row["positions"] == kind for row in rows)]
    with drawing({**around_curves(), "font.size": 9}):
        figure = new_figure(figsize=(5.6 * len(changes), 6.6), layout="constrained", facecolor="white")
        grid = figure.subplots(len(METRICS), len(changes), squeeze=False, sharex=True, sharey="row")
        for axes_row, metric in zip(grid, METRICS, strict=True):
            for axes, change in zip(axes_row, changes, strict=True):
                _panel(axes, result, change, metric, kinds)
            axes_row[0].set_ylabel(METRICS[metric])
        for axes, change in zip(grid[0], changes, strict=True):
            axes.set_title(change, loc="left", fontsize=11)
        for axes in grid[-1]:
            axes.set_xlabel("letters in the sequence")
        ended = {row["positions"] for row in rows if any("error" in test for test in row["tests"])}
        handles = grid[0][0].get_lines()[: len(kinds)]
        names = [f"{kind} (its table ends)" if kind in ended else kind for kind in kinds]
        figure.legend(handles, names, loc="outside lower center", ncols=len(kinds), frameon=False)
        write_figure(figure, path, dpi=130, margin=None)


def _panel(axes: Any, result: dict[str, Any], change: str, metric: str, kinds: list[str]) -> None:
    """Lines are shifted a little so that none hides another; values are cut at 100%."""
    for number, kind in enumerate(kinds):
        points = list(_means(result["rows"], change, kind, metric))
        aside = 1.2 * (number - (len(kinds) - 1) / 2)
        look: dict[str, Any] = {"color": COLOURS[KINDS.index(kind)], "marker": MARKERS[KINDS.index(kind)]}
        lengths, values = [x + aside for x, _ in points], [min(y, 100.0) for _, y in points]
        axes.plot(lengths, values, linewidth=1.6, markersize=5, **look)
    longest = result["trained_on"][1]
    axes.axvline(longest, color=INK, linewidth=1.0, linestyle="--")
    axes.annotate(
        "longest in training", (longest, 0.5), xycoords=("data", "axes fraction"), xytext=(-4, 0),
        textcoords="offset points", rotation=90, ha="right", va="center", fontsize=7.5,
    )  # fmt: skip
    axes.set_xticks(sorted({test["lengths"][1] for row in result["rows"] for test in row["tests"]}))
    axes.set_ylim(-4, 104)


# --- all of it ---------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, help="instead of the recipe's")
    parser.add_argument("--minutes", type=float, help="maximum minutes of training for a run")
    parser.add_argument("--jobs", type=int, default=1, help="runs trained or tested in parallel")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--kinds", type=_list_of(KINDS), default=KINDS)
    parser.add_argument("--changes", type=_list_of(CHANGES), default=CHANGES)
    parser.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[1])
    parser.add_argument("--out", type=Path, default=Path("runs/lengths"), help="folder of the runs")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--draw", type=Path, metavar="JSON", help="draw an earlier result instead of training")
    options = parser.parse_args()
    result = measure(options) if options.draw is None else json.loads(options.draw.read_text())
    print(table(result["rows"]))
    if options.figure is not None:
        try:
            draw(result, options.figure)
        except ModuleNotFoundError as error:  # the JSON is written; it can be drawn elsewhere
            print(f"no figure ({error}); draw it with --draw and the JSON file", file=sys.stderr)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Train, test and record."""
    runs = train_all(options)
    if not runs:
        raise SystemExit("no training finished; see the logs")
    result: dict[str, Any] = {
        "machine": machine(),
        "benchmark": "length_generalization",
        "recipe": RECIPE,
        "trained_on": list(load_recipe(RECIPE).data.train[0].lengths),  # type: ignore[union-attr]
        **{key: getattr(options, key) for key in ("steps", "minutes", "jobs", "device")},
        "rows": [],
    }
    order = [(run.change, run.kind, run.seed) for run in runs]
    for row in test_all(runs, options.jobs):
        result["rows"].append(row)
        result["rows"].sort(key=lambda row: order.index((row["change"], row["positions"], row["seed"])))
        if options.json is not None:  # after each, so that results survive an interruption
            write_atomically(options.json, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    return result


def _list_of(known: tuple[str, ...]) -> Any:
    def read(text: str) -> list[str]:
        found = text.split(",")
        if wrong := [name for name in found if name not in known]:
            raise argparse.ArgumentTypeError(f"{wrong[0]!r} is none of {', '.join(known)}")
        return found

    return read


if __name__ == "__main__":
    main()
