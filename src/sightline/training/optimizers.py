"""Which parameters of a model are trained, at which learning rate, and by which optimizer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from sightline.layers.adapters import is_adapter
from sightline.models.protocol import Layered
from sightline.models.weights import current_path
from sightline.recipe import Recipe, Training
from sightline.recipe.schema import Choice
from sightline.registry import Implementations
from sightline.training.callbacks import part_of

# --- the optimizer -------------------------------------------------------------------------------------------------


def adamw(groups: list[dict[str, Any]], training: Training) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, lr=training.lr, betas=training.betas, eps=training.eps, fused=True)


OPTIMIZERS = Implementations("optimizer")  # functions of (parameter groups, training, **options)


def build_optimizer(
    model: nn.Module, training: Training, lr_factors: Mapping[str, float] | None = None
) -> torch.optim.Optimizer:
    """The optimizer of the trained parameters; weight decay applies to matrices, not to biases, norms, other vectors.

    Each group has a `factor` of the learning rate: that of `lr_factors`, by the names of its parameters, or 1.
    """
    groups: dict[tuple[float, bool], list[nn.Parameter]] = {(1.0, True): [], (1.0, False): []}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            key = (lr_factors or {}).get(name, 1.0), parameter.dim() > 1
            groups.setdefault(key, []).append(parameter)
    options = [
        {
            "params": parameters,
            "weight_decay": training.weight_decay if matrices else 0.0,
            "lr": training.lr * factor,
            "factor": factor,
        }
        for (factor, matrices), parameters in groups.items()
        if parameters
    ]
    choice = training.optimizer
    optimizer: torch.optim.Optimizer = OPTIMIZERS[choice.kind](options, training, **choice.options(Choice))
    return optimizer


def single_step(
    training: Training, kind: str, lr: float | None
) -> tuple[Callable[[nn.Module], torch.optim.Optimizer], str, float]:
    """What builds the optimizer of one step on its own, its name and its learning rate.

    `sgd`: gradient descent, by default with learning rate 0.1. `recipe`: the recipe's optimizer at its first step.
    """
    if kind == "sgd":
        rate = 0.1 if lr is None else lr
        return lambda model: torch.optim.SGD(model.parameters(), lr=rate), "gradient descent", rate
    training = training if lr is None else training.model_copy(update={"lr": lr})
    return lambda model: build_optimizer(model, training), training.optimizer.kind, training.lr


# --- frozen parameters ---------------------------------------------------------------------------------------------


class _Place(NamedTuple):
    """The place of a parameter that belongs to a layer."""

    body: str  # encoder
    number: int  # 0, the lowest
    rest: str  # its name in the layer: attention.project.weight

    @property
    def layer(self) -> str:
        return f"{self.body}.{self.number}"


def _layered(model: nn.Module) -> dict[str, Layered]:
    return {side: body for side, body in model.named_children() if isinstance(body, Layered)}


def _places(model: nn.Module) -> dict[str, _Place]:
    """The parameters that belong to a layer, as the bodies of a model declare them (see `Layered`)."""
    return {
        f"{side}.{path}.{number}.{rest}": _Place(side, int(number), rest)
        for side, body in _layered(model).items()
        for path in body.by_layer
        for number, part in model.get_submodule(f"{side}.{path}").named_children()
        for rest, _ in part.named_parameters()
    }


def matching(model: nn.Module, pattern: str) -> list[str]:
    """The parameters that an entry of `training.freeze` names.

    `embeddings` is all of them, `encoder.0` the lowest layer of the encoder, `encoder.0.attention` a part of it; else
    the beginning of a name, up to one of its dots.
    """
    pattern = current_path(pattern)
    names, places = [name for name, _ in model.named_parameters()], _places(model)
    if pattern == "embeddings":
        return [name for name in names if name.split(".")[0].endswith("embedding")]
    short = {name: f"{place.layer}.{place.rest}" for name, place in places.items()}
    return [name for name in names if _under(pattern, name) or _under(pattern, short.get(name, name))]


def _under(path: str, name: str) -> bool:
    return name == path or name.startswith(f"{path}.")


def freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    """Freeze the parameters these patterns name, adapters in them included; a pattern that names none is an error."""
    for name in _named(model, patterns, "training.freeze"):
        model.get_parameter(name).requires_grad_(False)


def _named(model: nn.Module, patterns: Sequence[str], key: str) -> list[str]:
    names: dict[str, None] = {}
    for pattern in patterns:
        matched = matching(model, pattern)
        if not matched:
            places = _places(model)
            parts = (places[name].layer if name in places else part_of(name) for name, _ in model.named_parameters())
            has = ", ".join(dict.fromkeys(parts))
            raise ValueError(f"{key}: nothing in this model is called {pattern!r}; it has embeddings, {has}")
        names |= dict.fromkeys(matched)
    return list(names)


def freeze_for(model: nn.Module, recipe: Recipe, new: Collection[str] = ()) -> None:
    """Freeze what a recipe freezes; with adapters, all but them, new parameters and `adapters.modules_to_save`."""
    adapters = recipe.model.adapters
    if adapters is not None:
        trained = {*new, *_named(model, adapters.modules_to_save, "model.adapters.modules_to_save")}
        for name, parameter in model.named_parameters():
            if not is_adapter(name) and name not in trained:
                parameter.requires_grad_(False)
    freeze(model, recipe.training.freeze)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError("training.freeze leaves nothing to learn; take a part out of it")


def trained_count(model: nn.Module) -> int:
    """The number of trained parameters; shared ones count once."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


# --- learning rates by layer ---------------------------------------------------------------------------------------


def lr_factors_for(model: nn.Module, recipe: Recipe, new: Collection[str] = ()) -> dict[str, float]:
    """The learning rate factors of `training.layer_lr_decay`; empty without it."""
    decay = recipe.training.layer_lr_decay
    return {} if decay is None else layer_lr_factors(model, decay, new)


def layer_lr_factors(model: nn.Module, decay: float, new: Collection[str] = ()) -> dict[str, float]:
    """The learning rate factor of each parameter: decay^(layers above it) (Howard and Ruder 2018, §3.2).

    The top layer of a body has factor 1, and so has everything above the layers (norm, output) or new. Embeddings and
    positions are below the lowest layer; embeddings below that of the deeper body.
    """
    places, bodies = _places(model), _layered(model)
    counts = dict.fromkeys(bodies, 0)
    for place in places.values():
        counts[place.body] = max(counts[place.body], place.number + 1)

    def above(name: str) -> int:
        if (place := places.get(name)) is not None:
            return counts[place.body] - 1 - place.number
        side, _, rest = name.partition(".")
        if side.endswith("embedding"):
            return max(counts.values(), default=0)
        return counts[side] if side in bodies and any(_under(path, rest) for path in bodies[side].below) else 0

    return {name: 1.0 if name in new else decay ** above(name) for name, _ in model.named_parameters()}
