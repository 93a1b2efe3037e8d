"""Ensembles: models whose predictions are averaged at each decoding step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from sightline.data.locate import is_reverse_direction
from sightline.layers.layout import Layout
from sightline.models.language_model import DecoderOnly
from sightline.recipe import Recipe
from sightline.run_folder import RunError
from sightline.text.vocabulary import Vocabulary

Mean = Literal["probabilities", "logs"]


@dataclass(frozen=True)
class EnsembleState:
    """The state of each model."""

    parts: tuple[Any, ...]

    def select(self, parents: Tensor) -> EnsembleState:
        return EnsembleState(tuple(part.select(parents) for part in self.parts))

    def keep(self, sentences: Tensor) -> EnsembleState:
        return EnsembleState(tuple(part.keep(sentences) for part in self.parts))

    def append(self, other: EnsembleState) -> EnsembleState:
        return EnsembleState(tuple(own.append(new) for own, new in zip(self.parts, other.parts, strict=True)))


def mean_log_probabilities(logs: Sequence[Tensor], weights: Sequence[float], mean: Mean) -> Tensor:
    """Log-probabilities (…, V) of each model → those of all.

    probabilities: log Σ_m w_m p_m. logs: Σ_m w_m log p_m, made to sum to one again.
    """
    if mean == "logs":
        total = sum(weight * each for weight, each in zip(weights, logs, strict=True))
        assert isinstance(total, Tensor)
        return total.log_softmax(-1)
    shifted = [each + math.log(weight) for weight, each in zip(weights, logs, strict=True)]
    return torch.stack(shifted).logsumexp(0)


class Trained(Protocol):
    """The interface of runs in an ensemble."""

    folder: Path
    recipe: Recipe
    vocabulary: Vocabulary


def check_alike(first: Trained, other: Trained) -> None:
    """Refuse runs that differ in task, direction or vocabulary."""
    if other.recipe.task_spec != first.recipe.task_spec:
        raise RunError(
            f"{other.folder} is {other.recipe.task_spec} and {first.folder} is {first.recipe.task_spec}; "
            f"an ensemble has one task"
        )
    if is_reverse_direction(first.recipe, other.recipe):
        raise RunError(
            f"{other.folder} learned the other direction of the corpus of {first.folder} (data.swap: "
            f"{str(other.recipe.data.swap).lower()}); an ensemble writes one language"
        )
    here, there = ((each.recipe.data.clean.truncate_source, each.recipe.copies_unknown) for each in (first, other))
    if here != there:
        raise RunError(
            f"{other.folder} and {first.folder} are not given the same tokens: data.clean.truncate_source is "
            f"{there[0]} and {here[0]}, unknown words are copied (model.copying): {there[1]} and {here[1]}; an "
            f"ensemble needs runs with the same input tokens"
        )
    for side in ("source", "target"):
        ours, theirs = getattr(first.vocabulary, side), getattr(other.vocabulary, side)
        if ours.content != theirs.content:
            sizes = f"{theirs.size:,} and {ours.size:,} pieces" if ours.size != theirs.size else "the same size"
            raise RunError(
                f"{other.folder} has another {side} vocabulary than {first.folder} ({sizes}), so their "
                f"probabilities are of different things; an ensemble needs runs with the same tokenizer"
            )


class Ensemble(nn.Module):
    """A model made of models with the same vocabulary, of any architectures. Its features are log-probabilities
    (of one model alone, its logits).

    `weights` are uniform by default.
    """

    def __init__(
        self, models: Sequence[Any], *, weights: Sequence[float] | None = None, mean: Mean = "probabilities"
    ) -> None:
        super().__init__()
        if not models:
            raise ValueError("an ensemble needs at least one model")
        if mean not in ("probabilities", "logs"):
            raise ValueError(f"an ensemble takes the mean of probabilities or of logs, not of {mean!r}")
        weights = [1.0] * len(models) if weights is None else list(weights)
        if len(weights) != len(models) or min(weights) <= 0:
            raise ValueError(f"weights {weights} do not fit {len(models)} models; give each one a number above 0")
        self.models, self.mean = nn.ModuleList(models), mean
        self.weights = [weight / sum(weights) for weight in weights]
        # for each model the paths of its cross-attention modules
        self.member_cross_attention_paths = tuple(
            tuple(f"models.{number}.{path}" for path in getattr(model, "cross_attention_paths", ()))
            for number, model in enumerate(models)
        )
        self.cross_attention_paths: tuple[str, ...] = tuple(
            path for paths in self.member_cross_attention_paths for path in paths
        )
        self.longest: int | None = min((longest for longest, _ in model_limits(self)), default=None)

    def encode(self, source: Tensor, layout: Layout) -> tuple[Any, ...]:
        return tuple(model.encode(source, layout) for model in self.members())

    def begin(self, memory: tuple[Any, ...]) -> EnsembleState:
        return EnsembleState(tuple(model.begin(each) for model, each in zip(self.members(), memory, strict=True)))

    def advance(
        self, tokens: Tensor, state: EnsembleState, layout: Layout | None = None
    ) -> tuple[Tensor, EnsembleState]:
        """Tokens (B·W, 1) or (B, T) → log-probabilities (…, V) of the tokens after them."""
        if len(self.models) == 1:
            (alone,) = self.members()
            features, part = alone.advance(tokens, state.parts[0], layout)
            return alone.logits(features), EnsembleState((part,))
        logs, parts = [], []
        for model, part in zip(self.members(), state.parts, strict=True):
            features, part = model.advance(tokens, part, layout)
            logs.append(model.logits(features).float().log_softmax(-1))
            parts.append(part)
        return mean_log_probabilities(logs, self.weights, self.mean), EnsembleState(tuple(parts))

    def logits(self, features: Tensor) -> Tensor:
        return features

    def members(self) -> list[Any]:
        """The models."""
        return list(self.models)


def model_limits(model: Any) -> list[tuple[int, bool]]:
    """The `Limit` of a model, or of each model of an ensemble."""
    if isinstance(model, Ensemble):
        return [limit for each in model.members() for limit in model_limits(each)]
    longest = getattr(model, "longest", None)
    return [] if longest is None else [(longest, isinstance(model, DecoderOnly))]
