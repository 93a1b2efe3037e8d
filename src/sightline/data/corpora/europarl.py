"""Sentence pairs from the proceedings of the European Parliament, a German and an English XML file for each session.

Speeches (`intervention`) are matched by number, and paragraphs by order if both languages have the same number of them,
else the speech is one paragraph. Sentences within a paragraph are aligned by their lengths (Gale and Church 1993):
beads of 1-1, 1-2, 2-1 and 2-2 sentences are kept, 1-0 and 0-1 are dropped. Sessions are divided by date: train has a
share of its pairs, valid and test have the first pairs. Later sessions are only partly translated, so a pair is kept
only if its German side has a frequent German word, and its English side an English one.
"""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path

from sightline.data.corpora.catalogue import CorpusError, number_lists
from sightline.data.sources import split_position
from sightline.text.sentences import sentences

# German characters for each English one, and the variance of their difference for each character (Gale and Church, §2)
_RATIO, _VARIANCE = 1.1, 6.8
_BEADS = {(1, 1): 0.89, (1, 0): 0.0099, (0, 1): 0.0099, (1, 2): 0.0445, (2, 1): 0.0445, (2, 2): 0.011}  # with priors
_MOST_WORDS, _MOST_RATIO = 85, 2.5
_SHARE, _HELD_OUT = 0.25, 2_000  # share of the pairs in train; number of pairs in valid and test
_LARGEST = 200  # most sentences of a paragraph that are aligned


_GERMAN, _ENGLISH = (
    frozenset(words.split())
    for words in (
        "aber auf auch bei bin dank das dass daß dem den der des die diese dieser ein eine einen er es für haben hat "
        "herr ich im in ist kann mit möchte nicht noch sehr sich sie sind und uns unsere vielen von war wenn werden "
        "wie wir wird zu zum zur über",
        "a also am an and are as at be been but by can for from has have he i if in is it its like mr must not of on "
        "or our that the their there this to very was we what which will with would you thank",
    )
)

Pair = tuple[str, str]  # German, English


def europarl_files(originals: Mapping[str, Path]) -> Iterator[tuple[str, bytes]]:
    """The files of each part. No pair occurs twice, and no sentence of train in the other parts."""
    parts = {}
    for part, dates in number_lists("europarl.txt").items():
        drawn: Iterator[Pair] = chain.from_iterable(session(originals, date) for date in dates)
        if part == "train":
            drawn = (pair for pair in drawn if split_position(pair[0]) < _SHARE)
        parts[part] = list(islice(dict.fromkeys(drawn), None if part == "train" else _HELD_OUT))
    held_out = {sentence for part in ("valid", "test") for pair in parts[part] for sentence in pair}
    parts["train"] = [pair for pair in parts["train"] if not held_out.intersection(pair)]
    for part, pairs in parts.items():
        for side, language in enumerate(("de", "en")):
            yield f"{part}.{language}.xz", "".join(pair[side] + "\n" for pair in pairs).encode()


def session(originals: Mapping[str, Path], date: str) -> Iterator[Pair]:
    """The pairs of one day, in order."""
    german, english = (_speeches(originals[f"{date}.{language}.xml"]) for language in ("DE", "EN"))
    for number, paragraphs in german.items():
        others = english.get(number, [])
        if len(paragraphs) != len(others):
            paragraphs, others = [" ".join(paragraphs)], [" ".join(others)]
        for one, other in zip(paragraphs, others, strict=True):
            yield from filter(_fits, align(sentences(one), sentences(other)))


def align(german: Sequence[str], english: Sequence[str]) -> list[Pair]:
    """The sentence pairs of a paragraph: the beads of least total cost."""
    if not german or not english or max(len(german), len(english)) > _LARGEST:
        return []
    costs = [[math.inf] * (len(english) + 1) for _ in range(len(german) + 1)]
    before = [[(0, 0)] * (len(english) + 1) for _ in range(len(german) + 1)]
    costs[0][0] = 0.0
    lengths = [len(text) for text in german], [len(text) for text in english]
    for i in range(len(german) + 1):
        for j in range(len(english) + 1):
            for (di, dj), prior in _BEADS.items():
                if di > i or dj > j or math.isinf(costs[i - di][j - dj]):
                    continue
                cost = _cost(sum(lengths[0][i - di : i]), sum(lengths[1][j - dj : j])) - math.log(prior)
                if costs[i - di][j - dj] + cost < costs[i][j]:
                    costs[i][j], before[i][j] = costs[i - di][j - dj] + cost, (di, dj)
    pairs, i, j = list[Pair](), len(german), len(english)
    while i or j:
        di, dj = before[i][j]
        if di and dj:
            pairs.append((" ".join(german[i - di : i]), " ".join(english[j - dj : j])))
        i, j = i - di, j - dj
    return pairs[::-1]


def _cost(german: int, english: int) -> float:
    """−log of the probability that texts of these lengths differ as much or more: δ is normally distributed."""
    if german == english == 0:
        return 0.0
    mean = (english + german / _RATIO) / 2
    delta = abs(german - english * _RATIO) / math.sqrt(mean * _VARIANCE)
    return -math.log(max(math.erfc(delta / math.sqrt(2)), 1e-300))


def _fits(pair: Pair) -> bool:
    """Return True if both sides are sentences of a fitting length, and no remark in parentheses."""
    words = [len(text.split()) for text in pair]
    fitting = min(words) >= 1 and max(words) <= _MOST_WORDS and max(words) <= _MOST_RATIO * min(words) + 3
    translated = all(
        known.intersection(text.lower().split()) for known, text in zip((_GERMAN, _ENGLISH), pair, strict=True)
    )
    return fitting and translated and pair[0] != pair[1] and not any(text.startswith("(") for text in pair)


def _speeches(path: Path) -> dict[str, list[str]]:
    """The paragraphs of each speech, by its number."""
    try:
        root = ElementTree.parse(path).getroot()
    except ElementTree.ParseError as error:
        raise CorpusError(f"{path} is damaged: {error}; remove it and run the command again") from error
    speeches = {}
    for speech in root.iter("intervention"):
        texts = (" ".join("".join(paragraph.itertext()).split()) for paragraph in speech.iter("p"))
        speeches[speech.get("id", "")] = [text for text in texts if text]
    return speeches
