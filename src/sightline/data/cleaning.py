"""What a corpus is cleaned of, by `data.clean`, with a count for each reason."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sightline.data.sources import Example
from sightline.data.text_files import LongLine
from sightline.recipe.data import Clean

REASONS = ("empty", "too long", "ratio", "duplicate", "copy")
CUT = "source cut"  # not a reason to drop it

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class TokenizedChunk:
    """Some examples, as text and as ids."""

    texts: list[Example]
    examples: pa.RecordBatch
    cut: Flags  # whether the source of each was cut short


class Cleaner:
    """Decides what is kept, in order, and counts what is not by the first reason against it."""

    def __init__(self, rules: Clean | None) -> None:
        self._rules = rules
        self._seen: set[bytes] = set()
        self.counts = dict.fromkeys(("read", "kept", *REASONS, CUT), 0)

    def keep(self, batch: TokenizedChunk) -> Flags:
        """Which of a batch's examples to keep."""
        keep = np.ones(len(batch.texts), np.bool_)
        if self._rules is not None:
            for reason, bad in self._faults(batch, self._rules):
                bad = np.asarray(bad(keep) if callable(bad) else bad)
                self.counts[reason] += int((keep & bad).sum())
                keep &= ~bad
        self.counts[CUT] += int((keep & batch.cut).sum())
        self.counts["read"] += len(keep)
        self.counts["kept"] += int(keep.sum())
        return keep

    def _faults(self, batch: TokenizedChunk, rules: Clean) -> Iterator[tuple[str, Flags | Callable[[Flags], Flags]]]:
        source, target = (np.diff(batch.examples.column(side).offsets.to_numpy()) for side in ("source", "target"))
        shorter, longer = np.minimum(source, target), np.maximum(source, target)
        long_lines = np.array([isinstance(text.source, LongLine) for text in batch.texts], np.bool_)
        yield "empty", (shorter == 0) & ~long_lines
        yield "too long", (longer > rules.max_tokens) | long_lines
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
            # With its length before it, a source that goes on over a newline is not taken for another's target.
            text = {"pairs": f"{len(source)}\n{source}{target}", "sources": source, "targets": target}[by]
            mark = hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest()
            bad[at] = mark in self._seen
            self._seen.add(mark)
        return bad
