"""Taps: named points where a layer passes an intermediate tensor to listeners.

    weights = self.tap("weights", weights, "softmax(scores)", ["scores"])

Without listeners `tap` returns its argument, and fused kernels run. A listener for all points (a recording) makes
attention use its explicit kernel, because only that one computes weights. A listener for named points (`states`,
`output`) gets these alone, and fused kernels keep running. A tensor that a listener returns replaces the tapped one (to
mask a head, for instance).

Listeners belong to the thread (or asyncio task) that registered them with `on_taps`: other threads that use the same
model are not recorded and keep their fused kernels. (Modules themselves are changed on a `shallow_copy`, linear.py.)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import Lock
from types import MappingProxyType
from typing import Any, ClassVar

from torch import Tensor, nn


@dataclass(frozen=True)
class Tapped:
    """A tapped tensor: its full name, its formula and the names of its inputs.

    `operation` (a name in inspection/operations.py) and its `operands` define the recorded formula where it differs
    from the operations that the kernels executed. `axes` labels new axes: heads, experts, or n for every n-th token.
    """

    name: str
    tensor: Tensor
    formula: str
    inputs: tuple[str, ...]
    operation: str = ""
    operands: Mapping[str, Any] = field(default_factory=dict)
    axes: Mapping[int, str | int] = field(default_factory=dict)


Listener = Callable[[Tapped], Tensor | None]  # a returned tensor replaces the tapped one
Tap = Callable[..., Tensor]
# module → (listener, path of the module, names of points; None: all)
_Listeners = Mapping[nn.Module, tuple[tuple[Listener, str, Collection[str] | None], ...]]

_listeners: ContextVar[_Listeners] = ContextVar("listeners", default=MappingProxyType({}))
_active = 0  # number of listeners in this process, in any thread: `tap` returns at once while it is zero
_counting = Lock()


class TapModule(nn.Module):
    """An nn.Module with taps.

    `entry_points`: methods besides `forward` through which other modules use its parameters (see models/protocol.py).
    """

    entry_points: ClassVar[tuple[str, ...]] = ()

    @property
    def recorded(self) -> bool:
        """True while a listener receives all points, so that attention weights must be computed."""
        return bool(_active) and any(points is None for _, _, points in _listeners.get().get(self, ()))

    @property
    def any_recorded(self) -> bool:
        """True while a listener receives some point."""
        return bool(_active) and self in _listeners.get()

    def tap(
        self,
        name: str,
        tensor: Tensor,
        formula: str = "",
        inputs: Sequence[str] = (),
        operation: str = "",
        operands: Mapping[str, Any] | None = None,
        axes: Mapping[int, str | int] | None = None,
    ) -> Tensor:
        """Pass `tensor` to the listeners in turn; returns it, or its last replacement."""
        if not _active:
            return tensor
        for listener, path, points in _listeners.get().get(self, ()):
            if points is not None and name not in points:
                continue
            prefix = path + "." if path else ""
            sources = tuple(prefix + source for source in inputs)
            replacement = listener(
                Tapped(prefix + name, tensor, formula, sources, operation, operands or {}, axes or {})
            )
            if replacement is not None:
                if replacement.shape != tensor.shape:
                    raise ValueError(
                        f"a listener replaced {prefix + name}, which is {tuple(tensor.shape)}, by a tensor "
                        f"{tuple(replacement.shape)}; return one of the same shape, or None"
                    )
                tensor = replacement
        return tensor

    @property
    def explicit_tap(self) -> Tap | None:
        """`tap` for a pure function; None unless all points are recorded."""
        return self.tap if self.recorded else None


def is_recorded(model: object) -> bool:
    """True while a listener receives some point of a module of `model`."""
    if not _active or not isinstance(model, nn.Module):
        return False
    listeners = _listeners.get()
    return any(module in listeners for module in model.modules())


@contextmanager
def on_taps(
    model: nn.Module,
    listener: Listener,
    only: Sequence[str] | None = None,
    points: Collection[str] | None = None,
) -> Iterator[None]:
    """Call `listener` for the tensors that this thread taps in `model`, or in the modules with paths in `only`.

    `points`: pass only taps of these names (without path), and leave the choice of kernels as it is; tensors that only
    explicit kernels compute (weights, gates) are not tapped then. Listeners nest.
    """
    global _active
    listeners = dict(_listeners.get())
    for path, module in model.named_modules():
        if isinstance(module, TapModule) and (only is None or path in only):
            listeners[module] = (*listeners.get(module, ()), (listener, path, points))
    token = _listeners.set(listeners)
    with _counting:
        _active += 1
    try:
        yield
    finally:
        with _counting:
            _active -= 1
        _listeners.reset(token)
