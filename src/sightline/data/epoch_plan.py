"""The batches of an epoch and their layout (padded, packed, or packed to a static shape)."""

from __future__ import annotations

from abc import ABC, abstractmethod
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
class EpochPlan(ABC):
    """The batches of every epoch, as a pure function of its number."""

    recipe: Recipe
    vocabulary: Vocabulary
    layout: str
    store_for: Callable[[int], Store]  # epoch → store
    shape: StaticShape | None = field(init=False, default=None)  # of all batches, if the layout is static

    @abstractmethod
    def epoch(self, number: int) -> Sequence[np.ndarray]:
        """The examples of each batch, in order."""

    @abstractmethod
    def batch(self, epoch: int, examples: np.ndarray) -> TrainingBatch:
        """The tensors of some examples."""

    @abstractmethod
    def texts(self, epoch: int, examples: np.ndarray) -> list[dict[str, str]]:
        """The texts of some examples, for a person to read."""

    @abstractmethod
    def waste(self, epoch: int = 0) -> float:
        """The share of positions that are padding."""

    def to_batch(self, ids: ExampleIds, examples: np.ndarray) -> TrainingBatch:
        """A batch in the layout of this plan."""
        return padded_batch(ids, examples) if self.layout == "padded" else packed_batch(ids, examples, self.shape)


def choose_layout(recipe: Recipe, device: torch.device) -> str:
    """`padded`, `packed` or `static` (packed to a fixed token count), whichever trains fastest.

    Transformers and convolutions do not need padding. On CUDA a packed batch needs the variable-length kernel, which
    requires bfloat16, softmax attention without dropout on the weights and without bias on the scores, and heads that
    are not too wide (ConvS2S has one cross-attention head of the model's width). There the batch has a static shape, so
    the step compiles once. (Batch norm would count the dummies that fill a static shape, a classifier would pool them.)
    """
    layout = recipe.training.batches.layout
    if recipe.training.reward is not None or recipe.model.copying:
        return "padded"  # as decoding does
    if recipe.task_spec.labels == "several":
        return "padded"  # a row of labels for each text
    bodies = recipe.model.bodies.values()
    unpadded = all(body.packable for body in bodies)
    if layout == "padded" or (layout == "auto" and not unpadded):
        return "padded"
    if device.type != "cuda":
        return "packed"
    if unpadded and _kernels_fit(recipe, device) and recipe.task_spec.labels != "one":
        return "static" if recipe.training.guided_alignment is None else "packed"  # the step is not compiled
    return "padded" if layout == "auto" else "packed"


def _kernels_fit(recipe: Recipe, device: torch.device) -> bool:
    """Return True if the CUDA kernels for packed batches support all attention of a model."""
    model = recipe.model
    heads = all(body.fits_packed_kernels for body in model.bodies.values())
    one_head = model.has_attention and not model.has_transformer_layers
    bf16 = resolve_precision(recipe.training.precision, device) == "bf16"
    return bf16 and heads and (not one_head or packed_width(model.width))


def spare_places(tokens: int, longest: int) -> int:
    """The positions of a static batch that are reserved for dummy sequences.

    One side may be much shorter than the other. The dummies that fill its gap need at least one token on each side.
    """
    return -(-tokens // longest) + 1


@dataclass
class ExamplePlan(EpochPlan):
    """Batches of examples from a store (with BPE-dropout, from a different variant of it in each epoch)."""

    def __post_init__(self) -> None:
        self.collate = collate_fn(self.recipe)
        self._newest: tuple[int, list[np.ndarray]] | None = None  # the last epoch and its batches
        if self.layout == "static":
            lengths, tokens = self._lengths(0), self.recipe.training.batches.tokens
            longest, _ = self.recipe.longest_sequence()
            mean = min(float(side.mean()) for side in lengths) + 1
            sequences = int(1.5 * tokens / mean) + 8  # no batch has more examples, so that one shape fits all
            self._spare = spare_places(tokens, longest)
            self.shape = StaticShape(tokens, sequences + self._spare, longest)
            self._most = sequences

    def epoch(self, number: int) -> Sequence[np.ndarray]:
        if self._newest is None or self._newest[0] != number:  # computed once: millions of examples take seconds
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
        store, guided = self.store_for(epoch), self.recipe.training.guided_alignment
        batch = self.to_batch(self.collate(*store.take(examples)), examples)
        links = None if guided is None else store.links(examples)
        if guided is None or links is None:
            return batch
        return replace(batch, alignment=alignment_targets(links, shift=guided.shift))

    def _lengths(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The positions each example needs on either side of a batch, without the one mark that every side has."""
        store = self.store_for(epoch)
        source, target = store.source_lengths, store.target_lengths
        if self.recipe.task_spec.labels != "none":
            return source + 1, source + 1  # there may be a class token
        if self.recipe.task_spec.by_sentence:
            return target, target
        if self.recipe.model.encoder is None:
            return source + target + 1, source + target + 1  # with the end token of the source
        return source, target

    def _check_room(self, store: Store, examples: np.ndarray, places: np.ndarray) -> None:
        """Refuse an example that is longer than a batch."""
        tokens = self.recipe.training.batches.tokens
        spare = 0 if self.shape is None else self._spare
        if not len(examples) or places[examples].max() <= tokens - spare:
            return
        worst = int(examples[places[examples].argmax()])
        source, target, needed = int(store.source_lengths[worst]), int(store.target_lengths[worst]), int(places[worst])
        sizes, marks = f"{plural(source, 'source token')} and {plural(target, 'target token')}", "an end mark"
        if self.recipe.task_spec.labels != "none":
            sizes, marks = plural(source, "token"), "its marks"
        elif self.recipe.task_spec.by_sentence:
            sizes = plural(target, "token")
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
        if self.layout == "packed":
            return 0.0
        lengths = self._lengths(epoch)
        if self.shape is not None:
            return packing_waste(self.epoch(epoch), *lengths, tokens=self.shape.tokens)
        return padding_waste(self.epoch(epoch), *lengths)

    def texts(self, epoch: int, examples: np.ndarray) -> list[dict[str, str]]:
        sources, targets = self.store_for(epoch).take(examples)
        return [
            {
                "source": self.vocabulary.source.decode(source.tolist()),
                "target": self.vocabulary.target.decode(target.tolist()),
            }
            for source, target in zip(sources, targets, strict=True)
        ]
