"""Traces of models with random weights, and the bodies that tests/conftest.py builds them of."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from sightline.inspection.trace import Trace
from sightline.inspection.tracing import trace_pair

# by its path: every folder's conftest.py is called `conftest`
_spec = importlib.util.spec_from_file_location("model_bodies", Path(__file__).parent.parent / "conftest.py")
assert _spec is not None and _spec.loader is not None
bodies: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(bodies)


def traced(model: Any, source: Sequence[int] = (5, 6, 7, 3), target: Sequence[int] = (9, 4, 3)) -> Trace:
    """A sequence-to-sequence model over one pair, up to the loss."""
    return trace_pair(model, source, target, torch.device("cpu"), ("", ""))
