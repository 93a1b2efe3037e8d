"""Options that could not be heeded are refused, before the work is done; files that go line by line end together."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from sightline.cli.app import app
from sightline.cli.errors import error_boundary
from sightline.models.transformer.config import TransformerConfig
from sightline.recipe import Decoding, Evaluation
from sightline.recipe.model import PositionsConfig
from sightline.run import Run
from untrained_runs import untrained

Runs = dict[str, Path]


def call(verb: str, run: str | Path, *arguments: str, given: str = "the dog\na cat\n") -> Result:
    return CliRunner().invoke(app, [verb, str(run), *arguments, "--device", "cpu"], input=given)


def refusal(verb: str, run: str | Path, *arguments: str) -> str:
    result = call(verb, run, *arguments)
    assert isinstance(result.exception, ValueError), result.output
    return str(result.exception)


@pytest.fixture
def translator(monkeypatch: pytest.MonkeyPatch) -> str:
    """A Transformer that has learned nothing, in place of any run folder."""
    monkeypatch.setattr(Run, "load", staticmethod(lambda folder, **how: copy(untrained(Path(folder).name))))
    return "transformer"


def test_a_metric_of_another_task_is_refused_before_anything_is_predicted(
    tasks: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def evaluated(*arguments: Any) -> None:
        raise AssertionError("the test set was predicted first")

    monkeypatch.setattr(Run, "evaluate", evaluated)
    assert "bleu is not for task: tagging" in refusal("evaluate", tasks["tag-gru"], "--metrics", "token-accuracy,bleu")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--beam", "2"],
        ["--sample"],
        ["--nbest", "2"],
        ["--groups", "3"],
        ["--prefixes", "x"],
        ["--require", "x"],
        ["--forbid", "x"],
        ["--forbid-everywhere", "x"],
    ],
)
def test_outputs_that_are_told_are_not_searched_for(translator: str, arguments: list[str]) -> None:
    said = refusal("predict", translator, "--target", "t.txt", *arguments)
    assert said == f"{arguments[0]} sets the search for outputs, and --target gives them; leave one of them out"


@pytest.mark.parametrize("option", ["--prefixes", "--target", "--require", "--forbid"])
def test_a_file_that_goes_with_the_input_has_no_line_too_many(translator: str, option: str, tmp_path: Path) -> None:
    (tmp_path / "two.txt").write_text("a\na\n")
    (tmp_path / "three.txt").write_text("a\na\na\n")
    assert call("predict", translator, option, str(tmp_path / "two.txt")).exit_code == 0
    said = refusal("predict", translator, option, str(tmp_path / "three.txt"))
    assert "three.txt has more lines than the input, which has 2 lines; give one" in said


@pytest.mark.parametrize("together", [False, True], ids=["alone", "second of an ensemble"])
@pytest.mark.parametrize(("option", "what"), [("--target", "target"), ("--prefixes", "prefix")])
def test_what_is_told_past_the_learned_positions_is_named_by_its_line(
    translator: str, tmp_path: Path, option: str, what: str, together: bool
) -> None:
    run = untrained(translator)
    decoder = run.recipe.model.decoder
    assert isinstance(decoder, TransformerConfig)
    few = decoder.model_copy(update={"positions": PositionsConfig(kind="learned", max_positions=3)})
    recipe = run.recipe.model_copy(update={"model": run.recipe.model.model_copy(update={"decoder": few})})
    count = len(run.vocabulary.target.encode("a dog barks loudly"))
    (tmp_path / "two.txt").write_text("\na dog barks loudly\n")
    short = replace(run.task, recipe=recipe)
    with pytest.MonkeyPatch.context() as patch:
        if together:
            patch.setattr(run, "task", replace(run.task, members=(run.task, short)))
        else:
            patch.setattr(run, "recipe", recipe)
            patch.setattr(run, "task", short)
        said = refusal("predict", translator, option, str(tmp_path / "two.txt"))
    assert said == f"line 2 has a {what} of {count} tokens, and this model writes 2 (its learned positions); shorten it"


@pytest.mark.parametrize(
    ("name", "room"),
    [
        ("transformer", 9 - 1),  # an end mark
        ("decoder-only", 9 - 1 - 6),  # and the source with its own
        ("language-model", 9 - 1 - 5 - 1),  # and the text, and a mark before it
    ],
)
def test_outputs_that_must_be_longer_than_the_learned_positions_are_refused_by_the_line(
    monkeypatch: pytest.MonkeyPatch, name: str, room: int
) -> None:
    run = copy(untrained(name))
    run.task = replace(run.task)  # it may keep the limit
    monkeypatch.setattr(Run, "load", staticmethod(lambda folder, **how: run))
    monkeypatch.setattr(run.model, "longest", 9)
    lines = "\n🙂 🙂 🙂 🙂 🙂\n"
    assert call("predict", name, "--min-length", str(room), given=lines).exit_code == 0
    result = call("predict", name, "--min-length", str(room + 1), given=lines)
    assert str(result.exception) == (
        f"line 2: min_length ({room + 1}) is more than the {room} tokens this model can write there (its learned "
        f"positions); lower decoding.min_length"
    )
    if name == "language-model":
        result = call("predict", name, "--min-length", str(room + 1), "--prompt", lines.strip(), "--beam", "1")
        assert "line 1: min_length (3) is more than the 2 tokens" in str(result.exception)


def test_no_threads_at_all_is_a_wrong_use_and_no_crash(translator: str) -> None:
    result = call("predict", translator, "--threads", "0")
    assert result.exit_code == 2 and "--threads" in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["compare", "--saved", "a", "--csv", "a"], "--csv a is also the file of --saved"),
    ],
)
def test_what_is_read_is_not_written_over(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        Path(name).write_text("a line\n")
    result = CliRunner().invoke(app, arguments)
    assert str(result.exception) == f"{said}; give another name"
    assert Path("a").read_text() == Path("b").read_text() == "a line\n"


def test_values_that_do_not_go_together_are_named_without_all_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit), error_boundary():
        Decoding(beam=2, nbest=5)
    assert capsys.readouterr().err == "sightline: nbest (5) is more than beam (2); raise beam, or lower nbest\n"


def test_of_a_list_only_the_value_that_is_wrong_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit), error_boundary():
        Evaluation.model_validate({"metrics": ["blue"]})
    said = capsys.readouterr().err
    assert said.startswith("sightline: metrics.0 is 'blue': Input should be 'bleu'") and "at least 1 item" not in said


def test_heads_that_are_not_there_are_told_before_anything_is_printed(translator: str, tmp_path: Path) -> None:
    links = tmp_path / "links.txt"
    links.write_text("kept\n")
    how = ["--alignments", str(links), "--alignment-format", "pharaoh", "--alignment-heads", "decoder.7.cross.0"]
    result = call("predict", translator, *how)
    assert "has no head 'decoder.7.cross.0'" in str(result.exception) and not result.stdout
    assert links.read_text() == "kept\n"


def test_a_seed_no_generator_takes_is_a_wrong_use_and_no_crash(translator: str) -> None:
    result = call("predict", translator, "--sample", "--seed", str(2**64))
    assert result.exit_code == 2 and "--seed" in result.output
