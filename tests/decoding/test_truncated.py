"""Which outputs end at a length limit, and which at an end mark of the model's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sightline.data.target_lengths import TargetLengths
from sightline.decoding.engine import decode
from sightline.decoding.request import capped, make_requests, source_limits
from sightline.recipe import Decoding
from sightline.text.tokenizer import END

SEARCHES: list[dict[str, Any]] = [
    {"beam": 1},
    {"beam": 3, "nbest": 3},
    {"beam": 4, "groups": 2, "nbest": 2},
    {"sample": {"seed": 3}, "nbest": 3},
]


def counting(first: int, prefix: list[int]) -> dict[int, float]:
    """Says as many words as its first source token has units beyond 4, if it may, and ends."""
    return {END: 0.97, 6: 0.02, 7: 0.01} if len(prefix) >= first - 4 else {6: 0.9, 7: 0.099, END: 1e-9}


@pytest.mark.parametrize("options", SEARCHES, ids=str)
def test_only_outputs_that_would_have_gone_on_are_truncated(script: type[Any], options: dict[str, Any]) -> None:
    """An output that fills its limit to the last token and ends there by itself is whole."""
    result = decode(
        script(counting, vocabulary=20), make_requests([[6], [7], [8], [12]]), Decoding(**options, max_length=4)
    )
    assert [{each.truncated for each in guesses} for guesses in result] == [{False}, {False}, {True}, {True}]
    assert [len(guesses[0].tokens) for guesses in result] == [2, 3, 3, 3]


@pytest.mark.parametrize("options", SEARCHES, ids=str)
def test_sentences_that_leave_the_batch_do_not_mix_up_which_are_truncated(
    script: type[Any], options: dict[str, Any]
) -> None:
    sources = [[4 + length] for length in (1, 9, 2, 8, 1, 7, 5, 3, 6, 1, 2, 9, 4, 4, 1, 1, 2, 6, 3, 9)]
    result = decode(script(counting, vocabulary=20), make_requests(sources), Decoding(**options, max_length=7))
    expected = [source[0] - 4 > 6 for source in sources]
    assert [guesses[0].truncated for guesses in result] == expected


def test_a_required_phrase_does_not_hide_that_an_output_is_truncated(script: type[Any]) -> None:
    from sightline.decoding.request import Demands, Edges

    request = make_requests([[6], [12]], demands=[Demands(((7,),))] * 2, edges=Edges.none(20))
    result = decode(script(counting, vocabulary=20), request, Decoding(beam=3, max_length=5))
    assert [guesses[0].truncated for guesses in result] == [False, True]


def test_default_limits_come_from_the_training_text(script: type[Any]) -> None:
    lengths = TargetLengths(((2, 2), (4, 6)))
    request = make_requests([[12], [12, 5, 5]], lengths=lengths)
    model = script(lambda first, prefix: {6: 0.99, END: 0.01}, vocabulary=20)
    result = decode(model, request, Decoding(beam=1))
    assert [len(guesses[0].tokens) + 1 for guesses in result] == lengths.limits([2, 4]).tolist() == [13, 19]
    assert all(guesses[0].truncated for guesses in result)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [13, 19]),
        ({"max_length": 15}, [15, 15]),
        ({"max_ratio": 2.0}, [14, 18]),
        ({"max_ratio": 2.0, "max_length": 15}, [14, 15]),
    ],
)
def test_explicit_limits_replace_derived_ones(options: dict[str, Any], expected: list[int]) -> None:
    assert source_limits([2, 4], Decoding(**options), TargetLengths(((2, 2), (4, 6)))) == expected


def test_a_run_without_a_record_of_its_text_has_wide_limits() -> None:
    assert source_limits([2, 40], Decoding(), None) == [70, 450]


def test_a_cap_leaves_lower_limits_in_force() -> None:
    lengths = TargetLengths(((2, 2), (40, 60)))
    options = capped(Decoding(min_length=30), 20, lengths)
    assert (options.max_length, options.min_length) == (20, 19)
    derived = lengths.limits(range(1, 41))
    result = source_limits(range(1, 41), options, lengths)
    assert result[0] < 20 == result[-1]
    assert (np.array(result[1:]) >= np.minimum(derived[1:], 20)).all()
    assert capped(Decoding(max_length=9), 20, lengths) == Decoding(max_length=9)


def test_max_length_limits_a_continuation(script: type[Any]) -> None:
    model = script(lambda first, prefix: {6: 0.9, 5: 0.09, END: 0.01})
    (result,) = decode(model, make_requests(prefixes=[[5, 5]]), Decoding(beam=1, max_length=3))
    assert result[0].tokens == [5, 5, 6, 6, 6] and result[0].truncated
