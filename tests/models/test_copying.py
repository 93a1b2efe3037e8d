"""Models that copy from their source: against the mixture written out, step by step and at once, in every search."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from random_beams import joined_at_random
from torch import Tensor

from sightline.data.collate import TrainingBatch, padded_batch, seq2seq_ids
from sightline.decoding.engine import decode
from sightline.decoding.ensemble import Ensemble
from sightline.decoding.request import make_requests
from sightline.decoding.scoring import log_probabilities
from sightline.layers.copying import Copies, mixed_log_probabilities
from sightline.layers.layout import Padded
from sightline.layers.tap import Tapped, on_taps
from sightline.models.seq2seq import CopyingSeq2Seq
from sightline.recipe import Decoding
from sightline.recipe.model import ModelConfig
from sightline.tasks.losses import batch_loss, copying_loss
from sightline.text.copying import CopyForms
from sightline.text.tokenizer import SPECIALS

SIZE = 13  # so 13, 14, ... are words of the source that the vocabulary does not hold
END, START = 3, 2
SOURCES = [[5, 13, 4, 13, 14, END], [6, 13, END], [12, 8, 5, END]]
TARGETS = [[13, 4, 14], [9, 13, 1, 6], [7]]
CLOSE = {"rtol": 0.0, "atol": 1e-5}

LSTM = {"kind": "recurrent", "cell": "lstm", "dropout": 0.0}
BODIES = {
    "lstm": (LSTM, {**LSTM, "attention": {"kind": "additive"}}),
    "fed gru": (LSTM, {**LSTM, "cell": "gru", "attention": {"kind": "dot"}, "input_feeding": True}),
    "transformer": ({"kind": "transformer", "layers": 2, "heads": 2, "dropout": 0.0},) * 2,
    "convolutional": ({"kind": "convolutional", "layers": 2, "dropout": 0.0},) * 2,
}


def build(name: str, seed: int = 0) -> CopyingSeq2Seq:
    torch.manual_seed(seed)
    encoder, decoder = BODIES[name]
    recipe = ModelConfig.model_validate({"width": 8, "encoder": encoder, "decoder": decoder, "copying": True})
    return CopyingSeq2Seq(recipe, SIZE).eval()


@pytest.fixture(params=list(BODIES))
def copier(request: pytest.FixtureRequest) -> CopyingSeq2Seq:
    return build(request.param)


def padded(sequences: list[list[int]]) -> tuple[Tensor, Padded]:
    longest = max(map(len, sequences))
    rows = [sequence + [0] * (longest - len(sequence)) for sequence in sequences]
    return torch.tensor(rows), Padded.of([len(sequence) for sequence in sequences])


def begin(model: CopyingSeq2Seq, sources: list[list[int]]) -> Any:
    return model.begin(model.encode(*padded(sources)))


def batch_of() -> TrainingBatch:
    sources, targets = ([np.asarray(ids) for ids in side] for side in ([s[:-1] for s in SOURCES], TARGETS))
    return padded_batch(seq2seq_ids(sources, targets), np.arange(len(SOURCES)))


def written_out(logits: Tensor, gate: float, weights: Tensor, source: list[int], size: int) -> list[float]:
    """p of every word, by See et al.'s formula and plain loops."""
    whole = sum(math.exp(float(score)) for score in logits)
    generates = 1 / (1 + math.exp(-gate))
    result = [0.0] * size
    for word, score in enumerate(logits):
        result[word] += generates * math.exp(float(score)) / whole
    for place, word in enumerate(source):
        result[word] += (1 - generates) * float(weights[place])
    return result


@torch.no_grad()
def test_the_mixture_is_the_one_written_out(copier: CopyingSeq2Seq) -> None:
    decoder_input = torch.tensor([[START, 13, 4], [START, 9, 13], [START, 7, 2]])
    features, copies, _ = copier.attend_copies(decoder_input, begin(copier, SOURCES))
    scores = torch.nn.functional.linear(features, copier.output.weight, copier.output.bias)
    logs, _ = copier.advance(decoder_input, begin(copier, SOURCES))
    assert logs.shape == (3, 3, SIZE + 2)
    for row, source in enumerate(SOURCES):
        for step in range(3):
            expected = written_out(
                scores[row, step], float(copies.gate[row, step]), copies.weights[row, step], source, SIZE + 2
            )
            np.testing.assert_allclose(logs[row, step].exp(), expected, atol=1e-6)
            assert sum(expected) == pytest.approx(1, abs=1e-5)


@torch.no_grad()
def test_a_word_outside_the_vocabulary_can_be_copied_from_its_own_source_only(copier: CopyingSeq2Seq) -> None:
    logs, _ = copier.advance(torch.full((3, 1), START), begin(copier, SOURCES))
    assert (logs[:, 0, SIZE:] > float("-inf")).tolist() == [[True, True], [True, False], [False, False]]


