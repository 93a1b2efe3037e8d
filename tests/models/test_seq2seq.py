"""A whole model: embeddings, ties, summaries, gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from sightline.layers.layout import Packed, Padded
from sightline.models.protocol import Memory
from sightline.models.seq2seq import Seq2Seq, parameter_count

WIDTH, VOCABULARY = 8, 13
TRANSFORMER = {"kind": "transformer", "layers": 1, "heads": 2, "feedforward": {"width": 12}, "dropout": 0.0}
RECURRENT = {"kind": "recurrent", "cell": "lstm", "layers": 1, "dropout": 0.0}


def test_the_parameters_of_a_small_transformer_are_counted_by_hand(build_model: Callable[..., Seq2Seq]) -> None:
    attention = 4 * (WIDTH * WIDTH + WIDTH)
    feedforward = WIDTH * 12 + 12 + 12 * WIDTH + WIDTH
    norm = 2 * WIDTH
    encoder = attention + feedforward + 2 * norm + norm  # and the one at the end of the stack
    decoder = 2 * attention + feedforward + 3 * norm + norm
    table = VOCABULARY * WIDTH
    for tie, tables in (("all", 1), ("output", 2), ("none", 3)):
        model = build_model(TRANSFORMER, TRANSFORMER, tie=tie)
        assert parameter_count(model) == encoder + decoder + tables * table + VOCABULARY


@pytest.mark.parametrize("tie", ["none", "output", "all"])
def test_tied_weights_are_one_parameter(tie: str, build_model: Callable[..., Seq2Seq]) -> None:
    model = build_model(RECURRENT, TRANSFORMER, tie=tie)
    assert (model.output.weight is model.target_embedding.weight) == (tie != "none")
    assert (model.source_embedding.weight is model.target_embedding.weight) == (tie == "all")


def test_tied_weights_are_named_once(build_model: Callable[..., Seq2Seq]) -> None:
    names = [name for name, _ in build_model(TRANSFORMER, TRANSFORMER, tie="all").named_parameters()]
    assert "target_embedding.weight" in names
    assert "source_embedding.weight" not in names
    assert "output.weight" not in names


def test_the_same_seed_gives_the_same_weights(build_model: Callable[..., Seq2Seq]) -> None:
    one, same, other = (build_model(RECURRENT, TRANSFORMER, seed=seed) for seed in (5, 5, 6))
    for name, weight in one.state_dict().items():
        assert torch.equal(weight, same.state_dict()[name])
    assert not torch.equal(one.output.weight, other.output.weight)


@pytest.mark.parametrize("layout", [Padded.of([3, 1]), Packed.of([3, 1])])
def test_without_final_states_a_decoder_starts_from_the_mean_of_the_real_ones(layout: Padded | Packed) -> None:
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 9.0], [7.0, 8.0]])
    padding = torch.full((2, 2), 99.0)
    states = rows if isinstance(layout, Packed) else torch.stack([rows[:3], torch.cat([rows[3:], padding])])
    assert Memory(states, layout).summary().tolist() == [[[3.0, 5.0]], [[7.0, 8.0]]]


def test_with_final_states_a_decoder_starts_from_them() -> None:
    finals = torch.randn(2, 3, 4)
    assert Memory(torch.randn(2, 5, 4), Padded.of([5, 2]), finals).summary() is finals


@pytest.mark.parametrize("bidirectional", [True, False])
def test_a_recurrent_encoder_hands_on_the_last_state_of_each_layer(
    bidirectional: bool, build_model: Callable[..., Seq2Seq]
) -> None:
    model = build_model({**RECURRENT, "layers": 2, "bidirectional": bidirectional}, RECURRENT)
    with torch.no_grad():
        memory = model.encode(torch.tensor([[5, 6, 7, 3], [8, 3, 0, 0]]), Padded.of([4, 2]))
    assert memory.finals.shape == (2, 2, WIDTH)
    half = WIDTH // 2 if bidirectional else WIDTH
    top, states = memory.finals[:, 1], memory.states
    assert torch.equal(top[0, :half], states[0, 3, :half])
    assert torch.equal(top[1, :half], states[1, 1, :half])
    if bidirectional:
        assert torch.equal(top[:, half:], states[:, 0, half:])


def test_packed_and_padded_batches_have_the_same_gradients(model: Seq2Seq) -> None:
    source, target = [[5, 9, 4, 3], [6, 3]], [[2, 7], [2, 4, 8]]
    flat = [torch.tensor(side[0] + side[1]) for side in (source, target)]
    rows = [torch.tensor([[5, 9, 4, 3], [6, 3, 0, 0]]), torch.tensor([[2, 7, 0], [2, 4, 8]])]
    pull = torch.randn(5, WIDTH)
    features = [model(flat[0], Packed.of([4, 2]), flat[1], Packed.of([2, 3]))]
    padded = model(rows[0], Padded.of([4, 2]), rows[1], Padded.of([2, 3]))
    features.append(torch.cat([padded[0, :2], padded[1]]))
    parameters = [parameter for name, parameter in model.named_parameters() if not name.startswith("output.")]
    gradients = [torch.autograd.grad(result, parameters, pull) for result in features]
    for one, other in zip(*gradients, strict=True):
        # float32 sums of some hundred terms, in two orders, of gradients up to some tens
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_a_recurrent_decoder_starts_deeper_layers_from_the_last_summary(build_model: Callable[..., Seq2Seq]) -> None:
    """Three layers after an encoder of one: all of them start from its only final state."""
    model = build_model(RECURRENT, {**RECURRENT, "layers": 3, "attention": {"kind": "none"}})
    with torch.no_grad():
        memory = model.encode(torch.tensor([[5, 6, 3]]), Padded.of([3]))
        state = model.begin(memory)
        for bridge, (hidden, cell) in zip(model.decoder.bridges, state.hidden, strict=True):
            expected = torch.tanh(torch.nn.functional.linear(memory.finals[:, 0], bridge.weight, bridge.bias))
            result = torch.cat([hidden, cell], dim=-1)[:, 0]
            torch.testing.assert_close(result, expected, rtol=0, atol=1e-6)  # float32 sums of eight products
