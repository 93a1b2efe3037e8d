"""`sightline distill` and `sightline backtranslate`: training data written by a model."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from sightline.cli.options import (
    Beam,
    Device,
    EnsembleMean,
    MaxRatio,
    Overrides,
    Precision,
    Sample,
    Seed,
    Threads,
    With,
    change_run,
    decoding_flags,
    load_runs,
    use_threads,
)

MaxTokens = Annotated[int, typer.Option(metavar="N", help="Drop sources and outputs with more tokens.")]
_TEACHER = "teacher."  # before overrides of the teacher's recipe


def distill(
    teacher: Annotated[Path, typer.Argument(metavar="TEACHER", help="The run folder of the model to learn from.")],
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="The student: a recipe file or a shipped recipe.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="The student's run folder, with the distilled text.")
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Keys of the student's recipe, or teacher.decoding.…."),
    ] = None,
    beam: Annotated[int | None, typer.Option(metavar="N", help="The teacher's beam size.")] = None,
    choose: Annotated[
        str | None,
        typer.Option(metavar="METRIC", help="Take the output closest to the reference: bleu or chrf."),
    ] = None,
    mix: Annotated[
        float | None, typer.Option(metavar="W", help="Keep original pairs too, each seen W times per epoch.")
    ] = None,
    max_tokens: MaxTokens = 256,
    max_ratio: MaxRatio = 3.0,
    others: With = None,
    ensemble_mean: EnsembleMean = "probabilities",
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted distillation.")] = False,
    device: Device = "auto",
    precision: Precision = "float32",
    threads: Threads = None,
) -> None:
    """Train a student on the outputs of a teacher (Kim and Rush 2016).

    The text is written to OUT/distilled.tsv.gz; counts of dropped pairs to OUT/distilled.tsv.gz.json. The student may
    have its own tokenizer, or start from its teacher (model.init_from=TEACHER).

    Examples:
      sightline distill runs/big multi30k/lstm-dot --out runs/small
      sightline distill runs/big multi30k/lstm-dot --with runs/other --out runs/small
      sightline distill runs/big multi30k/lstm-dot --beam 8 --choose chrf --mix 1 --out runs/small
      sightline distill runs/big multi30k/lstm-dot data.swap=true --out runs/small --resume
    """
    from sightline.augment.distillation import DistillationConfig
    from sightline.augment.distillation import distill as write_distilled
    from sightline.augment.translator import Limits, describe_counts
    from sightline.cli.train import run_training
    from sightline.progress import shown
    from sightline.training.resolve import open_recipe

    if choose not in (None, "bleu", "chrf"):
        raise ValueError(f"--choose {choose}: there is no such choice; use bleu or chrf")
    use_threads(threads)
    of_teacher = [word.removeprefix(_TEACHER) for word in overrides or () if word.startswith(_TEACHER)]
    loaded, _ = open_recipe(recipe, [word for word in overrides or () if not word.startswith(_TEACHER)])
    config = DistillationConfig(beam, choose, Limits(max_tokens, max_ratio), mix)  # type: ignore[arg-type]
    model, _ = change_run(load_runs(teacher, others, ensemble_mean, device, precision), of_teacher)
    with _resumable():
        with shown() as progress:
            student, counts = write_distilled(model, loaded, out, config, resume=resume, progress=progress)
        print(f"distilled text in {out}: {describe_counts(counts)}", file=sys.stderr)
        del model  # the student needs the memory
        run_training(student, out, resume=resume)
    print(f"done: {out}", file=sys.stderr)


def backtranslate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run from target to source language.")],
    monolingual: Annotated[
        Path, typer.Argument(metavar="FILE", help="Text in your target language, plain or compressed.")
    ],
    out: Annotated[
        Path,
        typer.Option("--out", "-o", metavar="FILE", help="The TSV file to write (may be .gz, .bz2, .xz, .zst)."),
    ],
    overrides: Overrides = None,
    tag: Annotated[
        str | None,
        typer.Option(metavar="TAG", help="Begin synthetic sources with a tag (Caswell et al. 2019)."),
    ] = None,
    beam: Beam = None,
    sample: Sample = False,
    seed: Seed = None,
    max_tokens: MaxTokens = 256,
    max_ratio: MaxRatio = 3.0,
    others: With = None,
    ensemble_mean: EnsembleMean = "probabilities",
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted translation.")] = False,
    device: Device = "auto",
    precision: Precision = "float32",
    threads: Threads = None,
) -> None:
    """Translate target-language text back, and write training pairs.

    For a German → English system, take an English → German run and English text. Counts of dropped pairs are
    kept in OUT.json. To train on the pairs, add them to the recipe as a second source:
    data.train: [..., {kind: tsv, file: /data/back.tsv.gz, weight: 0.5}].

    Examples:
      sightline backtranslate runs/en-de news.en.xz --out back.tsv.gz --tag "<BT>"
      sightline backtranslate runs/en-de news.en --sample --seed 7 --out back.tsv
      sightline backtranslate runs/en-de news.en --beam 5 --out back.tsv.gz --resume
    """
    from sightline.augment.backtranslation import backtranslate as write_pairs
    from sightline.augment.translator import Limits, describe_counts
    from sightline.progress import shown

    use_threads(threads)
    loaded = load_runs(run, others, ensemble_mean, device, precision)
    plain = [] if beam is None else ["decoding.groups=1", "decoding.mbr=null"]
    words = [*plain, *(overrides or ()), *decoding_flags(beam=beam, seed=seed)]
    loaded, _ = change_run(loaded, words, sample=sample)
    options, limits = loaded.recipe.decoding, Limits(max_tokens, max_ratio)
    with _resumable(), shown() as progress:
        counts = write_pairs(
            loaded, monolingual, out, options, limits=limits, tag=tag, resume=resume, progress=progress
        )
    print(f"done: {out}: {describe_counts(counts)}", file=sys.stderr)
    print(
        f"learn from it with, under data.train: {{kind: tsv, file: {out.resolve()}, weight: 1.0}} "
        f"(and columns: [2, 1] where data.swap is true)",
        file=sys.stderr,
    )


@contextmanager
def _resumable() -> Iterator[None]:
    """On an interruption, print how to resume and exit with code 130."""
    from sightline.training.world import Interrupted

    try:
        yield
    except (Interrupted, KeyboardInterrupt):
        print("interrupted; finished parts are kept: continue with the same command and --resume", file=sys.stderr)
        raise typer.Exit(code=130) from None
