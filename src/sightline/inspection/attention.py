"""What each token attends to: heads and their measures, experts, receptive fields of convolutions.

    heads = trace_heads(run.trace("Ein Hund bellt."))
    rich.print(heads_table(heads))
    draw_head_grid(heads, Path("heads.png"))  # plots/heads.py

All of it is read from a trace of one pass over the text and its output.
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
    """What inspection needs of a run; `sightline.run.Run` is one."""

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
    path: str  # of its attention in the model
    number: int
    queries: list[str]
    keys: list[str]
    weights: NDArray[np.float32]  # (T, S)

    @property
    def name(self) -> str:
        """As `ablated` takes it: `decoder.layers.3.cross.7`."""
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
    """All heads of a recorded pass, or those of a layer or a number; none in a model without attention.

    Of a decoder that runs token by token the rows of all tokens are joined.
    """
    by_path: dict[str, list[Record]] = {}
    for record in trace:
        if record.point == "weights" and len(record.shape) == 4 and (layer is None or record.layer == layer):
            by_path.setdefault(record.path, []).append(record)
    heads = []
    for path, records in by_path.items():
        weights = _concatenated([record.tensor[0].float().cpu().numpy() for record in records])  # (H, T, S)
        kind = _kind(records[0])
        queries = [name for record in records for name in _queries(trace, record, kind)]
        longest = max(records, key=lambda record: record.shape[-1])
        keys = trace.sides(longest.axes, longest.shape)[1] or [f"{number + 1}." for number in range(weights.shape[2])]
        heads += [Head(kind, path, number, queries, keys, own) for number, own in enumerate(weights)]
    return heads if head is None else [each for each in heads if each.number == head]


def _kind(record: Record) -> Kind:
    """Which attention weights are, by what their rows and columns stand for."""
    rows, columns = record.kinds()[-2:] if record.axes else ("", "")
    if columns == "target":
        return "decoder"
    return "encoder" if rows == columns else "cross"


def _queries(trace: Trace, record: Record, kind: Kind) -> list[str]:
    """The tokens that attend; of attention to the source, those that are predicted."""
    count = record.shape[-2]
    axis = record.axes[-2] if record.axes else Axis()
    if record.token is not None and not axis.kind:
        axis = Axis("target", (record.token,))
    if kind == "cross":
        axis = Axis("predicted", axis.places)
    return trace.labels(axis, count) or [f"{number + 1}." for number in range(count)]


def _concatenated(parts: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    """(H, t, s) each, one after the other → (H, T, S): queries that came later may have seen more keys."""
    keys = max(part.shape[2] for part in parts)
    wide = [np.pad(part, ((0, 0), (0, 0), (0, keys - part.shape[2]))) for part in parts]
    return np.concatenate(wide, axis=1)


# --- names of heads ----------------------------------------------------------------------------------------------


def attentions(model: Any) -> dict[str, int]:
    """The paths of all attention modules with the number of their heads, in the order of the model."""
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
    """Without the parts that all names share."""
    words = {"layers": None, "attentions": None, "attention": "self", "cross_attention": "cross"}
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
        before, measures = head.path, head.measures
        values = (measures.entropy, measures.entropy_share, measures.diagonality, measures.confidence)
        table.add_row(short_name(head.name), *("–" if value != value else f"{value:.2f}" for value in values))
    return table


@dataclass(frozen=True)
class HeadMeasures:
    """The measures of one head; nan where a measure is undefined (one key, one query)."""

    entropy: float  # nats
    entropy_share: float  # of what even attention would have: 0 one key alone, 1 all alike
    diagonality: float  # 1 on the diagonal, 0 as far from it as even attention, below that further
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
    """Σ_t H(p_t) / Σ_t log S_t with S_t the keys query t may see: a query that sees one key counts for nothing."""
    most = float(np.log(np.maximum(seen, 1)).sum())
    return float(entropy(p).sum()) / most if most > 0 else math.nan


def diagonality(p: Numbers, seen: NDArray[np.int64]) -> float:
    """1 − Σ_ts p_ts d_ts / Σ_ts u_ts d_ts with d_ts = |s / (S − 1) − t / (T − 1)|, u_ts = 1 / S_t on the keys seen.

    How far from the diagonal the weights lie, as a share of how far even attention lies, taken from one. (Measures of
    this kind are common for speech: Shim et al. 2021 add up what lies within bands around the diagonal.)
    """
    queries, keys = p.shape
    across = np.arange(keys) / max(keys - 1, 1)
    down = np.arange(queries) / max(queries - 1, 1)
    distances = np.abs(across[None, :] - down[:, None])  # (T, S)
    visible = np.arange(keys)[None, :] < seen[:, None]
    even = float((distances * visible / np.maximum(seen, 1)[:, None]).sum())
    return 1.0 - float((p * distances).sum()) / even if even > 0 else math.nan


def confidence(p: Numbers) -> float:
    """Mean over the queries of max_s p_ts (Voita et al. 2019, §4, who leave the end mark out)."""
    return float(p.max(axis=1).mean()) if p.size else math.nan


def measure_head(weights: NDArray[np.float32], *, causal: bool = False) -> HeadMeasures:
    """All of them for weights (T, S); causal: query t sees the keys up to the one at its own place, counted from the
    end."""
    queries, keys = weights.shape
    seen = np.arange(1, queries + 1) + (keys - queries) if causal else np.full(queries, keys)
    p = row_shares(weights)
    if causal and keys < queries:  # compressed ones: a query sees those that it gives any weight
        seen = (p > 0).sum(axis=1)
    return HeadMeasures(
        entropy=float(entropy(p).mean()) if p.size else math.nan,
        entropy_share=entropy_share(p, seen),
        diagonality=diagonality(p, seen),
        confidence=confidence(p),
    )


@dataclass(frozen=True, eq=False)
class ExpertRouting:
    """The gates of one layer of experts for one text."""

    path: str  # of the experts in the model
    tokens: list[str]
    gates: NDArray[np.float32]  # (T, E), each row sums to one, zeros for experts that were not used

    @property
    def shares(self) -> NDArray[np.float32]:
        """(E,) the mean gate of each expert over the tokens."""
        result: NDArray[np.float32] = self.gates.mean(axis=0)
        return result

    @property
    def routed(self) -> list[int]:
        """(E,) how many tokens were routed to each expert."""
        return [int(count) for count in (self.gates > 0).sum(axis=0)]

    def best(self, token: int) -> list[tuple[int, float]]:
        """The experts of a token with their gates, the largest first."""
        row = self.gates[token]
        return [(int(each), float(row[each])) for each in np.argsort(-row, kind="stable") if row[each] > 0]

    def to_dict(self) -> dict[str, Any]:
        """For JSON; gates are kept to six digits."""
        rows = [[round(float(gate), 6) for gate in row] for row in self.gates]
        shares = [round(float(share), 6) for share in self.shares]
        return {"path": self.path, "tokens": self.tokens, "shares": shares, "routed": self.routed, "gates": rows}


def routings(trace: Trace, *, layer: int | None = None) -> list[ExpertRouting]:
    """Every layer of experts in a trace, or one layer."""
    by_path: dict[str, list[Record]] = {}
    for record in trace:
        if record.point == "gates" and (layer is None or record.layer == layer):
            by_path.setdefault(record.path, []).append(record)
    result = []
    for path, records in by_path.items():
        gates = torch.cat([record.tensor for record in records], dim=1)[0].float().cpu().numpy()  # (T, E)
        names = [name for record in records for name in _queries(trace, record, "decoder")]
        result.append(ExpertRouting(path, names, gates))
    return result


def routing_table(routings: Sequence[ExpertRouting]) -> Table:
    """For a terminal: a row for each token, a column for each layer, and the shares of the experts below."""
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
    """One convolution: the offsets it reads, and how far it reaches through all layers below."""

    path: str
    side: str  # encoder or decoder
    offsets: tuple[int, ...]
    reach: tuple[int, int]  # the furthest place before and behind, through all layers below
    tokens: list[str]  # that it reads, in order


def receptive_fields(trace: Trace) -> list[ReceptiveField]:
    """The receptive field of every convolution of a trace with arithmetic, in order."""
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
    """Which neighbours a convolution reads, from where its slices of the padded text begin."""
    own = [record for record in trace.records if record.unnamed and record.key.startswith(key + "~")]
    starts = sorted(
        {each.arguments["start"] for each in own if each.operation == "slice" and each.arguments["axis"] == 1}
    )
    padded = [each.arguments["widths"][1][0] for each in own if each.operation == "pad"]
    before = padded[-1] if padded else max(starts, default=0)  # a causal convolution ends at its own place
    return tuple(start - before for start in starts)


def first_seen(windows: list[ReceptiveField], length: int) -> NDArray[np.float64]:
    """(T, T): the layer, from 1, at which each position (down) first sees each token (across); 0 for never."""
    layers = np.zeros((length, length))
    seen = np.eye(length, dtype=bool)
    for number, window in enumerate(windows, 1):
        taken = np.zeros_like(seen)
        for offset in window.offsets:
            first, last = max(0, -offset), min(length, length - offset)
            if first < last:
                taken[first:last] |= seen[first + offset : last + offset]
        seen = taken | seen  # residual links keep what was there
        layers[(layers == 0) & seen] = number
    return layers
