"""Contextual vectors of tokens, words and sentences, their nearest neighbours, and files of vectors.

The vectors are the states of the encoder, or of the decoder in a decoder-only model. The states of a layer are read at
its tap while the fused kernels run; special tokens (start, end, class) are part of the pass and not of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, chain
from pathlib import Path
from typing import IO, Any, Literal

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
from sightline.text.word_pieces import SegmentedText, align_words
from sightline.text.word_vectors import has_surplus, write_word_vectors

Layer = int | Literal["last", "embedding"]
Pooling = Literal["mean", "max", "first", "none"]
POOLINGS: tuple[Pooling, ...] = ("mean", "max", "first", "none")
Vectors = NDArray[np.float32]
_POINTS = ("output", "states")  # taps of a layer's states
_TOKENS = 4_096  # padded tokens of a batch


@dataclass(frozen=True, eq=False)
class TextVectors:
    """The units of one text (tokens, words, or the text itself), each with its vector."""

    units: list[str]
    vectors: Vectors  # (units, D)


@dataclass(frozen=True)
class VectorOptions:
    """The layer, and how pieces are pooled: over each text, or over each of its `words`; `none`: no pooling."""

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


# --- pooling ----------------------------------------------------------------------------------------------------------


def pool_pieces(states: Vectors, members: NDArray[np.bool_], pooling: Pooling) -> Vectors:
    """Pool states (S, D) over groups of pieces: members (S, groups) → (groups, D); zeros for empty groups."""
    groups = members.shape[1]
    if pooling == "mean":
        counts = np.maximum(members.sum(axis=0), 1).astype(np.float32)[:, None]
        mean: Vectors = members.astype(np.float32).T @ states / counts
        return mean
    pooled = np.zeros((groups, states.shape[1]), np.float32)
    for group in range(groups):
        own = states[members[:, group]]
        if len(own):
            pooled[group] = own[0] if pooling == "first" else own.max(axis=0)
    return pooled


# --- the model --------------------------------------------------------------------------------------------------------


def layer_count(model: Any) -> int:
    """The number of layers with states to read."""
    body = getattr(model, "encoder", None) or model.decoder
    layers = getattr(body, "layers", ())
    return len(layers) if all(isinstance(layer, TapModule) for layer in layers) else 0


def layer_width(task: Task, layer: Layer) -> int:
    """The width of a layer's vectors; layers of gated convolutions may differ from the model."""
    model = task.recipe.model
    body = model.encoder or model.decoder
    return body.layer_width(model.width) if isinstance(layer, int) and body is not None else model.width


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
    if task.recipe.task_spec.labels == "words":  # words are tokenized one by one
        cuts = task.vocabulary.encode_words([" ".join(between_spaces(text)) for text in texts])
        return task.checked([list(chain.from_iterable(cut)) for cut in cuts], first)
    return task.encode(texts, first=first)


def segment(task: Task, text: str, number: int = 0) -> SegmentedText:
    """The pieces and words of one text."""
    if task.recipe.task_spec.labels == "words":
        words = between_spaces(text)
        (cut,) = task.vocabulary.encode_words([" ".join(words)])
        owners = np.repeat(np.arange(len(cut)), [len(pieces) for pieces in cut]) if cut else np.empty(0)
        (ids,) = task.checked([list(chain.from_iterable(cut))], number)
        return SegmentedText(ids, words, owners[:, None] == np.arange(len(words)))
    (ids,) = task.encode([text], first=number)
    aligned = align_words(task.vocabulary.source, text, number=number + 1)
    return SegmentedText(ids, aligned.words, aligned.members[: len(ids)])


