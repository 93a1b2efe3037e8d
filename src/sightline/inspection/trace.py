"""What a model computed in one forward pass: a record for each named tensor, in the order they were made.

    trace = run.trace("Ein Hund bellt.")
    trace["decoder.layers.2.cross_attention.weights"]        # a tensor
    trace.find("decoder.2.cross_attention.weights")          # its record: formula, inputs, operation, axes
    trace.save("traces/hund"); Trace.load("traces/hund")

Walkthrough, arithmetic, NumPy script, attention views, alignments, report and page read these records; none of them
reaches into a model. recorder.py makes them.
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
    """What an axis of a tensor stands for.

    `kind` is batch, source, target, predicted, vocabulary, heads, experts or features; "" where nothing is known.
    `places` says which of the tokens (words of the vocabulary) each entry is, −1 for padding; () for all in order.
    """

    kind: str = ""
    places: tuple[int, ...] = ()

    def place(self, entry: int) -> int:
        """Which token an entry is."""
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
    token: int | None = None  # the target token it belongs to, of a decoder that runs token by token
    note: str = ""
    unnamed: bool = False
    strides: tuple[int, ...] = ()  # of a sampled tensor: it has every so-many-th number of each axis
    whole: tuple[int, ...] = ()  # of a sampled tensor: the shape it had
    grad: Tensor | None = None  # ∂loss/∂tensor, where a backward pass was recorded

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the tensor, before it was sampled."""
        return self.whole or tuple(self.tensor.shape)

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.shape)) or "a number"
        return f"Record({self.key or self.name!r}, {shape}{', ' if self.formula else ''}{self.formula})"

    @property
    def latex(self) -> str:
        return latex(self.formula)

    @property
    def alias(self) -> bool:
        """Whether it is another name for a named record before it."""
        same_as = self.arguments.get("x")
        return self.operation == "same" and isinstance(same_as, Ref) and "~" not in same_as.name

    @property
    def path(self) -> str:
        """The part of the model it belongs to: `decoder.layers.2.cross_attention`."""
        return self.name.rpartition(".")[0]

    @property
    def point(self) -> str:
        """Its name within that part: `weights`."""
        return self.name.rpartition(".")[2]

    @property
    def layer(self) -> int | None:
        """The number of the layer that it belongs to, if to one."""
        return layer_of(self.name)

    def kinds(self) -> tuple[str, ...]:
        """What each axis stands for."""
        return tuple(axis.kind for axis in self.axes)

    def axis(self, kind: str) -> int | None:
        """The first axis of that kind."""
        return self.kinds().index(kind) if kind in self.kinds() else None

    def sampled(self, numbers: int) -> Record:
        """With at most about so many numbers: the longest axes are thinned evenly, and a note says so."""
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
    """The number of the layer in a name, if there is one."""
    match = _LAYER.search(name)
    return int(match[1]) if match else None


