"""Diverse beam search: groups of hypotheses that avoid one another's tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from sightline.decoding.beam import NEVER, Beam, Finished
from sightline.decoding.ranking import SearchProgress, is_over, top_k
from sightline.decoding.request import DecodableModel, Hypothesis, Request
from sightline.text.tokenizer import END


def selected(totals: Tensor, ends: Tensor, width: int) -> Tensor:
    """(B, N), True for selected continuations: the first W that do not end, and the ends among the first W."""
    continuing = (totals > NEVER) & ~ends
    first = torch.arange(totals.shape[1], device=totals.device) < width
    return (continuing & (continuing.cumsum(1) <= width)) | (ends & first)


class DiverseBeam(Beam):
    """G groups of w = W/G hypotheses that avoid one another's tokens (Vijayakumar et al. 2016).

    At each step the groups search one after the other. For a token y that n hypotheses of earlier groups of the same
    sentence have just taken, a group ranks by Θ(y₁ … yₜ₋₁) + log p(y) − λ n (the Hamming diversity, §3). The penalty
    chooses; it is no part of any score. Each group stops on its own, by the same rule as a beam of w hypotheses.
    """

    def __init__(self, model: DecodableModel, requests: Sequence[Request], *arguments: Any) -> None:
        super().__init__(model, requests, *arguments)
        sentences, groups = self.size, self.options.groups
        self.group_width = self.width // groups
        self.returned = 2 * self.width  # all that finish, at most 2w − 1 in a group: several may be the same
        self.finished = Finished.none(sentences, self.returned, self.last_end + 1, self.device)
        self.select(torch.zeros(sentences, groups, dtype=torch.int64, device=self.device))
        self.alive = self.alive.repeat(1, groups)  # (B, G · w), w = 1 before the first token
        self.kept = torch.full((sentences, groups, self.group_width), NEVER, device=self.device)  # scores, best first
        self.ended = torch.zeros(sentences, groups, dtype=torch.int64, device=self.device)

    def continuations(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, 2W): the w best of each group, then the next w of each."""
        sentences, groups, width = self.size, self.options.groups, self.group_width
        logits = logits.view(sentences, groups, -1, logits.shape[1])
        alive = self.alive.view(sentences, groups, -1)
        taken = logits.new_zeros(
            sentences, logits.shape[3]
        )  # (B, V) hypotheses of earlier groups that selected each token
        parts = []
        for group in range(groups):
            first = group * logits.shape[2]
            totals, parents, words = self._of_group(logits[:, group], alive[:, group], taken)
            chosen_ = selected(totals, (words == END) & (totals > NEVER), width)
            taken.scatter_add_(1, words, chosen_.to(taken.dtype))
            parts.append((totals, parents + first, words))
        fill = (0, 2 * width - parts[0][0].shape[1])  # a vocabulary may have fewer tokens
        whole = [
            torch.stack([pad(each, fill, value=value) for each in part], dim=1)
            for part, value in zip(zip(*parts, strict=True), (NEVER, 0, END), strict=True)
        ]  # (B, G, 2w)
        totals, parents, words = (part.unflatten(2, (2, width)).transpose(1, 2).flatten(1) for part in whole)
        return totals, parents, words

    def _of_group(self, logits: Tensor, alive: Tensor, taken: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits (B, w, V) → the 2w best continuations of a group, after the penalty."""
        sentences, living, size = logits.shape
        worth = logits - self.options.diversity * taken[:, None]
        values, words = top_k(worth.flatten(0, 1), min(2 * self.group_width, size))
        count = values.shape[1]
        values = (values.view(sentences, living, count) + alive[:, :, None]).flatten(1)
        _, choice = values.topk(min(2 * self.group_width, living * count), dim=1)
        own = logits.gather(2, words.view(sentences, living, count)) + alive[:, :, None]
        return own.flatten(1).gather(1, choice), choice // count, words.view(sentences, -1).gather(1, choice)

    def finish(self, totals: Tensor, parents: Tensor, words: Tensor, ends: Tensor) -> None:
        super().finish(totals, parents, words, ends)
        shape = (self.options.groups, self.group_width)
        first = ends[:, : self.width].unflatten(1, shape)  # (B, G, w)
        scores = self.scores(totals, parents)[:, : self.width].unflatten(1, shape).masked_fill(~first, NEVER)
        self.kept = torch.cat([self.kept, scores], dim=2).topk(self.group_width, dim=2).values
        self.ended = self.ended + first.sum(2)

    def survivors(self, totals: Tensor) -> tuple[Tensor, Tensor]:
        """The first w of each group, in ranking order."""
        groups, width = self.options.groups, self.group_width
        columns = torch.arange(totals.shape[1], device=totals.device)
        columns = columns.view(2, groups, width).transpose(0, 1).reshape(groups, -1)  # (G, 2w) where each is
        ordered = totals[:, columns]  # (B, G, 2w)
        rank = (ordered == NEVER).to(torch.int8).sort(dim=2, stable=True).indices[:, :, :width]
        best = ordered.gather(2, rank)
        progress = SearchProgress(best.amax(2), self.length(), self.limits[:, None], self.kept, self.ended)
        best = best.masked_fill(is_over(progress, self.options)[:, :, None], NEVER)
        places = columns.expand_as(ordered).gather(2, rank)
        return best.flatten(1), places.flatten(1)

    def complete(self) -> Tensor:
        """(B,), True if every group is done."""
        return self.alive.amax(1) == NEVER

    def hypotheses(self, rows: Tensor) -> list[list[Hypothesis]]:
        """Without duplicates of several groups."""
        results = []
        for hypotheses in super().hypotheses(rows):
            different: dict[tuple[int, ...], Hypothesis] = {}
            for hypothesis in hypotheses:
                different.setdefault(tuple(hypothesis.tokens), hypothesis)
            results.append(list(different.values())[: self.options.candidates])
        return results

    def keep(self, rows: Tensor) -> None:
        super().keep(rows)
        self.kept, self.ended = self.kept[rows], self.ended[rows]

    def append(self, other: Beam) -> None:
        assert isinstance(other, DiverseBeam)
        super().append(other)
        self.kept, self.ended = torch.cat([self.kept, other.kept]), torch.cat([self.ended, other.ended])
