"""What must be known of scripts to tell words apart."""

from __future__ import annotations

import re

SCRIPTS = 2  # raised with every change to what follows: part of the signatures of scores that depend on it

# Ranges of the scripts that set no space between words: Thai and Lao, Burmese, Khmer, Chinese and Japanese, with their
# digits and marks. Hangul is not among them: Korean has spaces. Nor is Tibetan: a mark stands between its syllables.
UNSPACED = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3031-\u3035\u3040-\u312f\u31a0-\u31bf\u31f0-\u31ff"
    r"\u3400-\u4dbf\u4e00-\u9fff\ua9e0-\ua9ff\uaa60-\uaa7f\uf900-\ufaff\uff66-\uff9f"
    r"\U0001aff0-\U0001b16f\U00020000-\U0003ffff"
)
_UNSPACED_CHARACTER = re.compile(f"[{UNSPACED}]")


def unspaced(character: str) -> bool:
    """Whether a character is of a script that sets no space between words."""
    return _UNSPACED_CHARACTER.match(character) is not None