@torch.no_grad()
def test_the_copy_attention_is_a_softmax_over_the_real_tokens() -> None:
    model = build("lstm")
    copying, state = model.copying, begin(model, SOURCES)
    before = model.target_embedding(torch.full((3, 1), START))
    features, _ = model.decoder.advance(before, state.decoder, None)
    gate, weights = copying(features, before, state.keys, state.states, state.mask)
    _, copies, _ = model.attend_copies(torch.full((3, 1), START), begin(model, SOURCES))
    torch.testing.assert_close((copies.gate, copies.weights), (gate, weights), **CLOSE)
    for row, source in enumerate(SOURCES):
        keys = state.states[row, : len(source)] @ copying.key.weight.T + copying.key.bias
        query = copying.query.weight @ features[row, 0] + copying.query.bias
        expected = torch.softmax(keys @ query / math.sqrt(8), 0)
        torch.testing.assert_close(weights[row, 0, : len(source)], expected, **CLOSE)
        assert weights[row, 0, len(source) :].sum() == 0
        context = expected @ state.states[row, : len(source)]
        joined = torch.cat([features[row, 0], context, before[row, 0]])
        torch.testing.assert_close(gate[row, 0], (copying.gate.weight @ joined + copying.gate.bias)[0], **CLOSE)


@torch.no_grad()
def test_cached_is_uncached(copier: CopyingSeq2Seq) -> None:
    decoder_input = torch.tensor([[START, 13, 4, 14], [START, 9, 13, 1], [START, 7, 5, 5]])
    whole, _ = copier.advance(decoder_input, begin(copier, SOURCES))
    state, result = begin(copier, SOURCES), []
    for token in decoder_input.split(1, dim=1):
        logs, state = copier.advance(token, state)
        result.append(logs)
    torch.testing.assert_close(torch.cat(result, dim=1), whole, **CLOSE)


@torch.no_grad()
def test_a_sentence_that_joins_a_running_batch_continues_as_if_alone(copier: CopyingSeq2Seq) -> None:
    for logs, row, past in joined_at_random(copier.advance, lambda rows: begin(copier, [SOURCES[n] for n in rows])):
        alone, _ = copier.advance(torch.tensor([past]), begin(copier, [SOURCES[row]]))
        width = alone.shape[-1]
        torch.testing.assert_close(logs[:width], alone[0, -1], **CLOSE)
        assert (logs[width:] == float("-inf")).all()


@torch.no_grad()
def test_selected_hypotheses_and_kept_sentences_continue_as_if_alone(copier: CopyingSeq2Seq) -> None:
    _, state = copier.advance(torch.full((3, 1), START), begin(copier, SOURCES))
    state = state.select(torch.zeros(3, 2, dtype=torch.int64))
    _, state = copier.advance(torch.tensor([[13], [4], [6], [13], [7], [8]]), state)
    state = state.select(torch.tensor([[1, 1], [0, 1], [0, 0]])).keep(torch.tensor([1, 0]))
    result, _ = copier.advance(torch.tensor([[5], [6], [14], [13]]), state)
    states = [(1, [START, 6, 5]), (1, [START, 13, 6]), (0, [START, 4, 14]), (0, [START, 4, 13])]
    for row, (sentence, past) in enumerate(states):
        alone, _ = copier.advance(torch.tensor([past]), begin(copier, [SOURCES[sentence]]))
        width = alone.shape[-1]
        torch.testing.assert_close(result[row, 0, :width], alone[0, -1], **CLOSE)
        assert (result[row, 0, width:] == float("-inf")).all()


def test_the_loss_is_minus_the_log_of_the_mixture(copier: CopyingSeq2Seq) -> None:
    result = batch_loss(copier, batch_of(), 0.0)
    scored = log_probabilities(copier, [source[:-1] for source in SOURCES], TARGETS)
    assert float(result.total.detach()) == pytest.approx(-scored.sum(), abs=1e-4)
    assert torch.equal(result.nll, result.total.detach())


def test_label_smoothing_applies_to_generation_and_not_to_copying(copier: CopyingSeq2Seq) -> None:
    batch = batch_of()
    with torch.no_grad():
        state = copier.begin(copier.encode(batch.source, batch.source_layout))
        features, _, _ = copier.attend_copies(batch.decoder_input, state, batch.decoder_layout)
        scores = torch.nn.functional.linear(features, copier.output.weight, copier.output.bias)
        uniform = -scores.log_softmax(-1).mean(-1)[batch.labels != 0].sum()
        plain, smooth = copying_loss(copier, batch, 0.0), copying_loss(copier, batch, 0.2)
    assert float(smooth.total) == pytest.approx(float(0.8 * plain.total + 0.2 * uniform), rel=1e-5)
    assert float(smooth.nll) == pytest.approx(float(plain.nll))


