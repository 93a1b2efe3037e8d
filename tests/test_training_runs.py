"""Whole trainings in run folders: killed, interrupted, out of disk, resumed; and run folders that are not whole.

Trainings run in processes of their own, forked from a server that has PyTorch loaded, through the command line's own
entry point. They are killed by themselves, from a hook that Python calls on every file it opens, renames or removes, so
each dies at an exact moment, every time the same.
"""

from __future__ import annotations

import datetime
import json
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

import sightline
from sightline.run_folder import RunError
from sightline.training.loop import NotFinite
from watched_runs import Silent, records

LSTM = {"kind": "recurrent", "cell": "lstm", "layers": 1, "dropout": 0.2}
TRANSFORMER = {"kind": "transformer", "layers": 1, "heads": 2, "dropout": 0.2}
CHARACTERS = {"kind": "character"}


# --- a recipe ----------------------------------------------------------------------------------------------------


def dates(count: int, start: int) -> list[str]:
    days = (datetime.date(2000, 1, 1) + datetime.timedelta(days=start + 37 * number) for number in range(count))
    return [f"{day.day} {day:%B} {day.year}\t{day.isoformat()}\n" for day in days]


def write_recipe(
    folder: Path,
    body: dict[str, Any] = LSTM,
    tokenizer: dict[str, Any] = CHARACTERS,
    width: int = 16,
    noise: str | None = None,
    **training: Any,
) -> Path:
    """A corpus and a recipe of twelve small steps beside it."""
    (folder / "train.tsv").write_text("".join(dates(60, 0)))
    (folder / "valid.tsv").write_text("".join(dates(6, 11)))
    recipe = {
        "data": {
            "train": [{"kind": "tsv", "file": "train.tsv"}],
            "validation": {"kind": "tsv", "file": "valid.tsv"},
            "clean": {"max_tokens": 32},
        },
        "tokenizer": tokenizer,
        "model": {"width": width, "encoder": body, "decoder": body},
        "training": {
            "lr": 5e-3,
            "schedule": {"kind": "cosine", "warmup": 3},
            "batches": {"tokens": 200},
            "limits": {"steps": 12},
            "validate_every": 4,
            "save_every": 2,
            "keep": 2,
            "log_every": 3,
            "samples": 1,
            "device": "cpu",
            "threads": 1,
            **training,
        },
        "decoding": {"beam": 2, "max_length": 12},
        "evaluation": {"metrics": ["exact"]},
    }
    if noise is not None:  # the same lines as text
        del recipe["evaluation"]
        recipe["task"] = "masked-words" if noise == "mask" else "seq2seq"
        recipe["model"] = {"width": width, "encoder": body, **({} if noise == "mask" else {"decoder": body})}
        train, valid = ({"kind": "plain", "file": f"{name}.tsv"} for name in ("train", "valid"))
        recipe["data"] = {"train": [{**train, "weight": 1.5}], "validation": valid, "noise": {"kind": noise}}
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    return path


