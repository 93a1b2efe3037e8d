"""The tokenized corpus on disk: made once, memory-mapped ever after.

A store lies in the cache under a hash of all that went into it (the files' content, the recipe's sections, the
tokenizers, the format), so nothing that changes can meet an old store, and nothing need be said about when to rebuild.
Building streams: memory does not grow with the corpus (only `deduplicate` remembers 8 bytes of hash for each example).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sightline.data.links import Links, chunk_links, in_step
from sightline.data.sources import DataError, Example, read, source_files
from sightline.files import atomic_folder, checksum, unfinished, write_atomically
from sightline.recipe.data import AnySource, Clean, Data, DatesSource, SequencesSource
from sightline.text.copying import with_unknown
from sightline.text.tokenizer import Vocabulary

FORMAT = 2
REASONS = ("empty", "too long", "ratio", "duplicate", "copy")
CUT = "source cut"  # not a reason to drop it

Item = TypeVar("Item")
Result = TypeVar("Result")
Ids = NDArray[np.unsignedinteger[Any]]
Flags = NDArray[np.bool_]

_CHUNK = 4_096  # examples tokenized at once, and in a record batch
_AHEAD = 3  # chunks in the making


def cache_folder() -> Path:
    """Where stores are kept: $SIGHTLINE_CACHE, or sightline in the user's cache folder."""
    if chosen := os.environ.get("SIGHTLINE_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "sightline"


class Store:
    """Tokenized examples, read from disk as they are needed. Ids are without start and end."""

    def __init__(self, folder: Path) -> None:
        """Open a finished store."""
        self.folder = folder
        self.counts: dict[str, int] = json.loads((folder / "counts.json").read_text())
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


def prepare(
    data: Data,
    sources: Sequence[AnySource],
    vocabulary: Vocabulary,
    *,
    folder: Path | None,
    cache: Path | None = None,
    dropout: float = 0.0,
    variant: int = 0,
    seed: int = 0,
    limit: int | None = None,
    clean: bool = True,
    copying: bool = False,
    links: Path | None = None,
    text_alone: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Store:
    """The store of `sources`, found in the cache or built there.

    `limit` counts examples as they are read, all sources together. With `clean`, data.clean says what is dropped;
    without it nothing is (validation and test sets are scored as they are). With `dropout`, each `variant` is cut
    differently. `links` is a file of word alignments, a line for each example that is read; they are kept, dropped and
    cut with their examples. `progress` is told now and then how many examples have been read. Of several who prepare
    the same store at once, one builds and the others wait for it. Sources are cut to `data.clean.cut_source` tokens,
    cleaned or not. With `copying`, source words outside the vocabulary have ids past its end (text/copying.py). With
    `text_alone`, sources are left out: of pairs, the target side is text to model for itself.
    """
    cache = cache or cache_folder()
    plan = _Plan(
        sources=tuple(sources),
        vocabulary=vocabulary,
        folder=folder,
        swap=data.swap,
        clean=data.clean if clean else None,
        limit=limit,
        cut=(dropout, variant, seed) if dropout else None,
        longest_source=data.clean.cut_source,
        copying=copying,
        links=links,
        text_alone=text_alone,
    )
    place = cache / "stores" / plan.key(cache)
    if not place.exists():
        with _alone(place):
            if not place.exists():
                for left_behind in unfinished(place):
                    shutil.rmtree(left_behind, ignore_errors=True)
                with atomic_folder(place) as unfinished_store:
                    _build(plan, unfinished_store, progress)
    return Store(place)


@dataclass(frozen=True)
class _Plan:
    """All that goes into a store."""

    sources: tuple[AnySource, ...]
    vocabulary: Vocabulary
    folder: Path | None
    swap: bool
    clean: Clean | None
    limit: int | None
    cut: tuple[float, int, int] | None  # dropout, variant, seed
    links: Path | None = None  # a file of word alignments
    longest_source: int | None = None  # tokens; what is behind them is cut off
    copying: bool = False  # whether unknown words of a source have ids
    text_alone: bool = False  # whether sources are left out, of pairs that are read as text

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
            "cut": self.cut,
            "longest source": self.longest_source,
            "copying": self.copying,
        }
        if self.text_alone:
            ingredients["text alone"] = True
        if self.links is not None:
            ingredients["links"] = content_hash(self.links, cache)
        return _digest(json.dumps(ingredients, sort_keys=True))[:32]

    def examples(self) -> Iterator[tuple[int, Example, Links]]:
        """Every example with the number of its source, and the links between its words."""
        everything = (
            (number, example)
            for number, source in enumerate(self.sources)
            for example in read(source, self.folder, swap=self.swap)
        )
        limited = islice(everything, self.limit)
        if self.text_alone:
            return ((number, Example("", example.target), []) for number, example in limited)
        if self.links is not None:
            return in_step(limited, self.links, limited=self.limit is not None)
        return ((number, example, []) for number, example in limited)

    def encode(self, texts: list[Example], number: int) -> tuple[list[list[int]], list[list[int]], int]:
        """Cut the texts of a chunk; under dropout differently in each chunk, and on either side.

        Last comes how many sources were cut short.
        """
        dropout, variant, seed = self.cut or (0.0, 0, 0)
        drawn = [int(_digest(json.dumps([seed, variant, number, side]))[:16], 16) for side in (0, 1)]
        sources, targets = [text.source for text in texts], [text.target for text in texts]
        found = self.vocabulary.encode_pairs(sources, targets, dropout=dropout, seeds=(drawn[0], drawn[1]))
        most = self.longest_source
        short = 0 if most is None else sum(len(ids) > most for ids in found[0])
        read = [ids[:most] for ids in found[0]] if short else found[0]
        if not self.copying:
            return read, found[1], short
        return *with_unknown(self.vocabulary.source, texts, read, found[1]), short


def _build(plan: _Plan, folder: Path, progress: Callable[[int], None] | None) -> None:
    """Tokenize everything into `folder`: one thread reads and writes, two cut (in Rust, without Python's lock)."""
    small = max(plan.vocabulary.source.size, plan.vocabulary.target.size) <= 1 << 16
    ids = pa.list_(pa.uint16() if small and not plan.copying else pa.uint32())
    fields = [("source", ids), ("target", ids), ("origin", pa.uint16())]
    schema = pa.schema(fields if plan.links is None else [*fields, ("links", pa.list_(pa.uint32()))])
    cleaner = _Cleaner(plan.clean)
    with pa.OSFile(str(folder / "examples.arrow"), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for batch in _in_order(partial(_tokenize, plan, schema), _chunks(plan.examples())):
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
    write_atomically(folder / "counts.json", json.dumps(cleaner.counts, indent=1) + "\n")


@dataclass(frozen=True)
class _Batch:
    """Some examples, as text and as ids."""

    texts: list[Example]
    examples: pa.RecordBatch
    cut: int  # sources cut short


def _tokenize(plan: _Plan, schema: pa.Schema, numbered: tuple[int, list[tuple[int, Example, Links]]]) -> _Batch:
    number, chunk = numbered
    texts = [example for _, example, _ in chunk]
    source, target, short = plan.encode(texts, number)
    origin = pa.array(np.fromiter((number for number, _, _ in chunk), np.uint16, len(chunk)))
    ids = schema.field("source").type
    columns = [_list_array(source, ids), _list_array(target, ids), origin]
    if plan.links is not None:
        sides, told = (plan.vocabulary.source, plan.vocabulary.target), [links for _, _, links in chunk]
        found = chunk_links(sides, texts, (source, target), told, dropout=plan.cut is not None)
        columns.append(_list_array(found, schema.field("links").type))
    return _Batch(texts, pa.RecordBatch.from_arrays(columns, schema=schema), short)


def _list_array(rows: list[list[int]], kind: pa.ListType) -> pa.ListArray:
    offsets = np.zeros(len(rows) + 1, np.int32)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    values = np.fromiter(chain.from_iterable(rows), kind.value_type.to_pandas_dtype(), int(offsets[-1]))
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values), type=kind)


