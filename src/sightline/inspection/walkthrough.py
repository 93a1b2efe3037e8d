"""Walkthrough of a trace: each recorded operation in order, with formula, inputs, shape and numbers.

    walk = Walkthrough(run.trace("3. März 2015"))
    walk.focus(layer=0, head=1)
    walk.explain("decoder.layers.0.cross_attention.scores", (0, 0, 2, 1))   # "0.62 = 0.8·0.7 + 0.2·0.3"

The arithmetic of a number is written out: from a cell of a record one goes back through operations that only move
numbers to the one that computed it. Unnamed records are written in place. Also a trace as a table, in a terminal and in
a notebook.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from typing import Any

import numpy as np
import torch
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from torch import Tensor

from sightline.inspection.arithmetic import Cell, Index, number, sinusoid, within
from sightline.inspection.formulas import mathml
from sightline.inspection.operations import OPERATIONS, moved_from, recompute, with_values
from sightline.inspection.trace import GIVEN, Axis, Record, Ref, Trace, references
from sightline.plots.terminal import NumberTable, TerminalGrid
from sightline.recipe.tasks import task_spec

_WHOLE = ("key", "value", "compressed_key", "compressed_value", "bias")  # shown for all tokens at every step
_BEGINNING, _END = 8, 4  # records that a summary shows
_ROWS = 200  # of a notebook's table; more are counted
_MATRICES = 4  # shown of a tensor
_GRID = 40  # tokens across, up to which weights are drawn


@dataclass(frozen=True)
class ShownRecord:
    """The part of a record in focus, and the names of its last two axes."""

    number: int
    record: Record
    tensor: Tensor
    axes: tuple[Axis, ...]  # of that part
    rows: Sequence[str] | None = None
    columns: Sequence[str] | None = None
    focus: str = ""


@dataclass(frozen=True)
class Walkthrough:
    """The records of a trace, optionally of one layer, head or output step."""

    trace: Trace
    step: int | None = None
    layer: int | None = None
    head: int | None = None

    def focus(self, *, step: int | None = None, layer: int | None = None, head: int | None = None) -> Walkthrough:
        """Restrict to a step, layer or head (from 0); an error if out of range."""
        walk = replace(self, step=step, layer=layer, head=head)
        if layer is not None:
            check_layer(self.trace, layer)
        heads = [each.shape[1] for each in self.trace if each.point == "weights" and len(each.shape) == 4]
        if head is not None and not 0 <= head < max(heads, default=0):
            raise ValueError(f"there is no head {head}; heads are counted from 0 and there are {max(heads, default=0)}")
        if step is not None and not 0 <= step < max(walk._tokens, 1):
            raise ValueError(f"there is no step {step}; steps are counted from 0 and there are {walk._tokens}")
        return walk

    @property
    def _tokens(self) -> int:
        """The number of predicted tokens."""
        about = self.trace.about
        predicted = about["places"] if self._first else about.get("target_tokens", ())
        return len(predicted) or 1

    @cached_property
    def _first(self) -> int:
        return first_output(self.trace)

    def records(self) -> Iterator[ShownRecord]:
        """The records in focus without aliases; their numbers do not depend on the focus."""
        for place, record in enumerate((record for record in self.trace if not record.alias), 1):
            if self.layer is not None and record.layer != self.layer:
                continue
            if self.head is not None and self.layer is not None and "heads" not in record.kinds():
                continue
            shown = self._shown(place, record)
            if shown is not None:
                yield shown

    def explain(self, name: str, cell: Sequence[int]) -> str:
        """The arithmetic of the number at an index (`cell`) of a record."""
        return self._explainer.explain(self.trace.find(name).key, tuple(cell))

    @cached_property
    def _explainer(self) -> Explainer:
        return Explainer.of(self.trace)

    def _shown(self, place: int, record: Record) -> ShownRecord | None:
        tensor, focus = record.tensor, []
        axes = list(record.axes if len(record.axes) == tensor.dim() and not record.whole else [Axis()] * tensor.dim())
        if record.token is not None:
            if self.step is not None and record.token != self._first + self.step:
                return None
            focus.append(f"step {record.token - self._first}" if record.token >= self._first else "")
        elif self.step is not None and record.point not in _WHOLE:
            for axis, each in enumerate(axes):
                if each.kind in ("target", "predicted"):
                    places = [each.place(k) for k in range(tensor.shape[axis])]
                    if self._first + self.step not in places:
                        return None
                    at = places.index(self._first + self.step)
                    tensor = tensor.narrow(axis, at, 1)
                    axes[axis] = Axis(each.kind, (places[at],))
                    focus.append(f"step {self.step}")
                    break
        heads = next((n for n, axis in enumerate(axes) if axis.kind == "heads"), None)
        if self.head is not None and heads is not None and self.head < tensor.shape[heads]:
            tensor = tensor.select(heads, self.head)
            del axes[heads]
            focus.append(f"head {self.head}")
        rows, columns = self.trace.sides(tuple(axes), tuple(tensor.shape), record.token)
        return ShownRecord(place, record, tensor, tuple(axes), rows, columns, ", ".join(filter(None, focus)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(headline(self.trace), style="bold")
        for note in self.trace.about.get("notes", ()):
            yield Text(note, style="dim")
        for shown in self.records():
            record = shown.record
            yield Text("")
            title = Text(f"{shown.number}. ", style="dim").append(record.key, style="bold")
            title.append(f"  {shape_of(record)}" + (f"  ({shown.focus})" if shown.focus else ""), style="dim")
            yield title
            for text, style in (
                (record.formula, "italic"),
                ("from " + ", ".join(record.inputs) if record.inputs else "", "dim"),
                (record.note, "yellow"),
            ):
                if text:
                    yield Padding(Text(text, style=style), (0, 0, 0, 3), expand=False)
            heads = [f"head {n}" for n in range(shown.tensor.shape[-3])] if _by_head(shown) else None
            yield from render_values(shown.tensor, shown.rows, shown.columns, heads)


def _by_head(shown: ShownRecord) -> bool:
    """True if each matrix of the tensor is that of a head."""
    return len(shown.axes) > 2 and shown.axes[-3].kind == "heads" and shown.tensor.shape[:-3].numel() == 1


def check_layer(trace: Trace, layer: int) -> None:
    """Refuse a layer without records."""
    known = sorted({record.layer for record in trace if record.layer is not None})
    if layer not in known:
        raise ValueError(f"there is no layer {layer}; there are {known or 'none'}")


def first_output(trace: Trace) -> int:
    """The row of the first output token, which follows the text if both are one sequence."""
    about = trace.about
    spec = task_spec(about.get("task"))
    return int(about["places"][0]) if spec is not None and spec.writes_text and "places" in about else 0


# --- the arithmetic of one number ------------------------------------------------------------------------------------

_DEPTH = 4  # unnamed operations written out inside one another
_MOVING = frozenset(name for name, operation in OPERATIONS.items() if operation.moved)
WRITTEN_IN_PLACE = {  # operations that are written out where they are operands of another
    *("add", "subtract", "multiply", "divide", "negative", "linear"),
    *("sin", "cos", "tanh", "sigmoid", "relu", "silu", "gelu"),
}


@dataclass
class Explainer:
    """Writes the arithmetic of the numbers of a trace."""

    records: Mapping[str, Record]
    values: Mapping[str, Any]

    @staticmethod
    def of(trace: Trace) -> Explainer:
        if not trace.has_arithmetic:
            raise ValueError("this trace has no arithmetic; make it with run.trace or record_arithmetic")
        return Explainer({record.key: record for record in trace.records}, recompute(trace))

    def explain(self, key: str, index: Index) -> str:
        """The number in a cell and its computation."""
        value = self.values[key]
        if len(index) != value.ndim or any(not -n <= k < n for k, n in zip(index, value.shape, strict=True)):
            raise ValueError(f"{key} has the shape {tuple(value.shape)}; {index} is no cell of it")
        index = tuple(k % n for k, n in zip(index, value.shape, strict=True))
        return f"{number(value[index])} = {self._computation(key, index, 0)}"

    def _computation(self, key: str, index: Index, depth: int) -> str:
        """The computation of the number in a cell."""
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
        """An operand: its number, or its computation if the record is unnamed."""
        if not isinstance(argument, Ref):
            return number(value)
        cell = within(np.asarray(value), index)
        key, origin, _ = self._origin(argument.name, cell)
        record = self.records.get(key)
        in_place = record is not None and record.unnamed and record.operation in WRITTEN_IN_PLACE
        if not in_place or origin is None or depth >= _DEPTH:
            return number(np.asarray(value)[cell])
        return self._computation(key, origin, depth + 1)

    def _origin(self, key: str, index: Index) -> tuple[str, Index | None, bool]:
        """The record and cell that a number was moved from, if it was moved; no cell for padding."""
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


# --- numbers ----------------------------------------------------------------------------------------------------------


def render_values(
    tensor: Tensor,
    rows: Sequence[str] | None,
    columns: Sequence[str] | None,
    names: Sequence[str] | None = None,
) -> Iterator[RenderableType]:
    """Render matrices of a tensor's last two axes: a table of numbers, and a grid of colours for weights."""
    if tensor.dim() == 0:
        yield Text(f"   {number(tensor)}")
        return
    flat = tensor.reshape(-1, *tensor.shape[-2:]) if tensor.dim() > 1 else tensor[None, None]
    leading = tensor.shape[:-2]
    for place, matrix in enumerate(flat[:_MATRICES]):
        if leading.numel() > 1:
            name = names[place] if names is not None else str([int(k) for k in np.unravel_index(place, leading)])
            yield Text(f"   {name}", style="dim")
        for part in _tables(matrix, rows, columns):
            yield Padding(part, (0, 0, 0, 3), expand=False)
    if len(flat) > _MATRICES:
        yield Text(f"   and {len(flat) - _MATRICES} more like these", style="dim")


