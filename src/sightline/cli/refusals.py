"""What `sightline predict` and `sightline evaluate` refuse, rather than leave it undone in silence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.recipe.tasks import TaskSpec

if TYPE_CHECKING:
    from sightline.run import Run


_FOR: dict[str, tuple[str, Callable[[TaskSpec], bool]]] = {  # options for some tasks only: which, and a test for them
    "--target": ("seq2seq", lambda spec: spec.maps_text),
    "--prompt": ("language-model", lambda spec: spec.continues_text),
    "--midi": ("language-model", lambda spec: spec.continues_text),
    "--format": ("tag", lambda spec: spec.labels == "words"),
    "--column": ("tag", lambda spec: spec.labels == "words"),
}


def check_task(run: Run, asked: dict[str, Any], *, nbest: int | None, alignments: Path | None) -> None:
    """Refuse what the model of this task cannot do, rather than leave it undone in silence."""
    spec = run.recipe.task_spec
    if alignments is not None and (not spec.maps_text or not run.model.cross_attention_paths):
        why = "its decoder does not look at the source" if spec.maps_text else str(spec)
        raise ValueError(f"{run.folder} has no attention to show ({why})")
    for option, value in asked.items():
        tasks, fits = _FOR[option]
        if value is not None and not fits(spec):
            raise ValueError(f"{option} is for task: {tasks}, and {run.folder} is {spec}")
    if spec.labels == "words" and nbest is not None and nbest > 1:
        raise ValueError(f"--nbest {nbest}: a tagger has one answer, the likeliest label of each word; leave it out")


def refuse(asked: dict[str, Any], why: str) -> None:
    """Refuse options that are set (neither None nor False), the first of them with the reason."""
    for option, value in asked.items():
        if value is not None and value is not False:
            raise ValueError(f"{option} {why}")


def check_prefixes(run: Run, prefixes: Path | None, prompt: str | None) -> None:
    """What outputs must begin with, where the beginning is given already, or there is none."""
    if prefixes is not None and (prompt is not None or run.recipe.task_spec.labels == "words"):
        what = "--prompt is the beginning itself" if prompt is not None else "labels have no beginnings to force"
        raise ValueError(f"--prefixes {prefixes}: {what}; leave it out")


def check_decoded(run: Run, search: dict[str, Any], *, lowercase: bool, outputs: Path | None) -> None:
    """Options about outputs, where no metric looks at them: none are found then, unless they are to be written."""
    from sightline.evaluation.metrics import check_outputs_wanted

    if not run.recipe.of_text:
        asked = {"--lowercase": lowercase or None} | (search if outputs is None else {})
        check_outputs_wanted(run.recipe.evaluation.metrics, asked)


def check_apart(written: dict[str, Path | None], read: dict[str, Path | None]) -> None:
    """Refuse to write two things to one file, of which the second would replace the first, or over what is read."""
    places: dict[Path, str] = {path.resolve(): option for option, path in read.items() if path is not None}
    for option, path in written.items():
        if path is None:
            continue
        if (other := places.get(path.resolve())) is not None:
            raise ValueError(f"{option} {path} is the file of {other} too, and would replace it; give another name")
        places[path.resolve()] = option