class _Cleaner:
    """Decides what is kept, in order, and counts what is not by the first reason against it."""

    def __init__(self, rules: Clean | None) -> None:
        self._rules = rules
        self._seen: set[bytes] = set()
        self.counts = dict.fromkeys(("read", "kept", *REASONS, CUT), 0)

    def keep(self, batch: _Batch) -> Flags:
        """Which of a batch's examples to keep."""
        keep = np.ones(len(batch.texts), np.bool_)
        if self._rules is not None:
            for reason, bad in self._faults(batch, self._rules):
                bad = np.asarray(bad(keep) if callable(bad) else bad)
                self.counts[reason] += int((keep & bad).sum())
                keep &= ~bad
        self.counts[CUT] += batch.cut
        self.counts["read"] += len(keep)
        self.counts["kept"] += int(keep.sum())
        return keep

    def _faults(self, batch: _Batch, rules: Clean) -> Iterator[tuple[str, Flags | Callable[[Flags], Flags]]]:
        source, target = (np.diff(batch.examples.column(side).offsets.to_numpy()) for side in ("source", "target"))
        shorter, longer = np.minimum(source, target), np.maximum(source, target)
        yield "empty", shorter == 0
        yield "too long", longer > rules.max_tokens
        if rules.max_ratio is not None:
            yield "ratio", longer > rules.max_ratio * shorter
        if rules.drop_copies:
            yield "copy", np.array([source.strip() == target.strip() for source, target in batch.texts], np.bool_)
        if rules.deduplicate != "none":
            yield "duplicate", partial(self._repeated, batch.texts, rules.deduplicate)

    def _repeated(self, texts: list[Example], by: str, keep: Flags) -> Flags:
        """Which have been seen before; only what is kept counts as seen."""
        bad = np.zeros(len(texts), np.bool_)
        for at in np.flatnonzero(keep):
            source, target = texts[at].source.strip(), texts[at].target.strip()
            text = {"pairs": f"{source}\n{target}", "sources": source, "targets": target}[by]
            mark = hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest()
            bad[at] = mark in self._seen
            self._seen.add(mark)
        return bad


