"""The heads of a recorded pass: every attention of a trace, with the tokens along its sides."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from sightline.inspection.alignment import Alignment
from sightline.inspection.attention_views import Head, Labels, heads_of
from sightline.inspection.trace import Trace
from sightline.inspection.walk_through import layer_of, looks_at_source


def trace_heads(trace: Trace, *, layer: int | None = None, head: int | None = None) -> list[Head]:
    """All of them, or those of a layer, or those of a number; none where nothing attends."""
    about = trace.about
    source, given, target = (list(about.get(name, ())) for name in ("source_tokens", "given_tokens", "target_tokens"))
    weights = [step for step in trace if step.name.endswith(".weights") and len(step.shape) == 4]
    looks = {step.name.removesuffix(".weights") for step in weights if looks_at_source(step)}
    labels = Labels((source, source), (given, given), (target, source))
    found = heads_of(weights, SimpleNamespace(looks=looks), labels)
    return [
        each
        for each in found
        if (layer is None or layer_of(each.path + ".") == layer) and (head is None or each.number == head)
    ]


def alignment_of(heads: list[Head]) -> Alignment | None:
    """What each token of the output looked at in the source: the mean of all heads that do; None where none does."""
    cross = [head for head in heads if head.kind == "cross"]
    if not cross or cross[0].weights.shape != (len(cross[0].queries), len(cross[0].keys)):
        return None
    mean = np.mean([head.weights for head in cross], axis=0)  # (T, S)
    return Alignment(cross[0].keys, cross[0].queries, mean)
