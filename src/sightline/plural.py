"""Numbers with their nouns: 1 line, 2 lines."""

from __future__ import annotations


def plural(number: int, thing: str) -> str:
    """1 line, 2,048 lines; of several words the last is counted: 1 source word, 3 source words."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