def test_every_parameter_has_a_finite_gradient(copier: CopyingSeq2Seq) -> None:
    loss = batch_loss(copier.train(), batch_of(), 0.1).total
    for name, gradient in zip(
        dict(copier.named_parameters()), torch.autograd.grad(loss, list(copier.parameters())), strict=True
    ):
        assert gradient.isfinite().all() and gradient.abs().max() > 0, name


def test_a_target_that_cannot_be_copied_has_a_finite_loss_and_gradient() -> None:
    logits, gate = torch.randn(1, 1, 5, requires_grad=True), torch.zeros(1, 1, requires_grad=True)
    weights = torch.tensor([[[1.0, 0.0]]], requires_grad=True)
    logs = mixed_log_probabilities(logits, Copies(gate, weights, torch.tensor([[4, 5]])))
    (logs[0, 0, 5] + logs[0, 0, 1]).backward()  # 5 stands in the source, but nobody looks there
    for tensor in (logits, gate, weights):
        assert tensor.grad is not None and tensor.grad.isfinite().all()


@torch.no_grad()
def test_under_autocast_the_mixture_is_in_float32() -> None:
    model, decoder_input = build("lstm"), torch.tensor([[START, 13, 4], [START, 9, 13], [START, 7, 2]])
    with torch.autocast("cpu", torch.bfloat16):
        features, copies, _ = model.attend_copies(decoder_input, begin(model, SOURCES))
        logits = model.output(features)
        logs = mixed_log_probabilities(logits, copies)
    assert copies.gate.dtype == copies.weights.dtype == torch.float32
    torch.testing.assert_close(copies.weights.sum(-1), torch.ones(3, 3), rtol=0.0, atol=1e-6)
    assert logits.dtype == torch.bfloat16
    assert torch.equal(logs, mixed_log_probabilities(logits.float(), copies))


@pytest.mark.parametrize(
    "changes",
    [
        {"beam": 1},
        {"beam": 3, "nbest": 3},
        {"beam": 4, "groups": 2, "nbest": 2},
        {"beam": 1, "nbest": 2, "sample": {"seed": 3}},
        {"beam": 3, "no_repeat": 2, "min_length": 4},
        {"beam": 2, "coverage_penalty": 0.2},
    ],
)
def test_every_search_reports_the_score_of_its_output(copier: CopyingSeq2Seq, changes: dict[str, Any]) -> None:
    options = Decoding.model_validate({"max_length": 8, **changes})
    sources = [source[:-1] for source in SOURCES]
    for source, guesses in zip(sources, decode(copier, make_requests(sources), options), strict=True):
        for guess in guesses:
            (own,) = log_probabilities(copier, [source], [guess.tokens])
            assert guess.log_probability == pytest.approx(own, abs=1e-3)
            assert all(token < SIZE or token in source for token in guess.tokens)


@pytest.mark.parametrize("beam", [1, 3])
def test_nothing_is_copied_twice_in_a_row_of_words_and_no_output_is_too_short(
    copier: CopyingSeq2Seq, beam: int
) -> None:
    with torch.no_grad():
        copier.copying.gate.bias.fill_(-9.0)  # so that nearly all is copied
    options = Decoding(beam=beam, max_length=8, no_repeat=1, min_length=3)
    sources = [source[:-1] for source in SOURCES]
    for guesses in decode(copier, make_requests(sources), options):
        tokens = guesses[0].tokens
        assert len(tokens) >= 3 and len(set(tokens)) == len(tokens)


def test_outputs_of_a_source_do_not_depend_on_the_batch(copier: CopyingSeq2Seq) -> None:
    options = Decoding(beam=3, max_length=8)
    sources = [source[:-1] for source in SOURCES]
    together = decode(copier, make_requests(sources), options)
    for source, (best, *_) in zip(sources, together, strict=True):
        assert decode(copier, make_requests([source]), options)[0][0].tokens == best.tokens


def test_copying_models_form_an_ensemble() -> None:
    models = [build("lstm", 1), build("transformer", 2)]
    sources = [source[:-1] for source in SOURCES]
    result = log_probabilities(Ensemble(models), sources, TARGETS)
    with torch.no_grad():
        for row, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
            decoder_input, expected = torch.tensor([[START, *target]]), [*target, END]
            each = [model.advance(decoder_input, begin(model, [source]))[0][0].exp() for model in models]
            mean = (each[0] + each[1]) / 2
            total = sum(
                float(mean[step, word].log()) if word < mean.shape[1] else -math.inf
                for step, word in enumerate(expected)
            )
            assert result[row] == pytest.approx(total, abs=1e-4)


