"""Ensembles, risk and rules, as `sightline predict` and `sightline evaluate` offer them."""

from __future__ import annotations

import json
import re
import shutil
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import sightline
from sightline.cli import errors
from sightline.cli.app import app
from sightline.data.sources import Example
from sightline.decoding.request import Phrases
from sightline.evaluation import test_set
from sightline.recipe.decoding import Sampling
from sightline.run import Run
from sightline.run_folder import RunError, seal_run
from untrained_runs import PAIRS, untrained

Runs = dict[str, Path]
LINES = "ANNA: the\nBOHR: old\n"


def call(verb: str, run: Path, *arguments: str, given: str = LINES) -> tuple[list[str], str]:
    command = [verb, str(run), *arguments, "--device", "cpu"]
    with errors.error_boundary():  # as the command itself does
        result = CliRunner().invoke(app, command, input=given, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines(), result.stderr


def refused(verb: str, run: Path, *arguments: str) -> str:
    result = CliRunner().invoke(app, [verb, str(run), *arguments, "--device", "cpu"], input=LINES)
    assert result.exit_code != 0
    return str(result.exception) + result.output


# --- ensembles ---------------------------------------------------------------------------------------------------


def test_a_run_with_a_copy_of_itself_is_the_run(tasks: Runs, tmp_path: Path) -> None:
    copies = [Path(shutil.copytree(tasks[name], tmp_path / name)) for name in ("lm-gru", "classify-mean", "tag-gru")]
    lm, labels, tags = (tasks[copy.name] for copy in copies)
    lm_too, labels_too, tags_too = (("--with", str(copy)) for copy in copies)
    short = ("--beam", "3", "decoding.max_length=12")
    assert call("predict", lm, *short, *lm_too) == call("predict", lm, *short)
    for run, too in ((lm, lm_too), (labels, labels_too)):
        (head, *scores), (alone, *own) = (call("evaluate", run, *more)[0] for more in (too, ()))
        assert (head, scores) == (f"{alone}, ensemble of 2 runs", own)
    assert call("predict", tags, "--format", "text", *tags_too) == call("predict", tags, "--format", "text")


def test_a_run_that_is_named_twice_is_refused(tasks: Runs, tmp_path: Path) -> None:
    lm, other, link = tasks["lm-gru"], tasks["lm-transformer"], tmp_path / "link"
    link.symlink_to(lm)
    told = refused("predict", lm, "--with", str(lm))
    assert f"--with {lm}: this run is in the ensemble already" in told and "name each run once" in told
    assert f"--with {link}, which is {lm}: this run is in" in refused("predict", lm, "--with", str(link))
    twice = refused("evaluate", lm, "--with", str(other), "--with", str(other))
    assert f"--with {other}: this run is in the ensemble already" in twice


def test_language_models_of_two_kinds_are_measured_by_the_mean_of_their_probabilities(tasks: Runs) -> None:
    runs = [Run.load(tasks[name], device="cpu") for name in ("lm-gru", "lm-transformer")]
    together = sightline.load([tasks["lm-gru"], tasks["lm-transformer"]], device="cpu")
    stream = np.asarray(runs[0].vocabulary.target.encode("ANNA: the cat sees a dog\n" * 20))
    wanted = -np.log(np.mean([np.exp(-run.text_losses(stream)) for run in runs], axis=0))
    np.testing.assert_allclose(together.text_losses(stream), wanted, atol=1e-9)
    logs = Run.ensemble([tasks["lm-gru"], tasks["lm-transformer"]], mean="logs", device="cpu")
    with pytest.raises(ValueError, match="measured by the mean of probabilities"):
        logs.text_losses(stream)
    assert logs.predict(["ANNA:"], beam=2, max_length=8)[0].startswith("ANNA:")


def test_runs_with_another_vocabulary_or_task_are_refused(tasks: Runs) -> None:
    with pytest.raises(RunError, match=r"has another source vocabulary than .*needs runs with the same tokenizer"):
        Run.ensemble([tasks["lm-gru"], tasks["lm-bpe"]], device="cpu")
    with pytest.raises(RunError, match="an ensemble has one task"):
        Run.ensemble([tasks["lm-gru"], tasks["classify-mean"]], device="cpu")
    with pytest.raises(ValueError, match="a list of run folders"):
        Run.ensemble([], device="cpu")
    assert "another source vocabulary" in refused("predict", tasks["lm-gru"], "--with", str(tasks["lm-bpe"]))


def test_a_run_of_the_other_direction_is_refused(tasks: Runs, tmp_path: Path) -> None:
    back = Path(shutil.copytree(tasks["names-gru"], tmp_path / "back"))
    recipe = (back / "recipe.yaml").read_text(encoding="utf-8")
    (back / "recipe.yaml").write_text(recipe.replace("swap: false", "swap: true"), encoding="utf-8")
    seal_run(back)
    with pytest.raises(RunError, match=r"back learned the other direction of the corpus of .*\(data\.swap: true\)"):
        Run.ensemble([tasks["names-gru"], back], device="cpu")


# --- risk and rules ----------------------------------------------------------------------------------------------


def test_the_output_of_least_risk_is_one_of_those_drawn(tasks: Runs) -> None:
    drawn = ("--sample", "--seed", "5", "decoding.max_length=8")
    risk = (*drawn, "decoding.mbr={candidates: 6, utility: bleu}")
    (first, _), _ = call("predict", tasks["lm-gru"], *risk)
    (several, _), _ = call("predict", tasks["lm-gru"], *drawn, "--nbest", "6")
    assert first in several.split("\t")[1::2]
    (ranked, _), _ = call(
        "predict", tasks["lm-gru"], *drawn, "decoding.mbr.candidates=6", "decoding.mbr.utility=bleu", "--nbest", "3"
    )
    assert ranked.split("\t")[1] == first
    (searched, _), _ = call(
        "predict", tasks["lm-gru"], "decoding.mbr.candidates=4", "decoding.max_length=8"
    )  # a beam of four
    (best, _), _ = call("predict", tasks["lm-gru"], "--beam", "4", "--nbest", "4", "decoding.max_length=8")
    assert searched in best.split("\t")[1::2]


def test_words_are_forbidden_everywhere_or_line_by_line(tasks: Runs, tmp_path: Path) -> None:
    short = ("--beam", "3", "decoding.max_length=25")
    plain, _ = call("predict", tasks["lm-gru"], *short)
    word = re.findall(r"\w+", plain[0].replace("\\n", "\n"))[2]
    found, _ = call("predict", tasks["lm-gru"], *short, f"decoding.forbid=[{word}]")
    assert not re.search(rf"\b{word}\b", found[0].replace("\\n", "\n")[len("ANNA: the") :])
    (tmp_path / "not.txt").write_text(f"\n{word}\tzebra\n")
    lines, _ = call("predict", tasks["lm-gru"], *short, "--forbid", str(tmp_path / "not.txt"))
    assert lines[0] == plain[0]
    (tmp_path / "not.txt").write_text("the\n")
    assert "has 1 line, fewer than the input" in refused(
        "predict", tasks["lm-gru"], *short, "--forbid", str(tmp_path / "not.txt")
    )


def test_words_are_required_line_by_line(tasks: Runs, tmp_path: Path) -> None:
    (tmp_path / "must.txt").write_text("hears\told cat\n\n")
    plain, _ = call("predict", tasks["lm-gru"], "--beam", "4", "decoding.max_length=40")
    found, told = call(
        "predict", tasks["lm-gru"], "--beam", "4", "decoding.max_length=40", "--require", str(tmp_path / "must.txt")
    )
    assert re.search(r"\bhears\b", found[0]) and re.search(r"\bold cat\b", found[0]) and not told
    assert found[1] == plain[1]
    (tmp_path / "must.txt").write_text("\nthe old cat sees the dog\n")
    _, told = call(
        "predict", tasks["lm-gru"], "--beam", "2", "decoding.max_length=9", "--require", str(tmp_path / "must.txt")
    )
    assert told.startswith("sightline: line 2: no output can contain 'the old cat sees the dog'")


def test_phrases_can_be_given_in_python(tasks: Runs) -> None:
    run = Run.load(tasks["lm-gru"], device="cpu")
    (found,) = run.predict_nbest(["ANNA:"], run.options(beam=3, max_length=20), phrases=[Phrases(required=("cat",))])
    assert re.search(r"\bcat\b", found[0].text)


def test_duplicates_of_several_groups_are_printed_once(tasks: Runs) -> None:
    alike = ("--beam", "4", "decoding.groups=2", "decoding.diversity=0", "--nbest", "4", "decoding.max_length=9")
    (found, _), _ = call("predict", tasks["lm-gru"], *alike)
    texts = found.split("\t")[1::2]
    assert len(texts) == len(set(texts)) == 2


def test_rules_of_length_and_repetition_are_options(tasks: Runs) -> None:
    found, _ = call("predict", tasks["lm-gru"], "--beam", "2", "decoding.max_length=30", "decoding.no_repeat=3")
    new = found[0]
    grams = [new[at : at + 3] for at in range(len(new) - 2)]
    assert len(set(grams)) == len(grams)
    found, _ = call(
        "predict", tasks["lm-gru"], "--beam", "4", "decoding.groups=2", "--nbest", "4", "decoding.max_length=9"
    )
    assert len(set(found[0].split("\t")[1::2])) > 1


# --- what is written down of it ------------------------------------------------------------------------------------


@pytest.fixture
def pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Files of pairs; any folder is the untrained run of its name."""
    load = staticmethod(lambda folder, **how: copy(untrained(Path(folder).name)))  # the recipe is changed
    monkeypatch.setattr(Run, "load", load)
    for place, name in enumerate(("source", "reference")):
        (tmp_path / name).write_text("".join(pair[place] + "\n" for pair in PAIRS), encoding="utf-8")
    return ["--source", str(tmp_path / "source"), "--reference", str(tmp_path / "reference"), "--metrics", "chrf"]


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ([], {}),
        (
            ["--mbr", "4", "--utility", "bleu"],
            {"mbr": {"candidates": 4, "utility": "bleu", "weights": "uniform"}, "beam": 4},
        ),
        (
            ["--mbr", "4", "--mbr-weights", "probability"],
            {"mbr": {"candidates": 4, "utility": "chrf", "weights": "probability"}, "beam": 4},
        ),
        (["--beam", "4", "--groups", "2", "--diversity", "0.8"], {"beam": 4, "groups": 2, "diversity": 0.8}),
        (["--length-penalty", "0.2", "--no-repeat", "2"], {"length_penalty": 0.2, "no_repeat": 2}),
        (["--forbid-everywhere", "dog", "--min-length", "1"], {"forbid": ["dog"], "min_length": 1}),
    ],
)
def test_scores_are_written_with_all_that_was_in_force_when_outputs_were_found(
    pairs: list[str], options: list[str], changed: dict[str, Any], tmp_path: Path
) -> None:
    scores = tmp_path / "scores.json"
    call("evaluate", Path("transformer"), *pairs, *options, "--json", str(scores))
    (record,) = json.loads(scores.read_text())
    assert record["decoding"] == {**untrained("transformer").recipe.decoding.model_dump(mode="json"), **changed}
    assert "with" not in record


def test_scores_of_a_recipe_that_draws_say_how(
    pairs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, scores = untrained("transformer"), tmp_path / "scores.json"
    drawing = run.recipe.decoding.model_copy(update={"sample": Sampling(top_k=3, seed=4)})
    monkeypatch.setattr(run, "recipe", run.recipe.model_copy(update={"decoding": drawing}))
    call("evaluate", Path("transformer"), *pairs, "--json", str(scores))
    (record,) = json.loads(scores.read_text())
    assert record["decoding"]["sample"] == {"temperature": 1.0, "top_k": 3, "top_p": None, "seed": 4}


def test_scores_of_an_ensemble_name_all_its_runs(pairs: list[str], tmp_path: Path) -> None:
    scores = tmp_path / "scores.json"
    together = ("--with", "recurrent", "--ensemble-mean", "logs")
    call("evaluate", Path("transformer"), *pairs, *together, "--json", str(scores))
    (record,) = json.loads(scores.read_text())
    assert (record["run"], record["with"], record["ensemble_mean"]) == ("transformer", ["recurrent"], "logs")


# --- how far it is -----------------------------------------------------------------------------------------------


def test_how_far_an_evaluation_is_can_be_heard() -> None:
    """What is searched again, for it says what is forbidden, is not counted twice."""
    run, told = untrained("transformer"), list[tuple[str, int, int]]()
    test = test_set.TestSet.of("pairs", [Example(source, target) for source, target in PAIRS])
    for options in (run.options(beam=1), run.options(beam=2, forbid=["A", "dog"])):
        told.clear()
        run.evaluate(test, options, progress=lambda *each: told.append(each))
        assert told[-3:] == [("decoding pairs", 3, 3), ("scoring pairs by bleu", 0, 2), ("scoring pairs by chrf", 1, 2)]


def test_a_replaced_flag_is_an_override_and_says_so(tasks: Runs) -> None:
    old, note = call("predict", tasks["lm-gru"], "--max-length=9", "--beam", "2")
    new, nothing = call("predict", tasks["lm-gru"], "decoding.max_length=9", "decoding.beam=2")
    assert old == new and not nothing
    assert note == "sightline: --max-length is deprecated; write decoding.max_length=9\n"
