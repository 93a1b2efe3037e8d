"""`sightline inspect` with a measure, on a run of each task."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sightline.cli.app import app
from sightline.cli.measures import measure_flows


def inspect(*arguments: object) -> str:
    """What is printed; a mistake is raised."""
    return both_outputs(*arguments)[0]


def both_outputs(*arguments: object) -> tuple[str, str]:
    """The same, and what is told on standard error."""
    result = CliRunner().invoke(app, ["inspect", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


@pytest.mark.parametrize(
    ("arguments", "files"),
    [
        (["--corpus", "test"], {"--csv": "losses.csv", "--json": "losses.json", "--figure": "lengths.png"}),
        (["--gradient-flow"], {"--json": "flow.json", "--figure": "flow.png"}),
        (["dog runs", "--attribute", "occlusion"], {"--json": "grid.json", "--figure": "grid.png"}),
    ],
)
def test_every_file_that_is_written_is_told(
    tasks: dict[str, Path], arguments: list[str], files: dict[str, str], tmp_path: Path
) -> None:
    places = {option: tmp_path / name for option, name in files.items()}
    _, told = both_outputs(tasks["tag-gru"], *arguments, *(part for place in places.items() for part in place))
    assert [line for line in told.splitlines() if line.startswith("wrote")] == [f"wrote {p}" for p in places.values()]


def test_gradient_flow_of_several_runs_is_one_picture_and_one_file(tasks: dict[str, Path], tmp_path: Path) -> None:
    figure, data = tmp_path / "flow.png", tmp_path / "flow.json"
    inspect(tasks["lm-gru"], "--gradient-flow", "--beside", tasks["lm-transformer"], "--figure", figure, "--json", data)
    flows = json.loads(data.read_text())["flows"]
    assert [(flow["label"], flow["when"]) for flow in flows] == [
        (name, when) for name in ("lm-gru", "lm-transformer") for when in ("initialisation", "trained")
    ]
    assert flows[0]["states"] != flows[1]["states"]
    assert figure.stat().st_size > 5_000


@pytest.mark.parametrize("name", ["classify-mean", "tag-gru"])
def test_gradient_flow_of_labellers_is_that_of_their_encoders(tasks: dict[str, Path], name: str) -> None:
    printed = inspect(tasks[name], "--gradient-flow")
    assert "encoder states" in printed and "decoder states" not in printed


@pytest.mark.parametrize(
    ("name", "text"), [("lm-gru", "a b"), ("lm-bpe", "the cat"), ("classify-mean", "good"), ("tag-gru", "dog runs")]
)
@pytest.mark.parametrize("method", ["input-gradient", "integrated-gradients", "occlusion"])
def test_every_task_has_attributions(tasks: dict[str, Path], name: str, text: str, method: str, tmp_path: Path) -> None:
    figure, data = tmp_path / "grid.svg", tmp_path / "grid.json"
    inspect(tasks[name], text, "--attribute", method, "--figure", figure, "--json", data)
    found = json.loads(data.read_text())["pieces"]
    assert found["method"] == method and found["outputs"]
    assert any(any(row) for row in [*found["from_source"], *found["from_target"]])
    assert figure.exists()


@pytest.mark.parametrize(("name", "text", "wrong"), [("classify-mean", "good", "Q"), ("tag-gru", "dog runs", "NOUN Q")])
def test_a_label_that_is_not_there_is_refused_as_a_view_refuses_it(
    tasks: dict[str, Path], name: str, text: str, wrong: str
) -> None:
    told = []
    for how in ([], ["--attribute", "occlusion"]):
        with pytest.raises(ValueError, match="there is no label 'Q'; there are ") as refused:
            inspect(tasks[name], text, "--target", wrong, *how)
        told.append(str(refused.value))
    assert told[0] == told[1]


@pytest.mark.parametrize("how", [["--view", "tokens"], ["--attribute", "occlusion"]], ids=["view", "measure"])
def test_letters_of_a_forced_output_that_no_vocabulary_holds_are_named(tasks: dict[str, Path], how: list[str]) -> None:
    _, told = both_outputs(tasks["lm-gru"], "ANNA: the", "--target", " a犬 d", *how)
    said = "written as unknown (--target), for they are not in the vocabulary: 1 piece in 1 text, '犬'"
    assert told == f"sightline: {said}\n"
    assert both_outputs(tasks["lm-gru"], "ANNA: the", "--target", " a d", *how)[1] == ""


def test_spaces_around_the_words_of_a_tagger_change_nothing(tasks: dict[str, Path]) -> None:
    spaced, even = (inspect(tasks["tag-gru"], text, "--attribute", "occlusion") for text in (" dog  runs ", "dog runs"))
    assert spaced == even
    spaced, even = (inspect(tasks["tag-gru"], text, "--view", "tokens") for text in (" dog  runs ", "dog runs"))
    assert spaced.splitlines()[1:] == even.splitlines()[1:]  # the first has the text as it is given


@pytest.mark.parametrize("name", ["lm-bpe", "classify-mean", "tag-gru"])
@pytest.mark.parametrize("order", ["worst", "longest", "rarest"])
def test_every_task_has_a_corpus_view(tasks: dict[str, Path], name: str, order: str, tmp_path: Path) -> None:
    table, data = tmp_path / "losses.csv", tmp_path / "losses.json"
    printed = inspect(tasks[name], "--corpus", "test", "--sort", order, "--tokens", "--csv", table, "--json", data)
    assert f"{order} first" in printed
    view = json.loads(data.read_text())
    tokens = [token for sentence in view["sentences"] for token in sentence["tokens"]]
    assert len(table.read_text().splitlines()) == len(tokens) + 1
    assert all(token["frequency"] > 0 or token["loss"] > 0 for token in tokens)
    losses = [sentence["loss"] for sentence in view["sentences"]]
    assert order != "worst" or losses == sorted(losses, reverse=True)


def test_losses_by_length_are_drawn_where_there_are_lengths(tasks: dict[str, Path], tmp_path: Path) -> None:
    figure = tmp_path / "lengths.png"
    inspect(tasks["tag-gru"], "--corpus", "test", "--figure", figure)
    assert figure.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="cut into equal parts"):
        inspect(tasks["lm-bpe"], "--corpus", "test", "--figure", figure)


def test_what_experts_had_in_training_is_drawn(tmp_path: Path) -> None:
    shares = {"encoder.1": [0.25, 0.75], "decoder.0": [0.5, 0.5]}
    record = {"kind": "train", "step": 5, "experts": shares, "dropped": 0.1}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    inspect(tmp_path, "--expert-shares", "--figure", tmp_path / "shares.png")
    assert (tmp_path / "shares.png").read_bytes().startswith(b"\x89PNG")


def test_how_far_the_measuring_of_gradients_is_can_be_heard(tasks: dict[str, Path]) -> None:
    told: list[tuple[str, int, int]] = []
    measure_flows(tasks["tag-gru"], "mine", "test", "cpu", lambda *each: told.append(each))
    whens = list(dict.fromkeys(what for what, _, _ in told))
    assert whens == ["mine, at initialisation", "mine, trained"]
    assert [done for what, done, _ in told if what == whens[0]] == list(range(told[0][2]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--corpus", "test", "--sort", "best"], "worst, longest, rarest"),
        (["--corpus", "nowhere"], "it has test, validation"),
        (["text", "--attribute", "magic"], "integrated-gradients"),
        (["--attribute", "occlusion"], "looks at a text"),
        (["--layer-norms"], "--figure"),
        (["--layer-norms", "--figure", "norms.png"], "training.log_layers=true"),
        (["--expert-shares"], "--figure"),
        (["--expert-shares", "--figure", "shares.png"], "says nothing of experts"),
        (["--gradient-flow", "--figure", "flow.gif"], "flow.gif"),
        (["--corpus", "test", "--figure", "lengths.gif"], "lengths.gif"),
        (["--corpus", "test", "--save", "folder"], "--save folder is for a view"),
        (["text", "--attribute", "occlusion", "--step", "0"], "--step 0 is for a view"),
        (["--corpus", "test", "--view", "tokens"], "--view tokens is for a view"),
        (["--corpus", "test", "--csv", "nowhere/losses.csv"], "losses.csv cannot be written: there is no folder"),
        (["--corpus", "test", "--json", "nowhere/losses.json"], "losses.json cannot be written: there is no folder"),
        (["text", "--html", "nowhere/report.html"], "report.html cannot be written: there is no folder"),
        (["--corpus", "test", "--quality"], "--quality is of outputs that are texts, not of task: classification"),
        (["text", "--quality"], "--quality does not go with a view; it is for --corpus"),
        (["text", "--sort", "rarest"], "--sort does not go with a view; it is for --corpus"),
        (["text", "--beside", "other"], "--beside does not go with a view; it is for --gradient-flow"),
        (["text", "--corpus", "test"], "TEXT does not go with --corpus; it is for --attribute"),
        (["--gradient-flow", "--csv", "flow.csv"], "--csv does not go with --gradient-flow; it is for --corpus"),
        (["--layer-norms", "--json", "n.json"], "--json does not go with --layer-norms"),
        (["--gradient-flow", "--layer-norms"], "--gradient-flow and --layer-norms do not go together"),
        (["text", "--gradient-flow", "--ablate", "a"], "--gradient-flow and switching heads off do not go together"),
    ],
)
def test_a_mistake_is_named_with_its_remedy(tasks: dict[str, Path], arguments: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        inspect(tasks["classify-mean"], *arguments)
