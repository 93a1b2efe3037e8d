"""Text spelled out, a space between its letters, as the first step of a tokenizer.

Sources with `spell: true` learn from spelled text. A tokenizer that spells takes the raw text too, and what is spelled
already stays as it is: a space is set only between two characters that are no spaces. So "abandon" and "a b a n d o n"
are the same to it, wherever the text comes from: files, `predict`, `evaluate`, Python.
"""

from __future__ import annotations

import json
import re
from typing import Any, Literal

Side = Literal["source", "target", "both"]

_BETWEEN = r"(?<=\S)(?=\S)"
_STEP = {"type": "Replace", "pattern": {"Regex": _BETWEEN}, "content": " "}


def spelled(text: str) -> str:
    """The text with a space between each two characters: "to be" is "t o b e"."""
    return re.sub(_BETWEEN, " ", text)


def unspelled_places(text: str) -> list[int]:
    """Where in `text` each character of `spelled(text)` stands, its end included; a new space is before the next."""
    places, at = list[int](), 0
    for character in spelled(text):
        places.append(at)
        at += character == text[at]
    return [*places, len(text)]


def spells(content: str) -> bool:
    """Whether a tokenizer.json of this content spells text before it does anything else."""
    return _steps(json.loads(content))[:1] == [_STEP]


def with_spelling(content: str, spell: bool) -> str:
    """The content of a tokenizer.json that does not spell, made to, or the other way round."""
    tokenizer = json.loads(content)
    steps = _steps(tokenizer)
    tokenizer["normalizer"] = {"type": "Sequence", "normalizers": [_STEP, *steps] if spell else steps[1:]}
    return json.dumps(tokenizer, ensure_ascii=False)


def _steps(tokenizer: dict[str, Any]) -> list[dict[str, Any]]:
    """Its normalizers, in order."""
    normalizer = tokenizer["normalizer"]
    if normalizer is None:
        return []
    return list(normalizer["normalizers"]) if normalizer["type"] == "Sequence" else [normalizer]
