"""Recipe sections: their base class, the limits of their numbers, and what may stand at a key.

The largest values are far beyond what anyone trains today. They turn a slip (`width: 1000000000`) into an error with
its place instead of a machine that runs out of memory half an hour later.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from sightline.recipe.yaml import Key


def alternatives(annotation: Any) -> list[Any]:
    """The members of a union, or the one thing it is; `Annotated` is looked through."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return alternatives(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return [leaf for member in get_args(annotation) for leaf in alternatives(member)]
    return [annotation]


# By the name of the key, whatever section it is in; `Section.key` where the same name is smaller or larger there.
MOST: dict[str, int | float] = {
    # the model
    "width": 65_536,
    "FeedForwardConfig.width": 1_048_576,
    "hidden": 1_048_576,
    "layers": 1_024,
    "heads": 1_024,
    "kv_heads": 1_024,
    "channels": 65_536,
    "kernel": 1_023,
    "window": 1_023,
    "dilations": 65_536,
    "WindowConfig.size": 1_024,
    "count": 4_096,
    "ExpertsConfig.top_k": 4_096,
    "LayerExpertsConfig.top_k": 4_096,
    "capacity_factor": 4_096,
    "every": 1_024,
    "max_positions": 1_048_576,
    "buckets": 65_536,
    "max_distance": 1_048_576,
    "block": 1_048_576,
    "look_back": 65_536,
    "stride": 1_023,
    "rank": 65_536,
    "order": 64,
    # the text
    "size": 4_000_000,
    "variants": 1_000,
    "sentinels": 100_000,
    "mean_span_length": 10_000,
    "columns": 100_000,
    "word": 100_000,
    "label": 100_000,
    "weight": 10_000,
    "transpose": 127,
    "examples": 100_000_000,
    "lengths": 100_000,
    "clauses": 100,
    "max_tokens": 1_048_576,
    "truncate_source": 1_048_576,
    # training
    "tokens": 100_000_000,
    "context": 1_048_576,
    "accumulate": 1_000_000,
    "keep": 100_000,
    "samples": 10_000,
    "Reward.samples": 100_000,
    "threads": 1_024,
    "lr": 1e20,
    # decoding
    "beam": 10_000,
    "nbest": 100_000,
    "groups": 10_000,
    "candidates": 100_000,
    "max_length": 1_048_576,
    "min_length": 1_048_576,
    "no_repeat": 1_048_576,
    "length_penalty": 1_000,
    "coverage_penalty": 1_000,
    "diversity": 1_000_000,
    "temperature": 1_000_000,
    "max_ratio": 1_000_000,
    "batch_tokens": 100_000_000,
    "bootstrap": 1_000_000,
}
LEAST: dict[str, float] = {"temperature": 1e-4}  # float32 has no room for a logit divided by less
ANY_INT, ANY_FLOAT = 2**63 - 1, 1e12  # of every other key
_ITEMS = 1_000_000  # of a list
_NUMBER = re.compile(r"\s*[-+]?[0-9._]+([eE][-+]?[0-9]+)?\s*")  # in quotes


def number_type_error(annotation: Any, value: Any) -> PydanticCustomError | None:
    """`true` or `"5"` where a number is wanted, and 1 where true or false is: pydantic would convert them."""
    if isinstance(value, list | tuple):
        found = (number_type_error(declared, item) for item, declared in _items(annotation, value))
        return next((error for error in found if error is not None), None)
    wanted = {leaf for leaf in alternatives(annotation) if isinstance(leaf, type)}
    numbers = bool(wanted & {int, float})
    if isinstance(value, bool):
        if numbers and bool not in wanted:
            return PydanticCustomError("number_expected", "Input should be a number, not true or false")
    elif isinstance(value, str):
        if numbers and str not in wanted and _NUMBER.fullmatch(value):
            return PydanticCustomError("number_expected", "Input should be a number, not a text; take the quotes away")
    elif isinstance(value, int | float) and bool in wanted and not numbers:
        return PydanticCustomError("bool_expected", "Input should be true or false, not a number")
    return None


