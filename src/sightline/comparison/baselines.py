"""The run folder of a baseline: a recipe for its test sets, and outputs instead of a model.

    recipe.yaml   config.json ("baseline": its name)   outputs.jsonl (test set, digest of the source, output)

It can stand in `sightline compare` beside runs, with intervals and significance; nothing can be asked of it that is
not written in it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from sightline.comparison.extracts import lead, oracle
from sightline.decoding.batch import Told
from sightline.decoding.phrases import Phrases
from sightline.evaluation.metrics import METRICS, Measurement
from sightline.evaluation.test_set import Report, TestSet
from sightline.files import parse_json, write_atomically
from sightline.recipe import Decoding, MetricName, Recipe
from sightline.recipe.loading import load_recipe, save_recipe
from sightline.run import Run
from sightline.run_folder import RunError, need, read_config, rewriting, write_config
from sightline.tasks.base import Prediction

FILE = "outputs.jsonl"
Kind = Literal["lead", "oracle"]


class WrittenRun(Run):
    """A baseline folder as a run: what it wrote for the sources it knows."""

    def __init__(self, folder: Path, recipe: Recipe, baseline: str, outputs: dict[str, str]) -> None:
        self.folder, self.recipe, self.baseline, self.outputs = folder, recipe, baseline, outputs
        self.model, self.device, self.members = None, torch.device("cpu"), []

    @staticmethod
    def open(folder: Path) -> WrittenRun:
        """Read what `write_baseline` wrote."""
        name, remedy = str(read_config(folder)["baseline"]), "make it again with: sightline baseline"
        recipe = load_recipe(need(folder, "recipe.yaml", remedy))
        outputs = {}
        for number, line in enumerate(need(folder, FILE, remedy).read_text(encoding="utf-8").splitlines(), 1):
            try:
                record = parse_json(line)
                outputs[record["source"]] = record["output"]
            except (ValueError, KeyError, TypeError) as error:
                raise RunError(f"{folder / FILE}, line {number} is damaged ({error}); {remedy}") from error
        return WrittenRun(folder, recipe, name, outputs)

    def predict_nbest(
        self,
        texts: Sequence[str],
        options: Decoding | None = None,
        *,
        prefixes: Sequence[str] | None = None,
        first: int = 0,
        phrases: Sequence[Phrases] | None = None,
        scored: bool = True,
        told: Told | None = None,
        **changes: Any,
    ) -> list[list[Prediction]]:
        found = []
        for number, text in enumerate(texts, first + 1):
            output = self.outputs.get(digest(text))
            if output is None:
                raise RunError(
                    f"{self.folder} has no output for source {number}: a baseline knows the test sets it was written "
                    f"for; write it for this one with: sightline baseline --on"
                )
            found.append([Prediction(output, 0.0, [])])
        return found

    def measure(self, metric: MetricName, test: TestSet, outputs: Sequence[str], *, lowercase: bool) -> Measurement:
        if not METRICS[metric].needs_outputs:
            raise RunError(f"{self.folder} has no model and so no {metric}; choose other metrics with --metrics")
        return super().measure(metric, test, outputs, lowercase=lowercase)


def is_baseline(folder: Path) -> bool:
    """Whether a folder holds outputs instead of a model."""
    return "baseline" in read_config(folder)


def digest(text: str) -> str:
    """What a source is known by."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def write_baseline(
    kind: Kind, recipe: Recipe, tests: Sequence[str], folder: Path, *, count: int | None = None
) -> list[Report]:
    """Write the outputs of a baseline for test sets of a recipe into a new run folder, and score them.

    `count` sentences: of a lead all of them (by default 3), of an oracle at most so many.
    """
    if not recipe.task_spec.maps_text:
        raise ValueError(f"a baseline takes sentences of a source, and {recipe.task_spec} has none to summarize")
    if (folder / "recipe.yaml").exists():
        raise RunError(f"{folder} holds a run already; give another folder with --out")
    if kind == "lead":
        count = count or 3
    name = kind if count is None else f"{kind}-{count}"
    run = WrittenRun(folder, recipe, name, {})
    sets = [run.test_set(on) for on in tests]
    wanted: dict[str, list[str]] = {}  # of a source that comes twice, both references
    for test in sets:
        for source, references in zip(test.sources, test.references, strict=True):
            wanted.setdefault(source, []).extend(references)
    lines = []
    for source, references in wanted.items():
        output = lead(source, count or 3) if kind == "lead" else oracle(source, references, count)
        run.outputs[digest(source)] = output
        lines.append(json.dumps({"source": digest(source), "output": output}, ensure_ascii=False))
    folder.mkdir(parents=True, exist_ok=True)
    with rewriting(folder):
        save_recipe(recipe, folder / "recipe.yaml")
        write_atomically(folder / FILE, "".join(line + "\n" for line in lines))
        write_config(folder, {"task": recipe.task_spec.name, "baseline": name, "parameters": 0})
    return [_report(run, test) for test in sets]


def _report(run: WrittenRun, test: TestSet) -> Report:
    section = run.recipe.evaluation
    outputs = [guesses[0].text for guesses in run.predict_nbest(test.sources)]
    names = [name for name in section.metrics if METRICS[name].needs_outputs]
    scores = [
        run.measure(name, test, outputs, lowercase=section.lowercase).score(bootstrap=section.bootstrap)
        for name in names
    ]
    return Report(test.name, len(test.sources), scores, outputs)
