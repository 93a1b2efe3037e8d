"""What cannot be compared is refused, with the reason and a remedy."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import sightline
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


Make = Callable[[dict[str, Path], Copy], Any]


def beside(name: str, **changes: Any) -> Make:
    """A run beside a changed copy of another."""
    return lambda trained, copied: [trained["dot-seed1"], copied("none-seed1", name, **changes)]


def both(trained: dict[str, Path], _: Copy) -> list[Path]:
    return [trained["dot-seed1"], trained["none-seed1"]]


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (lambda t, _: [t["dot-seed1"]], {}, r"needs at least two runs, and there is only .*dot-seed1; give another"),
        (lambda *_: [], {}, "there is none"),
        (lambda t, _: str(t["dot-seed1"]), {}, "takes a list of runs"),
        (lambda t, _: [t["dot-seed1"], t["dot-seed1"].parent], {}, "is not a run folder"),
        (both, {"metrics": ["blue"]}, r"no metric 'blue'; choose from bleu, chrf"),
        (both, {"baseline": "x"}, r"baseline x is none of the runs .*\(dot-seed1, none-seed1\)"),
        (
            beside("fewer", data__tests={}),
            {"on": "test"},
            r"fewer has no test set .test.; it has validation; .*--on",
        ),
        (beside("fewer", data__tests={}), {}, r"test set in common \(dot-seed1 has test, other; fewer has none\)"),
        (
            beside("wer", evaluation__metrics=["wer"]),
            {},
            r"in common \(dot-seed1 has bleu, .*; wer has wer\)",
        ),
        (beside("folded", evaluation__lowercase=True), {}, r"scored differently: .*case:mixed.*case:lc.*--lowercase"),
        (
            beside("turned", data__swap=True),
            {},
            r"turned learned the other direction of .* \(data\.swap: true",
        ),
        (
            beside("turned", data__swap=True),
            {"on": test_set.TestSet("own", ["a"], [["b"]], 1)},
            r"turned learned the other direction of .* \(data\.swap: true",
        ),
    ],
)
def test_incomparable_runs_are_refused(
    make: Make, options: dict[str, Any], message: str, trained: dict[str, Path], copied: Copy
) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        sightline.compare(make(trained, copied), **options, device="cpu")


def test_remedies_for_different_test_sets_and_case(trained: dict[str, Path], copied: Copy) -> None:
    fewer, folded = copied("none-seed1", "fewer", data__tests={}), copied("none-seed1", "f", evaluation__lowercase=True)
    found = sightline.compare([trained["dot-seed1"], fewer], on="validation", device="cpu", metrics=["exact"])
    assert len(found.sources) == 10
    found = sightline.compare([trained["dot-seed1"], folded], device="cpu", metrics=["bleu"], lowercase=True)
    assert "case:lc" in found.baseline.qualities["bleu"].signature


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
    for changed, said in (
        ([*lines[:4], "neu\tnew\n", *lines[5:]], r"line 5 has the source '.*' and 'neu'"),
        ([*lines[:6], lines[6].split("\t")[0] + "\tnew\n", *lines[7:]], r"line 7 has the target '.*' and 'new'"),
        (lines[:-1], r"dot-seed1 has 60 lines there, the other only 59"),
        ([*lines, "neu\tnew\n"], r"elsewhere has 61 lines there, the other only 60"),
    ):
        path.write_text("".join(changed), encoding="utf-8")
        with pytest.raises(RunError, match=rf"test set test of dot-seed1 is not that of elsewhere: {said}.*--on"):
            sightline.compare(runs, device="cpu")


def test_decoding_errors_name_the_run(trained: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    predict = Run.predict_nbest

    def limited(self: Run, *asked: Any, **how: Any) -> Any:
        if self.recipe.model.decoder.attention.kind == "none":  # type: ignore[union-attr]
            raise TooLong("line 3", 9, 8)
        return predict(self, *asked, **how)

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
    found = sightline.compare(runs, device="cpu")  # of the recipes' metrics it is left out
    assert "perplexity" not in found.metrics
    assert any(note.startswith("Perplexity is left out: dot-seed1 and other have") for note in found.notes)


def scorable(name: str, *, copies: bool = False, words: str = "a b") -> ComparedRun:
    """As much of a run as choosing its metrics asks for."""
    evaluation = Evaluation(metrics=("bleu", "perplexity"), bootstrap=7)
    recipe = SimpleNamespace(task_spec=SEQ2SEQ, copies_unknown=copies, evaluation=evaluation)
    vocabulary = SimpleNamespace(target=SimpleNamespace(content=words))
    run: Any = SimpleNamespace(recipe=recipe, vocabulary=vocabulary)
    return ComparedRun(name, run, Decoding())


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"copies": True}, "of first and other only one has to name words outside the vocabulary"),
        ({"words": "a c"}, "first and other have different tokenizers, and perplexity is one of tokens"),
    ],
)
def test_incomparable_perplexities_are_left_out_or_refused(other: dict[str, Any], said: str) -> None:
    runs = [scorable("first"), scorable("other", **other)]
    found = choose_scoring(runs, None, None)
    assert (found.metrics, found.bootstrap) == (["bleu"], 7)
    assert len(found.notes) == 1 and found.notes[0].startswith(f"Perplexity is left out: {said}")
    for asked in (["perplexity"], ["bleu", "perplexity"]):
        with pytest.raises(RunError, match=f"{said}.*; leave perplexity out"):
            choose_scoring(runs, asked, None)


def test_duplicate_metrics_are_merged() -> None:
    found = choose_scoring([scorable("first"), scorable("other")], ["perplexity", "bleu", "perplexity"], None)
    assert (found.metrics, found.notes) == (["perplexity", "bleu"], [])


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
        found, others = systems.common_test_set([reader(True), reader(other)], None)
        assert (found.name, found.references, others) == ("test", references, ["other"])