@torch.inference_mode()
def _states(task: Task, rows: Sequence[list[int]], layers: Sequence[Layer]) -> list[Tensor]:
    """The states (N, D) of each layer for packed rows, in one pass."""
    model, layout = task.model, Packed.of([len(row) for row in rows], task.device)
    tokens = torch.tensor(list(chain.from_iterable(rows)), device=task.device)  # (N,)
    decoder_only = task.recipe.model.encoder is None
    body = "decoder" if decoder_only else "encoder"
    paths = {f"{body}.layers.{layer}": layer for layer in layers if isinstance(layer, int)}
    states: dict[Layer, Tensor] = {}

    def on_tap(tapped: Tapped) -> None:
        states[paths[tapped.name.rpartition(".")[0]]] = tapped.tensor

    with on_taps(model, on_tap, tuple(paths), _POINTS):
        states["last"] = model(None, None, tokens, layout) if decoder_only else model.encode(tokens, layout).states
    if "embedding" in layers:
        states["embedding"] = (model.embedding if decoder_only else model.source_embedding)(tokens)
    return [layout.unpad(states[layer]) if states[layer].dim() == 3 else states[layer] for layer in layers]


def piece_states(
    task: Task, texts: Sequence[list[int]], layers: Sequence[Layer]
) -> Iterator[tuple[int, list[Vectors]]]:
    """The number of each text (ids) that is not empty, with the states of its pieces (S, D) in each layer.

    Texts of similar length are batched; memory holds one batch if the caller pools at once.
    """
    before, after = task.special_tokens()
    filled = [number for number, ids in enumerate(texts) if ids]
    for places in length_batches([len(texts[number]) + 2 for number in filled], _TOKENS):
        numbers = [filled[place] for place in places]
        rows = [[*before, *texts[number], *after] for number in numbers]
        starts = accumulate((len(row) for row in rows), initial=0)
        tables = [states.float().cpu().numpy() for states in _states(task, rows, layers)]  # (N, D) each
        for number, start in zip(numbers, starts, strict=False):
            yield number, [table[start + len(before) :][: len(texts[number])] for table in tables]


# --- texts to vectors -------------------------------------------------------------------------------------------------


def embed_texts(task: Task, texts: Sequence[str], options: VectorOptions, *, first: int = 0) -> list[TextVectors]:
    """The units of each text with their vectors; an empty text has a vector of zeros."""
    check_layers(task, [options.layer])
    every = piece_ids(task, texts, first)
    empty = np.zeros((0, layer_width(task, options.layer)), np.float32)
    embedded = {
        number: _pool(task, texts[number], every[number], states, options, first + number)
        for number, (states,) in piece_states(task, every, [options.layer])
    }
    for number in set(range(len(texts))) - embedded.keys():
        embedded[number] = _pool(task, texts[number], [], empty, options, first + number)
    return [embedded[number] for number in range(len(texts))]


def _pool(task: Task, text: str, ids: list[int], states: Vectors, options: VectorOptions, number: int) -> TextVectors:
    if options.words:
        cut = segment(task, text, number)
        return TextVectors(cut.words, pool_pieces(states, cut.members, options.pooling))
    if options.pooling == "none":
        return TextVectors(task.vocabulary.source.pieces(ids), states)
    return TextVectors([text], pool_pieces(states, np.ones((len(ids), 1), np.bool_), options.pooling))


# --- neighbours and files ---------------------------------------------------------------------------------------------

Neighbour = tuple[float, int, str]  # cosine, line, text


def cosines(vectors: Vectors, query: Vectors) -> Vectors:
    """x·q / (‖x‖ ‖q‖) of each row: (rows, D), (D,) → (rows,); 0 for zero vectors."""
    norms = np.linalg.norm(vectors, axis=1) * np.linalg.norm(query)
    result: Vectors = (vectors @ query / np.where(norms > 0, norms, np.inf)).astype(np.float32)
    return result


