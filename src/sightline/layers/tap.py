"""Taps: named points where a layer shows an intermediate tensor to a recording.

    weights = self.tap("weights", weights, "softmax(scores)", ["scores"])

Outside a recording `tap` returns its argument and nothing else happens, so fused kernels run. During a recording of all
points, attention runs its explicit kernel, because only that one computes weights. A listener that names its points
(`states`, `output`) gets those alone, and fused kernels keep running. A tensor that a listener returns replaces the
tapped one (to switch off a head, for instance).

Listeners are kept in a context variable, not on the modules: they belong to the thread (or asyncio task) that called
`listen`. So a recording never sees the tensors of another thread that uses the same model, and that thread keeps its
fused kernels. (Changes to the modules themselves are made on a `shallow_copy`, see layers/linear.py.)
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
    """One tapped tensor: its full name, its formula and the names of its inputs.

    Where the formula describes the tensor differently from what the kernels computed, `operation` (a name in
    inspection/operations.py) and its `operands` give that formula; otherwise a recording follows the kernels.
    `axes` says what new axes stand for (heads, experts; of tokens a number: every how many-th they are); the others
    follow from the operands.
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
# module → (listener, the path of the module, the points it wants; None: all)
_Listeners = Mapping[nn.Module, tuple[tuple[Listener, str, Collection[str] | None], ...]]

_listeners: ContextVar[_Listeners] = ContextVar("listeners", default=MappingProxyType({}))
_active = 0  # recordings in this process, of any thread: while there are none, a tap looks at nothing else
_counting = Lock()


class TapModule(nn.Module):
    """An nn.Module with named tensors.

    `entry_points`: methods besides `forward` through which other modules use its parameters (see models/protocol.py).
    """

    entry_points: ClassVar[tuple[str, ...]] = ()

    @property
    def recorded(self) -> bool:
        """Whether all points are recorded, so that weights must be computed explicitly."""
        return bool(_active) and any(points is None for _, _, points in _listeners.get().get(self, ()))

    @property
    def any_recorded(self) -> bool:
        """Whether any point is recorded."""
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
        """Pass `tensor` to the listeners under `name`; returns it, or its replacement.

        Later listeners get the replacements of earlier ones.
        """
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
        """The tap to pass to a pure function; None unless all points are recorded."""
        return self.tap if self.recorded else None


def is_recorded(model: object) -> bool:
    """Whether any point of any part of a model is recorded."""
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
    """Pass what this thread taps in `model` (in the modules with a path in `only`, if given) to `listener`.

    With `points`, only taps of these names (without the path) are passed and the same kernels run as outside a
    recording; what only an explicit kernel computes (weights, gates) is not tapped then. Listeners nest.
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
