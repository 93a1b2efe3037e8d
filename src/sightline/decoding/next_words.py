"""The most probable next words after a text, P(word | text), by a language model."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from sightline.decoding.request import DecodableModel, Edges, pad_tokens
from sightline.decoding.scoring import initial_state
from sightline.text.tokenizer import END, PAD, SPACE, SPECIALS, START, Tokenizer

_TOGETHER = 64  # unfinished words that are extended at once
_ROUNDS = 200
_RARE = 0.1  # times the last word of the list


class NextWord(NamedTuple):
    """A word that may come next; `</s>` is the end of the text."""

    word: str
    probability: float


def next_words(
    model: DecodableModel,
    tokenizer: Tokenizer,
    edges: Edges,
    prompt: Sequence[int],
    count: int,
    *,
    device: torch.device | str = "cpu",
) -> list[NextWord]:
    """The `count` most probable words after a prompt, most probable first.

        P(w_1 … w_n | prompt) = Π_i p(w_i | prompt, w_1 … w_{i−1}) · p(no piece continues the word | prompt, w_1 … w_n)

    w_1 … w_n are the pieces of a word; a token that is a whole word has the probability that the softmax gives it. The
    last word of the prompt is complete: p(w_1) is shared among pieces that begin a word. Best-first search: the
    probability of the pieces so far bounds that of every word that begins with them. A word that several sequences of
    pieces spell is their sum, without those far less probable than the last word of the list.
    """
    rules = _WordRules(tokenizer, edges)
    probabilities: defaultdict[str, float] = defaultdict(float)
    open_words: list[tuple[float, tuple[int, ...]]] = [(-1.0, ())]  # a heap: −probability, pieces
    for _ in range(_ROUNDS):
        least = sorted(probabilities.values(), reverse=True)[count - 1] if len(probabilities) >= count else 0.0
        least *= _RARE
        group: list[tuple[float, tuple[int, ...]]] = []
        while open_words and len(group) < _TOGETHER and -open_words[0][0] > least:
            group.append(heapq.heappop(open_words))
        if not group:
            break
        inputs = [[*prompt, *pieces] for _, pieces in group]
        for (negative, pieces), row in zip(group, _probabilities(model, inputs, device), strict=True):
            joining = rules.joins(pieces[-1] if pieces else prompt[-1] if prompt else START)
            following, share = joining, 1.0
            if not pieces:
                following, share = rules.words & ~joining, 1.0 - float(row[joining].sum())
            elif word := rules.text(pieces):
                probabilities[word] += -negative * float(row[~joining].sum())
            for token in np.flatnonzero(following & (row > 0)).tolist():
                probability = -negative * float(row[token]) / share
                if not rules.may_be_continued[token]:
                    probabilities[rules.text((*pieces, token))] += probability
                elif probability > least and (model.longest is None or len(prompt) + len(pieces) + 2 <= model.longest):
                    heapq.heappush(open_words, (-probability, (*pieces, token)))
    best = sorted(probabilities.items(), key=lambda item: (-item[1], item[0]))[:count]
    return [NextWord(word, probability) for word, probability in best]


class _WordRules:
    """Which pieces of a vocabulary begin words, and which continue them."""

    def __init__(self, tokenizer: Tokenizer, edges: Edges) -> None:
        pieces = tokenizer.pieces(range(tokenizer.size))
        marks = len(SPECIALS) + len(tokenizer.marks)
        own = np.arange(tokenizer.size) >= marks
        within, continues_word = edges.within.numpy(), edges.continues_word.numpy()
        self._tokenizer, self._continues_word = tokenizer, continues_word & own
        self._spaces = (
            np.array([piece == SPACE for piece in pieces]) & own if continues_word.any() else np.zeros_like(own)
        )
        self._unspaced = np.array([not piece.startswith(SPACE) for piece in pieces]) & own
        self.may_be_continued = (within | self._spaces) & own
        self.words = own.copy()  # may begin a word or be one
        self.words[[number for number in range(len(SPECIALS)) if number not in (PAD, START)]] = True

    def joins(self, last: int) -> np.ndarray:
        """(V,) True for pieces that continue the word of this last piece."""
        if self._spaces[last]:
            return self._unspaced
        return self._continues_word if self.may_be_continued[last] else np.zeros_like(self._continues_word)

    def text(self, pieces: Sequence[int]) -> str:
        """The word of some pieces."""
        return SPECIALS[END] if tuple(pieces) == (END,) else self._tokenizer.decode(pieces).strip(" ")


@torch.inference_mode()
def _probabilities(
    model: DecodableModel, texts: Sequence[Sequence[int]], device: torch.device | str
) -> list[np.ndarray]:
    """For each text (V,) the probabilities of the next token."""
    inputs = pad_tokens([[START, *ids] for ids in texts], device)
    features, _ = model.advance(inputs, initial_state(model, [[]] * len(texts), device))
    last = torch.tensor([len(ids) for ids in texts], device=features.device)
    scores = model.logits(features[torch.arange(len(texts), device=features.device), last]).double()
    return list(scores.softmax(-1).cpu().numpy())
