"""The lecture's attention step with small numbers, `inspect attention-example`, against the formula in plain loops."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sightline.cli.app import app
from sightline.inspection.attention_example import attention_example

D, H = (0.7, 0.3), ((0.8, 0.2), (-1.2, -0.27), (-1.0, -0.73))
W, U, V, B = [[0.5, -0.4], [0.1, 0.9]], [[-0.3, 0.8], [0.6, 0.2]], [0.7, -0.5], [0.1, -0.2]


def inspect(*arguments: Any) -> str:
    result = CliRunner().invoke(app, ["inspect", "attention-example", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.stdout


def dot(a: Any, b: Any) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def additive(d: Any, h: Any, function: Any) -> float:
    hidden = [function(dot(W[i], d) + B[i] + dot(U[i], h)) for i in range(2)]
    return dot(V, hidden)


def by_hand(scores: list[float]) -> dict[str, list[Any]]:
    """Softmax, weighted states and their sum."""
    total = sum(math.exp(score) for score in scores)
    weights = [math.exp(score) / total for score in scores]
    weighted = [[weight * part for part in h] for weight, h in zip(weights, H, strict=True)]
    context = [sum(row[k] for row in weighted) for k in range(2)]
    return {"s": scores, "a": weights, "weighted": weighted, "c": context}


def numbers(record: Any) -> dict[str, list[Any]]:
    _, scores, weights, weighted, context = record["steps"]

    def values(step: Any) -> list[Any]:
        return [each["values"] for each in step["results"]]

    return {"s": values(scores)[-3:], "a": values(weights), "weighted": values(weighted), "c": values(context)[0]}


SCORES = {
    "dot": lambda d, h: dot(d, h),
    "scaled-dot": lambda d, h: dot(d, h) / math.sqrt(2),
    "bilinear": lambda d, h: dot(d, [dot(row, h) for row in W]),
    "additive": lambda d, h: additive(d, h, math.tanh),
    "linear": lambda d, h: additive(d, h, lambda x: x),
}
WEIGHTS = {
    "bilinear": {"weight.weight": W},
    **{name: {"query.weight": W, "query.bias": B, "key.weight": U, "v": V} for name in ("additive", "linear")},
}


def test_the_numbers_of_the_slides() -> None:
    shown = inspect()
    for line in (
        "s₁ = 0.70·0.80 + 0.30·0.20 = 0.62",
        "a₁ = exp(0.62) / (exp(0.62) + exp(−0.92) + exp(−0.92)) = 0.70",
        "a₁ h₁ = 0.70 · (0.80, 0.20) = (0.56, 0.14)",
        "c = (0.56, 0.14) + (−0.18, −0.04) + (−0.15, −0.11) = (0.23, −0.01)",
    ):
        assert line in shown
    assert [
        line.rpartition(" = ")[2] for line in shown.splitlines() if line.strip().startswith("a") and "exp" in line
    ] == [
        "0.70",
        "0.15",
        "0.15",
    ]


@pytest.mark.parametrize("score", SCORES)
def test_every_step_equals_the_formula(score: str, tmp_path: Path) -> None:
    expected = by_hand([SCORES[score](D, h) for h in H])
    arguments: list[Any] = ["--score", score, "--json", tmp_path / "numbers.json"]
    if score in WEIGHTS:
        (tmp_path / "weights.json").write_text(json.dumps(WEIGHTS[score]))
        arguments += ["--weights", tmp_path / "weights.json"]
    inspect(*arguments)
    found = numbers(json.loads((tmp_path / "numbers.json").read_text()))
    for name, values in expected.items():
        for ours, theirs in zip(found[name], values, strict=True):
            assert ours == pytest.approx(theirs, abs=1e-6), name


def test_weights_without_a_softmax_are_scores_divided_by_the_number_of_states() -> None:
    shown = attention_example(score="unnormalized-dot").record()
    assert [each["values"] for each in shown["steps"][2]["results"]] == pytest.approx([dot(D, h) / 3 for h in H])


def test_other_vectors_and_digits() -> None:
    shown = inspect("--query", "1,0", "--keys", "(2,0);(0,2)", "--digits", 3)
    assert "s₁ = 1.000·2.000 + 0.000·0.000 = 2.000" in shown
    assert f"= {math.exp(2) / (math.exp(2) + 1):.3f}" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--query", "a,b"], "--query 'a,b': write a vector as numbers with commas"),
        (["--keys", "1,2;3"], "all encoder states need the same number of entries"),
        (["--query", "1,2,3"], "multiplies queries and keys element by element"),
        (["--score", "cosine"], "--score cosine: use dot"),
    ],
)
def test_wrong_vectors_are_reported(arguments: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        inspect(*arguments)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("querry.weight: [[1, 2], [3, 4]]", "there is no matrix 'querry.weight'; did you mean 'query.weight'"),
        ("v: [1, 2, 3]", "v has the shape 3, and the model's is 2"),
        ("v: [[1, 2], [3]]", "v is no matrix of numbers"),
        ("[1, 2]", "write one matrix per name"),
    ],
)
def test_wrong_weights_are_reported(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "weights.yaml").write_text(content)
    with pytest.raises(ValueError, match=message):
        inspect("--score", "additive", "--weights", tmp_path / "weights.yaml")
