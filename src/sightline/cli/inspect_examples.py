"""`sightline inspect attention-example` and `lecture-example`: small numbers that can be followed with a pencil."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from sightline.cli.inspect_options import Json, check_files, emit, one_of

_AXES: tuple[Literal["tokens", "columns"], ...] = ("tokens", "columns")
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


def lecture_example(
    source: Annotated[
        str | None, typer.Argument(metavar="SOURCE", help="Other words of the vocabulary, in quotes.")
    ] = None,
    target: Annotated[
        str | None, typer.Argument(metavar="TARGET", help="What follows; default: as in the data set.")
    ] = None,
    weights: Weights = None,
    digits: Digits = 3,
    stop_at: Annotated[
        str | None, typer.Option(metavar="STEP", help="The last step to show: 7, decoder-3, loss, update.")
    ] = None,
    trained: Annotated[
        bool, typer.Option("--train", help="Learn the data set first (seconds), then show the same steps.")
    ] = False,
    every: Annotated[
        bool, typer.Option("--all", help="Show the gradient and new value of every matrix in full.")
    ] = False,
    matrix: Annotated[
        str, typer.Option(metavar="NAME", help="Show the gradient and new value of this one.")
    ] = "encoder.W_Q",
    lr: Annotated[float, typer.Option(metavar="RATE", help="Learning rate of the update.")] = 0.1,
    heads: Annotated[int, typer.Option(metavar="N", help="Attention heads: 1, 2, 3 or 6.")] = 1,
    biases: Annotated[bool, typer.Option("--biases", help="Biases in attention and in the last linear layer.")] = False,
    scale: Annotated[bool, typer.Option("--scale-embeddings", help="Multiply embeddings by √6.")] = False,
    normalize: Annotated[
        str, typer.Option(metavar="AXIS", help="tokens: each row; columns: each column, as the slides say.")
    ] = "tokens",
    json_file: Json = None,
) -> None:
    """Work through a Transformer of width 6 as in the lecture, from words to one update.

    Headings are the lecture's step numbers: encoder (1) to (11), decoder (1) to (6), loss, backpropagation. Every step
    has its formula, operands and result. --weights FILE takes matrices by name, any subset: embedding (11×6),
    encoder.W_Q (6×6, for X W), encoder.W_1, encoder.b_1, decoder.self.W_O, decoder.cross.W_K, linear.W (6×11), ...

    Examples:
      sightline inspect lecture-example
      sightline inspect lecture-example --digits 2 --stop-at 7
      sightline inspect lecture-example "time flies like" "a bird" --train
      sightline inspect lecture-example --weights slides.yaml --normalize columns --all
    """
    from sightline.inspection.given_weights import read_matrices
    from sightline.inspection.lecture_example import DEFAULT, Pair, Settings
    from sightline.inspection.lecture_steps import lecture_example as work_through
    from sightline.inspection.views import InspectionView

    check_files(json_file)
    axis = one_of(_AXES, "--normalize", normalize)
    example = work_through(
        DEFAULT if source is None else Pair.of(source, target),
        Settings(heads=heads, biases=biases, scale_embeddings=scale, normalize=axis, lr=lr),
        given=None if weights is None else read_matrices(weights),
        place=weights or "--weights",
        trained=trained,
        matrix=matrix,
        every=every,
        stop_at=stop_at,
        digits=digits,
    )
    emit(InspectionView(example, example.record), json_file)
