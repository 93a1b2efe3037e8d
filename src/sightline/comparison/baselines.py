"""Baselines that extract sentences of the source (lead, oracle), and their run folders.

    recipe.yaml   config.json ("baseline": its name)   outputs.jsonl (digest of the source, output)

A baseline has outputs instead of a model, and can be compared with runs on the test sets it was written for.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import torch

from sightline.evaluation.measurement import Measurement
from sightline.evaluation.metrics import measure, needs_outputs
from sightline.evaluation.rouge import rouge_words
from sightline.evaluation.test_set import Report, TestSet
from sightline.files import parse_json, write_atomically
from sightline.recipe import Decoding, MetricName, Recipe
from sightline.recipe.loading import load_recipe, save_recipe
from sightline.run import Run
from sightline.run_folder import RunError, read_config, require_file, rewriting, write_config
from sightline.tasks.base import Prediction
from sightline.text.sentences import sentences

FILE = "outputs.jsonl"
_LEAD_SENTENCES = 3
Kind = Literal["lead", "oracle"]
Counts = Counter[tuple[str, ...]]


class BaselineRun(Run):
    """A run that looks up its outputs by source."""

    def __init__(self, folder: Path, recipe: Recipe, baseline: str, outputs: dict[str, str]) -> None:
        self.folder, self.recipe, self.baseline, self.outputs = folder, recipe, baseline, outputs
        self.model, self.device, self.members = None, torch.device("cpu"), []

    @staticmethod
    def open(folder: Path) -> BaselineRun:
        """Read a folder written by `write_baseline`."""
        name, remedy = str(read_config(folder)["baseline"]), "make it again with: sightline baseline"
        recipe = load_recipe(require_file(folder, "recipe.yaml", remedy))
        outputs = {}
        for number, line in enumerate(require_file(folder, FILE, remedy).read_text(encoding="utf-8").splitlines(), 1):
            try:
                record = parse_json(line)
                outputs[record["source"]] = record["output"]
            except (ValueError, KeyError, TypeError) as error:
                raise RunError(f"{folder / FILE}, line {number} is damaged ({error}); {remedy}") from error
        return BaselineRun(folder, recipe, name, outputs)

    def predict_nbest(
        self, texts: Sequence[str], options: Decoding | None = None, *, first: int = 0, **_: Any
    ) -> list[list[Prediction]]:
        predictions = []
        for number, text in enumerate(texts, first + 1):
            output = self.outputs.get(digest(text))
            if output is None:
                raise RunError(
                    f"{self.folder} has no output for source {number}: a baseline knows the test sets it was written "
                    f"for; write it for this one with: sightline baseline --on"
                )
            predictions.append([Prediction(output, 0.0, [])])
        return predictions

    def measure(self, metric: MetricName, test: TestSet, outputs: Sequence[str], *, lowercase: bool) -> Measurement:
        if not needs_outputs(metric):
            raise RunError(f"{self.folder} has no model and so no {metric}; choose other metrics with --metrics")
        section = self.recipe.evaluation
        return measure(metric, outputs, test.references, test.sources, lowercase=lowercase, section=section)


def is_baseline(folder: Path) -> bool:
    """Return True if a run folder has outputs instead of a model."""
    return "baseline" in read_config(folder)


def digest(text: str) -> str:
    """The key of a source in outputs.jsonl."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def write_baseline(
    kind: Kind, recipe: Recipe, tests: Sequence[str], folder: Path, *, count: int | None = None
) -> list[Report]:
    """Write and score the outputs of a baseline for test sets of a recipe.

    `count` is the number of sentences of a lead (by default 3), or the most sentences of an oracle.
    """
    if not recipe.task_spec.maps_text:
        raise ValueError(f"a baseline takes sentences of a source, and {recipe.task_spec} has none to summarize")
    if (folder / "recipe.yaml").exists():
        raise RunError(f"{folder} holds a run already; give another folder with --out")
    if kind == "lead":
        count = count or _LEAD_SENTENCES
    name = kind if count is None else f"{kind}-{count}"
    run = BaselineRun(folder, recipe, name, {})
    test_sets = [run.test_set(on) for on in tests]
    all_references: dict[str, list[str]] = {}  # a source may come several times
    for test in test_sets:
        for source, references in zip(test.sources, test.references, strict=True):
            all_references.setdefault(source, []).extend(references)
    lines = []
    for source, references in all_references.items():
        output = lead(source, count or _LEAD_SENTENCES) if kind == "lead" else oracle(source, references, count)
        run.outputs[digest(source)] = output
        lines.append(json.dumps({"source": digest(source), "output": output}, ensure_ascii=False))
    folder.mkdir(parents=True, exist_ok=True)
    with rewriting(folder):
        save_recipe(recipe, folder / "recipe.yaml")
        write_atomically(folder / FILE, "".join(line + "\n" for line in lines))
        write_config(folder, {"task": recipe.task_spec.name, "baseline": name, "parameters": 0})
    return [_report(run, test) for test in test_sets]


