"""Whether a recipe can be trained: asked when a training is to begin, and never of a run that is finished."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sightline.recipe.bodies import RecurrentDecoder, TransformerBody, learned_positions
from sightline.recipe.copying import check_rivals_of_copying
from sightline.recipe.guiding import check_guiding
from sightline.recipe.pretraining import check_windows
from sightline.recipe.recipe import Recipe
from sightline.recipe.sides import check_sides


def check_trainable(recipe: Recipe) -> None:
    """Refuse what cannot be learned, or not as the data and training sections want it; keys without effect too.

    What a model is and what can be asked of it is checked wherever a recipe is read (recipe.py). This is not: a run
    that was trained before one of these checks was there is as good as ever.
    """
    if recipe.model.copying:
        check_rivals_of_copying(_rivals_of_copying(recipe))
    check_guiding(recipe.training.guided_alignment, recipe.task_spec, recipe.model, _rivals_of_guiding(recipe))
    _check_additions(recipe)
    if recipe.of_text:
        check_windows(recipe)
    check_sides(recipe)
    _check_positions(recipe)
    _check_gates(recipe)


def _rivals_of_copying(recipe: Recipe) -> dict[str, object]:
    """What a training cannot have with model.copying, by key, where it is set."""
    training = recipe.training
    return {
        "training.rdrop": training.rdrop is not None,
        "training.reward": training.reward,
        "training.guided_alignment": training.guided_alignment,
        "training.batches.layout: packed": training.batches.layout == "packed",
        "training.compile: true": training.compile,
    }


def _rivals_of_guiding(recipe: Recipe) -> dict[str, object]:
    """What cannot be had beside guided alignment: other objectives, other words, a compiled step."""
    training = recipe.training
    return {
        "training.rdrop": training.rdrop is not None,
        "training.reward": training.reward is not None,
        "training.compile: true": training.compile,
        "model.copying: true": recipe.model.copying,
        "data.noise": recipe.data.noise is not None,
    }


def _check_additions(recipe: Recipe) -> None:
    """Whether what is beyond the likelihood of a training, or beside it, can do its work here."""
    training = recipe.training
    if training.stopping.on == "reward" and training.reward is None:
        raise ValueError("training.stopping.on: reward needs training.reward; add that section, or stop on loss")
    if training.recompute_layers and not any(isinstance(b, TransformerBody) for b in recipe.model.bodies.values()):
        raise ValueError(
            "training.recompute_layers: true is for Transformer layers, and this model has none; leave it out"
        )
    if training.reward is not None:
        _check_reward(recipe)
    elif training.rdrop is not None:
        _check_rdrop(recipe)


def _check_rdrop(recipe: Recipe) -> None:
    carried = recipe.task_spec.continues_text and isinstance(recipe.model.decoder, RecurrentDecoder)
    if carried and recipe.training.batches.carry is not False:
        raise ValueError(
            "training.rdrop reads every window twice, and this model goes on from the state of the window "
            "before; set training.batches.carry: false"
        )
    if not any(value for key, value in _settings(recipe.model.model_dump()) if key.endswith(("dropout", "noise"))):
        raise ValueError(
            "training.rdrop makes two passes with different dropout agree, and without any they are the same "
            "twice; set dropout in the model, or leave training.rdrop out"
        )


def _check_reward(recipe: Recipe) -> None:
    training = recipe.training
    if training.compile:
        raise ValueError(
            "training.compile: true cannot be had with training.reward, whose steps are not compiled; leave it"
        )
    if training.rdrop is not None:
        raise ValueError("training.rdrop and training.reward are two objectives; leave one of them out")
    if not recipe.task_spec.maps_text or recipe.model.encoder is None:
        raise ValueError("training.reward needs task: seq2seq and a model with an encoder; leave it out")
    if training.batches.layout == "packed":
        raise ValueError("training.reward draws from padded batches; leave training.batches.layout out")
    if training.stopping.on == "loss" and training.result == "best":
        raise ValueError(
            "training.reward does not lower the loss, so the best loss is not the best model; set "
            "training.stopping.on: reward (or metric), or training.result: last"
        )


def _check_positions(recipe: Recipe) -> None:
    """Whether learned positions reach as far as the longest sequence of the training."""
    longest, what = recipe.longest_sequence()
    for side, body in recipe.model.bodies.items():
        places = learned_positions(body)
        if places is not None and places < longest:
            raise ValueError(
                f"model.{side}.positions.longest ({places}) is less than {what} ({longest}); raise it, or lower that"
            )


def _check_gates(recipe: Recipe) -> None:
    """Whether anything teaches the gates of experts: their shares of a token, or the loss on their load."""
    for side, body in recipe.model.bodies.items():
        experts = body.feedforward.experts if isinstance(body, TransformerBody) else getattr(body, "experts", None)
        if experts is not None and experts.top == 1 and not experts.load:
            raise ValueError(
                f"model.{side}: with experts.top: 1 and experts.load: 0 nothing teaches the gates, since one expert "
                f"always has all of a token; raise experts.top, or experts.load (with experts.noise: true)"
            )


def _settings(section: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The keys of a section and of those within it, with their values."""
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from _settings(value)
        else:
            yield key, value
