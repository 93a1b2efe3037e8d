"""A fake training that takes no time: `python fake_training.py RUN BEHAVIOUR NOTES`.

It writes down when it begins and ends, so that a test can see what ran beside what. PyTorch is not imported.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

STEPS = 12


def save(run: Path, step: int) -> None:
    """Write a checkpoint and a model."""
    folder = run / "checkpoints" / f"step-{step:08d}"
    folder.mkdir(parents=True, exist_ok=True)
    progress = {"step": step, "epoch": 1, "seconds": 1.0, "waited": 0, "validated": step}
    (folder / "progress.json").write_text(json.dumps(progress))
    (run / "model.safetensors").write_bytes(b"")
    lines = [{"kind": "train", "step": step, "epoch": 1, "tokens_per_second": 1234.5}]
    lines += [{"kind": "validation", "step": step, "epoch": 1, "loss": 0.5, "exact": 75.0}]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


class Notes:
    """A log shared by all trainings of a test: lines `event name value`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, *words: object) -> None:
        with self.path.open("a") as file:
            file.write(" ".join(map(str, words)) + "\n")

    def lines(self) -> list[list[str]]:
        return [line.split(" ") for line in self.path.read_text().splitlines()] if self.path.exists() else []

    def names(self, event: str) -> list[str]:
        return [words[1] for words in self.lines() if words[0] == event]

    def wait_for(self, event: str, count: int) -> None:
        deadline = time.monotonic() + 60
        while len(self.names(event)) < count:
            assert time.monotonic() < deadline, f"waited in vain for {count} of {event}"
            time.sleep(0.01)


def behave(run: Path, behaviour: str, notes: Notes) -> int:
    notes.add("begin", run.name)
    notes.add("threads", run.name, os.environ.get("OMP_NUM_THREADS", "-"))
    if behaviour == "meet":  # another must be running at the same time
        notes.wait_for("begin", 2)
    elif behaviour == "fail":
        print("one\ntwo\nsightline: it went wrong")
        return 3
    elif behaviour == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    elif behaviour.startswith("hang"):  # until it is interrupted, then saves
        stop: list[int] = []
        signal.signal(signal.SIGINT, lambda number, frame: stop.append(number))
        notes.add("ready", run.name)
        while not stop:
            time.sleep(0.01)
        time.sleep(1.2 if behaviour == "hang-long" else 0.3)  # a second interrupt would arrive in this time
        save(run, 5)
        notes.add("saved", run.name, len(stop))
        return 130
    save(run, STEPS)
    return 0


def command_of(folder: Path, **behaviours: str) -> Any:
    """The command that replaces a training; `behaviours` by run name, with _ for characters not in Python names."""
    from sightline.recipe.loading import save_recipe

    def command(run: Any) -> list[str]:
        resumed = (run.folder / "recipe.yaml").exists()
        Notes(folder / "notes").add("resume" if resumed else "new", run.name)
        run.folder.mkdir(parents=True, exist_ok=True)
        save_recipe(run.recipe, run.folder / "recipe.yaml")
        behaviour = behaviours.get(run.name.replace("=", "_").replace(",", "_"), behaviours.get("others", "finish"))
        return [sys.executable, "-S", __file__, str(run.folder), behaviour, str(folder / "notes")]

    return command


def sweep_until_interrupted(folder: Path) -> int:
    """Run a whole sweep: `python fake_training.py --sweep FOLDER`."""
    from sightline.sweeps.plan import plan_sweep
    from sightline.sweeps.sweep import run_sweep
    from sightline.training.world import Interrupted

    plan = plan_sweep(str(folder / "recipe.yaml"), ["seed=1,2,3,4"], out=folder / "sweep")
    command = command_of(folder, seed_1="finish", seed_2="hang", others="hang-long")
    try:
        run_sweep(plan, jobs=2, command=command, compare=None)
    except Interrupted as error:
        print(error)
        return 130
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "--sweep":
        sys.exit(sweep_until_interrupted(Path(sys.argv[2])))
    notes = Notes(Path(sys.argv[3]))
    code = behave(Path(sys.argv[1]), sys.argv[2], notes)
    notes.add("end", Path(sys.argv[1]).name, code)
    sys.exit(code)
