"""Corpora for the benchmarks, tokenized once with a joint BPE, and their batches.

All contestants read the same token ids, so that a benchmark measures batching and model. Corpora are found through
SIGHTLINE_CORPORA; tokenizers and token ids are cached in SIGHTLINE_BENCHMARK_CACHE or the temporary folder.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

PAD, UNKNOWN, START, END = 0, 1, 2, 3
SPECIALS = ["<pad>", "<unk>", "<s>", "</s>"]

Item = TypeVar("Item")
Array = NDArray[np.integer[Any]]


def corpora() -> Path:
    """The folder of the corpora."""
    folder = os.environ.get("SIGHTLINE_CORPORA")
    if not folder:
        raise SystemExit("set SIGHTLINE_CORPORA to the folder that holds multi30k/ and europarl-de-en/")
    return Path(folder)


def cache() -> Path:
    """The folder for tokenizers and token ids made here."""
    folder = os.environ.get("SIGHTLINE_BENCHMARK_CACHE") or Path(tempfile.gettempdir()) / "sightline-benchmarks"
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    return path


def pairs(part: str) -> dict[str, str]:
    """The German-English text of `part` as a source of a recipe."""
    return {"kind": "text", "source": f"{part}.de.xz", "target": f"{part}.en.xz"}


def read_lines(name: str) -> list[str]:
    """The lines of one xz-compressed file of the corpora, e.g. `multi30k/train.de`."""
    with lzma.open(corpora() / f"{name}.xz", "rt", encoding="utf-8") as file:
        return [line.rstrip("\n") for line in file]


@dataclass(frozen=True)
class Store:
    """Token ids of many sentences in one flat array: sentence i is `ids[offsets[i]:offsets[i + 1]]`."""

    ids: Array
    offsets: Array

    @property
    def lengths(self) -> Array:
        """Tokens in each sentence, without `<s>` and `</s>`."""
        return np.diff(self.offsets)

    def sentence(self, index: int) -> Array:
        """The ids of one sentence."""
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    def padded(self, rows: Array, width: int, *, start: bool, end: bool) -> torch.Tensor:
        """The sentences `rows` as one (B, width) tensor, padded at the end; `start` adds `<s>`, `end` adds `</s>`."""
        lengths = self.lengths[rows]
        out = np.zeros((len(rows), width), dtype=np.int64)
        columns = np.arange(width) - int(start)  # (T,)
        inside = (columns >= 0) & (columns < lengths[:, None])  # (B, T)
        out[inside] = self.ids[(self.offsets[rows][:, None] + columns)[inside]]
        if start:
            out[:, 0] = START
        if end:
            out[np.arange(len(rows)), lengths + int(start)] = END
        return torch.from_numpy(out)


@dataclass(frozen=True)
class Corpus:
    """A tokenized parallel corpus."""

    name: str
    tokenizer: Tokenizer
    source: Store
    target: Store
    vocabulary: int

    def __len__(self) -> int:
        return len(self.source.offsets) - 1


def train_bpe(lines: list[str], vocabulary: int) -> Tokenizer:
    """Train a joint BPE with the pre-tokenization of Sightline."""
    space = "\u2581"
    tokenizer = Tokenizer(models.BPE(unk_token=SPECIALS[UNKNOWN], fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    )
    words = rf"{space}?(?:[^{space}\p{{P}}\p{{S}}]+|[^{space}])|{space}"
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(replacement=space, prepend_scheme="always", split=False),
            pre_tokenizers.Split(Regex(words), "isolated"),
        ]
    )
    tokenizer.decoder = decoders.Metaspace(replacement=space, prepend_scheme="always", split=False)
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, min_frequency=2, special_tokens=SPECIALS, show_progress=False)
    tokenizer.train_from_iterator(lines, trainer)
    return tokenizer


def tokenize(tokenizer: Tokenizer, lines: list[str]) -> Store:
    """All lines as token ids."""
    parts: list[Array] = []
    for start in range(0, len(lines), 10_000):
        for encoding in tokenizer.encode_batch_fast(lines[start : start + 10_000], add_special_tokens=False):
            parts.append(np.array(encoding.ids, dtype=np.int32))
    offsets = np.zeros(len(parts) + 1, dtype=np.int64)
    np.cumsum([len(part) for part in parts], out=offsets[1:])
    return Store(np.concatenate(parts), offsets)


def load(name: str, source: str, target: str, vocabulary: int, longest: int = 128) -> Corpus:
    """The training part of a corpus, tokenized (once: the result is cached); pairs with a longer side are dropped."""
    key = hashlib.sha256(repr((name, source, target, vocabulary, longest, 2)).encode()).hexdigest()[:12]
    folder = cache() / f"{name}-{source}-{target}-{key}"
    if not folder.exists():
        sides = [read_lines(f"{name}/train.{language}") for language in (source, target)]
        tokenizer = train_bpe(sides[0] + sides[1], vocabulary)
        stores = [tokenize(tokenizer, side) for side in sides]
        keep = np.flatnonzero((np.maximum(*(s.lengths for s in stores)) < longest) & (stores[0].lengths > 0))
        partial = Path(tempfile.mkdtemp(dir=cache()))
        tokenizer.save(str(partial / "tokenizer.json"))
        for side, store in zip(("source", "target"), stores, strict=True):
            np.save(partial / f"{side}.ids.npy", np.concatenate([store.sentence(i) for i in keep.tolist()]))
            np.save(partial / f"{side}.offsets.npy", np.concatenate([[0], np.cumsum(store.lengths[keep])]))
        partial.rename(folder)
    stores = [
        Store(np.load(folder / f"{side}.ids.npy", mmap_mode="r"), np.load(folder / f"{side}.offsets.npy"))
        for side in ("source", "target")
    ]
    return Corpus(name, Tokenizer.from_file(str(folder / "tokenizer.json")), stores[0], stores[1], vocabulary)


@dataclass(frozen=True)
class Batch:
    """Padded tensors: source with `</s>` (B, S), decoder input with `<s>` (B, T), labels with `</s>` (B, T)."""

    source: torch.Tensor
    inputs: torch.Tensor
    labels: torch.Tensor
    tokens: int  # real target tokens, `</s>` included
    padded: bool  # whether the source holds any padding


def plan(corpus: Corpus, tokens: int, *, multiple: int = 1, real: bool = False) -> list[Array]:
    """Sort sentences by length into batches with little padding, and return the rows of each.

    A batch holds at most `tokens` on its longer side, padding included (or, with `real`, not counted). Sentences are
    sorted by target length in steps of a few tokens, and by source length (up and down in turn) within a step; the
    size of the step that wastes least is chosen for this corpus and batch size. Lengths are rounded up to `multiple`.
    """
    sides = (corpus.source, corpus.target)
    lengths = [side.lengths + 1 for side in sides]
    source, target = (-(-length // multiple) * multiple for length in lengths)
    plans = []
    for step in (1, 2, 3, 4, 6, 8):
        group = target // (step * multiple)
        order = np.lexsort((np.where(group % 2, -source, source), group))
        plans.append(cut(order, source, target, tokens, lengths if real else None))
    return min(plans, key=lambda candidate: candidate[1])[0]


def cut(order: Array, source: Array, target: Array, tokens: int, real: list[Array] | None) -> tuple[list[Array], int]:
    """Cut `order` into batches of at most `tokens`; also the total size of the padded tensors."""
    batches, cells, start, widths, sums = [], 0, 0, (0, 0), (0, 0)
    counted = (source, target) if real is None else tuple(real)
    for position, row in enumerate(order):
        one, own = (int(source[row]), int(target[row])), (int(counted[0][row]), int(counted[1][row]))
        wider = (max(widths[0], one[0]), max(widths[1], one[1]))
        more = (sums[0] + own[0], sums[1] + own[1])
        size = max(more) if real is not None else max(wider) * (position + 1 - start)
        if size > tokens and position > start:
            batches.append(order[start:position])
            cells += sum(widths) * (position - start)
            start, wider, more = position, one, own
        widths, sums = wider, more
    batches.append(order[start:])
    return batches, cells + sum(widths) * (len(order) - start)


def buckets(corpus: Corpus, tokens: int, widths: tuple[int, ...]) -> list[tuple[Array, tuple[int, int]]]:
    """Batches of a few static shapes: (rows, (width, width)), about `tokens` real target tokens each.

    A pair goes into the narrowest width that holds both its sides; every batch of a width has the same number of rows.
    """
    longest = np.maximum(corpus.source.lengths, corpus.target.lengths) + 1
    generator = np.random.default_rng(1)
    batches = []
    for narrower, width in zip((0, *widths), widths, strict=False):
        rows = np.flatnonzero((longest > narrower) & (longest <= width))
        if not len(rows):
            continue
        count = max(1, round(tokens / float((corpus.target.lengths[rows] + 1).mean())))
        generator.shuffle(rows)
        batches += [(rows[at : at + count], (width, width)) for at in range(0, len(rows) - count + 1, count)]
    return batches


def assemble(corpus: Corpus, rows: Array, width: tuple[int, int] | None = None, multiple: int = 1) -> Batch:
    """One batch of tensors, padded to `width` (source, target), or to the longest rounded up to a `multiple`."""
    source_lengths, target_lengths = corpus.source.lengths[rows] + 1, corpus.target.lengths[rows] + 1
    if width is None:
        longest = (int(source_lengths.max()), int(target_lengths.max()))
        width = (-(-longest[0] // multiple) * multiple, -(-longest[1] // multiple) * multiple)
    source = corpus.source.padded(rows, width[0], start=False, end=True)
    inputs = corpus.target.padded(rows, width[1], start=True, end=False)
    labels = corpus.target.padded(rows, width[1], start=False, end=True)
    return Batch(source, inputs, labels, int(target_lengths.sum()), bool((source_lengths < width[0]).any()))


def endless(batches: Sequence[Item], seed: int) -> Iterator[Item]:
    """Repeat the batches without end, in a new random order each epoch."""
    generator = np.random.default_rng(seed)
    while True:
        for index in generator.permutation(len(batches)):
            yield batches[index]
