"""Word alignments from attention against manual ones: AER, precision and recall of every head, layer and offset.

There is no development set, so the best line is not the one to report. With a run for the other direction, heads are
chosen by the agreement of both directions on validation sentences (as Chen et al. 2020, §3.2, choose a layer); without
one the choice is fixed: the mean of the last layer but one with --shift, or the head that training guided. That line is
marked.

    SIGHTLINE_CORPORA=... python benchmarks/alignment_error.py runs/de-en --reverse runs/en-de --json aer.json
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

from measuring import write_json
from sightline.cli.align import GoldFiles, natural_text, read_gold_files
from sightline.evaluation.alignment_error import Gold, measure_alignments
from sightline.inspection.alignment import SYMMETRIES, HeadSelection, Links, align_by_selections, guided_selection
from sightline.inspection.attention import attentions
from sightline.run import Run

GOLD = Path(os.environ.get("SIGHTLINE_CORPORA", ".")) / "word-alignment-de-en"


def candidates(model: Any) -> list[HeadSelection]:
    """Every head of cross-attention and the mean of every layer, each with and without shift."""
    counts = attentions(model)
    names = [
        name
        for path in model.cross_attention_paths
        for name in (path, *(f"{path}.{head}" for head in range(counts[path])))
    ]
    single = {path for path in model.cross_attention_paths if counts[path] == 1}  # their mean is their only head
    return [HeadSelection((name,), shift) for name in names if name not in single for shift in (False, True)]


def agreement(forward: Sequence[Links], backward: Sequence[Links]) -> float:
    """2 |A ∩ B| / (|A| + |B|) over all sentence pairs; links are (source word, target word)."""
    both = sum(len(a & b) for a, b in zip(forward, backward, strict=True))
    every = sum(len(a) + len(b) for a, b in zip(forward, backward, strict=True))
    return 2 * both / every if every else 0.0


@dataclass(frozen=True)
class Choice:
    """The heads of both directions and their agreement."""

    forward: HeadSelection
    backward: HeadSelection
    agreement: float


def choose_by_agreement(
    forward: Mapping[HeadSelection, Sequence[Links]], backward: Mapping[HeadSelection, Sequence[Links]]
) -> Choice:
    """The pair of heads with the highest agreement, the first of equal ones."""
    pairs = (
        Choice(one, other, agreement(links, turned))
        for one, links in forward.items()
        for other, turned in backward.items()
    )
    return max(pairs, key=lambda choice: choice.agreement)


def turned(found: list[Links]) -> list[Links]:
    return [frozenset((i, j) for j, i in links) for links in found]


def choose(run: Run, reverse: Run, pairs: int) -> Choice:
    """Choose heads by agreement on validation sentences."""
    examples = list(islice(run.test_examples("validation"), pairs))
    sources, targets = [each.source for each in examples], [each.target for each in examples]
    ahead = align_by_selections(run, sources, targets, candidates(run.model))
    back = align_by_selections(reverse, targets, sources, candidates(reverse.model))
    return choose_by_agreement(
        {how: [each.links for each in found] for how, found in zip(candidates(run.model), ahead, strict=True)},
        {how: turned([e.links for e in found]) for how, found in zip(candidates(reverse.model), back, strict=True)},
    )


class GoldSet:
    """The gold sentences, tokenized for a run."""

    def __init__(self, run: Run, folder: Path, source: str) -> None:
        target = "en" if source == "de" else "de"
        files = GoldFiles(folder / f"test.{source}", folder / f"test.{target}", folder / "de-en.wa", source == "en")
        self.words = read_gold_files(files)
        self.gold: list[Gold] = self.words[2]
        self.texts = [natural_text(run, words, side, True) for side, words in enumerate(self.words[:2])]

    def links(self, run: Run, selections: list[HeadSelection], *, back: bool = False) -> list[list[Links]]:
        """The links of each sentence for each selection, source word first."""
        one, other = (1, 0) if back else (0, 1)
        found = align_by_selections(
            run,
            self.texts[one],
            self.texts[other],
            selections,
            source_words=self.words[one],
            target_words=self.words[other],
        )
        every = [[each.links for each in own] for own in found]
        return [turned(links) for links in every] if back else every

    def scores(self, links: list[Links]) -> dict[str, float]:
        return {each.name: each.score(bootstrap=2).value for each in measure_alignments(links, self.gold)}


def named(how: HeadSelection) -> str:
    return f"{', '.join(how.heads) or 'last layer but one'}{', shifted' if how.shift else ''}"


def measure_run(run: Run, reverse: Run | None, options: argparse.Namespace) -> dict[str, Any]:
    gold = GoldSet(run, options.gold, options.source)
    choice = None if reverse is None else choose(run, reverse, options.pairs)
    guided = run.recipe.training.guided_alignment is not None
    fixed = guided_selection(run, HeadSelection()) if guided else HeadSelection(shift=True)
    chosen = fixed if choice is None else choice.forward
    ways = list(dict.fromkeys([chosen, *candidates(run.model)]))
    every = gold.links(run, ways)
    rows = {named(how): gold.scores(links) for how, links in zip(ways, every, strict=True)}
    print(f"\n{run.folder}: {len(gold.gold)} sentences, manual links {sum(len(g.sure) for g in gold.gold)}")
    for name, scores in sorted(rows.items(), key=lambda row: row[1]["AER"]):
        mark = "  ← chosen" if name == named(chosen) else ""
        print("  " + "  ".join(f"{key} {value:.3f}" for key, value in scores.items()) + f"  {name}{mark}")
    found: dict[str, Any] = {"run": str(run.folder), "chosen": named(chosen), "all": rows}
    if reverse is None or choice is None:
        return {**found, "chosen by": "fixed beforehand"}
    both = every[0], gold.links(reverse, [choice.backward], back=True)[0]
    merged = {name: gold.scores([join(*pair) for pair in zip(*both, strict=True)]) for name, join in SYMMETRIES.items()}
    print(f"  with {reverse.folder} ({named(choice.backward)}), agreement {choice.agreement:.3f}:")
    for name, scores in merged.items():
        print("  " + "  ".join(f"{key} {value:.3f}" for key, value in scores.items()) + f"  {name}")
    more = {"chosen by": f"agreement on {options.pairs} validation pairs", "agreement": choice.agreement}
    return {**found, **more, "reverse": str(reverse.folder), "backward": named(choice.backward), "symmetrized": merged}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--reverse", nargs="*", type=Path, default=[], help="for each run, one of the other direction")
    parser.add_argument("--source", choices=("de", "en"), default="de", help="source language of the runs")
    parser.add_argument("--gold", type=Path, default=GOLD, help="folder with test.de, test.en and de-en.wa")
    parser.add_argument("--pairs", type=int, default=300, help="validation pairs for choosing heads")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    records = []
    for folder, other in zip_longest(options.runs, options.reverse[: len(options.runs)]):
        reverse = None if other is None else Run.load(other, device=options.device)
        records.append(measure_run(Run.load(folder, device=options.device), reverse, options))
    write_json(options.json, records)


if __name__ == "__main__":
    main()
