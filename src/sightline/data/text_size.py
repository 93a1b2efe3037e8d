"""How much training text there is, for the defaults that depend on it (recipe/defaults.py)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from itertools import islice

from sightline.data.sources import Example
from sightline.recipe.defaults import TextSize

_SAMPLE = 20_000  # examples that are searched for copied words
_TAGS = 1_000  # different target words that are looked at, to know whether they are tags
_RARE = 2  # a word is rare if the targets have it so many times or fewer
_MARKS = ".,;:!?'\"()[]{}<>=«»„“”‘’"


def measure(examples: Iterable[Example]) -> TextSize:
    """Count the examples, words and characters of a text in one pass."""
    count = source_words = target_words = source_characters = target_characters = 0
    alphabet: set[str] = set()
    tags: set[str] = set()
    sample: list[Example] = []
    for example in examples:
        count += 1
        source_words += len(example.source.split())
        target_words += len(example.target.split())
        source_characters += len(example.source)
        target_characters += len(example.target)
        alphabet.update(example.source)
        alphabet.update(example.target)
        if len(tags) < _TAGS:
            tags.update(example.target.split())
        if len(sample) < _SAMPLE:
            sample.append(example)
    return TextSize(
        count,
        source_words,
        target_words,
        source_characters,
        target_characters,
        len(alphabet),
        copied_share(sample),
        marks_spans(tags),
    )


def marks_spans(tags: Collection[str]) -> bool:
    """Whether tags are of a scheme that marks spans: B-X or I-X, O, and E-X and S-X where a scheme has them."""
    return any(tag.startswith(("B-", "I-")) for tag in tags) and all(
        tag == "O" or tag.startswith(("B-", "I-", "E-", "S-")) for tag in tags
    )


def copied_share(examples: Iterable[Example]) -> float:
    """The share of the rare target words that also occur in their own source: names and numbers to copy."""
    pairs = [(_words(example.source), _words(example.target)) for example in islice(examples, _SAMPLE)]
    counts = Counter(word for _, target in pairs for word in target)
    rare = [word in source for source, target in pairs for word in target if counts[word] <= _RARE]
    return sum(rare) / len(rare) if rare else 0.0


def _words(text: str) -> set[str]:
    return {word for word in (each.strip(_MARKS) for each in text.split()) if word}
