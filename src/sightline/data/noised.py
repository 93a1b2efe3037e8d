"""Training on text that is spoilt on the fly: full windows of plain text, each spoilt anew in every epoch.

What a window becomes is a pure function of (seed, epoch, its place in the epoch), so nothing of it is stored, threads
do not matter, and a resumed training meets what it would have met.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sightline.data.batches import StaticShape, TrainingBatch
from sightline.data.collate import Sides, sides_of
from sightline.data.noise import Chance, Pieces, corrupt_spans, denoise, mask_words
from sightline.data.store_plan import StorePlan
from sightline.data.stream import FullWindows
from sightline.recipe import Recipe
from sightline.recipe.data import AnyNoise, MaskNoise
from sightline.text.tokenizer import END, PAD, Vocabulary

_TRAINING, _HELD_OUT = 31, 37  # streams of random numbers: one that follows the seed and the epoch, one that is fixed
_SPOIL: dict[str, Callable[..., tuple[np.ndarray, np.ndarray]]] = {
    "mask": mask_words,
    "text-infilling": denoise,
    "span-corruption": corrupt_spans,
}

Pairs = tuple[list[np.ndarray], list[np.ndarray]]  # what is read, and what is wanted


class Spoiler:
    """A recipe's noise over windows of ids."""

    def __init__(self, recipe: Recipe, vocabulary: Vocabulary) -> None:
        assert recipe.data.noise is not None
        self.noise: AnyNoise = recipe.data.noise
        self.length = self.noise.window(recipe.training.batches.context)
        self.pieces = Pieces.of(vocabulary.target, self.noise.marks)
        self._spoil = _SPOIL[self.noise.kind]

    def training(self, windows: Sequence[np.ndarray], seed: int, epoch: int, places: np.ndarray) -> Pairs:
        """Windows as they are learned from in an epoch, a few of them cut short (Devlin et al. 2019, A.2)."""
        chances = [Chance(_TRAINING, seed, epoch, int(place)) for place in places]
        cut = [self._cut(window, chance) for window, chance in zip(windows, chances, strict=True)]
        return self._spoilt(cut, chances)

    def held_out(self, windows: Sequence[np.ndarray], first: int = 0) -> Pairs:
        """Windows as every model is measured by: the same whatever the seed; `first` is the number of the first."""
        return self._spoilt(windows, [Chance(_HELD_OUT, first + number) for number in range(len(windows))])

    def _cut(self, window: np.ndarray, chance: Chance) -> np.ndarray:
        whether, where = chance.uniform(2)
        return window[: 1 + int(where * len(window))] if whether < self.noise.short_ratio else window

    def _spoilt(self, windows: Sequence[np.ndarray], chances: Sequence[Chance]) -> Pairs:
        pairs = zip(windows, chances, strict=True)
        found = [self._spoil(window, self.noise, self.pieces, chance) for window, chance in pairs]
        return [pair[0] for pair in found], [pair[1] for pair in found]


@dataclass
class NoisePlan(StorePlan):
    """The windows of each epoch, spoilt; an example is known by its place in the epoch."""

    def __post_init__(self) -> None:
        batches, seed = self.recipe.training.batches, self.recipe.seed
        self.spoiler, self.sides = Spoiler(self.recipe, self.vocabulary), sides_of(self.recipe)
        weights = [source.weight for source in self.recipe.data.train]
        self.windows = FullWindows(self.store_for, self.spoiler.length, weights, seed)
        self.rows = batches.windows()
        if self.layout == "static":
            self.shape = self._static()

    def _static(self) -> StaticShape:
        """Room for as many full windows as a batch has, and for the dummy sequences that fill up the rest."""
        noise, length, rows = self.spoiler.noise, self.spoiler.length, self.rows
        context = self.recipe.training.batches.context
        read, given = (length + 2, None) if isinstance(noise, MaskNoise) else (each + 1 for each in noise.sides(length))
        tokens, more = rows * read, 0 if given is None else rows * given
        fillers = -(-max(tokens, more) // (context - 1)) + 1  # at most, when a batch has hardly any window
        return StaticShape(
            tokens + fillers,
            rows + fillers + 1,
            context,
            given=None if given is None else more + fillers,
            answers=rows * noise.most(length) if isinstance(noise, MaskNoise) else None,
        )

    def epoch(self, number: int) -> Sequence[np.ndarray]:
        places = np.arange(self.windows.count(number))
        return [places[at : at + self.rows] for at in range(0, len(places), self.rows)]

    def batch(self, epoch: int, examples: np.ndarray) -> TrainingBatch:
        windows = self.windows.take(epoch, examples)
        sides = self.sides(*self.spoiler.training(windows, self.recipe.seed, epoch, examples))
        return self.laid_out(sides, examples)

    def waste(self, epoch: int = 0) -> float:
        """The share of places that hold no token, by the first batch: all but the last are alike."""
        if self.layout == "packed":
            return 0.0
        batch = self.batch(epoch, self.epoch(epoch)[0])
        sides: list[Any] = [batch.source, *([] if batch.target_layout is None else [batch.given])]
        return 1 - sum(int((side != PAD).sum()) for side in sides) / sum(int(side.numel()) for side in sides)

    def tiny(self, sizes: Sequence[np.ndarray]) -> Sides:
        """Windows of about so many tokens."""
        left, right = sizes
        if isinstance(self.spoiler.noise, MaskNoise):
            read = [np.full(size + 1, END) for size in left]
            wanted = [np.where(np.arange(size + 1) <= other, END, PAD) for size, other in zip(left, right, strict=True)]
            return self.sides(read, wanted)
        return self.sides(*([np.full(size, END) for size in side] for side in (left, right)))

    def texts(self, epoch: int, examples: np.ndarray) -> list[dict[str, str]]:
        """The windows of a batch, to be read by a person: as they were and as they are read."""
        windows = self.windows.take(epoch, examples)
        spoilt, _ = self.spoiler.training(windows, self.recipe.seed, epoch, examples)
        decode = self.vocabulary.target.decode
        return [
            {"text": decode(window.tolist()), "read": decode(read.tolist())}
            for window, read in zip(windows, spoilt, strict=True)
        ]


def fixed_windows(stream: np.ndarray, length: int) -> list[np.ndarray]:
    """A text that is measured, window by window from its beginning; what is left over is the last."""
    return [stream[at : at + length].astype(np.int64) for at in range(0, len(stream), length)]
