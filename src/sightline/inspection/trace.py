"""Record a forward pass: every tapped tensor, in order, with its name, its formula and what went into it.

    with record(model) as trace:
        model.encode(...)
    trace["encoder.layers.0.attention.weights"]

Walk-throughs, attention views and alignments read the trace; none reaches into a model. With `arithmetic`, each step
also has the operation and the arguments that made it, down to tokens and weights, so that it can be recomputed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sightline.inspection.arithmetic import Follower, Ref
from sightline.inspection.latex import latex
from sightline.layers.linear import shallow_copy
from sightline.layers.tap import Tapped, on_taps
from sightline.models.weights import current_path

if TYPE_CHECKING:
    from rich.table import Table

_NOTHING = torch.empty(0)
_LAYER = re.compile(r"\b(?:layers|attentions)\.(\d+)\.")


@dataclass(frozen=True, eq=False, repr=False)
class Step(Tapped):
    """One tensor of a trace, and how it was made.

    A module that runs several times gives several steps of one name; `key` tells them apart (`name`, `name#2`, ...).
    The operation "given" says that it was not made of others, and none that nobody followed the arithmetic. The tensor
    of an unnamed step is empty, unless it was given.
    """

    key: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    unnamed: bool = False  # a step between two taps
    strides: tuple[int, ...] = ()  # of a sampled tensor: every how many-th number is here, for each axis
    whole: tuple[int, ...] = ()  # of a sampled tensor: the shape it had

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the tensor, before it was sampled."""
        return self.whole or tuple(self.tensor.shape)

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.shape)) or "a number"
        return f"Step({self.key or self.name!r}, {shape}{', ' if self.formula else ''}{self.formula})"

    @property
    def latex(self) -> str:
        return latex(self.formula)

    @property
    def alias(self) -> bool:
        """Whether it is another name for a named step before it."""
        made_of = self.arguments.get("x")
        return self.operation == "same" and isinstance(made_of, Ref) and "~" not in made_of.name

    @property
    def path(self) -> str:
        """The part of the model it belongs to: `decoder.layers.2.cross`."""
        return self.name.rpartition(".")[0]

    @property
    def point(self) -> str:
        """What it is called there: `weights`."""
        return self.name.rpartition(".")[2]

    def sampled(self, numbers: int) -> Step:
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


@dataclass(repr=False)
class Trace:
    """What passed the taps, in the order it was made, and what it was made of."""

    steps: list[Step] = field(default_factory=list)  # unnamed ones too
    weights: dict[str, Tensor] = field(default_factory=dict)  # those that steps refer to
    about: dict[str, Any] = field(default_factory=dict)  # text, output, tokens: what tracing.py puts there

    @property
    def entries(self) -> list[Step]:
        """The steps that have names."""
        return [step for step in self.steps if not step.unnamed]

    def __iter__(self) -> Iterator[Step]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def names(self) -> list[str]:
        """Each name once, in order of first appearance."""
        return list(dict.fromkeys(entry.name for entry in self.entries))

    def find(self, name: str) -> Step:
        """The last step of that name; `name#2` is the second one. `layers.` may be left out."""
        entries = self.entries
        for spelled in (lambda text: text, _short):
            for step in reversed(entries):
                if spelled(name) in (spelled(step.name), spelled(step.key)):
                    return step
        near = ", ".join(self._near(name)) or "nothing at all"
        raise KeyError(f"nothing named {name!r} was recorded; there is {near}")

    def _near(self, name: str) -> list[str]:
        from difflib import get_close_matches

        close = get_close_matches(name, self.names, n=6, cutoff=0.6)
        last = name.rsplit(".", 1)[-1]
        alike = [known for known in self.names if known.rsplit(".", 1)[-1] == last]
        return list(dict.fromkeys([*close, *alike]))[:8] or self.names[:8]

    def all(self, name: str) -> list[Tensor]:
        """Every tensor of that name, first to last."""
        found = [entry.tensor for entry in self.entries if entry.name == name]
        return found or [self.find(name).tensor]

    def __getitem__(self, name: str) -> Tensor:
        """The last tensor of that name."""
        return self.find(name).tensor

    def __contains__(self, name: object) -> bool:
        return any(name in (entry.name, entry.key) for entry in self.entries)

    def under(self, prefix: str) -> Trace:
        """The steps of one part of the model, e.g. `decoder.layers.2`, to look at: what they need may be elsewhere."""
        short = _short(prefix)
        kept = [s for s in self.entries if s.name.startswith(prefix + ".") or _short(s.name).startswith(short + ".")]
        return Trace(kept, {}, self.about)

    def read_by(self, path: str) -> Sequence[str]:
        """The tokens that a part of the model reads, as far as they are known."""
        found: Sequence[str] = self.about.get("given_tokens" if path.startswith("decoder") else "source_tokens", ())
        return found

    def sampled(self, numbers: int = 100_000) -> Trace:
        """Tensors with more numbers than that thinned out, each with a note; what is needed to recompute stays."""
        thin = [step if step.unnamed or step.operation == "given" else step.sampled(numbers) for step in self.steps]
        return Trace(thin, self.weights, self.about)

    def save(self, folder: str | Path) -> None:
        """A new folder with trace.json, tensors.safetensors and weights.safetensors; all of it, or nothing."""
        from sightline.inspection.trace_files import save_trace

        save_trace(self, Path(folder))

    @staticmethod
    def load(folder: str | Path) -> Trace:
        """What `save` wrote."""
        from sightline.inspection.trace_files import load_trace

        return load_trace(Path(folder))

    def text(self, width: int = 120) -> str:
        """Every step in a line: name, formula, shape, range."""
        from sightline.inspection.trace_display import trace_table
        from sightline.plots.terminal import plain_text

        return plain_text(trace_table(self), width)

    def __repr__(self) -> str:
        from sightline.inspection.trace_display import trace_summary

        return trace_summary(self)

    def __rich__(self) -> Table:
        from sightline.inspection.trace_display import trace_table

        return trace_table(self)

    def _repr_html_(self) -> str:
        from sightline.inspection.trace_display import trace_html

        return trace_html(self)

    # --- recording ----------------------------------------------------------------------------------------------------

    def hear(self, tapped: Tapped) -> None:
        """Keep a tensor as it was: later steps may write into its memory."""
        before = sum(step.name == tapped.name for step in self.steps)
        key = f"{tapped.name}#{before + 1}" if before else tapped.name
        tensor = tapped.tensor.detach().clone()
        self.steps.append(Step(tapped.name, tensor, tapped.formula, tapped.inputs, key=key))


