"""What is asked of a search: outputs for some sentences, and what each must keep to. And the same as tensors."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from sightline.data.target_lengths import TargetLengths, fixed_limits
from sightline.decoding.batch import Batch
from sightline.decoding.padding import pad_tokens
from sightline.decoding.rules import Demands, Edges, Forbidden, Required, Rules
from sightline.layers.layout import Padded
from sightline.recipe import Decoding
from sightline.terminal import plural
from sightline.text.tokenizer import END

Texts = Sequence[Sequence[int]]  # each in token ids, without marks


@dataclass(frozen=True)
class Constraints:
    """What each output must say, and what it must not."""

    demands: Sequence[Demands]
    edges: Edges

    def take(self, indices: Sequence[int]) -> Constraints:
        """The same for some of the sentences."""
        return Constraints([self.demands[index] for index in indices], self.edges)


@dataclass(frozen=True)
class Request:
    """Outputs to write: one for each source or, without sources, for each prefix, which is gone on with."""

    sources: Texts | None = None
    prefixes: Texts | None = None  # what each output begins with
    numbers: Sequence[int] | None = None  # see `numbered`
    constraints: Constraints | None = None  # an output that cannot be as they say is not written
    marks: int = 0  # so many ids behind the specials are in no output: what noise put into texts
    scored: bool = True  # whether anybody wants to know how probable outputs are; greedy search is faster without
    known: int | None = None  # ids from here on may be in no output: what phrases cannot be looked for in
    lengths: TargetLengths | None = None  # of the training text, from which the default limit of an output follows

    def __len__(self) -> int:
        return len(self.read)

    @property
    def read(self) -> Texts:
        """What the model reads before it writes anything of its own: the sources, else the prefixes."""
        return self.sources if self.sources is not None else self.prefixes or []

    def counted_from(self, first: int) -> Request:
        """The same, of sentences that begin at this one in the whole input: it may be cut into calls anywhere."""
        return replace(self, numbers=range(first, first + len(self)))

    def numbered(self) -> Sequence[int]:
        """Which sentence of the whole input each is, by which sampling is seeded; the first is 0, unless said else."""
        return range(len(self)) if self.numbers is None else self.numbers

    def take(self, indices: Sequence[int]) -> Request:
        """The same for some of the sentences."""
        numbers = self.numbered()
        return replace(
            self,
            sources=None if self.sources is None else [self.sources[index] for index in indices],
            prefixes=None if self.prefixes is None else [self.prefixes[index] for index in indices],
            numbers=[numbers[index] for index in indices],
            constraints=None if self.constraints is None else self.constraints.take(indices),
        )

    def ended(self) -> list[list[int]]:
        """Each source and its end mark; without sources, end marks alone."""
        return [[*source, END] for source in (self.sources or [[] for _ in self.read])]

    def begun(self) -> Texts:
        """What each output begins with, be it nothing."""
        return self.prefixes if self.prefixes is not None else [[] for _ in self.read]

    def gone_on_with(self) -> list[int]:
        """How many tokens of each output are no part of its length: without sources, its prefix."""
        return [0 if self.sources is not None else len(prefix) for prefix in self.begun()]

    def rooms(self, limits_of: Sequence[tuple[int, bool]]) -> list[int]:
        """The most tokens of each output that the `limits_of` a model (see `ensemble.rooms`) leave, its end included.

        That is what learned positions take, less the source and its end mark where it stands in the same positions.
        """
        return [
            min((longest - in_one * len(row) for longest, in_one in limits_of), default=sys.maxsize)
            for row in self.ended()
        ]


def make_batch(
    request: Request,
    options: Decoding,
    device: torch.device | str,
    *,
    limits_of: Sequence[tuple[int, bool]] = (),
    few: int = 0,
) -> Batch:
    """All that is asked as one batch to search; no output is longer than `limits_of` the model (see `rooms`).

    When no more than `few` sentences are unfinished, they may be given up.
    """
    rows, begun, limits = request.ended(), request.begun(), _limits(request, options, limits_of)
    return Batch(
        pad_tokens(rows, device),
        Padded.of([len(row) for row in rows], device),
        torch.tensor(limits, device=device),
        min(limits),
        tuple(request.numbered()),
        pad_tokens(begun, device) if any(begun) else None,
        few,
        _rules(request, options, device),
        request.marks,
        request.scored,
        request.known,
    )


def _limits(request: Request, options: Decoding, limits_of: Sequence[tuple[int, bool]]) -> list[int]:
    """The most tokens of each output, its end included.

    Prefixes without sources are gone on with by up to `max_length` tokens and an end mark. Beside a source, what must
    be said, or must be so long, may go beyond the limit that follows from the source, never beyond `max_length`.
    """
    begun = request.begun()
    if request.sources is None:
        limits = [len(prefix) + options.new_tokens + 1 for prefix in begun]
    else:
        said = [0] * len(request)
        if request.constraints is not None:
            asked = zip(request.constraints.demands, begun, strict=True)
            said = [demands.room() + len(prefix) for demands, prefix in asked]
        least = [max(options.min_length, room) + 1 for room in said]
        by_source = source_limits([len(row) for row in request.ended()], options, request.lengths)
        limits = [max(limit, each) for limit, each in zip(by_source, least, strict=True)]
        limits = [min(options.max_length or limit, limit) for limit in limits]
    limits = [min(limit, room) for limit, room in zip(limits, request.rooms(limits_of), strict=True)]
    if any(begun):
        limits = [max(limit, len(prefix) + 1) for limit, prefix in zip(limits, begun, strict=True)]
    return limits


def source_limits(sources: Sequence[int], options: Decoding, lengths: TargetLengths | None) -> list[int]:
    """The most tokens of outputs for sources of so many tokens, end marks included.

    By `max_ratio` and `max_length`, or the one of them that is set; else derived from the lengths of the training text.
    """
    if options.max_ratio is None and options.max_length is None:
        found: list[int] = (fixed_limits(sources) if lengths is None else lengths.limits(sources)).tolist()
        return found
    most = options.max_length or sys.maxsize
    if options.max_ratio is None:
        return [most] * len(sources)
    return [min(most, int(options.max_ratio * length) + 10) for length in sources]


def capped(options: Decoding, most: int, lengths: TargetLengths | None) -> Decoding:
    """The options with no output of more than `most` tokens; the limit that was in force remains where it is lower."""
    changes: dict[str, Any] = {"max_length": min(options.max_length or most, most)}
    changes["min_length"] = min(options.min_length, changes["max_length"] - 1)
    if options.max_length is None and options.max_ratio is None and lengths is not None:
        changes["max_ratio"] = lengths.ratio_limit
    return options.model_copy(update=changes)


def check_least(request: Request, options: Decoding, limits_of: Sequence[tuple[int, bool]]) -> None:
    """Refuse `min_length` where the learned positions of a model (see `rooms`) end before it, by the line."""
    if not options.min_length:
        return
    outputs = zip(request.numbered(), request.read, request.gone_on_with(), request.rooms(limits_of), strict=True)
    for number, read, given, most in outputs:
        room = max(0, most - given - 1)  # an end mark behind all
        if options.min_length > room and (request.sources is None or len(read)):  # for an empty source nothing is said
            raise ValueError(
                f"line {number + 1}: min_length ({options.min_length:,}) is more than the {plural(room, 'token')} "
                f"this model can write there (its learned positions); lower decoding.min_length (--min-length)"
            )


def check_begun(request: Request, limits_of: Sequence[tuple[int, bool]]) -> None:
    """Refuse a beginning behind which the learned positions of a model (see `rooms`) leave no end mark, by the line."""
    outputs = zip(request.numbered(), request.read, request.begun(), request.rooms(limits_of), strict=True)
    for number, read, prefix, most in outputs:
        if len(prefix) >= max(1, most) and (request.sources is None or len(read)):  # of an empty source nothing is said
            raise ValueError(
                f"line {number + 1} has a prefix of {plural(len(prefix), 'token')}, and this model can write "
                f"{max(0, most - 1):,} there (its learned positions); shorten it, or the source"
            )


def _rules(request: Request, options: Decoding, device: torch.device | str) -> Rules | None:
    """What the outputs must keep to, or None where all is free."""
    forbidden = required = shortest = None
    if (asked := request.constraints) is not None:
        forbidden = Forbidden.of(asked.demands, asked.edges, device)
        required = Required.of(asked.demands, asked.edges, device)
    if options.min_length:
        shortest = torch.tensor([given + options.min_length for given in request.gone_on_with()], device=device)
    if shortest is None and not options.no_repeat and forbidden is None and required is None:
        return None
    return Rules(shortest, options.no_repeat, forbidden, required)
