"""One output to find, as it travels from a command, the Python API or the server to the search; and what comes back."""

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
Limit = tuple[int, bool]  # the most tokens a model takes, and whether its source stands in the same positions


class DecodableModel(Protocol):
    """What a search needs of a model, or of an ensemble."""

    cross_attention_paths: tuple[str, ...]
    longest: int | None  # how many tokens its decoder can be given, where there is a limit

    def encode(self, source: Tensor, layout: Layout) -> Any: ...
    def begin(self, memory: Any) -> Any: ...
    def advance(self, tokens: Tensor, state: Any, layout: Layout | None = None) -> tuple[Tensor, Any]: ...
    def logits(self, features: Tensor) -> Tensor: ...  # a search may write to them, unless the model is recorded


@dataclass(frozen=True)
class Hypothesis:
    """One output: its tokens without start and end, and its score."""

    tokens: list[int]
    score: float  # log-probability over length penalty, of a beam plus coverage penalty: what hypotheses are ranked by
    log_probability: float
    truncated: bool = False  # a length limit ended it, where the model preferred another token


@dataclass(frozen=True)
class BeamStep:
    """One step of the beam search for one request: N continuations of the W hypotheses, and what became of them."""

    step: int  # 0: the search begins
    totals: Tensor  # (1, N) log-probability; −∞: there is none
    scores: Tensor  # (1, N) what they would be ranked by if they ended here
    parents: Tensor  # (1, N) which hypothesis of the step before each continues
    words: Tensor  # (1, N)
    finished: Tensor  # (1, N) whether it is a finished output
    slots: Tensor  # (1, W) which continuation is the hypothesis in each place of the next step ...
    alive: Tensor  # (1, W) ... where there is one at all
    done: Tensor  # (1,) whether the search ends here


@dataclass(frozen=True)
class Phrases:
    """Text that one output must contain, and text that it must not."""

    required: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()


@dataclass(frozen=True)
class Edges:
    """How the pieces of a vocabulary join into words."""

    within: Tensor  # (V,) whether a word can go on after this piece: it ends in a letter or a digit
    goes_on: Tensor  # (V,) whether this piece continues the word before it
    space: int = START  # the piece that is a space and nothing else; an output begins as if one stood before it

    @staticmethod
    def none(size: int) -> Edges:
        """For pieces that are whole words."""
        return Edges(torch.zeros(size, dtype=torch.bool), torch.zeros(size, dtype=torch.bool))

    def to(self, device: torch.device | str) -> Edges:
        return Edges(self.within.to(device), self.goes_on.to(device), self.space)


@dataclass(frozen=True)
class Demands:
    """Phrases as token ids: what one output must contain, and what it must not."""

    required: tuple[Ids, ...] = ()
    forbidden: tuple[Ids, ...] = ()
    apart: tuple[Ids, ...] = ()  # forbidden where a word may begin

    def room(self) -> int:
        """How many tokens all required phrases take, one after the other."""
        return sum(map(len, self.required))


