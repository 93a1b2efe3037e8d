"""Gradient flow: ‖∂L_t/∂h_k‖ against the distance between t and k, measured on real text.

L_t = −log p(token t) and h_k is the state at position k of the input or output. In a recurrent network the gradient
passes through t − k steps, ∂h_t/∂h_k = ∏ ∂h_i/∂h_{i−1}, and vanishes or explodes with their number (Hochreiter 1991;
Bengio et al. 1994; Pascanu et al. 2013); in an LSTM ∂c_i/∂c_{i−1} = f_i on the direct path (Hochreiter and Schmidhuber
1997), and with attention every path has one step (Vaswani et al. 2017).

The states of a recurrent layer are those after each step; of other layers they are the outputs. A layer whose states
affect only the output at their own position (the top layer of a Transformer) is omitted. Fused kernels expose no states
between steps, so recurrent layers run step by step here, with the same formula and parameters.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sightline.data.collate import TrainingBatch
from sightline.layers.embedding import Embedding
from sightline.layers.layout import Layout
from sightline.layers.recurrent import BackwardRecurrence, Hidden, Recurrence, reverse_sequences
from sightline.layers.tap import Tapped, on_taps
from sightline.text.tokenizer import PAD

SIDES: tuple[Side, ...] = ("encoder", "decoder")
SMALLEST = 1e-37  # smaller numbers are imprecise in float32


@dataclass(frozen=True)
class Curve:
    """Norms at each distance: median, mean, 10% and 90% quantile, and the number of pairs (t, k).

    The curve is the median: where gradients vanish, a few that do not would dominate the mean.
    """

    distances: list[int]
    median: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]
    count: list[int]

    @property
    def per_step(self) -> float | None:
        """The gradient's factor per step: exp of the slope of the log median over distances from 1."""
        pairs = [(d, math.log(m)) for d, m in zip(self.distances, self.median, strict=True) if d >= 1 and m > SMALLEST]
        if len(pairs) < 2:
            return None
        x, y = np.array(pairs).T
        return float(np.exp(np.polyfit(x, y, 1)[0]))

    def at(self, distance: int) -> float | None:
        """The median at a distance."""
        return self.median[self.distances.index(distance)] if distance in self.distances else None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        numbers = {"median": self.median, "mean": self.mean, "low": self.low, "high": self.high}
        rounded = {key: [float(f"{value:.8g}") for value in row] for key, row in numbers.items()}
        return {"distances": self.distances, **rounded, "count": self.count, "per_step": self.per_step}


@dataclass(frozen=True)
class GradientFlow:
    """The curves of one model, by side and layer from the bottom."""

    label: str
    when: str  # "initialisation" or "trained"
    sides: dict[Side, dict[str, Curve]]

    def curve(self, side: Side) -> Curve | None:
        """The curve of the top layer."""
        return next(reversed(self.sides.get(side, {}).values()), None)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        sides = {side: {name: curve.to_dict() for name, curve in layers.items()} for side, layers in self.sides.items()}
        return {"label": self.label, "when": self.when, "states": sides}


def gradient_flow(
    model: nn.Module, batches: Iterable[TrainingBatch], *, label: str = "", when: str = "trained", points: int = 8
) -> GradientFlow:
    """Measure a model on padded batches, at `points` labels of each sentence.

    One backward pass serves the k-th label of all sentences of a batch, since sentences are independent.
    """
    norms: dict[tuple[Side, str], list[NDArray[np.float64]]] = {}  # rows of (distance, norm)
    with differentiable(model):
        for batch in batches:
            for key, rows in _batch_norms(model, batch, points):
                norms.setdefault(key, []).append(rows)
    if not norms:
        raise ValueError(f"{type(model).__name__} has no states to differentiate by; is it an encoder or a decoder?")
    sides: dict[Side, dict[str, Curve]] = {}
    for side in SIDES:
        curves = {name: _curve(np.concatenate(rows)) for (each, name), rows in norms.items() if each == side}
        flowing = {name: curve for name, curve in curves.items() if _flows(curve)}
        if curves:
            sides[side] = flowing or dict([next(iter(curves.items()))])
    return GradientFlow(label, when, sides)


