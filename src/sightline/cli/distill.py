"""`sightline distill`: a student learns what a teacher writes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from sightline.cli.options import MaxRatio, Overrides, Precision, Threads, use_threads
from sightline.cli.searching import EnsembleMean, With, load_together


def distill(
    teacher: Annotated[Path, typer.Argument(help="The run folder of the model to learn from.")],
    recipe: Annotated[str, typer.Argument(help="The student: a recipe file or the name of a shipped recipe.")],
    out: Annotated[Path, typer.Option(help="The student's run folder; the distilled text lies in it too.")],
    overrides: Overrides = None,
    beam: Annotated[int | None, typer.Option(help="The teacher's beam; by default what its recipe says.")] = None,
    choose: Annotated[
        str | None,
        typer.Option(help="bleu or chrf: of the whole beam, take what is most like the reference by that."),
    ] = None,
    mix: Annotated[
        float | None, typer.Option(help="Keep the original pairs too, each seen so often an epoch (0.5: half of them).")
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Drop sources and outputs with more tokens.")] = 256,
    max_ratio: MaxRatio = 3.0,
    others: With = None,
    ensemble_mean: EnsembleMean = "probabilities",
    resume: Annotated[bool, typer.Option("--resume", help="Go on where it stopped: translating, or training.")] = False,
    device: Annotated[str, typer.Option(help="Where the teacher works: auto, cpu, cuda or cuda:N.")] = "auto",
    precision: Precision = "float32",
    threads: Threads = None,
) -> None:
    """Translate a recipe's training text with a teacher, then train the recipe on that (Kim and Rush 2016).

    The text is written to OUT/distilled.tsv.gz, part by part: after an interruption, the same command with `--resume`
    goes on where it stopped. How many pairs were dropped, and why, is printed and kept in OUT/distilled.tsv.gz.json.
    The student may have a tokenizer of its own, or share its teacher's model and start from it
    (`model.init_from=TEACHER`).

    Examples:

    - `sightline distill runs/big multi30k/lstm-dot --out runs/small`
    - `sightline distill runs/big multi30k/lstm-dot --with runs/other --with runs/third --out runs/small`
    - `sightline distill runs/big multi30k/lstm-dot --beam 8 --choose chrf --mix 1 --out runs/small`
    - `sightline distill runs/big multi30k/lstm-dot data.swap=true --out runs/small --resume`
    """
    from sightline.augment.distillation import Distilling
    from sightline.augment.distillation import distill as write_distilled
    from sightline.augment.translation import Limits, told
    from sightline.cli.train import run_training
    from sightline.progress import shown
    from sightline.training.interruption import Interrupted
    from sightline.training.resolve import open_recipe

    if choose not in (None, "bleu", "chrf"):
        raise ValueError(f"--choose {choose}: there is no such choice; use bleu or chrf")
    use_threads(threads)
    loaded, _ = open_recipe(recipe, overrides or [])
    how = Distilling(beam, choose, Limits(max_tokens, max_ratio), mix)  # type: ignore[arg-type]
    model = load_together(teacher, others, ensemble_mean, device, precision)
    try:
        with shown() as progress:
            student, counts = write_distilled(model, loaded, out, how, resume=resume, progress=progress)
        print(f"distilled text in {out}: {told(counts)}", file=sys.stderr)
        del model  # the student needs the memory
        run_training(student, out, resume=resume)
    except (Interrupted, KeyboardInterrupt):
        print("interrupted; what is done is kept: go on with the same command and --resume", file=sys.stderr)
        raise typer.Exit(code=130) from None
    print(f"done: {out}", file=sys.stderr)
