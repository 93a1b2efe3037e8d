"""Greedy search, beam search and sampling over any decoder.

A search holds B sentences with W hypotheses each as tensors (B, W); no Python loop runs over hypotheses. Sentences
that are done leave the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from sightline.decoding.topk import top_k
from sightline.layers.layout import Layout
from sightline.layers.tap import Tapped, listen
from sightline.recipe import Decoding
from sightline.text.tokenizer import END, PAD, START

Heard = Callable[[Tensor], None]  # is told (B, W) the newest tokens, PAD where an output has ended


class Stepper(Protocol):
    """What a search needs of a model (or of an ensemble of models)."""

    looks: tuple[str, ...]
    longest: int | None  # how many tokens its decoder can be given, where there is a limit

    def encode(self, source: Tensor, layout: Layout) -> Any: ...
    def begin(self, memory: Any) -> Any: ...
    def advance(self, tokens: Tensor, state: Any, layout: Layout | None = None) -> tuple[Tensor, Any]: ...
    def logits(self, features: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Hypothesis:
    """One output: its tokens without start and end, and what it scored."""

    tokens: list[int]
    score: float  # log-probability over length penalty, plus coverage penalty: what hypotheses are ranked by
    log_probability: float


@dataclass(frozen=True)
class Batch:
    """Sentences to decode together."""

    source: Tensor  # (B, S)
    layout: Layout
    limits: Tensor  # (B,) most tokens of each output, its end included
    least: int  # no limit is below
    prefixes: Tensor | None = None  # (B, P) tokens the output must begin with, PAD behind shorter ones
    numbers: tuple[int, ...] = ()  # which sentence of the whole input each is: sampling is seeded by it
    few: int = 0  # when no more than so many sentences are unfinished, they are given up: no hypotheses


def length_penalty(length: Tensor | int, alpha: float) -> Any:
    """((5 + length) / 6)^α (Wu et al. 2016, §7); the end mark counts."""
    return ((5.0 + length) / 6.0) ** alpha


def coverage_penalty(coverage: Tensor, mask: Tensor | None, beta: float) -> Tensor:
    """β Σ_j log min(Σ_t α_tj, 1) over the source positions (same source): (…, S) → (…,)."""
    logs = coverage.clamp(min=1e-6, max=1.0).log()
    if mask is not None:
        logs = logs.masked_fill(~mask, 0.0)
    return beta * logs.sum(-1)


class _Looks:
    """Adds up where each hypothesis has looked, for the coverage penalty."""

    def __init__(self, positions: int) -> None:
        self.positions = positions
        self.step: list[Tensor] = []

    def hear(self, tapped: Tapped) -> None:
        if tapped.name.endswith(".weights"):
            self.step.append(tapped.tensor.mean(1))  # (B, W, S)

    def take(self) -> Tensor:
        """The mean over layers and heads of this step's weights (B, W, S)."""
        weights, self.step = torch.stack(self.step).mean(0), []
        return weights


def _next_scores(logs: Tensor, batch: Batch, step: int, width: int) -> Tensor:
    """(B·W, V) logs with what may not come next at −∞: padding, start, all but a forced prefix, all but the end."""
    logs[:, PAD] = float("-inf")
    logs[:, START] = float("-inf")
    if batch.prefixes is None and step + 1 < batch.least:
        return logs
    forced = torch.where(batch.limits == step + 1, END, PAD)  # (B,), PAD: free
    if batch.prefixes is not None and step < batch.prefixes.shape[1]:
        forced = torch.where(batch.prefixes[:, step] != PAD, batch.prefixes[:, step], forced)
    rows = (forced != PAD).nonzero()[:, 0]
    if len(rows):
        every = (rows[:, None] * width + torch.arange(width, device=rows.device)).flatten()
        tokens = forced[rows].repeat_interleave(width)
        kept = logs[every, tokens]
        logs[every] = float("-inf")
        logs[every, tokens] = kept
    return logs


