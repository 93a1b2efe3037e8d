"""Checkpoints: whole or not there, and whole means bit for bit."""

from __future__ import annotations

import errno
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

from sightline import files
from sightline.files import TEMPORARY
from sightline.models.seq2seq import Seq2Seq
from sightline.models.weights import load_parameters, parameters_of
from sightline.recipe import Training
from sightline.training import checkpoints as module
from sightline.training.averaging import RunningAverage
from sightline.training.checkpoints import Checkpoints, Progress
from sightline.training.optimizers import build_optimizer

BODY = {"kind": "transformer", "layers": 1, "heads": 2, "dropout": 0.0}
FILES = ("model.safetensors", "optimizer.safetensors", "progress.json")


class Sitting:
    """A model on its way, as a training holds it."""

    def __init__(self, model: Seq2Seq, *, averaged: bool = True) -> None:
        self.model = model
        self.optimizer = build_optimizer(model, Training(lr=0.01))
        self.average = RunningAverage(model, 0.9) if averaged else None

    def step(self, number: int) -> None:
        torch.manual_seed(number)
        self.optimizer.zero_grad()
        sum((parameter * torch.randn_like(parameter)).sum() for parameter in self.model.parameters()).backward()
        self.optimizer.step()
        if self.average is not None:
            self.average.update(self.model, number)

    def save(self, checkpoints: Checkpoints, progress: Progress) -> None:
        checkpoints.save(self.model, self.optimizer, self.average, progress)

    def everything(self) -> dict[str, torch.Tensor]:
        """All numbers there are, by name."""
        state = {name: parameter.detach().clone() for name, parameter in self.model.named_parameters()}
        for name, parameter in self.model.named_parameters():
            state |= {f"{name}/{key}": value.clone() for key, value in self.optimizer.state[parameter].items()}
        if self.average is not None:
            state |= {f"{name}/average": weight.clone() for name, weight in self.average.weights.items()}
        return state


@pytest.fixture
def sitting(build_model: Callable[..., Seq2Seq]) -> Callable[..., Sitting]:
    def start(*, seed: int = 0, tie: str = "all", averaged: bool = True) -> Sitting:
        return Sitting(build_model(BODY, BODY, tie=tie, seed=seed), averaged=averaged)

    return start


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


def saved(folder: Path, run: Sitting, *steps: int, keep: int = 3) -> Checkpoints:
    checkpoints = Checkpoints(folder, keep)
    for step in steps:
        run.step(step)
        run.save(checkpoints, Progress(step=step))
    return checkpoints


@pytest.mark.parametrize("averaged", [True, False])
@pytest.mark.parametrize("tie", ["all", "none"])
def test_a_round_trip_restores_everything_bit_for_bit(
    tmp_path: Path, sitting: Callable[..., Sitting], averaged: bool, tie: str
) -> None:
    run = sitting(averaged=averaged, tie=tie)
    progress = Progress(
        step=3,
        epoch=1,
        batch=2,
        tokens=77,
        seconds=1.5,
        best=0.1 + 0.2,
        best_step=2,
        waited=1,
        journal=9,
        recent=(1, 2),
        unlogged=((1.1, 0.7, 1 / 3), (2.0, 0.5, 1e-9)),
    )
    for step in (1, 2, 3):
        run.step(step)
    checkpoints = Checkpoints(tmp_path, 3)
    run.save(checkpoints, progress)
    other = sitting(seed=1, averaged=averaged, tie=tie)
    assert checkpoints.restore(3, other.model, other.optimizer, other.average) == progress
    assert_equal(run.everything(), other.everything())
    for resumed in (run, other):  # and it goes on as if nothing had happened
        resumed.step(4)
    assert_equal(run.everything(), other.everything())


def test_the_checksums_are_those_of_sha256sum(tmp_path: Path, sitting: Callable[..., Sitting]) -> None:
    checkpoints = saved(tmp_path, sitting(), 1)
    done = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=checkpoints.path(1), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{name}: OK" for name in FILES]


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])  # of SHA256SUMS, more than its last newline


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


DAMAGE = [truncate, flip_a_bit, Path.unlink, lambda path: path.write_bytes(b"")]


@pytest.mark.parametrize("name", [*FILES, "SHA256SUMS"])
@pytest.mark.parametrize("damage", DAMAGE, ids=["truncated", "bit-flipped", "missing", "empty"])
def test_a_damaged_checkpoint_is_skipped(
    tmp_path: Path, sitting: Callable[..., Sitting], name: str, damage: Callable[[Path], None]
) -> None:
    checkpoints = saved(tmp_path, sitting(averaged=False), 10, 20)
    assert checkpoints.newest() == 20
    damage(checkpoints.path(20) / name)
    assert not checkpoints.whole(20)
    with pytest.warns(UserWarning, match=r"step-00000020 is damaged .* using the one before it"):
        assert checkpoints.newest() == 10


