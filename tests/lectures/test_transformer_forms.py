"""Transformers as the lectures write them, switch by switch, against naive loops."""

from __future__ import annotations

from collections.abc import Callable
from math import cos, sin, sqrt
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from sightline.inspection.tracing import trace_pair
from sightline.layers.adapters import add_adapters
from sightline.layers.layout import Padded
from sightline.models.language_model import LanguageModel
from sightline.models.seq2seq import Seq2Seq
from sightline.recipe.loading import load_recipe
from sightline.recipe.model import AdaptersConfig, ModelConfig

VOCABULARY, WIDTH, HEADS = 9, 6, 2
SOURCE, TARGET = torch.tensor([[5, 7, 4, 3]]), torch.tensor([[2, 6, 8]])
CLOSE = {"rtol": 0.0, "atol": 1e-6}  # in double precision, but for the table of sinusoids
Vectors = list[Tensor]
Weights = dict[str, Tensor]


def body(**changes: Any) -> dict[str, Any]:
    """The original block: post-norm, sinusoids, ReLU."""
    original = {
        "kind": "transformer",
        "layers": 2,
        "heads": HEADS,
        "norm": {"kind": "layer", "place": "post"},
        "positions": {"kind": "sinusoidal"},
        "feedforward": {"kind": "relu"},
        "dropout": 0.0,
    }
    return original | changes


def seq2seq(encoder: dict[str, Any], decoder: dict[str, Any] | None = None, **model: Any) -> Seq2Seq:
    """A model in double precision with random weights, biases and gains included."""
    bodies = {"encoder": body(**encoder), "decoder": body(**(encoder if decoder is None else decoder))}
    recipe = ModelConfig.model_validate({"width": WIDTH, "tie": "none", **bodies, **model})
    return randomized(Seq2Seq(recipe, VOCABULARY, VOCABULARY))


def randomized(model: Any) -> Any:
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    return model.double().eval()


# --- the formulas, number by number -----------------------------------------------------------------------------------


def softmax(scores: list[Tensor]) -> list[Tensor]:
    highest = max(scores)
    total = sum((score - highest).exp() for score in scores)
    return [(score - highest).exp() / total for score in scores]


def weights_in(module: nn.Module) -> Weights:
    return dict(module.named_parameters())


def project(x: Tensor, weights: Weights, name: str, start: int = 0, stop: int | None = None) -> Tensor:
    """Rows `start` to `stop` of W x + b."""
    bias = weights[f"{name}.bias"][start:stop] if f"{name}.bias" in weights else 0.0
    return weights[f"{name}.weight"][start:stop] @ x + bias


def attention(module: nn.Module, xs: Vectors, states: Vectors, *, causal: bool = False) -> Vectors:
    """o_i = [Σ_j softmax_j(q_i·k_j / √(D/H)) v_j for each head] W_O."""
    weights, width = weights_in(module), len(xs[0])
    size, outputs = width // HEADS, []
    for i, x in enumerate(xs):
        heads = []
        visible = states[: i + 1] if causal else states
        for head in range(HEADS):
            rows = head * size, (head + 1) * size
            if "qkv.weight" in weights:
                query = project(x, weights, "qkv", *rows)
                keys = [project(h, weights, "qkv", width + rows[0], width + rows[1]) for h in visible]
                values = [project(h, weights, "qkv", 2 * width + rows[0], 2 * width + rows[1]) for h in visible]
            elif "q.weight" in weights:
                query = project(x, weights, "q", *rows)
                keys = [project(h, weights, "kv", *rows) for h in visible]
                values = [project(h, weights, "kv", width + rows[0], width + rows[1]) for h in visible]
            else:
                query, keys = x[slice(*rows)], [h[slice(*rows)] for h in visible]
                values = keys
            shares = softmax([query @ key / sqrt(size) for key in keys])
            heads.append(sum((share * value for share, value in zip(shares, values, strict=True)), torch.zeros(size)))
        joined = torch.cat(heads)
        outputs.append(project(joined, weights, "output") if "output.weight" in weights else joined)
    return outputs


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": lambda x: x.clamp(min=0), "tanh": torch.tanh}


def feed_forward(module: nn.Module, x: Tensor, kind: str) -> Tensor:
    weights = weights_in(module)
    return project(ACTIVATIONS[kind](project(x, weights, "up")), weights, "down")


def layer_norm(module: nn.Module, x: Tensor) -> Tensor:
    """(x − μ) / σ · γ + β."""
    weights, mean = weights_in(module), x.sum() / len(x)
    deviation = (((x - mean) ** 2).sum() / len(x) + 1e-5).sqrt()
    return (x - mean) / deviation * weights.get("weight", 1.0) + weights.get("bias", 0.0)


