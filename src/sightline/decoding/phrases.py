"""Words and phrases that outputs must or must not contain, from text to token ids and back.

A phrase counts where it stands as whole words: "cat" is in "the cat." and not in "cats". In scripts that set no spaces
between words it counts anywhere. What the tokenizer makes of a phrase is forbidden or required in the search; what the
texts then say is checked, since pieces can be put together in other ways.
"""

from __future__ import annotations

import re
import unicodedata
import warnings
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from sightline.decoding.engine import decode
from sightline.decoding.request import DecodableModel, Demands, Edges, Hypothesis, Ids, Phrases, Request
from sightline.text.sentences import UNSPACED, unspaced
from sightline.text.tokenizer import SPACE, SPECIALS, START, UNK, Tokenizer

ROUNDS = 12  # how often a sentence is searched again for what it should not say
_LETTER = re.compile(rf"(?![{UNSPACED}])\w")
_CLOSING = frozenset(",.;:!?…%")


class PhraseWarning(UserWarning):
    """An output does not contain what it should, or contains what it should not."""


def occurrences(phrase: str, text: str) -> list[tuple[int, int]]:
    """Where a phrase stands in a text as whole words."""
    before = rf"(?<![^\W{UNSPACED}])" if _LETTER.match(phrase[0]) else ""
    after = rf"(?![^\W{UNSPACED}])" if _LETTER.match(phrase[-1]) else ""
    return [found.span() for found in re.finditer(before + re.escape(phrase) + after, text)]


class PhraseCutter:
    """What a tokenizer makes of phrases."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        pieces = [("" if number < len(SPECIALS) else piece) for number, piece in enumerate(_pieces(tokenizer))]
        self.edges = Edges(
            torch.tensor([bool(piece and _LETTER.match(piece[-1])) for piece in pieces]),
            torch.tensor([bool(piece and _LETTER.match(piece[0])) for piece in pieces]),
            pieces.index(SPACE) if SPACE in pieces else START,
        )

    def after(self, before: str, gap: str, phrase: str) -> Ids | None:
        """The tokens of a phrase behind some text, or None where the vocabulary does not know all of it."""
        head, whole = self.tokenizer.encode(before), self.tokenizer.encode(before + gap + phrase)
        own = tuple(whole[len(head) :])
        return own if own and UNK not in own and whole[: len(head)] == head else None

    def cuts(self, phrase: str) -> tuple[Ids | None, Ids | None]:
        """A phrase as it is written after a word and a space, and right after a mark."""
        return self.after("a", " ", phrase), self.after("(", "", phrase)

    def required(self, phrase: str) -> Ids | None:
        """How a phrase is written: after a space, if that is what one writes before it."""
        spaced, bare = self.cuts(phrase)
        joins = phrase[0] in _CLOSING or unicodedata.category(phrase[0]) in ("Pe", "Pf")
        joins |= unspaced(phrase[0])
        return (bare or spaced) if joins else (spaced or bare)

    def demands(self, phrases: Phrases) -> tuple[Demands, list[str]]:
        """The same in token ids, and the required phrases that cannot be written."""
        required = {phrase: self.required(phrase) for phrase in phrases.required}
        cuts = [self.cuts(phrase) for phrase in phrases.forbidden]
        spaced = [cut for cut, _ in cuts if cut is not None]
        bare = [cut for _, cut in cuts if cut is not None]
        known = tuple(cut for cut in required.values() if cut is not None)
        unknown = [phrase for phrase, cut in required.items() if cut is None]
        return Demands(known, tuple(dict.fromkeys(spaced)), tuple(dict.fromkeys(bare))), unknown

    def said(self, phrase: str, tokens: Sequence[int], given: int) -> list[Ids]:
        """The tokens by which an output says a phrase, each time it does so after the first `given` tokens."""
        found = occurrences(phrase, self.tokenizer.decode(tokens))
        if not found:
            return []
        lengths = [len(self.tokenizer.decode(tokens[:count])) for count in range(len(tokens) + 1)]
        spans = [(bisect_right(lengths, start) - 1, bisect_left(lengths, end)) for start, end in found]
        return [tuple(tokens[start:end]) for start, end in spans if end > given]


def _pieces(tokenizer: Tokenizer) -> list[str]:
    return tokenizer.pieces(range(tokenizer.size))


def decode_with_phrases(
    model: DecodableModel,
    requests: Sequence[Request],
    cutter: PhraseCutter,
    *,
    device: torch.device | str = "cpu",
    on_done: Callable[[int], None] | None = None,
) -> list[list[Hypothesis]]:
    """`decode` with the phrases of each request, and those of `decoding.forbid`.

    Every output has its required phrases wherever `max_length` leaves room for them. A sentence that has what is
    forbidden, put together from other pieces, is searched again without these, up to `ROUNDS` times. A `PhraseWarning`
    names the line where an output cannot be as required. `on_done` is called in the first round.
    """
    requests = _constrained(cutter, requests)
    results: list[list[Hypothesis]] = [[] for _ in requests]
    waiting, turn = list(range(len(requests))), 0
    while waiting:
        found = decode(model, [requests[index] for index in waiting], device=device, on_done=None if turn else on_done)
        again = []
        for index, hypotheses in zip(waiting, found, strict=True):
            results[index] = hypotheses
            changed = _changed(cutter, requests[index], hypotheses, last=turn >= ROUNDS)
            if changed is not None:
                requests[index] = changed
                again.append(index)
        waiting, turn = again, turn + 1
    return results


def _constrained(cutter: PhraseCutter, requests: Sequence[Request]) -> list[Request]:
    """The requests with their phrases in the tokenizer's own spelling, and in token ids."""
    normalize, constrained = cutter.tokenizer.normalize, []
    known: dict[Phrases, tuple[Demands, list[str]]] = {}
    for request in requests:
        phrases, options = request.phrases or Phrases(), request.options
        required = tuple(filter(None, map(normalize, phrases.required)))
        forbidden = tuple(filter(None, map(normalize, (*options.forbid, *phrases.forbidden))))
        own = Phrases(required, forbidden)
        if both := set(required) & set(forbidden):
            raise ValueError(f"line {request.number + 1}: {both.pop()!r} is required and forbidden; choose")
        if own not in known:
            known[own] = cutter.demands(own)
        demands, unknown = known[own]
        if demands.required and options.sample is not None:
            raise ValueError("required phrases are searched for, and sample draws; leave one of them out")
        if demands.required and options.groups > 1:
            raise ValueError(
                f"required phrases and groups ({options.groups}) both share out the beam; leave one of them out"
            )
        for phrase in unknown:
            _warn(request, f"the vocabulary cannot write {phrase!r}, so the output need not contain it")
        phrases = Phrases(tuple(phrase for phrase in required if phrase not in unknown), forbidden)
        constrained.append(replace(request, phrases=phrases, demands=demands, edges=cutter.edges))
    return constrained


