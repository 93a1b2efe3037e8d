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
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sightline.files import open_growing, refuse_link


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
