"""Contextual vectors: what a model makes of each token, word or sentence where it stands.

Whatever the task: of a model with an encoder they are the encoder's states, of a decoder that stands alone (a language
model) the decoder's, each made of a token and those before it. The states of a layer are read at its tap while the
fast kernels run; marks (start, end, class token) are part of the pass and not of the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.data.collate import sides_of
from sightline.decoding.padding import length_batches
from sightline.layers.layout import Packed
from sightline.layers.tap import TapModule, Tapped, on_taps
from sightline.models.counted import CountedModel
from sightline.models.language_model import LanguageModel
from sightline.recipe.bodies import ConvolutionalBody
from sightline.recipe.changes import carries
from sightline.tasks.base import Task
from sightline.tasks.language_model import LanguageModelTask
from sightline.text.labels import between_spaces
from sightline.text.tokenizer import END, START
from sightline.text.word_pieces import cut_text

Layer = int | Literal["last", "embedding"]
Pooling = Literal["mean", "max", "first", "none"]
POOLINGS: tuple[Pooling, ...] = ("mean", "max", "first", "none")
Vectors = NDArray[np.float32]
_POINTS = ("output", "states")  # where a layer shows its states: whole ones, and recurrences that write
_TOKENS = 4_096  # padded tokens that go through the model together


@dataclass(frozen=True, eq=False)
class Embedded:
    """Some units of one text (tokens, words, or the text itself), each with its vector."""

    units: list[str]
    vectors: Vectors  # (units, D)


@dataclass(frozen=True)
class Wanted:
    """Which vectors: of which layer, and of what.

    `pooling` says how the pieces of a text become one vector (`none`: they stay as they are). With `words`, there is
    one for each word between spaces, and pooling is over the pieces of the word.
    """

    layer: Layer = "last"
    pooling: Pooling = "mean"
    words: bool = False

    def __post_init__(self) -> None:
        if self.pooling not in POOLINGS:
            raise ValueError(f"pooling {self.pooling!r} is none of {', '.join(POOLINGS)}")
        if self.words and self.pooling == "none":
            raise ValueError("words are made of pieces, and pooling none keeps those apart; use mean, max or first")
        if isinstance(self.layer, str) and self.layer not in ("last", "embedding"):
            raise ValueError(f"layer {self.layer!r} is neither a number from 0, nor last, nor embedding")


@dataclass(frozen=True, eq=False)
class Pieces:
    """A text as the model takes it."""

    ids: list[int]
    words: list[str]
    members: NDArray[np.bool_]  # (pieces, words)


# --- pooling ----------------------------------------------------------------------------------------------------------


def pool_pieces(states: Vectors, members: NDArray[np.bool_], pooling: Pooling) -> Vectors:
    """Of the states of pieces (S, D), one for each group: members (S, groups) → (groups, D). Of no pieces: zeros."""
    groups = members.shape[1]
    if pooling == "mean":
        counts = np.maximum(members.sum(axis=0), 1).astype(np.float32)[:, None]
        mean: Vectors = members.astype(np.float32).T @ states / counts
        return mean
    found = np.zeros((groups, states.shape[1]), np.float32)
    for group in range(groups):
        own = states[members[:, group]]
        if len(own):
            found[group] = own[0] if pooling == "first" else own.max(axis=0)
    return found


# --- the model --------------------------------------------------------------------------------------------------------


def layer_count(model: Any) -> int:
    """How many layers show their states, from 0."""
    body = model.decoder if isinstance(model, LanguageModel) else model.encoder
    layers = getattr(body, "layers", ())
    return len(layers) if all(isinstance(layer, TapModule) for layer in layers) else 0


def layer_width(asked: Task, layer: Layer) -> int:
    """How wide the vectors of a layer are: as the model, but that gated convolutions may have a width of their own."""
    model = asked.recipe.model
    body = model.encoder or model.decoder
    inside = isinstance(layer, int)  # neither the embedding nor the last
    return body.layer_width(model.width) if inside and isinstance(body, ConvolutionalBody) else model.width


def check_layers(asked: Task, layers: Sequence[Layer]) -> None:
    """Refuse what has no vectors, and layers that are not there."""
    if isinstance(asked.model, CountedModel):
        raise ValueError("an n-gram model counts and has no vectors; embed with another run")
    if asked.members:
        raise ValueError("an ensemble has as many vectors as members; embed with one of them")
    count = layer_count(asked.model)
    for layer in layers:
        if isinstance(layer, int) and not 0 <= layer < count:
            has = f"has layers 0 to {count - 1}" if count else "shows none of its layers"
            raise ValueError(f"layer {layer} is not there: this model {has}; last and embedding are always there")


def piece_ids(asked: Task, texts: Sequence[str], first: int = 0) -> list[list[int]]:
    """The pieces of each text; `first` is the number of the first text, for errors."""
    if asked.recipe.task_spec.labels == "words":  # where every word is cut on its own
        cuts = asked.vocabulary.encode_words([" ".join(between_spaces(text)) for text in texts])
        return asked.checked([list(chain.from_iterable(cut)) for cut in cuts], first)
    return asked.encode(texts, first=first)


def cut_words(asked: Task, text: str, number: int = 0) -> Pieces:
    """The pieces of a text and the words they make; a table of both, so it is made for one text at a time."""
    if asked.recipe.task_spec.labels == "words":
        words = between_spaces(text)
        (cut,) = asked.vocabulary.encode_words([" ".join(words)])
        owners = np.repeat(np.arange(len(cut)), [len(pieces) for pieces in cut]) if cut else np.empty(0)
        (ids,) = asked.checked([list(chain.from_iterable(cut))], number)
        return Pieces(ids, words, owners[:, None] == np.arange(len(words)))
    (ids,) = asked.encode([text], first=number)
    found = cut_text(asked.vocabulary.source, text, number=number + 1)
    return Pieces(ids, found.words, found.members[: len(ids)])


def _with_marks(asked: Task, texts: Sequence[list[int]]) -> tuple[list[list[int]], int]:
    """Each text as the model was shown it in training, and how many marks stand before it."""
    if not isinstance(asked.model, LanguageModel):
        side = sides_of(asked.recipe)([np.asarray(ids, np.int64) for ids in texts], [np.ones(1, np.int64)] * len(texts))
        assert side.source is not None
        before, behind = ([] if mark is None else [mark] for mark in (side.source.before, side.source.behind))
        return [[*before, *ids, *behind] for ids in texts], len(before)
    if not isinstance(asked, LanguageModelTask):  # source, end mark, and the target behind it
        return [[*ids, END] for ids in texts], 0
    marks = ([] if carries(asked.recipe) else [START]) + [END] if asked.begins else [START]
    return [[*marks, *ids] for ids in texts], len(marks)


@torch.inference_mode()
def _states(asked: Task, rows: Sequence[list[int]], layers: Sequence[Layer]) -> list[Tensor]:
    """(N, D) of each layer, for rows end to end: one pass."""
    model, layout = asked.model, Packed.of([len(row) for row in rows], asked.device)
    tokens = torch.tensor(list(chain.from_iterable(rows)), device=asked.device)  # (N,)
    alone = isinstance(model, LanguageModel)
    body = "decoder" if alone else "encoder"
    paths = {f"{body}.layers.{layer}": layer for layer in layers if isinstance(layer, int)}
    found: dict[Layer, Tensor] = {}

    def hear(tapped: Tapped) -> None:
        found[paths[tapped.name.rpartition(".")[0]]] = tapped.tensor

    with on_taps(model, hear, tuple(paths), _POINTS):
        if alone:
            found["last"] = model(None, None, tokens, layout)
        else:
            found["last"] = model.encode(tokens, layout).states
    if "embedding" in layers:
        found["embedding"] = (model.embedding if alone else model.source_embedding)(tokens)
    states = (found[layer] for layer in layers)
    return [layout.unpad(each) if each.dim() == 3 else each for each in states]


def piece_states(
    asked: Task, texts: Sequence[list[int]], layers: Sequence[Layer]
) -> Iterator[tuple[int, list[Vectors]]]:
    """The number of each text (ids) that is not empty, with the states of its pieces (S, D) in each layer.

    They come batch by batch, texts of like length together: whoever pools them at once holds no more than a batch.
    """
    filled = [number for number, ids in enumerate(texts) if ids]
    for places in length_batches([len(texts[number]) + 2 for number in filled], _TOKENS):
        numbers = [filled[place] for place in places]
        rows, lead = _with_marks(asked, [texts[number] for number in numbers])
        starts = [0, *accumulate(len(row) for row in rows)]
        tables = [states.float().cpu().numpy() for states in _states(asked, rows, layers)]  # (N, D) each
        for number, start in zip(numbers, starts, strict=False):
            yield number, [table[start + lead : start + lead + len(texts[number])] for table in tables]


# --- texts to vectors -------------------------------------------------------------------------------------------------


def embed_texts(asked: Task, texts: Sequence[str], wanted: Wanted, *, first: int = 0) -> list[Embedded]:
    """The units of each text with their vectors; a text in which there is nothing has a vector of zeros."""
    check_layers(asked, [wanted.layer])
    every = piece_ids(asked, texts, first)
    nothing = np.zeros((0, layer_width(asked, wanted.layer)), np.float32)
    found = {
        number: _units(asked, texts[number], every[number], states, wanted, first + number)
        for number, (states,) in piece_states(asked, every, [wanted.layer])
    }
    empty = (number for number, ids in enumerate(every) if not ids)
    found |= {number: _units(asked, texts[number], [], nothing, wanted, first + number) for number in empty}
    return [found[number] for number in range(len(texts))]


def _units(asked: Task, text: str, ids: list[int], states: Vectors, wanted: Wanted, number: int) -> Embedded:
    if wanted.words:
        cut = cut_words(asked, text, number)
        return Embedded(cut.words, pool_pieces(states, cut.members, wanted.pooling))
    if wanted.pooling == "none":
        return Embedded(asked.vocabulary.source.pieces(ids), states)
    whole = np.ones((len(ids), 1), np.bool_)
    return Embedded([text], pool_pieces(states, whole, wanted.pooling))
