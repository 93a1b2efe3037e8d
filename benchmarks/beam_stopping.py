"""Stopping rules of beam search, compared with the same weights: quality, search errors and time.

    python benchmarks/beam_stopping.py runs/m30k:test_2016 runs/cmudict:test runs/sql:test --beams 2 5 10 --json x.json
    python benchmarks/beam_stopping.py runs/m30k:test_2016 --beams 5 --rules count horizon --rounds 15

For each run, test set, beam and rule it prints the first metric of the recipe, the mean score and length of the
outputs, and in how many sentences the best output scores below that of greedy search under the same length
normalization: `missed` if the search ended too early, `pruned` if a prefix of the greedy output left the beam, which no
stopping rule can prevent. Rules take turns in every round; processor and wall seconds are medians, and
ratios to the first rule have 95% intervals (bootstrap of the median over rounds).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sightline.decoding.request import BeamStep, Request
from sightline.evaluation.test_set import TestSet
from sightline.recipe import Decoding
from sightline.run import Run
from sightline.tasks.base import Prediction
from sightline.text.tokenizer import END

CLOSE = 5e-5  # sums of float32 in batches of different shapes
RULES: dict[str, dict[str, Any]] = {
    "count": {"stopping": "count"},
    "count, patience 2": {"stopping": "count", "patience": 2.0},
    "present": {"stopping": "present"},
    "horizon 1": {"stopping": "horizon", "patience": 1.0},
    "horizon": {"stopping": "horizon"},
    "horizon 1.5": {"stopping": "horizon", "patience": 1.5},
    "horizon 2": {"stopping": "horizon", "patience": 2.0},
    "bound": {"stopping": "bound"},
}


@dataclass
class Row:
    """One rule on one test set."""

    run: str
    on: str
    beam: int
    rule: str
    metric: str
    value: float
    signature: str
    sentences: int
    missed: int
    pruned: int
    mean_score: float
    mean_length: float
    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)


class PrefixTracker:
    """Follow the prefixes of one output through a beam."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens, self.prefixes, self.lost, self.finished = [*tokens, END], list[list[int]](), False, False

    def __call__(self, step: BeamStep) -> None:
        if step.step == 0:
            self.prefixes, self.lost, self.finished = [[]], False, False
        words, parents = step.words[0].tolist(), step.parents[0].tolist()
        grown = [
            [*self.prefixes[parent], word] if parent < len(self.prefixes) else [word]
            for word, parent in zip(words, parents, strict=True)
        ]
        ended = zip(grown, step.finished[0].tolist(), strict=True)
        self.finished |= any(finished and tokens == self.tokens for tokens, finished in ended)
        slots = step.slots[0].tolist()
        live = [grown[slot] for slot, alive in zip(slots, step.alive[0].tolist(), strict=True) if alive]
        self.prefixes = [grown[slot] for slot in slots]
        self.lost |= not self.finished and self.tokens[: step.step + 1] not in live


def was_pruned(run: Run, text: str, greedy: Sequence[int], options: Decoding) -> bool:
    """True if a prefix of the greedy output left the beam before the search ended."""
    follow = PrefixTracker(greedy)
    run.task.predict([Request(text, options, on_step=follow)])
    return follow.lost


def part_of(test: TestSet, count: int | None) -> TestSet:
    """The first sentences of a test set."""
    return test if count is None else replace(test, sources=test.sources[:count], references=test.references[:count])


def timed(run: Run, texts: Sequence[str], options: Decoding) -> tuple[list[Prediction], float, float]:
    """Predict; return the best outputs, processor seconds and wall seconds."""
    cpu, wall = time.process_time(), time.perf_counter()
    found = [guesses[0] for guesses in run.predict_nbest(texts, options)]
    return found, time.process_time() - cpu, time.perf_counter() - wall


def compare(
    run: Run, test: TestSet, beam: int, rules: Sequence[str], rounds: int, changes: dict[str, Any]
) -> list[Row]:
    """Run every rule in turns."""
    texts, metric = test.sources, run.recipe.evaluation.metrics[0]
    greedy, _, _ = timed(run, texts, run.options(beam=1, **changes))
    rows: dict[str, Row] = {}
    for _ in range(rounds):
        for rule in rules:
            options = run.options(beam=beam, **changes, **RULES[rule])
            found, cpu, wall = timed(run, texts, options)
            if rule not in rows:
                scored = run.measure(metric, test, [each.text for each in found], lowercase=False).score(bootstrap=2)
                pairs = enumerate(zip(found, greedy, strict=True))
                below = [number for number, (ours, theirs) in pairs if ours.score < theirs.score - CLOSE]
                pruned = sum(was_pruned(run, texts[number], greedy[number].tokens, options) for number in below)
                rows[rule] = Row(
                    run=run.folder.name,
                    on=test.name,
                    beam=beam,
                    rule=rule,
                    metric=metric,
                    value=scored.value,
                    signature=scored.signature,
                    sentences=len(texts),
                    missed=len(below) - pruned,
                    pruned=pruned,
                    mean_score=float(np.mean([each.score for each in found])),
                    mean_length=float(np.mean([len(each.tokens) for each in found])),
                )
            rows[rule].cpu.append(cpu)
            rows[rule].wall.append(wall)
    return list(rows.values())


def ratio(ours: Sequence[float], base: Sequence[float]) -> str:
    """The median of paired ratios, with its 95% interval from five pairs on."""
    pairs = np.asarray(ours) / np.asarray(base)
    if len(pairs) < 5:
        return f"{np.median(pairs):.2f}"
    drawn = np.random.default_rng(1).integers(0, len(pairs), (10_000, len(pairs)))
    low, high = np.percentile(np.median(pairs[drawn], axis=1), [2.5, 97.5])
    return f"{np.median(pairs):.2f} [{low:.2f}, {high:.2f}]"


def show(rows: Sequence[Row]) -> None:
    """Print a table in Markdown."""
    first = rows[0]
    print(f"\n{first.run} on {first.on}, {first.sentences:,} sentences, beam {first.beam} ({first.signature})\n")
    print(f"| rule | {first.metric} | missed | pruned | mean score | tokens | CPU s | CPU | wall |")
    print("|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row.rule} | {row.value:.2f} | {row.missed} | {row.pruned} | {row.mean_score:.4f} | "
            f"{row.mean_length:.2f} | {np.median(row.cpu):.2f} | {ratio(row.cpu, first.cpu)}× | "
            f"{ratio(row.wall, first.wall)}× |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", help="RUN:TEST_SET")
    parser.add_argument("--beams", type=int, nargs="+", default=[5])
    parser.add_argument("--rules", nargs="+", default=list(RULES), choices=list(RULES), metavar="RULE")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--sentences", type=int, help="of each test set, the first")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--normalization", choices=["gnmt", "length", "reward"])
    parser.add_argument("--alpha", type=float)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    changes = {"length_normalization": options.normalization, "length_penalty": options.alpha}
    every: list[Row] = []
    for name in options.runs:
        folder, _, on = name.rpartition(":")
        run = Run.load(Path(folder))
        test = part_of(run.test_set(on), options.sentences)
        for beam in options.beams:
            rows = compare(run, test, beam, options.rules, options.rounds, changes)
            show(rows)
            every += rows
    total = sum(row.sentences for row in every if row.rule == "horizon")
    missed = sum(row.missed for row in every if row.rule == "horizon")
    if total:
        print(f"\nThe default rule missed {missed:,} of {total:,} outputs ({1000 * missed / total:.2f} of 1,000).")
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(row) for row in every], indent=1) + "\n")


if __name__ == "__main__":
    main()
