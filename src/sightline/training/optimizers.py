"""What of a model is trained, how fast, and by which optimizer; norms of its gradients."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from sightline.layers.adapters import is_adapter
from sightline.models.protocol import Layered
from sightline.models.weights import current_path
from sightline.recipe import Recipe, Training


def build_optimizer(
    model: nn.Module, recipe: Training, device: torch.device, rates: Mapping[str, float] | None = None
) -> torch.optim.AdamW:
    """AdamW in its fused form; weight decay on matrices alone, not on biases, norms and other vectors.

    Frozen parameters are not in it. Each group has a `factor` of the learning rate: that of `rates`, by the names of
    its parameters, or 1.
    """
    groups: dict[tuple[float, bool], list[nn.Parameter]] = {(1.0, True): [], (1.0, False): []}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            key = (rates or {}).get(name, 1.0), parameter.dim() > 1
            groups.setdefault(key, []).append(parameter)
    made = [
        {
            "params": parameters,
            "weight_decay": recipe.weight_decay if matrices else 0.0,
            "lr": recipe.lr * factor,
            "factor": factor,
        }
        for (factor, matrices), parameters in groups.items()
        if parameters
    ]
    return torch.optim.AdamW(made, lr=recipe.lr, betas=recipe.betas, eps=recipe.eps, fused=True)


class _InLayer(NamedTuple):
    """Where a parameter stands that belongs to a layer."""

    body: str  # encoder
    number: int  # 0, the lowest
    rest: str  # its name in there: attention.project.weight

    @property
    def layer(self) -> str:
        return f"{self.body}.{self.number}"


def _layered(model: nn.Module) -> dict[str, Layered]:
    return {side: body for side, body in model.named_children() if isinstance(body, Layered)}


def _in_layers(model: nn.Module) -> dict[str, _InLayer]:
    """The parameters that belong to a layer, as the bodies of a model say (see `Layered`)."""
    return {
        f"{side}.{path}.{number}.{rest}": _InLayer(side, int(number), rest)
        for side, body in _layered(model).items()
        for path in body.by_layer
        for number, part in model.get_submodule(f"{side}.{path}").named_children()
        for rest, _ in part.named_parameters()
    }


def matching(model: nn.Module, pattern: str) -> list[str]:
    """The parameters that a word of `training.freeze` means.

    `embeddings` are all of them, `encoder.0` is the lowest layer of the encoder, `encoder.0.attention` a part of it;
    else a name, up to one of its dots.
    """
    pattern = current_path(pattern)
    names, layers = [name for name, _ in model.named_parameters()], _in_layers(model)
    if pattern == "embeddings":
        return [name for name in names if name.split(".")[0].endswith("embedding")]
    short = {name: f"{place.layer}.{place.rest}" for name, place in layers.items()}
    return [name for name in names if _under(pattern, name) or _under(pattern, short.get(name, name))]


def _under(path: str, name: str) -> bool:
    return name == path or name.startswith(f"{path}.")


def freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    """Let the parameters these words mean get no gradient any more; a word that means none is an error.

    What is frozen is frozen with the adapters that stand in it.
    """
    for name in _named(model, patterns, "training.freeze"):
        model.get_parameter(name).requires_grad_(False)


def _named(model: nn.Module, patterns: Sequence[str], key: str) -> list[str]:
    found: dict[str, None] = {}
    for pattern in patterns:
        matched = matching(model, pattern)
        if not matched:
            layers = _in_layers(model)
            parts = (layers[name].layer if name in layers else part_of(name) for name, _ in model.named_parameters())
            has = ", ".join(dict.fromkeys(parts))
            raise ValueError(f"{key}: nothing in this model is called {pattern!r}; it has embeddings, {has}")
        found |= dict.fromkeys(matched)
    return list(found)


def freeze_for(model: nn.Module, recipe: Recipe, new: Collection[str] = ()) -> None:
    """Freeze what a recipe wants frozen; with adapters, all but them, what is new and what they name beside it."""
    adapters = recipe.model.adapters
    if adapters is not None:
        trained = {*new, *_named(model, adapters.modules_to_save, "model.adapters.modules_to_save")}
        for name, parameter in model.named_parameters():
            if not is_adapter(name) and name not in trained:
                parameter.requires_grad_(False)
    freeze(model, recipe.training.freeze)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError("training.freeze leaves nothing to learn; take a part out of it")


def layer_rates(model: nn.Module, decay: float, new: Collection[str] = ()) -> dict[str, float]:
    """The share of the learning rate of each parameter: decay^(layers above it) (Howard and Ruder 2018, §3.2).

    The top layer of a body has the full rate, and so has what stands above the layers (norm, output) or is new.
    Embeddings and positions stand below the lowest layer; embeddings below that of the deeper body.
    """
    layers, bodies = _in_layers(model), _layered(model)
    counts = dict.fromkeys(bodies, 0)
    for place in layers.values():
        counts[place.body] = max(counts[place.body], place.number + 1)

    def above(name: str) -> int:
        if (place := layers.get(name)) is not None:
            return counts[place.body] - 1 - place.number
        side, _, rest = name.partition(".")
        if side.endswith("embedding"):
            return max(counts.values(), default=0)
        return counts[side] if side in bodies and any(_under(path, rest) for path in bodies[side].below) else 0

    return {name: 1.0 if name in new else decay ** above(name) for name, _ in model.named_parameters()}


def rates_for(model: nn.Module, recipe: Recipe, new: Collection[str] = ()) -> dict[str, float]:
    """`layer_rates` of a recipe's training; empty where all learn alike."""
    decay = recipe.training.layer_lr_decay
    return {} if decay is None else layer_rates(model, decay, new)


def trained_count(model: nn.Module) -> int:
    """How many numbers of a model are trained; shared ones once."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


_LAYER = re.compile(r"^((?:\w+\.)*?layers\.\d+)\.")


class LayerNorms:
    """‖∂L/∂θ_part‖ for each part with parameters of its own: encoder.layers.0, decoder.norm, output, …

    Shared parameters count for the part that holds them first. Norms stay on the device until somebody looks.
    """

    def __init__(self, model: nn.Module) -> None:
        self.parts: dict[str, list[nn.Parameter]] = {}
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                self.parts.setdefault(part_of(name), []).append(parameter)

    def __call__(self) -> Tensor:
        """(parts,) norms of the gradients as they are now; nothing waits for them."""
        every = []
        for parameters in self.parts.values():
            found = [parameter.grad for parameter in parameters if parameter.grad is not None]
            norms = torch.stack(torch._foreach_norm(found)) if found else torch.zeros(1, device=parameters[0].device)
            every.append(torch.linalg.vector_norm(norms.float()))
        return torch.stack(every)

    def record(self, norms: Tensor) -> dict[str, float]:
        """The same for a journal."""
        return {name: float(f"{value:.6g}") for name, value in zip(self.parts, norms.tolist(), strict=True)}


def part_of(name: str) -> str:
    """The part a parameter belongs to: its layer, or what stands beside the layers."""
    layer = _LAYER.match(name)
    if layer is not None:
        return layer[1]
    parts = name.split(".")[:-1]
    return ".".join(parts[:2] if parts[:1] in (["encoder"], ["decoder"]) else parts[:1]) or name
