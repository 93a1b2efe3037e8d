"""The loop: what it stops at, what it keeps, and that it goes on as if it had never stopped."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sightline.models.seq2seq import Seq2Seq
from sightline.recipe import Recipe
from sightline.training.averages import mean_weights
from sightline.training.batches import TrainingBatch, padded_batch
from sightline.training.checkpoints import Checkpoints, Progress, parameters_of
from sightline.training.interruption import Interrupted
from sightline.training.job import Fit, Validation
from sightline.training.loop import NotFinite, fit
from sightline.training.objectives import Loss
from sightline.training.sides import translation
from sightline.training.step import PlainGradients, batch_loss, step_seed
from watched_runs import Silent

DATES = {"kind": "dates", "part": "train", "examples": 1}
BODY = {"kind": "transformer", "layers": 1, "heads": 2, "dropout": 0.2}


def recipe(**training: Any) -> Recipe:
    return Recipe.model_validate(
        {
            "data": {"train": [DATES], "validation": {**DATES, "part": "validation"}},
            "tokenizer": {"kind": "character"},
            "model": {"width": 8, "encoder": BODY, "decoder": BODY},
            "training": {
                "lr": 0.01,
                "schedule": {"kind": "constant", "warmup": 0},
                "limits": {"steps": 6},
                "log_every": 1,
                "validate_every": 2,
                "keep": 10,
                "device": "cpu",
                **training,
            },
        }
    )


class TinyPlan:
    """Five batches of two examples an epoch, in another order each epoch."""

    def epoch(self, number: int) -> Sequence[np.ndarray]:
        order = np.random.default_rng(number).permutation(10)
        return [order[at : at + 2] for at in range(0, 10, 2)]

    def batch(self, epoch: int, examples: np.ndarray) -> TrainingBatch:
        def text(example: int, side: int) -> np.ndarray:
            random = np.random.default_rng([int(example), side])
            return random.integers(4, 13, random.integers(1, 6)).astype(np.uint16)

        return padded_batch(translation([text(e, 0) for e in examples], [text(e, 1) for e in examples]), examples)

    def texts(self, epoch: int, examples: np.ndarray) -> list[dict[str, str]]:
        return [{"source": f"source {example}", "target": f"target {example}"} for example in examples]


class Job:
    """A training with everything around it, and what came out."""

    def __init__(self, run: Path, build: Callable[..., Seq2Seq], **training: Any) -> None:
        self.run, self.recipe = run, recipe(**training)
        self.model = build(BODY, BODY, tie="all")
        self.display, self.plan = Silent(), TinyPlan()
        self.scores: list[float] = []  # to be found by the validations, the last one again and again
        self.validated: list[dict[str, Tensor]] = []
        self.exported: list[dict[str, Tensor]] = []
        self.loss: Callable[[TrainingBatch], Loss] | None = None
        run.mkdir(exist_ok=True)

    def validate(self, model: nn.Module) -> Validation:
        self.validated.append({name: weight.clone() for name, weight in parameters_of(model).items()})
        number = min(len(self.validated), len(self.scores)) - 1
        return Validation(self.scores[number] if self.scores else 0.0, {"loss": 1.0})

    def fit(self, *, resume: bool = False) -> Progress:
        job = Fit(
            recipe=self.recipe,
            run=self.run,
            model=self.model,
            plan=self.plan,
            device=torch.device("cpu"),
            validate=self.validate,
            export=lambda weights: self.exported.append({name: weight.clone() for name, weight in weights.items()}),
            display=self.display,
            flops=lambda batch: 100 * batch.tokens + len(batch.examples),
            gradients=PlainGradients(self.model, self.recipe.training, torch.device("cpu"), self.loss),
        )
        return fit(job, resume=resume)

    def journal(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.run / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def job(tmp_path: Path, build_model: Callable[..., Seq2Seq]) -> Callable[..., Job]:
    def make(name: str = "run", **training: Any) -> Job:
        return Job(tmp_path / name, build_model, **training)

    return make


def assert_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


# --- when it ends ------------------------------------------------------------------------------------------------


def test_it_ends_after_so_many_steps(job: Callable[..., Job]) -> None:
    progress = job(limits={"steps": 7}).fit()
    assert (progress.step, progress.epoch, progress.batch) == (7, 1, 2)


def test_it_ends_after_so_many_epochs(job: Callable[..., Job]) -> None:
    progress = job(limits={"epochs": 2}).fit()
    assert (progress.step, progress.epoch, progress.batch) == (10, 2, 0)


def test_it_ends_after_so_many_minutes(job: Callable[..., Job]) -> None:
    progress = job(limits={"minutes": 1e-9}).fit()
    assert progress.step <= 1


def test_it_ends_when_nothing_has_got_better_for_too_long(job: Callable[..., Job]) -> None:
    run = job(limits={"steps": 50}, stopping={"patience": 2})
    run.scores = [5.0, 3.0, 4.0, 3.5]
    progress = run.fit()
    assert progress.step == 8  # validations at 2, 4 (the best), 6 and 8
    assert (progress.best, progress.best_step, progress.waited) == (3.0, 4, 2)


def test_without_examples_it_says_that_there_is_nothing_to_train_on(job: Callable[..., Job]) -> None:
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


def test_validation_is_once_an_epoch_unless_told_otherwise(job: Callable[..., Job]) -> None:
    run = job(validate_every=None, limits={"steps": 12})
    run.fit()
    assert [record["step"] for record in run.journal() if record["kind"] == "validation"] == [5, 10, 12]


def test_the_rate_rises_to_its_peak_and_falls_to_nothing(job: Callable[..., Job]) -> None:
    run = job(schedule={"kind": "cosine", "warmup": 4}, limits={"steps": 12})
    run.fit()
    rates = [record["lr"] for record in run.journal() if record["kind"] == "train"]
    assert rates[:4] == pytest.approx([0.0025, 0.005, 0.0075, 0.01], rel=1e-12)
    assert rates[7] == pytest.approx(0.005, rel=1e-12)  # half of the way down
    assert rates[11] == pytest.approx(0.0, abs=1e-12)


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


def test_with_checkpoint_averaging_the_mean_of_the_newest_is_exported(job: Callable[..., Job]) -> None:
    run = job(averaging={"kind": "checkpoints", "count": 3}, save_every=1, keep=2, limits={"steps": 7})
    run.fit()
    checkpoints = Checkpoints(run.run, 2)
    assert {5, 6, 7} <= set(checkpoints.steps())
    assert_equal(run.exported[-1], mean_weights([checkpoints.weights(step) for step in (5, 6, 7)]))


def test_every_new_best_can_be_used_while_training_goes_on(job: Callable[..., Job]) -> None:
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


def test_records_say_how_many_operations_were_spent_so_far(job: Callable[..., Job]) -> None:
    run = job(batches={"accumulate": 2}, limits={"epochs": 2})
    run.fit()
    for record in run.journal():
        epochs, steps = divmod(record["step"], 3)  # of two, two and one batch with two examples each
        assert record["flops"] == 100 * record["tokens"] + 10 * epochs + 4 * steps
        assert (record["kind"] == "validation") == ("peak_memory" in record)


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
    wanted = TinyPlan().epoch(0)[4]
    assert bad["examples"] == [{"source": f"source {e}", "target": f"target {e}"} for e in wanted]
    checkpoints = Checkpoints(run.run, 3)
    assert checkpoints.newest() == 4
    assert all(torch.isfinite(weight).all() for weight in checkpoints.weights(4).values())
    assert all(torch.isfinite(weight).all() for weight in parameters_of(run.model).values())  # not touched
    for weights in run.exported:  # of the best validations before
        assert all(torch.isfinite(weight).all() for weight in weights.values())


def test_before_the_first_checkpoint_it_says_that_there_is_none(job: Callable[..., Job]) -> None:
    run = job()
    poisoned(run, 1, float("nan"))
    with pytest.raises(NotFinite, match="no checkpoint was saved before"):
        run.fit()


def test_a_poisoned_weight_is_noticed_at_the_next_step(job: Callable[..., Job]) -> None:
    run = job()

    def poison() -> None:
        with torch.no_grad():
            run.model.output.bias[7] = float("nan")

    run.display.at[3] = poison
    with pytest.raises(NotFinite, match="step 4"):
        run.fit()
    assert Checkpoints(run.run, 3).newest() == 2


def test_with_accumulation_the_batch_that_is_saved_is_the_bad_one(job: Callable[..., Job]) -> None:
    run = job(batches={"accumulate": 2}, validate_every=None)
    poisoned(run, 4, float("nan"))  # the second batch of the second step
    with pytest.raises(NotFinite, match="step 2"):
        run.fit()
    bad = json.loads((run.run / "bad-batch.json").read_text())
    sources = {example["source"] for example in bad["examples"]}
    assert {f"source {example}" for example in TinyPlan().epoch(0)[3]} <= sources


# --- interruptions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_asked_to_stop_it_finishes_the_step_saves_and_exports(job: Callable[..., Job], number: signal.Signals) -> None:
    before = signal.getsignal(number)
    run = job()
    run.display.at[3] = lambda: signal.raise_signal(number)
    with pytest.raises(Interrupted):
        run.fit()
    assert Checkpoints(run.run, 3).newest() == 3
    assert_equal(run.exported[-1], run.validated[0])  # of step 2, the best so far
    assert signal.getsignal(number) is before


def test_a_second_ctrl_c_stops_at_once(job: Callable[..., Job]) -> None:
    run = job()
    run.display.at[3] = lambda: [signal.raise_signal(signal.SIGINT) for _ in range(2)]
    with pytest.raises(KeyboardInterrupt):
        run.fit()
    assert Checkpoints(run.run, 3).newest() == 2


class Crash(Exception):
    """Stands for a power cut: nothing is saved on the way out."""


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "ema": {"averaging": {"kind": "ema", "decay": 0.9}},
    "checkpoint-averaging": {"averaging": {"kind": "checkpoints", "count": 2}},
    "accumulation": {"batches": {"accumulate": 2}},
    "cosine": {"schedule": {"kind": "cosine", "warmup": 3}, "weight_decay": 0.1},
    "own-saves": {"save_every": 3, "validate_every": None},
    "last": {"result": "last", "averaging": {"kind": "ema", "decay": 0.9}},
}


def crash() -> None:
    raise Crash


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
    wanted = whole.fit()

    broken = job("broken", **training)
    broken.validate = score(broken)
    broken.display.at[at] = crash
    with pytest.raises(Crash):
        broken.fit()
    resumed = job("broken", **training)
    resumed.validate = score(resumed)
    found = resumed.fit(resume=True)
    assert_equal(resumed.exported[-1], whole.exported[-1])
    assert_equal(parameters_of(resumed.model), parameters_of(whole.model))

    timed = ("seconds", "journal")
    assert found.after(**dict.fromkeys(timed, 0)) == wanted.after(**dict.fromkeys(timed, 0))

    def untimed(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        measured = ("seconds", "tokens_per_second", "peak_memory")
        return [{k: v for k, v in record.items() if k not in measured} for record in records]

    assert untimed(resumed.journal()) == untimed(whole.journal())


def test_an_interrupted_training_can_be_resumed_and_ends_the_same(job: Callable[..., Job]) -> None:
    whole = job("whole")
    whole.fit()
    stopped = job("stopped")
    stopped.display.at[3] = lambda: signal.raise_signal(signal.SIGINT)
    with pytest.raises(Interrupted):
        stopped.fit()
    resumed = job("stopped")
    resumed.fit(resume=True)
    assert resumed.display.notes == ["resumed at step 3, epoch 1"]
    assert_equal(resumed.exported[-1], whole.exported[-1])


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
    broken.display.at[3] = crash  # after the checkpoint of step 2
    with pytest.raises(Crash):
        broken.fit()
    resumed = job("broken", **training)
    resumed.fit(resume=True)
    (wanted,), (found,) = ([r for r in run.journal() if r["kind"] == "train"] for run in (whole, resumed))
    assert found["loss"] == wanted["loss"]


def test_leftovers_of_a_killed_save_are_removed(job: Callable[..., Job]) -> None:
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
