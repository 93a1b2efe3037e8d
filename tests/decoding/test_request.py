"""What is asked of a search: limits of outputs, and what is refused."""

from __future__ import annotations

import pytest

from sightline.decoding.request import Demands, Edges, Limit, Request, make_requests, output_limits
from sightline.recipe import Decoding

END = 3
NOTHING = Edges.none(13)


def limits(requests: list[Request], *model: Limit) -> list[int]:
    return output_limits(requests, model)


def test_limits_follow_from_the_source_and_leave_room_for_a_prefix() -> None:
    requests = make_requests([[5, 6], [7]], prefixes=[[], [8] * 20], options=Decoding(max_ratio=2.0, max_length=15))
    assert [request.encoder_input for request in requests] == [[5, 6, END], [7, END]]
    assert limits(requests) == [15, 21]  # 2 · 3 + 10 = 16 is cut to 15; a prefix needs room for itself and the end


def test_prefixes_without_sources_are_continued_beyond_their_length() -> None:
    requests = make_requests(prefixes=[[5, 6], []], options=Decoding(max_length=15, min_length=4))
    assert [request.encoder_input for request in requests] == [[END], [END]]
    assert limits(requests) == [2 + 15 + 1, 15 + 1]


def test_required_phrases_may_go_beyond_the_ratio_and_not_beyond_the_limit() -> None:
    demands = [Demands(required=((4,) * 9, (5,) * 4)), Demands(required=((4,) * 30,)), Demands()]
    options = Decoding(max_ratio=1.0, max_length=20)
    requests = make_requests([[7]] * 3, demands=demands, edges=NOTHING, options=options)
    assert limits(requests) == [14, 20, 12]  # all phrases and the end; max_length; 2 + 10
    prefixed = make_requests([[7]], [[8] * 5], demands=[Demands(required=((4,) * 9,))], edges=NOTHING, options=options)
    assert limits(prefixed) == [5 + 9 + 1]


def test_sources_and_outputs_may_share_learned_positions() -> None:
    translating = make_requests([[5, 6], [7]])
    assert [request.room([(9, False)]) for request in translating] == [9, 9]
    assert limits(translating, (9, True)) == [6, 7]  # a source and its end mark are in the same positions
    assert limits(translating, (9, True), (6, False)) == [6, 6]  # of an ensemble the least
    assert limits(make_requests(prefixes=[[5, 6, 7]]), (9, False)) == [9]


def test_a_least_length_past_the_learned_positions_is_refused_by_the_line() -> None:
    def check(requests: list[Request], limit: Limit) -> None:
        for request in requests:
            request.check_min_length([limit])

    prompts = [[5], [5, 6, 7]]
    check(make_requests(prefixes=prompts, first=10, options=Decoding(min_length=5)), (9, False))  # 3 + 5 + an end mark
    with pytest.raises(ValueError, match=r"line 12: min_length \(6\) is more than the 5 tokens this model can write"):
        check(make_requests(prefixes=prompts, first=10, options=Decoding(min_length=6)), (9, False))
    check(make_requests([[], [5]], [[], [6]], options=Decoding(min_length=6)), (9, True))  # nothing is decoded of []
    with pytest.raises(ValueError, match=r"line 2: min_length \(7\) is more than the 6 tokens"):
        check(make_requests([[], [5]], options=Decoding(min_length=7)), (9, True))
    with pytest.raises(ValueError, match=r"more than the 0 tokens"):
        check(make_requests([[5] * 20], options=Decoding(min_length=1)), (9, True))


def test_a_prefix_past_the_learned_positions_is_refused_by_the_line() -> None:
    def check(requests: list[Request], limit: Limit) -> None:
        for request in requests:
            request.check([limit])

    check(make_requests([[5, 6], [7]], [[8] * 5, [8] * 6]), (9, True))  # with a source, its end mark and one more: 9
    with pytest.raises(ValueError, match=r"line 12 has a prefix of 7 tokens, and this model can write 6 there"):
        check(make_requests([[5, 6], [7]], [[8], [8] * 7], first=10), (9, True))
    with pytest.raises(ValueError, match=r"line 1 has a prefix of 9 tokens, and this model can write 8 there"):
        check(make_requests(prefixes=[[8] * 9]), (9, False))
    check(make_requests([[]], [[8] * 20]), (9, True))  # an empty source has no output
    check(make_requests([[5] * 20]), (9, True))