@dataclass
class _Finished:
    """The best finished hypotheses of each sentence, best first; −∞ where there are fewer."""

    scores: Tensor  # (B, W)
    log_probabilities: Tensor  # (B, W)
    tokens: Tensor  # (B, W, longest), PAD behind the end
    total: Tensor  # (B,) how many have finished in all

    @staticmethod
    def none(sentences: int, width: int, longest: int, device: torch.device) -> _Finished:
        scores = torch.full((sentences, width), float("-inf"), device=device)
        tokens = torch.full((sentences, width, longest), PAD, device=device)
        return _Finished(scores, scores.clone(), tokens, torch.zeros(sentences, dtype=torch.int64, device=device))

    def add(self, scores: Tensor, log_probabilities: Tensor, tokens: Tensor) -> None:
        """Merge new ones (B, W') with tokens (B, W', t); those with −∞ are none."""
        self.total += (scores > float("-inf")).sum(1)
        width, grown = self.scores.shape[1], self.tokens.new_full((*tokens.shape[:2], self.tokens.shape[2]), PAD)
        grown[:, :, : tokens.shape[2]] = tokens
        self.scores, rank = torch.cat([self.scores, scores], dim=1).topk(width, dim=1)
        self.log_probabilities = torch.cat([self.log_probabilities, log_probabilities], dim=1).gather(1, rank)
        both = torch.cat([self.tokens, grown], dim=1)
        self.tokens = both.gather(1, rank[:, :, None].expand(-1, -1, both.shape[2]))

    def keep(self, rows: Tensor) -> _Finished:
        return _Finished(self.scores[rows], self.log_probabilities[rows], self.tokens[rows], self.total[rows])

    def hypotheses(self, row: int, count: int) -> list[Hypothesis]:
        """The best of one sentence."""
        found = []
        for score, log_probability, tokens in zip(
            self.scores[row, :count].tolist(),
            self.log_probabilities[row, :count].tolist(),
            self.tokens[row, :count].tolist(),
            strict=True,
        ):
            if score > float("-inf"):
                end = tokens.index(END) if END in tokens else len(tokens)
                found.append(Hypothesis(tokens[:end], score, log_probability))
        return found


