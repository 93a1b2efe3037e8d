"""Every shipped recipe is parsed, built and stepped, on tiny made-up files with the names it expects."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest
import torch

import sightline
from sightline.models.build import build_model
from sightline.recipe import Recipe
from sightline.recipe.loading import load_recipe, save_recipe, shipped_recipes
from sightline.recipe.sources import ChoralesSource, ConlluSource, PatternSource, PlainSource, TextSource, TsvSource

GERMAN = ["Ein Mann schläft auf einer Bank.", "Zwei Hunde spielen im Schnee.", "Das Kind lacht.", "Eine Frau liest."]
ENGLISH = ["A man sleeps on a bench.", "Two dogs play in the snow.", "The child laughs.", "A woman reads."]
WIDTH, DEPTH = 96, 3  # every number of heads leaves an even share; spans, experts and links have all come by the third
SPELLED = ["nation N EY1 SH AH0 N", "cat K AE1 T", "cat(2) K AA1 T # rare", "dog D AO1 G"]


def write(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lzma.compress("".join(line + "\n" for line in lines).encode()))


def make_corpus(recipe: Recipe, folder: Path) -> None:
    """The files a recipe names, tiny."""
    pairs = [
        (f"{source} {number}", f"{target} {number}")
        for number in range(10)
        for source, target in zip(GERMAN, ENGLISH, strict=True)
    ]
    for source in (*recipe.data.train, recipe.data.validation, *recipe.data.tests.values()):
        if isinstance(source, TextSource):
            write(folder / source.source, [pair[0] for pair in pairs])
            write(folder / source.target, [pair[1] for pair in pairs])
        elif isinstance(source, TsvSource):
            write(folder / source.file, [f"{left} {n}\t{right} {n}" for n in range(20) for left, right in pairs])
        elif isinstance(source, PlainSource):
            write(folder / source.file, [pair[1] for pair in pairs])
        elif isinstance(source, ConlluSource):
            rows = ("{0}\t{1}\t{1}\tNOUN\tNN\t_\t0\troot\t_\t_".format(*word) for word in ((1, "dogs"), (2, "bark")))
            write(folder / source.file, [*list(rows), ""] * 9)
        elif isinstance(source, ChoralesSource):
            pieces = [[[67, 62, 59, 43]] * 40] * 3
            write(folder / source.file, [json.dumps({"train": pieces, "valid": pieces, "test": pieces})])
        elif isinstance(source, PatternSource) and "[01]" in source.pattern:
            write(folder / source.file, [f"{number % 2} {pair[1]}" for number, pair in enumerate(pairs)])
        elif isinstance(source, PatternSource) and "# text" in source.pattern:
            write(folder / source.file, [line for pair in pairs for line in (f"# text = {pair[1]}", "1\tdogs", "")])
        elif isinstance(source, PatternSource):
            words = ["abcdefghij"[number % 10] * (number // 10) for number in range(100)]
            write(folder / source.file, [word + line for word in words for line in SPELLED])


def narrowed(recipe: Recipe) -> list[str]:
    """What makes its model small. That it can be built as it is written is seen without any memory for its weights."""
    changes = [f"model.width={min(recipe.model.width, WIDTH)}"]
    for side in ("encoder", "decoder"):
        body = getattr(recipe.model, side)
        if hasattr(body, "layers"):
            changes.append(f"model.{side}.layers={min(body.layers, DEPTH)}")
        if hasattr(body, "feedforward") and body.feedforward.kind != "none":
            changes.append(f"model.{side}.feedforward.width={2 * WIDTH}")
    return changes


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_recipe_is_built_and_stepped(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load_recipe(name)
    monkeypatch.setenv("SIGHTLINE_CORPORA", str(tmp_path))
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "cache"))
    if recipe.data.folder is not None:
        (tmp_path / recipe.data.folder).mkdir()
        make_corpus(recipe, tmp_path / recipe.data.folder)
    small = [
        "data.limit=64",
        "data.validation_limit=2",
        "training.limits.steps=2",
        "training.validate_every=2",
        "training.batches.tokens=256",
        "training.batches.context=32",
        "training.precision=float32",
        "training.device=cpu",
        "training.log_every=1",
        "decoding.max_length=4",
        "decoding.min_length=0",
        *narrowed(recipe),
    ]
    run = sightline.train(name, small, out=tmp_path / "run").folder
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    if not recipe.model.counted:  # which takes no steps
        assert [record["step"] for record in records if record["kind"] == "train"] == [1, 2]
    stepped = sightline.load(run)
    assert len(stepped.predict(["3. 5. 2021", "a b"])) == 2
    with torch.device("meta"):
        written = build_model(recipe, stepped.vocabulary)
    assert {type(part) for part in written.modules()} == {type(part) for part in stepped.model.modules()}


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_recipe_survives_being_saved(name: str, tmp_path: Path) -> None:
    recipe = load_recipe(name)
    save_recipe(recipe, tmp_path / "recipe.yaml")
    assert load_recipe(tmp_path / "recipe.yaml") == recipe


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_recipe_has_a_one_line_description(name: str) -> None:
    first = shipped_recipes()[name].read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("# ")
    assert len(first) <= 120
