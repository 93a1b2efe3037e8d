"""Type annotations, taken apart."""

from __future__ import annotations

import types
from typing import Annotated, Any, Union, get_args, get_origin


def alternatives(annotation: Any) -> list[Any]:
    """The members of a union, or the one thing it is; `Annotated` is looked through."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return alternatives(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return [leaf for member in get_args(annotation) for leaf in alternatives(member)]
    return [annotation]