class Nearest:
    """Keeps the rows nearest to a query, best first; of equal ones the first."""

    def __init__(self, query: Vectors, top: int) -> None:
        if top < 1:
            raise ValueError(f"top ({top}) is how many neighbours to keep, at least 1")
        self.query, self.top = query, top
        self.best: list[Neighbour] = []

    def offer(self, lines: Sequence[int], units: Sequence[str], vectors: Vectors) -> None:
        """Compare a block of rows (rows, D)."""
        scores = cosines(vectors, self.query)
        order = np.argsort(-scores, kind="stable")[: self.top]
        block = [(float(scores[row]), lines[row], units[row]) for row in order]
        self.best = sorted([*self.best, *block], key=lambda each: -each[0])[: self.top]


SUFFIXES = (".npy", ".parquet")


@dataclass(frozen=True)
class VectorWriter:
    """`write` appends rows: the line of each, its unit, its vector (rows, D)."""

    write: Callable[[Sequence[int], Sequence[str], Vectors], None]


def check_vector_file(path: Path) -> None:
    """Refuse an unknown suffix, or a folder that does not exist, before anything is computed."""
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{path}: vectors are written as {' or '.join(SUFFIXES)}; name the file so")
    check_writable(path)


def files_of(path: Path) -> tuple[Path, ...]:
    """The files of that name: an array has its units in a second file."""
    return (path, path.with_suffix(".tsv")) if path.suffix.lower() == ".npy" else (path,)


@contextmanager
def vector_file(path: Path, width: int) -> Iterator[VectorWriter]:
    """Write rows of `width` numbers inside the block; the file exists when the block ends without an error."""
    check_vector_file(path)
    if path.suffix.lower() == ".parquet":
        with atomic_file(path) as file, _parquet_rows(file, width) as rows:
            yield rows
        return
    vectors, units = files_of(path)
    with atomic_file(vectors) as file, atomic_file(units) as unit_file, _array_rows(file, unit_file, width) as rows:
        yield rows


@contextmanager
def _array_rows(file: IO[bytes], unit_file: IO[bytes], width: int) -> Iterator[VectorWriter]:
    """Rows of a NumPy file, whose header is completed at the end, and a file of their units."""
    count = 0

    def write_header() -> int:
        header = {"descr": "<f4", "fortran_order": False, "shape": (count, width)}
        np.lib.format.write_array_header_1_0(file, header)
        return file.tell()

    def write(lines: Sequence[int], units: Sequence[str], vectors: Vectors) -> None:
        nonlocal count
        file.write(np.ascontiguousarray(vectors, "<f4").tobytes())
        rows = (f"{line}\t{' '.join(unit.split())}\n" for line, unit in zip(lines, units, strict=True))
        unit_file.write("".join(rows).encode("utf-8"))
        count += len(vectors)

    size = write_header()
    yield VectorWriter(write)
    file.seek(0)
    if write_header() != size:
        raise RuntimeError(f"the header of {count:,} rows is longer than the room NumPy left for it")


@contextmanager
def _parquet_rows(file: IO[bytes], width: int) -> Iterator[VectorWriter]:
    """Rows of a Parquet table, a row group for each call."""
    from pyarrow import parquet

    vector = pa.list_(pa.float32(), width)
    schema = pa.schema([("line", pa.int64()), ("unit", pa.string()), ("vector", vector)])
    with parquet.ParquetWriter(file, schema, compression="zstd") as table:

        def write(lines: Sequence[int], units: Sequence[str], vectors: Vectors) -> None:
            flat = pa.array(np.ascontiguousarray(vectors, np.float32).reshape(-1))
            rows = pa.FixedSizeListArray.from_arrays(flat, type=vector)
            columns = [pa.array(lines, pa.int64()), pa.array(units, pa.string()), rows]
            table.write_table(pa.Table.from_arrays(columns, schema=schema))

        yield VectorWriter(write)


# --- the embedding table ----------------------------------------------------------------------------------------------


def export_embeddings(task: Task, path: Path) -> int:
    """Write the embedding table (of the source, if there is one) in word2vec format; return its number of words.

    The format is text, or binary for names that end with .bin. A piece that begins a word is written without its "▁"; a
    piece inside words is omitted if a word is spelled the same. Special tokens are omitted.
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
