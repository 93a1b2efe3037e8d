"""Traces: a record of each named tensor of a forward pass, in order of computation.

    trace = run.trace("Ein Hund bellt.")
    trace["decoder.layers.2.cross_attention.weights"]        # a tensor
    trace.find("decoder.2.cross_attention.weights")          # its record: formula, inputs, operation, axes
    trace.save("traces/hund"); Trace.load("traces/hund")

Walkthrough, NumPy script, attention views, alignments, report and page read these records and never the model;
recorder.py makes them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as safetensors_bytes
from torch import Tensor

from sightline.files import atomic_folder, parse_json, write_atomically, write_json
from sightline.inspection.formulas import latex
from sightline.models.weights import current_path
from sightline.recipe.tasks import task_spec
from sightline.text.tokenizer import SPECIALS

if TYPE_CHECKING:
    from rich.table import Table

FORMAT = 2
TRACE, TENSORS, WEIGHTS = "trace.json", "tensors.safetensors", "weights.safetensors"
GIVEN = "given"  # the operation of an input tensor
_LAYER = re.compile(r"\b(?:layers|attentions)\.(\d+)\.")


@dataclass(frozen=True)
class Ref:
    """An argument that is another record, or a weight, of that name."""

    name: str


@dataclass(frozen=True)
class Axis:
    """The meaning of a tensor's axis.

    `kind` is batch, source, target, predicted, vocabulary, heads, experts or features; "" if unknown. `places` are the
    positions of its entries among the tokens (or in the vocabulary), −1 for padding; () for all in order.
    """

    kind: str = ""
    places: tuple[int, ...] = ()

    def place(self, entry: int) -> int:
        """The position of the token at an entry."""
        return self.places[entry] if self.places else entry


@dataclass(frozen=True, eq=False, repr=False)
class Record:
    """One recorded operation and its result.

    `operation` names an entry of OPERATIONS (operations.py), which recomputes the tensor from `arguments`: references
    to other records, and constants. `given`: an input tensor. `None`: no recorded operation produced it.
    A module that runs several times gives several records of one name; `key` tells them apart (`name`, `name#2`, …).
    Records between two taps are unnamed; they have no tensor of their own unless it was given.
    """

    name: str
    tensor: Tensor
    formula: str = ""
    inputs: tuple[str, ...] = ()  # the named records and weights that it was computed from
    operation: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    axes: tuple[Axis, ...] = ()
    key: str = ""
    token: int | None = None  # its target token, in a decoder that runs token by token
    note: str = ""
    unnamed: bool = False
    strides: tuple[int, ...] = ()  # step of each axis of a sampled tensor
    whole: tuple[int, ...] = ()  # shape of a sampled tensor before sampling

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor before sampling."""
        return self.whole or tuple(self.tensor.shape)

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.shape)) or "a number"
        return f"Record({self.key or self.name!r}, {shape}{', ' if self.formula else ''}{self.formula})"

    @property
    def latex(self) -> str:
        return latex(self.formula)

    @property
    def alias(self) -> bool:
        """True if it is another name of an earlier named record."""
        same_as = self.arguments.get("x")
        return self.operation == "same" and isinstance(same_as, Ref) and "~" not in same_as.name

    @property
    def path(self) -> str:
        """Its part of the model: `decoder.layers.2.cross_attention`."""
        return self.name.rpartition(".")[0]

    @property
    def point(self) -> str:
        """Its name within that part: `weights`."""
        return self.name.rpartition(".")[2]

    @property
    def layer(self) -> int | None:
        """Its layer, if any."""
        return layer_of(self.name)

    def kinds(self) -> tuple[str, ...]:
        """The kind of each axis."""
        return tuple(axis.kind for axis in self.axes)

    def sampled(self, numbers: int) -> Record:
        """Reduce to about `numbers` numbers: evenly spaced entries of the longest axes, with a note."""
        strides, shape = [1] * self.tensor.dim(), list(self.tensor.shape)
        while shape and torch.Size(shape).numel() > numbers:
            axis = max(range(len(shape)), key=shape.__getitem__)
            strides[axis] += 1
            shape[axis] = -(-self.tensor.shape[axis] // strides[axis])
        if self.whole or all(stride == 1 for stride in strides):
            return self
        thin = self.tensor[tuple(slice(None, None, stride) for stride in strides)].clone()
        kept = ", ".join(f"1 in {stride} on axis {axis}" for axis, stride in enumerate(strides) if stride > 1)
        note = f"sampled: {kept} of {list(self.tensor.shape)}"
        note = f"{self.note}; {note}" if self.note else note
        return replace(self, tensor=thin, note=note, strides=tuple(strides), whole=tuple(self.tensor.shape))


def layer_of(name: str) -> int | None:
    """The layer in a name, if any."""
    match = _LAYER.search(name)
    return int(match[1]) if match else None


def references(value: Any) -> Iterator[str]:
    """The names that an argument, or any of its parts, refers to."""
    if isinstance(value, Ref):
        yield value.name
    elif isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from references(part)


@dataclass(repr=False)
class Trace:
    """The records of one pass and the weights they refer to."""

    records: list[Record] = field(default_factory=list)  # unnamed ones too
    weights: dict[str, Tensor] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)  # text, output, tokens, ... (tracing.py)

    @property
    def named(self) -> list[Record]:
        """The records that have names."""
        return [record for record in self.records if not record.unnamed]

    def __iter__(self) -> Iterator[Record]:
        return iter(self.named)

    def __len__(self) -> int:
        return len(self.named)

    @property
    def names(self) -> list[str]:
        """Each name once, in order of first appearance."""
        return list(dict.fromkeys(record.name for record in self.named))

    @property
    def has_arithmetic(self) -> bool:
        """True if operations were recorded, so that it can be recomputed."""
        return any(record.operation for record in self.records)

    def find(self, name: str) -> Record:
        """The last record of that name; `name#2` is the second one. `layers.` may be left out."""
        for spell in (str, _short):
            for record in reversed(self.named):
                if spell(name) in (spell(record.name), spell(record.key)):
                    return record
        last = name.rpartition(".")[2]
        similar = get_close_matches(name, self.names, n=6, cutoff=0.6)
        similar += [other for other in self.names if other.rpartition(".")[2] == last]
        near = ", ".join(list(dict.fromkeys(similar))[:8] or self.names[:8]) or "nothing at all"
        raise KeyError(f"nothing named {name!r} was recorded; there is {near}")

    def all(self, name: str) -> list[Tensor]:
        """All tensors of that name, first to last."""
        return [record.tensor for record in self.named if record.name == name] or [self.find(name).tensor]

    def __getitem__(self, name: str) -> Tensor:
        """The last tensor of that name."""
        return self.find(name).tensor

    def __contains__(self, name: object) -> bool:
        return any(name in (record.name, record.key) for record in self.named)

    def under(self, prefix: str) -> Trace:
        """The named records of one part of the model, e.g. `decoder.layers.2`."""
        short = _short(prefix)
        kept = [r for r in self.named if r.name.startswith(prefix + ".") or _short(r.name).startswith(short + ".")]
        return Trace(kept, {}, self.about)

    def sampled(self, numbers: int = 100_000) -> Trace:
        """Sample tensors with more numbers, with a note; inputs stay whole, as recomputing needs them."""
        thin = [
            record if record.unnamed or record.operation == GIVEN else record.sampled(numbers)
            for record in self.records
        ]
        return Trace(thin, self.weights, self.about)

    # --- labels -------------------------------------------------------------------------------------------------------

    def labels(self, axis: Axis, size: int, *, predicting: bool = False) -> list[str] | None:
        """The names of an axis's entries, if any; `predicting`: with predictions, as "dog → predicts runs"."""
        if axis.kind in ("heads", "experts"):
            return [f"{axis.kind.removesuffix('s')} {number}" for number in range(size)]
        names = self._predictions() if predicting and axis.kind in ("source", "target") else self._names(axis.kind)
        if names is None or not (axis.places or size == len(names)):
            return None
        places = axis.places or range(size)
        return [names[place] if 0 <= place < len(names) else "" for place in places]

    def sides(
        self, axes: tuple[Axis, ...], shape: tuple[int, ...], token: int | None = None
    ) -> tuple[list[str] | None, list[str] | None]:
        """The names of the rows and columns of a tensor's matrices (its last two axes).

        Rows include the prediction if columns are words of the vocabulary or source tokens that the target attends to.
        `token`: the target token of a decoder that runs token by token, which has no axis for it.
        """
        if not axes or len(axes) != len(shape):
            return None, None
        columns = self.labels(axes[-1], shape[-1])
        if len(axes) == 1:
            return None, columns
        predicting = axes[-1].kind in ("vocabulary", "source")
        rows = self.labels(axes[-2], shape[-2], predicting=predicting and axes[-2].kind != axes[-1].kind)
        if rows is None and token is not None and shape[-2] == 1:
            rows = self.labels(Axis("target", (token,)), 1, predicting=predicting)
        return rows, columns

    def _names(self, kind: str) -> Sequence[str] | None:
        if kind == "vocabulary":
            labels = self.about.get("labels")
            spec = task_spec(self.about.get("task"))
            return [*SPECIALS, *labels] if labels is not None and spec is not None and spec.labels != "none" else labels
        source, given, target = (self.about.get(f"{side}_tokens") for side in ("source", "given", "target"))
        if kind == "predicted" and given is not None and target is not None:
            return [*given[1 : len(given) - len(target) + 1], *target]
        names: Sequence[str] | None = {"source": source, "target": given, "predicted": target}.get(kind)
        return names

    def _predictions(self) -> Sequence[str] | None:
        """Each input token with the token predicted from it."""
        read, predicted = self._names("target") or self._names("source"), self._names("predicted")
        if read is None or predicted is None or len(read) != len(predicted):
            return read
        return [f"{token} → predicts {label}" for token, label in zip(read, predicted, strict=True)]

    # --- files --------------------------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> None:
        """Write a new folder with trace.json, tensors.safetensors and weights.safetensors."""
        with atomic_folder(Path(folder)) as unfinished:
            self.write(unfinished)

    def write(self, folder: Path) -> None:
        """Write these files into an existing folder."""
        tensors = {record.key: record.tensor for record in self.records if record.tensor.numel() or not record.unnamed}
        for name, kept in ((TENSORS, tensors), (WEIGHTS, self.weights)):  # safetensors refuses shared memory
            own = {
                key: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for key, tensor in kept.items()
            }
            write_atomically(folder / name, safetensors_bytes(own))
        records = [_to_json(record) for record in self.records]
        write_json(folder / TRACE, {"format": FORMAT, "about": self.about, "records": records})

    @staticmethod
    def load(folder: str | Path) -> Trace:
        """Read what `save` wrote."""
        path = Path(folder) / TRACE
        if not path.is_file():
            raise ValueError(f"{folder} is not a saved trace: it has no {TRACE}; give the folder that was saved to")
        try:
            saved = parse_json(path.read_bytes())
            tensors, weights = load_file(Path(folder) / TENSORS), load_file(Path(folder) / WEIGHTS)
        except (ValueError, OSError, SafetensorError) as error:
            raise ValueError(f"{folder} is damaged ({error}); save the trace again") from error
        if saved.get("format") != FORMAT:
            version = saved.get("format")
            raise ValueError(f"{path} has format {version}, and this Sightline reads {FORMAT}; save it again")
        return Trace([_from_json(each, tensors) for each in saved["records"]], weights, saved["about"])

    # --- display ------------------------------------------------------------------------------------------------------

    def text(self, width: int = 120) -> str:
        """A table with a line for each record: name, formula, shape, range."""
        from sightline.inspection.walkthrough import trace_table
        from sightline.plots.terminal import plain_text

        return plain_text(trace_table(self), width)

    def __repr__(self) -> str:
        from sightline.inspection.walkthrough import trace_summary

        return trace_summary(self)

    def __rich__(self) -> Table:
        from sightline.inspection.walkthrough import trace_table

        return trace_table(self)

    def _repr_html_(self) -> str:
        from sightline.inspection.walkthrough import trace_html

        return trace_html(self)


