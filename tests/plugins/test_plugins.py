"""A plug-in adds parts that recipes name like our own: with their schema, errors, training, decoding and runs."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

import sightline
from installed_plugins import forget_plugins, install
from sightline import registry
from sightline.recipe import Recipe, Training
from sightline.recipe.loading import RecipeError, load_recipe, recipe_schema
from sightline.recipe.reference import reference

PARTS: dict[str, Any] = {
    "optimizer": {"kind": "heavy-ball", "momentum": 0.5},
    "loss": {"kind": "scaled", "factor": 2.0},
    "schedule": {"kind": "halving", "half_life": 2, "warmup": 0},
    "callbacks": [{"kind": "weight-norm", "digits": 4}],
    "loggers": [{"kind": "lines", "file": "losses.txt"}],
}
LINES = ["a b c", "b c", "c a b a", "a", "b b c"]
RECIPE: dict[str, Any] = {
    "data": {
        "train": [{"kind": "tsv", "file": "pairs.tsv"}],
        "validation": {"kind": "tsv", "file": "pairs.tsv"},
        "tests": {"test": {"kind": "tsv", "file": "pairs.tsv"}},
    },
    "tokenizer": {"kind": "character", "min_count": 1},
    "model": {
        "width": 8,
        "encoder": {"kind": "bag-of-words", "layers": 2},
        "decoder": {
            "kind": "transformer",
            "layers": 1,
            "heads": 2,
            "attention": {"kind": "cosine", "temperature": 0.5, "kv_heads": 1},
        },
    },
    "training": {"limits": {"steps": 3}, "batches": {"tokens": 64}, "device": "cpu", "threads": 1},
    "decoding": {"beam": 2, "max_length": 6, "processors": [{"kind": "no-repeated-token", "window": 2}]},
    "evaluation": {"metrics": ["length-ratio", "chrf"]},
}


def write(folder: Path, recipe: dict[str, Any] = RECIPE) -> Path:
    (folder / "pairs.tsv").write_text("".join(f"{line}\t{line[::-1]}\n" for line in LINES * 4))
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    return path


def line_of(path: Path, text: str) -> int:
    return next(number for number, line in enumerate(path.read_text().splitlines(), 1) if text in line)


@pytest.mark.usefixtures("plugin")
def test_a_training_with_parts_of_a_plugin_runs_and_records_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = sightline.train(str(write(tmp_path)), out=tmp_path / "run")
    assert type(run.model.encoder).__name__ == "BagOfWordsEncoder"
    scores = {type(each.score).__name__ for each in run.model.modules() if hasattr(each, "score")}
    assert scores == {"Cosine"}
    assert {each.score.temperature for each in run.model.modules() if hasattr(each, "score")} == {0.5}
    for text in run.predict(["a b c", "c"], max_length=12):
        assert all(one != other for one, other in pairwise(text)), text
    report = run.evaluate("test")
    assert report.scores[0].name == "length ratio" and report.scores[0].value > 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    (recorded,) = config["plugins"]
    assert (recorded["package"], recorded["version"]) == ("example-plugin", "1.2")
    expected = ["encoder bag-of-words", "metric length-ratio", "processor no-repeated-token", "score cosine"]
    assert recorded["parts"] == expected
    # in a process without the plug-in
    forget_plugins(monkeypatch)
    monkeypatch.setattr(registry, "_loaded", {""})
    with pytest.raises(
        RecipeError, match=r"example-plugin 1\.2, which is not installed.*example-plugin==1\.2"
    ) as error:
        sightline.load(tmp_path / "run", device="cpu").predict(["a"])
    for name in ("'bag-of-words'", "'cosine'", "'no-repeated-token'", "'length-ratio'"):
        assert f"there is no {name}" in str(error.value)


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize("kind", ["recurrent", "transformer"])
def test_one_score_serves_both_families(kind: str) -> None:
    decoder = {"kind": kind, "layers": 1, "attention": {"kind": "cosine"}}
    model = {"width": 8, "encoder": {"kind": "transformer"}, "decoder": decoder}
    recipe = Recipe.model_validate({**RECIPE, "model": model})
    attention: Any = recipe.model.decoder
    assert attention.attention.temperature == 0.1
    assert Recipe.model_validate(recipe.model_dump(mode="json")) == recipe


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("model.decoder.attention.temprature", 1, "unknown key model.decoder.attention.temprature; did you mean temp"),
        ("model.decoder.attention.temperature", -1, "model.decoder.attention.temperature: expected greater than 0"),
        ("model.encoder.layer", 1, "unknown key model.encoder.layer; did you mean layers?"),
        ("model.encoder.kind", "bag-of-word", "there is no 'bag-of-word'; did you mean bag-of-words?"),
        ("decoding.processors.0.windw", 1, "unknown key decoding.processors.0.windw; did you mean window?"),
        ("evaluation.metrics.0", "length-rato", "did you mean length-ratio?"),
        (
            "training.optimizer",
            "heavy-bal",
            "training.optimizer.kind: there is no 'heavy-bal'; did you mean heavy-ball?",
        ),
        ("training.optimizer.momentun", 0.1, "unknown key training.optimizer.momentun; did you mean momentum?"),
        ("training.loss.factor", -1, "training.loss.factor: expected greater than 0"),
        ("training.schedule.half_live", 3, "unknown key training.schedule.half_live; did you mean half_life?"),
        ("training.callbacks.0.digit", 3, "unknown key training.callbacks.0.digit; did you mean digits?"),
        ("training.loggers.0.kind", "line", "there is no 'line'; did you mean lines?"),
    ],
)
def test_errors_in_the_section_of_a_plugin_have_its_line_and_the_nearest_key(
    path: str, value: Any, message: str, tmp_path: Path
) -> None:
    recipe = json.loads(json.dumps({**RECIPE, "training": {**RECIPE["training"], **PARTS}}))
    section: Any = recipe
    *above, key = path.split(".")
    for name in above:
        section = section[int(name)] if isinstance(section, list) else section[name]
    section[int(key) if isinstance(section, list) else key] = value
    file = write(tmp_path, recipe)
    with pytest.raises(RecipeError) as error:
        load_recipe(file)
    assert message in str(error.value)
    line = line_of(file, str(value) if key.isdigit() or key == "kind" else f"{key}:")
    assert f"recipe.yaml:{line}: " in str(error.value)


@pytest.mark.usefixtures("plugin")
def test_the_reference_and_the_schema_show_the_keys_of_a_plugin() -> None:
    text = reference("model.decoder.attention")
    assert "cosine" in text and "cos(q, h) / temperature." in text
    assert "divides the cosine" in reference("model.encoder")
    assert "length-ratio" in reference("evaluation.metrics")
    assert "tokens that the next one must differ from" in reference("decoding.processors")
    schema = json.dumps(recipe_schema())
    assert "no-repeated-token" in schema and "temperature" in schema and "bag-of-words" in schema


def test_a_broken_plugin_is_named_in_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forget_plugins(monkeypatch)
    (tmp_path / "broken_plugin.py").write_text("import no_such_module\n")
    install(tmp_path, "broken-plugin", "broken_plugin", monkeypatch)
    with pytest.warns(registry.PluginWarning, match=r"broken-plugin 1\.2 cannot be loaded .*no_such_module"):
        assert "recurrent" in registry.entries("encoder")
    forget_plugins(monkeypatch)


def test_a_name_is_registered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_plugins(monkeypatch)
    with pytest.raises(ValueError, match="Sightline has a score 'dot' already"):
        sightline.register("score", "dot", object())
    with pytest.raises(ValueError, match="there is no registry of 'skore' parts"):
        sightline.register("skore", "dot", object())


def test_every_part_of_ours_can_be_imported() -> None:
    for part, entries in registry.REGISTRIES.items():
        for name, entry in entries.items():
            assert (entry.load(), entry.load_config()) != (None, None), (part, name)


def train(folder: Path, **training: Any) -> sightline.Run:
    """Three logged steps of a small LSTM."""
    folder.mkdir()
    body = {"kind": "recurrent", "dropout": 0.0}
    settings = {**RECIPE["training"], "precision": "float32", "log_every": 1, "clip": None, "lr": 0.1, **training}
    recipe = {**RECIPE, "model": {"width": 8, "encoder": body, "decoder": body}, "training": settings}
    recipe["decoding"], recipe["evaluation"] = {"max_length": 6}, {"metrics": ["chrf"]}
    return sightline.train(str(write(folder, recipe)), out=folder / "run")


def records(run: sightline.Run) -> list[dict[str, Any]]:
    every = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [record for record in every if record["kind"] == "train"]


@pytest.mark.usefixtures("plugin")
def test_a_training_takes_optimizer_loss_schedule_callback_and_logger_of_a_plugin(tmp_path: Path) -> None:
    run = train(tmp_path / "parts", **PARTS)
    logged = records(run)
    assert [record["lr"] for record in logged] == [0.1 * 0.5 ** (step / 2) for step in (1, 2, 3)]
    assert [record["loss"] for record in logged] == pytest.approx([2 * record["nll"] for record in logged], rel=0.1)
    assert all(record["weight_norm"] == round(record["weight_norm"], 4) for record in logged)
    assert (run / "losses.txt").read_text().splitlines() == [f"{each['step']} {each['loss']}" for each in logged]
    (recorded,) = json.loads((run / "config.json").read_text())["plugins"]
    assert recorded["parts"] == [
        *("callback weight-norm", "logger lines", "loss scaled", "optimizer heavy-ball", "schedule halving")
    ]
    faster = train(tmp_path / "faster", **{**PARTS, "optimizer": {"kind": "heavy-ball", "momentum": 0.9}})
    assert records(faster)[0]["loss"] == logged[0]["loss"] and records(faster)[2]["loss"] != logged[2]["loss"]
    by_name = train(tmp_path / "names", optimizer="heavy-ball", loss="scaled", callbacks=["weight-norm"])
    assert by_name.recipe.training.optimizer.model_dump() == {"kind": "heavy-ball", "momentum": 0.9}
    assert "weight_norm" in records(by_name)[0]


@pytest.mark.usefixtures("plugin")
def test_callbacks_and_loggers_of_a_plugin_are_used_where_a_recipe_names_them(tmp_path: Path) -> None:
    run = train(tmp_path / "plain")
    assert "weight_norm" not in records(run)[0]
    assert not (run / "lines.txt").exists()


@pytest.mark.usefixtures("plugin")
def test_overrides_name_parts_of_a_training_and_set_their_options(tmp_path: Path) -> None:
    path = write(tmp_path)
    overrides = [
        *("training.optimizer=heavy-ball", "training.optimizer.momentum=0.5", "training.schedule=constant"),
        "training.loggers=[tensorboard, {kind: lines, file: a.txt}]",
    ]
    training: Any = load_recipe(path, overrides).training
    assert (training.optimizer.momentum, training.schedule.kind, training.loggers[1].file) == (0.5, "constant", "a.txt")
    assert Recipe.model_validate(load_recipe(path, overrides).model_dump(mode="json")).training == training


def test_a_part_of_ours_is_named_by_a_string_or_a_section() -> None:
    plain = Training()
    for optimizer in ("adamw", {"kind": "adamw"}):
        assert Training.model_validate({"optimizer": optimizer, "loss": "cross-entropy"}) == plain
    with pytest.raises(ValueError, match="'adamw'"):
        Training.model_validate({"optimizer": "sdg"})


def with_positions(folder: Path, **positions: Any) -> sightline.Run:
    """A Transformer of one head, trained for three steps."""
    folder.mkdir()
    body = {"kind": "transformer", "layers": 1, "heads": 1, "positions": positions, "dropout": 0.0}
    training = {**RECIPE["training"], "precision": "float32", "log_every": 1}
    recipe = {**RECIPE, "model": {"width": 8, "encoder": body, "decoder": body}, "training": training}
    recipe["decoding"], recipe["evaluation"] = {"beam": 2, "max_length": 6}, {"metrics": ["chrf"]}
    return sightline.train(str(write(folder, recipe)), out=folder / "run")


def losses(run: sightline.Run) -> list[float]:
    return [record["loss"] for record in records(run)]


@pytest.mark.usefixtures("plugin")
def test_positions_of_a_plugin_enter_the_embeddings_or_the_scores(tmp_path: Path) -> None:
    """The bias of the plug-in is that of ALiBi where there is one head; both kinds change the model."""
    runs = {
        "alibi": with_positions(tmp_path / "alibi", kind="alibi"),
        "recency": with_positions(tmp_path / "recency", kind="recency", slope=2.0**-8),
        "parity": with_positions(tmp_path / "parity", kind="parity"),
        "none": with_positions(tmp_path / "none", kind="none"),
    }
    assert losses(runs["recency"]) == losses(runs["alibi"])
    assert runs["recency"].predict(LINES) == runs["alibi"].predict(LINES)
    assert len({tuple(losses(run)) for run in runs.values()}) == 3


@pytest.mark.usefixtures("plugin")
def test_positions_of_a_plugin_are_refused_where_distances_are_not_computed(tmp_path: Path) -> None:
    pattern = [{"kind": "local", "block": 4}]
    body = {"kind": "transformer", "heads": 2, "positions": {"kind": "recency"}, "attention": {"pattern": pattern}}
    path = write(tmp_path, {**RECIPE, "model": {"width": 8, "encoder": body, "decoder": body}})
    with pytest.raises(RecipeError, match=r"positions\.kind: recency needs the distances of all pairs"):
        load_recipe(path)
