"""Recipes: read with places, overridden, saved, and wrong in every way people get them wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sightline.models.recurrent.config import RecurrentDecoderConfig, RecurrentEncoderConfig
from sightline.models.transformer.config import TransformerConfig
from sightline.recipe import Recipe
from sightline.recipe.aliases import RECIPES, RenamedKey
from sightline.recipe.data import Data
from sightline.recipe.loading import RecipeError, find_recipe, load_recipe, recipe_schema, save_recipe, shipped_recipes
from sightline.recipe.model import InitFromConfig, ModelConfig
from sightline.recipe.sources import DatesSource
from sightline.recipe.yaml import read_yaml, write_yaml

SMALL = """\
data:
  train:
    - kind: dates
      split: train
      locales: [no, de]
  validation: {kind: dates, split: validation}
model:
  encoder:
    kind: transformer
    heads: 4
    layers: 2
  decoder: {kind: recurrent, cell: gru}
training:
  lr: 1e-3
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return write(tmp_path, SMALL)


def write(folder: Path, text: str) -> Path:
    path = folder / "small.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def message(path: Path, *overrides: str) -> str:
    with pytest.raises(RecipeError) as caught:
        load_recipe(path, overrides)
    return str(caught.value).replace(f"{path}:", "small.yaml:")


def test_a_recipe_is_read_with_numbers_and_texts_as_written(small: Path) -> None:
    recipe = load_recipe(small)
    assert recipe.training.lr == 1e-3
    source = recipe.data.train[0]
    assert isinstance(source, DatesSource)
    assert source.locales == ("no", "de")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3), ("3E5", 3e5), (".5", 0.5), ("1.", 1.0), ("20_000", 20_000), ("007", 7), ("0x1f", 31),
        ("no", "no"), ("on", "on"), ("y", "y"), ("true", True), ("False", False), ("~", None), ("", None),
        ("2020-01-01", "2020-01-01"), ("12:30", "12:30"), ("'1'", "1"), ("1_", "1_"), ("-.inf", float("-inf")),
    ],
)  # fmt: skip
def test_scalars_follow_yaml_1_2(text: str, value: object) -> None:
    read = read_yaml(f"key: {text}", "x").value["key"]
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize("text", ["\x85", "a\x85b", "\u2028", "x\u2029y"])
def test_line_breaks_that_are_no_newline_are_read_back(text: str) -> None:
    assert read_yaml(write_yaml({"value": text, text: 1}), "x").value == {"value": text, text: 1}


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
    | st.sampled_from(["no", "1e3", "0o7", "1_0", "~", "=", "<<"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab1.~é", min_size=1), inner, max_size=3),
    max_leaves=6,
))  # fmt: skip
def test_written_yaml_is_read_back_equal(value: object) -> None:
    document = read_yaml(write_yaml({"value": value}), "x")
    assert not document.problems
    assert document.value == {"value": value}


def test_a_saved_recipe_is_equal_when_loaded_again(small: Path, tmp_path: Path) -> None:
    recipe = load_recipe(small, ["training.eps=1e-9", "data.folder='1e3'"])
    save_recipe(recipe, tmp_path / "again.yaml")
    assert load_recipe(tmp_path / "again.yaml") == recipe


def test_an_unknown_name_suggests_the_nearest_shipped_recipe() -> None:
    with pytest.raises(RecipeError, match=r"^datse: there is no such file .*did you mean dates"):
        load_recipe("datse")


@pytest.mark.parametrize(("old", "new"), RECIPES.items())
def test_the_old_name_of_a_shipped_recipe_works_with_a_warning(old: str, new: str) -> None:
    with pytest.warns(RenamedKey, match=f"recipe: {old} is now called {new}"):
        assert find_recipe(old) == shipped_recipes()[new]


def test_a_run_from_before_linear_scores_keeps_its_scores_without_a_softmax(tmp_path: Path, small: Path) -> None:
    recipe = load_recipe(small, ["model.decoder.attention.kind=linear"])
    assert recipe.model.decoder is not None and recipe.model.decoder.attention_kind == "linear"
    (tmp_path / "config.json").write_text("{}")  # a run folder
    for old, new in {"linear": "unnormalized", "unscaled-linear": "unnormalized-dot"}.items():
        values = recipe.model_dump(mode="json")
        values["model"]["decoder"]["attention"]["kind"] = old
        del values["model"]["output_bias"]  # older than the present meaning of `linear`
        (tmp_path / "recipe.yaml").write_text(write_yaml(values))
        decoder = load_recipe(tmp_path / "recipe.yaml").model.decoder
        assert decoder is not None and decoder.attention_kind == new
    save_recipe(recipe, tmp_path / "recipe.yaml")
    decoder = load_recipe(tmp_path / "recipe.yaml").model.decoder
    assert decoder is not None and decoder.attention_kind == "linear"
    with pytest.warns(RenamedKey, match="unnormalized-dot"):
        load_recipe(small, ["model.decoder.attention.kind=unscaled-linear"])


