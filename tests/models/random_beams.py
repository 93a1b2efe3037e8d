"""Hypotheses that continue one another at random, in batches that sentences leave and join."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Found = list[tuple[Tensor, int, list[int]]]  # features after a token, whose source it was, and all tokens so far


class Beams:
    """Sentences, each known by its number, with hypotheses that begin with the token 2."""

    def __init__(self, advance: Callable[..., Any], begin: Callable[[list[int]], Any], rows: list[int], width: int = 1):
        self.step, self.generator = advance, torch.Generator().manual_seed(1)
        self.rows, self.histories = rows, [[[2]] for _ in rows]  # sentence, hypothesis, token
        self.state, self.found = begin(rows), Found()
        if width > 1:
            self._select(torch.zeros(len(rows), width, dtype=torch.int64))

    def _select(self, parents: Tensor) -> None:
        self.state = self.state.select(parents)
        self.histories = [
            [beam[parent] for parent in chosen] for beam, chosen in zip(self.histories, parents.tolist(), strict=True)
        ]

    def advance(self, width: int = 1) -> None:
        latest = torch.tensor([past[-1:] for beam in self.histories for past in beam])
        features, self.state = self.step(latest, self.state)
        states = [(row, past) for row, beam in zip(self.rows, self.histories, strict=True) for past in beam]
        self.found += [(own[0], row, past) for own, (row, past) in zip(features, states, strict=True)]
        shape = (len(self.rows), width)
        self._select(torch.randint(0, len(self.histories[0]), shape, generator=self.generator))
        words = torch.randint(4, 9, shape, generator=self.generator).tolist()
        self.histories = [
            [[*past, word] for past, word in zip(beam, new, strict=True)]
            for beam, new in zip(self.histories, words, strict=True)
        ]

    def append(self, other: Beams) -> None:
        self.state, self.rows = self.state.append(other.state), [*self.rows, *other.rows]
        self.histories, self.found = [*self.histories, *other.histories], self.found + other.found

    def keep(self, places: list[int]) -> None:
        self.state = self.state.keep(torch.tensor(places))
        self.rows, self.histories = [self.rows[n] for n in places], [self.histories[n] for n in places]


def joined_at_random(advance: Callable[..., Any], begin: Callable[[list[int]], Any]) -> Found:
    """Sentences 0, 1 and 2 that join at steps 2 and 5 with 1 and 3 hypotheses while others leave; then all of that
    joins a batch whose sentences have fewer tokens, and so on."""
    beams = Beams(advance, begin, [0])
    beams.advance()
    beams.advance()
    beams.append(Beams(advance, begin, [1]))
    for width in (1, 3, 3):
        beams.advance(width)
    beams.append(Beams(advance, begin, [2], 3))
    beams.advance(3)
    beams.keep([2, 1])
    other = Beams(advance, begin, [0, 2])
    other.advance(3)
    other.advance(3)
    other.append(beams)
    for width in (3, 2, 2):
        other.advance(width)
    other.append(Beams(advance, begin, [1], 2))
    other.advance(2)
    other.keep([4, 0, 3])  # those that came first leave
    late = Beams(advance, begin, [0], 2)
    late.append(other)
    for _ in range(3):
        late.advance(2)
    assert len(late.found) > 60
    return late.found
