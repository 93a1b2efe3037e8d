"""Grouping runs into systems, their names, and decoding in turns."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sightline.comparison import compare_runs as turns
from sightline.comparison.systems import ComparedRun, choose_baseline, group_by_seed
from sightline.progress import silent
from sightline.recipe.loading import load_recipe
from sightline.run_folder import RunError

RECIPES = {kind: load_recipe(kind) for kind in ("dates", "cmudict")}


def contestant(name: str, seed: int, kind: str = "dates") -> ComparedRun:
    run: Any = SimpleNamespace(recipe=RECIPES[kind].model_copy(update={"seed": seed}))
    return ComparedRun(name, run, options=None)  # type: ignore[arg-type]


def named(*runs: ComparedRun) -> list[str]:
    """The names of the systems of these runs and of one with another recipe."""
    groups, notes = group_by_seed([*runs, contestant("other", 1, "cmudict")])
    assert notes == [] and groups[-1].name == "other"
    return [group.name for group in groups[:-1]]


@pytest.mark.parametrize(
    ("runs", "name"),
    [
        ({"dot-seed1": 1, "dot-seed2": 2}, "dot"),
        ({"dot-1": 1, "dot-s2": 2}, "dot"),
        ({"seed1": 1, "seed2": 2}, "seed1 and 1 more"),  # nothing is left of the names
        ({"dot": 1, "again": 2, "more": 3}, "dot and 2 more"),
        ({"dot-seed12": 1, "dot2-seed2": 2}, "dot-seed12 and 1 more"),  # 12 is not seed 1 and a 2
    ],
)
def test_systems_are_named_without_seeds(runs: dict[str, int], name: str) -> None:
    assert named(*(contestant(run, seed) for run, seed in runs.items())) == [name]


def test_equal_system_names_get_a_run_name() -> None:
    pairs = [
        contestant(f"dot{mark}seed{seed}", seed, kind)
        for mark, kind in (("-", "dates"), ("_", "cmudict"))
        for seed in (1, 2)
    ]
    groups, _ = group_by_seed(pairs)
    assert [group.name for group in groups] == ["dot (dot-seed1)", "dot (dot_seed1)"]


def test_runs_of_a_single_recipe_are_compared_separately() -> None:
    groups, notes = group_by_seed([contestant("a", 1), contestant("b", 2)])
    assert [group.name for group in groups] == ["a", "b"]
    assert notes == ["All runs differ only in their seed, so each is compared on its own."]
    assert group_by_seed([contestant("a", 1), contestant("b", 1)])[1] == []


def test_the_baseline_may_be_named_by_one_of_its_runs() -> None:
    runs = [contestant("other", 1, "cmudict"), contestant("dot-seed1", 1), contestant("dot-seed2", 2)]
    for each in runs:
        each.run.folder = SimpleNamespace(resolve=lambda: None)  # type: ignore[misc, assignment]
    groups, _ = group_by_seed(runs)
    for expected in ("dot", "dot-seed1", "dot-seed2"):
        assert [group.name for group in choose_baseline(groups, expected)] == ["dot", "other"]
    assert [group.name for group in choose_baseline(groups, None)] == ["other", "dot"]
    with pytest.raises(RunError, match=r"the baseline dot-seed3 is none of the runs that are compared \(other, dot\)"):
        choose_baseline(groups, "dot-seed3")


class Fake:
    """A run that records its calls and returns sources in capitals."""

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


def test_outputs_keep_the_order_of_sources(clock: list[float]) -> None:
    result, _, sources = decoded("abc", 103, clock)
    for name in "abc":
        assert result[name].outputs == [f"{name} {source.upper()}" for source in sources]


def test_decoding_time_excludes_warm_up(clock: list[float]) -> None:
    result, _, _ = decoded("ab", 200, clock)
    assert (result["a"].seconds, result["b"].seconds) == (200.0, 400.0)


def test_runs_take_turns_after_a_warm_up(clock: list[float]) -> None:
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


def test_parts_on_a_gpu_are_larger(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fake, "on_gpu", True)
    _, diary, _ = decoded("ab", 499, clock)
    assert diary[2:] == [("a", 0, 499), ("b", 0, 499)]
    _, diary, _ = decoded("ab", 500, clock)
    assert diary[2:] == [("a", 0, 250), ("b", 0, 250), ("b", 250, 250), ("a", 250, 250)]


def test_many_runs_rotate(clock: list[float]) -> None:
    names = "abcdefghijklmnopqrst"
    _, diary, _ = decoded(names, 400, clock)
    rounds = [diary[at : at + 20] for at in range(20, len(diary), 20)]
    assert all({name for name, _, _ in each} == set(names) for each in rounds)
    assert "".join(each[0][0] for each in rounds) == "acegikmo"  # far apart
