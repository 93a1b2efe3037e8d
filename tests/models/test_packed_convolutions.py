"""Convolutional bodies on packed batches: what they find, and what they learn, is what padded ones say, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sightline.data.collate import StaticShape, TrainingBatch, packed_batch, padded_batch, seq2seq_ids
from sightline.layers.layout import Packed, Padded
from sightline.layers.tap import Tapped, on_taps
from sightline.models.convolutional.bytenet import unfold, unfold_packed
from sightline.models.language_model import LanguageModel
from sightline.models.seq2seq import Seq2Seq
from sightline.recipe.model import ModelConfig
from sightline.text.tokenizer import PAD
from sightline.training.train_step import _from_tensors, _shapes, _tensors

EXACT = {"rtol": 0.0, "atol": 1e-10}  # float64, some layers of sums of tens of products
LONGEST, COUNT = 12, 6
GATED = {"kind": "convolutional", "layers": 2, "positions": {"max_positions": 32}, "dropout": 0.0}
DILATED = {"kind": "bytenet", "layers": 3, "dilations": [1, 2, 16], "dropout": 0.0}  # 16: past every sequence
TRANSFORMER = {"kind": "transformer", "layers": 1, "heads": 2, "dropout": 0.0}
PAIRS = {
    "gated": (GATED, GATED),
    "gated, wide kernels": ({**GATED, "kernel": 7}, {**GATED, "kernel": 4}),
    "gated, of widths of their own": ({**GATED, "channels": 12}, {**GATED, "channels": 20}),
    "dilated": (DILATED, DILATED),
    "gated to dilated": (GATED, DILATED),
    "dilated to gated": (DILATED, GATED),
    "transformer to gated": (TRANSFORMER, GATED),
    "transformer to wider gated": (TRANSFORMER, {**GATED, "channels": 12}),
    "wider gated to transformer": ({**GATED, "channels": 12}, TRANSFORMER),
    "dilated to transformer": (DILATED, TRANSFORMER),
}


@pytest.fixture(params=PAIRS)
def model(request: pytest.FixtureRequest, build_model: Callable[..., Seq2Seq]) -> Seq2Seq:
    built = build_model(*PAIRS[request.param]).double()
    if PAIRS[request.param][1] is DILATED:
        built.decoder.ratio.copy_(torch.tensor([1.3, 0.4]))
    return built


def sentences(seed: int) -> list[np.ndarray]:
    """The first is empty: with its mark, a sequence of one token."""
    numbers = np.random.default_rng(seed)
    lengths = [0, *numbers.integers(1, LONGEST, COUNT - 1)]
    return [numbers.integers(4, 13, length).astype(np.uint16) for length in lengths]


def batches() -> tuple[TrainingBatch, TrainingBatch, TrainingBatch]:
    """The same examples padded, packed, and packed to a static shape with dummies of several tokens and of none."""
    examples, sides = np.arange(COUNT), seq2seq_ids(sentences(1), sentences(2)[::-1])
    shape = StaticShape(tokens=100, sequences=COUNT + 12, longest=LONGEST)
    return padded_batch(sides, examples), packed_batch(sides, examples), packed_batch(sides, examples, shape)


def loss_of(model: Seq2Seq, batch: TrainingBatch) -> Tensor:
    """In float64, which the loss of a training step is not."""
    features = model(batch.source, batch.source_layout, batch.decoder_input, batch.decoder_layout)
    logits = model.logits(features).flatten(0, -2)
    return torch.nn.functional.cross_entropy(logits, batch.labels.flatten(), ignore_index=PAD, reduction="sum")


def learned(model: Seq2Seq, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.mark.parametrize("layout", ["packed", "static"])
def test_a_packed_batch_has_the_loss_and_the_gradients_of_the_padded_one(model: Seq2Seq, layout: str) -> None:
    padded, packed, static = batches()
    expected, result = loss_of(model, padded), loss_of(model, packed if layout == "packed" else static)
    torch.testing.assert_close(result, expected, **EXACT)
    ours, theirs = learned(model, result), learned(model, expected)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, **EXACT)
    assert min(float(gradient.abs().max()) for gradient in ours) > 1e-6


@torch.no_grad()
def test_features_of_real_tokens_do_not_know_of_dummies(model: Seq2Seq) -> None:
    _, packed, static = batches()
    expected, result = (model(b.source, b.source_layout, b.decoder_input, b.decoder_layout) for b in (packed, static))
    torch.testing.assert_close(result[: len(expected)], expected, **EXACT)
    assert len(result) == 100
    assert bool(result.isfinite().all())


@torch.no_grad()
def test_sequences_end_to_end_do_not_reach_into_each_other(model: Seq2Seq) -> None:
    """What becomes of a sequence is the same whoever stands beside it."""
    _, batch, _ = batches()
    source, decoder_input = batch.source.clone(), batch.decoder_input.clone()
    before = model(source, batch.source_layout, decoder_input, batch.decoder_layout)
    first, last = batch.source_layout.offsets.tolist()[2:4]
    start, end = batch.decoder_layout.offsets.tolist()[2:4]
    source[first:last], decoder_input[start:end] = 12, 12
    after = model(source, batch.source_layout, decoder_input, batch.decoder_layout)
    torch.testing.assert_close(after[:start], before[:start], **EXACT)
    torch.testing.assert_close(after[end:], before[end:], **EXACT)
    assert (after[start:end] - before[start:end]).abs().max() > 1e-3


@pytest.mark.parametrize("layout", ["packed", "static"])
def test_taps_record_the_attention_of_packed_gated_convolutions(
    build_model: Callable[..., Seq2Seq], layout: str
) -> None:
    model, taps = build_model(GATED, GATED).double(), []
    padded, packed, static = batches()
    for batch in (padded, packed if layout == "packed" else static):
        result: list[Tapped] = []
        with on_taps(model, result.append, only=model.cross_attention_paths), torch.no_grad():
            model(batch.source, batch.source_layout, batch.decoder_input, batch.decoder_layout)
        taps.append([tapped.tensor for tapped in result if tapped.name.endswith(".weights")])
    assert len(taps[0]) == len(taps[1]) == 2
    for expected, ours in zip(*taps, strict=True):
        assert ours.shape[1] == 1
        for row, (s, t) in enumerate(zip(padded.source_layout.lengths, padded.decoder_layout.lengths, strict=True)):
            torch.testing.assert_close(ours[row, 0, :t, :s], expected[row, 0, :t, :s], **EXACT)


@pytest.mark.parametrize(
    "body",
    [GATED, {**GATED, "channels": 12}, {**GATED, "positions": {"kind": "none"}}, DILATED],
    ids=["p", "wider", "none", "d"],
)
def test_language_models_of_packed_texts_are_those_of_padded_ones(body: dict[str, Any]) -> None:
    torch.manual_seed(3)
    model = LanguageModel(ModelConfig.model_validate({"width": 8, "decoder": body}), 13).eval().double()
    texts = [torch.randint(4, 13, (length,)) for length in (1, 9, 4)]
    rows = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
    padded, packed = Padded.of([1, 9, 4]), Packed.of([1, 9, 4])
    with torch.no_grad():
        expected, result = model(None, None, rows, padded), model(None, None, torch.cat(texts), packed)
    torch.testing.assert_close(result, expected[padded.mask], **EXACT)


@pytest.mark.parametrize("ratio", [(1.0, 0.0), (1.5, 1.0), (0.7, -0.5), (2.0, 30.0)], ids=str)
def test_a_packed_source_is_unfolded_as_a_padded_one(ratio: tuple[float, float]) -> None:
    sources, targets = [3, 1, 5, 2], [4, 7, 1, 6]
    source, target = Packed.of(sources), Packed.of(targets)
    states = torch.randn(sum(sources), 2, dtype=torch.float64, requires_grad=True)
    a_b = torch.tensor(ratio)
    expected = target.unpad(unfold(source.pad(states), torch.tensor(sources), torch.arange(target.longest), a_b))
    assert torch.equal(unfold_packed(states, source, target, a_b), expected)
    assert torch.autograd.gradcheck(lambda x: unfold_packed(x, source, target, a_b), [states])


@pytest.mark.parametrize("kind", ["gated", "gated, of widths of their own", "dilated"])
def test_a_static_step_is_one_graph_with_the_gradients_of_the_padded_one(
    build_model: Callable[..., Seq2Seq], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("layers.linear", "layers.convolution"):  # of the CPU alone, not to be traced
        monkeypatch.setattr(f"sightline.{module}.onednn_fits", lambda *_: False)
    model = build_model(*PAIRS[kind]).double()
    padded, _, static = batches()

    def run(tensors: Any, shapes: Any) -> Tensor:
        return loss_of(model, _from_tensors(tensors, shapes))

    torch._dynamo.reset()
    compiled = torch.compile(run, dynamic=False, fullgraph=True, backend="aot_eager")
    result, expected = compiled(_tensors(static), _shapes(static)), loss_of(model, padded)
    torch.testing.assert_close(result, expected, **EXACT)
    for mine, other in zip(learned(model, result), learned(model, expected), strict=True):
        torch.testing.assert_close(mine, other, **EXACT)
