"""The batches of an epoch and their layout (padded, packed, or packed to a static shape)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from sightline.data.batch_order import order, packed_batches, packing_waste, padded_batches, padding_waste
from sightline.data.collate import (
    ExampleIds,
    StaticShape,
    TrainingBatch,
    alignment_targets,
    collate_fn,
    packed_batch,
    padded_batch,
)
from sightline.data.store import Store
from sightline.layers.attention import packed_width
from sightline.layers.devices import resolve_precision
from sightline.recipe import Recipe
from sightline.terminal import plural
from sightline.text.vocabulary import Vocabulary


@dataclass
class EpochPlan:
    """What the batches of a training are made from; which they are is for others to say (see `job.Plan`)."""

    recipe: Recipe
    vocabulary: Vocabulary
    layout: str
    store_for: Callable[[int], Store]  # epoch → store
    shape: StaticShape | None = field(init=False, default=None)

    def laid_out(self, sides: ExampleIds, examples: np.ndarray) -> TrainingBatch:
        """These examples as a batch of the layout."""
        return padded_batch(sides, examples) if self.layout == "padded" else packed_batch(sides, examples, self.shape)


def choose_layout(recipe: Recipe, device: torch.device) -> str:
    """`padded`, `packed` or `static` (packed to a fixed token count), whichever trains fastest.

    Transformers and convolutions have no use for padding. On CUDA a packed batch needs the variable-length kernel,
    which takes bfloat16, a softmax, no dropout on the weights, no bias on the scores and heads that are not too wide
    (gated convolutions look at the source with one, as wide as the model); there it has a static shape, so that the
    step compiles once. (Batch norm would count the dummies that fill a static shape, a classifier would pool them.)
    """
    wanted = recipe.training.batches.layout
    if recipe.training.reward is not None or recipe.model.copying:
        return "padded"  # as a search takes its sources
    bodies = recipe.model.bodies.values()
    unpadded = all(body.packable for body in bodies)
    if wanted == "padded" or (wanted == "auto" and not unpadded):
        return "padded"
    if device.type != "cuda":
        return "packed"
    if unpadded and _kernels_fit(recipe, device) and recipe.task_spec.labels != "one":
        return "static" if recipe.training.guided_alignment is None else "packed"  # a guided step is not compiled
    return "padded" if wanted == "auto" else "packed"


def _kernels_fit(recipe: Recipe, device: torch.device) -> bool:
    """Whether CUDA's kernels for packed batches can do all that a model attends to."""
    model = recipe.model
    heads = all(body.fits_packed_kernels for body in model.bodies.values())
    one_head = model.has_attention and not model.has_transformer_layers
    bf16 = resolve_precision(recipe.training.precision, device) == "bf16"
    return bf16 and heads and (not one_head or packed_width(model.width))


def spare_places(tokens: int, longest: int) -> int:
    """How many of a static batch's places no example may take.

    One side may be much shorter than the other: as many dummies as its gap takes must find a token on both.
    """
    return -(-tokens // longest) + 1


@dataclass
class ExamplePlan(EpochPlan):
    """The batches of each epoch over a store (over several copies of it, cut differently, with BPE-dropout)."""

    def __post_init__(self) -> None:
        self.sides = collate_fn(self.recipe)
        self._newest: tuple[int, list[np.ndarray]] | None = None  # an epoch and its batches
        if self.layout == "static":
            lengths, tokens = self._lengths(0), self.recipe.training.batches.tokens
            longest, _ = self.recipe.longest_sequence()
            mean = min(float(side.mean()) for side in lengths) + 1
            sequences = int(1.5 * tokens / mean) + 8  # no batch has more examples, so that one shape fits all
            self._spare = spare_places(tokens, longest)
            self.shape = StaticShape(tokens, sequences + self._spare, longest)
            self._most = sequences

    def epoch(self, number: int) -> Sequence[np.ndarray]:
        if self._newest is None or self._newest[0] != number:  # put together once: millions of examples take seconds
            self._newest = (number, self._batches(number))
        return self._newest[1]

    def _batches(self, number: int) -> list[np.ndarray]:
        store, tokens = self.store_for(number), self.recipe.training.batches.tokens
        weights = [source.weight for source in self.recipe.data.train]
        seed = self.recipe.seed
        examples = order(store.origin, weights, seed=seed, epoch=number)
        lengths = self._lengths(number)
        self._check_room(store, examples, np.maximum(*lengths) + 1)
        if self.shape is not None:
            return packed_batches(
                *lengths,
                tokens=tokens - self._spare,
                seed=seed,
                epoch=number,
                longest_batch=self._most,
                examples=examples,
            )
        return padded_batches(*lengths, tokens=tokens, seed=seed, epoch=number, examples=examples)

    def batch(self, epoch: int, examples: np.ndarray) -> TrainingBatch:
        sides = self.sides(*self.store_for(epoch).take(examples))
        made = self.laid_out(sides, examples)
        guided = self.recipe.training.guided_alignment
        links = None if guided is None else self.store_for(epoch).links(examples)
        return (
            made
            if guided is None or links is None
            else replace(made, alignment=alignment_targets(links, shift=guided.shift))
        )

    def _lengths(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The tokens each example takes on either side of a batch, but for one mark."""
        store = self.store_for(epoch)
        source, target = store.source_lengths, store.target_lengths
        if self.recipe.task_spec.labels != "none":
            return source + 1, source + 1  # a class token may stand before it
        if self.recipe.model.encoder is None:
            return source + target + 1, source + target + 1  # the end mark of the source is in the sequence too
        return source, target

    def _check_room(self, store: Store, examples: np.ndarray, places: np.ndarray) -> None:
        """Refuse an example that takes more places than a batch has, in the words of its task."""
        tokens = self.recipe.training.batches.tokens
        spare = 0 if self.shape is None else self._spare
        if not len(examples) or places[examples].max() <= tokens - spare:
            return
        worst = int(examples[places[examples].argmax()])
        source, target, needed = int(store.source_lengths[worst]), int(store.target_lengths[worst]), int(places[worst])
        sizes, marks = f"{plural(source, 'source token')} and {plural(target, 'target token')}", "an end mark"
        if self.recipe.task_spec.labels != "none":
            sizes, marks = plural(source, "token"), "its marks"
        elif self.recipe.model.encoder is None:
            sizes, marks = f"{sizes} in one sequence", "an end mark each"
        least = needed
        while self.shape is not None and least - spare_places(least, self.shape.longest) < needed:
            least += 1
        kept = f", of which {spare} fill up batches" if spare else ""
        raise ValueError(
            f"the longest training example has {sizes}, {needed} with {marks}, more than training.batches.tokens "
            f"({tokens}{kept}); raise it to at least {least}, or lower data.clean.max_tokens"
        )

    def waste(self, epoch: int = 0) -> float:
        """The share of positions that hold no token; a packed batch has none."""
        if self.layout == "packed":
            return 0.0
        lengths = self._lengths(epoch)
        if self.shape is not None:
            return packing_waste(self.epoch(epoch), *lengths, tokens=self.shape.tokens)
        return padding_waste(self.epoch(epoch), *lengths)

    def texts(self, epoch: int, examples: np.ndarray) -> list[dict[str, str]]:
        """The examples of a batch, to be read by a person."""
        sources, targets = self.store_for(epoch).take(examples)
        return [
            {
                "source": self.vocabulary.source.decode(source.tolist()),
                "target": self.vocabulary.target.decode(target.tolist()),
            }
            for source, target in zip(sources, targets, strict=True)
        ]