@torch.no_grad()
def test_taps_record_copy_weights_and_gate() -> None:
    model, taps = build("transformer"), dict[str, Tensor]()

    def hear(tapped: Tapped) -> None:
        taps[tapped.name] = tapped.tensor

    decoder_input = torch.full((3, 2), START)
    with on_taps(model, hear, ("copying", "")):
        model.advance(decoder_input, begin(model, SOURCES))
    assert taps["copying.weights"].shape == (3, 2, 6) and taps["copying.p_gen"].shape == (3, 2)
    _, copies, _ = model.attend_copies(decoder_input, begin(model, SOURCES))
    torch.testing.assert_close(taps["copying.p_gen"], 1 / (1 + torch.exp(-copies.gate)), **CLOSE)
    assert taps["mixture"].shape == (3, 2, SIZE + 2) and taps["logits"].shape == (3, 2, SIZE)


# --- with and without a space before ------------------------------------------------------------------------------

PIECES = [*SPECIALS, "▁a", "a", "▁b", "c", "▁", "▁d", "(", "▁(", "e"]
SPACED, JOINED = SIZE, SIZE + 1  # of the piece at the first position


def with_forms() -> CopyingSeq2Seq:
    torch.manual_seed(0)
    encoder, decoder = BODIES["lstm"]
    recipe = ModelConfig.model_validate({"width": 8, "encoder": encoder, "decoder": decoder, "copying": True})
    return CopyingSeq2Seq(recipe, SIZE, CopyForms.of(PIECES)).eval()


def test_each_position_is_copied_with_a_space_and_without() -> None:
    forms = with_forms().forms
    assert forms is not None
    source = torch.tensor([[6, 4, 15, 6, 8, 5, 15, END]])  # ▁b ▁a (unknown at 1) ▁b ▁ a ...
    spaced, joined = forms(source)[0].view(2, -1).tolist()
    assert spaced == [6, 4, SIZE + 2, 6, 8, 4, SIZE + 2, END]
    assert joined == [JOINED, 5, SIZE + 3, JOINED, 8, 5, SIZE + 3, END]


@torch.no_grad()
def test_the_mixture_divides_each_weight_between_the_two_forms() -> None:
    model, source = with_forms(), [6, 4, 6, END]
    decoder_input = torch.tensor([[START, SPACED, JOINED]])
    features, copies, state = model.attend_copies(decoder_input, begin(model, [source]))
    logs, _ = model.advance(decoder_input, begin(model, [source]))
    scores = torch.nn.functional.linear(features, model.output.weight, model.output.bias)
    copying = model.copying
    before = model.target_embedding(torch.tensor([[START, 6, 6]]))  # what was copied is read as what it is there
    weights = torch.softmax(copying.query(features) * copying.scale @ state.keys.mT, -1)
    joins = copying.join(torch.cat([features, weights @ state.states, before], -1)).sigmoid()[0, :, 0]
    for step in range(3):
        halves = torch.cat([weights[0, step] * (1 - joins[step]), weights[0, step] * joins[step]])
        ids = [6, 4, 6, END, JOINED, 5, JOINED, END]
        expected = written_out(scores[0, step], float(copies.gate[0, step]), halves, ids, SIZE + 2)
        np.testing.assert_allclose(logs[0, step].exp(), expected, atol=1e-6)
        assert sum(expected) == pytest.approx(1, abs=1e-5)


@torch.no_grad()
def test_with_forms_cached_is_uncached_and_the_loss_is_minus_the_log_of_the_mixture() -> None:
    model, sources = with_forms(), [[6, 4, 15, END], [5, 13, END]]
    targets = [[JOINED, 5, 15], [SPACED, 12]]
    decoder_input = torch.tensor([[START, *targets[0]], [START, *targets[1], 0]])
    whole, _ = model.advance(decoder_input, begin(model, sources))
    state, result = begin(model, sources), []
    for token in decoder_input.split(1, dim=1):
        logs, state = model.advance(token, state)
        result.append(logs)
    torch.testing.assert_close(torch.cat(result, dim=1), whole, **CLOSE)
    pairs = ([np.asarray(source[:-1]) for source in sources], [np.asarray(target) for target in targets])
    loss = copying_loss(model, padded_batch(seq2seq_ids(*pairs), np.arange(2)), 0.0)
    scored = log_probabilities(model, [source[:-1] for source in sources], targets)
    assert float(loss.total) == pytest.approx(-scored.sum(), abs=1e-4)
    assert np.isfinite(scored).all() and scored.min() > -60
