"""Taps: named points where a layer shows an intermediate tensor to whoever listens.

Outside a recording `tap` returns its argument and nothing else happens, so the fused kernels run. While somebody
listens, attention switches to its explicit kernel, because only that one has weights to show. A listener that names
the points it wants (`states`, `output`) hears those alone, and the fast kernels go on. A listener that returns a tensor
puts it in the place of the one it heard: the layer goes on with that (to switch a head off, for instance).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True)
class Tapped:
    """One tensor that passed a tap: its full name, the formula that made it and the names of what went in.

    Where the formula tells it otherwise than the kernels computed it, `operation` (a name in inspection/operations.py)
    and its `operands` say the same to a machine; else whoever records follows what the kernels did.
    """

    name: str
    tensor: Tensor
    formula: str
    inputs: tuple[str, ...]
    operation: str = ""
    operands: Mapping[str, Any] = field(default_factory=dict)


Listener = Callable[[Tapped], Tensor | None]  # what it returns, if anything, takes the tensor's place
Tap = Callable[..., Tensor]


class TapModule(nn.Module):
    """An nn.Module whose interesting tensors have names."""

    # each with the path by which it knows this module, and the points it wants (None: all)
    _listeners: tuple[tuple[Listener, str, Collection[str] | None], ...] = ()

    @property
    def heard(self) -> bool:
        """Whether somebody listens to all there is, so that weights are worth computing explicitly."""
        return any(points is None for _, _, points in self._listeners)

    @property
    def listened(self) -> bool:
        """Whether somebody listens at all, to some points or to every one."""
        return bool(self._listeners)

    def tap(
        self,
        name: str,
        tensor: Tensor,
        formula: str = "",
        inputs: Sequence[str] = (),
        operation: str = "",
        operands: Mapping[str, Any] | None = None,
    ) -> Tensor:
        """Show `tensor` under `name` to those who listen, and give it back, or what one of them put in its place.

        Who began to listen last hears last, and so hears what is really gone on with.
        """
        for listener, path, points in self._listeners:
            if points is not None and name not in points:
                continue
            prefix = path + "." if path else ""
            sources = tuple(prefix + source for source in inputs)
            put = listener(Tapped(prefix + name, tensor, formula, sources, operation, operands or {}))
            if put is not None:
                if put.shape != tensor.shape:
                    raise ValueError(
                        f"a listener put a tensor {tuple(put.shape)} in the place of {prefix + name}, which is "
                        f"{tuple(tensor.shape)}; return one of that shape, or None"
                    )
                tensor = put
        return tensor

    @property
    def explicit_tap(self) -> Tap | None:
        """The tap to hand to a pure function, or None when nobody listens to all there is."""
        return self.tap if self.heard else None


def is_listened(model: object) -> bool:
    """Whether somebody listens to any part of a model."""
    return isinstance(model, nn.Module) and any(isinstance(m, TapModule) and m.listened for m in model.modules())


@contextmanager
def listen(
    model: nn.Module,
    listener: Listener,
    only: Sequence[str] | None = None,
    points: Collection[str] | None = None,
) -> Iterator[None]:
    """Send the taps of `model` (of the modules whose path is in `only`, if given) to `listener` inside the block.

    With `points`, only the taps of these names (without the module's path) are heard, and the kernels stay those that
    run when nobody listens: what only an explicit kernel computes (weights, gates) is not there to be heard then. Who
    listens already goes on hearing, and hears first.
    """
    modules = [
        (path, module)
        for path, module in model.named_modules()
        if isinstance(module, TapModule) and (only is None or path in only)
    ]
    before = [(module, module._listeners) for _, module in modules]
    for path, module in modules:
        module._listeners = (*module._listeners, (listener, path, points))
    try:
        yield
    finally:
        for module, others in before:
            if others:
                module._listeners = others
            else:
                del module._listeners
