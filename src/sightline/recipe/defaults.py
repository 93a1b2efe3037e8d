"""Defaults that depend on the task and the training text.

A recipe needs no more than `task` and `data`. The parts of its model are those of its task (`TaskSpec.model`); the
keys of `RULES` follow from the size of the training text (`TextSize`), because no single vocabulary size, batch size or
number of epochs suits both 500 sentence pairs and 300,000. They are filled in once, before a training starts, and saved
with the run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal

from sightline.recipe.schema import Section
from sightline.recipe.sources import PlainSource
from sightline.recipe.tasks import spec_of_values
from sightline.recipe.tokenizer import WHOLE_WORDS, BpeTokenizer, CharacterTokenizer, TokenizerSection

if TYPE_CHECKING:
    from sightline.recipe.recipe import Recipe

SMALLEST_WIDTH = 256  # of a model whose recipe does not set it
_MOSTLY = 0.5  # share of rare target words that are also in their source, above which the default model copies


@dataclass(frozen=True)
class TextSize:
    """The size of the training text; words are separated by spaces."""

    examples: int
    source_words: int
    target_words: int
    source_characters: int
    target_characters: int
    alphabet: int  # distinct characters of both sides
    copied: float  # share of rare target words that are also in their source
    spans: bool = False  # the target words are B-, I- and O tags, which mark spans

    @property
    def words(self) -> int:
        """Words of both sides; an estimate where words are not separated by spaces."""
        return max(self.source_words, self.source_characters // 8) + max(self.target_words, self.target_characters // 8)


def with_model(values: Any) -> Any:
    """The content of a recipe, with the default parts of its task if it names none."""
    spec = spec_of_values(values)
    if spec is None:
        return values
    model, data = values.get("model") or {}, values.get("data")
    if not isinstance(model, dict) or any(model.get(key) for key in ("encoder", "decoder", "init_from")):
        return values
    given = {key: value for key, value in model.items() if value is not None or key not in ("encoder", "decoder")}
    if spec.noise and isinstance(data, dict) and "noise" not in data:
        values = {**values, "data": {**data, "noise": {"kind": spec.noise[0]}}}
    return {**values, "model": {**spec.model, **given}}


def open_keys(recipe: Recipe) -> list[str]:
    """The keys whose default depends on the text."""
    if recipe.model.counted:
        return [key for key in RULES if key.startswith("tokenizer") and _is_open(recipe, key)]
    return [key for key in RULES if _is_open(recipe, key)]


def fill_in(recipe: Recipe, text: TextSize) -> tuple[Recipe, dict[str, Any]]:
    """The recipe with every open key filled in, and the keys whose value is not the static default."""
    chosen: dict[str, Any] = {}
    for key in open_keys(recipe):
        if not _is_open(recipe, key):  # filled in together with the section around it
            continue
        names, before = key.split("."), recipe
        recipe = _changed(recipe, names, RULES[key](recipe, text))
        if key == "tokenizer":
            chosen["tokenizer.kind"] = recipe.tokenizer.kind
        elif (value := reduce(getattr, names, recipe)) != reduce(getattr, names, before):
            chosen[key] = value
    return type(recipe).model_validate(recipe.model_dump()), chosen


def _is_open(recipe: Recipe, key: str) -> bool:
    """True if a key exists in this recipe and is not set."""
    section: Any = recipe
    given = True
    for name in key.split("."):
        if not isinstance(section, Section) or name not in type(section).model_fields:
            return False
        given = given and name in section.model_fields_set
        section = getattr(section, name)
    return not given and key not in _fixed(recipe)


def _fixed(recipe: Recipe) -> set[str]:
    """Open keys that keep their static default: those inherited from a run, and those without effect."""
    fixed: set[str] = set()
    if recipe.model.init_from is not None:
        fixed |= {key for key in RULES if key.startswith(("tokenizer", "model"))} | {"training.lr"}
    if recipe.training.limits.steps is not None:
        fixed.add("training.limits.epochs")
    if recipe.task_spec.labels != "words":
        fixed.add("evaluation.metrics")
    return fixed


def _changed(section: Any, names: list[str], value: Any) -> Any:
    name, *rest = names
    return section.model_copy(update={name: _changed(getattr(section, name), rest, value) if rest else value})


# --- the rules -----------------------------------------------------------------------------------------------------


def _tokenizer(recipe: Recipe, text: TextSize) -> TokenizerSection:
    """Characters for short lines of few words (names, dates, pronunciations), else pieces of words."""
    spec = recipe.task_spec
    if spec.continues_text:
        if any(isinstance(source, PlainSource) and source.document == "file" for source in recipe.data.train):
            return CharacterTokenizer(spaces="keep", normalize="none", size=_characters(text))
        return BpeTokenizer()
    if spec.maps_text and not spec.plain_text:
        each = max(1, text.examples)
        source, target = text.source_characters / each, text.target_characters / each
        letters = text.source_characters + text.target_characters
        spelled = letters < 3 * (text.source_words + text.target_words)  # a space between symbols: they are the words
        few_words = min(text.source_words, text.target_words) / each <= 4
        copies = text.copied > _MOSTLY and max(source, target) <= 100
        if not spelled and ((max(source, target) <= 40 and few_words) or copies):
            return CharacterTokenizer(size=_characters(text))
    return BpeTokenizer(lowercase=spec.labels in ("one", "several"))


def _characters(text: TextSize) -> int:
    return max(200, min(10_000, _round(1.2 * text.alphabet)))


def _vocabulary(recipe: Recipe, text: TextSize) -> int:
    """10 √words, so that each piece has a similar number of occurrences in texts of all sizes."""
    if isinstance(recipe.tokenizer, CharacterTokenizer):
        return _characters(text)
    if recipe.tokenizer.kind in WHOLE_WORDS:
        return recipe.tokenizer.size
    marks = 0 if recipe.data.noise is None else len(recipe.data.noise.marks)
    return marks + max(2 * min(text.alphabet, 8_000), _clamp(_round(10 * math.sqrt(text.words)), 300, 16_000))


def _copying(recipe: Recipe, text: TextSize) -> bool | Literal["exact"]:
    """The default model copies if most rare target words are in their sources (names, numbers)."""
    training = recipe.training
    rivals = (training.reward, training.rdrop, training.guided_alignment, training.compile, recipe.data.noise)
    if not recipe.task_spec.maps_text or "encoder" in recipe.model.model_fields_set or any(rivals):
        return recipe.model.copying
    return text.copied > _MOSTLY and recipe.tokenizer.shared and training.batches.layout != "packed"


def _cut_source(recipe: Recipe, text: TextSize) -> int | None:
    """Long texts to classify are truncated instead of dropped."""
    clean = recipe.data.clean
    long = text.source_characters > 500 * max(1, text.examples)
    return clean.max_tokens if recipe.task_spec.labels in ("one", "several") and long else clean.truncate_source


def _dropout(recipe: Recipe, text: TextSize) -> float:
    if recipe.task_spec.labels != "none":
        return 0.5 if text.words < 1_000_000 else 0.3
    return 0.3 if text.words < 200_000 else 0.2 if text.words < 2_000_000 else 0.1


def _rate(recipe: Recipe, text: TextSize) -> float:
    """Higher for recurrent layers than for Transformers and convolutions, lower for wide models."""
    recurrent = all(body.recurrent for body in recipe.model.bodies.values())
    return float(f"{(2e-3 if recurrent else 1e-3) * math.sqrt(256 / max(256, recipe.model.width)):.1e}")


def _tokens(recipe: Recipe, text: TextSize) -> int:
    """An estimate of the tokens of an epoch on the side that fills batches."""
    spelled = isinstance(recipe.tokenizer, CharacterTokenizer)

    def side(words: int, characters: int) -> float:
        return characters if spelled else max(1.3 * words, characters / 5)

    source = side(text.source_words, text.source_characters)
    target = side(text.target_words, text.target_characters)
    if recipe.of_text:
        return int(target) + text.examples
    if not recipe.task_spec.maps_text:
        return int(source) + text.examples
    return int(source + target if recipe.model.encoder is None else max(source, target)) + text.examples


def _batch(recipe: Recipe, text: TextSize) -> int:
    """At least 128 batches per epoch if they are not too small, and at most 4,096 tokens."""
    longest, _ = recipe.longest_sequence()
    least = 4 * recipe.training.batches.context if recipe.task_spec.cuts_windows else longest + 32
    return max(_power(least), _clamp(_power(_tokens(recipe, text) / 256), 512, 4_096))


def _context(recipe: Recipe, text: TextSize) -> int:
    decoder = recipe.model.decoder
    carried = decoder is not None and decoder.recurrent and recipe.training.batches.carry is not False
    return 128 if carried and recipe.task_spec.continues_text else 256


def _steps_per_epoch(recipe: Recipe, text: TextSize) -> float:
    batches = recipe.training.batches
    return max(1.0, _tokens(recipe, text) / (batches.tokens * batches.accumulate))


def _epochs(recipe: Recipe, text: TextSize) -> int:
    spec = recipe.task_spec
    return _clamp(round(spec.steps / _steps_per_epoch(recipe, text)), *spec.epochs)


def _validate_every(recipe: Recipe, text: TextSize) -> int | None:
    """Once an epoch, unless epochs are very short or very long."""
    steps = _steps_per_epoch(recipe, text)
    return None if 200 <= steps <= 1_000 else 500 if steps > 1_000 else 200


Rule = Callable[["Recipe", TextSize], Any]

RULES: Mapping[str, Rule] = {  # in this order: later rules see the values of earlier ones
    "tokenizer": _tokenizer,
    "tokenizer.size": _vocabulary,
    "model.copying": _copying,
    "data.clean.truncate_source": _cut_source,
    "model.width": lambda recipe, text: 512 if text.words > 5_000_000 else SMALLEST_WIDTH,
    "model.encoder.dropout": _dropout,
    "model.decoder.dropout": _dropout,
    "model.pooling.dropout": _dropout,
    "training.lr": _rate,
    "training.label_smoothing": lambda recipe, text: (
        0.0 if recipe.task_spec.continues_text or recipe.task_spec.fills_gaps else 0.1
    ),
    "training.batches.context": _context,
    "training.batches.tokens": _batch,
    "training.limits.epochs": _epochs,
    "training.validate_every": _validate_every,
    "training.stopping.monitor": lambda recipe, text: (
        "loss" if recipe.task_spec.plain_text or recipe.training.reward is not None else "metric"
    ),
    # decoding many thousand validation sentences repeatedly would take most of a training
    "data.validation_limit": lambda recipe, text: (
        2_000 if recipe.task_spec.maps_text and not recipe.task_spec.plain_text else None
    ),
    # most tags that mark spans are O, so token accuracy is uninformative
    "evaluation.metrics": lambda recipe, text: (
        ("span-f1", "token-accuracy") if text.spans else recipe.evaluation.metrics
    ),
}


def _clamp(value: int, least: int, most: int) -> int:
    return max(least, min(most, value))


def _power(value: float) -> int:
    """The next power of two."""
    return 1 << max(0, math.ceil(math.log2(max(1.0, value))))


def _round(value: float) -> int:
    """To two digits."""
    digits = int(10 ** max(0, math.floor(math.log10(max(1.0, value))) - 1))
    return max(1, round(value / digits)) * digits
