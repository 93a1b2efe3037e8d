"""Sequence-level knowledge distillation (Kim and Rush 2016): a student learns what its teacher writes.

The training sources of the student's recipe are translated by the teacher with a beam; the student is trained on these
pairs in place of the original ones, or beside them. Where the output nearest to the reference is chosen among the
n-best, this is their sequence-level interpolation (§3.3).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from sightline.augment.backtranslation import (
    Choice,
    Limits,
    Translator,
    count_outcomes,
    precision_entry,
    single_line,
    weights_digest,
)
from sightline.augment.corpus import EmptyCorpusError, PairFile, Part, fingerprint, part_size
from sightline.data.locate import is_reverse_direction
from sightline.data.sources import Example, training_examples
from sightline.progress import Progress, silent
from sightline.recipe import Recipe
from sightline.recipe.sources import TsvSource
from sightline.run import Run
from sightline.run_folder import RunError

FILE = "distilled.tsv.gz"


@dataclass(frozen=True)
class Distilling:
    """How the teacher decodes, and whether the original text is kept too."""

    beam: int | None = None  # by default the teacher's own
    choose: Choice | None = None
    limits: Limits = field(default_factory=Limits)
    mix: float | None = None  # how often each original pair is seen beside the distilled ones


def distill(
    teacher: Run,
    recipe: Recipe,
    out: Path,
    how: Distilling,
    *,
    resume: bool = False,
    progress: Progress = silent,
) -> tuple[Recipe, dict[str, int]]:
    """Write DIR/distilled.tsv.gz, and return the recipe that learns from it, and how many pairs were kept and dropped.

    `recipe` is as `open_recipe` gives it. An ensemble may teach (Freitag et al. 2017).
    """
    if (out / "recipe.yaml").exists() and not resume:
        raise RunError(f"{out} holds a training already; go on with --resume, or give another folder with --out")
    _check(recipe, how)
    _check_direction(teacher, recipe)
    options = teacher.plain_search(how.beam)
    if how.choose and options.beam == 1:
        raise ValueError(
            f"--choose {how.choose} takes one of the outputs of a beam, and a beam of 1 has one; raise --beam, or "
            f"leave --choose out"
        )
    if how.choose:
        options = teacher.plain_search(options.beam).model_copy(update={"nbest": options.beam})
    plan = {
        "teacher": weights_digest(teacher),
        **fingerprint(training_examples(recipe)),
        "decoding": options.model_dump(mode="json", exclude={"batch_tokens"}),
        **precision_entry(teacher),
        "choose": how.choose,
        "max_tokens": how.limits.max_tokens,
        "max_ratio": how.limits.max_ratio,
    }
    translate = Translator(teacher, options, how.limits, how.choose)

    def work(first: int, examples: list[Example]) -> Part:
        sources = [single_line(example.source) for example in examples]
        outcomes = translate(first, sources, [single_line(example.target) for example in examples])
        pairs = [(s, each.text) for s, each in zip(sources, outcomes, strict=True) if each.dropped is None]
        return Part(pairs, count_outcomes(outcomes))

    was_there = out.exists()
    out.mkdir(parents=True, exist_ok=True)
    corpus: PairFile[Example] = PairFile(out / FILE, plan, part_size(teacher.device.type))
    try:
        counts = corpus.make(training_examples(recipe), work, resume=resume, progress=progress)
    except EmptyCorpusError:
        if not was_there:
            out.rmdir()
        raise
    return student_recipe(recipe, corpus.file, counts["kept"], how.mix), counts


def student_recipe(recipe: Recipe, file: Path, pairs: int, mix: float | None) -> Recipe:
    """The recipe on the distilled text, `pairs` of them; with `mix` the original sources come after it."""
    data = recipe.data
    columns = (2, 1) if data.swap else (1, 2)  # the file has what a student reads first
    distilled = TsvSource(file=str(file.resolve()), columns=columns, weight=data.train[0].weight)
    train, limit = (distilled,), None
    if mix is not None:
        originals = (source.model_copy(update={"weight": source.weight * mix}) for source in data.train)
        train = (distilled, *originals)  # type: ignore[assignment]
        limit = None if data.limit is None else pairs + data.limit
    return recipe.model_copy(update={"data": data.model_copy(update={"train": train, "limit": limit})})


def _check(recipe: Recipe, how: Distilling) -> None:
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
    if how.mix is not None and how.mix <= 0:
        raise ValueError(f"--mix {how.mix:g} must be more than 0; without it the original pairs are left out")
    weights = {source.weight for source in recipe.data.train}
    if len(weights) > 1:
        raise ValueError(
            f"data.train has sources of weights {sorted(weights)}, and what is distilled becomes one source; give them "
            f"the same weight"
        )


def _check_direction(teacher: Run, recipe: Recipe) -> None:
    if is_reverse_direction(teacher.recipe, recipe):
        raise ValueError(
            f"{teacher.folder} learned the other direction of this corpus (data.swap: "
            f"{str(teacher.recipe.data.swap).lower()}); give a teacher of the same direction"
        )
