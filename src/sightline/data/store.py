"""The tokenized corpus on disk: written once, then memory-mapped.

A store is in the cache under a hash of everything it is built from (file contents, recipe sections, tokenizers,
format), so a changed input gives a new store. Building streams: memory does not grow with the corpus (only
`deduplicate` keeps 8 bytes of hash for each example).
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from sightline.data.cleaning import REASONS, Cleaner, TokenizedChunk
from sightline.data.corpora.catalogue import cache_folder
from sightline.data.locate import source_files
from sightline.data.sources import Example, read
from sightline.data.text_files import NO_LIMIT, DataError, LineLimit
from sightline.data.word_alignments import Links, chunk_links, in_step
from sightline.files import (
    atomic_folder,
    checksum,
    file_lock,
    make_folder,
    read_json,
    remove,
    unfinished_files,
    write_atomically,
    write_json,
)
from sightline.recipe.data import Clean
from sightline.recipe.sources import AnySource, DatesSource, PhrasesSource, QuestionsSource
from sightline.text.copying import CopyForms, with_unknown
from sightline.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    import pyarrow as pa  # imported where it is used: prediction does without

Item = TypeVar("Item")
Result = TypeVar("Result")
Ids = NDArray[np.unsignedinteger[Any]]
Indices = Sequence[int] | NDArray[np.integer[Any]]
Chunk = tuple[int, list[tuple[int, Example, Links]]]  # its number; of each example: the number of its source, and links

FORMAT = 2

_CHUNK = 4_096  # the most examples of a chunk, which is tokenized at once and becomes a record batch
_CHARACTERS = 1 << 24  # and about the most characters
_PENDING = 3  # chunks in progress
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_POLL = 0.1  # seconds between two attempts to take a lock


class BpeDropout(NamedTuple):
    """The probability that a merge is skipped. Each variant, and each seed, skips others."""

    rate: float
    variant: int
    seed: int


@dataclass(frozen=True)
class StoreSpec:
    """Everything that a store is built from."""

    sources: tuple[AnySource, ...]
    vocabulary: Vocabulary
    folder: Path | None  # of the sources' files
    swap: bool = False  # exchange source and target
    clean: Clean | None = None  # None: keep everything, as for validation and test sets
    limit: int | None = None  # most examples read from all sources together
    dropout: BpeDropout | None = None
    links: Path | None = None  # a file of word alignments, one line for each example that is read
    longest_source: int | None = None  # tokens, to which sources are truncated
    copying: bool = False  # source words outside the vocabulary have ids beyond its end (text/copying.py)
    forms: bool = False  # they are copied with or without the space before them
    line_limit: LineLimit = NO_LIMIT  # longer lines are never kept, so it is not part of the key
    text_only: bool = False  # drop the sources: the targets are text for a language model

    def key(self, cache: Path) -> str:
        """The name of the store: it depends on the contents of files, not on their places or weights."""
        parts = {
            "format": FORMAT,
            "sources": [_identity(source, self.folder, cache) for source in self.sources],
            "tokenizers": [_digest(side.content) for side in (self.vocabulary.source, self.vocabulary.target)],
            "labels": self.vocabulary.labels,
            "swap": self.swap,
            "clean": self.clean.model_dump(mode="json") if self.clean else None,
            "limit": self.limit,
            "cut": self.dropout,
            "longest source": self.longest_source,
            "copying": self.copying,
        }
        if self.copying:
            parts["copied"] = "forms" if self.forms else "exact"
        if self.text_only:
            parts["text alone"] = True
        if self.links is not None:
            parts["links"] = content_hash(self.links, cache)
        return _digest(json.dumps(parts, sort_keys=True))[:32]

    def examples(self) -> Iterator[tuple[int, Example, Links]]:
        """Every example with the number of its source and its word alignment."""
        options: Any = {"swap": self.swap, "labelled": self.vocabulary.labels == "words", "limit": self.line_limit}
        numbered = (
            (number, example)
            for number, source in enumerate(self.sources)
            for example in read(source, self.folder, **options)
        )
        limited = islice(numbered, self.limit)
        if self.text_only:
            return ((number, Example("", example.target), []) for number, example in limited)
        if self.links is not None:
            return in_step(limited, self.links, limited=self.limit is not None)
        return ((number, example, []) for number, example in limited)

    def encode(self, texts: list[Example], chunk: int) -> tuple[list[list[int]], list[list[int]], list[bool]]:
        """The ids of both sides, and which sources were truncated. BPE-dropout depends on the chunk and the side."""
        rate, variant, seed = self.dropout or BpeDropout(0.0, 0, 0)
        seeds = [int(_digest(json.dumps([seed, variant, chunk, side]))[:16], 16) for side in (0, 1)]
        sources, targets = [text.source for text in texts], [text.target for text in texts]
        source, target = self.vocabulary.encode_pairs(sources, targets, dropout=rate, seeds=(seeds[0], seeds[1]))
        most = self.longest_source
        truncated = [most is not None and len(ids) > most for ids in source]
        if any(truncated):
            source = [ids[:most] for ids in source]
        if not self.copying or rate:  # under BPE-dropout the pieces of source and target do not match
            return source, target, truncated
        tokenizer = self.vocabulary.source
        forms = CopyForms.of(tokenizer.all_pieces) if self.forms else None
        return *with_unknown(tokenizer, texts, source, target, forms), truncated


def _identity(source: AnySource, folder: Path | None, cache: Path) -> dict[str, Any]:
    """What identifies the content of a source; names of files do not."""
    identity = source.model_dump(mode="json", exclude={"weight", *source.file_keys})
    if isinstance(source, DatesSource):
        identity["babel"] = version("babel")  # which writes the dates
    if isinstance(source, PhrasesSource | QuestionsSource):
        from sightline.data.phrases.lexicon import GRAMMAR_VERSION

        identity["grammar"] = GRAMMAR_VERSION
    if paths := source_files(source, folder):
        identity["files"] = [content_hash(path, cache) for path in paths]
        identity["suffixes"] = [path.suffix for path in paths]
    return identity


def content_hash(path: Path, cache: Path) -> str:
    """The checksum of a file, cached as long as the file's size, times and inode stay the same.

    The time of the last status change counts too: the modification time can be set to anything (`cp -p`, `touch -r`).
    """
    state = path.stat()
    stamp = [state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino]
    memory = cache / "checksums" / f"{_digest(str(path.resolve()))[:32]}.json"
    with suppress(OSError, ValueError, KeyError, TypeError):  # missing or unreadable: compute it
        remembered = read_json(memory)
        if remembered["stamp"] == stamp:
            return str(remembered["sha256"])
    digest = checksum(path)
    if time.time() - state.st_ctime > 2:  # a file just written could change again within the resolution of its time
        make_folder(memory.parent)
        write_atomically(memory, json.dumps({"path": str(path), "stamp": stamp, "sha256": digest}))
    return digest


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


class Store:
    """Tokenized examples, read from disk as they are needed. Ids are without start and end tokens."""

    def __init__(self, folder: Path) -> None:
        """Open a finished store."""
        import pyarrow as pa

        self.folder = folder
        self.counts: dict[str, int] = read_json(folder / "counts.json")
        with pa.memory_map(str(folder / "examples.arrow")) as file:
            reader = pa.ipc.open_file(file)
            batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
        columns = set(batches[0].schema.names) if batches else set()
        views = {
            name: [(batch.column(name).offsets.to_numpy(), batch.column(name).values.to_numpy()) for batch in batches]
            for name in ("source", "target", *columns & {"links"})
        }
        # by record batch: the offsets of its examples, and its ids
        self._source, self.targets, self._links = views["source"], views["target"], views.get("links")
        self._starts = np.cumsum([0] + [batch.num_rows for batch in batches])
        origins = [batch.column("origin").to_numpy() for batch in batches]
        self.origin: NDArray[np.uint16] = np.concatenate([*origins, np.empty(0, np.uint16)])
        self.source_lengths, self.target_lengths = (
            np.concatenate([*(np.diff(offsets) for offsets, _ in side), np.empty(0, np.int32)])
            for side in (self._source, self.targets)
        )

    def __len__(self) -> int:
        return int(self._starts[-1])

    def take(self, indices: Indices) -> tuple[list[Ids], list[Ids]]:
        """The source and target ids of some examples, as views of the file."""
        rows = self._rows(indices)
        source = [_row(self._source[batch], row) for batch, row in rows]
        return source, [_row(self.targets[batch], row) for batch, row in rows]

    def links(self, indices: Indices) -> list[Ids] | None:
        """(links, 2) of some examples: source piece, target piece. None without word alignments."""
        if self._links is None:
            return None
        return [_row(self._links[batch], row).reshape(-1, 2) for batch, row in self._rows(indices)]

    def _rows(self, indices: Indices) -> list[tuple[int, int]]:
        """The record batch of each example, and its row there."""
        examples = np.asarray(indices, dtype=np.int64)
        if len(examples) and not 0 <= examples.min() <= examples.max() < len(self):
            raise IndexError(f"examples {examples.min()} to {examples.max()} of a store of {len(self)}")
        batches = np.searchsorted(self._starts, examples, side="right") - 1
        rows = examples - self._starts[batches]
        return list(zip(batches.tolist(), rows.tolist(), strict=True))


class Stopped(Exception):
    """Building a store was cancelled."""


def load_or_build_store(
    spec: StoreSpec,
    *,
    cache: Path | None = None,
    progress: Callable[[int], None] | None = None,
    stop: threading.Event | None = None,
) -> Store:
    """The store of a spec: from the cache, or built there.

    `progress` is called with the number of examples read so far. If several processes need the same store, one builds
    and the others wait. After `stop` is set, building or waiting soon raises `Stopped`.
    """
    cache = cache or cache_folder()
    place = cache / "stores" / spec.key(cache)
    if place.exists():
        return Store(place)
    stop = stop or threading.Event()

    def wait() -> bool:
        if stop.wait(_POLL):
            raise Stopped
        return True

    make_folder(place.parent)
    with file_lock(place.parent / f"{place.name}.lock", wait=wait):
        if not place.exists():
            for leftover in unfinished_files(place):
                with suppress(OSError):
                    remove(leftover)
            try:
                with atomic_folder(place) as folder:
                    _build(spec, folder, progress, stop)
            except OSError as error:
                if error.errno not in _DISK_FULL:
                    raise
                raise OSError(
                    error.errno,
                    f"the prepared corpus could not be written to the cache: {os.strerror(error.errno)}; make room "
                    f"there, or set SIGHTLINE_CACHE to a folder on another disk",
                    str(place.parent),
                ) from error
    return Store(place)


def _build(spec: StoreSpec, folder: Path, progress: Callable[[int], None] | None, stop: threading.Event) -> None:
    """Tokenize all examples into `folder`: this thread reads and writes, two tokenize (in Rust, without GIL)."""
    import pyarrow as pa

    small = max(spec.vocabulary.source.size, spec.vocabulary.target.size) <= 1 << 16
    ids = pa.list_(pa.uint16() if small and not spec.copying else pa.uint32())
    fields = [("source", ids), ("target", ids), ("origin", pa.uint16())]
    schema = pa.schema(fields if spec.links is None else [*fields, ("links", pa.list_(pa.uint32()))])
    cleaner = Cleaner(spec.clean, text_only=spec.text_only)
    with pa.OSFile(str(folder / "examples.arrow"), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for chunk in _in_order(partial(_tokenize, spec, schema), _chunks(spec.examples())):
            if stop.is_set():
                raise Stopped
            kept = chunk.examples.filter(pa.array(cleaner.keep(chunk)))
            if kept.num_rows:
                writer.write_batch(kept)
            if progress is not None:
                progress(cleaner.counts["read"])
    if not cleaner.counts["kept"]:
        dropped = ", ".join(f"{cleaner.counts[reason]:,} {reason}" for reason in REASONS if cleaner.counts[reason])
        raise DataError(
            f"no examples are left of the {cleaner.counts['read']:,} read{f' ({dropped})' if dropped else ''}; "
            f"check the sources' files and share, and data.clean"
        )
    write_json(folder / "counts.json", cleaner.counts)


def _chunks(examples: Iterator[tuple[int, Example, Links]]) -> Iterator[Chunk]:
    number, size = 0, 0
    chunk: list[tuple[int, Example, Links]] = []
    for each in examples:
        chunk.append(each)
        size += len(each[1].source) + len(each[1].target)
        if len(chunk) >= _CHUNK or size >= _CHARACTERS:
            yield number, chunk
            number, size, chunk = number + 1, 0, []
    if chunk:
        yield number, chunk


def _tokenize(spec: StoreSpec, schema: pa.Schema, numbered: Chunk) -> TokenizedChunk:
    import pyarrow as pa

    number, chunk = numbered
    texts = [example for _, example, _ in chunk]
    source, target, truncated = spec.encode(texts, number)
    origin = pa.array(np.fromiter((origin for origin, _, _ in chunk), np.uint16, len(chunk)))
    ids = schema.field("source").type
    columns = [_list_array(source, ids), _list_array(target, ids), origin]
    if spec.links is not None:
        tokenizers, links = (spec.vocabulary.source, spec.vocabulary.target), [each for _, _, each in chunk]
        pieces = chunk_links(tokenizers, texts, (source, target), links, dropout=spec.dropout is not None)
        columns.append(_list_array(pieces, schema.field("links").type))
    return TokenizedChunk(texts, pa.RecordBatch.from_arrays(columns, schema=schema), np.array(truncated))


def _list_array(rows: list[list[int]], kind: pa.ListType) -> pa.ListArray:
    import pyarrow as pa

    offsets = np.zeros(len(rows) + 1, np.int32)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    values = np.fromiter(chain.from_iterable(rows), kind.value_type.to_pandas_dtype(), int(offsets[-1]))
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values), type=kind)


def _in_order(work: Callable[[Item], Result], items: Iterator[Item]) -> Iterator[Result]:
    """The results of work done by two threads, in order, with only a few items in progress."""
    waiting: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(max_workers=2)
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) >= _PENDING:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _row(views: tuple[NDArray[np.int32], Ids], row: int) -> Ids:
    offsets, values = views
    return values[offsets[row] : offsets[row + 1]]


class StoreVariants:
    """Stores of the same text under different BPE-dropout, for the epochs in turn; the next is built in a thread."""

    def __init__(self, build: Callable[[int, threading.Event], Store], count: int) -> None:
        """`build(variant, stop)` makes the store of a variant, and raises `Stopped` soon after the event is set."""
        self.build, self.count = build, count
        self.stores: dict[int, Store] = {}
        self.coming: Future[Store] | None = None
        self._closed = threading.Event()
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="variants")

    def __call__(self, epoch: int) -> Store:
        """The store of an epoch."""
        variant = epoch % self.count
        if variant not in self.stores:
            if self.coming is not None:
                self.coming.result()
            self.stores[variant] = self.build(variant, self._closed)  # in the cache, if it was built ahead
            following = (epoch + 1) % self.count
            if following not in self.stores and not self._closed.is_set():
                self.coming = self._pool.submit(self.build, following, self._closed)
        return self.stores[variant]

    def close(self) -> None:
        """Cancel the variant that is being built, and build no other. Finished ones stay usable."""
        self._closed.set()
        self._pool.shutdown()