def references(value: Any) -> Iterator[str]:
    """The names that an argument, or each of several, refers to."""
    if isinstance(value, Ref):
        yield value.name
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from references(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from references(part)


@dataclass(repr=False)
class Trace:
    """The records of one pass, and the weights that they refer to."""

    records: list[Record] = field(default_factory=list)  # unnamed ones too
    weights: dict[str, Tensor] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)  # text, output, tokens: what tracing.py puts there

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
        """Whether operations were recorded, so that it can be recomputed."""
        return any(record.operation for record in self.records)

    def find(self, name: str) -> Record:
        """The last record of that name; `name#2` is the second one. `layers.` may be left out."""
        named = self.named
        for spelled in (lambda text: text, _short):
            for record in reversed(named):
                if spelled(name) in (spelled(record.name), spelled(record.key)):
                    return record
        near = ", ".join(self._near(name)) or "nothing at all"
        raise KeyError(f"nothing named {name!r} was recorded; there is {near}")

    def _near(self, name: str) -> list[str]:
        close = get_close_matches(name, self.names, n=6, cutoff=0.6)
        last = name.rsplit(".", 1)[-1]
        alike = [known for known in self.names if known.rsplit(".", 1)[-1] == last]
        return list(dict.fromkeys([*close, *alike]))[:8] or self.names[:8]

    def all(self, name: str) -> list[Tensor]:
        """Every tensor of that name, first to last."""
        return [record.tensor for record in self.named if record.name == name] or [self.find(name).tensor]

    def __getitem__(self, name: str) -> Tensor:
        """The last tensor of that name."""
        return self.find(name).tensor

    def __contains__(self, name: object) -> bool:
        return any(name in (record.name, record.key) for record in self.named)

    def under(self, prefix: str) -> Trace:
        """The records of one part of the model, e.g. `decoder.layers.2`; what they refer to may lie outside."""
        short = _short(prefix)
        kept = [r for r in self.named if r.name.startswith(prefix + ".") or _short(r.name).startswith(short + ".")]
        return Trace(kept, {}, self.about)

    def sampled(self, numbers: int = 100_000) -> Trace:
        """Tensors with more numbers than that thinned out, each with a note; what is needed to recompute stays."""
        thin = [
            record if record.unnamed or record.operation == GIVEN else record.sampled(numbers)
            for record in self.records
        ]
        return Trace(thin, self.weights, self.about)

    # --- labels -------------------------------------------------------------------------------------------------------

    def labels(self, axis: Axis, size: int, *, predicting: bool = False) -> list[str] | None:
        """The names of the entries of an axis, where they have some.

        `predicting`: tokens with what is predicted from them, "dog → predicts runs".
        """
        if axis.kind == "heads" or axis.kind == "experts":
            return [f"{axis.kind.removesuffix('s')} {number}" for number in range(size)]
        names = self._predictions() if predicting and axis.kind in ("source", "target") else self._names(axis.kind)
        if names is None or not (axis.places or size == len(names)):
            return None
        places = axis.places or range(size)
        return [names[place] if 0 <= place < len(names) else "" for place in places]

    def sides(
        self, axes: tuple[Axis, ...], shape: tuple[int, ...], token: int | None = None
    ) -> tuple[list[str] | None, list[str] | None]:
        """The names of the rows and the columns of a tensor's matrices (its last two axes).

        Rows say what is predicted, too, where columns are words of the vocabulary or source tokens that the target
        attends to. `token`: the target token of a decoder that runs token by token, which has no axis for it.
        """
        if not axes or len(axes) != len(shape):
            return None, None
        last = axes[-1].kind
        columns = self.labels(axes[-1], shape[-1])
        if len(axes) == 1:
            return None, columns
        rows = self.labels(axes[-2], shape[-2], predicting=last in ("vocabulary", "source") and axes[-2].kind != last)
        if rows is None and token is not None and shape[-2] == 1:
            rows = self.labels(Axis("target", (token,)), 1, predicting=last in ("vocabulary", "source"))
        return rows, columns

    def _names(self, kind: str) -> Sequence[str] | None:
        if kind == "vocabulary":
            labels = self.about.get("labels")
            spec = task_spec(self.about.get("task"))
            return [*SPECIALS, *labels] if labels is not None and spec is not None and spec.labels != "none" else labels
        names: Sequence[str] | None
        if kind == "predicted":
            given, names = self.about.get("given_tokens"), self.about.get("target_tokens")
            return names if given is None or names is None else [*given[1 : len(given) - len(names) + 1], *names]
        names = self.about.get({"source": "source_tokens", "target": "given_tokens"}.get(kind, ""))
        return names

    def _predictions(self) -> Sequence[str] | None:
        """Each token that is read with the one predicted from it."""
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
        kept = {record.key: record.tensor for record in self.records if record.tensor.numel() or not record.unnamed}
        write_atomically(folder / TENSORS, safetensors_bytes(_own_memory(kept)))
        write_atomically(folder / WEIGHTS, safetensors_bytes(_own_memory(self.weights)))
        write_json(
            folder / TRACE, {"format": FORMAT, "about": self.about, "records": list(map(_to_json, self.records))}
        )

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
            raise ValueError(
                f"{path} has format {saved.get('format')}, and this Sightline reads {FORMAT}; save it again"
            )
        return Trace([_from_json(each, tensors) for each in saved["records"]], weights, saved["about"])

    # --- showing ------------------------------------------------------------------------------------------------------

    def text(self, width: int = 120) -> str:
        """Every record in a line: name, formula, shape, range."""
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


def _own_memory(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """safetensors refuses tensors that share memory."""
    return {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
    }


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
    """Arguments or numbers for JSON: references and infinities have a form of their own."""
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
