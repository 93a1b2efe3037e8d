"""Contextual vectors of tokens, words and sentences, their nearest neighbours, and files of vectors.

Of a model with an encoder they are the encoder's states, of a language model the decoder's, for every task. The states
of a layer are read at its tap while the fused kernels run; special tokens (start, end, class) are part of the pass and
not of the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, chain
from pathlib import Path
from typing import IO, Any, Literal, Protocol

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.decoding.request import length_batches
from sightline.files import atomic_file, check_writable
from sightline.layers.layout import Packed
from sightline.layers.tap import TapModule, Tapped, on_taps
from sightline.models.ngram import CountedModel
from sightline.tasks.base import Task
from sightline.text.tokenizer import SPACE, SPECIALS
from sightline.text.vocabulary import between_spaces
from sightline.text.word_pieces import align_words
from sightline.text.word_vectors import has_surplus, write_word_vectors

Layer = int | Literal["last", "embedding"]
Pooling = Literal["mean", "max", "first", "none"]
POOLINGS: tuple[Pooling, ...] = ("mean", "max", "first", "none")
Vectors = NDArray[np.float32]
_POINTS = ("output", "states")  # where a layer shows its states: whole ones, and recurrences that write
_TOKENS = 4_096  # padded tokens that go through the model together


@dataclass(frozen=True, eq=False)
class TextVectors:
    """The units of one text (tokens, words, or the text itself), each with its vector."""

    units: list[str]
    vectors: Vectors  # (units, D)


@dataclass(frozen=True)
class VectorOptions:
    """Which layer, and how pieces are pooled.

    `pooling` makes one vector of the pieces of a text (`none`: one vector each). With `words` there is one for each
    word between spaces, pooled over its pieces.
    """

    layer: Layer = "last"
    pooling: Pooling = "mean"
    words: bool = False

    def __post_init__(self) -> None:
        if self.pooling not in POOLINGS:
            raise ValueError(f"pooling {self.pooling!r} is none of {', '.join(POOLINGS)}")
        if self.words and self.pooling == "none":
            raise ValueError(
                "vectors of words need a pooling over their subword pieces; set pooling to mean, max or first"
            )
        if isinstance(self.layer, str) and self.layer not in ("last", "embedding"):
            raise ValueError(f"layer {self.layer!r} is neither a number from 0, nor last, nor embedding")


@dataclass(frozen=True, eq=False)
class WordPieces:
    """A text as the model reads it."""

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
    """The number of layers whose states can be read."""
    body = getattr(model, "encoder", None) or model.decoder
    layers = getattr(body, "layers", ())
    return len(layers) if all(isinstance(layer, TapModule) for layer in layers) else 0


def layer_width(task: Task, layer: Layer) -> int:
    """The width of a layer's vectors: the model's, except that gated convolutions may have their own."""
    model = task.recipe.model
    body = model.encoder or model.decoder
    inside = isinstance(layer, int)  # neither the embedding nor the last
    return body.layer_width(model.width) if inside and body is not None else model.width


def check_layers(task: Task, layers: Sequence[Layer]) -> None:
    """Refuse models without vectors, and layers that do not exist."""
    if isinstance(task.model, CountedModel):
        raise ValueError("an n-gram model counts and has no vectors; embed with another run")
    if task.members:
        raise ValueError("an ensemble has as many vectors as members; embed with one of them")
    count = layer_count(task.model)
    for layer in layers:
        if isinstance(layer, int) and not 0 <= layer < count:
            has = f"has layers 0 to {count - 1}" if count else "has no layers that can be read"
            raise ValueError(f"there is no layer {layer}: this model {has}; last and embedding always exist")


def piece_ids(task: Task, texts: Sequence[str], first: int = 0) -> list[list[int]]:
    """The pieces of each text; `first` is the number of the first text, for errors."""
    if task.recipe.task_spec.labels == "words":  # where every word is cut on its own
        cuts = task.vocabulary.encode_words([" ".join(between_spaces(text)) for text in texts])
        return task.checked([list(chain.from_iterable(cut)) for cut in cuts], first)
    return task.encode(texts, first=first)


def cut_words(task: Task, text: str, number: int = 0) -> WordPieces:
    """The pieces of a text and the words they make; a table of both, so it is made for one text at a time."""
    if task.recipe.task_spec.labels == "words":
        words = between_spaces(text)
        (cut,) = task.vocabulary.encode_words([" ".join(words)])
        owners = np.repeat(np.arange(len(cut)), [len(pieces) for pieces in cut]) if cut else np.empty(0)
        (ids,) = task.checked([list(chain.from_iterable(cut))], number)
        return WordPieces(ids, words, owners[:, None] == np.arange(len(words)))
    (ids,) = task.encode([text], first=number)
    found = align_words(task.vocabulary.source, text, number=number + 1)
    return WordPieces(ids, found.words, found.members[: len(ids)])


@torch.inference_mode()
def _states(task: Task, rows: Sequence[list[int]], layers: Sequence[Layer]) -> list[Tensor]:
    """(N, D) of each layer, for rows end to end: one pass."""
    model, layout = task.model, Packed.of([len(row) for row in rows], task.device)
    tokens = torch.tensor(list(chain.from_iterable(rows)), device=task.device)  # (N,)
    alone = task.recipe.model.encoder is None
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
    task: Task, texts: Sequence[list[int]], layers: Sequence[Layer]
) -> Iterator[tuple[int, list[Vectors]]]:
    """The number of each text (ids) that is not empty, with the states of its pieces (S, D) in each layer.

    They come batch by batch, texts of like length together: whoever pools them at once holds no more than a batch.
    """
    before, after = task.special_tokens()
    filled = [number for number, ids in enumerate(texts) if ids]
    for places in length_batches([len(texts[number]) + 2 for number in filled], _TOKENS):
        numbers = [filled[place] for place in places]
        rows = [[*before, *texts[number], *after] for number in numbers]
        starts = [0, *accumulate(len(row) for row in rows)]
        tables = [states.float().cpu().numpy() for states in _states(task, rows, layers)]  # (N, D) each
        for number, start in zip(numbers, starts, strict=False):
            yield number, [table[start + len(before) :][: len(texts[number])] for table in tables]


# --- texts to vectors -------------------------------------------------------------------------------------------------


def embed_texts(task: Task, texts: Sequence[str], wanted: VectorOptions, *, first: int = 0) -> list[TextVectors]:
    """The units of each text with their vectors; an empty text has a vector of zeros."""
    check_layers(task, [wanted.layer])
    every = piece_ids(task, texts, first)
    nothing = np.zeros((0, layer_width(task, wanted.layer)), np.float32)
    found = {
        number: _units(task, texts[number], every[number], states, wanted, first + number)
        for number, (states,) in piece_states(task, every, [wanted.layer])
    }
    empty = (number for number, ids in enumerate(every) if not ids)
    found |= {number: _units(task, texts[number], [], nothing, wanted, first + number) for number in empty}
    return [found[number] for number in range(len(texts))]


def _units(task: Task, text: str, ids: list[int], states: Vectors, wanted: VectorOptions, number: int) -> TextVectors:
    if wanted.words:
        cut = cut_words(task, text, number)
        return TextVectors(cut.words, pool_pieces(states, cut.members, wanted.pooling))
    if wanted.pooling == "none":
        return TextVectors(task.vocabulary.source.pieces(ids), states)
    whole = np.ones((len(ids), 1), np.bool_)
    return TextVectors([text], pool_pieces(states, whole, wanted.pooling))


Found = tuple[float, int, str]  # cosine, line, text


def cosines(vectors: NDArray[np.float32], query: NDArray[np.float32]) -> NDArray[np.float32]:
    """x·q / (‖x‖ ‖q‖) of each row: (rows, D), (D,) → (rows,); 0 where one of both is nothing but zeros."""
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(query)
    found: NDArray[np.float32] = (vectors @ query / np.where(lengths > 0, lengths, np.inf)).astype(np.float32)
    return found


class Nearest:
    """Keeps the nearest of the rows it gets, best first; of equal ones the first."""

    def __init__(self, query: NDArray[np.float32], top: int) -> None:
        if top < 1:
            raise ValueError(f"top ({top}) is how many neighbours to keep, at least 1")
        self.query, self.top = query, top
        self.best: list[Found] = []

    def offer(self, lines: Sequence[int], units: Sequence[str], vectors: NDArray[np.float32]) -> None:
        """A block of rows (rows, D)."""
        found = cosines(vectors, self.query)
        order = np.argsort(-found, kind="stable")[: self.top]
        block = [(float(found[place]), lines[place], units[place]) for place in order]
        self.best = sorted([*self.best, *block], key=lambda each: -each[0])[: self.top]


SUFFIXES = (".npy", ".parquet")


class VectorWriter(Protocol):
    """Writes rows of vectors."""

    def write(self, lines: Sequence[int], units: Sequence[str], vectors: NDArray[np.float32]) -> None:
        """Rows: the number of each one's text, its unit, its vector (rows, D)."""
        ...


