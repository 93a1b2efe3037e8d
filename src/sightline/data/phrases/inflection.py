"""Endings of the corpus `phrases`: German articles, adjectives, pronouns and verbs; the few that English has."""

from __future__ import annotations

from sightline.data.phrases.lexicon import Noun, Verb

# by case: masculine, feminine, neuter, plural
_DEFINITE = {"nom": "der die das die", "acc": "den die das die", "dat": "dem der dem den"}
_ENDINGS = {"nom": "er e es e", "acc": "en e es e", "dat": "em er em en"}  # of dieser, jener, ...
_MIXED = {"nom": " e  e", "acc": "en e  e", "dat": "em er em en"}  # of ein, kein, mein
_WEAK = {"nom": "e e e en", "acc": "en e e en", "dat": "en en en en"}  # of adjectives behind der, dieser
_BEHIND_MIXED = {"nom": "er e es en", "acc": "en e es en", "dat": "en en en en"}  # behind ein, kein, mein
_BARE_PLURAL = {"nom": "e", "acc": "e", "dat": "en"}  # behind a number, or nothing
_PRONOUNS = {"nom": "er sie es sie", "acc": "ihn sie es sie", "dat": "ihm ihr ihm ihnen"}
_RELATIVE = {"nom": "der die das die", "acc": "den die das die", "dat": "dem der dem denen"}
_STEMS = {"this": "dies", "a": "ein", "no": "kein", "my": "mein"}


def _cell(table: dict[str, str], case: str, gender: str, plural: bool) -> str:
    return table[case].split(" ")["mfn".index(gender) if not plural else 3]


def article(kind: str, case: str, gender: str, plural: bool) -> str:
    """The German determiner; `kind` is the, this, a, no or my."""
    if kind == "the":
        return _cell(_DEFINITE, case, gender, plural)
    return _STEMS[kind] + _cell(_ENDINGS if kind == "this" else _MIXED, case, gender, plural)


def adjective_ending(kind: str, case: str, gender: str, plural: bool) -> str:
    """The ending of an attributive adjective behind a determiner; `kind` may be "" (a number, or none)."""
    if kind in ("the", "this"):
        return _cell(_WEAK, case, gender, plural)
    return _BARE_PLURAL[case] if kind == "" else _cell(_BEHIND_MIXED, case, gender, plural)


def noun_form(noun: Noun, case: str, plural: bool) -> str:
    """The German noun; only the dative plural has an ending of its own."""
    if not plural:
        return noun.german
    return noun.german_plural + ("n" if case == "dat" and noun.german_plural[-1] not in "ns" else "")


def pronoun(case: str, gender: str, plural: bool) -> str:
    """er, sie, es: the gender is that of the German noun it stands for."""
    return _cell(_PRONOUNS, case, gender, plural)


def relative_pronoun(case: str, gender: str, plural: bool) -> str:
    """der, die, das at the head of a relative clause."""
    return _cell(_RELATIVE, case, gender, plural)


def english_pronoun(case: str, singular: str, plural: bool) -> str:
    """He, him, they, ...: the gender is a natural one, and things and animals have none."""
    if case == "nom":
        return "they" if plural else singular
    return "them" if plural else {"he": "him", "she": "her", "it": "it"}[singular]


def finite(verb: Verb, past: bool, plural: bool) -> str:
    """The German finite form, without its prefix."""
    if past:
        return verb.german_past + ("" if not plural else "n" if verb.german_past.endswith("e") else "en")
    return verb.german if plural else verb.german_third
