"""Sequence-level knowledge distillation (Kim and Rush 2016): a student trains on the outputs of its teacher.

The teacher translates the training sources of the student's recipe; the student is trained on these pairs instead of
the original ones, or in addition to them. Taking the n-best output closest to the reference is their sequence-level
interpolation (§3.3).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from sightline.augment.corpus import EmptyCorpusError, Part
from sightline.augment.translator import Choice, Limits, Translator, make_part, single_line
from sightline.data.locate import is_reverse_direction
from sightline.data.sources import Example, training_examples
from sightline.progress import Progress, silent
from sightline.recipe import Recipe
from sightline.recipe.sources import TsvSource
from sightline.run import Run
from sightline.run_folder import RunError

FILE = "distilled.tsv.gz"


@dataclass(frozen=True)
class DistillationConfig:
    """How the teacher decodes, and how much of the original text is kept."""

    beam: int | None = None  # None: the teacher's own
    choose: Choice | None = None
    limits: Limits = field(default_factory=Limits)
    mix: float | None = None  # weight of the original pairs; None: left out


def distill(
    teacher: Run,
    recipe: Recipe,
    out: Path,
    config: DistillationConfig,
    *,
    resume: bool = False,
    progress: Progress = silent,
) -> tuple[Recipe, dict[str, int]]:
    """Write OUT/distilled.tsv.gz; return the recipe that trains on it, and the number of pairs kept and dropped.

    `recipe` comes from `open_recipe`. The teacher may be an ensemble (Freitag et al. 2017).
    """
    if (out / "recipe.yaml").exists() and not resume:
        raise RunError(f"{out} holds a training already; continue with --resume, or give another folder with --out")
    _check(teacher, recipe, config)
    options = teacher.plain_search(config.beam)
    if config.choose and options.beam == 1:
        raise ValueError(
            f"--choose {config.choose} takes one of the outputs of a beam, and a beam of 1 has one; raise --beam, or "
            f"leave --choose out"
        )
    if config.choose:
        options = teacher.plain_search(options.beam).model_copy(update={"nbest": options.beam})
    translate = Translator(teacher, options, config.limits, config.choose)

    def work(first: int, examples: list[Example]) -> Part:
        sources = [single_line(example.source) for example in examples]
        outcomes = translate(first, sources, [single_line(example.target) for example in examples])
        return make_part(zip(sources, (each.text for each in outcomes), strict=True), outcomes)

    corpus = translate.pair_file(out / FILE, "teacher", training_examples(recipe), choose=config.choose)
    existed = out.exists()
    out.mkdir(parents=True, exist_ok=True)
    try:
        counts = corpus.write(training_examples(recipe), work, resume=resume, progress=progress)
    except EmptyCorpusError:
        if not existed:
            out.rmdir()
        raise
    return student_recipe(recipe, corpus.file, counts["kept"], config.mix), counts


def student_recipe(recipe: Recipe, file: Path, pairs: int, mix: float | None) -> Recipe:
    """The recipe trained on `pairs` distilled pairs; with `mix` the original sources follow them."""
    data = recipe.data
    columns = (2, 1) if data.swap else (1, 2)  # the student's input is always the first column
    distilled = TsvSource(file=str(file.resolve()), columns=columns, weight=data.train[0].weight)
    train, limit = (distilled,), None
    if mix is not None:
        originals = (source.model_copy(update={"weight": source.weight * mix}) for source in data.train)
        train = (distilled, *originals)  # type: ignore[assignment]
        limit = None if data.limit is None else pairs + data.limit
    return recipe.model_copy(update={"data": data.model_copy(update={"train": train, "limit": limit})})


def _check(teacher: Run, recipe: Recipe, config: DistillationConfig) -> None:
    if not recipe.task_spec.maps_text:
        raise ValueError(f"distillation is for recipes that translate, and this one is {recipe.task_spec}")
    if recipe.data.noise is not None:
        raise ValueError(
            f"distillation is for recipes of pairs, and this one learns from plain text (data.noise.kind: "
            f"{recipe.data.noise.kind}); leave data.noise out"
        )
    if recipe.training.guided_alignment is not None:
        raise ValueError(
            f"training.guided_alignment.file ({recipe.training.guided_alignment.file}) links the words of the original "
            f"pairs, and a student learns from other sentences; leave it out"
        )
    if config.mix is not None and config.mix <= 0:
        raise ValueError(f"--mix {config.mix:g} must be more than 0; without it the original pairs are left out")
    weights = {source.weight for source in recipe.data.train}
    if len(weights) > 1:
        raise ValueError(
            f"data.train has sources of weights {sorted(weights)}, and what is distilled becomes one source; give them "
            f"the same weight"
        )
    if is_reverse_direction(teacher.recipe, recipe):
        raise ValueError(
            f"{teacher.folder} learned the other direction of this corpus (data.swap: "
            f"{str(teacher.recipe.data.swap).lower()}); give a teacher of the same direction"
        )
