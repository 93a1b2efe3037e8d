"""What every section of a recipe is, and how sections and names are opened to plug-ins (registry.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_core import InitErrorDetails, PydanticKnownError, core_schema

from sightline import registry
from sightline.recipe.limits import check_sizes, number_type_error

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


class OpenSection(Section):
    """Base of the sections of a registry: `kind` chooses the class, one of ours or of a plug-in.

    A class that sets `registry` stands for all sections registered under that name: a key annotated with it accepts
    each of them. Those derive from it and have a literal `kind`.
    """

    registry: ClassVar[str]

    @classmethod
    def is_open(cls) -> bool:
        """Whether this class stands for a registry, and is not one of its sections."""
        return "registry" in vars(cls)

    @classmethod
    def members(cls) -> dict[str, type[Section]]:
        """Every registered section by its kind, those of plug-ins too."""
        return {name: registry.get(cls.registry, name) for name in registry.names(cls.registry)}

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        if not cls.is_open():
            return handler(source)
        return core_schema.no_info_plain_validator_function(cls._of_its_kind)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> Any:
        # the alternatives are filled in by `recipe_schema`, when plug-ins are loaded
        return {"registry": cls.registry} if cls.is_open() else handler(schema)

    @classmethod
    def _of_its_kind(cls, value: Any) -> Any:
        """The value as the section that its `kind` names."""
        if isinstance(value, cls):
            return value
        if not isinstance(value, dict):
            raise PydanticKnownError("model_attributes_type")
        if "kind" not in value:
            raise PydanticKnownError("union_tag_not_found", {"discriminator": "'kind'"})
        kind = value["kind"]
        if not isinstance(kind, str) or not registry.knows(cls.registry, kind):
            details = {"discriminator": "'kind'", "tag": str(kind), "expected_tags": ", ".join(cls.members())}
            raise PydanticKnownError("union_tag_invalid", details)
        return registry.get(cls.registry, kind).model_validate(value)


@dataclass(frozen=True)
class Registered:
    """Annotation of a text that must be a name in a registry: `Annotated[str, Registered("norm")]`."""

    kind: str
    extra: tuple[str, ...] = ()  # names beside those of the registry

    def names(self) -> tuple[str, ...]:
        return (*self.extra, *registry.names(self.kind))

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return core_schema.no_info_plain_validator_function(self._check)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> Any:
        return {"type": "string", "enum": list(self.names())}

    def _check(self, value: Any) -> Any:
        if isinstance(value, str) and (value in self.extra or registry.knows(self.kind, value)):
            return value
        names = [f"'{name}'" for name in self.names()]
        expected = " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
        raise PydanticKnownError("literal_error", {"expected": expected})
