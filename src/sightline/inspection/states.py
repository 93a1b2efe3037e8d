"""The states of a sequence kept as nodes of the graph, so that a loss can be differentiated by each of them.

- Recurrent layers hand a state from step to step: (h_k) or, of an LSTM, (h_k, c_k), each part a coordinate of its own.
- Other layers read the states below them: the vectors that enter, and what each layer puts out.

Fused kernels show no states between the steps, so inside `keep_states` recurrent layers run step by step, by the same
formula and parameters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from sightline.layers.embedding import Embedding
from sightline.layers.layout import Layout
from sightline.layers.recurrent import BackwardRecurrence, Hidden, Recurrence, turned
from sightline.layers.tap import Tapped, on_taps

Side = Literal["encoder", "decoder"]

_LAYER = re.compile(r"^(encoder|decoder)\.layers\.(\d+)(\..*)?$")
_ENTERS, _TOP = -1, 1_000_000  # where the vectors that enter, and what a body puts out, stand among the layers


@dataclass
class LayerStates:
    """The states of one layer: whole tensors (B, T, D), or one (B, D) a step with the place each row stands at."""

    tensors: list[Tensor] = field(default_factory=list)
    places: list[Tensor | None] = field(default_factory=list)  # (B,) each

    def add(self, parts: Hidden, places: Tensor | None = None) -> None:
        self.tensors += parts
        self.places += [places] * len(parts)

    def norms(self, gradients: list[Tensor | None], longest: int) -> Tensor:
        """(B, longest): the norm at each place of what was found for each tensor; None is zero.

        A step behind the end of its sequence has the place `longest` or a later one, and does not count.
        """
        first = self.tensors[0]
        squares = torch.zeros(first.shape[0], longest + 1, dtype=torch.float64, device=first.device)
        for gradient, places in zip(gradients, self.places, strict=True):
            if gradient is None:
                continue
            square = gradient.double().pow(2).sum(-1)  # (B, T) or (B,)
            if places is None:
                squares[:, : min(square.shape[1], longest)] += square[:, :longest]
            else:
                squares.scatter_add_(1, places.clamp(max=longest)[:, None], square[:, None])
        return squares[:, :longest].sqrt()


@dataclass
class KeptStates:
    """The states of every layer of a forward pass, by the side and the number of the layer."""

    both: bool  # whether there is an encoder and a decoder
    found: dict[tuple[Side, int], LayerStates] = field(default_factory=dict)

    def layers(self, side: Side) -> dict[str, LayerStates]:
        """By name, from the bottom; what a body puts out stands for its top layer."""
        numbers = sorted(number for each, number in self.found if each == side)
        if numbers[-1:] == [_TOP]:
            numbers = [*numbers[:-2], _TOP] if len(numbers) > 2 else [*numbers]
        names = {_ENTERS: "embedding", _TOP: "output"}
        return {names.get(number, f"layer {number + 1}"): self.found[side, number] for number in numbers}

    def hear(self, tapped: Tapped) -> Tensor | None:
        """Keep what enters a body, what a layer puts out and what the encoder hands over."""
        path, _, name = tapped.name.rpartition(".")
        layer = _LAYER.match(path)
        if name == "vectors" and "embedding" in path:
            side: Side = "encoder" if path.startswith("source") or (self.both and not self.found) else "decoder"
            return self._keep(side, _ENTERS, tapped.tensor)
        if name == "output" and layer is not None:  # the last one of a layer is its own
            return self._keep("encoder" if layer[1] == "encoder" else "decoder", int(layer[2]), tapped.tensor)
        if tapped.name == "encoder.output":
            return self._keep("encoder", _TOP, tapped.tensor)
        return None

    def _keep(self, side: Side, number: int, tensor: Tensor) -> Tensor | None:
        kept = tensor if tensor.requires_grad else tensor.detach().requires_grad_()
        self.found[side, number] = LayerStates([kept], [None])
        return None if kept is tensor else kept

    def step(self, side: Side, number: int, parts: Hidden, places: Tensor | None = None) -> Hidden:
        """Keep the state after a step, and give back what the next step must go on with."""
        kept = tuple(part.clone() if part.requires_grad else part.detach().requires_grad_() for part in parts)
        own = self.found.setdefault((side, number), LayerStates())
        if places is None:
            places = torch.full((len(kept[0]),), len(own.tensors) // len(kept), device=kept[0].device)
        own.add(kept, places)
        return kept


@contextmanager
def keep_states(model: nn.Module) -> Iterator[KeptStates]:
    """Keep the states of what `model` computes inside the block (once, over whole padded sequences)."""
    kept = KeptStates(both=hasattr(model, "encoder") and hasattr(model, "decoder"))
    paths, recurrent = _watched(model)
    for path, layer in recurrent.items():
        side: Side = "encoder" if path.startswith("encoder") else "decoder"
        number = int(path.rsplit(".", 1)[1])
        layer.__dict__["forward"] = _kept_forward(layer, kept, side, number)
        layer.__dict__["read"] = _kept_read(layer, kept, side, number)
    try:
        with on_taps(model, kept.hear, paths):
            yield kept
    finally:
        for layer in recurrent.values():
            del layer.__dict__["forward"], layer.__dict__["read"]


def _watched(model: nn.Module) -> tuple[list[str], dict[str, Recurrence]]:
    """The paths to listen to, and the recurrent layers."""
    modules = dict(model.named_modules())
    recurrent = {path: module for path, module in modules.items() if isinstance(module, Recurrence)}
    sides = {path.split(".", 1)[0] for path in recurrent}
    paths = [
        path
        for path, module in modules.items()
        if (isinstance(module, Embedding) and not _only_recurrent(modules, sides))
        or (path.split(".", 1)[0] not in sides and (_LAYER.match(path) or path == "encoder"))
    ]
    return paths, recurrent


def _only_recurrent(modules: dict[str, nn.Module], sides: set[str]) -> bool:
    return all(side in sides for side in ("encoder", "decoder") if side in modules)


def _kept_forward(
    layer: Recurrence, kept: KeptStates, side: Side, number: int
) -> Callable[[Tensor, Hidden], tuple[Tensor, Hidden]]:
    """`Recurrence.forward`, step by step."""

    def forward(x: Tensor, hidden: Hidden) -> tuple[Tensor, Hidden]:
        states = []
        for t in range(x.shape[1]):
            hidden = kept.step(side, number, layer.advance(x[:, t], hidden))
            states.append(hidden[0])
        return torch.stack(states, dim=1), hidden

    return forward


def _kept_read(
    layer: Recurrence, kept: KeptStates, side: Side, number: int
) -> Callable[[Tensor, Layout], tuple[Tensor, Tensor]]:
    """`Recurrence.read`, step by step."""

    def one_way(x: Tensor, layout: Layout, direction: str, backward: bool) -> tuple[Tensor, Tensor]:
        lengths = layout.lengths.to(x.device).clamp(min=1)
        x = turned(x, layout) if backward else x
        hidden, states = layer.start(len(x), x), []
        for t in range(x.shape[1]):
            live = (t < lengths)[:, None]
            after = layer.advance(x[:, t], hidden, direction)
            after = tuple(torch.where(live, new, old) for new, old in zip(after, hidden, strict=True))
            place = lengths - 1 - t if backward else torch.full_like(lengths, t)
            hidden = kept.step(side, number, after, torch.where(t < lengths, place, x.shape[1]))
            states.append(torch.where(live, hidden[0], 0))
        found = torch.stack(states, dim=1)  # (B, T, D)
        return (turned(found, layout) if backward else found), hidden[0]

    def read(x: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        if not layer.bidirectional:
            return one_way(x, layout, "", isinstance(layer, BackwardRecurrence))
        ways = [one_way(x, layout, direction, direction != "") for direction in ("", "_reverse")]
        return torch.cat([states for states, _ in ways], dim=-1), torch.cat([final for _, final in ways], dim=-1)

    return read
