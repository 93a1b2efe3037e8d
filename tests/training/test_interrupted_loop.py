"""The trainer, interrupted: it goes on as if it had never stopped, whatever was left behind."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_jobs import Job, assert_equal
from torch import nn

from sightline.models.weights import parameters_of
from sightline.recipe.training import step_seed
from sightline.training import trainer
from sightline.training.averaging import mean_weights
from sightline.training.checkpoints import Checkpoints
from sightline.training.loggers import Journal
from sightline.training.validation import Validation
from sightline.training.world import Interrupted
from watched_runs import Killed, pull_the_plug, records

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "ema": {"averaging": {"kind": "ema", "decay": 0.9}},
    "checkpoint-averaging": {"averaging": {"kind": "checkpoints", "count": 2}},
    "accumulation": {"batches": {"accumulate": 2}},
    "cosine": {"schedule": {"kind": "cosine", "warmup": 3}, "weight_decay": 0.1},
    "own-saves": {"save_every": 3, "validate_every": None},
    "last": {"result": "last", "averaging": {"kind": "ema", "decay": 0.9}},
}


@pytest.fixture(autouse=True)
def _hangups_are_not_ignored() -> Iterator[None]:
    """Whatever started the tests: nohup ignores SIGHUP for all that it runs."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stop_signal_finishes_the_step_saves_and_exports(job: Callable[..., Job], number: signal.Signals) -> None:
    before = signal.getsignal(number)
    run = job()
    run.display.at[3] = lambda: signal.raise_signal(number)
    with pytest.raises(Interrupted):
        run.fit()
    assert Checkpoints(run.run, 3).newest() == 3
    assert_equal(run.exported[-1], run.validated[0])  # of step 2, the best so far
    assert signal.getsignal(number) is before


def test_a_hangup_that_nohup_ignores_stays_ignored(job: Callable[..., Job]) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        run = job()
        run.display.at[3] = lambda: signal.raise_signal(signal.SIGHUP)
        assert run.fit().step == 6
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_hangup_that_comes_twice_is_no_second_ctrl_c(job: Callable[..., Job]) -> None:
    run = job()
    run.display.at[3] = lambda: [signal.raise_signal(signal.SIGHUP) for _ in range(2)]
    with pytest.raises(Interrupted):
        run.fit()
    assert Checkpoints(run.run, 3).newest() == 3


def test_a_second_ctrl_c_stops_at_once(job: Callable[..., Job]) -> None:
    run = job()
    run.display.at[3] = lambda: [signal.raise_signal(signal.SIGINT) for _ in range(2)]
    with pytest.raises(KeyboardInterrupt):
        run.fit()
    assert Checkpoints(run.run, 3).newest() == 2


@pytest.mark.parametrize(("kind", "at"), [("plain", 1), ("plain", 8), *((kind, 5) for kind in KINDS)])
def test_a_resumed_training_is_the_uninterrupted_one(job: Callable[..., Job], kind: str, at: int) -> None:
    training = {"limits": {"steps": 11}, "keep": 2, **KINDS[kind]}
    whole = job("whole", **training)
    scores = [5.0, 4.0, 4.5, 3.0, 6.0, 7.0]

    def score(self: Job) -> Callable[[nn.Module], Validation]:
        """Found by the step, so that it does not matter how often validation ran."""

        def validate(model: nn.Module) -> Validation:
            total = sum(weight.double().sum().item() for weight in parameters_of(model).values())
            return Validation(scores[int(abs(total) * 1000) % len(scores)], {"loss": total})

        return validate

    whole.validate = score(whole)
    expected = whole.fit()

    broken = job("broken", **training)
    broken.validate = score(broken)
    broken.display.at[at] = pull_the_plug
    with pytest.raises(Killed):
        broken.fit()
    resumed = job("broken", **training)
    resumed.validate = score(resumed)
    found = resumed.fit(resume=True)
    assert_equal(resumed.exported[-1], whole.exported[-1])
    assert_equal(parameters_of(resumed.model), parameters_of(whole.model))

    timed = ("seconds", "journal")
    assert found.after(**dict.fromkeys(timed, 0)) == expected.after(**dict.fromkeys(timed, 0))

    assert records(resumed.run) == records(whole.run)


@pytest.mark.parametrize("averaging", [{}, {"averaging": {"kind": "checkpoints", "count": 3}}], ids=["plain", "mean"])
def test_an_interrupted_training_can_be_resumed_and_ends_the_same(
    job: Callable[..., Job], averaging: dict[str, Any]
) -> None:
    whole = job("whole", **averaging)
    whole.fit()
    stopped = job("stopped", **averaging)
    stopped.display.at[3] = lambda: signal.raise_signal(signal.SIGINT)
    with pytest.raises(Interrupted):
        stopped.fit()
    resumed = job("stopped", **averaging)
    resumed.fit(resume=True)
    assert resumed.display.notes[0] == "resumed at step 3, epoch 1"
    assert_equal(resumed.exported[-1], whole.exported[-1])


