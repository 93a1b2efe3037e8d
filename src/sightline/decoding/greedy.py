"""Greedy search and sampling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sightline.decoding.ranking import normalized, top_k
from sightline.decoding.request import DecodableModel, Hypothesis, Request
from sightline.decoding.search import Search
from sightline.layers.devices import widest
from sightline.layers.tap import is_recorded
from sightline.models.protocol import join_rows
from sightline.recipe import Decoding, Sampling
from sightline.text.tokenizer import END, PAD, START


class Greedy(Search):
    """Takes the most probable token at each step; with `sample`, a random one (`nbest` samples per sentence)."""

    def __init__(self, model: DecodableModel, requests: Sequence[Request], *arguments: Any) -> None:
        super().__init__(model, requests, *arguments)
        self.sampling = self.options.sample
        self.width = width = 1 if self.sampling is None else requests[0].width
        self.scored = requests[0].scored or self.sampling is not None
        self.shared = is_recorded(model)  # recorded logits must not be overwritten
        shape, device = (self.size, width), self.device
        if width > 1:
            self.state = self.state.select(torch.zeros(shape, dtype=torch.int64, device=device))
        self.uniforms = None if self.sampling is None else _uniforms(requests, width, self.last_end, device)
        self.tokens = torch.full((*shape, self.last_end + 1), PAD, device=device)  # a column for each step, START first
        self.tokens[:, :, 0] = START
        self.latest = self.tokens[:, :, :1]  # (B, W, 1) next input of the model
        self.total = torch.zeros(shape, device=device)
        self.over, self.cut = torch.zeros(2, *shape, dtype=torch.bool, device=device)
        self.reports = any(request.on_token for request in requests)

    def step(self) -> Tensor:
        features, self.state = self.model.advance(self.latest.reshape(-1, 1), self.state)
        logits = self.model.logits(features[:, 0]).float()  # (B·W, V)
        if self.scored:
            logits = logits.log_softmax(-1)
        elif self.shared:
            logits = logits.clone()
        if (truncated := self.truncated(logits, self.width)) is not None:
            self.cut |= truncated & ~self.over
        logits = self.process(logits, self.tokens[:, :, : self.time + 1])
        value, word = self._choose(logits)
        self.total = self.total + value.view(-1, self.width).masked_fill(self.over, 0.0)
        self.latest = word.view(-1, self.width, 1)
        chosen = self.latest[:, :, 0].masked_fill(self.over, PAD)
        reached = self.at_limit()
        self.time += 1
        self.tokens[:, :, self.time] = chosen
        if self.reports:
            self._report(chosen)
        self.over = self.over | (chosen == END)
        done: Tensor = self.over.all(1)
        return done if reached is None else done | reached  # also where scores are NaN

    def _choose(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """(B·W, 1) the score of each next token, and the token."""
        if self.sampling is None or self.uniforms is None:
            return top_k(logits, 1)
        if self.shift is None:
            uniforms = self.uniforms[:, :, self.time]
        else:
            column = self.steps().clamp(max=self.uniforms.shape[2] - 1)  # finished rows may be past their end
            uniforms = self.uniforms.gather(2, column[:, None, None].expand(-1, self.width, 1))[:, :, 0]
        word = _draw(logits, self.sampling, uniforms.reshape(-1, 1))
        return logits.gather(1, word), word

    def _report(self, chosen: Tensor) -> None:
        for request, words, over in zip(self.requests, chosen.tolist(), self.over.tolist(), strict=True):
            for sample, word in enumerate(words):
                if request.on_token is not None and not over[sample]:
                    request.on_token(word, sample)

    def hypotheses(self, rows: Tensor) -> list[list[Hypothesis]]:
        tokens = self.tokens[rows, :, : self.time + 1]
        return finished(tokens, self.total[rows], self.options, scored=self.scored, truncated=self.cut[rows])

    def keep(self, rows: Tensor) -> None:
        super().keep(rows)
        self.tokens, self.latest, self.total = self.tokens[rows], self.latest[rows], self.total[rows]
        self.over, self.cut = self.over[rows], self.cut[rows]
        self.uniforms = None if self.uniforms is None else self.uniforms[rows]

    def drop_steps(self, count: int) -> None:
        super().drop_steps(count)
        self.tokens = self.tokens[:, :, count:]

    def append(self, other: Greedy) -> None:
        super().append(other)
        self.tokens = self.joined_columns(self.tokens, other.tokens, self.last_end + 1)
        self.latest = torch.cat([self.latest, other.latest])
        self.total, self.over = torch.cat([self.total, other.total]), torch.cat([self.over, other.over])
        self.cut = torch.cat([self.cut, other.cut])
        if self.uniforms is not None and other.uniforms is not None:
            self.uniforms = join_rows(self.uniforms, other.uniforms, dim=2)
        self.reports |= other.reports


def finished(
    tokens: Tensor, totals: Tensor, options: Decoding, *, scored: bool, truncated: Tensor | None = None
) -> list[list[Hypothesis]]:
    """Tokens by step (B, W, t) and log-probabilities (B, W) as hypotheses, best first.

    A sentence with NaN scores has none. Without `scored`, the scores of hypotheses are NaN.
    """
    results = []
    truncated = torch.zeros_like(totals, dtype=torch.bool) if truncated is None else truncated
    for row_tokens, row_totals, row_cut in zip(tokens.tolist(), totals.tolist(), truncated.tolist(), strict=True):
        outputs = []
        for sequence, total, cut in zip(row_tokens, row_totals, row_cut, strict=True):
            if END not in sequence or not math.isfinite(total):
                break
            words = sequence[sequence.index(START) + 1 : sequence.index(END)]  # PAD before START and after END
            score = normalized(total, len(words) + 1, options) if scored else math.nan
            outputs.append(Hypothesis(words, score, total if scored else math.nan, cut))
        complete = len(outputs) == len(row_totals)
        results.append(sorted(outputs, key=lambda hypothesis: -hypothesis.score) if complete else [])
    return results


# --- sampling ----------------------------------------------------------------------------------------------------


def _uniforms(requests: Sequence[Request], samples: int, steps: int, device: torch.device) -> Tensor:
    """(B, W, steps) in [0, 1): random numbers that depend on the seed and number of a request, not on its batch."""
    generators = []
    for request in requests:
        assert request.options.sample is not None
        generators.append(np.random.Generator(np.random.Philox(key=[request.options.sample.seed, request.number])))
    numbers = torch.from_numpy(np.stack([each.random((steps, samples)).T for each in generators]))
    return numbers.to(device, torch.float32 if device.type == "mps" else numbers.dtype)


def _draw(logits: Tensor, sampling: Sampling, uniforms: Tensor) -> Tensor:
    """Sample a token (R, 1) from logits (R, V) by inverse transform of uniforms (R, 1)."""
    scores, words = _nucleus(logits / sampling.temperature, sampling.top_k, sampling.top_p)
    mass = torch.softmax(widest(scores), dim=-1).cumsum(-1)
    pick = torch.searchsorted(mass, uniforms * mass[:, -1:], right=True)
    return words.gather(1, pick.clamp(max=words.shape[1] - 1))


def _nucleus(logits: Tensor, top_k_: int | None, top_p: float | None) -> tuple[Tensor, Tensor]:
    """Sorted logits (R, ≤V) and their tokens, restricted to the top k or to the nucleus of mass p."""
    scores, words = (
        logits.sort(dim=-1, descending=True) if top_k_ is None else top_k(logits, min(top_k_, logits.shape[1]))
    )
    if top_p is not None:
        mass = torch.softmax(scores, dim=-1)
        scores = scores.masked_fill(mass.cumsum(-1) - mass >= top_p, float("-inf"))
    return scores, words
