"""Options that several commands share, each in the same words everywhere, and bounds of all numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from sightline.recipe.schema import ANY_INT, MOST

Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Precision = Annotated[
    str, typer.Option(help="float32, or bf16: faster on CPUs that have such products; a word here and there differs.")
]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads; by default what PyTorch chooses.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[section.key=value]...", help="Keys of the recipe to change.")
]
MaxRatio = Annotated[
    float, typer.Option(help="Drop pairs where one side has so many times the tokens of the other, and five more.")
]
Sample = Annotated[bool, typer.Option("--sample", help="Draw instead of searching.")]
Temperature = Annotated[
    float | None, typer.Option(help="With --sample: below 1 sharper, above 1 flatter; else the recipe's, or 1.")
]
TopK = Annotated[int | None, typer.Option(help="With --sample: only the k likeliest tokens.")]
TopP = Annotated[float | None, typer.Option(help="With --sample: the likeliest tokens that hold p together.")]
Seed = Annotated[int | None, typer.Option(min=0, max=2**63 - 1, help="With --sample: the same seed, the same outputs.")]

BleuTokenize = Annotated[
    str | None, typer.Option(help="How BLEU cuts texts: auto (by script), 13a, zh, char, intl, ja-mecab, none, ...")
]
ChrfWordOrder = Annotated[int | None, typer.Option(min=0, max=2, help="Longest word n-grams of chrF; 2 is chrF++.")]


def use_threads(count: int | None) -> None:
    """Let PyTorch use so many threads, if somebody said how many."""
    import torch

    if count is not None:
        torch.set_num_threads(count)


_POSITIVE: tuple[str, ...] = (
    "beam",
    "nbest",
    "groups",
    "top_k",
    "top",
    "max_length",
    "max_tokens",
    "jobs",
    "threads",
    "count",
)
_LARGEST: dict[str, int] = {
    "jobs": 1_024,
    "mbr": int(MOST["candidates"]),
    "groups": int(MOST["groups"]),
    "top": 1_000_000,
    "most": 100_000,
    "sentences": 1_000_000,
    "count": 100_000,
    "mix": int(MOST["weight"]),
}


def check_numbers(options: Mapping[str, Any]) -> None:
    """Refuse a value that no option of this name can have; what fits the others is checked by whoever uses it."""
    for name, value in options.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        option = f"--{name.replace('_', '-')} {value}"
        if not math.isfinite(value):
            raise ValueError(f"{option}: give a finite number")
        least = 1 if name in _POSITIVE else 0
        if value < least:
            raise ValueError(f"{option}: give {least} or more")
        most = _LARGEST.get(name, MOST.get(name, ANY_INT if isinstance(value, int) else 1e12))
        if value > most:
            raise ValueError(f"{option}: give at most {most:,}")
