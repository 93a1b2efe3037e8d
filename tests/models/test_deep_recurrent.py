"""Deep recurrent stacks against the formulas written out a second time: one sentence, one step after the other.

GNMT is Wu et al. 2016, Deep-Att is Zhou et al. 2016; what differs from the papers is in
models/recurrent/modules.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from sightline.layers.layout import Padded
from sightline.layers.recurrent import (
    BackwardRecurrence,
    FastForwardConnection,
    Recurrence,
    ResidualConnection,
    SkipConnection,
    build_skip_connection,
    reverse_sequences,
)
from sightline.layers.tap import on_taps
from sightline.models.recurrent.config import RecurrentDecoderConfig, RecurrentEncoderConfig
from sightline.models.recurrent.modules import RecurrentDecoder, RecurrentEncoder
from sightline.models.seq2seq import Seq2Seq
from sightline.recipe.model import ModelConfig

WIDTH, END = 8, 3
EXACT = {"rtol": 0.0, "atol": 1e-12}  # float64; some hundred sums of sixteen products, each of order one
SOURCES = [[5, 9, 4, 7, END], [6, END], [12, 8, 5, END]]
TARGETS = [[2, 7, 5, 11], [2, 4, 8, 8, 10, 6], [2]]
LSTM = {"kind": "recurrent", "cell": "lstm", "dropout": 0.0}


def gnmt(layers: int, feeding: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    encoder = {**LSTM, "layers": layers, "directions": "bottom", "skip_connections": "residual"}
    decoder = {
        **LSTM,
        "layers": layers,
        "attention_from": "bottom",
        "input_feeding": feeding,
        "skip_connections": "residual",
    }
    return encoder, decoder


def deep_att(layers: int, feeding: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    encoder = {**LSTM, "layers": layers, "directions": "alternating", "skip_connections": "fast-forward"}
    decoder = {
        **LSTM,
        "layers": layers,
        "attention_from": "bottom",
        "input_feeding": feeding,
        "skip_connections": "fast-forward",
    }
    return encoder, decoder


def luong(layers: int, feeding: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    encoder = {**LSTM, "layers": layers, "bidirectional": False, "skip_connections": "fast-forward"}
    return encoder, {**LSTM, "layers": layers, "input_feeding": feeding, "skip_connections": "residual"}


SYSTEMS = {"gnmt": gnmt, "deep-att": deep_att, "luong": luong}


# --- the formulas, a second time ------------------------------------------------------------------------------------


class Naive:
    """The same model from its parameters alone, for one sentence."""

    def __init__(self, model: Seq2Seq, system: str, layers: int, feeding: bool) -> None:
        self.p = {name: part.double() for name, part in model.state_dict().items()}
        self.system, self.layers, self.feeding = system, layers, feeding

    def map(self, name: str, x: Tensor) -> Tensor:
        return self.p[f"{name}.weight"] @ x + self.p.get(f"{name}.bias", torch.zeros((), dtype=torch.float64))

    def lstm(self, layer: str, x: Tensor, hidden: tuple[Tensor, Tensor], way: str = "") -> tuple[Tensor, Tensor]:
        w, b = (
            {kind: self.p[f"{layer}.rnn.{part}_{kind}_l0{way}"] for kind in ("ih", "hh")} for part in ("weight", "bias")
        )
        i, f, g, o = (w["ih"] @ x + b["ih"] + w["hh"] @ hidden[0] + b["hh"]).chunk(4)
        cell = f.sigmoid() * hidden[1] + i.sigmoid() * g.tanh()
        return o.sigmoid() * cell.tanh(), cell

    def link(self, side: str, kind: str, number: int, x: Tensor, h: Tensor) -> Tensor:
        if kind == "fast-forward":
            return self.map(f"{side}.skip_connections.{number}.map", torch.cat([x, h]))
        return h + x if kind == "residual" and number >= 2 else h

    def read(self, layer: str, inputs: list[Tensor], width: int, way: str, backward: bool) -> list[Tensor]:
        """The states at each place, whichever way they were made."""
        hidden = (torch.zeros(width, dtype=torch.float64),) * 2
        states: dict[int, Tensor] = {}
        places = range(len(inputs))
        for t in reversed(places) if backward else places:
            hidden = self.lstm(layer, inputs[t], hidden, way)
            states[t] = hidden[0]
        return [states[t] for t in places]

    def encode(self, source: list[int]) -> tuple[list[Tensor], list[Tensor]]:
        """What each token became, and the final state of each layer."""
        x = [self.p["source_embedding.weight"][token] * WIDTH**0.5 for token in source]
        finals = []
        for number in range(self.layers):
            layer = f"encoder.layers.{number}"
            if self.system == "gnmt" and number == 0:
                forwards = self.read(layer, x, WIDTH // 2, "", False)
                backwards = self.read(layer, x, WIDTH // 2, "_reverse", True)
                h = [torch.cat(both) for both in zip(forwards, backwards, strict=True)]
                finals.append(torch.cat([forwards[-1], backwards[0]]))
            else:
                backward = self.system == "deep-att" and number % 2 == 1
                h = self.read(layer, x, WIDTH, "", backward)
                finals.append(h[0] if backward else h[-1])
            kind = "residual" if self.system == "gnmt" else "fast-forward"
            x = [self.link("encoder", kind, number, *pair) for pair in zip(x, h, strict=True)]
        return x, finals

    def look(self, query: Tensor, memory: list[Tensor]) -> Tensor:
        """Σ_j softmax_j(vᵀ tanh(W q + U h_j)) h_j."""
        scores = torch.stack(
            [
                self.p["decoder.attention.score.v"]
                @ (
                    self.map("decoder.attention.score.query", query) + self.map("decoder.attention.score.key", state)
                ).tanh()
                for state in memory
            ]
        )
        weights = scores.exp() / scores.exp().sum()
        return sum(weight * state for weight, state in zip(weights, memory, strict=True))

    def features(self, source: list[int], target: list[int]) -> Iterator[Tensor]:
        memory, finals = self.encode(source)
        hidden = []
        for number, final in enumerate(finals):
            start = self.map(f"decoder.bridges.{number}", final).tanh()
            hidden.append((start[:WIDTH], start[WIDTH:]))
        fed = torch.zeros(WIDTH, dtype=torch.float64)
        low = self.system != "luong"
        links = "fast-forward" if self.system == "deep-att" else "residual"
        for token in target:
            x = self.p["target_embedding.weight"][token] * WIDTH**0.5
            x = torch.cat([x, fed]) if self.feeding else x
            context = torch.empty(0, dtype=torch.float64)
            for number in range(self.layers):
                hidden[number] = self.lstm(f"decoder.layers.{number}", torch.cat([x, context]), hidden[number])
                x = self.link("decoder", links, number, x, hidden[number][0])
                if low and number == 0:
                    context = self.look(x, memory)
            context = context if low else self.look(x, memory)
            features = self.map("decoder.attentional", torch.cat([x, context])).tanh()
            fed = context if low else features
            yield features


@torch.no_grad()
@pytest.mark.parametrize("feeding", [True, False])
@pytest.mark.parametrize("layers", [2, 4, 5])
@pytest.mark.parametrize("system", list(SYSTEMS))
def test_a_deep_stack_is_its_formulas(
    system: str, layers: int, feeding: bool, build_model: Callable[..., Seq2Seq]
) -> None:
    model = build_model(*SYSTEMS[system](layers, feeding)).double()
    naive = Naive(model, system, layers, feeding)

    def padded(sequences: list[list[int]]) -> tuple[Tensor, Padded]:
        longest = max(map(len, sequences))
        rows = [sequence + [0] * (longest - len(sequence)) for sequence in sequences]
        return torch.tensor(rows), Padded.of([len(sequence) for sequence in sequences])

    result = model(*padded(SOURCES), *padded(TARGETS))
    for source, target, row in zip(SOURCES, TARGETS, result, strict=True):
        torch.testing.assert_close(row[: len(target)], torch.stack([*naive.features(source, target)]), **EXACT)


# --- the parts ------------------------------------------------------------------------------------------------------


def test_a_sequence_is_turned_around_its_own_length() -> None:
    x = torch.arange(8.0).view(2, 4, 1)
    assert reverse_sequences(x, Padded.of([4, 2]))[:, :, 0].tolist() == [[3, 2, 1, 0], [5, 4, 6, 7]]


@pytest.mark.parametrize("cell", ["elman", "gru", "lstm"])
def test_a_layer_that_reads_backwards_is_the_second_half_of_one_that_reads_both_ways(cell: str) -> None:
    both = Recurrence(cell, 5, 4, bidirectional=True).double()
    layer = BackwardRecurrence(cell, 5, 4).double()
    names = [name for name, _ in layer.rnn.named_parameters()]
    layer.rnn.load_state_dict({name: both.rnn.state_dict()[f"{name}_reverse"] for name in names})
    x, layout = torch.randn(3, 6, 5, dtype=torch.float64), Padded.of([4, 6, 1])
    (states, final), (both_states, both_final) = layer.read(x, layout), both.read(x, layout)
    for ours, theirs in zip((states, *final), (both_states, *both_final), strict=True):
        torch.testing.assert_close(ours, theirs[..., 4:], **EXACT)


def test_residual_connections_begin_at_the_third_layer() -> None:
    kinds = [type(build_skip_connection("residual", number, 4, 4)) for number in range(4)]
    assert kinds == [SkipConnection, SkipConnection, ResidualConnection, ResidualConnection]
    assert [type(build_skip_connection(kind, 0, 4, 4)) for kind in ("none", "fast-forward")] == [
        SkipConnection,
        FastForwardConnection,
    ]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["both", "both", "both"]),
        ({"bidirectional": False}, ["forward", "forward", "forward"]),
        ({"directions": "bottom"}, ["both", "forward", "forward"]),
        ({"directions": "alternating"}, ["forward", "backward", "forward"]),
    ],
)
def test_each_layer_reads_in_its_direction(options: dict[str, Any], expected: list[str]) -> None:
    encoder = RecurrentEncoder(RecurrentEncoderConfig.model_validate({**LSTM, "layers": 3, **options}), WIDTH)
    kinds = {(Recurrence, True): "both", (Recurrence, False): "forward", (BackwardRecurrence, False): "backward"}
    assert [kinds[type(layer), layer.bidirectional] for layer in encoder.layers] == expected


@torch.no_grad()
@pytest.mark.parametrize(
    ("below", "above", "starts"),
    [(3, 3, [0, 1, 2]), (4, 2, [2, 3]), (2, 1, [1]), (1, 3, [0, 0, 0]), (2, 4, [0, 1, 1, 1])],
)
def test_each_layer_of_a_decoder_starts_from_one_of_the_encoder_the_top_one_from_the_top_one(
    below: int, above: int, starts: list[int]
) -> None:
    recipe = {"width": WIDTH, "encoder": {**LSTM, "layers": below}, "decoder": {**LSTM, "layers": above}}
    model = Seq2Seq(ModelConfig.model_validate(recipe), 13, 13).eval()
    memory = model.encode(torch.tensor([[5, 9, END], [6, 4, END]]), Padded.of([3, 3]))
    assert memory.finals is not None and memory.finals.shape == (2, below, WIDTH)
    state = model.begin(memory)
    for hidden, bridge, start in zip(state.hidden, model.decoder.bridges, starts, strict=True):
        expected = torch.tanh(memory.finals[:, start] @ bridge.weight.T + bridge.bias)  # of h and c
        torch.testing.assert_close(torch.cat(hidden, dim=-1)[:, 0], expected, rtol=0.0, atol=1e-6)


def test_dropout_leaves_the_path_past_the_layers_whole() -> None:
    """With nearly all dropped, no recurrence reads anything and all states are zero; the links still pass x on."""
    recipe = RecurrentEncoderConfig.model_validate(
        {**LSTM, "layers": 3, "skip_connections": "fast-forward", "dropout": 0.999999}
    )
    encoder, x = RecurrentEncoder(recipe, WIDTH).train(), torch.randn(2, 4, WIDTH)
    expected = x
    for link in encoder.skip_connections:
        expected = link(expected, torch.zeros(2, 4, WIDTH))
    assert expected.abs().min() > 1e-4
    torch.testing.assert_close(encoder(x, Padded.of([4, 4])).states, expected)
    alone = {
        **LSTM,
        "layers": 3,
        "skip_connections": "fast-forward",
        "dropout": 0.999999,
        "attention": {"kind": "none"},
    }
    decoder, taps = (
        RecurrentDecoder(RecurrentDecoderConfig.model_validate(alone), WIDTH, source=False).train(),
        list[Tensor](),
    )
    decoder.skip_connections.load_state_dict(encoder.skip_connections.state_dict())
    with on_taps(decoder, lambda tapped: taps.append(tapped.tensor), points=("features",)):
        decoder.advance(x, decoder.begin_empty(2, x))
    torch.testing.assert_close(taps, [expected])


# --- what was there before ------------------------------------------------------------------------------------------


def test_weights_of_earlier_versions_load(build_model: Callable[..., Seq2Seq]) -> None:
    """The names and shapes of a bidirectional encoder and an input-fed decoder, as they were saved in October 2026."""
    encoder = {"kind": "recurrent", "cell": "gru", "layers": 2, "bidirectional": True, "dropout": 0.0}
    decoder = {"kind": "recurrent", "cell": "lstm", "layers": 2, "attention": {"kind": "additive"}, "dropout": 0.0}
    model = build_model(encoder, {**decoder, "input_feeding": True})
    read = [
        {
            f"weight_ih_l0{way}": (12, 8),
            f"weight_hh_l0{way}": (12, 4),
            f"bias_ih_l0{way}": (12,),
            f"bias_hh_l0{way}": (12,),
        }
        for way in ("", "_reverse")
    ]
    write = {"weight_hh_l0": (32, 8), "bias_ih_l0": (32,), "bias_hh_l0": (32,)}
    expected = {
        "target_embedding.weight": (13, 8),
        "source_embedding.weight": (13, 8),
        **{f"encoder.layers.{n}.rnn.{name}": size for n in (0, 1) for way in read for name, size in way.items()},
        **{f"decoder.layers.{n}.rnn.{name}": size for n in (0, 1) for name, size in write.items()},
        "decoder.layers.0.rnn.weight_ih_l0": (32, 16),
        "decoder.layers.1.rnn.weight_ih_l0": (32, 8),
        **{
            f"decoder.bridges.{n}.{name}": size
            for n in (0, 1)
            for name, size in {"weight": (16, 8), "bias": (16,)}.items()
        },
        "decoder.attention.score.v": (8,),
        "decoder.attention.score.query.weight": (8, 8),
        "decoder.attention.score.query.bias": (8,),
        "decoder.attention.score.key.weight": (8, 8),
        "decoder.attentional.weight": (8, 16),
        "decoder.attentional.bias": (8,),
        "output.weight": (13, 8),
        "output.bias": (13,),
    }
    assert {name: tuple(part.shape) for name, part in model.state_dict().items()} == expected


@pytest.mark.parametrize(
    ("side", "options", "message"),
    [
        ("encoder", {"bidirectional": False, "directions": "bottom"}, r"directions: bottom .* bidirectional: false"),
        ("encoder", {"directions": "alternating", "layers": 1}, r"alternating needs at least two layers .* not 1"),
        (
            "decoder",
            {"attention": {"kind": "none"}, "attention_from": "bottom"},
            r"attention_from: bottom needs an att",
        ),
    ],
)
def test_invalid_recurrent_configs_are_refused(side: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ModelConfig.model_validate(
            {"width": WIDTH, "encoder": LSTM, "decoder": LSTM, side: {**LSTM, "layers": 2, **options}}
        )


def test_only_layers_that_read_both_ways_need_an_even_width() -> None:
    for directions in ("all", "bottom"):
        with pytest.raises(ValidationError, match="half the width, and 7 is odd"):
            ModelConfig.model_validate({"width": 7, "encoder": {**LSTM, "layers": 2, "directions": directions}})
    ModelConfig.model_validate({"width": 7, "encoder": {**LSTM, "layers": 2, "directions": "alternating"}})
