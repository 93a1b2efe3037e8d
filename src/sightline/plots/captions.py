"""Tokens as captions of a picture: how wide they are drawn, and how they are cut where there is no room."""

from __future__ import annotations

import textwrap
import unicodedata

_JOINER = "\u200d"


def breadth(caption: str) -> int:
    """Width in columns, near enough: East Asian characters and emoji are two wide, marks and joiners none."""
    return sum(_columns(character) for character in caption)


def shortened(caption: str, most: int) -> str:
    """At most so many columns, the last one "…" where something is cut; what is drawn as one sign is not cut in two."""
    if breadth(caption) <= most:
        return caption
    room = most - 1
    kept = ""
    for sign in _signs(caption):
        room -= breadth(sign)
        if room < 0:
            break
        kept += sign
    return kept + "…"


def heading_lines(heading: str, columns: int) -> str:
    """A heading in lines of so many columns, three at most: a long text would leave no room for its picture."""
    lines = textwrap.wrap(heading, columns)
    return "\n".join(lines if len(lines) <= 3 else [*lines[:2], shortened(" ".join(lines[2:]), columns)])


def _columns(character: str) -> int:
    if unicodedata.category(character)[0] == "M" or unicodedata.category(character) == "Cf":
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _signs(caption: str) -> list[str]:
    """Split into what is drawn together, near enough: a letter and its marks, a conjunct, emoji that are joined."""
    signs: list[str] = []
    for character in caption:
        joined = bool(signs) and (signs[-1].endswith(_JOINER) or unicodedata.combining(signs[-1][-1]) == 9)
        if signs and (joined or _columns(character) == 0):
            signs[-1] += character
        else:
            signs.append(character)
    return signs
