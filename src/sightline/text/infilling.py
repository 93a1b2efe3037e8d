"""Gaps that a person writes into a text, `The [MASK] sat on the mat.`, and the spans that fill them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sightline.text.tokenizer import Tokenizer

MASK_TEXT = "[MASK]"

_PLACEHOLDER = "\u2395"  # a symbol that tokenizers split from its neighbours; it is recognised by position
_GAP, _SPACED_GAP = re.compile(r"\[MASK\]"), re.compile(r"\s*\[MASK\]")


def encode_masked(tokenizer: Tokenizer, text: str, marks: Sequence[int], *, words: bool) -> list[int]:
    """The ids of a text with a mark for each `[MASK]`: the first mark for the first gap, and so on; or one for all.

    If pieces include the space before a word (`words`), the space before a gap belongs to the gap.
    """
    matches = list((_SPACED_GAP if words else _GAP).finditer(text))
    if not matches:
        return tokenizer.encode(text)
    if len(marks) not in (1, len(matches)) and len(matches) > len(marks):
        raise ValueError(
            f"{text[:60]!r} has {len(matches)} gaps ({MASK_TEXT}), and this model knows {len(marks)}; split it"
        )
    plain, gaps, at = "", [], 0
    for match in matches:
        plain += text[at : match.start()]
        gaps.append((len(plain), len(plain) + 1 + words))
        plain += (" " if words else "") + _PLACEHOLDER
        at = match.end()
    plain += text[at:]
    ids: list[int] = []
    gap, marked = 0, -1  # the current gap, and the last one that has its mark
    for number, (start, stop) in zip(tokenizer.encode(plain), tokenizer.spans(plain), strict=True):
        while gap < len(gaps) and start >= gaps[gap][1]:
            gap += 1
        if gap == len(gaps) or stop <= gaps[gap][0]:
            ids.append(number)
        elif marked < gap:  # the first piece of a gap becomes its mark, other pieces are dropped
            ids.append(marks[gap] if len(marks) > 1 else marks[0])
            marked = gap
    return ids


def fill_spans(source: Sequence[int], output: Sequence[int], marks: Sequence[int]) -> list[int]:
    """A source with each mark replaced by the tokens after the same mark in an output; other marks are removed."""
    known, spans = set(marks), dict[int, list[int]]()
    span: list[int] = []
    for token in output:
        if token in known:
            span = spans.setdefault(token, [])
        else:
            span.append(token)
    return [token for place in source for token in (spans.get(place, []) if place in known else [place])]


def split_at_masks(source: Sequence[int], marks: Sequence[int]) -> list[list[int]]:
    """The parts of a source before, between and after its marks."""
    known, parts = set(marks), [list[int]()]
    for token in source:
        if token in known:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts
