"""Recipes that would exhaust the machine, or give a number as something else, are refused at once, with their place."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from sightline.files import read_json
from sightline.recipe import Recipe
from sightline.recipe.loading import RecipeError, load_recipe, shipped_recipes
from sightline.recipe.yaml import MAX_DEPTH, MAX_VALUES, read_yaml
from sightline.text.tokenizer import Tokenizer, TokenizerError

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
DATA = "data: {train: [{kind: tsv, file: a}], validation: {kind: tsv, file: b}}\n"
MODEL = "model: {encoder: {kind: transformer}, decoder: {kind: transformer}}\n"
DEEP = 100_000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, f"recipe.yaml:5: e: more than {MAX_VALUES:,} values, counting what aliases repeat"),
        ("x: " + "[" * DEEP, f"recipe.yaml:1: this is not YAML: nested more than {MAX_DEPTH} levels deep"),
        ("x: " + "{a: " * DEEP, f"recipe.yaml:1: this is not YAML: nested more than {MAX_DEPTH} levels deep"),
        ("- " * DEEP, f"recipe.yaml:1: this is not YAML: nested more than {MAX_DEPTH} levels deep"),
        ("- x\n" * DEEP, f"recipe.yaml:40000: this is not YAML: more than {MAX_VALUES:,} values"),
        ("x" * 1_000_001, "recipe.yaml has more than 1,000,000 bytes"),
        ("seed: " + "9" * 5_000, "recipe.yaml:1: seed: a number of 5,000 digits"),
        ('seed: "\\ud800"', "recipe.yaml:1: seed: a NUL or half a surrogate pair"),
        ('seed: "\\0"', "recipe.yaml:1: seed: a NUL or half a surrogate pair"),
    ],
    ids=["aliases", "brackets", "braces", "dashes", "items", "bytes", "digits", "surrogate", "nul"],
)
def test_a_document_out_of_bounds_is_refused_by_its_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(RecipeError) as refused:
        load_recipe(tmp_path / "recipe.yaml")
    assert message in str(refused.value)


def test_an_alias_bomb_takes_no_memory() -> None:
    tracemalloc.start()
    assert read_yaml(BOMB, "recipe.yaml").problems
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100e6


def test_an_alias_within_bounds_is_read() -> None:
    assert read_yaml("a: &a [1, 2]\nb: *a\n", "x").value == {"a": [1, 2], "b": [1, 2]}


# Each key, a value no recipe has, and what is expected there.
REFUSED: list[tuple[str, str, str]] = [
    ("model.width", "10000000000", "at most 1,000,000,000"),
    ("model.encoder.layers", "10000000000", "at most 1,000,000,000"),
    ("model.encoder.heads", "99999999999", "at most 1,000,000,000"),
    ("model.encoder.positions.max_positions", "100000000", "at most 1,048,576"),
    ("tokenizer.size", "1000000000", "at most 4,000,000"),
    ("tokenizer.variants", "1000000", "at most 1,000"),
    ("data.train.0.weight", "1e9", "at most 10,000"),
    ("data.train.0.columns", "[1, 1000000000]", "at most 100,000"),
    ("training.batches.tokens", "1000000000000", "at most 100,000,000"),
    ("training.batches.context", "1000000000000", "at most 1,048,576"),
    ("training.threads", "100000", "at most 1,024"),
    ("training.samples", "1000000", "at most 10,000"),
    ("decoding.beam", "99999999999999999999", "at most 10,000"),
    ("decoding.nbest", "1000000", "at most 100,000"),
    ("decoding.max_length", "1000000000", "at most 1,048,576"),
    ("decoding.mbr.candidates", "99999999999999999999", "at most 100,000"),
    ("decoding.max_ratio", "1e300", "at most 1,000,000"),
    ("evaluation.bootstrap", "1000000000", "at most 1,000,000"),
    ("training.limits.steps", "99999999999999999999", "at most 9,223,372,036,854,775,807"),
    ("training.limits.minutes", "1e300", "at most 1,000,000,000,000"),
    ("seed", "99999999999999999999", "at most 9,223,372,036,854,775,807"),
    ("decoding.sample.temperature", "1e-320", "at least 0.0001"),
    # not numbers
    ("decoding.beam", "true", "expected a number, not true or false"),
    ("model.width", "false", "expected a number, not true or false"),
    ("training.lr", "true", "expected a number, not true or false"),
    ("training.betas", "[true, 0.9]", "expected a number, not true or false"),
    ("data.train.0.share", "[false, true]", "expected a number, not true or false"),
    ("training.threads", "true", "expected a number, not true or false"),
    ("decoding.beam", '"5"', "expected a number, not a text; remove the quotes"),
    ("training.lr", '"1e-3"', "expected a number, not a text; remove the quotes"),
    ("data.swap", "1", "expected true or false, not a number"),
    ("training.compile", "0", "expected true or false, not a number"),
    # numbers that are none
    ("training.lr", ".nan", "expected a finite number"),
    ("training.betas", "[.nan, 0.9]", "expected a finite number"),
    ("training.betas", "[2.0, -1.0]", "expected greater than or equal to 0"),
    ("decoding.length_penalty", ".inf", "expected a finite number"),
    ("decoding.length_penalty", "-1", "expected greater than or equal to 0"),
    ("data.train.0.share", "[.nan, 1.0]", "expected a finite number"),
    ("seed", "-1", "expected greater than or equal to 0"),
    ("task", "{}", "task: expected 'seq2seq'"),
    ("task", "[tag]", "task: expected 'seq2seq'"),
]


@pytest.mark.parametrize(("key", "value", "message"), REFUSED, ids=[f"{key}={value}" for key, value, _ in REFUSED])
def test_a_number_no_recipe_has_is_refused_by_its_key(tmp_path: Path, key: str, value: str, message: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(DATA + MODEL)
    with pytest.raises(RecipeError) as refused:
        load_recipe(path, [f"{key}={value}"])
    assert f"override '{key}={value}'" in str(refused.value)
    assert message in str(refused.value), str(refused.value)


def test_values_within_bounds_are_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(DATA + MODEL)
    overrides = ["training.limits.steps=1e5", "training.lr=1", "data.swap=yes", "data.folder='5'", "decoding.beam=5.0"]
    recipe = load_recipe(path, overrides)
    assert (recipe.training.limits.steps, recipe.training.lr, recipe.data.swap) == (100_000, 1.0, True)
    assert (recipe.data.folder, recipe.decoding.beam) == ("5", 5)
    for name in shipped_recipes():
        load_recipe(name)


def _numbers(section: type, path: str = "") -> list[str]:
    """Every key of the recipe that holds a number."""
    from sightline.recipe.schema import Section, alternatives

    found = []
    for name, field in section.model_fields.items():  # type: ignore[attr-defined]
        for leaf in alternatives(field.annotation):
            if isinstance(leaf, type) and issubclass(leaf, Section):
                found += _numbers(leaf, f"{path}{name}.")
            elif leaf in (int, float):
                found.append(f"{section.__name__}.{name}")
    return found


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), True, "5", 10**30, -(10**30), 1e300])
def test_no_number_of_any_section_can_be_any_of_these(value: Any) -> None:
    from sightline.recipe.schema import Section, alternatives

    def every(section: type[Section]) -> list[type[Section]]:
        return [section, *(deeper for below in section.__subclasses__() for deeper in every(below))]

    by_name = {section.__name__: section for section in every(Section)}
    for place in set(_numbers(Recipe)):
        name, key = place.split(".")
        if value == "5" and str in alternatives(by_name[name].model_fields[key].annotation):
            continue  # the name of a column
        with pytest.raises(ValueError, match=rf"{key}[.\n]"):
            by_name[name].model_validate({key: value})


def test_json_that_is_nested_too_deeply_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("[" * DEEP)
    with pytest.raises(ValueError, match=r"config.json is damaged: not JSON \(nested too deeply\)"):
        read_json(path)
    with pytest.raises(TokenizerError, match=r"config\.json"):
        Tokenizer.load(path)
