"""Word vectors from plain text: skip-gram with negative sampling (Mikolov et al. 2013), in blocks of dense products.

    loss = −Σ log σ(u_w · c_v) − Σ k E_n [log σ(−u_w · c_n)]    over the pairs of a word w and a word v near it;
                                                               k noise words n, drawn with P(n) ∝ count^0.75

As in word2vec.c: words under the minimum count are left out before windows are laid; a frequent word is kept with
probability √(t/f) + t/f; the reach of every window is drawn from 1 … window; the rate falls linearly to nothing.

What differs, and why:

- A tile of 64 words in a row is scored at once against its neighbourhood and 64 noise words of its own, which all
  its pairs share: two matrix products instead of hundreds of short dot products. Each shared noise word weighs
  k · pairs / 64, so that the expected loss is the same.
- Up to 64 tiles make one step. Plain SGD is unstable there, since a frequent word gets the sum of hundreds of
  gradients; each row has its own Adagrad rate instead (one number a row, Duchi et al. 2011).
- A noise word that happens to stand near the word is not drawn anew.
- Pieces of the text come in random order, or the corpora that are read last would only see the lowest rates.

The text is read twice and cut into words once; the ids wait in a temporary file, so memory does not grow with it.
The same seed gives the same vectors for the same number of CPU threads; on CUDA sums are added in any order, and the
last digits differ.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import embedding, softplus

from sightline.data.sources import read_lines
from sightline.recipe.data import WordTokenizer
from sightline.terminal import plural
from sightline.text.tokenizer import END, SPACE, SPECIALS, Tokenizer, TokenizerError
from sightline.text.vector_formats import Matrix
from sightline.text.word_vectors import write_word_vectors

_TILE = 64  # words in a row that are scored together
_NOISE = 64  # noise words that a tile shares
_BLOCK = 64  # most tiles of one step
_STEPS = 1000  # steps that an epoch should at least have, as far as tiles allow: small texts go in small blocks
_CHUNK = 1 << 18  # ids that are looked at together
_CHARACTERS = 1 << 22  # of text that is cut together
_DROPPED, _LINE_END = -1, -2


class SkipgramError(ValueError):
    """Word vectors cannot be learned as asked."""


@dataclass(frozen=True, kw_only=True)
class SkipgramOptions:
    """What is learned, and how."""

    dim: int = 100
    window: int = 5  # the farthest that a neighbour stands
    epochs: int = 5
    min_count: int = 5
    size: int = 50_000  # most words
    negatives: int = 5  # noise words for each pair
    subsample: float = 1e-4  # t: words with a greater share of the text are thinned out; 0 keeps all
    rate: float = 0.1  # Adagrad's, at the beginning
    lowercase: bool = False
    seed: int = 1

    def __post_init__(self) -> None:
        for name, least in {"dim": 1, "window": 1, "epochs": 1, "min_count": 1, "size": 2, "negatives": 1}.items():
            if getattr(self, name) < least:
                raise SkipgramError(f"{name} is {getattr(self, name)}; give {least} or more")
        if not 0 <= self.subsample < 1:
            raise SkipgramError(f"subsample is {self.subsample}; give a share of the text, such as 1e-4, or 0 for none")
        if not self.rate > 0:
            raise SkipgramError(f"rate is {self.rate}; give more than 0, such as 0.1")


@dataclass(frozen=True)
class SkipgramProgress:
    """How far it is: lines while text is read and cut, words of all epochs while vectors are learned."""

    stage: Literal["reading", "cutting", "learning"]
    done: int
    total: int | None = None
    epoch: int = 0
    loss: float = 0.0  # for each pair, its noise words included
    words_per_second: float = 0.0


@dataclass(frozen=True)
class LearnedVectors:
    """A vector for each word, the most frequent first."""

    words: tuple[str, ...]
    counts: tuple[int, ...]
    matrix: Matrix  # (V, D)
    words_per_second: float  # of the text, while vectors were learned

    def write(self, path: Path) -> None:
        """word2vec's binary format where the name ends with .bin (or .bin.gz and the like), else its text format."""
        write_word_vectors(path, self.words, self.matrix, format="word2vec-binary" if is_binary(path) else "word2vec")


