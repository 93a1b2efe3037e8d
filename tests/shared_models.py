"""Models that tests share cannot be moved or converted; copies of them can."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

from torch import nn

Kind = TypeVar("Kind", bound=nn.Module)


def _refuse(*arguments: Any, **more: Any) -> None:
    raise AssertionError("tests share this model; move or convert a copy of it: shared_models.own_copy(model)")


def shared(model: Kind) -> Kind:
    """Make the model refuse `to`, `cuda`, `half` and the like, which all call `_apply`."""
    model._apply = _refuse  # type: ignore[method-assign, assignment]
    return model


def own_copy(model: Kind) -> Kind:
    """A copy that can be moved."""
    result = copy.deepcopy(model)
    result.__dict__.pop("_apply", None)
    return result
