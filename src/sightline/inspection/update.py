"""The gradients of one update: loss, ∂loss/∂w of each weight, one step of an optimizer, and the loss after it.

    g = ∂L/∂w,   w' = w − η g   (gradient descent),   L' = L(w')

The loss is that of training, the mean over the labels with the recipe's label smoothing, but without dropout, so that
it is the same number each time. The update is made on a copy of the model.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np
import torch
from rich.console import Group, RenderableType
from rich.text import Text
from torch import Tensor, nn

from sightline.inspection.arithmetic import number
from sightline.inspection.attention import LoadedRun
from sightline.inspection.gradients import differentiable
from sightline.inspection.samples import example_batch
from sightline.inspection.views import InspectionView, check_differentiable
from sightline.inspection.worked_steps import WholeTable
from sightline.layers.linear import shallow_copy
from sightline.tasks.base import task_class
from sightline.terminal import plural

_LARGEST = 3  # entries of a gradient that are shown
BuildOptimizer = Callable[[nn.Module], torch.optim.Optimizer]


@dataclass(frozen=True)
class WeightUpdate:
    """One weight before and after the update, and its gradient."""

    name: str
    before: Tensor
    gradient: Tensor
    after: Tensor

    @property
    def norm(self) -> float:
        """‖∂L/∂w‖."""
        return float(self.gradient.norm())

    @property
    def step(self) -> float:
        """‖w' − w‖."""
        return float((self.after - self.before).norm())

    def largest(self) -> list[tuple[tuple[int, ...], float]]:
        """The entries of the gradient that are largest in absolute value, with their indices."""
        flat = self.gradient.flatten()
        places = flat.abs().topk(min(_LARGEST, len(flat))).indices.tolist()
        return [
            (tuple(int(k) for k in np.unravel_index(place, self.gradient.shape)), float(flat[place]))
            for place in places
        ]

    def record(self) -> dict[str, Any]:
        """For JSON."""
        largest = [{"index": list(index), "value": value} for index, value in self.largest()]
        shape = list(self.gradient.shape)
        return {"name": self.name, "shape": shape, "norm": self.norm, "largest": largest, "update_norm": self.step}


@dataclass(frozen=True)
class Update:
    """One update of a model on one example."""

    loss: float  # the mean over the labels
    nll: float  # the same without label smoothing
    loss_after: float
    weights: list[WeightUpdate]

    def find(self, name: str) -> WeightUpdate:
        """A weight by its name, or by an end of it that no other has."""
        found = [each for each in self.weights if each.name == name or each.name.endswith(f".{name}")]
        exact = [each for each in found if each.name == name]
        if len(exact or found) == 1:
            return (exact or found)[0]
        names = [each.name for each in found or self.weights]
        if found:
            raise ValueError(f"--weight {name}: {plural(len(found), 'weight')} end so: {', '.join(names)}; name one")
        near = get_close_matches(name, names, 1)
        raise ValueError(
            f"--weight {name}: there is no such weight; did you mean {(near or names)[0]}? Without it, all are listed"
        )


def one_update(
    model: nn.Module, loss_of: Callable[[nn.Module], tuple[Tensor, Tensor]], build: BuildOptimizer
) -> Update:
    """Update a copy of a model once; `loss_of` gives its mean loss and nll."""
    model = deepcopy(shallow_copy(model, packed=False))
    parameters = dict(model.named_parameters())
    for parameter in parameters.values():
        parameter.requires_grad_(parameter.is_floating_point())
    with differentiable(model):
        loss, nll = loss_of(model)
        loss.backward()  # type: ignore[no-untyped-call]
        before = {name: each.detach().clone() for name, each in parameters.items()}
        build(model).step()
        with torch.no_grad():
            after, _ = loss_of(model)
    weights = []
    for name, parameter in parameters.items():
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        weights.append(WeightUpdate(name, *(each.detach().cpu() for each in (before[name], gradient, parameter))))
    return Update(loss.item(), nll.item(), after.item(), weights)


