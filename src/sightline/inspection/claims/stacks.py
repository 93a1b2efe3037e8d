"""Untrained Transformer encoders with and without their parts: rank collapse, ranges of activations, word order.

Rank collapse (Dong et al. 2021): self-attention averages, so stacked layers of it make all positions alike. With
r(X) = ‖X − 1 x̄ᵀ‖ / ‖X‖, the share of X (T, D) in which positions differ, r → 0 with the layers; residual connections
slow this down: they hand on what the average loses.

Ranges: without normalization the activations of residual layers grow with depth; with it they stay where they were.

Word order: without positions an encoder is equivariant under permutation, f(P X) = P f(X), and its mean invariant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sightline.inspection.claims.table import Claim, ClaimTable
from sightline.layers.layout import Padded
from sightline.layers.tap import Tapped, on_taps
from sightline.models.protocol import ENCODERS
from sightline.recipe.model import ModelConfig

_HEADS = 4
COLLAPSE: dict[str, dict[str, Any]] = {
    "attention alone": {"residual": False, "feedforward": {"kind": "none"}},
    "+ feed-forward": {"residual": False},
    "+ residual": {"feedforward": {"kind": "none"}},
    "+ both": {},
}
NORMS: dict[str, dict[str, Any]] = {place: {"norm": {"place": place}} for place in ("none", "pre", "post")}
ORDERS: dict[str, dict[str, Any]] = {
    "Transformer without positions": {},
    "Transformer, sinusoidal positions": {"positions": {"kind": "sinusoidal"}},
    "Transformer, rotary positions": {"positions": {"kind": "rotary"}},
    "LSTM": {"kind": "recurrent", "cell": "lstm", "bidirectional": False},
}


def encoder_of(options: Mapping[str, Any], *, layers: int, width: int, seed: int) -> nn.Module:
    """An untrained encoder in double precision; by default a Transformer without positions and norm."""
    transformer = {"kind": "transformer", "heads": _HEADS, "positions": {"kind": "none"}, "norm": {"place": "none"}}
    body = {**({} if "kind" in options else transformer), "layers": layers, "dropout": 0.0, **options}
    recipe = ModelConfig.model_validate({"width": width, "encoder": body})
    assert recipe.encoder is not None
    torch.manual_seed(seed)
    encoder: nn.Module = ENCODERS[recipe.encoder.kind](recipe.encoder, width)
    return encoder.double().eval()


def layer_outputs(encoder: nn.Module, x: Tensor) -> list[Tensor]:
    """The input x (1, T, D) and the output (1, T, D) of every layer."""
    outputs = [x]

    def keep(tapped: Tapped) -> None:
        outputs.append(tapped.tensor)

    paths = [name for name, _ in encoder.named_modules() if name.startswith("layers.") and name.count(".") == 1]
    with on_taps(encoder, keep, paths, ["output"]):
        encoder(x, Padded.of([x.shape[1]]))
    return outputs


def inputs_of(words: int, width: int, seed: int) -> Tensor:
    """Random vectors (T, D)."""
    return torch.randn(words, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --- rank collapse ------------------------------------------------------------------------------------------------


def difference_share(x: Tensor) -> float:
    """r(X) = ‖X − 1 x̄ᵀ‖ / ‖X‖ of X (T, D): 0 if all positions are alike."""
    return float((x - x.mean(0)).norm() / x.norm())


def collapse_claim(*, layers: int = 12, width: int = 64, words: int = 16, seeds: int = 3) -> Claim:
    """r by layer, with and without residual connections and feed-forward nets, without norm."""
    shares: dict[str, list[float]] = {}
    with torch.no_grad():
        for name, options in COLLAPSE.items():
            rows = []
            for seed in range(1, seeds + 1):
                encoder = encoder_of(options, layers=layers, width=width, seed=seed)
                states = layer_outputs(encoder, inputs_of(words, width, seed)[None])
                rows.append([difference_share(each[0]) for each in states])
            shares[name] = torch.tensor(rows).mean(0).tolist()
    table = ClaimTable(
        "r = ‖X − 1 x̄ᵀ‖ / ‖X‖ after each layer", ["layer", *shares], [[k, *row] for k, row in _by_layer(shares)]
    )
    notes = [f"Untrained encoders, {words} random vectors of {width} features, {_HEADS} heads, mean of {seeds} seeds."]

    def draw(path: Path) -> None:
        _draw_by_layer({"positions become alike": (shares, "r")}, path)

    claim = "Stacked self-attention only re-averages: residual connections keep positions apart"
    return Claim(claim, [table], notes, {"shares": shares}, draw)


def _by_layer(columns: Mapping[str, list[float]]) -> list[tuple[int, tuple[float, ...]]]:
    return list(enumerate(zip(*columns.values(), strict=True)))


def _draw_by_layer(panels: Mapping[str, tuple[Mapping[str, list[float]], str]], path: Path) -> None:
    from sightline.plots.lines import Panel, Series, draw_lines

    drawn = []
    for title, (columns, label) in panels.items():
        lines = [Series(name, list(range(len(row))), row, k) for k, (name, row) in enumerate(columns.items())]
        drawn.append(Panel(title, "layer", label, lines))
    draw_lines(drawn, path)


# --- normalization ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ranges:
    """By layer, from the input: largest absolute activation, standard deviation, and gradient norm."""

    largest: list[float]
    deviation: list[float]
    gradient: list[float]


def activation_ranges(encoder: nn.Module, x: Tensor, seed: int = 1) -> Ranges:
    """Activations of every layer for x (T, D), and ‖∂L/∂X_l‖ of L = Σ (R ∘ X_L) / √(TD) with random R."""
    outputs = layer_outputs(encoder, x[None].clone().requires_grad_())
    target = inputs_of(x.shape[0], x.shape[1], seed + 100) / x.numel() ** 0.5
    gradients = torch.autograd.grad((outputs[-1] * target).sum(), outputs)
    return Ranges(
        [float(each.detach().abs().max()) for each in outputs],
        [float(each.detach().std()) for each in outputs],
        [float(each.norm()) for each in gradients],
    )


def norms_claim(*, layers: int = 24, width: int = 64, words: int = 16, seed: int = 1) -> Claim:
    """Ranges by layer without norm, with pre-norm and with post-norm."""
    x = inputs_of(words, width, seed)
    found = {
        name: activation_ranges(encoder_of(options, layers=layers, width=width, seed=seed), x, seed)
        for name, options in NORMS.items()
    }
    chosen = sorted({0, 1, 2, *range(4, layers, 4), layers})
    tables = []
    for title, part in (("largest activation", "largest"), ("‖∂L/∂X‖", "gradient")):
        columns = {f"norm: {name}": getattr(each, part) for name, each in found.items()}
        rows = [[layer, *row] for layer, row in _by_layer(columns) if layer in chosen]
        tables.append(ClaimTable(f"{title} after each layer", ["layer", *columns], rows))
    notes = [f"Untrained encoders of {layers} layers with residuals and feed-forward nets, {words} × {width} inputs."]

    def draw(path: Path) -> None:
        panels = {
            "activations": ({name: each.largest for name, each in found.items()}, "largest absolute activation"),
            "gradients": ({name: each.gradient for name, each in found.items()}, "‖∂L/∂X‖"),
        }
        _draw_by_layer(panels, path)

    claim = "Normalization keeps activations and gradients in a range that does not depend on depth"
    return Claim(claim, tables, notes, {"ranges": {name: vars(each) for name, each in found.items()}}, draw)


# --- word order ---------------------------------------------------------------------------------------------------


def order_errors(encoder: nn.Module, x: Tensor, order: Tensor) -> tuple[float, float]:
    """max |f(P X) − P f(X)|, and the same for the means over positions."""
    with torch.no_grad():
        layout = Padded.of([len(x)])
        plain, permuted = encoder(x[None], layout).states[0], encoder(x[order][None], layout).states[0]
    return float((permuted - plain[order]).abs().max()), float((permuted.mean(0) - plain.mean(0)).abs().max())


def permutation_claim(*, layers: int = 2, width: int = 64, words: int = 10, seed: int = 1) -> Claim:
    """Whether encoders notice the order of their input."""
    x = inputs_of(words, width, seed)
    order = torch.randperm(words, generator=torch.Generator().manual_seed(seed))
    rows: list[list[str | float]] = []
    for name, options in ORDERS.items():
        rows.append([name, *order_errors(encoder_of(options, layers=layers, width=width, seed=seed), x, order)])
    columns = ["encoder", "max |f(PX) − P f(X)|", "of the mean"]
    notes = [
        f"P: {' '.join(str(int(place) + 1) for place in order)}. The outputs move with their words (equivariance); "
        "only a function of all, such as the mean, stays the same (invariance).",
    ]
    claim = "Without positions self-attention does not see word order: permuted inputs give permuted outputs"
    return Claim(claim, [ClaimTable(f"{words} words in another order", columns, rows)], notes)