def _chunks(examples: Iterator[Item]) -> Iterator[tuple[int, list[Item]]]:
    number = 0
    while chunk := list(islice(examples, _CHUNK)):
        yield number, chunk
        number += 1


def _in_order(work: Callable[[Item], Result], items: Iterator[Item]) -> Iterator[Result]:
    """The results of work done by two threads, in order, with never more than a few items under way."""
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(max_workers=2) as pool:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) >= _AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _identity(source: AnySource, folder: Path | None, cache: Path) -> dict[str, Any]:
    """What a source gives, whatever its files are called."""
    said = source.model_dump(mode="json", exclude={"weight"})
    if isinstance(source, DatesSource):
        return said | {"babel": version("babel")}  # the forms of dates are Babel's
    if isinstance(source, SequencesSource):
        return said
    files = [content_hash(path, cache) for path in source_files(source, folder)]
    suffixes = [path.suffix for path in source_files(source, folder)]
    for key in ("file", "source", "target") if source.kind == "text" else ("file",):
        said.pop(key, None)
    return said | {"files": files, "suffixes": suffixes}


def content_hash(path: Path, cache: Path) -> str:
    """The checksum of a file, remembered in the cache as long as the file's size and time stay as they are."""
    state = path.stat()
    stamp = [state.st_size, state.st_mtime_ns, state.st_ino]
    memory = cache / "checksums" / f"{_digest(str(path.resolve()))[:32]}.json"
    try:
        remembered = json.loads(memory.read_text())
        if remembered["stamp"] == stamp:
            return str(remembered["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # not there, or not readable: work it out
    found = checksum(path)
    if time.time() - state.st_mtime > 2:  # a file just written could change again without its time changing
        memory.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(memory, json.dumps({"path": str(path), "stamp": stamp, "sha256": found}))
    return found


@contextmanager
def _alone(place: Path) -> Iterator[None]:
    """Hold the lock of a store's name; it is let go when the process ends, however it ends."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / f"{place.name}.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _views(column: pa.ListArray) -> tuple[NDArray[np.int32], Ids]:
    return column.offsets.to_numpy(), column.values.to_numpy()


def _row(views: tuple[NDArray[np.int32], Ids], row: int) -> Ids:
    offsets, values = views
    return values[offsets[row] : offsets[row + 1]]


def _lengths(columns: list[tuple[NDArray[np.int32], Ids]]) -> NDArray[np.int32]:
    return np.concatenate([*(np.diff(offsets) for offsets, _ in columns), np.empty(0, np.int32)])


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
