"""Attention as a soft lookup table.

    hard:  output = v_j where k_j = q, and no output where no key is equal
    soft:  output = Σ_j α_j v_j, α = softmax(s · q·k_j)

The sharper the softmax (the larger s), the closer the soft lookup comes to the value of the nearest key.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from sightline.inspection.claims.table import Claim, ClaimTable

KEYS = ("a", "b", "c", "d", "e")
SHARPNESS = (1.0, 4.0, 16.0, 64.0)


def keys_and_values(count: int = len(KEYS)) -> tuple[Tensor, Tensor]:
    """Keys (K, 2), evenly spaced on a circle from the right, and values (K): 10, 20, …"""
    angles = torch.arange(count, dtype=torch.float64) * 2 * math.pi / count
    return torch.stack([angles.cos(), angles.sin()], 1), torch.arange(1, count + 1).double() * 10


def hard_lookup(query: Tensor, keys: Tensor, values: Tensor) -> float | None:
    """The value of the key that equals the query (D), or None."""
    for key, value in zip(keys, values, strict=True):
        if torch.allclose(key, query, rtol=0.0, atol=1e-9):
            return float(value)
    return None


def soft_lookup(query: Tensor, keys: Tensor, values: Tensor, sharpness: float = 1.0) -> tuple[Tensor, float]:
    """The weights (K) of the keys and their average value."""
    weights = torch.softmax(sharpness * keys @ query, 0)
    return weights, float(weights @ values)


def lookup_claim(query: str = "d", sharpness: Sequence[float] = SHARPNESS) -> Claim:
    """Both lookups for a query: the name of a key, or its angle on the circle in degrees."""
    keys, values = keys_and_values()
    if query in KEYS:
        angle = KEYS.index(query) * 360 / len(KEYS)
    else:
        try:
            angle = float(query)
        except ValueError as error:
            known = ", ".join(KEYS)
            raise ValueError(f"query {query!r}: give one of {known}, or an angle in degrees such as 200") from error
    radians = math.radians(angle)
    vector = torch.tensor([math.cos(radians), math.sin(radians)], dtype=torch.float64)
    found = hard_lookup(vector, keys, values)
    soft = [soft_lookup(vector, keys, values, scale) for scale in sharpness]
    rows: list[list[str | int | float | None]] = []
    for j, (key, value) in enumerate(zip(KEYS, values.tolist(), strict=True)):
        rows.append([key, int(value), 1.0 if found == value else 0.0, *(float(weights[j]) for weights, _ in soft)])
    rows.append(["output", None, found, *(output for _, output in soft)])
    columns = ["key", "value", "hard", *(f"soft, s = {scale:g}" for scale in sharpness)]
    notes = [
        f"Keys are 5 points on a circle, 72° apart; the query is at {angle:g}°, so q·k is the cosine between them."
    ]
    if found is None:
        notes.append("No key equals the query, so the table has no answer; attention averages the values nearby.")

    def draw(path: Path) -> None:
        from sightline.plots.lines import Panel, Series, draw_lines

        lines = [
            Series(f"s = {scale:g}", list(range(1, 6)), weights.tolist(), k)
            for k, (scale, (weights, _)) in enumerate(zip(sharpness, soft, strict=True))
        ]
        draw_lines([Panel(f"query at {angle:g}°", "key (1 = a … 5 = e)", "weight", lines, log_y=False)], path)

    claim = "A lookup table returns the value of one key; attention averages the values of all keys by similarity"
    numbers = {"query": vector.tolist(), "keys": keys.tolist()}
    return Claim(claim, [ClaimTable("lookup of one query", columns, rows, fixed=True)], notes, numbers, draw)
