"""What a person sees while training goes on: a live line in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from sightline.terminal import plural
from sightline.text.shown import beginning, in_one_line

if TYPE_CHECKING:
    from sightline.training.checkpoints import Progress


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
        return f"    {in_one_line(source)} ▸ {in_one_line(output[len(source) :])}"
    cut = "  (cut at the length limit)" if sample.get("truncated") else ""
    return f"    {in_one_line(beginning(source))}  →  {in_one_line(output)}{cut}"


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
