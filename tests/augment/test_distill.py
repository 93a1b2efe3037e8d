"""`sightline distill`: a student of a teacher, interrupted at either of its two halves."""

from __future__ import annotations

import gc
import gzip
import json
import os
import shutil
import signal
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import sightline
from sightline.augment import corpus
from sightline.augment.backtranslation import Limits, sentence_scorer
from sightline.augment.distillation import FILE, Distilling, distill, student_recipe
from sightline.cli.app import app
from sightline.cli.options import load_runs
from sightline.data.locate import MovedFolder, is_reverse_direction
from sightline.recipe.loading import load_recipe
from sightline.run import Run
from sightline.run_folder import RunError, seal_run
from sightline.sweeps import plan as sweeping
from sightline.training.resolve import open_recipe
from watched_runs import Silent, records


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "SIZE", 16)


BEAM = Distilling(beam=2)


def rows_of(file: Path) -> list[tuple[str, ...]]:
    return [tuple(line.split("\t")) for line in gzip.decompress(file.read_bytes()).decode().splitlines()]


def made(
    teacher: Path,
    recipe: Path,
    out: Path,
    how: Distilling = BEAM,
    changes: tuple[str, ...] = (),
    **more: Any,
) -> tuple[Any, dict[str, int]]:
    loaded, _ = open_recipe(recipe, changes)
    return distill(Run.load(teacher, device="cpu"), loaded, out, how, **more)


def test_the_student_learns_what_the_teacher_writes(
    translator: Path, tmp_path: Path, recipe_with: Callable[[int], Path]
) -> None:
    recipe = recipe_with(4)
    done = CliRunner().invoke(
        app, ["distill", str(translator), str(recipe), "model.width=8", "--out", str(tmp_path / "run"), "--beam", "2"]
    )
    assert done.exit_code == 0, done.output
    assert "50 of 50 pairs kept" in done.stderr
    rows = rows_of(tmp_path / "run" / FILE)
    loaded = sightline.load(translator, device="cpu")
    assert [target for _, target in rows] == loaded.predict([source for source, _ in rows], beam=2)
    saved = load_recipe(tmp_path / "run" / "recipe.yaml")
    assert [source.file for source in saved.data.train] == [str(tmp_path / "run" / FILE)]
    assert saved.model.width == 8
    assert saved.data.validation.file == "valid.tsv"
    assert len(sightline.load(tmp_path / "run", device="cpu").predict(["one two"])) == 1


@pytest.mark.parametrize(
    "own", [{"sample": {"seed": 3}, "mbr": {"candidates": 8}}, {"beam": 6, "groups": 3, "nbest": 4}]
)
def test_a_teacher_writes_as_its_recipe_says_or_by_a_plain_beam(
    own: dict[str, Any], translator: Path, tmp_path: Path, recipe_with: Callable[[int], Path]
) -> None:
    teacher = Path(shutil.copytree(translator, tmp_path / "teacher"))
    content = yaml.safe_load((teacher / "recipe.yaml").read_text())
    content["decoding"] |= own
    (teacher / "recipe.yaml").write_text(yaml.safe_dump(content))
    seal_run(teacher)
    loaded, (recipe, _) = sightline.load(teacher, device="cpu"), open_recipe(str(recipe_with(4)), [])
    for beam, changes in ((None, {}), (4, {"beam": 4, "mbr": 0, "groups": 1})):
        out = tmp_path / f"beam {beam}"
        distill(loaded, recipe, out, Distilling(beam=beam))
        rows = rows_of(out / FILE)
        assert [target for _, target in rows] == loaded.predict([source for source, _ in rows], **changes)
    distill(loaded, recipe, tmp_path / "chosen", Distilling(choose="chrf"))
    searched = json.loads((tmp_path / "chosen" / f"{FILE}.json").read_text())["plan"]["decoding"]
    assert searched == loaded.options(
        beam=loaded.recipe.decoding.beam, nbest=searched["beam"], mbr=0, groups=1
    ).model_dump(mode="json", exclude={"batch_tokens"})


def test_links_of_the_original_words_are_refused_before_anything_is_written(
    translator: Path, tmp_path: Path, recipe_with: Callable[[int], Path]
) -> None:
    changes = ["training.guided_alignment.file=links.txt", "model.decoder={kind: transformer, layers: 2, heads: 2}"]
    path = recipe_with(4)
    (path.parent / "links.txt").write_text("0-0\n" * 50)
    recipe, _ = open_recipe(str(path), changes)
    with pytest.raises(ValueError, match=r"guided_alignment.file \(links.txt\) links the words of the original pairs"):
        distill(sightline.load(translator, device="cpu"), recipe, tmp_path / "run", Distilling(beam=1))
    assert not (tmp_path / "run").exists()


