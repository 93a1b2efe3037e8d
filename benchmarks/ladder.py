"""From an RNN to the Transformer in twelve rungs (ladder.yaml): table and picture of docs/ladder.md, by one command.

    python benchmarks/ladder.py LADDER multi30k/rnn-attention --seeds 1 2 3 --rates 5e-4 1e-3 2e-3 --jobs 12
    python benchmarks/ladder.py LADDER lectures/rnn-attention training.limits.steps=400 --seeds 1 --rates 2e-3 6e-3

The first seed is trained with every learning rate, and each rung keeps the rate with the best BLEU on the validation
text; the other seeds are trained with that rate. LADDER/ladder.md and LADDER/ladder.png have the scores on the first
test set of the recipe, which is not used for any choice. Repeating the command resumes it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from sightline.comparison.results import SystemResult

RUNGS = Path(__file__).with_name("ladder.yaml")
CHANGES = {  # what each rung changes, for the table
    "01-rnn": "LSTM encoder, no attention",
    "02-attention": "+ dot-product attention",
    "03-no-recursion": "recursion dropped: embeddings alone",
    "04-positions": "+ sinusoidal positions",
    "05-self-attention": "+ simplified self-attention",
    "06-queries-keys-values": "+ queries, keys, values",
    "07-scaling": "+ scores divided by √Dh",
    "08-heads": "+ 4 heads and W_O",
    "09-feed-forward": "+ feed-forward net",
    "10-residuals": "+ residual connections",
    "11-norm": "+ LayerNorm (post)",
    "12-transformer-decoder": "Transformer decoder for the LSTM",
}


def best_validation(run: Path, metric: str = "bleu") -> float:
    """The best validation score of a run."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return max((record[metric] for record in map(json.loads, lines) if metric in record), default=0.0)


def train(
    options: argparse.Namespace, rungs: Sequence[Mapping[str, Any]], rates: Sequence[str], seeds: Sequence[int]
) -> dict[tuple[str, str, int], Path]:
    """Train rungs with all learning rates and seeds; returns the runs by rung, rate and seed."""
    from sightline.sweeps.plan import plan_sweep
    from sightline.sweeps.sweep import run_sweep

    grid = [f"training.lr={','.join(rates)}", f"seed={','.join(map(str, seeds))}", *options.changes]
    plan = plan_sweep(options.recipe, grid, variants=rungs, out=options.ladder)
    result = run_sweep(plan, jobs=options.jobs, compare=None)
    if result.failed:
        raise SystemExit(f"failed in training: {', '.join(run.name for run in result.failed)}; repeat the command")
    keys = [(rung["name"], rate, seed) for rung in rungs for rate in rates for seed in seeds]
    return dict(zip(keys, (run.folder for run in plan.runs), strict=True))


def train_all(options: argparse.Namespace) -> tuple[dict[str, str], dict[str, list[Path]]]:
    """Train the ladder; returns the best learning rate of each rung, and its runs with it."""
    rungs = yaml.safe_load(RUNGS.read_text(encoding="utf-8"))
    first, *others = options.seeds
    tried = train(options, rungs, options.rates, [first])
    best = {
        rung["name"]: max(options.rates, key=lambda rate: best_validation(tried[rung["name"], rate, first]))
        for rung in rungs
    }
    runs = {name: [tried[name, rate, first]] for name, rate in best.items()}
    for rate in dict.fromkeys(best.values()) if others else ():
        chosen = [rung for rung in rungs if best[rung["name"]] == rate]
        for (name, _, _), run in train(options, chosen, [rate], others).items():
            runs[name].append(run)
    return best, runs


def table(names: Sequence[str], rates: Mapping[str, str], systems: Mapping[str, SystemResult]) -> str:
    """The rungs in Markdown: scores, difference to the rung before, parameters, FLOPs and time of a training."""
    lines = [
        "| | rung | learning rate | BLEU | Δ | parameters | training FLOPs | minutes |",
        "|---|---|---|---|---|---|---|---|",
    ]
    before: float | None = None
    for number, name in enumerate(names, 1):
        system = systems[name]
        bleu, cost = system.qualities["bleu"], system.runs[0].cost
        spread = "" if bleu.deviation is None else f" ± {bleu.deviation:.2f}"
        cells = [
            str(number),
            CHANGES[name],
            rates[name],
            f"{bleu.value:.2f}{spread} [{bleu.low:.2f}, {bleu.high:.2f}]",
            "" if before is None else f"{bleu.value - before:+.2f}",
            f"{system.runs[0].parameters:,}",
            "–" if cost.flops is None else f"{cost.flops:.1e}",
            "–" if cost.seconds is None else f"{cost.seconds / 60:.1f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
        before = bleu.value
    return "\n".join([*lines, "", bleu.signature, ""])


def draw(path: Path, names: Sequence[str], systems: Mapping[str, SystemResult]) -> None:
    """BLEU with its interval, a step for each rung."""
    from sightline.plots.figures import around_curves, new_picture

    scores = [systems[name].qualities["bleu"] for name in names]
    values = [score.value for score in scores]
    places = range(len(names))
    with new_picture(path, around_curves(), figsize=(8.5, 4.5)) as figure:
        axes = figure.add_subplot()
        axes.stairs(values, [place - 0.5 for place in (*places, len(names))], color="#0072b2", linewidth=1.5)
        ends = [[score.value - score.low for score in scores], [score.high - score.value for score in scores]]
        axes.errorbar(places, values, yerr=ends, fmt="o", color="#0072b2", capsize=3)
        axes.set_xticks(places, [CHANGES[name] for name in names], rotation=35, ha="right")
        axes.set_ylabel("BLEU")
        axes.set_ylim(bottom=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ladder", type=Path, help="output folder")
    parser.add_argument("recipe", help="lectures/rnn-attention or multi30k/rnn-attention")
    parser.add_argument("changes", nargs="*", metavar="section.key=value", help="keys to change on all rungs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--rates", nargs="+", default=["1e-3"], help="learning rates to try")
    parser.add_argument("--jobs", type=int, default=1, help="runs trained in parallel")
    parser.add_argument("--device", default="auto", help="for decoding")
    options = parser.parse_intermixed_args()
    rates, runs = train_all(options)

    from sightline.comparison import compare, write_comparison
    from sightline.progress import shown

    with shown() as progress:
        result = compare([run for each in runs.values() for run in each], device=options.device, progress=progress)
    write_comparison(result, options.ladder / "comparison")
    folders = {run.folder: system for system in result.systems for run in system.runs}
    systems = {name: folders[str(each[0])] for name, each in runs.items()}
    text = table(list(runs), rates, systems)
    (options.ladder / "ladder.md").write_text(text, encoding="utf-8")
    draw(options.ladder / "ladder.png", list(runs), systems)
    print(text)


if __name__ == "__main__":
    main()
