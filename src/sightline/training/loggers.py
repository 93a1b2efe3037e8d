"""Loggers: where the records of a training go. metrics.jsonl, TensorBoard and the display are loggers.

Every record has its `kind` and how far the training was: `step`, `epoch`, `tokens` (real target tokens), `flops`
(floating-point operations of all steps, forward, loss and backward, padding included; validation and the optimizer are
not in it; see flops.py) and `seconds` (over all processes that trained the run, validation included).

- "train", every training.log_every steps: `loss` (what is minimized), `nll` (nats per token) and `gradient_norm`
  (before clipping), means since the record before; `tokens_per_second` since then; `lr` of this step.
  For a model with experts: `experts`, the share of choices of each expert by layer (side and number, from 0),
  `dropped`, the share of choices beyond the capacity of their expert, and `dropped_choices`, their number.
  With training.precision: fp16 `loss_scale`, and `skipped_steps`, how many steps so far left the weights as they were
  because the scaled gradient overflowed (the means leave them out).
  With training.reward `flops` includes the sampled outputs, a forward pass as a third of a step.
  With training.log_layers `layers` has the gradient norm of each part of the model at this step, before clipping.
- "validation": `loss` (nats per token), `perplexity`, the metric if early stopping monitors it, the expected `reward`
  of outputs sampled for the validation sources if training.reward is set, `samples` (the beginnings of long texts),
  whether this was the `best` so far, `validation_seconds`, and `peak_memory`, the most bytes held so far: by tensors on
  a CUDA device, by the whole process on the CPU. A training that starts from another run's weights is validated before
  its first step too.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from sightline.files import open_growing, refuse_link, write_json
from sightline.registry import Implementations, entries
from sightline.terminal import escape_newlines, plural, truncate

if TYPE_CHECKING:
    from torch import Tensor

    from sightline.recipe.training import LimitsConfig
    from sightline.training.checkpoints import Progress


class Display(Protocol):
    """What shows a training to a person; any object with these methods."""

    def step(self, progress: Progress, record: dict[str, Any]) -> None: ...
    def validation(self, progress: Progress, record: dict[str, Any]) -> None: ...
    def note(self, text: str) -> None: ...


class Logger:
    """Receives every record; the methods do nothing unless overridden.

    A plug-in registers a subclass, and recipes name it in `training.loggers`. It is created with the run folder, the
    step a resumed training continues from (0: a new one), and its options.
    """

    def __init__(self, run: Path, step: int = 0) -> None: ...

    def step(self, progress: Progress, record: dict[str, Any]) -> None:
        """After each step; `record` is empty unless this step is logged."""

    def validation(self, progress: Progress, record: dict[str, Any]) -> None:
        """After each validation."""

    def note(self, text: str) -> None:
        """A line for a person to read."""

    def sync(self) -> None:
        """Make everything durable: a checkpoint that refers to it is about to be written."""

    def close(self) -> None:
        """The training is over or interrupted."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Journal(Logger):
    """metrics.jsonl: one JSON object per line, in order, none twice.

    A resumed run keeps the first `size` bytes, up to its checkpoint, and cuts what it will repeat. A journal that is
    shorter (it was lost) stays as it is, except for half a line at its end.
    """

    def __init__(self, run: Path, step: int = 0, *, size: int = 0) -> None:
        self.path = run / "metrics.jsonl"
        self._file = open_growing(self.path)
        self._file.truncate(self.path.read_bytes()[:size].rfind(b"\n") + 1)
        self._file.seek(0, os.SEEK_END)

    @property
    def size(self) -> int:
        return self._file.tell()

    def write(self, record: dict[str, Any]) -> None:
        """Add a line."""
        self._file.write((json.dumps(record, ensure_ascii=False) + "\n").encode("utf-8"))
        self._file.flush()

    def step(self, progress: Progress, record: dict[str, Any]) -> None:
        if record:
            self.write(record)

    def validation(self, progress: Progress, record: dict[str, Any]) -> None:
        self.write(record)

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class TensorBoard(Logger):
    """TensorBoard events of all numbers; a resumed run hides those after its step."""

    def __init__(self, run: Path, step: int = 0) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        refuse_link(run / "tensorboard")
        self._events: Any = SummaryWriter(str(run / "tensorboard"), purge_step=step + 1)  # type: ignore[no-untyped-call]

    def step(self, progress: Progress, record: dict[str, Any]) -> None:
        for key, value in record.items():
            if isinstance(value, int | float) and key not in ("step", "epoch"):
                self._events.add_scalar(f"{record['kind']}/{key}", value, record["step"])

    validation = step

    def sync(self) -> None:
        self._events.flush()

    def close(self) -> None:
        self._events.close()