def test_an_ensemble_can_teach(translator: Path, tmp_path: Path, recipe_with: Callable[[int], Path]) -> None:
    recipe = recipe_with(4)
    weak = sightline.train(recipe, ["seed=2", "model.width=8"], out=tmp_path / "weak", display=Silent()).folder
    command = ["distill", str(weak), str(recipe), "--out", str(tmp_path / "run"), "--beam", "1", "--with"]
    done = CliRunner().invoke(app, [*command, str(translator)])
    assert done.exit_code == 0, done.output
    rows = rows_of(tmp_path / "run" / FILE)
    sources, targets = [source for source, _ in rows], [target for _, target in rows]
    assert targets == Run.ensemble([weak, translator], device="cpu").predict(sources, beam=1)
    assert targets != Run.load(weak, device="cpu").predict(sources, beam=1)
    again = CliRunner().invoke(app, [*command[:-1], "--resume"])
    assert "cannot be resumed: teacher" in str(again.exception)


def test_the_teacher_is_gone_when_the_student_learns(
    translator: Path, tmp_path: Path, recipe_with: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    teachers: list[weakref.ref[Any]] = []
    left: list[Any] = []

    def load(*arguments: Any) -> Run:
        teachers.append(weakref.ref((run := load_runs(*arguments)).model))
        return run

    def learn(*arguments: Any, **options: Any) -> None:
        gc.collect()
        left.append(teachers[0]())

    monkeypatch.setattr("sightline.cli.augment.load_runs", load)
    monkeypatch.setattr("sightline.cli.train.run_training", learn)
    command = ["distill", str(translator), str(recipe_with(2)), "--out", str(tmp_path / "run"), "--beam", "1"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert left == [None]


def stopping(after: int) -> Callable[[str, int, int], None]:
    def progress(what: str, done: int, total: int) -> None:
        if done >= after:
            raise KeyboardInterrupt

    return progress


def test_interrupted_while_translating_it_goes_on_where_it_stopped(
    translator: Path, tmp_path: Path, recipe_with: Callable[[int], Path]
) -> None:
    recipe, run = recipe_with(2), tmp_path / "run"
    made(translator, recipe, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        made(translator, recipe, run, progress=stopping(32))
    assert [path.name for path in sorted(run.glob("*/part-*"))] == ["part-0000000.json.zst", "part-0000001.json.zst"]
    with pytest.raises(RunError, match="--resume"):
        made(translator, recipe, run)
    with pytest.raises(RunError, match="decoding"):
        made(translator, recipe, run, Distilling(beam=1), resume=True)
    _, counts = made(translator, recipe, run, resume=True)
    assert counts["kept"] == 50
    assert (run / FILE).read_bytes() == (tmp_path / "whole" / FILE).read_bytes()


def test_interrupted_while_training_it_goes_on_there_too(
    translator: Path, tmp_path: Path, recipe_with: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sightline.training.loggers import PlainDisplay

    recipe = recipe_with(6)
    arguments = ["distill", str(translator), str(recipe), "training.log_every=1", "--out"]
    assert CliRunner().invoke(app, [*arguments, str(tmp_path / "whole")]).exit_code == 0

    def stop(self: Any, progress: Any, record: Any) -> None:
        if progress.step == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(PlainDisplay, "step", stop)
        stopped = CliRunner().invoke(app, [*arguments, str(tmp_path / "run")])
    assert stopped.exit_code == 130
    assert "continue with the same command and --resume" in stopped.stderr
    assert isinstance(CliRunner().invoke(app, [*arguments, str(tmp_path / "run")]).exception, RunError)
    resumed = CliRunner().invoke(app, [*arguments, str(tmp_path / "run"), "--resume"])
    assert resumed.exit_code == 0, resumed.output
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "run")]
    assert weights[0] == weights[1]


def test_a_run_that_was_moved_has_its_distilled_text_with_it(
    translator: Path, tmp_path: Path, recipe_with: Callable[[int], Path]
) -> None:
    recipe, run, moved = recipe_with(2), tmp_path / "run", tmp_path / "moved"
    command = ["distill", str(translator), str(recipe), "--out"]
    assert CliRunner().invoke(app, [*command, str(run)]).exit_code == 0
    run.rename(moved)
    for opened in (sweeping.recipe_to_train(str(moved), []), Run.load(moved, device="cpu").recipe):
        assert opened.data.train[0].file == str(moved / FILE)
    sightline.train(moved, ["training.limits.steps=3"], resume=True, display=Silent())
    assert load_recipe(moved / "recipe.yaml").data.train[0].file == str(moved / FILE)
    done = CliRunner().invoke(app, [*command, str(moved.rename(run)), "training.limits.steps=4", "--resume"])
    assert done.exit_code == 0, done.output
    assert records(run)[-1]["step"] == 4


def test_of_the_beam_the_output_nearest_to_the_reference_can_be_taken(
    translator: Path, tmp_path: Path, recipe_with: Callable[[int], Path]
) -> None:
    recipe = recipe_with(2)
    made(translator, recipe, tmp_path / "run", Distilling(beam=4, choose="chrf"))
    loaded, likeness = sightline.load(translator, device="cpu"), sentence_scorer("chrf")
    references = dict(line.split("\t") for line in (tmp_path / "train.tsv").read_text().splitlines())
    rows = rows_of(tmp_path / "run" / FILE)
    found = loaded.predict_nbest([source for source, _ in rows], loaded.options(beam=4, nbest=4))
    for (source, target), guesses in zip(rows, found, strict=True):
        scores = [likeness(guess.text, references[source]) for guess in guesses]
        assert likeness(target, references[source]) == max(scores)


def test_of_one_output_none_can_be_chosen(translator: Path, tmp_path: Path, recipe_with: Callable[[int], Path]) -> None:
    with pytest.raises(ValueError, match="--choose chrf takes one of the outputs of a beam, and a beam of 1 has one"):
        made(translator, recipe_with(4), tmp_path / "run", Distilling(beam=1, choose="chrf"))
    assert not (tmp_path / "run").exists()


def test_a_text_of_which_nothing_is_left_leaves_its_folder_as_it_was(
    translator: Path, tmp_path: Path, recipe_with: Callable[[int], Path]
) -> None:
    recipe, new, old = recipe_with(2), tmp_path / "new", tmp_path / "old"
    old.mkdir()
    for out in (new, old):
        with pytest.raises(RunError, match=r"nothing is left to write to .*; its name is free again"):
            made(translator, recipe, out, Distilling(limits=Limits(max_tokens=1)))
    assert not new.exists() and list(old.iterdir()) == []
    _, counts = made(translator, recipe, new)
    assert counts["kept"] > 0


def test_original_pairs_can_stay_with_a_weight_and_the_limit_holds_for_both(
    translator: Path, tmp_path: Path, recipe_with: Callable[[int], Path]
) -> None:
    recipe = recipe_with(2)
    student, counts = made(translator, recipe, tmp_path / "run", Distilling(beam=2, mix=0.5), ("data.limit=20",))
    assert counts["read"] == 20
    assert [source.weight for source in student.data.train] == [1.0, 0.5]
    assert student.data.limit == counts["kept"] + 20
    assert student.data.train[1].file == "train.tsv"


def test_the_weight_of_the_original_pairs_is_that_of_the_distilled_ones(
    tmp_path: Path, recipe_with: Callable[[int], Path]
) -> None:
    recipe, _ = open_recipe(recipe_with(2), ["data.limit=20"])
    train = tuple(source.model_copy(update={"weight": 2.0}) for source in recipe.data.train)
    recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update={"train": train})})
    alone, mixed = (student_recipe(recipe, tmp_path / "x.tsv", 3, mix) for mix in (None, 0.25))
    assert ([source.weight for source in alone.data.train], alone.data.limit) == ([2.0], None)
    assert ([source.weight for source in mixed.data.train], mixed.data.limit) == ([2.0, 0.5], 3 + 20)


