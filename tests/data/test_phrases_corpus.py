"""The built-in bilingual corpus: sentences in both languages, their annotations, the splits."""

from __future__ import annotations

import hashlib
import re

import pytest

from sightline.data.phrases import AnnotatedPair, phrases
from sightline.data.phrases.lexicon import GRAMMAR_VERSION, ambiguous, nouns, verbs, word_list
from sightline.data.sources import read
from sightline.data.text_files import DataError
from sightline.recipe.sources import PhrasesSource

SENTENCES = list(phrases(PhrasesSource(split="train", examples=2_000)))
FIRST_NAMES = {*word_list("female_names"), *word_list("male_names")}


def matches(pattern: str) -> list[AnnotatedPair]:
    """The sentences whose English matches; at least one."""
    matching = [phrase for phrase in SENTENCES if re.search(pattern, phrase.english)]
    assert matching, pattern
    return matching


def linked(phrase: AnnotatedPair, word: int) -> list[str]:
    """The German words that are linked to an English one."""
    german = phrase.german.split()
    return [german[j] for i, j in sorted(phrase.links) if i == word]


@pytest.mark.parametrize(
    ("english", "german", "links"),
    [
        (
            "a friendly ruler knows that this wonderful mouse that Olga Valiton has picked up does not trust a teacher",
            "ein freundlicher Herrscher weiß dass diese wunderbare Maus die Olga Valiton abgeholt hat keinem Lehrer "
            "vertraut",
            "0-0 1-1 2-2 3-3 4-4 5-5 6-6 7-7 8-8 9-9 10-10 11-12 12-11 13-11 14-15 15-13 16-15 17-13 18-14",
        ),
        (
            "although she did not love him Greta wants to describe Paul Paloden now",
            "obwohl sie ihn nicht liebte will Greta Paul Paloden jetzt beschreiben",
            "0-0 1-1 2-4 3-3 4-4 5-2 6-6 7-5 8-10 9-10 10-7 11-8 12-9",
        ),
        (
            "will my sister bring back the table",
            "wird meine Schwester den Tisch zurückbringen",
            "0-0 1-1 2-2 3-5 4-5 5-3 6-4",
        ),
        ("did a child dance", "tanzte ein Kind", "0-0 1-1 2-2 3-0"),
    ],
)
def test_sentences_checked_by_hand(english: str, german: str, links: str) -> None:
    (phrase,) = [each for each in phrases(PhrasesSource(split="train", examples=4_000)) if each.english == english]
    assert phrase.german == german
    assert " ".join(f"{i}-{j}" for i, j in sorted(phrase.links)) == links


def test_corpus_is_unchanged() -> None:
    text = "\n".join(map(str, (tuple(phrase)[:4] for phrase in SENTENCES[:500])))
    links = "\n".join(str(sorted(phrase.links)) for phrase in SENTENCES[:500])
    digest = hashlib.sha256(f"{text}\n{links}".encode()).hexdigest()
    assert (GRAMMAR_VERSION, digest[:16]) == (1, "451408715184620c"), "other sentences: raise GRAMMAR_VERSION"


def test_all_targets_have_the_same_sentences() -> None:
    views = {
        target: list(read(PhrasesSource.model_validate({"split": "train", "examples": 30, "target": target}), None))
        for target in ("translation", "tags", "sentiment", "text")
    }
    expected = SENTENCES[:30]
    assert views["translation"] == [(each.english, each.german) for each in expected]
    assert views["tags"] == [(each.english, each.tags) for each in expected]
    assert views["sentiment"] == [(each.english, each.sentiment) for each in expected]
    assert views["text"] == [("", each.english) for each in expected]


def test_splits_share_no_sentence_and_no_surname() -> None:
    sentences, surnames = {}, {}
    for part in ("train", "validation", "test"):
        found = list(phrases(PhrasesSource.model_validate({"split": part, "examples": 400})))
        sentences[part] = {phrase.english for phrase in found}
        names = {
            word
            for phrase in found
            for word, tag in zip(phrase.english.split(), phrase.tags.split(), strict=True)
            if tag == "PROPN"
        }
        surnames[part] = names - FIRST_NAMES
        assert len(sentences[part]) == 400 and len(surnames[part]) > 50
    for one, other in (("train", "validation"), ("train", "test"), ("validation", "test")):
        assert not sentences[one] & sentences[other] and not surnames[one] & surnames[other]


def test_every_word_has_a_tag_and_a_link() -> None:
    for phrase in SENTENCES:
        english, german = phrase.english.split(), phrase.german.split()
        assert len(phrase.tags.split()) == len(english)
        assert {i for i, _ in phrase.links} == set(range(len(english)))
        assert {j for _, j in phrase.links} == set(range(len(german)))


