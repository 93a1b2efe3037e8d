"""Record a forward pass: the tensors at its taps and the operations that computed them.

    with record(model) as trace:                # named tensors, formulas
        model.encode(...)

    with record_arithmetic(model) as recorder:  # operations and arguments too, so that all of it can be recomputed
        tokens = recorder.give("source.tokens", tokens, axes=(BATCH, SOURCE))
        recorder.model.encode(tokens, layout)
    trace = recorder.finish()

With arithmetic, a dispatch mode records the kernel and arguments of every tensor. A tap names a tensor; its origin is
followed back to named tensors, weights and inputs, and the steps between become unnamed records. Layers therefore need
not repeat their computation for a trace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from sightline.inspection.axes import BATCH, FEATURES, VOCABULARY, Axes, Call, Labelled, Operand
from sightline.inspection.kernels import FROM_NOTHING, to_operation
from sightline.inspection.operations import OPERATIONS, moved_from, numpy_value
from sightline.inspection.trace import GIVEN, Axis, Record, Ref, Trace, references
from sightline.layers.embedding import Embedding, Output
from sightline.layers.linear import shallow_copy
from sightline.layers.tap import Tapped, on_taps

_NOTHING = torch.empty(0)
_UNSET = object()


@contextmanager
def record(model: nn.Module) -> Iterator[Trace]:
    """Record the tensors that `model` taps inside the block, without their arithmetic."""
    trace, counts = Trace(), Counter[str]()

    def keep(tapped: Tapped) -> None:
        counts[tapped.name] += 1
        tensor = tapped.tensor.detach().clone()  # later operations may write into its memory
        trace.records.append(
            Record(tapped.name, tensor, tapped.formula, tapped.inputs, key=_key(tapped.name, counts[tapped.name]))
        )

    with on_taps(model, keep):
        yield trace


@contextmanager
def record_arithmetic(model: nn.Module) -> Iterator[Recorder]:
    """Record `recorder.model`, a shallow copy of `model`, with its arithmetic; `finish()` returns the trace."""
    model = shallow_copy(model, packed=False)
    recorder = Recorder(model)
    with torch.inference_mode(), on_taps(model, recorder.on_tap), recorder.kernels:
        yield recorder


def _key(name: str, count: int) -> str:
    return f"{name}#{count}" if count > 1 else name


# --- origins of tensors -----------------------------------------------------------------------------------------------


@dataclass(eq=False)
class TensorOrigin:
    """The kernel that computed a tensor; `name` once it is recorded."""

    tensor: Tensor  # kept alive: origins are looked up by identity
    kernel: str = ""  # "": an input or a weight
    arguments: Mapping[str, Any] = field(default_factory=dict)
    number: int = 0  # index among the kernel's results
    name: str | None = None
    value: Tensor | None = None  # a copy, if later kernels may write into the tensor


class KernelRecorder(TorchDispatchMode):
    """Records the origin of every tensor computed while it is active."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.origins = {id(tensor): TensorOrigin(tensor, name=name) for name, tensor in weights.items()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        schema = func._schema
        names = [argument.name for argument in schema.arguments]
        values = {each.name: each.default_value for each in schema.arguments if each.has_default_value()}
        values |= dict(zip(names, args, strict=False)) | kwargs
        arguments = {name: self.with_origins(value) for name, value in values.items()}
        result = func(*args, **kwargs)
        kernel = schema.name
        if kernel == "aten::detach_":  # called by `torch.tensor`; writes nothing
            return result
        if schema.is_mutable:
            kernel = kernel.removesuffix("_")
            self._forget_views_of(args[0])
        for number, tensor in enumerate(result if isinstance(result, list | tuple) else (result,)):
            if isinstance(tensor, Tensor):
                self.origins[id(tensor)] = _origin(tensor, kernel, arguments, number)
        return result

    def with_origins(self, value: Any) -> Any:
        """An argument with origins in place of its tensors."""
        if isinstance(value, Tensor):
            return self.origin(value)
        if isinstance(value, list | tuple) and any(isinstance(part, Tensor) for part in value):
            return [self.with_origins(part) for part in value]
        return value

    def origin(self, tensor: Tensor) -> TensorOrigin:
        """The origin of a tensor; an unknown tensor is an input."""
        if id(tensor) not in self.origins:
            self.origins[id(tensor)] = TensorOrigin(tensor, value=tensor.detach().clone())
        return self.origins[id(tensor)]

    def _forget_views_of(self, changed: Tensor) -> None:
        """After a write into a tensor, keep only the values of other tensors in its memory."""
        memory = changed.untyped_storage().data_ptr()
        for key, origin in self.origins.items():
            tensor = origin.tensor
            if tensor is not changed and tensor.untyped_storage().data_ptr() == memory:
                self.origins[key] = TensorOrigin(tensor, value=tensor.detach().clone())


def _origin(tensor: Tensor, kernel: str, arguments: Mapping[str, Any], number: int) -> TensorOrigin:
    parts = [part for value in arguments.values() for part in (value if isinstance(value, list) else [value])]
    if kernel in FROM_NOTHING or not any(isinstance(part, TensorOrigin) for part in parts):
        return TensorOrigin(tensor, value=tensor.detach().clone())
    return TensorOrigin(tensor, kernel, arguments, number)


def _unnamed_arguments(origin: TensorOrigin) -> list[TensorOrigin]:
    """The arguments without a name; none for a kernel without an operation."""
    if not origin.kernel or to_operation(origin.kernel, origin.arguments, origin.tensor, origin.number) is None:
        return []
    parts = [part for value in origin.arguments.values() for part in (value if isinstance(value, list) else [value])]
    return [part for part in parts if isinstance(part, TensorOrigin) and part.name is None and part is not origin]


# --- records ----------------------------------------------------------------------------------------------------------


class Recorder:
    """Adds a record for each tapped tensor, after the unnamed records of its computation."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.trace = Trace()
        self.weights: dict[str, Tensor] = dict([*model.named_parameters(), *model.named_buffers()])
        self.kernels = KernelRecorder(self.weights)
        self._counts: Counter[str] = Counter()
        self._unnamed: dict[str, Record] = {}
        self._known = {name: (tensor, Labelled(())) for name, tensor in self.weights.items()}  # values and axes by key
        for module in model.modules():
            for name in ("weight", "bias") if isinstance(module, Embedding | Output) else ():
                if isinstance(weight := getattr(module, name, None), Tensor):
                    axes = (VOCABULARY, FEATURES)[: weight.dim()]
                    for key in (key for key, tensor in self.weights.items() if tensor is weight):
                        self._known[key] = (weight, Labelled(axes))

    def on_tap(self, tapped: Tapped) -> None:
        """Record a tapped tensor."""
        axes = tapped.axes
        self._record(tapped, None if not axes else lambda derived: _renamed(derived, axes, tapped.tensor.shape))

    def give(self, name: str, tensor: Tensor, formula: str = "", axes: Axes = ()) -> Tensor:
        """Name an input tensor, before the model runs."""
        self._record(Tapped(name, tensor, formula, ()), lambda derived: axes or derived)
        return tensor

    def end(
        self,
        logits: Tensor,
        labels: Tensor,
        places: Tensor | None = None,
        *,
        formula: str = "softmax(logits)",
        note: str = "",
    ) -> None:
        """Record softmax(logits) (…, V), −log p of each label, and their mean (over `places`, if given).

        `formula` and `note` describe a softmax of something other than the preceding logits.
        """
        axes = (BATCH, Axis("predicted"))[: labels.dim()]
        self.give("labels", labels, "tokens to be predicted", axes)
        probabilities = torch.softmax(logits.float(), -1)
        self.on_tap(Tapped("probabilities", probabilities, formula, ()))
        self.trace.records[-1] = replace(self.trace.records[-1], note=note or self.trace.records[-1].note)
        losses = 0.0 - probabilities.gather(-1, labels[..., None])[..., 0].log()  # 0, not −0, for p = 1
        operands = {"probabilities": probabilities, "labels": labels}
        self.on_tap(Tapped("losses", losses, "−log p(label)", (), "nll", operands))
        losses = losses if places is None else losses[places]
        self.on_tap(Tapped("loss", losses.mean(), "mean of the losses", ()))

    def finish(self) -> Trace:
        """The trace with its weights, without unused unnamed records."""
        needed: set[str] = set()
        kept: list[Record] = []
        for each in reversed(self.trace.records):
            if not each.unnamed or each.key in needed:
                needed.update(references(each.arguments))
                kept.append(each)
        self.trace.records = kept[::-1]
        self.trace.weights = {name: w.detach().clone() for name, w in self.weights.items() if name in needed}
        return self.trace

    def _record(self, tapped: Tapped, relabel: Any = None) -> None:
        self._counts[tapped.name] += 1
        key = _key(tapped.name, self._counts[tapped.name])
        origin = self.kernels.origin(tapped.tensor)
        steps = _Unnamed(self, key)
        operation: str | None
        if tapped.operation:
            operands = {name: self.kernels.with_origins(value) for name, value in tapped.operands.items()}
            operation, arguments, note = tapped.operation, steps.arguments(operands), ""
        elif origin.name is not None:
            operation, arguments, note = "same", {"x": Ref(origin.name)}, ""
        else:
            operation, arguments, note = steps.operation(origin)
        labelled = self._labelled(operation, arguments, tuple(tapped.tensor.shape))
        if relabel is not None:
            labelled = replace(labelled, axes=relabel(labelled.axes))
        tensor = tapped.tensor.detach().clone()
        self._known[key] = (tensor, labelled)
        self.trace.records.append(
            Record(
                tapped.name,
                tensor,
                tapped.formula,
                self._inputs(arguments),
                operation,
                arguments,
                labelled.axes,
                key,
                labelled.token,
                note,
            )
        )
        if origin.name is None:
            origin.name = key

    def add_unnamed(
        self, key: str, tensor: Tensor | None, operation: str | None, arguments: Mapping[str, Any], note: str
    ) -> None:
        """Add a record between two taps; only inputs keep their tensors."""
        kept = _NOTHING if tensor is None or operation not in (GIVEN, None) else tensor.detach().clone()
        labelled = Labelled(()) if tensor is None else self._labelled(operation, arguments, tuple(tensor.shape))
        self._known[key] = (_NOTHING if tensor is None else tensor, labelled)
        self._unnamed[key] = Record(
            key, kept, "", (), operation, arguments, labelled.axes, key, labelled.token, note, unnamed=True
        )
        self.trace.records.append(self._unnamed[key])

    def _inputs(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        """The named records and weights that arguments lead to through unnamed records."""
        inputs: list[str] = []
        waiting, seen = list(references(arguments)), set[str]()
        while waiting:
            name = waiting.pop(0)
            if name in self._unnamed and name not in seen:
                waiting = [*references(self._unnamed[name].arguments), *waiting]
            elif name not in seen:
                inputs.append(name)
            seen.add(name)
        return tuple(inputs)

    def _labelled(self, operation: str | None, arguments: Mapping[str, Any], shape: tuple[int, ...]) -> Labelled:
        """The axes of a result."""
        if operation in (GIVEN, None):
            return Labelled(())
        operands = {name: self._operand(value) for name, value in arguments.items() if any(references(value))}
        constants = {name: value for name, value in arguments.items() if name not in operands}
        entry = OPERATIONS[operation]

        def sources() -> Any:
            return moved_from(entry, arguments, {name: self._value(value) for name, value in arguments.items()}).sources

        labelled = entry.axes(Call(operands, constants, shape, entry.moved, sources))
        for axis, size in zip(labelled.axes, shape, strict=False):
            if axis.kind == "target":
                return replace(labelled, token=axis.place(0) if size == 1 else None)
        return labelled

    def _operand(self, value: Any) -> Any:
        if isinstance(value, Ref):
            tensor, labelled = self._known[value.name]
            return Operand(tuple(tensor.shape), labelled.axes, labelled.token)
        return [self._operand(part) for part in value] if isinstance(value, list | tuple) else value

    def _value(self, value: Any) -> Any:
        if isinstance(value, Ref):
            return numpy_value(self._known[value.name][0])
        return [self._value(part) for part in value] if isinstance(value, list | tuple) else value


def _renamed(axes: Axes, kinds: Mapping[int, str | int], shape: Sequence[int]) -> Axes:
    """Apply the labels of a layer: a kind, or the stride of tokens that it keeps."""
    every = list(axes) if len(axes) == len(shape) else [Axis()] * len(shape)
    for number, kind in kinds.items():
        if isinstance(kind, int):
            if every[number].places:  # not all tokens
                every[number] = Axis(every[number].kind, tuple(range(0, kind * shape[number], kind)))
        else:
            every[number] = Axis(kind)
    return tuple(every)


class _Unnamed:
    """The unnamed records that lead to a tap; their keys are its key with a number."""

    def __init__(self, recorder: Recorder, key: str) -> None:
        self.recorder, self.key, self.count = recorder, key, 0

    def operation(self, origin: TensorOrigin) -> tuple[str | None, dict[str, Any], str]:
        """The operation of a tensor, its arguments (references, constants, lists of them) and a note."""
        if not origin.kernel:
            return GIVEN, {}, ""
        call = to_operation(origin.kernel, origin.arguments, origin.tensor, origin.number)
        if call is None:
            return None, {}, f"not recomputed: no operation for {origin.kernel}"
        return call[0], self.arguments(call[1]), ""

    def arguments(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments with references in place of origins."""
        return {name: self._argument(value) for name, value in values.items()}

    def _argument(self, value: Any) -> Any:
        if isinstance(value, TensorOrigin):
            return Ref(self._name(value))
        if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str):  # a call inside a call
            return Ref(self._add(None, value[0], self.arguments(value[1]), ""))
        return [self._argument(part) for part in value] if isinstance(value, list | tuple) else value

    def _name(self, origin: TensorOrigin) -> str:
        """The name of a tensor; one that has none becomes an unnamed record, after all it needs."""
        waiting = [] if origin.name is not None else [origin]
        while waiting:  # a recurrence is deeper than Python's stack
            missing = _unnamed_arguments(waiting[-1])
            if missing:
                waiting.extend(missing)
                continue
            last = waiting.pop()
            if last.name is None:
                operation, arguments, note = self.operation(last)
                last.name = self._add(last.tensor if last.value is None else last.value, operation, arguments, note)
        assert origin.name is not None
        return origin.name

    def _add(self, tensor: Tensor | None, operation: str | None, arguments: Mapping[str, Any], note: str) -> str:
        self.count += 1
        key = f"{self.key}~{self.count}"
        self.recorder.add_unnamed(key, tensor, operation, arguments, note)
        return key
