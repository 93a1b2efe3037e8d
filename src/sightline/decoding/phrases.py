"""Words and phrases that outputs must or must not contain, from text to token ids and back.

A phrase matches whole words: "cat" is in "the cat." and not in "cats". In scripts without spaces between words it
matches anywhere. The search forbids or requires the token ids of a phrase; decoded texts are then checked, as other
tokens can spell the same phrase.
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

ROUNDS = 12  # maximum repeated searches for an output without its forbidden phrases
_LETTER = re.compile(rf"(?![{UNSPACED}])\w")
_CLOSING = frozenset(",.;:!?…%")


class PhraseWarning(UserWarning):
    """An output lacks a required phrase or contains a forbidden one."""


def occurrences(phrase: str, text: str) -> list[tuple[int, int]]:
    """The spans of a text where a phrase occurs as whole words."""
    before = rf"(?<![^\W{UNSPACED}])" if _LETTER.match(phrase[0]) else ""
    after = rf"(?![^\W{UNSPACED}])" if _LETTER.match(phrase[-1]) else ""
    return [match.span() for match in re.finditer(before + re.escape(phrase) + after, text)]


class PhraseCutter:
    """Token ids of phrases."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        pieces = [("" if number < len(SPECIALS) else piece) for number, piece in enumerate(_pieces(tokenizer))]
        self.edges = Edges(
            torch.tensor([bool(piece and _LETTER.match(piece[-1])) for piece in pieces]),
            torch.tensor([bool(piece and _LETTER.match(piece[0])) for piece in pieces]),
            pieces.index(SPACE) if SPACE in pieces else START,
        )

    def after(self, before: str, gap: str, phrase: str) -> Ids | None:
        """The tokens of a phrase after some text, or None if the vocabulary cannot write it."""
        head, whole = self.tokenizer.encode(before), self.tokenizer.encode(before + gap + phrase)
        tokens = tuple(whole[len(head) :])
        return tokens if tokens and UNK not in tokens and whole[: len(head)] == head else None

    def cuts(self, phrase: str) -> tuple[Ids | None, Ids | None]:
        """The tokens of a phrase after a word and a space, and directly after punctuation."""
        return self.after("a", " ", phrase), self.after("(", "", phrase)

    def required(self, phrase: str) -> Ids | None:
        """The tokens of a required phrase: after a space, unless it is usually written without one."""
        spaced, bare = self.cuts(phrase)
        joins = phrase[0] in _CLOSING or unicodedata.category(phrase[0]) in ("Pe", "Pf")
        joins |= unspaced(phrase[0])
        return (bare or spaced) if joins else (spaced or bare)

    def demands(self, phrases: Phrases) -> tuple[Demands, list[str]]:
        """Phrases as token ids, and the required phrases that the vocabulary cannot write."""
        required = {phrase: self.required(phrase) for phrase in phrases.required}
        cuts = [self.cuts(phrase) for phrase in phrases.forbidden]
        spaced = [cut for cut, _ in cuts if cut is not None]
        bare = [cut for _, cut in cuts if cut is not None]
        known = tuple(cut for cut in required.values() if cut is not None)
        unknown = [phrase for phrase, cut in required.items() if cut is None]
        return Demands(known, tuple(dict.fromkeys(spaced)), tuple(dict.fromkeys(bare))), unknown

    def token_spans(self, phrase: str, tokens: Sequence[int], start: int) -> list[Ids]:
        """The tokens of each occurrence of a phrase that ends after the first `start` tokens of an output."""
        matches = occurrences(phrase, self.tokenizer.decode(tokens))
        if not matches:
            return []
        lengths = [len(self.tokenizer.decode(tokens[:count])) for count in range(len(tokens) + 1)]
        spans = [(bisect_right(lengths, begin) - 1, bisect_left(lengths, end)) for begin, end in matches]
        return [tuple(tokens[begin:end]) for begin, end in spans if end > start]


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

    Every output has its required phrases if `max_length` leaves room for them. A sentence with a forbidden phrase
    spelled by other tokens is decoded again without these tokens, up to `ROUNDS` times. A `PhraseWarning` names
    the line of an output that cannot meet its demands. `on_done` is called in the first round.
    """
    requests = _constrained(cutter, requests)
    results: list[list[Hypothesis]] = [[] for _ in requests]
    waiting, rounds = list(range(len(requests))), 0
    while waiting:
        outputs = decode(
            model, [requests[index] for index in waiting], device=device, on_done=None if rounds else on_done
        )
        again = []
        for index, hypotheses in zip(waiting, outputs, strict=True):
            results[index] = hypotheses
            changed = _changed(cutter, requests[index], hypotheses, last=rounds >= ROUNDS)
            if changed is not None:
                requests[index] = changed
                again.append(index)
        waiting, rounds = again, rounds + 1
    return results


def _constrained(cutter: PhraseCutter, requests: Sequence[Request]) -> list[Request]:
    """The requests with normalized phrases and their token ids."""
    normalize, constrained = cutter.tokenizer.normalize, []
    known: dict[Phrases, tuple[Demands, list[str]]] = {}
    for request in requests:
        phrases, options = request.phrases or Phrases(), request.options
        required = tuple(filter(None, map(normalize, phrases.required)))
        forbidden = tuple(filter(None, map(normalize, (*options.forbid, *phrases.forbidden))))
        normalized = Phrases(required, forbidden)
        if both := set(required) & set(forbidden):
            raise ValueError(f"line {request.number + 1}: {both.pop()!r} is both required and forbidden; omit one")
        if normalized not in known:
            known[normalized] = cutter.demands(normalized)
        demands, unknown = known[normalized]
        if demands.required and options.sample is not None:
            raise ValueError("required phrases need beam search, not decoding.sample; leave one of them out")
        if demands.required and options.groups > 1:
            raise ValueError(
                f"required phrases and decoding.groups ({options.groups}) both divide the beam; leave one of them out"
            )
        for phrase in unknown:
            _warn(request, f"the vocabulary cannot write {phrase!r}, so the output need not contain it")
        phrases = Phrases(tuple(phrase for phrase in required if phrase not in unknown), forbidden)
        constrained.append(replace(request, phrases=phrases, demands=demands, edges=cutter.edges))
    return constrained


def _changed(cutter: PhraseCutter, request: Request, hypotheses: list[Hypothesis], *, last: bool) -> Request | None:
    """The request to decode again, or None if its outputs are accepted; warns about unmet demands."""
    phrases, demands = request.phrases or Phrases(), request.demands or Demands()
    if not hypotheses:
        shown = ", ".join(map(repr, phrases.required))
        _warn(request, f"no output can contain {shown} (max_length, or what is forbidden, leaves no room); it need not")
        return replace(request, demands=replace(demands, required=()), phrases=replace(phrases, required=()))
    spans: list[Ids] = []
    leaks: dict[str, None] = {}
    for phrase in phrases.forbidden:
        for hypothesis in hypotheses:
            if matches := cutter.token_spans(phrase, hypothesis.tokens, len(request.prefix)):
                spans += matches
                leaks[phrase] = None
    if spans and not last and (new := set(spans) - set(demands.forbidden)):
        return replace(request, demands=replace(demands, forbidden=(*demands.forbidden, *sorted(new))))
    for phrase in leaks:
        _warn(request, f"the output contains {phrase!r} all the same; no other was found")
    texts = cutter.tokenizer.decode_many([hypothesis.tokens for hypothesis in hypotheses])
    for phrase in phrases.required:
        if not all(occurrences(phrase, text) for text in texts):
            _warn(request, f"the output does not contain {phrase!r} as whole words")
    return None


def _warn(request: Request, what: str) -> None:
    warnings.warn(PhraseWarning(f"line {request.number + 1}: {what}"), stacklevel=5)
