"""Statements of the lectures that no other test holds, each by its formula written out (docs/lectures.md)."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sightline.data.collate import classification_ids, language_model_ids, padded_batch, seq2seq_ids
from sightline.decoding.engine import decode
from sightline.decoding.request import make_requests
from sightline.inspection.recorder import record
from sightline.layers.attention import attend, causal_mask
from sightline.layers.embedding import Embedding
from sightline.layers.feedforward import FeedForwardNet
from sightline.layers.layout import Padded
from sightline.layers.losses import cross_entropy
from sightline.layers.multi_head import MultiHeadAttention
from sightline.layers.norms import LayerNorm
from sightline.layers.positions import Learned, sinusoids
from sightline.layers.scores import Dot, ScaledDot
from sightline.models.heads import Classifier, Tagger
from sightline.models.language_model import LanguageModel
from sightline.models.ngram import NgramModel
from sightline.models.seq2seq import Seq2Seq, parameter_count
from sightline.recipe import Decoding
from sightline.recipe.loading import load_recipe
from sightline.recipe.model import ModelConfig
from sightline.tasks.losses import batch_loss

START, END, VOCABULARY, WIDTH = 2, 3, 12, 8
CLOSE = {"rtol": 0.0, "atol": 1e-6}
RECURRENT = {"kind": "recurrent", "layers": 1, "dropout": 0.0}
TRANSFORMER = {"kind": "transformer", "layers": 2, "heads": 2, "dropout": 0.0}
WINDOW = {"kind": "window", "dropout": 0.0}
BODIES = {"recurrent": RECURRENT, "transformer": TRANSFORMER, "window": WINDOW}


def randomized(model: Any) -> Any:
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    return model.eval()


def language_model(**decoder: Any) -> LanguageModel:
    section = {"width": WIDTH, "tie": "none", "decoder": decoder}
    return randomized(LanguageModel(ModelConfig.model_validate(section), VOCABULARY))


def recurrent_lm(cell: str = "elman", **more: Any) -> LanguageModel:
    return language_model(**RECURRENT, cell=cell, attention={"kind": "none"}, **more)


def seq2seq(encoder: dict[str, Any], decoder: dict[str, Any]) -> Seq2Seq:
    section = {"width": WIDTH, "tie": "none", "encoder": encoder, "decoder": decoder}
    return randomized(Seq2Seq(ModelConfig.model_validate(section), VOCABULARY, VOCABULARY))


def ids(*tokens: int) -> Tensor:
    return torch.tensor([tokens])


def encode(model: Any, *tokens: int) -> Any:
    return model.encode(ids(*tokens), Padded.of([len(tokens)]))


def probabilities(model: LanguageModel, *tokens: int) -> Tensor:
    """(T, V): ŷ_t after each token."""
    features, _ = model.advance(ids(*tokens), model.begin_empty(1))
    return model.logits(features)[0].softmax(-1)


def outputs(model: Seq2Seq, source: tuple[int, ...], target: tuple[int, ...]) -> Tensor:
    """(T, V): ŷ_t of a source and the tokens of the output before t."""
    features, _ = model.advance(ids(*target), model.begin(encode(model, *source)))
    return model.logits(features)[0].softmax(-1)


# --- embeddings and language models -----------------------------------------------------------------------------------


def test_the_vector_of_a_word_is_its_row_of_the_embedding_matrix() -> None:
    embedding = Embedding(VOCABULARY, WIDTH, scaled=False)
    for word in range(VOCABULARY):  # x = E w with w one-hot
        one_hot = torch.zeros(VOCABULARY).index_fill_(0, torch.tensor([word]), 1.0)
        torch.testing.assert_close(embedding(ids(word))[0, 0], one_hot @ embedding.weight, **CLOSE)


def test_embeddings_start_at_random_and_learn_with_the_rest() -> None:
    section = {"width": WIDTH, "tie": "none", "decoder": {**RECURRENT, "attention": {"kind": "none"}}}
    model = LanguageModel(ModelConfig.model_validate(section), VOCABULARY)
    rows = model.embedding.weight
    before = rows.detach().clone()
    assert len({tuple(row.tolist()) for row in rows}) == VOCABULARY
    features, _ = model.advance(ids(5, 7), model.begin_empty(1))
    (-model.logits(features).log_softmax(-1)[..., 6]).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert [place for place in range(VOCABULARY) if not torch.equal(rows[place], before[place])] == [5, 7]


@torch.no_grad()
def test_every_step_outputs_a_distribution_over_the_vocabulary() -> None:
    for model in (recurrent_lm(), language_model(**TRANSFORMER), language_model(**WINDOW)):
        shares = probabilities(model, START, 5, 7, 9)
        assert shares.shape == (4, VOCABULARY) and (shares > 0).all()
        torch.testing.assert_close(shares.sum(-1), torch.ones(4), **CLOSE)


@torch.no_grad()
def test_the_loss_is_the_mean_of_minus_log_p_of_the_next_word() -> None:
    """L = (1/T) Σ_t −log p(x_{t+1} | x_≤t)."""
    model, text = recurrent_lm(), [5, 7, 9, 6]
    batch = padded_batch(language_model_ids([], [np.array(text)]), np.arange(1))
    assert batch.decoder_input.tolist() == [text[:-1]] and batch.labels.tolist() == [text[1:]]
    shares = probabilities(model, *text[:-1])
    expected = sum(-math.log(shares[t, text[t + 1]]) for t in range(3))
    assert batch_loss(model, batch, 0.0).nll.item() == pytest.approx(expected, rel=1e-5)
    assert batch.tokens == 3  # by which the sum is divided


def test_cross_entropy_is_the_sum_over_the_vocabulary_with_a_one_hot_label() -> None:
    """−Σ_v 1[y = v] log ŷ_v = −log ŷ_y."""
    features, weight, label = torch.randn(1, WIDTH), torch.randn(VOCABULARY, WIDTH), torch.tensor([6])
    logs = torch.log_softmax(features @ weight.T, -1)[0]
    by_hand = -sum(float(v == 6) * logs[v].item() for v in range(VOCABULARY))
    assert cross_entropy(features, weight, None, label, 0.0).nll.item() == pytest.approx(by_hand, rel=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("cell", ["elman", "gru", "lstm"])
def test_an_rnn_reads_any_length_with_the_same_weights(cell: str) -> None:
    model, generator = recurrent_lm(cell), torch.Generator().manual_seed(1)
    size = parameter_count(model)
    for length in (1, 2, 17, 300):
        text = torch.randint(4, VOCABULARY, (length,), generator=generator).tolist()
        assert probabilities(model, *text).shape == (length, VOCABULARY)
    assert parameter_count(model) == size
    assert {name.split(".")[-1] for name, _ in model.decoder.named_parameters()} == {
        f"{kind}_{which}_l0" for kind in ("weight", "bias") for which in ("ih", "hh")
    }  # one W₁ and one W_h for all steps


@torch.no_grad()
def test_an_rnn_sees_all_preceding_words_and_no_later_one() -> None:
    model = recurrent_lm()
    text, other_first, other_last = (5, 7, 9, 6), (8, 7, 9, 6), (5, 7, 9, 10)
    shares = probabilities(model, *text)
    assert not torch.allclose(shares[3], probabilities(model, *other_first)[3])
    torch.testing.assert_close(shares[:3], probabilities(model, *other_last)[:3], **CLOSE)


@torch.no_grad()
def test_the_state_of_a_step_is_computed_from_that_of_the_step_before() -> None:
    """One matrix at every step: the states one word at a time are those of the whole text."""
    model, text = recurrent_lm(), (5, 7, 9, 6)
    state, shares = model.begin_empty(1), []
    for word in text:
        features, state = model.advance(ids(word), state)
        shares.append(model.logits(features)[0, 0].softmax(-1))
    torch.testing.assert_close(torch.stack(shares), probabilities(model, *text), **CLOSE)


def test_an_ngram_model_sees_only_the_words_of_its_order() -> None:
    texts = [[5, 7, 9, 6], [8, 7, 9, 10], [5, 9, 6], [7, 9, 6]]
    model = NgramModel.train(texts, order=3, vocabulary_size=VOCABULARY, start=START, end=END)
    same = model.distribution([START, 5, 7, 9])
    np.testing.assert_allclose(same, model.distribution([START, 8, 5, 6, 7, 9]))
    assert not np.allclose(same, model.distribution([START, 5, 5, 9]))


@torch.no_grad()
def test_a_window_model_has_a_fixed_context_and_an_rnn_has_none() -> None:
    """Words before the last ones do not matter to a feed-forward language model; to an RNN they do."""
    near = (5, 7, 9, 6, 8, 10, 11, 4, 5, 6)
    window, rnn = language_model(**WINDOW, size=4), recurrent_lm("lstm")
    one, other = (probabilities(window, first, *near)[-1] for first in (4, 9))
    torch.testing.assert_close(one, other, rtol=0, atol=0)
    one, other = (probabilities(rnn, first, *near)[-1] for first in (4, 9))
    assert not torch.equal(one, other)


# --- generation -------------------------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("kind", BODIES)
def test_the_word_just_chosen_is_the_next_input(kind: str) -> None:
    model = seq2seq(BODIES[kind] | {}, BODIES[kind] | {})
    said = [START]
    while len(said) < 6 and said[-1] != END:
        shares = outputs(model, (5, 7, END), tuple(said))[-1]
        said.append(max([END, *range(4, VOCABULARY)], key=lambda word: shares[word]))
    ((found,),) = decode(model, make_requests([[5, 7]]), Decoding.model_validate({"beam": 1, "max_length": 6}))
    assert found.tokens == [token for token in said[1:] if token != END]


def test_sampling_ends_with_the_end_mark_or_at_the_limit() -> None:
    model = seq2seq(RECURRENT, RECURRENT)
    options = Decoding.model_validate({"beam": 1, "nbest": 20, "sample": {}, "max_length": 6})
    (found,) = decode(model, make_requests([[5, 7]]), options)
    lengths = [len(each.tokens) for each in found]
    assert max(lengths) == 5 and min(lengths) < 5  # six with the end mark
    assert all(END not in each.tokens for each in found)


@torch.no_grad()
def test_a_prompt_conditions_what_follows() -> None:
    model = language_model(**TRANSFORMER)
    assert not torch.allclose(probabilities(model, START, 5, 7)[-1], probabilities(model, START, 7)[-1])


# --- gates ------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_an_lstm_is_the_formula_of_the_slides() -> None:
    """f, i, o = σ(W h_{t−1} + U x_t + b), c̃ = tanh(W h + U x + b), c = f ∘ c + i ∘ c̃, h = o ∘ tanh(c)."""
    model = recurrent_lm("lstm")
    weights = dict(model.decoder.layers[0].rnn.named_parameters())
    u, w = (weights[f"weight_{side}_l0"].split(WIDTH) for side in ("ih", "hh"))
    b = (weights["bias_ih_l0"] + weights["bias_hh_l0"]).split(WIDTH)
    h = c = torch.zeros(WIDTH)
    expected = []
    for x in model.embedding(ids(5, 7, 9))[0]:
        i, f, new, o = (w[gate] @ h + u[gate] @ x + b[gate] for gate in range(4))
        f, i, o = 1 / (1 + (-f).exp()), 1 / (1 + (-i).exp()), 1 / (1 + (-o).exp())
        c = f * c + i * torch.tanh(new)
        h = o * torch.tanh(c)
        assert c.shape == h.shape == (WIDTH,)
        expected.append(torch.softmax(model.output.weight @ h + model.output.bias, -1))
    torch.testing.assert_close(probabilities(model, 5, 7, 9), torch.stack(expected), **CLOSE)
    with record(model):  # gate by gate, as traces show it
        torch.testing.assert_close(probabilities(model, 5, 7, 9), torch.stack(expected), **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize(
    ("cell", "gates"), [("lstm", ("input_gate", "forget_gate", "output_gate")), ("gru", ("reset_gate", "update_gate"))]
)
def test_gates_lie_between_0_and_1_and_change_from_step_to_step(cell: str, gates: tuple[str, ...]) -> None:
    model = recurrent_lm(cell)
    with record(model) as trace:
        probabilities(model, 5, 7, 9)
    for gate in gates:
        values = next(each.tensor for each in trace if each.name.endswith(f".{gate}")).reshape(3, WIDTH)
        assert ((values > 0) & (values < 1)).all()
        assert not torch.allclose(values[0], values[1]) and not torch.allclose(values[1], values[2])


@torch.no_grad()
def test_the_gates_of_an_lstm_keep_erase_write_and_read() -> None:
    model = recurrent_lm("lstm")
    rnn = model.decoder.layers[0].rnn
    x, h, c = model.embedding(ids(5)), torch.randn(1, 1, WIDTH), torch.randn(1, 1, WIDTH)

    def step(**gates: float) -> tuple[Tensor, Tensor]:
        """One step with gates held open (1) or closed (0) by their biases."""
        for number, gate in enumerate(("i", "f", "new", "o")):
            if gate in gates:
                rnn.bias_ih_l0[number * WIDTH : (number + 1) * WIDTH] = 1e3 if gates[gate] else -1e3
        _, (state, cell) = rnn(x, (h, c))
        return state, cell

    torch.testing.assert_close(step(f=1, i=0, o=1), (torch.tanh(c), c), **CLOSE)  # kept, and read
    torch.testing.assert_close(step(f=0, i=0, o=0), (torch.zeros_like(c), torch.zeros_like(c)), **CLOSE)  # erased
    _, cell = step(f=0, i=1, o=1)  # written: the candidate alone
    assert (cell.abs() <= 1).all() and cell.any()


# --- classification ---------------------------------------------------------------------------------------------------


def classifier(kind: str) -> Classifier:
    encoder = {**RECURRENT, "cell": "elman", "bidirectional": False}
    pooling = {"kind": kind, "dropout": 0.0}
    section = {"width": WIDTH, "encoder": encoder, "pooling": pooling}
    return randomized(Classifier(ModelConfig.model_validate(section), ["a"] * VOCABULARY, 3))


@torch.no_grad()
@pytest.mark.parametrize("kind", ["mean", "max", "last-word"])
def test_a_classifier_is_a_softmax_over_a_net_of_the_pooled_states(kind: str) -> None:
    model = classifier(kind)
    states = encode(model, 5, 7, 9, END).states[0]
    pooled = {
        "mean": sum(states) / 4,
        "max": torch.stack([max(states[:, d]) for d in range(WIDTH)]),
        "last-word": states[2],
    }[kind]
    hidden = torch.tanh(model.pooling.hidden.weight @ pooled + model.pooling.hidden.bias)
    expected = torch.softmax(model.output.weight @ hidden + model.output.bias, -1)
    actual = model.logits(model(ids(5, 7, 9, END), Padded.of([4]))).softmax(-1)
    torch.testing.assert_close(actual[0], expected, **CLOSE)


def test_the_loss_of_the_class_alone_reaches_all_weights_of_the_rnn() -> None:
    model = classifier("last-word")
    batch = padded_batch(classification_ids([np.array([5, 7, 9])], [np.array([1])]), np.arange(1))
    assert batch.labels.numel() == 1  # no output at the words before
    batch_loss(model, batch, 0.0).total.backward()
    rnn = model.encoder.layers[0].rnn
    for weight in (model.pooling.hidden.weight, model.source_embedding.weight, rnn.weight_ih_l0, rnn.weight_hh_l0):
        assert weight.grad is not None and weight.grad.abs().max() > 1e-4
    assert model.source_embedding.weight.grad[5].any()  # the first word learns, too


@torch.no_grad()
def test_a_tagger_has_one_output_for_each_word() -> None:
    section = {"width": WIDTH, "encoder": {**TRANSFORMER, "positions": {"kind": "sinusoidal"}}}
    model = randomized(Tagger(ModelConfig.model_validate(section), ["a"] * VOCABULARY, 5))
    for length in (1, 4, 9):
        features = model(ids(*range(2, 2 + length)), Padded.of([length]))
        assert model.logits(features).shape == (1, length, 5)


# --- encoders and decoders --------------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize(("encoder", "decoder"), [*product(BODIES, BODIES)])
def test_encoders_and_decoders_are_feed_forward_nets_rnns_or_transformers(encoder: str, decoder: str) -> None:
    model = seq2seq(BODIES[encoder], BODIES[decoder])
    for length in (1, 3, 7):
        memory = encode(model, *range(4, 4 + length), END)
        assert memory.states.shape == (1, length + 1, WIDTH)  # h_1 … h_n for any n
    for length in (1, 5, 9):  # h_1 … h_m for any m
        shares = outputs(model, (5, 7, END), (START, *range(3, 2 + length)))
        assert shares.shape == (length, VOCABULARY)
    one, other = (outputs(model, (*source, END), (START, 5))[-1] for source in ((5, 7, 9), (5, 7, 8)))
    assert not torch.allclose(one, other)  # conditioned on the source


@torch.no_grad()
@pytest.mark.parametrize("kind", BODIES)
def test_states_of_an_encoder_are_contextual(kind: str) -> None:
    model = seq2seq(BODIES[kind], RECURRENT)
    one, other = (encode(model, 5, neighbour, END).states[0, 0] for neighbour in (7, 9))
    assert torch.equal(model.source_embedding(ids(5, 7))[0, 0], model.source_embedding(ids(5, 9))[0, 0])
    assert not torch.allclose(one, other)


@torch.no_grad()
def test_without_attention_one_vector_is_all_that_a_decoder_has_of_the_source() -> None:
    """The bottleneck: other states with the same last one give the same output; with attention they do not."""
    for kind, same in (("none", True), ("dot", False)):
        model = seq2seq(RECURRENT, {**RECURRENT, "attention": {"kind": kind}})
        memory = encode(model, 5, 7, 9, END)
        changed = replace(memory, states=torch.randn_like(memory.states))
        one, other = (model.advance(ids(START, 5), model.begin(each))[0] for each in (memory, changed))
        assert torch.equal(one, other) is same


@torch.no_grad()
def test_the_labels_of_a_translation_end_with_the_end_mark() -> None:
    batch = padded_batch(seq2seq_ids([np.array([5, 7])], [np.array([6, 8, 9])]), np.arange(1))
    assert batch.decoder_input.tolist() == [[START, 6, 8, 9]] and batch.labels.tolist() == [[6, 8, 9, END]]
    model = seq2seq(RECURRENT, RECURRENT)
    shares = outputs(model, (5, 7, END), (START, 6, 8, 9))
    expected = -sum(math.log(shares[t, label]) for t, label in enumerate((6, 8, 9, END)))
    assert batch_loss(model, batch, 0.0).nll.item() == pytest.approx(expected, rel=1e-5)
    assert batch.tokens == 4


# --- attention --------------------------------------------------------------------------------------------------------


def heads(*rows: list[float]) -> Tensor:
    """Rows as (B, H, S, Dh) with one head."""
    return torch.tensor(rows)[None, None]


def test_attention_weights_are_a_distribution_and_the_context_a_weighted_sum() -> None:
    query, keys, values = torch.randn(1, 1, 1, 4), torch.randn(1, 1, 6, 4), torch.randn(1, 1, 6, 3)
    scores = [sum(q * k for q, k in zip(query[0, 0, 0], key, strict=True)).item() for key in keys[0, 0]]
    exponentials = [math.exp(score) for score in scores]
    weights = [each / sum(exponentials) for each in exponentials]
    assert all(0 <= weight <= 1 for weight in weights) and sum(weights) == pytest.approx(1)
    expected = [
        sum(weight * value[d].item() for weight, value in zip(weights, values[0, 0], strict=True)) for d in range(3)
    ]
    context = attend(query, keys, values, score=Dot())
    assert context.flatten().tolist() == pytest.approx(expected, abs=1e-5)
    assert context.shape == (1, 1, 1, 3)  # of the width of the values, however many there are


def test_the_context_contains_mostly_the_states_with_high_weights() -> None:
    keys = values = heads([1.0, 0.0], [0.0, 1.0], [-1.0, 0.0])
    context = attend(heads([8.0, 0.0]), keys, values, score=Dot())[0, 0, 0]
    torch.testing.assert_close(context, torch.tensor([1.0, 0.0]), rtol=0, atol=1e-3)


def test_a_lookup_table_is_the_limit_of_attention_with_sharp_weights() -> None:
    """A table returns the value of the one key that matches; attention mixes all values softly."""
    table = {0: [1.0, 2.0], 1: [3.0, 4.0], 2: [5.0, 6.0]}
    keys, values = heads(*torch.eye(3).tolist()), heads(*table.values())
    for place, value in table.items():
        query = keys[:, :, place : place + 1]
        sharp, soft = (attend(scale * query, keys, values, score=Dot())[0, 0, 0] for scale in (100.0, 1.0))
        assert sharp.tolist() == pytest.approx(value)
        shares = [math.e if each == place else 1.0 for each in table]
        by_hand = [sum(s * v[d] for s, v in zip(shares, table.values(), strict=True)) / sum(shares) for d in (0, 1)]
        assert soft.tolist() == pytest.approx(by_hand, abs=1e-5)


# --- self-attention ---------------------------------------------------------------------------------------------------


def plain_attention(**changes: Any) -> MultiHeadAttention:
    settings: dict[str, Any] = {"score": Dot(), "bias": False, "output_projection": False} | changes
    return randomized(MultiHeadAttention(WIDTH, settings.pop("heads", 1), **settings))


def attended(attention: MultiHeadAttention, x: Tensor, *, causal: bool = False) -> Tensor:
    """(S, D) → (S, D)."""
    layout = Padded.of([len(x)])
    return attention(*attention.queries_keys_values(x[None], None), causal=causal, layout=(layout, layout))[0]


@torch.no_grad()
def test_simplified_self_attention_is_its_formula() -> None:
    """a_ij = exp(x_i·x_j) / Σ_k exp(x_i·x_k), y_i = Σ_j a_ij x_j."""
    x = 0.5 * torch.randn(5, WIDTH)
    expected = []
    for one in x:
        scores = [math.exp(sum(a * b for a, b in zip(one.tolist(), other.tolist(), strict=True))) for other in x]
        expected.append(sum(score / sum(scores) * other for score, other in zip(scores, x, strict=True)))
    torch.testing.assert_close(attended(plain_attention(projections=False), x), torch.stack(expected), **CLOSE)


@torch.no_grad()
def test_simplified_self_attention_weighs_similar_inputs_most() -> None:
    x = torch.tensor([[2.0, 0.1], [1.9, 0.2], [-2.0, 0.0]])
    weights = torch.softmax(x @ x.T, -1)
    assert weights[0, 0] > weights[0, 2] and weights[0, 1] > weights[0, 2]
    output = attend(x[None, None], x[None, None], x[None, None], score=Dot())[0, 0]
    torch.testing.assert_close(output, weights @ x, **CLOSE)


@torch.no_grad()
def test_projections_let_dissimilar_words_attend_to_each_other() -> None:
    """ "bank" · "river" is 0, and q·k of them is high once Q and K are learned."""
    bank, river, other = torch.eye(WIDTH)[:3]
    x = torch.stack([bank, river, other])
    simple = torch.softmax(x @ x.T, -1)
    assert simple[0, 0] > simple[0, 1] == simple[0, 2]
    attention = plain_attention()
    query, key, value = attention.qkv.weight.split(WIDTH)
    query.zero_(), key.zero_(), value.copy_(torch.eye(WIDTH))
    query[0, 0], key[0, 1] = 4.0, 4.0  # Q maps bank to where K maps river
    assert attended(attention, x)[0, 1] > 0.99  # what bank gets is river


@torch.no_grad()
def test_self_attention_as_matrix_products() -> None:
    """softmax(XQ (XK)ᵀ) XV: all n × n scores in one product of the rows x_i."""
    x, attention = torch.randn(5, WIDTH), plain_attention()
    q, k, v = (part.T for part in attention.qkv.weight.split(WIDTH))  # D × D, for rows x
    scores = (x @ q) @ (x @ k).T
    assert scores.shape == (5, 5)
    for i, j in product(range(5), range(5)):
        assert scores[i, j].item() == pytest.approx(float((q.T @ x[i]) @ (k.T @ x[j])), rel=1e-3, abs=1e-4)
    torch.testing.assert_close(attended(attention, x), torch.softmax(scores, -1) @ (x @ v), rtol=0, atol=1e-5)


@torch.no_grad()
def test_self_attention_reaches_every_position_directly() -> None:
    """The output at one place depends on the input at any other after one layer."""
    x, attention = 0.3 * torch.randn(40, WIDTH), plain_attention()
    changed = x.clone()
    changed[39] += 1
    assert not torch.allclose(attended(attention, x)[0], attended(attention, changed)[0])


@torch.no_grad()
def test_permuting_the_inputs_of_self_attention_permutes_its_outputs() -> None:
    """Equivariance: the set of outputs is the same, their order is that of the inputs."""
    x, order = torch.randn(6, WIDTH), torch.tensor([3, 0, 5, 1, 4, 2])
    for attention in (plain_attention(), plain_attention(projections=False), plain_attention(heads=2)):
        torch.testing.assert_close(attended(attention, x[order]), attended(attention, x)[order], **CLOSE)


@torch.no_grad()
def test_stacked_self_attention_only_averages_again() -> None:
    """Without an element-wise non-linearity every output lies within the range of the inputs; small ones grow alike."""
    x, attention = 0.3 * torch.randn(6, WIDTH), plain_attention(projections=False)
    spread = (x - x.mean(0)).norm()
    for _ in range(5):
        y = attended(attention, x)
        assert (y <= x.amax(0) + 1e-5).all() and (y >= x.amin(0) - 1e-5).all()
        x = y
    assert (x - x.mean(0)).norm() < 0.1 * spread


@torch.no_grad()
def test_a_feed_forward_net_treats_each_vector_alone_and_a_window_does_not() -> None:
    """No order in a position-wise net: permuted inputs give permuted outputs. A window over neighbours sees order."""
    x, order, net = torch.randn(5, WIDTH), torch.tensor([4, 2, 0, 1, 3]), randomized(FeedForwardNet(WIDTH, 16))
    torch.testing.assert_close(net(x[None, order])[0], net(x[None])[0, order], **CLOSE)
    model = seq2seq(WINDOW, RECURRENT)
    one, other = encode(model, 5, 7, 9, 6).states[0], encode(model, 7, 5, 9, 6).states[0]
    assert not torch.allclose(one[2], other[2])


@torch.no_grad()
def test_queries_and_keys_decide_the_weights_and_values_the_content() -> None:
    x, attention = torch.randn(4, WIDTH), plain_attention()
    query, _, value = attention.qkv.weight.split(WIDTH)

    def recorded() -> tuple[Tensor, Tensor]:
        with record(attention) as trace:
            output = attended(attention, x)
        return trace["weights"].clone(), output

    weights, output = recorded()
    value *= 2
    same, doubled = recorded()
    torch.testing.assert_close(same, weights, **CLOSE)
    torch.testing.assert_close(doubled, 2 * output, rtol=1e-4, atol=1e-4)
    query *= 0
    other, _ = recorded()
    torch.testing.assert_close(other, torch.full((1, 1, 4, 4), 0.25), **CLOSE)  # nothing is asked for


# --- the mask ---------------------------------------------------------------------------------------------------------


def test_the_mask_of_the_lecture_hides_the_words_above_the_diagonal() -> None:
    words = ["[START]", "The", "chef", "who"]
    visible = causal_mask(4, 4, torch.device("cpu"))
    hidden = {(words[i], words[j]) for i in range(4) for j in range(4) if not visible[i, j]}
    assert hidden == {
        *(("[START]", word) for word in ("The", "chef", "who")),
        *(("The", word) for word in ("chef", "who")),
        ("chef", "who"),
    }
    assert visible.diagonal().all()  # a word sees itself


@torch.no_grad()
def test_a_score_of_minus_infinity_becomes_a_weight_of_0() -> None:
    x, attention = torch.randn(4, WIDTH), plain_attention()
    q, k, v = (part.T for part in attention.qkv.weight.split(WIDTH))
    scores = (x @ q) @ (x @ k).T
    for i, j in product(range(4), range(4)):
        scores[i, j] += float("-inf") if j > i else 0.0
    weights = torch.softmax(scores, -1)
    assert not weights.triu(1).any()
    torch.testing.assert_close(weights.sum(-1), torch.ones(4), **CLOSE)
    torch.testing.assert_close(attended(attention, x, causal=True), weights @ (x @ v), rtol=0, atol=1e-5)


@torch.no_grad()
def test_the_mask_gives_what_growing_sets_of_keys_give() -> None:
    """The naive way: at each step attend to the words so far."""
    x, attention = torch.randn(5, WIDTH), plain_attention()
    naive = torch.stack([attended(attention, x[: t + 1])[t] for t in range(5)])
    torch.testing.assert_close(attended(attention, x, causal=True), naive, rtol=0, atol=1e-5)


@torch.no_grad()
def test_an_encoder_sees_both_sides_and_a_decoder_the_past() -> None:
    model = seq2seq(TRANSFORMER, TRANSFORMER)
    one, other = encode(model, 5, 7, 9).states[0, 0], encode(model, 5, 7, 8).states[0, 0]
    assert not torch.allclose(one, other)
    one, other = (outputs(model, (5, END), (START, 6, last)) for last in (7, 8))
    torch.testing.assert_close(one[:2], other[:2], **CLOSE)
    assert not torch.allclose(one[2], other[2])


# --- heads ------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_heads_attend_independently_and_are_then_joined() -> None:
    """Head l with Q_l, K_l, V_l ∈ R^{d×d/h} is attention of its own; the outputs stand side by side."""
    x, several = torch.randn(5, WIDTH), plain_attention(heads=4)
    q, k, v = several.qkv.weight.split(WIDTH)
    size, joined = WIDTH // 4, []
    for head in range(4):
        rows = slice(head * size, (head + 1) * size)
        q_l, k_l, v_l = q[rows].T, k[rows].T, v[rows].T
        assert q_l.shape == (WIDTH, size)
        joined.append(torch.softmax((x @ q_l) @ (x @ k_l).T, -1) @ (x @ v_l))
    torch.testing.assert_close(attended(several, x), torch.cat(joined, -1), rtol=0, atol=1e-5)


@torch.no_grad()
def test_all_scores_of_all_heads_are_one_tensor_and_cost_the_same_weights() -> None:
    x, several = torch.randn(5, WIDTH), plain_attention(heads=4)
    with record(several) as trace:
        attended(several, x)
    assert trace["weights"].shape == (1, 4, 5, 5)  # R^{h×n×n}
    assert not torch.allclose(trace["weights"][0, 0], trace["weights"][0, 1])  # heads look at different things
    assert parameter_count(several) == parameter_count(plain_attention(heads=1)) == 3 * WIDTH * WIDTH


# --- positions --------------------------------------------------------------------------------------------------------


def test_the_positions_of_the_worked_example() -> None:
    """PE(pos, 2i) = sin(pos / 10000^{2i/6}), PE(pos, 2i+1) = cos(pos / 10000^{2i/6}) for pos 0, 1, 2 and i 0, 1, 2."""
    table = sinusoids(torch.arange(3), 6)
    for pos, i in product(range(3), range(3)):
        angle = pos / 10_000 ** (2 * i / 6)
        assert table[pos, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-6)
        assert table[pos, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)
    assert table[0].tolist() == [0, 1, 0, 1, 0, 1]


@torch.no_grad()
def test_source_and_target_have_the_same_position_values() -> None:
    model = seq2seq(TRANSFORMER, TRANSFORMER)
    with record(model) as trace:
        outputs(model, (5, 7, END), (START, 6, 8))
    torch.testing.assert_close(trace["encoder.positions.vectors"], trace["decoder.positions.vectors"], **CLOSE)


@torch.no_grad()
def test_positions_are_added_before_the_first_layer_only() -> None:
    model = seq2seq({**TRANSFORMER, "layers": 3}, TRANSFORMER)
    with record(model.encoder) as trace:
        x = model.source_embedding(ids(5, 7, 9))
        model.encoder(x, Padded.of([3]))
    names = [each.name for each in trace]
    assert [name for name in names if "position" in name] == [name for name in names if name.startswith("positions.")]
    torch.testing.assert_close(trace["positions.output"], x + sinusoids(torch.arange(3), WIDTH), **CLOSE)


def test_positions_beyond_the_texts_of_training_learn_nothing() -> None:
    """Position i is learned from the texts longer than i: early positions get more examples."""
    positions, lengths = Learned(WIDTH, 10), (3, 5, 5, 8)
    for length in lengths:
        x = torch.zeros(1, length, WIDTH)
        positions(x, torch.arange(length)[None], length).sum().backward()
    counts = positions.table.grad[:, 0].tolist()  # the gradient of a sum counts the texts
    assert counts == [sum(length > place for length in lengths) for place in range(10)]
    assert counts == sorted(counts, reverse=True) and counts[8:] == [0, 0]


# --- the block --------------------------------------------------------------------------------------------------------


def test_dot_products_grow_with_the_width_and_the_gradient_of_the_softmax_shrinks() -> None:
    """q·k of random vectors has variance d; divided by √d it has variance 1 and the softmax keeps its gradient."""
    generator = torch.Generator().manual_seed(1)

    def measure(width: int, scaled: bool) -> tuple[float, float]:
        q, k = torch.randn(2_000, width, generator=generator), torch.randn(2_000, 8, width, generator=generator)
        scores = torch.einsum("nd,nkd->nk", q, k) / (math.sqrt(width) if scaled else 1.0)
        weights = scores.softmax(-1)
        slopes = weights * (1 - weights)  # ∂a_j / ∂e_j
        return scores.var().item(), slopes.mean().item()

    for width in (4, 64, 1024):
        assert measure(width, False)[0] == pytest.approx(width, rel=0.1)
        assert measure(width, True)[0] == pytest.approx(1.0, rel=0.1)
    slopes = [measure(width, False)[1] for width in (4, 64, 1024)]
    assert slopes[0] > 2 * slopes[1] > 4 * slopes[2]
    assert measure(1024, True)[1] > 10 * slopes[2]


def test_scores_are_divided_by_the_root_of_the_width_of_a_head() -> None:
    """√(d/h); with one head √d."""
    for count in (1, 2, 4):
        attention = MultiHeadAttention(WIDTH, count)
        assert isinstance(attention.score, ScaledDot)
        q, k = torch.randn(1, count, 1, WIDTH // count), torch.randn(1, count, 3, WIDTH // count)
        expected = (q @ k.mT) / math.sqrt(WIDTH / count)
        torch.testing.assert_close(attention.score(q, attention.score.prepare(k)), expected, **CLOSE)


@torch.no_grad()
def test_a_normalized_vector_has_mean_zero_and_deviation_one() -> None:
    x = 3 * torch.randn(5, WIDTH) + 7
    normed = LayerNorm(WIDTH, gain=False, bias=False)(x)
    for row in normed.tolist():
        mean = sum(row) / WIDTH
        assert mean == pytest.approx(0, abs=1e-5)
        assert math.sqrt(sum((each - mean) ** 2 for each in row) / WIDTH) == pytest.approx(1, abs=1e-3)


def test_a_residual_connection_hands_the_gradient_on_unchanged() -> None:
    """X + Layer(X): where the layer gives 0, ∂/∂X is 1; without the residual it is 0."""
    for residual, expected in ((True, 1.0), (False, 0.0)):
        config = {**TRANSFORMER, "layers": 1, "norm": {"kind": "layer", "place": "none"}, "residual": residual}
        model = seq2seq(config, RECURRENT)
        with torch.no_grad():
            for name, parameter in model.encoder.named_parameters():
                if "norm" not in name:
                    parameter.zero_()
        x = torch.randn(1, 3, WIDTH, requires_grad=True)
        model.encoder(x, Padded.of([3])).states.sum().backward()
        torch.testing.assert_close(x.grad, torch.full_like(x, expected), **CLOSE)


@torch.no_grad()
def test_the_parts_of_a_block_come_in_the_order_of_the_lecture() -> None:
    model = seq2seq(*({**TRANSFORMER, "layers": 1, "norm": {"kind": "layer", "place": "post"}},) * 2)
    with record(model) as trace:
        outputs(model, (5, 7, END), (START, 6))

    def parts(side: str) -> list[str]:
        names = [each.name.split(".")[3] for each in trace if each.name.startswith(f"{side}.layers.0.")]
        return [name for name in dict.fromkeys(names) if name != "output"]

    block = ["attention", "attention_residual", "feedforward", "feedforward_residual"]
    assert parts("encoder") == block
    assert parts("decoder") == [*block[:2], "cross_attention", "cross_attention_residual", *block[2:]]


@torch.no_grad()
def test_a_transformer_maps_n_vectors_to_n_vectors_of_one_width() -> None:
    for layers in (1, 3):
        model = seq2seq({**TRANSFORMER, "layers": layers}, RECURRENT)
        with record(model) as trace:
            memory = encode(model, 5, 7, 9, 6, END)
        assert memory.states.shape == (1, 5, WIDTH)
        shapes = {each.tensor.shape for each in trace if each.name.endswith("_residual.normed")}
        assert shapes == {(1, 5, WIDTH)}


def test_the_feed_forward_net_projects_to_four_times_the_width_and_back() -> None:
    net = seq2seq(TRANSFORMER, RECURRENT).encoder.layers[0].feedforward
    assert net.up.weight.shape == (4 * WIDTH, WIDTH) and net.down.weight.shape == (WIDTH, 4 * WIDTH)


@torch.no_grad()
def test_the_norm_keeps_activations_in_range() -> None:
    """Without a norm states grow with depth; with it their mean square stays 1."""
    sizes = {}
    for place in ("none", "post"):
        model = seq2seq({**TRANSFORMER, "layers": 12, "norm": {"kind": "layer", "place": place}}, RECURRENT)
        for name, parameter in model.encoder.named_parameters():
            if "norm" in name:
                parameter.fill_(1.0 if name.endswith("weight") else 0.0)
        sizes[place] = encode(model, 5, 7, 9).states.square().mean().sqrt().item()
    assert sizes["post"] == pytest.approx(1.0, abs=0.01)
    assert sizes["none"] > 10


def test_encoder_only_decoder_only_and_both_are_models() -> None:
    kinds = {name: load_recipe(f"pretraining/{name}").model for name in ("bert", "gpt", "bart", "t5")}
    bodies = {name: (model.encoder is not None, model.decoder is not None) for name, model in kinds.items()}
    assert bodies == {"bert": (True, False), "gpt": (False, True), "bart": (True, True), "t5": (True, True)}


def test_the_original_has_eight_heads_and_six_layers() -> None:
    recipe = ModelConfig.model_validate({"encoder": {"kind": "transformer"}, "decoder": {"kind": "transformer"}})
    assert [(body.heads, body.layers) for body in (recipe.encoder, recipe.decoder)] == [(8, 6)] * 2  # type: ignore


def test_the_base_and_the_big_transformer_have_the_published_sizes() -> None:
    """Vaswani et al. 2017, Table 3: d, h, d_ff and layers."""
    for name, sizes in (("base", (512, 8, 2048, 6)), ("big", (1024, 16, 4096, 6))):
        model = load_recipe(f"europarl/transformer-{name}").model
        for body in (model.encoder, model.decoder):
            assert body is not None
            config = body.model_dump()
            width = config["feedforward"]["width"] or 4 * model.width
            assert (model.width, config["heads"], width, config["layers"]) == sizes


def test_attention_learns_to_copy_what_one_vector_does_not_hold() -> None:
    """The same training with attention and with the last state alone."""
    losses = {}
    for kind in ("dot", "none"):
        torch.manual_seed(1)
        body = {"kind": "recurrent", "cell": "gru", "layers": 1, "dropout": 0.0}
        section = {"width": 32, "tie": "none", "encoder": body, "decoder": {**body, "attention": {"kind": kind}}}
        model = Seq2Seq(ModelConfig.model_validate(section), VOCABULARY, VOCABULARY)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        draw = np.random.default_rng(1)
        for _ in range(60):
            texts = list(draw.integers(4, VOCABULARY, (16, 6)))
            batch = padded_batch(seq2seq_ids(texts, texts), np.arange(16))
            loss = batch_loss(model, batch, 0.0).total / batch.tokens
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses[kind] = loss.item()
    assert losses["dot"] < 0.5 * losses["none"], losses
