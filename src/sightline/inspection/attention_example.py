"""One step of attention with small numbers: scores, weights, weighted states, context.

    s_j = e(d, h_j),   a = softmax(s),   c = Σ_j a_j h_j

The vectors are those of the lecture unless others are given; e is any registered score function. The arithmetic of each
number is read from a recording of the score function that models use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sightline.inspection.arithmetic import decimals, number
from sightline.inspection.given_weights import Matrix, assign, draw_tenths
from sightline.inspection.operations import OPERATIONS
from sightline.inspection.recorder import record_arithmetic
from sightline.inspection.trace import GIVEN, Record, Trace, references
from sightline.inspection.walkthrough import WRITTEN_IN_PLACE, Explainer
from sightline.inspection.worked_steps import Result, WorkedExample, WorkedStep
from sightline.layers.attention import explicit_attention
from sightline.layers.scores import build_score
from sightline.layers.tap import TapModule

QUERY = (0.7, 0.3)  # the decoder state
KEYS = ((0.8, 0.2), (-1.2, -0.27), (-1.0, -0.73))  # the encoder states
_SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


class AttentionStep(TapModule):
    """Attention of one query over states that are keys and values."""

    def __init__(self, kind: str, width: int, key_width: int) -> None:
        super().__init__()
        self.score = build_score(kind, width, key_width)

    def forward(self, query: Tensor, states: Tensor) -> Tensor:
        """query (1, 1, 1, D₂), states (1, 1, S, D₁) → context (D₁,)."""
        weights: list[Tensor] = []

        def tap(name: str, tensor: Tensor, *rest: Any) -> Tensor:
            if name == "context":
                return tensor  # its two steps are tapped below
            tensor = self.tap(name, tensor, *rest)
            if name == "weights":
                weights.append(tensor)
            return tensor

        explicit_attention(query, self.score.prepare(states), states, self.score, None, tap=tap)
        weighted = self.tap("weighted", weights[0].mT * states, "a_j h_j")
        return self.tap("context", weighted[0, 0].sum(0), "Σ_j a_j h_j")  # (D₁,)


def attention_example(
    query: Sequence[float] = QUERY,
    states: Sequence[Sequence[float]] = KEYS,
    *,
    score: str = "dot",
    weights: Mapping[str, Matrix] | None = None,
    seed: int = 1,
    digits: int = 2,
    place: Path | str = "weights",
) -> WorkedExample:
    """Work through one query and its states; weights of the score that are not given are drawn from `seed`."""
    if len({len(state) for state in states}) != 1:
        raise ValueError("all encoder states need the same number of entries; separate states by ; and entries by ,")
    model = AttentionStep(score, len(query), len(states[0]))
    parameters = dict(model.score.named_parameters())
    draw_tenths(parameters, seed)
    assign(parameters, weights or {}, place)
    with record_arithmetic(model) as recorder:
        d = recorder.give("d", torch.tensor([[[list(query)]]]))
        h = recorder.give("h", torch.tensor([[list(map(list, states))]]))
        recorder.model(d, h)
    trace = recorder.finish()
    with decimals(digits):
        steps = _steps(trace, model, parameters)
    title = f"Attention of one decoder state over {len(states)} encoder states, score {model.score.formula}"
    about = {"score": score, "formula": model.score.formula, "digits": digits}
    return WorkedExample(title, steps, digits, about)


def _vector(row: Any) -> str:
    return f"({', '.join(number(float(value)) for value in row)})"


def _steps(trace: Trace, model: AttentionStep, parameters: Mapping[str, Tensor]) -> list[WorkedStep]:
    explainer, softmax = Explainer.of(trace), model.score.softmax
    states, scores, weights = trace["h"][0, 0], trace["scores"].flatten(), trace["weights"].flatten()
    weighted, context = trace["weighted"][0, 0], trace["context"]
    marks = [str(j).translate(_SUBSCRIPTS) for j in range(1, len(states) + 1)]

    def cells(key: str) -> list[str]:
        every = product(*(range(size) for size in explainer.values[key].shape))
        return [explainer.explain(key, index) for index in every]

    def line(name: str, values: Any, arithmetic: str) -> Result:
        return Result(name, "", values, arithmetic=[f"{name} = {arithmetic}"], shown=False)

    given = [line("d", trace["d"].flatten().numpy(), f"{_vector(trace['d'].flatten())}, the decoder state")]
    given += [
        line(f"h{j}", h.numpy(), f"{_vector(h)}, encoder state {n}")
        for n, (j, h) in enumerate(zip(marks, states, strict=True), 1)
    ]
    given += [
        Result(name, "", each.detach().numpy(), note="a weight of the score") for name, each in parameters.items()
    ]
    scored = [
        Result(_name(trace, key), "…", explainer.values[key], arithmetic=cells(key), shown=False)
        for key in _before(trace)
    ]
    weighing = []
    for j, score, weight, how, share in zip(marks, scores, weights, cells("scores"), cells("weights"), strict=True):
        scored.append(line(f"s{j}", score.item(), f"{how.partition(' = ')[2]} = {number(score)}"))
        share = share.partition(" = ")[2] if softmax else f"{number(score)} / {len(marks)}"
        weighing.append(line(f"a{j}", weight.item(), f"{share} = {number(weight)}"))
    shares = [
        line(f"a{j} h{j}", row.numpy(), f"{number(a)} · {_vector(h)} = {_vector(row)}")
        for j, a, h, row in zip(marks, weights, states, weighted, strict=True)
    ]
    total = line("c", context.numpy(), f"{' + '.join(map(_vector, weighted))} = {_vector(context)}")
    return [
        WorkedStep("States", "The decoder state is the query; the encoder states are keys and values.", given),
        WorkedStep(f"1. Scores: s_j = e(d, h_j), e(q, h) = {model.score.formula}", "", scored),
        WorkedStep("2. Weights: " + ("a = softmax(s)" if softmax else "a = s / N, without a softmax"), "", weighing),
        WorkedStep("3. Weighted states: a_j h_j", "", shares),
        WorkedStep("4. Context: c = Σ_j a_j h_j", "", [total]),
    ]


def _before(trace: Trace) -> list[str]:
    """The results that lead to the scores, without those that the arithmetic of others writes out."""
    keys = [record.key for record in trace.records]
    records = {record.key: record for record in trace.records[: keys.index("scores")]}
    users: dict[str, set[str]] = {}
    for record in reversed(trace.records[: keys.index("scores") + 1]):
        for name in references(record.arguments):
            moved = OPERATIONS[record.operation or GIVEN].moved if record.operation in OPERATIONS else ""
            users.setdefault(name, set()).update(users[record.key] if moved else {str(record.operation)})

    def written_out(record: Record) -> bool:
        elementwise = WRITTEN_IN_PLACE - {"linear"}
        return record.unnamed and record.operation in WRITTEN_IN_PLACE and users[record.key] <= elementwise

    return [
        key
        for key, record in records.items()
        if record.operation in OPERATIONS and not OPERATIONS[record.operation].moved and not written_out(record)
    ]


def _name(trace: Trace, key: str) -> str:
    """`products`, or for an unnamed record its operation and weights: `linear (key.weight)`."""
    record = next(each for each in trace.records if each.key == key)
    if not record.unnamed:
        return key
    weights = [name.removeprefix("score.") for name in references(record.arguments) if name in trace.weights]
    return f"{record.operation} ({', '.join(weights)})" if weights else str(record.operation)
