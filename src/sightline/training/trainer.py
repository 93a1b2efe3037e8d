"""The trainer: next batch, forward, loss, backward, step, log, validate, save.

Nothing random is carried from step to step: the order of the data is a pure function of (seed, epoch), and the dropout
of a step is seeded by (seed, step). So a checkpoint needs no generator state, and a resumed training is the
uninterrupted one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from sightline.data.collate import StaticShape, TrainingBatch, prefetch
from sightline.layers.losses import Loss
from sightline.models.weights import load_parameters, weights_of
from sightline.recipe import Recipe
from sightline.recipe.plugins import with_own_parts
from sightline.recipe.schema import Choice
from sightline.run_folder import RunError
from sightline.training.averaging import RunningAverage, finished_weights
from sightline.training.callbacks import CALLBACKS
from sightline.training.checkpoints import Checkpoints, Progress
from sightline.training.loggers import LOGGERS, Display, Journal, Logger, StepMetrics, StepValues, not_finite
from sightline.training.memory import peak_memory
from sightline.training.optimizers import build_optimizer
from sightline.training.schedules import learning_rate_factor, limit_reached
from sightline.training.train_step import StepRunner
from sightline.training.validation import Validation
from sightline.training.world import Interrupted, World, stop_signals


class BatchPlan(Protocol):
    """The batches of any epoch, as a pure function of its number."""

    recipe: Recipe
    layout: str
    shape: StaticShape | None  # of all batches, if they have the same

    def epoch(self, number: int) -> Sequence[np.ndarray]: ...
    def batch(self, epoch: int, examples: np.ndarray) -> TrainingBatch: ...
    def texts(self, epoch: int, examples: np.ndarray) -> list[dict[str, str]]: ...
    def waste(self, epoch: int = 0) -> float: ...


@dataclass(kw_only=True)
class Trainer:
    """One training of one model."""

    recipe: Recipe
    run: Path
    plan: BatchPlan
    runner: StepRunner  # has the model
    validator: Callable[[nn.Module], Validation]
    export: Callable[[dict[str, Tensor]], None]  # writes the finished model
    display: Display
    flops: Callable[[TrainingBatch], int]  # of a step with this batch
    lr_factors: Mapping[str, float] = field(default_factory=dict)  # of parameters with a smaller lr, by name
    world: World = field(default_factory=World)

    def __post_init__(self) -> None:
        self.training, self.model, self.device = self.recipe.training, self.runner.step.model, self.runner.step.device
        averaging = self.training.averaging
        self.optimizer = build_optimizer(self.model, self.training, self.lr_factors)
        self.parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.average = RunningAverage(self.model, averaging.decay) if averaging.kind == "ema" else None
        self.checkpoints = Checkpoints(self.run, self.training.keep)
        chosen = with_own_parts("callback", self.training.callbacks)
        self.callbacks = [CALLBACKS[each.kind](**each.options(Choice)) for each in chosen]
        self.loggers: list[Logger] = []  # open while training
        self.progress, self.resumed_at = Progress(), 0
        self.metrics = StepMetrics()
        self.lr = 0.0  # of the newest step
        self.expert_counts: list[float] = []  # means since the last record, for callbacks
        self.logged_steps = 0
        self.batches: Iterator[list[TrainingBatch]] | None = None
        self.epoch_steps = self.steps_left = 0  # steps of this epoch; those still to come
        self.saved: int | None = None  # step of the newest checkpoint of this process, and of the newest finished model
        self.written: int | None = None
        self.result_note: str | None = None  # if the finished model is a mean of checkpoints

    # --- the main loop ---------------------------------------------------------------------------------------------

    def fit(self, *, resume: bool = False) -> Progress:
        """Train to the end, or to an interruption (which saves and raises `Interrupted`)."""
        with stop_signals() as stop, ExitStack() as stack:
            self.start(stack, resume=resume)
            while not self.finished():
                if self.batches is None:
                    self.batches = self.open_epoch()
                batches = next(self.batches)  # several with accumulation, fewer at the end of an epoch
                self.prepare_step()
                loss = self.runner(batches)  # forward and backward
                self.update(batches, loss)
                self.log()
                if self.validation_due():
                    self.validate()
                    self.save(scheduled=True)
                    if self.progress.best_step == self.progress.step:
                        self.write_model()  # so that the run can be used while it is being trained
                elif self.training.save_every is not None and self.progress.step % self.training.save_every == 0:
                    self.save(scheduled=True)
                if self.world.any(stop.is_set()):
                    self.stop()
            self.end()
        return self.progress

    def start(self, stack: ExitStack, *, resume: bool) -> None:
        """Restore the newest checkpoint and open the loggers; validate weights that come from another run."""
        self.checkpoints.sweep()
        newest = self.checkpoints.newest() if resume else None
        if newest is not None:
            self.progress = self.checkpoints.restore(newest, self.model, self.optimizer, self.average)
            self.runner.carried = self.checkpoints.carried(newest, self.device)
            self.runner.loss_scale = self.progress.loss_scale
            self.display.note(f"resumed at step {self.progress.step}, epoch {self.progress.epoch + 1}")
            if self.progress.batch and self.progress.layout not in ("", self.plan.layout):
                self.display.note(
                    f"batches are {self.plan.layout} on this device and were {self.progress.layout}, so epoch "
                    f"{self.progress.epoch + 1} starts again"
                )
                self.progress = self.progress.after(batch=0)
        elif resume:
            if (self.run / "model.safetensors").exists():
                raise RunError(
                    f"{self.run} has a model and no whole checkpoint to resume from; start a new training in another "
                    f"folder (--out), with model.init_from={self.run} from this model"
                )
            self.display.note(f"nothing to resume in {self.run}: starting at step 0")
        self.progress = self.progress.after(layout=self.plan.layout)
        step = self.resumed_at = self.progress.step
        self.metrics = StepMetrics(self.progress.unlogged)
        if self.world.is_main:
            self.journal = stack.enter_context(Journal(self.run, step, size=self.progress.journal))
            named = list(self.training.loggers)
            if self.training.tensorboard and all(each.kind != "tensorboard" for each in named):
                named.append(Choice(kind="tensorboard"))
            loggers = (LOGGERS[each.kind](self.run, step, **each.options(Choice)) for each in named)
            self.loggers = [self.journal, *map(stack.enter_context, loggers)]
        stack.callback(self.close_batches)
        self.started, self.seconds_before = time.monotonic(), self.progress.seconds
        self.logged_at, self.logged_tokens = time.monotonic(), self.progress.tokens
        if self.recipe.model.init_from is not None and self.progress.validated is None and step == 0:
            self.validate()  # the training is to improve on this; it is the result if it never does
            self.save(scheduled=False)
            self.write_model()

    def stop(self) -> None:
        """Save and raise `Interrupted`."""
        self.check_finite()
        self.save(scheduled=False)
        self.write_model()
        raise Interrupted

    def end(self) -> None:
        """Validate and save the last step, and write the finished model."""
        self.check_finite()
        if self.progress.validated != self.progress.step:
            self.validate()
        self.save(scheduled=True)
        self.write_model()
        if self.result_note is not None:
            self.note(self.result_note)
        for callback in self.callbacks:
            callback.on_end(self)

    # --- progress and limits ---------------------------------------------------------------------------------------

    def finished(self) -> bool:
        """True if a limit is reached; rank 0 decides, because the clocks of processes differ."""
        return self.world.broadcast(limit_reached({**vars(self.progress), "seconds": self.seconds()}, self.recipe))

    def seconds(self) -> float:
        return self.seconds_before + time.monotonic() - self.started

    def share_of_steps(self, step: int) -> float:
        """The share of the training that is over at a step, by the limits that count steps or epochs."""
        limits = self.training.limits
        by_steps = 0.0 if limits.steps is None else step / limits.steps
        by_epochs = 0.0 if limits.epochs is None else step / (limits.epochs * self.epoch_steps)
        return min(1.0, max(by_steps, by_epochs))

    def share_done(self, step: int) -> float:
        """The same by the first limit, time included; for the schedules."""
        minutes = self.training.limits.minutes
        by_time = 0.0 if minutes is None else self.world.broadcast(self.seconds() / (60 * minutes))
        return min(1.0, max(self.share_of_steps(step), by_time))

    def validation_due(self) -> bool:
        every = self.training.validate_every
        return self.progress.batch == 0 if every is None else self.progress.step % every == 0

    # --- batches ---------------------------------------------------------------------------------------------------

    def open_epoch(self) -> Iterator[list[TrainingBatch]]:
        """The batches of each step of this epoch, made by a thread."""
        epoch, size = self.progress.epoch, self.training.batches.accumulate
        batches = self.plan.epoch(epoch)
        if not len(batches):
            raise ValueError("there is nothing to train on: every example was dropped; look at the counts above")
        self.epoch_steps = -(-len(batches) // size)
        groups = [batches[at : at + size] for at in range(self.progress.batch, len(batches), size)]

        def collate(group: Sequence[np.ndarray]) -> list[TrainingBatch]:
            plain = (self.plan.batch(epoch, self.world.batch_slice(examples)) for examples in group)
            counted = [replace(batch, flops=self.flops(batch)) for batch in plain]
            return [batch.to(self.device) for batch in counted] if self.device.type != "cpu" else counted

        self.steps_left = len(groups)
        return prefetch(groups, collate)

    def close_batches(self) -> None:
        """Stop the thread that makes batches."""
        if self.batches is not None:
            self.batches.close()  # type: ignore[attr-defined]
            self.batches = None

    # --- one step --------------------------------------------------------------------------------------------------

    def prepare_step(self) -> None:
        """Seed the step and set its learning rate."""
        step = self.progress.step + 1
        torch.manual_seed(self.world.seed(self.recipe.seed, step))
        schedule = self.training.schedule
        warmed = self.share_of_steps(int(schedule.warmup))
        self.lr = self.training.lr * learning_rate_factor(schedule, step, self.share_done(step), warmed)
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr * group["factor"]
        self.model.train()

    def update(self, batches: list[TrainingBatch], loss: Loss) -> None:
        """Clip the gradients, step the optimizer and the average, and move on by one step.

        A step whose float16 gradients overflowed leaves the weights as they are and lowers the loss scale.
        """
        for callback in self.callbacks:
            callback.on_backward(self)
        step, scaler = self.progress.step + 1, self.runner.scaler
        if scaler is not None:
            scaler.unscale_(self.optimizer)
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.training.clip or math.inf, foreach=True)
        total, nll = self.world.reduce(loss.total), self.world.reduce(loss.nll)
        # only the loss scale is too large, and it can be lowered; otherwise `check_finite` reports the step
        if scaler and scaler.get_scale() > 1 and math.isfinite(float(total)) and not math.isfinite(float(norm)):
            scaler.step(self.optimizer)  # leaves the weights as they are
            scaler.update()  # halves the scale
            self.progress = self.progress.after(skipped=self.progress.skipped + 1)
            self.advance(step, batches)
            return
        tokens = self.world.total(sum(batch.tokens for batch in batches))
        values = torch.stack([total / tokens, nll / tokens, norm.to(total.dtype)])
        if loss.counts is not None:
            values = torch.cat([values, self.world.reduce(loss.counts).to(values.dtype)])
        examples = np.concatenate([batch.examples for batch in batches])
        self.metrics.add(StepValues(step, self.progress.epoch, examples, values))
        cheap = self.device.type == "cpu" or scaler is not None  # on CUDA, reading the loss would make every step wait
        if cheap and not math.isfinite(float(total) + float(norm)):
            self.check_finite()  # before the weights change
        if scaler is None:
            self.optimizer.step()
        else:
            scaler.step(self.optimizer)
            scaler.update()
        if self.average is not None:
            self.average.update(self.model, step)
        self.advance(step, batches)

    def advance(self, step: int, batches: list[TrainingBatch]) -> None:
        """Move the position on by one step."""
        p = self.progress
        epoch, batch = p.epoch, p.batch + len(batches)
        self.steps_left -= 1
        if self.steps_left == 0:
            epoch, batch = epoch + 1, 0
            self.close_batches()
        self.progress = p.after(
            step=step,
            epoch=epoch,
            batch=batch,
            tokens=p.tokens + self.world.total(sum(batch.processed_tokens for batch in batches)),
            flops=p.flops + self.world.total(self.runner.flops),
            seconds=self.seconds(),
        )

    def check_finite(self) -> None:
        """Read the losses not yet read; if one is not finite, save its examples and raise `NotFinite`."""
        bad = self.metrics.read()
        if bad is not None:
            texts = self.plan.texts(bad.epoch, bad.examples)
            raise not_finite(self.run, bad, texts, self.checkpoints.newest())

    # --- records ---------------------------------------------------------------------------------------------------

    def note(self, text: str) -> None:
        for logger in (*self.loggers, self.display):
            logger.note(text)

    def log(self) -> None:
        """Log a record every training.log_every steps; the display sees every step."""
        record: dict[str, Any] = {}
        if self.progress.step % self.training.log_every == 0:
            self.check_finite()
            if self.metrics.rows:  # else every step since the last record was skipped (float16)
                record = self.train_record()
        for logger in (*self.loggers, self.display):
            logger.step(self.progress, record)
        for callback in self.callbacks:
            callback.on_step(self)

    def train_record(self) -> dict[str, Any]:
        """The means since the last record."""
        means, self.logged_steps = self.metrics.means()
        self.expert_counts = means[3:]
        p, now = self.progress, time.monotonic()
        speed = (p.tokens - self.logged_tokens) / max(now - self.logged_at, 1e-9)
        self.logged_at, self.logged_tokens = now, p.tokens
        record = {
            "kind": "train",
            "step": p.step,
            "epoch": p.epoch,
            **dict(zip(("loss", "nll", "gradient_norm"), means[:3], strict=True)),
            "lr": self.lr,
            "tokens": p.tokens,
            "flops": p.flops,
            "tokens_per_second": round(speed, 1),
            "seconds": round(self.seconds(), 3),
        }
        if self.runner.scaler is not None:
            record |= {"loss_scale": self.runner.scaler.get_scale(), "skipped_steps": p.skipped}
        for callback in self.callbacks:
            callback.on_log(self, record)
        return record

    def validate(self) -> None:
        """Validate the weights that would be the result; the best so far are remembered."""
        self.check_finite()
        self.model.eval()
        if self.average is None:
            validation = self.validator(self.model)
        else:
            raw = {name: parameter.detach().clone() for name, parameter in weights_of(self.model).items()}
            load_parameters(self.model, self.average.weights)
            validation = self.validator(self.model)
            load_parameters(self.model, raw)
        p = self.progress
        score = math.inf if math.isnan(validation.score) else validation.score  # or no number would ever beat NaN
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
            **validation.record,
            "best": better,
            "tokens": p.tokens,
            "flops": p.flops,
            "peak_memory": peak_memory(self.device),
            "seconds": round(self.seconds(), 3),
        }
        for callback in self.callbacks:
            callback.on_validation(self, record)
        for logger in (*self.loggers, self.display):
            logger.validation(self.progress, record)
        self.logged_at, self.logged_tokens = time.monotonic(), p.tokens

    # --- files -----------------------------------------------------------------------------------------------------

    def save(self, *, scheduled: bool) -> None:
        """Write a checkpoint, once per step; the journal up to here is part of it."""
        if self.saved == self.progress.step:
            return
        self.check_finite()
        recent = self.progress.recent
        if scheduled and self.training.averaging.kind == "checkpoints":
            steps = [step for step in recent if step != self.progress.step]
            recent = (*steps, self.progress.step)[-self.training.averaging.count :]
        for logger in self.loggers:
            logger.sync()
        self.progress = self.progress.after(
            journal=self.journal.size if self.world.is_main else 0,
            recent=recent,
            unlogged=tuple(self.metrics.rows),
            loss_scale=self.runner.loss_scale,
            seconds=self.seconds(),
        )
        if self.world.is_main:
            self.checkpoints.save(self.model, self.optimizer, self.average, self.progress, self.runner.carried)
        self.world.barrier()
        self.saved = self.progress.step

    def write_model(self) -> None:
        """Write the finished model, unless this step has written it already."""
        if self.written == self.progress.step or not self.world.is_main:
            return
        args = (self.training, self.progress, self.model, self.average, self.checkpoints)
        weights, self.result_note = finished_weights(*args)
        self.export(weights)
        self.written = self.progress.step
