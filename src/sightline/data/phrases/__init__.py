"""The built-in bilingual corpus: English sentences of a small grammar, and the same in German.

"does Anna watch the dog that the men feed" → "beobachtet Anna den Hund den die Männer füttern". The corpus contains
what attention is for: different word order, verb agreement across relative clauses, pronouns and articles with the
gender of a distant noun, English words with two German translations that depend on the context, and names and numbers
to copy. Since it is generated, the alignment, parts of speech and sentiment of each sentence are known.

Words are separated by spaces, without punctuation, so a text, its tags and its alignment have the same words. No
sentence is in two splits, and no surname of the validation or test split occurs in another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

from sightline.data.phrases.grammar import Grammar
from sightline.data.sources import Example, Numbered, part_of
from sightline.data.text_files import DataError, LineLimit
from sightline.recipe.sources import PhrasesSource

_PATIENCE = 10_000  # draws for each sentence; a split has at least a tenth of all sentences
_SENTIMENT = {-1: "negative", 0: "neutral", 1: "positive"}


class AnnotatedPair(NamedTuple):
    """A sentence in both languages with its annotations."""

    english: str
    german: str
    tags: str  # universal parts of speech of the English words
    sentiment: str  # negative, neutral or positive
    links: frozenset[tuple[int, int]]  # (English word, German word)


def read_phrases(source: PhrasesSource) -> Iterator[Example]:
    """The examples of a source: a pure function of it."""
    for pair in phrases(source):
        match source.target:
            case "translation":
                yield Example(pair.english, pair.german)
            case "text":
                yield Example("", pair.english)
            case target:
                yield Example(pair.english, getattr(pair, target))  # tags or sentiment


def read_phrases_source(source: PhrasesSource, paths: list[Path], limit: LineLimit) -> Numbered:
    """The examples of `kind: phrases`."""
    return enumerate(read_phrases(source), 1)


def phrases(source: PhrasesSource) -> Iterator[AnnotatedPair]:
    """The annotated sentences of a source; all targets of a source have the same sentences."""
    random = Random(f"{source.seed}:{source.split}:{source.clauses}")
    grammar = Grammar(random, lambda name: part_of(name) == source.split)
    fewest, most = source.clauses
    seen: set[str] = set()
    for _ in range(source.examples):
        for _ in range(_PATIENCE):
            sentence = grammar.sentence(fewest + int(random.random() * (most - fewest + 1)))
            english = " ".join(word.text for word in sentence.english)
            if english not in seen and part_of(english) == source.split:
                break
        else:
            raise DataError(
                f"examples: {source.examples:,} are more sentences of {fewest} to {most} clauses than the "
                f"{source.split} part has; lower `examples` or raise `clauses`"
            )
        seen.add(english)
        yield AnnotatedPair(
            english,
            " ".join(word.text for word in sentence.german),
            " ".join(word.tag for word in sentence.english),
            _SENTIMENT[sentence.polarity],
            frozenset(
                (i, j)
                for i, one in enumerate(sentence.english)
                for j, other in enumerate(sentence.german)
                if not set(one.concepts).isdisjoint(other.concepts)
            ),
        )
