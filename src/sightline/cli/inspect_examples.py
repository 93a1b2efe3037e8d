"""`sightline inspect attention-example` and `lecture-example`: small numbers that can be followed with a pencil."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sightline.cli.inspect_options import Json, check_files, emit, one_of

Digits = Annotated[int, typer.Option(metavar="N", help="Digits after the point.", min=0, max=9)]
Weights = Annotated[Path | None, typer.Option(metavar="FILE", help="Take these matrices (JSON or YAML, by name).")]


def attention_example(
    query: Annotated[str, typer.Option(metavar="VECTOR", help="The decoder state.")] = "0.7,0.3",
    keys: Annotated[
        str, typer.Option(metavar="VECTORS", help="The encoder states, separated by semicolons.")
    ] = "0.8,0.2;-1.2,-0.27;-1.0,-0.73",
    score: Annotated[
        str, typer.Option(metavar="SCORE", help="dot, scaled-dot, bilinear, additive, linear, ...")
    ] = "dot",
    weights: Weights = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Of weights that are drawn.")] = 1,
    digits: Digits = 2,
    json_file: Json = None,
) -> None:
    """Work through one step of attention: scores, weights, weighted states, context.

    A score with weights takes them from --weights, or draws them from --seed.

    Examples:
      sightline inspect attention-example
      sightline inspect attention-example --query 1,0 --keys "1,0;0,1" --digits 3
      sightline inspect attention-example --score additive --weights mine.yaml
    """
    from sightline.inspection.attention_example import attention_example as work_through
    from sightline.inspection.given_weights import read_matrices
    from sightline.inspection.views import InspectionView
    from sightline.layers.scores import SCORES

    check_files(json_file)
    states = [_vector("--keys", each) for each in keys.split(";")]
    example = work_through(
        _vector("--query", query),
        states,
        score=one_of(tuple(SCORES), "--score", score),
        weights=None if weights is None else read_matrices(weights),
        seed=seed,
        digits=digits,
        place=weights or "--weights",
    )
    emit(InspectionView(example, example.record), json_file)


def _vector(option: str, text: str) -> list[float]:
    try:
        return [float(number.replace("−", "-")) for number in text.strip(" ()").split(",")]
    except ValueError:
        raise ValueError(f"{option} {text!r}: write a vector as numbers with commas, e.g. 0.7,0.3") from None
