"""Limited context: how often models recall the first letter of a line, by the number of fillers since.

The corpus `kind: recall` has lines such as "c x y y = c". A model that sees the last n tokens can be right about the
last letter only with up to n − 2 fillers (the letter and "=" are seen, too); a recurrent state can hold the letter over
any number of them, in principle.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from sightline.inspection.claims.table import Claim, ClaimTable
from sightline.layers.layout import Padded
from sightline.text.tokenizer import START

if TYPE_CHECKING:
    from sightline.inspection.attention import LoadedRun

_GROUP = 5  # numbers of fillers in a row of the table


@dataclass(frozen=True)
class RecallByDistance:
    """Lines and those whose last letter is the likeliest, by the number of fillers."""

    name: str
    right: dict[int, int]
    total: dict[int, int]

    def accuracy(self, fewest: int, most: int) -> float | None:
        """The share of lines with `fewest` to `most` fillers that are right."""
        total = sum(count for fillers, count in self.total.items() if fewest <= fillers <= most)
        right = sum(count for fillers, count in self.right.items() if fewest <= fillers <= most)
        return right / total if total else None


@torch.no_grad()
def measure_recall(run: LoadedRun, name: str, texts: Sequence[str]) -> RecallByDistance:
    """The likeliest token after each line without its last letter."""
    by_length: dict[int, list[list[int]]] = defaultdict(list)
    for ids in run.vocabulary.target.encode_many(list(texts)):
        by_length[len(ids)].append(list(ids))
    right: dict[int, int] = {}
    total: dict[int, int] = {}
    for length, lines in sorted(by_length.items()):
        tokens = torch.tensor(lines, device=run.device)  # (B, T)
        inputs = torch.cat([torch.full_like(tokens[:, :1], START), tokens[:, :-1]], 1)
        features, _ = run.model.advance(inputs, run.model.begin_empty(len(lines)), Padded.of([length] * len(lines)))
        guesses = run.model.logits(features[:, -1]).argmax(-1)  # (B)
        fillers = length - 3
        right[fillers], total[fillers] = int((guesses == tokens[:, -1]).sum()), len(lines)
    return RecallByDistance(name, right, total)


def recall_claim(runs: dict[str, LoadedRun], on: str) -> Claim:
    """The accuracy of several runs by distance, on a test set of `kind: recall`."""
    found = []
    for name, run in runs.items():
        data = run.recipe.data
        source = data.held_out(on) if on == "validation" or on in data.tests else None
        if source is None or source.kind != "recall" or not run.recipe.task_spec.continues_text:
            raise ValueError(
                f"{name}: {on} has no lines to recall (kind: recall); give runs of the recipe lectures/long-dependency"
            )
        found.append(measure_recall(run, name, [example.target for example in run.test_examples(on)]))
    most = max(max(each.total) for each in found)
    rows: list[list[str | float | None]] = []
    for low in range(min(min(each.total) for each in found), most + 1, _GROUP):
        high = min(low + _GROUP - 1, most)
        rows.append([f"{low}–{high}", *(each.accuracy(low, high) for each in found)])
    table = ClaimTable(f"accuracy of the last letter on {on}", ["fillers", *runs], rows, fixed=True)
    symbols = {getattr(run.recipe.data.validation, "symbols", 0) for run in runs.values()}
    notes = [f"Chance: {' or '.join(f'1/{count}' for count in sorted(symbols))}."]

    def draw(path: Path) -> None:
        from sightline.plots.lines import Panel, Series, draw_lines

        lines = [
            Series(each.name, sorted(each.total), [each.right[n] / each.total[n] for n in sorted(each.total)], k)
            for k, each in enumerate(found)
        ]
        draw_lines([Panel("recalling the first letter", "fillers", "accuracy", lines, log_y=False)], path)

    numbers = {"accuracy": {each.name: {n: each.right[n] / each.total[n] for n in each.total} for each in found}}
    claim = "A window or an n-gram forgets what is outside it; a recurrent state can carry it"
    return Claim(claim, [table], notes, numbers, draw)
