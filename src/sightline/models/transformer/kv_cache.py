"""What one layer of a Transformer decoder keeps of the tokens so far, and what a step may see of it.

Each kind is immutable to look at but for its buffers, which are only ever appended to: go on with what `grown` returns.
`Slots` keeps everything, `LocalSlots` what can still be seen, `CompressedSlots` compressed keys and the last few tokens
of each hypothesis. Shapes: B sentences with W hypotheses of one token, or with T tokens of one (W = 1); G heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from sightline.layers.attention import combine_masks
from sightline.layers.layout import Packed
from sightline.layers.local_attention import Compressed, Local, Span
from sightline.layers.multi_head import KeysAndValues
from sightline.layers.positions import Relative, Rotation


@dataclass(frozen=True)
class Seen:
    """What the new tokens of a step may look at: the same for every layer."""

    positions: Tensor  # (1, W·T) where they stand; (B, W·T) where sentences began at different places
    used: int  # slots written before them
    past: Tensor | None  # (B, 1, W, used + W) or (B, 1, T, used + T), None: all, but for those after each
    source: Tensor | None  # (B, 1, 1, S), None: all
    relative: Relative | None = None  # their distances to the slots
    rotation: Rotation | None = None  # by where they stand
    valid: Tensor | None = None  # (B, T), True at real tokens; None: all are
    length: int = 0  # tokens of each hypothesis before them
    width: int = 1  # W
    widest: int = 1  # most hypotheses at any time so far
    slots: Tensor | None = None  # (used + W·T,) the place each slot stands at, where it is asked for
    shift: Tensor | None = None  # (B, 1) places before the first token of each sentence, where some began later
    whole: Packed | None = None  # of B·T tokens, where these are the first ones and are to be looked at without a mask


class View(NamedTuple):
    """Keys and values (B, G, S, Dh) that a step looks at, and which of them: (B, 1, W·T, S)."""

    keys: Tensor
    values: Tensor
    mask: Tensor | None
    causal: bool


@dataclass(frozen=True)
class Movers:
    """Which sentences are left, and which of them change their place."""

    sentences: Tensor  # (B',)
    places: Tensor  # (P,) that others move to
    movers: Tensor  # (P,) those others

    @staticmethod
    def of(sentences: Tensor) -> Movers:
        """Those whose place is another now."""
        places = (sentences != torch.arange(len(sentences), device=sentences.device)).nonzero()[:, 0]
        return Movers(sentences, places, sentences[places])

    def move(self, pair: KeysAndValues, used: int) -> KeysAndValues:
        """The first slots of a buffer (B, G, capacity, Dh) for the sentences that are left: (B', G, capacity, Dh)."""
        for tensor in pair:
            seen = tensor[:, :, :used]
            seen[self.places] = seen[self.movers]
        count = len(self.sentences)
        return KeysAndValues(pair.keys[:count], pair.values[:count])


@dataclass(frozen=True)
class Move:
    """Where the slots of one state go when its sentences advance together with those of another."""

    rows: int  # sentences
    start: int  # the first slot that is kept
    used: int
    targets: list[int]  # where slots `start` to `used` go
    late: int  # steps that its sentences begin later than before (less than 0: earlier, for steps were dropped)

    def index(self, device: torch.device, since: int = 0, offset: int = 0) -> Tensor:
        """Where slots from `since` (at least `start`) on go, in a buffer that begins at slot `offset`."""
        kept = self.targets[max(since - self.start, 0) :]
        return torch.tensor([target - offset for target in kept], dtype=torch.int64, device=device)


@dataclass(frozen=True)
class CacheJoin:
    """Two states of the same number of hypotheses, with the last slots of one beside the last slots of the other."""

    widths: tuple[int, ...]  # slots of each step, the larger number of both
    count: int  # their sum
    first: Move
    second: Move
    device: torch.device

    def steps(self) -> Tensor:
        """(count,): the step of each slot."""
        widths = torch.tensor(self.widths, dtype=torch.int64, device=self.device)
        return torch.arange(len(widths), device=self.device).repeat_interleave(widths)


def merged(parts: Sequence[tuple[KeysAndValues | None, int, int, Tensor]], count: int) -> KeysAndValues | None:
    """One buffer for the sentences of several: of each its buffer, its sentences, the first slot to keep, and where
    the slots from there on go among `count`. Slots of nobody are zero, so that a weight of 0 makes nothing of them."""
    first = next((pair for pair, *_ in parts if pair is not None), None)
    if first is None:
        return None
    rows, (_, groups, _, width) = sum(rows for _, rows, _, _ in parts), first.keys.shape
    capacity = max(count + count // 2, 16)
    buffers = []
    for which in range(2):
        buffer = first.keys.new_zeros(capacity, rows, groups, width).permute(1, 2, 0, 3)
        at = 0
        for pair, own, start, index in parts:
            if pair is not None:
                buffer[at : at + own, :, index] = pair[which][:, :, start : start + len(index)]
            at += own
        buffers.append(buffer)
    return KeysAndValues(*buffers)


def append(own: KeysAndValues | None, used: int, new: KeysAndValues, since: int = 0) -> tuple[KeysAndValues, int]:
    """Write new slots behind the used ones; a full buffer is copied to a larger one, from slot `since` on.

    Also says how many slots were left behind: none, or `since` of them.
    """
    if own is None:
        return new, 0
    count, kept = new.keys.shape[2], used - since
    if used + count > own.keys.shape[2]:
        capacity = max(2 * (kept + count), 16)

        def grown(old: Tensor) -> Tensor:
            # slots outermost in memory: those in use lie side by side, and a processor reads ahead without a gap
            buffer = old.new_empty(capacity, *old.shape[:2], old.shape[3]).permute(1, 2, 0, 3)
            buffer[:, :, :kept] = old[:, :, since:used]
            return buffer

        own, used = KeysAndValues(grown(own.keys), grown(own.values)), kept
    else:
        since = 0
    own.keys[:, :, used : used + count] = new.keys
    own.values[:, :, used : used + count] = new.values
    return own, since


@dataclass(frozen=True)
class Slots:
    """Keys and values of all tokens: (B, G, capacity, Dh). Their memory is nobody else's: `keep` writes to it."""

    kept: KeysAndValues | None = None

    @property
    def empty(self) -> bool:
        """Whether nothing has been written yet."""
        return self.kept is None

    def grown(self, new: KeysAndValues, seen: Seen, *, shown: bool) -> Slots:
        """With this step's (B, G, W·T, Dh). Shown: somebody listens, who will ask for all slots in their places."""
        return Slots(append(self.kept, seen.used, new)[0])

    def view(self, seen: Seen, *, shown: bool) -> View:
        """What the tokens of this step, the last ones written, look at."""
        assert self.kept is not None
        used = seen.used + seen.positions.shape[1]
        keys, values = self.kept.keys[:, :, :used], self.kept.values[:, :, :used]
        return View(keys, values, seen.past, seen.past is None and seen.positions.shape[1] > 1)

    def select(self, parents: Tensor) -> Slots:
        """Hypotheses share their slots; which slots are whose the state knows."""
        return self

    def keep(self, movers: Movers, used: int) -> Slots:
        """These sentences alone."""
        return Slots(self.kept and movers.move(self.kept, used))

    def append(self, other: Slots, join: CacheJoin) -> Slots:
        """With the sentences of another one behind these."""
        parts = [
            (each.kept, move.rows, move.start, move.index(join.device))
            for each, move in ((self, join.first), (other, join.second))
        ]
        return Slots(merged(parts, join.count))


def _past(seen: Seen) -> Tensor | None:
    """(B or 1, 1, W·T, slots): `seen.past`, or what it means where it is None."""
    count = seen.positions.shape[1]
    if seen.past is not None or count == 1:
        return seen.past
    device = seen.positions.device
    return torch.ones(count, seen.used + count, dtype=torch.bool, device=device).tril(seen.used)[None, None]


@dataclass(frozen=True)
class LocalSlots(Slots):
    """The slots that a span of blocks can still see; those before them are forgotten when a buffer is full."""

    span: Local | None = None
    forgotten: int = 0

    def _since(self, seen: Seen, shown: bool) -> int:
        """A slot of the state that all are seen from. (One place has as many slots as there were hypotheses.)"""
        assert self.span is not None
        return self.forgotten if shown else max(self.forgotten, seen.used - self.span.reach * seen.widest)

    def grown(self, new: KeysAndValues, seen: Seen, *, shown: bool) -> LocalSlots:
        assert self.span is not None
        if seen.whole is not None and not shown:  # they look at one another before they come here
            first = max(0, new.keys.shape[2] - self.span.reach)
            return replace(self, kept=KeysAndValues(*(part[:, :, first:].clone() for part in new)), forgotten=first)
        since = self._since(seen, shown) - self.forgotten
        kept, left = append(self.kept, seen.used - self.forgotten, new, since)
        return replace(self, kept=kept, forgotten=self.forgotten + left)

    def view(self, seen: Seen, *, shown: bool) -> View:
        assert self.kept is not None and self.span is not None and seen.slots is not None
        since, used = self._since(seen, shown), seen.used + seen.positions.shape[1]
        places = seen.slots[None, since:]  # (1, S)
        near = self.span.sees(seen.positions, places if seen.shift is None else places - seen.shift)
        past = _past(seen)
        mask = combine_masks(near[:, None], None if past is None else past[..., since:])
        here = slice(since - self.forgotten, used - self.forgotten)
        return View(self.kept.keys[:, :, here], self.kept.values[:, :, here], mask, False)

    def keep(self, movers: Movers, used: int) -> LocalSlots:
        return replace(self, kept=self.kept and movers.move(self.kept, used - self.forgotten))

    def append(self, other: Slots, join: CacheJoin) -> LocalSlots:
        assert isinstance(other, LocalSlots)
        both = ((self, join.first), (other, join.second))
        firsts = [move.targets[max(each.forgotten - move.start, 0) :][:1] for each, move in both]
        forgotten = min((first[0] for first in firsts if first), default=join.count)
        parts = [
            (
                each.kept,
                move.rows,
                max(move.start - each.forgotten, 0),
                move.index(join.device, each.forgotten, forgotten),
            )
            for each, move in both
        ]
        return replace(self, kept=merged(parts, join.count - forgotten), forgotten=forgotten)


@dataclass(frozen=True)
class CompressedSlots(Slots):
    """Compressed keys and values (B, G, capacity, Dh), and the last k − 1 tokens of each hypothesis to make more of.

    A compressed key belongs to the slot of the token it ends at: whoever has that in its past sees it.
    """

    span: Compressed | None = None
    count: int = 0  # how many are written
    at: Tensor | None = None  # (B or 1, count) the slot each ends at
    valid: Tensor | None = None  # (B, count) False: there is none; None: all are there
    tail: KeysAndValues | None = None  # (B, W, k − 1, G·Dh) each; None: before the first token

    def grown(self, new: KeysAndValues, seen: Seen, *, shown: bool) -> CompressedSlots:
        assert self.span is not None
        span, width = self.span, seen.width
        sentences, head_width = new.keys.shape[0], new.keys.shape[-1]
        flat = [part.transpose(1, 2).flatten(2).unflatten(1, (width, -1)) for part in new]  # (B, W, T, G·Dh)
        if seen.shift is not None and self.tail is None:  # what stands before the first token is nothing
            blank = (torch.arange(flat[0].shape[2], device=seen.shift.device) < seen.shift)[:, None, :, None]
            flat = [part.masked_fill(blank, 0.0) for part in flat]
        tail = self.tail or [part.new_zeros(sentences, width, span.kernel - 1, part.shape[3]) for part in flat]
        runs = [torch.cat([old, part], dim=2) for old, part in zip(tail, flat, strict=True)]  # (B, W, k − 1 + T, G·Dh)
        last = KeysAndValues(*(run[:, :, run.shape[2] - span.kernel + 1 :] for run in runs))
        ends, valid = _ends(seen, flat[0].shape[2], span.stride)  # (B or 1, n) among the T, and which there are
        if ends.shape[1] == 0:
            return replace(self, tail=last)
        places = seen.length + ends if seen.shift is None else seen.length + ends - seen.shift
        windows = [_windows(run, ends, span.kernel) for run in runs]  # (B, W, n, k·G·Dh)
        made = span.compress(windows, places[:, None], head_width)  # (B, W, n, G, Dh) each
        pair = KeysAndValues(*(part.flatten(1, 2).transpose(1, 2).contiguous() for part in made))  # (B, G, W·n, Dh)
        hypotheses = torch.arange(width, device=ends.device)
        at = (seen.used + ends[:, None, :] + hypotheses[:, None]).flatten(1)  # (B or 1, W·n)
        if valid is not None:
            valid = valid.repeat(1, width)
        return replace(
            self,
            kept=append(self.kept, self.count, pair)[0],
            count=self.count + pair.keys.shape[2],
            at=at if self.at is None else _beside(self.at, at, sentences),
            valid=self._known(valid, at.shape[1], sentences, at.device),
            tail=last,
        )

    def _known(self, new: Tensor | None, count: int, sentences: int, device: torch.device) -> Tensor | None:
        """`valid` with that of `count` new keys."""
        if self.valid is None and (new is None or self.count == 0):
            return new
        old = torch.ones(sentences, self.count, dtype=torch.bool, device=device) if self.valid is None else self.valid
        new = torch.ones(sentences, count, dtype=torch.bool, device=device) if new is None else new
        return torch.cat([old, new], dim=1)

    def view(self, seen: Seen, *, shown: bool) -> View:
        assert self.kept is not None and self.at is not None
        mask, past = None, _past(seen)
        if past is not None:
            index = self.at[:, None, None, :].expand(-1, 1, past.shape[2], -1)
            rows = max(len(index), len(past))
            mask = past.expand(rows, -1, -1, -1).gather(3, index.expand(rows, -1, -1, -1))
        mask = combine_masks(mask, None if self.valid is None else self.valid[:, None, None, :])
        return View(self.kept.keys[:, :, : self.count], self.kept.values[:, :, : self.count], mask, False)

    def select(self, parents: Tensor) -> CompressedSlots:
        if self.tail is None:
            return self
        index = parents[:, :, None, None]
        chosen = (part.gather(1, index.expand(-1, -1, *part.shape[2:])) for part in self.tail)
        return replace(self, tail=KeysAndValues(*chosen))

    def keep(self, movers: Movers, used: int) -> CompressedSlots:
        def rows(part: Tensor | None) -> Tensor | None:
            return None if part is None else part.index_select(0, movers.sentences)

        return replace(
            self,
            kept=self.kept and movers.move(self.kept, self.count),
            at=self.at if self.valid is None else rows(self.at),
            valid=rows(self.valid),
            tail=self.tail and KeysAndValues(*(part.index_select(0, movers.sentences) for part in self.tail)),
        )

    def append(self, other: Slots, join: CacheJoin) -> CompressedSlots:
        assert isinstance(other, CompressedSlots)
        count = max(self.count, other.count)
        both = ((self, join.first), (other, join.second))
        parts = [(each.kept, move.rows, 0, torch.arange(each.count, device=join.device)) for each, move in both]
        places = [each._places_after(move, count, join.device) for each, move in both]
        tails = [each.tail for each, _ in both]
        filled = next((tail for tail in tails if tail is not None), None)
        tail = None
        if filled is not None:
            whole = (
                tail or KeysAndValues(*(part.new_zeros(move.rows, *part.shape[1:]) for part in filled))
                for tail, (_, move) in zip(tails, both, strict=True)
            )
            tail = KeysAndValues(*(torch.cat(pair) for pair in zip(*whole, strict=True)))
        return replace(
            self,
            kept=merged(parts, count),
            count=count,
            at=torch.cat([at for at, _ in places]),
            valid=torch.cat([valid for _, valid in places]),
            tail=tail,
        )

    def _places_after(self, move: Move, count: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """(B, count) each: the slots that compressed keys end at after a move, and which of these keys there are."""
        at, valid = torch.zeros(2, move.rows, count, dtype=torch.int64, device=device)
        if self.at is not None:
            old = self.at.expand(move.rows, -1)
            known = old >= move.start if self.valid is None else self.valid & (old >= move.start)
            moved = torch.tensor([0] * move.start + move.targets, dtype=torch.int64, device=device)
            at[:, : self.count] = torch.where(known, moved[old], 0)
            valid[:, : self.count] = known
        return at, valid.bool()


def _beside(first: Tensor, second: Tensor, rows: int) -> Tensor:
    """(B or 1, n) and (B or 1, m) → (B or 1, n + m)."""
    if len(first) != len(second):
        first, second = first.expand(rows, -1), second.expand(rows, -1)
    return torch.cat([first, second], dim=1)


def _ends(seen: Seen, tokens: int, stride: int) -> tuple[Tensor, Tensor | None]:
    """(B or 1, n): which of the T new tokens a compressed key ends at, every s-th of a sentence.

    Where sentences began at different places, (B, n) says which of them are there.
    """
    device = seen.positions.device
    if seen.shift is None:
        return torch.arange(tokens, device=device)[None, -seen.length % stride :: stride], None
    first = seen.length - seen.shift  # (B, 1) the position of the first new one
    start = torch.where(first < 0, -first, -first % stride)
    ends = start + torch.arange(0, tokens, stride, device=device)
    return ends.clamp(max=tokens - 1), ends < tokens


def _windows(run: Tensor, ends: Tensor, kernel: int) -> Tensor:
    """(B, W, k − 1 + T, I), of the T those at `ends` (B or 1, n) → (B, W, n, k·I), with the k − 1 before each."""
    index = (ends[..., None] + torch.arange(kernel, device=run.device)).flatten(1)  # (B or 1, n·k)
    index = index[:, None, :, None].expand(*run.shape[:2], -1, run.shape[3])
    return run.gather(2, index).unflatten(2, (-1, kernel)).flatten(3)


def blank_past(span: Span | None) -> Slots:
    """What a layer with this span keeps, before the first token."""
    if isinstance(span, Local):
        return LocalSlots(span=span)
    return Slots() if span is None else CompressedSlots(span=span)