def check_sizes(section: str, key: str, value: Any) -> None:
    """Refuse a number, or an item of a list, that is beyond the limits of its key."""
    if isinstance(value, tuple | list):
        if len(value) > _ITEMS:
            raise PydanticCustomError("too_large", "Input should have at most {most} items", {"most": f"{_ITEMS:,}"})
        for item in value:
            check_sizes(section, key, item)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        most = MOST.get(f"{section}.{key}", MOST.get(key, ANY_INT if isinstance(value, int) else ANY_FLOAT))
        if abs(value) > most:
            raise PydanticCustomError("too_large", "Input should be at most {most}", {"most": f"{most:,}"})
        if value < (least := LEAST.get(key, -ANY_FLOAT - ANY_INT)):
            raise PydanticCustomError("too_small", "Input should be at least {least}", {"least": f"{least:g}"})


def _items(annotation: Any, values: list[Any] | tuple[Any, ...]) -> Iterator[tuple[Any, Any]]:
    """The items of a list with what is declared for each; nothing where no list is declared."""
    for leaf in alternatives(annotation):
        if get_origin(leaf) is tuple:
            declared = get_args(leaf)
            if declared[-1] is Ellipsis:
                declared = (declared[0],) * len(values)
            yield from zip(values, declared, strict=False)


Probability = Annotated[float, Field(ge=0.0, lt=1.0)]


class Section(BaseModel):
    """Base of every part of a recipe: immutable, and strict about names, numbers and sizes."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    short_for: ClassVar[str | None] = None  # the key that a plain text in the section's place stands for

    @model_validator(mode="before")
    @classmethod
    def _numbers_are_numbers(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        fields = {key: field.annotation for key, field in cls.model_fields.items() if key in values}
        wrong = {key: number_type_error(annotation, values[key]) for key, annotation in fields.items()}
        errors: list[InitErrorDetails] = [
            {"type": error, "loc": (key,), "input": values[key]} for key, error in wrong.items() if error is not None
        ]
        if errors:  # a validator of fields cannot run before a discriminator is read
            raise ValidationError.from_exception_data(cls.__name__, errors)
        return values

    @field_validator("*", mode="after")
    @classmethod
    def _sizes_are_bounded(cls, value: Any, info: ValidationInfo) -> Any:
        check_sizes(cls.__name__, str(info.field_name), value)
        return value


def sections(annotation: Any) -> list[type[Section]]:
    """The recipe sections that may stand here."""
    return [leaf for leaf in alternatives(annotation) if isinstance(leaf, type) and issubclass(leaf, Section)]


def kinds(annotation: Any) -> dict[str, type[Section]]:
    """Each `kind` that may stand here, and the section it chooses."""
    return {
        kind: section
        for section in sections(annotation)
        if "kind" in section.model_fields
        for leaf in alternatives(section.model_fields["kind"].annotation)
        if get_origin(leaf) is Literal
        for kind in get_args(leaf)
    }


def chosen(annotation: Any, value: Any) -> type[Section] | None:
    """The section that `value` says it is, or the only one possible."""
    members = sections(annotation)
    if len(members) > 1:
        kind = value.get("kind") if isinstance(value, dict) else None
        return kinds(annotation).get(kind) if isinstance(kind, str) else None
    return members[0] if members else None


def inner(annotation: Any, key: Key, value: Any) -> Any:
    """What is declared under `key` of `annotation`, where `value` stands now; None where nothing is."""
    section = chosen(annotation, value)
    if section is not None:
        field = section.model_fields.get(str(key))
        return None if field is None else field.annotation
    for leaf in alternatives(annotation):
        origin, arguments = get_origin(leaf), get_args(leaf)
        if origin is dict:
            return arguments[1]
        if origin is tuple and isinstance(key, int):
            if arguments[-1] is Ellipsis:
                return arguments[0]
            return arguments[key] if key < len(arguments) else None
    return None
