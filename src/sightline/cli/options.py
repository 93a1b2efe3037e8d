"""Options that several verbs have, each in the same words everywhere."""

from __future__ import annotations

from typing import Annotated

import typer

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