@dataclass(frozen=True, eq=False)
class Request:
    """One output to find, with its own decoding options.

    Callers give the text; the task adds token ids. Without a `source`, the output continues its prefix.
    """

    text: str = ""
    options: Decoding = field(default_factory=Decoding)
    prefix_text: str | None = None  # what the output must begin with
    phrases: Phrases | None = None  # what it must and must not contain
    number: int = 0  # its place in the whole input: seeds sampling, and names the line in errors
    scored: bool = True  # False: greedy search may skip the softmax; scores are NaN then
    on_token: Callable[[int, int], None] | None = None  # called with every token as it is chosen and its sample (or 0)
    on_step: Callable[[BeamStep], None] | None = None  # called after every step of a beam search
    # --- token ids, without marks ---
    source: Sequence[int] | None = None
    prefix: Sequence[int] = ()
    demands: Demands | None = None  # the phrases; a sentence where they cannot be met has no output
    edges: Edges | None = None  # beside demands
    marks: int = 0  # how many ids behind the specials no output may hold: the marks of noise
    known: int | None = None  # no output holds ids from here on: pieces that phrases cannot be looked for in
    lengths: TargetLengths | None = None  # of the training text; the default limit of an output follows from them

    def replace(self, **changes: Any) -> Request:
        """A copy with some fields changed: `dataclasses.replace` in a fifth of the time."""
        copy = object.__new__(Request)
        vars(copy).update(vars(self), **changes)
        return copy

    @property
    def read(self) -> Sequence[int]:
        """What the model reads before its own first token: the source, else the prefix."""
        return self.prefix if self.source is None else self.source

    @property
    def encoder_input(self) -> list[int]:
        """The source and its end mark; without a source, an end mark alone."""
        return [*(self.source or ()), END]

    @property
    def empty(self) -> bool:
        """Whether the source is empty: then so is the output, and nothing is decoded."""
        return self.source is not None and not len(self.source)

    @property
    def given(self) -> int:
        """How many tokens of the output do not count for its length: without a source, the prefix."""
        return len(self.prefix) if self.source is None else 0

    @property
    def width(self) -> int:
        """How many hypotheses are kept: samples, or the beam."""
        return self.options.candidates if self.options.sample is not None else self.options.beam

    def room(self, limits: Sequence[Limit]) -> int:
        """The most tokens of the output that the learned positions of a model leave, END included."""
        return min((longest - shared * len(self.encoder_input) for longest, shared in limits), default=sys.maxsize)

    def check(self, limits: Sequence[Limit]) -> None:
        """Refuse a prefix after which the learned positions of a model leave no room for END."""
        if self.prefix and len(self.prefix) >= max(1, self.room(limits)) and not self.empty:
            raise ValueError(
                f"line {self.number + 1} has a prefix of {plural(len(self.prefix), 'token')}, and this model can write "
                f"{max(0, self.room(limits) - 1):,} there (its learned positions); shorten it, or the source"
            )

    def check_min_length(self, limits: Sequence[Limit]) -> None:
        """Refuse `min_length` where the learned positions of a model end before it."""
        if not limits or not self.options.min_length:
            return
        room = max(0, self.room(limits) - self.given - 1)
        if self.options.min_length > room and not self.empty:
            raise ValueError(
                f"line {self.number + 1}: min_length ({self.options.min_length:,}) is more than the "
                f"{plural(room, 'token')} this model can write there (its learned positions); lower "
                f"decoding.min_length (--min-length)"
            )


def make_requests(
    sources: Sequence[Sequence[int]] | None = None,
    prefixes: Sequence[Sequence[int]] | None = None,
    *,
    demands: Sequence[Demands] | None = None,
    first: int = 0,
    **shared: Any,
) -> list[Request]:
    """A request for each source or, without sources, for each prefix; `shared` fields are the same for all."""
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
    """The most tokens of each output, END included; `limits` are those of the model.

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
    """The most tokens of outputs for sources of so many tokens, end marks included.

    By `max_ratio` and `max_length`, or the one of them that is set; else derived from the lengths of the training text.
    """
    if options.max_ratio is None and options.max_length is None:
        limits: list[int] = (fixed_limits(sources) if lengths is None else lengths.limits(sources)).tolist()
        return limits
    most = options.max_length or sys.maxsize
    if options.max_ratio is None:
        return [most] * len(sources)
    return [min(most, int(options.max_ratio * length) + 10) for length in sources]


def capped(options: Decoding, most: int, lengths: TargetLengths | None) -> Decoding:
    """The options with no output of more than `most` tokens; a lower limit stays in force."""
    changes: dict[str, Any] = {"max_length": min(options.max_length or most, most)}
    changes["min_length"] = min(options.min_length, changes["max_length"] - 1)
    if options.max_length is None and options.max_ratio is None and lengths is not None:
        changes["max_ratio"] = lengths.ratio_limit
    return options.model_copy(update=changes)


# --- batches -----------------------------------------------------------------------------------------------------


def pad_tokens(sequences: Sequence[Sequence[int]], device: torch.device | str) -> Tensor:
    """(B, longest), PAD behind shorter ones."""
    longest = max(len(sequence) for sequence in sequences)
    rows = [list(sequence) + [PAD] * (longest - len(sequence)) for sequence in sequences]
    return torch.tensor(rows, dtype=torch.int64).to(device)


def length_batches(lengths: Sequence[int], tokens: int, threads: int = 1) -> list[list[int]]:
    """Indices in batches of at most so many padded tokens, longest sequences first.

    Several batches are made a multiple of `threads`, as even as can be.
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    batches = _cut(order, lengths, tokens)
    wanted = -(-len(batches) // threads) * threads
    if len(batches) > 1:
        low, high = 0, tokens  # the smallest budget that gives no more batches
        while high - low > max(1, tokens // 64):
            middle = (low + high) // 2
            if len(_cut(order, lengths, middle)) <= wanted:
                high = middle
            else:
                low = middle
        batches = _cut(order, lengths, high)
    return batches


def _cut(order: Sequence[int], lengths: Sequence[int], tokens: int) -> list[list[int]]:
    batches: list[list[int]] = []
    for index in order:
        if not batches or (len(batches[-1]) + 1) * lengths[batches[-1][0]] > tokens:
            batches.append([])
        batches[-1].append(index)
    return batches
