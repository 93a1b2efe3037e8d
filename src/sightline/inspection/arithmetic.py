"""Compute a trace again with NumPy, and write out the arithmetic of single numbers: "0.62 = 0.8·0.7 + 0.2·0.3".

From a cell of a record one goes back through whatever only moves numbers to the operation that made it, and writes that
down with the numbers that went in. Unnamed records are written out, named ones are taken as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sightline.inspection.cells import Cell, Index, number, sinusoid, within
from sightline.inspection.operations import OPERATIONS, moved_from
from sightline.inspection.recorder import numpy_value
from sightline.inspection.trace import GIVEN, Record, Ref, Trace, references

_DEPTH = 4  # unnamed operations written out inside one another
_WRITTEN_IN_PLACE = frozenset(  # operations that are written out where they are operands of another
    (
        "add",
        "subtract",
        "multiply",
        "divide",
        "negative",
        "linear",
        "sin",
        "cos",
        "tanh",
        "sigmoid",
        "relu",
        "silu",
        "gelu",
    )
)


def recompute(trace: Trace) -> dict[str, Any]:
    """Every record of a trace by its operation, unnamed ones too, as NumPy arrays."""
    values: dict[str, Any] = {name: numpy_value(tensor) for name, tensor in trace.weights.items()}
    with np.errstate(over="ignore"):
        for record in trace.records:
            if record.operation in (GIVEN, None):
                values[record.key] = numpy_value(record.tensor)
            else:
                arguments = with_values(record.arguments, values)
                values[record.key] = np.asarray(OPERATIONS[record.operation].compute(arguments))
    return values


def with_values(arguments: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments with arrays in place of references."""
    return {name: _value(argument, values) for name, argument in arguments.items()}


def _value(argument: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(argument, Ref):
        return values[argument.name]
    return [_value(part, values) for part in argument] if isinstance(argument, list | tuple) else argument


@dataclass
class Explainer:
    """Writes the arithmetic of any number of a trace."""

    records: Mapping[str, Record]
    values: Mapping[str, Any]

    @staticmethod
    def of(trace: Trace) -> Explainer:
        if not trace.has_arithmetic:
            raise ValueError("this trace has no arithmetic; make it with run.trace or record_arithmetic")
        return Explainer({record.key: record for record in trace.records}, recompute(trace))

    def explain(self, key: str, index: Index) -> str:
        """The number in a cell and how it was computed."""
        value = self.values[key]
        if len(index) != value.ndim or any(not -n <= k < n for k, n in zip(index, value.shape, strict=True)):
            raise ValueError(f"{key} has the shape {tuple(value.shape)}; {index} is no cell of it")
        index = tuple(k % n for k, n in zip(index, value.shape, strict=True))
        return f"{number(value[index])} = {self._computation(key, index, 0)}"

    def _computation(self, key: str, index: Index, depth: int) -> str:
        """How the number in a cell was computed."""
        key, origin, moved = self._origin(key, index)
        if origin is None:
            return "padding"
        record = self.records.get(key)
        if record is None or record.operation in (GIVEN, None) or (moved and not record.unnamed):
            entry = f"{key}[{', '.join(map(str, origin))}]"
            wave = sinusoid(key, origin, self.values[key])
            return entry if wave is None else f"{wave}, which is {entry}"
        assert record.operation is not None
        arguments = with_values(record.arguments, self.values)
        operands = tuple(name for name, argument in record.arguments.items() if any(references(argument)))

        def operand(name: str) -> str:
            return self._operand(record.arguments[name], arguments[name], origin, depth)

        return OPERATIONS[record.operation].cell(Cell(record.operation, arguments, origin, operand, operands))

    def _operand(self, argument: Any, value: Any, index: Index, depth: int) -> str:
        """An operand: its number, or how that was computed where the record is unnamed."""
        if not isinstance(argument, Ref):
            return number(value)
        own = within(np.asarray(value), index)
        key, place, _ = self._origin(argument.name, own)
        record = self.records.get(key)
        short = record is not None and record.unnamed and record.operation in _WRITTEN_IN_PLACE
        if not short or place is None or depth >= _DEPTH:
            return number(np.asarray(value)[own])
        return self._computation(key, place, depth + 1)

    def _origin(self, key: str, index: Index) -> tuple[str, Index | None, bool]:
        """The record and the cell in which a number was before it was moved; no cell for padding."""
        moved, place = False, index
        while (record := self.records.get(key)) is not None and record.operation in _MOVING:
            operation = OPERATIONS[record.operation]
            key, origin = moved_from(operation, record.arguments, with_values(record.arguments, self.values)).origin(
                place
            )
            if origin is None:
                return key, None, True
            place, moved = origin, True
        return key, place, moved


_MOVING = frozenset(name for name, operation in OPERATIONS.items() if operation.moved)
