"""Noise marks never appear in outputs: the untrained models here would write nothing else if they were allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sightline.data.preparation import prepare_data
from sightline.inspection.beam import record_beam
from sightline.models.build import build_model
from sightline.recipe import Recipe
from sightline.run import Run
from sightline.text.vocabulary import Vocabulary
from sightline.training.reward import expected_reward
from sightline.training.validation import TextValidator

CPU = torch.device("cpu")
GRU = {"kind": "recurrent", "cell": "gru", "layers": 1, "dropout": 0.0}
MARKS = ("<gap-0>", "<gap-1>")
TEXT = "one two three four five six seven eight nine ten"


def built(task: str, data: dict[str, Any], **changes: Any) -> tuple[Recipe, Vocabulary, Any]:
    """A model with a large bias for the noise marks of its vocabulary."""
    bodies = (
        {"decoder": {**GRU, "attention": {"kind": "none"}}}
        if task == "language-model"
        else {"encoder": GRU, "decoder": GRU}
    )
    recipe = Recipe.model_validate(
        {"task": task, "data": data, "tokenizer": {"kind": "word", "min_count": 1}, "model": {"width": 8, **bodies}}
        | changes
    )
    vocabulary = Vocabulary.train(recipe.tokenizer, lambda: iter([(TEXT, TEXT)]), "none", MARKS)
    torch.manual_seed(1)
    model: Any = build_model(recipe, vocabulary).eval()
    with torch.no_grad():
        model.output.bias[list(vocabulary.target.marks.values())] = 50.0
    return recipe, vocabulary, model


PAIRS = {"train": [{"kind": "tsv", "file": "a.tsv"}], "validation": {"kind": "tsv", "file": "b.tsv"}}


@pytest.mark.parametrize("beam", [1, 3])
def test_a_recorded_beam_contains_no_marks(beam: int) -> None:
    run = Run(Path("none"), *built("seq2seq", PAIRS), CPU)
    options = run.options(beam=beam, min_length=2, max_length=8)
    record = record_beam(run, "two three four", options)
    pieces = {node.piece for node in record.nodes if node.fate in ("continued", "finished")}
    assert pieces and not pieces & set(MARKS)
    ((best,),) = run.predict_nbest(["two three four"], options)
    assert record.nbest()[0].tokens == best.tokens


def test_samples_of_a_language_model_contain_no_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text(f"{TEXT}\n" * 8)
    plain = {"kind": "plain", "file": "text.txt"}
    data = {"folder": str(tmp_path), "train": [plain], "validation": plain}
    training = {"batches": {"context": 12}, "samples": 3}
    recipe, vocabulary, model = built("language-model", data, training=training, decoding={"beam": 1})
    prepared = prepare_data(recipe, vocabulary=vocabulary)
    samples = TextValidator(prepared, CPU).samples(model)
    assert len(samples) == 3
    assert not any("<gap-" in sample["output"] for sample in samples)
    assert any(len(sample["output"]) > len(sample["source"]) for sample in samples)


def test_the_expected_reward_is_computed_without_marks() -> None:
    reward = {"samples": 4, "max_length": 2}
    training = {"reward": reward, "stopping": {"monitor": "reward"}}
    recipe, vocabulary, model = built("seq2seq", PAIRS, training=training)
    ids = vocabulary.target.encode("three")
    with torch.no_grad():
        model.output.bias[ids] = 25.0  # second to the marks
    sources = [vocabulary.source.encode("one two")]
    assert expected_reward(model, recipe, vocabulary, sources, [ids], CPU) == pytest.approx(1.0)
