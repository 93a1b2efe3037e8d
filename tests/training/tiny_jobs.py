"""A training small enough for tests, with everything around it and what came out of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sightline.data.collate import TrainingBatch, padded_batch, seq2seq_ids
from sightline.layers.losses import Loss
from sightline.models.seq2seq import Seq2Seq
from sightline.models.weights import parameters_of
from sightline.recipe import Recipe
from sightline.training.checkpoints import Progress
from sightline.training.objectives import Objective
from sightline.training.train_step import StepRunner, TrainStep
from sightline.training.trainer import Trainer
from sightline.training.validation import Validation
from sightline.training.world import World
from watched_runs import Silent

DATES = {"kind": "dates", "split": "train", "examples": 1}
BODY = {"kind": "transformer", "layers": 1, "heads": 2, "dropout": 0.2}


def recipe(**training: Any) -> Recipe:
    return Recipe.model_validate(
        {
            "data": {"train": [DATES], "validation": {**DATES, "split": "validation"}},
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
                "precision": "float32",
                **training,
            },
        }
    )


class TinyPlan:
    """Five batches of two examples an epoch, in another order each epoch."""

    layout = "padded"

    def epoch(self, number: int) -> Sequence[np.ndarray]:
        order = np.random.default_rng(number).permutation(10)
        return [order[at : at + 2] for at in range(0, 10, 2)]

    def batch(self, epoch: int, examples: np.ndarray) -> TrainingBatch:
        def text(example: int, side: int) -> np.ndarray:
            random = np.random.default_rng([int(example), side])
            return random.integers(4, 13, random.integers(1, 6)).astype(np.uint16)

        return padded_batch(seq2seq_ids([text(e, 0) for e in examples], [text(e, 1) for e in examples]), examples)

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
        self.world = World()
        self.rates: dict[str, float] = {}  # shares of the learning rate, by name
        run.mkdir(exist_ok=True)

    def validate(self, model: nn.Module) -> Validation:
        self.validated.append({name: weight.clone() for name, weight in parameters_of(model).items()})
        number = min(len(self.validated), len(self.scores)) - 1
        return Validation(self.scores[number] if self.scores else 0.0, {"loss": 1.0})

    def fit(self, *, resume: bool = False) -> Progress:
        loss = self.loss
        objective = None if loss is None else Objective(self.recipe.training, lambda model, batch, *_: loss(batch))
        step = TrainStep(self.model, self.recipe.training, torch.device("cpu"), objective)
        trainer = Trainer(
            recipe=self.recipe,
            run=self.run,
            plan=self.plan,
            runner=StepRunner(step),
            validator=self.validate,
            export=lambda weights: self.exported.append({name: weight.clone() for name, weight in weights.items()}),
            display=self.display,
            flops=lambda batch: 100 * batch.tokens + len(batch.examples),
            lr_factors=self.rates,
            world=self.world,
        )
        return trainer.fit(resume=resume)

    def journal(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.run / "metrics.jsonl").read_text().splitlines()]


def assert_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name
