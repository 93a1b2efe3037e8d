"""Taps: named points where a layer shows an intermediate tensor to whoever listens.

Outside a recording `tap` returns its argument and nothing else happens, so the fused kernels run. While somebody
listens, attention switches to its explicit kernel, because only that one has weights to show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True)
class Tapped:
    """One tensor that passed a tap: its full name, the formula that made it and the names of what went in."""

    name: str
    tensor: Tensor
    formula: str
    inputs: tuple[str, ...]


Listener = Callable[[Tapped], None]
Tap = Callable[..., Tensor]


class TapModule(nn.Module):
    """An nn.Module whose interesting tensors have names."""

    _listener: Listener | None = None
    _path: str = ""

    @property
    def heard(self) -> bool:
        """Whether somebody listens, so that weights are worth computing explicitly."""
        return self._listener is not None

    def tap(self, name: str, tensor: Tensor, formula: str = "", inputs: Sequence[str] = ()) -> Tensor:
        """Show `tensor` under `name` to the listener, if there is one, and give it back."""
        if self._listener is not None:
            prefix = self._path + "." if self._path else ""
            self._listener(Tapped(prefix + name, tensor, formula, tuple(prefix + source for source in inputs)))
        return tensor

    @property
    def explicit_tap(self) -> Tap | None:
        """The tap to hand to a pure function, or None when nobody listens."""
        return self.tap if self.heard else None


@contextmanager
def listen(model: nn.Module, listener: Listener, only: Sequence[str] | None = None) -> Iterator[None]:
    """Send the taps of `model` (of the modules whose path is in `only`, if given) to `listener` inside the block."""
    modules = [
        (path, module)
        for path, module in model.named_modules()
        if isinstance(module, TapModule) and (only is None or path in only)
    ]
    before = [(module, module._listener, module._path) for _, module in modules]
    for path, module in modules:
        module._listener, module._path = listener, path
    try:
        yield
    finally:
        for module, other, path in before:  # somebody may have listened already, and hears again
            if other is None:
                del module._listener, module._path
            else:
                module._listener, module._path = other, path
