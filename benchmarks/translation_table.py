"""The systems of the published translation tables on Multi30k, English to German, by one command.

    SIGHTLINE_CORPORA=... python benchmarks/translation_table.py TABLE --minutes 7.5 --reward-minutes 3.5 --jobs 13

TABLE/systems is a sweep of translation_systems.yaml; TABLE/gnmt-rl fine-tunes its GNMT on expected reward as soon as
that is trained. Two ensembles are added: the Transformers that differ only in their seed, and Transformers chosen
greedily by BLEU on the validation text. TABLE/comparison compares all on test_2016, which is not used for any choice.
Repeating the command resumes it; keys of the recipes can be changed for all systems (`model.width=64`) to try it on a
small machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

SYSTEMS = Path(__file__).with_name("translation_systems.yaml")
DIRECTION = "data.swap=true"  # the recipes translate into English
SEEDS = ("transformer-seed1", "transformer-seed2", "transformer-seed3")
TRANSFORMERS = (*SEEDS, "moe-transformer", "rdrop", "transformer-big")
REWARD = (  # overrides of the GNMT recipe for fine-tuning (docs/training-additions.md)
    "training.reward.samples=15",
    "training.stopping.monitor=reward",
    "training.lr=2e-5",
    "training.schedule.kind=constant",
    "training.schedule.warmup=0",
    "training.batches.tokens=4096",
    "training.validate_every=25",
    "model.encoder.dropout=0",
    "model.decoder.dropout=0",
)


def choose(names: Sequence[str], score: Callable[[Sequence[str]], float], most: int) -> tuple[list[str], list[float]]:
    """Greedy selection: add the name with the best score until none improves it; return names and scores."""
    chosen: list[str] = []
    scores: list[float] = []
    while len(chosen) < min(most, len(names)):
        tried = {name: score([*chosen, name]) for name in names if name not in chosen}
        best = max(tried, key=lambda name: tried[name])
        if scores and tried[best] <= scores[-1]:
            break
        chosen.append(best)
        scores.append(tried[best])
    return chosen, scores


def best_ensemble(systems: Path, *, most: int, limit: int | None, device: str) -> tuple[list[str], list[float]]:
    """Choose Transformers for an ensemble by validation BLEU; return their names and the BLEU after each."""
    from sightline.run import Run

    loaded = {name: Run.load(systems / name, device=device) for name in TRANSFORMERS}
    test = loaded[SEEDS[0]].test_set("validation")
    test = replace(test, sources=test.sources[:limit], references=test.references[:limit])

    def score(names: Sequence[str]) -> float:
        runs = [loaded[name] for name in names]
        together = Run.ensemble(runs) if len(runs) > 1 else runs[0]
        found = together.measure("bleu", test, together.predict(test.sources), lowercase=False).value
        print(f"  validation BLEU {found:.2f}: {' + '.join(names)}", flush=True)
        return found

    return choose(TRANSFORMERS, score, most)


class FineTuning(threading.Thread):
    """Fine-tune GNMT on expected reward, once GNMT is trained."""

    def __init__(self, gnmt: Path, out: Path, changes: Sequence[str]) -> None:
        super().__init__()
        self.gnmt, self.out, self.changes = gnmt, out, changes
        self.no_more = threading.Event()  # GNMT will not be trained
        self.code: int | None = None

    def run(self) -> None:
        while not (self.gnmt / "model.safetensors").exists():
            if self.no_more.wait(1.0):
                return
        started = (self.out / "recipe.yaml").exists()
        changes = (DIRECTION, *REWARD, *self.changes, f"model.init_from={self.gnmt.resolve()}")
        what = (str(self.out), "--resume") if started else ("multi30k/gnmt", *changes, "--out", str(self.out))
        self.out.parent.mkdir(parents=True, exist_ok=True)
        with self.out.with_suffix(".log").open("a", encoding="utf-8") as log:
            command = [sys.executable, "-m", "sightline", "train", *what]
            self.code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False).returncode


def train(options: argparse.Namespace, table: Path) -> None:
    """Train all systems and fine-tune GNMT."""
    from sightline.sweeps.sweep import sweep

    changes = [*options.changes, f"training.device={options.device}"]
    tuning = FineTuning(
        table / "systems" / "gnmt",
        table / "gnmt-rl",
        [*changes, f"training.limits.minutes={options.reward_minutes}"],
    )
    tuning.start()
    try:
        found = sweep(
            "multi30k/transformer",
            [DIRECTION, f"training.limits.minutes={options.minutes}", *changes],
            variants=SYSTEMS,
            out=table / "systems",
            jobs=options.jobs,
            compare=False,
        )
    finally:
        tuning.no_more.set()
        tuning.join()
    if found.failed or tuning.code:
        names = [run.name for run in found.failed] + (["gnmt-rl"] if tuning.code else [])
        raise SystemExit(f"failed in training: {', '.join(names)}; see their logs in {table}, and repeat the command")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path, help="output folder")
    parser.add_argument("changes", nargs="*", metavar="section.key=value", help="keys to change in all recipes")
    parser.add_argument("--minutes", type=float, default=7.5, help="maximum training time of each system")
    parser.add_argument("--reward-minutes", type=float, default=3.5, help="maximum fine-tuning time of GNMT")
    parser.add_argument("--jobs", type=int, default=13, help="systems trained in parallel")
    parser.add_argument("--most", type=int, default=5, help="maximum runs in the chosen ensemble")
    parser.add_argument("--limit", type=int, help="number of validation sentences for the choice")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    table: Path = options.table
    train(options, table)
    chosen, scores = best_ensemble(table / "systems", most=options.most, limit=options.limit, device=options.device)
    ensemble = {"chosen": chosen, "validation_bleu": scores}
    (table / "ensemble.json").write_text(json.dumps(ensemble, indent=1) + "\n", encoding="utf-8")

    from sightline.comparison import compare, print_comparison, write_comparison
    from sightline.progress import shown
    from sightline.sweeps.plan import trained_runs

    systems = table / "systems"
    known = {tuple(sorted(names)): names for names in (SEEDS, chosen) if len(names) > 1}
    ensembles = [[systems / name for name in names] for names in known.values()]
    runs = [*trained_runs(systems), table / "gnmt-rl", *ensembles]
    with shown() as progress:
        found = compare(runs, on="test_2016", baseline=systems / SEEDS[0], device=options.device, progress=progress)
    write_comparison(found, table / "comparison")
    print_comparison(found)


if __name__ == "__main__":
    main()