def check_vector_file(path: Path) -> None:
    """Refuse an unknown suffix, or a folder that does not exist, before anything is computed."""
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{path}: vectors are written as {' or '.join(SUFFIXES)}; name the file so")
    check_writable(path)


def files_of(path: Path) -> tuple[Path, ...]:
    """The files written under that name: an array has its units in a second file."""
    return (path, path.with_suffix(".tsv")) if path.suffix.lower() == ".npy" else (path,)


@contextmanager
def vector_file(path: Path, width: int) -> Iterator[VectorWriter]:
    """Write rows of `width` numbers inside the block; the file exists when the block ends without an error."""
    check_vector_file(path)
    if path.suffix.lower() == ".parquet":
        with atomic_file(path) as file, _ParquetWriter(file, width) as rows:
            yield rows
        return
    vectors, units = files_of(path)
    with atomic_file(vectors) as file, atomic_file(units) as beside:
        array = _ArrayWriter(file, beside, width)
        yield array
        array.finish()


class _ArrayWriter:
    """A NumPy file whose number of rows is written at the end: its header has room for it."""

    def __init__(self, file: IO[bytes], beside: IO[bytes], width: int) -> None:
        self.file, self.beside, self.width, self.rows = file, beside, width, 0
        self._header()
        self.begin = file.tell()

    def _header(self) -> None:
        shape = (self.rows, self.width)
        np.lib.format.write_array_header_1_0(self.file, {"descr": "<f4", "fortran_order": False, "shape": shape})

    def write(self, lines: Sequence[int], units: Sequence[str], vectors: NDArray[np.float32]) -> None:
        self.file.write(np.ascontiguousarray(vectors, "<f4").tobytes())
        told = (f"{line}\t{' '.join(unit.split())}\n" for line, unit in zip(lines, units, strict=True))
        self.beside.write("".join(told).encode("utf-8"))
        self.rows += len(vectors)

    def finish(self) -> None:
        """Write the number of rows into the header."""
        self.file.seek(0)
        self._header()
        if self.file.tell() != self.begin:
            raise RuntimeError(f"the header of {self.rows:,} rows is longer than the room NumPy left for it")