def block(config: dict[str, Any], residual: nn.Module, xs: Vectors, sublayer: Callable[[Vectors], Vectors]) -> Vectors:
    """X = LN(X + sublayer(X)), X + sublayer(LN(X)) or X + sublayer(X); without a residual, no X +."""
    place = config["norm"]["place"]
    outputs = sublayer([layer_norm(residual.norm, x) for x in xs] if place == "pre" else xs)
    if config.get("residual", True):
        outputs = [x + output for x, output in zip(xs, outputs, strict=True)]
    return [layer_norm(residual.norm, output) for output in outputs] if place == "post" else outputs


def position(pos: int, width: int) -> Tensor:
    """sin(pos / 10000^(2i/D)), cos(pos / 10000^(2i/D)), …"""
    angles = [pos / 10_000 ** (2 * i / width) for i in range(width // 2)]
    return torch.tensor([f(angle) for angle in angles for f in (sin, cos)])


def positioned(config: dict[str, Any], rows: Tensor, *, scaled: bool) -> Vectors:
    """Embeddings [· √D] plus or beside positions."""
    xs, beside = [], config["positions"].get("width")
    for pos, row in enumerate(rows):
        x = row * sqrt(len(row)) if scaled else row
        xs.append(torch.cat([x, position(pos, beside)]) if beside else x + position(pos, len(row)))
    return xs


def layer_of(config: dict[str, Any], layer: Any, xs: Vectors, memory: Vectors | None) -> Vectors:
    """One layer; a decoder has a memory."""
    kind = config["feedforward"]["kind"]
    xs = block(
        config, layer.attention_residual, xs, lambda x: attention(layer.attention, x, x, causal=memory is not None)
    )
    if memory is not None:
        residual = layer.cross_attention_residual
        xs = block(config, residual, xs, lambda x: attention(layer.cross_attention, x, memory))
    if kind == "none":
        return xs
    residual = layer.feedforward_residual
    return block(config, residual, xs, lambda x: [feed_forward(layer.feedforward, each, kind) for each in x])


def layers(config: dict[str, Any], stack: Any, xs: Vectors, memory: Vectors | None = None) -> Vectors:
    """The states after all layers."""
    for layer in stack.layers:
        xs = layer_of(config, layer, xs, memory)
    return [layer_norm(stack.norm, x) for x in xs] if config["norm"]["place"] == "pre" else xs


def by_hand(model: Seq2Seq, encoder: dict[str, Any], decoder: dict[str, Any], *, scaled: bool = True) -> Tensor:
    """Features (T, D) of TARGET after SOURCE."""
    sources, targets = model.source_embedding.weight[SOURCE[0]], model.target_embedding.weight[TARGET[0]]
    memory = layers(encoder, model.encoder, positioned(encoder, sources, scaled=scaled))
    return torch.stack(layers(decoder, model.decoder, positioned(decoder, targets, scaled=scaled), memory))


def features(model: Seq2Seq) -> Tensor:
    return model(SOURCE, Padded.of([SOURCE.shape[1]]), TARGET, Padded.of([TARGET.shape[1]]))[0]


BESIDE = {"kind": "sinusoidal", "combine": "concatenate", "width": 2, "project": False}
PRE, NO_NORM = {"kind": "layer", "place": "pre"}, {"kind": "layer", "place": "none"}
SCALAR = {"kind": "layer", "place": "post", "gain": "scalar"}
SWITCHES: dict[str, dict[str, Any]] = {
    "the original block": {},
    "no biases": {"attention": {"bias": False}},
    "no output projection": {"attention": {"output_projection": False}},
    "neither": {"attention": {"bias": False, "output_projection": False}},
    "scalar gain": {"norm": SCALAR},
    "scalar gain without bias": {"norm": SCALAR | {"place": "pre", "bias": False}},
    "no gain and no bias": {"norm": {"kind": "layer", "place": "post", "gain": False, "bias": False}},
    "no residual connections": {"residual": False},
    "no residual connections, pre-norm": {"residual": False, "norm": PRE},
    "no residual connections and no norm": {"residual": False, "norm": NO_NORM},
    "no feed-forward net": {"feedforward": {"kind": "none"}},
    "tanh": {"feedforward": {"kind": "tanh"}},
    "tanh, pre-norm": {"feedforward": {"kind": "tanh"}, "norm": PRE},
    "positions beside the embedding": {"positions": BESIDE},
    "self-attention alone": {
        "residual": False,
        "norm": NO_NORM,
        "feedforward": {"kind": "none"},
        "attention": {"projections": False},
    },
}


@pytest.mark.parametrize("switches", SWITCHES.values(), ids=SWITCHES)
@torch.no_grad()
def test_every_switch_is_its_formula(switches: dict[str, Any]) -> None:
    config = body(**switches)
    model = seq2seq(switches)
    torch.testing.assert_close(features(model), by_hand(model, config, config), **CLOSE)


@torch.no_grad()
def test_embeddings_may_be_unscaled() -> None:
    model = seq2seq({}, scale_embeddings=False)
    torch.testing.assert_close(features(model), by_hand(model, body(), body(), scaled=False), **CLOSE)
    recurrent = {"kind": "recurrent", "attention": {"kind": "none"}, "dropout": 0.0}
    config = {"width": WIDTH, "decoder": recurrent, "tie": "none", "scale_embeddings": False}
    language_model = randomized(LanguageModel(ModelConfig.model_validate(config), VOCABULARY))
    rows = language_model.embedding.weight[TARGET]
    torch.testing.assert_close(language_model.embedding(TARGET), rows, rtol=0, atol=0)


def test_unscaled_embeddings_begin_with_variance_one_unless_they_are_the_output_layer() -> None:
    for tie, expected in (("none", 1.0), ("output", 64**-0.5)):
        config = {"width": 64, "decoder": body(heads=1), "tie": tie, "scale_embeddings": False}
        weight = LanguageModel(ModelConfig.model_validate(config), 500).embedding.weight
        assert weight.std().item() == pytest.approx(expected, rel=0.02)


@torch.no_grad()
def test_keys_and_values_of_cross_attention_are_made_from_states_of_another_width() -> None:
    """K, V ∈ R^{d₁×d₂}: d₁ = 4 of the encoder, d₂ = 6 of the decoder."""
    model = seq2seq({"width": 4}, {"width": 6})
    assert weights_in(model.decoder.layers[0].cross_attention)["kv.weight"].shape == (12, 4)
    torch.testing.assert_close(features(model), by_hand(model, body(), body()), **CLOSE)


def test_switched_off_parts_have_no_weights() -> None:
    model = seq2seq({"attention": {"bias": False, "output_projection": False}, "feedforward": {"kind": "none"}})
    names = {name for name, _ in model.decoder.named_parameters() if "residual" not in name}
    assert names == {f"layers.{n}.{part}.qkv.weight" for n in (0, 1) for part in ("attention", "cross_attention")}
    gains = [p for name, p in seq2seq({"norm": SCALAR}).named_parameters() if name.endswith("norm.weight")]
    assert [gain.shape for gain in gains] == [(1,)] * (2 * 2 + 2 * 3)
    beside = seq2seq({"positions": BESIDE})
    assert beside.target_embedding.weight.shape == (VOCABULARY, WIDTH - 2)


# --- attention without recursion --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sinusoidal", "none"])
@torch.no_grad()
def test_attention_over_embeddings_is_its_formula(kind: str) -> None:
    """h_j = x_j + p_j, c_t = Σ_j softmax_j(s_t·h_j) h_j, features [s_t ; c_t]: nothing recurs in the encoder."""
    encoder = {"kind": "embedding", "positions": {"kind": kind}, "dropout": 0.0}
    decoder = {"kind": "recurrent", "cell": "gru", "layers": 1, "attention": {"kind": "dot"}, "dropout": 0.0}
    bodies = {"encoder": encoder, "decoder": decoder | {"readout": "concatenate", "init_hidden": "zero"}}
    config = {"width": WIDTH, "tie": "none", "scale_embeddings": False, **bodies}
    model = randomized(Seq2Seq(ModelConfig.model_validate(config), VOCABULARY, VOCABULARY))
    rows = model.source_embedding.weight[SOURCE[0]]
    states = [row + (position(j, WIDTH) if kind == "sinusoidal" else 0.0) for j, row in enumerate(rows)]
    expected = []
    for state in model.decoder.layers[0].rnn(model.target_embedding(TARGET))[0][0]:
        shares = softmax([state @ h for h in states])
        context = sum((share * h for share, h in zip(shares, states, strict=True)), torch.zeros(WIDTH))
        expected.append(torch.cat([state, context]))
    torch.testing.assert_close(features(model), torch.stack(expected), **CLOSE)
    if kind == "none":  # without positions the order of the words is lost
        shuffled = model(SOURCE.flip(1), Padded.of([4]), TARGET, Padded.of([3]))[0]
        torch.testing.assert_close(shuffled, features(model), **CLOSE)


@pytest.mark.parametrize("kind", ["rotary", "alibi", "t5", "shaw"])
def test_embeddings_alone_have_no_scores_to_change(kind: str) -> None:
    encoder = {"kind": "embedding", "positions": {"kind": kind}}
    with pytest.raises(ValidationError, match=f"positions.kind: {kind} changes the scores of self-attention"):
        ModelConfig.model_validate({"width": WIDTH, "encoder": encoder})


# --- recorded formulas and refusals -----------------------------------------------------------------------------------


def formulas(**switches: Any) -> dict[str, str]:
    model = seq2seq(switches).float()
    trace = trace_pair(model, [5, 7, 4, 3], [6, 8, 3], torch.device("cpu"), ("", ""))
    return {step.name: step.formula for step in trace if step.name}


def test_recorded_formulas_show_what_is_switched_off() -> None:
    plain = formulas()
    assert plain["encoder.layers.0.attention.query"] == "x W_qᵀ + b"
    assert plain["encoder.layers.0.attention_residual.normed"] == "(x − μ) / σ · γ + β"
    bare = formulas(
        attention={"bias": False},
        norm={"kind": "layer", "place": "post", "gain": False, "bias": False},
        residual=False,
        feedforward={"kind": "tanh"},
        positions=BESIDE,
    )
    assert bare["encoder.layers.0.attention.query"] == "x W_qᵀ"
    assert bare["encoder.layers.0.attention.output"] == "[context_1 ; … ; context_H] W_oᵀ"
    assert bare["encoder.layers.0.attention_residual.normed"] == "(x − μ) / σ"
    assert "encoder.layers.0.attention_residual.sum" not in bare
    assert bare["encoder.layers.0.feedforward.hidden"] == "tanh(x W₁ᵀ + b₁)"
    assert bare["encoder.positions.output"] == "[x ; p]"
    joined = formulas(attention={"output_projection": False}, feedforward={"kind": "none"})
    assert joined["decoder.layers.1.cross_attention.output"] == "[context_1 ; … ; context_H]"
    assert not any("feedforward" in name for name in joined)


@pytest.mark.parametrize(
    ("encoder", "model", "message"),
    [
        ({"feedforward": {"kind": "none", "width": 12}}, {}, "feedforward.width belongs to a feed-forward net"),
        ({"feedforward": {"kind": "none", "experts": {"count": 4}}}, {}, "feedforward.experts belongs to"),
        ({"positions": {"kind": "sinusoidal", "project": False}}, {}, "project: false is for positions.combine"),
        ({"positions": {"combine": "concatenate", "project": False}}, {}, "project: false needs positions.width"),
        ({"positions": BESIDE | {"width": 6}}, {}, "leaves token embeddings no part of the width"),
        ({"positions": BESIDE}, {"tie": "output"}, "leaves 4 wide, and features are 6 wide; set tie: none"),
        ({"positions": BESIDE}, {"copying": True}, "copying reads token embeddings as wide as the decoder"),
    ],
)
def test_combinations_that_cannot_be_are_refused_with_the_reason(
    encoder: dict[str, Any], model: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        seq2seq(encoder, **model)


def test_one_table_needs_embeddings_of_one_width() -> None:
    with pytest.raises(ValidationError, match="leaves the source's 4 wide, while the target's is 6 wide"):
        seq2seq({"positions": BESIDE}, {}, tie="all")


def test_states_of_unequal_widths_are_not_compared_themselves() -> None:
    with pytest.raises(ValidationError, match=r"decoder's states \(6 wide\) with encoder states \(4 wide\)"):
        seq2seq({"width": 4}, {"attention": {"projections": False}})


def test_adapters_need_the_map_that_they_adapt() -> None:
    model = seq2seq({"attention": {"output_projection": False}, "feedforward": {"kind": "none"}})
    for part in ("output", "feedforward"):
        with pytest.raises(ValueError, match=f"no layer of this model has a {part} map"):
            add_adapters(model, AdaptersConfig(target_modules=(part,)))
    add_adapters(seq2seq({"width": 4}, {}), AdaptersConfig(target_modules=("query", "key", "value", "output")))


def test_a_masked_language_model_is_not_tied_to_narrower_embeddings(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "task: masked-lm\n"
        "data:\n"
        "  train: [{kind: phrases, target: text, split: train}]\n"
        "  validation: {kind: phrases, target: text, split: validation}\n"
        "  noise: {kind: mask}\n"
        "model:\n"
        "  width: 8\n"
        "  encoder:\n"
        "    kind: transformer\n"
        "    heads: 2\n"
        "    positions: {combine: concatenate, width: 2, project: false}\n"
    )
    with pytest.raises(ValueError, match=r"model\.tie: all cannot be combined with a masked language model"):
        load_recipe(recipe)
    assert load_recipe(recipe, ["model.tie=none"]).model.embedding_width_of("encoder") == 6
