"""Causal masks: −∞ before the softmax beside zeros after it, and the mask beside a growing set of keys.

    before:  α_ij = exp(e_ij) / Σ_{k ≤ i} exp(e_ik) for j ≤ i, else 0       (the mask of every model here)
    after:   α_ij = exp(e_ij) / Σ_k exp(e_ik)       for j ≤ i, else 0       (no option of any model)

Masked after the softmax, the rows of α do not add up to one, and their normalizer contains scores of the future: a
change of a later word changes earlier outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sightline.inspection.claims.table import Claim, ClaimTable, matrix_table
from sightline.layers.attention import attend, causal_mask
from sightline.layers.scores import ScaledDot

WORDS = ("[START]", "The", "chef", "who")


@dataclass(frozen=True)
class MaskComparison:
    """The same queries, keys and values (T, D) with both masks."""

    scores: Tensor  # (T, T), q·k / √D
    before: Tensor  # (T, T), weights with −∞ before the softmax
    after: Tensor  # (T, T), weights with zeros after the softmax
    outputs: tuple[Tensor, Tensor]  # (T, D), before and after

    @property
    def masked_scores(self) -> Tensor:
        """Scores with −∞ for later keys."""
        return self.scores.masked_fill(~causal_mask(len(self.scores), len(self.scores), self.scores.device), -torch.inf)


def compare_masks(query: Tensor, key: Tensor, value: Tensor) -> MaskComparison:
    """Both masks on queries, keys and values (T, D)."""
    count = len(query)
    scores = query @ key.T / query.shape[1] ** 0.5  # (T, T)
    visible = causal_mask(count, count, query.device)
    before = torch.softmax(scores.masked_fill(~visible, -torch.inf), -1)
    after = torch.softmax(scores, -1) * visible
    return MaskComparison(scores, before, after, (before @ value, after @ value))


@dataclass(frozen=True)
class GrowingKeys:
    """Causal attention by a loop over steps with keys 1 … t, and at once with a mask."""

    loop: Tensor  # (T, D)
    masked: Tensor  # (T, D)
    multiplications: dict[str, int]  # of QKᵀ and αV
    calls: dict[str, int]  # of attention, one after the other


def growing_keys(query: Tensor, key: Tensor, value: Tensor) -> GrowingKeys:
    """The naive way and the mask on queries, keys and values (T, D).

    Recomputing every query at every step, as "change the set of keys and queries" says, takes Σ_t 2 t² D
    multiplications; the new query alone Σ_t 2 t D; the mask 2 T² D in one call.
    """
    count, width = query.shape
    rows = []
    for t in range(1, count + 1):
        weights = torch.softmax(query[t - 1 : t] @ key[:t].T / width**0.5, -1)  # (1, t)
        rows.append(weights @ value[:t])
    heads = [part[None, None] for part in (query, key, value)]  # (1, 1, T, D)
    masked = attend(*heads, score=ScaledDot(width), causal=True)[0, 0]
    steps = range(1, count + 1)
    multiplications = {
        "all queries again at every step": sum(2 * t * t * width for t in steps),
        "one new query a step": sum(2 * t * width for t in steps),
        "all at once with a mask": 2 * count * count * width,
    }
    calls = dict(zip(multiplications, (count, count, 1), strict=True))
    return GrowingKeys(torch.cat(rows), masked, multiplications, calls)


def example(words: int, width: int, seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Random queries, keys and values (T, D), rounded so that they can be copied by hand."""
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (torch.randn(3, words, width, generator=generator, dtype=torch.float64) * 10).round() / 10
    return query, key, value


def mask_claim(words: Sequence[str] = WORDS, width: int = 4, seed: int = 1) -> Claim:
    """Masks before and after the softmax on random vectors for some words."""
    if len(words) < 2:
        raise ValueError(f"{' '.join(words)!r}: one word has no future to mask; give two or more")
    query, key, value = example(len(words), width, seed)
    masks = compare_masks(query, key, value)
    changed_key, changed_value = key.clone(), value.clone()
    changed_key[-1], changed_value[-1] = -key[-1], -value[-1]  # another last word
    changed = compare_masks(query, changed_key, changed_value)
    grown = growing_keys(query, key, value)
    moved = [float((a - b)[:-1].abs().max()) for a, b in zip(masks.outputs, changed.outputs, strict=True)]
    apart = float((grown.loop - grown.masked).abs().max())
    tables = [
        matrix_table("QKᵀ/√d with −∞ before the softmax (rows attend to columns)", masks.masked_scores, words, words),
        _with_sums("weights: softmax of these scores", masks.before, words),
        _with_sums("weights: softmax of all scores, then masked with 0", masks.after, words),
        _cost_table(grown),
    ]
    notes = [
        f"Another last word changes earlier outputs by at most {moved[0]:.4f} with −∞ before the softmax, and by up to "
        f"{moved[1]:.4f} with 0 after it: its normalizer sees the future.",
        f"Growing keys and the mask give the same outputs, {apart:.1e} apart at most.",
        f"Vectors: {len(words)} × {width} random numbers with one digit, seed {seed}.",
    ]
    numbers: dict[str, Any] = {"query": query.tolist(), "key": key.tolist(), "value": value.tolist(), "moved": moved}
    numbers["outputs"] = {"before": masks.outputs[0].tolist(), "after": masks.outputs[1].tolist()}

    def draw(path: Path) -> None:
        from sightline.plots.claims import draw_matrices

        matrices = {
            "scores, −∞ for the future": masks.masked_scores.numpy(),
            "masked before the softmax": masks.before.numpy(),
            "masked after the softmax": masks.after.numpy(),
        }
        draw_matrices(matrices, words, path)

    claim = "A mask hides the future before the softmax: after it, rows do not add up to one and the future leaks"
    return Claim(claim, tables, notes, numbers, draw)


def _with_sums(title: str, weights: Tensor, words: Sequence[str]) -> ClaimTable:
    rows = torch.cat([weights, weights.sum(-1, keepdim=True)], dim=-1)
    return matrix_table(title, rows, words, [*words, "sum"])


def _cost_table(grown: GrowingKeys) -> ClaimTable:
    rows: list[list[str | int]] = [[name, count, grown.calls[name]] for name, count in grown.multiplications.items()]
    return ClaimTable("multiplications of QKᵀ and αV", ["", "multiplications", "sequential calls"], rows)
