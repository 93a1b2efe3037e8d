"""`sightline recipes`: list, show, and the reference of all keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from sightline.cli.app import app
from sightline.recipe import Recipe
from sightline.recipe.loading import load_recipe, shipped_recipes
from sightline.recipe.reference import chosen_parts, reference
from sightline.recipe.schema import Section, kinds, sections


def out(*words: str) -> str:
    done = CliRunner().invoke(app, ["recipes", *words], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_show_prints_the_file_and_list_all_names() -> None:
    for name in ("dates", "multi30k/transformer"):
        assert out(name) == out("show", name) == shipped_recipes()[name].read_text(encoding="utf-8")
    assert len(out().splitlines()) == len(out("list").splitlines()) == len(shipped_recipes())


def fields(section: type[Section] = Recipe, path: str = "") -> Iterator[tuple[str, Any]]:
    for name, info in section.model_fields.items():
        at = f"{path}.{name}" if path else name
        yield at, info
        below = sections(info.annotation)
        if not below:
            annotation = str(info.annotation)
            suffix = ".NAME" if annotation.startswith("dict[") else ".N"
            below = [each for part in getattr(info.annotation, "__args__", ()) for each in sections(part)]
            at += suffix if below else ""
        for each in below:
            yield from fields(each, at)


def test_every_key_has_a_type_a_default_and_a_meaning() -> None:
    documented = {key.path: key for part in chosen_parts() for key in part.keys}
    parts = {part.title: part for part in chosen_parts()}
    known = {path for path, _ in fields()}
    assert len(known) > 200
    repeated = tuple(part.path + "." for part in parts.values() if part.same_as)
    assert {path for path in known if not path.startswith(repeated)} <= set(documented)
    assert set(documented) <= known
    for key in documented.values():
        assert key.type and "<class" not in key.type and "typing" not in key.type, key
        assert key.meaning, key.path
    assert documented["training.lr"].default == "0.0005" and documented["training.lr"].type == "number > 0"
    assert documented["data.train"].default is None
    assert documented["model.tie"].type == "none | output | all"
    assert documented["training.betas"].default == "[0.9, 0.98]"
    for part in parts.values():
        assert part.same_as is None or part.same_as in parts


def test_the_reference_fits_80_columns_and_names_every_kind() -> None:
    text = out("keys")
    assert max(map(len, text.splitlines())) <= 80
    for _, info in fields():
        for kind in kinds(info.annotation):
            assert f"(kind: {kind}" in text or f" {kind} " in text, kind


def test_a_prefix_selects_a_key_or_a_section() -> None:
    schedule = out("keys", "training.schedule")
    assert "training.schedule.warmup = 0.1" in schedule and "training.lr" not in schedule
    one = out("keys", "training.lr")
    assert one.splitlines()[1] == "  training.lr = 0.0005" and one.count(" = ") == 1
    assert one.splitlines()[2].startswith("      number > 0 — ")
    assert reference("data.train.0.columns") == reference("data.train.N.columns") != ""
    assert "data.train.N.columns = [1, 2]" in reference("data.train.3.columns")
    assert "data.tests.NAME" in reference("data.tests.dev.file")
    whole = reference("model.decoder")
    assert "model.decoder.heads = 8" in whole and "model.decoder.cell = lstm" in whole
    assert "model.encoder" not in whole.replace("same keys as model.encoder", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("multi30k/transformr", "did you mean multi30k/transformer"),
        ("show dats", "did you mean dates"),
        ("keys training.sch", "training.schedule"),
        ("keys warmup", "training.schedule.warmup"),
        ("keys training.learning_rat", "training"),
        ("keys model.encoder.head", "model.encoder.heads"),
        ("keys nothing", "the sections are task, seed, data"),
    ],
)
def test_wording_of_errors(arguments: str, message: str) -> None:
    result = CliRunner().invoke(app, ["recipes", *arguments.split()])
    assert result.exit_code == 1 and message in str(result.exception)


def test_superfluous_arguments_are_usage_errors() -> None:
    assert CliRunner().invoke(app, ["recipes", "dates", "model"]).exit_code == 2


@pytest.mark.parametrize(
    ("task", "part"), [("classification", "pooling: {kind: mean}"), ("language-model", "decoder: {kind: transformer")]
)
def test_a_missing_part_of_a_task_is_named_with_an_example(task: str, part: str) -> None:
    change = "model={encoder: {kind: transformer}}"
    with pytest.raises(ValueError, match=r"task: \S+ needs model\.\w+; write, for example, ") as refused:
        load_recipe("dates", [f"task={task}", change])
    assert part in str(refused.value) and "under model" in str(refused.value)
    if task == "classification":  # the example works
        own = ["model.pooling={kind: mean}", "evaluation.metrics=[accuracy]"]
        assert load_recipe("dates", [f"task={task}", change, *own]).model.pooling is not None
