"""`sightline inspect`: the built-in example, measurements on a run of each task, and old spellings."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from sightline.cli.app import app
from sightline.inspection.trace import Trace
from sightline.inspection.views import gradients_view
from sightline.run import Run


def run(*arguments: object) -> str:
    done = CliRunner().invoke(app, ["inspect", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def streams(*arguments: object) -> tuple[str, str]:
    """Standard output and standard error."""
    result = CliRunner().invoke(app, ["inspect", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


def test_lecture_example_walkthrough() -> None:
    shown = run("walkthrough", "lecture-example")
    places = [
        shown.index(name) for name in ("1. source.tokens", "Q Kᵀ / √d_k", "softmax(scores)", "probabilities", "2.126")
    ]
    assert places == sorted(places)


def test_walkthrough_of_layer_head_and_step() -> None:
    shown = run("walkthrough", "lecture-example", "--layer", "0", "--head", "0", "--step", "2")
    assert "decoder.layers.0.cross_attention.weights" in shown
    assert "(step 2, head 0)" in shown
    assert "feedforward.hidden" not in shown


def test_a_cell_is_explained() -> None:
    printed_text = run("lecture-example", "--cell", "decoder.0.cross_attention.products[0,0,2,1]")
    assert printed_text.startswith("−1.346 = (−0.5839)·1.46 + 0.6318·1.714 + ")


@pytest.mark.parametrize("view", ["steps", "tokens"])
def test_steps_and_tokens_views(view: str) -> None:
    shown = run(view, "lecture-example")
    assert ("encoder.layers.0.attention.weights" in shown) == (view == "steps")
    assert ("likeliest" in shown) == (view == "tokens")


def test_a_trace_is_saved_exported_and_written_as_json(tmp_path: Path) -> None:
    saved, script, file = tmp_path / "saved", tmp_path / "by-hand", tmp_path / "trace.json"
    run("trace", "lecture-example", "--out", saved)
    run("numpy", "lecture-example", "--out", script)
    run("walkthrough", "lecture-example", "--json", file)
    assert "loss" in Trace.load(saved)
    done = subprocess.run([sys.executable, str(script / "script.py")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    steps = {step["name"]: step for step in json.loads(file.read_text(encoding="utf-8"))["steps"]}
    weights = steps["decoder.layers.0.cross_attention.weights"]
    assert weights["shape"] == [1, 1, 3, 3]
    assert weights["inputs"] == ["decoder.layers.0.cross_attention.scores"]
    assert sum(weights["values"][0][0][0]) == pytest.approx(1)


def test_a_report_is_one_file(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    assert run("report", "lecture-example", "-o", file) == f"wrote {file}\n"
    assert "<h2>Walk-through</h2>" in file.read_text(encoding="utf-8")


def test_a_view_is_written_as_json_and_drawn(tmp_path: Path) -> None:
    file, figure = tmp_path / "heads.json", tmp_path / "heads.png"
    run("heads", "lecture-example", "--layer", "0", "--json", file, "--figure", figure)
    heads = json.loads(file.read_text(encoding="utf-8"))
    assert {head["kind"] for head in heads} == {"encoder", "decoder", "cross"}
    assert heads[0]["name"] == "encoder.layers.0.attention.0"
    assert sum(heads[0]["weights"][0]) == pytest.approx(1, abs=1e-5)
    assert figure.stat().st_size > 5_000


def test_a_head_is_switched_off_with_its_effect_on_a_corpus(tasks: dict[str, Path]) -> None:
    shown = run("ablation", tasks["lm-transformer"], "ANNA: the", "--heads", "decoder.0.self.1", "--on", "test")
    assert "decoder.0.self.1" in shown
    assert "on test" in shown
    every = run("ablation", tasks["lm-transformer"], "ANNA: the", "--head", "0")
    assert "decoder.layers.0.attention.0" in every
    assert "attention.1" not in every


# --- measurements of runs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "files"),
    [
        (["corpus", "--on", "test"], {"--csv": "losses.csv", "--json": "losses.json", "--figure": "lengths.png"}),
        (["gradient-flow"], {"--json": "flow.json", "--figure": "flow.png"}),
        (["attribution", "dog runs", "--method", "occlusion"], {"--json": "grid.json", "--figure": "grid.png"}),
    ],
)
def test_written_files_are_reported(
    tasks: dict[str, Path], arguments: list[str], files: dict[str, str], tmp_path: Path
) -> None:
    places = {option: tmp_path / name for option, name in files.items()}
    _, printed_text = streams(
        arguments[0], tasks["tag-gru"], *arguments[1:], *(part for place in places.items() for part in place)
    )
    assert [line for line in printed_text.splitlines() if line.startswith("wrote")] == [
        f"wrote {p}" for p in places.values()
    ]


def test_gradient_flow_of_several_runs_is_one_picture_and_one_file(tasks: dict[str, Path], tmp_path: Path) -> None:
    figure, data = tmp_path / "flow.png", tmp_path / "flow.json"
    run(
        "gradient-flow",
        tasks["lm-gru"],
        tasks["lm-transformer"],
        "--on",
        "validation",
        "--figure",
        figure,
        "--json",
        data,
    )
    flows = json.loads(data.read_text())["flows"]
    assert [(flow["label"], flow["when"]) for flow in flows] == [
        (name, when) for name in ("lm-gru", "lm-transformer") for when in ("initialisation", "trained")
    ]
    assert flows[0]["states"] != flows[1]["states"]
    assert figure.stat().st_size > 5_000


@pytest.mark.parametrize("name", ["classify-mean", "tag-gru"])
def test_gradient_flow_of_labellers_is_that_of_their_encoders(tasks: dict[str, Path], name: str) -> None:
    printed = run("gradient-flow", tasks[name])
    assert "encoder states" in printed and "decoder states" not in printed


@pytest.mark.parametrize(
    ("name", "text"), [("lm-gru", "a b"), ("lm-bpe", "the cat"), ("classify-mean", "good"), ("tag-gru", "dog runs")]
)
def test_every_task_shows_the_gradients_of_one_update(tasks: dict[str, Path], name: str, text: str) -> None:
    shown = run("gradients", tasks[name], text, "--lr", "0.01")
    assert "loss after one step of gradient descent with learning rate 0.01" in shown
    assert "‖w′ − w‖" in shown


@pytest.mark.parametrize(
    ("name", "text"), [("lm-gru", "a b"), ("lm-bpe", "the cat"), ("classify-mean", "good"), ("tag-gru", "dog runs")]
)
@pytest.mark.parametrize("method", ["input-gradient", "integrated-gradients", "occlusion"])
def test_every_task_has_attributions(tasks: dict[str, Path], name: str, text: str, method: str, tmp_path: Path) -> None:
    figure, data = tmp_path / "grid.svg", tmp_path / "grid.json"
    run("attribution", tasks[name], text, "--method", method, "--figure", figure, "--json", data)
    found = json.loads(data.read_text())["pieces"]
    assert found["method"] == method and found["outputs"]
    assert any(any(row) for row in [*found["from_source"], *found["from_target"]])
    assert figure.exists()


@pytest.mark.parametrize(("name", "text", "wrong"), [("classify-mean", "good", "Q"), ("tag-gru", "dog runs", "NOUN Q")])
def test_unknown_label_is_refused_by_every_view(tasks: dict[str, Path], name: str, text: str, wrong: str) -> None:
    printed_text = []
    for how in ("walkthrough", "attribution"):
        with pytest.raises(ValueError, match="there is no label 'Q'; there are ") as refused:
            run(how, tasks[name], text, "--target", wrong)
        printed_text.append(str(refused.value))
    assert printed_text[0] == printed_text[1]


@pytest.mark.parametrize("how", ["tokens", "attribution"])
def test_unknown_pieces_of_forced_output_are_reported(tasks: dict[str, Path], how: str) -> None:
    _, printed_text = streams(how, tasks["lm-gru"], "ANNA: the", "--target", " a犬 d")
    said = "written as unknown (--target), for they are not in the vocabulary: 1 piece in 1 text, '犬'"
    assert printed_text == f"sightline: {said}\n"
    assert streams(how, tasks["lm-gru"], "ANNA: the", "--target", " a d")[1] == ""


def test_spaces_around_the_words_of_a_tagger_change_nothing(tasks: dict[str, Path]) -> None:
    spaced, even = (
        run("attribution", tasks["tag-gru"], text, "--method", "occlusion") for text in (" dog  runs ", "dog runs")
    )
    assert spaced == even
    spaced, even = (run("tokens", tasks["tag-gru"], text) for text in (" dog  runs ", "dog runs"))
    assert spaced.splitlines()[1:] == even.splitlines()[1:]  # the first line repeats the text


@pytest.mark.parametrize("name", ["lm-bpe", "classify-mean", "tag-gru"])
@pytest.mark.parametrize("order", ["worst", "longest", "rarest"])
def test_every_task_has_a_corpus_view(tasks: dict[str, Path], name: str, order: str, tmp_path: Path) -> None:
    table, data = tmp_path / "losses.csv", tmp_path / "losses.json"
    printed = run("corpus", tasks[name], "--on", "test", "--sort", order, "--tokens", "--csv", table, "--json", data)
    assert f"{order} first" in printed
    view = json.loads(data.read_text())
    tokens = [token for sentence in view["sentences"] for token in sentence["tokens"]]
    assert len(table.read_text().splitlines()) == len(tokens) + 1
    assert all(token["frequency"] > 0 or token["loss"] > 0 for token in tokens)
    losses = [sentence["loss"] for sentence in view["sentences"]]
    assert order != "worst" or losses == sorted(losses, reverse=True)


def test_losses_by_length_are_drawn_where_there_are_lengths(tasks: dict[str, Path], tmp_path: Path) -> None:
    figure = tmp_path / "lengths.png"
    run("corpus", tasks["tag-gru"], "--on", "test", "--figure", figure)
    assert figure.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="cut into equal parts"):
        run("corpus", tasks["lm-bpe"], "--on", "test", "--figure", figure)


def test_expert_shares_are_drawn(tmp_path: Path) -> None:
    shares = {"encoder.1": [0.25, 0.75], "decoder.0": [0.5, 0.5]}
    record = {"kind": "train", "step": 5, "experts": shares, "dropped": 0.1}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    run("expert-shares", tmp_path, "--figure", tmp_path / "shares.png")
    assert (tmp_path / "shares.png").read_bytes().startswith(b"\x89PNG")


def test_measuring_gradients_reports_progress(tasks: dict[str, Path]) -> None:
    seen: list[tuple[str, int, int]] = []
    gradients_view({"mine": Run.load(tasks["tag-gru"])}, "test", progress=lambda *each: seen.append(each))
    stages = list(dict.fromkeys(what for what, _, _ in seen))
    assert stages == ["mine, initialisation", "mine, trained"]
    assert [done for what, done, _ in seen if what == stages[0]] == list(range(seen[0][2]))


# --- wrong arguments and old spellings ----------------------------------------------------------------------------

RUN = "a classifier"
LECTURE = "lecture-example"


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (["heads", LECTURE, "--html", "a.html"], "No such option: --html", 2),
        (["tokens", LECTURE, "--layer", "0"], "No such option: --layer", 2),
        (["tokens", LECTURE, "--step", "99"], "--step 99: the output has no such token", 1),
        (["walkthrough", LECTURE, "text"], "has a fixed text and target", 1),
        (["cell", LECTURE, "loss"], "write it as NAME[0,0,2,1]", 1),
        (["cell", LECTURE, "los[]"], "nothing named 'los' was recorded; there is loss", 1),
        (["beam", LECTURE], "a search needs a run folder", 1),
        ([LECTURE, "--figure", "x.png"], "this view has no picture", 1),
        ([LECTURE, "--view", "nothing"], "--view nothing: there is no such view; use", 1),
        (["runs/none"], "give a text to look at", 1),
        (["runs/none", "text"], "runs/none is not a folder", 1),
        (["tokens", RUN, "two", "texts"], "unexpected argument 'texts': give one text, in quotes", 1),
        (["tokens", RUN, "text", "training.lr=1"], "training.lr is fixed once a run is trained", 1),
        (["corpus", RUN, "--on", "test", "--sort", "best"], "--sort best: use worst, longest, rarest", 1),
        (["corpus", RUN, "--on", "nowhere"], "it has test, validation", 1),
        (["corpus", RUN, "text"], "unexpected extra argument", 2),
        (["corpus", RUN, "--figure", "lengths.gif"], "lengths.gif", 1),
        (["corpus", RUN, "--csv", "nowhere/losses.csv"], "losses.csv cannot be written: there is no folder", 1),
        (["corpus", RUN, "--json", "nowhere/losses.json"], "losses.json cannot be written: there is no folder", 1),
        (["corpus", RUN, "--quality"], "--quality is of outputs that are texts, not of task: classification", 1),
        (["attribution", RUN, "text", "--method", "magic"], "integrated-gradients", 1),
        (["attribution", RUN], "give a text to look at", 1),
        (["report", RUN, "text", "-o", "nowhere/report.html"], "report.html cannot be written: there is no folder", 1),
        (["layer-norms", RUN], "Missing option '--figure'", 2),
        (["layer-norms", RUN, "--figure", "norms.png"], "training.log_layers=true", 1),
        (["expert-shares", RUN, "--figure", "shares.png"], "has no expert shares", 1),
        (["gradient-flow", RUN, "--figure", "flow.gif"], "flow.gif", 1),
        (["gradients", RUN, "good", "--optimizer", "adam"], "--optimizer adam: use sgd, recipe", 1),
        (["gradients", RUN, "good", "--weight", "outptu"], "--weight outptu: there is no such weight", 1),
        (["gradients", RUN, "good", "Q"], "there is no label 'Q'", 1),
    ],
)
def test_wrong_arguments_are_named_with_a_remedy(
    tasks: dict[str, Path], arguments: list[str], message: str, code: int
) -> None:
    command = [str(tasks["classify-mean"]) if word is RUN else word for word in arguments]
    done = CliRunner().invoke(app, ["inspect", *command], env={"COLUMNS": "200"})
    assert message in str(done.exception if code == 1 else done.stderr)
    assert done.exit_code == code


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ([LECTURE, "--view", "heads"], ["heads", LECTURE]),
        ([LECTURE, "--view=tokens", "--step", "1"], ["tokens", LECTURE, "--step", "1"]),
        ([LECTURE, "--cell", "loss[]"], ["cell", LECTURE, "loss[]"]),
        ([LECTURE, "--layer", "0", "--step", "1"], ["walkthrough", LECTURE, "--layer", "0", "--step", "1"]),
        ([RUN, "good", "--view", "walk"], [RUN, "good"]),
        ([RUN, "good", "--attribute", "occlusion"], ["attribution", RUN, "good", "--method", "occlusion"]),
        ([RUN, "good", "--ablate", "encoder.0.self.0", "--corpus", "test"], None),
        ([RUN, "--corpus", "test", "--tokens"], ["corpus", RUN, "--on", "test", "--tokens"]),
        ([RUN, "--gradient-flow", "--beside", RUN], ["gradient-flow", RUN, RUN]),
        (["gradients", RUN, RUN], ["gradient-flow", RUN, RUN]),
        (["gradients", RUN, "--on", "test"], ["gradient-flow", RUN, "--on", "test"]),
    ],
)
def test_flags_of_earlier_versions_choose_the_sub_command(
    tasks: dict[str, Path], old: list[str], new: list[str] | None
) -> None:
    def called(words: list[str]) -> Result:
        command = [str(tasks["classify-mean"]) if word is RUN else word for word in words]
        return CliRunner().invoke(app, ["inspect", *command])

    if new is None:
        assert "sightline inspect ablation RUN" in called(old).stderr
    else:
        first, second = called(old), called(new)
        assert first.exit_code == second.exit_code == 0
        assert first.stdout == second.stdout
