"""Several processes: half-batches give the gradient of the whole, each rank has its own seed, rank 0 decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from test_step_flops import CASES, CPU, prepared
from tiny_jobs import Job
from torch import Tensor

from sightline.data.collate import TrainingBatch
from sightline.models.build import build_model
from sightline.recipe.training import step_seed
from sightline.training.train import plan_for
from sightline.training.train_step import StepRunner, TrainStep
from sightline.training.world import Interrupted, World


@dataclass(frozen=True)
class Rank(World):
    """One of two processes, which knows what the other would answer."""

    labels: int = 0  # of a step, over both

    def total(self, count: int) -> int:
        return self.labels


def undropped(body: dict[str, Any]) -> dict[str, Any]:
    return {side: {**part, "dropout": 0.0} for side, part in body.items()}


def gradients(runner: StepRunner, batches: Sequence[TrainingBatch]) -> dict[str, Tensor]:
    runner(batches)
    return {name: part.grad.clone() for name, part in runner.step.model.named_parameters() if part.grad is not None}


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("case", ["lstm", "transformer", "language model", "recurrent language model"])
def test_two_half_batches_give_the_gradient_of_the_whole_batch(case: str, accumulate: int) -> None:
    task, body = CASES[case]
    made = prepared(task, undropped(body), "padded")
    plan, model = plan_for(made, CPU), build_model(made.recipe, made.vocabulary).double()
    step, carry = TrainStep(model, made.recipe.training, CPU), case.startswith("recurrent")
    alone = StepRunner(step, carry=carry)
    runners: list[StepRunner] | None = None
    epoch = plan.epoch(0)
    for at in range(0, 2 * accumulate, accumulate):  # a carried state is continued by the rank whose rows it has
        batches = [plan.batch(0, examples) for examples in epoch[at : at + accumulate]]
        worlds = [Rank(rank, 2, sum(batch.tokens for batch in batches)) for rank in range(2)]
        runners = runners or [StepRunner(step, carry=carry) for _ in worlds]
        whole, parts = gradients(alone, batches), []
        for runner, world in zip(runners, worlds, strict=True):
            runner.world = world
            halves = [plan.batch(0, world.batch_slice(examples)) for examples in epoch[at : at + accumulate]]
            assert all(0 < half.tokens < batch.tokens for half, batch in zip(halves, batches, strict=True))
            parts.append(gradients(runner, halves))
        for name, expected in whole.items():
            torch.testing.assert_close(parts[0][name] + parts[1][name], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("examples", [3, 4, 8])
def test_the_slices_of_a_batch_are_the_batch(size: int, examples: int) -> None:
    batch = np.arange(examples)
    slices = [World(rank, size).batch_slice(batch) for rank in range(size)]
    assert np.array_equal(np.concatenate(slices), batch)
    assert max(map(len, slices)) - min(map(len, slices)) <= 1


def test_every_rank_has_its_own_seed() -> None:
    seeds = {World(rank, 4).seed(seed, step) for rank in range(4) for seed in (1, 2) for step in range(20)}
    assert len(seeds) == 4 * 2 * 20
    assert World().seed(3, 7) == step_seed(3, 7)


class Elsewhere(World):
    """Rank 0 is at its limit after three steps, or another process is asked to stop at its second."""

    def __init__(self, *, limit: int = 9, stop: int = 9) -> None:
        super().__init__()
        self.__dict__ |= {"limit": limit, "stop": stop, "asked": 0}

    def broadcast(self, value: Any) -> Any:
        if not isinstance(value, bool):
            return value
        self.__dict__["asked"] += 1
        return self.asked > self.limit

    def any(self, flag: bool) -> bool:
        return flag or self.asked == self.stop


def test_rank_0_decides_about_the_limits(job: Callable[..., Job]) -> None:
    run = job()
    run.world = Elsewhere(limit=3)
    assert run.fit().step == 3


def test_a_stop_of_any_rank_stops_all(job: Callable[..., Job]) -> None:
    run = job()
    run.world = Elsewhere(stop=2)
    with pytest.raises(Interrupted):
        run.fit()
    assert run.journal()[-1]["step"] == 2


def test_only_rank_0_writes_files(job: Callable[..., Job]) -> None:
    run = job()
    run.world = World(rank=1, size=2)
    run.fit()
    assert not run.exported and not list(run.run.iterdir())
