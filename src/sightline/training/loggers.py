"""metrics.jsonl, and the TensorBoard events beside it.

Every record has its `kind` and how far the training was: `step`, `epoch`, `tokens` (real target tokens), `flops`
(floating-point operations of all steps, forward, loss and backward, padding included; validation and the optimizer are
not in it; flops.py says what counts as how many) and `seconds` (over all sittings, validation included).

- "train", every training.log_every steps: `loss` (what is minimized), `nll` (nats a token) and `gradient_norm` (before
  clipping), means since the record before; `tokens_per_second` since then; `lr` of this step.
  Where a model has experts: `experts`, for each layer that has some (by side and number, from 0) the share of its
  choices that fell on each, `dropped`, the share of all choices that found their expert full, and `dropped_choices`,
  how many those were; all since then too.
  With training.precision: fp16 `loss_scale`, and `skipped_steps`, how many steps so far left the weights as they were
  because the scaled gradient overflowed (the means leave them out).
  With training.reward `flops` has the drawn outputs in it, a pass forwards as a third of a step.
  With training.log_layers `layers` has the gradient norm of each part of the model, of this step, before clipping.
- "validation": `loss` (nats a token), `perplexity`, the metric if early stopping looks at it, the expected `reward` of
  outputs drawn for the validation sources if training.reward is set, `samples` (of long texts how they begin), whether
  this was the `best` so far, `validation_seconds`, and `peak_memory`, the most bytes held so far: by tensors on a CUDA
  device, by the whole process on the CPU. A training that starts from another run's weights is validated before its
  first step too.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from torch import nn

from sightline.files import open_growing, refuse_link
from sightline.layers.experts import Experts
from sightline.terminal import escape_newlines, plural, truncate

if TYPE_CHECKING:
    from sightline.training.checkpoints import Progress


class Journal:
    """One JSON object a line, in the order things happened, nothing twice: a resumed run cuts what it will redo.

    Of what is there already it keeps the first `size` bytes, and of TensorBoard's events those up to `step`: where the
    run goes on from. A journal that is shorter (it was lost) stays as it is, but for half a line at its end.
    """

    def __init__(self, run: Path, *, tensorboard: bool, size: int = 0, step: int = 0) -> None:
        self.path = run / "metrics.jsonl"
        self._events = self._open_events(run, step) if tensorboard else None
        self._file = open_growing(self.path)
        self._file.truncate(self.path.read_bytes()[:size].rfind(b"\n") + 1)
        self._file.seek(0, os.SEEK_END)

    @staticmethod
    def _open_events(run: Path, step: int) -> Any:
        from torch.utils.tensorboard.writer import SummaryWriter

        refuse_link(run / "tensorboard")
        return SummaryWriter(str(run / "tensorboard"), purge_step=step + 1)  # type: ignore[no-untyped-call]

    @property
    def size(self) -> int:
        return self._file.tell()

    def write(self, record: dict[str, Any]) -> None:
        """Add a line, and its numbers to TensorBoard."""
        self._file.write((json.dumps(record, ensure_ascii=False) + "\n").encode("utf-8"))
        self._file.flush()
        if self._events is not None:
            for key, value in record.items():
                if isinstance(value, int | float) and key not in ("step", "epoch"):
                    self._events.add_scalar(f"{record['kind']}/{key}", value, record["step"])

    def sync(self) -> None:
        """Make what is written durable, before a checkpoint refers to it."""
        os.fsync(self._file.fileno())
        if self._events is not None:
            self._events.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        if self._events is not None:
            self._events.close()


def expert_layers(model: nn.Module) -> dict[str, int]:
    """How many experts the layers have that have some, by side and number (from 0): {"encoder.1": 8}."""
    found = {path: module.count for path, module in model.named_modules() if isinstance(module, Experts)}
    return {_short(path): count for path, count in found.items()}


def _short(path: str) -> str:
    """encoder.layers.1.feedforward → encoder.1"""
    side, *rest = path.split(".")
    return ".".join([side, *(part for part in rest if part.isdigit())])


def routing_record(model: nn.Module, counts: Sequence[float], steps: int) -> dict[str, Any]:
    """What goes into metrics.jsonl; nothing where nothing was counted.

    `counts` are, for each layer, the choices of each of its experts and, behind them, those that were dropped: means
    over so many `steps`.
    """
    if not counts:
        return {}
    shares, place, chosen, dropped = {}, 0, 0.0, 0.0
    for name, experts in expert_layers(model).items():
        each = counts[place : place + experts]
        shares[name] = [round(count / max(sum(each), 1e-9), 4) for count in each]
        chosen, dropped = chosen + sum(each), dropped + counts[place + experts]
        place += experts + 1
    share = round(dropped / max(chosen, 1e-9), 4)
    return {"experts": shares, "dropped": share, "dropped_choices": round(dropped * steps)}


class Display(Protocol):
    """Shows a training to a person."""

    def step(self, progress: Progress, record: dict[str, Any]) -> None: ...
    def validation(self, progress: Progress, record: dict[str, Any]) -> None: ...
    def note(self, text: str) -> None: ...


def clock(seconds: float) -> str:
    """`1:02:03`, or `2:03`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def step_line(record: dict[str, Any]) -> str:
    """A training record in one line; where experts were full, with the share of choices that were dropped."""
    dropped = f"  dropped {record['dropped']:.1%}" if record.get("dropped_choices") else ""
    return (
        f"step {record['step']:>6}  epoch {record['epoch'] + 1:>3}  loss {record['loss']:.3f}  "
        f"lr {record['lr']:.2e}  |g| {record['gradient_norm']:.2f}  "
        f"{record['tokens_per_second']:,.0f} tokens/s  {clock(record['seconds'])}{dropped}"
    )


