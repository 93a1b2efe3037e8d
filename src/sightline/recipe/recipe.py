"""The whole recipe, and the differences between two recipes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pydantic import Field, ModelWrapValidatorHandler, model_validator

from sightline.recipe.aliases import with_current_names
from sightline.recipe.checks import check_recipe
from sightline.recipe.conflicts import check_decoding
from sightline.recipe.data import Data, longest_input
from sightline.recipe.decoding import Decoding, Evaluation
from sightline.recipe.defaults import with_model
from sightline.recipe.model import ModelConfig
from sightline.recipe.schema import Section
from sightline.recipe.tasks import TaskName, TaskSpec, spec_of_values, task_spec
from sightline.recipe.tokenizer import AnyTokenizer, BpeTokenizer
from sightline.recipe.training import Training


class Recipe(Section):
    """An experiment."""

    task: TaskName = Field("seq2seq", description="what the model does")
    seed: int = Field(1, ge=0, description="of everything random: initial weights, order of batches, dropout, noise")
    data: Data = Field(description="sources of examples")
    tokenizer: AnyTokenizer = Field(BpeTokenizer(), description="how text is split into tokens")
    model: ModelConfig = Field(ModelConfig(), description="the architecture")  # defaults: see defaults.py
    training: Training = Field(default_factory=Training, description="how the model is trained")
    decoding: Decoding = Field(Decoding(), description="search for outputs")
    evaluation: Evaluation = Field(Evaluation(), description="how outputs are scored")

    @model_validator(mode="wrap")
    @classmethod
    def _parts_of_the_task(cls, values: Any, validate: ModelWrapValidatorHandler[Recipe]) -> Recipe:
        """Fill in the default model of the task if the recipe names none; its keys count as unset."""
        filled = with_model(values)
        recipe = validate(filled)
        if filled is not values:
            recipe.model_fields_set.discard("model")
            recipe.model.model_fields_set.difference_update(recipe.task_spec.model)
            if values.get("model"):
                recipe.model_fields_set.add("model")
                recipe.model.model_fields_set.update(values["model"])
        if isinstance(values, dict) and "metrics" not in (values.get("evaluation") or {}):
            recipe.evaluation.model_fields_set.discard("metrics")
        return recipe

    @model_validator(mode="before")
    @classmethod
    def _metrics_of_the_task(cls, values: Any) -> Any:
        """Fill in the default metrics of the task if the recipe names none."""
        values = with_current_names(values)
        spec = spec_of_values(values)
        if spec is not None:
            section = values.get("evaluation") or {}
            if isinstance(section, dict) and "metrics" not in section:
                return {**values, "evaluation": {**section, "metrics": spec.default_metrics}}
        return values

    @model_validator(mode="after")
    def _parts_fit(self) -> Recipe:
        check_recipe(self)
        return self

    @property
    def task_spec(self) -> TaskSpec:
        """The spec of the task; with data.noise, seq2seq is denoising, and data.context: sentence has its own."""
        spec = task_spec(self.task, noise=self.data.noise is not None, context=self.data.context)
        assert spec is not None  # `task` was validated
        return spec

    @property
    def blind(self) -> bool:
        """True if no decoder attends to an encoder."""
        return not self.model.has_attention

    @property
    def copies_unknown(self) -> bool:
        """True if words outside the vocabulary can be copied from the source (text/copying.py)."""
        return bool(self.model.copying) and self.data.noise is None

    @property
    def copies_forms(self) -> bool:
        """True if copied words get or lose the space before them, as the output requires."""
        spaced = self.tokenizer.kind in ("word", "bpe", "unigram")  # kinds whose pieces may hold the space before them
        return self.model.copying is True and self.data.noise is None and spaced

    @property
    def of_text(self) -> bool:
        """True if examples are windows or sentences of plain text instead of pairs."""
        return self.task_spec.plain_text

    def validated(self, name: str, examples: int) -> int | None:
        """How many of the first examples of a test set validations use; None: all, or another text."""
        limit = self.data.validation_limit
        return limit if name == "validation" and limit is not None and limit < examples else None

    def gathers(self, name: str) -> bool:
        """True if all translations of a source in this test set are its references.

        That is so for lists of pairs, which may repeat a source; in parallel files, each line is an example.
        """
        return self.task_spec.maps_text and not self.of_text and self.data.held_out(name).kind != "text"

    def longest_sequence(self) -> tuple[int, str]:
        """The most tokens of a training sequence, special tokens included, and the key that sets this limit."""
        if self.task_spec.cuts_windows:
            return self.training.batches.context, "training.batches.context"
        most = self.data.clean.max_tokens + 1
        if self.task_spec.maps_text and self.model.encoder is None:
            read = most if self.data.clean.truncate_source is None else min(most, self.data.clean.truncate_source + 1)
            return read + most, "the longest pair of sentences data.clean.max_tokens lets through, end to end"
        if self.model.pooling is not None and self.model.pooling.kind == "class":
            return most + 1, "the longest text data.clean.max_tokens lets through, with its end mark and class token"
        return most, "the longest sentence data.clean.max_tokens lets through, with its end mark"

    def longest_input(self) -> int:
        """The default of `predict --max-input-length`, in tokens."""
        return longest_input(max(self.longest_sequence()[0], self.data.clean.truncate_source or 0))


def check_replacing(recipes: Iterable[Recipe], options: Decoding) -> None:
    """Refuse decoding options that none of the models of an ensemble supports; one with attention is enough."""
    check_decoding(min(recipes, key=lambda recipe: not recipe.model.has_attention), options)


# Keys that may change when a training is resumed. Only the limits change what is learned: they move the end of a cosine
# or warmup-stable-decay schedule.
FREE: frozenset[tuple[str, ...]] = frozenset(
    {
        *(("training", key) for key in ("limits", "device", "threads", "keep", "log_every", "log_layers")),
        *(("training", key) for key in ("tensorboard", "callbacks", "loggers")),
        ("training", "stopping", "patience"),
        ("data", "tests"),
        ("data", "folder"),  # differs between machines; the text itself is compared later
        ("decoding",),
        ("evaluation", "bootstrap"),
    }
)


def differences(old: Recipe, new: Recipe) -> list[str]:
    """The keys that may not change and do: `training.lr: 0.1 then, 0.2 now`.

    A run stores the precision that `auto` resolved to, so `auto` agrees with any.
    """
    if new.training.precision == "auto":
        training = new.training.model_copy(update={"precision": old.training.precision})
        new = new.model_copy(update={"training": training})
    return changed(old.model_dump(mode="json"), new.model_dump(mode="json"), lambda path: path in FREE)


def with_unset_from(recipe: Section, saved: Section) -> Any:
    """The recipe with the saved value of each key that it does not set, to resume a run."""
    changes: dict[str, Any] = {}
    for name in type(recipe).model_fields:
        own, theirs = getattr(recipe, name), getattr(saved, name)
        if name not in recipe.model_fields_set:
            changes[name] = theirs
        elif isinstance(own, Section) and type(own) is type(theirs):
            changes[name] = with_unset_from(own, theirs)
    return recipe.model_copy(update=changes)


def changed(old: Any, new: Any, free: Callable[[tuple[str, ...]], bool] = lambda path: False) -> list[str]:
    """Where two nested mappings differ, except for free paths: `decoding.beam: 5 then, 1 now`."""
    return [f"{key}: {before!r} then, {after!r} now" for key, before, after in _differing(old, new, (), free)]


def section_differences(theirs: Section, own: Section, name: str, free: frozenset[str]) -> list[str]:
    """Where a section of another recipe differs, except for `free` keys: `model.width: 8 there, 16 here`."""
    both = (theirs.model_dump(mode="json"), own.model_dump(mode="json"))
    pairs = _differing(*both, (name,), lambda path: path[-1] in free)
    return [f"{key}: {there!r} there, {here!r} here" for key, there, here in pairs]


def _differing(
    one: Any, other: Any, path: tuple[str, ...], free: Callable[[tuple[str, ...]], bool]
) -> Iterator[tuple[str, Any, Any]]:
    """Each key that differs and is not free, with both values."""
    if one == other or free(path):
        return
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(set(one) | set(other)):
            yield from _differing(one.get(key), other.get(key), (*path, key), free)
    else:
        yield ".".join(path), one, other


def without_adapters(recipe: Recipe) -> Recipe:
    """The recipe of a model whose adapters are merged into its weights."""
    return recipe.model_copy(update={"model": recipe.model.model_copy(update={"adapters": None})})


def carries(recipe: Recipe) -> bool:
    """True if each window starts from the final state of the previous one."""
    decoder = recipe.model.decoder
    carry, recurrent = recipe.training.batches.carry, decoder is not None and decoder.recurrent
    if carry and not recurrent:
        raise ValueError("training.batches.carry: true needs a recurrent decoder; others have no state to carry")
    if recipe.task_spec.by_sentence:
        return False
    return recurrent if carry is None else carry
