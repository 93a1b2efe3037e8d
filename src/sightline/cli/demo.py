"""`sightline demo`: train, score and inspect a small model in two minutes."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="The run folder to write.")] = Path(
        "runs/dates"
    ),
) -> None:
    """Train the date translator, score it, and show its attention.

    Examples:
      sightline demo
    """
    import time

    from sightline.cli.train import interruptions, run_training
    from sightline.run import Run
    from sightline.terminal import console
    from sightline.training.resolve import open_recipe

    screen = console()
    recipe, _ = open_recipe("dates")
    print("Training an LSTM with additive attention to read dates (recipe: dates).", file=sys.stderr)
    started = time.monotonic()
    with interruptions(out):
        run_training(recipe, out)
    seconds = time.monotonic() - started
    run = Run.load(out, device="cpu")
    report = run.evaluate("test")
    score = report.scores[0]
    print(f"\nTrained in {seconds:.0f} s. Held-out dates, {report.sentences:,} of them, none seen in training:")
    print(f"  exact match {score.value:.2f}%  [{score.low:.2f}, {score.high:.2f}] (95%)   {score.signature}\n")
    shown = _one_of_each_length(run.test_set("test").sources, 5)
    for text, output in zip(shown, run.predict(shown), strict=True):
        print(f"  {text:<36} →  {output}")
    alignment = run.align(shown[-1])
    if alignment is None:
        return
    print("\nAttention of the last one (rows: output, columns: input):\n")
    screen.print(alignment.grid())
    picture = out / "alignment.png"
    alignment.draw(picture, title=f"{shown[-1]} → {run.predict([shown[-1]])[0]}")
    print(f"\nThe same as a picture: {picture}")
    print(f'Try your own: echo "the 3rd of May 2031" | {_command()} predict {out}')


def _command() -> str:
    """The command to print: `sightline` if the shell finds this installation, else the path that was called."""
    called, installed = Path(sys.argv[0]), shutil.which("sightline")
    if called.name == "__main__.py":
        return "python -m sightline"
    return "sightline" if installed is not None and Path(installed).resolve() == called.resolve() else str(called)


def _one_of_each_length(texts: list[str], count: int) -> list[str]:
    """`count` texts of different lengths, short to long."""
    ordered = sorted(texts, key=len)
    return [ordered[(2 * place + 1) * len(ordered) // (2 * count)] for place in range(count)]
