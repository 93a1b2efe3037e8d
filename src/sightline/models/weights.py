"""The weights of a model by name: loading, copying, and name maps for other formats.

A `NameMap` is an invertible list of rules. Old run folders (`OLD_NAMES`) and exchange formats use it. In a pattern, `*`
matches one part of a dotted name and `**` one or more:

    NameMap(Rename("decoder.layers.*.cross.**", "decoder.layers.*.cross_attention.**"))
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

Weights = Mapping[str, Tensor]


class Rule(Protocol):
    """A change of names or layouts. Scalars (step counts of an optimizer) change their names only."""

    def apply(self, weights: Weights) -> dict[str, Tensor]:
        """The weights under their new names; weights that match no pattern are unchanged."""

    def inverse(self) -> Rule:
        """The inverse rule."""


@dataclass(frozen=True)
class Rename:
    """Rename `old` to `new`; both patterns have the same wildcards."""

    old: str
    new: str

    def apply(self, weights: Weights) -> dict[str, Tensor]:
        return {_renamed(name, self.old, self.new) or name: tensor for name, tensor in weights.items()}

    def inverse(self) -> Rename:
        return Rename(self.new, self.old)


@dataclass(frozen=True)
class Split:
    """Split a tensor along a dimension, in equal parts or in proportion to `shares`."""

    whole: str
    parts: tuple[str, ...]
    dim: int = 0
    shares: tuple[int, ...] | None = None

    def apply(self, weights: Weights) -> dict[str, Tensor]:
        result: dict[str, Tensor] = {}
        for name, tensor in weights.items():
            names = [_renamed(name, self.whole, part) for part in self.parts]
            if names[0] is None:
                result[name] = tensor
                continue
            if not tensor.dim():
                result |= {str(part): tensor for part in names}
                continue
            shares = self.shares or (1,) * len(self.parts)
            unit, rest = divmod(tensor.shape[self.dim], sum(shares))
            if rest:
                raise ValueError(
                    f"weight {name} of shape {tuple(tensor.shape)} cannot be split into {len(shares)} parts of "
                    f"proportions {list(shares)} along dimension {self.dim}"
                )
            pieces = tensor.split([unit * share for share in shares], self.dim)
            result |= {str(part): piece for part, piece in zip(names, pieces, strict=True)}
        return result

    def inverse(self) -> Join:
        return Join(self.parts, self.whole, self.dim, self.shares)


@dataclass(frozen=True)
class Join:
    """Concatenate tensors along a dimension."""

    parts: tuple[str, ...]
    whole: str
    dim: int = 0
    shares: tuple[int, ...] | None = None  # proportions of unequal parts, for the inverse

    def apply(self, weights: Weights) -> dict[str, Tensor]:
        result = dict(weights)
        for name in weights:
            whole = _renamed(name, self.parts[0], self.whole)
            if whole is None:
                continue
            names = [_renamed(name, self.parts[0], part) for part in self.parts]
            missing = [part for part in names if part not in weights]
            if missing:
                raise ValueError(f"weights {', '.join(map(str, missing))} are missing, which {whole} is made of")
            tensors = [result.pop(str(part)) for part in names]
            result[whole] = torch.cat(tensors, self.dim) if tensors[0].dim() else tensors[0]
        return result

    def inverse(self) -> Split:
        return Split(self.whole, self.parts, self.dim, self.shares)


@dataclass(frozen=True)
class Transpose:
    """Transpose the last two dimensions of a tensor."""

    name: str

    def apply(self, weights: Weights) -> dict[str, Tensor]:
        return _changed(weights, self.name, lambda tensor: tensor.mT)

    def inverse(self) -> Transpose:
        return self


@dataclass(frozen=True)
class Reshape:
    """Reshape a tensor from shape `before` to shape `after`; at most one size of each is -1."""

    name: str
    before: tuple[int, ...]
    after: tuple[int, ...]

    def apply(self, weights: Weights) -> dict[str, Tensor]:
        return _changed(weights, self.name, lambda tensor: tensor.reshape(self.after))

    def inverse(self) -> Reshape:
        return Reshape(self.name, self.after, self.before)


class NameMap:
    """Rules that are applied in order."""

    def __init__(self, *rules: Rule) -> None:
        self.rules = rules

    def apply(self, weights: Weights) -> dict[str, Tensor]:
        """The weights under their new names, in their new layouts."""
        result = dict(weights)
        for rule in self.rules:
            result = rule.apply(result)
        return result

    def inverse(self) -> NameMap:
        """The inverse map."""
        return NameMap(*(rule.inverse() for rule in reversed(self.rules)))


@cache
def _pattern(pattern: str) -> re.Pattern[str]:
    escaped = re.escape(pattern).replace(r"\*\*", "(.+)").replace(r"\*", r"([^.]+)")
    return re.compile(escaped)


def _renamed(name: str, old: str, new: str) -> str | None:
    """The new name, or None if the name does not match `old`."""
    match = _pattern(old).fullmatch(name)
    if match is None:
        return None
    groups: Sequence[str] = match.groups()
    pieces = re.split(r"\*\*|\*", new)
    return pieces[0] + "".join(group + piece for group, piece in zip(groups, pieces[1:], strict=True))


def _changed(weights: Weights, pattern: str, change: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    matches = _pattern(pattern).fullmatch
    return {name: change(tensor) if matches(name) and tensor.dim() else tensor for name, tensor in weights.items()}


# Module names in runs of earlier versions. Add a pair here when an attribute that holds weights is renamed.
_OLD_MODULES = (
    ("**.layers.*.cross.**", "**.layers.*.cross_attention.**"),
    ("**.around_attention.**", "**.attention_residual.**"),
    ("**.around_cross.**", "**.cross_attention_residual.**"),
    ("**.around_feedforward.**", "**.feedforward_residual.**"),
    ("**.attention.project.**", "**.attention.qkv.**"),
    ("**.cross_attention.project.**", "**.cross_attention.qkv.**"),
    ("**.feedforward.widen.**", "**.feedforward.up.**"),
    ("**.feedforward.narrow.**", "**.feedforward.down.**"),
    ("**.nets.widen", "**.nets.up"),
    ("**.nets.narrow", "**.nets.down"),
    ("**.nets.widen_bias", "**.nets.up_bias"),
    ("**.nets.narrow_bias", "**.nets.down_bias"),
    ("**.attention.span.**", "**.attention.pattern.**"),
    ("**.layers.*.kernel.*", "**.layers.*.rnn.*"),
    ("**.links.*.map.*", "**.skip_connections.*.map.*"),
    ("decoder.mix.*", "decoder.attentional.*"),
    ("source_embedding.letters", "source_embedding.character_vectors"),
    ("**.entrance.**", "**.embed_positions.**"),
    ("**.enter.**", "**.input_projection.**"),
    ("**.leave.**", "**.output_projection.**"),
    ("**.attentions.*.back.**", "**.attentions.*.output_projection.**"),
)
OLD_NAMES = NameMap(*(Rename(old, new) for old, new in _OLD_MODULES))


def current_path(path: str) -> str:
    """Translate a path of an earlier version: `decoder.0.cross` → `decoder.0.cross_attention`.

    For names that users write: traced tensors, heads, modules to freeze.
    """
    for old, new in _OLD_PARTS:
        path = re.sub(rf"(?<![^.]){re.escape(old)}(?![^.])", new, path)
    return path


_OLD_PARTS = (
    ("cross", "cross_attention"),
    ("around_attention", "attention_residual"),
    ("around_cross", "cross_attention_residual"),
    ("around_feedforward", "feedforward_residual"),
    ("attention.project", "attention.qkv"),
    ("cross_attention.project", "cross_attention.qkv"),
    ("feedforward.widen", "feedforward.up"),
    ("feedforward.narrow", "feedforward.down"),
    ("entrance", "embed_positions"),
    ("decoder.mix", "decoder.attentional"),
)


def load_weights(file: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file under the names of this version.

    Optimizer states (`decoder.norm.weight/exp_avg`) follow the names of their weights.
    """
    groups: dict[str, dict[str, Tensor]] = {}
    for name, tensor in load_file(file).items():
        weight, slash, state = name.partition("/")
        groups.setdefault(slash + state, {})[weight] = tensor
    return {
        name + suffix: tensor for suffix, group in groups.items() for name, tensor in OLD_NAMES.apply(group).items()
    }


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """The parameters of a model, tied ones once, and its persistent buffers (averages of batch norms)."""
    saved = model.state_dict().keys()
    return dict(model.named_parameters()) | {name: part for name, part in model.named_buffers() if name in saved}


def parameters_of(model: nn.Module) -> dict[str, Tensor]:
    """The weights on the CPU, contiguous, for saving."""
    return {name: parameter.detach().cpu().contiguous() for name, parameter in weights_of(model).items()}


def load_parameters(model: nn.Module, weights: Weights) -> None:
    """Copy weights into the model; names and shapes must match."""
    own = weights_of(model)
    missing, extra = sorted(set(own) - set(weights)), sorted(set(weights) - set(own))
    if missing or extra:
        raise ValueError(f"these weights belong to another model: missing {missing[:3]}, not expected {extra[:3]}")
    with torch.no_grad():
        for name, parameter in own.items():
            if parameter.shape != weights[name].shape:
                raise ValueError(
                    f"weight {name} has shape {tuple(weights[name].shape)}, the model's is {tuple(parameter.shape)}"
                )
            parameter.copy_(weights[name])