def _report(run: BaselineRun, test: TestSet) -> Report:
    section = run.recipe.evaluation
    outputs = [nbest[0].text for nbest in run.predict_nbest(test.sources)]
    scores = [
        run.measure(name, test, outputs, lowercase=section.lowercase).score(bootstrap=section.bootstrap)
        for name in section.metrics
        if needs_outputs(name)
    ]
    return Report(test.name, len(test.sources), scores, outputs)


# --- extracts ----------------------------------------------------------------------------------------------------


def lead(text: str, count: int) -> str:
    """The first `count` sentences."""
    return " ".join(sentences(text)[:count])


def oracle(text: str, references: Sequence[str], most: int | None = None) -> str:
    """A near upper bound for extractive summaries, chosen by the references (Nallapati et al. 2017, §2.2).

    Greedily adds the sentence that raises ROUGE-1 + ROUGE-2 (F) most, until none does or there are `most`; of several
    references, the one with the best extract counts.
    """
    parts = sentences(text)
    counted = [_ngrams(part) for part in parts]
    extracts = [_greedy(counted, _ngrams(reference), most) for reference in references]
    chosen, _ = max(extracts, key=lambda pair: pair[1])
    return " ".join(parts[place] for place in sorted(chosen))


def _ngrams(text: str) -> tuple[Counts, Counts]:
    """Counts of words and of word pairs."""
    words = rouge_words(text)
    return Counter((word,) for word in words), Counter(pairwise(words))


@dataclass
class _Overlap:
    """The n-grams that a growing extract shares with a reference."""

    reference: Counts
    counts: Counts = field(default_factory=Counter)  # of the extract, those in the reference
    matched: int = 0
    total: int = 0

    def f(self, part: Counts) -> float:
        """F = 2m / (o + r) with this sentence added: m matched, o extracted, r reference n-grams."""
        total = self.total + part.total() + self.reference.total()
        return 2 * (self.matched + self._gain(part)) / total if total else 0.0

    def add(self, part: Counts) -> None:
        self.matched += self._gain(part)
        self.total += part.total()
        self.counts.update({gram: count for gram, count in part.items() if gram in self.reference})

    def _gain(self, part: Counts) -> int:
        counts, reference = self.counts, self.reference
        return sum(
            min(counts[gram] + count, reference[gram]) - min(counts[gram], reference[gram])
            for gram, count in part.items()
            if gram in reference
        )


def _greedy(
    parts: Sequence[tuple[Counts, Counts]], reference: tuple[Counts, Counts], most: int | None
) -> tuple[list[int], float]:
    """The chosen sentences, and their ROUGE-1 + ROUGE-2."""
    overlaps, best, chosen = tuple(_Overlap(counts) for counts in reference), 0.0, list[int]()
    for _ in range(len(parts) if most is None else min(most, len(parts))):
        left = [place for place in range(len(parts)) if place not in chosen]
        values = [sum(each.f(part) for each, part in zip(overlaps, parts[place], strict=True)) for place in left]
        value = max(values)
        if value <= best:
            break
        best = value
        chosen.append(left[values.index(value)])  # the first of equals
        for each, part in zip(overlaps, parts[chosen[-1]], strict=True):
            each.add(part)
    return chosen, best