def test_overrides_change_values_lists_and_sections_that_are_not_written(small: Path) -> None:
    recipe = load_recipe(
        small, ["training.lr=3e-4", "data.train.0.weight=2", "tokenizer.size=99", "training.limits.steps=5",
                "data.tests.dev={kind: dates, split: test}", "model.decoder.attention.kind=dot",
                "evaluation.metrics.0=ter"]
    )  # fmt: skip
    assert recipe.training.lr == 3e-4
    assert recipe.data.train[0].weight == 2
    assert (recipe.tokenizer.kind, recipe.tokenizer.size) == ("bpe", 99)
    assert (recipe.training.limits.steps, recipe.training.limits.epochs) == (5, None)  # epochs was a default
    assert recipe.data.tests["dev"].kind == "dates"
    assert isinstance(recipe.model.decoder, RecurrentDecoderConfig)
    assert recipe.model.decoder.attention.kind == "dot"
    assert recipe.evaluation.metrics == ("ter", "chrf")


def test_keys_can_be_set_beside_a_folder_that_stands_alone(tmp_path: Path) -> None:
    path = write(tmp_path, SMALL.replace("model:\n", "model:\n  init_from: runs/words\n", 1))
    start = InitFromConfig(run="runs/words", parts=("encoder",))
    assert load_recipe(path, ["model.init_from.parts=[encoder]"]).model.init_from == start
    both = ["model.init_from=runs/other", "model.init_from.extend_vocabulary=true"]
    assert load_recipe(path, both).model.init_from == InitFromConfig(run="runs/other", extend_vocabulary=True)
    told = message(path, "model.init_from.part=[encoder]")
    assert told == "override 'model.init_from.part=[encoder]': unknown key model.init_from.part; did you mean parts?"


def test_a_new_kind_drops_only_the_keys_that_belonged_to_the_old_one(small: Path) -> None:
    recipe = load_recipe(small, ["model.encoder.kind=recurrent"])
    assert recipe.model.encoder == RecurrentEncoderConfig(layers=2)
    recipe = load_recipe(small, ["model.decoder.heads=2", "model.decoder.kind=transformer"])
    assert recipe.model.decoder == TransformerConfig(heads=2)
    told = message(small, "model.encoder.heads=2", "model.encoder.kind=recurrent")
    assert told == (
        "override 'model.encoder.heads=2': unknown key model.encoder.heads; "
        "it belongs to kind transformer, and this one is recurrent"
    )


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("training.lr", "there is no '='; write section.key=value"),
        ("=3", "'' is not a key; write section.key=value"),
        ("training.lrr=3", "unknown key training.lrr; did you mean lr?"),
        ("trainin.lr=3", "unknown key trainin; did you mean training?"),
        ("training.lr=x", "training.lr: expected a number, got 'x'"),
        ("training.lr=-1", "training.lr: expected greater than 0, got -1"),
        ("training.lr.x=1", "training.lr is 0.001, which has no keys, so 'x' cannot be set in it"),
        ("training.lr=[1",
         "this is not YAML: while parsing a flow sequence; expected ',' or ']', but got '<stream end>'"),
        ("data.train.3.weight=1", "data.train is a list, and '3' is not one of its positions (0 to 0)"),
        ("data.train.0.wight=1", "unknown key data.train.0.wight; did you mean weight?"),
        ("training.precision=bf17",
         "training.precision: expected 'auto', 'float32', 'bf16' or 'fp16', got 'bf17'; did you mean bf16?"),
        ("training=3", "training: expected a mapping, got 3"),
        ("training.betas=0.9", "training.betas: expected a list, got 0.9"),
        ("model.encoder.kind=recurent",
         "model.encoder.kind: there is no 'recurent'; did you mean recurrent?; "
         "the kinds are bytenet, convolutional, embedding, recurrent, transformer, window"),
        ("model.encoder={layers: 2}",
         "model.encoder has no kind; add kind: with one of bytenet, convolutional, embedding, recurrent, transformer, "
         "window"),
        ("model.decoder.attention.width=2", "unknown key model.decoder.attention.width; the keys here are kind"),
        ("decoding.nbest=9", "decoding: nbest (9) is more than beam (5); raise beam, or lower nbest"),
    ],
)  # fmt: skip
def test_a_wrong_override_is_explained_with_a_remedy(small: Path, override: str, told: str) -> None:
    assert message(small, override) == f"override {override!r}: {told}"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("lr: 1e-3", "learning_rate: 1e-3", "small.yaml:14: unknown key training.learning_rate; did you mean lr?"),
        ("lr: 1e-3", "zzz: 1", "small.yaml:14: unknown key training.zzz; the keys here are lr, schedule, betas, eps"),
        ("lr: 1e-3", "lr: fast", "small.yaml:14: training.lr: expected a number, got 'fast'"),
        ("heads: 4", "cell: gru", "small.yaml:10: unknown key model.encoder.cell; it belongs to kind recurrent, and"),
        ("heads: 4", "layers: 4", "small.yaml:11: model.encoder.layers is given twice (first on line 10); keep one"),
        ("kind: transformer", "kind: tree", "small.yaml:9: model.encoder.kind: there is no 'tree'; the kinds are byt"),
        ("      split: train\n", "", "small.yaml:3: data.train.0.split is missing; add it (see `sightline"),
        ("heads: 4", "heads: 5", "small.yaml:7: model: width (512) is not divisible by encoder.heads (5)"),
        ("  encoder:", "\tencoder:", "small.yaml:8: this is not YAML: "),
        ("heads: 4", "heads: !!python/name:os.system x", "small.yaml:10: model.encoder.heads: the tag python/name:os"),
        ("heads: 4", "heads: &a [*a]", "small.yaml:10: model.encoder.heads.0: an alias that contains itself"),
    ],
)  # fmt: skip
def test_errors_name_file_and_line(tmp_path: Path, old: str, new: str, told: str) -> None:
    assert told in message(write(tmp_path, SMALL.replace(old, new, 1)))


