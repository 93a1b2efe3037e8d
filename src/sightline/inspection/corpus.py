"""The loss of every token of a test set, sorted: worst, longest or rarest first."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from sightline.data.collate import TrainingBatch, collate_fn, padded_batch
from sightline.data.preparation import prepare_data
from sightline.data.sources import Example
from sightline.data.store import Store
from sightline.data.text_files import DataError
from sightline.decoding.request import length_batches
from sightline.files import csv_text
from sightline.inspection.samples import refuse_label_sets
from sightline.recipe import Recipe
from sightline.terminal import escape_newlines
from sightline.text.tokenizer import END, PAD, UNK
from sightline.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from rich.table import Table

    from sightline.evaluation.breakdowns import LengthBucket
    from sightline.inspection.attention import LoadedRun


Order = Literal["worst", "longest", "rarest"]
ORDERS: tuple[Order, ...] = ("worst", "longest", "rarest")
_BUCKETS = 6


@dataclass(frozen=True)
class TokenLoss:
    """−log p of one label (a token, a tag, a class)."""

    sentence: int  # from 1
    position: int  # from 1
    token: str
    loss: float  # nats
    frequency: int | None = None  # in the training text; None: not counted
    guess: str | None = None  # the most likely label
    at: str = ""  # the source token that it labels


@dataclass(frozen=True)
class SentenceLoss:
    """One example with the losses of its tokens."""

    number: int  # from 1
    source: str
    target: str
    tokens: list[TokenLoss]

    @property
    def loss(self) -> float:
        """Nats per token."""
        return fmean(token.loss for token in self.tokens)

    @property
    def rarest(self) -> TokenLoss:
        """The token least frequent in training; of equals the one with the largest loss."""
        return min(self.tokens, key=lambda token: (_rarity(token), -token.loss))

    @property
    def worst(self) -> TokenLoss:
        return max(self.tokens, key=lambda token: token.loss)


@dataclass(frozen=True)
class LengthLoss:
    """The loss per token of sentences with `low` to `high` tokens."""

    low: int
    high: int
    sentences: int
    tokens: int
    loss: float

    @property
    def label(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"


@dataclass(frozen=True)
class CorpusLosses:
    """The losses of a test set."""

    on: str
    sentences: list[SentenceLoss]

    @property
    def loss(self) -> float:
        """Nats per token, over all tokens."""
        return fmean(token.loss for sentence in self.sentences for token in sentence.tokens)

    def sorted(self, order: Order) -> list[SentenceLoss]:
        """Sentences: worst (nats per token), longest, or with the rarest token first."""
        keys: dict[Order, Callable[[SentenceLoss], Any]] = {
            "worst": lambda each: -each.loss,
            "longest": lambda each: (-len(each.tokens), -each.loss),
            "rarest": lambda each: (_rarity(each.rarest), -each.rarest.loss),
        }
        return sorted(self.sentences, key=keys[order])

    def sorted_tokens(self, order: Order) -> list[TokenLoss]:
        """Tokens: worst or rarest first, or those of the longest sentences in order."""
        lengths = {each.number: len(each.tokens) for each in self.sentences}
        keys: dict[Order, Callable[[TokenLoss], Any]] = {
            "worst": lambda each: -each.loss,
            "longest": lambda each: (-lengths[each.sentence], each.sentence, each.position),
            "rarest": lambda each: (_rarity(each), -each.loss),
        }
        return sorted((token for sentence in self.sentences for token in sentence.tokens), key=keys[order])

    def by_length(self, most: int = _BUCKETS) -> list[LengthLoss]:
        """Nats per token by length, in at most `most` buckets of similar size."""
        ordered = sorted(self.sentences, key=lambda each: len(each.tokens))
        lengths = np.array([len(each.tokens) for each in ordered])
        cuts = np.unique(np.searchsorted(lengths, lengths[np.arange(1, most) * len(lengths) // most]))
        buckets = []
        for part in np.split(np.arange(len(ordered)), cuts[cuts > 0]):
            own = [ordered[place] for place in part]
            losses = [token.loss for each in own for token in each.tokens]
            buckets.append(LengthLoss(len(own[0].tokens), len(own[-1].tokens), len(own), len(losses), fmean(losses)))
        return buckets

    def to_dict(self, order: Order = "worst") -> dict[str, Any]:
        """For JSON."""
        return {
            "on": self.on,
            "loss": self.loss,
            "order": order,
            "lengths": [asdict(bucket) for bucket in self.by_length()],
            "sentences": [{"loss": each.loss, **asdict(each)} for each in self.sorted(order)],
        }

    def to_csv(self, order: Order = "worst") -> str:
        """A line for each token."""
        return csv_text(list(TokenLoss.__dataclass_fields__), map(asdict, self.sorted_tokens(order)))


def _rarity(token: TokenLoss) -> float:
    return float("inf") if token.frequency is None else token.frequency


# --- tables ----------------------------------------------------------------------------------------------------------


def sentence_table(view: CorpusLosses, order: Order, limit: int) -> Table:
    """A terminal table of the first `limit` sentences."""
    table = _table("#", "loss", "tokens", "worst token", "rarest token", "source → target")
    for each in view.sorted(order)[:limit]:
        worst, rarest = each.worst, each.rarest
        seen = "" if rarest.frequency is None else f" ×{rarest.frequency:,}"
        text = f"{each.source} → {each.target}" if each.source else each.target
        cells = (f"{worst.token} {worst.loss:.1f}", f"{rarest.token}{seen}", text)
        _row(table, f"{each.number:,}", f"{each.loss:.2f}", f"{len(each.tokens):,}", *cells)
    return table


def token_table(view: CorpusLosses, order: Order, limit: int) -> Table:
    """A terminal table of the first `limit` tokens."""
    shown = view.sorted_tokens(order)[:limit]
    guessed, labels = any(each.guess for each in shown), any(each.at for each in shown)
    names = ("token", "loss", "seen", "sentence", "position")
    table = _table(*names, *(["model's guess"] if guessed else []), *(["at"] if labels else []))
    for each in shown:
        seen = "–" if each.frequency is None else f"{each.frequency:,}"
        cells = [each.token, f"{each.loss:.2f}", seen, f"{each.sentence:,}", f"{each.position:,}"]
        _row(table, *cells, *([each.guess or "–"] if guessed else []), *([each.at] if labels else []))
    return table


def length_table(buckets: Iterable[LengthLoss]) -> Table:
    """A terminal table of the loss by length."""
    table = _table("tokens", "sentences", "loss")
    for each in buckets:
        _row(table, each.label, f"{each.sentences:,}", f"{each.loss:.3f}")
    return table


_NUMBERS = frozenset(("#", "loss", "tokens", "seen", "sentence", "sentences", "position"))


def _table(*names: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in names:
        wide = "→" in name
        justify: Literal["right", "left"] = "right" if name in _NUMBERS else "left"
        table.add_column(name, justify=justify, no_wrap=not wide, overflow="fold" if wide else "ellipsis")
    return table


def _row(table: Table, *cells: str) -> None:
    """Add cells as plain text: a token like [b] is not markup."""
    from rich.text import Text

    table.add_row(*(Text(escape_newlines(cell)) for cell in cells))


# --- losses ----------------------------------------------------------------------------------------------------------

Counts = NDArray[np.int64]
_COUNTED = 65_536  # examples counted together
_TOKENS = 4_096  # of a batch
WINDOW = 256  # tokens of a language model's text that are listed as one sentence


def pair_losses(
    model: Any,
    recipe: Recipe,
    vocabulary: Vocabulary,
    examples: Sequence[Example],
    *,
    on: str,
    counts: Counts | None = None,
    device: torch.device | str = "cpu",
) -> CorpusLosses:
    """Losses under teacher forcing of a sequence-to-sequence model, a tagger or a classifier."""
    refuse_label_sets(recipe.task_spec)
    collate, place = collate_fn(recipe), torch.device(device)
    pairs = vocabulary.encode_pairs([each.source for each in examples], [each.target for each in examples])
    sources, targets = ([np.asarray(ids, np.int64) for ids in side] for side in pairs)
    sources = [ids[: recipe.data.clean.truncate_source] for ids in sources]
    filled = [number for number in range(len(examples)) if len(sources[number]) and len(targets[number])]
    rows: dict[int, SentenceLoss] = {}
    for some in length_batches([len(sources[n]) + len(targets[n]) + 2 for n in filled], _TOKENS):
        numbers = [filled[index] for index in some]
        ids = collate([sources[n] for n in numbers], [targets[n] for n in numbers])
        batch = padded_batch(ids, np.asarray(numbers))
        batch = batch.to(place) if place.type != "cpu" else batch
        for number, losses in zip(numbers, batch_losses(model, batch), strict=True):
            at = vocabulary.source.pieces(sources[number].tolist()) if recipe.task_spec.labels == "words" else []
            tokens = [
                _token_loss(vocabulary, number, rank, label, loss, guess, counts, at[t] if at else "")
                for rank, (t, label, loss, guess) in enumerate(losses, 1)
            ]
            rows[number] = SentenceLoss(number + 1, examples[number].source, examples[number].target, tokens)
    return _view(on, [rows[number] for number in sorted(rows)])


def text_losses(
    stream: NDArray[Any], losses: NDArray[np.float64], vocabulary: Vocabulary, *, on: str, counts: Counts | None = None
) -> CorpusLosses:
    """Losses of a language model, from −log p of each token of a text; long documents are split into windows."""
    ends = sorted({*(np.flatnonzero(stream == END) + 1).tolist(), len(stream)})
    starts = [start for begin, end in pairwise([0, *ends]) for start in range(begin, end, WINDOW)]
    rows: list[SentenceLoss] = []
    for number, (start, stop) in enumerate(pairwise([*starts, len(stream)])):
        ids = stream[start:stop].tolist()
        tokens = [
            _token_loss(vocabulary, number, rank, label, float(loss), None, counts, "")
            for rank, (label, loss) in enumerate(zip(ids, losses[start:stop], strict=True), 1)
        ]
        rows.append(SentenceLoss(number + 1, "", vocabulary.target.decode(ids), tokens))
    return _view(on, rows)


def _token_loss(
    vocabulary: Vocabulary,
    number: int,
    rank: int,
    label: int,
    loss: float,
    guess: int | None,
    counts: Counts | None,
    at: str,
) -> TokenLoss:
    name = vocabulary.target.pieces([label])[0]
    likeliest = None if guess is None else vocabulary.target.pieces([guess])[0]
    return TokenLoss(number + 1, rank, name, loss, None if counts is None else int(counts[label]), likeliest, at)


def _view(on: str, rows: Sequence[SentenceLoss]) -> CorpusLosses:
    kept = [row for row in rows if row.tokens]
    if not kept:
        raise ValueError(f"{on} has no tokens to measure; give a test set that has some")
    return CorpusLosses(on, kept)


@torch.inference_mode()
def batch_losses(model: Any, batch: TrainingBatch) -> Iterator[list[tuple[int, int, float, int]]]:
    """For each row (position, label, −log p, most likely id) of all labels."""
    features = model(batch.source, batch.source_layout, batch.decoder_input, batch.decoder_layout)
    features = features if features.ndim == 3 else features[:, None]  # (B, T, D): a classifier predicts once
    scores = model.logits(features).float()  # (B, T, V)
    right = scores.gather(-1, batch.labels[..., None])[..., 0]
    losses = (scores.logsumexp(-1) - right).double().cpu().numpy()
    labels, guesses = batch.labels.cpu().numpy(), scores.argmax(-1).cpu().numpy()
    for row in range(len(labels)):
        places = np.flatnonzero(labels[row] != PAD)
        yield [(int(t), int(labels[row, t]), float(losses[row, t]), int(guesses[row, t])) for t in places]


def token_counts(store: Store, size: int) -> Counts:
    """(size,): the count of each id in the targets of the training text, with one end mark per example."""
    counts = np.zeros(size, np.int64)
    for at in range(0, len(store), _COUNTED):
        _, targets = store.take(np.arange(at, min(at + _COUNTED, len(store))))
        ids = np.concatenate([np.asarray(each, np.int64) for each in targets])
        counts += np.bincount(np.where(ids < size, ids, UNK), minlength=size)  # ids past the end are copied words
    counts[END] += len(store)
    return counts


def corpus_losses(run: LoadedRun, on: str) -> CorpusLosses:
    """The losses of every token of a run's test set."""
    if run.recipe.data.noise is not None:
        raise ValueError(
            f"--corpus {on}: {run.folder} answers only where a text is corrupted (data.noise), so not every token has "
            f"a loss; `sightline evaluate` scores it"
        )
    counts = _training_counts(run)
    if not run.recipe.task_spec.continues_text:
        examples = list(run.test_examples(on))
        return pair_losses(run.model, run.recipe, run.vocabulary, examples, on=on, counts=counts, device=run.device)
    documents = run.vocabulary.target.encode_many([each.target for each in run.test_examples(on)])
    stream = np.concatenate([np.asarray([*ids, END]) for ids in documents])
    return text_losses(stream, run.text_losses(stream), run.vocabulary, on=on, counts=counts)


