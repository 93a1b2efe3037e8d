"""Collate: examples as ids become the tensors of a training batch, in the layout that the model reads.

A store holds pairs of ids, source and target. Training uses teacher forcing: the decoder input is the reference target
shifted right, and the labels are the same target with its end token, so each position predicts the next token. A tagger
has a label for each word, a classifier one for each text. A decoder-only model reads source and target as one sequence,
with labels only on the target. Positions without a label are PAD, which the loss ignores. `prefetch` collates ahead of
the training step, in a thread.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from sightline.layers.layout import Layout, Packed, Padded
from sightline.recipe import Recipe
from sightline.registry import entries
from sightline.text.tokenizer import END, PAD, START

Ids = Sequence[np.ndarray]


@dataclass(frozen=True)
class TokenSequences:
    """One sequence of ids for each example, all with the same marks (start and end tokens)."""

    sequences: Ids
    before: int | None = None
    behind: int | None = None

    def lengths(self) -> list[int]:
        """Tokens of each sequence, marks included."""
        marks = (self.before is not None) + (self.behind is not None)
        return [len(sequence) + marks for sequence in self.sequences]

    def joined(self) -> np.ndarray:
        """All sequences end to end, each with its marks."""
        lengths = np.asarray(self.lengths(), np.int64)
        ends = np.cumsum(lengths)
        joined = np.empty(ends[-1], dtype=np.int64)
        rest = np.ones(len(joined), dtype=bool)
        for mark, places in ((self.before, ends - lengths), (self.behind, ends - 1)):
            if mark is not None:
                joined[places] = mark
                rest[places] = False
        joined[rest] = np.concatenate(self.sequences)
        return joined


@dataclass(frozen=True)
class ExampleIds:
    """The ids of some examples: what the encoder reads, what the decoder reads, and the labels.

    Labels have the positions of the decoder input if there is one, else of the source, or there is one label for each
    example.
    """

    source: TokenSequences | None
    decoder_input: TokenSequences | None
    labels: TokenSequences
    masked: bool = False  # masked LM: few positions have a label, and only those reach the output layer

    @property
    def inputs(self) -> list[TokenSequences]:
        """The sequences that the model reads."""
        return [side for side in (self.source, self.decoder_input) if side is not None]


def seq2seq_ids(sources: Ids, targets: Ids) -> ExampleIds:
    """Teacher forcing: the source with its end token, the target shifted right, the target with its end token."""
    return ExampleIds(
        TokenSequences(sources, behind=END), TokenSequences(targets, before=START), TokenSequences(targets, behind=END)
    )


def decoder_only_ids(sources: Ids, targets: Ids) -> ExampleIds:
    """Source, end token, start token and target as one sequence, as decoding reads them; labels only on the target."""
    inputs = [np.concatenate([s, [END, START], t]) for s, t in zip(sources, targets, strict=True)]
    labels = [np.concatenate([np.full(len(s) + 1, PAD), t, [END]]) for s, t in zip(sources, targets, strict=True)]
    return ExampleIds(None, TokenSequences(inputs), TokenSequences(labels))


def classification_ids(sources: Ids, targets: Ids) -> ExampleIds:
    """The source with its end token; one label for each example."""
    return ExampleIds(TokenSequences(sources, behind=END), None, TokenSequences(targets))


def class_token_ids(sources: Ids, targets: Ids) -> ExampleIds:
    """The source with a class token first, whose state represents the text; one label for each example."""
    return ExampleIds(TokenSequences(sources, before=START, behind=END), None, TokenSequences(targets))


def label_set_ids(ids: ExampleIds) -> ExampleIds:
    """The same with the set of labels of each example, in ascending order."""
    return replace(ids, labels=TokenSequences([np.unique(labels) for labels in ids.labels.sequences]))


def tagging_ids(sources: Ids, targets: Ids) -> ExampleIds:
    """The pieces of words; the label of each word at its first piece."""
    return ExampleIds(TokenSequences(sources), None, TokenSequences(targets))


def masked_lm_ids(sources: Ids, targets: Ids) -> ExampleIds:
    """A corrupted text between start and end token; the original tokens are the labels where it was masked."""
    text, labels = TokenSequences(sources, START, END), TokenSequences(targets, PAD, PAD)
    return ExampleIds(text, None, labels, masked=True)


def language_model_ids(sources: Ids, targets: Ids) -> ExampleIds:
    """Windows of text: each token is predicted from those before it. Sources are not used."""
    inputs, labels = [window[:-1] for window in targets], [window[1:] for window in targets]
    return ExampleIds(None, TokenSequences(inputs), TokenSequences(labels))


def sentence_ids(sources: Ids, targets: Ids) -> ExampleIds:
    """Sentences of a language model: <s> and the words predict the words and </s>. Sources are not used."""
    return ExampleIds(None, TokenSequences(targets, before=START), TokenSequences(targets, behind=END))


def collate_fn(recipe: Recipe) -> Callable[[Ids, Ids], ExampleIds]:
    """The function that makes model inputs and labels of a recipe's sources and targets: its task's `collate`."""
    spec = recipe.task_spec
    collate: Callable[[Ids, Ids], ExampleIds] = entries("task")[spec.variant or spec.name].load().collate(recipe)
    return collate


class AlignmentTargets(NamedTuple):
    """Target distributions p(s | t) of a guided attention head: a sparse tensor."""

    places: Tensor  # (3, links): example, decoder position, source position
    shares: Tensor  # (links,) p(s | t), which sums to one over each linked position t

    def to(self, device: torch.device) -> AlignmentTargets:
        """The same on another device."""
        return AlignmentTargets(*(part.pin_memory().to(device, non_blocking=True) for part in self))


def alignment_targets(links: Sequence[np.ndarray], *, shift: bool) -> AlignmentTargets:
    """From the links (links, 2) of each example: source piece, target piece."""
    places, shares = [np.empty((3, 0), np.int64)], [np.empty(0, np.float32)]
    for number, pairs in enumerate(links):
        source, target = pairs[:, 0].astype(np.int64), pairs[:, 1].astype(np.int64)
        _, which, counts = np.unique(target, return_inverse=True, return_counts=True)
        places.append(np.stack([np.full(len(pairs), number), target + shift, source]))
        shares.append((1.0 / counts[which]).astype(np.float32))
    return AlignmentTargets(torch.from_numpy(np.concatenate(places, axis=1)), torch.from_numpy(np.concatenate(shares)))


@dataclass(frozen=True)
class TrainingBatch:
    """The tensors of some examples: (B, S) and (B, T) if padded, (N,) if packed; one label each has shape (B, 1).

    In masked LM, `decoder_input` holds the positions of the labels among all tokens of the batch, and `labels` the
    tokens there.
    """

    source: Tensor | None
    source_layout: Layout | None
    decoder_input: Tensor | None
    decoder_layout: Layout | None
    labels: Tensor  # PAD where there is none
    tokens: int  # labels that are not PAD
    examples: np.ndarray  # indices of the examples in the store
    flops: int = 0  # floating-point operations of a training step, once they are known
    continues: bool = False  # each row continues the same row of the previous batch
    alignment: AlignmentTargets | None = None  # of a guided attention head
    source_tokens: int = 0  # with start and end tokens, without padding

    @property
    def processed_tokens(self) -> int:
        """The tokens by which speed is measured: of the target text or, where targets are labels, of the source."""
        return self.tokens if self.decoder_layout is not None else self.source_tokens

    def to(self, device: torch.device) -> TrainingBatch:
        """The same on another device, copied while the previous batch is computed."""

        def move(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.pin_memory().to(device, non_blocking=True)

        def move_layout(layout: Layout | None) -> Layout | None:
            if isinstance(layout, Packed):
                moved = {name: move(getattr(layout, name)) for name in ("offsets", "index", "slots", "real")}
                return replace(layout, **moved)  # type: ignore[arg-type]
            return layout and replace(layout, mask=move(layout.mask))

        return replace(
            self,
            source=move(self.source),
            decoder_input=move(self.decoder_input),
            labels=move(self.labels),  # type: ignore[arg-type]
            source_layout=move_layout(self.source_layout),
            decoder_layout=move_layout(self.decoder_layout),
            alignment=self.alignment and self.alignment.to(device),
        )


@dataclass(frozen=True)
class StaticShape:
    """Fixed sizes for a compiled step: tokens on each side, sequences, and the longest sequence."""

    tokens: int
    sequences: int
    longest: int
    decoder_tokens: int | None = None  # where the decoder reads another number of tokens
    labels: int | None = None  # the most labels, in masked LM

    def size(self, ids: ExampleIds, side: TokenSequences) -> int:
        """The tokens of the source or the decoder input of a batch."""
        return self.tokens if side is not ids.decoder_input or self.decoder_tokens is None else self.decoder_tokens


def padded_batch(ids: ExampleIds, examples: np.ndarray) -> TrainingBatch:
    """Rows with PAD behind shorter ones."""

    def rows(side: TokenSequences | None) -> tuple[Tensor | None, Padded | None]:
        if side is None:
            return None, None
        lengths = np.asarray(side.lengths())
        table = np.full((len(lengths), max(lengths)), PAD, dtype=np.int64)
        table[np.arange(table.shape[1])[None, :] < lengths[:, None]] = side.joined()
        return torch.from_numpy(table), Padded.of(lengths.tolist())

    labels, _ = rows(ids.labels)
    assert labels is not None
    return _batch(ids, rows(ids.source), rows(ids.decoder_input), labels, examples)


def packed_batch(ids: ExampleIds, examples: np.ndarray, static: StaticShape | None = None) -> TrainingBatch:
    """Sequences end to end. With a static shape, dummy sequences of PAD fill it up; their loss is ignored."""
    labels = ids.labels.joined()
    fillers = spare = 0
    if static is not None:
        sizes, places = zip(*((sum(side.lengths()), static.size(ids, side)) for side in ids.inputs), strict=True)
        gaps = [place - size for place, size in zip(places, sizes, strict=True)]
        fillers = max(1, -(-max(gaps) // static.longest))
        spare = static.sequences - len(ids.labels.sequences) - fillers
        if min(gaps) < fillers or spare < 0:
            raise ValueError(
                f"a batch of {len(ids.labels.sequences)} examples, {' + '.join(map(str, sizes))} tokens does not fit "
                f"into {static}"
            )
        labels = np.pad(labels, (0, places[-1] - len(labels)), constant_values=PAD)

    def packed(side: TokenSequences | None) -> tuple[Tensor | None, Packed | None]:
        if side is None:
            return None, None
        joined, lengths = side.joined(), side.lengths()
        if static is None:
            return torch.from_numpy(joined), Packed.of(lengths)
        places = static.size(ids, side)
        gap, real = places - len(joined), torch.arange(places) < len(joined)
        joined = np.pad(joined, (0, gap), constant_values=PAD)
        lengths += [gap // fillers + (index < gap % fillers) for index in range(fillers)] + [0] * spare
        return torch.from_numpy(joined), replace(Packed.of(lengths, longest=static.longest), real=real)

    most_labels = None if static is None else static.labels
    return _batch(ids, packed(ids.source), packed(ids.decoder_input), torch.from_numpy(labels), examples, most_labels)


def _batch(
    ids: ExampleIds,
    source: tuple[Tensor | None, Layout | None],
    decoder_input: tuple[Tensor | None, Layout | None],
    labels: Tensor,
    examples: np.ndarray,
    most_labels: int | None = None,
) -> TrainingBatch:
    """In masked LM, `decoder_input` becomes the positions of the labels among all tokens of the batch.

    With `most_labels`, their number is fixed: position 0 with the label PAD fills them up.
    """
    if ids.masked:
        flat = labels.reshape(-1)
        places = flat.nonzero()[:, 0]
        count = len(places)
        if most_labels is not None:
            if count > most_labels:
                raise ValueError(f"a batch has {count} labels, more than the {most_labels} of its static shape")
            places = torch.nn.functional.pad(places, (0, most_labels - count))
        decoder_input = places, None
        labels = flat[places]
        labels[count:] = PAD
    tokens = int(labels.count_nonzero())
    source_tokens = 0 if ids.source is None else sum(ids.source.lengths())
    return TrainingBatch(*source, *decoder_input, labels, tokens, examples, source_tokens=source_tokens)


Item = TypeVar("Item")
Result = TypeVar("Result")


def prefetch(items: Iterable[Item], make: Callable[[Item], Result], depth: int = 4) -> Iterator[Result]:
    """`make(item)` for each item, in order; a thread makes up to `depth` results ahead."""
    ready: queue.Queue[tuple[Result | None, BaseException | None]] = queue.Queue(depth)
    stop = threading.Event()

    def put(result: Result | None, error: BaseException | None) -> bool:
        while not stop.is_set():
            try:
                ready.put((result, error), timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            for item in items:
                if not put(make(item), None):
                    return
            put(None, None)
        except BaseException as error:  # handed to the consumer, who raises it
            put(None, error)

    thread = threading.Thread(target=work, daemon=True, name="batches")
    thread.start()
    try:
        while True:
            result, error = ready.get()
            if error is not None:
                raise error
            if result is None:
                return
            yield result
    finally:
        stop.set()
        thread.join()
