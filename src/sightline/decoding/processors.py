"""Rules about the next token: processors that change the logits of a search before a token is chosen.

A processor takes logits (B, W, V) of B sentences with W hypotheses each, their tokens so far (B, W, t) (START first,
preceded by PAD if a sentence joined the batch later) and the step (B,), the number of tokens of each sentence. Rows
join and leave a batch, so a processor that holds tensors by row implements `keep` and `append`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import torch
from torch import Tensor

from sightline.decoding.request import Demands, Edges, Ids, Request
from sightline.models.protocol import join_rows
from sightline.recipe.schema import Choice
from sightline.registry import Implementations
from sightline.text.tokenizer import END, PAD, SPECIALS, START

_NEVER = float("-inf")


class LogitsProcessor(Protocol):
    """A rule about the next token of each hypothesis, built once for the sentences that start together."""

    @staticmethod
    def applies(request: Request) -> bool:
        """Return True if a request needs this processor. Requests of a batch need the same processors."""
        ...

    @classmethod
    def build(cls, requests: Sequence[Request], device: torch.device) -> Self: ...

    def __call__(self, logits: Tensor, tokens: Tensor, step: Tensor) -> Tensor:
        """Logits (B, W, V) with −∞ for tokens that may not come next; may modify them in place."""
        ...

    def keep(self, rows: Tensor) -> Self:
        """The processor for these rows only: indices (B',)."""
        ...

    def append(self, other: Self) -> Self:
        """The processor for the rows of both."""
        ...


class AllowedTokens:
    """Excludes PAD, START, noise marks and ids in which phrases cannot be matched."""

    def __init__(self, request: Request) -> None:
        self.marks, self.known = request.marks, request.known

    def __call__(self, logits: Tensor) -> Tensor:
        logits[..., PAD] = _NEVER
        logits[..., START] = _NEVER
        logits[..., len(SPECIALS) : len(SPECIALS) + self.marks] = _NEVER
        if self.known is not None:
            logits[..., self.known :] = _NEVER
        return logits


@dataclass(frozen=True)
class NoRepeat:
    """Blocks repeated n-grams (Paulus et al. 2017)."""

    count: int

    @staticmethod
    def applies(request: Request) -> bool:
        return request.options.no_repeat > 0

    @classmethod
    def build(cls, requests: Sequence[Request], device: torch.device) -> NoRepeat:
        return cls(requests[0].options.no_repeat)

    def __call__(self, logits: Tensor, tokens: Tensor, step: Tensor) -> Tensor:
        tokens = tokens[:, :, 1:]  # without START
        if tokens.shape[2] < self.count:
            return logits
        windows = tokens.unfold(2, self.count, 1)  # (B, W, t − n + 1, n)
        recent = tokens[:, :, tokens.shape[2] - self.count + 1 :]  # (B, W, n − 1)
        rows, hypotheses, places = (windows[..., :-1] == recent[:, :, None]).all(-1).nonzero(as_tuple=True)
        repeated = windows[rows, hypotheses, places, -1]
        # hypotheses of probability 0 may hold any token, even a copied one of a sentence that has left the batch
        known = repeated < logits.shape[2]
        logits[rows[known], hypotheses[known], repeated[known]] = _NEVER
        return logits

    def keep(self, rows: Tensor) -> NoRepeat:
        return self

    def append(self, other: NoRepeat) -> NoRepeat:
        return self


@dataclass(frozen=True)
class MinLength:
    """Blocks END before the minimum length."""

    least: Tensor  # (B,) tokens, without END

    @staticmethod
    def applies(request: Request) -> bool:
        return request.options.min_length > 0

    @classmethod
    def build(cls, requests: Sequence[Request], device: torch.device) -> MinLength:
        return cls(torch.tensor([each.given + each.options.min_length for each in requests], device=device))

    def __call__(self, logits: Tensor, tokens: Tensor, step: Tensor) -> Tensor:
        logits[:, :, END].masked_fill_((self.least > step)[:, None], _NEVER)
        return logits

    def keep(self, rows: Tensor) -> MinLength:
        return MinLength(self.least[rows])

    def append(self, other: MinLength) -> MinLength:
        return MinLength(torch.cat([self.least, other.least]))


@dataclass(frozen=True)
class ForbiddenPhrases:
    """Blocks the last token of F sequences per sentence, padded with PAD."""

    heads: Tensor  # (B, F, L) all but the last token, padded on the left
    lasts: Tensor  # (B, F)
    lengths: Tensor  # (B, F)
    apart: Tensor  # (B, F) True if it is forbidden at word starts only
    within: Tensor  # (V,)

    @staticmethod
    def applies(request: Request) -> bool:
        return request.demands is not None and bool(request.demands.forbidden or request.demands.apart)

    @classmethod
    def build(cls, requests: Sequence[Request], device: torch.device) -> ForbiddenPhrases:
        edges = requests[0].edges
        assert edges is not None
        return cls.of([each.demands or Demands() for each in requests], edges, device)

    @classmethod
    def of(cls, demands: Sequence[Demands], edges: Edges, device: torch.device | str) -> ForbiddenPhrases:
        every = [[*((ids, False) for ids in each.forbidden), *((ids, True) for ids in each.apart)] for each in demands]
        most, longest = max(map(len, every)), max((len(ids) for row in every for ids, _ in row), default=0)
        rows = [[*row, *[((PAD,), False)] * (most - len(row))] for row in every]
        heads = [[[PAD] * (longest - len(ids) + 1) + list(ids[:-1]) for ids, _ in row] for row in rows]
        return cls(
            torch.tensor(heads, device=device),
            torch.tensor([[ids[-1] for ids, _ in row] for row in rows], device=device),
            torch.tensor([[len(ids) for ids, _ in row] for row in rows], device=device),
            torch.tensor([[apart for _, apart in row] for row in rows], device=device),
            edges.within.to(device),
        )

    def __call__(self, logits: Tensor, tokens: Tensor, step: Tensor) -> Tensor:
        longest = self.heads.shape[2]
        before = tokens.new_full((*tokens.shape[:2], longest), START)
        recent = torch.cat([before, tokens], dim=2)[:, :, -longest:]  # (B, W, L)
        heads = self.heads[:, None]
        same = ((recent[:, :, None] == heads) | (heads == PAD)).all(-1)  # (B, W, F)
        places = (longest - self.lengths)[:, None].expand(-1, tokens.shape[1], -1)  # token before each sequence
        inside = self.within[recent.gather(2, places)]  # (B, W, F)
        rows, hypotheses, complete = (same & ~(self.apart[:, None] & inside)).nonzero(as_tuple=True)
        logits[rows, hypotheses, self.lasts[rows, complete]] = _NEVER
        return logits

    def keep(self, rows: Tensor) -> ForbiddenPhrases:
        return ForbiddenPhrases(self.heads[rows], self.lasts[rows], self.lengths[rows], self.apart[rows], self.within)

    def append(self, other: ForbiddenPhrases) -> ForbiddenPhrases:
        wide = max(self.heads.shape[2], other.heads.shape[2])
        heads = [
            torch.nn.functional.pad(each.heads, (wide - each.heads.shape[2], 0), value=PAD) for each in (self, other)
        ]
        return ForbiddenPhrases(
            join_rows(*heads, dim=1, fill=PAD),
            join_rows(self.lasts, other.lasts, dim=1, fill=PAD),
            join_rows(self.lengths, other.lengths, dim=1, fill=1),
            join_rows(self.apart, other.apart, dim=1, fill=False),
            self.within,
        )


PROCESSORS: dict[str, type[LogitsProcessor]] = {
    "no-repeat": NoRepeat,
    "forbidden-phrases": ForbiddenPhrases,
    "min-length": MinLength,
}


def processors_of(request: Request) -> tuple[str | Choice, ...]:
    """The processors of a request in order of application: names, and sections of plug-ins."""
    names = (name for name, processor in PROCESSORS.items() if processor.applies(request))
    return *names, *request.options.processors


def _build(name: str | Choice, requests: Sequence[Request], device: torch.device) -> LogitsProcessor:
    if isinstance(name, str):
        return PROCESSORS[name].build(requests, device)
    plugin: LogitsProcessor = Implementations("processor")[name.kind].build(requests, device, **name.options(Choice))
    return plugin


class Processors:
    """All processors of a batch. A hypothesis without an allowed token ends."""

    def __init__(self, requests: Sequence[Request], device: torch.device) -> None:
        self.allowed = AllowedTokens(requests[0])
        self.parts = [_build(name, requests, device) for name in processors_of(requests[0])]

    def __call__(self, logits: Tensor, tokens: Tensor, step: Callable[[], Tensor]) -> Tensor:
        """Mask logits (B·W, V) after tokens (B, W, t); `step` is called only if there are processors."""
        if not self.parts:
            return self.allowed(logits)
        end = logits[:, END].clone()
        shaped, steps = logits.view(*tokens.shape[:2], -1), step()
        for part in self.parts:
            shaped = part(shaped, tokens, steps)
        logits = self.allowed(shaped.flatten(0, 1))
        stuck = logits.amax(-1) == _NEVER
        logits[:, END] = torch.where(stuck, end, logits[:, END])
        return logits

    def keep(self, rows: Tensor) -> None:
        self.parts = [part.keep(rows) for part in self.parts]

    def append(self, other: Processors) -> None:
        self.parts = [one.append(two) for one, two in zip(self.parts, other.parts, strict=True)]


# --- required phrases (constrained_beam.ConstrainedBeam) ---------------------------------------------------------


@dataclass(frozen=True)
class RequiredPhrases:
    """C phrases per sentence, padded with empty ones."""

    phrases: Tensor  # (B, C, L), padded on the right
    lengths: Tensor  # (B, C)
    edges: Edges

    @staticmethod
    def of(demands: Sequence[Demands], edges: Edges, device: torch.device | str) -> RequiredPhrases:
        every = [list(dict.fromkeys(each.required)) for each in demands]
        most, longest = max(map(len, every)), max((len(ids) for row in every for ids in row), default=0)
        rows: list[list[Ids]] = [[*row, *[()] * (most - len(row))] for row in every]
        phrases = [[[*ids, *[PAD] * (longest - len(ids))] for ids in row] for row in rows]
        lengths = [[len(ids) for ids in row] for row in rows]
        return RequiredPhrases(
            torch.tensor(phrases, device=device), torch.tensor(lengths, device=device), edges.to(device)
        )

    def prefix_matches(self, tokens: Tensor) -> Tensor:
        """tokens (B, W, t), START first → (B, W, C, L): True if the last k tokens are the first k of a phrase.

        The longest such k is the state of the phrase's Knuth–Morris–Pratt automaton.
        """
        longest = self.phrases.shape[2]
        tokens = tokens.masked_fill(tokens == START, self.edges.space)
        matches = [torch.ones(*tokens.shape[:2], self.phrases.shape[1], dtype=torch.bool, device=tokens.device)]
        for count in range(1, longest):
            if count > tokens.shape[2]:
                matches.append(torch.zeros_like(matches[0]))
            else:
                matches.append((tokens[:, :, None, -count:] == self.phrases[:, None, :, :count]).all(-1))
        return torch.stack(matches, dim=3)

    def keep(self, rows: Tensor) -> RequiredPhrases:
        return RequiredPhrases(self.phrases[rows], self.lengths[rows], self.edges)

    def append(self, other: RequiredPhrases) -> RequiredPhrases:
        longest = max(self.phrases.shape[2], other.phrases.shape[2])
        phrases = [
            torch.nn.functional.pad(each.phrases, (0, longest - each.phrases.shape[2]), value=PAD)
            for each in (self, other)
        ]
        return RequiredPhrases(
            join_rows(*phrases, dim=1, fill=PAD), join_rows(self.lengths, other.lengths, dim=1), self.edges
        )
