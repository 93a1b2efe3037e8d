"""The loop: next batch, forward, loss, backward, step, log, validate, save.

Nothing random is carried from step to step: the order of the data is a pure function of (seed, epoch), and the
dropout of a step is seeded by (seed, step). So a checkpoint needs no generator state, and a resumed training is the
uninterrupted one.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from sightline.data.collate import ExampleIds, StaticShape, TrainingBatch, prefetch
from sightline.files import write_json
from sightline.models.weights import load_parameters, parameters_of, weights_of
from sightline.recipe import Recipe
from sightline.recipe.training import step_seed
from sightline.run_folder import RunError
from sightline.terminal import plural
from sightline.training.averaging import RunningAverage, mean_weights
from sightline.training.checkpoints import Checkpoints, Progress
from sightline.training.cost import peak_memory
from sightline.training.loggers import Display, Journal, routing_record
from sightline.training.optimizers import LayerNorms, build_optimizer
from sightline.training.schedules import factor, limit_reached, warmup_note
from sightline.training.train_step import Gradients
from sightline.training.world import Interrupted, stop_signals


@dataclass(frozen=True)
class Validation:
    """What a validation found."""

    score: float  # what early stopping looks at, lower is better
    record: dict[str, Any] = field(default_factory=dict)


class Plan(Protocol):
    """The batches of any epoch, as a pure function of its number."""

    recipe: Recipe
    layout: str
    shape: StaticShape | None  # of all batches, where they have one

    def epoch(self, number: int) -> Sequence[np.ndarray]: ...
    def batch(self, epoch: int, examples: np.ndarray) -> TrainingBatch: ...
    def texts(self, epoch: int, examples: np.ndarray) -> list[dict[str, str]]: ...
    def waste(self, epoch: int = 0) -> float: ...
    def tiny(self, sizes: Sequence[np.ndarray]) -> ExampleIds:
        """Examples with about so many tokens on either side, as the model would be shown them."""
        ...


@dataclass
class Fit:
    """Everything one training works with."""

    recipe: Recipe
    run: Path
    model: nn.Module
    plan: Plan
    device: torch.device
    validate: Callable[[nn.Module], Validation]
    export: Callable[[dict[str, Tensor]], None]  # writes the finished model
    display: Display
    flops: Callable[[TrainingBatch], int]  # what a step over a batch costs
    gradients: Gradients
    rates: Mapping[str, float] = field(default_factory=dict)  # of parameters that learn slower: share of lr, by name


class NotFinite(ArithmeticError):
    """The loss or its gradient became infinite or not a number."""


@dataclass(frozen=True)
class Reading:
    """What is known of a step before somebody looks at its numbers."""

    step: int
    epoch: int
    examples: np.ndarray  # of all its batches
    values: Tensor  # loss, nll and norm of the gradient, then what layers counted


class Readings:
    """The readings since the last record: first pending, then seen."""

    def __init__(self, seen: Iterable[tuple[float, ...]] = ()) -> None:
        self._pending: list[Reading] = []
        self.seen = list(seen)

    def add(self, reading: Reading) -> None:
        """Keep a reading for the next look."""
        self._pending.append(reading)

    def look(self) -> Reading | None:
        """Look at all that is pending: the first that is not finite, if there is one."""
        if not self._pending:
            return None
        values = (
            torch.stack([reading.values for reading in self._pending]).cpu().double().numpy()
        )  # (steps, 3 + counts)
        bad = np.flatnonzero(~np.isfinite(values).all(1))
        if len(bad):
            return self._pending[int(bad[0])]
        self.seen += [tuple(row) for row in values.tolist()]
        self._pending = []
        return None

    def means(self) -> tuple[list[float], int]:
        """The mean of each number over the steps seen, and how many those were; the next ones are counted anew."""
        means, steps = np.mean(self.seen, axis=0).tolist(), len(self.seen)
        self.seen = []
        return means, steps


def not_finite(run: Path, bad: Reading, texts: list[dict[str, str]], newest: int | None) -> NotFinite:
    """The error of a step that came to no number; its examples are saved. `newest` is the last good checkpoint."""
    path, (loss, _, norm) = run / "bad-batch.json", bad.values[:3].tolist()
    record = {
        "step": bad.step,
        "epoch": bad.epoch,
        "loss": str(loss),
        "gradient_norm": str(norm),
        "examples": texts,
    }
    write_json(path, record)
    kept = f"the last good checkpoint is step {newest}" if newest is not None else "no checkpoint was saved before"
    return NotFinite(
        f"step {bad.step}: loss {loss}, gradient norm {norm}; the batch is saved in {path}, {kept}. "
        f"Lower training.lr, lengthen training.schedule.warmup, or look at that batch"
    )


_SPEED_STEPS, _SPEED_SHARE = 20, 0.02  # after so many steps, or so much of the training, its speed is known


def fit(job: Fit, *, resume: bool = False) -> Progress:
    """Train to the end, or to an interruption (which saves and raises `Interrupted`)."""
    training = job.recipe.training
    optimizer = build_optimizer(job.model, training, job.device, job.rates)
    average = RunningAverage(job.model, training.averaging.decay) if training.averaging.kind == "ema" else None
    checkpoints = Checkpoints(job.run, training.keep)
    progress = Progress()
    with stop_signals() as stop:
        checkpoints.sweep()
        newest = checkpoints.newest() if resume else None
        if newest is not None:
            progress = checkpoints.restore(newest, job.model, optimizer, average)
            job.gradients.carried = checkpoints.carried(newest, job.device)
            job.gradients.loss_scale = progress.loss_scale
            job.display.note(f"resumed at step {progress.step}, epoch {progress.epoch + 1}")
        elif resume:
            _check_nothing_lost(job.run)
            job.display.note(f"nothing to resume in {job.run}: beginning at step 0")
        with Journal(job.run, tensorboard=training.tensorboard, size=progress.journal, step=progress.step) as journal:
            loop = _Loop(job, optimizer, average, checkpoints, journal, progress)
            try:
                loop.run_to_end(stop)
            finally:
                loop.close()
        return loop.progress


def _check_nothing_lost(run: Path) -> None:
    """Refuse to begin at step 0 where a model lies that would be written over."""
    if (run / "model.safetensors").exists():
        raise RunError(
            f"{run} has a model and no whole checkpoint to resume from; begin anew in another folder (--out), with "
            f"model.init_from={run} from this model"
        )


class _Loop:
    """One training on its way."""

    def __init__(
        self,
        job: Fit,
        optimizer: torch.optim.Optimizer,
        average: RunningAverage | None,
        checkpoints: Checkpoints,
        journal: Journal,
        progress: Progress,
    ) -> None:
        self.job, self.optimizer, self.average = job, optimizer, average
        self.checkpoints, self.journal, self.progress = checkpoints, journal, progress
        self.recipe, self.training = job.recipe, job.recipe.training
        self.parameters = [parameter for parameter in job.model.parameters() if parameter.requires_grad]
        self.layer_norms = LayerNorms(job.model) if self.training.log_layers else None
        self.newest_norms: Tensor | None = None  # of the parts, at the step that is logged
        self.readings = Readings(progress.unlogged)
        self.rate = 0.0  # of the newest step
        self.warmup_checked = progress.step > 0  # once a training, at its start
        self.started, self.before = time.monotonic(), progress.seconds
        self.logged_at, self.logged_tokens = time.monotonic(), progress.tokens
        self.batches: Iterator[list[TrainingBatch]] | None = None
        self.epoch_steps = self.steps_left = 0  # steps of this epoch, and those of them that are to come
        self.saved: int | None = None  # the step of this sitting's newest checkpoint, and that of its newest export
        self.exported: int | None = None
        self.mean_of: list[int] = []  # steps of the checkpoints whose mean was exported

    # --- the page -------------------------------------------------------------------------------------------------

    def run_to_end(self, stop: threading.Event) -> None:
        if self.recipe.model.init_from is not None and self.progress.validated is None and self.progress.step == 0:
            self.validate()  # what the training is to improve on, and its result if it never does
            self.save(scheduled=False)
            self.export()
        while not self.finished():
            group = self.next_batches()
            self.one_step(group)
            self.log(group)
            self.check_warmup()
            if self.validation_due():
                self.validate()
                self.save(scheduled=True)
                if self.progress.best_step == self.progress.step:
                    self.export()  # so that a run can be used while it is still being trained
            elif self.save_due():
                self.save(scheduled=True)
            if stop.is_set():
                self.check_finite()
                self.save(scheduled=False)
                self.export()
                raise Interrupted
        self.check_finite()
        if self.progress.validated != self.progress.step:
            self.validate()
        self.save(scheduled=True)
        self.export()
        self.tell_mean()

    # --- its lines ------------------------------------------------------------------------------------------------

    def finished(self) -> bool:
        return limit_reached({**vars(self.progress), "seconds": self.seconds()}, self.recipe)

    def seconds(self) -> float:
        return self.before + time.monotonic() - self.started

    def share_of_steps(self, step: int) -> float:
        """How much of the training lies behind this step, by the limits that count steps or epochs."""
        limits = self.training.limits
        by_steps = 0.0 if limits.steps is None else step / limits.steps
        by_epochs = 0.0 if limits.epochs is None else step / (limits.epochs * self.epoch_steps)
        return min(1.0, max(by_steps, by_epochs))

    def share_done(self, step: int) -> float:
        """The same by whichever limit comes first, the clock included; for the schedules."""
        minutes = self.training.limits.minutes
        return min(1.0, max(self.share_of_steps(step), 0.0 if minutes is None else self.seconds() / (60 * minutes)))

    def next_batches(self) -> list[TrainingBatch]:
        """The batches of the next step (several with accumulation; fewer at the end of an epoch)."""
        if self.batches is None:
            self.batches = self.open_epoch()
        return next(self.batches)

    def open_epoch(self) -> Iterator[list[TrainingBatch]]:
        epoch, size = self.progress.epoch, self.training.batches.accumulate
        plan = self.job.plan.epoch(epoch)
        if not len(plan):
            raise ValueError("there is nothing to train on: every example was dropped; look at the counts above")
        self.epoch_steps = -(-len(plan) // size)
        groups = [plan[at : at + size] for at in range(self.progress.batch, len(plan), size)]

        def make(group: Sequence[np.ndarray]) -> list[TrainingBatch]:
            plain = (self.job.plan.batch(epoch, examples) for examples in group)
            made = [replace(batch, flops=self.job.flops(batch)) for batch in plain]
            return [batch.to(self.job.device) for batch in made] if self.job.device.type != "cpu" else made

        self.steps_left = len(groups)
        return prefetch(groups, make)

    def one_step(self, group: list[TrainingBatch]) -> None:
        """Forward, loss, backward, clip, step."""
        step = self.progress.step + 1
        torch.manual_seed(step_seed(self.recipe.seed, step))
        schedule = self.training.schedule
        warmed = self.share_of_steps(int(schedule.warmup))
        rate = self.training.lr * factor(schedule, step, self.share_done(step), warmed)
        for parameters in self.optimizer.param_groups:
            parameters["lr"] = rate * parameters["factor"]
        self.rate = rate
        self.job.model.train()
        tokens = sum(batch.tokens for batch in group)
        total, nll, counts = self.job.gradients(group)
        if self.layer_norms is not None and step % self.training.log_every == 0:
            self.newest_norms = self.layer_norms()
        scaler = self.job.gradients.scaler
        if scaler is not None:
            scaler.unscale_(self.optimizer)
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.training.clip or math.inf, foreach=True)
        if scaler is not None and self.overflowed(total, norm):
            scaler.step(self.optimizer)  # leaves the weights as they are
            scaler.update()  # halves the scale
            self.progress = self.progress.after(skipped=self.progress.skipped + 1)
            self.advance(step, group)
            return
        values = torch.stack([total / tokens, nll / tokens, norm.to(total.dtype)])
        if counts is not None:
            values = torch.cat([values, counts.to(values.dtype)])
        examples = np.concatenate([batch.examples for batch in group])
        self.readings.add(Reading(step, self.progress.epoch, examples, values))
        looked = self.job.device.type == "cpu" or scaler is not None
        if looked and not math.isfinite(float(total) + float(norm)):
            self.check_finite()  # before the weights are touched; on CUDA looking would make every step wait
        if scaler is None:
            self.optimizer.step()
        else:
            scaler.step(self.optimizer)
            scaler.update()
        if self.average is not None:
            self.average.update(self.job.model, step)
        self.advance(step, group)

    def overflowed(self, total: Tensor, norm: Tensor) -> bool:
        """Whether only the loss scale of float16 made the gradient infinite: a smaller scale will do.

        At a scale of 1 there is nothing left to reduce; `check_finite` then reports the step.
        """
        scaler = self.job.gradients.scaler
        assert scaler is not None
        return math.isfinite(float(total)) and not math.isfinite(float(norm)) and scaler.get_scale() > 1

    def advance(self, step: int, group: list[TrainingBatch]) -> None:
        """Move the position on by one step."""
        p = self.progress
        epoch, batch = p.epoch, p.batch + len(group)
        self.steps_left -= 1
        if self.steps_left == 0:
            epoch, batch = epoch + 1, 0
            self.close()
        self.progress = p.after(
            step=step,
            epoch=epoch,
            batch=batch,
            tokens=p.tokens + sum(batch.processed_tokens for batch in group),
            flops=p.flops + sum(batch.flops for batch in group) + self.spent_beside(),
            seconds=self.seconds(),
        )

    def spent_beside(self) -> int:
        """The operations of the last step beyond those of its batches."""
        gradients = self.job.gradients
        spent, gradients.spent = gradients.spent, 0
        return spent

    def check_finite(self) -> None:
        """Look at the losses not yet looked at; if one is not finite, save its examples and raise `NotFinite`."""
        bad = self.readings.look()
        if bad is not None:
            texts = self.job.plan.texts(bad.epoch, bad.examples)
            raise not_finite(self.job.run, bad, texts, self.checkpoints.newest())

    def log(self, group: list[TrainingBatch]) -> None:
        """Every so many steps, write down how it goes; show it at every step that costs nothing."""
        if self.progress.step % self.training.log_every:
            self.job.display.step(self.progress, {})
            return
        self.check_finite()
        if not self.readings.seen:  # every step since the last record was skipped (float16)
            self.job.display.step(self.progress, {})
            return
        means, steps = self.readings.means()
        now = time.monotonic()
        speed = (self.progress.tokens - self.logged_tokens) / max(now - self.logged_at, 1e-9)
        self.logged_at, self.logged_tokens = now, self.progress.tokens
        record = {
            "kind": "train",
            "step": self.progress.step,
            "epoch": self.progress.epoch,
            **dict(zip(("loss", "nll", "gradient_norm"), means[:3], strict=True)),
            "lr": self.rate,
            "tokens": self.progress.tokens,
            "flops": self.progress.flops,
            "tokens_per_second": round(speed, 1),
            "seconds": round(self.seconds(), 3),
            **routing_record(self.job.model, means[3:], steps),
        }
        if self.job.gradients.scaler is not None:
            record |= {"loss_scale": self.job.gradients.scaler.get_scale(), "skipped_steps": self.progress.skipped}
        if self.layer_norms is not None and self.newest_norms is not None:
            record["layers"] = self.layer_norms.record(self.newest_norms)
        self.journal.write(record)
        self.job.display.step(self.progress, record)

    def check_warmup(self) -> None:
        """Warn once if the warm-up is too long for the limits; under a time limit, as soon as the speed is known."""
        done = self.share_done(self.progress.step)
        if self.warmup_checked or (self.progress.step < _SPEED_STEPS and done < _SPEED_SHARE):
            return
        self.warmup_checked = True
        if done and (warning := warmup_note(self.training.schedule, self.progress.step / done)) is not None:
            self.job.display.note(warning)

    def validation_due(self) -> bool:
        every = self.training.validate_every
        return self.progress.batch == 0 if every is None else self.progress.step % every == 0

    def save_due(self) -> bool:
        every = self.training.save_every
        return every is not None and self.progress.step % every == 0

    def validate(self) -> None:
        """Score the weights that would be the result, and remember whether they are the best so far."""
        self.check_finite()
        self.job.model.eval()
        if self.average is None:
            found = self.job.validate(self.job.model)
        else:
            own = {name: parameter.detach().clone() for name, parameter in weights_of(self.job.model).items()}
            load_parameters(self.job.model, self.average.weights)
            found = self.job.validate(self.job.model)
            load_parameters(self.job.model, own)
        p = self.progress
        score = math.inf if math.isnan(found.score) else found.score  # or no number would ever be better than none
        better = p.best is None or score < p.best
        self.progress = p.after(
            best=score if better else p.best,
            best_step=p.step if better else p.best_step,
            waited=0 if better else p.waited + 1,
            validated=p.step,
            seconds=self.seconds(),
        )
        record = {
            "kind": "validation",
            "step": p.step,
            "epoch": p.epoch,
            **found.record,
            "best": better,
            "tokens": p.tokens,
            "flops": p.flops,
            "peak_memory": peak_memory(self.job.device),
            "seconds": round(self.seconds(), 3),
        }
        self.journal.write(record)
        self.job.display.validation(self.progress, record)
        self.logged_at, self.logged_tokens = time.monotonic(), p.tokens

    def save(self, *, scheduled: bool) -> None:
        """A checkpoint, one a step; what came before it in the journal is part of it."""
        if self.saved == self.progress.step:
            return
        self.check_finite()
        recent = self.progress.recent
        if scheduled and self.training.averaging.kind == "checkpoints":
            steps = [step for step in recent if step != self.progress.step]
            recent = (*steps, self.progress.step)[-self.training.averaging.count :]
        self.journal.sync()
        self.progress = self.progress.after(
            journal=self.journal.size,
            recent=recent,
            unlogged=tuple(self.readings.seen),
            loss_scale=self.job.gradients.loss_scale,
            seconds=self.seconds(),
        )
        carried = self.job.gradients.carried
        self.checkpoints.save(self.job.model, self.optimizer, self.average, self.progress, carried)
        self.saved = self.progress.step

    def export(self) -> None:
        """The finished model, unless this step has written it already."""
        if self.exported != self.progress.step:
            self.job.export(self.result())
            self.exported = self.progress.step

    def result(self) -> dict[str, Tensor]:
        """The weights of the finished model, as the recipe wants it made."""
        p = self.progress
        if self.training.averaging.kind == "checkpoints":
            self.mean_of = [step for step in p.recent if self.checkpoints.usable(step)]
            if self.mean_of:
                return mean_weights([self.checkpoints.weights(step) for step in self.mean_of])
        step = p.best_step if self.training.result == "best" and p.best_step is not None else p.step
        if step == p.step or not self.checkpoints.usable(step):
            if self.average is None:
                return parameters_of(self.job.model)
            return {name: weight.cpu() for name, weight in self.average.weights.items()}
        return self.checkpoints.weights(step) if self.average is None else self.checkpoints.averages(step)

    def tell_mean(self) -> None:
        """Say what the finished model is the mean of: no validation was of that, and there may be fewer than asked."""
        found, count = len(self.mean_of), self.training.averaging.count
        if not found:
            return
        fewer = f" (of the {count} that training.averaging.count asks for)" if found < count else ""
        steps = ", ".join(map(str, self.mean_of))
        self.job.display.note(
            f"the finished model is the mean of {plural(found, 'checkpoint')}{fewer}, at step {steps}; validations "
            f"were of single ones"
        )

    def close(self) -> None:
        """Let the thread that makes batches go."""
        if self.batches is not None:
            self.batches.close()  # type: ignore[attr-defined]
            self.batches = None
