"""What a longer context costs: parameters of each architecture, and training examples of each learned position."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from sightline.inspection.claims.table import Claim, ClaimTable
from sightline.models.language_model import LanguageModel
from sightline.models.seq2seq import parameter_count
from sightline.recipe.model import ModelConfig

if TYPE_CHECKING:
    from sightline.inspection.attention import LoadedRun

LENGTHS = (4, 16, 64, 256, 1024)


def decoder_of(kind: str, length: int) -> dict[str, Any]:
    """A decoder with one or two layers whose context is `length` tokens; recurrent ones and sinusoids have no limit."""
    recurrent = {"kind": "recurrent", "layers": 1, "attention": {"kind": "none"}}
    transformer = {"kind": "transformer", "layers": 1, "heads": 4}
    bodies: dict[str, dict[str, Any]] = {
        "window": {"kind": "window", "size": length},
        "Elman": {**recurrent, "cell": "elman"},
        "LSTM": {**recurrent, "cell": "lstm"},
        "Transformer, sinusoidal": {**transformer, "positions": {"kind": "sinusoidal"}},
        "Transformer, learned": {**transformer, "positions": {"kind": "learned", "max_positions": length}},
    }
    return bodies[kind]


KINDS = ("window", "Elman", "LSTM", "Transformer, sinusoidal", "Transformer, learned")


def parameters(kind: str, length: int, *, width: int, vocabulary: int) -> int:
    """The parameters of a language model with this context."""
    recipe = ModelConfig.model_validate({"width": width, "decoder": decoder_of(kind, length), "tie": "none"})
    with torch.device("meta"):
        return parameter_count(LanguageModel(recipe, vocabulary))


def parameters_claim(lengths: Sequence[int] = LENGTHS, *, width: int = 64, vocabulary: int = 1_000) -> Claim:
    """Parameters against the length of the context."""
    rows: list[list[str | int | float]] = [
        [kind, *(parameters(kind, length, width=width, vocabulary=vocabulary) for length in lengths)] for kind in KINDS
    ]
    grams = [float(vocabulary) ** (length + 1) for length in lengths if length * len(str(vocabulary)) < 300]
    rows.append(["possible n-grams", *grams, *[float("inf")] * (len(lengths) - len(grams))])
    table = ClaimTable("parameters for a context of N tokens", ["", *(f"N = {length}" for length in lengths)], rows)
    notes = [
        f"Language models of width {width} over {vocabulary:,} words, untied, one layer. Recurrent models and "
        "sinusoids have no limit: the same parameters serve any context.",
        "Possible n-grams: V^(N+1), of which a model stores those it has seen.",
    ]

    def draw(path: Path) -> None:
        from sightline.plots.lines import Panel, Series, draw_lines

        lines = [Series(str(row[0]), list(lengths), [float(v) for v in row[1:]], k) for k, row in enumerate(rows[:-1])]
        draw_lines([Panel("parameters against context", "tokens of context", "parameters", lines, log_x=True)], path)

    claim = "A recurrent model does not grow with the length of its context; a window does"
    return Claim(claim, [table], notes, {}, draw)


def examples_by_position(lengths: Iterable[int]) -> list[int]:
    """How many sequences have a token at each position, from the first."""
    counts: list[int] = []
    for length in lengths:
        counts += [0] * (length - len(counts))
        for place in range(length):
            counts[place] += 1
    return counts


def positions_claim(counts: dict[str, list[int]], name: str) -> Claim:
    """Training examples of each position, for each side of a corpus."""
    longest = max(map(len, counts.values()))
    chosen = [place for place in (*range(1, 4), *(2**k for k in range(2, 20))) if place < longest] + [longest]
    rows: list[list[str | int | float | None]] = []
    for place in chosen:
        cells = [each[place - 1] if place <= len(each) else 0 for each in counts.values()]
        shares = [cell / each[0] for cell, each in zip(cells, counts.values(), strict=True)]
        rows.append([place, *(part for pair in zip(cells, shares, strict=True) for part in pair)])
    columns = ["position", *(part for side in counts for part in (f"{side}: examples", "share"))]
    table = ClaimTable(f"training examples of each position of {name}", columns, rows, fixed=True)
    notes = ["A learned position that no example has keeps its initial values; sinusoids need no examples."]

    def draw(path: Path) -> None:
        from sightline.plots.lines import Panel, Series, draw_lines

        lines = [Series(side, list(range(1, len(each) + 1)), each, k) for k, (side, each) in enumerate(counts.items())]
        draw_lines([Panel(name, "position", "training examples", lines)], path)

    claim = "Learned positions: many training examples for the first ones, few for the last"
    return Claim(claim, [table], notes, {"counts": counts}, draw)


def run_positions(run: LoadedRun, most: int = 20_000) -> dict[str, list[int]]:
    """Counts over the first training examples of a run, in its own tokens with start or end mark."""
    from itertools import islice

    from sightline.data.sources import training_examples

    if not run.recipe.task_spec.maps_text:
        raise ValueError(
            f"{run.folder}: {run.recipe.task} does not read pairs of texts; give a run that does, such as a translator"
        )
    examples = list(islice(training_examples(run.recipe), most))
    sides = run.vocabulary.encode_pairs([each.source for each in examples], [each.target for each in examples])
    return {
        name: examples_by_position(len(ids) + 1 for ids in side)
        for name, side in zip(("source", "target"), sides, strict=True)
    }


def phrases_positions(examples: int = 5_000) -> dict[str, list[int]]:
    """Counts over the built-in corpus, in words with a start or end mark."""
    from sightline.data.phrases import read_phrases
    from sightline.recipe.sources import PhrasesSource

    pairs = list(read_phrases(PhrasesSource(split="train", examples=examples)))
    sides = {"source": [pair.source for pair in pairs], "target": [pair.target for pair in pairs]}
    return {name: examples_by_position(len(text.split()) + 1 for text in texts) for name, texts in sides.items()}
