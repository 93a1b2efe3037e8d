"""How far a gradient reaches: ‖∂L_t/∂h_k‖ against the distance between t and k, measured on real text.

L_t = −log p(token t) and h_k is the state at place k of a sequence that the model reads or writes. In a recurrent
network the gradient goes through t − k steps, ∂h_t/∂h_k = ∏ ∂h_i/∂h_{i−1}, and vanishes or explodes with their number
(Hochreiter 1991; Bengio et al. 1994; Pascanu et al. 2013); an LSTM's cell lets it pass, ∂c_i/∂c_{i−1} = f_i on the
direct way (Hochreiter and Schmidhuber 1997), and attention makes every way one step long (Vaswani et al. 2017, tab. 1).

States (states.py): of a recurrent layer what it hands on, of other layers what they read. A layer whose states nothing
but the answer at their own place depends on (the top layer of a Transformer) has no flow and is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sightline.data.batches import TrainingBatch
from sightline.inspection.states import KeptStates, Side, keep_states
from sightline.layers.layout import Layout
from sightline.layers.recurrent import Recurrence
from sightline.text.tokenizer import PAD

SIDES: tuple[Side, ...] = ("encoder", "decoder")
SMALLEST = 1e-37  # what is smaller has lost its digits
_RESOLUTION = 8  # digits that JSON keeps


@dataclass(frozen=True)
class Curve:
    """Norms at each distance: their median, mean, 10% and 90% quantile, and of how many pairs (t, k).

    Where gradients vanish, a mean is that of a few that did not; so the median stands for the curve. Single precision
    ends near 1e-38: what is smaller is rounding.
    """

    distances: list[int]
    median: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]
    count: list[int]

    @property
    def per_step(self) -> float | None:
        """What is left of the gradient after a step: e to the slope of the log median over the distances from 1 on."""
        pairs = [(d, math.log(m)) for d, m in zip(self.distances, self.median, strict=True) if d >= 1 and m > SMALLEST]
        if len(pairs) < 2:
            return None
        x, y = np.array(pairs).T
        return float(np.exp(np.polyfit(x, y, 1)[0]))

    def at(self, distance: int) -> float | None:
        """The median at a distance, where there is one."""
        return self.median[self.distances.index(distance)] if distance in self.distances else None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        numbers = {"median": self.median, "mean": self.mean, "low": self.low, "high": self.high}
        rounded = {key: [float(f"{value:.{_RESOLUTION}g}") for value in row] for key, row in numbers.items()}
        return {"distances": self.distances, **rounded, "count": self.count, "per_step": self.per_step}


@dataclass(frozen=True)
class Flow:
    """The curves of one model: of its encoder's and its decoder's states, layer by layer from the bottom."""

    label: str
    when: str  # "initialisation" or "trained"
    sides: dict[Side, dict[str, Curve]]

    def curve(self, side: Side) -> Curve | None:
        """Of the top layer; None where there is none."""
        return next(reversed(self.sides.get(side, {}).values()), None)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        sides = {side: {name: curve.to_dict() for name, curve in layers.items()} for side, layers in self.sides.items()}
        return {"label": self.label, "when": self.when, "states": sides}


def gradient_flow(
    model: nn.Module, batches: Iterable[TrainingBatch], *, label: str = "", when: str = "trained", points: int = 8
) -> Flow:
    """Measure a model on padded batches: for each sentence, the gradients of `points` of its answers.

    One backward pass serves the k-th answer of every sentence of a batch, since no sentence depends on another.
    """
    found: dict[tuple[Side, str], list[NDArray[np.float64]]] = {}  # rows of (distance, norm)
    with at_rest(model):
        for batch in batches:
            for key, rows in _batch_norms(model, batch, points):
                found.setdefault(key, []).append(rows)
    if not found:
        raise ValueError(f"{type(model).__name__} kept no states to differentiate by; is it an encoder or a decoder?")
    sides: dict[Side, dict[str, Curve]] = {}
    for side in SIDES:
        curves = {name: _curve(np.concatenate(rows)) for (each, name), rows in found.items() if each == side}
        flowing = {name: curve for name, curve in curves.items() if _flows(curve)}
        if curves:
            sides[side] = flowing or dict([next(iter(curves.items()))])
    return Flow(label, when, sides)


@contextmanager
def at_rest(model: nn.Module) -> Iterator[None]:
    """Without dropout, with gradients; cuDNN's recurrent kernels give those only in training mode, which is all one."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    for module in model.modules():
        if isinstance(module, Recurrence):
            module.kernel.train()
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
    """For each layer rows of (distance, norm), of some answers of every sentence."""
    with keep_states(model) as kept:
        features = model(batch.source, batch.source_layout, batch.given, batch.target_layout)
    features = features if features.ndim == 3 else features[:, None]  # (B, T, D): a classifier answers once
    layers = [(side, name, states) for side in SIDES for name, states in kept.layers(side).items()]
    tensors = [tensor for _, _, states in layers for tensor in states.tensors]
    for answers in _spread(batch.wanted, points):  # (B,)
        rows = torch.arange(len(answers), device=features.device)
        wanted = batch.wanted[rows, answers]
        scores = model.logits(features[rows, answers]).float()  # (B, V)
        loss = nn.functional.cross_entropy(scores, wanted, ignore_index=PAD, reduction="sum")
        gradients: list[Tensor | None] = [*torch.autograd.grad(loss, tensors, retain_graph=True, allow_unused=True)]
        for side, name, states in layers:
            own, gradients = gradients[: len(states.tensors)], gradients[len(states.tensors) :]
            lengths, distance = _distances(kept, batch, side)
            norms = states.norms(own, int(lengths.max())).cpu()
            yield (side, name), _rows(norms, lengths, distance(answers.cpu()), wanted.cpu() != PAD)


def _spread(wanted: Tensor, points: int) -> Iterator[Tensor]:
    """(B,) each: places of answers, evenly over those of each row; the last one is among them."""
    places = [row.nonzero()[:, 0] for row in wanted != PAD]
    for point in range(1, points + 1):
        chosen = [int(row[math.ceil(point * len(row) / points) - 1]) if len(row) else 0 for row in places]
        yield torch.tensor(chosen, device=wanted.device)
        if all(len(row) <= 1 for row in places):
            return


def _distances(kept: KeptStates, batch: TrainingBatch, side: Side) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """(B,) how many states each row has, and from (B,) places of answers (B, states) distances; negative: none.

    Within a sequence it is t − k; of a tagger |t − k|, it reads both ways. Between source and target it is how many
    steps a recurrent network takes from reading token k to writing token t: to the end of the source, then to t. A
    classifier answers at the end.
    """
    layout = cast(Layout, batch.source_layout if side == "encoder" else batch.target_layout)
    lengths = layout.lengths.cpu()
    places = torch.arange(int(lengths.max()))[None, :]

    def distance(answers: Tensor) -> Tensor:
        if side == "decoder":
            return answers[:, None] - places
        if kept.both:
            return lengths[:, None] - places + answers[:, None]
        if batch.wanted.shape[1] == 1:
            return lengths[:, None] - 1 - places
        return (answers[:, None] - places).abs()

    return lengths, distance


def _rows(norms: Tensor, lengths: Tensor, distances: Tensor, answered: Tensor) -> NDArray[np.float64]:
    """(N, 2): distance and norm of every pair of an answer and a state before it."""
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


def flow_lines(flows: Sequence[Flow]) -> list[str]:
    """A table for a terminal: what is left at some distances, and after each step."""
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
