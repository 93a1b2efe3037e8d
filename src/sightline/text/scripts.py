"""What must be known of scripts to tell words apart."""

from __future__ import annotations

import unicodedata

_UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR")


def unspaced(character: str) -> bool:
    """Whether a character is of a script that sets no space between words."""
    return unicodedata.name(character, "").startswith(_UNSPACED)