def test_names_and_numbers_are_copied() -> None:
    copied = 0
    for phrase in SENTENCES:
        for place, (word, tag) in enumerate(zip(phrase.english.split(), phrase.tags.split(), strict=True)):
            if tag in ("PROPN", "NUM"):
                assert linked(phrase, place) == [word]
                copied += 1
    assert copied > 1_000


def test_most_alignments_cross() -> None:
    crossing = [
        phrase for phrase in SENTENCES if any(a < c and b > d for a, b in phrase.links for c, d in phrase.links)
    ]
    assert len(crossing) > len(SENTENCES) / 2


def test_german_verbs_are_second_or_last() -> None:
    for phrase in matches(r"(?:because|although|that) (?:the|my|this) \w+ (?:is|was|are|were) \w+$"):
        assert phrase.german.split()[-1] in ("ist", "war", "sind", "waren")
    for phrase in matches(r"^(?:today|yesterday|tomorrow) "):  # the subject is behind the finite verb
        assert min(j for i, j in phrase.links if i == 1) == 2


def test_translation_of_ambiguous_words_depends_on_the_sentence() -> None:
    assert {"bat", "seal", "crane", "ruler"} == ambiguous()
    eaters = {noun.german: "animal" in noun.kinds for noun in nouns()}
    forms = {"isst": False, "essen": False, "aß": False, "frisst": True, "fressen": True, "fraß": True}
    seen = set()
    for phrase in matches(r"\beats?\b|\bate\b"):
        words = phrase.english.split()
        for place, word in enumerate(words):
            if word not in ("eat", "eats", "ate") or not place or words[place - 1] not in {n.singular for n in nouns()}:
                continue
            (subject,), verb = linked(phrase, place - 1), linked(phrase, place)
            if subject in eaters and verb[0] in forms:
                assert forms[verb[0]] == eaters[subject]
                seen.add(forms[verb[0]])
    assert seen == {True, False}
    for phrase in matches(r"^when (?:he|she|it|they|the \w+) (?:was|were|loved|hated)\b"):
        assert phrase.german.startswith("als ")
    assert any(phrase.german.startswith("wenn ") for phrase in matches("^when "))


def test_negation_inverts_sentiment_and_questions_are_neutral() -> None:
    opinion = {form: verb.polarity for verb in verbs() for form in (verb.third, verb.past) if verb.polarity}
    clause = r"^(?:[A-Z]\S+ ){1,2}"
    for phrase in matches(clause + rf"(?:{'|'.join(opinion)}) \S+(?: [A-Z]?\w+)?$"):
        (word,) = [word for word in phrase.english.split() if word in opinion]
        assert phrase.sentiment == {1: "positive", -1: "negative"}[opinion[word]]
    for phrase in matches(clause + r"(?:does|did) not (?:love|like|admire|praise|trust) (?:the|my|this|a) \w+$"):
        assert phrase.sentiment == "negative"
    for phrase in matches(r"^(?:does|did|has|will|is|was) |^(?:[A-Z]\S+ ){1,2}(?:says|said|knows|knew|heard) that "):
        assert phrase.sentiment == "neutral"
    counts = [sum(phrase.sentiment == label for phrase in SENTENCES) for label in ("negative", "neutral", "positive")]
    assert min(counts) > 400


@pytest.mark.parametrize("clauses", [(1, 1), (2, 2), (5, 5), (12, 12)])
def test_number_of_clauses(clauses: tuple[int, int]) -> None:
    (phrase,) = phrases(PhrasesSource(split="train", examples=1, clauses=clauses, seed=3))
    verbs_ = sum(
        tag == "VERB" or (tag == "AUX" and word in ("is", "are", "was", "were", "be"))
        for word, tag in zip(phrase.english.split(), phrase.tags.split(), strict=True)
    )
    wants = sum(word in ("want", "wants", "wanted") for word in phrase.english.split())
    assert verbs_ - wants == clauses[0]


def test_other_seeds_give_other_sentences() -> None:
    (other,) = phrases(PhrasesSource(split="train", examples=1, seed=2))
    assert other.english != SENTENCES[0].english


@pytest.mark.parametrize("clauses", [(0, 1), (3, 2), (1, 13)])
def test_invalid_clauses_are_rejected(clauses: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"clauses .* must be \[from, to\]"):
        PhrasesSource(split="train", clauses=clauses)


def test_too_many_examples_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sightline.data.phrases._PATIENCE", 0)
    with pytest.raises(DataError, match=r"examples: 2 are more sentences of 1 to 3 clauses than the test part has"):
        list(read(PhrasesSource(split="test", examples=2), None))
