"""Recurrent models and attention as the lectures write them, against the formulas by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from sightline.layers.layout import Padded
from sightline.layers.scores import Additive, LinearScore
from sightline.models.heads import Classifier, pool
from sightline.models.language_model import LanguageModel
from sightline.models.protocol import Memory
from sightline.models.recurrent.modules import RecurrentDecoder
from sightline.models.seq2seq import Seq2Seq
from sightline.recipe.model import ModelConfig

VOCABULARY, WIDTH = 9, 4
SOURCE, TARGET = torch.tensor([[5, 7, 4, 3]]), torch.tensor([[2, 6, 8]])
EXACT = {"rtol": 0.0, "atol": 1e-12}
Weights = dict[str, Tensor]


def seq2seq(encoder: dict[str, Any], decoder: dict[str, Any], **model: Any) -> Seq2Seq:
    """A model in double precision with random weights, biases included."""
    bodies = {
        "encoder": {"kind": "recurrent", "cell": "lstm", "layers": 1, "dropout": 0.0} | encoder,
        "decoder": {"kind": "recurrent", "cell": "lstm", "layers": 1, "dropout": 0.0} | decoder,
    }
    recipe = ModelConfig.model_validate({"width": WIDTH, "tie": "none", **bodies, **model})
    return randomized(Seq2Seq(recipe, VOCABULARY, VOCABULARY))


def randomized(model: Any) -> Any:
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.7)
    return model.double().eval()


def lstm(weights: Weights, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """One step: f, i, o = σ(W h + U x + b), c̃ = tanh(W h + U x + b), c = f∘c + i∘c̃, h = o∘tanh(c)."""
    products = weights["weight_hh_l0"] @ h + weights["weight_ih_l0"] @ x
    products = products + weights.get("bias_hh_l0", 0.0) + weights.get("bias_ih_l0", 0.0)
    i, f, new, o = products.split(len(h))
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(new)
    return torch.sigmoid(o) * torch.tanh(c), c


def encoded(model: Seq2Seq) -> tuple[Tensor, Tensor, Memory]:
    """Encoder states (S, D₁), target embeddings (T, D₂), and the memory."""
    memory = model.encode(SOURCE, Padded.of([SOURCE.shape[1]]))
    return memory.states[0], model.target_embedding(TARGET)[0], memory


def weights_of(model: Seq2Seq) -> Weights:
    return dict(model.decoder.layers[0].rnn.named_parameters())


def context(scores: Tensor, states: Tensor) -> Tensor:
    """c = Σ_j softmax(scores)_j h_j."""
    return (torch.softmax(scores, 0)[:, None] * states).sum(0)


@torch.no_grad()
def test_the_output_is_computed_from_the_concatenation_of_state_and_context() -> None:
    """ŷ_t = softmax(W₂ [h_t ; c_t]) with W₂ ∈ R^{V×2D}."""
    model = seq2seq({}, {"attention": {"kind": "dot"}, "readout": "concatenate"}, output_bias=False)
    states, inputs, memory = encoded(model)
    assert model.output.weight.shape == (VOCABULARY, 2 * WIDTH) and model.output.bias is None
    state = model.begin(memory)
    h, c = (part[0, 0] for part in state.hidden[0])
    expected = []
    for x in inputs:
        h, c = lstm(weights_of(model), x, h, c)
        expected.append(torch.softmax(model.output.weight @ torch.cat([h, context(states @ h, states)]), 0))
    features, _ = model.advance(TARGET, state)
    torch.testing.assert_close(model.logits(features).softmax(-1)[0], torch.stack(expected), **EXACT)


@torch.no_grad()
def test_the_attentional_readout_is_tanh_of_a_map_of_state_and_context() -> None:
    """Luong et al. 2015: f = tanh(W_c [h ; c])."""
    model = seq2seq({}, {"attention": {"kind": "dot"}})
    states, inputs, memory = encoded(model)
    state = model.begin(memory)
    h, _ = lstm(weights_of(model), inputs[0], *(part[0, 0] for part in state.hidden[0]))
    attentional = model.decoder.attentional
    expected = torch.tanh(attentional.weight @ torch.cat([h, context(states @ h, states)]) + attentional.bias)
    features, _ = model.advance(TARGET[:, :1], state)
    torch.testing.assert_close(features[0, 0], expected, **EXACT)


@torch.no_grad()
def test_the_query_is_the_previous_state_and_the_context_enters_the_step() -> None:
    """a_ij = softmax_j f(d_{i−1}, e_j), and d_i is computed from [y_{i−1} ; c_i] (Bahdanau et al. 2015)."""
    model = seq2seq({}, {"attention": {"kind": "additive"}, "query": "previous", "readout": "concatenate"})
    states, inputs, memory = encoded(model)
    score = model.decoder.attention.score
    state = model.begin(memory)
    h, c = (part[0, 0] for part in state.hidden[0])
    expected = []
    for x in inputs:
        hidden = torch.tanh(score.query.weight @ h + score.query.bias + states @ score.key.weight.T)  # (S, D)
        attended = context(hidden @ score.v, states)
        h, c = lstm(weights_of(model), torch.cat([x, attended]), h, c)
        expected.append(torch.cat([h, attended]))
    features, _ = model.advance(TARGET, state)
    torch.testing.assert_close(features[0], torch.stack(expected), **EXACT)


@pytest.mark.parametrize("cell", ["elman", "gru", "lstm"])
@pytest.mark.parametrize("merge", ["concatenate", "sum", "mean"])
@torch.no_grad()
def test_the_decoder_starts_from_the_final_state_of_the_encoder_unchanged(cell: str, merge: str) -> None:
    encoder = {"cell": cell, "bidirectional": True, "merge": merge}
    model = seq2seq(encoder, {"cell": cell, "init_hidden": "last", "attention": {"kind": "none"}})
    memory = encoded(model)[2]
    rnn = model.encoder.layers[0].rnn
    _, final = rnn(model.source_embedding(SOURCE))
    for part, theirs in zip(model.begin(memory).hidden[0], final if cell == "lstm" else (final,), strict=True):
        forward, backward = theirs[:, 0]  # states after the last word and after the first one
        joined = {
            "concatenate": torch.cat([forward, backward]),
            "sum": forward + backward,
            "mean": (forward + backward) / 2,
        }
        torch.testing.assert_close(part[0, 0], joined[merge], **EXACT)


@pytest.mark.parametrize("init_hidden", ["zero", "learned"])
@torch.no_grad()
def test_the_initial_state_may_be_zero_or_learned(init_hidden: str) -> None:
    model = seq2seq({}, {"init_hidden": init_hidden, "attention": {"kind": "dot"}})
    hidden = model.begin(encoded(model)[2]).hidden[0]
    expected = torch.zeros(2, WIDTH) if init_hidden == "zero" else model.decoder.initial_states[0].weight
    torch.testing.assert_close(torch.stack([part[0, 0] for part in hidden]), expected.double(), **EXACT)


@torch.no_grad()
def test_a_bilinear_score_joins_a_decoder_and_an_encoder_of_different_widths() -> None:
    """e = qᵀ W h with q ∈ R^{d₂}, h ∈ R^{d₁}, W ∈ R^{d₂×d₁}."""
    model = seq2seq({"width": 6, "bidirectional": False}, {"width": 3, "attention": {"kind": "bilinear"}})
    states, inputs, memory = encoded(model)
    assert states.shape[1] == 6 and inputs.shape[1] == 3
    weight = model.decoder.attention.score.weight.weight
    assert weight.shape == (3, 6)
    state = model.begin(memory)
    h, _ = lstm(weights_of(model), inputs[0], *(part[0, 0] for part in state.hidden[0]))
    scores = torch.stack([h @ weight @ states[j] for j in range(len(states))])
    attentional = model.decoder.attentional
    expected = torch.tanh(attentional.weight @ torch.cat([h, context(scores, states)]) + attentional.bias)
    torch.testing.assert_close(model.advance(TARGET[:, :1], state)[0][0, 0], expected, **EXACT)


@pytest.mark.parametrize("kind", ["dot", "scaled-dot", "unnormalized", "unnormalized-dot"])
def test_dot_products_refuse_unequal_widths(kind: str) -> None:
    with pytest.raises(ValidationError, match=r"the decoder's state \(3 wide\) and encoder states \(6 wide\)"):
        seq2seq({"width": 6}, {"width": 3, "attention": {"kind": kind}})


@torch.no_grad()
def test_linear_attention_gives_every_query_the_same_weights() -> None:
    """e = vᵀ (W q + U h): the softmax cancels vᵀ W q, so α = softmax(vᵀ U h); with the tanh it does not."""
    linear, keys = randomized(LinearScore(WIDTH)), torch.randn(1, 1, 5, WIDTH, dtype=torch.float64)
    queries = torch.randn(1, 1, 7, WIDTH, dtype=torch.float64)
    weights = torch.softmax(linear(queries, linear.prepare(keys)), -1)
    expected = torch.softmax(keys[0, 0] @ linear.key.weight.T @ linear.v, 0)
    torch.testing.assert_close(weights[0, 0], expected.expand(7, -1), **EXACT)
    additive = randomized(Additive(WIDTH))
    others = torch.softmax(additive(queries, additive.prepare(keys)), -1)[0, 0]
    assert (others - others[0]).abs().max() > 0.05


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": lambda x: x.clamp(min=0),
    "sigmoid": lambda x: 1 / (1 + (-x).exp()),
}


@pytest.mark.parametrize("init_hidden", ["zero", "learned"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@torch.no_grad()
def test_an_elman_language_model_without_biases_is_its_formula(activation: str, init_hidden: str) -> None:
    """h_t = g(W_h h_{t−1} + W₁ x_t), ŷ_t = softmax(W₂ h_t)."""
    decoder = {
        "kind": "recurrent",
        "cell": "elman",
        "activation": activation,
        "bias": False,
        "init_hidden": init_hidden,
        "attention": {"kind": "none"},
        "dropout": 0.0,
    }
    recipe = ModelConfig.model_validate({"width": WIDTH, "decoder": decoder, "tie": "none", "output_bias": False})
    model = randomized(LanguageModel(recipe, VOCABULARY))
    names = {name.removeprefix("decoder.layers.0.rnn.") for name, _ in model.named_parameters()}
    learned = {"decoder.initial_states.0.weight"} if init_hidden == "learned" else set()
    assert names == {"embedding.weight", "weight_ih_l0", "weight_hh_l0", "output.weight"} | learned
    w1, wh = model.decoder.layers[0].rnn.weight_ih_l0, model.decoder.layers[0].rnn.weight_hh_l0
    h = model.decoder.initial_states[0].weight[0] if learned else torch.zeros(WIDTH, dtype=torch.float64)
    expected = []
    for x in model.embedding(TARGET)[0]:
        h = ACTIVATIONS[activation](wh @ h + w1 @ x)
        expected.append(torch.softmax(model.output.weight @ h, 0))
    features, _ = model.advance(TARGET, model.begin_empty(1))
    torch.testing.assert_close(model.logits(features).softmax(-1)[0], torch.stack(expected), **EXACT)


@torch.no_grad()
def test_classifiers_can_pool_the_state_of_the_last_word() -> None:
    states, lengths = torch.randn(3, 5, WIDTH), [5, 3, 1]  # </s> included; the last text is empty
    memory = Memory(states, Padded.of(lengths), finals=torch.randn(3, 1, WIDTH))
    torch.testing.assert_close(pool(memory, "last-word"), torch.stack([states[0, 3], states[1, 1], states[2, 0]]))
    assert memory.finals is not None
    torch.testing.assert_close(pool(memory, "last"), memory.finals[:, -1])
    encoder = {"kind": "recurrent", "bidirectional": False, "dropout": 0.0}
    pooling = {"kind": "last-word", "dropout": 0.0}
    recipe = ModelConfig.model_validate({"width": WIDTH, "encoder": encoder, "pooling": pooling})
    model = Classifier(recipe, ["a"] * VOCABULARY, 3).eval()
    short = model(SOURCE[:, :3], Padded.of([3]))  # what follows the last word does not matter
    torch.testing.assert_close(model(torch.tensor([[5, 7, 1]]), Padded.of([3])), short)


@pytest.mark.parametrize(
    ("decoder", "model", "message"),
    [
        ({"readout": "concatenate", "attention": {"kind": "dot"}}, {"tie": "output"}, "gives it \\[x ; c\\], which is"),
        ({"readout": "concatenate", "attention": {"kind": "none"}}, {}, "readout: concatenate needs an attention"),
        ({"query": "previous", "attention": {"kind": "none"}}, {}, "query: previous needs an attention"),
        ({"query": "previous", "input_feeding": True}, {}, "query: previous feeds the context"),
        ({"query": "previous", "attention_from": "bottom"}, {}, "query: previous feeds the context"),
        ({"cell": "gru", "init_hidden": "last"}, {}, "the cells are lstm and gru"),
        ({"width": 6, "init_hidden": "last"}, {}, "4 wide, and the decoder is 6 wide"),
        ({"width": 6}, {"tie": "all"}, "tie: all shares one embedding table"),
        ({"activation": "relu"}, {}, "activation: relu is for cell: elman"),
    ],
)
def test_combinations_that_cannot_be_are_refused_with_the_reason(
    decoder: dict[str, Any], model: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        seq2seq({}, decoder, **model)


def test_the_final_state_of_other_encoders_is_not_handed_over() -> None:
    encoder, decoder = {"kind": "transformer", "heads": 2}, {"kind": "recurrent", "init_hidden": "last"}
    with pytest.raises(ValidationError, match=r"final state of a recurrent encoder, and encoder\.kind is transformer"):
        ModelConfig.model_validate({"width": WIDTH, "encoder": encoder, "decoder": decoder})


def test_learned_initial_states_start_at_zero() -> None:
    recipe = seq2seq({}, {"init_hidden": "learned"}).decoder
    assert isinstance(recipe, RecurrentDecoder)
    recipe.initial_states[0].reset_parameters()
    assert not recipe.initial_states[0].weight.any()
