"""Split text into sentences with a few rules that need no language, and recognise scripts without spaces.

A mark of other scripts (。 ؟ ।) and a line end always end a sentence. A full stop, a question or exclamation mark does
where space follows, unless it belongs to the word before it. These do:

- a full stop behind a single letter or several (E. coli, z. B., U.S.), behind one of a few abbreviations (fig. 2),
  behind some others before a number (Nr. 5), behind a number that would be a sentence by itself (1. First);
- in a text whose sentences begin with capitals, where small letters follow: any mark but a single full stop ("Why?" he
  asked), and a full stop behind a few more abbreviations (etc.) or a short word without vowels (bzw.). Behind others it
  is an end, for names like libpng begin sentences too.

So a sentence that really ends with a single letter (vitamin C.) is not separated from the next.
"""

from __future__ import annotations

import re
from itertools import pairwise

RULES = 2  # raise with every change of the rules: part of the signatures of scores that depend on sentences

_SPACED, _CLOSING = ".!?…", r"[\"'”’“»«)\]]*"
_UNSPACED, _CLOSING_UNSPACED = "。．！？｡؟۔।॥።။។", r"[\"'”’»)\]」』】）》〉]*"
# An end followed by space, an end in scripts that need no space, or a line end (one character set first, for speed).
# Marks in a row are matched once, from the first: else a line of thousands of dots would take minutes.
_END = re.compile(
    rf"[{_SPACED}{_UNSPACED}\n](?:"
    rf"(?<=[{_SPACED}])(?<![{_SPACED}]{{2}})([{_SPACED}]*+){_CLOSING}(?=\s)"
    rf"|(?<=[{_UNSPACED}])[{_UNSPACED}]*{_CLOSING_UNSPACED}|(?<=\n))"
)
_BEFORE = re.compile(r"[^\s(\[]+$")
_NEXT = re.compile(r"[\s\"'”’“„»«‘(\[¿¡]{0,100}(\w?)(\w?)")  # nothing after very long white space
_LETTERS = re.compile(r"[^\W\d_](?:\.[^\W\d_])*")
_NUMBER = re.compile(r"\s*[(\[]?\d+")
_NO_VOWELS = re.compile(r"[A-Za-z]?[b-df-hj-np-tv-xz]{1,4}")  # but not an ACRONYM
_LONGEST = 16  # the most characters of an abbreviation
_ABBREVIATIONS = frozenset(["cf", "vs", "al", "fig", "figs", "eq", "no", "dr", "mr", "mrs", "prof", "approx", "vgl"])
_BEFORE_NUMBERS = frozenset(["nr", "nos", "vol", "pp", "ch", "sec", "art", "abs", "abb", "ca"])
_BEFORE_SMALL = frozenset(["etc", "ie", "eg", "resp", "incl", "inkl", "inc", "usw", "ca", "max", "min"])


def sentences(text: str) -> list[str]:
    """The sentences of a text, without the spaces between them; a text without an end mark is one sentence."""
    bounds = [0, *sentence_ends(text), len(text)]
    parts = (text[start:stop].strip() for start, stop in pairwise(bounds))
    return [part for part in parts if part]


def sentence_ends(text: str) -> list[int]:
    """The end offsets of the sentences, except of a last one without an end mark."""
    stops = [_Stop(text, match) for match in _END.finditer(text)]
    cased, ends, start = _begins_with_capitals(text, stops), list[int](), 0
    for stop in stops:
        if stop.end > start and not stop.continues(text, start, cased=cased):
            start = stop.end
            ends.append(start)
    return ends


class _Stop:
    """A possible end of a sentence, and its context."""

    __slots__ = ("abbreviates", "end", "may_abbreviate", "next", "plain", "second", "start", "word")

    def __init__(self, text: str, match: re.Match[str]) -> None:
        self.start = match.start()
        self.end = self.start if match[0] == "\n" else match.end()
        self.plain = match[0] == "."
        self.next, self.second = _next(text, self.end)
        before = None if match[1] is None else _BEFORE.search(text, max(0, self.start - _LONGEST), self.start)
        self.word = "" if before is None else before[0]  # the word before the mark; empty if there is none
        word = self.word.lower()
        named = word in _ABBREVIATIONS or (word in _BEFORE_NUMBERS and self.next.isdigit())
        self.abbreviates = self.plain and (named or _LETTERS.fullmatch(word) is not None)
        self.may_abbreviate = self.plain and (word in _BEFORE_SMALL or _NO_VOWELS.fullmatch(self.word) is not None)

    def continues(self, text: str, start: int, *, cased: bool) -> bool:
        """Return True if the mark belongs to the word before it, in a sentence that began at `begun`."""
        if not self.word:
            return False
        small = cased and self.next.islower()
        if not self.plain:
            return small
        return self.abbreviates or (small and self.may_abbreviate) or bool(_NUMBER.fullmatch(text, start, self.start))


def _begins_with_capitals(text: str, stops: list[_Stop]) -> bool:
    """Return True if most sentence starts (text start, after plain full stops and line ends) are capitals.

    Full stops that may belong to a word do not count, nor do TITLES.
    """
    certain = [stop for stop in stops if not stop.word or (stop.plain and not stop.abbreviates | stop.may_abbreviate)]
    starts = [_next(text, 0), *((stop.next, stop.second) for stop in certain)]
    return sum((first.isupper() and not second.isupper()) - first.islower() for first, second in starts) > 0


def _next(text: str, place: int) -> tuple[str, str]:
    """The first two characters of the next word; empty if there is none."""
    match = _NEXT.match(text, place)
    assert match is not None  # it may be empty
    return match[1], match[2]


SCRIPTS = 2  # raise with every change of UNSPACED: part of the signatures of scores that depend on it

# Ranges of scripts without spaces between words: Thai and Lao, Burmese, Khmer, Chinese and Japanese, with their digits
# and marks. Not Hangul: Korean has spaces. Not Tibetan: it has marks between syllables.
UNSPACED = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3031-\u3035\u3040-\u312f\u31a0-\u31bf\u31f0-\u31ff"
    r"\u3400-\u4dbf\u4e00-\u9fff\ua9e0-\ua9ff\uaa60-\uaa7f\uf900-\ufaff\uff66-\uff9f"
    r"\U0001aff0-\U0001b16f\U00020000-\U0003ffff"
)
_UNSPACED_CHARACTER = re.compile(f"[{UNSPACED}]")


def unspaced(character: str) -> bool:
    """Return True if a character belongs to a script without spaces between words."""
    return _UNSPACED_CHARACTER.match(character) is not None
