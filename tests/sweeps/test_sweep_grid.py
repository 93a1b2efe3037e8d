"""Which combinations there are, and what they are called."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sightline.recipe.yaml import read_yaml
from sightline.sweeps.grid import SweepError, as_text, combinations, name_runs, read_variants, split_values


def overrides(arguments: Any, **how: Any) -> list[str]:
    return [str(combination) for combination in combinations(arguments, **how)]


def names(arguments: Any, variants: Any = None, **how: Any) -> list[str]:
    found = combinations(arguments, read_variants(variants) if variants is not None else ())
    return name_runs(found, **{"beside": [], "taken": [], "plain": "dates", **how})


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
    found = overrides(
        {"model.tie": ["all", "none"], "training.betas": [[0.9, 0.98]], "data.swap": True, "seed": (1, 2)}
    )
    assert found == overrides(["model.tie=all,none", "training.betas=[0.9, 0.98]", "data.swap=true", "seed=1,2"])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "nothing to sweep over; give keys"),
        (["seed"], "'seed' is not section.key=value"),
        (["=1,2"], "'=1,2' is not section.key=value"),
        (["seed=1", "seed=2"], "seed is given twice; write all its values together: seed=a,b,c"),
        (["seed=1,,2"], "'seed=1,,2' has an empty value between its commas"),
        ({"seed": []}, "seed has no values"),
    ],
)
def test_errors_of_grids(arguments: Any, told: str) -> None:
    with pytest.raises(SweepError, match=re.escape(told)):
        combinations(arguments)


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


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("seed: 1", "list.yaml: this is not a list of variants"),
        ("- seed: 1\n- dot", "list.yaml:2: a variant is a mapping such as training.lr: 1e-3, not 'dot'"),
        ("- seed: 1\n  seed: 2", "list.yaml:2: 0.seed is given twice"),
        ("- training.lr: 1\n  training: {lr: 2}", "list.yaml:1: training.lr is given twice; keep one"),
        ("- {name: a, seed: 1}\n- {name: a, seed: 2}", "two variants of the list are named 'a'"),
        ("[]", "the list of variants is empty"),
        ("- {name: [a]}", "list.yaml:1: the name of a variant is a word, not ['a']"),
        ("- {recipe: 3}", "list.yaml:1: the recipe of a variant is a file or the name of a shipped one, not 3"),
        ("- {a", "list.yaml:1: this is not YAML"),
    ],
)
def test_errors_of_lists_name_the_line(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "list.yaml").write_text(text)
    with pytest.raises(SweepError, match=re.escape(told)):
        read_variants(tmp_path / "list.yaml")


def test_a_key_in_the_list_and_in_the_grid_is_refused() -> None:
    with pytest.raises(SweepError, match="seed is in the list and on the command line; remove one"):
        combinations(["seed=1,2"], read_variants([{"seed": 3}]))


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
