"""Beam search: B sentences with W hypotheses each as tensors (B, W); no Python loop runs over hypotheses."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sightline.decoding.batch import Batch, Hypothesis, Stepper
from sightline.decoding.ranking import coverage_penalty, normalized
from sightline.decoding.stopping import Progress, is_over
from sightline.decoding.topk import top_k
from sightline.layers.tap import Tapped
from sightline.recipe import Decoding
from sightline.text.tokenizer import END, PAD, START


class Looks:
    """Where each hypothesis looks, for the coverage penalty; of an ensemble, each model that looks counts the same."""

    def __init__(self, model: Stepper) -> None:
        self.own: tuple[tuple[str, ...], ...] = getattr(
            model, "member_cross_attention_paths", (model.cross_attention_paths,)
        )
        self.step: dict[str, Tensor] = {}

    def hear(self, tapped: Tapped) -> None:
        if tapped.name.endswith(".weights"):
            self.step[tapped.name.removesuffix(".weights")] = tapped.tensor.mean(1)  # (B, W, S)

    def take(self) -> Tensor:
        """The mean over models, layers and heads of this step's weights (B, W, S)."""
        means = [torch.stack([self.step[path] for path in paths]).mean(0) for paths in self.own if paths]
        self.step = {}
        return means[0] if len(means) == 1 else torch.stack(means).mean(0)


@dataclass
class Finished:
    """The best finished hypotheses of each sentence, best first; −∞ where there are fewer."""

    scores: Tensor  # (B, W)
    log_probabilities: Tensor  # (B, W)
    tokens: Tensor  # (B, W, longest), PAD behind the end
    truncated: Tensor  # (B, W) whether a length limit ended it
    total: Tensor  # (B,) how many have finished in all

    @staticmethod
    def none(sentences: int, width: int, longest: int, device: torch.device) -> Finished:
        scores = torch.full((sentences, width), float("-inf"), device=device)
        tokens = torch.full((sentences, width, longest), PAD, device=device)
        total = torch.zeros(sentences, dtype=torch.int64, device=device)
        return Finished(scores, scores.clone(), tokens, torch.zeros_like(scores, dtype=torch.bool), total)

    def add(self, scores: Tensor, log_probabilities: Tensor, tokens: Tensor, truncated: Tensor) -> None:
        """Merge new ones (B, W') with tokens (B, W', t); those with −∞ are none."""
        self.total += (scores > float("-inf")).sum(1)
        width, grown = self.scores.shape[1], self.tokens.new_full((*tokens.shape[:2], self.tokens.shape[2]), PAD)
        grown[:, :, : tokens.shape[2]] = tokens
        self.scores, rank = torch.cat([self.scores, scores], dim=1).topk(width, dim=1)
        self.log_probabilities = torch.cat([self.log_probabilities, log_probabilities], dim=1).gather(1, rank)
        self.truncated = torch.cat([self.truncated, truncated], dim=1).gather(1, rank)
        both = torch.cat([self.tokens, grown], dim=1)
        self.tokens = both.gather(1, rank[:, :, None].expand(-1, -1, both.shape[2]))

    def keep(self, rows: Tensor) -> Finished:
        parts = (self.scores, self.log_probabilities, self.tokens, self.truncated, self.total)
        return Finished(*(part[rows] for part in parts))

    def hypotheses(self, rows: Tensor, count: int, longest: int) -> list[list[Hypothesis]]:
        """The first `count` of these sentences; none has more than `longest` tokens, so no more are fetched."""
        parts = (self.scores, self.log_probabilities, self.tokens[:, :, :longest], self.truncated)
        found = zip(*(part[rows, :count].tolist() for part in parts), strict=True)
        return [[_hypothesis(*each) for each in zip(*best, strict=True) if each[0] > float("-inf")] for best in found]


def _hypothesis(score: float, log_probability: float, tokens: list[int], truncated: bool) -> Hypothesis:
    end = tokens.index(END) if END in tokens else len(tokens)
    return Hypothesis(tokens[:end], score, log_probability, truncated)


