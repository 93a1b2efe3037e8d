"""Gaps that a person writes into a text, `The [MASK] sat on the mat.`, and the spans that fill them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sightline.text.tokenizer import Tokenizer

MASK_TEXT = "[MASK]"

_STAND_IN = "\u2395"  # a symbol, so it is cut off from what stands beside it; by its place, no text can be taken for it
_GAP, _SPACED_GAP = re.compile(r"\[MASK\]"), re.compile(r"\s*\[MASK\]")


def encode_masked(tokenizer: Tokenizer, text: str, marks: Sequence[int], *, words: bool) -> list[int]:
    """The ids of a text with a mark in place of each `[MASK]`: the first for the first, and so on; or one for all.

    Where a piece may hold the space before it (`words`), the space before a gap belongs to the gap.
    """
    found = list((_SPACED_GAP if words else _GAP).finditer(text))
    if not found:
        return tokenizer.encode(text)
    if len(marks) not in (1, len(found)) and len(found) > len(marks):
        raise ValueError(
            f"{text[:60]!r} has {len(found)} gaps ({MASK_TEXT}), and this model knows {len(marks)}; split it"
        )
    plain, gaps, at = "", [], 0
    for match in found:
        plain += text[at : match.start()]
        gaps.append((len(plain), len(plain) + 1 + words))
        plain += (" " if words else "") + _STAND_IN
        at = match.end()
    plain += text[at:]
    return _marked(tokenizer, plain, gaps, marks)


def _marked(tokenizer: Tokenizer, plain: str, gaps: Sequence[tuple[int, int]], marks: Sequence[int]) -> list[int]:
    """The ids of a text in which gaps [start, stop) were put, each with its mark in place of all its pieces."""
    ids: list[int] = []
    done, told = 0, -1  # the gap that comes next or is being read, and the newest that has its mark
    for number, (start, stop) in zip(tokenizer.encode(plain), tokenizer.spans(plain), strict=True):
        while done < len(gaps) and start >= gaps[done][1]:
            done += 1
        if done == len(gaps) or stop <= gaps[done][0]:
            ids.append(number)
        elif told < done:
            ids.append(marks[done] if len(marks) > 1 else marks[0])
            told = done
    return ids


def fill_spans(source: Sequence[int], output: Sequence[int], marks: Sequence[int]) -> list[int]:
    """A source with each mark replaced by what follows the same mark in an output; one that says nothing goes."""
    known, spans = set(marks), dict[int, list[int]]()
    span: list[int] = []
    for token in output:
        if token in known:
            span = spans.setdefault(token, [])
        else:
            span.append(token)
    return [token for place in source for token in (spans.get(place, []) if place in known else [place])]


def split_at_masks(source: Sequence[int], marks: Sequence[int]) -> list[list[int]]:
    """What stands before, between and behind the marks of a source."""
    known, parts = set(marks), [list[int]()]
    for token in source:
        if token in known:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts
