"""Follow a forward pass kernel by kernel, so that every tapped tensor can be told from those before it.

While it is on, each tensor's origin is known: the kernel that made it and what went in. A tap gives a tensor its name;
to tell how it came about, the origins are followed back to tensors that have names (or are weights, or were given), and
what lies between becomes unnamed steps. So layers need not say twice what they do, and what is told is what was done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from sightline.inspection.kernel_calls import FROM_NOTHING, in_our_words


@dataclass(frozen=True)
class Ref:
    """An argument that is a step or a weight of that name."""

    name: str


@dataclass(eq=False)
class Origin:
    """Where a tensor came from; `name` once it has one."""

    tensor: Tensor  # kept alive: origins are found by the identity of tensors
    kernel: str = ""  # "": it was there before anybody looked
    arguments: Mapping[str, Any] | None = None
    number: int = 0  # which of the kernel's results it is
    name: str | None = None
    value: Tensor | None = None  # a copy, where later steps may write into the tensor and nothing else tells its value


Told = Callable[..., None]  # (name, tensor, operation, arguments, note): an unnamed step that is needed


class Follower(TorchDispatchMode):
    """Knows the origin of every tensor made while it is on."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.origins: dict[int, Origin] = {}
        self.weights: dict[str, Tensor] = {}
        named = [*model.named_parameters(), *model.named_buffers()]
        for name, tensor in named:
            self.weights[name] = tensor
            self.origins[id(tensor)] = Origin(tensor, name=name)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        schema = func._schema
        names = [argument.name for argument in schema.arguments]
        given = {argument.name: argument.default_value for argument in schema.arguments if argument.has_default_value()}
        given |= dict(zip(names, args, strict=False)) | kwargs
        before = {name: self._known(value) for name, value in given.items()}
        result = func(*args, **kwargs)
        kernel = schema.name
        if kernel == "aten::detach_":  # of what `torch.tensor` makes: nothing is written
            return result
        if schema.is_mutable:
            kernel = kernel.removesuffix("_")
            self._forget_views_of(args[0])
        several = isinstance(result, list | tuple)
        for number, tensor in enumerate(result if several else (result,)):
            if isinstance(tensor, Tensor):
                self.origins[id(tensor)] = self._made(tensor, kernel, before, number)
        return result

    def _made(self, tensor: Tensor, kernel: str, given: Mapping[str, Any], number: int) -> Origin:
        taken = [part for value in given.values() for part in (value if isinstance(value, list) else [value])]
        alone = kernel in FROM_NOTHING or not any(isinstance(part, Origin) for part in taken)
        if alone:
            return Origin(tensor, value=tensor.detach().clone())
        return Origin(tensor, kernel, given, number)

    def _known(self, value: Any) -> Any:
        """An argument with origins in place of its tensors."""
        if isinstance(value, Tensor):
            return self.origin(value)
        if isinstance(value, list | tuple) and any(isinstance(part, Tensor) for part in value):
            return [self._known(part) for part in value]
        return value

    def origin(self, tensor: Tensor) -> Origin:
        """Where it came from; of a tensor nobody saw before, that it was given."""
        found = self.origins.get(id(tensor))
        if found is None:
            found = self.origins[id(tensor)] = Origin(tensor, value=tensor.detach().clone())
        return found

    def _forget_views_of(self, changed: Tensor) -> None:
        """Somebody writes into a tensor: of others in the same memory only the values are known from now on."""
        place = changed.untyped_storage().data_ptr()
        for key, origin in self.origins.items():
            tensor = origin.tensor
            if tensor is not changed and tensor.untyped_storage().data_ptr() == place:
                self.origins[key] = Origin(tensor, value=tensor.detach().clone())

    # --- telling ----------------------------------------------------------------------------------------------------

    def call(self, tensor: Tensor, name: str, tell: Told) -> tuple[str, dict[str, Any], str]:
        """How a tensor came about: operation, arguments (references, constants, lists of them), and a note."""
        origin = self.origin(tensor)
        if origin.name is not None:
            return "same", {"x": Ref(origin.name)}, ""
        return self._call(origin, _Names(name, tell))

    def arguments(self, operands: Mapping[str, Any], name: str, tell: Told) -> dict[str, Any]:
        """Operands that a tap named, as references and constants."""
        names = _Names(name, tell)
        return {key: self._argument(self._known(value), names) for key, value in operands.items()}

    def _call(self, origin: Origin, names: _Names) -> tuple[str, dict[str, Any], str]:
        call = None
        if origin.kernel:
            assert origin.arguments is not None
            call = in_our_words(origin.kernel, origin.arguments, origin.tensor, origin.number)
        if call is None:
            note = f"not recomputed: no operation for {origin.kernel}" if origin.kernel else ""
            return "given", {}, note
        operation, arguments = call
        return operation, {key: self._argument(value, names) for key, value in arguments.items()}, ""

    def _argument(self, value: Any, names: _Names) -> Any:
        if isinstance(value, Origin):
            return Ref(self._name(value, names))
        if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str):  # a call inside a call
            arguments = {key: self._argument(part, names) for key, part in value[1].items()}
            return Ref(names.tell(None, value[0], arguments, ""))
        if isinstance(value, list | tuple):
            return [self._argument(part, names) for part in value]
        if isinstance(value, Tensor):
            return Ref(self._name(self.origin(value), names))
        return value

    def _name(self, origin: Origin, names: _Names) -> str:
        """The name of a tensor; one that has none is told as an unnamed step, after all it needs."""
        if origin.name is None:
            waiting = [origin]
            while waiting:  # a recurrence is deeper than Python's stack
                missing = [part for part in _unnamed(waiting[-1]) if part is not waiting[-1]]
                if missing:
                    waiting.extend(missing)
                    continue
                last = waiting.pop()
                if last.name is None:
                    operation, arguments, note = self._call(last, names)
                    value = last.tensor if last.value is None else last.value
                    last.name = names.tell(value if operation == "given" else None, operation, arguments, note)
        assert origin.name is not None
        return origin.name


def _unnamed(origin: Origin) -> list[Origin]:
    """Those of its arguments that have no name yet; none, where how they are used cannot be told."""
    if not origin.kernel or origin.arguments is None:
        return []
    if in_our_words(origin.kernel, origin.arguments, origin.tensor, origin.number) is None:
        return []
    found: list[Origin] = []
    for value in origin.arguments.values():
        parts = value if isinstance(value, list) else [value]
        found += [part for part in parts if isinstance(part, Origin) and part.name is None]
    return found


class _Names:
    """Names for the unnamed steps towards a tap: its own with a number."""

    def __init__(self, name: str, tell: Told) -> None:
        self.name, self.told, self.count = name, tell, 0

    def tell(self, tensor: Tensor | None, operation: str, arguments: Mapping[str, Any], note: str) -> str:
        self.count += 1
        name = f"{self.name}~{self.count}"
        self.told(name, tensor, operation, arguments, note)
        return name


def numpy_value(tensor: Tensor) -> Any:
    """A tensor as NumPy takes it: half precision is widened."""
    wide = tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
    return wide.detach().cpu().numpy()
