"""Beam search.

B sentences with W hypotheses each are tensors (B, W); no Python loop runs over hypotheses. Of the 2W best continuations
of a sentence, those among the first W that end are finished, and the first W others continue. `ranking.is_over` decides
when a sentence is done. `DiverseBeam` and `ConstrainedBeam` (in files of their own) rank continuations differently.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from sightline.decoding.ranking import SearchProgress, coverage_penalty, is_over, normalized, top_k
from sightline.decoding.request import BeamStep, DecodableModel, Hypothesis, Request
from sightline.decoding.search import Search
from sightline.layers.layout import Padded
from sightline.layers.tap import Tapped, on_taps
from sightline.models.protocol import join_rows
from sightline.text.tokenizer import END, PAD, START

NEVER = float("-inf")


class CrossAttention:
    """The attention weights of a step, for the coverage penalty; averaged over the models of an ensemble."""

    def __init__(self, model: DecodableModel) -> None:
        self.model = model
        self.paths: tuple[tuple[str, ...], ...] = getattr(
            model, "member_cross_attention_paths", (model.cross_attention_paths,)
        )
        self.weights: dict[str, Tensor] = {}

    def recording(self) -> Any:
        """A context in which the model's attention weights are recorded."""
        return on_taps(self.model, self._record, self.model.cross_attention_paths)  # type: ignore[arg-type]

    def _record(self, tapped: Tapped) -> None:
        if tapped.name.endswith(".weights"):
            self.weights[tapped.name.removesuffix(".weights")] = tapped.tensor.mean(1)  # (B, W, S)

    def mean(self) -> Tensor:
        """(B, W, S) the mean over models, layers and heads of this step's weights."""
        means = [torch.stack([self.weights[path] for path in paths]).mean(0) for paths in self.paths if paths]
        self.weights = {}
        return means[0] if len(means) == 1 else torch.stack(means).mean(0)


@dataclass
class Finished:
    """The best finished hypotheses of each sentence, best first, padded with scores of −∞."""

    scores: Tensor  # (B, W)
    log_probabilities: Tensor  # (B, W)
    tokens: Tensor  # (B, W, longest) by step: START first, PAD after the end
    truncated: Tensor  # (B, W) True if ended by a length limit
    total: Tensor  # (B,) number of all finished hypotheses

    @staticmethod
    def none(sentences: int, width: int, longest: int, device: torch.device) -> Finished:
        scores = torch.full((sentences, width), NEVER, device=device)
        tokens = torch.full((sentences, width, longest), PAD, device=device)
        total = torch.zeros(sentences, dtype=torch.int64, device=device)
        return Finished(scores, scores.clone(), tokens, torch.zeros_like(scores, dtype=torch.bool), total)

    def add(self, scores: Tensor, log_probabilities: Tensor, tokens: Tensor, truncated: Tensor) -> None:
        """Merge new hypotheses (B, W') with tokens (B, W', t), ignoring scores of −∞."""
        self.total += (scores > NEVER).sum(1)
        width, grown = self.scores.shape[1], self.tokens.new_full((*tokens.shape[:2], self.tokens.shape[2]), PAD)
        grown[:, :, : tokens.shape[2]] = tokens
        self.scores, rank = torch.cat([self.scores, scores], dim=1).topk(width, dim=1)
        self.log_probabilities = torch.cat([self.log_probabilities, log_probabilities], dim=1).gather(1, rank)
        self.truncated = torch.cat([self.truncated, truncated], dim=1).gather(1, rank)
        both = torch.cat([self.tokens, grown], dim=1)
        self.tokens = both.gather(1, rank[:, :, None].expand(-1, -1, both.shape[2]))

    def keep(self, rows: Tensor) -> None:
        self.scores, self.log_probabilities = self.scores[rows], self.log_probabilities[rows]
        self.tokens, self.truncated, self.total = self.tokens[rows], self.truncated[rows], self.total[rows]

    def append(self, other: Finished, tokens: Tensor) -> None:
        """Add the rows of another; `tokens` are those of both, joined."""
        self.scores = torch.cat([self.scores, other.scores])
        self.log_probabilities = torch.cat([self.log_probabilities, other.log_probabilities])
        self.truncated = torch.cat([self.truncated, other.truncated])
        self.tokens, self.total = tokens, torch.cat([self.total, other.total])

    def hypotheses(self, rows: Tensor, count: int, longest: int) -> list[list[Hypothesis]]:
        """The first `count` hypotheses of these sentences, with at most `longest` columns of tokens."""
        parts = (self.scores, self.log_probabilities, self.tokens[:, :, :longest], self.truncated)
        best = zip(*(part[rows, :count].tolist() for part in parts), strict=True)
        return [[_hypothesis(*each) for each in zip(*row, strict=True) if each[0] > NEVER] for row in best]


