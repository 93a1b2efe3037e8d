"""Cleaning: which training examples `data.clean` drops, with a count for each reason."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sightline.data.sources import Example
from sightline.data.text_files import LongLine
from sightline.recipe.data import Clean

if TYPE_CHECKING:
    import pyarrow as pa

REASONS = ("empty", "too long", "ratio", "duplicate", "copy")
TRUNCATED = "source cut"  # counted, but no reason to drop an example

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class TokenizedChunk:
    """Some examples, as text and as ids."""

    texts: list[Example]
    examples: pa.RecordBatch
    truncated: Flags  # sources that were truncated


class Cleaner:
    """Decides which examples to keep, in order, and counts those it drops by the first reason."""

    def __init__(self, rules: Clean | None, *, text_only: bool = False) -> None:
        self._rules, self._text_only = rules, text_only  # without sources
        self._seen: set[bytes] = set()
        self.counts = dict.fromkeys(("read", "kept", *REASONS, TRUNCATED), 0)

    def keep(self, chunk: TokenizedChunk) -> Flags:
        """Which examples of a chunk to keep."""
        keep = np.ones(len(chunk.texts), np.bool_)
        if self._rules is not None:
            for reason, bad in self._faults(chunk, self._rules):
                bad = np.asarray(bad(keep) if callable(bad) else bad)
                self.counts[reason] += int((keep & bad).sum())
                keep &= ~bad
        self.counts[TRUNCATED] += int((keep & chunk.truncated).sum())
        self.counts["read"] += len(keep)
        self.counts["kept"] += int(keep.sum())
        return keep

    def _faults(self, chunk: TokenizedChunk, rules: Clean) -> Iterator[tuple[str, Flags | Callable[[Flags], Flags]]]:
        source, target = (np.diff(chunk.examples.column(side).offsets.to_numpy()) for side in ("source", "target"))
        if self._text_only:
            source = target
        shorter, longer = np.minimum(source, target), np.maximum(source, target)
        long_lines = np.array([isinstance(text.source, LongLine) for text in chunk.texts], np.bool_)
        yield "empty", (shorter == 0) & ~long_lines
        yield "too long", (longer > rules.max_tokens) | long_lines
        if rules.max_ratio is not None:
            yield "ratio", longer > rules.max_ratio * shorter
        if rules.drop_copies:
            yield "copy", np.array([source.strip() == target.strip() for source, target in chunk.texts], np.bool_)
        if rules.deduplicate != "none":
            yield "duplicate", partial(self._repeated, chunk.texts, rules.deduplicate)

    def _repeated(self, texts: list[Example], by: str, keep: Flags) -> Flags:
        """Which examples repeat one that was kept before."""
        bad = np.zeros(len(texts), np.bool_)
        for at in np.flatnonzero(keep):
            source, target = texts[at].source.strip(), texts[at].target.strip()
            # The length comes first, so that a newline in a source cannot shift text between the sides.
            text = {"pairs": f"{len(source)}\n{source}{target}", "sources": source, "targets": target}[by]
            digest = hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest()
            bad[at] = digest in self._seen
            self._seen.add(digest)
        return bad
