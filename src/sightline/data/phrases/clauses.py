"""Clauses of the built-in corpus, and how they are written in English and in German.

English has the verb after the subject; German has the finite verb second in a main clause and last in a subordinate
one, and prefixes, participles and infinitives at the end. Each word has the concepts that it expresses; two words are
aligned if they share one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from sightline.data.phrases.lexicon import (
    Adjective,
    Adverbial,
    Noun,
    Verb,
    adjective_ending,
    declined,
    finite,
    noun_form,
)


class Word(NamedTuple):
    """A word and the concepts it expresses; English words have a part of speech."""

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
    fronted: bool = False  # True if `time` is fronted
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
_OBJECTIVE = {"he": "him", "she": "her", "it": "it"}


def _adverbial(adverbial: Adverbial | None, at: int, *, german: bool = False) -> Words:
    """The words of an adverbial with its concepts, which are numbered from `at`."""
    if adverbial is None:
        return []
    words = adverbial.german if german else adverbial.english
    tags = [""] * len(words) if german else adverbial.tags
    concepts = [
        tuple(at + number for number, link in enumerate(adverbial.links) if link[german] == place)
        for place in range(len(words))
    ]
    return [Word(*each) for each in zip(words, concepts, tags, strict=True)]


def english_phrase(phrase: Phrase, case: str) -> Words:
    """A noun phrase in English, with its relative clause."""
    at, noun = phrase.number, phrase.noun
    if phrase.pronoun:
        forms = ("they", phrase.english_pronoun) if case == "nom" else ("them", _OBJECTIVE[phrase.english_pronoun])
        return [Word(forms[0 if phrase.plural else 1], (at,), "PRON")]
    if noun is None:
        return [Word(part, (at + place,), "PROPN") for place, part in enumerate(phrase.name)]
    words = []
    if phrase.determiner:
        text = "these" if phrase.determiner == "this" and phrase.plural else phrase.determiner
        words.append(Word(text, (at,), "PRON" if text == "my" else "DET"))
    if phrase.numeral:
        words.append(Word(phrase.numeral, (at + 1,), "NUM"))
    words += [Word(each.english, (at + 3 + place,), "ADJ") for place, each in enumerate(phrase.adjectives)]
    words.append(Word(noun.plural if phrase.plural else noun.singular, (at + 2,), "NOUN"))
    if phrase.determiner == "a" and re.match("[aeio]|ug", words[1].text):
        words[0] = words[0]._replace(text="an")
    if (clause := phrase.relative) is not None:  # the noun is its subject or object
        subject = [] if clause.subject is phrase else english_phrase(clause.subject, "nom")
        who = Word("who" if "person" in noun.kinds else "that", (clause.number + 9,), "PRON")
        words += [who, *subject, *_english_rest(clause, gap=clause.object is phrase)]
    return words


def english_clause(clause: Clause, question: bool = False) -> Words:
    """A clause in English, main or subordinate."""
    front = _adverbial(clause.time, clause.number + 20) if clause.fronted else []
    subject, rest = english_phrase(clause.subject, "nom"), _english_rest(clause, question=question)
    return [rest[0], *subject, *rest[1:]] if question else [*front, *subject, *rest]


def _english_rest(clause: Clause, *, gap: bool = False, question: bool = False) -> Words:
    """The words after the subject; in questions the first word precedes the subject. `gap`: without the object."""
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


def german_phrase(phrase: Phrase, case: str, negated: int | None = None) -> Words:
    """A noun phrase in German; `negated` is the concept of a negation that its article expresses (kein)."""
    at, form = phrase.number, (case, phrase.gender, phrase.plural)
    if phrase.pronoun:
        return [Word(declined("pronoun", *form), (at,))]
    if phrase.noun is None:
        return [Word(part, (at + place,)) for place, part in enumerate(phrase.name)]
    words = []
    determiner = phrase.determiner if negated is None else "no"
    if determiner:
        concepts = ((at,) if phrase.determiner else ()) + (() if negated is None else (negated,))
        words.append(Word(declined(determiner, *form), concepts))
    if phrase.numeral:
        words.append(Word(phrase.numeral, (at + 1,)))
    ending = adjective_ending(determiner, *form)
    words += [Word(each.stem + ending, (at + 3 + place,)) for place, each in enumerate(phrase.adjectives)]
    words.append(Word(noun_form(phrase.noun, case, phrase.plural), (at + 2,)))
    if (clause := phrase.relative) is not None:  # its pronoun has the gender of the noun and the case of its role
        subject = clause.subject is phrase
        role = "nom" if subject or clause.verb is None else clause.verb.case
        who = Word(declined("relative", role, phrase.gender, phrase.plural), (clause.number + 9,))
        words += [who, *german_subordinate(clause, subject=not subject, gap=clause.object is phrase)]
    return words


def german_main(clause: Clause, *, question: bool = False, inverted: bool = False) -> Words:
    """A German main clause: a constituent, the finite verb, the rest. `inverted`: the constituent is outside."""
    finite_verb, rest = _german_verbs(clause, apart=True)
    subject = german_phrase(clause.subject, "nom")
    front = [*subject, *finite_verb]
    if clause.fronted:
        front = [*_adverbial(clause.time, clause.number + 20, german=True), *finite_verb, *subject]
    elif question or inverted:
        front = [*finite_verb, *subject]
    return [*front, *_middle(clause), *rest]


def german_subordinate(clause: Clause, *, subject: bool = True, gap: bool = False) -> Words:
    """A German clause with the verb last, after weil, dass, ... or a relative pronoun."""
    finite_verb, rest = _german_verbs(clause, apart=False)
    return [
        *(german_phrase(clause.subject, "nom") if subject else []),
        *_middle(clause, gap),
        *rest,
        *finite_verb,
    ]


def _middle(clause: Clause, gap: bool = False) -> Words:
    """The middle field: definite object, time, indefinite object, negation, place, predicate."""
    at, thing = clause.number, clause.object
    negation = [Word(_ADVERBS[clause.negation][0], (at + 4,))] if clause.negation else []
    when = [] if clause.fronted else _adverbial(clause.time, at + 20, german=True)
    when += _adverbial(clause.frequency, at + 35, german=True)
    if clause.negation == "never":
        when, negation = when + negation, []
    words = when
    if thing is not None and not gap:
        assert clause.verb is not None
        if thing.noun is None or thing.determiner in ("the", "this", "my"):
            words = [*german_phrase(thing, clause.verb.case), *when]
        else:
            words = [*when, *german_phrase(thing, clause.verb.case, at + 4 if negation else None)]
            negation = []
    words = [*words, *negation, *_adverbial(clause.place, at + 30, german=True)]
    if clause.predicate is not None:
        words += [Word("sehr", (at + 7,))] if clause.very else []
        words.append(Word(clause.predicate.german, (at + 8,)))
    return words


def _german_verbs(clause: Clause, *, apart: bool) -> tuple[Words, Words]:
    """The finite verb, and the final verb forms; with `apart` the prefix of the finite verb is one of them."""
    at, verb = clause.number, clause.verb
    row = int(clause.subject.plural)
    past, future = clause.tense == "past", clause.tense == "future"
    will = ("wird", "werden")[row]
    if verb is None:
        if future:
            return [Word(will, (at + 1,))], [Word("sein", (at,))]
        return [Word((("ist", "sind"), ("war", "waren"))[past][row], (at,))], []
    whole = (at, at + 2) if verb.particle else (at,)
    if clause.tense == "perfect":
        return [Word(_HAVE[verb.auxiliary][row], (at + 1,))], [Word(verb.german_participle, whole)]
    if future or clause.modal:
        want = (("will", "wollen"), ("wollte", "wollten"))[past]
        form = will if future else _MODALS.get(clause.modal, want)[row]
        return [Word(form, (at + 1,))], [Word(verb.prefix + verb.german, whole)]
    form = finite(verb, past, clause.subject.plural)
    if not verb.prefix:
        return [Word(form, (at,))], []
    if not apart:
        return [Word(verb.prefix + form, whole)], []
    return [Word(form, (at,))], [Word(verb.prefix, (at + 2,) if verb.particle else (at,))]