def layer_of(name: str) -> int | None:
    """The number of the layer that a step belongs to, if it does to one."""
    found = _LAYER.search(name)
    return int(found[1]) if found else None


def _short(name: str) -> str:
    return current_path(name).replace("layers.", "")


class Recorder:
    """A listener that knows how each tensor came about."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.trace = Trace()
        self.follower = Follower(model)
        self.counts: Counter[str] = Counter()
        self.unnamed: dict[str, Step] = {}

    def hear(self, tapped: Tapped) -> None:
        """Keep a tensor, after the unnamed steps that lead to it."""
        self.counts[tapped.name] += 1
        count = self.counts[tapped.name]
        name = tapped.name if count == 1 else f"{tapped.name}#{count}"
        origin = self.follower.origin(tapped.tensor)
        known = origin.name is not None
        if tapped.operation:
            operation, note = tapped.operation, ""
            arguments = self.follower.arguments(tapped.operands, name, self._tell)
        else:
            operation, arguments, note = self.follower.call(tapped.tensor, name, self._tell)
        tensor, inputs = tapped.tensor.detach().clone(), self._inputs(arguments)
        step = Step(tapped.name, tensor, tapped.formula, inputs, operation, key=name, arguments=arguments, note=note)
        self.trace.steps.append(step)
        if not known:
            origin.name = name

    def give(self, name: str, tensor: Tensor, formula: str = "") -> Tensor:
        """Name a tensor that is there before the model runs."""
        self.hear(Tapped(name, tensor, formula, ()))
        return tensor

    def end(
        self,
        logits: Tensor,
        wanted: Tensor,
        places: Tensor | None = None,
        *,
        formula: str = "softmax(logits)",
        note: str = "",
    ) -> None:
        """How every trace ends, outside its model: softmax(logits) (…, V), −log p of each wanted token, and their mean.

        `formula` and `note` say what the softmax is of, where that is not simply the logits before it. Where `places`
        are given, the mean is over those that are true: where an answer is wanted.
        """
        self.give("wanted", wanted, "tokens to be predicted")
        probabilities = torch.softmax(logits.float(), -1)
        self.hear(Tapped("probabilities", probabilities, formula, ()))
        self.trace.steps[-1] = replace(self.trace.steps[-1], note=note or self.trace.steps[-1].note)
        losses = 0.0 - probabilities.gather(-1, wanted[..., None])[..., 0].log()  # what is certain costs 0, not −0
        operands = {"probabilities": probabilities, "wanted": wanted}
        self.hear(Tapped("losses", losses, "−log p(wanted)", (), "surprise", operands))
        losses = losses if places is None else losses[places]
        self.hear(Tapped("loss", losses.mean(), "mean of the losses", ()))

    def _tell(self, name: str, tensor: Tensor | None, operation: str, arguments: Mapping[str, Any], note: str) -> None:
        kept = _NOTHING if tensor is None else tensor.detach().clone()
        self.unnamed[name] = Step(name, kept, "", (), operation, key=name, arguments=arguments, note=note, unnamed=True)
        self.trace.steps.append(self.unnamed[name])

    def _inputs(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        """The named steps and the weights nearest behind a step."""
        found: dict[str, None] = {}
        waiting, met = list(references(arguments)), set()
        while waiting:
            name = waiting.pop(0)
            if name in met:
                continue
            met.add(name)
            if name in self.unnamed:
                waiting = [*references(self.unnamed[name].arguments), *waiting]
            else:
                found[name] = None
        return tuple(found)

    def finish(self) -> Trace:
        """The trace, with the weights it needs and no unnamed step that nothing needs."""
        needed: set[str] = set()
        kept: list[Step] = []
        for step in reversed(self.trace.steps):
            if not step.unnamed or step.key in needed:
                needed.update(references(step.arguments))
                kept.append(step)
        self.trace.steps = kept[::-1]
        known = self.follower.weights
        self.trace.weights = {name: known[name].detach().clone() for name in known if name in needed}
        return self.trace


def references(value: Any) -> Iterator[str]:
    """The names that an argument, or all of some, refer to."""
    if isinstance(value, Ref):
        yield value.name
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from references(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from references(part)


@contextmanager
def record(model: nn.Module) -> Iterator[Trace]:
    """Record what `model` computes inside the block."""
    trace = Trace()
    with on_taps(model, trace.hear):
        yield trace


@contextmanager
def record_arithmetic(model: nn.Module) -> Iterator[Recorder]:
    """Record `recorder.model`, a shallow copy of `model`, with the arithmetic; `finish()` returns the trace."""
    model = shallow_copy(model, packed=False)
    recorder = Recorder(model)
    with torch.inference_mode(), on_taps(model, recorder.hear), recorder.follower:
        yield recorder
