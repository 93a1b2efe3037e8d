"""Attention heads and their measures, routing to experts, receptive fields of convolutions.

    heads = trace_heads(run.trace("Ein Hund bellt."))
    rich.print(heads_table(heads))
    draw_head_grid(heads, Path("heads.png"))  # plots/heads.py

All of them are read from a trace.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from sightline.inspection.trace import Axis, Record, Trace
from sightline.layers.scores import AttentionScore
from sightline.layers.tap import TapModule
from sightline.plots.matrices import Numbers, row_shares
from sightline.recipe import Recipe
from sightline.tasks.base import Task
from sightline.terminal import visible
from sightline.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from rich.table import Table

    from sightline.data.sources import Example
    from sightline.evaluation.test_set import TestSet


Kind = Literal["encoder", "decoder", "cross"]


class LoadedRun(Protocol):
    """The part of `sightline.run.Run` that inspection uses."""

    folder: Path
    recipe: Recipe
    vocabulary: Vocabulary
    model: Any
    device: torch.device
    task: Task

    def encode_sources(self, texts: Sequence[str]) -> list[list[int]]: ...
    def predict(self, texts: Sequence[str]) -> list[str]: ...
    def predict_nbest(self, texts: Sequence[str]) -> list[list[Any]]: ...
    def trace(self, text: str, target: str | None = None) -> Trace: ...
    def test_examples(self, on: str) -> Iterable[Example]: ...
    def test_set(self, on: str) -> TestSet: ...
    def evaluate(self, on: TestSet) -> Any: ...
    def text_losses(self, stream: NDArray[Any]) -> NDArray[np.float64]: ...


@dataclass(frozen=True, eq=False)
class Head:
    """One head's weights over one text."""

    kind: Kind
    path: str  # of its attention module
    number: int
    queries: list[str]
    keys: list[str]
    weights: NDArray[np.float32]  # (T, S)

    @property
    def name(self) -> str:
        """As in `ablated`: `decoder.layers.3.cross.7`."""
        return f"{self.path}.{self.number}"

    @cached_property
    def measures(self) -> HeadMeasures:
        return measure_head(self.weights, causal=self.kind == "decoder")

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        sides = {"queries": self.queries, "keys": self.keys}
        weights = {"weights": rounded(self.weights)}
        return {"name": self.name, "kind": self.kind, **sides, **weights, **self.measures.to_dict()}


def rounded(values: NDArray[Any]) -> Any:
    """For JSON: six digits."""
    return np.round(values.astype(np.float64), 6).tolist()


def trace_heads(trace: Trace, *, layer: int | None = None, head: int | None = None) -> list[Head]:
    """All heads of a trace, or those of a layer or a number; the rows of a token-by-token decoder are joined."""
    heads = []
    for path, records in _by_path(trace, "weights", layer).items():
        if len(records[0].shape) != 4:
            continue
        weights = _concatenated([record.tensor[0].float().cpu().numpy() for record in records])  # (H, T, S)
        kind = _kind(records[0])
        queries = [name for record in records for name in _queries(trace, record, kind)]
        longest = max(records, key=lambda record: record.shape[-1])
        keys = trace.sides(longest.axes, longest.shape)[1] or [f"{number + 1}." for number in range(weights.shape[2])]
        heads += [Head(kind, path, number, queries, keys, own) for number, own in enumerate(weights)]
    return heads if head is None else [each for each in heads if each.number == head]


def _by_path(trace: Trace, point: str, layer: int | None) -> dict[str, list[Record]]:
    """The records of one name by module, of all layers or one."""
    by_path: dict[str, list[Record]] = {}
    for record in trace:
        if record.point == point and (layer is None or record.layer == layer):
            by_path.setdefault(record.path, []).append(record)
    return by_path


def _kind(record: Record) -> Kind:
    """The kind of attention, from the axes of its weights."""
    rows, columns = record.kinds()[-2:] if record.axes else ("", "")
    if columns == "target":
        return "decoder"
    return "encoder" if rows == columns else "cross"


def _queries(trace: Trace, record: Record, kind: Kind) -> list[str]:
    """The names of the queries: input tokens, or in cross-attention the predicted tokens."""
    count = record.shape[-2]
    axis = record.axes[-2] if record.axes else Axis()
    if record.token is not None and not axis.kind:
        axis = Axis("target", (record.token,))
    if kind == "cross":
        axis = Axis("predicted", axis.places)
    return trace.labels(axis, count) or [f"{number + 1}." for number in range(count)]


