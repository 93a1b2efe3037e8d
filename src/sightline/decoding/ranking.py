"""How hypotheses are ranked, and when a beam search ends.

The score of an output is its log-probability, normalized by length, plus a coverage penalty:

    gnmt     log p(y | x) / ((5 + |y|) / 6)^α        (Wu et al. 2016, §7)
    length   log p(y | x) / |y|^α                    (Jean et al. 2015; α = 1 in transformers and CTranslate2)
    reward   log p(y | x) + α |y|                    (He et al. 2016; a reward per token)

|y| counts the end mark. α = 0 is no normalization in every form.

A search of W hypotheses keeps its W best finished outputs. It may end once no live hypothesis can still become one of
the n requested outputs. The continuation of a hypothesis is not known, so stopping rules differ in what they assume:

    bound     nothing: each further token has probability 1, and the output gets the most favourable length up to its
              limit. Exact: no longer search with the same beam finds better outputs.
    horizon   the same, but once W outputs have finished none becomes longer than p times the present length (default
              p = 1.25)
    present   the best live hypothesis ends with the next token and is compared with the worst of W kept outputs (the
              default of transformers)
    count     nothing better comes after p · W outputs have finished (default p = 1; Kasai et al. 2022)

`bound` holds beside each of the others, for it cannot change an output.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sightline.recipe import Decoding
from sightline.recipe.decoding import LengthNormalization, StoppingRule

HORIZON = 1.25  # measured in docs/decoding.md
_NEVER = float("-inf")
_BLOCK = 64  # of `top_k`

# log-probability, length, α → score; each rises with the log-probability and, where that is at most 0, with the length
NORMALIZATIONS: dict[LengthNormalization, Callable[[Any, Any, float], Any]] = {
    "gnmt": lambda log_probability, length, alpha: log_probability / ((5.0 + length) / 6.0) ** alpha,
    "length": lambda log_probability, length, alpha: log_probability / (1.0 * length) ** alpha,
    "reward": lambda log_probability, length, alpha: log_probability + alpha * length,
}


def normalized(log_probability: Tensor | float, length: Tensor | int, options: Decoding) -> Any:
    """The score of outputs of this length (end mark included), without coverage penalty."""
    return NORMALIZATIONS[options.length_normalization](log_probability, length, options.length_penalty)


def highest_score(log_probability: Tensor, limits: Tensor, options: Decoding) -> Tensor:
    """The highest score that any continuation of a hypothesis can reach when no output is longer than `limits`.

    Every further token multiplies by a probability of at most 1, so the log-probability cannot rise; every form of
    normalization favours the longest output; a coverage penalty is at most 0.
    """
    bound: Tensor = normalized(log_probability, limits.float(), options)
    return bound


def coverage_penalty(coverage: Tensor, mask: Tensor | None, beta: float) -> Tensor:
    """β Σ_j log min(Σ_t α_tj, 1) over the source positions (same source): (…, S) → (…,)."""
    logs = coverage.clamp(min=1e-6, max=1.0).log()
    if mask is not None:
        logs = logs.masked_fill(~mask, 0.0)
    return beta * logs.sum(-1)


# --- stopping ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SearchProgress:
    """How far the searches for some sentences (or groups of a beam) are; `…` is (B,) or (B, G)."""

    best: Tensor  # (…,) log-probability of the best live hypothesis; −∞: there is none
    length: int | Tensor  # (…,) tokens of each live hypothesis
    limits: Tensor  # (…,) most tokens of each output
    kept: Tensor  # (…, W) scores of the best finished outputs, best first; −∞ where there are fewer
    total: Tensor  # (…,) how many have finished in all


def _count(progress: SearchProgress, options: Decoding) -> Tensor:
    return progress.total >= (options.patience or 1.0) * progress.kept.shape[-1]


def _present(progress: SearchProgress, options: Decoding) -> Tensor:
    over: Tensor = normalized(progress.best, progress.length + 1, options) <= progress.kept[..., -1]
    return over


def _bound(progress: SearchProgress, options: Decoding) -> Tensor:
    return highest_score(progress.best, progress.limits, options) <= _to_beat(progress, options)


def _horizon(progress: SearchProgress, options: Decoding) -> Tensor:
    longest = progress.limits.clamp(max=(options.patience or HORIZON) * (progress.length + 1))  # type: ignore[arg-type]
    enough = progress.total >= progress.kept.shape[-1]
    return enough & (highest_score(progress.best, longest, options) <= _to_beat(progress, options))


def _to_beat(progress: SearchProgress, options: Decoding) -> Tensor:
    """(…,) the score of the worst finished output that would be returned."""
    return progress.kept[..., min(options.candidates, progress.kept.shape[-1]) - 1]


RULES: dict[StoppingRule, Callable[[SearchProgress, Decoding], Tensor]] = {
    "count": _count,
    "present": _present,
    "horizon": _horizon,
    "bound": _bound,
}


def is_over(progress: SearchProgress, options: Decoding) -> Tensor:
    """(…,) whether the search ends. One hypothesis alone is greedy search: it ends with its first output."""
    if progress.kept.shape[-1] == 1:
        return (progress.best == _NEVER) | (progress.total > 0)
    return (progress.best == _NEVER) | _bound(progress, options) | RULES[options.stopping](progress, options)


def top_k(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """(R, V) → values and indices (R, k), largest first: what `torch.topk` gives, in less time.

    The k largest elements are in the k blocks with the largest maxima, so two small selections replace one over the
    whole row: the pass over all elements is a vectorized maximum. (On a GPU `torch.topk` reads a row many times over, a
    few bits of each element at a time.)
    """
    size = scores.shape[-1]
    blocks = size // _BLOCK
    if blocks <= 2 * k:
        values, indices = scores.topk(k, dim=-1)
        return values, indices
    rows = scores.shape[0]
    whole = blocks * _BLOCK
    head = scores[:, :whole].unflatten(1, (blocks, _BLOCK))  # (R, blocks, 64)
    best = head.amax(-1).topk(k, dim=-1, sorted=False).indices  # (R, k)
    if whole == size:  # whole blocks are rows of a view, which are fetched faster than elements
        lines = (best + torch.arange(rows, device=scores.device)[:, None] * blocks).flatten()
        candidates = scores.reshape(rows * blocks, _BLOCK).index_select(0, lines).view(rows, -1)  # (R, k · 64)
        values, among = candidates.topk(k, dim=-1)
        return values, best.gather(1, among // _BLOCK) * _BLOCK + among % _BLOCK
    places = (best[:, :, None] * _BLOCK + torch.arange(_BLOCK, device=scores.device)).flatten(1)  # (R, k · 64)
    tail = torch.arange(whole, size, device=scores.device).expand(rows, -1)
    places = torch.cat([places, tail], dim=1)
    values, among = scores.gather(1, places).topk(k, dim=-1)
    return values, places.gather(1, among)
