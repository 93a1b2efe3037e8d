"""The loop: what it stops at, what it keeps, and what it says when something goes wrong."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny_jobs import Job, TinyPlan, assert_equal

from sightline.data.collate import TrainingBatch
from sightline.layers.losses import Loss
from sightline.models.weights import parameters_of
from sightline.tasks.losses import batch_loss
from sightline.training import trainer
from sightline.training.averaging import mean_weights
from sightline.training.checkpoints import Checkpoints
from sightline.training.loggers import NotFinite
from watched_runs import Killed, pull_the_plug


@dataclass
class Clock:
    """Time that passes only where a test says so."""

    now: float = 0.0

    def ticks(self, run: Job, seconds: float) -> None:
        """Every batch of this training takes so long."""
        run.loss = lambda batch: self.wait(seconds) or batch_loss(run.model, batch, 0.1)

    def wait(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(trainer, "time", SimpleNamespace(monotonic=lambda: found.now))
    return found


def written(run: Job, kind: str) -> list[dict[str, float]]:
    return [record for record in run.journal() if record["kind"] == kind]


# --- when it ends ------------------------------------------------------------------------------------------------


def test_training_ends_at_the_step_limit(job: Callable[..., Job]) -> None:
    progress = job(limits={"steps": 7}).fit()
    assert (progress.step, progress.epoch, progress.batch) == (7, 1, 2)


def test_training_ends_at_the_epoch_limit(job: Callable[..., Job]) -> None:
    progress = job(limits={"epochs": 2}).fit()
    assert (progress.step, progress.epoch, progress.batch) == (10, 2, 0)


def test_training_ends_at_the_time_limit_over_all_processes(job: Callable[..., Job], clock: Clock) -> None:
    run = job(limits={"minutes": 0.5})
    clock.ticks(run, 15)
    assert run.fit().step == 2
    clock.wait(1000)
    longer = job(limits={"minutes": 1})
    clock.ticks(longer, 15)
    assert longer.fit(resume=True).step == 4  # what lies between two sittings does not count, the first one does
    assert [record["seconds"] for record in written(longer, "validation")] == [30, 60]


def test_early_stopping_ends_after_patience(job: Callable[..., Job]) -> None:
    run = job(limits={"steps": 50}, stopping={"patience": 2})
    run.scores = [5.0, 3.0, 4.0, 3.5]
    progress = run.fit()
    assert progress.step == 8  # validations at 2, 4 (the best), 6 and 8
    assert (progress.best, progress.best_step, progress.waited) == (3.0, 4, 2)


def test_a_nan_validation_is_worse_than_any_number(job: Callable[..., Job]) -> None:
    run = job()
    run.scores = [float("nan"), 5.0, float("nan")]
    progress = run.fit()
    assert (progress.best, progress.best_step, progress.waited) == (5.0, 4, 1)


def test_training_without_examples_is_an_error(job: Callable[..., Job]) -> None:
    run = job()
    run.plan.epoch = lambda number: []
    with pytest.raises(ValueError, match="there is nothing to train on"):
        run.fit()


def test_every_epoch_sees_every_example_once(job: Callable[..., Job]) -> None:
    run, seen = job(limits={"epochs": 3}, batches={"accumulate": 2}), []
    make = run.plan.batch
    run.plan.batch = lambda epoch, examples: seen.append((epoch, examples.tolist())) or make(epoch, examples)
    assert run.fit().step == 9  # two, two and one batch
    for epoch in range(3):
        assert sorted(e for at, examples in seen for e in examples if at == epoch) == list(range(10))


def test_validation_is_once_an_epoch_by_default(job: Callable[..., Job]) -> None:
    run = job(validate_every=None, limits={"steps": 12})
    run.fit()
    assert [record["step"] for record in run.journal() if record["kind"] == "validation"] == [5, 10, 12]


def test_cosine_learning_rate_over_a_training(job: Callable[..., Job]) -> None:
    run = job(schedule={"kind": "cosine", "warmup": 4}, limits={"steps": 12})
    run.fit()
    rates = [record["lr"] for record in run.journal() if record["kind"] == "train"]
    assert rates[:4] == pytest.approx([0.0025, 0.005, 0.0075, 0.01], rel=1e-12)
    assert rates[7] == pytest.approx(0.005, rel=1e-12)  # half of the way down
    assert rates[11] == pytest.approx(0.0, abs=1e-12)


def test_with_a_time_limit_the_learning_rate_follows_time(job: Callable[..., Job], clock: Clock) -> None:
    run = job(schedule={"kind": "cosine", "warmup": 0}, limits={"minutes": 1, "steps": 100})
    clock.ticks(run, 15)
    run.fit()
    expected = [0.01 * 0.5 * (1 + math.cos(math.pi * share)) for share in (0.01, 0.25, 0.5, 0.75)]  # the first by steps
    assert [record["lr"] for record in written(run, "train")] == pytest.approx(expected, rel=1e-12)


def test_with_a_time_limit_the_warmup_is_a_share_of_time(job: Callable[..., Job], clock: Clock) -> None:
    run = job(schedule={"kind": "constant", "warmup": 0.5}, limits={"minutes": 1})
    clock.ticks(run, 1.5)
    run.fit()
    rates = [record["lr"] for record in written(run, "train")]
    assert rates[10] == pytest.approx(0.01 * 0.5)  # a quarter of the time is over
    assert rates[20:] == [0.01] * 20


def test_a_warmup_too_long_for_the_time_limit_is_warned_of(job: Callable[..., Job], clock: Clock) -> None:
    run = job(schedule={"kind": "constant", "warmup": 4_000}, limits={"minutes": 1})
    clock.ticks(run, 1.5)
    run.fit()
    (warning,) = [note for note in run.display.notes if "warmup" in note]
    assert "(4,000 steps) is more than the whole training (about 40 steps" in warning


def test_with_an_epoch_limit_the_learning_rate_covers_all_steps(job: Callable[..., Job]) -> None:
    run = job(schedule={"kind": "cosine", "warmup": 0}, limits={"epochs": 2, "steps": 100}, batches={"accumulate": 2})
    run.fit()  # of three steps each
    expected = [0.01 * 0.5 * (1 + math.cos(math.pi * step / 6)) for step in range(1, 7)]
    assert [record["lr"] for record in written(run, "train")] == pytest.approx(expected, rel=1e-12, abs=1e-15)


def test_tokens_per_second_excludes_validation(job: Callable[..., Job], clock: Clock) -> None:
    def timed(steps: int) -> Job:
        run = job(limits={"steps": steps})
        validate = run.validate
        run.validate = lambda model: clock.wait(100) or validate(model)
        clock.ticks(run, 2)
        return run

    timed(3).fit()
    run = timed(5)
    run.fit(resume=True)
    tokens = np.diff([0, *(record["tokens"] for record in written(run, "train"))])
    assert [record["tokens_per_second"] for record in written(run, "train")] == (tokens / 2).tolist()


def test_dropout_is_active_in_training_only(job: Callable[..., Job]) -> None:
    run, modes = job(), []
    run.loss = lambda batch: modes.append(run.model.training) or batch_loss(run.model, batch, 0.1)
    validate = run.validate
    run.validate = lambda model: modes.append(model.training) or validate(model)
    run.fit()
    assert modes == [True, True, False] * 3


def test_the_logged_loss_is_the_mean_over_tokens(job: Callable[..., Job]) -> None:
    run = job(limits={"steps": 1}, batches={"accumulate": 2})
    bias = run.model.output.bias
    run.loss = lambda batch: Loss(7.0 * batch.tokens + 0 * bias.sum(), torch.tensor(3.0 * batch.tokens))
    run.fit()
    (record,) = written(run, "train")
    assert (record["loss"], record["nll"], record["gradient_norm"]) == (7.0, 3.0, 0.0)


@pytest.mark.parametrize("clip", [0.01, None])
def test_gradient_norms_are_logged_before_clipping(job: Callable[..., Job], clip: float | None) -> None:
    run = job(clip=clip, limits={"steps": 1})
    run.fit()
    left = math.sqrt(sum(float(part.grad.square().sum()) for part in run.model.parameters() if part.grad is not None))
    (record,) = written(run, "train")
    assert record["gradient_norm"] > 1
    assert left == pytest.approx(clip or record["gradient_norm"], rel=1e-5)


def test_learning_rate_factors_apply_at_every_step(job: Callable[..., Job]) -> None:
    run = job()
    run.rates = {"output.bias": 0.0}
    before = {name: weight.clone() for name, weight in parameters_of(run.model).items()}
    run.fit()
    still = [name for name, weight in parameters_of(run.model).items() if torch.equal(weight, before[name])]
    assert still == ["output.bias"]


def test_another_seed_has_another_dropout(job: Callable[..., Job]) -> None:
    one, other = (job(name, limits={"steps": 1}) for name in ("one", "other"))
    assert_equal(parameters_of(one.model), parameters_of(other.model))
    other.recipe = other.recipe.model_copy(update={"seed": one.recipe.seed + 1})
    for run in (one, other):
        run.fit()
    assert written(one, "train")[0]["loss"] != written(other, "train")[0]["loss"]


# --- what comes out ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("result", "step"), [("best", 4), ("last", 6)])
def test_the_finished_model_is_the_best_or_the_last(job: Callable[..., Job], result: str, step: int) -> None:
    run = job(result=result)
    run.scores = [5.0, 3.0, 4.0]
    run.fit()
    assert_equal(run.exported[-1], run.validated[step // 2 - 1])
    assert_equal(run.exported[-1], Checkpoints(run.run, 2).weights(step))


@pytest.mark.parametrize("result", ["best", "last"])
def test_with_a_running_average_the_average_is_validated_and_exported(job: Callable[..., Job], result: str) -> None:
    run = job(result=result, averaging={"kind": "ema", "decay": 0.9})
    run.scores = [5.0, 3.0, 4.0]
    run.fit()
    assert_equal(run.exported[-1], run.validated[1 if result == "best" else 2])
    plain = job("plain", result=result)
    plain.fit()
    assert_equal(parameters_of(run.model), parameters_of(plain.model))  # averaging changes nothing that is learned
    assert not torch.equal(run.exported[-1]["output.bias"], plain.exported[-1]["output.bias"])


def test_a_running_average_forgets_the_first_weights_as_steps_go_by(job: Callable[..., Job]) -> None:
    run = job(result="last", averaging={"kind": "ema", "decay": 0.9}, save_every=1)
    average = run.model.output.bias.detach().double()
    run.fit()
    for step in range(1, 7):
        decay = (1 + step) / (10 + step)
        average = decay * average + (1 - decay) * Checkpoints(run.run, 9).weights(step)["output.bias"].double()
    torch.testing.assert_close(run.exported[-1]["output.bias"].double(), average, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("result", ["best", "last"])
def test_with_checkpoint_averaging_the_mean_of_the_newest_is_exported(job: Callable[..., Job], result: str) -> None:
    mean = {"kind": "checkpoints", "count": 3}
    run = job(averaging=mean, save_every=1, keep=2, limits={"steps": 7}, result=result)
    run.fit()
    checkpoints = Checkpoints(run.run, 2)
    assert {5, 6, 7} <= set(checkpoints.steps())
    assert_equal(run.exported[-1], mean_weights([checkpoints.weights(step) for step in (5, 6, 7)]))
    told = "the finished model is the mean of 3 checkpoints, at step 5, 6, 7; validations were of single ones"
    assert run.display.notes[-1] == told


def test_averaging_fewer_checkpoints_than_requested_is_noted(job: Callable[..., Job]) -> None:
    run = job(averaging={"kind": "checkpoints", "count": 30})
    run.fit()
    told = r"the mean of 3 checkpoints \(of the 30 that training.averaging.count asks for\), at step 2, 4, 6"
    assert re.search(told, run.display.notes[-1])
    plain = job("plain")
    plain.fit()
    assert not any("mean of" in note for note in plain.display.notes)


def test_every_new_best_is_exported_during_training(job: Callable[..., Job]) -> None:
    run = job()
    run.scores = [5.0, 6.0, 3.0]
    run.fit()
    assert len(run.exported) == 2  # at step 2, and at step 6, which is the end and not written once more for that
    for weights, validated in zip(run.exported, (0, 2), strict=True):
        assert_equal(weights, run.validated[validated])


def test_accumulated_batches_make_the_step_of_one_large_batch(job: Callable[..., Job]) -> None:
    """The mean over all target tokens of a step, however they are cut into batches."""
    once = job("once", limits={"steps": 1}, clip=None, lr=1e-3, batches={"accumulate": 5})
    large = job("large", limits={"steps": 1}, clip=None, lr=1e-3)
    large.plan.epoch = lambda number: [np.concatenate(TinyPlan().epoch(number))]
    for run in (once, large):
        run.loss = lambda batch, run=run: batch_loss(run.model.eval(), batch, 0.1)  # without dropout
        run.fit()
    assert once.journal()[0]["tokens"] == large.journal()[0]["tokens"]
    for key in ("loss", "nll", "gradient_norm"):
        # float32 means over some forty tokens, added in another order
        assert once.journal()[0][key] == pytest.approx(large.journal()[0][key], rel=1e-5)


def test_records_have_the_flops_so_far(job: Callable[..., Job]) -> None:
    run = job(batches={"accumulate": 2}, limits={"epochs": 2})
    run.fit()
    for record in run.journal():
        epochs, steps = divmod(record["step"], 3)  # of two, two and one batch with two examples each
        assert record["flops"] == 100 * record["tokens"] + 10 * epochs + 4 * steps
        assert (record["kind"] == "validation") == ("peak_memory" in record)


def from_other_weights(run: Job) -> Job:
    """As if it began with the weights of another run."""
    model = run.recipe.model.model_copy(update={"init_from": "another run"})
    run.recipe = run.recipe.model_copy(update={"model": model})
    return run


def test_initial_weights_of_another_run_are_validated_and_not_averaged(job: Callable[..., Job]) -> None:
    run = from_other_weights(job(averaging={"kind": "checkpoints", "count": 30}))
    before = parameters_of(run.model)
    before = {name: weight.clone() for name, weight in before.items()}
    assert run.fit().recent == (2, 4, 6)
    assert [record["step"] for record in written(run, "validation")] == [0, 2, 4, 6]
    assert_equal(run.validated[0], before)
    assert_equal(Checkpoints(run.run, 3).weights(0), before)


def test_initial_weights_of_another_run_are_validated_once(job: Callable[..., Job]) -> None:
    run = from_other_weights(job())
    run.display.at[1] = pull_the_plug
    with pytest.raises(Killed):
        run.fit()
    again = from_other_weights(job())
    again.fit(resume=True)
    assert [record["step"] for record in written(again, "validation")] == [0, 2, 4, 6]


# --- what goes wrong ---------------------------------------------------------------------------------------------


def poisoned(run: Job, step: int, value: float) -> None:
    """A loss that is not finite at one step."""
    calls = []

    def loss(batch: TrainingBatch) -> Loss:
        calls.append(batch)
        found = batch_loss(run.model, batch, 0.1)
        return Loss(found.total * value, found.nll) if len(calls) == step else found

    run.loss = loss


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("log_every", [1, 50])
def test_a_loss_that_is_not_finite_stops_and_keeps_the_batch_and_the_last_good_checkpoint(
    job: Callable[..., Job], value: float, log_every: int
) -> None:
    run = job(log_every=log_every, limits={"steps": 9})
    poisoned(run, 5, value)
    with pytest.raises(NotFinite, match=r"step 5: loss (nan|inf).*bad-batch\.json, the last good checkpoint is step 4"):
        run.fit()
    bad = json.loads((run.run / "bad-batch.json").read_text())
    assert bad["step"] == 5
    expected = TinyPlan().epoch(0)[4]
    assert bad["examples"] == [{"source": f"source {e}", "target": f"target {e}"} for e in expected]
    checkpoints = Checkpoints(run.run, 3)
    assert checkpoints.newest() == 4
    assert all(torch.isfinite(weight).all() for weight in checkpoints.weights(4).values())
    assert all(torch.isfinite(weight).all() for weight in parameters_of(run.model).values())  # not touched
    for weights in run.exported:  # of the best validations before
        assert all(torch.isfinite(weight).all() for weight in weights.values())


def test_a_gradient_that_is_not_finite_stops_before_the_weights_are_touched(job: Callable[..., Job]) -> None:
    run = job()

    def loss(batch: TrainingBatch) -> Loss:
        found = batch_loss(run.model, batch, 0.1)
        return Loss(found.total + (0 * run.model.output.bias).sqrt().sum(), found.nll)  # a slope of 0 · ∞

    run.loss = loss
    with pytest.raises(NotFinite, match=r"step 1: loss \d.*, gradient norm nan"):
        run.fit()
    assert all(torch.isfinite(weight).all() for weight in parameters_of(run.model).values())


def test_a_non_finite_loss_with_a_finite_gradient_stops_the_training(job: Callable[..., Job]) -> None:
    run = job(log_every=50, validate_every=None)
    before = {name: weight.clone() for name, weight in parameters_of(run.model).items()}

    def loss(batch: TrainingBatch) -> Loss:
        found = batch_loss(run.model, batch, 0.1)
        return Loss(found.total + math.inf, found.nll)

    run.loss = loss
    with pytest.raises(NotFinite, match=r"step 1: loss inf, gradient norm \d"):
        run.fit()
    assert_equal(parameters_of(run.model), before)  # not touched


def test_the_saved_bad_batch_is_of_its_epoch(job: Callable[..., Job]) -> None:
    run = job(limits={"steps": 9})
    run.plan.texts = lambda epoch, examples: [{"epoch": str(epoch)}]
    poisoned(run, 7, float("nan"))  # the second step of the second epoch
    with pytest.raises(NotFinite, match="step 7"):
        run.fit()
    bad = json.loads((run.run / "bad-batch.json").read_text())
    assert (bad["epoch"], bad["examples"]) == (1, [{"epoch": "1"}])


def test_a_non_finite_loss_before_the_first_checkpoint(job: Callable[..., Job]) -> None:
    run = job()
    poisoned(run, 1, float("nan"))
    with pytest.raises(NotFinite, match="no checkpoint was saved before"):
        run.fit()


def test_a_nan_weight_is_reported_at_the_next_step(job: Callable[..., Job]) -> None:
    run = job()

    def poison() -> None:
        with torch.no_grad():
            run.model.output.bias[7] = float("nan")

    run.display.at[3] = poison
    with pytest.raises(NotFinite, match="step 4"):
        run.fit()
    assert Checkpoints(run.run, 3).newest() == 2


def test_with_accumulation_the_saved_batch_is_the_bad_one(job: Callable[..., Job]) -> None:
    run = job(batches={"accumulate": 2}, validate_every=None)
    poisoned(run, 4, float("nan"))  # the second batch of the second step
    with pytest.raises(NotFinite, match="step 2"):
        run.fit()
    bad = json.loads((run.run / "bad-batch.json").read_text())
    sources = {example["source"] for example in bad["examples"]}
    assert {f"source {example}" for example in TinyPlan().epoch(0)[3]} <= sources
