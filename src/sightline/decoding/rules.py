"""What an output may not say, and what it must: rules of each sentence of a batch, as tensors.

Rules look at the words said so far and take continuations away; they hold no state of their own, so every search can
keep them, and a hypothesis that continues another needs nothing handed over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sightline.text.tokenizer import END, PAD, START

Ids = tuple[int, ...]
_NEVER = float("-inf")


@dataclass(frozen=True)
class Demands:
    """What is asked of one output, in token ids."""

    required: tuple[Ids, ...] = ()  # each must be said
    forbidden: tuple[Ids, ...] = ()  # never to be said
    apart: tuple[Ids, ...] = ()  # never to be said where a word may begin

    def room(self) -> int:
        """How many tokens it takes to say all that is required, one after the other."""
        return sum(map(len, self.required))


@dataclass(frozen=True)
class Edges:
    """How the pieces of a vocabulary meet."""

    within: Tensor  # (V,) whether a word can go on after this piece: it ends in a letter or a digit
    goes_on: Tensor  # (V,) whether this piece goes on with the word before it
    space: int = START  # the piece that is a space and nothing else; an output begins as if one stood before it

    @staticmethod
    def none(size: int) -> Edges:
        """Of pieces that are words of their own."""
        return Edges(torch.zeros(size, dtype=torch.bool), torch.zeros(size, dtype=torch.bool))

    def to(self, device: torch.device | str) -> Edges:
        return Edges(self.within.to(device), self.goes_on.to(device), self.space)


@dataclass(frozen=True)
class Forbidden:
    """F sequences for each sentence, PAD where there are fewer."""

    heads: Tensor  # (B, F, L) all but the last token, behind PAD
    lasts: Tensor  # (B, F)
    lengths: Tensor  # (B, F)
    apart: Tensor  # (B, F) whether it counts only where a word may begin
    within: Tensor  # (V,)

    @staticmethod
    def of(demands: Sequence[Demands], edges: Edges, device: torch.device | str) -> Forbidden | None:
        every = [[*((ids, False) for ids in each.forbidden), *((ids, True) for ids in each.apart)] for each in demands]
        most, longest = max(map(len, every)), max((len(ids) for row in every for ids, _ in row), default=0)
        if not most:
            return None
        rows = [[*row, *[((PAD,), False)] * (most - len(row))] for row in every]
        heads = [[[PAD] * (longest - len(ids) + 1) + list(ids[:-1]) for ids, _ in row] for row in rows]
        return Forbidden(
            torch.tensor(heads, device=device),
            torch.tensor([[ids[-1] for ids, _ in row] for row in rows], device=device),
            torch.tensor([[len(ids) for ids, _ in row] for row in rows], device=device),
            torch.tensor([[apart for _, apart in row] for row in rows], device=device),
            edges.within.to(device),
        )

    def mask(self, logs: Tensor, said: Tensor) -> None:
        """logs (B, W, V) of what follows said (B, W, t): −∞ where a sequence would be complete."""
        longest = self.heads.shape[2]
        before = said.new_full((*said.shape[:2], longest), START)
        recent = torch.cat([before, said], dim=2)[:, :, -longest:]  # (B, W, L)
        heads = self.heads[:, None]
        same = ((recent[:, :, None] == heads) | (heads == PAD)).all(-1)  # (B, W, F)
        places = (longest - self.lengths)[:, None].expand(-1, said.shape[1], -1)  # what stands before each sequence
        inside = self.within[recent.gather(2, places)]  # (B, W, F)
        rows, hypotheses, found = (same & ~(self.apart[:, None] & inside)).nonzero(as_tuple=True)
        logs[rows, hypotheses, self.lasts[rows, found]] = _NEVER

    def keep(self, rows: Tensor) -> Forbidden:
        return Forbidden(self.heads[rows], self.lasts[rows], self.lengths[rows], self.apart[rows], self.within)


@dataclass(frozen=True)
class Required:
    """C phrases for each sentence, of no tokens where there are fewer."""

    phrases: Tensor  # (B, C, L), PAD behind
    lengths: Tensor  # (B, C)
    edges: Edges

    @staticmethod
    def of(demands: Sequence[Demands], edges: Edges, device: torch.device | str) -> Required | None:
        every = [list(dict.fromkeys(each.required)) for each in demands]
        most, longest = max(map(len, every)), max((len(ids) for row in every for ids in row), default=0)
        if not most:
            return None
        rows: list[list[Ids]] = [[*row, *[()] * (most - len(row))] for row in every]
        phrases = [[[*ids, *[PAD] * (longest - len(ids))] for ids in row] for row in rows]
        lengths = [[len(ids) for ids in row] for row in rows]
        return Required(torch.tensor(phrases, device=device), torch.tensor(lengths, device=device), edges.to(device))

    def begun(self, said: Tensor) -> Tensor:
        """said (B, W, t), START first → (B, W, C, L): whether the last k tokens are the first k of a phrase.

        The longest such k is the state of the phrase's Knuth–Morris–Pratt automaton.
        """
        longest = self.phrases.shape[2]
        said = said.masked_fill(said == START, self.edges.space)
        found = [torch.ones(*said.shape[:2], self.phrases.shape[1], dtype=torch.bool, device=said.device)]
        for count in range(1, longest):
            if count > said.shape[2]:
                found.append(torch.zeros_like(found[0]))
            else:
                found.append((said[:, :, None, -count:] == self.phrases[:, None, :, :count]).all(-1))
        return torch.stack(found, dim=3)

    def keep(self, rows: Tensor) -> Required:
        return Required(self.phrases[rows], self.lengths[rows], self.edges)


def repeated(said: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Words that would say `count` tokens in a row a second time, after said (B, W, t): sentence, hypothesis, word."""
    windows = said.unfold(2, count, 1)  # (B, W, t − n + 1, n)
    recent = said[:, :, said.shape[2] - count + 1 :]  # (B, W, n − 1)
    rows, hypotheses, places = (windows[..., :-1] == recent[:, :, None]).all(-1).nonzero(as_tuple=True)
    return rows, hypotheses, windows[rows, hypotheses, places, -1]


@dataclass(frozen=True)
class Rules:
    """What the sentences of a batch must keep to."""

    shortest: Tensor | None = None  # (B,) the least tokens of each output, without its end
    no_repeat: int = 0
    forbidden: Forbidden | None = None
    required: Required | None = None

    def mask(self, logs: Tensor, said: Tensor) -> None:
        """logs (B·W, V) of what follows said (B, W, t), without START: −∞ for what may not."""
        logs = logs.view(*said.shape[:2], -1)
        if self.no_repeat and said.shape[2] >= self.no_repeat:
            rows, hypotheses, words = repeated(said, self.no_repeat)
            # hypotheses of no worth may hold any word, even one to copy whose sentence has left the batch
            known = words < logs.shape[2]
            logs[rows[known], hypotheses[known], words[known]] = _NEVER
        if self.forbidden is not None:
            self.forbidden.mask(logs, said)
        if self.shortest is not None:
            logs[:, :, END].masked_fill_((self.shortest > said.shape[2])[:, None], _NEVER)

    def keep(self, rows: Tensor) -> Rules:
        """The rules of some of the sentences."""
        return Rules(
            None if self.shortest is None else self.shortest[rows],
            self.no_repeat,
            None if self.forbidden is None else self.forbidden.keep(rows),
            None if self.required is None else self.required.keep(rows),
        )
