"""Questions about short generated paragraphs; every answer is a span of its paragraph.

"Anna fed the dog in the garden . the old king will sleep at home | who fed the dog" → "Anna". The sentences are those
of the phrases corpus with one clause. Sentences of a paragraph often share a verb, so that it alone does not find the
answer, and a question is only asked if exactly one sentence answers it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

from sightline.data.phrases.clauses import Clause, Phrase, Words, english_clause, english_phrase
from sightline.data.phrases.grammar import Grammar
from sightline.data.phrases.lexicon import Adverbial, Verb
from sightline.data.sources import Example, Numbered, part_of
from sightline.data.text_files import DataError, LineLimit
from sightline.recipe.sources import QuestionsSource

STOP, SEPARATOR = ".", "|"  # between sentences; between paragraph and question
_PATIENCE = 10_000  # draws for each paragraph; a split has at least a tenth of all paragraphs


class _Paragraph(Grammar):
    """A grammar whose sentences take their verbs from a few."""

    verbs: list[Verb]

    def draw(self, sentences: int) -> list[Clause]:
        """Main clauses with as many verbs to choose from as there are sentences."""
        self.verbs = [super(_Paragraph, self)._verb() for _ in range(sentences)]
        return [self._clause(0) for _ in range(sentences)]

    def _verb(self) -> Verb:
        return self.choose(self.verbs)


def questions(clause: Clause) -> Iterator[tuple[str, str]]:
    """The questions that a main clause answers, with their answers: who or what does it, to what, where and when."""
    bare = replace(clause, fronted=False, time=None, place=None, frequency=None)
    subject = replace(bare, subject=Phrase(clause.subject.number, name=(_asks_for(clause.subject),)))
    yield _text(english_clause(subject)), _text(english_phrase(clause.subject, "nom"))
    if clause.object is not None:
        asked = english_clause(replace(bare, object=None), question=True)
        yield f"{_asks_for(clause.object)} {_text(asked)}", _text(english_phrase(clause.object, "acc"))
    for word, adverbial in (("where", clause.place), ("when", clause.time)):
        if adverbial is not None:
            yield f"{word} {_text(english_clause(bare, question=True))}", _words(adverbial)


def _asks_for(phrase: Phrase) -> str:
    return "who" if phrase.noun is None or "person" in phrase.noun.kinds else "what"


def _text(words: Words) -> str:
    return " ".join(word.text for word in words)


def _words(adverbial: Adverbial) -> str:
    return " ".join(adverbial.english)


def read_questions(source: QuestionsSource) -> Iterator[Example]:
    """Paragraph, separator and question, with the answer: a pure function of the source."""
    random = Random(f"{source.seed}:{source.split}:{source.sentences}:questions")
    grammar = _Paragraph(random, lambda name: part_of(name) == source.split)
    fewest, most = source.sentences
    seen: set[str] = set()
    for _ in range(source.examples):
        for _ in range(_PATIENCE):
            clauses = grammar.draw(fewest + int(random.random() * (most - fewest + 1)))
            paragraph = f" {STOP} ".join(_text(english_clause(clause)) for clause in clauses)
            asked = [pair for clause in clauses for pair in questions(clause)]
            times = Counter(question for question, _ in asked)
            clear = [pair for pair in asked if times[pair[0]] == 1]
            if clear and paragraph not in seen and part_of(paragraph) == source.split:
                break
        else:
            raise DataError(
                f"examples: {source.examples:,} are more paragraphs of {fewest} to {most} sentences than the "
                f"{source.split} part has; lower `examples` or raise `sentences`"
            )
        seen.add(paragraph)
        question, answer = grammar.choose(clear)
        yield Example(f"{paragraph} {SEPARATOR} {question}", answer)


def read_questions_source(source: QuestionsSource, paths: list[Path], limit: LineLimit) -> Numbered:
    """The examples of `kind: questions`."""
    return enumerate(read_questions(source), 1)
