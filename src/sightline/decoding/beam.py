"""Beam search, diverse beam search (groups) and beam search with required phrases.

B sentences with W hypotheses each are tensors (B, W); no Python loop runs over hypotheses. Of the 2W best continuations
of a sentence, those among the first W that end are finished, and the first W others continue. `ranking.is_over` decides
when a sentence is done. `DiverseBeam` and `ConstrainedBeam` rank continuations differently.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from sightline.decoding.processors import RequiredPhrases
from sightline.decoding.ranking import SearchProgress, coverage_penalty, is_over, normalized, top_k
from sightline.decoding.request import BeamStep, DecodableModel, Demands, Hypothesis, Request
from sightline.decoding.search import Search
from sightline.layers.layout import Padded
from sightline.layers.tap import Tapped, on_taps
from sightline.models.protocol import join_rows
from sightline.text.tokenizer import END, PAD, START

_NEVER = float("-inf")


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
        scores = torch.full((sentences, width), _NEVER, device=device)
        tokens = torch.full((sentences, width, longest), PAD, device=device)
        total = torch.zeros(sentences, dtype=torch.int64, device=device)
        return Finished(scores, scores.clone(), tokens, torch.zeros_like(scores, dtype=torch.bool), total)

    def add(self, scores: Tensor, log_probabilities: Tensor, tokens: Tensor, truncated: Tensor) -> None:
        """Merge new hypotheses (B, W') with tokens (B, W', t), ignoring scores of −∞."""
        self.total += (scores > _NEVER).sum(1)
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
        return [[_hypothesis(*each) for each in zip(*row, strict=True) if each[0] > _NEVER] for row in best]


def _hypothesis(score: float, log_probability: float, tokens: list[int], truncated: bool) -> Hypothesis:
    end = tokens.index(END) if END in tokens else len(tokens)
    return Hypothesis([token for token in tokens[:end] if token not in (PAD, START)], score, log_probability, truncated)


class Beam(Search):
    """Beam search: the W best hypotheses of each sentence at every step."""

    def __init__(self, model: DecodableModel, requests: Sequence[Request], *begun: Any) -> None:
        super().__init__(model, requests, *begun)
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
        ends = (words == END) & (totals > _NEVER)
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
                rank, alive = slots[0][one], slots[1][one] > _NEVER
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
        new = scores[:, first].masked_fill(~ends[:, first], _NEVER)
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
        self.alive, rank = self.survivors(totals.masked_fill(ends, _NEVER))
        slots = rank, self.alive
        self.select(parents.gather(1, rank))
        self.tokens = torch.cat([self.tokens, words.gather(1, rank)[:, :, None]], dim=2)
        done, reached = self.complete(), self.at_limit()
        if reached is not None:
            done = done | reached  # also where scores are NaN
        self.alive = self.alive.masked_fill(done[:, None], _NEVER)  # finished sentences get no more hypotheses
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
            self.alive = pad(self.alive, (0, width - own), value=_NEVER)


def chosen(parts: Tensor, parents: Tensor) -> Tensor:
    """Gather (B, W, ·) by parents (B, W') → (B, W', ·)."""
    return parts.gather(1, parents[:, :, None].expand(-1, -1, parts.shape[2]))


# --- diverse beam search -----------------------------------------------------------------------------------------


def selected(totals: Tensor, ends: Tensor, width: int) -> Tensor:
    """(B, N), True for selected continuations: the first W that do not end, and the ends among the first W."""
    continuing = (totals > _NEVER) & ~ends
    first = torch.arange(totals.shape[1], device=totals.device) < width
    return (continuing & (continuing.cumsum(1) <= width)) | (ends & first)


class DiverseBeam(Beam):
    """G groups of w = W/G hypotheses that avoid one another's tokens (Vijayakumar et al. 2016).

    At each step the groups search one after the other. For a token y that n hypotheses of earlier groups of the same
    sentence have just taken, a group ranks by Θ(y₁ … yₜ₋₁) + log p(y) − λ n (the Hamming diversity, §3). The penalty
    chooses; it is no part of any score. Each group stops on its own, by the same rule as a beam of w hypotheses.
    """

    def __init__(self, model: DecodableModel, requests: Sequence[Request], *begun: Any) -> None:
        super().__init__(model, requests, *begun)
        sentences, groups = self.size, self.options.groups
        self.group_width = self.width // groups
        self.returned = 2 * self.width  # all that finish, at most 2w − 1 in a group: several may be the same
        self.finished = Finished.none(sentences, self.returned, self.last_end + 1, self.device)
        self.select(torch.zeros(sentences, groups, dtype=torch.int64, device=self.device))
        self.alive = self.alive.repeat(1, groups)  # (B, G · w), w = 1 before the first token
        self.kept = torch.full((sentences, groups, self.group_width), _NEVER, device=self.device)  # scores, best first
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
            chosen_ = selected(totals, (words == END) & (totals > _NEVER), width)
            taken.scatter_add_(1, words, chosen_.to(taken.dtype))
            parts.append((totals, parents + first, words))
        fill = (0, 2 * width - parts[0][0].shape[1])  # a vocabulary may have fewer tokens
        whole = [
            torch.stack([pad(each, fill, value=value) for each in part], dim=1)
            for part, value in zip(zip(*parts, strict=True), (_NEVER, 0, END), strict=True)
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
        scores = self.scores(totals, parents)[:, : self.width].unflatten(1, shape).masked_fill(~first, _NEVER)
        self.kept = torch.cat([self.kept, scores], dim=2).topk(self.group_width, dim=2).values
        self.ended = self.ended + first.sum(2)

    def survivors(self, totals: Tensor) -> tuple[Tensor, Tensor]:
        """The first w of each group, in ranking order."""
        groups, width = self.options.groups, self.group_width
        columns = torch.arange(totals.shape[1], device=totals.device)
        columns = columns.view(2, groups, width).transpose(0, 1).reshape(groups, -1)  # (G, 2w) where each is
        ordered = totals[:, columns]  # (B, G, 2w)
        rank = (ordered == _NEVER).to(torch.int8).sort(dim=2, stable=True).indices[:, :, :width]
        best = ordered.gather(2, rank)
        progress = SearchProgress(best.amax(2), self.length(), self.limits[:, None], self.kept, self.ended)
        best = best.masked_fill(is_over(progress, self.options)[:, :, None], _NEVER)
        places = columns.expand_as(ordered).gather(2, rank)
        return best.flatten(1), places.flatten(1)

    def complete(self) -> Tensor:
        """(B,), True if every group is done."""
        return self.alive.amax(1) == _NEVER

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


# --- required phrases --------------------------------------------------------------------------------------------


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


class ConstrainedBeam(Beam):
    """Beam search with required phrases: dynamic beam allocation (Post and Vilar 2018).

    Hypotheses are in banks by how many tokens of the phrases they have, and each bank has its share of the beam. Beside
    its best tokens each hypothesis is offered the next token of every phrase it lacks, so the highest bank rises with
    every step until all phrases are complete; only then may an output end. A sentence without phrases has one bank, and
    that is plain beam search.
    """

    def __init__(self, model: DecodableModel, requests: Sequence[Request], *begun: Any) -> None:
        super().__init__(model, requests, *begun)
        edges = next(request.edges for request in requests if request.edges is not None)
        self.required = RequiredPhrases.of([each.demands or Demands() for each in requests], edges, self.device)
        self.most = int(self.required.lengths.sum(1).max())
        self.met = (self.required.lengths == 0)[:, None]  # (B, W, C) which phrases are complete
        self.fresh = torch.zeros_like(self.met)  # (B, W, C) complete since this token, so that a word may still go on
        self._next = (self.met, self.fresh)  # the same for continuations (B, 2W)

    def continuations(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits (B·W, V) → 2W continuations (B, 2W), each bank in its turn."""
        logits = logits.view(*self.alive.shape, -1)
        logits[:, :, END].masked_fill_(~self.met.all(2), _NEVER)
        begun = self.required.begun(self.tokens)  # (B, W, C, L)
        values, words = self._offered(self._whole_words(logits), begun)  # (B, W, M)
        met, fresh, progress = self._after(words, begun)  # (B, W, M, C)
        lengths = self.required.lengths[:, None, None]
        banks = (met * lengths).sum(3) + progress.masked_fill(met, 0).amax(3)  # (B, W, M)
        totals = (values + self.alive[:, :, None]).flatten(1)
        order = in_turn(totals, banks.flatten(1), 2 * self.width, self.most)
        parents = order // words.shape[2]
        self._next = (chosen(met.flatten(1, 2), order), chosen(fresh.flatten(1, 2), order))
        return totals.gather(1, order), parents, words.flatten(1).gather(1, order)

    def _whole_words(self, logits: Tensor) -> Tensor:
        """Logits (B, W, V) without tokens that continue a word after a phrase, unless a prefix has it so."""
        goes_on = self.fresh.any(2)[:, :, None] & self.required.edges.goes_on
        ended = logits.masked_fill(goes_on, _NEVER)
        return torch.where(ended.amax(2, keepdim=True) == _NEVER, logits, ended)

    def _offered(self, logits: Tensor, begun: Tensor) -> tuple[Tensor, Tensor]:
        """Each hypothesis' 2W best tokens, and the next token of each phrase it lacks; every token once."""
        sentences, width, size = logits.shape
        values, words = top_k(logits.flatten(0, 1), min(2 * self.width, size))
        values, words = values.view(sentences, width, -1), words.view(sentences, width, -1)
        places = torch.arange(begun.shape[3], device=begun.device)
        longest = (begun * places).amax(3)  # (B, W, C) how far each phrase has come
        phrases = self.required.phrases[:, None].expand(-1, width, -1, -1)
        wanted = phrases.gather(3, longest[..., None])[..., 0]  # (B, W, C)
        same = (wanted[..., None] == wanted[..., None, :]) & ~self.met[..., None, :]  # (B, W, C, C)
        known = self.met | same.tril(-1).any(3) | (wanted[..., None] == words[:, :, None]).any(3)
        extra = logits.gather(2, wanted).masked_fill(known, _NEVER)
        return torch.cat([values, extra], dim=2), torch.cat([words, wanted], dim=2)

    def _after(self, words: Tensor, begun: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens (B, W, M) → which phrases are complete after each (B, W, M, C), which since that token; how much of
        the others there is."""
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

    def survivors(self, totals: Tensor) -> tuple[Tensor, Tensor]:
        """In the order of their turns."""
        rank = (totals == _NEVER).to(torch.int8).sort(dim=1, stable=True).indices[:, : self.width]
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
