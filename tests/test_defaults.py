"""What a recipe need not say: the parts of the model by its task, sizes by the training text (recipe/defaults.py)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import sightline
from sightline.data.preparation import copied_share, measure
from sightline.data.sources import Example
from sightline.recipe import Recipe
from sightline.recipe.defaults import TextSize, fill_in, open_keys
from sightline.recipe.loading import load_recipe, shipped_recipes
from sightline.run_folder import RunError
from sightline.training.dry_run import dry_run
from sightline.training.resolve import open_recipe
from task_cases import FILES
from watched_runs import Silent, own_cache, records

TASKS = ("seq2seq", "language-model", "masked-lm", "classification", "tagging")
TINY = ["training.device=cpu", "training.threads=1", "model.width=32", "training.samples=0", "training.log_every=5"]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path) -> Iterator[None]:
    with own_cache(tmp_path / "cache"):
        yield


def write(folder: Path, task: str, **sections: Any) -> Path:
    """A recipe of task and data alone, beside its corpus."""
    plain = task in ("language-model", "masked-lm")
    lines = FILES["language-model" if plain else task]
    for name in ("train", "valid"):
        (folder / f"{name}.txt").write_text("".join(lines), encoding="utf-8")
    kind = "plain" if plain else "tsv"
    data = {"train": [{"kind": kind, "file": "train.txt"}], "validation": {"kind": kind, "file": "valid.txt"}}
    recipe = folder / "mine.yaml"
    recipe.write_text(yaml.safe_dump({"task": task, "data": data, **sections}), encoding="utf-8")
    return recipe


def pairs(examples: int, words: int = 10, copied: float = 0.0) -> TextSize:
    """The size of a translation corpus."""
    count = examples * words
    return TextSize(examples, count, count, 6 * count, 6 * count, 80, copied)


def filled(text: TextSize, **sections: Any) -> Recipe:
    tsv = {"kind": "tsv", "file": "pairs.tsv"}
    recipe = Recipe.model_validate({"data": {"train": [tsv], "validation": tsv}, **sections})
    return fill_in(recipe, text)[0]


# --- a recipe of task and data ------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", TASKS)
def test_task_and_data_are_enough_to_learn(task: str, tmp_path: Path) -> None:
    recipe = write(tmp_path, task)
    steps = 30 if task != "masked-lm" else 60
    run = sightline.train(recipe, [*TINY, f"training.limits.steps={steps}"], out=tmp_path / "run", display=Silent())
    losses = [record["nll"] for record in records(Path(run), "train")]
    assert losses[-1] < 0.9 * losses[0], losses


@pytest.mark.parametrize("task", TASKS)
def test_a_run_saves_every_key_that_its_recipe_left_out(task: str, tmp_path: Path) -> None:
    display = Silent()
    run = sightline.train(
        write(tmp_path, task), [*TINY, "training.limits.steps=1"], out=tmp_path / "run", display=display
    )
    saved = load_recipe(Path(run) / "recipe.yaml")
    assert open_keys(saved) == []
    assert saved.training.batches.tokens < 4_096
    assert any("training.batches.tokens=" in note for note in display.notes)


def test_shipped_recipes_keep_the_keys_they_set() -> None:
    for name in shipped_recipes():
        recipe = load_recipe(name)
        if "model" not in recipe.model_fields_set:
            continue
        found, _ = fill_in(recipe, pairs(1_000))
        assert found.model == recipe.model
        assert found.training.schedule == recipe.training.schedule
        assert found.training.lr == recipe.training.lr
        if recipe.model.decoder is None or recipe.model.decoder.kind != "ngram":
            assert found.training.batches.tokens == recipe.training.batches.tokens


def test_an_override_changes_one_key_of_the_default_model(tmp_path: Path) -> None:
    loaded, _ = open_recipe(write(tmp_path, "seq2seq"), ["model.encoder.layers=3"])
    assert loaded.model.encoder is not None
    assert loaded.model.decoder is not None
    assert (loaded.model.encoder.kind, loaded.model.encoder.layers) == ("recurrent", 3)


def test_a_named_model_is_not_completed(tmp_path: Path) -> None:
    body = {"kind": "recurrent", "attention": {"kind": "none"}}
    loaded, _ = open_recipe(write(tmp_path, "seq2seq", model={"decoder": body}))
    assert loaded.model.encoder is None


# --- sizes --------------------------------------------------------------------------------------------------------


def test_sizes_grow_with_the_text() -> None:
    found = [filled(pairs(examples)) for examples in (500, 5_000, 50_000, 500_000)]
    sizes = [recipe.tokenizer.size for recipe in found]
    batches = [recipe.training.batches.tokens for recipe in found]
    epochs = [recipe.training.limits.epochs or 0 for recipe in found]
    dropout = [recipe.model.encoder.dropout for recipe in found]  # type: ignore[union-attr]
    assert sizes == sorted(sizes) and sizes[0] <= 1_000 and sizes[-1] == 16_000
    assert batches == sorted(batches) and batches[0] == 512 and batches[-1] == 4_096
    assert epochs == sorted(epochs, reverse=True) and epochs[0] == 100 and epochs[-1] == 10
    assert dropout == sorted(dropout, reverse=True) and dropout[0] > dropout[-1]


def test_an_alphabet_of_thousands_fits_into_the_vocabulary() -> None:
    chinese = TextSize(10_000, 10_000, 10_000, 600_000, 500_000, 4_000, 0.0)
    assert filled(chinese).tokenizer.size >= 8_000


def test_set_keys_keep_their_values() -> None:
    given = {"lr": 0.5, "batches": {"tokens": 777}, "limits": {"epochs": 3}, "label_smoothing": 0.25}
    found = filled(pairs(500), training=given, tokenizer={"kind": "bpe", "size": 99}, model={"width": 64})
    assert (found.training.lr, found.training.batches.tokens, found.training.label_smoothing) == (0.5, 777, 0.25)
    assert (found.training.limits.epochs, found.tokenizer.size, found.model.width) == (3, 99, 64)


def test_a_batch_holds_the_longest_example_that_cleaning_keeps() -> None:
    tsv = {"kind": "tsv", "file": "pairs.tsv"}
    data = {"train": [tsv], "validation": tsv, "clean": {"max_tokens": 3_000}}
    assert filled(pairs(500), data=data).training.batches.tokens >= 3_001


def test_long_texts_to_classify_are_cut_and_not_dropped() -> None:
    reviews, tweets = (TextSize(5_000, 5_000 * n, 5_000, 5_000 * 6 * n, 20_000, 80, 0.0) for n in (230, 20))
    assert filled(reviews, task="classification").data.clean.truncate_source == 256
    assert filled(tweets, task="classification").data.clean.truncate_source is None
    assert filled(pairs(5_000, words=230)).data.clean.truncate_source is None


def test_a_tokenizer_of_whole_words_keeps_its_size() -> None:
    assert filled(pairs(500), tokenizer={"kind": "word"}).tokenizer.size == 10_000


def test_a_step_limit_replaces_the_epoch_limit() -> None:
    assert filled(pairs(500), training={"limits": {"steps": 7}}).training.limits.epochs is None
    assert filled(pairs(500), training={"limits": {"minutes": 7}}).training.limits.epochs == 100
    assert filled(pairs(500), training={"limits": {"minutes": 7, "epochs": None}}).training.limits.epochs is None


def test_short_lines_of_few_words_are_read_by_character() -> None:
    names = TextSize(5_000, 5_000, 5_000, 40_000, 40_000, 60, 0.0)
    spelled = TextSize(5_000, 35_000, 33_000, 65_000, 90_000, 60, 0.0)  # "n a t i o n" and "N EY1 SH AH0 N"
    assert filled(names).tokenizer.kind == "character"
    assert filled(spelled).tokenizer.kind == "bpe"
    assert filled(pairs(5_000)).tokenizer.kind == "bpe"
    assert filled(pairs(5_000, copied=0.9)).tokenizer.kind == "character"  # names and numbers to copy


def test_the_default_model_copies_if_rare_words_are_in_their_sources() -> None:
    copied = pairs(5_000, words=40, copied=0.9)
    assert filled(copied).model.copying
    assert filled(copied).tokenizer.kind == "bpe"  # long sentences are not spelled
    assert not filled(pairs(5_000)).model.copying
    body = {"kind": "recurrent"}
    assert not filled(copied, model={"encoder": body, "decoder": body}).model.copying  # a model that is given stays
    assert not filled(copied, training={"rdrop": 1.0}).model.copying


def test_copied_words_are_rare_words_of_the_source() -> None:
    commands = [Example(f"show {name} to me", f"SELECT '{name}' ;") for name in ("Petra", "Bob", "7474", "Jan")]
    assert copied_share(commands) == 1.0
    assert copied_share([Example("ein Hund", "a dog"), Example("zwei Hunde", "two dogs")]) == 0.0
    assert measure(commands).copied == 1.0


# --- resuming -----------------------------------------------------------------------------------------------------


def test_a_recipe_of_task_and_data_resumes_its_run_byte_for_byte(tmp_path: Path) -> None:
    recipe, steps = write(tmp_path, "seq2seq"), "training.limits.epochs=6"
    changes = [*TINY, steps, "training.validate_every=2"]
    whole = Path(sightline.train(recipe, changes, out=tmp_path / "whole", display=Silent()))

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sightline.train(recipe, changes, out=tmp_path / "parts", display=Silent(at={3: stop}))
    parts = tmp_path / "parts"
    (tmp_path / "train.txt").write_text("".join(FILES["seq2seq"]), encoding="utf-8")
    sightline.train(recipe, out=parts, resume=True, display=Silent())  # without the overrides: they are the run's
    assert (parts / "recipe.yaml").read_bytes() == (whole / "recipe.yaml").read_bytes()
    assert (parts / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_a_key_with_another_value_refuses_to_resume(tmp_path: Path) -> None:
    recipe = write(tmp_path, "classification")
    run = Path(sightline.train(recipe, [*TINY, "training.limits.steps=1"], out=tmp_path / "run", display=Silent()))
    with pytest.raises(RunError, match=r"training\.lr: .* then, 0\.25 now"):
        sightline.train(recipe, ["training.lr=0.25"], out=run, resume=True, display=Silent())


# --- warm-up ------------------------------------------------------------------------------------------------------


def test_dry_run_and_training_warn_of_a_warm_up_longer_than_the_training(tmp_path: Path) -> None:
    changes = [*TINY, "training.limits.steps=3", "training.schedule.warmup=4000"]
    recipe, _ = open_recipe(write(tmp_path, "classification"), changes)
    expected = "training.schedule.warmup (4,000 steps) is more than the whole training (about 3 steps"
    assert any(expected in note for note in dry_run(recipe).notes)
    display = Silent()
    sightline.train(recipe, out=tmp_path / "run", display=display)
    assert sum(expected in note for note in display.notes) == 1


def test_a_default_warm_up_fits_into_any_limit(tmp_path: Path) -> None:
    display = Silent()
    recipe = write(tmp_path, "classification")
    run = sightline.train(
        recipe, [*TINY, "training.limits.steps=40", "training.log_every=1"], out=tmp_path / "run", display=display
    )
    rates = [record["lr"] for record in records(Path(run), "train")]
    assert max(rates) == pytest.approx(load_recipe(Path(run) / "recipe.yaml").training.lr, rel=0.1)
    assert not any("warmup" in note for note in display.notes)
