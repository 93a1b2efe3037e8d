"""Finished trainings, and commands that start more."""

from __future__ import annotations

import multiprocessing
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import sightline
from dated_runs import KINDS, Trained, write_recipe
from ordered_commands import Server
from watched_runs import Silent, own_cache


@pytest.fixture(scope="package")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Stores are built once for all tests here."""
    with own_cache(tmp_path_factory.mktemp("cache")) as folder:
        yield folder


@pytest.fixture(scope="package")
def trained(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Trained]:
    done: dict[str, Trained] = {}

    def get(kind: str) -> Trained:
        if kind not in done:
            folder = tmp_path_factory.mktemp(kind)
            recipe = write_recipe(folder, **KINDS[kind])
            done[kind] = Trained(recipe, sightline.train(recipe, out=folder / "run", display=Silent()).folder)
        return done[kind]

    return get


@pytest.fixture
def finished(trained: Callable[[str], Trained], tmp_path: Path) -> Path:
    """A finished run folder of one's own."""
    return Path(shutil.copytree(trained("lstm").run, tmp_path / "finished"))


@pytest.fixture
def command(cache: Path, tmp_path: Path) -> Server:
    """Call the command line: `command("train", recipe, "--out", run)`."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["sightline.training.train", "sightline.run", "sightline.cli.app", "torch._dynamo"])
    (tmp_path / "processes").mkdir()
    return Server(tmp_path / "processes", {"SIGHTLINE_CACHE": str(cache), "SIGHTLINE_CORPORA": ""}, context)
