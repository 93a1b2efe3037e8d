"""What a run's decoding becomes when somebody asks for something else than its recipe says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sightline.cli.app import app
from sightline.cli.evaluate import describe_search
from sightline.comparison.systems import load_runs
from sightline.progress import silent
from sightline.recipe import Decoding
from sightline.run import Run
from sightline.tasks.seq2seq import Seq2SeqTask
from untrained_runs import PAIRS, untrained


def run_with(monkeypatch: pytest.MonkeyPatch, **decoding: Any) -> Run:
    """A run whose recipe decodes so; any folder is this one."""
    run = untrained("transformer")
    section = Decoding.model_validate({**run.recipe.decoding.model_dump(), **decoding})
    monkeypatch.setattr(run, "recipe", run.recipe.model_copy(update={"decoding": section}))
    monkeypatch.setattr(Run, "load", staticmethod(lambda folder, **how: run))
    return run


def test_a_beam_on_request_replaces_sampling_of_the_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_with(monkeypatch, sample={"temperature": 0.8}, mbr={"candidates": 8})
    assert run.options() == run.recipe.decoding
    plain = run.options(beam=4)
    assert (plain.beam, plain.sample, plain.mbr) == (4, None, None)
    chosen = run.options(beam=8, mbr=6)
    assert chosen.mbr is not None and (chosen.sample, chosen.mbr.candidates) == (None, 6)


def test_mbr_over_a_beam_is_kept_unless_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_with(monkeypatch, beam=8, mbr={"candidates": 8, "utility": "bleu"})
    wider = run.options(beam=16)
    assert wider.mbr == run.recipe.decoding.mbr
    assert run.options(mbr=None).mbr == wider.mbr  # None keeps the recipe's value
    fewer = run.options(mbr=4).mbr
    assert fewer is not None and (fewer.candidates, fewer.utility) == (4, "bleu")
    assert run.options(beam=4, mbr=0).mbr is None
    assert run.plain_search(4).mbr is None
    with pytest.raises(
        ValueError, match=r"candidates \(8\) is more than beam \(4\); .*leave mbr out \(decoding.mbr=null"
    ):
        run.options(beam=4)


def test_a_plain_search_has_no_groups_mbr_or_sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_with(monkeypatch, beam=6, groups=3, nbest=3, length_penalty=0.3)
    assert run.plain_search(None) == run.options()
    plain = run.plain_search(4)
    assert (plain.beam, plain.groups, plain.nbest, plain.length_penalty) == (4, 1, 1, 0.3)
    run = run_with(monkeypatch, groups=1, sample={}, mbr={"candidates": 8})
    assert (run.plain_search(2).sample, run.plain_search(2).mbr) == (None, None)


def test_nbest_is_one_unless_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_with(monkeypatch, beam=5, nbest=3)
    assert (run.options().nbest, run.options(beam=1).nbest, run.options(nbest=2).nbest) == (1, 1, 2)


def predicted(*arguments: str) -> list[str]:
    command = ["predict", "transformer", *arguments, "--device", "cpu", "--max-length", "6"]
    result = CliRunner().invoke(app, command, input=PAIRS[0][0] + "\n", catch_exceptions=False)
    assert result.exit_code == 0, result.output
    (line,) = result.stdout.splitlines()
    return line.split("\t")


def test_predict_uses_nbest_of_the_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    run_with(monkeypatch, beam=5, nbest=3)
    scored = predicted()
    assert len(scored) == 6
    assert predicted("--nbest", "3") == scored
    assert predicted("--nbest", "1") == scored[:2]
    with pytest.raises(ValueError, match=r"nbest \(3\) is more than beam \(1\); raise beam, or lower nbest"):
        predicted("--beam", "1")


def test_a_given_output_has_one_score(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run_with(monkeypatch, beam=5, nbest=3)
    (tmp_path / "target").write_text(PAIRS[0][1] + "\n", encoding="utf-8")
    asked = ["predict", "transformer", "--target", str(tmp_path / "target"), "--device", "cpu"]
    result = CliRunner().invoke(app, asked, input=PAIRS[0][0] + "\n", catch_exceptions=False)
    score, text = result.stdout.rstrip("\n").split("\t")
    assert float(score) < 0 and text == PAIRS[0][1]


def test_mbr_can_be_turned_off_on_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    run_with(monkeypatch, beam=4, mbr={"candidates": 4})
    seen: list[Decoding] = []
    monkeypatch.setattr(Seq2SeqTask, "predict", lambda self, requests, *_: seen.append(requests[0].options) or 1 / 0)
    for more in ([], ["--mbr", "0"], ["--mbr", "0", "--beam", "2"]):
        with pytest.raises(ZeroDivisionError):
            predicted(*more)
    assert [(each.beam, each.mbr is None) for each in seen] == [(4, False), (4, True), (2, True)]
    for how in (["--utility", "bleu"], ["--mbr-weights", "alike"]):
        with pytest.raises(ValueError, match=f"{how[0]} applies to minimum Bayes risk decoding"):
            predicted("--mbr", "0", *how)


def test_a_common_beam_in_a_comparison_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    run_with(monkeypatch, sample={}, mbr={"candidates": 8})
    monkeypatch.setattr("sightline.comparison.systems.is_baseline", lambda folder: False)
    ways = {"mean": "probabilities", "device": "cpu", "progress": silent}
    for beam, sampled in ((None, True), (3, False)):
        for each in load_runs([Path("a"), Path("b")], beam=beam, **ways):  # type: ignore[arg-type]
            assert ((each.options.sample is not None), (each.options.mbr is not None)) == (sampled, sampled)


@pytest.mark.parametrize("alone", [["--beam", "1"], ["--sample"]])
def test_a_coverage_penalty_needs_a_beam(alone: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    run_with(monkeypatch, beam=4)
    assert predicted("--coverage-penalty", "0.5")
    assert predicted("--coverage-penalty", "0", *alone)
    with pytest.raises(ValueError, match="--coverage-penalty needs a beam of several hypotheses"):
        predicted("--coverage-penalty", "0.5", *alone)


def test_the_description_of_a_search_names_settings_that_change_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_with(monkeypatch, beam=4, min_length=0)
    assert describe_search(run.options()) == "beam 4"
    changed = run.options(
        length_penalty=0.6, patience=2.0, coverage_penalty=0.2, no_repeat=3, min_length=2, forbid=["a", "b"]
    )
    assert describe_search(changed) == (
        "beam 4, length normalization length 0.6, coverage penalty 0.2, patience 2.0, no 3 tokens twice, "
        "at least 2 tokens, 2 phrases forbidden"
    )
    assert describe_search(run.options(stopping="bound")) == "beam 4, stopping bound"
    assert describe_search(run.options(beam=1, length_penalty=0.6)) == "beam 1"
    assert describe_search(run.options(sample={}, length_penalty=0.6, min_length=1)) == "drawn, at least 1 token"
    assert describe_search(changed.model_copy(update={"replace_unknown": "copy"})).endswith(
        ", unknown words replaced (copy)"
    )


def test_unknown_options_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match="decoding has no 'beams'; the keys are beam, nbest, length_penalty"):
        run_with(monkeypatch).options(beams=4)


@pytest.mark.parametrize(
    ("values", "form", "alpha"),
    [
        ({}, "length", 1.0),
        ({"beam": 4}, "length", 1.0),
        ({"length_penalty": 0.6}, "gnmt", 0.6),  # recipes and runs of older versions
        ({"length_penalty": 1.0}, "gnmt", 1.0),
        ({"length_normalization": "gnmt"}, "gnmt", 1.0),
        ({"length_normalization": "length", "length_penalty": 0.6}, "length", 0.6),
        ({"length_normalization": "reward", "length_penalty": 0.2}, "reward", 0.2),
    ],
    ids=str,
)
def test_a_length_penalty_without_a_form_keeps_its_meaning(values: dict[str, Any], form: str, alpha: float) -> None:
    options = Decoding.model_validate(values)
    assert (options.length_normalization, options.length_penalty) == (form, alpha)
    assert Decoding.model_validate(options.model_dump()) == options


def test_a_length_reward_needs_its_strength() -> None:
    with pytest.raises(ValueError, match="reward adds length_penalty for every token; name length_penalty"):
        Decoding.model_validate({"length_normalization": "reward"})


def test_changing_the_length_penalty_keeps_its_form(monkeypatch: pytest.MonkeyPatch) -> None:
    for form in ("gnmt", "length"):
        options = run_with(monkeypatch, length_normalization=form).options(length_penalty=0.4)
        assert (options.length_normalization, options.length_penalty) == (form, 0.4)
