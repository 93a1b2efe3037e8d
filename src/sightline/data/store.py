"""The tokenized corpus on disk: written once, then memory-mapped.

A store lies in the cache under a hash of everything it is built from (file contents, recipe sections, tokenizers,
format), so a changed input never meets an old store and there is nothing to rebuild by hand. Building streams: memory
does not grow with the corpus (only `deduplicate` keeps 8 bytes of hash for each example).
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
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sightline.data.cleaning import REASONS, Cleaner, TokenizedChunk
from sightline.data.corpora.catalogue import cache_folder
from sightline.data.locate import source_files
from sightline.data.phrases.lexicon import GRAMMAR_VERSION
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
    unfinished,
    write_atomically,
    write_json,
)
from sightline.recipe.data import AnySource, Clean, DatesSource, PhrasesSource
from sightline.text.copying import CopyForms, with_unknown
from sightline.text.vocabulary import Vocabulary

Item = TypeVar("Item")
Result = TypeVar("Result")
Ids = NDArray[np.unsignedinteger[Any]]

_CHUNK = 4_096  # examples tokenized at once, and in a record batch, at most
_LETTERS = 1 << 24  # characters, about: of long documents there are fewer in a chunk
_AHEAD = 3  # chunks in the making
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # no room for more
_LOOK = 0.1  # seconds between two looks at a lock that another holds


class Store:
    """Tokenized examples, read from disk as they are needed. Ids are without start and end."""

    def __init__(self, folder: Path) -> None:
        """Open a finished store."""
        self.folder = folder
        self.counts: dict[str, int] = read_json(folder / "counts.json")
        with pa.memory_map(str(folder / "examples.arrow")) as file:
            reader = pa.ipc.open_file(file)
            batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
        self._source = [_views(batch.column("source")) for batch in batches]
        self._target = [_views(batch.column("target")) for batch in batches]
        guided = bool(batches) and "links" in batches[0].schema.names
        self._links = [_views(batch.column("links")) for batch in batches] if guided else None
        self._starts = np.cumsum([0] + [batch.num_rows for batch in batches])
        origins = [batch.column("origin").to_numpy() for batch in batches]
        self.origin: NDArray[np.uint16] = np.concatenate([*origins, np.empty(0, np.uint16)])
        self.source_lengths = _lengths(self._source)
        self.target_lengths = _lengths(self._target)

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def targets(self) -> list[tuple[NDArray[np.int32], Ids]]:
        """All target ids as the file has them: of each part, where its examples begin (and end), and its ids."""
        return self._target

    def take(self, indices: Sequence[int] | NDArray[np.integer[Any]]) -> tuple[list[Ids], list[Ids]]:
        """The source and target ids of some examples, as views of the file."""
        places = self._places(indices)
        return [_row(self._source[b], r) for b, r in places], [_row(self._target[b], r) for b, r in places]

    def links(self, indices: Sequence[int] | NDArray[np.integer[Any]]) -> list[Ids] | None:
        """(links, 2) of some examples: source piece, target piece; None if nobody gave word alignments."""
        if self._links is None:
            return None
        return [_row(self._links[b], r).reshape(-1, 2) for b, r in self._places(indices)]

    def _places(self, indices: Sequence[int] | NDArray[np.integer[Any]]) -> list[tuple[int, int]]:
        """The batch of each example, and its row there."""
        wanted = np.asarray(indices, dtype=np.int64)
        if len(wanted) and not 0 <= wanted.min() <= wanted.max() < len(self):
            raise IndexError(f"examples {wanted.min()} to {wanted.max()} asked of a store of {len(self)}")
        batches = np.searchsorted(self._starts, wanted, side="right") - 1
        rows = wanted - self._starts[batches]
        return list(zip(batches.tolist(), rows.tolist(), strict=True))


class Stopped(Exception):
    """A store was given up before it was whole, because somebody asked for that."""


def load_or_build_store(
    ingredients: StoreSpec,
    *,
    cache: Path | None = None,
    progress: Callable[[int], None] | None = None,
    stop: threading.Event | None = None,
) -> Store:
    """The store of these ingredients, found in the cache or built there.

    `progress` is told now and then how many examples have been read. Of several who prepare the same store at once, one
    builds and the others wait for it. Who builds or waits gives up (`Stopped`) soon after `stop` is set.
    """
    cache = cache or cache_folder()
    place = cache / "stores" / ingredients.key(cache)
    if not place.exists():
        with _alone(place, stop):
            if not place.exists():
                for left_behind in unfinished(place):
                    with suppress(OSError):
                        remove(left_behind)
                try:
                    with atomic_folder(place) as unfinished_store:
                        _build(ingredients, unfinished_store, progress, stop)
                except OSError as error:
                    if error.errno not in _FULL:
                        raise
                    raise OSError(
                        error.errno,
                        f"the prepared corpus could not be written to the cache: {os.strerror(error.errno)}; make room "
                        f"there, or set SIGHTLINE_CACHE to a folder on another disk",
                        str(place.parent),
                    ) from error
    return Store(place)


def _build(
    ingredients: StoreSpec,
    folder: Path,
    progress: Callable[[int], None] | None,
    stop: threading.Event | None,
) -> None:
    """Tokenize everything into `folder`: one thread reads and writes, two cut (in Rust, without Python's lock)."""
    small = max(ingredients.vocabulary.source.size, ingredients.vocabulary.target.size) <= 1 << 16
    ids = pa.list_(pa.uint16() if small and not ingredients.copying else pa.uint32())
    fields = [("source", ids), ("target", ids), ("origin", pa.uint16())]
    schema = pa.schema(fields if ingredients.links is None else [*fields, ("links", pa.list_(pa.uint32()))])
    cleaner = Cleaner(ingredients.clean)
    with pa.OSFile(str(folder / "examples.arrow"), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for batch in _in_order(partial(_tokenize, ingredients, schema), _chunks(ingredients.examples())):
            if stop is not None and stop.is_set():
                raise Stopped
            kept = batch.examples.filter(pa.array(cleaner.keep(batch)))
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


def _tokenize(
    ingredients: StoreSpec, schema: pa.Schema, numbered: tuple[int, list[tuple[int, Example, Links]]]
) -> TokenizedChunk:
    number, chunk = numbered
    texts = [example for _, example, _ in chunk]
    source, target, short = ingredients.encode(texts, number)
    origin = pa.array(np.fromiter((number for number, _, _ in chunk), np.uint16, len(chunk)))
    ids = schema.field("source").type
    columns = [_list_array(source, ids), _list_array(target, ids), origin]
    if ingredients.links is not None:
        sides, told = (ingredients.vocabulary.source, ingredients.vocabulary.target), [links for _, _, links in chunk]
        found = chunk_links(sides, texts, (source, target), told, dropout=ingredients.dropped is not None)
        columns.append(_list_array(found, schema.field("links").type))
    return TokenizedChunk(texts, pa.RecordBatch.from_arrays(columns, schema=schema), np.array(short))


def _list_array(rows: list[list[int]], kind: pa.ListType) -> pa.ListArray:
    offsets = np.zeros(len(rows) + 1, np.int32)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    values = np.fromiter(chain.from_iterable(rows), kind.value_type.to_pandas_dtype(), int(offsets[-1]))
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values), type=kind)


