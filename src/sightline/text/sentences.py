"""Texts to sentences, by a few plain rules that need no language and no capital letters."""

from __future__ import annotations

import re

_CLOSING = r"[\"'”’»)\]]*"
# An end with space behind it, an end of scripts that put none there, or a line end.
_END = re.compile(rf"(?:[.!?…]+{_CLOSING}(?=\s)|[。！？]+{_CLOSING}|(?=\n))")
_BEFORE = re.compile(r"([^\s(\[]+)$")
_ABBREVIATIONS = frozenset(
    ["e.g", "i.e", "cf", "vs", "al", "fig", "figs", "eq", "no", "dr", "mr", "mrs", "prof", "approx"]
)


def sentences(text: str) -> list[str]:
    """The sentences of a text, without the spaces between them; a text that has no end mark is one.

    A full stop ends nothing behind a single letter (E. coli) or one of a few abbreviations (e.g., et al., fig.).
    """
    found, begun = [], 0
    for end in _END.finditer(text):
        if not _abbreviates(text, begun, end):
            found.append(text[begun : end.end()].strip())
            begun = end.end()
    return [each for each in (*found, text[begun:].strip()) if each]


def _abbreviates(text: str, begun: int, end: re.Match[str]) -> bool:
    if end.group() != ".":
        return False
    before = _BEFORE.search(text, begun, end.start())
    if before is None:
        return False
    word = before.group(1).lower()
    return word in _ABBREVIATIONS or (len(word) == 1 and word.isalpha())
