"""What `sightline predict` and `sightline evaluate` refuse, rather than leave it undone in silence."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.cli.searching import option_of

if TYPE_CHECKING:
    from sightline.recipe import Recipe
    from sightline.run import Run


def check_task(run: Run, *, nbest: int | None, alignments: Path | None, **others: Any) -> None:
    """Refuse what the model of this task cannot do, rather than leave it undone in silence."""
    task = run.recipe.task
    if alignments is not None and (task != "seq2seq" or not run.model.looks):
        why = "its decoder does not look at the source" if task == "seq2seq" else f"task: {task}"
        raise ValueError(f"{run.folder} has no attention to show ({why})")
    belongs = {
        "target": "seq2seq",
        "prompt": "language-model",
        "midi": "language-model",
        "form": "tag",
        "column": "tag",
    }
    for name, value in others.items():
        if value is not None and belongs[name] != task:
            option = "format" if name == "form" else name
            raise ValueError(f"--{option} is for task: {belongs[name]}, and {run.folder} is task: {task}")
    if task == "tag" and nbest is not None and nbest > 1:
        raise ValueError(f"--nbest {nbest}: a tagger has one answer, the likeliest label of each word; leave it out")


def check_told(asked: dict[str, Any]) -> None:
    """Options that say how outputs are found, beside `--target`, which tells them."""
    for option, value in asked.items():
        if value is not None:
            raise ValueError(f"{option} says how outputs are found, and --target tells them; leave one of them out")


def check_prefixes(run: Run, prefixes: Path | None, prompt: str | None) -> None:
    """What outputs must begin with, where the beginning is given already, or there is none."""
    if prefixes is not None and (prompt is not None or run.recipe.task == "tag"):
        what = "--prompt is the beginning itself" if prompt is not None else "labels have no beginnings to force"
        raise ValueError(f"--prefixes {prefixes}: {what}; leave it out")


def check_measured(recipe: Recipe, asked: dict[str, Any]) -> None:
    """Options that say how outputs are found, for a model that is measured by the text itself."""
    for name, value in asked.items():
        if value is not None and recipe.of_text:
            raise ValueError(
                f"{option_of(name)} says how outputs are found, and a model of text is measured by the text itself; "
                f"leave it out"
            )


def check_decoded(run: Run, search: dict[str, Any], *, lowercase: bool, outputs: Path | None) -> None:
    """Options about outputs, where no metric looks at them: none are found then, unless they are to be written."""
    from sightline.evaluation.metrics import check_outputs_wanted

    if not run.recipe.of_text:
        asked = {"--lowercase": lowercase or None} | (search if outputs is None else {})
        check_outputs_wanted(run.recipe.evaluation.metrics, asked)


def check_aligned(asked: dict[str, Any]) -> None:
    """Options that say how outputs are found and scored, beside `--alignments`, by which the attention is."""
    for option, value in asked.items():
        if value is not None and value is not False:
            raise ValueError(f"{option} is about outputs, and --alignments scores the attention; leave one of them out")


def check_unaligned(asked: dict[str, Any]) -> None:
    """Options that say how word alignments are scored, where none are given."""
    for option, value in asked.items():
        if value:
            raise ValueError(f"{option} says how word alignments are scored; add --alignments FILE, or leave it out")


def check_apart(written: dict[str, Path | None], read: dict[str, Path | None]) -> None:
    """Refuse to write two things to one file, of which the second would replace the first, or over what is read."""
    places: dict[Path, str] = {path.resolve(): option for option, path in read.items() if path is not None}
    for option, path in written.items():
        if path is None:
            continue
        if (other := places.get(path.resolve())) is not None:
            raise ValueError(f"{option} {path} is the file of {other} too, and would replace it; give another name")
        places[path.resolve()] = option