def test_a_stop_signal_exports_the_last_weights_with_result_last(job: Callable[..., Job]) -> None:
    run = job(result="last")
    run.display.at[3] = lambda: signal.raise_signal(signal.SIGINT)
    with pytest.raises(Interrupted):
        run.fit()
    assert_equal(run.exported[-1], Checkpoints(run.run, 3).weights(3))


def test_a_resumed_journal_continues_from_its_checkpoint(
    job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[tuple[int, int]] = []

    class Watched(Journal):
        def __init__(self, run: Path, step: int, *, size: int) -> None:
            opened.append((size, step))
            super().__init__(run, step, size=size)

    monkeypatch.setattr(trainer, "Journal", Watched)
    found = job().fit()
    job().fit(resume=True)
    assert opened == [(0, 0), (found.journal, 6)] and found.journal > 0


def test_a_training_stopped_at_its_last_step_is_validated_after_resuming(job: Callable[..., Job]) -> None:
    training = {"limits": {"steps": 3}, "averaging": {"kind": "checkpoints", "count": 2}}
    run = job(**training)
    run.display.at[3] = lambda: signal.raise_signal(signal.SIGINT)
    with pytest.raises(Interrupted):
        run.fit()
    resumed = job(**training)
    resumed.scores = [-1.0]
    found = resumed.fit(resume=True)
    assert (found.validated, found.best_step, found.recent) == (3, 3, (2, 3))
    assert Checkpoints(run.run, 3).progress(3) == found


def test_without_resume_a_training_starts_at_step_0(job: Callable[..., Job]) -> None:
    first = job()
    first.fit()
    again = job()
    again.fit()
    assert len(again.validated) == 3
    assert records(again.run) == records(first.run)


def test_resuming_a_finished_training_changes_nothing(job: Callable[..., Job]) -> None:
    run = job()
    run.fit()
    before = run.journal()
    again = job()
    again.fit(resume=True)
    assert_equal(again.exported[-1], run.exported[-1])
    assert again.journal() == before


def test_a_logged_loss_is_the_mean_since_the_last_even_over_an_interruption(job: Callable[..., Job]) -> None:
    training = {"log_every": 5, "limits": {"steps": 5}}
    whole = job("whole", **training)
    whole.fit()
    broken = job("broken", **training)
    broken.display.at[3] = pull_the_plug  # after the checkpoint of step 2
    with pytest.raises(Killed):
        broken.fit()
    resumed = job("broken", **training)
    resumed.fit(resume=True)
    (expected,), (found,) = ([r for r in run.journal() if r["kind"] == "train"] for run in (whole, resumed))
    assert found["loss"] == expected["loss"]


def test_temporary_files_of_a_killed_save_are_removed(job: Callable[..., Job]) -> None:
    run = job()
    left = run.run / "checkpoints" / ".step-00000002.99-abcd.tmp"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"half")
    run.fit(resume=True)
    assert not left.exists()


def test_a_damaged_best_checkpoint_is_not_exported(job: Callable[..., Job]) -> None:
    """The best is verified before it is used, like the newest."""
    run = job(limits={"steps": 6})
    run.scores = [3.0, 4.0, 5.0]
    run.fit()
    path = Checkpoints(run.run, 3).path(2) / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 64
    path.write_bytes(bytes(data))
    again = job(limits={"steps": 6})
    with pytest.warns(UserWarning, match=r"step-00000002 is damaged .* the finished model is made without it"):
        again.fit(resume=True)
    assert_equal(again.exported[-1], parameters_of(run.model))  # the last ones


def test_a_damaged_checkpoint_is_not_averaged(job: Callable[..., Job]) -> None:
    training = {"averaging": {"kind": "checkpoints", "count": 3}}
    run = job(**training)
    run.fit()
    checkpoints = Checkpoints(run.run, 3)
    (checkpoints.path(4) / "model.safetensors").unlink()
    again = job(**training)
    with pytest.warns(UserWarning, match="step-00000004 is damaged or gone"):
        again.fit(resume=True)
    assert_equal(again.exported[-1], mean_weights([checkpoints.weights(step) for step in (2, 6)]))


def test_each_step_has_its_own_seed() -> None:
    seeds = {step_seed(seed, step) for seed in (1, 2) for step in range(100)}
    assert len(seeds) == 200
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_an_epoch_starts_again_if_its_batches_have_another_layout(job: Callable[..., Job]) -> None:
    """As on another device: the number of batches that were used says nothing there."""
    stopped = job("stopped")
    stopped.display.at[3] = lambda: signal.raise_signal(signal.SIGINT)
    with pytest.raises(Interrupted):
        stopped.fit()
    resumed = job("stopped")
    resumed.plan.layout = "packed" if stopped.plan.layout == "padded" else "padded"
    opened = []
    epoch = resumed.plan.epoch
    resumed.plan.epoch = lambda number: opened.append(number) or epoch(number)
    progress = resumed.fit(resume=True)
    assert resumed.display.notes[:2] == [
        "resumed at step 3, epoch 1",
        f"batches are {resumed.plan.layout} on this device and were {stopped.plan.layout}, so epoch 1 starts again",
    ]
    assert opened[0] == 0 and progress.layout == resumed.plan.layout