def _tables(matrix: Tensor, rows: Sequence[str] | None, columns: Sequence[str] | None) -> Iterator[RenderableType]:
    rows = rows if rows is not None and len(rows) == matrix.shape[0] else None
    columns = columns if columns is not None and len(columns) == matrix.shape[1] else None
    weights = matrix.is_floating_point() and bool((matrix >= 0).all() and (matrix <= 1.001).all())
    values = matrix.float().cpu().numpy() if matrix.is_floating_point() else matrix.cpu().numpy()
    grid = weights and rows is not None and columns is not None and len(columns) <= _GRID
    if not grid or matrix.shape[1] <= NumberTable.columns_shown:
        yield NumberTable(values, rows, columns, number)
    if grid and rows is not None and columns is not None:
        yield TerminalGrid(rows, columns, values)


# --- a trace as a table -----------------------------------------------------------------------------------------------


def value_range(tensor: Tensor) -> str:
    """The smallest and the largest finite number."""
    if not tensor.numel():
        return ""
    if not tensor.is_floating_point():
        return f"{tensor.min().item()} … {tensor.max().item()}"
    finite = torch.isfinite(tensor)
    low, high = (torch.where(finite, tensor, end) for end in (torch.inf, -torch.inf))
    return f"{low.min().item():.3g} … {high.max().item():.3g}" if finite.any() else "−∞"


