"""The occurrences of a word in texts, with its contextual vector in each.

A table of word vectors has one vector for a word; a contextual model has one for each occurrence. In the plane of the
two directions in which they differ most (plots/senses.py), occurrences with the same sense lie together.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from sightline.inspection.embeddings import (
    Layer,
    check_layers,
    layer_count,
    piece_states,
    pool_pieces,
    segment,
)
from sightline.tasks.base import Task
from sightline.terminal import plural
from sightline.text.sentences import unspaced
from sightline.text.vocabulary import between_spaces
from sightline.text.word_pieces import align_words


@dataclass(frozen=True, eq=False)
class Occurrences:
    """The occurrences of a word with their vectors in several layers."""

    word: str
    contexts: list[str]  # a few words around each
    layers: dict[str, NDArray[np.float32]]  # (occurrences, D) each, the lowest layer first


_AROUND = 24  # characters of context on either side
_PANELS = 6  # layers shown, at most


def shown_layers(task: Task) -> list[Layer]:
    """At most six layers, evenly spaced from the embedding to the last."""
    between = list(range(layer_count(task.model) - 1))  # the top layer differs from "last" by a norm or a projection
    if len(between) > _PANELS - 2:
        between = [between[round(place)] for place in np.linspace(0, len(between) - 1, _PANELS - 2)]
    return ["embedding", *between, "last"]


def places_of(word: str, text: str) -> list[tuple[int, int]]:
    """[start, stop) of each occurrence of a whole word in a text, ignoring case."""
    spans = (match.span() for match in re.finditer(re.escape(word), text, re.IGNORECASE))
    return [span for span in spans if not any(_inside_word(text, place) for place in span)]


def _inside_word(text: str, at: int) -> bool:
    """True if the characters before and after an offset belong to one word."""
    if not 0 < at < len(text):
        return False
    before, after = text[at - 1], text[at]
    if unicodedata.category(after).startswith("M"):
        return True
    if unspaced(before) or unspaced(after):
        return False
    return before.isalnum() | unicodedata.category(before).startswith("M") and after.isalnum()


def find_occurrences(task: Task, texts: Iterable[str], word: str, *, most: int = 40) -> Occurrences:
    """The first `most` occurrences of a word, with their vectors."""
    check_layers(task, [])
    layers = shown_layers(task)
    contexts: list[str] = []
    rows: list[list[NDArray[np.float32]]] = [[] for _ in layers]
    for context, ids, mine in islice(_occurrences(task, texts, word), most):
        contexts.append(context)
        ((_, states),) = piece_states(task, [ids], layers)
        for own, each in zip(rows, states, strict=True):
            own.append(pool_pieces(each, mine[:, None], "mean")[0])
    if len(contexts) < 2:
        raise ValueError(
            f"{word!r} occurs {plural(len(contexts), 'time')} in the text; comparing occurrences needs at least two"
        )
    names = [f"layer {layer}" if isinstance(layer, int) else layer for layer in layers]
    return Occurrences(word, contexts, {name: np.stack(own) for name, own in zip(names, rows, strict=True)})


def _occurrences(task: Task, texts: Iterable[str], word: str) -> Iterator[tuple[str, list[int], NDArray[np.bool_]]]:
    """For each occurrence its context, the pieces of its text, and a mask of the word's pieces."""
    for number, text in enumerate(texts):
        places = places_of(word, text)
        if not places:
            continue
        cut = segment(task, text, number)
        for start, stop in places:
            if task.recipe.task_spec.labels == "words":  # words are tokenized one by one
                mine = cut.members[:, len(between_spaces(text[:stop])) - 1]
            else:
                parts = [text[:start], text[start:stop], text[stop:]]
                mine = align_words(task.vocabulary.source, text, parts).members[: len(cut.ids), 1]
            if mine.any():
                yield _context(text, start, stop), cut.ids, mine


def _context(text: str, start: int, stop: int) -> str:
    """The word with its context, in whole words where possible: `…at the [bank] of the…`."""
    before, after = text[max(0, start - _AROUND) : start], text[stop : stop + _AROUND]
    if start > _AROUND:
        inside = not text[start - _AROUND - 1].isspace() and " " in before.rstrip()  # drop a cut word
        before = "…" + (before.partition(" ")[2] if inside else before)
    if stop + _AROUND < len(text):
        inside = not text[stop + _AROUND].isspace() and " " in after.lstrip()
        after = (after.rpartition(" ")[0] if inside else after) + "…"
    return " ".join(f"{before}[{text[start:stop]}]{after}".split())
