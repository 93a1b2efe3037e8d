"""What every section of a recipe is."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_core import InitErrorDetails

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
