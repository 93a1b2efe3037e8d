"""When the beam search for a sentence ends.

A search of W hypotheses keeps its W best finished outputs. It may end once no live hypothesis can still become one of
the n outputs that are wanted. What can still become of a hypothesis is not known, so rules differ in what they assume:

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

from torch import Tensor

from sightline.decoding.ranking import highest_score, normalized
from sightline.recipe import Decoding
from sightline.recipe.decoding import StoppingRule

_NEVER = float("-inf")
HORIZON = 1.25  # measured in docs/decoding.md


@dataclass(frozen=True)
class Progress:
    """How far the searches for some sentences (or groups of a beam) are; `…` is (B,) or (B, G)."""

    best: Tensor  # (…,) log-probability of the best live hypothesis; −∞: there is none
    length: int  # tokens of each live hypothesis
    limits: Tensor  # (…,) most tokens of each output
    kept: Tensor  # (…, W) scores of the best finished outputs, best first; −∞ where there are fewer
    total: Tensor  # (…,) how many have finished in all


def _count(progress: Progress, options: Decoding) -> Tensor:
    return progress.total >= (options.patience or 1.0) * progress.kept.shape[-1]


def _present(progress: Progress, options: Decoding) -> Tensor:
    found: Tensor = normalized(progress.best, progress.length + 1, options) <= progress.kept[..., -1]
    return found


def _bound(progress: Progress, options: Decoding) -> Tensor:
    return highest_score(progress.best, progress.limits, options) <= _to_beat(progress, options)


def _horizon(progress: Progress, options: Decoding) -> Tensor:
    longest = progress.limits.clamp(max=(options.patience or HORIZON) * (progress.length + 1))
    enough = progress.total >= progress.kept.shape[-1]
    return enough & (highest_score(progress.best, longest, options) <= _to_beat(progress, options))


def _to_beat(progress: Progress, options: Decoding) -> Tensor:
    """(…,) the score of the worst finished output that is wanted."""
    return progress.kept[..., min(options.nbest, progress.kept.shape[-1]) - 1]


RULES: dict[StoppingRule, Callable[[Progress, Decoding], Tensor]] = {
    "count": _count,
    "present": _present,
    "horizon": _horizon,
    "bound": _bound,
}


def is_over(progress: Progress, options: Decoding) -> Tensor:
    """(…,) whether the search ends. One hypothesis alone is greedy search: it ends with its first output."""
    if progress.kept.shape[-1] == 1:
        return (progress.best == _NEVER) | (progress.total > 0)
    return (progress.best == _NEVER) | _bound(progress, options) | RULES[options.stopping](progress, options)
