"""Dot products of random vectors against their width d, and what that does to the softmax and its gradient.

For q, k ~ N(0, 1)^d the product q·k has variance d, and q·k/√d has variance 1 (Vaswani et al. 2017, §3.2.1). The larger
the scores, the closer the softmax comes to choosing one key, and its Jacobian diag(α) − α αᵀ to zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from sightline.inspection.claims.table import Claim, ClaimTable

WIDTHS = (4, 16, 64, 256, 1024)


@dataclass(frozen=True)
class Softmaxes:
    """Means over queries: standard deviation of scores, largest weight, and ‖∂α/∂e‖ (Frobenius)."""

    deviation: float
    largest: float
    gradient: float


def softmax_gradient(weights: Tensor) -> Tensor:
    """‖diag(α) − α αᵀ‖ (Frobenius) of each row of weights (N, K)."""
    jacobian = torch.diag_embed(weights) - weights[:, :, None] * weights[:, None, :]  # (N, K, K)
    norms: Tensor = torch.linalg.matrix_norm(jacobian)
    return norms


def measure(width: int, scale: float, *, keys: int = 10, queries: int = 500, seed: int = 1) -> Softmaxes:
    """Random queries and keys, scores q·k · scale."""
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(queries, width, generator=generator, dtype=torch.float64)
    key = torch.randn(queries, keys, width, generator=generator, dtype=torch.float64)
    scores = (key @ query[:, :, None])[..., 0] * scale  # (N, K)
    weights = torch.softmax(scores, -1)
    return Softmaxes(float(scores.std()), float(weights.amax(1).mean()), float(softmax_gradient(weights).mean()))


def scaling_claim(widths: Sequence[int] = WIDTHS, *, keys: int = 10, seed: int = 1) -> Claim:
    """Scores with and without 1/√d."""
    found = {
        form: [measure(width, 1.0 if form == "q·k" else width**-0.5, keys=keys, seed=seed) for width in widths]
        for form in ("q·k", "q·k/√d")
    }
    tables = [
        ClaimTable(
            f"scores {form}",
            ["d", "standard deviation", "largest weight", "‖∂α/∂e‖"],
            [[d, each.deviation, each.largest, each.gradient] for d, each in zip(widths, rows, strict=True)],
        )
        for form, rows in found.items()
    ]
    notes = [f"500 random queries with {keys} random keys each, seed {seed}."]

    def draw(path: Path) -> None:
        from sightline.plots.lines import Panel, Series, draw_lines

        panels = []
        for title, part in (("scores", "deviation"), ("gradient of the softmax", "gradient")):
            lines = [
                Series(form, list(widths), [getattr(each, part) for each in rows], k)
                for k, (form, rows) in enumerate(found.items())
            ]
            label = "standard deviation" if part == "deviation" else "‖∂α/∂e‖"
            panels.append(Panel(title, "d", label, lines, log_x=True))
        draw_lines(panels, path)

    claim = "Dot products grow with √d and the gradient of their softmax vanishes; divided by √d they do not"
    return Claim(claim, tables, notes, {}, draw)
