"""What every section of a recipe is."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field

Probability = Annotated[float, Field(ge=0.0, lt=1.0)]


class Section(BaseModel):
    """Base of every part of a recipe: immutable, and strict about names."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    short_for: ClassVar[str | None] = None  # the key that a plain text in the section's place stands for