def update_view(
    run: LoadedRun,
    source: str,
    target: str | None,
    build: BuildOptimizer,
    *,
    weight: str | None = None,
    optimizer: str = "SGD",
    lr: float,
) -> InspectionView:
    """One update of a run on one text with its output (by default the run's own) or labels."""
    check_differentiable(run)
    spec, recipe = run.recipe.task_spec, run.recipe
    if target is None:
        target = "" if spec.continues_text else run.predict([source])[0]
    text = source + target if spec.continues_text else target
    batch = example_batch(recipe, run.vocabulary, source, text)
    batch = batch.to(run.device) if run.device.type != "cpu" else batch
    objective, smoothing = task_class(recipe).loss, recipe.training.label_smoothing

    def loss_of(model: nn.Module) -> tuple[Tensor, Tensor]:
        loss = objective(model, batch, smoothing)
        return loss.total / batch.tokens, loss.nll / batch.tokens

    update = one_update(run.model, loss_of, build)
    chosen = None if weight is None else update.find(weight)
    pair = repr(text) if spec.continues_text else f"{source!r} → {target!r}"
    smoothed = f" (without label smoothing of {smoothing:g}: {update.nll:.4f})" if smoothing else ""
    lines = [
        Text(f"{pair}: {plural(batch.tokens, 'label')}", style="bold"),
        Text(f"loss {update.loss:.4f}{smoothed}, the mean over the labels, without dropout"),
        Text(f"loss after one step of {optimizer} with learning rate {lr:g}: {update.loss_after:.4f}"),
        Text(""),
    ]
    shown = [*lines, *_lines(update), *([] if chosen is None else _in_full(chosen))]

    def record() -> dict[str, Any]:
        numbers = {"loss": update.loss, "nll": update.nll, "loss_after": update.loss_after}
        settings = {"source": source, "target": target, "labels": batch.tokens, "optimizer": optimizer, "lr": lr}
        full = {} if chosen is None else {key: getattr(chosen, key).tolist() for key in ("before", "gradient", "after")}
        every = [each.record() for each in update.weights]
        return {
            **settings,
            **numbers,
            "weights": every,
            **({"weight": {"name": chosen.name, **full}} if chosen else {}),
        }

    return InspectionView(Group(*shown), record)


def _lines(update: Update) -> list[RenderableType]:
    """Two lines for each weight: shape and norms, then the largest entries of its gradient."""
    rows = [("weight", "shape", "‖g‖", "‖w′ − w‖")]
    rows += [
        (each.name, "×".join(map(str, each.gradient.shape)) or "1", number(each.norm), number(each.step))
        for each in update.weights
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines: list[RenderableType] = []
    for place, (name, shape, norm, step) in enumerate(rows):
        line = f"{name:<{widths[0]}}  {shape:<{widths[1]}}  {norm:>{widths[2]}}  {step:>{widths[3]}}"
        lines.append(Text(line, style="bold" if place == 0 else ""))
        if place and update.weights[place - 1].norm:
            largest = update.weights[place - 1].largest()
            entries = ", ".join(f"[{', '.join(map(str, index))}] {number(value)}" for index, value in largest)
            lines.append(Text(f"  largest entries of g: {entries}", style="dim"))
    return lines


def _in_full(weight: WeightUpdate) -> list[RenderableType]:
    parts: list[RenderableType] = []
    for title, tensor in (
        (f"w = {weight.name}", weight.before),
        ("g = ∂loss/∂w", weight.gradient),
        ("w′, after the step", weight.after),
    ):
        values = tensor.float().numpy()
        parts += [Text(""), Text(title, style="bold")]
        parts.append(
            WholeTable(values.reshape(-1, values.shape[-1]) if values.ndim else values[None, None], None, None, number)
        )
    return parts
