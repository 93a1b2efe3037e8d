"""Training in float16 scales the loss, skips steps that overflow, and resumes with the scale it had."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tiny_jobs import Job, assert_equal

from sightline.data.collate import TrainingBatch
from sightline.layers.dropout import Dropout
from sightline.layers.losses import Loss
from sightline.models.weights import parameters_of
from sightline.tasks.losses import batch_loss
from sightline.training.loggers import NotFinite
from watched_runs import Killed, pull_the_plug


def overflow_at(run: Job, *batches: int) -> None:
    """Make the gradient of these batches, counted from 0, too large for any float, and leave the loss as it is."""
    seen = iter(range(1_000))

    class Huge(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return grad * float("inf")

    def loss(batch: TrainingBatch) -> Loss:
        found = batch_loss(run.model, batch, 0.1)
        return found._replace(total=Huge.apply(found.total)) if next(seen) in batches else found

    run.loss = loss


def test_a_training_in_float16_comes_close_to_one_in_float32(job: Callable[..., Job]) -> None:
    half, single = job("half", precision="fp16"), job("single", precision="float32")
    for run in (half, single):
        for part in run.model.modules():
            if isinstance(part, Dropout):
                part.probability = 0.0  # drawn otherwise in float16
        run.fit()
    for one, other in zip(half.journal(), single.journal(), strict=True):
        if one["kind"] == "train":
            assert one["nll"] == pytest.approx(other["nll"], rel=0.02) and one["nll"] != other["nll"]
            assert one["gradient_norm"] == pytest.approx(other["gradient_norm"], rel=0.1)
            assert one["loss_scale"] == 65536.0 and one["skipped_steps"] == 0 and "loss_scale" not in other


def test_steps_whose_gradient_overflows_are_skipped_and_counted(job: Callable[..., Job]) -> None:
    run = job(precision="fp16", limits={"steps": 2}, averaging={"kind": "ema"})
    overflow_at(run, 0, 1)
    before = {name: weight.clone() for name, weight in parameters_of(run.model).items()}
    progress = run.fit()
    assert progress.step == progress.skipped == 2 and progress.loss_scale == (65536.0 / 4, 0)
    assert_equal(parameters_of(run.model), before)
    assert [record["kind"] for record in run.journal()] == ["validation"]  # there is no mean of no steps


def test_skipped_steps_are_left_out_of_means(job: Callable[..., Job]) -> None:
    run = job(precision="fp16", limits={"steps": 4}, log_every=4)
    overflow_at(run, 1)
    run.fit()
    (record,) = [record for record in run.journal() if record["kind"] == "train"]
    assert record["skipped_steps"] == 1 and record["loss_scale"] == 65536.0 / 2 and record["gradient_norm"] < 1e3


def test_overflow_at_every_loss_scale_is_an_error(job: Callable[..., Job]) -> None:
    run = job(precision="fp16", limits={"steps": 50}, validate_every=100)
    overflow_at(run, *range(50))
    with pytest.raises(NotFinite, match=r"step 17: loss \d\.\d+, gradient norm (inf|nan)"):
        run.fit()


def test_a_resumed_training_in_float16_is_the_uninterrupted_one(job: Callable[..., Job]) -> None:
    whole, parts = job("whole", precision="fp16"), job("parts", precision="fp16")
    for run in (whole, parts):
        overflow_at(run, 1)
    expected = whole.fit()
    parts.display.at[5] = pull_the_plug
    with pytest.raises(Killed):
        parts.fit()
    resumed = job("parts", precision="fp16")
    progress = resumed.fit(resume=True)
    assert progress.after(seconds=0, journal=0) == expected.after(seconds=0, journal=0)
    assert progress.skipped == 1 and progress.loss_scale is not None and progress.loss_scale[0] == 65536.0 / 2
    assert_equal(parameters_of(resumed.model), parameters_of(whole.model))
