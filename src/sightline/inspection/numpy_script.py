"""A trace as a script that anybody can run: plain NumPy, every step from tokens and weights, each compared.

The folder holds the saved trace and `script.py`. The script loads what was given and the weights, computes every step
by its operation from the steps before it, and stops where a number is not the recorded one.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sightline.files import atomic_folder, write_atomically
from sightline.inspection.arithmetic import Ref, numpy_value
from sightline.inspection.operations import NEEDED, OPERATIONS
from sightline.inspection.trace import Step, Trace
from sightline.inspection.trace_files import write_trace

SCRIPT = "script.py"
# float32, summed in another order, a network deep; what is compared has been recomputed all the way from the tokens
RELATIVE, ABSOLUTE = 1e-3, 1e-4

_HEAD = '''"""{headline}

Every step of this computation in plain NumPy, from tokens and weights, compared with what the model computed.
Run it with: python {script} (needs numpy and safetensors).
"""

import math
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

HERE = Path(__file__).resolve().parent
recorded = load_file(HERE / "tensors.safetensors")
weight = load_file(HERE / "weights.safetensors")
x = dict(weight)  # every number we have: weights, what was given, and then each step

'''
_TOOLS = '''
count = 0


def check(name, formula, strides=None):
    """Compare a step with what the model computed, and show it."""
    global count
    ours = np.asarray(x[name])
    if strides:
        ours = ours[tuple(slice(None, None, stride) for stride in strides)]
    theirs = recorded[name]
    assert ours.shape == theirs.shape, f"{{name}}: {{ours.shape}} is not {{theirs.shape}}"
    where = np.isclose(ours, theirs, rtol={relative}, atol={absolute}, equal_nan=True)
    assert where.all(), f"{{name}}: {{np.argwhere(~where)[0]}} is {{ours[~where][0]}}, not {{theirs[~where][0]}}"
    count += 1
    print(f"{{count:4d}}  {{name}} {{tuple(ours.shape)}} = {{formula}}")

'''


def export_script(trace: Trace, folder: Path) -> Path:
    """Write a new folder with the trace and its script; gives the script's path."""
    if not any(step.operation for step in trace.steps):
        raise ValueError("this trace has no arithmetic to export; make it with run.trace or record_arithmetic")
    with atomic_folder(folder) as unfinished:
        write_trace(trace, unfinished)
        write_atomically(unfinished / SCRIPT, script(trace))
    return folder / SCRIPT


def script(trace: Trace) -> str:
    """The script's text."""
    from sightline.inspection.trace_display import headline

    title = headline(trace).replace("\\", "\\\\").replace('"""', "'''")
    title = title if title.isprintable() else "A trace"
    head = _HEAD.format(headline=title.rstrip('"'), script=SCRIPT)
    tools = _TOOLS.format(relative=RELATIVE, absolute=ABSOLUTE)
    lines = [line for step in trace.steps for line in _lines(step)]
    end = 'print(f"all {count} steps are what the model computed")'
    return "\n".join([head + "\n\n".join(_sources(trace)), tools, *lines, "", end, ""])


def _sources(trace: Trace) -> Iterator[str]:
    """The functions the script needs, without their type annotations' imports."""
    wanted: dict[str, Any] = {}
    for step in trace.steps:
        for function in (*NEEDED.get(step.operation, ()), OPERATIONS.get(step.operation)):
            if function is not None:
                wanted.setdefault(function.__name__, function)
    for function in wanted.values():
        yield _without_annotations(inspect.getsource(function))


def _without_annotations(source: str) -> str:
    """Types are for whoever maintains the function; a reader of the script sees the formula."""
    import ast

    tree = ast.parse(source)
    (function,) = tree.body
    assert isinstance(function, ast.FunctionDef)
    for argument in (*function.args.args, *function.args.kwonlyargs):
        argument.annotation = None
    function.returns = None
    return ast.unparse(tree) + "\n"


def _lines(step: Step) -> Iterator[str]:
    name = repr(step.key)
    if step.operation in ("given", ""):
        yield f"x[{name}] = recorded[{name}]" + (f"  # {step.note}" if step.note else "")
        return
    arguments = ", ".join(f"{key}={_code(value)}" for key, value in step.arguments.items())
    yield f"x[{name}] = {step.operation}({arguments})"
    if not step.unnamed:
        strides = f", {step.strides}" if step.strides else ""
        yield f"check({name}, {(step.formula or step.operation)!r}{strides})"


def _code(value: Any) -> str:
    if isinstance(value, Ref):
        return f"x[{value.name!r}]"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_code, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!r})"
    return repr(value)


# --- the same, here -------------------------------------------------------------------------------------------------


def recompute(trace: Trace) -> dict[str, Any]:
    """Every step of a trace by its operation, unnamed ones too: what the script computes, as NumPy arrays."""
    found: dict[str, Any] = {name: numpy_value(tensor) for name, tensor in trace.weights.items()}
    with np.errstate(over="ignore"):
        for step in trace.steps:
            if step.operation in ("given", ""):
                found[step.key] = numpy_value(step.tensor)
            else:
                found[step.key] = np.asarray(OPERATIONS[step.operation](**arguments_of(step, found)))
    return found


def arguments_of(step: Step, values: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a step with arrays in place of names."""
    return {key: _valued(value, values) for key, value in step.arguments.items()}


def _valued(value: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(value, Ref):
        return values[value.name]
    return [_valued(part, values) for part in value] if isinstance(value, list | tuple) else value