def shape_of(record: Record) -> str:
    """`2×3`; `1` for a single number."""
    return "×".join(map(str, record.shape)) or "1"


def headline(trace: Trace) -> str:
    """One line: text, output, number of steps, loss."""
    about = trace.about
    if not about:
        return f"{len(trace)} steps"
    pair = f"{about['text']!r} → {about['output']!r}" if about.get("output") else repr(about.get("text", ""))
    how = "given" if about.get("forced") else "its own output"
    return f"{pair} ({how}): {len(trace)} steps" + (f", loss {about['loss']:.4f}" if "loss" in about else "")


def trace_summary(trace: Trace) -> str:
    """A few lines: the first and last records with their shapes, and how to see the rest."""
    records = trace.named
    shown = records if len(records) <= _BEGINNING + _END + 1 else [*records[:_BEGINNING], *records[-_END:]]
    width = max((len(record.key) for record in shown), default=0)
    rows = [f"  {record.key:<{width}}  {shape_of(record)}" for record in shown]
    if len(shown) < len(records):
        rows.insert(_BEGINNING, f"  … {len(records) - len(shown)} more steps")
    example = shown[-1].name if shown else "name"
    hints = [
        f'trace["{example}"]: the tensor of a step; trace.names: all names; trace.under("encoder"): one part',
        "trace.text(): every step with formula, shape and range; trace.save(folder): all numbers",
    ]
    return "\n".join([f"Trace of {headline(trace)}", *rows, *hints])


def trace_table(trace: Trace) -> Table:
    """A terminal table of named records: number, name, formula, shape, range."""
    table = Table(title=Text(headline(trace)), title_justify="left", box=None, pad_edge=False)
    for column, justify in (("", "right"), ("step", "left"), ("formula", "left"), ("shape", "left"), ("range", "left")):
        table.add_column(column, justify=justify, overflow="fold", no_wrap=column == "step")  # type: ignore[arg-type]
    for place, record in enumerate(trace):
        formula = f"= {record.inputs[0]}" if record.alias and record.inputs else record.formula
        note = f" ({record.note})" if record.note else ""
        cells = (Text(formula + note), shape_of(record), value_range(record.tensor))
        table.add_row(str(place), Text(record.key), *cells)
    return table


def trace_html(trace: Trace) -> str:
    """An HTML table of named records for notebooks."""
    rows = [
        f"<tr><td>{place}</td><td><code>{escape(record.key)}</code></td>"
        f'<td title="{escape(record.latex)}">{mathml(record.formula)}</td>'
        f"<td>{shape_of(record)}</td><td>{escape(value_range(record.tensor))}</td><td>{escape(record.note)}</td></tr>"
        for place, record in list(enumerate(trace))[:_ROWS]
    ]
    more = f"<p>and {len(trace) - _ROWS} more</p>" if len(trace) > _ROWS else ""
    head = "<tr><th></th><th>step</th><th>formula</th><th>shape</th><th>range</th><th>note</th></tr>"
    return f"<p>{escape(headline(trace))}</p><table><thead>{head}</thead><tbody>{''.join(rows)}</tbody></table>{more}"
