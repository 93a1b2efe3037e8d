"""The score by which the outputs of a search are ranked: log-probability, normalized by length, plus coverage.

    gnmt     log p(y | x) / ((5 + |y|) / 6)^α        (Wu et al. 2016, §7)
    length   log p(y | x) / |y|^α                    (Jean et al. 2015; α = 1 in transformers and CTranslate2)
    reward   log p(y | x) + α |y|                    (He et al. 2016; a reward per token)

|y| counts the end mark. α = 0 is no normalization in every form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from sightline.recipe import Decoding
from sightline.recipe.decoding import LengthNormalization

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
    normalization is kindest to the longest output; a coverage penalty is at most 0.
    """
    bound: Tensor = normalized(log_probability, limits.float(), options)
    return bound


def coverage_penalty(coverage: Tensor, mask: Tensor | None, beta: float) -> Tensor:
    """β Σ_j log min(Σ_t α_tj, 1) over the source positions (same source): (…, S) → (…,)."""
    logs = coverage.clamp(min=1e-6, max=1.0).log()
    if mask is not None:
        logs = logs.masked_fill(~mask, 0.0)
    return beta * logs.sum(-1)