KINDS: dict[str, dict[str, Any]] = {
    "lstm": {},
    "transformer-ema": {"body": TRANSFORMER, "averaging": {"kind": "ema", "decay": 0.9}},
    "bpe-dropout-averaged-accumulated": {
        "body": TRANSFORMER,
        "tokenizer": {"kind": "bpe", "size": 60, "dropout": 0.2, "variants": 2},
        "averaging": {"kind": "checkpoints", "count": 3},
        "batches": {"tokens": 100, "accumulate": 2},
        "stopping": {"on": "metric"},
    },
    "masked-words": {"body": TRANSFORMER, "noise": "mask", "batches": {"tokens": 512, "context": 32}},
    "denoising": {"body": TRANSFORMER, "noise": "denoise", "batches": {"tokens": 512, "context": 32}},
    "span-corruption": {"body": TRANSFORMER, "noise": "span-corruption", "batches": {"tokens": 512, "context": 32}},
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Stores are built once for all tests here, and not in the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("SIGHTLINE_CACHE", str(folder))
        patch.setenv("SIGHTLINE_CORPORA", "")
        yield folder


@dataclass(frozen=True)
class Trained:
    """A recipe and the run folder of its uninterrupted training."""

    recipe: Path
    run: Path

    def model(self) -> bytes:
        return (self.run / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def trained(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Trained]:
    done: dict[str, Trained] = {}

    def get(kind: str) -> Trained:
        if kind not in done:
            folder = tmp_path_factory.mktemp(kind)
            recipe = write_recipe(folder, **KINDS[kind])
            done[kind] = Trained(recipe, sightline.train(recipe, out=folder / "run", display=Silent()))
        return done[kind]

    return get


@pytest.fixture
def finished(trained: Callable[[str], Trained], tmp_path: Path) -> Path:
    """A finished run folder of one's own."""
    return Path(shutil.copytree(trained("lstm").run, tmp_path / "finished"))


# --- processes ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Moment:
    """When something happens to a process: an event of Python's audit hooks and what its arguments must hold."""

    event: str
    holds: str
    signal: int = signal.SIGKILL

    def install(self) -> None:
        def watch(event: str, arguments: tuple[Any, ...]) -> None:
            if event == self.event and any(self.holds in str(argument) for argument in arguments):
                os.kill(os.getpid(), self.signal)

        sys.addaudithook(watch)


@dataclass(frozen=True)
class Order:
    """One call of the command line in a process of its own."""

    arguments: tuple[str, ...]
    folder: Path
    environment: dict[str, str]
    moment: Moment | None = None
    largest_file: int | None = None
    lines_in: bytes = b""

    def obey(self) -> None:
        """In the child: run the command with its streams in files."""
        (self.folder / "in").write_bytes(self.lines_in)
        for number, name, flags in ((0, "in", os.O_RDONLY), (1, "out", os.O_WRONLY), (2, "err", os.O_WRONLY)):
            os.dup2(os.open(self.folder / name, flags | os.O_CREAT), number)
        sys.stdin, sys.stdout = open(0, encoding="utf-8"), open(1, "w", encoding="utf-8")  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", buffering=1)  # noqa: SIM115
        os.environ.update(self.environment)
        torch.set_num_threads(1)  # two threads that wait for each other on a busy machine take a hundred times as long
        sys.argv = ["sightline", *self.arguments]
        if self.largest_file is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.largest_file, self.largest_file))
        if self.moment is not None:
            _tell_steps()
            self.moment.install()
        from sightline.cli import main

        try:
            main()
        finally:
            sys.stdout.flush()


def _tell_steps() -> None:
    """Make the display's calls events too, so that a process can die between two steps."""
    from sightline.training.display import PlainDisplay

    for name in ("step", "validation"):

        def told(self: Any, progress: Any, record: Any, name: str = name) -> None:
            sys.audit(f"sightline.{name}", f"<{progress.step}>")

        setattr(PlainDisplay, name, told)


def obey(order: Order) -> None:
    order.obey()


@dataclass
class Result:
    code: int | None
    out: str
    err: str


@dataclass
class Server:
    """Starts commands in forked processes."""

    folder: Path
    environment: dict[str, str]
    context: Any = field(default_factory=lambda: multiprocessing.get_context("forkserver"))
    count: int = 0

    def start(self, *arguments: Any, **how: Any) -> tuple[Any, Path]:
        self.count += 1
        folder = self.folder / f"process-{self.count}"
        folder.mkdir()
        order = Order(tuple(map(str, arguments)), folder, self.environment, **how)
        process = self.context.Process(target=obey, args=(order,))
        process.start()
        return process, folder

    def __call__(self, *arguments: Any, **how: Any) -> Result:
        process, folder = self.start(*arguments, **how)
        process.join(300)
        if process.exitcode is None:
            process.kill()
        return Result(process.exitcode, (folder / "out").read_text(), (folder / "err").read_text())