def _concatenated(parts: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    """(H, t, s) each → (H, T, S); later queries may see more keys."""
    keys = max(part.shape[2] for part in parts)
    wide = [np.pad(part, ((0, 0), (0, 0), (0, keys - part.shape[2]))) for part in parts]
    return np.concatenate(wide, axis=1)


# --- names of heads ----------------------------------------------------------------------------------------------


def attentions(model: Any) -> dict[str, int]:
    """The paths of all attention modules with their numbers of heads, in the order of the model."""
    modules = model.named_modules() if isinstance(model, torch.nn.Module) else ()
    return {
        path: int(getattr(module, "heads", 1))
        for path, module in modules
        if isinstance(module, TapModule) and isinstance(getattr(module, "score", None), AttentionScore)
    }


def head_names(model: Any) -> list[str]:
    """The full names of all heads."""
    return [f"{path}.{number}" for path, count in attentions(model).items() for number in range(count)]


def find_head(model: Any, name: str) -> tuple[str, int]:
    """(path, number) of a head: `decoder.layers.3.cross.7`, or shorter `decoder.3.cross.7`, `encoder.0.self.2`."""
    known = {short_name(each): each for each in head_names(model)}
    full = known.get(short_name(name))
    if full is None:
        place = short_name(name).rpartition(".")[0]
        have = [each for short, each in known.items() if short.rpartition(".")[0] == place] or list(known.values())
        shown = f"{have[0]} … {have[-1]}" if have else "none: it has no attention"
        raise ValueError(f"this model has no head {name!r}; it has {shown}")
    path, _, number = full.rpartition(".")
    return path, int(number)


def short_name(name: str) -> str:
    """`decoder.layers.2.cross_attention` → `decoder.2.cross`."""
    words = {"layers": None, "attentions": None, "attention": "self", "cross_attention": "cross"}
    parts = [words.get(part, part) for part in name.split(".")]
    return ".".join(part for part in parts if part is not None)


# --- the table ---------------------------------------------------------------------------------------------------


def heads_table(heads: Sequence[Head]) -> Table:
    """A terminal table of heads with their measures (entropy in nats)."""
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
        before, measures = head.path, head.measures
        values = (measures.entropy, measures.entropy_share, measures.diagonality, measures.confidence)
        table.add_row(short_name(head.name), *("–" if value != value else f"{value:.2f}" for value in values))
    return table


@dataclass(frozen=True)
class HeadMeasures:
    """The measures of one head; nan if undefined (one key, one query)."""

    entropy: float  # nats
    entropy_share: float  # of the entropy of uniform attention: 0 for a single key, 1 for uniform weights
    diagonality: float  # 1 on the diagonal, 0 as far from it as uniform attention, negative beyond
    confidence: float

    def to_dict(self) -> dict[str, float | None]:
        """For JSON, which knows no nan."""
        return {name: None if math.isnan(value) else value for name, value in asdict(self).items()}


def entropy(p: Numbers) -> Numbers:
    """(T,) −Σ_s p_ts log p_ts, in nats."""
    logs = np.log(p, out=np.zeros(p.shape), where=p > 0)
    result: Numbers = -(p * logs).sum(axis=1)
    return result


def entropy_share(p: Numbers, seen: NDArray[np.int64]) -> float:
    """Σ_t H(p_t) / Σ_t log S_t, where S_t is the number of keys visible to query t."""
    most = float(np.log(np.maximum(seen, 1)).sum())
    return float(entropy(p).sum()) / most if most > 0 else math.nan


def diagonality(p: Numbers, seen: NDArray[np.int64]) -> float:
    """1 − Σ_ts p_ts d_ts / Σ_ts u_ts d_ts with d_ts = |s / (S − 1) − t / (T − 1)|, u_ts = 1 / S_t on visible keys.

    The distance of the weights from the diagonal relative to uniform attention, subtracted from one. Such measures are
    common for speech: Shim et al. (2021) sum the weights within bands around the diagonal.
    """
    queries, keys = p.shape
    across = np.arange(keys) / max(keys - 1, 1)
    down = np.arange(queries) / max(queries - 1, 1)
    distances = np.abs(across[None, :] - down[:, None])  # (T, S)
    visible = np.arange(keys)[None, :] < seen[:, None]
    even = float((distances * visible / np.maximum(seen, 1)[:, None]).sum())
    return 1.0 - float((p * distances).sum()) / even if even > 0 else math.nan


def confidence(p: Numbers) -> float:
    """Mean over the queries of max_s p_ts (Voita et al. 2019, §4, who exclude the end mark)."""
    return float(p.max(axis=1).mean()) if p.size else math.nan


def measure_head(weights: NDArray[np.float32], *, causal: bool = False) -> HeadMeasures:
    """Measure weights (T, S); causal: query t sees the keys up to its own position, aligned at the end."""
    queries, keys = weights.shape
    seen = np.arange(1, queries + 1) + (keys - queries) if causal else np.full(queries, keys)
    p = row_shares(weights)
    if causal and keys < queries:  # compressed keys: visible where the weight is not 0
        seen = (p > 0).sum(axis=1)
    return HeadMeasures(
        entropy=float(entropy(p).mean()) if p.size else math.nan,
        entropy_share=entropy_share(p, seen),
        diagonality=diagonality(p, seen),
        confidence=confidence(p),
    )


@dataclass(frozen=True, eq=False)
class ExpertRouting:
    """The gates of one mixture-of-experts layer for one text."""

    path: str  # of the layer
    tokens: list[str]
    gates: NDArray[np.float32]  # (T, E); rows sum to 1, zeros for experts that were not used

    @property
    def shares(self) -> NDArray[np.float32]:
        """(E,) mean gate of each expert."""
        result: NDArray[np.float32] = self.gates.mean(axis=0)
        return result

    @property
    def routed(self) -> list[int]:
        """(E,) number of tokens routed to each expert."""
        return [int(count) for count in (self.gates > 0).sum(axis=0)]

    def best(self, token: int) -> list[tuple[int, float]]:
        """The experts of a token with their gates, largest first."""
        row = self.gates[token]
        return [(int(each), float(row[each])) for each in np.argsort(-row, kind="stable") if row[each] > 0]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        numbers = {"shares": rounded(self.shares), "routed": self.routed, "gates": rounded(self.gates)}
        return {"path": self.path, "tokens": self.tokens, **numbers}


def routings(trace: Trace, *, layer: int | None = None) -> list[ExpertRouting]:
    """The routing of every mixture-of-experts layer of a trace, or of one layer."""
    result = []
    for path, records in _by_path(trace, "gates", layer).items():
        gates = torch.cat([record.tensor for record in records], dim=1)[0].float().cpu().numpy()  # (T, E)
        names = [name for record in records for name in _queries(trace, record, "decoder")]
        result.append(ExpertRouting(path, names, gates))
    return result


def routing_table(routings: Sequence[ExpertRouting]) -> Table:
    """A terminal table: a row for each token, a column for each layer, and below it the shares of the experts."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, title="experts of each token, and their gates", title_justify="left")
    table.add_column("token")
    for routing in routings:
        table.add_column(routing.path, overflow="fold")
    sides = list(dict.fromkeys(tuple(routing.tokens) for routing in routings))
    for side in sides:
        for place, token in enumerate(side):
            cells = [
                "  ".join(f"{number}: {gate:.2f}" for number, gate in routing.best(place))
                if tuple(routing.tokens) == side
                else ""
                for routing in routings
            ]
            table.add_row(Text(visible(token)), *cells)
        table.add_section()
    shares = ["  ".join(f"{number}: {share:.0%}" for number, share in enumerate(each.shares)) for each in routings]
    table.add_row("share of each", *shares)
    return table


_CONVOLUTION = re.compile(r"^(encoder|decoder)\..*convolution\.output$")


@dataclass(frozen=True)
class ReceptiveField:
    """The offsets that one convolution reads, and its reach through all layers below."""

    path: str
    side: str  # encoder or decoder
    offsets: tuple[int, ...]
    reach: tuple[int, int]  # furthest position before and after
    tokens: list[str]  # its input, in order


def receptive_fields(trace: Trace) -> list[ReceptiveField]:
    """The receptive field of every convolution in a trace with arithmetic, in order."""
    fields: list[ReceptiveField] = []
    for record in trace:
        match = _CONVOLUTION.match(record.name)
        offsets = _offsets(trace, record.key) if match else ()
        if match and offsets and record.key == record.name:
            below = [field.reach for field in fields if field.side == match[1]] or [(0, 0)]
            reach = (below[-1][0] + min(offsets), below[-1][1] + max(offsets))
            tokens = trace.sides(record.axes, record.shape)[0] or []
            fields.append(ReceptiveField(record.name.removesuffix(".output"), match[1], offsets, reach, tokens))
    return fields


def _offsets(trace: Trace, key: str) -> tuple[int, ...]:
    """The neighbours a convolution reads, from the starts of its slices of the padded text."""
    own = [record for record in trace.records if record.unnamed and record.key.startswith(key + "~")]
    starts = sorted(
        {each.arguments["start"] for each in own if each.operation == "slice" and each.arguments["axis"] == 1}
    )
    padded = [each.arguments["widths"][1][0] for each in own if each.operation == "pad"]
    before = padded[-1] if padded else max(starts, default=0)  # a causal convolution ends at its own position
    return tuple(start - before for start in starts)


def first_seen(windows: list[ReceptiveField], length: int) -> NDArray[np.float64]:
    """(T, T): the layer, from 1, at which each position (row) first sees each token (column); 0: never."""
    layers = np.zeros((length, length))
    seen = np.eye(length, dtype=bool)
    for number, window in enumerate(windows, 1):
        taken = np.zeros_like(seen)
        for offset in window.offsets:
            first, last = max(0, -offset), min(length, length - offset)
            if first < last:
                taken[first:last] |= seen[first + offset : last + offset]
        seen = taken | seen  # residual connections
        layers[(layers == 0) & seen] = number
    return layers
