"""Commands warn about a run that was interrupted before its first validation."""

from __future__ import annotations

import os
import signal
import warnings
from pathlib import Path

import pytest

import sightline
from dated_runs import write_recipe
from ordered_commands import Server
from sightline.run import NeverValidated
from sightline.training.world import Interrupted
from watched_runs import Silent


def test_a_run_that_was_never_validated_warns_where_it_is_used(
    cache: Path, tmp_path: Path, command: Server, finished: Path
) -> None:
    stop = Silent({3: lambda: os.kill(os.getpid(), signal.SIGINT)})
    with pytest.raises(Interrupted):
        sightline.train(write_recipe(tmp_path), out=tmp_path / "run", display=stop)
    said = r"interrupted at step 3, before its first validation.*sightline train \S+ --resume"
    with pytest.warns(NeverValidated, match=said):
        sightline.load(tmp_path / "run", device="cpu")
    for arguments in (["predict", tmp_path / "run"], ["evaluate", tmp_path / "run"]):
        result = command(*arguments, "--device", "cpu", lines_in=b"3 March 2015\n")
        assert result.code == 0, result.err
        assert result.err.count("before its first validation") == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sightline.load(finished, device="cpu")
        (finished / "metrics.jsonl").unlink()  # nothing is known then
        sightline.load(finished, device="cpu")
