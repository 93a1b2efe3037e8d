"""Record a forward pass: every tapped tensor, in order, with its name, its formula and what went into it.

    with record(model) as trace:
        model.encode(...)
    trace["encoder.layers.0.attention.weights"]

Walk-throughs, attention views and alignments read the trace; none reaches into a model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor, nn

from sightline.layers.tap import Tapped, listen


@dataclass
class Trace:
    """What passed the taps, in the order it was made. A module that ran several times has several entries of a name."""

    entries: list[Tapped] = field(default_factory=list)

    def hear(self, tapped: Tapped) -> None:
        """Keep a tensor as it was: later steps may write into its memory."""
        self.entries.append(Tapped(tapped.name, tapped.tensor.detach().clone(), tapped.formula, tapped.inputs))

    def __iter__(self) -> Iterator[Tapped]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def names(self) -> list[str]:
        """Each name once, in order of first appearance."""
        return list(dict.fromkeys(entry.name for entry in self.entries))

    def all(self, name: str) -> list[Tensor]:
        """Every tensor of that name, first to last."""
        found = [entry.tensor for entry in self.entries if entry.name == name]
        if not found:
            near = [known for known in self.names if name.rsplit(".", 1)[-1] in known]
            raise KeyError(f"nothing named {name!r} was recorded; there is {', '.join((near or self.names)[:8])}")
        return found

    def __getitem__(self, name: str) -> Tensor:
        """The last tensor of that name."""
        return self.all(name)[-1]


@contextmanager
def record(model: nn.Module, only: Sequence[str] | None = None) -> Iterator[Trace]:
    """Record what `model` (or the modules of it at the paths in `only`) computes inside the block."""
    trace = Trace()
    with listen(model, trace.hear, only):
        yield trace
