"""`METRICS`: every metric under the name that recipes use. To add one, write a `Metric` and a line in `registry.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sightline.evaluation.measurement import Measurement, Metric, MetricScore, References, Texts
from sightline.recipe import Evaluation, MetricName
from sightline.registry import Implementations
from sightline.terminal import plural

METRICS: Mapping[MetricName, type[Metric]] = Implementations("metric")


def needs_outputs(names: MetricName | Iterable[MetricName]) -> bool:
    """Return True if a metric, or one of several, needs decoded outputs."""
    return any("outputs" in METRICS[name].needs for name in ([names] if isinstance(names, str) else names))


def check_output_options(names: Sequence[MetricName], options: Mapping[str, Any]) -> None:
    """Refuse options about outputs that are set (not None) if no metric needs outputs."""
    for option, value in options.items():
        if value is not None and not needs_outputs(names):
            raise ValueError(
                f"{option} is about outputs, and {', '.join(names)} uses none; leave it out, or add a metric that "
                f"does (--metrics)"
            )


def measure(
    name: MetricName,
    hypotheses: Texts,
    references: References,
    sources: Texts | None = None,
    *,
    lowercase: bool = False,
    section: Evaluation | None = None,
) -> Measurement:
    """Measure outputs against their references (one list for each output, with one reference or more).

    Scores, intervals and significance tests all follow from a measurement. `section` is the `evaluation` section of a
    recipe: it says how BLEU and chrF tokenize.
    """
    if name not in METRICS:
        raise ValueError(f"there is no metric {name!r}; choose from {', '.join(METRICS)}")
    metric = METRICS[name]((section or Evaluation()).model_copy(update={"lowercase": lowercase}))
    if not needs_outputs(name):
        return metric.score(hypotheses, references, sources)  # explains what to call
    if len(hypotheses) != len(references):
        raise ValueError(
            f"{plural(len(hypotheses), 'output')} and references for {len(references)}: "
            "each output needs its own list of references"
        )
    if not hypotheses:
        raise ValueError(f"there are no outputs, so there is no {metric.name} to compute")
    for number, several in enumerate(references, start=1):
        if isinstance(several, str):
            raise TypeError(f"the references of output {number} are a text; write a list of texts: [{several!r}]")
        if not several:
            raise ValueError(f"output {number} has no reference; leave it out or give it one")
    if "sources" in metric.needs and (sources is None or len(sources) != len(hypotheses)):
        raise ValueError(f"{metric.name} needs the source of each of the {plural(len(hypotheses), 'output')}")
    return metric.score(hypotheses, references, sources)


def score(
    name: MetricName,
    hypotheses: Texts,
    references: References,
    sources: Texts | None = None,
    *,
    lowercase: bool = False,
    section: Evaluation | None = None,
    bootstrap: int = 1000,
    seed: int = 12345,
) -> MetricScore:
    """Score outputs as `measure` does, with a 95% interval; `bootstrap=0` omits it (nan), as validations do."""
    measured = measure(name, hypotheses, references, sources, lowercase=lowercase, section=section)
    return measured.score(bootstrap=bootstrap, seed=seed)
