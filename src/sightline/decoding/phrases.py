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
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from sightline.decoding.batch import Hypothesis, Stepper, Told, Watch
from sightline.decoding.generate import generate
from sightline.decoding.request import Constraints, Request
from sightline.decoding.rules import Demands, Edges, Ids
from sightline.recipe import Decoding
from sightline.text.sentences import UNSPACED, unspaced
from sightline.text.tokenizer import SPACE, SPECIALS, START, UNK, Tokenizer

ROUNDS = 12  # how often a sentence is searched again for what it should not say
_LETTER = re.compile(rf"(?![{UNSPACED}])\w")
_CLOSING = frozenset(",.;:!?…%")


@dataclass(frozen=True)
class Phrases:
    """What one output must contain, and what it must not."""

    required: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()


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


@dataclass(frozen=True)
class _Asked:
    """What is asked of one output so far."""

    number: int  # its line in the whole input
    phrases: Phrases
    demands: Demands

    def warn(self, what: str) -> None:
        warnings.warn(PhraseWarning(f"line {self.number + 1}: {what}"), stacklevel=5)


def generate_with_phrases(
    model: Stepper,
    request: Request,
    options: Decoding,
    cutter: PhraseCutter,
    phrases: Sequence[Phrases] | None,
    *,
    device: torch.device | str = "cpu",
    watch: Watch | None = None,
    told: Told | None = None,
) -> list[list[Hypothesis]]:
    """`generate` with phrases for each sentence, beside `options.forbid` for all.

    Every output has its required phrases wherever `max_length` leaves room for them. A sentence that says what is
    forbidden, put together from other pieces, is searched again without them, up to `ROUNDS` times. What cannot be had
    is a `PhraseWarning` that names the line. `watch` is told of every search, one after the other, `told` of the first.
    """
    asked = _ask(cutter, options, phrases or [Phrases()] * len(request), request.numbered())
    if options.sample is not None and any(each.demands.required for each in asked):
        raise ValueError("required phrases are searched for, and sample draws; leave one of them out")
    if options.groups > 1 and any(each.demands.required for each in asked):
        raise ValueError(
            f"required phrases and groups ({options.groups}) both share out the beam; leave one of them out"
        )
    results: list[list[Hypothesis]] = [[] for _ in asked]
    given = [len(prefix) for prefix in request.begun()]
    waiting, turn = list(range(len(asked))), 0
    while waiting:
        constrained = replace(request, constraints=Constraints([each.demands for each in asked], cutter.edges))
        tell = told if turn == 0 else None
        found = generate(model, constrained.take(waiting), options, device=device, watch=watch, told=tell)
        again = []
        for index, guesses in zip(waiting, found, strict=True):
            results[index] = guesses
            changed = _changed(cutter, asked[index], guesses, given[index], last=turn >= ROUNDS)
            if changed is not None:
                asked[index] = changed
                again.append(index)
        waiting, turn = again, turn + 1
    return results


def _ask(cutter: PhraseCutter, options: Decoding, phrases: Sequence[Phrases], numbers: Sequence[int]) -> list[_Asked]:
    """Phrases in the tokenizer's own spelling, and in token ids."""
    normalize, asked = cutter.tokenizer.normalize, []
    everywhere = tuple(normalize(phrase) for phrase in options.forbid)
    known: dict[Phrases, tuple[Demands, list[str]]] = {}
    for number, each in zip(numbers, phrases, strict=True):
        required = tuple(filter(None, map(normalize, each.required)))
        forbidden = tuple(filter(None, [*everywhere, *map(normalize, each.forbidden)]))
        own = Phrases(required, forbidden)
        if both := set(required) & set(forbidden):
            raise ValueError(f"line {number + 1}: {both.pop()!r} is required and forbidden; choose")
        if own not in known:
            known[own] = cutter.demands(own)
        demands, unknown = known[own]
        asked.append(_Asked(number, Phrases(tuple(p for p in required if p not in unknown), forbidden), demands))
        for phrase in unknown:
            asked[-1].warn(f"the vocabulary cannot write {phrase!r}, so the output need not contain it")
    return asked


def _changed(
    cutter: PhraseCutter, asked: _Asked, guesses: list[Hypothesis], given: int, *, last: bool
) -> _Asked | None:
    """What to ask instead, if an output is not as it should be; else None, with a warning where nothing can be done."""
    if not guesses:
        shown = ", ".join(repr(phrase) for phrase in asked.phrases.required)
        asked.warn(f"no output can contain {shown} (max_length, or what is forbidden, leaves no room); it need not")
        return replace(asked, demands=replace(asked.demands, required=()), phrases=replace(asked.phrases, required=()))
    spans, leaks = list[Ids](), dict[str, None]()
    for phrase in asked.phrases.forbidden:
        for guess in guesses:
            if found := cutter.said(phrase, guess.tokens, given):
                spans += found
                leaks[phrase] = None
    if spans and not last and (new := set(spans) - set(asked.demands.forbidden)):
        forbidden = (*asked.demands.forbidden, *sorted(new))
        return replace(asked, demands=replace(asked.demands, forbidden=forbidden))
    for phrase in leaks:
        asked.warn(f"the output contains {phrase!r} all the same; no other was found")
    texts = cutter.tokenizer.decode_many([guess.tokens for guess in guesses])
    for phrase in asked.phrases.required:
        if not all(occurrences(phrase, text) for text in texts):
            asked.warn(f"the output does not contain {phrase!r} as words of its own")
    return None
