"""Word alignments by attention against those of people: AER, precision and recall of every head, layer and step.

There is no development set, so the number to report is not the best of the list: with a run for the other direction,
heads are chosen by how well both directions agree on validation sentences of the recipe, which gold has no part in;
without one it is the choice fixed beforehand, the mean of the last layer but one where words are read (--shift), or the
head that training guided. That line is marked; all others stand beside it.

    SIGHTLINE_CORPORA=... python benchmarks/alignment_error.py runs/de-en --reverse runs/en-de --json aer.json
"""

from __future__ import annotations

import argparse
import json
import os
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

from head_choice import Choice, candidates, choose_by_agreement
from sightline.cli.align import GoldFiles, natural_text, read_gold_files
from sightline.evaluation.alignment_error import Gold, measure_alignments
from sightline.inspection.alignment import SYMMETRIES, HeadSelection, Links, align_by_selections, guided_selection
from sightline.run import Run

GOLD = Path(os.environ.get("SIGHTLINE_CORPORA", ".")) / "word-alignment-de-en"


def turned(found: list[Links]) -> list[Links]:
    return [frozenset((i, j) for j, i in links) for links in found]


def choose(run: Run, reverse: Run, pairs: int) -> Choice:
    """By agreement on validation sentences."""
    examples = list(islice(run.test_examples("validation"), pairs))
    sources, targets = [each.source for each in examples], [each.target for each in examples]
    ahead = align_by_selections(run, sources, targets, candidates(run.model))
    back = align_by_selections(reverse, targets, sources, candidates(reverse.model))
    return choose_by_agreement(
        {how: [each.links for each in found] for how, found in zip(candidates(run.model), ahead, strict=True)},
        {how: turned([e.links for e in found]) for how, found in zip(candidates(reverse.model), back, strict=True)},
    )


class Judge:
    """The gold sentences, as a run is given them."""

    def __init__(self, run: Run, folder: Path, source: str) -> None:
        target = "en" if source == "de" else "de"
        files = GoldFiles(folder / f"test.{source}", folder / f"test.{target}", folder / "de-en.wa", source == "en")
        self.words = read_gold_files(files)
        self.gold: list[Gold] = self.words[2]
        self.texts = [natural_text(run, words, side, True) for side, words in enumerate(self.words[:2])]

    def links(self, run: Run, ways: list[HeadSelection], *, back: bool = False) -> list[list[Links]]:
        """For each way of looking the links of each sentence, source word first."""
        one, other = (1, 0) if back else (0, 1)
        found = align_by_selections(
            run,
            self.texts[one],
            self.texts[other],
            ways,
            source_words=self.words[one],
            target_words=self.words[other],
        )
        every = [[each.links for each in own] for own in found]
        return [turned(links) for links in every] if back else every

    def scores(self, links: list[Links]) -> dict[str, float]:
        return {each.name: each.score(bootstrap=2).value for each in measure_alignments(links, self.gold)}


def named(how: HeadSelection) -> str:
    return f"{', '.join(how.heads) or 'last layer but one'}{', shifted' if how.shift else ''}"


def judge_run(run: Run, reverse: Run | None, options: argparse.Namespace) -> dict[str, Any]:
    judge = Judge(run, options.gold, options.source)
    choice = None if reverse is None else choose(run, reverse, options.pairs)
    guided = run.recipe.training.guided_alignment is not None
    fixed = guided_selection(run, HeadSelection()) if guided else HeadSelection(shift=True)
    chosen = fixed if choice is None else choice.forward
    ways = list(dict.fromkeys([chosen, *candidates(run.model)]))
    every = judge.links(run, ways)
    rows = {named(how): judge.scores(links) for how, links in zip(ways, every, strict=True)}
    print(f"\n{run.folder}: {len(judge.gold)} sentences, links by people {sum(len(g.sure) for g in judge.gold)}")
    for name, scores in sorted(rows.items(), key=lambda row: row[1]["AER"]):
        mark = "  ← chosen" if name == named(chosen) else ""
        print("  " + "  ".join(f"{key} {value:.3f}" for key, value in scores.items()) + f"  {name}{mark}")
    found: dict[str, Any] = {"run": str(run.folder), "chosen": named(chosen), "all": rows}
    if reverse is None or choice is None:
        return {**found, "chosen by": "fixed beforehand"}
    both = every[0], judge.links(reverse, [choice.backward], back=True)[0]
    merged = {
        name: judge.scores([join(*pair) for pair in zip(*both, strict=True)]) for name, join in SYMMETRIES.items()
    }
    print(f"  with {reverse.folder} ({named(choice.backward)}), agreement {choice.agreement:.3f}:")
    for name, scores in merged.items():
        print("  " + "  ".join(f"{key} {value:.3f}" for key, value in scores.items()) + f"  {name}")
    more = {"chosen by": f"agreement on {options.pairs} validation pairs", "agreement": choice.agreement}
    return {**found, **more, "reverse": str(reverse.folder), "backward": named(choice.backward), "symmetrized": merged}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--reverse", nargs="*", type=Path, default=[], help="for each run one of the other direction")
    parser.add_argument("--source", choices=("de", "en"), default="de", help="what the runs read")
    parser.add_argument("--gold", type=Path, default=GOLD, help="folder with test.de, test.en and de-en.wa")
    parser.add_argument("--pairs", type=int, default=300, help="validation pairs on which heads are chosen")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    records = []
    for folder, other in zip_longest(options.runs, options.reverse[: len(options.runs)]):
        reverse = None if other is None else Run.load(other, device=options.device)
        records.append(judge_run(Run.load(folder, device=options.device), reverse, options))
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(records, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
