"""Outputs that are incomplete: truncated by a length limit, or with unknown words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sightline.recipe import Decoding
from sightline.recipe.tokenizer import WHOLE_WORDS
from sightline.tasks.base import Prediction, Task
from sightline.terminal import plural

_KEPT = 1_000  # line numbers to keep
_SHOWN = 8  # line numbers in a message


@dataclass
class Lines:
    """A count of affected lines, and the numbers of the first ones, counted from 1."""

    count: int = 0
    first: list[int] = field(default_factory=list)

    def add(self, line: int) -> None:
        self.count += 1
        if len(self.first) < _KEPT:
            self.first.append(line)

    def __str__(self) -> str:
        """`line 4`, `lines 4, 17, 20, …`."""
        numbers = ", ".join(map(str, self.first[:_SHOWN])) + (", …" if self.count > _SHOWN else "")
        return f"{'line' if self.count == 1 else 'lines'} {numbers}"


@dataclass
class Incomplete:
    """Lines whose best output was truncated or contains <unk>."""

    outputs: int = 0
    truncated: Lines = field(default_factory=Lines)
    unknown: Lines = field(default_factory=Lines)  # with <unk> in the output
    tokens: int = 0  # <unk> tokens in all outputs

    @staticmethod
    def of(answers: Sequence[Sequence[Prediction]]) -> Incomplete:
        counts = Incomplete()
        counts.add(answers)
        return counts

    def add(self, answers: Sequence[Sequence[Prediction]]) -> None:
        """Count the best outputs of the next lines."""
        for best, *_ in answers:
            self.outputs += 1
            if best.truncated:
                self.truncated.add(self.outputs)
            if best.unknown:
                self.unknown.add(self.outputs)
                self.tokens += best.unknown

    def to_dict(self) -> dict[str, Any]:
        """For JSON; empty if all outputs are complete."""
        record: dict[str, Any] = {}
        if self.truncated.count:
            record |= {"truncated": self.truncated.count, "truncated_lines": self.truncated.first}
        if self.unknown.count:
            record |= {"outputs_with_unknown": self.unknown.count, "unknown_lines": self.unknown.first}
        return record

    def notes(self, task: Task, options: Decoding) -> list[str]:
        """Messages with remedies. Truncated continuations are expected and not reported."""
        notes, every = [], plural(self.outputs, "output")
        if self.truncated.count and not task.recipe.task_spec.continues_text:
            reached = f"{self.truncated.count:,} of {every} reached the length limit ({self.truncated})"
            notes.append(f"{reached}; {_remedy(task, options)}")
        if self.unknown.count:
            where = f"<unk> is in {self.unknown.count:,} of {every} ({self.unknown})"
            notes.append(f"{where}, in place of words outside the vocabulary; {_other_vocabulary(task)}")
        return notes


def _other_vocabulary(task: Task) -> str:
    """The remedy for <unk>."""
    recipe = task.recipe
    if recipe.task_spec.maps_text and recipe.tokenizer.kind in WHOLE_WORDS and not recipe.model.copying:
        copy = "" if recipe.blind else "replace it by the attended source word (decoding.replace_unknown=copy), or "
        return f"{copy}train with tokenizer.kind: bpe"
    return "train with a larger tokenizer.size or a smaller tokenizer.min_count"


def _remedy(task: Task, options: Decoding) -> str:
    """The remedy for truncated outputs."""
    limits = {"max_length": options.max_length, "max_ratio": options.max_ratio}
    keys = [f"decoding.{key} ({value:g})" for key, value in limits.items() if value is not None]
    if keys:
        remedy = f"raise {' or '.join(keys)}"
    elif task.lengths is not None:
        remedy = "the limit follows from the longest training targets; set decoding.max_length=N"
    else:
        remedy = "set decoding.max_length=N"
    longest = task.longest_output()
    return remedy if longest is None else f"{remedy}; no output of this model can have more than {longest:,} tokens"
