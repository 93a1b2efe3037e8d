"""What a head's weights are like, in four numbers: how spread, how near the diagonal, how sure.

All are functions of p (T, S): the weights of T queries over S keys, each row adding up to one. Weights that do not
(linear attention's may be negative) are taken by their size: p = |a| / Σ|a|. `seen` (T,) says how many keys each query
may look at, the first ones: all of them, or in a decoder's self-attention those up to its own place.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from sightline.plots.heat_map import Numbers, row_shares


@dataclass(frozen=True)
class HeadMeasures:
    """The four of one head; a measure that means nothing there (one key, one query) is nan."""

    entropy: float  # nats
    entropy_share: float  # of what even attention would have: 0 one key alone, 1 all alike
    diagonality: float  # 1 on the diagonal, 0 as far from it as even attention, below that further
    confidence: float

    def to_dict(self) -> dict[str, float | None]:
        """For JSON, which knows no nan."""
        return {name: None if math.isnan(value) else value for name, value in asdict(self).items()}


def entropy(p: Numbers) -> Numbers:
    """(T,) −Σ_s p_ts log p_ts, in nats."""
    logs = np.log(p, out=np.zeros(p.shape), where=p > 0)
    result: Numbers = -(p * logs).sum(axis=1)
    return result


def entropy_share(p: Numbers, seen: NDArray[np.int64]) -> float:
    """Σ_t H(p_t) / Σ_t log S_t with S_t the keys query t may see: a query that sees one key counts for nothing."""
    most = float(np.log(np.maximum(seen, 1)).sum())
    return float(entropy(p).sum()) / most if most > 0 else math.nan


def diagonality(p: Numbers, seen: NDArray[np.int64]) -> float:
    """1 − Σ_ts p_ts d_ts / Σ_ts u_ts d_ts with d_ts = |s / (S − 1) − t / (T − 1)|, u_ts = 1 / S_t on the keys seen.

    How far from the diagonal the weights lie, as a share of how far even attention lies, taken from one. (Measures of
    this kind are common for speech: Shim et al. 2021 add up what lies within bands around the diagonal.)
    """
    queries, keys = p.shape
    across = np.arange(keys) / max(keys - 1, 1)
    down = np.arange(queries) / max(queries - 1, 1)
    distances = np.abs(across[None, :] - down[:, None])  # (T, S)
    visible = np.arange(keys)[None, :] < seen[:, None]
    even = float((distances * visible / np.maximum(seen, 1)[:, None]).sum())
    return 1.0 - float((p * distances).sum()) / even if even > 0 else math.nan


def confidence(p: Numbers) -> float:
    """Mean over the queries of max_s p_ts (Voita et al. 2019, §4, who leave the end mark out)."""
    return float(p.max(axis=1).mean()) if p.size else math.nan


def measure_head(weights: NDArray[np.float32], *, causal: bool = False) -> HeadMeasures:
    """All of them for weights (T, S); causal: query t sees the keys up to the one at its own place, counted from the
    end."""
    queries, keys = weights.shape
    seen = np.arange(1, queries + 1) + (keys - queries) if causal else np.full(queries, keys)
    p = row_shares(weights)
    if causal and keys < queries:  # compressed ones: a query sees those that it gives any weight
        seen = (p > 0).sum(axis=1)
    return HeadMeasures(
        entropy=float(entropy(p).mean()) if p.size else math.nan,
        entropy_share=entropy_share(p, seen),
        diagonality=diagonality(p, seen),
        confidence=confidence(p),
    )