def _hypothesis(score: float, log_probability: float, tokens: list[int], truncated: bool) -> Hypothesis:
    end = tokens.index(END) if END in tokens else len(tokens)
    return Hypothesis([token for token in tokens[:end] if token not in (PAD, START)], score, log_probability, truncated)


class Beam(Search):
    """Beam search: the W best hypotheses of each sentence at every step."""

    def __init__(self, model: DecodableModel, requests: Sequence[Request], *arguments: Any) -> None:
        super().__init__(model, requests, *arguments)
        if requests[0].width == 1:  # as in greedy search
            self.options = self.options.model_copy(update={"coverage_penalty": 0.0})
        sentences, device = self.size, self.device
        self.width = requests[0].width
        self.alive = torch.zeros(sentences, 1, device=device)  # (B, W) log-probability
        self.tokens = torch.full((sentences, 1, 1), START, device=device)  # (B, W, t) by step
        self.cross_attention: CrossAttention | None = None
        self.covered: Tensor | None = None  # (B, W, S) attention of each hypothesis so far
        self.source_mask: Tensor | None = None  # (B, S)
        if self.options.coverage_penalty:
            self._begin_coverage()
        self.returned = self.options.candidates  # finished hypotheses returned for each sentence
        self.finished = Finished.none(sentences, self.width, self.last_end + 1, device)
        self.cut: Tensor | None = None  # (B, W) hypotheses that a length limit ends with this step
        self.reports = any(request.on_step for request in requests)

    def _begin_coverage(self) -> None:
        if not self.model.cross_attention_paths:
            raise ValueError("decoding.coverage_penalty needs a decoder with attention; set it to 0 for this model")
        layout = Padded.of([len(request.encoder_input) for request in self.requests], self.device)
        self.cross_attention = CrossAttention(self.model)
        self.covered = self.alive.new_zeros(self.size, 1, layout.longest)
        places = torch.arange(layout.longest, device=self.device)
        self.source_mask = places < layout.lengths.to(self.device)[:, None]

    def step(self) -> Tensor:
        with nullcontext() if self.cross_attention is None else self.cross_attention.recording():
            features, self.state = self.model.advance(self.tokens[:, :, -1].reshape(-1, 1), self.state)
        logits = self.model.logits(features[:, 0]).float().log_softmax(-1)  # (B·W, V)
        self.cut = self.truncated(logits, self.tokens.shape[1])
        logits = self.process(logits, self.tokens)
        if self.covered is not None and self.cross_attention is not None:
            self.covered = self.covered + self.cross_attention.mean()
        totals, parents, words = self.continuations(logits)
        ends = (words == END) & (totals > NEVER)
        self.finish(totals, parents, words, ends)
        scores = self.scores(totals, parents) if self.reports else None
        done, slots = self.continue_with(totals, parents, words, ends)
        if scores is not None:
            self._report((totals, scores, parents, words), ends, slots, done)
        self.time += 1
        return done

    def _report(self, considered: tuple[Tensor, ...], ends: Tensor, slots: tuple[Tensor, Tensor], done: Tensor) -> None:
        ends = ends.clone()
        ends[:, self.width :] = False  # only the first W can finish
        steps = self.steps().tolist()
        for row, request in enumerate(self.requests):
            if request.on_step is not None:
                one = slice(row, row + 1)
                rank, alive = slots[0][one], slots[1][one] > NEVER
                totals, scores, parents, words = (part[one] for part in considered)
                step = BeamStep(steps[row], totals, scores, parents, words, ends[one], rank, alive, done[one])
                request.on_step(step)

    def continuations(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits (B·W, V) → the 2W best continuations (B, 2W): log-probabilities, parents and tokens."""
        sentences, width = self.alive.shape
        values, words = top_k(logits, min(2 * self.width, logits.shape[1]))
        count = values.shape[1]
        values = (values + self.alive.reshape(-1, 1)).view(sentences, -1)
        totals, choice = values.topk(min(2 * self.width, width * count), dim=1)
        return totals, choice // count, words.view(sentences, -1).gather(1, choice)

    def finish(self, totals: Tensor, parents: Tensor, words: Tensor, ends: Tensor) -> None:
        """Store those of the first W continuations that end."""
        first = slice(0, self.width)
        if not ends[:, first].any():
            return
        scores = self.scores(totals, parents)
        new = scores[:, first].masked_fill(~ends[:, first], NEVER)
        tokens = torch.cat([chosen(self.tokens, parents[:, first]), words[:, first, None]], dim=2)
        cut = torch.zeros_like(ends) if self.cut is None else self.cut.gather(1, parents)
        self.finished.add(new, totals[:, first], tokens, cut[:, first])

    def scores(self, totals: Tensor, parents: Tensor) -> Tensor:
        """(B, 2W) the scores of continuations if they end."""
        scores: Tensor = normalized(totals, self.length(), self.options)
        if self.covered is None or self.source_mask is None:
            return scores
        penalty = coverage_penalty(self.covered, self.source_mask[:, None], self.options.coverage_penalty)
        return scores + penalty.gather(1, parents)

    def continue_with(
        self, totals: Tensor, parents: Tensor, words: Tensor, ends: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Continue the first W that do not end. Returns (B,), True for finished sentences; places and totals (B, W)."""
        self.alive, rank = self.survivors(totals.masked_fill(ends, NEVER))
        slots = rank, self.alive
        self.select(parents.gather(1, rank))
        self.tokens = torch.cat([self.tokens, words.gather(1, rank)[:, :, None]], dim=2)
        done, reached = self.complete(), self.at_limit()
        if reached is not None:
            done = done | reached  # also where scores are NaN
        self.alive = self.alive.masked_fill(done[:, None], NEVER)  # finished sentences get no more hypotheses
        return done, slots

    def select(self, parents: Tensor) -> None:
        """Reorder the hypotheses by parents (B, W')."""
        self.tokens, self.state = chosen(self.tokens, parents), self.state.select(parents)
        if self.covered is not None:
            self.covered = chosen(self.covered, parents)

    def survivors(self, totals: Tensor) -> tuple[Tensor, Tensor]:
        """Of continuations (B, 2W), −∞ where they end: log-probabilities and places of the W that continue."""
        best, rank = totals.topk(min(self.width, totals.shape[1]), dim=1)
        return best, rank

    def complete(self) -> Tensor:
        """(B,), True for sentences whose search ends."""
        length, finished = self.length(), self.finished
        length = length if isinstance(length, int) else length[:, 0]
        return is_over(
            SearchProgress(self.alive.amax(1), length, self.limits, finished.scores, finished.total), self.options
        )

    def hypotheses(self, rows: Tensor) -> list[list[Hypothesis]]:
        return self.finished.hypotheses(rows, self.returned, self.tokens.shape[2])

    def keep(self, rows: Tensor) -> None:
        super().keep(rows)
        self.finished.keep(rows)
        self.alive, self.tokens = self.alive[rows], self.tokens[rows]
        if self.covered is not None and self.source_mask is not None:
            self.covered, self.source_mask = self.covered[rows], self.source_mask[rows]

    def drop_steps(self, count: int) -> None:
        super().drop_steps(count)
        self.tokens, self.finished.tokens = self.tokens[:, :, count:], self.finished.tokens[:, :, count:]

    def append(self, other: Beam) -> None:
        width = max(self.alive.shape[1], other.alive.shape[1])
        self.widen(width)
        other.widen(width)
        super().append(other)
        self.finished.append(
            other.finished, self.joined_columns(self.finished.tokens, other.finished.tokens, self.last_end + 1)
        )
        self.tokens = self.joined_columns(self.tokens, other.tokens, self.time + 1)
        self.alive = torch.cat([self.alive, other.alive])
        if self.covered is not None and other.covered is not None:
            self.covered = join_rows(self.covered.transpose(1, 2), other.covered.transpose(1, 2), dim=1).transpose(1, 2)
        if self.source_mask is not None and other.source_mask is not None:
            self.source_mask = join_rows(self.source_mask, other.source_mask, dim=1, fill=False)
        self.reports |= other.reports

    def widen(self, width: int) -> None:
        """Pad each sentence to `width` hypotheses with ones of probability 0."""
        sentences, own = self.alive.shape
        if own < width:
            parents = pad(torch.arange(own, device=self.device), (0, width - own)).expand(sentences, -1)
            self.select(parents)
            self.alive = pad(self.alive, (0, width - own), value=NEVER)


def chosen(parts: Tensor, parents: Tensor) -> Tensor:
    """Gather (B, W, ·) by parents (B, W') → (B, W', ·)."""
    return parts.gather(1, parents[:, :, None].expand(-1, -1, parts.shape[2]))
