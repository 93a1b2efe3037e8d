"""Requests to decode, from the command line, the Python API or the server to the search, and their results."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from sightline.data.target_lengths import TargetLengths, fixed_limits
from sightline.layers.layout import Layout
from sightline.recipe import Decoding
from sightline.terminal import plural
from sightline.text.tokenizer import END, PAD, START

Ids = tuple[int, ...]
Limit = tuple[int, bool]  # maximum tokens of a model; True if source and target share positions


class DecodableModel(Protocol):
    """The interface of models and ensembles that a search uses."""

    cross_attention_paths: tuple[str, ...]
    longest: int | None  # maximum number of decoder tokens; None without a limit

    def encode(self, source: Tensor, layout: Layout) -> Any: ...
    def begin(self, memory: Any) -> Any: ...
    def advance(self, tokens: Tensor, state: Any, layout: Layout | None = None) -> tuple[Tensor, Any]: ...
    def logits(self, features: Tensor) -> Tensor: ...  # the search may overwrite them, unless the model is recorded


@dataclass(frozen=True)
class Hypothesis:
    """One output: its tokens without start and end, and its score."""

    tokens: list[int]
    score: float  # normalized log-probability plus coverage penalty: hypotheses are ranked by it
    log_probability: float
    truncated: bool = False  # ended by a length limit where the model preferred another token


@dataclass(frozen=True)
class BeamStep:
    """One step of the beam search for one request: N candidate continuations of W hypotheses."""

    step: int  # from 0
    totals: Tensor  # (1, N) log-probabilities; −∞: no candidate
    scores: Tensor  # (1, N) scores if they ended here
    parents: Tensor  # (1, N) index of the hypothesis that each continues
    words: Tensor  # (1, N) tokens
    finished: Tensor  # (1, N) True for finished outputs
    slots: Tensor  # (1, W) index of the candidate that becomes each hypothesis of the next step
    alive: Tensor  # (1, W) True where there is one
    done: Tensor  # (1,) True at the end of the search


@dataclass(frozen=True)
class Phrases:
    """Text that one output must contain, and text that it must not."""

    required: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()


@dataclass(frozen=True)
class Edges:
    """Word boundaries between the pieces of a vocabulary."""

    within: Tensor  # (V,) True if a word can continue after this piece: it ends in a letter or digit
    continues_word: Tensor  # (V,) True if this piece continues the preceding word
    space: int = START  # the piece of a single space; the start of an output counts as one

    @staticmethod
    def none(size: int) -> Edges:
        """For vocabularies of whole words."""
        return Edges(torch.zeros(size, dtype=torch.bool), torch.zeros(size, dtype=torch.bool))

    def to(self, device: torch.device | str) -> Edges:
        return Edges(self.within.to(device), self.continues_word.to(device), self.space)


@dataclass(frozen=True)
class Demands:
    """Required and forbidden phrases of one output as token ids."""

    required: tuple[Ids, ...] = ()
    forbidden: tuple[Ids, ...] = ()
    apart: tuple[Ids, ...] = ()  # forbidden at word starts only

    def room(self) -> int:
        """The total number of tokens of the required phrases."""
        return sum(map(len, self.required))


@dataclass(frozen=True, eq=False)
class Request:
    """One input to decode, with its own decoding options.

    Callers set the text; the task adds token ids. Without a `source`, the output continues its prefix.
    """

    text: str = ""
    options: Decoding = field(default_factory=Decoding)
    prefix_text: str | None = None  # beginning of the output
    phrases: Phrases | None = None  # required and forbidden text
    number: int = 0  # index in the whole input: seeds sampling, and names the line in errors
    scored: bool = True  # False: greedy search may skip the softmax; scores are NaN then
    on_token: Callable[[int, int], None] | None = None  # called with every token as it is chosen and its sample (or 0)
    on_step: Callable[[BeamStep], None] | None = None  # called after every step of a beam search
    # --- token ids, without special tokens ---
    source: Sequence[int] | None = None
    prefix: Sequence[int] = ()
    demands: Demands | None = None  # the phrases; if they cannot be met there is no output
    edges: Edges | None = None  # with demands
    marks: int = 0  # number of noise marks after the special tokens, which outputs must not contain
    known: int | None = None  # ids from here on are not allowed: phrases cannot be matched in them
    lengths: TargetLengths | None = None  # of the training text, for the default length limit

    def replace(self, **changes: Any) -> Request:
        """A copy with some fields changed: `dataclasses.replace` in a fifth of the time."""
        copy = object.__new__(Request)
        vars(copy).update(vars(self), **changes)
        return copy

    @property
    def read(self) -> Sequence[int]:
        """The tokens the model reads before the first new token: the source, else the prefix."""
        return self.prefix if self.source is None else self.source

    @property
    def encoder_input(self) -> list[int]:
        """The source and END; END alone without a source."""
        return [*(self.source or ()), END]

    @property
    def empty(self) -> bool:
        """True if the source is empty; the output is then empty too."""
        return self.source is not None and not len(self.source)

    @property
    def given(self) -> int:
        """The number of output tokens that do not count towards its length: the prefix, without a source."""
        return len(self.prefix) if self.source is None else 0

    @property
    def width(self) -> int:
        """The number of hypotheses: samples, or the beam size."""
        return self.options.candidates if self.options.sample is not None else self.options.beam

    def room(self, limits: Sequence[Limit]) -> int:
        """The maximum number of output tokens that the learned positions of a model allow, with END."""
        return min((longest - shared * len(self.encoder_input) for longest, shared in limits), default=sys.maxsize)

    def check(self, limits: Sequence[Limit]) -> None:
        """Refuse a prefix that leaves no position for END."""
        if self.prefix and len(self.prefix) >= max(1, self.room(limits)) and not self.empty:
            raise ValueError(
                f"line {self.number + 1} has a prefix of {plural(len(self.prefix), 'token')}, and this model can write "
                f"{max(0, self.room(limits) - 1):,} there (its learned positions); shorten it, or the source"
            )

    def check_min_length(self, limits: Sequence[Limit]) -> None:
        """Refuse a `min_length` beyond the learned positions of a model."""
        if not limits or not self.options.min_length:
            return
        room = max(0, self.room(limits) - self.given - 1)
        if self.options.min_length > room and not self.empty:
            raise ValueError(
                f"line {self.number + 1}: min_length ({self.options.min_length:,}) is more than the "
                f"{plural(room, 'token')} this model can write there (its learned positions); lower "
                f"decoding.min_length"
            )


def make_requests(
    sources: Sequence[Sequence[int]] | None = None,
    prefixes: Sequence[Sequence[int]] | None = None,
    *,
    demands: Sequence[Demands] | None = None,
    first: int = 0,
    **shared: Any,
) -> list[Request]:
    """One request per source or, without sources, per prefix; `shared` fields apply to all."""
    count = len(sources if sources is not None else prefixes or ())
    return [
        Request(
            source=None if sources is None else sources[index],
            prefix=() if prefixes is None else prefixes[index],
            demands=None if demands is None else demands[index],
            number=first + index,
            **shared,
        )
        for index in range(count)
    ]


def output_limits(requests: Sequence[Request], limits: Sequence[Limit] = ()) -> list[int]:
    """The maximum number of tokens of each output, with END; `limits` are those of the model.

    A prefix without a source is continued by up to `max_length` tokens. Beside a source, required phrases and
    `min_length` may go beyond the limit that follows from the source, never beyond `max_length`.
    """
    by_options: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for index, request in enumerate(requests):
        by_options[id(request.options), id(request.lengths)].append(index)
    results = [0] * len(requests)
    for indices in by_options.values():
        options, lengths = requests[indices[0]].options, requests[indices[0]].lengths
        defaults = source_limits([len(requests[index].source or ()) + 1 for index in indices], options, lengths)
        shortest, longest, new_tokens = options.min_length, options.max_length or sys.maxsize, options.new_tokens
        for index, limit in zip(indices, defaults, strict=True):
            request = requests[index]
            if request.source is None:
                limit = len(request.prefix) + new_tokens + 1
            else:
                phrases = 0 if request.demands is None else request.demands.room() + len(request.prefix)
                limit = min(max(limit, max(shortest, phrases) + 1), longest)
            limit = min(limit, request.room(limits)) if limits else limit
            results[index] = max(limit, len(request.prefix) + 1) if request.prefix else limit
    return results


def source_limits(sources: Sequence[int], options: Decoding, lengths: TargetLengths | None) -> list[int]:
    """The maximum output length for each source length, both with END.

    Determined by `max_ratio` and `max_length` if set, else by the lengths of the training text.
    """
    if options.max_ratio is None and options.max_length is None:
        limits: list[int] = (fixed_limits(sources) if lengths is None else lengths.limits(sources)).tolist()
        return limits
    most = options.max_length or sys.maxsize
    if options.max_ratio is None:
        return [most] * len(sources)
    return [min(most, int(options.max_ratio * length) + 10) for length in sources]


def capped(options: Decoding, most: int, lengths: TargetLengths | None) -> Decoding:
    """The options with `max_length` lowered to `most`."""
    changes: dict[str, Any] = {"max_length": min(options.max_length or most, most)}
    changes["min_length"] = min(options.min_length, changes["max_length"] - 1)
    if options.max_length is None and options.max_ratio is None and lengths is not None:
        changes["max_ratio"] = lengths.ratio_limit
    return options.model_copy(update=changes)


# --- batches -----------------------------------------------------------------------------------------------------


def pad_tokens(sequences: Sequence[Sequence[int]], device: torch.device | str) -> Tensor:
    """(B, longest), padded on the right."""
    longest = max(len(sequence) for sequence in sequences)
    rows = [list(sequence) + [PAD] * (longest - len(sequence)) for sequence in sequences]
    return torch.tensor(rows, dtype=torch.int64).to(device)


def length_batches(lengths: Sequence[int], tokens: int, threads: int = 1) -> list[list[int]]:
    """Indices in batches of at most `tokens` padded tokens, longest sequences first.

    The number of batches above one is a multiple of `threads`, of similar size.
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    batches = _cut(order, lengths, tokens)
    target = -(-len(batches) // threads) * threads
    if len(batches) > 1:
        low, high = 0, tokens  # smallest budget with as many batches
        while high - low > max(1, tokens // 64):
            middle = (low + high) // 2
            if len(_cut(order, lengths, middle)) <= target:
                high = middle
            else:
                low = middle
        batches = _cut(order, lengths, high)
    return batches


def _cut(order: Sequence[int], lengths: Sequence[int], tokens: int) -> list[list[int]]:
    """Cut indices, longest sequences first, into batches of at most `tokens` padded tokens."""
    batches, start = [], 0
    while start < len(order):
        count = max(1, tokens // lengths[order[start]])
        batches.append(list(order[start : start + count]))
        start += count
    return batches
