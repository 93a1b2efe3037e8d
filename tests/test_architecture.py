"""The call paths of docs/architecture.md: each is a stack of calls that really happens when its command runs."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import sightline
from dated_runs import LSTM, TRANSFORMER, write_recipe
from sightline.cli.app import app

ROOT = Path(__file__).parents[1]
SOURCE = Path(sightline.__file__).parent
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^### (\w+).*?^```text\n(sightline .+?)^```", PAGE, re.MULTILINE | re.DOTALL)
PATHS = {heading.lower(): block for heading, block in BLOCKS}
STEP = re.compile(r"^(\S+\.py):(\S+)")


def steps(block: str) -> list[tuple[str, str]]:
    """The `file:function` of each line below the command."""
    return [found.groups() for line in block.splitlines()[1:] if (found := STEP.match(line.strip()))]  # type: ignore[misc]


def missing(path: list[tuple[str, str]], words: list[str]) -> list[str]:
    """Run a command; the steps that are not found, in order, in the best stack below the last step."""
    last, best = path[-1], path

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal best
        if event != "call" or frame.f_code.co_qualname != last[1] or not frame.f_code.co_filename.endswith(last[0]):
            return
        stack, above = [], frame
        while above is not None:
            file = Path(above.f_code.co_filename)
            if SOURCE in file.parents:
                stack.append((file.relative_to(SOURCE).as_posix(), above.f_code.co_qualname))
            above = above.f_back  # type: ignore[assignment]
        calls = iter(reversed(stack))
        absent = [step for step in path if step not in calls]  # an iterator: what is found must come in this order
        best = min(best, absent, key=len)

    sys.setprofile(profile)
    try:
        app(words, standalone_mode=False)
    finally:
        sys.setprofile(None)
    return [":".join(step) for step in best]


def test_there_are_five_paths() -> None:
    assert list(PATHS) == ["train", "predict", "inspect", "compare", "from"]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the words in capitals of a command stand for."""
    folder = tmp_path_factory.mktemp("architecture")
    runs = {}
    for word, body in {"RUN": TRANSFORMER, "OTHER": LSTM}.items():
        (folder / word).mkdir()
        recipe = write_recipe(folder / word, body, limits={"steps": 2}, validate_every=2, samples=0)
        runs[word] = os.fspath(sightline.train(recipe, out=folder / word / "run"))
    (folder / "lines.txt").write_text("3 May 2031\n", encoding="utf-8")
    return {
        **runs,
        "RECIPE": str(folder / "RUN" / "recipe.yaml"),
        "FILE": str(folder / "lines.txt"),
        "OUT": str(folder / "out"),
    }


@pytest.mark.parametrize("name", PATHS)
def test_each_step_of_a_path_calls_the_next(name: str, places: dict[str, str]) -> None:
    program, *words = shlex.split(PATHS[name].splitlines()[0])
    assert program == "sightline"
    words = [places.get(word, word) for word in words]
    assert not missing(steps(PATHS[name]), [f"{word}-{name}" if word == places["OUT"] else word for word in words])
