"""Whether a recipe that learns from spoilt text (data.noise) can do so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sightline.recipe.bodies import ByteNetBody
from sightline.recipe.data import Clean
from sightline.recipe.tasks import TASKS

if TYPE_CHECKING:
    from sightline.recipe import Recipe


_SPECIALS = 4  # of every vocabulary: padding, unknown, start, end


def check_noise(recipe: Recipe) -> None:
    """Refuse noise that does not fit the task, the tokenizer or the model."""
    noise, spec = recipe.data.noise, recipe.task_spec
    if noise is None:
        if spec.noise:
            raise ValueError(f"{spec} learns to undo noise; add data.noise: {{kind: {spec.noise[0]}}}")
        return
    what = f"data.noise.kind: {noise.kind}"
    if noise.kind not in spec.noise:
        fits = next(each.name for each in TASKS.values() if noise.kind in each.noise)
        raise ValueError(f"{what} is for task: {fits}, not {recipe.task}; change one of them")
    if not recipe.tokenizer.shared:
        raise ValueError(f"{what} reads and writes the same text; set tokenizer.shared: true")
    size, marks = recipe.tokenizer.size, len(noise.marks)
    if size <= _SPECIALS + marks:  # one mark fits into every size; many do not
        raise ValueError(
            f"tokenizer.size ({size}) has no room for text beside data.noise.sentinels ({marks}) and {_SPECIALS} "
            f"specials; raise it, or lower data.noise.sentinels"
        )
    if spec.maps_text:
        _check_parts(recipe, what)


def check_windows(recipe: Recipe) -> None:
    """Refuse trainings that are not of windows of text, where those are learned from."""
    noise, context = recipe.data.noise, recipe.training.batches.context
    what = str(recipe.task_spec) if noise is None else f"data.noise.kind: {noise.kind}"
    if recipe.data.clean != Clean():
        raise ValueError(f"data.clean is for pairs of texts, and {what} has none; leave it out")
    if noise is None:
        return
    if recipe.training.reward is not None:
        raise ValueError(f"{what} is learned by likelihood; leave training.reward out")
    if context < 8:
        raise ValueError(f"training.batches.context ({context}) leaves too little text to spoil; raise it to 8 or more")


def _check_parts(recipe: Recipe, what: str) -> None:
    """Of a model that mends text."""
    model = recipe.model
    if model.encoder is None or isinstance(model.decoder, ByteNetBody):
        raise ValueError(
            f"{what} needs a model with an encoder, and a decoder that is not ByteNet's; set model.encoder, and "
            f"model.decoder.kind to another"
        )
    if recipe.decoding.replace_unknown != "none" or model.copying:
        key = "model.copying" if model.copying else "decoding.replace_unknown"
        raise ValueError(f"{what} has marks where words to copy would be; leave {key} out")
