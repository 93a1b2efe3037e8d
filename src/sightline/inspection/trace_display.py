"""A trace as a table: in a terminal and in a notebook."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sightline.inspection.mathml import mathml
from sightline.inspection.trace import Step, Trace
from sightline.recipe.tasks import task_spec

if TYPE_CHECKING:
    from rich.table import Table

_BEGINNING, _END = 8, 4  # steps that a summary shows
_ROWS = 200  # of a notebook's table; more are counted


def span(tensor: Tensor) -> str:
    """The least and the largest number, −∞ aside."""
    if not tensor.numel():
        return ""
    if not tensor.is_floating_point():
        return f"{tensor.min().item()} … {tensor.max().item()}"
    finite = torch.isfinite(tensor)
    low, high = (torch.where(finite, tensor, end) for end in (torch.inf, -torch.inf))
    return f"{low.min().item():.3g} … {high.max().item():.3g}" if finite.any() else "−∞"


def shape_of(step: Step) -> str:
    """`2×3`, or a number alone."""
    return "×".join(map(str, step.shape)) or "1"


def headline(trace: Trace) -> str:
    """What was traced, in a line."""
    about = trace.about
    if not about:
        return f"{len(trace)} steps"
    wrote = f"{about['text']!r} → {about['output']!r}" if about.get("output") else repr(about.get("text", ""))
    how = "given" if about.get("forced") else "its own output"
    return f"{wrote} ({how}): {len(trace)} steps" + (f", loss {about['loss']:.4f}" if "loss" in about else "")


def first_written(trace: Trace) -> int:
    """The row of the first output token: behind the text, where both are one sequence."""
    about = trace.about
    spec = task_spec(about.get("task"))
    return int(about["places"][0]) if spec is not None and spec.writes_text and "places" in about else 0


def trace_summary(trace: Trace) -> str:
    """A few lines: what was traced, the first and the last steps with their shapes, and how to see the rest."""
    steps = trace.entries
    shown = steps if len(steps) <= _BEGINNING + _END + 1 else [*steps[:_BEGINNING], *steps[-_END:]]
    width = max((len(step.key) for step in shown), default=0)
    rows = [f"  {step.key:<{width}}  {shape_of(step)}" for step in shown]
    if len(shown) < len(steps):
        rows.insert(_BEGINNING, f"  … {len(steps) - len(shown)} more steps")
    example = (shown[-1] if shown else Step("name", torch.empty(0), "", ())).name
    hints = [
        f'trace["{example}"]: the tensor of a step; trace.names: all names; trace.under("encoder"): one part',
        "trace.text(): every step with formula, shape and range; trace.save(folder): all numbers",
    ]
    return "\n".join([f"Trace of {headline(trace)}", *rows, *hints])


def trace_table(trace: Trace) -> Table:
    """Every named step: number, name, formula, shape, range."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(headline(trace)), title_justify="left", box=None, pad_edge=False)
    for column, justify in (("", "right"), ("step", "left"), ("formula", "left"), ("shape", "left"), ("range", "left")):
        table.add_column(column, justify=justify, overflow="fold", no_wrap=column == "step")  # type: ignore[arg-type]
    for number, step in enumerate(trace):
        told = f"= {step.inputs[0]}" if step.alias and step.inputs else step.formula
        note = f" ({step.note})" if step.note else ""
        table.add_row(str(number), Text(step.key), Text(told + note), shape_of(step), span(step.tensor))
    return table


def trace_html(trace: Trace) -> str:
    """The same for a notebook."""
    rows = [
        f"<tr><td>{number}</td><td><code>{escape(step.key)}</code></td>"
        f'<td title="{escape(step.latex)}">{mathml(step.formula)}</td>'
        f"<td>{shape_of(step)}</td><td>{escape(span(step.tensor))}</td><td>{escape(step.note)}</td></tr>"
        for number, step in list(enumerate(trace))[:_ROWS]
    ]
    more = f"<p>and {len(trace) - _ROWS} more</p>" if len(trace) > _ROWS else ""
    head = "<tr><th></th><th>step</th><th>formula</th><th>shape</th><th>range</th><th>note</th></tr>"
    return f"<p>{escape(headline(trace))}</p><table><thead>{head}</thead><tbody>{''.join(rows)}</tbody></table>{more}"
