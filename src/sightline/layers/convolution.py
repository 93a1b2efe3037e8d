"""Convolutions over sequences: dilated, causal, gated, with optional weight normalization.

    y_t = Σ_j W_j x_{t − before + j·d} + b,  j = 0 … k − 1

with kernel k and dilation d; `before` is (k − 1)·d if causal, else half of that. Inputs outside the sequence are zero.
The sum is computed as one product of k concatenated vectors with one matrix, by the kernels of `linear`.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from sightline.layers.initialization import normal_
from sightline.layers.layout import Layout, Packed
from sightline.layers.linear import Projection, onednn_fits
from sightline.layers.tap import TapModule


def windows(x: Tensor, kernel: int, dilation: int = 1) -> Tensor:
    """(B, T + (k − 1)·d, I) → (B, T, k·I): [x_t ; x_{t+d} ; … ; x_{t+(k−1)d}] at each position."""
    count = x.shape[1] - (kernel - 1) * dilation
    if kernel == 1:
        return x
    return torch.cat([x[:, j * dilation : j * dilation + count] for j in range(kernel)], dim=-1)


def packed_windows(x: Tensor, layout: Packed, kernel: int, dilation: int, before: int) -> Tensor:
    """(N, I) → (N, k·I): [x_{t−before} ; x_{t−before+d} ; …], zeros outside the sequence."""
    if kernel == 1:
        return x
    around = nn.functional.pad(x, (0, 0, before, (kernel - 1) * dilation - before))
    outside = ~layout.within(torch.arange(kernel, device=x.device) * dilation - before)  # (N, k)
    shifted = (around[j * dilation : j * dilation + len(x)] for j in range(kernel))
    return torch.cat([part.masked_fill(outside[:, j, None], 0.0) for j, part in enumerate(shifted)], dim=-1)


def glu(x: Tensor) -> Tensor:
    """[a ; b] ↦ a ⊗ σ(b): (…, 2D) → (…, D) (Dauphin et al. 2017)."""
    return nn.functional.glu(x, dim=-1)


def weight_normalized(direction: Tensor, length: Tensor) -> Tensor:
    """W = g · v / ‖v‖ for each row: directions v (O, I), lengths g (O,) → (O, I)."""
    return direction * (length / direction.norm(dim=1))[:, None]


def scale_gradient(x: Tensor, factor: float) -> Tensor:
    """Return x exactly; multiply its gradient by `factor`."""
    if not x.requires_grad:
        return x
    detached = x.detach()
    return detached + (x - detached) * factor


class NormalizedLinear(Projection):
    """x Wᵀ + b with weight normalization: W = g · v / ‖v‖ for each row (Salimans and Kingma 2016).

    Initially v ~ N(0, std²), g = ‖v‖, b = 0.
    """

    def __init__(self, inputs: int, outputs: int, *, std: float) -> None:
        super().__init__()
        self.std = std
        self.direction = nn.Parameter(torch.empty(outputs, inputs))
        self.length = nn.Parameter(torch.empty(outputs))
        self.bias = nn.Parameter(torch.empty(outputs))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        if self.direction.is_meta:
            return
        normal_(self.direction, self.std)
        self.length.copy_(self.direction.norm(dim=1))
        self.bias.zero_()

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """(O, I)."""
        if self._computed is not None and not torch.is_grad_enabled():
            return self._computed
        return weight_normalized(self.direction, self.length)

    def pack(self, precision: torch.dtype = torch.float32) -> None:
        super().pack(precision)
        if self._packed is None:  # (oneDNN keeps a copy of the weight)
            self._computed = self.weight.detach()

    def forward(self, x: Tensor, activation: str = "none") -> Tensor:
        return self.apply_rows(x, 0, len(self.length), activation)  # without computing `weight`

    def _rows(self, start: int, stop: int) -> tuple[Tensor, Tensor | None]:
        whole = stop - start == len(self.length)
        return (self.weight, self.bias) if whole else super()._rows(start, stop)

    def apply_rows(self, x: Tensor, start: int, stop: int, activation: str = "none") -> Tensor:
        packed = None if self._packed is None or torch.is_grad_enabled() else self._packed.get((start, stop))
        if packed is not None and onednn_fits(x, self.direction):
            return packed(x, activation)  # without computing `weight`
        return super().apply_rows(x, start, stop, activation)


class Convolution(TapModule):
    """Σ_j W_j x_{t − before + j·d} + b with `project`: k·I → O features. If not causal, the kernel must be odd."""

    entry_points: ClassVar[tuple[str, ...]] = ("advance",)

    def __init__(self, project: Projection, kernel: int, *, dilation: int = 1, causal: bool = False) -> None:
        super().__init__()
        if not causal and kernel % 2 == 0:
            raise ValueError(
                f"kernel ({kernel}) must be odd to see as much on either side; only causal ones may be even"
            )
        self.project, self.kernel, self.dilation, self.causal = project, kernel, dilation, causal
        self.reach = (kernel - 1) * dilation  # distance from the first to the last input of an output

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """Whole sequences: x (B, T, I) or (N, I) → (…, O)."""
        before = self.reach if self.causal else self.reach // 2
        if isinstance(layout, Packed):
            return self._product(packed_windows(x, layout, self.kernel, self.dilation, before))
        mask = layout.key_mask()
        if mask is not None and not self.causal:  # padding is at the end, which a causal convolution never sees
            x = x.masked_fill(~mask[..., None], 0.0)
        x = nn.functional.pad(x, (0, 0, before, self.reach - before))  # (B, reach + T, I)
        return self._product(windows(x, self.kernel, self.dilation))

    def advance(self, x: Tensor, recent: Tensor, ends: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Append tokens x (B, T, I) to the last inputs (B, reach, I) → output (B, T, O), new last inputs.

        `ends` (B,): number of real tokens among the T; None: all.
        """
        inputs = torch.cat([recent, x], dim=1)  # (B, reach + T, I)
        output = self._product(windows(inputs, self.kernel, self.dilation))
        if ends is None:
            return output, inputs[:, x.shape[1] :]
        places = ends[:, None] + torch.arange(self.reach, device=x.device)  # (B, reach)
        return output, inputs.gather(1, places[..., None].expand(-1, -1, x.shape[2]))

    def _product(self, x: Tensor) -> Tensor:
        """(…, k·I) → (…, O)."""
        return self.tap("output", self.project(x), "Σ_j W_j x_{t+jd} + b")
