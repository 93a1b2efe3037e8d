"""Prediction with matrix products in bfloat16."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import sightline
from dated_runs import TRANSFORMER, write_recipe
from sightline.cli.app import app
from sightline.layers.kernels import cpu_multiplies_bfloat16, product_type
from sightline.run import Run
from watched_runs import Silent, own_cache

rounding = pytest.mark.skipif(not cpu_multiplies_bfloat16(), reason="this CPU has no products of bfloat16")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Shared, so not to be changed."""
    folder = tmp_path_factory.mktemp("dates")
    with own_cache(folder / "cache"):
        yield sightline.train(write_recipe(folder, TRANSFORMER), out=folder / "run", display=Silent()).folder


@rounding
def test_perplexity_in_bfloat16_equals_float32_up_to_rounding(run: Path) -> None:
    loaded = [sightline.load(run, device="cpu", precision=each) for each in ("float32", "bf16")]
    test = loaded[0].test_set("validation")
    exact, rounded = (each.measure("perplexity", test, [], lowercase=False).value for each in loaded)
    assert exact != rounded
    assert rounded == pytest.approx(exact, rel=0.01)  # a rounding is 0.4%


@rounding
def test_an_ensemble_has_the_precision_of_its_runs(run: Path) -> None:
    alone, together = (sightline.load(each, device="cpu", precision="bf16") for each in (run, [run, run]))
    assert alone.precision == together.precision == "bf16"
    assert together.predict(["3 March 2015"], beam=1) == alone.predict(["3 March 2015"], beam=1)
    exact = sightline.load(run, device="cpu")
    assert Run.ensemble([exact, alone]).precision == "bf16" and Run.ensemble([exact, exact]).precision == "float32"


@rounding
def test_scores_record_their_precision(run: Path, tmp_path: Path) -> None:
    for precision, reported in (("float32", False), ("bf16", True)):
        words = ["evaluate", str(run), "--on", "validation", "--beam", "1", "--device", "cpu", "--precision", precision]
        result = CliRunner().invoke(app, [*words, "--json", str(tmp_path / "scores.json")], catch_exceptions=False)
        assert ("products in bf16" in result.stdout.splitlines()[0]) == reported
        (record,) = json.loads((tmp_path / "scores.json").read_text())
        assert record["precision"] == precision


@rounding
def test_back_translation_does_not_resume_in_another_precision(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the model has not learned to end, and outputs that a limit ends are dropped
    monkeypatch.setattr("sightline.decoding.search.Search.truncated", lambda *_: None)
    text, out = tmp_path / "text.txt", tmp_path / "back.tsv"
    text.write_text("3 March 2015\n21 July 1999\n", encoding="utf-8")
    command = ["backtranslate", str(run), str(text), "--out", str(out), "--device", "cpu", "--beam", "1"]
    first = CliRunner().invoke(app, [*command, "--precision", "bf16"])
    assert first.exit_code == 0, first.output
    again = CliRunner().invoke(app, [*command, "--resume"])
    assert "precision: 'bf16' then" in str(again.exception)
    assert CliRunner().invoke(app, [*command, "--resume", "--precision", "bf16"]).exit_code == 0


def test_unsupported_precisions_are_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="precision 'int8' is not known; use float32 or bf16"):
        sightline.load(run, device="cpu", precision="int8")
    with pytest.raises(ValueError, match="bf16 is for the CPU"):
        product_type("bf16", torch.device("cuda"))
    monkeypatch.setattr("sightline.layers.kernels.cpu_multiplies_bfloat16", lambda: False)
    with pytest.raises(ValueError, match="this CPU has no bfloat16 matrix products; leave it out"):
        sightline.load(run, device="cpu", precision="bf16")
    assert product_type("float32", torch.device("cuda")) == torch.float32