@contextmanager
def differentiable(model: nn.Module) -> Iterator[None]:
    """Disable dropout and enable gradients; cuDNN's recurrent kernels have those only in training mode."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    for module in model.modules():
        if isinstance(module, Recurrence):
            module.rnn.train()
    try:
        with torch.enable_grad():
            yield
    finally:
        model.eval()
        for module in training:
            module.training = True


def _batch_norms(
    model: Any, batch: TrainingBatch, points: int
) -> Iterator[tuple[tuple[Side, str], NDArray[np.float64]]]:
    """Rows of (distance, norm) for each layer, at some labels of every sentence."""
    with keep_states(model) as kept:
        features = model(batch.source, batch.source_layout, batch.decoder_input, batch.decoder_layout)
    features = features if features.ndim == 3 else features[:, None]  # (B, T, D): a classifier answers once
    layers = [(side, name, states) for side in SIDES for name, states in kept.layers(side).items()]
    tensors = [tensor for _, _, states in layers for tensor in states.tensors]
    for answers in _spread(batch.labels, points):  # (B,)
        rows = torch.arange(len(answers), device=features.device)
        labels = batch.labels[rows, answers]
        scores = model.logits(features[rows, answers]).float()  # (B, V)
        loss = nn.functional.cross_entropy(scores, labels, ignore_index=PAD, reduction="sum")
        gradients: list[Tensor | None] = [*torch.autograd.grad(loss, tensors, retain_graph=True, allow_unused=True)]
        for side, name, states in layers:
            own, gradients = gradients[: len(states.tensors)], gradients[len(states.tensors) :]
            lengths, distance = _distances(kept, batch, side)
            norms = states.norms(own, int(lengths.max())).cpu()
            yield (side, name), _rows(norms, lengths, distance(answers.cpu()), labels.cpu() != PAD)


def _spread(labels: Tensor, points: int) -> Iterator[Tensor]:
    """Label positions (B,), evenly spaced in each row up to the last."""
    places = [row.nonzero()[:, 0] for row in labels != PAD]
    for point in range(1, points + 1):
        chosen = [int(row[math.ceil(point * len(row) / points) - 1]) if len(row) else 0 for row in places]
        yield torch.tensor(chosen, device=labels.device)
        if all(len(row) <= 1 for row in places):
            return


def _distances(kept: RecordedStates, batch: TrainingBatch, side: Side) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """(B,) how many states each row has, and from (B,) places of answers (B, states) distances; negative: none.

    Within a sequence it is t − k; of a tagger |t − k|, it reads both ways. Between source and target it is how many
    steps a recurrent network takes from reading token k to writing token t: to the end of the source, then to t. A
    classifier answers at the end.
    """
    layout = cast(Layout, batch.source_layout if side == "encoder" else batch.decoder_layout)
    lengths = layout.lengths.cpu()
    places = torch.arange(int(lengths.max()))[None, :]

    def distance(answers: Tensor) -> Tensor:
        if side == "decoder":
            return answers[:, None] - places
        if kept.both:
            return lengths[:, None] - places + answers[:, None]
        if batch.labels.shape[1] == 1:
            return lengths[:, None] - 1 - places
        return (answers[:, None] - places).abs()

    return lengths, distance


def _rows(norms: Tensor, lengths: Tensor, distances: Tensor, answered: Tensor) -> NDArray[np.float64]:
    """(N, 2): distance and norm of every pair of a label and an earlier state."""
    inside = (torch.arange(norms.shape[1])[None, :] < lengths[:, None]) & (distances >= 0) & answered[:, None]
    return torch.stack([distances[inside].double(), norms[inside]], dim=1).numpy()


def _curve(rows: NDArray[np.float64]) -> Curve:
    distances = np.unique(rows[:, 0])
    order = np.argsort(rows[:, 0], kind="stable")
    groups = np.split(rows[order, 1], np.searchsorted(rows[order, 0], distances[1:]))
    low, median, high = ([float(np.quantile(group, share)) for group in groups] for share in (0.1, 0.5, 0.9))
    mean = [float(group.mean()) for group in groups]
    return Curve([int(d) for d in distances], median, mean, low, high, [len(group) for group in groups])


def _flows(curve: Curve) -> bool:
    return any(mean > 0 for distance, mean in zip(curve.distances, curve.mean, strict=True) if distance > 0)


def flow_lines(flows: Sequence[GradientFlow]) -> list[str]:
    """Lines of a terminal table: norms at some distances and the factor per step."""
    marks = (0, 1, 2, 5, 10, 20, 50, 100)
    width = max(len(f"{flow.label}, {flow.when}") for flow in flows)
    lines = []
    for side in SIDES:
        of_side = [(flow, curve) for flow in flows if (curve := flow.curve(side)) is not None]
        shown = [mark for mark in marks if any(curve.at(mark) is not None for _, curve in of_side)]
        if not of_side:
            continue
        lines.append(f"{side} states".ljust(width) + "".join(f"{mark:>10}" for mark in shown) + "  per step")
        for flow, curve in of_side:
            values = ["–" if (value := curve.at(mark)) is None else f"{value:.1e}" for mark in shown]
            left = "–" if curve.per_step is None else f"{curve.per_step:.3f}"
            lines.append(
                f"{flow.label}, {flow.when}".ljust(width) + "".join(f"{v:>10}" for v in values) + f"{left:>10}"
            )
    return lines


Side = Literal["encoder", "decoder"]

_LAYER = re.compile(r"^(encoder|decoder)\.layers\.(\d+)(\..*)?$")
_EMBEDDING, _TOP = -1, 1_000_000  # layer numbers of the embedding and of the final output


@dataclass
class LayerStates:
    """The states of one layer: tensors (B, T, D), or (B, D) for each step with the position of each row."""

    tensors: list[Tensor] = field(default_factory=list)
    places: list[Tensor | None] = field(default_factory=list)  # (B,) each

    def add(self, parts: Hidden, places: Tensor | None = None) -> None:
        self.tensors += parts
        self.places += [places] * len(parts)

    def norms(self, gradients: list[Tensor | None], longest: int) -> Tensor:
        """(B, longest): gradient norms by position; None is zero, and steps after the end have places ≥ `longest`."""
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
class RecordedStates:
    """The states of every layer of a forward pass, by side and layer number."""

    both: bool  # True for models with encoder and decoder
    states: dict[tuple[Side, int], LayerStates] = field(default_factory=dict)

    def layers(self, side: Side) -> dict[str, LayerStates]:
        """By name, from the bottom; the final output replaces the top layer."""
        numbers = sorted(number for each, number in self.states if each == side)
        if numbers[-1:] == [_TOP]:
            numbers = [*numbers[:-2], _TOP] if len(numbers) > 2 else [*numbers]
        names = {_EMBEDDING: "embedding", _TOP: "output"}
        return {names.get(number, f"layer {number + 1}"): self.states[side, number] for number in numbers}

    def on_tap(self, tapped: Tapped) -> Tensor | None:
        """Keep embeddings, outputs of layers and the encoder's output."""
        path, _, name = tapped.name.rpartition(".")
        layer = _LAYER.match(path)
        if name == "vectors" and "embedding" in path:
            side: Side = "encoder" if path.startswith("source") or (self.both and not self.states) else "decoder"
            return self._keep(side, _EMBEDDING, tapped.tensor)
        if name == "output" and layer is not None:  # the last tap of a layer is its own output
            return self._keep("encoder" if layer[1] == "encoder" else "decoder", int(layer[2]), tapped.tensor)
        if tapped.name == "encoder.output":
            return self._keep("encoder", _TOP, tapped.tensor)
        return None

    def _keep(self, side: Side, number: int, tensor: Tensor) -> Tensor | None:
        kept = tensor if tensor.requires_grad else tensor.detach().requires_grad_()
        self.states[side, number] = LayerStates([kept], [None])
        return None if kept is tensor else kept

    def step(self, side: Side, number: int, parts: Hidden, places: Tensor | None = None) -> Hidden:
        """Keep the state after a step; return the tensors to continue with."""
        kept = tuple(part.clone() if part.requires_grad else part.detach().requires_grad_() for part in parts)
        own = self.states.setdefault((side, number), LayerStates())
        if places is None:
            places = torch.full((len(kept[0]),), len(own.tensors) // len(kept), device=kept[0].device)
        own.add(kept, places)
        return kept


@contextmanager
def keep_states(model: nn.Module) -> Iterator[RecordedStates]:
    """Keep the states of the forward pass in the block (one pass over padded sequences)."""
    kept = RecordedStates(both=hasattr(model, "encoder") and hasattr(model, "decoder"))
    paths, recurrent = _tapped_paths(model)
    for path, layer in recurrent.items():
        side: Side = "encoder" if path.startswith("encoder") else "decoder"
        number = int(path.rsplit(".", 1)[1])
        layer.__dict__["forward"] = _kept_forward(layer, kept, side, number)
        layer.__dict__["read"] = _kept_read(layer, kept, side, number)
    try:
        with on_taps(model, kept.on_tap, paths):
            yield kept
    finally:
        for layer in recurrent.values():
            del layer.__dict__["forward"], layer.__dict__["read"]


def _tapped_paths(model: nn.Module) -> tuple[list[str], dict[str, Recurrence]]:
    """The paths to tap, and the recurrent layers."""
    modules = dict(model.named_modules())
    recurrent = {path: module for path, module in modules.items() if isinstance(module, Recurrence)}
    sides = {path.split(".", 1)[0] for path in recurrent}
    paths = [
        path
        for path, module in modules.items()
        if (isinstance(module, Embedding) and not {"encoder", "decoder"} & modules.keys() <= sides)
        or (path.split(".", 1)[0] not in sides and (_LAYER.match(path) or path == "encoder"))
    ]
    return paths, recurrent


def _kept_forward(
    layer: Recurrence, kept: RecordedStates, side: Side, number: int
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
    layer: Recurrence, kept: RecordedStates, side: Side, number: int
) -> Callable[[Tensor, Layout], tuple[Tensor, Hidden]]:
    """`Recurrence.read`, step by step."""

    def one_way(x: Tensor, layout: Layout, direction: str, backward: bool) -> tuple[Tensor, Hidden]:
        lengths = layout.lengths.to(x.device).clamp(min=1)
        x = reverse_sequences(x, layout) if backward else x
        hidden, states = layer.start(len(x), x), []
        for t in range(x.shape[1]):
            active = (t < lengths)[:, None]
            after = layer.advance(x[:, t], hidden, direction)
            after = tuple(torch.where(active, new, old) for new, old in zip(after, hidden, strict=True))
            place = lengths - 1 - t if backward else torch.full_like(lengths, t)
            hidden = kept.step(side, number, after, torch.where(t < lengths, place, x.shape[1]))
            states.append(torch.where(active, hidden[0], 0))
        stacked = torch.stack(states, dim=1)  # (B, T, D)
        return (reverse_sequences(stacked, layout) if backward else stacked), hidden

    def read(x: Tensor, layout: Layout) -> tuple[Tensor, Hidden]:
        if not layer.bidirectional:
            return one_way(x, layout, "", isinstance(layer, BackwardRecurrence))
        ways = [one_way(x, layout, direction, direction != "") for direction in ("", "_reverse")]
        (states, final), (backward_states, backward_final) = ways
        both = (torch.cat(parts, dim=-1) for parts in zip(final, backward_final, strict=True))
        return layer.merged(torch.cat([states, backward_states], dim=-1)), tuple(layer.merged(part) for part in both)

    return read