def validation_line(record: dict[str, Any]) -> str:
    """A validation record in one line."""
    known = {
        "loss": "loss",
        "perplexity": "perplexity",
        "reward": "reward",
        "bleu": "BLEU",
        "chrf": "chrF",
        "ter": "TER",
    }
    known |= {"exact": "exact match", "wer": "WER", "cer": "CER", "bits-per-character": "bits/char"}
    known |= {
        "masked-accuracy": "masked accuracy",
        "accuracy": "accuracy",
        "macro-f1": "macro-F1",
        "token-accuracy": "token accuracy",
        "span-f1": "span F1",
    }
    known |= {"rouge-1": "ROUGE-1", "rouge-2": "ROUGE-2", "rouge-l": "ROUGE-L", "rouge-lsum": "ROUGE-Lsum"}
    parts = [f"{label} {record[key]:.3f}" for key, label in known.items() if key in record]
    if "search" in record:
        parts.append(record["search"])
    if record.get("truncated"):
        parts.append(f"{record['truncated']:,} of {plural(record['outputs'], 'output')} cut at the length limit")
    return f"validation at step {record['step']}: {', '.join(parts)}" + ("  (best so far)" if record["best"] else "")


def sample_line(sample: dict[str, Any]) -> str:
    """An output of the model in one line, whatever it wrote: newlines are shown as ⏎.

    What a language model wrote goes on after its prompt, and so does the real text: there the prompt comes first and
    what was added to it after a triangle. Elsewhere an arrow leads from the input to the output.
    """
    source, output = sample["source"], sample["output"]
    goes_on = sample.get("reference", "").startswith(source) and sample.get("reference") != source
    if goes_on and output.startswith(source):
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
    """A progress bar that knows the limits, over notes that scroll by; for terminals."""

    def __init__(self, *, steps: int | None, epochs: int | None, minutes: float | None) -> None:
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        from sightline.terminal import console

        self.limits = steps, epochs, minutes
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
        steps, epochs, minutes = self.limits
        shares = [0.0]
        if steps is not None:
            shares.append(progress.step / steps)
        if epochs is not None:
            shares.append(progress.epoch / epochs)
        if minutes is not None:
            shares.append(progress.seconds / (60 * minutes))
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
        """How far the preparation of the data is."""
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