class _ParquetWriter:
    """A Parquet table, a row group for each call."""

    def __init__(self, file: IO[bytes], width: int) -> None:
        from pyarrow import parquet

        self.kind = pa.list_(pa.float32(), width)
        self.schema = pa.schema([("line", pa.int64()), ("unit", pa.string()), ("vector", self.kind)])
        self.writer: Any = parquet.ParquetWriter(file, self.schema, compression="zstd")

    def __enter__(self) -> _ParquetWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.writer.close()

    def write(self, lines: Sequence[int], units: Sequence[str], vectors: NDArray[np.float32]) -> None:
        flat = pa.array(np.ascontiguousarray(vectors, np.float32).reshape(-1))
        rows = pa.FixedSizeListArray.from_arrays(flat, type=self.kind)
        columns = [pa.array(lines, pa.int64()), pa.array(units, pa.string()), rows]
        self.writer.write_table(pa.Table.from_arrays(columns, schema=self.schema))


# --- the embedding table ----------------------------------------------------------------------------------------------


def export_embeddings(task: Task, path: Path) -> int:
    """Write a run's embedding table as word2vec text (binary if the name ends with .bin); returns its number of words.

    Of a model with an encoder it is that of the source, else that of the decoder. A piece that begins a word is written
    without its "▁"; a piece inside words is left out where a word is spelled the same. Specials are left out.
    """
    check_layers(task, [])
    model = task.model
    module, tokenizer = (
        (model.embedding, task.vocabulary.target)
        if task.recipe.model.encoder is None
        else (model.source_embedding, task.vocabulary.source)
    )
    first = len(SPECIALS)
    rows: dict[str, int] = {}
    pieces = tokenizer.pieces(range(first, tokenizer.size))
    for begins in (True, False):
        for number, piece in enumerate(pieces, first):
            word = piece.removeprefix(SPACE)
            if piece.startswith(SPACE) == begins and word and not has_surplus(word.encode()) and "\n" not in word:
                rows.setdefault(word, number)
    table = module.weight.detach().float().cpu().numpy()
    binary = path.suffix.lower() == ".bin"
    words = [word for word in rows if not (binary and " " in word)]
    matrix = table[[rows[word] for word in words]]
    write_word_vectors(path, words, matrix, format="word2vec-binary" if binary else "word2vec")
    return len(words)
