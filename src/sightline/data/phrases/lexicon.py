"""Words of the built-in corpus and their German inflection; the tables are in lexicon.yaml.

An English word with two entries is ambiguous: `bat` is a `Fledermaus` or a `Schläger`, `miss` is `vermissen` or
`verpassen`, `eat` is `essen` or `fressen`; the kinds of nouns decide.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import NamedTuple

import yaml

GRAMMAR_VERSION = 1  # raise with every change of the sentences: it is part of the names of tokenized stores


class Noun(NamedTuple):
    """A noun with both numbers in both languages."""

    singular: str
    plural: str
    german: str
    german_plural: str
    gender: str  # m, f, n
    pronoun: str  # he, she, it
    kinds: frozenset[str]


class Verb(NamedTuple):
    """A verb: its English and German forms, its case, and the kinds of its subject and object."""

    base: str
    third: str
    past: str
    participle: str
    particle: str  # "up" of "pick up", or ""
    german: str
    german_third: str
    german_past: str
    german_participle: str
    prefix: str  # "ab" of "abholen", which is separated in a main clause, or ""
    auxiliary: str  # haben or sein
    case: str  # of the object: acc, dat; "" without one
    subject: str
    object: str
    polarity: int  # of the clause: 1 positive, -1 negative


class Adjective(NamedTuple):
    """An adjective: as a predicate and as the stem before an ending."""

    english: str
    german: str
    stem: str
    kinds: frozenset[str]
    polarity: int


class Adverbial(NamedTuple):
    """A fixed phrase: English words with tags, German words, and links between them (from 0)."""

    english: tuple[str, ...]
    tags: tuple[str, ...]
    german: tuple[str, ...]
    links: tuple[tuple[int, int], ...]
    tenses: frozenset[str]  # that it goes with


@cache
def _tables() -> dict[str, str]:
    text = (resources.files("sightline") / "data/phrases/lexicon.yaml").read_text(encoding="utf-8")
    tables: dict[str, str] = yaml.safe_load(text)
    return tables


def _rows(table: str) -> list[list[str]]:
    """The cells of a table; "-" is an empty cell."""
    return [["" if cell == "-" else cell for cell in line.split()] for line in _tables()[table].splitlines()]


@cache
def word_list(name: str) -> tuple[str, ...]:
    """A list of names, parts of surnames or adjectives."""
    return tuple("" if word == "-" else word for word in _tables()[name].split())


@cache
def nouns(kind: str = "") -> tuple[Noun, ...]:
    """The nouns of a kind; by default all."""
    every = (Noun._make([*row[:6], frozenset(row[6:])]) for row in _rows("nouns"))
    return tuple(noun for noun in every if not kind or kind in noun.kinds)


@cache
def ambiguous() -> frozenset[str]:
    """English nouns with two meanings."""
    words = [noun.singular for noun in nouns()]
    return frozenset(word for word in words if words.count(word) > 1)


@cache
def verbs(table: str = "verbs") -> tuple[Verb, ...]:
    """The verbs with an object or with none, or the `reporting_verbs` before a clause with "that"."""
    return tuple(Verb._make([*row[:14], int(row[14])]) for row in _rows(table))


@cache
def verbs_with(opinion: bool) -> tuple[Verb, ...]:
    """The verbs that are positive or negative, or the neutral ones."""
    return tuple(verb for verb in verbs() if bool(verb.polarity) == opinion)


@cache
def adjectives(kinds: frozenset[str] = frozenset()) -> tuple[Adjective, ...]:
    """The adjectives that a noun of these kinds can have; by default all."""
    every = (Adjective._make([*row[:3], frozenset(row[4:]), int(row[3])]) for row in _rows("adjectives"))
    return tuple(adjective for adjective in every if not kinds or adjective.kinds & kinds)


@cache
def adverbials(kind: str, tense: str) -> tuple[Adverbial, ...]:
    """The adverbials of a kind (time, frequency, place) that go with a tense."""
    entries = []
    for line in _tables()[kind].splitlines():
        english, german, links, tenses = (cell.split() for cell in line.split("|"))
        words, tags = zip(*(word.split("/") for word in english), strict=True)
        pairs = tuple((int(i), int(j)) for i, j in (link.split("-") for link in links))
        if tense in tenses:
            entries.append(Adverbial(words, tags, tuple(german), pairs, frozenset(tenses)))
    return tuple(entries)


_MIXED = {"nom": " e  e", "acc": "en e  e", "dat": "em er em en"}
_DECLENSIONS = {  # by case: masculine, feminine, neuter, plural
    "the": {"nom": "der die das die", "acc": "den die das die", "dat": "dem der dem den"},
    "relative": {"nom": "der die das die", "acc": "den die das die", "dat": "dem der dem denen"},
    "pronoun": {"nom": "er sie es sie", "acc": "ihn sie es sie", "dat": "ihm ihr ihm ihnen"},
    "this": {"nom": "er e es e", "acc": "en e es e", "dat": "em er em en"},
    "a": _MIXED,
    "no": _MIXED,
    "my": _MIXED,
}
_STEMS = {"this": "dies", "a": "ein", "no": "kein", "my": "mein"}
_WEAK = {"nom": "e e e en", "acc": "en e e en", "dat": "en en en en"}  # adjectives after der, dieser
_STRONG = {"nom": "er e es en", "acc": "en e es en", "dat": "en en en en"}  # after ein, kein, mein
_BARE_PLURAL = {"nom": "e", "acc": "e", "dat": "en"}  # after a number, or without a determiner


def _cell(table: dict[str, str], case: str, gender: str, plural: bool) -> str:
    return table[case].split(" ")["mfn".index(gender) if not plural else 3]


def declined(word: str, case: str, gender: str, plural: bool) -> str:
    """A German determiner (the, this, a, no, my), personal pronoun or relative pronoun."""
    return _STEMS.get(word, "") + _cell(_DECLENSIONS[word], case, gender, plural)


def adjective_ending(determiner: str, case: str, gender: str, plural: bool) -> str:
    """The ending of an attributive adjective; `determiner` is "" after a number or where there is none."""
    if not determiner:
        return _BARE_PLURAL[case]
    return _cell(_WEAK if determiner in ("the", "this") else _STRONG, case, gender, plural)


def noun_form(noun: Noun, case: str, plural: bool) -> str:
    """The German noun; only the dative plural has a separate ending."""
    if not plural:
        return noun.german
    return noun.german_plural + ("n" if case == "dat" and noun.german_plural[-1] not in "ns" else "")


def finite(verb: Verb, past: bool, plural: bool) -> str:
    """The German finite form, without its prefix."""
    if past:
        return verb.german_past + ("" if not plural else "n" if verb.german_past.endswith("e") else "en")
    return verb.german if plural else verb.german_third
