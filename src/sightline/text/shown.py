"""Texts as a person sees them in one line: signs for newlines and tabs, and of a long one its beginning."""

from __future__ import annotations

import unicodedata

_MOST = 400  # characters


def beginning(text: str) -> str:
    """A text to be shown beside what was made of it: of a long one (an article), how it begins, and …"""
    return text if len(text) <= _MOST else text[: _MOST - 1].rstrip() + "…"


def in_one_line(text: str) -> str:
    """A text with its newlines and tabs as signs."""
    return text.replace("\r\n", "⏎").replace("\n", "⏎").replace("\r", "⏎").replace("\t", "⇥")


def short(line: str) -> str:
    """A line of a file as an error shows it, in quotes, cut where it grows long."""
    return repr(line if len(line) <= 60 else line[:57] + "...")


def visible(token: str) -> str:
    """A token as a label: what cannot be seen gets a sign, a lone combining mark gets a circle to sit on."""
    if not token:
        return "∅"
    signs = {" ": "␣", "\n": "⏎", "\t": "⇥", "\u00a0": "⍽"}
    if token.isspace():
        return "".join(signs.get(character, "␣") for character in token)
    label = "".join("�" if unicodedata.category(c) in ("Cc", "Cs") else c for c in " ".join(token.split()))
    return "◌" + label if unicodedata.category(label[0]).startswith("M") else label
