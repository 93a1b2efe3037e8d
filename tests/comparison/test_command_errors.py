"""Errors of `sightline compare`, each with reason and remedy."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

import sightline
from sightline.cli.app import app
from sightline.comparison import systems
from sightline.comparison.scoring import choose_scoring
from sightline.comparison.systems import ComparedRun
from sightline.data.sources import Example
from sightline.evaluation import test_set
from sightline.recipe import Decoding, Evaluation
from sightline.recipe.tasks import SEQ2SEQ
from sightline.run import Run
from sightline.run_folder import RunError, seal_run
from sightline.tasks.base import TooLong

Copy = Callable[..., Path]


COPIES: dict[str, dict[str, Any]] = {  # of none-seed1, with changes of the recipe
    "fewer": {"data__tests": {}},
    "wer": {"evaluation__metrics": ["wer"]},
    "folded": {"evaluation__lowercase": True},
    "turned": {"data__swap": True},
}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", r"a comparison needs at least two runs, and there is none; give another run folder"),
        ("dot-seed1", r"needs at least two runs, and there is only \S*dot-seed1; give another"),
        ("dot-seed1 runs", r"is not a run folder"),
        ("dot-seed1 none-seed1 --metrics blue", r"no metric 'blue'; choose from bleu, chrf"),
        ("dot-seed1 none-seed1 --baseline x", r"baseline x is none of the runs .*\(dot-seed1, none-seed1\)"),
        ("dot-seed1 none-seed1 --device tpu", r"there is no device 'tpu'; use auto, cpu"),
        ("dot-seed1 none-seed1 training.lr=1", r"override 'training.lr=1': a comparison can change decoding\.\*, eval"),
        # test sets
        ("dot-seed1 none-seed1 --on tset", r"dot-seed1 has no test set 'tset'; it has test, other, validation"),
        ("dot-seed1 fewer --on test", r"fewer has no test set .test.; it has validation; .*--on"),
        ("dot-seed1 fewer", r"test set in common \(dot-seed1 has test, other; fewer has none\)"),
        ("dot-seed1 turned", r"turned learned the other direction of .* \(data\.swap: true"),
        ("dot-seed1 none-seed1 --source x", r"--source and --reference go together"),
        ("dot-seed1 none-seed1 --source x --reference y --on test", r"two test sets"),
        # metrics
        ("dot-seed1 wer", r"in common \(dot-seed1 has bleu, .*; wer has wer\)"),
        ("dot-seed1 folded", r"scored differently: .*case:mixed.*case:lc.*evaluation.lowercase"),
        # files
        ("dot-seed1 none-seed1 --html nowhere/c.html", r"there is no folder"),
        ("dot-seed1 none-seed1 --figure c.gif", r"a figure is a \.png"),
        (
            "--saved c.json --beam 3",
            r"--saved c\.json was compared already, so --beam can change nothing; leave",
        ),
        ("--saved c.json --on other", r"was compared already, so --on can change nothing"),
        ("a b --saved c.json evaluation.lowercase=false", r"so runs, evaluation\.lowercase=false can change nothing"),
        # ensembles
        ("dot-seed1 dot-seed1+dot-seed2 dot-seed2+dot-seed1", r"dot-seed2\+\S*dot-seed1 is given twice \(as"),
        ("dot-seed1 dot-seed2+dot-seed2", r"a run that is in an ensemble twice only gets more weight; name"),
        ("dot-seed1+dot-seed2", r"at least two runs, and there is only \S*dot-seed1\+\S*dot-seed2; give another"),
        ("dot-seed1 dot-seed2+nowhere", r"nowhere"),
        (
            "dot-seed1 none-seed1 --ensemble-mean logs",
            r"--ensemble-mean logs is for ensembles, and there is none",
        ),
        ("dot-seed1 dot-seed1+none-seed1 --ensemble-mean sums", r"mean of probabilities or of logs, not of 'sums'"),
        # tasks
        ("lm-gru tag-gru", r"lm-gru is task: language-model and tag-gru is task: tagging; .*of one task"),
        ("lm-lines lm-bpe --metrics perplexity", r"different tokenizers.*--metrics, e\.g\. bits-per-character"),
        ("lm-gru lm-squeezed", r"lm-gru and lm-squeezed do not read the same text of test.*tokenizer\.norm"),
        ("names-gru names-lstm --metrics bleu", r"bleu is not for task: tagging; choose from token-accuracy, span-f1"),
        ("classify-mean classify-max --beam 3", r"--beam 3 is for runs that search, and these do not \(task: class"),
        (
            "lm-gru lm-transformer --beam 3",
            r"--beam 3 is for runs that search, and these do not \(task: lang",
        ),
        (
            "lm-gru lm-transformer evaluation.lowercase=true",
            r"evaluation\.lowercase applies to outputs, and models of text are",
        ),
    ],
)
def test_errors_of_the_command(
    arguments: str,
    message: str,
    trained: dict[str, Path],
    copied: Copy,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All are raised before anything is decoded."""
    monkeypatch.setattr(Run, "predict_nbest", lambda *_, **__: pytest.fail("decoded"))

    def folder(name: str) -> str:
        if name in COPIES:
            return str(copied("none-seed1", name, **COPIES[name]))
        if name.partition("-")[0] in ("lm", "tag", "names", "classify"):
            return str(request.getfixturevalue("tasks")[name])
        runs = trained["dot-seed1"].parent
        return {**{name: str(path) for name, path in trained.items()}, "runs": str(runs)}.get(name, name)

    words = ["+".join(map(folder, word.split("+"))) for word in arguments.split()]
    device = [] if "--device" in words or "--saved" in words else ["--device", "cpu"]
    with pytest.raises((ValueError, TypeError), match=message):
        CliRunner().invoke(app, ["compare", *words, *device], catch_exceptions=False)


