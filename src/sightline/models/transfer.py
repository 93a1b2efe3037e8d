"""`init_from`: which weights of one model can initialize another.

Layers of encoders and decoders are loaded whole or not at all, matched by name and shape. Encoders and decoders declare
their layers and the parts that see a source (protocol.py). Tables with a row for each token (embeddings, output layers)
match if the tokens of the other model are the first tokens of this one; additional rows are new.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sightline.recipe.model import Part

Pieces = Mapping[str, Sequence[str]]  # tokens of `source` and `target`
Bodies = Mapping[str, Any]  # `encoder` and `decoder`: modules or classes that are `Layered`

_SIDES = {
    "source_embedding.weight": "source",
    "target_embedding.weight": "target",
    "embedding.weight": "target",
    "output.weight": "target",
    "output.bias": "target",
}
_ALTERNATIVES = {  # other sources of a table, in this order
    "source_embedding.weight": ("target_embedding.weight", "embedding.weight"),
    "target_embedding.weight": ("embedding.weight", "source_embedding.weight"),
    "embedding.weight": ("target_embedding.weight", "source_embedding.weight"),
}
_TIED = ["target_embedding.weight", "embedding.weight", "source_embedding.weight"]  # sources of a tied output layer
_NUMBERED = re.compile(r"^(?:encoder|decoder)\.(?:\w+\.)*?\d+(?=\.|$)")  # a module in a list


def part(name: str) -> Part:
    """The part of a model that a weight belongs to."""
    first = name.split(".")[0]
    if first in ("encoder", "decoder"):
        return "encoder" if first == "encoder" else "decoder"
    return "embeddings" if first.endswith("embedding") else "head"


def _under(path: str, name: str) -> bool:
    """True if a name is below a path, in which `*` matches any number."""
    names, steps = name.split("."), path.split(".")
    pairs = zip(steps, names, strict=False)
    return len(names) >= len(steps) and all(step == own or (step == "*" and own.isdecimal()) for step, own in pairs)


@dataclass(frozen=True)
class Transfer:
    """Weights that one model loads from another."""

    taken: dict[str, str]  # own name → name in the other model
    new: tuple[str, ...]  # own names without a source
    left: tuple[str, ...]  # unused names of the other model
    rows: dict[str, int]  # number of new rows of own tables


@dataclass(frozen=True)
class ModelWeights:
    """Weights, tokens and parts of a model, for planning a transfer."""

    weights: Mapping[str, Tensor]
    pieces: Pieces
    bodies: Bodies

    @property
    def reads(self) -> bool:
        """True if the model has an encoder."""
        return "encoder" in self.bodies

    def sees_source(self, name: str) -> bool:
        """True if decoders without a source lack this weight."""
        side, _, rest = name.partition(".")
        return side == "decoder" and any(_under(path, rest) for path in self.bodies[side].sees_source)

    def unit(self, name: str) -> str:
        """The unit of this weight, which is loaded as a whole: encoder.layers.0, decoder.norm, output, …"""
        side, *rest = name.split(".")
        if side not in self.bodies:
            return side
        lists = (path.split(".") for path in self.bodies[side].by_layer)
        steps = next((len(path) + 1 for path in lists if rest[: len(path)] == path), 1)
        return ".".join([side, *rest[:steps]])


def plan_transfer(own: ModelWeights, theirs: ModelWeights, parts: Collection[Part] | None = None) -> Transfer:
    """Match the weights of these parts; None: of all parts."""
    taken: dict[str, str] = {}
    units: dict[str, list[str]] = {}
    for name in own.weights:
        if parts is None or part(name) in parts:
            units.setdefault(own.unit(name), []).append(name)
    for names in units.values():
        sources = {name: _origin(name, own, theirs) for name in names}
        needed = [name for name in names if theirs.reads or not own.sees_source(name)]
        if needed and all(sources[name] is not None for name in needed):
            taken |= {name: source for name, source in sources.items() if source is not None}
    used = set(taken.values())
    return Transfer(
        taken=taken,
        new=tuple(name for name in own.weights if name not in taken),
        left=tuple(name for name in theirs.weights if name not in used),
        rows={name: _more_rows(own.weights[name], theirs.weights[source]) for name, source in taken.items()},
    )


def _more_rows(own: Tensor, theirs: Tensor) -> int:
    return len(own) - len(theirs) if own.dim() and own.shape != theirs.shape else 0


def _origin(name: str, own: ModelWeights, theirs: ModelWeights) -> str | None:
    """The weight of the other model that matches this one; None if there is none."""
    names = [name, *_ALTERNATIVES.get(name, ())]
    if name == "output.weight" and name not in theirs.weights:
        names = _TIED
    return next((other for other in names if other in theirs.weights and _fits(name, own, other, theirs)), None)


def _fits(name: str, own: ModelWeights, other: str, theirs: ModelWeights) -> bool:
    mine, its = own.weights[name], theirs.weights[other]
    side = _SIDES.get(name)
    if side is None:
        by_character = name.startswith("source_embedding.")  # character ids depend on the tokens
        return mine.shape == its.shape and (not by_character or own.pieces["source"] == theirs.pieces["source"])
    rows = list(theirs.pieces[_SIDES[other]])
    return mine.shape[1:] == its.shape[1:] and len(its) == len(rows) and list(own.pieces[side][: len(rows)]) == rows


def not_taken(plan: Transfer, own: ModelWeights, theirs: ModelWeights, named: Part) -> list[str]:
    """Reasons why a part cannot be loaded as a whole: own weights without a source, and unused weights of the other.

    If only one of two decoders sees a source, its cross-attention may be new, or unused.
    """
    if not any(part(name) == named for name in own.weights):
        return [f"this model has no {named}"]
    missing = [name for name in plan.new if part(name) == named and (theirs.reads or not own.sees_source(name))]
    over = [
        name
        for name in plan.left
        if part(name) == named and named in ("encoder", "decoder") and (own.reads or not theirs.sees_source(name))
    ]
    return [_reason(name, own, theirs) for name in missing] + [f"{name} has no place here" for name in over]


def _reason(name: str, own: ModelWeights, theirs: ModelWeights) -> str:
    if name not in theirs.weights:
        return f"{name} is not there"
    mine, its = tuple(own.weights[name].shape), tuple(theirs.weights[name].shape)
    if mine != its:
        return f"{name} is {its} there and {mine} here"
    return f"{name} is for other tokens there" if name in _SIDES else f"{name} fits, but not all that is beside it"


@torch.no_grad()
def transfer(plan: Transfer, own: Mapping[str, Any], theirs: Mapping[str, Tensor]) -> None:
    """Copy the matched weights; new rows do not change."""
    for name, source in plan.taken.items():
        weight, its = own[name], theirs[source]
        (weight if weight.shape == its.shape else weight[: len(its)]).copy_(its)


def summary(names: Iterable[str]) -> str:
    """Summarize names of weights: `encoder.layers.0 to 5, encoder.norm, output`."""
    bodies: dict[str, list[int]] = {}
    for name in names:
        match = _NUMBERED.match(name)
        if match is None:
            bodies.setdefault(".".join(name.split(".")[: 2 if part(name) in ("encoder", "decoder") else 1]), [])
            continue
        head, _, number = match[0].rpartition(".")
        if int(number) not in bodies.setdefault(head, []):
            bodies[head].append(int(number))
    return ", ".join(_layers(name, numbers) for name, numbers in bodies.items())


def _layers(name: str, numbers: list[int]) -> str:
    if not numbers:
        return name
    if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{name}.{numbers[0]} to {numbers[-1]}"
    return ", ".join(f"{name}.{number}" for number in numbers)
