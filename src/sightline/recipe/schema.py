"""Sections of a recipe: their base class, limits of numbers, and unions on `kind` that plug-ins can extend.

The largest values are far beyond what anyone trains today. They turn a slip (`tokens: 1000000000000`) into an error
with its place instead of a machine that runs out of memory half an hour later. A model that is too large for a machine
is refused by an estimate of its memory (training/memory.py).
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, Union, cast, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
    ValidationInfo,
    create_model,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, PydanticKnownError, core_schema

from sightline.recipe.yaml import Key
from sightline.registry import Entry, entries


def alternatives(annotation: Any) -> list[Any]:
    """The members of a union, open or not, or the annotation itself. `Annotated` is unwrapped."""
    if isinstance(annotation, type) and issubclass(annotation, OpenUnion):
        return list(dict.fromkeys(annotation.kinds().values()))
    origin = get_origin(annotation)
    if origin is Annotated:
        return alternatives(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return [leaf for member in get_args(annotation) for leaf in alternatives(member)]
    return [annotation]


# The largest value of a key, whatever section it is in; `Section.key` where a section has its own limit.
_LIMITS: dict[int | float, str] = {
    1e20: "lr",
    1_000_000_000: "width hidden layers heads kv_heads channels",
    100_000_000: "examples tokens batch_tokens",
    4_000_000: "size",
    1_048_576: "max_positions max_distance block max_tokens truncate_source context max_length min_length no_repeat",
    1_000_000: "accumulate diversity temperature max_ratio bootstrap",
    100_000: "sentinels columns word label lengths keep Reward.samples nbest candidates",
    65_536: "dilations buckets look_back rank",
    10_000: "mean_span_length weight samples beam groups",
    4_096: "count ExpertsConfig.top_k LayerExpertsConfig.top_k capacity_factor",
    1_024: "WindowConfig.size every threads",
    1_023: "kernel window stride",
    1_000: "variants length_penalty coverage_penalty",
    127: "transpose",
    100: "clauses",
    64: "order",
}
MOST = {key: limit for limit, keys in _LIMITS.items() for key in keys.split()}
LEAST: dict[str, float] = {"temperature": 1e-4}  # float32 has no room for a logit divided by less
ANY_INT, ANY_FLOAT = 2**63 - 1, 1e12  # of every other key
_ITEMS = 1_000_000  # of a list
_NUMBER = re.compile(r"\s*[-+]?[0-9._]+([eE][-+]?[0-9]+)?\s*")  # in quotes


def number_type_error(annotation: Any, value: Any) -> PydanticCustomError | None:
    """The error for a boolean or quoted number where a number is expected, and the reverse; pydantic would convert."""
    if isinstance(value, list | tuple):
        errors = (number_type_error(declared, item) for item, declared in _items(annotation, value))
        return next((error for error in errors if error is not None), None)
    declared = {leaf for leaf in alternatives(annotation) if isinstance(leaf, type)}
    numbers = bool(declared & {int, float})
    if isinstance(value, bool):
        if numbers and bool not in declared:
            return PydanticCustomError("number_expected", "Input should be a number, not true or false")
    elif isinstance(value, str):
        if numbers and str not in declared and _NUMBER.fullmatch(value):
            return PydanticCustomError("number_expected", "Input should be a number, not a text; remove the quotes")
    elif isinstance(value, int | float) and bool in declared and not numbers:
        return PydanticCustomError("bool_expected", "Input should be true or false, not a number")
    return None


def check_sizes(section: str, key: str, value: Any) -> None:
    """Refuse numbers beyond the limits of their key, in lists too."""
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
    """The items of a list with the annotation of each; none if the annotation has no list."""
    for leaf in alternatives(annotation):
        if get_origin(leaf) is tuple:
            declared = get_args(leaf)
            if declared[-1] is Ellipsis:
                declared = (declared[0],) * len(values)
            yield from zip(values, declared, strict=False)


Probability = Annotated[float, Field(ge=0.0, lt=1.0)]


class Section(BaseModel):
    """Base of all sections: immutable, and strict about names, numbers and sizes."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    short_for: ClassVar[str | None] = None  # the key that a string in place of the section sets

    def options(self, base: type[Section]) -> dict[str, Any]:
        """The values of the keys that it has beyond `kind` and those of `base`: arguments for a plug-in."""
        names = type(self).model_fields.keys() - base.model_fields.keys() - {"kind"}
        return {name: getattr(self, name) for name in type(self).model_fields if name in names}

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


