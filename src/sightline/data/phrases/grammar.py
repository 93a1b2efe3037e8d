"""The grammar of the built-in corpus: a clause is drawn once, and written in English and in German."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from random import Random
from typing import NamedTuple, TypeVar

from sightline.data.phrases import lexicon
from sightline.data.phrases.clauses import Clause, Phrase, Word, english_clause, german_main, german_subordinate
from sightline.data.phrases.lexicon import Verb

Item = TypeVar("Item")

_CONCEPTS = 40  # numbers that a phrase or a clause takes: more than either has concepts
_SURNAME_PARTS = ("surname_starts", "surname_middles", "surname_ends")
_KINDS = ("person", "animal", "thing", "bookable", "green", "food", "firm")


class Sentence(NamedTuple):
    """A sentence in both languages, with its polarity."""

    english: tuple[Word, ...]
    german: tuple[Word, ...]
    polarity: int


class Grammar:
    """Draws sentences with `random`; `keep_name` decides which surnames are allowed."""

    def __init__(self, random: Random, keep_name: Callable[[str], bool]) -> None:
        self.random = random
        self.keep_name = keep_name
        self._numbers = count(0, _CONCEPTS)

    def sentence(self, clauses: int) -> Sentence:
        """A sentence with this number of clauses."""
        if clauses == 1:
            return self._simple(self._clause(0), self.chance(0.15))
        draw = self.random.random()
        if draw < 0.35:
            return self._simple(self._clause(clauses - 1), self.chance(0.1))
        relatives = int(self.random.random() * (clauses - 1))  # relative clauses of the first of two clauses
        other = clauses - 2 - relatives
        if draw < 0.7:
            return self._subordinated(relatives, other)
        if draw < 0.83:
            return self._reported(clauses - 2)
        return self._coordinated(relatives, other)

    def chance(self, share: float) -> bool:
        """True with this probability."""
        return self.random.random() < share

    def choose(self, items: Sequence[Item]) -> Item:
        """One of the items, uniformly."""
        return items[int(self.random.random() * len(items))]

    def _simple(self, clause: Clause, question: bool) -> Sentence:
        clause.fronted = clause.fronted and not question
        english, german = english_clause(clause, question), german_main(clause, question=question)
        return Sentence(tuple(english), tuple(german), 0 if question else clause.polarity)

    def _subordinated(self, relatives: int, other: int) -> Sentence:
        """Main and subordinate clause, in either order; a pronoun in one refers to a phrase of the other."""
        at = next(self._numbers)
        english, german, tense = self.choose(
            (("because", "weil", ""), ("although", "obwohl", ""), ("when", "wenn", "present"), ("when", "als", "past"))
        )
        main = self._clause(relatives, tense=tense, fronted=False)
        clause = self._clause(other, tense=tense, fronted=False, earlier=main)
        english_words = Word(english, (at,), "SCONJ"), *english_clause(clause)
        german_words = Word(german, (at,)), *german_subordinate(clause)
        if self.chance(0.35):
            english_words, german_words = (
                (*english_words, *english_clause(main)),
                (*german_words, *german_main(main, inverted=True)),
            )
        else:
            english_words, german_words = (*english_clause(main), *english_words), (*german_main(main), *german_words)
        return Sentence(english_words, german_words, main.polarity)

    def _reported(self, relatives: int) -> Sentence:
        """Reported speech (X says that ...), which has no polarity."""
        at = next(self._numbers)
        verb = self.choose(lexicon.verbs("reporting_verbs"))
        subject = self._phrase((verb.subject,))
        main = Clause(next(self._numbers), subject, verb, tense=self.choose(("present", "present", "past")))
        clause = self._clause(relatives, fronted=False, earlier=main)
        return Sentence(
            (*english_clause(main), Word("that", (at,), "SCONJ"), *english_clause(clause)),
            (*german_main(main), Word("dass", (at,)), *german_subordinate(clause)),
            0,
        )

    def _coordinated(self, relatives: int, other: int) -> Sentence:
        """Two main clauses; the polarity is that of the last clause that has one."""
        at = next(self._numbers)
        english, german = self.choose((("and", "und"), ("but", "aber")))
        first, second = self._clause(relatives), self._clause(other)
        return Sentence(
            (*english_clause(first), Word(english, (at,), "CCONJ"), *english_clause(second)),
            (*german_main(first), Word(german, (at,)), *german_main(second)),
            second.polarity or first.polarity,
        )

    def _clause(
        self, relatives: int, *, tense: str = "", fronted: bool | None = None, earlier: Clause | None = None
    ) -> Clause:
        """A clause with this number of (nested) relative clauses."""
        while True:  # until there are enough phrases for them
            draw = self._predicative if self.chance(0.25) else self._verbal
            clause = draw(tense, earlier, relatives > 0)
            if self._add_relatives(clause, relatives):
                break
        if fronted is None and clause.time is not None:
            clause.fronted = self.chance(0.5)
        return clause

    def _verbal(self, tense: str, earlier: Clause | None, full: bool) -> Clause:
        """A clause with a full verb, without relative clauses; `full`: with nouns, which can have them."""
        verb = self._verb()
        subject = self._pronoun(earlier.subject if earlier else None, verb.subject) or self._phrase(
            (verb.subject,), full=full
        )
        thing = None
        if verb.case:
            kinds = _KINDS if verb.object == "any" else (verb.object,)
            referent = earlier.object if earlier else None
            thing = self._pronoun(referent, verb.object) or self._phrase(kinds, full=full)
        clause = Clause(next(self._numbers), subject, verb, thing)
        clause.tense = tense or self.choose(("present", "present", "past", "past", "perfect", "future"))
        if clause.tense in ("present", "past") and self.chance(0.15):
            clause.modal = "want" if clause.tense == "past" else self.choose(("can", "must", "should", "want"))
        counted = thing is not None and bool(thing.numeral)
        if self.chance(0.25) and clause.modal != "must" and not counted:
            clause.negation = "never" if self.chance(0.3) and clause.tense != "future" else "not"
        self._add_adverbials(clause)
        return clause

    def _predicative(self, tense: str, earlier: Clause | None, full: bool) -> Clause:
        """X is (very) Y."""
        subject = self._pronoun(earlier.subject if earlier else None, "any")
        if subject is None:
            subject = self._phrase((self.choose(_KINDS),), full=full, disambiguate=True)
        kinds = subject.noun.kinds if subject.noun else frozenset({"person"})
        other = [each for each in lexicon.adjectives(kinds) if each not in subject.adjectives]
        clause = Clause(next(self._numbers), subject, None, predicate=self.choose(other), very=self.chance(0.3))
        clause.tense = tense or self.choose(("present", "present", "past", "future"))
        if self.chance(0.3) and not clause.very:
            clause.negation = "not"
        self._add_adverbials(clause)
        return clause

    def _verb(self) -> Verb:
        """A verb; verbs with a polarity are drawn more often."""
        return self.choose(lexicon.verbs_with(self.chance(0.6)))

    def _add_adverbials(self, clause: Clause) -> None:
        draw = self.random.random()
        if draw < 0.25:
            clause.time = self.choose(lexicon.adverbials("time", clause.tense))
        elif draw < 0.4 and not clause.negation and not clause.modal and clause.tense != "future":
            clause.frequency = self.choose(lexicon.adverbials("frequency", clause.tense))
        if clause.verb is not None and self.chance(0.2):
            clause.place = self.choose(lexicon.adverbials("place", clause.tense))

    def _pronoun(self, phrase: Phrase | None, kind: str) -> Phrase | None:
        """A pronoun for a phrase of an earlier clause, in half of the possible cases; else None."""
        if phrase is None or phrase.pronoun or not self.chance(0.5):
            return None
        kinds = phrase.noun.kinds if phrase.noun else {"person", "animate"}
        if kind != "any" and kind not in kinds:
            return None
        return Phrase(
            next(self._numbers),
            phrase.plural,
            phrase.gender,
            phrase.english_pronoun,
            pronoun=True,
            noun=phrase.noun,
            determiner="the",
        )

    def _add_relatives(self, clause: Clause, relatives: int) -> bool:
        """Add this number of relative clauses to the phrases of a clause; False if there are too few phrases."""
        if relatives == 0:
            return True
        bearers = [each for each in (clause.subject, clause.object) if each and each.noun and not each.pronoun]
        if not bearers:
            return False
        first = self.choose(bearers)
        others = [each for each in bearers if each is not first]
        left = int(self.random.random() * relatives) if others else 0  # for the other phrase
        first.relative = self._relative(first, relatives - 1 - left)
        if left:
            others[0].relative = self._relative(others[0], left - 1)
        return True

    def _relative(self, phrase: Phrase, relatives: int) -> Clause:
        """A relative clause about a phrase, as its subject or its object."""
        assert phrase.noun is not None
        kinds, full = phrase.noun.kinds, relatives > 0
        while True:
            verb = self._verb()
            tense = self.choose(("present", "past", "perfect"))
            other: Phrase | None = None
            if verb.subject in kinds and self.chance(0.5):
                if verb.case:
                    objects = ("person", "animal", "thing", "food") if verb.object == "any" else (verb.object,)
                    other = self._phrase(objects, full=full)
                clause = Clause(next(self._numbers), phrase, verb, other, tense=tense)
            elif verb.case and (verb.object == "any" or verb.object in kinds):
                other = self._phrase((verb.subject,), full=full)
                clause = Clause(next(self._numbers), other, verb, phrase, tense=tense)
            else:
                continue
            if relatives and (other is None or other.noun is None):
                continue
            if relatives:
                assert other is not None
                other.relative = self._relative(other, relatives - 1)
            elif self.chance(0.2):
                clause.negation = "not"
            if clause.object is not None and clause.object.numeral:
                clause.negation = ""
            return clause

    def _phrase(self, kinds: Sequence[str], *, full: bool = False, disambiguate: bool = False) -> Phrase:
        """A noun or (unless `full`) a name of one of these kinds.

        An ambiguous noun gets an adjective that selects its meaning if the kinds do not, or with `disambiguate`.
        """
        kind = self.choose(kinds)
        if kind in ("person", "animate") and not full and self.chance(0.5 if kind == "person" else 0.3):
            return self._name()
        noun = self.choose(lexicon.nouns(kind))
        plural = self.chance(0.35)
        phrase = Phrase(next(self._numbers), plural, noun.gender, noun.pronoun, noun=noun)
        if plural and self.chance(0.25):
            digits = self.choose((1, 2, 2, 3, 4))
            phrase.numeral = str(max(2, int(10 ** (digits - 1) + self.random.random() * 9 * 10 ** (digits - 1))))
        else:
            determiners = ("the", "the", "the", "this", "my", "a") if not plural else ("the", "the", "this", "my", "")
            phrase.determiner = self.choose(determiners)
        if noun.singular in lexicon.ambiguous() and (disambiguate or len(kinds) > 1):
            name = self.choose(lexicon.word_list(f"adjectives_of_{'animate' if 'animate' in noun.kinds else 'thing'}"))
            phrase.adjectives.append(next(each for each in lexicon.adjectives() if each.english == name))
        elif self.chance(0.35):
            phrase.adjectives.append(self.choose(lexicon.adjectives(noun.kinds)))
        return phrase

    def _name(self) -> Phrase:
        gender = self.choose("fm")
        name = [self.choose(lexicon.word_list("female_names" if gender == "f" else "male_names"))]
        if self.chance(0.5):
            parts = [lexicon.word_list(part) for part in _SURNAME_PARTS]
            while not self.keep_name(surname := "".join(map(self.choose, parts))):
                pass
            name.append(surname)
        pronoun = "she" if gender == "f" else "he"
        return Phrase(next(self._numbers), gender=gender, english_pronoun=pronoun, name=tuple(name))
