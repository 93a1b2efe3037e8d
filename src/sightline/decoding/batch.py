"""What a search is given and gives back: models that step, sentences to decode together, hypotheses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from torch import Tensor

from sightline.decoding.rules import Rules
from sightline.layers.layout import Layout

Heard = Callable[[Tensor], None]  # is told (B, W) the newest tokens, PAD where an output has ended


@dataclass(frozen=True)
class Considered:
    """What a step of a beam search looked at: N continuations of the W hypotheses of B sentences, and what became of
    them."""

    step: int  # 0: a search begins
    sentences: Tensor  # (B,) which of the batch each is
    totals: Tensor  # (B, N) log-probability; −∞: there is none
    scores: Tensor  # (B, N) what they would be ranked by, if they ended here
    parents: Tensor  # (B, N) which hypothesis of the step before each continues
    words: Tensor  # (B, N)
    finished: Tensor  # (B, N) whether it is a finished output
    slots: Tensor  # (B, W) which continuation is the hypothesis in each place of the next step ...
    alive: Tensor  # (B, W) ... where there is one at all
    done: Tensor  # (B,) whether the sentence is, so that nothing goes on


Watch = Callable[[Considered], None]
Told = Callable[[int], None]  # how many more sentences are done


class Stepper(Protocol):
    """What a search needs of a model (or of an ensemble of models)."""

    cross_attention_paths: tuple[str, ...]
    longest: int | None  # how many tokens its decoder can be given, where there is a limit

    def encode(self, source: Tensor, layout: Layout) -> Any: ...
    def begin(self, memory: Any) -> Any: ...
    def advance(self, tokens: Tensor, state: Any, layout: Layout | None = None) -> tuple[Tensor, Any]: ...
    def logits(self, features: Tensor) -> Tensor: ...  # a search may write to them, unless somebody listens


@dataclass(frozen=True)
class Hypothesis:
    """One output: its tokens without start and end, and what it scored."""

    tokens: list[int]
    score: float  # log-probability over length penalty, of a beam plus coverage penalty: what hypotheses are ranked by
    log_probability: float
    truncated: bool = False  # it ended at a length limit, where the model would have written on


@dataclass(frozen=True)
class Batch:
    """Sentences to decode together."""

    source: Tensor  # (B, S)
    layout: Layout
    limits: Tensor  # (B,) most tokens of each output, its end included
    least: int  # no limit is below
    numbers: tuple[int, ...]  # which sentence of the whole input each is: sampling is seeded by it
    prefixes: Tensor | None = None  # (B, P) tokens the output must begin with, PAD behind shorter ones
    few: int = 0  # when no more than so many are unfinished, and they run on, they are given up: no hypotheses
    rules: Rules | None = None  # what the outputs must keep to
    marks: int = 0  # ids behind the specials that no output may hold: what noise put into texts
    scored: bool = True  # whether log-probabilities are asked for, where a search can do without
    known: int | None = None  # ids from here on may be in no output: what phrases cannot be looked for in

    def keep(self, rows: Tensor) -> Batch:
        """The same for some of the sentences."""
        prefixes = None if self.prefixes is None else self.prefixes[rows]
        numbers = tuple(self.numbers[row] for row in rows.tolist())
        layout = self.layout.select(rows)  # type: ignore[union-attr]
        rules = None if self.rules is None else self.rules.keep(rows)
        return replace(
            self,
            source=self.source[rows],
            layout=layout,
            limits=self.limits[rows],
            prefixes=prefixes,
            numbers=numbers,
            rules=rules,
        )