def _short(name: str) -> str:
    return current_path(name).replace("layers.", "")


def _to_json(record: Record) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "key": record.key,
        "operation": record.operation,
        "arguments": to_json(record.arguments),
        "note": record.note,
        "unnamed": record.unnamed,
    }
    if record.unnamed:
        return entry
    return entry | {
        "name": record.name,
        "shape": list(record.shape),
        "axes": [[axis.kind, list(axis.places)] for axis in record.axes],
        "token": record.token,
        "formula": record.formula,
        "latex": record.latex,
        "inputs": list(record.inputs),
        "strides": list(record.strides),
        "sampled": bool(record.whole),
    }


def _from_json(entry: dict[str, Any], tensors: dict[str, Tensor]) -> Record:
    key = entry["key"]
    return Record(
        entry.get("name", key),
        tensors.get(key, torch.empty(0)),
        entry.get("formula", ""),
        tuple(entry.get("inputs", ())),
        entry["operation"],
        from_json(entry["arguments"]),
        tuple(Axis(kind, tuple(places)) for kind, places in entry.get("axes", ())),
        key,
        entry.get("token"),
        entry["note"],
        entry["unnamed"],
        tuple(entry.get("strides", ())),
        tuple(entry["shape"]) if entry.get("sampled") else (),
    )


def to_json(value: Any) -> Any:
    """Arguments or numbers for JSON, with forms for references and infinities."""
    if isinstance(value, Ref):
        return {"ref": value.name}
    if isinstance(value, dict):
        return {key: to_json(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"number": str(value)}
    return value


def from_json(value: Any) -> Any:
    """Read what `to_json` wrote."""
    if isinstance(value, dict):
        if set(value) == {"ref"}:
            return Ref(value["ref"])
        if set(value) == {"number"}:
            return float(value["number"])
        return {key: from_json(part) for key, part in value.items()}
    return [from_json(part) for part in value] if isinstance(value, list) else value