class OpenUnion:
    """A union of sections on `kind`, whose members are the entries of a registry: `EncoderConfig = open_union(...)`."""

    part: ClassVar[str]
    default: ClassVar[str | None] = None  # the kind of a section that names none
    base: ClassVar[type[Section] | None] = None  # its keys are those of every member
    extra: ClassVar[dict[str, type[Section]]] = {}  # members that are not in the registry
    short: ClassVar[bool] = False  # accept a name in place of a section: `loggers: [tensorboard]`
    _members: ClassVar[dict[str, tuple[Entry, type[Section]]]]

    @classmethod
    def kinds(cls) -> dict[str, type[Section]]:
        """The section of each kind. Kinds that differ in nothing but their name may share one."""
        return {**cls.extra, **{kind: cls._member(kind, entry) for kind, entry in entries(cls.part).items()}}

    @classmethod
    def _member(cls, kind: str, entry: Entry) -> type[Section]:
        if kind not in cls._members or cls._members[kind][0] is not entry:
            cls._members[kind] = entry, cls._combined(kind, entry)
        return cls._members[kind][1]

    @classmethod
    def _combined(cls, kind: str, entry: Entry) -> type[Section]:
        """The config of an entry with the keys of `base`; a new section for an entry without a config."""
        config, base = entry.load_config(), cls.base or Section
        if config is not None and issubclass(config, base):
            return cast("type[Section]", config)
        bases = (base,) if config is None else (config, base)
        name = "".join(word.capitalize() for word in re.split(r"\W+", kind)) + base.__name__
        about = entry.about or (config or base).__doc__
        only: Any = Literal[kind]  # type: ignore[valid-type]
        return cast("type[Section]", create_model(name, __base__=bases, __doc__=about, kind=(only, kind)))

    @classmethod
    def _validate(cls, value: Any) -> Section:
        known = cls.kinds()
        if isinstance(value, (cls.base or Section, *known.values())):
            return cast("Section", value)
        if cls.short and isinstance(value, str):
            value = {"kind": value}
        if not isinstance(value, dict):
            raise PydanticKnownError("model_attributes_type")
        kind = value.get("kind", cls.default)
        if kind is None:
            raise PydanticKnownError("union_tag_not_found", {"discriminator": "'kind'"})
        if not isinstance(kind, str) or kind not in known:
            expected = ", ".join(map(repr, known))
            context = {"discriminator": "'kind'", "tag": str(kind), "expected_tags": expected}
            raise PydanticKnownError("union_tag_invalid", context)
        return known[kind].model_validate(value)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(cls._validate)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        members = [handler(_with_reference(member)) for member in alternatives(cls)]
        section = {"oneOf": members} if len(members) != 1 else members[0]
        return {"anyOf": [{"enum": list(cls.kinds())}, section]} if cls.short and members else section


def _with_reference(section: type[Section]) -> CoreSchema:
    """A section's schema under a name, so that a JSON Schema defines it once."""
    reference = f"{section.__module__}.{section.__qualname__}:{id(section)}"
    inner: Any = section.__pydantic_core_schema__
    if inner["type"] == "definitions":
        return cast("CoreSchema", inner)
    definition: Any = {**inner, "ref": reference}
    return core_schema.definitions_schema(core_schema.definition_reference_schema(reference), [definition])


def open_union(
    part: str,
    *,
    default: str | None = None,
    base: type[Section] | None = None,
    extra: dict[str, type[Section]] | None = None,
    short: bool = False,
) -> Any:
    """The type of a key that takes one of the parts of a registry: see `OpenUnion`."""
    values = {"part": part, "default": default, "base": base, "extra": extra or {}, "short": short, "_members": {}}
    return type(f"Any{part.capitalize()}", (OpenUnion,), values)


class Choice(Section):
    """A registered part: its kind, and the keys of its config."""

    kind: str


def default_of(union: Any) -> Any:
    """A section of the default kind of an open union."""
    return union.kinds()[union.default]()


class Registered:
    """`Annotated[str, Registered("metric")]`: the name of a part in a registry, with pydantic's error for any other."""

    def __init__(self, part: str) -> None:
        self.part = part

    def choices(self) -> list[str]:
        """The names there are."""
        return list(entries(self.part))

    def _validate(self, value: Any) -> str:
        if value not in (names := self.choices()):
            *others, last = map(repr, names)
            raise PydanticKnownError("literal_error", {"expected": f"{', '.join(others)} or {last}"})
        return str(value)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._validate)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": "string", "enum": self.choices()}


def sections(annotation: Any) -> list[type[Section]]:
    """The sections that a key accepts."""
    return [leaf for leaf in alternatives(annotation) if isinstance(leaf, type) and issubclass(leaf, Section)]


def open_union_of(annotation: Any) -> type[OpenUnion] | None:
    """The open union in an annotation, such as `EncoderConfig | None`."""
    if isinstance(annotation, type):
        return annotation if issubclass(annotation, OpenUnion) else None
    if get_origin(annotation) in (Annotated, Union, types.UnionType):
        return next((union for member in get_args(annotation) if (union := open_union_of(member))), None)
    return None


def kinds(annotation: Any) -> dict[str, type[Section]]:
    """The section of each `kind` that a key accepts; empty where it is not chosen by kind."""
    union = open_union_of(annotation)
    return {} if union is None else union.kinds()


def chosen(annotation: Any, value: Any) -> type[Section] | None:
    """The section that `value` names by its kind, or the only one possible."""
    union = open_union_of(annotation)
    if union is not None:
        kind = value.get("kind", union.default) if isinstance(value, dict) else union.default
        kind = value if union.short and isinstance(value, str) else kind
        return union.kinds().get(kind) if isinstance(kind, str) else None
    members = sections(annotation)
    return members[0] if len(members) == 1 else None


def inner(annotation: Any, key: Key, value: Any) -> Any:
    """The annotation of `key` in a section, mapping or list with the content `value`; None for an unknown key."""
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