def test_errors_of_the_function(trained: dict[str, Path], copied: Copy) -> None:
    with pytest.raises(TypeError, match="takes a list of runs"):
        sightline.compare(str(trained["dot-seed1"]))
    own = test_set.TestSet("own", ["a"], [["b"]], 1)
    with pytest.raises(RunError, match=r"turned learned the other direction of .* \(data\.swap: true"):
        sightline.compare([trained["dot-seed1"], copied("none-seed1", "turned", data__swap=True)], on=own, device="cpu")


def test_remedies_for_different_test_sets_and_case(trained: dict[str, Path], copied: Copy) -> None:
    fewer, folded = copied("none-seed1", "fewer", data__tests={}), copied("none-seed1", "f", evaluation__lowercase=True)
    result = sightline.compare([trained["dot-seed1"], fewer], on="validation", device="cpu", metrics=["exact"])
    assert len(result.sources) == 10
    result = sightline.compare([trained["dot-seed1"], folded], device="cpu", metrics=["bleu"], lowercase=True)
    assert "case:lc" in result.baseline.qualities["bleu"].signature


def test_duplicate_folders_are_refused(trained: dict[str, Path], tmp_path: Path) -> None:
    run = trained["dot-seed1"]
    (tmp_path / "link").symlink_to(run)
    for other in (run, run / ".." / run.name, Path(os.path.relpath(run)), tmp_path / "link"):
        with pytest.raises(RunError, match="is given twice"):
            sightline.compare([run, other])


def test_different_test_sets_are_refused_with_the_line(trained: dict[str, Path], copied: Copy, tmp_path: Path) -> None:
    corpus = trained["dot-seed1"].parent.parent
    shutil.copytree(corpus, tmp_path / "corpus", ignore=shutil.ignore_patterns("runs", "cache"))
    other = copied("none-seed1", "elsewhere", data__folder=str(tmp_path / "corpus"))
    runs = [trained["dot-seed1"], other]
    assert sightline.compare(runs, device="cpu", metrics=["exact"]).test.name == "test"  # another place, the same text
    path = tmp_path / "corpus" / "test.tsv"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    for changed, message in (
        ([*lines[:4], "neu\tnew\n", *lines[5:]], r"line 5 has the source '.*' and 'neu'"),
        ([*lines[:6], lines[6].split("\t")[0] + "\tnew\n", *lines[7:]], r"line 7 has the target '.*' and 'new'"),
        (lines[:-1], r"dot-seed1 has 60 lines there, the other only 59"),
        ([*lines, "neu\tnew\n"], r"elsewhere has 61 lines there, the other only 60"),
    ):
        path.write_text("".join(changed), encoding="utf-8")
        with pytest.raises(RunError, match=rf"test set test of dot-seed1 is not that of elsewhere: {message}.*--on"):
            sightline.compare(runs, device="cpu")


