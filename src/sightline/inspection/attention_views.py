"""The attention of all layers and heads of a model for one text: what each looks at, and what it is like.

    heads = trace_heads(run.trace("Ein Hund bellt."))
    rich.print(heads_table(heads))
    draw_head_grid(heads, Path("heads.png"))  # pictures/heads.py

All of it is read from a trace of one pass over the text and its output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from sightline.inspection.alignment import Alignment
from sightline.inspection.head_measures import HeadMeasures, measure_head
from sightline.inspection.trace import Step, Trace
from sightline.inspection.walk_through import layer_of, looks_at_source
from sightline.layers.scores import Score
from sightline.layers.tap import TapModule
from sightline.recipe import Recipe
from sightline.tasks.base import Task
from sightline.text.tokenizer import Vocabulary

if TYPE_CHECKING:
    from rich.table import Table

Kind = Literal["encoder", "decoder", "cross"]
KINDS: dict[Kind, str] = {
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "cross": "attention to the source",
}


class Loaded(Protocol):
    """What is looked into here; `sightline.run.Run` is one (it stands above this)."""

    recipe: Recipe
    vocabulary: Vocabulary
    model: Any
    device: torch.device
    task: Task

    def encode_sources(self, texts: Sequence[str]) -> list[list[int]]: ...
    def predict_nbest(self, texts: Sequence[str]) -> list[list[Any]]: ...
    def trace(self, text: str, target: str | None = None) -> Trace: ...


@dataclass(frozen=True, eq=False)
class Head:
    """One head's weights over one text."""

    kind: Kind
    path: str  # of its attention in the model
    number: int
    queries: list[str]
    keys: list[str]
    weights: NDArray[np.float32]  # (T, S)

    @property
    def name(self) -> str:
        """As `ablated` wants it: `decoder.layers.3.cross.7`."""
        return f"{self.path}.{self.number}"

    @cached_property
    def measures(self) -> HeadMeasures:
        """Entropy, diagonality, confidence."""
        return measure_head(self.weights, causal=self.kind == "decoder")

    def to_dict(self) -> dict[str, Any]:
        """For JSON; weights are kept to six digits."""
        rows = [[round(float(weight), 6) for weight in row] for row in self.weights]
        sides = {"queries": self.queries, "keys": self.keys}
        return {"name": self.name, "kind": self.kind, **sides, "weights": rows, **self.measures.to_dict()}


def trace_heads(trace: Trace, *, layer: int | None = None, head: int | None = None) -> list[Head]:
    """All heads of a recorded pass as they were first computed, or those of a layer or a number; none: nothing attends.

    Of a decoder that looks anew for every token the rows stand below one another.
    """
    found: dict[str, list[Step]] = {}
    for step in trace:
        if step.point == "weights" and len(step.shape) == 4:
            found.setdefault(step.path, []).append(step)
    heads = []
    for path, steps in found.items():
        if layer is not None and layer_of(steps[0].name) != layer:
            continue
        weights = _joined([step.tensor[0].float().cpu().numpy() for step in steps])  # (H, T, S)
        kind: Kind = "cross" if looks_at_source(steps[0]) else "encoder" if path.startswith("encoder") else "decoder"
        queries, keys = _sides(trace, kind, path, weights.shape[2])
        heads += [Head(kind, path, number, queries, keys, own) for number, own in enumerate(weights)]
    return heads if head is None else [each for each in heads if each.number == head]


def _joined(parts: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    """(H, t, s) each, one after the other → (H, T, S): queries that came later may have seen more keys."""
    keys = max(part.shape[2] for part in parts)
    wide = [np.pad(part, ((0, 0), (0, 0), (0, keys - part.shape[2]))) for part in parts]
    return np.concatenate(wide, axis=1)


def _sides(trace: Trace, kind: Kind, path: str, count: int) -> tuple[list[str], list[str]]:
    """The tokens that look, and those that stand at `count` keys."""
    names = {"encoder": ("source", "source"), "decoder": ("given", "given"), "cross": ("target", "source")}[kind]
    queries, keys = (list(trace.about.get(f"{name}_tokens", ())) for name in names)
    if count < len(keys):  # label compressed keys by their tokens, if known
        stride = trace.about.get("key_strides", {}).get(path)
        keys = keys[::stride][:count] if stride else [f"{number + 1}." for number in range(count)]
    return queries, keys


def alignment_of(heads: Sequence[Head]) -> Alignment | None:
    """What each token of the output looked at in the source: the mean of all heads that do; None where none does."""
    cross = [head for head in heads if head.kind == "cross"]
    if not cross or cross[0].weights.shape != (len(cross[0].queries), len(cross[0].keys)):
        return None
    mean = np.mean([head.weights for head in cross], axis=0)  # (T, S)
    return Alignment(cross[0].keys, cross[0].queries, mean)


# --- names of heads ----------------------------------------------------------------------------------------------


def attentions(model: Any) -> dict[str, int]:
    """The paths of everything in a model that attends, with the number of its heads; in the model's order."""
    modules = model.named_modules() if isinstance(model, torch.nn.Module) else ()
    return {
        path: int(getattr(module, "heads", 1))
        for path, module in modules
        if isinstance(module, TapModule) and isinstance(getattr(module, "score", None), Score)
    }


def head_names(model: Any) -> list[str]:
    """Every head of a model, by its full name."""
    return [f"{path}.{number}" for path, count in attentions(model).items() for number in range(count)]


def find_head(model: Any, name: str) -> tuple[str, int]:
    """(path, number) of a head: `decoder.layers.3.cross.7`, or shorter `decoder.3.cross.7`, `encoder.0.self.2`."""
    known = {short_name(each): each for each in head_names(model)}
    full = known.get(short_name(name))
    if full is None:
        place = short_name(name).rpartition(".")[0]
        have = [each for short, each in known.items() if short.rpartition(".")[0] == place] or list(known.values())
        shown = f"{have[0]} … {have[-1]}" if have else "none: nothing in it attends"
        raise ValueError(f"this model has no head {name!r}; it has {shown}")
    path, _, number = full.rpartition(".")
    return path, int(number)


def short_name(name: str) -> str:
    """Without the parts that every name has."""
    words = {"layers": None, "attentions": None, "attention": "self", "cross": "cross"}
    parts = [words.get(part, part) for part in name.split(".")]
    return ".".join(part for part in parts if part is not None)


# --- the table ---------------------------------------------------------------------------------------------------


def heads_table(heads: Sequence[Head]) -> Table:
    """Every head with its measures (entropy in nats), for a terminal."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("head", no_wrap=True)
    for name in ("entropy", "of log S", "diagonality", "confidence"):
        table.add_column(name, justify="right", no_wrap=True)
    before = None
    for head in heads:
        if before not in (None, head.path):
            table.add_section()
        before, found = head.path, head.measures
        values = (found.entropy, found.entropy_share, found.diagonality, found.confidence)
        table.add_row(head.name, *("–" if value != value else f"{value:.2f}" for value in values))
    return table