def _chunks(
    examples: Iterator[tuple[int, Example, Links]],
) -> Iterator[tuple[int, list[tuple[int, Example, Links]]]]:
    number, size = 0, 0
    chunk: list[tuple[int, Example, Links]] = []
    for each in examples:
        chunk.append(each)
        size += len(each[1].source) + len(each[1].target)
        if len(chunk) >= _CHUNK or size >= _LETTERS:
            yield number, chunk
            number, size, chunk = number + 1, 0, []
    if chunk:
        yield number, chunk


def _in_order(work: Callable[[Item], Result], items: Iterator[Item]) -> Iterator[Result]:
    """The results of work done by two threads, in order, with never more than a few items under way."""
    waiting: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(max_workers=2)
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) >= _AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _alone(place: Path, stop: threading.Event | None) -> Iterator[None]:
    """Hold the lock of a store's name; it is let go when the process ends, however it ends."""
    make_folder(place.parent)

    def wait() -> bool:
        if stop is None:
            time.sleep(_LOOK)
        elif stop.wait(_LOOK):
            raise Stopped
        return True

    with file_lock(place.parent / f"{place.name}.lock", wait=wait):
        yield


def _views(column: pa.ListArray) -> tuple[NDArray[np.int32], Ids]:
    return column.offsets.to_numpy(), column.values.to_numpy()


def _row(views: tuple[NDArray[np.int32], Ids], row: int) -> Ids:
    offsets, values = views
    return values[offsets[row] : offsets[row + 1]]


def _lengths(columns: list[tuple[NDArray[np.int32], Ids]]) -> NDArray[np.int32]:
    return np.concatenate([*(np.diff(offsets) for offsets, _ in columns), np.empty(0, np.int32)])


FORMAT = 2


class BpeDropout(NamedTuple):
    """BPE-dropout: how many merges are left out; each variant, and each seed, leaves out others."""

    share: float
    variant: int
    seed: int


