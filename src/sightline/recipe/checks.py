"""Checks of a whole recipe: that its parts fit the task and each other, and that it can be trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sightline.recipe.conflicts import TRAINING_CONFLICTS, check_conflicts
from sightline.recipe.tasks import suits, tasks

if TYPE_CHECKING:
    from sightline.recipe.recipe import Recipe

_SPECIALS = 4  # of every vocabulary: padding, unknown, start, end
_EXAMPLES = {  # of parts that a task needs, as a recipe writes them
    "encoder": "encoder: {kind: transformer, layers: 4}",
    "decoder": "decoder: {kind: transformer, layers: 4}",
    "pooling": "pooling: {kind: mean}",
}


def check_recipe(recipe: Recipe) -> None:
    """Refuse a recipe whose sections do not fit each other."""
    _check_task(recipe)
    _check_noise(recipe)
    check_conflicts(recipe)
    _check_decoder(recipe)


def check_trainable(recipe: Recipe) -> None:
    """Refuse what cannot be trained, and keys without effect.

    It is not called for the recipe of a finished run, which may be older than one of these rules.
    """
    check_conflicts(recipe, TRAINING_CONFLICTS)
    if recipe.training.stopping.monitor == "reward" and recipe.training.reward is None:
        raise ValueError(
            "training.stopping.monitor: reward needs training.reward; add that section, or set monitor: loss"
        )
    if recipe.data.noise is not None and recipe.training.batches.context < 8:
        raise ValueError(
            f"training.batches.context ({recipe.training.batches.context}) leaves too little text to corrupt; raise it "
            f"to 8 or more"
        )
    _check_guided_head(recipe)
    _check_sources(recipe)
    _check_positions(recipe)
    _check_gates(recipe)


def _check_task(recipe: Recipe) -> None:
    """The model must have the parts of the task, and the metrics must suit it."""
    spec = recipe.task_spec
    present = {part for part in ("encoder", "decoder", "pooling") if getattr(recipe.model, part) is not None}
    if missing := sorted(spec.needs - present):
        raise ValueError(
            f"{spec} needs model.{missing[0]}; write, for example, {_EXAMPLES[missing[0]]} under model "
            f"(`sightline recipes keys model.{missing[0]}` lists what it may be)"
        )
    if extra := sorted(present - spec.allows):
        raise ValueError(f"{spec} has no use for model.{extra[0]}; leave it out, or change the task")
    if wrong := [name for name in recipe.evaluation.metrics if not suits(name, spec)]:
        raise ValueError(f"evaluation.metrics: {wrong[0]} is not for {spec}; use {', '.join(spec.metrics)}")


def _check_decoder(recipe: Recipe) -> None:
    """A decoder must have the encoder it needs, and room for outputs of the minimum length."""
    decoder, alone = recipe.model.decoder, recipe.model.encoder is None
    if decoder is None:
        return
    if decoder.counted and not recipe.task_spec.continues_text:
        raise ValueError(
            "model.decoder.kind: ngram counts text and cannot look at a source; use it with task: language-model"
        )
    if alone and decoder.needs_encoder:
        raise ValueError(
            f"model.decoder.attention.kind: {decoder.attention_kind} has no encoder to look at; set it to none"
        )
    if alone and recipe.task_spec.maps_text and recipe.model.tie != "all":
        raise ValueError("a decoder that reads the source too has one embedding; set model.tie: all")
    least, room = recipe.decoding.min_length, decoder.max_positions
    if recipe.task_spec.maps_text and not alone and room is not None and least >= room:
        raise ValueError(
            f"decoding.min_length ({least}) leaves no room for an end mark below "
            f"model.decoder.positions.max_positions ({room}); lower it, or raise that"
        )


def _check_noise(recipe: Recipe) -> None:
    """The task must learn to undo this noise, and the vocabulary must have room for its marks."""
    noise, spec = recipe.data.noise, recipe.task_spec
    if noise is None:
        if spec.noise:
            raise ValueError(f"{spec} learns to undo noise; add data.noise: {{kind: {spec.noise[0]}}}")
        return
    if noise.kind not in spec.noise:
        fits = next((each.name for each in tasks().values() if noise.kind in each.noise), None)
        fits = f"is for task: {fits}, not" if fits else "is not for task:"
        raise ValueError(f"data.noise.kind: {noise.kind} {fits} {recipe.task}; change one of them")
    size, marks = recipe.tokenizer.size, len(noise.marks)
    if size <= _SPECIALS + marks:  # one mark fits into every size; many do not
        raise ValueError(
            f"tokenizer.size ({size}) has no room for text beside data.noise.sentinels ({marks}) and {_SPECIALS} "
            f"specials; raise it, or lower data.noise.sentinels"
        )


def _check_guided_head(recipe: Recipe) -> None:
    guide, decoder = recipe.training.guided_alignment, recipe.model.decoder
    if guide is None or decoder is None:
        return
    layers, heads = decoder.attention_layers, decoder.attention_heads
    for key, value, count in (("layer", guide.place(layers), layers), ("head", guide.head, heads)):
        if value >= count:
            raise ValueError(
                f"training.guided_alignment.{key} is {value}, and there are {count}, counted from 0; lower it"
            )


def _check_sources(recipe: Recipe) -> None:
    """Sources must have pairs if the task learns from pairs, and no options for pairs if they have none."""
    data = recipe.data
    named = {f"data.train.{number}": source for number, source in enumerate(data.train)}
    named |= {"data.validation": data.validation, **{f"data.tests.{name}": each for name, each in data.tests.items()}}
    for key, source in named.items():
        if not source.one_sided:
            continue
        if not recipe.of_text:
            raise ValueError(
                f"{key}.kind: {source.kind} is text without a source side, and {recipe.task_spec} learns from pairs; "
                f"use text, tsv or jsonl, or task: language-model"
            )
        if data.swap:
            raise ValueError(f"data.swap: true has no sides to exchange in {key}, of kind: {source.kind}; leave it out")
        if source.share is not None:
            raise ValueError(
                f"{key}.share goes by a hash of the source side, and kind: {source.kind} has none, so all or nothing "
                f"would be kept; take a part of the text by {key}.part"
            )
    weights = [source.weight for source in data.train]
    if recipe.model.counted and any(weight != 1.0 for weight in weights):
        raise ValueError(
            f"weights ({', '.join(map(str, weights))}) of data.train: model.decoder.kind: ngram counts every text "
            f"once; leave the weights out"
        )


def _check_positions(recipe: Recipe) -> None:
    """Learned positions must reach as far as the longest training sequence."""
    longest, what = recipe.longest_sequence()
    for side, body in recipe.model.bodies.items():
        if body.max_positions is not None and body.max_positions < longest:
            raise ValueError(
                f"model.{side}.positions.max_positions ({body.max_positions}) is less than {what} ({longest}); raise "
                f"it, or lower that"
            )


def _check_gates(recipe: Recipe) -> None:
    """The gates of experts must have a gradient: from their weights, or from the loss on their load."""
    for side, body in recipe.model.bodies.items():
        if body.mixture is not None and body.mixture.top_k == 1 and not body.mixture.load:
            raise ValueError(
                f"model.{side}: with experts.top_k: 1 and experts.load: 0 nothing teaches the gates, since one expert "
                f"always has all of a token; raise experts.top_k, or experts.load (with experts.noise: true)"
            )
