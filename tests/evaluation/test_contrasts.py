"""The sentences, n-grams and words that one system gets right and another does not, counted by hand."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sightline.evaluation.contrasts import (
    ChangedSentence,
    NgramContrast,
    WordContrast,
    changed_most,
    ngram_contrasts,
    word_contrasts,
)

SENTENCE = st.lists(st.sampled_from(["a", "b", "c", "Ä", "猫"]), max_size=6).map(" ".join)
SENTENCES = st.lists(st.tuples(st.lists(SENTENCE, min_size=1, max_size=3), SENTENCE, SENTENCE), min_size=1, max_size=15)
Sentences = list[tuple[list[str], str, str]]


def parted(sentences: Sentences) -> tuple[list[list[str]], list[str], list[str]]:
    return [each[0] for each in sentences], [each[1] for each in sentences], [each[2] for each in sentences]


def length(output: str, references: list[str]) -> float:
    """A scorer that is easy to foretell."""
    assert isinstance(references, list)
    return float(len(output))


def likelihood_ratio(b: int, c: int) -> float:
    """Of b + 1 and c + 1 occurrences against halves, in the words of the docstring."""
    both = b + c + 2
    return 2 * ((b + 1) * math.log(2 * (b + 1) / both) + (c + 1) * math.log(2 * (c + 1) / both))


# --- sentences ------------------------------------------------------------------------------------------------


def test_the_largest_gains_and_losses_come_first_with_all_that_belongs_to_them() -> None:
    sources = ["s1", "s2", "s3", "s4", "s5"]
    references = [["r1"], ["r2", "r2b"], ["r3"], ["r4"], ["r5"]]
    baseline = ["x", "xxxxxx", "x", "xx", "xxx"]
    system = ["xx", "x", "xxxxx", "xx", "x"]
    result = changed_most(sources, references, baseline, system, length)
    assert result.improved == [
        ChangedSentence(3, "s3", ["r3"], "x", "xxxxx", baseline_score=1, system_score=5, gain=4),
        ChangedSentence(1, "s1", ["r1"], "x", "xx", 1, 2, 1),
    ]
    assert result.worsened == [
        ChangedSentence(2, "s2", ["r2", "r2b"], "xxxxxx", "x", 6, 1, -5),
        ChangedSentence(5, "s5", ["r5"], "xxx", "x", 3, 1, -2),
    ]


def test_where_lower_is_better_a_smaller_score_is_a_gain() -> None:
    result = changed_most(["s", "s"], [["r"], ["r"]], ["xxx", "x"], ["x", "xx"], length, better="lower")
    assert [(each.number, each.gain, each.baseline_score) for each in result.improved] == [(1, 2, 3)]
    assert [(each.number, each.gain) for each in result.worsened] == [(2, -1)]


def test_equal_outputs_are_not_even_scored_and_equal_scores_not_listed() -> None:
    scored: list[str] = []

    def note(output: str, references: list[str]) -> float:
        scored.append(output)
        return random.Random(len(scored)).random() if output == "same" else 1.0

    result = changed_most(["", ""], [["r"], ["r"]], ["same", "one"], ["same", "two"], note)
    assert (result.improved, result.worsened) == ([], [])
    assert sorted(scored) == ["one", "two"]


@given(SENTENCES, st.integers(1, 4))
def test_swapping_the_systems_swaps_gains_and_losses(sentences: Sentences, k: int) -> None:
    references, one, two = parted(sentences)
    sources = [str(number) for number in range(len(one))]
    ahead = changed_most(sources, references, one, two, length, k=k)
    back = changed_most(sources, references, two, one, length, k=k)

    def swapped(each: ChangedSentence) -> ChangedSentence:
        return ChangedSentence(
            each.number,
            each.source,
            each.references,
            each.system,
            each.baseline,
            each.system_score,
            each.baseline_score,
            -each.gain,
        )

    assert back.improved == [swapped(each) for each in ahead.worsened]
    assert back.worsened == [swapped(each) for each in ahead.improved]
    assert len(ahead.improved) <= k


# --- n-grams --------------------------------------------------------------------------------------------------


def test_ngrams_are_counted_for_both_systems_and_in_the_references() -> None:
    references = [["red cat"], ["red cat"], ["red dog"], ["a cow"]]
    baseline = ["red", "dog", "red dog", "a cow"]
    system = ["red cat", "red cat", "a hen", "a cow"]
    result = ngram_contrasts(references, baseline, system)
    assert result.system == [  # "cat" says no more than "red cat"; of "red", one was lost and one gained
        NgramContrast(
            ["red", "cat"], count=2, baseline_matched=0, system_matched=2, likelihood_ratio=likelihood_ratio(2, 0)
        ),
    ]
    assert result.baseline == [NgramContrast(["red", "dog"], 1, 1, 0, likelihood_ratio(0, 1))]


def test_matches_are_clipped_in_each_sentence() -> None:
    result = ngram_contrasts([["ja ja nein"], ["x"]], ["ja", "ja"], ["ja ja ja", "ja"], longest=1)
    assert result.system == [NgramContrast(["ja"], 2, 1, 2, likelihood_ratio(1, 0))]
    assert result.baseline == []


def test_one_match_to_none_ranks_below_thirty_to_fifteen() -> None:
    references = [["often"]] * 45 + [["once"]]
    baseline = ["often"] * 15 + [""] * 31
    system = [""] * 15 + ["often"] * 30 + ["once"]
    result = ngram_contrasts(references, baseline, system)
    assert [each.ngram for each in result.system] == [["often"], ["once"]]
    assert (
        result.system[0].likelihood_ratio == pytest.approx(likelihood_ratio(30, 15)) == pytest.approx(4.872, abs=1e-3)
    )
    assert result.system[1].likelihood_ratio == pytest.approx(likelihood_ratio(1, 0)) == pytest.approx(0.340, abs=1e-3)


def test_only_the_longest_of_ngrams_with_the_same_counts_is_listed() -> None:
    result = ngram_contrasts([["we are here"], ["we are there"]], ["", ""], ["we are here", "we are"])
    assert [each.ngram for each in result.system] == [["we", "are"], ["we", "are", "here"]]


def test_an_ngram_inside_a_listed_one_is_listed_if_its_counts_differ() -> None:
    result = ngram_contrasts([["red cat"], ["red cat"], ["cat"]], ["", "", "cat"], ["red cat", "red cat", ""])
    assert result.system == [
        NgramContrast(["red", "cat"], 2, 0, 2, likelihood_ratio(2, 0)),
        NgramContrast(["cat"], 3, 1, 2, likelihood_ratio(2, 1)),
    ]


@given(SENTENCES, st.integers(1, 5))
def test_swapping_the_systems_swaps_the_ngrams(sentences: Sentences, k: int) -> None:
    references, one, two = parted(sentences)
    ahead, back = ngram_contrasts(references, one, two, k=k), ngram_contrasts(references, two, one, k=k)

    def swapped(each: NgramContrast) -> NgramContrast:
        return replace(each, baseline_matched=each.system_matched, system_matched=each.baseline_matched)

    assert back.system == [swapped(each) for each in ahead.baseline]
    assert back.baseline == [swapped(each) for each in ahead.system]


# --- words ----------------------------------------------------------------------------------------------------


def test_words_are_ranked_by_the_occurrences_that_only_one_system_produced() -> None:
    references = [["der Hund läuft"]] * 6 + [["die Katze läuft"]] * 6
    baseline = ["der Hund"] * 3 + ["die Hund läuft"] * 3 + ["die Katze"] * 6
    system = ["der Hund läuft"] * 6 + ["die läuft"] * 6
    result = word_contrasts(references, baseline, system)
    assert result.system == [
        WordContrast("läuft", 12, 3 / 12, 1.0, only_baseline=0, only_system=9, p=pytest.approx(2 / 512)),  # type: ignore[arg-type]
        WordContrast("der", 6, 0.5, 1.0, 0, 3, pytest.approx(2 / 8)),  # type: ignore[arg-type]
    ]
    assert result.baseline == [
        WordContrast("Katze", 6, 1.0, 0.0, 6, 0, pytest.approx(2 / 64)),  # type: ignore[arg-type]
    ]


def test_a_word_that_each_system_gets_where_the_other_fails_is_weak_evidence() -> None:
    baseline, system = ["w"] * 3 + [""] * 5, [""] * 3 + ["w"] * 5
    (result,) = word_contrasts([["w"]] * 8, baseline, system).system
    assert (result.only_baseline, result.only_system) == (3, 5)
    assert result.p == pytest.approx(2 * (1 + 8 + 28 + 56) / 256)


@pytest.mark.parametrize(("b", "c"), [(1, 0), (5, 4), (40, 17), (1300, 1200), (3000, 0)])
def test_p_is_that_of_the_exact_binomial_test(b: int, c: int) -> None:
    exact = min(Fraction(1), Fraction(2 * sum(math.comb(b + c, i) for i in range(c + 1)), 2 ** (b + c)))
    (result,) = word_contrasts([["w"]] * (b + c), [""] * b + ["w"] * c, ["w"] * b + [""] * c, least=1).system
    assert result.p == pytest.approx(float(exact), rel=1e-9)


def test_rare_words_are_left_out() -> None:
    references = [["x"]] * 4 + [["y"]] * 5
    result = word_contrasts(references, [""] * 9, ["x"] * 4 + ["y"] * 5)
    assert [each.word for each in result.system] == ["y"]
    assert [each.word for each in word_contrasts(references, [""] * 9, ["x"] * 4 + ["y"] * 5, least=4).system] == [
        "y",
        "x",
    ]


def test_several_references_want_a_word_as_often_as_one_of_them_does() -> None:
    (result,) = word_contrasts([["كتاب كتاب", "كتاب كبير"]], [""], ["كتاب"], least=2).system
    assert (result.word, result.count, result.system_recall, result.baseline_recall) == ("كتاب", 2, 0.5, 0.0)


@given(SENTENCES)
def test_swapping_the_systems_swaps_the_words(sentences: Sentences) -> None:
    references, one, two = parted(sentences)
    ahead, back = word_contrasts(references, one, two, least=1), word_contrasts(references, two, one, least=1)

    def swapped(each: WordContrast) -> WordContrast:
        return replace(
            each,
            baseline_recall=each.system_recall,
            system_recall=each.baseline_recall,
            only_baseline=each.only_system,
            only_system=each.only_baseline,
        )

    assert back.system == [swapped(each) for each in ahead.baseline]
    assert back.baseline == [swapped(each) for each in ahead.system]


# --- all of them ----------------------------------------------------------------------------------------------


@given(SENTENCES)
def test_a_system_does_not_differ_from_itself(sentences: Sentences) -> None:
    references, outputs, _ = parted(sentences)
    changed = changed_most(outputs, references, outputs, list(outputs), length)
    ngrams, single = (
        ngram_contrasts(references, outputs, outputs),
        word_contrasts(references, outputs, outputs, least=1),
    )
    assert changed.improved + changed.worsened == []
    assert ngrams.system + ngrams.baseline == []
    assert single.system + single.baseline == []


def test_texts_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ValueError, match=r"system has 2 outputs and there are references for 1 sentence;"):
        ngram_contrasts([["a"]], ["a"], ["a", "b"])
    with pytest.raises(ValueError, match=r"baseline has 0 outputs"):
        word_contrasts([["a"]], [], ["a"])
    with pytest.raises(ValueError, match=r"3 sources and references for 1"):
        changed_most(["s"] * 3, [["a"]], ["a"], ["b"], length)
    with pytest.raises(ValueError, match=r"k \(0\) must be at least 1"):
        changed_most(["s"], [["a"]], ["a"], ["b"], length, k=0)
    with pytest.raises(ValueError, match=r"longest \(0\) must be at least 1"):
        ngram_contrasts([["a"]], ["a"], ["b"], longest=0)
    with pytest.raises(ValueError, match=r"least \(0\) must be at least 1"):
        word_contrasts([["a"]], ["a"], ["b"], least=0)
