"""Diverse beam search: groups of hypotheses that keep away from one another's words (Vijayakumar et al. 2016)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from sightline.decoding.batch import Batch, Hypothesis, Stepper
from sightline.decoding.beam import Beam, Finished
from sightline.decoding.stopping import Progress, is_over
from sightline.decoding.topk import top_k
from sightline.recipe import Decoding
from sightline.text.tokenizer import END

_NEVER = float("-inf")


def those_taken(totals: Tensor, ends: Tensor, width: int) -> Tensor:
    """(B, N) continuations in order → which are taken: the first W that go on, and the ends among the first W."""
    going = (totals > _NEVER) & ~ends
    first = torch.arange(totals.shape[1], device=totals.device) < width
    return (going & (going.cumsum(1) <= width)) | (ends & first)


class GroupedBeam(Beam):
    """G groups of W/G hypotheses, each a beam search of its own, one group after the other at each step.

    For a word y that n hypotheses of earlier groups of the same sentence have just taken, a group ranks by
    Θ(y₁ … yₜ₋₁) + log p(y) − λ n (the Hamming diversity, §3). The penalty chooses; it is no part of any score. Each
    group stops on its own, by the same rule as a beam of W/G hypotheses (`stopping.py`).
    """

    def __init__(self, model: Stepper, batch: Batch, options: Decoding) -> None:
        super().__init__(model, batch, options)
        sentences, groups = len(self.alive), options.groups
        self.width = options.beam // groups
        self.fetched = 2 * options.beam  # all that finish, at most 2w − 1 in a group: several may have said the same
        self.finished = Finished.none(sentences, self.fetched, int(batch.limits.max()), self.alive.device)
        self.alive = self.alive.repeat(1, groups)  # (B, G · w), w = 1 before the first word
        self.tokens = self.tokens.repeat(1, groups, 1)
        self.covered = None if self.covered is None else self.covered.repeat(1, groups, 1)
        self.state = self.state.select(torch.zeros(sentences, groups, dtype=torch.int64, device=self.alive.device))
        self.kept = torch.full((sentences, groups, self.width), _NEVER, device=self.alive.device)  # scores, best first
        self.ended = torch.zeros(sentences, groups, dtype=torch.int64, device=self.alive.device)

    def continuations(self, logs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, 2W) as always: first the w best of each group, then the w next of each."""
        sentences, groups, width = len(self.alive), self.options.groups, self.width
        logs = logs.view(sentences, groups, -1, logs.shape[1])
        alive = self.alive.view(sentences, groups, -1)
        taken = logs.new_zeros(sentences, logs.shape[3])  # (B, V) how many hypotheses have just taken each word
        found = []
        for group in range(groups):
            first = group * logs.shape[2]
            totals, parents, words = self._of_group(logs[:, group], alive[:, group], taken)
            chosen = those_taken(totals, (words == END) & (totals > _NEVER), width)
            taken.scatter_add_(1, words, chosen.to(taken.dtype))
            found.append((totals, parents + first, words))
        fill = (0, 2 * width - found[0][0].shape[1])  # a vocabulary may have fewer words
        parts = zip(*found, strict=True)
        empty = (_NEVER, 0, END)
        whole = [
            torch.stack([pad(each, fill, value=value) for each in part], dim=1)
            for part, value in zip(parts, empty, strict=True)
        ]  # (B, G, 2w)
        totals, parents, words = (part.unflatten(2, (2, width)).transpose(1, 2).flatten(1) for part in whole)
        return totals, parents, words

    def _of_group(self, logs: Tensor, alive: Tensor, taken: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """logs (B, w, V) → the 2w best continuations of a group by what they are worth after the penalty."""
        sentences, living, size = logs.shape
        worth = logs - self.options.diversity * taken[:, None]
        values, words = top_k(worth.flatten(0, 1), min(2 * self.width, size))
        count = values.shape[1]
        values = (values.view(sentences, living, count) + alive[:, :, None]).flatten(1)
        _, choice = values.topk(min(2 * self.width, living * count), dim=1)
        own = logs.gather(2, words.view(sentences, living, count)) + alive[:, :, None]
        return own.flatten(1).gather(1, choice), choice // count, words.view(sentences, -1).gather(1, choice)

    def finish(self, totals: Tensor, parents: Tensor, words: Tensor, ends: Tensor) -> None:
        super().finish(totals, parents, words, ends)
        shape = (self.options.groups, self.width)
        first = ends[:, : self.options.beam].unflatten(1, shape)  # (B, G, w)
        scores = self.scores(totals, parents)[:, : self.options.beam].unflatten(1, shape).masked_fill(~first, _NEVER)
        self.kept = torch.cat([self.kept, scores], dim=2).topk(self.width, dim=2).values
        self.ended = self.ended + first.sum(2)

    def first_others(self, going: Tensor) -> tuple[Tensor, Tensor]:
        """In each group the first w, in the order in which they were ranked."""
        groups, width = self.options.groups, self.width
        columns = torch.arange(going.shape[1], device=going.device)
        columns = columns.view(2, groups, width).transpose(0, 1).reshape(groups, -1)  # (G, 2w) where each stands
        ordered = going[:, columns]  # (B, G, 2w)
        rank = (ordered == _NEVER).to(torch.int8).sort(dim=2, stable=True).indices[:, :, :width]
        totals = ordered.gather(2, rank)
        limits, length = self.batch.limits[:, None], self.tokens.shape[2]
        over = is_over(Progress(totals.amax(2), length, limits, self.kept, self.ended), self.options)
        totals = totals.masked_fill(over[:, :, None], _NEVER)
        places = columns.expand_as(ordered).gather(2, rank)
        return totals.flatten(1), places.flatten(1)

    def over(self) -> Tensor:
        """(B,) whether every group is done."""
        return self.alive.amax(1) == _NEVER

    def told(self, found: list[Hypothesis]) -> list[Hypothesis]:
        """What several groups have said is told once."""
        different: dict[tuple[int, ...], Hypothesis] = {}
        for hypothesis in found:
            different.setdefault(tuple(hypothesis.tokens), hypothesis)
        return list(different.values())

    def keep(self, rows: Tensor) -> None:
        super().keep(rows)
        self.kept, self.ended = self.kept[rows], self.ended[rows]
