"""BLEU's tokenization by the script of the references, chrF's words, and GLEU of sentences."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st

from sightline.comparison.scoring import choose_scoring, resolve_tokenization
from sightline.comparison.systems import ComparedRun
from sightline.decoding.mbr import UTILITIES
from sightline.evaluation import test_set
from sightline.evaluation.bleu import sentence_gleu
from sightline.evaluation.metrics import measure, score
from sightline.recipe import Recipe
from sightline.recipe.decoding import BleuTokenizer, Evaluation
from sightline.run_folder import RunError
from sightline.text.bleu_tokenizers import bleu_tokenizer_for, check_tokenizer, script_of, tokenization_note

CHINESE = ["猫坐在垫子上。", "我们明天去北京看望朋友。"]
GUESSES = ["猫坐在椅子上。", "我们明天去上海看朋友。"]
REFERENCES = [[text] for text in CHINESE]


def test_two_chinese_sentences_score_as_sacrebleu_with_zh() -> None:
    theirs = sacrebleu.corpus_bleu(GUESSES, [CHINESE], tokenize="zh").score
    assert theirs > 40
    result = score("bleu", GUESSES, REFERENCES, bootstrap=0)
    assert result.value == theirs
    assert "|tok:zh|" in result.signature
    plain = score("bleu", GUESSES, REFERENCES, section=Evaluation(bleu_tokenize="13a"), bootstrap=0)
    assert plain.value == sacrebleu.corpus_bleu(GUESSES, [CHINESE]).score < 1


@pytest.mark.parametrize("tokenize", ["13a", "zh", "char", "intl", "none"])
def test_every_tokenizer_is_sacrebleus(tokenize: BleuTokenizer) -> None:
    guesses, expected = [*GUESSES, "The cat, it sat."], [*CHINESE, "The cat - it sat!"]
    result = score(
        "bleu", guesses, [[text] for text in expected], section=Evaluation(bleu_tokenize=tokenize), bootstrap=0
    )
    assert result.value == sacrebleu.corpus_bleu(guesses, [expected], tokenize=tokenize, force=True).score


@pytest.mark.parametrize(
    ("text", "script", "tokenize"),
    [
        ("Der Hund läuft.", "spaced", "13a"),
        ("Собака бежит", "spaced", "13a"),
        ("कुत्ता दौड़ता है", "spaced", "13a"),
        ("我们使用 BLEU 和 chrF 评测翻译。", "Chinese", "zh"),
        ("The word 猫 means cat in Chinese.", "spaced", "13a"),
        ("猫がマットの上に座っています。", "Japanese", "char"),
        ("고양이가 매트 위에 앉아 있다.", "Korean", "char"),
        ("แมวนั่งบนเสื่อ", "other", "char"),
        ("1234 . !", "spaced", "13a"),
        ("", "spaced", "13a"),
    ],
)
def test_the_script_of_the_references_chooses(text: str, script: str, tokenize: str) -> None:
    assert (script_of([text]), bleu_tokenizer_for([text])) == (script, tokenize)


def test_a_tokenizer_chosen_by_auto_is_reported_unless_13a() -> None:
    assert "tokenization zh" in (tokenization_note(Evaluation(), CHINESE) or "")
    assert tokenization_note(Evaluation(), ["Der Hund"]) is None
    assert tokenization_note(Evaluation(bleu_tokenize="zh"), CHINESE) is None
    assert tokenization_note(Evaluation(metrics=("chrf",)), CHINESE) is None


def test_a_tokenizer_without_its_package_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for name, remedy in (("ja-mecab", "sacrebleu[ja]"), ("ko-mecab", "sacrebleu[ko]"), ("flores200", "sentencepiece")):
        with pytest.raises(ValueError, match=rf"{name} needs .*not installed.*{re.escape(remedy)}"):
            check_tokenizer(name)  # type: ignore[arg-type]


@pytest.mark.parametrize("order", [0, 1, 2])
def test_chrf_with_words_is_sacrebleus(order: int) -> None:
    guesses, expected = ["the cat, it sat down", "a dog (runs)."], ["the cat - it sat", "the dog (runs) ."]
    metric = sacrebleu.CHRF(word_order=order)
    result = measure("chrf", guesses, [[text] for text in expected], section=Evaluation(chrf_word_order=order))
    assert result.value == pytest.approx(metric.corpus_score(guesses, [expected]).score, abs=1e-9)
    assert result.score(bootstrap=0).signature == metric.get_signature().format()
    assert result.name == "chrF2" + "+" * order


@pytest.mark.parametrize("order", [0, 2])
def test_the_utilities_of_minimum_bayes_risk_cut_as_the_metrics_do(order: int) -> None:
    texts = [*CHINESE, *GUESSES, "the cat, it (sat)", "a cat sat."]
    section = Evaluation(bleu_tokenize="zh", chrf_word_order=order)
    pairs = {name: UTILITIES[name](texts, section) for name in ("bleu", "chrf")}
    for row, guess in enumerate(texts):
        for column, expected in enumerate(texts):
            bleu = sacrebleu.sentence_bleu(guess, [expected], tokenize="zh").score
            chrf = sacrebleu.sentence_chrf(guess, [expected], word_order=order).score
            assert pairs["bleu"][row, column] == pytest.approx(bleu, abs=1e-6)
            assert pairs["chrf"][row, column] == pytest.approx(chrf, abs=1e-6)
    assert (UTILITIES["bleu"](CHINESE, None) == UTILITIES["bleu"](CHINESE, section)).all()  # auto, by the outputs


def loaded(name: str, **evaluation: Any) -> ComparedRun:
    source = {"kind": "tsv", "file": "a.tsv"}
    recipe = Recipe.model_validate({"data": {"train": [source], "validation": source}, "evaluation": evaluation})
    run: Any = SimpleNamespace(recipe=recipe)
    return ComparedRun(name, run, recipe.decoding)


def test_compared_runs_have_equal_signatures_or_are_refused() -> None:
    test = test_set.TestSet("test", CHINESE, REFERENCES, 2)
    auto, plain = loaded("auto"), loaded("plain", bleu_tokenize="13a")
    (note,) = resolve_tokenization([auto, plain], test, None, None)
    assert "tokenization zh" in note
    assert [each.run.recipe.evaluation.bleu_tokenize for each in (auto, plain)] == ["zh", "13a"]
    with pytest.raises(RunError, match=r"auto and plain are scored differently: .*evaluation.bleu_tokenize"):
        choose_scoring([auto, plain], None, None)
    resolve_tokenization([auto, plain], test, "char", 2)
    assert choose_scoring([auto, plain], None, None).metrics == ["bleu", "chrf"]
    assert plain.run.recipe.evaluation.chrf_word_order == 2


TOKENS = st.lists(st.integers(0, 3), max_size=12)


def gleu(output: Sequence[Hashable], reference: Sequence[Hashable]) -> float:
    return sentence_gleu([output], reference)[0]


def naive(output: list[int], reference: list[int]) -> float:
    """Precision and recall, each n-gram of the output crossed out in the reference."""
    grams = [[s[at : at + n] for n in (1, 2, 3, 4) for at in range(len(s) - n + 1)] for s in (output, reference)]
    rest, matches = list(grams[1]), 0
    for gram in grams[0]:
        if gram in rest:
            rest.remove(gram)
            matches += 1
    if not grams[0] or not grams[1]:
        return 0.0
    return min(matches / len(grams[0]), matches / len(grams[1]))


@given(TOKENS, TOKENS)
def test_it_is_the_smaller_of_precision_and_recall(output: list[int], reference: list[int]) -> None:
    assert gleu(output, reference) == pytest.approx(naive(output, reference), abs=1e-12)


@given(st.lists(TOKENS, min_size=1, max_size=4), TOKENS)
def test_several_outputs_are_scored_as_each_alone(outputs: list[list[int]], reference: list[int]) -> None:
    assert sentence_gleu(outputs, reference) == [gleu(output, reference) for output in outputs]


@pytest.mark.parametrize(
    ("output", "reference", "matches", "most"),
    [
        ("the cat", "the cat", 3, 3),
        ("the the the", "the cat", 1, 6),  # 3 + 2 + 1 n-grams; only one "the" is in the reference
        ("the cat sat", "the cat sat on the mat", 6, 18),  # 6 + 5 + 4 + 3 wanted: recall
        ("on the mat", "mat the on", 3, 6),  # words alone
        ("a b c d e", "a b c d f", 4 + 3 + 2 + 1, 14),
        ("x", "y", 0, 1),
    ],
)
def test_values_by_hand(output: str, reference: str, matches: int, most: int) -> None:
    """As nltk.translate.gleu_score.sentence_gleu has them: matches / max(n-grams of either side)."""
    assert gleu(output.split(), reference.split()) == pytest.approx(matches / most)


def test_nothing_is_worth_nothing() -> None:
    assert gleu([], []) == gleu([], [1]) == gleu([1], []) == 0.0
