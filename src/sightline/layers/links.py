"""Links between the layers of a deep recurrent stack: what a layer's input and output become for the next one."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sightline.layers.linear import Linear

RESIDUAL_FROM = 2  # the number of the first layer with a residual link: "the third from the bottom" (Wu et al. 2016)


class Link(nn.Module):
    """No link: the next layer reads the output h of the recurrence alone."""

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        """What the recurrence read, x (…, I), and its output, h (…, D) → (…, D)."""
        return h


class Residual(Link):
    """h + x: the layer learns what to add to its input (Wu et al. 2016, eq. 6)."""

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        return h + x


class FastForward(Link):
    """W_f [x ; h]: a path from the input to the top with no nonlinearity and no recurrence on it (Zhou et al. 2016)."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.map = Linear(inputs + width, width)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        return self.map(torch.cat([x, h], dim=-1))


def build_link(kind: str, number: int, inputs: int, width: int) -> Link:
    """The link over the layer of that number, which reads `inputs` features; numbers count from 0."""
    if kind == "fast-forward":
        return FastForward(inputs, width)
    return Residual() if kind == "residual" and number >= RESIDUAL_FROM else Link()