class Beam:
    """B sentences with W hypotheses each, on their way."""

    def __init__(self, model: Stepper, batch: Batch, options: Decoding) -> None:
        sentences, device = batch.source.shape[0], batch.source.device
        self.batch, self.options = batch, options
        self.state = model.begin(model.encode(batch.source, batch.layout))
        self.alive = torch.zeros(sentences, 1, device=device)  # (B, W) log-probability
        self.tokens = torch.full((sentences, 1, 1), START, device=device)  # (B, W, t)
        covered = self.alive.new_zeros(sentences, 1, batch.source.shape[1])
        self.covered = covered if options.coverage_penalty else None  # (B, W, S) how much each has looked where
        self.finished = Finished.none(sentences, options.beam, int(batch.limits.max()), device)
        self.places = torch.arange(sentences, device=device)  # which result each sentence is
        self.results: list[list[Hypothesis]] = [[] for _ in range(sentences)]
        self.fetched = options.nbest  # so many of the finished of each sentence are looked at in the end
        self.truncated: Tensor | None = None  # (B, W) which hypotheses a length limit ends after this step
        self.slots = self.going = torch.zeros(sentences, 0, device=device)  # (B, W) places and totals of the last step

    def continuations(self, logs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """logs (B·W, V) → the 2W best continuations: log-probabilities (B, 2W), whom each continues, and with what."""
        sentences, width = self.alive.shape
        values, words = top_k(logs, min(2 * self.options.beam, logs.shape[1]))
        count = values.shape[1]
        values = (values + self.alive.reshape(-1, 1)).view(sentences, -1)
        totals, choice = values.topk(min(2 * self.options.beam, width * count), dim=1)
        return totals, choice // count, words.view(sentences, -1).gather(1, choice)

    def finish(self, totals: Tensor, parents: Tensor, words: Tensor, ends: Tensor) -> None:
        """Those of the first W continuations that end are finished."""
        first = slice(0, self.options.beam)
        if not ends[:, first].any():
            return
        scores = self.scores(totals, parents)
        new = scores[:, first].masked_fill(~ends[:, first], float("-inf"))
        past = chosen(self.tokens, parents[:, first])
        tokens = torch.cat([past, words[:, first, None]], dim=2)[:, :, 1:]
        truncated = torch.zeros_like(ends) if self.truncated is None else self.truncated.gather(1, parents)
        self.finished.add(new, totals[:, first], tokens, truncated[:, first])

    def scores(self, totals: Tensor, parents: Tensor) -> Tensor:
        """(B, 2W) what continuations are ranked by, if they end."""
        scores: Tensor = normalized(totals, self.tokens.shape[2], self.options)
        if self.covered is None:
            return scores
        mask = self.batch.layout.key_mask()
        mask = None if mask is None else mask[:, None]
        penalty = coverage_penalty(self.covered, mask, self.options.coverage_penalty)
        return scores + penalty.gather(1, parents)

    def go_on(self, totals: Tensor, parents: Tensor, words: Tensor, ends: Tensor) -> Tensor:
        """The first W others go on; (B,) which sentences are done."""
        self.alive, rank = self.first_others(totals.masked_fill(ends, float("-inf")))  # (B, W)
        self.slots, self.going = rank, self.alive
        parents, words = parents.gather(1, rank), words.gather(1, rank)
        self.tokens = torch.cat([chosen(self.tokens, parents), words[:, :, None]], dim=2)
        self.state = self.state.select(parents)
        if self.covered is not None:
            self.covered = chosen(self.covered, parents)
        done = self.over()
        self.alive = self.alive.masked_fill(done[:, None], float("-inf"))  # until it leaves, it must find nothing more
        return done

    def first_others(self, going: Tensor) -> tuple[Tensor, Tensor]:
        """Of continuations (B, 2W), −∞ where they end, the W that go on, and where they stand."""
        totals, rank = going.topk(min(self.options.beam, going.shape[1]), dim=1)
        return totals, rank

    def over(self) -> Tensor:
        """(B,) whether the search for a sentence ends (see stopping.py)."""
        length, finished = self.tokens.shape[2] - 1, self.finished
        progress = Progress(self.alive.amax(1), length, self.batch.limits, finished.scores, finished.total)
        return is_over(progress, self.options)

    def collect(self, done: Tensor) -> None:
        """Put what is finished where it belongs."""
        rows = done.nonzero()[:, 0]
        found = self.finished.hypotheses(rows, self.fetched, self.tokens.shape[2] - 1)
        for place, hypotheses in zip(self.places[rows].tolist(), found, strict=True):
            self.results[place] = self.told(hypotheses)[: self.options.nbest]

    def told(self, found: list[Hypothesis]) -> list[Hypothesis]:
        """What of the finished hypotheses of a sentence, best first, may be told."""
        return found

    def keep(self, rows: Tensor) -> None:
        """Go on with these sentences alone."""
        self.state, self.batch, self.finished = (
            self.state.keep(rows),
            self.batch.keep(rows),
            self.finished.keep(rows),
        )
        self.alive, self.tokens, self.places = self.alive[rows], self.tokens[rows], self.places[rows]
        self.covered = None if self.covered is None else self.covered[rows]


def chosen(parts: Tensor, parents: Tensor) -> Tensor:
    """(B, W, ·) of each hypothesis → (B, W', ·) of those it continues."""
    return parts.gather(1, parents[:, :, None].expand(-1, -1, parts.shape[2]))
