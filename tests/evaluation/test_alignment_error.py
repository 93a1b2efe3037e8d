"""AER, precision and recall on examples small enough to count."""

from __future__ import annotations

import pytest

from sightline.evaluation.alignment_error import Gold, measure_alignments, parse_gold, read_gold, within

SURE, POSSIBLE = frozenset({(0, 0), (1, 1)}), frozenset({(0, 0), (1, 1), (1, 2), (2, 2)})


def values(result: list[frozenset[tuple[int, int]]], gold: list[Gold]) -> dict[str, float]:
    return {measured.name: measured.value for measured in measure_alignments(result, gold)}


def test_by_hand_with_sure_and_possible_links() -> None:
    result = frozenset({(0, 0), (1, 2), (3, 3)})  # one sure, one more possible, one wrong
    assert values([result], [Gold(SURE, POSSIBLE)]) == pytest.approx(
        {"AER": 1 - (1 + 2) / (3 + 2), "precision": 2 / 3, "recall": 1 / 2}
    )


def test_with_sure_links_only_aer_is_one_minus_f() -> None:
    result = frozenset({(0, 0), (1, 2), (2, 2)})
    measured = values([result], [Gold(SURE, SURE)])
    precision, recall = measured["precision"], measured["recall"]
    assert measured["AER"] == pytest.approx(1 - 2 * precision * recall / (precision + recall))


def test_sure_links_with_any_possible_links_have_no_error() -> None:
    for result in (SURE, SURE | {(1, 2)}, POSSIBLE):
        measured = values([result], [Gold(SURE, POSSIBLE)])
        assert (measured["AER"], measured["precision"], measured["recall"]) == (0.0, 1.0, 1.0)


def test_counts_are_added_up_over_sentences_before_they_are_divided() -> None:
    gold = [Gold(SURE, SURE), Gold(frozenset({(5, 5)}), frozenset({(5, 5)}))]
    measured = values([SURE, frozenset({(5, 6), (6, 5)})], gold)
    assert measured == pytest.approx({"AER": 1 - 4 / 7, "precision": 2 / 4, "recall": 2 / 3})


def test_empty_alignments_are_right_for_empty_gold_only() -> None:
    nothing: frozenset[tuple[int, int]] = frozenset()
    assert values([nothing], [Gold(nothing, nothing)])["AER"] == 0.0
    assert values([nothing], [Gold(SURE, SURE)])["AER"] == 1.0


def test_scores_have_intervals_and_say_which_links_there_were() -> None:
    result, gold = [SURE, frozenset({(0, 1)})] * 20, [Gold(SURE, POSSIBLE)] * 40
    error = measure_alignments(result, gold)[0].score(bootstrap=200)
    assert error.low < error.value < error.high
    assert error.better == "lower" and str(error).startswith("AER 0.429 [0.")
    assert error.signature == "links:sure+possible|bs:200|seed:12345"
    some = measure_alignments([SURE, SURE], [Gold(SURE, SURE), Gold(SURE, POSSIBLE)])[0]
    assert some.signature == "links:sure+possible"
    assert measure_alignments([SURE], [Gold(SURE, SURE)])[0].signature == "links:sure"


def test_a_line_has_sure_and_possible_links() -> None:
    assert parse_gold("0-0 1-1 1?2 2?2") == Gold(SURE, POSSIBLE)
    assert parse_gold("0-3").swapped() == parse_gold("3-0")
    assert parse_gold("") == Gold(frozenset(), frozenset())
    with pytest.raises(ValueError, match=r"links.txt, line 2: '1:2' is no link; write source-target from 0"):
        read_gold(["0-0", "1:2"], "links.txt")


def test_a_mistyped_link_is_left_out_with_a_note_and_many_are_an_error() -> None:
    words = [["a", "b"]] * 100
    gold = [parse_gold("0-0 1-1")] * 99 + [parse_gold("0-0 1-2")]
    kept, notes = within(gold, words, words)
    assert kept[:-1] == gold[:-1] and kept[-1] == parse_gold("0-0")
    assert notes == ["alignment 100: 1-2 points past the end of sentences of 2 and 2 words, left out"]
    with pytest.raises(ValueError, match=r"too many links \(3\) point"):  # of 200, one more than a link in a hundred
        within([parse_gold("0-0 1-1")] * 97 + [parse_gold("0-0 1-2")] * 3, words, words)
    with pytest.raises(ValueError, match=r"too many links \(100\) point .*--swap-alignments"):
        within([parse_gold("0-0 5-1")] * 100, words, words)
    with pytest.raises(ValueError, match="1 alignment for 100 sources"):
        within(gold[:1], words, words)


def test_different_numbers_of_alignments_and_gold_lines_are_refused() -> None:
    with pytest.raises(ValueError, match="2 alignments to score against 1"):
        measure_alignments([SURE, SURE], [Gold(SURE, SURE)])
    with pytest.raises(ValueError, match="0 alignments to score against 0"):
        measure_alignments([], [])