LOGGERS = Implementations("logger")  # classes, called with (run, step, **options)


# --- losses of steps -----------------------------------------------------------------------------------------------


class NotFinite(ArithmeticError):
    """The loss or its gradient became infinite or NaN."""


@dataclass(frozen=True)
class StepValues:
    """The numbers of one step, still on the device: reading them makes the device wait."""

    step: int
    epoch: int
    examples: np.ndarray  # of all its batches
    values: Tensor  # loss, nll and gradient norm, then expert counts


class StepMetrics:
    """The numbers of the steps since the last record: pending on the device, then read."""

    def __init__(self, read: Iterable[tuple[float, ...]] = ()) -> None:
        self._pending: list[StepValues] = []
        self.rows = list(read)

    def add(self, values: StepValues) -> None:
        """Keep the numbers of a step until the next `read`."""
        self._pending.append(values)

    def read(self) -> StepValues | None:
        """Read all pending numbers; the first step that is not finite, if there is one."""
        if not self._pending:
            return None
        import torch

        values = torch.stack([each.values for each in self._pending]).cpu().double().numpy()  # (steps, 3 + counts)
        bad = np.flatnonzero(~np.isfinite(values).all(1))
        if len(bad):
            return self._pending[int(bad[0])]
        self.rows += [tuple(row) for row in values.tolist()]
        self._pending = []
        return None

    def means(self) -> tuple[list[float], int]:
        """The mean of each number over the steps read, and the number of steps; then start again."""
        means, steps = np.mean(self.rows, axis=0).tolist(), len(self.rows)
        self.rows = []
        return means, steps


def not_finite(run: Path, bad: StepValues, texts: list[dict[str, str]], newest: int | None) -> NotFinite:
    """The error for a step without a finite loss; its examples are saved. `newest` is the last good checkpoint."""
    path, (loss, _, norm) = run / "bad-batch.json", bad.values[:3].tolist()
    record = {"step": bad.step, "epoch": bad.epoch, "loss": str(loss), "gradient_norm": str(norm), "examples": texts}
    write_json(path, record)
    kept = f"the last good checkpoint is step {newest}" if newest is not None else "no checkpoint was saved before"
    return NotFinite(
        f"step {bad.step}: loss {loss}, gradient norm {norm}; the batch is saved in {path}, {kept}. "
        f"Lower training.lr, lengthen training.schedule.warmup, or look at that batch"
    )


# --- the display ---------------------------------------------------------------------------------------------------