def is_binary(path: Path) -> bool:
    """Whether a file of that name is to have word2vec's binary format."""
    return ".bin" in path.suffixes[-2:]


Report = Callable[[SkipgramProgress], None]


def learn_word_vectors(
    files: Sequence[Path],
    options: SkipgramOptions,
    *,
    device: torch.device | str = "cpu",
    progress: Report | None = None,
) -> LearnedVectors:
    """Learn a vector for each frequent word of text files, plain or compressed, in which no sentence crosses a line."""
    report = progress or (lambda _: None)
    with tempfile.TemporaryFile(prefix="sightline-words-") as cut:
        corpus = _cut(files, options, cut, report)
        return _Training(corpus, options, torch.device(device), report).run()


# --- text to ids ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Corpus:
    words: tuple[str, ...]
    counts: NDArray[np.int64]  # (V)
    ids: NDArray[np.int32]  # the tokenizer's, on disk, END after each line
    word_of: NDArray[np.int32]  # from the tokenizer's ids to words, _DROPPED or _LINE_END


def _cut(files: Sequence[Path], options: SkipgramOptions, file: IO[bytes], report: Report) -> _Corpus:
    """The words of all files, cut as a recipe with `tokenizer.kind: word` cuts them."""
    names = ", ".join(map(str, files))
    # "▁word" and, after a bracket, "word" are two pieces and one word: more pieces are kept than words are wanted.
    section = WordTokenizer(size=4 * options.size + len(SPECIALS), min_count=1, lowercase=options.lowercase)
    try:
        tokenizer = Tokenizer.train(section, _lines(files, "reading", report))
    except TokenizerError as error:
        raise SkipgramError(f"there is not one word in {names or 'no files'}; give files with text") from error
    counts = np.zeros(tokenizer.size, np.int64)
    for ids in _cut_lines(tokenizer, _lines(files, "cutting", report)):
        counts += np.bincount(ids, minlength=tokenizer.size)
        file.write(ids.tobytes())
    file.flush()
    pieces = tokenizer.pieces(range(tokenizer.size))
    totals: dict[str, int] = {}
    for number in range(len(SPECIALS), tokenizer.size):
        word = pieces[number].removeprefix(SPACE)
        totals[word] = totals.get(word, 0) + int(counts[number])
    totals.pop("", None)
    frequent = [word for word, count in totals.items() if count >= options.min_count]
    words = sorted(frequent, key=lambda word: (-totals[word], word))[: options.size]
    if len(words) < 2:
        raise SkipgramError(
            f"{len(words)} of {len(totals):,} words occur {plural(options.min_count, 'time')} or more in {names}; "
            f"lower the minimum count, or give more text"
        )
    row = {word: number for number, word in enumerate(words)}
    word_of = np.array([row.get(piece.removeprefix(SPACE), _DROPPED) for piece in pieces], np.int32)
    word_of[: len(SPECIALS)] = _DROPPED
    word_of[END] = _LINE_END
    ids = np.memmap(file, np.int32, "r")
    return _Corpus(tuple(words), np.array([totals[word] for word in words]), ids, word_of)


def _lines(files: Sequence[Path], stage: Literal["reading", "cutting"], report: Report) -> Iterator[str]:
    for number, line in enumerate(chain.from_iterable(map(read_lines, files)), 1):
        if number % 10_000 == 0:
            report(SkipgramProgress(stage, number))
        yield line