def test_decoding_errors_name_the_run(trained: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    predict = Run.predict_nbest

    def limited(self: Run, *requested: Any, **options: Any) -> Any:
        if self.recipe.model.decoder.attention.kind == "none":  # type: ignore[union-attr]
            raise TooLong("line 3", 9, 8)
        return predict(self, *requested, **options)

    monkeypatch.setattr(Run, "predict_nbest", limited)
    with pytest.raises(RunError, match=r"^none-seed1: line 3 has 9 tokens and this model takes 8"):
        sightline.compare([trained["dot-seed1"], trained["none-seed1"]], device="cpu")


def test_a_missing_test_file_is_reported(
    trained: dict[str, Path], copied: Copy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = copied("none-seed1", "moved", data__folder=str(tmp_path / "gone"))
    with pytest.raises(RunError, match=r"test set test of moved cannot be read: .*gone.*--source and --reference"):
        sightline.compare([trained["dot-seed1"], moved])
    monkeypatch.setenv("SIGHTLINE_CORPORA", str(tmp_path / "corpora"))
    with pytest.raises(RunError, match=rf"there is no {tmp_path}/gone and no {tmp_path}/corpora/gone and no .*; set"):
        sightline.compare([trained["dot-seed1"], moved])


def test_perplexity_of_different_tokenizers(trained: dict[str, Path], copied: Copy) -> None:
    other = copied("none-seed1", "other")
    content = (other / "tokenizer.json").read_text(encoding="utf-8")
    assert '"dog"' in content or '"▁dog"' in content
    (other / "tokenizer.json").write_text(content.replace('dog"', 'fox"'), encoding="utf-8")
    seal_run(other)
    runs = [trained["dot-seed1"], other]
    with pytest.raises(RunError, match=r"dot-seed1 and other have different tokenizers.*leave perplexity out"):
        sightline.compare(runs, metrics=["perplexity"])
    result = sightline.compare(runs, device="cpu")  # of the recipes' metrics it is left out
    assert "perplexity" not in result.metrics
    assert any(note.startswith("Perplexity is left out: dot-seed1 and other have") for note in result.notes)


def scorable(name: str, *, copies: bool = False, words: str = "a b") -> ComparedRun:
    """A stub with what `choose_scoring` needs."""
    evaluation = Evaluation(metrics=("bleu", "perplexity"), bootstrap=7)
    recipe = SimpleNamespace(task_spec=SEQ2SEQ, copies_unknown=copies, evaluation=evaluation)
    vocabulary = SimpleNamespace(target=SimpleNamespace(content=words))
    run: Any = SimpleNamespace(recipe=recipe, vocabulary=vocabulary)
    return ComparedRun(name, run, Decoding())


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"copies": True}, "of first and other only one has to name words outside the vocabulary"),
        ({"words": "a c"}, "first and other have different tokenizers, and perplexity is one of tokens"),
    ],
)
def test_incomparable_perplexities_are_left_out_or_refused(other: dict[str, Any], message: str) -> None:
    runs = [scorable("first"), scorable("other", **other)]
    result = choose_scoring(runs, None, None)
    assert (result.metrics, result.bootstrap) == (["bleu"], 7)
    assert len(result.notes) == 1 and result.notes[0].startswith(f"Perplexity is left out: {message}")
    for metrics in (["perplexity"], ["bleu", "perplexity"]):
        with pytest.raises(RunError, match=f"{message}.*; leave perplexity out"):
            choose_scoring(runs, metrics, None)


def test_duplicate_metrics_are_merged() -> None:
    result = choose_scoring([scorable("first"), scorable("other")], ["perplexity", "bleu", "perplexity"], None)
    assert (result.metrics, result.notes) == (["perplexity", "bleu"], [])


def test_an_empty_test_set_is_refused() -> None:
    with pytest.raises(RunError, match="the test set own has no sentences, so there is nothing to compare; give"):
        systems.common_test_set([scorable("first")], test_set.TestSet("own", [], [], 0))


def test_references_are_gathered_only_if_every_run_gathers_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systems, "is_reverse_direction", lambda *_: False)

    def reader(gathers: bool) -> ComparedRun:
        recipe = SimpleNamespace(data=SimpleNamespace(tests={"test": None, "other": None}), gathers=lambda _: gathers)
        examples = [Example("s", "a"), Example("s", "b")]
        run: Any = SimpleNamespace(recipe=recipe, test_sets=lambda: ["test"], test_examples=lambda _: examples)
        return ComparedRun("run", run, Decoding())

    for other, references in ((True, [["a", "b"]]), (False, [["a"], ["b"]])):
        result, others = systems.common_test_set([reader(True), reader(other)], None)
        assert (result.name, result.references, others) == ("test", references, ["other"])
