"""Decoding in turns: everybody decodes everything, in order, and nobody always comes first."""

from __future__ import annotations

from typing import Any

import pytest

from sightline.comparison import compare_runs as turns
from sightline.progress import silent


class Fake:
    """A run that writes down when it is asked for what, and answers in capitals."""

    on_gpu = False

    def __init__(self, name: str, diary: list[tuple[str, int, int]], clock: list[float], slow: float = 1.0) -> None:
        self.name, self.diary, self.clock, self.slow = name, diary, clock, slow

    def decode(self, sources: list[str], *, first: int) -> list[str]:
        self.diary.append((self.name, first, len(sources)))
        self.clock[0] += self.slow * len(sources)
        return [f"{self.name} {source.upper()}" for source in sources]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(turns.time, "perf_counter", lambda: now[0])
    return now


def decoded(names: str, sentences: int, clock: list[float]) -> tuple[Any, list[tuple[str, int, int]], list[str]]:
    diary: list[tuple[str, int, int]] = []
    runs: list[Any] = [Fake(name, diary, clock, slow=1.0 + place) for place, name in enumerate(names)]
    sources = [f"s{number}" for number in range(sentences)]
    return turns.decode_in_turns(runs, sources, silent), diary, sources


def test_outputs_come_back_in_the_order_of_the_sources(clock: list[float]) -> None:
    found, _, sources = decoded("abc", 103, clock)
    for name in "abc":
        assert found[name].outputs == [f"{name} {source.upper()}" for source in sources]


def test_time_is_that_of_the_turns_without_the_warm_up(clock: list[float]) -> None:
    found, _, _ = decoded("ab", 200, clock)
    assert (found["a"].seconds, found["b"].seconds) == (200.0, 400.0)


def test_after_a_warm_up_every_run_decodes_a_part_before_any_goes_on(clock: list[float]) -> None:
    _, diary, _ = decoded("abc", 200, clock)
    assert [name for name, _, _ in diary[:3]] == ["a", "b", "c"]
    rounds = [diary[at : at + 3] for at in range(3, len(diary), 3)]
    assert len(rounds) == 8
    for number, each in enumerate(rounds):
        assert {(first, count) for _, first, count in each} == {(25 * number, 25)}
    assert ["".join(name for name, _, _ in each) for each in rounds[:4]] == ["abc", "bca", "cab", "abc"]


def test_a_small_test_set_is_one_part(clock: list[float]) -> None:
    _, diary, _ = decoded("ab", 49, clock)
    assert diary == [("a", 0, 16), ("b", 0, 16), ("a", 0, 49), ("b", 0, 49)]  # the first two to warm up
    _, diary, _ = decoded("ab", 50, clock)
    assert diary[2:] == [("a", 0, 25), ("b", 0, 25), ("b", 25, 25), ("a", 25, 25)]


def test_what_is_done_is_told_turn_by_turn(clock: list[float]) -> None:
    told: list[tuple[str, int, int]] = []
    runs: list[Any] = [Fake(name, [], clock) for name in "ab"]
    turns.decode_in_turns(runs, ["s"] * 50, lambda *what: told.append(what))
    assert told == [
        ("warming up", 0, 2),
        ("warming up", 1, 2),
        *(("decoding, part 1 of 2", done, 4) for done in (0, 1)),
        *(("decoding, part 2 of 2", done, 4) for done in (2, 3)),
    ]


def test_one_run_on_a_gpu_is_enough_for_larger_parts(clock: list[float]) -> None:
    diary: list[tuple[str, int, int]] = []
    runs: list[Any] = [Fake(name, diary, clock) for name in "ab"]
    runs[1].on_gpu = True
    turns.decode_in_turns(runs, ["s"] * 100, silent)
    assert diary[2:] == [("a", 0, 100), ("b", 0, 100)]


def test_a_gpu_is_given_more_at_a_time(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fake, "on_gpu", True)
    _, diary, _ = decoded("ab", 499, clock)
    assert diary[2:] == [("a", 0, 499), ("b", 0, 499)]
    _, diary, _ = decoded("ab", 500, clock)
    assert diary[2:] == [("a", 0, 250), ("b", 0, 250), ("b", 250, 250), ("a", 250, 250)]


def test_of_many_runs_everybody_has_a_turn_and_different_ones_come_first(clock: list[float]) -> None:
    names = "abcdefghijklmnopqrst"
    _, diary, _ = decoded(names, 400, clock)
    rounds = [diary[at : at + 20] for at in range(20, len(diary), 20)]
    assert all({name for name, _, _ in each} == set(names) for each in rounds)
    assert "".join(each[0][0] for each in rounds) == "acegikmo"  # far apart
