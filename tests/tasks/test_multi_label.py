"""Several labels for each text: sigmoid outputs, binary cross-entropy, micro and macro F1."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from typer.testing import CliRunner

from sightline.cli.app import app
from sightline.evaluation.label_sets import MultilabelMacroF1, MultilabelMicroF1
from sightline.layers.losses import binary_cross_entropy
from sightline.recipe import Recipe
from sightline.recipe.checks import check_trainable
from sightline.run import Run
from sightline.training.train import train
from tiny_recipes import training

OUTPUTS = ["news sport", "sport", "", "art news"]
REFERENCES = [["sport news"], ["sport art"], ["news"], ["art"]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A text's labels are the parts of speech that occur in it."""
    phrases = {"kind": "phrases", "target": "tags", "clauses": [1, 1]}
    recipe = {
        "task": "multi-label",
        "data": {
            "train": [{**phrases, "split": "train", "examples": 1_000}],
            "validation": {**phrases, "split": "validation", "examples": 100},
        },
        "tokenizer": {"kind": "word", "min_count": 1},
        "model": {
            "width": 16,
            "encoder": {"kind": "recurrent", "cell": "gru", "layers": 1, "dropout": 0.0},
            "pooling": {"kind": "max", "dropout": 0.0},
        },
        "training": training(80, label_smoothing=0.0, batches={"tokens": 256}),
        "evaluation": {"bootstrap": 20},
    }
    folder = tmp_path_factory.mktemp("multi-label")
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    return Run.load(train(folder / "recipe.yaml", out=folder / "run"), device="cpu")


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_binary_cross_entropy_is_its_formula(smoothing: float) -> None:
    """−Σ y log σ(z) + (1 − y) log(1 − σ(z))"""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    targets = (torch.rand(3, 5, generator=generator) < 0.4).double()
    total = nll = 0.0
    for z, y in zip(logits.flatten().tolist(), targets.flatten().tolist(), strict=True):
        p, smooth = 1 / (1 + math.exp(-z)), (1 - smoothing) * y + smoothing / 2
        nll -= y * math.log(p) + (1 - y) * math.log(1 - p)
        total -= smooth * math.log(p) + (1 - smooth) * math.log(1 - p)
    loss = binary_cross_entropy(logits, targets, smoothing)
    assert float(loss.total) == pytest.approx(total) and float(loss.nll) == pytest.approx(nll)


def test_micro_and_macro_f1_are_worked_out_by_hand() -> None:
    """news: 1 right, 1 wrong, 1 missed; sport: 2 right; art: 1 right, 1 missed."""
    micro, macro = (metric().score(OUTPUTS, REFERENCES) for metric in (MultilabelMicroF1, MultilabelMacroF1))
    assert micro.value == pytest.approx(100 * 2 * 4 / (2 * 4 + 1 + 2))
    assert macro.value == pytest.approx(100 * (2 / 4 + 1 + 2 / 3) / 3)
    assert micro.detail == "4 of 6 labels found, 1 wrong ones beside them"


def test_a_model_learns_which_labels_a_text_has(run: Run) -> None:
    report = run.evaluate("validation")
    assert [score.name for score in report.scores] == ["micro-F1", "macro-F1"]
    assert report.scores[0].value > 75 and report.confusion is None and report.unlearned == 0


def test_every_label_has_a_probability_of_its_own(run: Run) -> None:
    text = run.test_set("validation").sources[0]
    (probabilities,) = run.probabilities([text])
    assert isinstance(probabilities, dict) and sum(probabilities.values()) > 1.5
    (output,) = run.predict([text])
    assert set(output.split()) == {label for label, p in probabilities.items() if p >= 0.5}
    chosen = ["NOUN", "ADV"]
    expected = sum(math.log(p if label in chosen else 1 - p) for label, p in probabilities.items())
    (score,) = run.score([text], [" ".join(chosen)])
    assert score.log_probability == pytest.approx(expected, rel=1e-4) and score.tokens == len(probabilities)


def test_the_validation_loss_counts_every_label_of_the_vocabulary(run: Run) -> None:
    test = run.test_set("validation")
    total, labels = 0.0, 0
    for own, (reference,) in zip(run.probabilities(test.sources), test.references, strict=True):
        right = set(reference.split())
        labels += len(right)
        total -= sum(math.log(p if label in right else 1 - p) for label, p in own.items())
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    validation = [record for record in records if record["kind"] == "validation"][-1]
    assert validation["loss"] == pytest.approx(total / labels, rel=1e-3)


def test_an_ensemble_averages_the_probability_of_each_label(run: Run) -> None:
    both, text = Run.ensemble([run.folder, run.folder], device="cpu"), "the dog sees Anna"
    (alone,), (together,) = run.probabilities([text]), both.probabilities([text])
    assert isinstance(alone, dict) and isinstance(together, dict)
    np.testing.assert_allclose([together[label] for label in alone], list(alone.values()), rtol=1e-5)


def test_what_needs_one_label_is_refused(run: Run) -> None:
    with pytest.raises(ValueError, match="several labels for each text"):
        run.trace("the dog sees Anna")
    with pytest.raises(ValueError, match="a text has one set of labels"):
        CliRunner().invoke(app, ["predict", str(run.folder), "--nbest", "2"], input="a\n", catch_exceptions=False)
    content = run.recipe.model_dump(mode="json")
    content["training"]["rdrop"] = 1.0
    with pytest.raises(ValueError, match="cannot be combined with several labels for each text"):
        check_trainable(Recipe.model_validate(content))


def test_labels_are_read_from_a_file(tmp_path: Path, run: Run) -> None:
    (tmp_path / "texts").write_text("the dog sees Anna\nthe doctor is old\n")
    (tmp_path / "labels").write_text("NOUN DET VERB PROPN\nNOUN DET AUX ADJ\n")
    places = ["--source", str(tmp_path / "texts"), "--reference", str(tmp_path / "labels")]
    result = CliRunner().invoke(app, ["evaluate", str(run.folder), *places, "--device", "cpu"], catch_exceptions=False)
    assert result.exit_code == 0 and "micro-F1" in result.output
