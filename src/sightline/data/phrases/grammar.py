"""The grammar of the built-in corpus: a clause is drawn once, and written in English and in German.

English has the verb after the subject; German has the finite verb second in a main clause and last in a subordinate
one, and prefixes, participles and infinitives at the end. Each word has the concepts that it expresses; two words are
aligned if they share one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import NamedTuple, TypeVar

from sightline.data.phrases import lexicon
from sightline.data.phrases.lexicon import Adjective, Adverbial, Noun, Verb

Item = TypeVar("Item")


class Word(NamedTuple):
    """A word and the concepts it expresses; English ones have a part of speech."""

    text: str
    concepts: tuple[int, ...]
    tag: str = ""


Words = list[Word]


@dataclass
class Phrase:
    """A noun phrase: a name, a noun or a pronoun; `plural` is its number."""

    number: int  # its first concept
    plural: bool = False
    gender: str = "n"
    english_pronoun: str = "it"
    name: tuple[str, ...] = ()
    pronoun: bool = False
    noun: Noun | None = None
    determiner: str = ""  # the, this, a, my, or "" for a number or none
    numeral: str = ""
    adjectives: list[Adjective] = field(default_factory=list)
    relative: Clause | None = None

    @property
    def definite(self) -> bool:
        """Whether it precedes an adverb of time in German."""
        return self.noun is None or self.determiner in ("the", "this", "my")


@dataclass
class Clause:
    """A subject and its predicate."""

    number: int  # its first concept
    subject: Phrase
    verb: Verb | None  # None: to be
    object: Phrase | None = None
    predicate: Adjective | None = None
    very: bool = False
    tense: str = "present"  # present, past, perfect, future
    modal: str = ""  # can, must, should, want
    negation: str = ""  # not, never
    time: Adverbial | None = None
    fronted: bool = False  # whether `time` is fronted
    frequency: Adverbial | None = None
    place: Adverbial | None = None

    @property
    def polarity(self) -> int:
        """1: positive, -1: negative; negation inverts it."""
        own = self.verb.polarity if self.verb else self.predicate.polarity if self.predicate else 0
        return -own if self.negation else own


_MODALS = {"can": ("kann", "können"), "must": ("muss", "müssen"), "should": ("soll", "sollen")}
_HAVE = {"haben": ("hat", "haben"), "sein": ("ist", "sind")}
_ADVERBS = {"not": ("nicht", "PART"), "never": ("nie", "ADV")}
_CONCEPTS = 40  # of a phrase or a clause: more than either has


# --- English ---------------------------------------------------------------------------------------------------------


def english_phrase(phrase: Phrase, case: str) -> Words:
    """A noun phrase in English."""
    at = phrase.number
    if phrase.pronoun:
        return [Word(lexicon.english_pronoun(case, phrase.english_pronoun, phrase.plural), (at,), "PRON")]
    if phrase.noun is None:
        return [Word(part, (at + place,), "PROPN") for place, part in enumerate(phrase.name)]
    words = []
    if phrase.determiner:
        plural_this = phrase.determiner == "this" and phrase.plural
        tag = "PRON" if phrase.determiner == "my" else "DET"
        words.append(Word("these" if plural_this else phrase.determiner, (at,), tag))
    if phrase.numeral:
        words.append(Word(phrase.numeral, (at + 1,), "NUM"))
    words += [Word(each.english, (at + 3 + place,), "ADJ") for place, each in enumerate(phrase.adjectives)]
    words.append(Word(phrase.noun.plural if phrase.plural else phrase.noun.singular, (at + 2,), "NOUN"))
    if phrase.determiner == "a" and re.match("[aeio]|ug", words[1].text):
        words[0] = words[0]._replace(text="an")
    return words + ([] if phrase.relative is None else english_relative(phrase, phrase.relative))


def english_relative(phrase: Phrase, clause: Clause) -> Words:
    """An English relative clause; its noun has the role of `phrase` in it."""
    assert phrase.noun is not None
    who = Word("who" if "person" in phrase.noun.kinds else "that", (clause.number + 9,), "PRON")
    subject = [] if clause.subject is phrase else english_phrase(clause.subject, "nom")
    return [who, *subject, *_english_rest(clause, gap=clause.object is phrase)]


def english_clause(clause: Clause, question: bool = False) -> Words:
    """A clause in English, main or subordinate."""
    front = _adverbial(clause.time, clause.number + 20) if clause.fronted else []
    subject = english_phrase(clause.subject, "nom")
    if not question:
        return [*front, *subject, *_english_rest(clause)]
    auxiliary, *rest = _english_rest(clause, question=True)
    return [auxiliary, *subject, *rest]


def _english_rest(clause: Clause, *, gap: bool = False, question: bool = False) -> Words:
    """What follows the subject; in questions the first word precedes the subject. `gap`: without the object."""
    words = _english_verbs(clause, question)
    if clause.predicate is not None:
        words += [Word("very", (clause.number + 7,), "ADV")] if clause.very else []
        words.append(Word(clause.predicate.english, (clause.number + 8,), "ADJ"))
    if clause.object is not None and not gap:
        words += english_phrase(clause.object, "acc")
    words += _adverbial(clause.place, clause.number + 30)
    return words + ([] if clause.fronted else _adverbial(clause.time, clause.number + 20))


def _english_verbs(clause: Clause, question: bool) -> Words:
    """Auxiliary, negation, adverb and verb."""
    at, plural, verb = clause.number, clause.subject.plural, clause.verb
    negation = [] if not clause.negation else [Word(clause.negation, (at + 4,), _ADVERBS[clause.negation][1])]
    between = negation + _adverbial(clause.frequency, at + 35)
    past = clause.tense == "past"
    if verb is None:
        if clause.tense == "future":
            return [Word("will", (at + 1,), "AUX"), *between, Word("be", (at,), "AUX")]
        form = ("were" if plural else "was") if past else ("are" if plural else "is")
        return [Word(form, (at,), "AUX"), *between]
    particle = [Word(verb.particle, (at + 2,), "ADP" if verb.particle == "up" else "ADV")] if verb.particle else []
    if clause.tense == "perfect":
        have = Word("have" if plural else "has", (at + 1,), "AUX")
        return [have, *between, Word(verb.participle, (at,), "VERB"), *particle]
    if clause.tense == "future" or clause.modal in _MODALS:
        first = Word("will" if clause.tense == "future" else clause.modal, (at + 1,), "AUX")
        return [first, *between, Word(verb.base, (at,), "VERB"), *particle]
    infinitive: Words = []
    forms, concept = (verb.base, verb.third, verb.past), at
    if clause.modal == "want":
        forms, concept = ("want", "wants", "wanted"), at + 1
        infinitive = [Word("to", (at,), "PART"), Word(verb.base, (at,), "VERB")]
    if question or clause.negation == "not":  # do-support
        do = Word("did" if past else "do" if plural else "does", (concept,), "AUX")
        return [do, *between, Word(forms[0], (concept,), "VERB"), *infinitive, *particle]
    form = forms[2] if past else forms[0 if plural else 1]
    return [*between, Word(form, (concept,), "VERB"), *infinitive, *particle]


def _adverbial(adverbial: Adverbial | None, at: int) -> Words:
    """The English words of an adverbial, with its concepts."""
    if adverbial is None:
        return []
    return [
        Word(word, _shared(adverbial, at, 0, place), tag)
        for place, (word, tag) in enumerate(zip(adverbial.english, adverbial.tags, strict=True))
    ]


def _german_adverbial(adverbial: Adverbial | None, at: int) -> Words:
    if adverbial is None:
        return []
    return [Word(word, _shared(adverbial, at, 1, place)) for place, word in enumerate(adverbial.german)]


def _shared(adverbial: Adverbial, at: int, side: int, place: int) -> tuple[int, ...]:
    return tuple(at + number for number, link in enumerate(adverbial.links) if link[side] == place)


# --- German ----------------------------------------------------------------------------------------------------------


def german_phrase(phrase: Phrase, case: str, negated: int | None = None) -> Words:
    """A noun phrase in German; `negated` is the concept of a negation that its article expresses (kein)."""
    at, plural, gender = phrase.number, phrase.plural, phrase.gender
    if phrase.pronoun:
        return [Word(lexicon.pronoun(case, gender, plural), (at,))]
    if phrase.noun is None:
        return [Word(part, (at + place,)) for place, part in enumerate(phrase.name)]
    words = []
    kind = phrase.determiner if negated is None else "no"
    if kind:
        concepts = ((at,) if phrase.determiner else ()) + (() if negated is None else (negated,))
        words.append(Word(lexicon.article(kind, case, gender, plural), concepts))
    if phrase.numeral:
        words.append(Word(phrase.numeral, (at + 1,)))
    ending = lexicon.adjective_ending(kind, case, gender, plural)
    words += [Word(each.stem + ending, (at + 3 + place,)) for place, each in enumerate(phrase.adjectives)]
    words.append(Word(lexicon.noun_form(phrase.noun, case, plural), (at + 2,)))
    return words + ([] if phrase.relative is None else german_relative(phrase, phrase.relative))


def german_relative(phrase: Phrase, clause: Clause) -> Words:
    """A German relative clause: its pronoun has the gender of the noun and the case of its role; the verb is last."""
    subject = clause.subject is phrase
    case = "nom" if subject or clause.verb is None else clause.verb.case
    who = Word(lexicon.relative_pronoun(case, phrase.gender, phrase.plural), (clause.number + 9,))
    return [who, *_verb_last(clause, subject=not subject, gap=clause.object is phrase)]


def german_subordinate(clause: Clause) -> Words:
    """A German clause after weil, dass, ...: the verb is last."""
    return _verb_last(clause, subject=True)


def german_main(clause: Clause, *, question: bool = False, inverted: bool = False) -> Words:
    """A German main clause: a constituent, the finite verb, the rest. `inverted`: the constituent is outside."""
    finite, rest = _german_verbs(clause, apart=True)
    subject = german_phrase(clause.subject, "nom")
    if clause.fronted:
        front = [*_german_adverbial(clause.time, clause.number + 20), *finite, *subject]
    else:
        front = [*finite, *subject] if question or inverted else [*subject, *finite]
    return [*front, *_middle(clause), *rest]


def _verb_last(clause: Clause, *, subject: bool, gap: bool = False) -> Words:
    finite, rest = _german_verbs(clause, apart=False)
    return [*(german_phrase(clause.subject, "nom") if subject else []), *_middle(clause, gap), *rest, *finite]


def _middle(clause: Clause, gap: bool = False) -> Words:
    """The middle field: definite object, time, indefinite object, negation, place, predicate."""
    at, thing = clause.number, clause.object
    negation = [Word(_ADVERBS[clause.negation][0], (at + 4,))] if clause.negation else []
    when = [] if clause.fronted else _german_adverbial(clause.time, at + 20)
    when += _german_adverbial(clause.frequency, at + 35)
    if clause.negation == "never":
        when, negation = when + negation, []
    where = _german_adverbial(clause.place, at + 30)
    words: Words = []
    if thing is not None and not gap:
        assert clause.verb is not None
        if thing.definite:
            words = [*german_phrase(thing, clause.verb.case), *when]
        else:
            absorbed = at + 4 if negation else None
            words, negation = [*when, *german_phrase(thing, clause.verb.case, absorbed)], []
    else:
        words = when
    predicate: Words = []
    if clause.predicate is not None:
        predicate = [Word("sehr", (at + 7,))] if clause.very else []
        predicate.append(Word(clause.predicate.german, (at + 8,)))
    return [*words, *negation, *where, *predicate]


def _german_verbs(clause: Clause, *, apart: bool) -> tuple[Words, Words]:
    """The finite verb, and the final verb forms; with `apart` the prefix of the finite verb is one of them."""
    at, verb = clause.number, clause.verb
    row = int(clause.subject.plural)
    past = clause.tense == "past"
    if verb is None:
        if clause.tense == "future":
            return [Word(("wird", "werden")[row], (at + 1,))], [Word("sein", (at,))]
        return [Word((("ist", "sind"), ("war", "waren"))[past][row], (at,))], []
    whole = (at, at + 2) if verb.particle else (at,)
    if clause.tense == "perfect":
        return [Word(_HAVE[verb.auxiliary][row], (at + 1,))], [Word(verb.german_participle, whole)]
    if clause.tense == "future" or clause.modal:
        if clause.tense == "future":
            form = ("wird", "werden")[row]
        elif clause.modal == "want":
            form = (("will", "wollen"), ("wollte", "wollten"))[past][row]
        else:
            form = _MODALS[clause.modal][row]
        return [Word(form, (at + 1,))], [Word(verb.prefix + verb.german, whole)]
    form = lexicon.finite(verb, past, clause.subject.plural)
    if not verb.prefix:
        return [Word(form, (at,))], []
    if not apart:
        return [Word(verb.prefix + form, whole)], []
    return [Word(form, (at,))], [Word(verb.prefix, (at + 2,) if verb.particle else (at,))]


# --- drawing ---------------------------------------------------------------------------------------------------------


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
        inside = int(self.random.random() * (clauses - 1))  # relative clauses of the first of two clauses
        other = clauses - 2 - inside
        if draw < 0.7:
            return self._subordinated(inside, other)
        if draw < 0.83:
            return self._reported(clauses - 2)
        return self._coordinated(inside, other)

    def chance(self, share: float) -> bool:
        """True with this probability."""
        return self.random.random() < share

    def choose(self, items: Sequence[Item]) -> Item:
        """One of the items, uniformly."""
        return items[int(self.random.random() * len(items))]

    def _number(self) -> int:
        return next(self._numbers)

    def _simple(self, clause: Clause, question: bool) -> Sentence:
        if question:
            clause.fronted = False
            return Sentence(tuple(english_clause(clause, True)), tuple(german_main(clause, question=True)), 0)
        return Sentence(tuple(english_clause(clause)), tuple(german_main(clause)), clause.polarity)

    def _subordinated(self, inside: int, other: int) -> Sentence:
        """Main and subordinate clause, in either order; a pronoun in one refers to a phrase of the other."""
        at = self._number()
        english, german, tense = self.choose(
            (("because", "weil", ""), ("although", "obwohl", ""), ("when", "wenn", "present"), ("when", "als", "past"))
        )
        main = self._clause(inside, tense=tense, fronted=False)
        clause = self._clause(other, tense=tense, fronted=False, earlier=main)
        links = [Word(english, (at,), "SCONJ")], [Word(german, (at,))]
        said = [*links[0], *english_clause(clause)], [*links[1], *german_subordinate(clause)]
        if self.chance(0.35):
            words = [*said[0], *english_clause(main)], [*said[1], *german_main(main, inverted=True)]
        else:
            words = [*english_clause(main), *said[0]], [*german_main(main), *said[1]]
        return Sentence(tuple(words[0]), tuple(words[1]), main.polarity)

    def _reported(self, relatives: int) -> Sentence:
        """Reported speech (X says that ...), which has no polarity."""
        at = self._number()
        verb = self.choose(lexicon.saying())
        subject = self._phrase((verb.subject,), object_=False)
        main = Clause(self._number(), subject, verb, tense=self.choose(("present", "present", "past")))
        clause = self._clause(relatives, fronted=False, earlier=main)
        english = [*english_clause(main), Word("that", (at,), "SCONJ"), *english_clause(clause)]
        german = [*german_main(main), Word("dass", (at,)), *german_subordinate(clause)]
        return Sentence(tuple(english), tuple(german), 0)

    def _coordinated(self, inside: int, other: int) -> Sentence:
        """Two main clauses; the polarity is that of the last clause that has one."""
        at = self._number()
        english, german = self.choose((("and", "und"), ("but", "aber")))
        first, second = self._clause(inside), self._clause(other)
        return Sentence(
            (*english_clause(first), Word(english, (at,), "CCONJ"), *english_clause(second)),
            (*german_main(first), Word(german, (at,)), *german_main(second)),
            second.polarity or first.polarity,
        )

    # --- clauses -----------------------------------------------------------------------------------------------------

    def _clause(
        self, relatives: int, *, tense: str = "", fronted: bool | None = None, earlier: Clause | None = None
    ) -> Clause:
        """A clause with this number of (nested) relative clauses."""
        while True:  # until there are phrases enough to carry them
            clause = self._bare(tense, earlier, full=relatives > 0)
            if self._carry(clause, relatives):
                break
        if fronted is None and clause.time is not None:
            clause.fronted = self.chance(0.5)
        return clause

    def _bare(self, tense: str, earlier: Clause | None, full: bool) -> Clause:
        """A clause without relative clauses; `full`: with nouns, which can have them."""
        if self.chance(0.25):
            return self._predicative(tense, earlier, full)
        verb = self._verb()
        subject = self._standing_for(earlier, "subject", verb.subject) or self._phrase(
            (verb.subject,), object_=False, full=full
        )
        thing = None
        if verb.case:
            kinds = ("person", "animal", "thing", "bookable", "green", "food", "firm") if verb.object == "any" else ()
            thing = self._standing_for(earlier, "object", verb.object) or self._phrase(
                kinds or (verb.object,), object_=True, full=full
            )
        clause = Clause(self._number(), subject, verb, thing)
        clause.tense = tense or self.choose(("present", "present", "past", "past", "perfect", "future"))
        if clause.tense in ("present", "past") and self.chance(0.15):
            clause.modal = "want" if clause.tense == "past" else self.choose(("can", "must", "should", "want"))
        counted = thing is not None and bool(thing.numeral)
        if self.chance(0.25) and clause.modal != "must" and not counted:
            clause.negation = "never" if self.chance(0.3) and clause.tense != "future" else "not"
        self._adverbs(clause)
        return clause

    def _predicative(self, tense: str, earlier: Clause | None, full: bool) -> Clause:
        """X is (very) Y."""
        subject = self._standing_for(earlier, "subject", "any")
        if subject is None:
            kinds = ("person", "animal", "thing", "bookable", "green", "food", "firm")
            subject = self._phrase((self.choose(kinds),), object_=False, full=full, free=True)
        kinds_of = subject.noun.kinds if subject.noun else frozenset({"person"})
        known = [each for each in lexicon.adjectives_for(kinds_of) if each not in subject.adjectives]
        clause = Clause(self._number(), subject, None, predicate=self.choose(known), very=self.chance(0.3))
        clause.tense = tense or self.choose(("present", "present", "past", "future"))
        if self.chance(0.3) and not clause.very:
            clause.negation = "not"
        self._adverbs(clause)
        return clause

    def _verb(self) -> Verb:
        """A verb; verbs with a polarity are drawn more often."""
        return self.choose(lexicon.verbs_with(self.chance(0.6)))

    def _adverbs(self, clause: Clause) -> None:
        draw = self.random.random()
        if draw < 0.25:
            clause.time = self.choose(lexicon.adverbials("time", clause.tense))
        elif draw < 0.4 and not clause.negation and not clause.modal and clause.tense != "future":
            clause.frequency = self.choose(lexicon.adverbials("frequency", clause.tense))
        if clause.verb is not None and self.chance(0.2):
            clause.place = self.choose(lexicon.adverbials("place", clause.tense))

    def _standing_for(self, earlier: Clause | None, role: str, kind: str) -> Phrase | None:
        """Replace a phrase by a pronoun for the same role in an earlier clause, in half of the possible cases."""
        phrase = None if earlier is None else earlier.subject if role == "subject" else earlier.object
        if phrase is None or phrase.pronoun or not self.chance(0.5):
            return None
        kinds = phrase.noun.kinds if phrase.noun else frozenset({"person", "animate"})
        if kind != "any" and kind not in kinds:
            return None
        return Phrase(
            self._number(),
            phrase.plural,
            phrase.gender,
            phrase.english_pronoun,
            pronoun=True,
            noun=phrase.noun,
            determiner="the",
        )

    def _carry(self, clause: Clause, relatives: int) -> bool:
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
        kinds = phrase.noun.kinds
        while True:
            verb = self._verb()
            tense = self.choose(("present", "past", "perfect"))
            if verb.subject in kinds and self.chance(0.5):
                thing = None
                if verb.case:
                    wanted = ("person", "animal", "thing", "food") if verb.object == "any" else (verb.object,)
                    thing = self._phrase(wanted, object_=True, full=relatives > 0)
                clause = Clause(self._number(), phrase, verb, thing, tense=tense)
                carrier = thing
            elif verb.case and (verb.object == "any" or verb.object in kinds):
                subject = self._phrase((verb.subject,), object_=False, full=relatives > 0)
                clause = Clause(self._number(), subject, verb, phrase, tense=tense)
                carrier = subject
            else:
                continue
            if relatives and (carrier is None or carrier.noun is None):
                continue
            if relatives:
                assert carrier is not None
                carrier.relative = self._relative(carrier, relatives - 1)
            elif self.chance(0.2):
                clause.negation = "not"
            if clause.object is not None and clause.object.numeral:
                clause.negation = ""
            return clause

    # --- phrases -----------------------------------------------------------------------------------------------------

    def _phrase(self, kinds: Sequence[str], *, object_: bool, full: bool = False, free: bool = False) -> Phrase:
        """A noun or a name of one of these kinds. `free`: the context does not disambiguate a noun."""
        kind = self.choose(kinds)
        if kind in ("person", "animate") and not full and self.chance(0.5 if kind == "person" else 0.3):
            return self._name()
        noun = self.choose(lexicon.nouns_of(kind))
        plural = self.chance(0.35)
        phrase = Phrase(self._number(), plural, noun.gender, noun.pronoun, noun=noun)
        if plural and self.chance(0.25):
            phrase.numeral = self._numeral()
        else:
            determiners = ("the", "the", "the", "this", "my", "a") if not plural else ("the", "the", "this", "my", "")
            phrase.determiner = self.choose(determiners)
        if noun.singular in lexicon.ambiguous() and (free or len(kinds) > 1):
            telling = lexicon.TELLING["animate" if "animate" in noun.kinds else "thing"]
            name = self.choose(telling)
            phrase.adjectives.append(next(each for each in lexicon.adjectives() if each.english == name))
        elif self.chance(0.35):
            phrase.adjectives.append(self.choose(lexicon.adjectives_for(noun.kinds)))
        return phrase

    def _name(self) -> Phrase:
        gender = self.choose("fm")
        name: tuple[str, ...] = (self.choose(lexicon.FIRST_NAMES[gender]),)
        if self.chance(0.5):
            name += (self._surname(),)
        return Phrase(self._number(), gender=gender, english_pronoun="she" if gender == "f" else "he", name=name)

    def _surname(self) -> str:
        while True:
            name = "".join(self.choose(parts) for parts in lexicon.NAME_PARTS)
            if self.keep_name(name):
                return name

    def _numeral(self) -> str:
        digits = self.choose((1, 2, 2, 3, 4))
        return str(max(2, int(10 ** (digits - 1) + self.random.random() * 9 * 10 ** (digits - 1))))
