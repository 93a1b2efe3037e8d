"""A walk through a trace: the steps from tokens to probabilities, in order, each with formula, inputs, shape, numbers.

walk = WalkThrough(run.trace("3. März 2015"))
walk.focus(layer=0, head=1)
walk.explain("decoder.layers.0.cross_attention.scores", (0, 0, 2, 1))   # "0.62 = 0.8·0.7 + 0.2·0.3"
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text
from torch import Tensor

from sightline.inspection.cell_arithmetic import Explainer
from sightline.inspection.numpy_script import recompute
from sightline.inspection.trace import Step, Trace, layer_of
from sightline.inspection.trace_display import first_written, headline, shape_of
from sightline.inspection.walk_values import render_values
from sightline.text.tokenizer import SPECIALS

_HEADS = ("products", "scaled", "bias", "scores", "masked", "weights", "context")  # (B, H, T, ·)
_HEADS_OF_TOKENS = ("query", "key", "value")  # (B, H, T, K), or (B, T, H, K)
_OF_ALL_TOKENS = ("key", "value", "bias")  # where one token looks, it looks at all of these
_WRITTEN = ("decoder", "logits", "mixture", "probabilities", "losses", "wanted")  # rows stand for tokens of the output
_GIVEN = ("target", "embedding")
_PREDICTING = ("logits", "mixture", "probabilities", "losses", "wanted", "weights")  # rows name what is predicted, too
_SCORES = ("products", "scaled", "scores", "masked", "weights", "bias")


@dataclass(frozen=True)
class Shown:
    """A step as it is shown: the part of its tensor that is in focus, and what stands on its axes."""

    number: int
    step: Step
    tensor: Tensor
    rows: Sequence[str] | None = None  # names of the last axis but one, and of the last
    columns: Sequence[str] | None = None
    focus: str = ""


@dataclass(frozen=True)
class WalkThrough:
    """The steps of a trace; `focus` narrows them to a layer, a head, a step of the output."""

    trace: Trace
    step: int | None = None
    layer: int | None = None
    head: int | None = None

    def focus(self, *, step: int | None = None, layer: int | None = None, head: int | None = None) -> WalkThrough:
        """The same walk, looking closer; all are counted from 0, and what is out of range is an error."""
        walk = replace(self, step=step, layer=layer, head=head)
        if layer is not None:
            check_layer(self.trace, layer)
        heads = [each.shape[1] for each in self.trace if each.name.endswith(".weights") and len(each.shape) == 4]
        if head is not None and not 0 <= head < max(heads, default=0):
            raise ValueError(f"there is no head {head}; heads are counted from 0 and there are {max(heads, default=0)}")
        if step is not None and not 0 <= step < max(walk._tokens, 1):
            raise ValueError(f"there is no step {step}; steps are counted from 0 and there are {walk._tokens}")
        return walk

    @property
    def _tokens(self) -> int:
        """How many tokens are written."""
        about = self.trace.about
        written = about["places"] if self._first else about.get("target_tokens", ())
        return len(written) or 1

    @cached_property
    def _first(self) -> int:
        """Where the first of them stands."""
        return first_written(self.trace)

    @cached_property
    def _numbered(self) -> list[tuple[int, Step]]:
        """Aliases are left out; numbers stay the same whatever is in focus."""
        return list(enumerate((step for step in self.trace if not step.alias), 1))

    def steps(self) -> Iterator[Shown]:
        """Those in focus, in order."""
        for number, step in self._numbered:
            if self.layer is not None and layer_of(step.name) != self.layer:
                continue
            if self.head is not None and self.layer is not None and not _has_heads(step):
                continue
            shown = self._shown(number, step)
            if shown is not None:
                yield shown

    def explain(self, name: str, cell: Sequence[int]) -> str:
        """The arithmetic of one number: its step by name, its cell by an index for each axis."""
        return self._explainer.explain(self.trace.find(name).key, tuple(cell))

    @cached_property
    def _explainer(self) -> Explainer:
        if not any(step.operation for step in self.trace.steps):
            raise ValueError("this trace has no arithmetic; make it with run.trace or record_arithmetic")
        return Explainer({step.key: step for step in self.trace.steps}, recompute(self.trace))

    def _shown(self, number: int, step: Step) -> Shown | None:
        tensor, told = step.tensor, []
        side = self._side(step)
        heads = self.head_axis(step) if _has_heads(step) else None
        rows: Sequence[str] | None = None
        axis = 2 if heads == 1 else 1
        if tensor.dim() > axis and side is not None and tensor.shape[axis] == len(side) and not step.whole:
            rows = side
        columns = self._columns(step)
        written = "target_tokens" in self.trace.about and step.name.startswith((*_WRITTEN, *_GIVEN))
        if self.step is not None and written and step.point not in _OF_ALL_TOKENS:
            place = self._first + self.step
            if "#" in step.key or self._repeated(step):
                if int([*step.key.split("#"), "1"][1]) != place + 1:
                    return None
                told.append(f"step {self.step}")
            elif rows is not None:
                tensor, rows = tensor.narrow(axis, place, 1), [rows[place]]
                told.append(f"step {self.step}")
        if heads is not None and self.head is not None and self.head < tensor.shape[heads]:
            tensor = tensor.select(heads, self.head)
            told.append(f"head {self.head}")
        return Shown(number, step, tensor, rows, columns, ", ".join(told))

    def _repeated(self, step: Step) -> bool:
        return f"{step.name}#2" in self._keys

    @cached_property
    def _keys(self) -> frozenset[str]:
        return frozenset(step.key for step in self.trace.steps)

    def head_axis(self, step: Step) -> int:
        """Where the heads of a tensor with four axes stand: before its tokens, or behind them."""
        if step.point in _HEADS:
            return 1
        weights = f"{step.path}.weights"
        heads = self.trace[weights].shape[1] if weights in self.trace else 1
        if step.shape[1] == heads != step.shape[2]:
            return 1
        if step.shape[2] == heads != step.shape[1]:
            return 2
        return 2 if step.operation in ("reshape", "cast") else 1

    @cached_property
    def _turned(self) -> frozenset[str]:
        return turned_paths(self.trace)

    def _side(self, step: Step) -> Sequence[str] | None:
        """The tokens that a step's rows stand for, in the order in which they are read."""
        tokens = self._tokens_of(step)
        backward = step.point != "output" and step.path in self._turned
        return tokens if tokens is None or not backward else tokens[::-1]

    def _tokens_of(self, step: Step) -> Sequence[str] | None:
        about = self.trace.about
        if step.name.startswith(_GIVEN):
            return about.get("given_tokens")
        if not step.name.startswith(_WRITTEN):
            return about.get("source_tokens")
        if step.point in ("key", "value") and looks_at_source(step):
            return about.get("source_tokens")
        target: Sequence[str] | None = about.get("target_tokens")
        given: Sequence[str] | None = about.get("given_tokens")
        if given is None or target is None:  # labels of a text: nothing is read to predict them
            return target
        if step.point not in _PREDICTING:
            return given
        if len(target) < len(given):  # text and output are one sequence
            target = [*given[1 : len(given) - len(target) + 1], *target]
        return [f"{read} → predicts {wanted}" for read, wanted in zip(given, target, strict=False)]

    def _columns(self, step: Step) -> Sequence[str] | None:
        """The tokens or words that a step's columns stand for."""
        about, found = self.trace.about, None
        if step.point in _SCORES and len(step.shape) == 4:
            inside = not step.name.startswith("decoder") or looks_at_source(step)
            found = about.get("source_tokens" if inside else "given_tokens")
        elif step.point in ("logits", "probabilities"):
            found = about.get("labels")
            if found is not None and step.tensor.dim() and step.tensor.shape[-1] == len(SPECIALS) + len(found):
                found = [*SPECIALS, *found]
        elif step.point == "gates" or (step.point == "scores" and f"{step.path}.gates" in self.trace):
            found = [f"expert {number}" for number in range(step.shape[-1])]
        fits = found is not None and step.tensor.dim() and len(found) == step.tensor.shape[-1]
        return found if fits and not step.whole else None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(headline(self.trace), style="bold")
        for note in self.trace.about.get("notes", ()):
            yield Text(note, style="dim")
        for shown in self.steps():
            yield Text("")
            title = Text(f"{shown.number}. ", style="dim").append(shown.step.key, style="bold")
            title.append(f"  {shape_of(shown.step)}" + (f"  ({shown.focus})" if shown.focus else ""), style="dim")
            yield title
            if shown.step.formula:
                yield Text(f"   {shown.step.formula}", style="italic")
            if shown.step.inputs:
                yield Text("   from " + ", ".join(shown.step.inputs), style="dim")
            if shown.step.note:
                yield Text("   " + shown.step.note, style="yellow")
            yield from render_values(shown.tensor, shown.rows, shown.columns)


def looks_at_source(step: Step) -> bool:
    """Whether a step belongs to an attention to the source."""
    return ".cross_attention." in step.name or step.name.startswith(("decoder.attention.", "decoder.attentions."))


def turned_paths(trace: Trace) -> frozenset[str]:
    """The paths of recurrent layers that read from the end: what they are given was put back to front."""
    mark = ".inputs~"
    turned = (step.key for step in trace.steps if step.unnamed and step.operation == "gather" and mark in step.key)
    return frozenset(key.split(mark)[0] for key in turned)


def check_layer(trace: Trace, layer: int) -> None:
    """An error for a layer that no step belongs to."""
    known = sorted({found for each in trace if (found := layer_of(each.name)) is not None})
    if layer not in known:
        raise ValueError(f"there is no layer {layer}; there are {known or 'none'}")


def _has_heads(step: Step) -> bool:
    return len(step.shape) == 4 and step.point in (*_HEADS, *_HEADS_OF_TOKENS)
