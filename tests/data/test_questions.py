"""Questions about generated paragraphs: answers are spans, questions have one answer, splits are disjoint."""

from __future__ import annotations

import hashlib
from collections import Counter
from itertools import pairwise

import pytest
from pydantic import ValidationError

from sightline.data.phrases.lexicon import GRAMMAR_VERSION
from sightline.data.phrases.questions import SEPARATOR, STOP, read_questions
from sightline.data.sources import read
from sightline.data.text_files import DataError
from sightline.recipe.sources import QuestionsSource

EXAMPLES = list(read_questions(QuestionsSource(split="train", examples=2_000)))


def parts(source: str) -> tuple[list[str], str]:
    """The sentences of a paragraph, and the question."""
    paragraph, question = source.split(f" {SEPARATOR} ")
    return paragraph.split(f" {STOP} "), question


def test_every_answer_is_a_span_of_a_sentence() -> None:
    for source, answer in EXAMPLES:
        sentences, _ = parts(source)
        assert 2 <= len(sentences) <= 4
        assert any(f" {answer} " in f" {sentence} " for sentence in sentences)


@pytest.mark.parametrize(
    ("question", "answer"),
    [("who", "a name or a person"), ("what", "a thing"), ("where", "a place"), ("when", "a time")],
)
def test_every_kind_of_question_is_asked(question: str, answer: str) -> None:
    kinds = Counter(parts(source)[1].split()[0] for source, _ in EXAMPLES)
    assert set(kinds) == {"who", "what", "where", "when"}
    assert kinds[question] > 50, answer


@pytest.mark.parametrize(
    ("paragraph", "question", "answer"),
    [
        ("Petra loves a book . the tired guest will visit the old woman on the bank", "what does Petra love", "a book"),
        ("Igor Veronwitz must know these terrible cakes at night . a train is red", "what is red", "a train"),
        (
            "my doctor admires Hans Fentamann at the station . my child will admire 159 pigs on the bridge . "
            "Anton Halmamann criticizes David every day . the sad teacher has criticized Ali Zanorad today",
            "where does my doctor admire Hans Fentamann",
            "at the station",
        ),
        (
            "a teacher admires 5233 trains . Julia Sarriby admired this teacher . the happy girls worked . "
            "the man did not work",
            "who did not work",
            "the man",
        ),
    ],
)
def test_examples_checked_by_hand(paragraph: str, question: str, answer: str) -> None:
    assert (f"{paragraph} {SEPARATOR} {question}", answer) in EXAMPLES[:20]


def test_the_verb_alone_often_does_not_find_the_answer() -> None:
    repeated = 0
    for source, _ in EXAMPLES:
        sentences, question = parts(source)
        words = set(question.split()) - {"who", "what", "when", "where", "did", "does", "do", "will", "the", "my"}
        repeated += sum(bool(words & set(sentence.split())) for sentence in sentences) > 1
    assert repeated > len(EXAMPLES) / 4


def test_examples_are_unchanged() -> None:
    digest = hashlib.sha256("\n".join(map("\t".join, EXAMPLES[:500])).encode()).hexdigest()
    assert (GRAMMAR_VERSION, digest[:16]) == (1, "20a3ed0021d2f171"), "other sentences: raise GRAMMAR_VERSION"


def test_splits_share_no_paragraph_and_no_surname() -> None:
    paragraphs, names = {}, {}
    for split in ("train", "validation", "test"):
        examples = list(read(QuestionsSource.model_validate({"split": split, "examples": 300}), None))
        texts = [source.split(f" {SEPARATOR} ")[0] for source, _ in examples]
        assert len(set(texts)) == 300
        paragraphs[split] = set(texts)
        words = [text.split() for text in texts]
        names[split] = {
            word for text in words for before, word in pairwise(text) if word.istitle() and before.istitle()
        }
    for first, second in (("train", "validation"), ("train", "test"), ("validation", "test")):
        assert not paragraphs[first] & paragraphs[second]
        assert names[first] and not names[first] & names[second]


def test_a_seed_and_a_range_of_sentences_give_other_examples() -> None:
    (one,) = read_questions(QuestionsSource(split="train", examples=1, sentences=(6, 6)))
    assert len(parts(one.source)[0]) == 6
    (other,) = read_questions(QuestionsSource(split="train", examples=1, seed=2))
    assert other != EXAMPLES[0]
    assert (
        QuestionsSource(split="test").describe()
        == "built-in questions about 2 to 4 sentences, split test, 20,000 examples"
    )


@pytest.mark.parametrize("sentences", [(0, 2), (3, 2), (1, 13)])
def test_invalid_ranges_are_refused(sentences: tuple[int, int]) -> None:
    with pytest.raises(ValidationError, match=r"must be \[from, to\] with 1 <= from <= to <= 12"):
        QuestionsSource(split="train", sentences=sentences)


def test_a_split_without_paragraphs_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sightline.data.phrases.questions._PATIENCE", 1)
    with pytest.raises(DataError, match="are more paragraphs of 2 to 4 sentences than the test part has"):
        list(read(QuestionsSource(split="test", examples=200), None))
