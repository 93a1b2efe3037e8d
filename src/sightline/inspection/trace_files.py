"""A trace on the disk: trace.json says what there is, two safetensors files hold the numbers.

The files are written into a folder under a temporary name, which is renamed when all of it is there.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as safetensors_bytes
from torch import Tensor

from sightline.files import atomic_folder, parse_json, write_atomically, write_json
from sightline.inspection.arithmetic import Ref
from sightline.inspection.trace import Step, Trace

FORMAT = 1
TRACE, TENSORS, WEIGHTS = "trace.json", "tensors.safetensors", "weights.safetensors"


def save_trace(trace: Trace, folder: Path) -> None:
    """Write a new folder."""
    with atomic_folder(folder) as unfinished:
        write_trace(trace, unfinished)


def write_trace(trace: Trace, folder: Path) -> None:
    """Write the files into a folder that is there."""
    kept = {step.key: step.tensor for step in trace.steps if step.tensor.numel() or not step.unnamed}
    write_atomically(folder / TENSORS, safetensors_bytes(_own_memory(kept)))
    write_atomically(folder / WEIGHTS, safetensors_bytes(_own_memory(trace.weights)))
    steps = [_step_record(step) for step in trace.steps]
    record = {"format": FORMAT, "about": trace.about, "steps": steps}
    write_json(folder / TRACE, record)


def load_trace(folder: Path) -> Trace:
    """Read what `save_trace` wrote."""
    path = folder / TRACE
    if not path.is_file():
        raise ValueError(f"{folder} is not a saved trace: it has no {TRACE}; give the folder that was saved to")
    try:
        record = parse_json(path.read_bytes())
        tensors, weights = load_file(folder / TENSORS), load_file(folder / WEIGHTS)
    except (ValueError, OSError, SafetensorError) as error:
        raise ValueError(f"{folder} is damaged ({error}); save the trace again") from error
    if record.get("format") != FORMAT:
        raise ValueError(f"{path} has format {record.get('format')}, and this Sightline reads {FORMAT}; save it again")
    return Trace([_step(each, tensors) for each in record["steps"]], weights, record["about"])


def _own_memory(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """safetensors refuses tensors that share memory."""
    return {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
    }


def _step_record(step: Step) -> dict[str, Any]:
    found = {
        "key": step.key,
        "name": step.name,
        "shape": list(step.shape),
        "formula": step.formula,
        "latex": step.latex,
        "inputs": list(step.inputs),
        "operation": step.operation,
        "arguments": plain(step.arguments),
        "note": step.note,
        "unnamed": step.unnamed,
        "strides": list(step.strides),
        "sampled": bool(step.whole),
    }
    if step.unnamed:
        return {key: found[key] for key in ("key", "operation", "arguments", "note", "unnamed")}
    return found


def _step(found: dict[str, Any], tensors: dict[str, Tensor]) -> Step:
    key = found["key"]
    return Step(
        found.get("name", key),
        tensors.get(key, torch.empty(0)),
        found.get("formula", ""),
        tuple(found.get("inputs", ())),
        found["operation"],
        key=key,
        arguments=parsed(found["arguments"]),
        note=found["note"],
        unnamed=found["unnamed"],
        strides=tuple(found.get("strides", ())),
        whole=tuple(found["shape"]) if found.get("sampled") else (),
    )


def plain(value: Any) -> Any:
    """Arguments for JSON: references and infinities get a form of their own."""
    if isinstance(value, Ref):
        return {"ref": value.name}
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"number": str(value)}
    return value


def parsed(value: Any) -> Any:
    """What `plain` made, read back."""
    if isinstance(value, dict):
        if set(value) == {"ref"}:
            return Ref(value["ref"])
        if set(value) == {"number"}:
            return float(value["number"])
        return {key: parsed(part) for key, part in value.items()}
    return [parsed(part) for part in value] if isinstance(value, list) else value
