"""Callbacks: small objects the trainer calls at fixed points of a training.

A plug-in registers a subclass of `Callback`, and recipes name it in `training.callbacks`. Anything that changes the
weights belongs in the trainer or the optimizer instead, so that a resumed training is the uninterrupted one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sightline.layers.feedforward import Experts
from sightline.registry import Implementations
from sightline.training.schedules import warmup_note

if TYPE_CHECKING:
    from sightline.training.trainer import Trainer

_SPEED_STEPS, _SPEED_SHARE = 20, 0.02  # steps, or share of the training, after which its speed is known
_LAYER = re.compile(r"^((?:\w+\.)*?layers\.\d+)\.")


class Callback:
    """Called at fixed points of a training; the methods do nothing unless overridden."""

    def on_backward(self, trainer: Trainer) -> None:
        """After the backward pass, before gradients are clipped."""

    def on_step(self, trainer: Trainer) -> None:
        """After each optimizer step."""

    def on_log(self, trainer: Trainer, record: dict[str, Any]) -> None:
        """Before a train record is logged; add keys to it."""

    def on_validation(self, trainer: Trainer, record: dict[str, Any]) -> None:
        """Before a validation record is logged; add keys to it."""

    def on_end(self, trainer: Trainer) -> None:
        """After the last step, when the finished model is written."""


class WarmupCheck(Callback):
    """Warns once if the warm-up is too long for the limits; under a time limit, as soon as the speed is known."""

    def __init__(self) -> None:
        self.checked = False

    def on_step(self, trainer: Trainer) -> None:
        step = trainer.progress.step
        self.checked |= trainer.resumed_at > 0
        if self.checked or (step < _SPEED_STEPS and trainer.share_done(step) < _SPEED_SHARE):
            return
        self.checked, done = True, trainer.share_done(step)
        if done and (warning := warmup_note(trainer.training.schedule, step / done)) is not None:
            trainer.note(warning)


class GradientNorms(Callback):
    """`training.log_layers`: ‖∂L/∂θ_part‖ for each part with parameters of its own: encoder.layers.0, output, …

    Shared parameters count for the part that holds them first. Norms stay on the device until they are logged.
    """

    def __init__(self) -> None:
        self.parts: dict[str, list[nn.Parameter]] = {}
        self.norms: Tensor | None = None  # (parts,) at the newest logged step

    def on_backward(self, trainer: Trainer) -> None:
        if not trainer.training.log_layers or (trainer.progress.step + 1) % trainer.training.log_every:
            return
        self.parts = self.parts or parameters_by_part(trainer.model)
        self.norms = gradient_norms(self.parts)

    def on_log(self, trainer: Trainer, record: dict[str, Any]) -> None:
        if self.norms is not None:
            values = zip(self.parts, self.norms.tolist(), strict=True)
            record["layers"] = {name: float(f"{value:.6g}") for name, value in values}


def parameters_by_part(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """The trained parameters of a model by the part that holds them."""
    parts: dict[str, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parts.setdefault(part_of(name), []).append(parameter)
    return parts


def gradient_norms(parts: dict[str, list[nn.Parameter]]) -> Tensor:
    """(parts,) norms of the current gradients, on the device of the parameters."""
    norms = []
    for parameters in parts.values():
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        each = torch.stack(torch._foreach_norm(gradients)) if gradients else torch.zeros(1, device=parameters[0].device)
        norms.append(torch.linalg.vector_norm(each.float()))
    return torch.stack(norms)


def part_of(name: str) -> str:
    """The part a parameter belongs to: its layer, or the module beside the layers."""
    layer = _LAYER.match(name)
    if layer is not None:
        return layer[1]
    parts = name.split(".")[:-1]
    return ".".join(parts[:2] if parts[:1] in (["encoder"], ["decoder"]) else parts[:1]) or name


class RoutingRecord(Callback):
    """Logs the share of tokens of each expert since the last record."""

    def on_log(self, trainer: Trainer, record: dict[str, Any]) -> None:
        record |= routing_record(trainer.model, trainer.expert_counts, trainer.logged_steps)


def expert_layers(model: nn.Module) -> dict[str, int]:
    """The number of experts of each layer with experts, by side and layer number (from 0): {"encoder.1": 8}."""
    layers = {}
    for path, module in model.named_modules():
        if isinstance(module, Experts):
            side, *rest = path.split(".")  # encoder.layers.1.feedforward
            layers[".".join([side, *(part for part in rest if part.isdigit())])] = module.count
    return layers


def routing_record(model: nn.Module, counts: Sequence[float], steps: int) -> dict[str, Any]:
    """The keys for metrics.jsonl; none for a model without experts.

    `counts` has for each layer the choices of each of its experts, then the dropped ones: means over `steps` steps.
    """
    if not counts:
        return {}
    shares, place, chosen, dropped = {}, 0, 0.0, 0.0
    for name, experts in expert_layers(model).items():
        each = counts[place : place + experts]
        shares[name] = [round(count / max(sum(each), 1e-9), 4) for count in each]
        chosen, dropped = chosen + sum(each), dropped + counts[place + experts]
        place += experts + 1
    share = round(dropped / max(chosen, 1e-9), 4)
    return {"experts": shares, "dropped": share, "dropped_choices": round(dropped * steps)}


CALLBACKS = Implementations("callback")  # classes, called with their options
