"""What of a model is trained, and how fast: frozen parts, and rates that fall from layer to layer."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from torch import nn

from sightline.layers.adapters import is_adapter
from sightline.recipe import Recipe
from sightline.training.layer_norms import part_of

# what belongs to a layer, under the names that bodies have for it: the attention after a convolution, the link past a
# recurrent layer, the experts below it, the layers of a window's net
_LAYER = re.compile(r"^(encoder|decoder)\.(?:layers|net\.layers|attentions|links|between\.experts)\.(\d+)\.")
_BELOW = ("positions.", "bias.", "entrance.")  # parts of a body that stand below its lowest layer


def matching(names: Collection[str], pattern: str) -> list[str]:
    """The parameters that a word of `training.freeze` means.

    `embeddings` are all of them, `encoder.0` is the lowest layer of the encoder; else a name, up to one of its dots.
    """
    if pattern == "embeddings":
        return [name for name in names if name.split(".")[0].endswith("embedding")]
    if re.fullmatch(r"(encoder|decoder)\.\d+", pattern):
        return [name for name in names if _layer_of(name) == pattern]
    start = re.sub(r"^(encoder|decoder)\.(\d+)(?=\.)", r"\1.layers.\2", pattern)
    return [name for name in names if name == start or name.startswith(start + ".")]


def _layer_of(name: str) -> str | None:
    """encoder.0 of a parameter in the lowest layer of the encoder; None of one that is in no layer."""
    found = _LAYER.match(name)
    return None if found is None else f"{found[1]}.{found[2]}"


def freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    """Let the parameters these words mean get no gradient any more; a word that means none is an error.

    What is frozen is frozen with the adapters that stand in it.
    """
    for name in _named(model, patterns, "training.freeze"):
        model.get_parameter(name).requires_grad_(False)


def _named(model: nn.Module, patterns: Sequence[str], key: str) -> list[str]:
    names = [name for name, _ in model.named_parameters()]
    found: dict[str, None] = {}
    for pattern in patterns:
        matched = matching(names, pattern)
        if not matched:
            parts = ", ".join(dict.fromkeys(_layer_of(name) or part_of(name) for name in names))
            raise ValueError(f"{key}: nothing in this model is called {pattern!r}; it has embeddings, {parts}")
        found |= dict.fromkeys(matched)
    return list(found)


def freeze_for(model: nn.Module, recipe: Recipe, new: Collection[str] = ()) -> None:
    """Freeze what a recipe wants frozen; with adapters, all but them, what is new and what they name beside it."""
    adapters = recipe.model.adapters
    if adapters is not None:
        trained = {*new, *_named(model, adapters.also, "model.adapters.also")}
        for name, parameter in model.named_parameters():
            if not is_adapter(name) and name not in trained:
                parameter.requires_grad_(False)
    freeze(model, recipe.training.freeze)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError("training.freeze leaves nothing to learn; take a part out of it")


def layer_rates(names: Collection[str], decay: float, new: Collection[str] = ()) -> dict[str, float]:
    """The share of the learning rate of each parameter: decay^(layers above it) (Howard and Ruder 2018, §3.2).

    The top layer of a body has the full rate, and so has what stands above the layers (norm, output) or is new.
    Embeddings and positions stand below the lowest layer; embeddings below that of the deeper body.
    """
    layers: dict[str, int] = {}
    for name in names:
        if found := _LAYER.match(name):
            layers[found[1]] = max(layers.get(found[1], 0), int(found[2]) + 1)
    deepest = max(layers.values(), default=0)
    return {name: 1.0 if name in new else decay ** _layers_above(name, layers, deepest) for name in names}


def _layers_above(name: str, layers: Mapping[str, int], deepest: int) -> int:
    if found := _LAYER.match(name):
        return layers[found[1]] - 1 - int(found[2])
    body, _, rest = name.partition(".")
    if body.endswith("embedding"):
        return deepest
    return layers[body] if body in layers and rest.startswith(_BELOW) else 0


def rates_for(model: nn.Module, recipe: Recipe, new: Collection[str] = ()) -> dict[str, float]:
    """`layer_rates` of a recipe's training; empty where all learn alike."""
    decay = recipe.training.layer_lr_decay
    return {} if decay is None else layer_rates([name for name, _ in model.named_parameters()], decay, new)


def trained_count(model: nn.Module) -> int:
    """How many numbers of a model are trained; shared ones once."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
