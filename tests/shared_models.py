"""Models that several tests share must stay where they are: a copy may be moved, the original refuses."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

from torch import nn

Kind = TypeVar("Kind", bound=nn.Module)


def _refuse(*arguments: Any, **more: Any) -> None:
    raise AssertionError("tests share this model; move or convert a copy of it: shared_models.own_copy(model)")


def shared(model: Kind) -> Kind:
    """The model, which from now on refuses `to`, `cuda`, `half` and the like: all of them go through `_apply`."""
    model._apply = _refuse  # type: ignore[method-assign, assignment]
    return model


def own_copy(model: Kind) -> Kind:
    """A copy that nobody shares."""
    found = copy.deepcopy(model)
    found.__dict__.pop("_apply", None)
    return found