def _cut_lines(tokenizer: Tokenizer, lines: Iterator[str]) -> Iterator[NDArray[np.int32]]:
    """Ids of many lines at once, END after each."""
    batch: list[str] = []
    characters = 0
    for line in chain(lines, [None]):
        if line is not None:
            batch.append(line)
            characters += len(line)
        if batch and (line is None or characters >= _CHARACTERS):
            cut = tokenizer.encode_many(batch)
            yield np.fromiter(chain.from_iterable((*ids, END) for ids in cut), np.int32)
            batch, characters = [], 0


# --- ids to vectors ------------------------------------------------------------------------------------------------


def skipgram_loss(scores: Tensor, near: Tensor, negatives: int) -> Tensor:
    """−Σ log σ(s) over neighbours − Σ k·pairs/M · log σ(−s) over the M noise words at the end of each row.

    `scores` (T, P, C + M); `near` (T, P, C) is one where a word has a neighbour, else zero.
    """
    width = near.shape[-1]
    noise = near.sum(-1, keepdim=True) * (negatives / (scores.shape[-1] - width))  # (T, P, 1)
    return (near * softplus(-scores[..., :width])).sum() + (noise * softplus(scores[..., width:])).sum()


def skipgram_slopes(scores: Tensor, near: Tensor, negatives: int) -> Tensor:
    """∂ skipgram_loss / ∂ scores, in the place of the scores."""
    width = near.shape[-1]
    noise = near.sum(-1, keepdim=True) * (negatives / (scores.shape[-1] - width))
    slopes = scores.sigmoid_()
    slopes[..., :width].sub_(1).mul_(near)
    slopes[..., width:].mul_(noise)
    return slopes


def kept_share(share: Tensor, threshold: float) -> Tensor:
    """√(t/f) + t/f, at most 1: how much is left of words that are `share` (f) of the text; all of them where t is 0."""
    if not threshold:
        return torch.ones_like(share)
    return ((threshold / share).sqrt() + threshold / share).clamp(max=1)


def noise_share(counts: Tensor) -> Tensor:
    """count^0.75 / Σ count^0.75: rare words are noise more often than they are text."""
    raised = counts.pow(0.75)
    return raised / raised.sum()


def adagrad_(table: Tensor, squares: Tensor, rows: Tensor, gradient: Tensor, rate: float) -> None:
    """Descend in some rows of a table (V, D), each at rate / √(the sum of its mean squared gradients (V) so far).

    A row may occur many times; squares are added before they are used, so that no step is out of
    proportion. The gradient is overwritten.
    """
    rows, gradient = rows.reshape(-1), gradient.reshape(-1, table.shape[1])
    squares.index_add_(0, rows, gradient.square().mean(1))
    gradient *= (-rate * (squares[rows] + 1e-10).rsqrt())[:, None]
    table.index_add_(0, rows, gradient)