def test_all_checkpoints_damaged(tmp_path: Path, sitting: Callable[..., Sitting]) -> None:
    checkpoints = saved(tmp_path, sitting(), 10, 20)
    for step in (10, 20):
        flip_a_bit(checkpoints.path(step) / "model.safetensors")
    with pytest.warns(UserWarning, match="is damaged") as warned:
        assert checkpoints.newest() is None
    told = [str(warning.message).partition("; ")[2] for warning in warned]
    assert told == ["using the one before it", "and there is none before it"]


def test_a_damaged_checkpoint_is_replaced(tmp_path: Path, sitting: Callable[..., Sitting]) -> None:
    run = sitting()
    checkpoints = saved(tmp_path, run, 10)
    flip_a_bit(checkpoints.path(10) / "model.safetensors")
    run.save(checkpoints, Progress(step=10))
    assert checkpoints.whole(10)
    assert checkpoints.newest() == 10


def test_no_checkpoint_is_newest_in_an_empty_run(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path, 3).newest() is None


def test_newest_best_and_averaged_checkpoints_are_kept(tmp_path: Path, sitting: Callable[..., Sitting]) -> None:
    run, checkpoints = sitting(averaged=False), Checkpoints(tmp_path, 2)
    for step in range(1, 7):
        run.save(checkpoints, Progress(step=step, best_step=2, recent=(4,) if step >= 4 else ()))
    assert checkpoints.steps() == [2, 4, 5, 6]


def test_unfinished_checkpoints_are_ignored(tmp_path: Path, sitting: Callable[..., Sitting]) -> None:
    checkpoints = saved(tmp_path, sitting(), 10)
    (checkpoints.folder / ".step-00000020.123-abcd.tmp").mkdir()
    (checkpoints.folder / "step-20").mkdir()
    assert checkpoints.steps() == [10]