def _changed(cutter: PhraseCutter, request: Request, hypotheses: list[Hypothesis], *, last: bool) -> Request | None:
    """What to search for instead, if an output is not as required; else None, with a warning where it stays so."""
    phrases, demands = request.phrases or Phrases(), request.demands or Demands()
    if not hypotheses:
        shown = ", ".join(map(repr, phrases.required))
        _warn(request, f"no output can contain {shown} (max_length, or what is forbidden, leaves no room); it need not")
        return replace(request, demands=replace(demands, required=()), phrases=replace(phrases, required=()))
    spans: list[Ids] = []
    leaks: dict[str, None] = {}
    for phrase in phrases.forbidden:
        for hypothesis in hypotheses:
            if found := cutter.said(phrase, hypothesis.tokens, len(request.prefix)):
                spans += found
                leaks[phrase] = None
    if spans and not last and (new := set(spans) - set(demands.forbidden)):
        return replace(request, demands=replace(demands, forbidden=(*demands.forbidden, *sorted(new))))
    for phrase in leaks:
        _warn(request, f"the output contains {phrase!r} all the same; no other was found")
    texts = cutter.tokenizer.decode_many([hypothesis.tokens for hypothesis in hypotheses])
    for phrase in phrases.required:
        if not all(occurrences(phrase, text) for text in texts):
            _warn(request, f"the output does not contain {phrase!r} as words of its own")
    return None


def _warn(request: Request, what: str) -> None:
    warnings.warn(PhraseWarning(f"line {request.number + 1}: {what}"), stacklevel=5)