def _size_for(alive: int, size: int) -> int:
    """How many sentences a batch should go on with: the living, above 16 of them rounded up to eights.

    oneDNN makes a kernel for each number of rows, and keeps about a thousand of them.
    """
    return alive if alive <= 16 else min(size, -(-alive // 8) * 8)


def staying(done: Tensor, count: int) -> Tensor:
    """Indices (count,) of all that is not done, and of some that is, if there is room.

    As many as possible stay in their places: the last ones fill holes.
    """
    rows = torch.arange(count, device=done.device)
    movers = (~done[count:]).nonzero()[:, 0] + count
    rows[done[:count].nonzero()[: len(movers), 0]] = movers
    return rows


def _rows_of(batch: Batch, rows: Tensor) -> Batch:
    """The same for some of the sentences."""
    prefixes = None if batch.prefixes is None else batch.prefixes[rows]
    numbers = tuple(batch.numbers[row] for row in rows.tolist()) if batch.numbers else ()
    layout = batch.layout.select(rows)  # type: ignore[union-attr]
    return Batch(batch.source[rows], layout, batch.limits[rows], batch.least, prefixes, numbers, batch.few)


class _Beam:
    """B sentences with W hypotheses each, on their way."""

    def __init__(self, model: Stepper, batch: Batch, options: Decoding) -> None:
        sentences, device = batch.source.shape[0], batch.source.device
        self.batch, self.options = batch, options
        self.state = model.begin(model.encode(batch.source, batch.layout))
        self.alive = torch.zeros(sentences, 1, device=device)  # (B, W) log-probability
        self.tokens = torch.full((sentences, 1, 1), START, device=device)  # (B, W, t)
        covered = self.alive.new_zeros(sentences, 1, batch.source.shape[1])
        self.covered = covered if options.coverage_penalty else None  # (B, W, S) how much each has looked where
        self.finished = _Finished.none(sentences, options.beam, int(batch.limits.max()), device)
        self.places = torch.arange(sentences, device=device)  # which result each sentence is
        self.results: list[list[Hypothesis]] = [[] for _ in range(sentences)]

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
        scores = totals / length_penalty(self.tokens.shape[2], self.options.length_penalty)
        if self.covered is not None:
            mask = self.batch.layout.key_mask()
            mask = None if mask is None else mask[:, None]
            penalty = coverage_penalty(self.covered, mask, self.options.coverage_penalty)
            scores = scores + penalty.gather(1, parents)
        new = scores[:, first].masked_fill(~ends[:, first], float("-inf"))
        past = _chosen(self.tokens, parents[:, first])
        self.finished.add(new, totals[:, first], torch.cat([past, words[:, first, None]], dim=2)[:, :, 1:])

    def go_on(self, totals: Tensor, parents: Tensor, words: Tensor, ends: Tensor) -> Tensor:
        """The first W others go on; (B,) which sentences are done."""
        going = totals.masked_fill(ends, float("-inf"))
        self.alive, rank = going.topk(min(self.options.beam, going.shape[1]), dim=1)  # (B, W)
        parents, words = parents.gather(1, rank), words.gather(1, rank)
        self.tokens = torch.cat([_chosen(self.tokens, parents), words[:, :, None]], dim=2)
        self.state = self.state.select(parents)
        if self.covered is not None:
            self.covered = _chosen(self.covered, parents)
        best = self.alive[:, 0]
        bound = best / length_penalty(self.batch.limits.float(), self.options.length_penalty)
        done: Tensor = (self.finished.total >= self.options.beam) | (
            bound <= self.finished.scores[:, self.options.nbest - 1]
        )
        done |= best == float("-inf")
        self.alive = self.alive.masked_fill(done[:, None], float("-inf"))  # until it leaves, it must find nothing more
        return done

    def collect(self, done: Tensor) -> None:
        """Put what is finished where it belongs."""
        for row in done.nonzero()[:, 0].tolist():
            self.results[int(self.places[row])] = self.finished.hypotheses(row, self.options.nbest)

    def keep(self, rows: Tensor) -> None:
        """Go on with these sentences alone."""
        self.state, self.batch, self.finished = (
            self.state.keep(rows),
            _rows_of(self.batch, rows),
            self.finished.keep(rows),
        )
        self.alive, self.tokens, self.places = self.alive[rows], self.tokens[rows], self.places[rows]
        self.covered = None if self.covered is None else self.covered[rows]


def _chosen(parts: Tensor, parents: Tensor) -> Tensor:
    """(B, W, ·) of each hypothesis → (B, W', ·) of those it continues."""
    return parts.gather(1, parents[:, :, None].expand(-1, -1, parts.shape[2]))


@torch.inference_mode()
def beam_search(model: Stepper, batch: Batch, options: Decoding) -> list[list[Hypothesis]]:
    """The `nbest` best hypotheses of each sentence by a beam of `beam`.

    Of the 2W best continuations, those among the first W that end are finished, the first W others go on. A sentence
    is done when W hypotheses are finished, or when none that goes on could still become one of the n best.
    """
    if options.coverage_penalty and not model.looks:
        raise ValueError("decoding.coverage_penalty needs a decoder with attention; set it to 0 for this model")
    beam, looks = _Beam(model, batch, options), _Looks(batch.source.shape[1])
    with listen(model, looks.hear, model.looks if options.coverage_penalty else ()):  # type: ignore[arg-type]
        for step in range(int(batch.limits.max())):
            features, beam.state = model.advance(beam.tokens[:, :, -1].reshape(-1, 1), beam.state)
            logs = model.logits(features[:, 0]).float().log_softmax(-1)  # (B·W, V)
            logs = _next_scores(logs, beam.batch, step, beam.alive.shape[1])
            if beam.covered is not None:
                beam.covered = beam.covered + looks.take()
            totals, parents, words = beam.continuations(logs)
            ends = (words == END) & (totals > float("-inf"))
            beam.finish(totals, parents, words, ends)
            done = beam.go_on(totals, parents, words, ends)
            unfinished = len(done) - int(done.sum())
            size = _size_for(unfinished, len(done))
            if size < len(done) or unfinished <= batch.few:
                beam.collect(done)
            if unfinished <= batch.few:
                break
            if size < len(done):
                beam.keep(staying(done, size))
    return beam.results


def _nucleus(logits: Tensor, top_k_: int | None, top_p: float | None) -> tuple[Tensor, Tensor]:
    """Log-scores in falling order (R, ≤V) and their words, cut after k words or once p of the mass is reached."""
    scores, words = (
        logits.sort(dim=-1, descending=True) if top_k_ is None else top_k(logits, min(top_k_, logits.shape[1]))
    )
    if top_p is not None:
        mass = torch.softmax(scores, dim=-1)
        scores = scores.masked_fill(mass.cumsum(-1) - mass >= top_p, float("-inf"))
    return scores, words


def _uniforms(seed: int, number: int, samples: int, longest: int) -> np.ndarray:
    """(W, longest) in [0, 1): the luck of one sentence, whatever else is in its batch."""
    return np.random.Generator(np.random.Philox(key=[seed, number])).random((longest, samples)).T


@torch.inference_mode()
def walk(model: Stepper, batch: Batch, options: Decoding, heard: Heard | None = None) -> list[list[Hypothesis]]:
    """One token after the other, the best one (greedy) or a drawn one (sampling): `nbest` walks a sentence.

    `heard` is told the tokens of each step as soon as they are chosen, forced ones and end marks too.
    """
    sentences, device, sampling = batch.source.shape[0], batch.source.device, options.sample
    width = options.nbest if sampling is not None else 1
    longest = int(batch.limits.max())
    state = model.begin(model.encode(batch.source, batch.layout))
    if width > 1:
        state = state.select(torch.zeros(sentences, width, dtype=torch.int64, device=device))
    luck = None
    if sampling is not None:
        numbers = batch.numbers or range(sentences)
        luck = torch.from_numpy(np.stack([_uniforms(sampling.seed, number, width, longest) for number in numbers]))
        luck = luck.to(device)  # (B, W, longest)
    word = torch.full((sentences * width, 1), START, device=device)
    total = torch.zeros(sentences, width, device=device)
    over = torch.zeros(sentences, width, dtype=torch.bool, device=device)
    tokens = torch.full((sentences, width, longest), PAD, device=device)  # all results
    totals = torch.zeros(sentences, width, device=device)
    places = torch.arange(sentences, device=device)
    for step in range(longest):
        features, state = model.advance(word, state)
        logs = _next_scores(model.logits(features[:, 0]).float().log_softmax(-1), batch, step, width)  # (B·W, V)
        if sampling is None or luck is None:
            value, word = top_k(logs, 1)
        else:
            scores, words = _nucleus(logs / sampling.temperature, sampling.top_k, sampling.top_p)
            mass = torch.softmax(scores.double(), dim=-1).cumsum(-1)
            pick = torch.searchsorted(mass, luck[:, :, step].reshape(-1, 1) * mass[:, -1:], right=True)
            word = words.gather(1, pick.clamp(max=words.shape[1] - 1))
            value = logs.gather(1, word)
        gain = value.view(-1, width)
        total = total + gain.masked_fill(over, 0.0)
        chosen = word.view(-1, width).masked_fill(over, PAD)
        tokens[places, :, step] = chosen
        if heard is not None:
            heard(tokens[:, :, step])
        totals[places] = total
        over = over | (chosen == END)
        done = over.all(1)
        unfinished = len(done) - int(done.sum())
        if unfinished <= batch.few:
            break
        size = _size_for(unfinished, len(done))
        if size < len(done):
            rows = staying(done, size)
            state, batch = state.keep(rows), _rows_of(batch, rows)
            word = word.view(-1, width)[rows].reshape(-1, 1)
            total, over, places = total[rows], over[rows], places[rows]
            luck = None if luck is None else luck[rows]
    results = _walks(tokens, totals, options.length_penalty)
    for place in places[~done].tolist():
        results[place] = []
    return results


def _walks(tokens: Tensor, totals: Tensor, alpha: float) -> list[list[Hypothesis]]:
    """Tensors (B, W, longest) and (B, W) as hypotheses, best first."""
    results = []
    for row_tokens, row_totals in zip(tokens.tolist(), totals.tolist(), strict=True):
        walks = []
        for sequence, total in zip(row_tokens, row_totals, strict=True):
            end = sequence.index(END) if END in sequence else len(sequence)
            walks.append(Hypothesis(sequence[:end], total / length_penalty(end + 1, alpha), total))
        results.append(sorted(walks, key=lambda walk: -walk.score))
    return results


def search(model: Stepper, batch: Batch, options: Decoding, heard: Heard | None = None) -> list[list[Hypothesis]]:
    """Decode a batch the way the options say; a beam knows its words only at the end, so there nothing can be heard."""
    if options.sample is not None or options.beam == 1:
        return walk(model, batch, options, heard)
    if heard is not None:
        raise ValueError(f"a beam of {options.beam} has no words to tell before its end; use beam 1, or sample")
    return beam_search(model, batch, options)
