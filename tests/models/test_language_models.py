"""What a decoder without an encoder owes to training and search, alone or with the source in its own sequence.

Cached = uncached, packed = padded, no text sees another; and a source read at once, beside sources of other lengths, is
the same source read as part of the whole sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from random_beams import joined_at_random
from silent_parameters import silent_parameters
from torch import Tensor

from shared_models import shared
from sightline.decoding.engine import decode
from sightline.decoding.request import make_requests
from sightline.decoding.scoring import log_probabilities
from sightline.layers.layout import Packed, Padded
from sightline.models.language_model import DecoderOnly, LanguageModel
from sightline.recipe import Decoding
from sightline.recipe.model import ModelConfig

CLOSE = {"rtol": 0.0, "atol": 1e-5}  # as in test_decoders.py
VOCABULARY, START, END = 13, 2, 3
SOURCES = [[5, 9, 4, 7, 6, END], [6, END], [12, 8, 5, END]]
TARGETS = [[START, 7, 5, 11], [START, 4, 8, 8, 10, 6], [START]]
NARROW = {"t5": {"buckets": 8, "max_distance": 5}, "shaw": {"max_distance": 2}}  # so that the tests go past their ends


def transformer(positions: str, place: str = "pre", norm: str = "layer") -> dict[str, Any]:
    return {
        "kind": "transformer",
        "layers": 2,
        "heads": 2,
        "norm": {"kind": norm, "place": place},
        "positions": {"kind": positions, "max_positions": 32, **NARROW.get(positions, {})},
        "feedforward": {"width": 12},
        "dropout": 0.0,
    }


def recurrent(cell: str) -> dict[str, Any]:
    return {"kind": "recurrent", "cell": cell, "layers": 2, "attention": {"kind": "none"}, "dropout": 0.0}


BODIES: dict[str, dict[str, Any]] = {
    **{cell: recurrent(cell) for cell in ("elman", "gru", "lstm")},
    "residual": recurrent("lstm") | {"layers": 4, "skip_connections": "residual"},
    "fast-forward": recurrent("lstm") | {"layers": 3, "skip_connections": "fast-forward"},
    "window": {"kind": "window", "size": 3, "layers": 2, "dropout": 0.0},
    "convolutional": {"kind": "convolutional", "layers": 2, "positions": {"max_positions": 32}, "dropout": 0.0},
    "convolutional without positions": {
        "kind": "convolutional",
        "layers": 3,
        "kernel": 2,
        "positions": {"kind": "none"},
        "dropout": 0.0,
    },
    "wider convolutional": {
        "kind": "convolutional",
        "layers": 2,
        "channels": 12,
        "positions": {"max_positions": 32},
        "dropout": 0.0,
    },
    "bytenet": {"kind": "bytenet", "layers": 3, "dilations": [1, 2], "dropout": 0.0},
    "window of one": {"kind": "window", "size": 1, "dropout": 0.0},
    "window wider than a sentence": {"kind": "window", "size": 11, "dropout": 0.0},
    **{kind: transformer(kind) for kind in ("sinusoidal", "learned", "rotary", "alibi", "t5", "shaw", "none")},
    "batch norm behind": transformer("rotary", "post", "batch"),
}


@cache
def built(kind: type[LanguageModel], body: str) -> Any:
    """A model with no weight at a special value; shared, so not to be changed."""
    torch.manual_seed(0)
    recipe = ModelConfig.model_validate({"width": 8, "decoder": BODIES[body], "tie": "all"})
    model = kind(recipe, VOCABULARY).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.3 * torch.randn_like(parameter)
        model.output.bias += 0.5 * torch.randn_like(model.output.bias)
    return shared(model)


@pytest.fixture(params=list(BODIES))
def model(request: pytest.FixtureRequest) -> LanguageModel:
    return built(LanguageModel, request.param)


@pytest.fixture(params=list(BODIES))
def translator(request: pytest.FixtureRequest) -> DecoderOnly:
    return built(DecoderOnly, request.param)


def padded(sequences: list[list[int]]) -> tuple[Tensor, Padded]:
    longest = max(map(len, sequences))
    rows = [sequence + [0] * (longest - len(sequence)) for sequence in sequences]
    return torch.tensor(rows), Padded.of([len(sequence) for sequence in sequences])


def alone(model: LanguageModel, sequence: list[int]) -> Tensor:
    """(T, D): the features of one sequence by one `forward`."""
    return model(None, None, *padded([sequence]))[0]


# --- language models -----------------------------------------------------------------------------------------------


@torch.no_grad()
def test_cached_is_uncached(model: LanguageModel) -> None:
    texts = torch.tensor([[2, 7, 5, 11, 4], [2, 4, 8, 8, 10], [2, 2, 6, 9, 12]])
    whole = model(None, None, texts, Padded.of([5, 5, 5]))
    for cuts in ([1] * 5, [1, 1, 1, 2], [3, 2]):
        state, result = model.begin_empty(3), []
        for part in texts.split(cuts, dim=1):
            features, state = model.advance(part, state)
            result.append(features)
        torch.testing.assert_close(torch.cat(result, dim=1), whole, **CLOSE)


@torch.no_grad()
def test_packed_is_padded(model: LanguageModel) -> None:
    rows = model(None, None, *padded(TARGETS))
    expected = torch.cat([row[: len(target)] for row, target in zip(rows, TARGETS, strict=True)])
    flat = torch.tensor([token for target in TARGETS for token in target])
    for longest in (None, 9):
        result = model(None, None, flat, Packed.of([len(target) for target in TARGETS], longest=longest))
        torch.testing.assert_close(result, expected, **CLOSE)


@torch.no_grad()
def test_a_text_does_not_see_its_neighbours(model: LanguageModel) -> None:
    for row, target in zip(model(None, None, *padded(TARGETS)), TARGETS, strict=True):
        torch.testing.assert_close(row[: len(target)], alone(model, target), **CLOSE)


@torch.no_grad()
def test_no_token_sees_a_later_one(model: LanguageModel) -> None:
    before, after = alone(model, [2, 7, 5, 11, 4]), alone(model, [2, 7, 5, 6, 10])
    torch.testing.assert_close(before[:3], after[:3], **CLOSE)
    assert (before[3:] - after[3:]).abs().amax(-1).min() > 1e-3


@torch.no_grad()
def test_the_initial_state_after_any_source_is_the_empty_one(model: LanguageModel) -> None:
    state = model.begin(model.encode(*padded(SOURCES)))
    tokens = torch.tensor([[2, 7], [2, 4], [2, 9]])
    torch.testing.assert_close(model.advance(tokens, state)[0], model.advance(tokens, model.begin_empty(3))[0])


def test_the_gradient_reaches_every_parameter(model: LanguageModel) -> None:
    logits = model.logits(torch.cat([alone(model, target) for target in TARGETS]))
    loss = torch.nn.functional.cross_entropy(logits, torch.arange(len(logits)))
    assert silent_parameters(model, loss) == []


def test_a_window_decoder_sees_its_window_only() -> None:
    with torch.no_grad():
        model = built(LanguageModel, "window")
        result, far, near = (alone(model, text)[-1] for text in ([2, 7, 5, 9, 4], [2, 8, 5, 9, 4], [2, 7, 6, 9, 4]))
    torch.testing.assert_close(result, far)
    assert (result - near).abs().max() > 1e-3


# --- the source in the same sequence -------------------------------------------------------------------------------


def begin(model: DecoderOnly, sources: list[list[int]]) -> Any:
    return model.begin(model.encode(*padded(sources)))


@torch.no_grad()
@pytest.mark.parametrize("cuts", [[4], [1, 1, 1, 1], [1, 3], [2, 2]], ids=str)
def test_sources_of_different_lengths_are_each_read_as_if_alone(translator: DecoderOnly, cuts: list[int]) -> None:
    written = torch.tensor([[START, 7, 5, 11], [START, 4, 8, 8], [START, 9, 6, 12]])
    state, result = begin(translator, SOURCES), []
    for part in written.split(cuts, dim=1):
        features, state = translator.advance(part, state)
        result.append(features)
    for source, target, features in zip(SOURCES, written.tolist(), torch.cat(result, dim=1), strict=True):
        torch.testing.assert_close(features, alone(translator, source + target)[len(source) :], **CLOSE)
        own, _ = translator.advance(torch.tensor([target]), begin(translator, [source]))
        torch.testing.assert_close(features, own[0], **CLOSE)


@torch.no_grad()
def test_sources_of_one_length_are_read_as_part_of_their_sequences(translator: DecoderOnly) -> None:
    sources = [[5, 9, END], [6, 6, END]]
    result, _ = translator.advance(torch.tensor([[START, 7], [START, 4]]), begin(translator, sources))
    for source, target, features in zip(sources, ([START, 7], [START, 4]), result, strict=True):
        torch.testing.assert_close(features, alone(translator, source + target)[-2:], **CLOSE)


@torch.no_grad()
def test_every_hypothesis_of_a_beam_continues_its_own_past(translator: DecoderOnly) -> None:
    """A random walk of beams, 1 → 3 → 3 → 2 → 3 wide; a sentence leaves on the way."""
    generator = torch.Generator().manual_seed(1)

    def draw(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=generator)

    state, histories = begin(translator, SOURCES), [[[*source, START]] for source in SOURCES]
    result: list[Tensor] = []
    states: list[list[int]] = []
    for step, width in enumerate([3, 3, 2, 3, 3]):
        latest = torch.tensor([past[-1:] for beam in histories for past in beam])
        features, state = translator.advance(latest, state)
        result.append(features[:, 0])
        states += [past for beam in histories for past in beam]
        parents = draw(0, len(histories[0]), len(histories), width)
        words = draw(4, VOCABULARY, len(histories), width)
        state = state.select(parents)
        histories = [
            [[*beam[parent], word] for parent, word in zip(chosen, new, strict=True)]
            for beam, chosen, new in zip(histories, parents.tolist(), words.tolist(), strict=True)
        ]
        if step in (0, 2):
            kept = [2, 0, 1] if step == 0 else [1, 2]  # in another order, too
            state = state.keep(torch.tensor(kept))
            histories = [histories[row] for row in kept]
    expected = torch.stack([alone(translator, past)[-1] for past in states])
    torch.testing.assert_close(torch.cat(result), expected, **CLOSE)


@torch.no_grad()
def test_a_sentence_that_joins_a_running_batch_continues_as_if_alone(translator: DecoderOnly) -> None:
    result = joined_at_random(translator.advance, lambda rows: begin(translator, [SOURCES[row] for row in rows]))
    for features, row, past in result:
        torch.testing.assert_close(features, alone(translator, [*SOURCES[row], *past])[-1], **CLOSE)


SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {"beam": 1},
    "beam": {"beam": 3, "nbest": 3},
    "sampling": {"sample": {"seed": 4}, "nbest": 2},
}


@pytest.mark.parametrize("options", SEARCHES.values(), ids=SEARCHES)
def test_sentences_searched_together_are_found_as_alone(translator: DecoderOnly, options: dict[str, Any]) -> None:
    decoding = Decoding.model_validate({"max_length": 7, **options})
    sources = [source[:-1] for source in SOURCES] + [[7, 7, 7], [11]]
    together = decode(translator, make_requests(sources), decoding)
    for number, source in enumerate(sources):
        (single,) = decode(translator, make_requests([source], first=number), decoding)
        assert [guess.tokens for guess in together[number]] == [guess.tokens for guess in single]
        scores = [[guess.log_probability for guess in guesses] for guesses in (together[number], single)]
        assert scores[0] == pytest.approx(scores[1], abs=1e-4)


def test_search_scores_equal_full_sequence_scores(translator: DecoderOnly) -> None:
    sources = [source[:-1] for source in SOURCES]
    targets = [target[1:] for target in TARGETS]
    result = decode(translator, make_requests(sources), Decoding(beam=3, max_length=7))
    best = [guesses[0].tokens for guesses in result]
    for outputs in (best, targets):
        expected = []
        for source, output in zip(SOURCES, outputs, strict=True):
            with torch.no_grad():
                logs = translator.logits(alone(translator, [*source, START, *output])[len(source) :]).log_softmax(-1)
            expected.append(float(logs.gather(1, torch.tensor([*output, END])[:, None]).sum()))
        assert log_probabilities(translator, sources, outputs).tolist() == pytest.approx(expected, abs=1e-4)
        if outputs is best:
            assert [guesses[0].log_probability for guesses in result] == pytest.approx(expected, abs=1e-4)


@pytest.fixture(params=["learned", "convolutional"])
def endless(request: pytest.FixtureRequest) -> Iterator[DecoderOnly]:
    """A model with 32 learned positions that never wants to end."""
    translator = built(DecoderOnly, request.param)
    before = translator.output.bias.detach().clone()
    with torch.no_grad():
        translator.output.bias[END] = -50.0
    yield translator
    with torch.no_grad():
        translator.output.bias.copy_(before)


@pytest.mark.parametrize("beam", [1, 3])
def test_learned_positions_end_source_and_output_together(endless: DecoderOnly, beam: int) -> None:
    lengths = [28, 3, *range(1, 21)]  # so many that some that have ended stand beside those that go on
    result = decode(endless, make_requests([[5] * length for length in lengths]), Decoding(beam=beam, max_ratio=99.0))
    # the source and its end mark, the start mark, the output; its own end mark is not read
    assert [len(guesses[0].tokens) for guesses in result] == [32 - length - 2 for length in lengths]


@torch.no_grad()
@pytest.mark.parametrize("body", ["learned", "convolutional"])
def test_rows_past_their_last_position_do_not_affect_other_rows(body: str) -> None:
    translator, short = built(DecoderOnly, body), [6, END]
    state = translator.begin(translator.encode(*padded([[5] * 27 + [END], short])))
    words = torch.randint(4, VOCABULARY, (2, 30))
    result = []
    for word in words.split(1, dim=1):
        features, state = translator.advance(word, state)
        result.append(features[1, 0])
    torch.testing.assert_close(torch.stack(result), alone(translator, short + words[1].tolist())[2:], **CLOSE)


def test_a_pair_past_the_learned_positions_is_named() -> None:
    translator = built(DecoderOnly, "learned")
    assert np.isfinite(log_probabilities(translator, [[5], [5] * 20], [[6] * 29, [6] * 10])).all()
    with pytest.raises(ValueError, match=r"pair 2 has 33 tokens, marks included, and this model takes 32"):
        log_probabilities(translator, [[5], [5] * 20], [[6] * 29, [6] * 11])