@pytest.fixture
def command(cache: Path, tmp_path: Path) -> Server:
    """Call the command line: `command("train", recipe, "--out", run)`."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["sightline.experiment", "sightline.run", "sightline.cli.app", "torch._dynamo"])
    (tmp_path / "processes").mkdir()
    return Server(tmp_path / "processes", {"SIGHTLINE_CACHE": str(cache), "SIGHTLINE_CORPORA": ""}, context)


MOMENTS = {
    "before the folder is complete": Moment("os.rename", "config.json"),
    "before the first checkpoint": Moment("sightline.step", "<1>"),
    "while the first checkpoint is written": Moment("open", "progress.json"),
    "after a step": Moment("sightline.step", "<3>"),
    "before a checkpoint gets its name": Moment("os.rename", "step-00000004"),
    "after a validation, before its checkpoint": Moment("sightline.validation", "<4>"),
    "after a checkpoint got its name, before others go": Moment("shutil.rmtree", "checkpoints/step-"),
    "between validations": Moment("sightline.step", "<11>"),
    "while the model is written": Moment("os.rename", "model.safetensors"),
}


# --- resume is exact ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_every_kind_of_moment_it_ends_as_if_it_had_never_been(
    kind: str, trained: Callable[[str], Trained], command: Server, tmp_path: Path
) -> None:
    whole, run = trained(kind), tmp_path / "run"
    moments = MOMENTS if kind == "lstm" else {name: MOMENTS[name] for name in list(MOMENTS)[2::2]}
    for name, moment in moments.items():
        result = command("train", whole.recipe, "--out", run, "--resume", moment=moment)
        assert result.code == -signal.SIGKILL, f"{name}: {result.err}"
        if (run / "model.safetensors").exists():  # of the best validation so far
            assert load_file(run / "model.safetensors").keys() == load_file(whole.run / "model.safetensors").keys()
    result = command("train", whole.recipe, "--out", run, "--resume")
    assert result.code == 0, result.err
    assert (run / "model.safetensors").read_bytes() == whole.model()
    assert records(run) == records(whole.run)
    assert sorted(path.name for path in run.rglob(".*.tmp")) == []
    steps = [path.name for path in sorted((run / "checkpoints").iterdir())]
    assert steps == [path.name for path in sorted((whole.run / "checkpoints").iterdir())]


def test_killed_from_outside_while_a_large_checkpoint_is_written(command: Server, tmp_path: Path) -> None:
    """At no exact moment, but when the half of a checkpoint is seen on the disk."""
    recipe = write_recipe(tmp_path, body=TRANSFORMER, width=256, limits={"steps": 3})
    assert command("train", recipe, "--out", tmp_path / "whole").code == 0
    run = tmp_path / "run"
    process, _ = command.start("train", recipe, "--out", run)
    deadline = time.monotonic() + 300
    while not (half := list((run / "checkpoints").glob(".step-*.tmp/optimizer.safetensors"))):
        assert process.is_alive()
        assert time.monotonic() < deadline
        time.sleep(0.0005)
    process.kill()
    process.join()
    assert half[0].exists(), "the checkpoint was finished before the kill"
    assert list((run / "checkpoints").glob("step-*")) == []
    result = command("train", recipe, "--out", run, "--resume")
    assert result.code == 0, result.err
    assert (run / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()
    assert records(run) == records(tmp_path / "whole")


def test_two_trainings_of_one_recipe_are_the_same_byte_for_byte(
    trained: Callable[[str], Trained], tmp_path: Path
) -> None:
    whole = trained("lstm")
    again = sightline.train(whole.recipe, out=tmp_path / "again", display=Silent())
    assert (again / "model.safetensors").read_bytes() == whole.model()
    other = sightline.train(whole.recipe, ["seed=2"], out=tmp_path / "other", display=Silent())
    assert (other / "model.safetensors").read_bytes() != whole.model()


def test_counting_operations_changes_nothing_that_is_learned(
    trained: Callable[[str], Trained], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = trained("transformer-ema")
    monkeypatch.setattr("sightline.experiment.step_cost", lambda model, plan, device: lambda batch: 0)
    uncounted = sightline.train(whole.recipe, out=tmp_path / "uncounted", display=Silent())
    assert (uncounted / "model.safetensors").read_bytes() == whole.model()
    counted = records(whole.run)
    spent = [record["flops"] for record in counted]
    assert spent == sorted(spent)
    assert spent[0] > 0
    assert [{**record, "flops": 0} for record in counted] == records(uncounted)


def test_a_damaged_checkpoint_is_passed_over_and_the_end_is_the_same(
    trained: Callable[[str], Trained], command: Server, tmp_path: Path
) -> None:
    whole, run = trained("lstm"), tmp_path / "run"
    command("train", whole.recipe, "--out", run, moment=Moment("sightline.step", "<9>"))
    newest = run / "checkpoints" / "step-00000008" / "optimizer.safetensors"
    data = bytearray(newest.read_bytes())
    data[-5] ^= 16
    newest.write_bytes(bytes(data))
    result = command("train", whole.recipe, "--out", run, "--resume")
    assert result.code == 0, result.err
    assert "step-00000008 is damaged" in result.err
    assert "resumed at step 6" in result.err
    assert (run / "model.safetensors").read_bytes() == whole.model()
    assert records(run) == records(whole.run)


def test_ctrl_c_saves_and_says_how_to_go_on(trained: Callable[[str], Trained], command: Server, tmp_path: Path) -> None:
    whole, run = trained("lstm"), tmp_path / "run"
    interrupt = Moment("sightline.step", "<5>", signal.SIGINT)
    result = command("train", whole.recipe, "--out", run, moment=interrupt)
    assert result.code == 130
    assert result.err.splitlines()[-1] == f"interrupted and saved; go on with: sightline train {run} --resume"
    assert (run / "checkpoints" / "step-00000005").is_dir()
    assert len(sightline.load(run, device="cpu").predict(["3 March 2015"])) == 1  # it can be used as it is
    result = command("train", run, "--resume")  # as it said
    assert result.code == 0, result.err
    assert (run / "model.safetensors").read_bytes() == whole.model()
    assert records(run) == records(whole.run)


# --- what goes wrong ---------------------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_stops_and_saves_the_batch(cache: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, body=TRANSFORMER, lr=1e30, schedule={"kind": "constant", "warmup": 0}, save_every=1)
    with pytest.raises(NotFinite, match=r"bad-batch\.json, the last good checkpoint is step \d.*Lower training\.lr"):
        sightline.train(recipe, out=tmp_path / "run", display=Silent())
    bad = json.loads((tmp_path / "run" / "bad-batch.json").read_text())
    corpus = dict(line.rstrip("\n").split("\t") for line in dates(60, 0))
    assert bad["examples"]
    assert all(corpus[example["source"]] == example["target"] for example in bad["examples"])
    kept = list((tmp_path / "run" / "checkpoints").glob("step-*"))
    assert all(torch.isfinite(t).all() for folder in kept for t in load_file(folder / "model.safetensors").values())


def test_a_disk_that_fills_up_while_saving_leaves_the_old_checkpoint(
    trained: Callable[[str], Trained], command: Server, tmp_path: Path
) -> None:
    whole, run = trained("lstm"), tmp_path / "run"
    command("train", whole.recipe, "--out", run, moment=Moment("sightline.step", "<3>"))
    before = {path.name: path.read_bytes() for path in (run / "checkpoints" / "step-00000002").iterdir()}
    size = len(before["model.safetensors"]) + 100  # enough for the model, not for the optimizer's state
    result = command("train", whole.recipe, "--out", run, "--resume", largest_file=size)
    assert result.code == 1
    told = result.err.splitlines()[-1]  # one line, no traceback
    assert told.startswith(f"sightline: checkpoint {run}/checkpoints/step-00000004 could not be written")
    assert "File too large" in told
    assert told.endswith("those before it are kept. Make room and go on with --resume")
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-00000002"]
    after = {path.name: path.read_bytes() for path in (run / "checkpoints" / "step-00000002").iterdir()}
    assert after == before
    assert command("train", whole.recipe, "--out", run, "--resume").code == 0  # with room again
    assert (run / "model.safetensors").read_bytes() == whole.model()


def test_a_second_training_into_one_folder_refuses(
    trained: Callable[[str], Trained], command: Server, tmp_path: Path
) -> None:
    recipe, run = trained("lstm").recipe, tmp_path / "run"
    first, _ = command.start("train", recipe, "--out", run, moment=Moment("sightline.step", "<3>", signal.SIGSTOP))
    try:
        deadline = time.monotonic() + 300
        while not (run / "checkpoints" / "step-00000002").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        for how in ([], ["--resume"]):
            second = command("train", recipe, "--out", run, *how)
            assert second.code == 1
            assert second.err == (
                f"sightline: another training is writing to {run}; wait for it, stop it, or give another folder "
                f"with --out\n"
            )
    finally:
        first.kill()
        first.join()
    assert command("train", recipe, "--out", run, "--resume").code == 0  # the lock went with the process


def test_a_folder_that_holds_a_training_is_not_trained_over(finished: Path, trained: Callable[[str], Trained]) -> None:
    before = (finished / "model.safetensors").read_bytes()
    with pytest.raises(RunError, match=r"holds a training already; go on with --resume, or give another folder"):
        sightline.train(trained("lstm").recipe, out=finished, display=Silent())
    assert (finished / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("training.lr=0.1", r"training\.lr: 0\.005 then, 0\.1 now"),
        ("seed=7", r"seed: 1 then, 7 now"),
        ("model.width=32", r"model\.width: 16 then, 32 now"),
        ("model.decoder.attention.kind=dot", r"model\.decoder\.attention\.kind: 'additive' then, 'dot' now"),
        ("data.limit=10", r"data\.limit: None then, 10 now"),
        ("training.stopping.on=metric", r"training\.stopping\.on: 'loss' then, 'metric' now"),
    ],
)
def test_resuming_with_another_recipe_is_refused_and_names_the_key(finished: Path, override: str, told: str) -> None:
    with pytest.raises(RunError, match=rf"cannot be resumed with this one: {told}$"):
        sightline.train(finished, [override], resume=True, display=Silent())


def test_a_finished_training_can_be_made_longer(finished: Path) -> None:
    sightline.train(finished, ["training.limits.steps=14"], resume=True, display=Silent())
    steps = [record["step"] for record in records(finished) if record["kind"] == "validation"]
    assert steps == [4, 8, 12, 14]


# --- run folders -------------------------------------------------------------------------------------------------


def test_what_is_not_a_folder_says_so(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"nothing is not a folder; give the folder that `sightline train` wrote"):
        sightline.load(tmp_path / "nothing")


def test_what_is_not_a_run_folder_says_so(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").touch()
    with pytest.raises(RunError, match=r"is not a run folder: it has no recipe\.yaml and no config\.json"):
        sightline.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("config.json", "has no config.json"),
        ("recipe.yaml", "has no recipe.yaml; it is part of every run folder; copy the whole folder"),
        ("tokenizer.json", "tokenizer.json"),
        ("model.safetensors", "has no model.safetensors; finish its training with: sightline train .* --resume"),
    ],
)
def test_a_run_folder_that_misses_a_file_names_it_and_what_to_do(finished: Path, name: str, told: str) -> None:
    (finished / name).unlink()
    with pytest.raises(ValueError, match=told):
        sightline.load(finished, device="cpu")


def test_a_run_folder_of_a_newer_version_says_how_to_update(finished: Path) -> None:
    config = json.loads((finished / "config.json").read_text())
    (finished / "config.json").write_text(json.dumps({**config, "format": 99, "sightline": "9.9"}))
    with pytest.raises(RunError, match=r"written by Sightline 9\.9 in format 99.*pip install -U sightline"):
        sightline.load(finished)


@pytest.mark.parametrize("content", [b'{"format": 1,\n oops', b"\xff\xfe\x00", b"[1, 2]", b""])
def test_a_damaged_config_says_so(finished: Path, content: bytes) -> None:
    (finished / "config.json").write_bytes(content)
    with pytest.raises(RunError, match=r"config\.json is damaged"):
        sightline.load(finished)


@pytest.mark.parametrize("damage", [lambda data: data[:-10], lambda data: b"", lambda data: b"x" * len(data)])
def test_a_damaged_model_says_so(finished: Path, damage: Callable[[bytes], bytes]) -> None:
    weights = finished / "model.safetensors"
    weights.write_bytes(damage(weights.read_bytes()))
    with pytest.raises(RunError, match=r"model\.safetensors is damaged .* copy it again, or resume the training"):
        sightline.load(finished, device="cpu")


def test_the_weights_of_another_model_are_refused(finished: Path) -> None:
    weights = finished / "model.safetensors"
    save_file({"other.weight": torch.zeros(2)}, weights)
    with pytest.raises(ValueError, match=r"these weights are of another model: missing .* not expected"):
        sightline.load(finished, device="cpu")


# --- predicting --------------------------------------------------------------------------------------------------

ODD_LINES = [
    "3 March 2015",
    "",
    "   ",
    "漢字 ☃ \x00 unknown",
    "1 January " * 400,
    "a\u2028b\x0cc\x85d",  # what str.splitlines would cut
    "tab\tand\rreturn",
    "</s> <pad> <s>",
    "4 May 1999",
]


@pytest.mark.parametrize("how", [[], ["--sample", "--seed", "3"], ["--nbest", "2"]])
def test_predict_never_drops_or_adds_a_line(finished: Path, command: Server, how: list[str]) -> None:
    text = "\n".join(ODD_LINES).encode()  # no newline at the end
    result = command("predict", finished, "-", *how, "--device", "cpu", lines_in=text)
    assert result.code == 0, result.err
    lines = result.out.split("\n")
    assert lines.pop() == ""
    assert len(lines) == len(ODD_LINES)
    if "--nbest" not in how:
        assert [lines[1], lines[2]] == ["", ""]
        assert all("\r" not in line for line in lines)


def test_predict_reads_files_like_standard_input(finished: Path, command: Server, tmp_path: Path) -> None:
    text = "".join(line + "\n" for line in ODD_LINES if "\r" not in line)
    (tmp_path / "lines.txt").write_text(text, newline="")
    one = command("predict", finished, tmp_path / "lines.txt", "--device", "cpu")
    other = command("predict", finished, "--device", "cpu", lines_in=text.encode())
    assert one.code == other.code == 0, one.err + other.err
    assert one.out == other.out
    assert one.out.count("\n") == len(ODD_LINES) - 1


def test_from_python_there_is_one_output_for_each_text(finished: Path) -> None:
    run = sightline.load(finished, device="cpu")
    outputs = run.predict(ODD_LINES)
    assert len(outputs) == len(ODD_LINES)
    assert outputs[1] == outputs[2] == ""
    assert all("\n" not in output for output in outputs)
    assert run.predict([]) == []
    assert run.predict(ODD_LINES, beam=1) == [run.predict([line], beam=1)[0] for line in ODD_LINES]


def test_a_text_in_place_of_a_list_is_an_error_that_says_so(finished: Path) -> None:
    with pytest.raises(TypeError, match=r"put the one text into a list"):
        sightline.load(finished, device="cpu").predict("3 March 2015")


def learned_positions(tmp_path: Path) -> Path:
    """A model that can count to 33 only: learned positions, and an output limit far beyond them."""
    body = {**TRANSFORMER, "positions": {"kind": "learned", "longest": 33}}
    recipe = write_recipe(tmp_path, body=body, limits={"steps": 1})
    overrides = ["decoding.max_length=256", "decoding.max_ratio=50"]
    return sightline.train(recipe, overrides, out=tmp_path / "run", display=Silent())


def test_a_text_longer_than_the_model_can_take_is_named(cache: Path, tmp_path: Path, command: Server) -> None:
    run = learned_positions(tmp_path)
    text = b"3 March 2015\n" + b"4 May 1999 " * 9 + b"\n5 May 2000\n"
    result = command("predict", run, "--device", "cpu", lines_in=text)
    assert result.code == 1
    assert "line 2 has 98 tokens and this model takes 32 (its learned positions); shorten or split it" in result.err


def test_a_validation_sentence_longer_than_the_model_can_take_is_named_before_training(
    cache: Path, tmp_path: Path
) -> None:
    body = {**TRANSFORMER, "positions": {"kind": "learned", "longest": 33}}
    recipe = write_recipe(tmp_path, body=body)
    with (tmp_path / "valid.tsv").open("a") as file:
        file.write("4 May 1999 " * 4 + "\t1999-05-04\n")
    with pytest.raises(ValueError, match=r"data\.validation, example 7: its source has 43 tokens.*positions\.longest"):
        sightline.train(recipe, out=tmp_path / "run", display=Silent())
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_no_output_grows_past_the_learned_positions(cache: Path, tmp_path: Path) -> None:
    """An untrained model goes on until it is stopped; that must not be by an error."""
    run = sightline.load(learned_positions(tmp_path), device="cpu")
    with torch.no_grad():
        run.model.output.bias[3] = -1e4  # never the end
    for beam in (1, 2):
        (output,) = run.predict_nbest(["3 March 2015"], run.options(beam=beam))[0][:1]
        assert len(output.tokens) == 32
