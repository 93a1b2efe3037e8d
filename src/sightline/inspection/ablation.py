"""Ablation of attention heads: switch heads off, and measure what happens to the output.

    with ablated(run.model, ["decoder.layers.3.cross.7"]):
        run.predict([text])

A head is switched off by setting its context to zero at its tap, so the output projection gets nothing from it (Michel
et al. 2019, §2.3, with the mask ξ = 0). Nothing is retrained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from sightline.decoding.scoring import log_probabilities
from sightline.inspection.attention import LoadedRun, attentions, find_head, head_names
from sightline.layers.tap import Tapped, on_taps

if TYPE_CHECKING:
    from rich.table import Table

Measure = Callable[[], float]  # a corpus metric: `lambda: run.evaluate(test).scores[0].value`


@dataclass(frozen=True)
class AblationEffect:
    """Changes without these heads: negative values mean that they were needed."""

    heads: tuple[str, ...]
    log_probability: float  # Σ log p(output) without them, minus with them; nats
    metric: float | None = None  # the metric without them, minus with them

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@contextmanager
def ablated(model: Any, heads: Sequence[str]) -> Iterator[None]:
    """Switch these heads off inside the block."""
    ablated_heads: dict[str, list[int]] = {}
    for name in heads:
        path, number = find_head(model, name)
        ablated_heads.setdefault(path, []).append(number)

    def zero(tapped: Tapped) -> Tensor | None:
        path, _, point = tapped.name.rpartition(".")
        if point != "context":
            return None
        context = tapped.tensor.clone()  # (B, H, T, K)
        context[:, ablated_heads[path]] = 0.0
        return context

    with on_taps(model, zero, tuple(ablated_heads)):
        yield


def ablate(
    run: LoadedRun,
    heads: Sequence[str],
    texts: Sequence[str],
    targets: Sequence[str] | None = None,
    *,
    measure: Measure | None = None,
) -> AblationEffect:
    """Switch all these heads off at once, and measure log p of `targets` (or the run's own outputs) and a metric."""
    return _effects(run, [tuple(heads)], texts, targets, measure)[0]


def ablate_each(
    run: LoadedRun,
    texts: Sequence[str],
    targets: Sequence[str] | None = None,
    *,
    heads: Sequence[str] | None = None,
    measure: Measure | None = None,
) -> list[AblationEffect]:
    """The effect of each head alone (by default of all heads), most needed first."""
    names = head_names(run.model) if heads is None else list(heads)
    effects = _effects(run, [(name,) for name in names], texts, targets, measure)
    return sorted(effects, key=lambda effect: effect.log_probability)


def _effects(
    run: LoadedRun,
    groups: Sequence[tuple[str, ...]],
    texts: Sequence[str],
    targets: Sequence[str] | None,
    measure: Measure | None,
) -> list[AblationEffect]:
    if not run.recipe.task_spec.writes_text:
        raise ValueError(
            f"log-probabilities of outputs are for models that write, and this run is {run.recipe.task_spec}; "
            f"take a metric inside `with ablated(run.model, heads):`"
        )
    if not groups:
        raise ValueError("there is no head to switch off: nothing in this model attends")
    sources, outputs = _pairs(run, texts, targets)

    def total() -> float:
        return float(log_probabilities(run.model, sources, outputs, device=run.device).sum())

    with on_taps(run.model, lambda tapped: None, tuple(attentions(run.model))):  # same kernels as with taps
        whole = total()
    score = None if measure is None else measure()
    effects = []
    for heads in groups:
        with ablated(run.model, heads):
            change = total() - whole
            metric = None if measure is None or score is None else measure() - score
        effects.append(AblationEffect(heads, change, metric))
    return effects


def _pairs(
    run: LoadedRun, texts: Sequence[str], targets: Sequence[str] | None
) -> tuple[list[list[int]], list[list[int]]]:
    """Ids of sources and outputs; the outputs of a language model are its texts."""
    if run.recipe.task_spec.continues_text:
        return [[] for _ in texts], run.vocabulary.target.encode_many(list(texts))
    sources = run.encode_sources(texts)
    if targets is None:
        return sources, [guesses[0].tokens for guesses in run.predict_nbest(texts)]
    return sources, run.vocabulary.target.encode_many(list(targets))


def effects_table(effects: Sequence[AblationEffect], *, metric: str = "metric", title: str | None = None) -> Table:
    """A terminal table of effects."""
    from rich import box
    from rich.table import Table

    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", min_width=len(title or "") + 2)
    table.add_column("without head")
    table.add_column("log p (nats)", justify="right")
    measured = any(effect.metric is not None for effect in effects)
    if measured:
        table.add_column(metric, justify="right")
    for effect in effects:
        values = [effect.log_probability, *([effect.metric] if measured else [])]
        table.add_row(", ".join(effect.heads), *("–" if value is None else f"{value:+.3f}" for value in values))
    return table
