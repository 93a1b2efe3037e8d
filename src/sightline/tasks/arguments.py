"""Checks of arguments in the Python API."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from sightline.recipe import Recipe


class TrainedRun(Protocol):
    folder: Path
    recipe: Recipe


def check_text(method: str, text: Any, *, name: str = "text") -> None:
    """Refuse what is not a string."""
    if not isinstance(text, str):
        what = "one text, not a list of them" if isinstance(text, list | tuple) else "a string"
        raise TypeError(f"{method}: {name} must be {what}, not {_named(text)}")


def check_texts(method: str, texts: Any, *, name: str = "texts") -> None:
    """Refuse what is not a list of strings; the first wrong item is named by its index."""
    if isinstance(texts, str | bytes):
        raise TypeError(f"{method} takes a list of texts; put the one text into a list: [text]")
    try:
        items = list(enumerate(texts))
        len(texts)
    except TypeError:
        raise TypeError(f"{method} takes a list of texts as {name}, not {_named(texts)}") from None
    for index, text in items:
        if not isinstance(text, str):
            raise TypeError(f"{method}: {name}[{index}] must be a string, not {_named(text)}")


def wrong_task(run: TrainedRun, method: str, tasks: str, remedy: str) -> ValueError:
    """The error of a method that is not for the task of a run."""
    return ValueError(f"{method} is for task: {tasks}, and {run.folder} is {run.recipe.task_spec}; {remedy}")


def _named(value: Any) -> str:
    return "None" if value is None else f"{type(value).__name__} ({str(value)[:40]})"