def fail_on(name: str) -> Callable[..., Any]:
    """`save_file` on a disk that fills up at one of the files."""
    real = module.save_file

    def save(tensors: Any, path: Path) -> None:
        if path.name == name:
            path.write_bytes(b"half of i")
            raise OSError(errno.ENOSPC, "No space left on device")
        real(tensors, path)

    return save


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors"])
def test_a_failed_save_keeps_earlier_checkpoints(
    tmp_path: Path, sitting: Callable[..., Sitting], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = sitting()
    checkpoints = saved(tmp_path, run, 1, 2, 3, keep=2)
    before = run.everything()
    monkeypatch.setattr(module, "save_file", fail_on(name))
    with pytest.raises(OSError, match="No space left"):
        run.save(checkpoints, Progress(step=4))
    assert sorted(path.name for path in checkpoints.folder.iterdir()) == ["step-00000002", "step-00000003"]
    assert checkpoints.newest() == 3
    other = Sitting(run.model)
    checkpoints.restore(3, other.model, other.optimizer, other.average)
    assert_equal(before, other.everything())


def test_an_identical_checkpoint_is_not_written_again(tmp_path: Path, sitting: Callable[..., Sitting]) -> None:
    run = sitting()
    checkpoints = saved(tmp_path, run, 5)
    before = (checkpoints.path(5) / "model.safetensors").stat().st_mtime_ns
    run.save(checkpoints, Progress(step=5))
    run.save(checkpoints, Progress(step=5, seconds=9.0))  # the clock alone is no reason
    assert (checkpoints.path(5) / "model.safetensors").stat().st_mtime_ns == before


def test_a_checkpoint_with_older_progress_is_replaced(tmp_path: Path, sitting: Callable[..., Sitting]) -> None:
    run = sitting()
    checkpoints = saved(tmp_path, run, 5)
    run.save(checkpoints, Progress(step=5, validated=5))
    assert checkpoints.whole(5)
    assert checkpoints.progress(5).validated == 5


def test_a_checkpoint_stays_until_its_replacement_is_on_disk(
    tmp_path: Path, sitting: Callable[..., Sitting], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = sitting()
    checkpoints = saved(tmp_path, run, 5)

    def fail(path: Path) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(files, "_sync_file", fail)
    with pytest.raises(OSError, match="could not be written"):
        run.save(checkpoints, Progress(step=5, validated=5))
    assert checkpoints.whole(5)
    assert checkpoints.progress(5).validated is None
    assert [path.name for path in checkpoints.folder.iterdir()] == ["step-00000005"]


def test_progress_is_readable_json(tmp_path: Path, sitting: Callable[..., Sitting]) -> None:
    checkpoints = saved(tmp_path, sitting(), 7)
    text = (checkpoints.path(7) / "progress.json").read_text()
    assert json.loads(text)["step"] == 7
    assert text.startswith('{\n  "step": 7,\n')  # a line for each


@pytest.mark.parametrize("content", [b"nonsense\n", b"\xff  model.safetensors\n"])
def test_unreadable_checksums_count_as_damage(tmp_path: Path, sitting: Callable[..., Sitting], content: bytes) -> None:
    checkpoints = saved(tmp_path, sitting(), 7)
    (checkpoints.path(7) / "SHA256SUMS").write_bytes(content)
    assert not checkpoints.whole(7)


def test_a_checkpoint_of_an_older_version_is_read(tmp_path: Path, sitting: Callable[..., Sitting]) -> None:
    checkpoints = saved(tmp_path, sitting(), 7)
    path = checkpoints.path(7) / "progress.json"
    values = json.loads(path.read_text())
    del values["unlogged"]
    path.write_text(json.dumps(values))
    assert checkpoints.progress(7) == Progress(step=7)


def test_temporary_files_are_removed(tmp_path: Path) -> None:
    (tmp_path / f".model.safetensors.9-abcd{TEMPORARY}").write_bytes(b"half")
    (tmp_path / "checkpoints" / f".step-00000002.9-abcd{TEMPORARY}").mkdir(parents=True)
    (tmp_path / "model.safetensors").write_bytes(b"whole")
    Checkpoints(tmp_path, 3).sweep()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["checkpoints", "model.safetensors"]


def test_a_safetensors_error_is_reported_as_a_failed_write(
    tmp_path: Path, sitting: Callable[..., Sitting], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(tensors: Any, path: Path) -> None:
        raise SafetensorError("I/O error")

    monkeypatch.setattr(module, "save_file", fail)
    with pytest.raises(OSError, match=r"step-00000001 could not be written \(I/O error\); earlier ones are kept"):
        sitting().save(Checkpoints(tmp_path, 3), Progress(step=1))


def test_the_running_averages_of_a_checkpoint_have_the_models_names(
    tmp_path: Path, sitting: Callable[..., Sitting]
) -> None:
    run = sitting()
    checkpoints = saved(tmp_path, run, 7)
    assert_equal(checkpoints.averages(7), dict(run.average.weights))
    assert saved(tmp_path / "other", sitting(averaged=False), 7).averages(7) == {}


# --- weights of another model ------------------------------------------------------------------------------------


def test_weights_of_another_model_are_refused_by_name(build_model: Callable[..., Seq2Seq]) -> None:
    model, other = build_model(BODY, BODY, tie="all"), build_model(BODY, BODY, tie="none")
    before = parameters_of(model)
    with pytest.raises(ValueError, match=r"not expected \['output.weight', 'source_embedding.weight'\]"):
        load_parameters(model, parameters_of(other))
    with pytest.raises(ValueError, match=r"missing \['output.weight', 'source_embedding.weight'\]"):
        load_parameters(other, before)


def test_weights_of_another_shape_are_refused_by_name(build_model: Callable[..., Seq2Seq]) -> None:
    model = build_model(BODY, BODY)
    weights = parameters_of(model) | {"output.bias": torch.zeros(99)}
    with pytest.raises(ValueError, match=r"weight output.bias has shape \(99,\), the model's is \(13,\)"):
        load_parameters(model, weights)


def test_batch_norm_statistics_are_saved_averaged_and_restored(
    build_model: Callable[..., Seq2Seq], tmp_path: Path
) -> None:
    body = {**BODY, "norm": {"kind": "batch"}}
    run, other = (Sitting(build_model(body, body, seed=seed)) for seed in (0, 1))
    gathered = {name for name, _ in run.model.named_buffers() if name.endswith((".mean", ".variance"))}
    assert len(gathered) == 2 * 7  # two and three blocks, and the norm at the end of each stack
    assert run.average is not None
    before = {name: run.average.weights[name].clone() for name in gathered}
    for name in gathered:
        run.model.get_buffer(name).add_(1.0)
    run.step(100)
    checkpoints = saved(tmp_path, run, 1)
    checkpoints.restore(1, other.model, other.optimizer, other.average)
    assert_equal(parameters_of(other.model), parameters_of(run.model))
    assert gathered <= parameters_of(run.model).keys()
    assert other.average is not None
    assert_equal(other.average.weights, run.average.weights)
    for name in gathered:
        assert (run.average.weights[name] - before[name]).abs().max() > 0.01
