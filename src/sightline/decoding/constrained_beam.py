"""Beam search with required phrases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from sightline.decoding.beam import NEVER, Beam, chosen
from sightline.decoding.processors import RequiredPhrases
from sightline.decoding.ranking import top_k
from sightline.decoding.request import DecodableModel, Demands, Request
from sightline.models.protocol import join_rows
from sightline.text.tokenizer import END


def in_turn(totals: Tensor, banks: Tensor, count: int, most: int) -> Tensor:
    """Continuations (B, N) in banks from 0 to `most` → the places (B, count) of those to take, in order.

    The best of each bank comes first, the highest bank before the others, then the second of each, and so on: all banks
    have the same share of a beam; unused shares go to other banks.
    """
    totals, order = totals.sort(dim=1, descending=True, stable=True)
    banks = banks.gather(1, order)
    within = one_hot(banks, most + 1).cumsum(1).gather(2, banks[:, :, None])[:, :, 0]  # (B, N) 1, 2, … in each bank
    turn = (within * (most + 1) + most - banks).masked_fill(totals == NEVER, torch.iinfo(torch.int64).max)
    return order.gather(1, turn.sort(dim=1, stable=True).indices[:, :count])


class ConstrainedBeam(Beam):
    """Beam search with required phrases: dynamic beam allocation (Post and Vilar 2018).

    Hypotheses are grouped into banks by their number of phrase tokens, and each bank has an equal share of the beam.
    The candidates of a hypothesis are its best tokens and the next token of every missing phrase, so the highest bank
    rises with every step until all phrases are complete; only then may an output end. A sentence without phrases has
    one bank: plain beam search.
    """

    def __init__(self, model: DecodableModel, requests: Sequence[Request], *arguments: Any) -> None:
        super().__init__(model, requests, *arguments)
        edges = next(request.edges for request in requests if request.edges is not None)
        self.required = RequiredPhrases.of([each.demands or Demands() for each in requests], edges, self.device)
        self.most = int(self.required.lengths.sum(1).max())
        self.met = (self.required.lengths == 0)[:, None]  # (B, W, C) True for complete phrases
        self.fresh = torch.zeros_like(
            self.met
        )  # (B, W, C) complete since this token, so a token may still continue the word
        self._next = (self.met, self.fresh)  # the same for continuations (B, 2W)

    def continuations(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits (B·W, V) → 2W continuations (B, 2W), each bank in its turn."""
        logits = logits.view(*self.alive.shape, -1)
        logits[:, :, END].masked_fill_(~self.met.all(2), NEVER)
        matches = self.required.prefix_matches(self.tokens)  # (B, W, C, L)
        values, words = self._offered(self._whole_words(logits), matches)  # (B, W, M)
        met, fresh, progress = self._after(words, matches)  # (B, W, M, C)
        lengths = self.required.lengths[:, None, None]
        banks = (met * lengths).sum(3) + progress.masked_fill(met, 0).amax(3)  # (B, W, M)
        totals = (values + self.alive[:, :, None]).flatten(1)
        order = in_turn(totals, banks.flatten(1), 2 * self.width, self.most)
        parents = order // words.shape[2]
        self._next = (chosen(met.flatten(1, 2), order), chosen(fresh.flatten(1, 2), order))
        return totals.gather(1, order), parents, words.flatten(1).gather(1, order)

    def _whole_words(self, logits: Tensor) -> Tensor:
        """Logits (B, W, V) without tokens that continue a word after a phrase, unless a prefix forces one."""
        continues_word = self.fresh.any(2)[:, :, None] & self.required.edges.continues_word
        ended = logits.masked_fill(continues_word, NEVER)
        return torch.where(ended.amax(2, keepdim=True) == NEVER, logits, ended)

    def _offered(self, logits: Tensor, matches: Tensor) -> tuple[Tensor, Tensor]:
        """Each hypothesis' 2W best tokens, and the next token of each phrase it lacks; every token once."""
        sentences, width, size = logits.shape
        values, words = top_k(logits.flatten(0, 1), min(2 * self.width, size))
        values, words = values.view(sentences, width, -1), words.view(sentences, width, -1)
        places = torch.arange(matches.shape[3], device=matches.device)
        longest = (matches * places).amax(3)  # (B, W, C) tokens of each phrase that are there
        phrases = self.required.phrases[:, None].expand(-1, width, -1, -1)
        next_tokens = phrases.gather(3, longest[..., None])[..., 0]  # (B, W, C)
        same = (next_tokens[..., None] == next_tokens[..., None, :]) & ~self.met[..., None, :]  # (B, W, C, C)
        known = self.met | same.tril(-1).any(3) | (next_tokens[..., None] == words[:, :, None]).any(3)
        extra = logits.gather(2, next_tokens).masked_fill(known, NEVER)
        return torch.cat([values, extra], dim=2), torch.cat([words, next_tokens], dim=2)

    def _after(self, words: Tensor, matches: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens (B, W, M) → (B, W, M, C): phrases complete after each, those complete since that token, and the number
        of tokens of each phrase."""
        places = torch.arange(1, matches.shape[3] + 1, device=matches.device)
        fits = words[..., None, None] == self.required.phrases[:, None, None]  # (B, W, M, C, L)
        progress = ((fits & matches[:, :, None]) * places).amax(4)
        continues_word = self.required.edges.continues_word[words][..., None]
        before = self.met[:, :, None] & ~(self.fresh[:, :, None] & continues_word)  # "cats" does not contain "cat"
        now = progress == self.required.lengths[:, None, None]
        return before | now, now & ~before & self._open(), progress

    def _open(self) -> Tensor:
        """(B, 1, 1, C) True for phrases after which a word can continue."""
        last = self.required.phrases.gather(2, (self.required.lengths - 1).clamp(min=0)[:, :, None])[:, :, 0]
        return self.required.edges.within[last][:, None, None]

    def survivors(self, totals: Tensor) -> tuple[Tensor, Tensor]:
        """The first W continuations that have a probability, in the order of their turns."""
        rank = (totals == NEVER).to(torch.int8).sort(dim=1, stable=True).indices[:, : self.width]
        met, fresh = self._next
        self.met, self.fresh = chosen(met, rank), chosen(fresh, rank)
        return totals.gather(1, rank), rank

    def keep(self, rows: Tensor) -> None:
        super().keep(rows)
        self.required, self.met, self.fresh = self.required.keep(rows), self.met[rows], self.fresh[rows]

    def append(self, other: Beam) -> None:
        assert isinstance(other, ConstrainedBeam)
        super().append(other)
        self.required, self.most = self.required.append(other.required), max(self.most, other.most)
        self.met = _join_phrases(self.met, other.met, fill=True)  # phrases that a sentence does not have are complete
        self.fresh = _join_phrases(self.fresh, other.fresh, fill=False)

    def widen(self, width: int) -> None:
        missing = width - self.alive.shape[1]
        super().widen(width)
        if missing > 0:
            self.met, self.fresh = (
                torch.cat([part, part[:, :1].expand(-1, missing, -1)], dim=1) for part in (self.met, self.fresh)
            )


def _join_phrases(first: Tensor, second: Tensor, *, fill: bool) -> Tensor:
    """(B, W, C) and (B', W, C') → (B + B', W, the larger C)."""
    return join_rows(first.transpose(1, 2), second.transpose(1, 2), dim=1, fill=fill).transpose(1, 2)