@dataclass(frozen=True)
class StoreSpec:
    """All that goes into a store."""

    sources: tuple[AnySource, ...]
    vocabulary: Vocabulary
    folder: Path | None  # where the sources' files lie
    swap: bool = False  # whether source and target change places
    clean: Clean | None = None  # what is dropped; None: nothing, as validation and test sets are scored as they are
    limit: int | None = None  # examples that are read, all sources together
    dropped: BpeDropout | None = None  # with BPE-dropout
    links: Path | None = None  # a file of word alignments, a line for each example that is read, which they stay with
    longest_source: int | None = None  # tokens; what is behind them is cut off, cleaned or not
    copying: bool = False  # whether source words outside the vocabulary have ids past its end (text/copying.py)
    forms: bool = False  # whether they are copied with or without the space before them
    bound: LineLimit = NO_LIMIT  # of lines; what is longer than it is never kept, so it is no part of the key
    text_alone: bool = False  # whether sources are left out: of pairs, the target side is text to model for itself

    def key(self, cache: Path) -> str:
        """The name of the store: where files lie and what weights they have does not matter, what is in them does."""
        ingredients = {
            "format": FORMAT,
            "sources": [_identity(source, self.folder, cache) for source in self.sources],
            "tokenizers": [_digest(side.content) for side in (self.vocabulary.source, self.vocabulary.target)],
            "labels": self.vocabulary.labels,
            "swap": self.swap,
            "clean": self.clean.model_dump(mode="json") if self.clean else None,
            "limit": self.limit,
            "cut": self.dropped,
            "longest source": self.longest_source,
            "copying": self.copying,
        }
        if self.copying:
            ingredients["copied"] = "forms" if self.forms else "exact"
        if self.text_alone:
            ingredients["text alone"] = True
        if self.links is not None:
            ingredients["links"] = content_hash(self.links, cache)
        return _digest(json.dumps(ingredients, sort_keys=True))[:32]

    def examples(self) -> Iterator[tuple[int, Example, Links]]:
        """Every example with the number of its source, and the links between its words."""
        how: Any = {"swap": self.swap, "labelled": self.vocabulary.labels == "words", "bound": self.bound}
        everything = (
            (number, example)
            for number, source in enumerate(self.sources)
            for example in read(source, self.folder, **how)
        )
        limited = islice(everything, self.limit)
        if self.text_alone:
            return ((number, Example("", example.target), []) for number, example in limited)
        if self.links is not None:
            return in_step(limited, self.links, limited=self.limit is not None)
        return ((number, example, []) for number, example in limited)

    def encode(self, texts: list[Example], number: int) -> tuple[list[list[int]], list[list[int]], list[bool]]:
        """Cut the texts of a chunk; under dropout differently in each chunk, and on either side.

        Last comes which sources were cut short.
        """
        dropout, variant, seed = self.dropped or BpeDropout(0.0, 0, 0)
        drawn = [int(_digest(json.dumps([seed, variant, number, side]))[:16], 16) for side in (0, 1)]
        sources, targets = [text.source for text in texts], [text.target for text in texts]
        found = self.vocabulary.encode_pairs(sources, targets, dropout=dropout, seeds=(drawn[0], drawn[1]))
        most = self.longest_source
        short = [most is not None and len(ids) > most for ids in found[0]]
        read = [ids[:most] for ids in found[0]] if any(short) else found[0]
        if not self.copying or dropout:  # pieces that are drawn are not those that the texts have otherwise
            return read, found[1], short
        tokenizer = self.vocabulary.source
        forms = CopyForms.of(tokenizer.all_pieces) if self.forms else None
        return *with_unknown(tokenizer, texts, read, found[1], forms), short


def _identity(source: AnySource, folder: Path | None, cache: Path) -> dict[str, Any]:
    """What a source gives, whatever its files are called."""
    said = source.model_dump(mode="json", exclude={"weight", *source.file_keys})
    if isinstance(source, DatesSource):
        said["babel"] = version("babel")  # the forms of dates are Babel's
    if isinstance(source, PhrasesSource):
        said["grammar"] = GRAMMAR_VERSION
    if paths := source_files(source, folder):
        said["files"] = [content_hash(path, cache) for path in paths]
        said["suffixes"] = [path.suffix for path in paths]
    return said


def content_hash(path: Path, cache: Path) -> str:
    """The checksum of a file, remembered in the cache as long as the file's size and times stay as they are.

    The time of its last change counts as well: the other can be set to anything (`cp -p`, `touch -r`), this one cannot.
    """
    state = path.stat()
    stamp = [state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino]
    memory = cache / "checksums" / f"{_digest(str(path.resolve()))[:32]}.json"
    try:
        remembered = read_json(memory)
        if remembered["stamp"] == stamp:
            return str(remembered["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # not there, or not readable: work it out
    found = checksum(path)
    if time.time() - state.st_ctime > 2:  # a file just written could change again without its time changing
        make_folder(memory.parent)
        write_atomically(memory, json.dumps({"path": str(path), "stamp": stamp, "sha256": found}))
    return found


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


class StoreVariants:
    """The copies in turns, one for each epoch. Whoever is done with them says so, for a cut of much text takes long."""

    def __init__(self, cut: Callable[[int, threading.Event], Store], count: int) -> None:
        """`cut` makes the store of a copy, and gives up when the event says so (`prepare` in data/store.py)."""
        self.cut, self.count = cut, count
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
            self.stores[variant] = self.cut(variant, self._closed)  # found in the cache, if it was cut ahead
            following = (epoch + 1) % self.count
            if following not in self.stores and not self._closed.is_set():
                self.coming = self._pool.submit(self.cut, following, self._closed)
        return self.stores[variant]

    def close(self) -> None:
        """Give up the copy that is being cut, and cut no other; those that are there can still be asked for."""
        self._closed.set()
        self._pool.shutdown()