def clock(seconds: float) -> str:
    """`1:02:03`, or `2:03`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def step_line(record: dict[str, Any]) -> str:
    """A train record in one line; where experts were full, with the share of dropped choices."""
    dropped = f"  dropped {record['dropped']:.1%}" if record.get("dropped_choices") else ""
    return (
        f"step {record['step']:>6}  epoch {record['epoch'] + 1:>3}  loss {record['loss']:.3f}  "
        f"lr {record['lr']:.2e}  |g| {record['gradient_norm']:.2f}  "
        f"{record['tokens_per_second']:,.0f} tokens/s  {clock(record['seconds'])}{dropped}"
    )


_LABELS = {
    **{name: name.upper() for name in ("bleu", "ter", "wer", "cer", "rouge-1", "rouge-2", "rouge-l")},
    "chrf": "chrF",
    "rouge-lsum": "ROUGE-Lsum",
    "macro-f1": "macro-F1",
    "span-f1": "span F1",
    "token-f1": "token F1",
    "exact": "exact match",
    "bits-per-character": "bits/char",
}


def validation_line(record: dict[str, Any]) -> str:
    """A validation record in one line."""
    keys = [key for key in dict.fromkeys(("loss", "perplexity", "reward", *entries("metric"))) if key in record]
    parts = [f"{_LABELS.get(key, key.replace('-', ' '))} {record[key]:.3f}" for key in keys]
    if "search" in record:
        parts.append(record["search"])
    if record.get("truncated"):
        parts.append(f"{record['truncated']:,} of {plural(record['outputs'], 'output')} cut at the length limit")
    return f"validation at step {record['step']}: {', '.join(parts)}" + ("  (best so far)" if record["best"] else "")


def sample_line(sample: dict[str, Any]) -> str:
    """An output of the model in one line; newlines are shown as ⏎.

    The output of a language model continues its prompt, as the reference does: the prompt comes first, and the
    continuation after a triangle. Elsewhere an arrow leads from input to output.
    """
    source, output = sample["source"], sample["output"]
    continues = sample.get("reference", "").startswith(source) and sample.get("reference") != source
    if continues and output.startswith(source):
        return f"    {escape_newlines(source)} ▸ {escape_newlines(output[len(source) :])}"
    cut = "  (cut at the length limit)" if sample.get("truncated") else ""
    return f"    {escape_newlines(truncate(source))}  →  {escape_newlines(output)}{cut}"


class PlainDisplay:
    """Plain lines on standard error."""

    def step(self, progress: Progress, record: dict[str, Any]) -> None:
        if record:
            self.note(step_line(record))

    def validation(self, progress: Progress, record: dict[str, Any]) -> None:
        self.note(validation_line(record))
        for sample in record.get("samples", ()):
            self.note(sample_line(sample))

    def note(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


class LiveDisplay:
    """A progress bar below scrolling notes; for terminals."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        from sightline.terminal import console

        self.limits: LimitsConfig | None = None  # set by the training
        self.bar = Bar(
            TextColumn("[bold]training"),
            BarColumn(bar_width=32),
            TextColumn("{task.percentage:>3.0f}%  {task.description}"),
            TimeElapsedColumn(),
            console=console(stderr=True),
        )
        self.task = self.bar.add_task("starting", total=1.0)
        self.last: dict[str, Any] = {}

    def _share(self, progress: Progress) -> float:
        shares = [0.0]
        if (limits := self.limits) is not None:
            shares += [] if limits.steps is None else [progress.step / limits.steps]
            shares += [] if limits.epochs is None else [progress.epoch / limits.epochs]
            shares += [] if limits.minutes is None else [progress.seconds / (60 * limits.minutes)]
        return min(1.0, max(shares))

    def step(self, progress: Progress, record: dict[str, Any]) -> None:
        self.last = record or self.last
        text = f"step {progress.step}  epoch {progress.epoch + 1}"
        if self.last:
            text += f"  loss {self.last['loss']:.3f}  {self.last['tokens_per_second']:,.0f} tokens/s"
        self.bar.update(self.task, completed=self._share(progress), description=text)

    def validation(self, progress: Progress, record: dict[str, Any]) -> None:
        from rich.text import Text

        self.bar.console.print(Text(validation_line(record), style="green" if record["best"] else ""))
        for sample in record.get("samples", ()):
            self.bar.console.print(Text(sample_line(sample), style="dim"))

    def count(self, what: str, examples: int) -> None:
        """The progress of data preparation."""
        self.bar.update(self.task, description=f"{what}: {plural(examples, 'example')}")

    def note(self, text: str) -> None:
        from rich.text import Text

        self.bar.console.print(Text(text))

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()