def test_all_problems_are_listed_by_line(tmp_path: Path) -> None:
    path = write(tmp_path, SMALL.replace("lr: 1e-3", "lr: x").replace("split: train", "splt: train"))
    assert message(path, "seed=x").split("\n") == [
        "4 problems:",
        "  small.yaml:3: data.train.0.split is missing; add it (see `sightline recipes keys data.train.N.split`)",
        "  small.yaml:4: unknown key data.train.0.splt; did you mean split?",
        "  small.yaml:14: training.lr: expected a number, got 'x'",
        "  override 'seed=x': seed: expected an integer, got 'x'",
    ]


@pytest.mark.parametrize(
    ("content", "told"),
    [(b"", "the recipe is empty"), (b"- 1", "a recipe is a mapping of sections, not [1]"),
     (b"data:\n  folder: \xff", "small.yaml:2: this is not UTF-8 text")],
)  # fmt: skip
def test_a_file_that_is_no_recipe_is_refused(tmp_path: Path, content: bytes, told: str) -> None:
    path = tmp_path / "small.yaml"
    path.write_bytes(content)
    assert told in message(path)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="this is a folder, not a recipe"):
        load_recipe(tmp_path)


def test_keys_of_named_tests_are_texts_even_when_they_look_like_numbers(small: Path) -> None:
    assert list(load_recipe(small, ["data.tests={2016: {kind: dates, split: test}}"]).data.tests) == ["2016"]


def test_the_schema_describes_sections_and_forbids_unknown_keys() -> None:
    schema = recipe_schema()
    assert schema["additionalProperties"] is False
    assert schema["$defs"]["Batches"]["properties"]["accumulate"]["description"] == "batches per optimizer step"


def test_the_schema_explains_averaging_over_result() -> None:
    sections = recipe_schema()["$defs"]
    result = sections["Training"]["properties"]["result"]["description"]
    assert "with averaging.kind: checkpoints, it is the mean instead" in result
    assert "whatever training.result is" in sections["Averaging"]["properties"]["kind"]["description"]


def test_a_recipe_made_in_python_saves_too(tmp_path: Path) -> None:
    source = DatesSource(split="train", share=(0.0, 0.5))
    model = ModelConfig(encoder=RecurrentEncoderConfig(), decoder=RecurrentDecoderConfig())
    recipe = Recipe(data=Data(train=(source,), validation=source), model=model)
    save_recipe(recipe, tmp_path / "made.yaml")
    assert load_recipe(tmp_path / "made.yaml") == recipe
