"""Differences between recipes, and different names of the same file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sightline.comparison.recipe_differences import differ_only_in_seed, recipe_differences
from sightline.comparison.results import NOTHING, UNSET
from sightline.data.locate import MovedFolder
from sightline.recipe import Recipe
from sightline.recipe.loading import load_recipe


def recipe(*overrides: str) -> Recipe:
    return load_recipe("dates", overrides)


def corpus(folder: str | None, file: str = "a.tsv", **data: Any) -> Recipe:
    changed = {
        **recipe().data.model_dump(mode="json"),
        "folder": folder,
        "train": [{"kind": "tsv", "file": file}],
        "validation": {"kind": "tsv", "file": "v.tsv"},
        **data,
    }
    return Recipe.model_validate({**recipe().model_dump(mode="json"), "data": changed})


def differing(*recipes: Recipe) -> dict[str, list[str]]:
    return {each.key: each.values for each in recipe_differences(recipes)}


def test_differing_keys_in_recipe_order() -> None:
    two = recipe("training.lr=0.1", "model.width=64", "seed=3")
    assert recipe_differences([recipe(), two, recipe()])[0].key == "seed"
    assert differing(recipe(), two, recipe()) == {
        "seed": ["1", "3", "1"],
        "model.width": ["128", "64", "128"],
        "training.lr": ["0.004", "0.1", "0.004"],
    }
    assert list(differing(recipe(), two, recipe())) == ["seed", "model.width", "training.lr"]


def test_the_same_recipe_has_no_differences() -> None:
    assert differing(recipe(), recipe()) == {}


def test_parts_of_different_kinds_have_different_keys() -> None:
    differences = differing(recipe(), recipe("model.encoder.kind=transformer"))
    assert differences["model.encoder.kind"] == ["recurrent", "transformer"]
    assert differences["model.encoder.cell"] == ["lstm", NOTHING]
    assert differences["model.encoder.norm.place"] == [NOTHING, "pre"]
    assert "model.decoder.cell" not in differences


def test_unset_sections_are_shown_key_by_key() -> None:
    differences = differing(recipe(), recipe("training.rdrop=5", "model.width=64"))
    assert differences == {"model.width": ["128", "64"], "training.rdrop": [UNSET, "5"]}
    differences = differing(recipe(), recipe("training.reward={samples: 4}"), recipe("training.reward.samples=4"))
    assert differences["training.reward.samples"] == [UNSET, "4", "4"]
    assert differences["training.reward.metric"] == [UNSET, "gleu", "gleu"]
    assert "training.reward" not in differences


def test_lists_of_sections_are_compared_by_key() -> None:
    assert differing(recipe(), recipe("training.betas=[0.9, 0.999]")) == {
        "training.betas": ["[0.9, 0.98]", "[0.9, 0.999]"]
    }
    assert differing(recipe(), recipe("data.train.0.examples=7")) == {"data.train.0.examples": ["20000", "7"]}


def test_equal_folders_do_not_differ(tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "corpus")
    here = str(tmp_path / "corpus")
    assert differing(corpus(here), corpus(str(tmp_path / "link")), corpus(f"{here}/../corpus")) == {}
    assert (
        differing(
            corpus(here), corpus(str(tmp_path), f"{here}/a.tsv", validation={"kind": "tsv", "file": f"{here}/v.tsv"})
        )
        == {}
    )


def test_moved_files_differ_only_in_the_folder(tmp_path: Path) -> None:
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    assert differing(corpus(one), corpus(two)) == {"data.folder": [one, two]}


@pytest.mark.parametrize("name", ["tinyshakespeare/lstm", "ewt/lstm", "chorales/transformer"])
def test_all_file_keys_are_resolved(tmp_path: Path, name: str) -> None:
    folders = [str(tmp_path / "one"), str(tmp_path / "two")]
    assert differing(*(load_recipe(name, [f"data.folder={each}"]) for each in folders)) == {"data.folder": folders}


def test_folders_of_another_machine_are_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m30k").mkdir()
    monkeypatch.setenv("SIGHTLINE_CORPORA", str(tmp_path))
    with pytest.warns(MovedFolder):
        assert differing(corpus("/server/m30k"), corpus(str(tmp_path / "m30k"))) == {}


def test_different_files_differ_by_name(tmp_path: Path) -> None:
    assert differing(corpus(str(tmp_path)), corpus(str(tmp_path), "b.tsv")) == {"data.train.0.file": ["a.tsv", "b.tsv"]}


def test_test_sets_are_ignored() -> None:
    assert differing(recipe(), recipe("data.tests.test.examples=5")) == {}


def test_seventh_digits_differ() -> None:
    differences = differing(recipe("training.lr=0.0012345678"), recipe("training.lr=0.0012345679"))
    assert differences == {"training.lr": ["0.0012345678", "0.0012345679"]}


@pytest.mark.parametrize("override", ["seed=2", "training.threads=3", "training.keep=9", "training.log_every=1"])
def test_keys_without_effect_do_not_make_a_system(override: str) -> None:
    assert differ_only_in_seed(recipe(), recipe(override))


@pytest.mark.parametrize(
    "override", ["training.lr=1", "decoding.beam=2", "data.limit=5", "training.limits.epochs=5", "tokenizer.size=99"]
)
def test_other_keys_make_a_system(override: str) -> None:
    assert not differ_only_in_seed(recipe(), recipe(override, "seed=2"))
