"""Beam search with phrases that must be said: dynamic beam allocation (Post and Vilar 2018)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from sightline.decoding.batch import Batch, Stepper
from sightline.decoding.beam import Beam, chosen
from sightline.decoding.rules import Required
from sightline.decoding.topk import top_k
from sightline.recipe import Decoding
from sightline.text.tokenizer import END

_NEVER = float("-inf")


def in_turn(totals: Tensor, banks: Tensor, count: int, most: int) -> Tensor:
    """Continuations (B, N) in banks from 0 to `most` → the places (B, count) of those to take, in order.

    The best of each bank comes first, the highest bank before the others, then the second of each, and so on: all banks
    have the same share of a beam, and what one cannot use goes to the others.
    """
    totals, order = totals.sort(dim=1, descending=True, stable=True)
    banks = banks.gather(1, order)
    within = one_hot(banks, most + 1).cumsum(1).gather(2, banks[:, :, None])[:, :, 0]  # (B, N) 1, 2, … in each bank
    turn = (within * (most + 1) + most - banks).masked_fill(totals == _NEVER, torch.iinfo(torch.int64).max)
    return order.gather(1, turn.sort(dim=1, stable=True).indices[:, :count])


class BankedBeam(Beam):
    """Hypotheses stand in banks by how many tokens of the phrases they have said; each bank has its share of the beam.

    Beside its best words each hypothesis is offered the next word of every phrase it has not said yet, so the highest
    bank rises with every step until all is said; only then may an output end. Where a sentence asks for nothing there
    is one bank, and that is plain beam search.
    """

    def __init__(self, model: Stepper, batch: Batch, options: Decoding) -> None:
        super().__init__(model, batch, options)
        self.most = int(self.required.lengths.sum(1).max())
        self.met = (self.required.lengths == 0)[:, None]  # (B, W, C) which phrases have been said
        self.fresh = torch.zeros_like(self.met)  # (B, W, C) which have just been said, so that a word may still go on
        self._next = (self.met, self.fresh)  # the same for continuations (B, 2W)

    @property
    def required(self) -> Required:
        assert self.batch.rules is not None and self.batch.rules.required is not None
        return self.batch.rules.required

    def continuations(self, logs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """logs (B·W, V) → 2W continuations (B, 2W), each bank in its turn."""
        sentences, width = self.alive.shape
        logs = logs.view(sentences, width, -1)
        logs[:, :, END].masked_fill_(~self.met.all(2), _NEVER)
        begun = self.required.begun(self.tokens)  # (B, W, C, L)
        values, words = self._offered(self._whole_words(logs), begun)  # (B, W, M)
        met, fresh, progress = self._after(words, begun)  # (B, W, M, C)
        lengths = self.required.lengths[:, None, None]
        banks = (met * lengths).sum(3) + progress.masked_fill(met, 0).amax(3)  # (B, W, M)
        totals = (values + self.alive[:, :, None]).flatten(1)
        order = in_turn(totals, banks.flatten(1), 2 * self.options.beam, self.most)
        parents = order // words.shape[2]
        self._next = (chosen(met.flatten(1, 2), order), chosen(fresh.flatten(1, 2), order))
        return totals.gather(1, order), parents, words.flatten(1).gather(1, order)

    def _whole_words(self, logs: Tensor) -> Tensor:
        """logs (B, W, V) with no word that goes on after a phrase, unless a given beginning has it so."""
        goes_on = self.fresh.any(2)[:, :, None] & self.required.edges.goes_on
        ended = logs.masked_fill(goes_on, _NEVER)
        return torch.where(ended.amax(2, keepdim=True) == _NEVER, logs, ended)

    def _offered(self, logs: Tensor, begun: Tensor) -> tuple[Tensor, Tensor]:
        """Each hypothesis' 2W best words, and the next word of each phrase it has yet to say; every word once."""
        sentences, width, size = logs.shape
        values, words = top_k(logs.flatten(0, 1), min(2 * self.options.beam, size))
        values, words = values.view(sentences, width, -1), words.view(sentences, width, -1)
        places = torch.arange(begun.shape[3], device=begun.device)
        longest = (begun * places).amax(3)  # (B, W, C) how far each phrase has come
        phrases = self.required.phrases[:, None].expand(-1, width, -1, -1)
        wanted = phrases.gather(3, longest[..., None])[..., 0]  # (B, W, C)
        same = (wanted[..., None] == wanted[..., None, :]) & ~self.met[..., None, :]  # (B, W, C, C)
        known = self.met | same.tril(-1).any(3) | (wanted[..., None] == words[:, :, None]).any(3)
        extra = logs.gather(2, wanted).masked_fill(known, _NEVER)
        return torch.cat([values, extra], dim=2), torch.cat([words, wanted], dim=2)

    def _after(self, words: Tensor, begun: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Words (B, W, M) → which phrases have been said after each (B, W, M, C), and which of them just now; how far
        the others have come."""
        places = torch.arange(1, begun.shape[3] + 1, device=begun.device)
        fits = words[..., None, None] == self.required.phrases[:, None, None]  # (B, W, M, C, L)
        progress = ((fits & begun[:, :, None]) * places).amax(4)
        goes_on = self.required.edges.goes_on[words][..., None]
        before = self.met[:, :, None] & ~(self.fresh[:, :, None] & goes_on)  # "cat" is not said by "cats"
        now = progress == self.required.lengths[:, None, None]
        return before | now, now & ~before & self._open(), progress

    def _open(self) -> Tensor:
        """(B, 1, 1, C) after which phrases a word could go on."""
        last = self.required.phrases.gather(2, (self.required.lengths - 1).clamp(min=0)[:, :, None])[:, :, 0]
        return self.required.edges.within[last][:, None, None]

    def first_others(self, going: Tensor) -> tuple[Tensor, Tensor]:
        """In the order of their turns."""
        rank = (going == _NEVER).to(torch.int8).sort(dim=1, stable=True).indices[:, : self.options.beam]
        met, fresh = self._next
        self.met, self.fresh = chosen(met, rank), chosen(fresh, rank)
        return going.gather(1, rank), rank

    def keep(self, rows: Tensor) -> None:
        super().keep(rows)
        self.met, self.fresh = self.met[rows], self.fresh[rows]
