"""The tokenized corpus on disk: made once, memory-mapped ever after.

A store lies in the cache under a hash of all that went into it (the files' content, the recipe's sections, the
tokenizers, the format), so nothing that changes can meet an old store, and nothing need be said about when to rebuild.
Building streams: memory does not grow with the corpus (only `deduplicate` remembers 8 bytes of hash for each example).
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sightline.data.cache import cache_folder
from sightline.data.cleaning import REASONS, Batch, Cleaner
from sightline.data.ingredients import Ingredients
from sightline.data.links import Links, chunk_links
from sightline.data.sources import DataError, Example
from sightline.files import atomic_folder, file_lock, make_folder, read_json, remove, unfinished, write_json

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


def prepare(
    ingredients: Ingredients,
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
    ingredients: Ingredients,
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
    ingredients: Ingredients, schema: pa.Schema, numbered: tuple[int, list[tuple[int, Example, Links]]]
) -> Batch:
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
    return Batch(texts, pa.RecordBatch.from_arrays(columns, schema=schema), np.array(short))


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
