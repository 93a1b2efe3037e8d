"""Properties of every combination of encoder and decoder.

Cached = uncached, packed = padded, sentences are independent, tokens do not depend on later ones, and hypotheses of a
beam continue as if they were alone.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
import torch
from random_beams import joined_at_random
from silent_parameters import silent_parameters
from torch import Tensor

from sightline.layers.layout import Packed, Padded
from sightline.layers.norms import Residual
from sightline.models.seq2seq import Seq2Seq

# Features are of order one, made by float32 kernels that add in different orders, up to four layers deep.
CLOSE = {"rtol": 0.0, "atol": 1e-5}
END = 3
SOURCES = [[5, 9, 4, 7, END], [6, END], [12, 8, 5, END]]
TARGETS = [[2, 7, 5, 11], [2, 4, 8, 8, 10, 6], [2]]


def padded(sequences: list[list[int]]) -> tuple[Tensor, Padded]:
    longest = max(map(len, sequences))
    rows = [sequence + [0] * (longest - len(sequence)) for sequence in sequences]
    return torch.tensor(rows), Padded.of([len(sequence) for sequence in sequences])


def begin(model: Seq2Seq, sources: list[list[int]]) -> Any:
    return model.begin(model.encode(*padded(sources)))


def at_once(model: Seq2Seq, sources: list[list[int]], targets: list[list[int]]) -> list[Tensor]:
    """The features of each target, without padding."""
    features = model(*padded(sources), *padded(targets))
    return [row[: len(target)] for row, target in zip(features, targets, strict=True)]


@lru_cache(maxsize=2)
def together(model: Seq2Seq) -> list[Tensor]:
    """All three pairs in one padded batch: the reference."""
    with torch.no_grad():
        return at_once(model, SOURCES, TARGETS)


@torch.no_grad()
def test_cached_is_uncached(any_model: Seq2Seq) -> None:
    targets = torch.tensor([[2, 7, 5, 11, 4], [2, 4, 8, 8, 10], [2, 2, 6, 9, 12]])
    whole, _ = any_model.advance(targets, begin(any_model, SOURCES))
    for cuts in ([1, 1, 1, 2], [2, 3], [3, 2]):
        state, result = begin(any_model, SOURCES), []
        for part in targets.split(cuts, dim=1):
            features, state = any_model.advance(part, state)
            result.append(features)
        torch.testing.assert_close(torch.cat(result, dim=1), whole, **CLOSE)


@torch.no_grad()
def test_packed_is_padded(any_model: Seq2Seq) -> None:
    expected = torch.cat(together(any_model))
    flat = [torch.tensor([token for sequence in side for token in sequence]) for side in (SOURCES, TARGETS)]
    for longest in (None, 9):
        layouts = [Packed.of([len(s) for s in side], longest=longest) for side in (SOURCES, TARGETS)]
        result = any_model(flat[0], layouts[0], flat[1], layouts[1])
        torch.testing.assert_close(result, expected, **CLOSE)


@torch.no_grad()
def test_a_sentence_does_not_see_its_neighbours(any_model: Seq2Seq) -> None:
    for source, target, features in zip(SOURCES, TARGETS, together(any_model), strict=True):
        (alone,) = at_once(any_model, [source], [target])
        torch.testing.assert_close(features, alone, **CLOSE)


@torch.no_grad()
def test_a_source_padded_further_than_the_longest_is_the_same(model: Seq2Seq) -> None:
    tokens, _ = padded(SOURCES)
    layout = Padded.of([len(source) for source in SOURCES], longest=tokens.shape[1] + 2)
    memory = model.encode(torch.nn.functional.pad(tokens, (0, 2)), layout)
    assert memory.states.shape[1] == tokens.shape[1] + 2
    result, _ = model.advance(torch.tensor([[2, 7]] * 3), model.begin(memory))
    expected, _ = model.advance(torch.tensor([[2, 7]] * 3), begin(model, SOURCES))
    torch.testing.assert_close(result, expected, **CLOSE)


@torch.no_grad()
def test_no_token_sees_a_later_one(any_model: Seq2Seq) -> None:
    before, after = at_once(any_model, SOURCES[:1] * 2, [[2, 7, 5, 11, 4], [2, 7, 5, 6, 10]])
    torch.testing.assert_close(before[:3], after[:3], **CLOSE)
    if all(module.connected for module in any_model.modules() if isinstance(module, Residual)):
        assert (before[3:] - after[3:]).abs().amax(-1).min() > 1e-3  # and every later one does see it


@torch.no_grad()
def test_the_source_matters(any_model: Seq2Seq) -> None:
    one, other = at_once(any_model, [SOURCES[0], [5, 9, 8, 7, END]], TARGETS[:1] * 2)
    assert (one - other).abs().max() > 1e-4


@torch.no_grad()
def test_every_hypothesis_of_a_beam_continues_its_own_past(any_model: Seq2Seq) -> None:
    """A random walk of beams, 1 → 3 → 3 → 2 → 3 wide; a sentence leaves on the way."""
    generator = torch.Generator().manual_seed(1)

    def draw(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=generator)

    state, sources = begin(any_model, SOURCES), SOURCES
    histories = [[[2]] for _ in sources]  # sentence, hypothesis, token
    result: list[Tensor] = []
    states: list[tuple[list[int], list[int]]] = []  # source and history of each row found
    for step, width in enumerate([3, 3, 2, 3, 3]):
        latest = torch.tensor([hypothesis[-1:] for beam in histories for hypothesis in beam])
        features, state = any_model.advance(latest, state)
        result.append(features[:, 0])
        states += [(source, past) for source, beam in zip(sources, histories, strict=True) for past in beam]

        parents = draw(0, len(histories[0]), len(sources), width)
        words = draw(4, 13, len(sources), width)
        state = state.select(parents)
        histories = [
            [[*beam[parent], word] for parent, word in zip(chosen, new, strict=True)]
            for beam, chosen, new in zip(histories, parents.tolist(), words.tolist(), strict=True)
        ]
        if step == 2:
            kept = [2, 0]  # in another order, too
            state = state.keep(torch.tensor(kept))
            sources, histories = [sources[row] for row in kept], [histories[row] for row in kept]
    alone = at_once(any_model, [source for source, _ in states], [past for _, past in states])
    torch.testing.assert_close(torch.cat(result), torch.stack([features[-1] for features in alone]), **CLOSE)


@torch.no_grad()
def test_kept_sentences_continue_as_before(model: Seq2Seq) -> None:
    first, second = torch.tensor([[2], [2], [2]]), torch.tensor([[9], [5]])
    _, state = model.advance(first, begin(model, SOURCES))
    result, _ = model.advance(second, state.keep(torch.tensor([0, 2])))
    alone = at_once(model, [SOURCES[0], SOURCES[2]], [[2, 9], [2, 5]])
    torch.testing.assert_close(result[:, 0], torch.stack([features[-1] for features in alone]), **CLOSE)


@torch.no_grad()
def test_a_sentence_that_joins_a_running_batch_continues_as_if_alone(any_model: Seq2Seq) -> None:
    result = joined_at_random(any_model.advance, lambda rows: begin(any_model, [SOURCES[row] for row in rows]))
    for features, row, past in result:
        (alone,) = at_once(any_model, [SOURCES[row]], [past])
        torch.testing.assert_close(features, alone[-1], **CLOSE)


def test_several_hypotheses_cannot_advance_several_tokens_at_once(model: Seq2Seq) -> None:
    with torch.no_grad():
        _, state = model.advance(torch.full((3, 1), 2), begin(model, SOURCES))
        state = state.select(torch.zeros(3, 2, dtype=torch.int64))
        with pytest.raises(ValueError, match="2 hypotheses a sentence advance one token at a time, not 4"):
            model.advance(torch.full((6, 4), 5), state)


def test_the_gradient_reaches_every_parameter(any_model: Seq2Seq) -> None:
    features = at_once(any_model, SOURCES, TARGETS)
    logits = any_model.logits(torch.cat(features))
    loss = torch.nn.functional.cross_entropy(logits, torch.arange(len(logits)))
    assert silent_parameters(any_model, loss) == []