def test_the_other_direction_of_a_corpus_is_read_the_other_way(
    translator: Path, tmp_path: Path, recipe_with: Callable[[int], Path]
) -> None:
    recipe, _ = open_recipe(recipe_with(2), ["data.swap=true"])
    student = student_recipe(recipe, tmp_path / "x.tsv", 3, None)
    (tmp_path / "x.tsv").write_text("read\twritten\n")
    from sightline.data.sources import read

    assert list(read(student.data.train[0], None, swap=student.data.swap)) == [("read", "written")]


def test_a_teacher_of_the_other_direction_is_refused(translator: Path) -> None:
    with pytest.raises(ValueError, match="the other direction of this corpus"):
        made(translator, translator.parent / "recipe.yaml", translator.parent / "no", changes=("data.swap=true",))


def test_where_the_files_of_another_machine_lie_is_asked_of_two_directions_alone(
    translator: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    (tmp_path / "pairs").mkdir()
    monkeypatch.setenv("SIGHTLINE_CORPORA", str(tmp_path))
    one, back = (
        load_recipe(translator / "recipe.yaml", ["data.folder=/server/pairs", f"data.swap={swap}"])
        for swap in ("false", "true")
    )
    assert not is_reverse_direction(one, one)
    assert not recwarn.list  # nothing is read
    with pytest.warns(MovedFolder):
        assert is_reverse_direction(one, back)


def test_sources_of_different_weights_are_refused(
    translator: Path, tmp_path: Path, recipe_with: Callable[[int], Path]
) -> None:
    recipe = recipe_with(2)
    both = "data.train=[{kind: tsv, file: train.tsv}, {kind: tsv, file: valid.tsv, weight: 2}]"
    with pytest.raises(ValueError, match=r"weights \[1.0, 2.0\]"):
        made(translator, recipe, tmp_path / "run", changes=(both,))


def test_a_recipe_of_spoilt_text_has_no_pairs_to_distill(
    translator: Path, tmp_path: Path, recipe_with: Callable[[int], Path]
) -> None:
    changes = ("data.noise={kind: text-infilling}", "evaluation.metrics=[perplexity]", "data.clean={}")
    with pytest.raises(ValueError, match=r"learns from plain text \(data\.noise\.kind: text-infilling\); leave"):
        made(translator, recipe_with(2), tmp_path / "run", changes=changes)
    assert not (tmp_path / "run").exists()
