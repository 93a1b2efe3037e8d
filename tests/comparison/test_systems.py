"""Which runs are one system, and what it is called."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sightline.comparison.systems import ComparedRun, choose_baseline, group_by_seed
from sightline.recipe.loading import load_recipe
from sightline.run_folder import RunError

RECIPES = {kind: load_recipe(kind) for kind in ("dates", "cmudict")}


def contestant(name: str, seed: int, kind: str = "dates") -> ComparedRun:
    run: Any = SimpleNamespace(recipe=RECIPES[kind].model_copy(update={"seed": seed}))
    return ComparedRun(name, run, options=None)  # type: ignore[arg-type]


def named(*runs: ComparedRun) -> list[str]:
    """The names of the systems that these runs make, beside one of another recipe."""
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
def test_a_system_is_called_as_its_runs_are_without_their_seeds(runs: dict[str, int], name: str) -> None:
    assert named(*(contestant(run, seed) for run, seed in runs.items())) == [name]


def test_systems_of_one_name_are_told_apart_by_their_first_run() -> None:
    pairs = [
        contestant(f"dot{mark}seed{seed}", seed, kind)
        for mark, kind in (("-", "dates"), ("_", "cmudict"))
        for seed in (1, 2)
    ]
    groups, _ = group_by_seed(pairs)
    assert [group.name for group in groups] == ["dot (dot-seed1)", "dot (dot_seed1)"]


def test_runs_that_are_all_of_one_recipe_are_compared_on_their_own() -> None:
    groups, notes = group_by_seed([contestant("a", 1), contestant("b", 2)])
    assert [group.name for group in groups] == ["a", "b"]
    assert notes == ["All runs differ only in their seed, so each is compared on its own."]
    assert group_by_seed([contestant("a", 1), contestant("b", 1)])[1] == []


def test_the_baseline_may_be_named_by_one_of_its_runs() -> None:
    runs = [contestant("other", 1, "cmudict"), contestant("dot-seed1", 1), contestant("dot-seed2", 2)]
    for each in runs:
        each.run.folder = SimpleNamespace(resolve=lambda: None)  # type: ignore[misc, assignment]
    groups, _ = group_by_seed(runs)
    for wanted in ("dot", "dot-seed1", "dot-seed2"):
        assert [group.name for group in choose_baseline(groups, wanted)] == ["dot", "other"]
    assert [group.name for group in choose_baseline(groups, None)] == ["other", "dot"]
    with pytest.raises(RunError, match=r"the baseline dot-seed3 is none of the runs that are compared \(other, dot\)"):
        choose_baseline(groups, "dot-seed3")
