"""What is asked of a search, as a whole, in part and as tensors."""

from __future__ import annotations

import pytest

from sightline.decoding.request import Constraints, Request, check_begun, check_least, make_batch
from sightline.decoding.rules import Demands, Edges
from sightline.recipe import Decoding

END = 3
NOTHING = Edges.none(13)


def test_a_batch_to_search_has_its_end_marks_limits_and_prefixes() -> None:
    batch = make_batch(Request([[5, 6], [7]], prefixes=[[], [8] * 20]), Decoding(max_ratio=2.0, max_length=15), "cpu")
    assert batch.source.tolist() == [[5, 6, END], [7, END, 0]]
    assert batch.layout.lengths.tolist() == [3, 2]
    assert batch.limits.tolist() == [15, 21]  # 2 · 3 + 10 = 16 is cut to 15; a prefix needs room for itself and the end
    assert batch.prefixes.tolist() == [[0] * 20, [8] * 20]


def test_prefixes_without_sources_are_gone_on_with_beyond_their_length() -> None:
    options = Decoding(max_length=15, min_length=4)
    batch = make_batch(Request(prefixes=[[5, 6], []]), options, "cpu")
    assert batch.source.tolist() == [[END], [END]]
    assert batch.limits.tolist() == [2 + 15 + 1, 15 + 1]
    assert batch.rules.shortest.tolist() == [2 + 4, 4]


def test_what_must_be_said_may_go_beyond_the_ratio_and_not_beyond_the_limit() -> None:
    demands = [Demands(required=((4,) * 9, (5,) * 4)), Demands(required=((4,) * 30,)), Demands()]
    request = Request([[7]] * 3, constraints=Constraints(demands, NOTHING))
    batch = make_batch(request, Decoding(max_ratio=1.0, max_length=20), "cpu")
    assert batch.limits.tolist() == [14, 20, 12]  # all phrases and the end; max_length; 2 + 10


def test_what_must_be_said_has_room_behind_a_given_beginning() -> None:
    constraints = Constraints([Demands(required=((4,) * 9,))], NOTHING)
    request = Request([[7]], prefixes=[[8] * 5], constraints=constraints)
    assert make_batch(request, Decoding(max_ratio=1.0, max_length=20), "cpu").limits.tolist() == [5 + 9 + 1]


def test_learned_positions_leave_room_for_what_the_source_does_not_take() -> None:
    translating = Request([[5, 6], [7]])
    assert translating.rooms([(9, False)]) == [9, 9]
    assert translating.rooms([(9, True)]) == [6, 7]  # a source and its end mark stand in the same positions
    assert translating.rooms([(9, True), (6, False)]) == [6, 6]  # of an ensemble the least
    assert make_batch(translating, Decoding(), "cpu", limits_of=[(9, True)]).limits.tolist() == [6, 7]
    assert Request(prefixes=[[5, 6, 7]]).rooms([(9, False)]) == [9]


def test_a_least_length_past_the_learned_positions_is_refused_by_the_line() -> None:
    gone_on_with = Request(prefixes=[[5], [5, 6, 7]]).counted_from(10)
    check_least(gone_on_with, Decoding(min_length=5), [(9, False)])  # 3 read, 5 written, an end mark
    with pytest.raises(ValueError, match=r"line 12: min_length \(6\) is more than the 5 tokens this model can write"):
        check_least(gone_on_with, Decoding(min_length=6), [(9, False)])
    check_least(Request([[], [5]], [[], [6]]), Decoding(min_length=6), [(9, True)])  # an empty source has no output
    with pytest.raises(ValueError, match=r"line 2: min_length \(7\) is more than the 6 tokens"):
        check_least(Request([[], [5]]), Decoding(min_length=7), [(9, True)])
    with pytest.raises(ValueError, match=r"more than the 0 tokens"):
        check_least(Request([[5] * 20]), Decoding(min_length=1), [(9, True)])


def test_a_beginning_past_the_learned_positions_is_refused_by_the_line() -> None:
    check_begun(Request([[5, 6], [7]], [[8] * 5, [8] * 6]), [(9, True)])  # with a source, its end mark and one more: 9
    with pytest.raises(ValueError, match=r"line 12 has a prefix of 7 tokens, and this model can write 6 there"):
        check_begun(Request([[5, 6], [7]], [[8], [8] * 7]).counted_from(10), [(9, True)])
    with pytest.raises(ValueError, match=r"line 1 has a prefix of 9 tokens, and this model can write 8 there"):
        check_begun(Request(prefixes=[[8] * 9]), [(9, False)])
    check_begun(Request([[]], [[8] * 20]), [(9, True)])  # an empty source has no output
    check_begun(Request([[5] * 20]), [(9, True)])


def test_part_of_a_request_asks_the_same_of_the_same_sentences() -> None:
    demands = [Demands(required=((word,),)) for word in (4, 5, 6)]
    whole = Request(
        [[7], [8], [9]],
        prefixes=[[10], [], [12]],
        constraints=Constraints(demands, NOTHING),
        marks=2,
        scored=False,
    )
    part = whole.counted_from(30).take([2, 0])
    assert (part.sources, part.prefixes, part.numbers) == ([[9], [7]], [[12], [10]], [32, 30])
    assert part.constraints is not None and part.constraints.demands == [demands[2], demands[0]]
    assert (part.marks, part.scored) == (2, False)
    assert list(part.take([1]).numbered()) == [30]


def test_sentences_are_counted_from_nought_unless_told() -> None:
    assert list(Request(prefixes=[[5], [6]]).numbered()) == [0, 1]
    assert list(Request([[5], [6]]).take([1]).numbered()) == [1]
