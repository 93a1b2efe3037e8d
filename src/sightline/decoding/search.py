"""The base of all searches: rows that advance together by one token a step, and leave and join between steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from sightline.decoding.processors import Processors
from sightline.decoding.request import DecodableModel, Hypothesis, Limit, Request, output_limits, pad_tokens
from sightline.text.tokenizer import END, PAD

_FORCED = -1e4  # least log-probability of a forced token: scores stay finite


class Search(ABC):
    """B requests that are decoded together, with W hypotheses each.

    Row b started `shift[b]` steps after the first one. Tokens are kept in columns by step, so the newest token of every
    row is in the last column.
    """

    def __init__(
        self, model: DecodableModel, requests: Sequence[Request], memory: Any, limits: Sequence[Limit], device: Any
    ) -> None:
        self.model, self.requests, self.device = model, list(requests), torch.device(device)
        self.numbers = list(range(len(requests)))  # their keys in the engine, which sets them
        self.options, self.size = requests[0].options, len(requests)
        self.state = model.begin(memory)
        self.done = torch.zeros(self.size, dtype=torch.bool, device=self.device)  # (B,) after the last step
        self.live = self.size  # unfinished rows
        self.time = 0  # steps taken
        self.shift: Tensor | None = None  # (B,) step at which each row started; None: 0
        longest = output_limits(requests, limits)
        self.limits = torch.tensor(longest, device=self.device)  # (B,) maximum tokens of each output, with END
        self.first_end, self.last_end = min(longest), max(longest)  # first and last step at which a limit is reached
        prefixes = [request.prefix for request in requests]
        self.prefixes = pad_tokens(prefixes, self.device) if any(map(len, prefixes)) else None  # (B, P)
        self.processors = Processors(requests, self.device)

    @abstractmethod
    def step(self) -> Tensor:
        """Add one token to every hypothesis; return (B,), True for finished rows."""

    @abstractmethod
    def hypotheses(self, rows: Tensor) -> list[list[Hypothesis]]:
        """The best outputs of finished rows, best first."""

    # --- the next token ------------------------------------------------------------------------------------------

    def steps(self) -> Tensor:
        """(B,) the number of tokens of each row."""
        if self.shift is None:
            return torch.full((self.size,), self.time, device=self.device)
        return self.time - self.shift

    def length(self) -> int | Tensor:
        """The number of tokens of each row after this step: an integer or (B, 1)."""
        return self.time + 1 if self.shift is None else (self.time + 1 - self.shift)[:, None]

    def at_limit(self) -> Tensor | None:
        """(B,), True for rows that reach their limit with this step; None if no row can."""
        if self.time + 1 < self.first_end:
            return None
        return self.limits == (self.time + 1 if self.shift is None else self.time + 1 - self.shift)

    def truncated(self, logits: Tensor, width: int) -> Tensor | None:
        """(B, W), True for hypotheses that a limit ends with this step where the model prefers another token to END."""
        reached = self.at_limit()
        if reached is None or not reached.any():
            return None
        return reached[:, None] & (logits.argmax(-1) != END).view(-1, width)

    def process(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """Mask the logits (B·W, V) after tokens (B, W, t): −∞ for tokens that are not allowed.

        A forced token (of the prefix, or END at the limit) overrides every rule.
        """
        forced = self._forced()
        if forced is not None:
            rows, words = forced
            width = tokens.shape[1]
            rows = (rows[:, None] * width + torch.arange(width, device=rows.device)).flatten()
            words = words.repeat_interleave(width)
            values = logits[rows, words].clamp(min=_FORCED)  # an n-gram model may give it probability 0
        logits = self.processors(logits, tokens, self.steps)
        if forced is not None:
            logits[rows] = float("-inf")
            logits[rows, words] = values
        return logits

    def _forced(self) -> tuple[Tensor, Tensor] | None:
        """Rows (N,) with a forced next token, and the tokens (N,)."""
        reached = self.at_limit()
        prefix = self._prefix_tokens()
        if prefix is None and reached is None:
            return None
        forced = self.limits.new_full((self.size,), PAD)
        if reached is not None:
            forced = forced.masked_fill(reached, END)
        if prefix is not None:
            forced = torch.where(prefix != PAD, prefix, forced)
        rows = (forced != PAD).nonzero()[:, 0]
        return (rows, forced[rows]) if len(rows) else None

    def _prefix_tokens(self) -> Tensor | None:
        """(B,) the next token of each prefix, PAD after its end; None if no prefix is left."""
        if self.prefixes is None:
            return None
        length = self.prefixes.shape[1]
        if self.shift is None:
            return self.prefixes[:, self.time] if self.time < length else None
        step = self.steps()
        return self.prefixes.gather(1, step.clamp(max=length - 1)[:, None])[:, 0].masked_fill(step >= length, PAD)

    # --- rows ----------------------------------------------------------------------------------------------------

    def keep(self, rows: Tensor) -> None:
        """Keep these rows only: indices (B',). Steps before the first token of all of them are dropped."""
        kept = rows.tolist()
        self.requests = [self.requests[row] for row in kept]
        self.numbers = [self.numbers[row] for row in kept]
        self.size, self.done = len(rows), self.done[rows]
        self.state, self.limits = self.state.keep(rows), self.limits[rows]
        self.shift = None if self.shift is None else self.shift[rows]
        self.prefixes = None if self.prefixes is None else self.prefixes[rows]
        self.processors.keep(rows)
        if self.shift is not None and len(rows) and (unused := int(self.shift.min())):
            self.drop_steps(unused)

    def drop_steps(self, count: int) -> None:
        """Drop the first steps, before the first token of any row. Subclasses drop their columns."""
        assert self.shift is not None
        self.shift = None if int(self.shift.max()) == count else self.shift - count
        self.time, self.first_end, self.last_end = self.time - count, self.first_end - count, self.last_end - count

    def append(self, other: Any) -> None:
        """Add the rows of another search of the same kind.

        Steps before the first token of every row are dropped. Subclasses join their own tensors.
        """
        mine, theirs = ((each.time, 0 if each.shift is None else int(each.shift.min())) for each in (self, other))
        time = max(mine[0] - mine[1], theirs[0] - theirs[1])
        late = time - self.time, time - other.time  # steps by which the rows of each are delayed
        if late != (0, 0) or self.shift is not None or other.shift is not None:
            zero = self.limits.new_zeros
            parts = zip((self, other), late, strict=True)
            shifts = [(zero(each.size) if each.shift is None else each.shift) + more for each, more in parts]
            self.shift = torch.cat(shifts)
        self.first_end = min(self.first_end + late[0], other.first_end + late[1])
        self.last_end = max(self.last_end + late[0], other.last_end + late[1])
        if self.prefixes is not None or other.prefixes is not None:
            both = [
                each.limits.new_zeros(each.size, 1) if each.prefixes is None else each.prefixes
                for each in (self, other)
            ]
            longest = max(part.shape[1] for part in both)
            self.prefixes = torch.cat([pad(part, (0, longest - part.shape[1]), value=PAD) for part in both])
        self.limits, self.done = torch.cat([self.limits, other.limits]), torch.cat([self.done, other.done])
        self.live += other.live
        self.state = self.state.append(other.state)
        self.processors.append(other.processors)
        self.requests, self.numbers = self.requests + other.requests, self.numbers + other.numbers
        self.size, self.time = self.size + other.size, time
        self._late = late

    def joined_columns(self, first: Tensor, second: Tensor, columns: int) -> Tensor:
        """Tokens by step (B, W, t) and (B', W, t') → (B + B', W, columns), each step where it is since `append`."""
        parts = (
            pad(part, (late, columns - part.shape[2] - late), value=PAD)
            for part, late in zip((first, second), self._late, strict=True)
        )
        return torch.cat(list(parts))

    _late: tuple[int, int] = (0, 0)  # of the last `append`


def size_for(alive: int, size: int, device: torch.device) -> int:
    """The number of rows, of `size`, that a batch keeps: those alive, rounded up if more than 16.

    CPU: to multiples of 8, since oneDNN compiles a kernel for each number of rows and caches about a thousand. GPU: to
    eighths of the batch, since moving rows costs more than computing a step for some finished ones.
    """
    grain = 8 if device.type == "cpu" else max(8, -(-size // 8))
    return alive if alive <= 16 else min(size, -(-alive // grain) * grain)


def staying(done: Tensor, count: int) -> Tensor:
    """Indices (count,) of all unfinished rows, and of finished ones if there is room.

    Most rows keep their place: the last rows fill gaps.
    """
    rows = torch.arange(count, device=done.device)
    movers = (~done[count:]).nonzero()[:, 0] + count
    rows[done[:count].nonzero()[: len(movers), 0]] = movers
    return rows
