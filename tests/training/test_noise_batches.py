"""Windows spoilt on the fly: the same whoever asks and when, anew in each epoch, in every layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sightline.data.collate import TrainingBatch
from sightline.data.noise import Corrupter, NoisePlan, fixed_windows
from sightline.data.preparation import PreparedData, prepare_data
from sightline.models.build import build_model
from sightline.recipe import Recipe
from sightline.tasks.losses import batch_loss
from sightline.text.tokenizer import END, PAD
from sightline.training.objectives import build_objective
from sightline.training.train_step import GraphedRunner, TrainStep, _from_tensors, _shapes, _tensors

CPU = torch.device("cpu")
BODY = {"kind": "transformer", "layers": 1, "heads": 2, "dropout": 0.0, "positions": {"kind": "rotary"}}
KINDS = ["mask", "text-infilling", "span-corruption"]


def recipe(kind: str, tokens: int = 200, context: int = 32, width: int = 16, **more: Any) -> Recipe:
    masked = kind == "mask"
    plain = {"kind": "plain", "file": "text.txt"}
    return Recipe.model_validate(
        {
            "task": "masked-lm" if masked else "seq2seq",
            "data": {"train": [plain], "validation": plain, "noise": {"kind": kind, **more}},
            "tokenizer": {"kind": "bpe", "size": 260, "min_count": 1},
            "model": {"width": width, "encoder": BODY, **({} if masked else {"decoder": BODY})},
            "training": {"batches": {"tokens": tokens, "context": context}, "label_smoothing": 0.0},
        }
    )


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    random = np.random.default_rng(1)
    words = ["".join(random.choice(list("abcdefgh"), random.integers(2, 7))) for _ in range(60)]
    lines = [" ".join(random.choice(words, random.integers(2, 12))) + "." for _ in range(150)]
    (tmp_path / "text.txt").write_text("\n".join(lines) + "\n")
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def prepared(kind: str, **how: Any) -> PreparedData:
    return prepare_data(recipe(kind, **how))


def plan(made: PreparedData, layout: str = "packed") -> NoisePlan:
    return NoisePlan(made.recipe, made.vocabulary, layout, made.train)


def parts(batch: TrainingBatch) -> list[list[int]]:
    return [
        [] if each is None else each.flatten().tolist() for each in (batch.source, batch.decoder_input, batch.labels)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_noise_batch_is_a_pure_function(kind: str, text: Path) -> None:
    made = prepared(kind)
    one, other = plan(made), plan(made)
    for examples in one.epoch(2):
        one.batch(2, examples)
    third = one.epoch(1)[3]
    assert parts(one.batch(1, third)) == parts(other.batch(1, third))


@pytest.mark.parametrize("kind", KINDS)
def test_each_epoch_has_new_noise(kind: str, text: Path) -> None:
    made = prepared(kind, short=0.0)
    spoiler, window = Corrupter(made.recipe, made.vocabulary), np.arange(120, 150)
    seen = {
        str(spoiler.training([window], seed, epoch, np.array([place])))
        for seed, epoch, place in ((1, 0, 0), (1, 1, 0), (2, 0, 0), (1, 0, 1))
    }
    assert len(seen) == 4


@pytest.mark.parametrize("kind", KINDS)
def test_held_out_noise_is_the_same_for_every_seed_and_by_the_number_of_the_window(kind: str, text: Path) -> None:
    made = prepared(kind)
    window = np.arange(120, 150)
    one = Corrupter(made.recipe, made.vocabulary)
    other = Corrupter(made.recipe.model_copy(update={"seed": 7}), made.vocabulary)
    assert str(one.held_out([window, window], 3)) == str(other.held_out([window, window], 3))
    assert str(one.held_out([window], 4)[0][0]) == str(one.held_out([window, window], 3)[0][1])
    assert str(one.held_out([window], 4)) != str(one.held_out([window], 3))


def test_some_windows_have_random_lengths(text: Path) -> None:
    made = prepared("mask", short=0.5)
    spoiler = Corrupter(made.recipe, made.vocabulary)
    read, _ = spoiler.training([np.arange(120, 150)] * 400, 1, 0, np.arange(400))
    lengths = np.array([len(each) for each in read])
    assert np.mean(lengths == 30) == pytest.approx(0.5, abs=0.1)
    assert set(lengths) == set(range(1, 31))


def test_evaluation_covers_the_whole_text() -> None:
    stream = np.arange(25)
    assert [len(each) for each in fixed_windows(stream, 10)] == [10, 10, 5]
    assert np.concatenate(fixed_windows(stream, 10)).tolist() == stream.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_every_layout_has_the_same_loss(kind: str, text: Path) -> None:
    made = prepared(kind)
    model = build_model(made.recipe, made.vocabulary).eval()
    plans = {layout: plan(made, layout) for layout in ("padded", "packed", "static")}
    for examples in (plans["padded"].epoch(0)[0], plans["padded"].epoch(1)[-1]):
        batches = [each.batch(1, examples) for each in plans.values()]
        losses = [float(batch_loss(model, batch, 0.0).nll.detach()) for batch in batches]
        assert losses == pytest.approx([losses[0]] * 3, rel=1e-5)
        assert len({batch.tokens for batch in batches}) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_static_step_is_one_graph_for_every_batch(kind: str, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sightline.layers.linear.onednn_fits", lambda *_: False)  # for the CPU, cannot be traced
    monkeypatch.setattr("sightline.layers.attention._SHORT_ON_CPU", 0)
    made = prepared(kind, short=0.3)
    model, static = build_model(made.recipe, made.vocabulary).train(), plan(made, "static")
    graphs: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph

    def run(tensors: Any, shapes: Any) -> Any:
        return build_objective(made.recipe.training)(model, _from_tensors(tensors, shapes))

    torch._dynamo.reset()
    compiled = torch.compile(run, dynamic=False, fullgraph=True, backend=backend)
    for epoch, examples in ((0, static.epoch(0)[0]), (0, static.epoch(0)[-1]), (1, static.epoch(1)[0])):
        batch = static.batch(epoch, examples)
        found = compiled(_tensors(batch), _shapes(batch))
        assert float(found.nll.detach()) == pytest.approx(float(batch_loss(model, batch, 0.0).nll.detach()), rel=1e-5)
    assert len(graphs) == 1


@pytest.mark.cuda
@pytest.mark.parametrize("kind", KINDS)
def test_the_recorded_static_step_has_the_loss_of_the_padded_one(kind: str, text: Path, cuda: torch.device) -> None:
    made = prepared(kind, width=64)
    model = build_model(made.recipe, made.vocabulary).to(cuda).train()
    static, padded = plan(made, "static"), plan(made, "padded")
    graphed = GraphedRunner(TrainStep(model, made.recipe.training.model_copy(update={"precision": "bf16"}), cuda))
    for examples in (*static.epoch(0)[:3], static.epoch(0)[-1]):  # the last has fewer windows
        found = float(graphed([static.batch(0, examples).to(cuda)]).nll)
        exact = float(batch_loss(model, padded.batch(0, examples).to(cuda), 0.0).nll.detach())
        assert found == pytest.approx(exact, rel=2e-2)


@pytest.mark.parametrize("tokens", [32, 200, 2_000])
@pytest.mark.parametrize("kind", KINDS)
def test_static_batches_have_one_shape_and_take_every_window(kind: str, tokens: int, text: Path) -> None:
    made = plan(prepared(kind, tokens=tokens, context=16 if tokens == 2_000 else 32, short=0.3), "static")
    shapes, seen = set(), 0
    for epoch in (0, 1):
        for examples in made.epoch(epoch):
            batch = made.batch(epoch, examples)
            layouts = [each for each in (batch.source_layout, batch.decoder_layout) if each is not None]
            shapes.add(
                (
                    batch.source.shape,
                    batch.decoder_input.shape,
                    batch.labels.shape,
                    *((x.batch, x.longest) for x in layouts),
                )  # type: ignore[union-attr]
            )
            seen += len(examples)
    assert len(shapes) == 1
    assert seen == made.windows.count(0) + made.windows.count(1)


def test_span_corruption_targets_are_not_padded_to_the_source_length(text: Path) -> None:
    made = plan(prepared("span-corruption", tokens=1_024), "static")
    batch = made.batch(0, made.epoch(0)[0])
    assert batch.source is not None and batch.decoder_input is not None
    assert batch.decoder_input.numel() < batch.source.numel() / 2


def test_labels_are_at_masked_positions(text: Path) -> None:
    made = plan(prepared("mask"), "static")
    batch = made.batch(0, made.epoch(0)[0])
    assert batch.decoder_input is not None and batch.source is not None and made.shape is not None
    real = batch.labels != PAD
    assert int(real.sum()) == batch.tokens
    assert len(batch.labels) == made.shape.labels
    hidden = made.vocabulary.source.mark("<mask>")
    masks = int((batch.source == hidden).sum())
    assert int((batch.source[batch.decoder_input[real]] == hidden).sum()) == masks > 0
    assert END not in batch.labels.tolist()


def test_a_window_that_is_longer_than_a_batch_is_refused(text: Path) -> None:
    with pytest.raises(ValueError, match=r"context \(32\) is more than training\.batches\.tokens \(16\)"):
        plan(prepared("mask", tokens=16))


def test_a_vocabulary_without_the_marks_is_refused(text: Path) -> None:
    made = prepared("text-infilling")
    other = recipe("span-corruption")
    with pytest.raises(ValueError, match="no mark <gap-0>"):
        NoisePlan(other, made.vocabulary, "packed", made.train)
