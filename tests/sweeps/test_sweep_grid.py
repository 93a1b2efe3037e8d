"""The combinations of a sweep and their names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sightline.recipe.yaml import read_yaml
from sightline.sweeps.grid import SweepError, as_text, combinations, name_runs, read_variants, split_values


def overrides(arguments: Any, **options: Any) -> list[str]:
    return [str(combination) for combination in combinations(arguments, **options)]


def names(arguments: Any, variants: Any = None, **options: Any) -> list[str]:
    result = combinations(arguments, read_variants(variants) if variants is not None else ())
    return name_runs(result, **{"beside": [], "taken": [], "plain": "dates", **options})


# --- values --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1", ["1"]),
        ("a,b , c", ["a", "b", "c"]),
        ("{kind: cosine, warmup: 10},{kind: constant}", ["{kind: cosine, warmup: 10}", "{kind: constant}"]),
        ("[0.9, 0.98],[0.9, 0.999]", ["[0.9, 0.98]", "[0.9, 0.999]"]),
        ("{a: [1, {b: 2, c: 3}], d: 4},null", ["{a: [1, {b: 2, c: 3}], d: 4}", "null"]),
        ("'a,b',\"c,d\",e", ["'a,b'", '"c,d"', "e"]),
        (r'"a\",b",c', [r'"a\",b"', "c"]),
        ("'it''s, so',c", ["'it''s, so'", "c"]),
        ("it's,that's", ["it's", "that's"]),  # an apostrophe is no quotation mark
        ("['a,]', b],c", ["['a,]', b]", "c"]),
        ("a],b", ["a]", "b"]),
        ("[1,2", ["[1,2"]),
        ("", [""]),
    ],
)
def test_values_are_split_outside_brackets_and_quotes(text: str, values: list[str]) -> None:
    assert split_values(text) == values


TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))  # a NUL is no text of a recipe


@given(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS | st.lists(TEXTS))
def test_python_values_round_trip_as_yaml(value: Any) -> None:
    read = read_yaml(as_text(value), "value")
    assert not read.problems
    assert read.value == value
    assert type(read.value) is type(value)


def test_the_last_key_of_a_grid_varies_fastest() -> None:
    assert overrides(["model.width=8,16", "training.lr=1e-3", "seed=1,2"]) == [
        "model.width=8 training.lr=1e-3 seed=1",
        "model.width=8 training.lr=1e-3 seed=2",
        "model.width=16 training.lr=1e-3 seed=1",
        "model.width=16 training.lr=1e-3 seed=2",
    ]


def test_a_mapping_is_a_grid() -> None:
    result = overrides(
        {"model.tie": ["all", "none"], "training.betas": [[0.9, 0.98]], "data.swap": True, "seed": (1, 2)}
    )
    assert result == overrides(["model.tie=all,none", "training.betas=[0.9, 0.98]", "data.swap=true", "seed=1,2"])


def test_a_key_without_values_is_refused() -> None:
    with pytest.raises(SweepError, match="seed has no values"):
        combinations({"seed": []})


# --- lists ---------------------------------------------------------------------------------------------------------

LIST = """
- name: small
  model: {width: 8}
- name: warm
  training.schedule: {warmup: 100, kind: cosine}
  data.tests: {}
- training.lr: 1e-3
"""


def test_variants_are_combined_with_the_grid(tmp_path: Path) -> None:
    (tmp_path / "list.yaml").write_text(LIST)
    assert overrides(["seed=1,2"], variants=read_variants(tmp_path / "list.yaml")) == [
        "model.width=8 seed=1",
        "model.width=8 seed=2",
        "training.schedule.kind=cosine training.schedule.warmup=100 data.tests={} seed=1",
        "training.schedule.kind=cosine training.schedule.warmup=100 data.tests={} seed=2",
        "training.lr=0.001 seed=1",
        "training.lr=0.001 seed=2",
    ]


# --- names ---------------------------------------------------------------------------------------------------------


def test_a_run_is_named_by_what_varies() -> None:
    grid = ["model.decoder.attention.kind=dot,scaled-dot", "training.lr=1e-3", "seed=1,2"]
    assert names(grid) == [
        "attention=dot,seed=1",
        "attention=dot,seed=2",
        "attention=scaled-dot,seed=1",
        "attention=scaled-dot,seed=2",
    ]


def test_keys_in_names_are_short_and_distinct() -> None:
    grid = ["model.encoder.layers=1,2", "model.decoder.layers=1", "model.decoder.cell=gru,lstm"]
    assert names(grid)[0] == "layers=1,cell=gru"
    grid[1] += ",2"
    assert names(grid)[0] == "encoder.layers=1,decoder.layers=1,cell=gru"


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("training.schedule={kind: cosine, warmup: 10},{kind: constant}", ["cosine-warmup-10", "constant"]),
        ("training.betas=[0.9, 0.98],[0.9, 0.999]", ["0.9-0.98", "0.9-0.999"]),
        ("data.folder=/data/a b,'../ü'", ["data-a-b", ".."]),
        ("training.clip=1e-3,null,.5,5", ["1e-3", "null", ".5", "5"]),
        ("decoding.length_penalty=-1,1", ["-1", "1"]),
    ],
)
def test_values_in_names_are_short_and_safe(argument: str, expected: list[str]) -> None:
    label = argument.partition("=")[0].split(".")[-1]
    assert names([argument]) == [f"{label}={value}" for value in expected]


def test_equal_or_long_names_get_a_digest() -> None:
    same = names(["data.folder=a/b,a-b,A-B"])
    assert same[0] == "folder=a-b"
    assert len({name.casefold() for name in same}) == 3
    long = names([f"data.folder={'x' * 300},{'x' * 299}y", *(f"a.key{n}={'v' * 20},w" for n in range(9))])
    assert len(set(long)) == len(long)
    assert max(map(len, long)) <= 100
    assert same == names(["data.folder=a/b,a-b,A-B"])


def test_names_of_variants() -> None:
    variants = [{"name": "Big one", "model.width": 64}, {"name": "..", "model.width": 32}, {"model.width": 16}, {}]
    assert names(["seed=1,2"], variants)[::2] == ["Big-one,seed=1", "variant,seed=1", "width=16,seed=1", "seed=1"]
    assert names([], variants) == ["Big-one", "variant", "width=16", "dates"]


def test_a_variant_of_another_recipe_is_named_after_it() -> None:
    variants = [{"recipe": "multi30k/gnmt"}, {"recipe": "my/own.yaml", "model.width": 8}, {"recipe": "a", "name": "b"}]
    assert names([], variants) == ["gnmt", "own,width=8", "b"]
    assert names(["seed=1,2"], variants)[::2] == ["gnmt,seed=1", "own,width=8,seed=1", "b,seed=1"]
    assert overrides([], variants=read_variants(variants[1:2])) == ["my/own.yaml model.width=8"]


def test_paths_in_lists_are_not_shipped_recipes() -> None:
    (variant,) = read_variants([{"recipe": Path("dates")}])
    assert variant.recipe == "./dates"


def test_new_runs_avoid_existing_names() -> None:
    assert names(["seed=3"]) == ["seed=3"]
    there = [combination.overrides for combination in combinations(["seed=1,2", "model.width=8"])]
    assert names(["seed=3", "model.width=8"], beside=there) == ["seed=3"]
    assert names(["seed=1,2", "model.width=16"], beside=there) == ["seed=1,width=16", "seed=2,width=16"]
    assert names([], [{"name": "logs"}, {"name": "Seed=1", "seed": 2}], taken=["logs"])[0].startswith("logs-")