class _Training:
    """The tables, and one pass over the text after the other."""

    def __init__(self, corpus: _Corpus, options: SkipgramOptions, device: torch.device, report: Report) -> None:
        self.corpus, self.options, self.device, self.report = corpus, options, device, report
        size, dim = len(corpus.words), options.dim
        self.random = torch.Generator(device).manual_seed(options.seed)
        self.words = (torch.rand(size, dim, generator=self.random, device=device) - 0.5) / dim  # u (V, D)
        self.contexts = torch.zeros(size, dim, device=device)  # c (V, D)
        self.squares = torch.zeros(2, size, device=device)
        counts = torch.from_numpy(corpus.counts).double()
        share = counts / counts.sum()
        self.kept = kept_share(share, options.subsample).float().to(device)
        self.noise = noise_share(counts).cumsum(0).float().to(device)
        reach = _TILE + 2 * options.window
        self.distance = (
            torch.arange(_TILE, device=device)[:, None] + options.window - torch.arange(reach, device=device)
        ).abs()  # (P, C)
        self.word_of = torch.from_numpy(corpus.word_of).to(device)
        self.total = int(corpus.counts.sum()) * options.epochs
        self.block = max(1, min(_BLOCK, int(corpus.counts.sum()) // (_TILE * _STEPS)))

    def run(self) -> LearnedVectors:
        order = np.random.default_rng(self.options.seed)
        starts = np.arange(0, len(self.corpus.ids), _CHUNK)
        began, done = time.monotonic(), 0
        for epoch in range(self.options.epochs):
            for start in order.permutation(starts).tolist():
                ids = torch.from_numpy(np.array(self.corpus.ids[start : start + _CHUNK])).to(self.device)
                words = self.word_of[ids.long()]
                count = int((words >= 0).sum())
                loss = self._learn(words, done / self.total, (done + count) / self.total)
                done += count
                speed = done / max(time.monotonic() - began, 1e-9)
                self.report(SkipgramProgress("learning", done, self.total, epoch + 1, loss, speed))
        matrix = self.words.cpu().numpy()
        if not np.isfinite(matrix).all():
            raise SkipgramError(f"the vectors are not finite any more; lower the rate ({self.options.rate})")
        return LearnedVectors(self.corpus.words, tuple(self.corpus.counts.tolist()), matrix, speed)

    def _learn(self, words: Tensor, before: float, after: float) -> float:
        """Learn from a chunk of text, of which `before` and `after` say where it stands in all that is to be done."""
        tiles, lines = self._tiles(words)  # (N, C) each
        steps = -(-len(tiles) // self.block)
        loss = 0.0
        for step in range(steps):
            rate = self.options.rate * max(1 - before - (after - before) * step / steps, 1e-4)
            part = slice(step * self.block, (step + 1) * self.block)
            loss = self._step(tiles[part], lines[part], rate, tell=step == steps - 1)
        return loss

    def _tiles(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """Words that are left when frequent ones are thinned out, and the lines they stand in; −1 is no line.

        (N, C) each: every row is a tile with as many words on either side as a window can reach; rows are shuffled.
        """
        line = (words == _LINE_END).cumsum(0)
        drawn = torch.rand(len(words), generator=self.random, device=self.device)
        left = (words >= 0) & (drawn < self.kept[words.clamp(min=0)])
        words, line = words[left], line[left]
        reach = self.options.window
        rows = max(1, -(-len(words) // _TILE))  # where nothing is left, a tile in which no word has a line
        ends = (reach, rows * _TILE - len(words) + reach)
        shuffled = torch.randperm(rows, generator=self.random, device=self.device)
        cut = [
            torch.nn.functional.pad(each, ends, value=filler).unfold(0, _TILE + 2 * reach, _TILE)[shuffled]
            for each, filler in ((words.long(), 0), (line, -1))
        ]
        return cut[0], cut[1]

    def _step(self, tiles: Tensor, lines: Tensor, rate: float, *, tell: bool) -> float:
        reach = self.options.window
        inner = slice(reach, reach + _TILE)
        window = torch.randint(1, reach + 1, (len(tiles), _TILE, 1), generator=self.random, device=self.device)
        own = lines[:, inner, None]  # (T, P, 1)
        near = (self.distance <= window) & (self.distance > 0) & (own == lines[:, None]) & (own >= 0)  # (T, P, C)
        near = near.to(self.words.dtype)
        drawn = torch.rand(len(tiles), _NOISE, generator=self.random, device=self.device)
        noise = torch.searchsorted(self.noise, drawn).clamp(max=len(self.noise) - 1)  # (T, M)
        centres, others = tiles[:, inner], torch.cat([tiles, noise], 1)  # (T, P), (T, C + M)
        u, c = embedding(centres, self.words), embedding(others, self.contexts)
        scores = u @ c.mT  # (T, P, C + M)
        told = float(skipgram_loss(scores, near, self.options.negatives) / near.sum().clamp(min=1)) if tell else 0.0
        slopes = skipgram_slopes(scores, near, self.options.negatives)
        adagrad_(self.words, self.squares[0], centres, slopes @ c, rate)
        adagrad_(self.contexts, self.squares[1], others, slopes.mT @ u, rate)
        return told