def _training_counts(run: LoadedRun) -> Counts | None:
    """The counts of all tokens in the training text, if that is available."""
    try:
        prepared = prepare_data(run.recipe, vocabulary=run.vocabulary)
    except (DataError, OSError) as error:
        print(f"frequencies are not known, the training text is not at hand: {error}", file=sys.stderr)
        return None
    with closing(prepared):
        return token_counts(prepared.train(0), run.vocabulary.target.size)


def quality_by_length(run: LoadedRun, on: str) -> list[LengthBucket]:
    """The recipe's first metric by reference length, with the recipe's decoding."""
    from sightline.evaluation import breakdowns
    from sightline.evaluation.metrics import measure

    metric, section = run.recipe.evaluation.metrics[0], run.recipe.evaluation
    test = run.test_set(on)
    outputs = [guesses[0].text for guesses in run.predict_nbest(test.sources)]

    def score(some: list[str], references: list[list[str]]) -> float:
        return measure(metric, some, references, lowercase=section.lowercase, section=section).value

    return breakdowns.quality_by_length(test.references, {run.folder.name: outputs}, score)


def quality_table(qualities: Sequence[LengthBucket], metric: str) -> Table:
    """A terminal table of quality by length."""
    from rich.table import Table

    table = Table("words", "sentences", metric, title="quality by length", box=None)
    for bucket in qualities:
        table.add_row(bucket.label, str(bucket.sentences), f"{next(iter(bucket.scores.values())):.1f}")
    return table
