"""A text as a language model hears it: −log p of each token, where in the text each ends, and what that measures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sightline.evaluation.metrics import Measurement, measure_bits_per_character, measure_perplexity
from sightline.recipe import MetricName
from sightline.text.tokenizer import END, UNK, Tokenizer

WINDOW = 256  # tokens or characters of text that intervals and tests of a language model draw together


@dataclass(frozen=True)
class Heard:
    """Documents one after the other: tokens with end marks, −log p of each, and where in the text each ends."""

    text: str  # as the tokenizer sees it, a newline for each end mark
    stream: np.ndarray
    losses: np.ndarray
    ends: np.ndarray

    @property
    def unknown(self) -> int:
        """How many tokens are in no vocabulary."""
        return int((self.stream == UNK).sum())


def hear(documents: Sequence[str], tokenizer: Tokenizer, losses: Callable[[np.ndarray], np.ndarray]) -> Heard:
    """These documents by a model that knows the `losses` of a stream of ids."""
    if not documents:
        raise ValueError("there is no text to measure, for blank lines are none; give a file with some")
    streams = [np.asarray([*tokens, END]) for tokens in tokenizer.encode_many(documents)]
    plain = [tokenizer.normalize(text) + "\n" for text in documents]
    starts = np.cumsum([0, *map(len, plain)])
    ends = [start + _ends(ids, text, tokenizer) for start, ids, text in zip(starts, streams, plain, strict=False)]
    joined = np.concatenate(streams)
    return Heard("".join(plain), joined, losses(joined), np.concatenate(ends))


def _ends(ids: np.ndarray, text: str, tokenizer: Tokenizer) -> np.ndarray:
    """How far into a text, its end mark included, each token reaches.

    From the lengths of the pieces, stretched to the length of the text: a piece that is unknown, and the space before
    the first word, are written otherwise than they stand there.
    """
    known, places = np.unique(ids[:-1], return_inverse=True)
    lengths = np.asarray([len(piece) for piece in tokenizer.pieces(known.tolist())], np.int64)
    ends = np.cumsum(lengths[places])
    stretched = ends * ((len(text) - 1) / ends[-1]) if len(ends) else ends
    return np.append(stretched, len(text))


def measure_heard(metric: MetricName, heard: Heard) -> Measurement:
    """Perplexity or bits per character, window by window.

    Windows are of the text, not of the recipe: those of models with other contexts are the same, and those of
    characters are so for other tokenizers too.
    """
    if metric == "perplexity":
        parts = np.split(heard.losses, np.arange(WINDOW, len(heard.stream), WINDOW))
        return measure_perplexity([float(part.sum()) for part in parts], [len(part) for part in parts])
    count = -(-len(heard.text) // WINDOW)
    last = np.ceil(heard.ends).astype(np.int64) - 1  # the last character of each token
    nll = np.bincount(np.minimum(last // WINDOW, count - 1), heard.losses, minlength=count)
    characters = np.diff([*range(0, len(heard.text), WINDOW), len(heard.text)])
    return measure_bits_per_character(nll, characters, text=heard.text)
