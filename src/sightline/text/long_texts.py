"""Long texts to ids, part by part: what the tokenizer library holds of a text while it cuts is many times the text.

A part ends before a space, so no word is cut in two, and the ids are those of the whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import tokenizers

Ids = list[int]

_PART = 1 << 18  # characters of a part; one without any space (Chinese, one endless word) may be longer
_TOGETHER = 1 << 22  # characters handed to the library at once, about
_EDGE = re.compile(r"(?<=\S)[ \r\n]")


def parts(text: str, longest: int = _PART) -> Iterator[str]:
    """The text in parts of `longest` characters and what is left of a word; all but the first begin with a space."""
    start = 0
    while len(text) - start > longest and (edge := _EDGE.search(text, start + longest)) is not None:
        yield text[start : edge.start()]
        start = edge.start()
    yield text[start:]


def encode_texts(
    inner: tokenizers.Tokenizer, texts: Sequence[str], *, longest: int = _PART, together: int = _TOGETHER
) -> list[Ids]:
    """The ids of each text, without start and end."""
    if sum(map(len, texts)) <= together and all(len(text) <= longest for text in texts):
        return _encode(inner, texts)
    cut = [list(parts(text, longest)) for text in texts]
    every = chain.from_iterable(_encode(inner, group) for group in _groups(chain.from_iterable(cut), together))
    space = _space(inner) if any(len(each) > 1 for each in cut) else []
    return [_joined([next(every) for _ in each], space) for each in cut]


def _encode(inner: tokenizers.Tokenizer, texts: Sequence[str]) -> list[Ids]:
    return [cut.ids for cut in inner.encode_batch_fast(list(texts), add_special_tokens=False)]


def _groups(texts: Iterable[str], together: int) -> Iterator[list[str]]:
    """The same texts in groups of about so many characters."""
    group: list[str] = []
    size = 0
    for text in texts:
        group.append(text)
        size += len(text)
        if size >= together:
            yield group
            group, size = [], 0
    if group:
        yield group


def _space(inner: tokenizers.Tokenizer) -> Ids:
    """What stands for the space between two words, where a part loses it: where it is a token by itself, not kept."""
    if inner.normalizer is None or inner.normalizer.normalize_str(" "):
        return []
    one, two = _encode(inner, ["a", "a a"])
    return two[len(one) : len(two) - len(one)]


def _joined(cut: list[Ids], space: Ids) -> Ids:
    filled = [ids for ids in cut if ids]
    return list(chain(*filled[:1], *(chain(space, ids) for ids in filled[1:])))
