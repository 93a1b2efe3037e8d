"""`sightline distill` and `sightline backtranslate`: training data written by a model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from sightline.cli.options import (
    Device,
    MaxRatio,
    Overrides,
    Precision,
    Sample,
    Seed,
    Temperature,
    Threads,
    TopK,
    TopP,
    use_threads,
)
from sightline.cli.searching import Beam, EnsembleMean, With, load_together, sampling


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
    from sightline.augment.backtranslation import Limits, told
    from sightline.augment.distillation import Distilling
    from sightline.augment.distillation import distill as write_distilled
    from sightline.cli.train import run_training
    from sightline.progress import shown
    from sightline.training.resolve import open_recipe
    from sightline.training.world import Interrupted

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


def backtranslate(
    run: Annotated[Path, typer.Argument(help="A run folder that translates from your target language back.")],
    monolingual: Annotated[Path, typer.Argument(help="Text in your target language, a line each (may be compressed).")],
    out: Annotated[Path, typer.Option(help="The TSV file to write; .gz, .bz2, .xz and .zst are compressed.")],
    tag: Annotated[
        str | None, typer.Option(help="Put this before every synthetic source, so that a model can tell them.")
    ] = None,
    beam: Beam = None,
    sample: Sample = False,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Seed = None,
    max_tokens: Annotated[int, typer.Option(help="Drop lines and outputs with more tokens.")] = 256,
    max_ratio: MaxRatio = 3.0,
    others: With = None,
    ensemble_mean: EnsembleMean = "probabilities",
    resume: Annotated[bool, typer.Option("--resume", help="Go on where it stopped.")] = False,
    device: Device = "auto",
    precision: Precision = "float32",
    threads: Threads = None,
) -> None:
    """Translate text of the target language back, and write pairs: synthetic source, tab, real target.

    For a German → English system, take an English → German run and English text. Memory does not grow with the text;
    after an interruption the same command with `--resume` goes on. What was dropped, and why, is printed and kept in
    OUT.json. With a tag (Caswell et al. 2019) synthetic sources begin with it, real ones do not.

    To learn from it, add it to the recipe as a second source; `weight` is how often each pair is seen in an epoch. File
    names start at data.folder, or are absolute. Where data.swap is true, set `columns: [2, 1]`.

    - `train: [{kind: text, source: train.de, target: train.en}, {kind: tsv, file: /data/back.tsv.gz, weight: 0.5}]`

    Examples:

    - `sightline backtranslate runs/en-de news.en.xz --out back.tsv.gz --tag "<BT>"`
    - `sightline backtranslate runs/en-de news.en --sample --seed 7 --out back.tsv`
    - `sightline backtranslate runs/en-de news.en --beam 5 --out back.tsv.gz --resume`
    """
    from sightline.augment.backtranslation import Limits, told
    from sightline.augment.backtranslation import backtranslate as write_pairs
    from sightline.progress import shown

    drawing = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    use_threads(threads)
    loaded = load_together(run, others, ensemble_mean, device, precision)
    drawn = sampling(loaded, sample, drawing, beam)
    options = loaded.plain_search(beam) if drawn is None else loaded.options(sample=drawn)
    limits = Limits(max_tokens, max_ratio)
    try:
        with shown() as progress:
            counts = write_pairs(
                loaded, monolingual, out, options, limits=limits, tag=tag, resume=resume, progress=progress
            )
    except KeyboardInterrupt:
        print("interrupted; what is done is kept: go on with the same command and --resume", file=sys.stderr)
        raise typer.Exit(code=130) from None
    print(f"done: {out}: {told(counts)}", file=sys.stderr)
    print(
        f"learn from it with, under data.train: {{kind: tsv, file: {out.resolve()}, weight: 1.0}} "
        f"(and columns: [2, 1] where data.swap is true)",
        file=sys.stderr,
    )
