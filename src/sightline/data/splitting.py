"""Which part of a corpus a text belongs to: a pure function of the text, so that none is ever in two parts."""

from __future__ import annotations

import hashlib

PARTS = {"train": (0.0, 0.8), "validation": (0.8, 0.9), "test": (0.9, 1.0)}  # of what is built in


def place(text: str) -> float:
    """Where a text falls in [0, 1): evenly spread, and the same for the same text everywhere and always."""
    digest = hashlib.blake2b(text.strip().encode("utf-8"), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / (1 << 53)


def part_of(text: str) -> str:
    """The part of a built-in corpus that a text belongs to."""
    spot = place(text)
    return next(part for part, (start, stop) in PARTS.items() if start <= spot < stop)
