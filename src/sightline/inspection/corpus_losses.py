"""Measure what corpus_view.py shows: −log p of every token of a test set, and how often it was seen in training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sightline.data.batches import TrainingBatch, padded_batch
from sightline.data.collate import sides_of
from sightline.data.sources import Example
from sightline.data.store import Store
from sightline.decoding.padding import length_batches
from sightline.inspection.corpus_view import CorpusView, SentenceLoss, TokenLoss
from sightline.recipe import Recipe
from sightline.text.tokenizer import END, PAD, UNK, Vocabulary

Counts = NDArray[np.int64]
_COUNTED_AT_ONCE = 65_536  # examples
_TOKENS = 4_096  # of a batch
WINDOW = 256  # tokens of a text without ends that stand for a sentence


def pair_losses(
    model: Any,
    recipe: Recipe,
    vocabulary: Vocabulary,
    examples: Sequence[Example],
    *,
    on: str,
    counts: Counts | None = None,
    device: torch.device | str = "cpu",
) -> CorpusView:
    """Of a translator, a tagger or a classifier: the losses of right answers, each given those before it."""
    show, place = sides_of(recipe), torch.device(device)
    pairs = vocabulary.encode_pairs([each.source for each in examples], [each.target for each in examples])
    sources, targets = ([np.asarray(ids, np.int64) for ids in side] for side in pairs)
    sources = [ids[: recipe.data.clean.cut_source] for ids in sources]
    filled = [number for number in range(len(examples)) if len(sources[number]) and len(targets[number])]
    rows: dict[int, SentenceLoss] = {}
    for some in length_batches([len(sources[n]) + len(targets[n]) + 2 for n in filled], _TOKENS):
        numbers = [filled[index] for index in some]
        taken = [sources[n] for n in numbers], [targets[n] for n in numbers]
        batch = padded_batch(show(*taken), np.asarray(numbers))
        batch = batch.to(place) if place.type != "cpu" else batch
        for number, answers in zip(numbers, batch_losses(model, batch), strict=True):
            at = vocabulary.source.pieces(sources[number].tolist()) if recipe.task_spec.labels == "words" else []
            tokens = [
                _token(vocabulary, number, rank, wanted, loss, guess, counts, at[t] if at else "")
                for rank, (t, wanted, loss, guess) in enumerate(answers, 1)
            ]
            rows[number] = SentenceLoss(number + 1, examples[number].source, examples[number].target, tokens)
    return _view(on, [rows[number] for number in sorted(rows)])


def text_losses(
    stream: NDArray[Any], losses: NDArray[np.float64], vocabulary: Vocabulary, *, on: str, counts: Counts | None = None
) -> CorpusView:
    """Of a language model, given −log p of each token of a text: documents, cut where they are long."""
    ends = np.flatnonzero(stream == END) + 1
    cuts = sorted({*ends.tolist(), len(stream)})
    rows: list[SentenceLoss] = []
    begin = 0
    for end in cuts:
        for start in range(begin, end, WINDOW):
            stop, number = min(start + WINDOW, end), len(rows)
            own = stream[start:stop].tolist()
            tokens = [
                _token(vocabulary, number, rank, wanted, float(loss), None, counts, "")
                for rank, (wanted, loss) in enumerate(zip(own, losses[start:stop], strict=True), 1)
            ]
            rows.append(SentenceLoss(number + 1, "", vocabulary.target.decode(own), tokens))
        begin = end
    return _view(on, rows)


def _token(
    vocabulary: Vocabulary,
    number: int,
    rank: int,
    wanted: int,
    loss: float,
    guess: int | None,
    counts: Counts | None,
    at: str,
) -> TokenLoss:
    name = vocabulary.target.pieces([wanted])[0]
    likeliest = None if guess is None else vocabulary.target.pieces([guess])[0]
    return TokenLoss(number + 1, rank, name, loss, None if counts is None else int(counts[wanted]), likeliest, at)


def _view(on: str, rows: Sequence[SentenceLoss]) -> CorpusView:
    kept = [row for row in rows if row.tokens]
    if not kept:
        raise ValueError(f"{on} has no tokens to measure; give a test set that has some")
    return CorpusView(on, kept)


@torch.inference_mode()
def batch_losses(model: Any, batch: TrainingBatch) -> Iterator[list[tuple[int, int, float, int]]]:
    """For each row (place, wanted id, −log p, likeliest id) of every answer."""
    features = model(batch.source, batch.source_layout, batch.given, batch.target_layout)
    features = features if features.ndim == 3 else features[:, None]  # (B, T, D): a classifier answers once
    scores = model.logits(features).float()  # (B, T, V)
    right = scores.gather(-1, batch.wanted[..., None])[..., 0]
    losses = (scores.logsumexp(-1) - right).double().cpu().numpy()
    wanted, guesses = batch.wanted.cpu().numpy(), scores.argmax(-1).cpu().numpy()
    for row in range(len(wanted)):
        places = np.flatnonzero(wanted[row] != PAD)
        yield [(int(t), int(wanted[row, t]), float(losses[row, t]), int(guesses[row, t])) for t in places]


def token_counts(store: Store, size: int) -> Counts:
    """(size,): how often each id stands in the targets of a training text; an end mark once an example."""
    counts = np.zeros(size, np.int64)
    for at in range(0, len(store), _COUNTED_AT_ONCE):
        _, targets = store.take(np.arange(at, min(at + _COUNTED_AT_ONCE, len(store))))
        ids = np.concatenate([np.asarray(each, np.int64) for each in targets])
        counts += np.bincount(np.where(ids < size, ids, UNK), minlength=size)  # words past the end can only be copied
    counts[END] += len(store)
    return counts
