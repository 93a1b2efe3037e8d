"""`sightline distill`: what the student is trained on, and interruptions while translating and while training."""

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
from sightline.augment.distillation import FILE, DistillationConfig, distill, student_recipe
from sightline.augment.translator import Limits, sentence_scorer
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


BEAM = DistillationConfig(beam=2)


def rows_of(file: Path) -> list[tuple[str, ...]]:
    return [tuple(line.split("\t")) for line in gzip.decompress(file.read_bytes()).decode().splitlines()]


def write(
    teacher: Path,
    recipe: Path,
    out: Path,
    config: DistillationConfig = BEAM,
    changes: tuple[str, ...] = (),
    **more: Any,
) -> tuple[Any, dict[str, int]]:
    loaded, _ = open_recipe(recipe, changes)
    return distill(Run.load(teacher, device="cpu"), loaded, out, config, **more)


def test_the_student_trains_on_outputs_of_the_teacher(
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
def test_the_teacher_decodes_as_its_recipe_says_unless_a_beam_is_set(
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
        distill(loaded, recipe, out, DistillationConfig(beam=beam))
        rows = rows_of(out / FILE)
        assert [target for _, target in rows] == loaded.predict([source for source, _ in rows], **changes)
    distill(loaded, recipe, tmp_path / "chosen", DistillationConfig(choose="chrf"))
    searched = json.loads((tmp_path / "chosen" / f"{FILE}.json").read_text())["plan"]["decoding"]
    assert searched == loaded.options(
        beam=loaded.recipe.decoding.beam, nbest=searched["beam"], mbr=0, groups=1
    ).model_dump(mode="json", exclude={"batch_tokens"})


def test_the_teacher_may_be_an_ensemble(translator: Path, tmp_path: Path, recipe_with: Callable[[int], Path]) -> None:
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


def test_the_teacher_is_freed_before_the_student_trains(
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


def test_resume_after_an_interruption_while_translating(
    translator: Path, tmp_path: Path, recipe_with: Callable[[int], Path]
) -> None:
    recipe, run = recipe_with(2), tmp_path / "run"
    write(translator, recipe, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        write(translator, recipe, run, progress=stopping(32))
    assert [path.name for path in sorted(run.glob("*/part-*"))] == ["part-0000000.json.zst", "part-0000001.json.zst"]
    with pytest.raises(RunError, match="--resume"):
        write(translator, recipe, run)
    with pytest.raises(RunError, match="decoding"):
        write(translator, recipe, run, DistillationConfig(beam=1), resume=True)
    _, counts = write(translator, recipe, run, resume=True)
    assert counts["kept"] == 50
    assert (run / FILE).read_bytes() == (tmp_path / "whole" / FILE).read_bytes()


def test_resume_after_an_interruption_while_training(
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


def test_a_moved_run_finds_its_distilled_text(
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


def test_choose_takes_the_output_closest_to_the_reference(
    translator: Path, tmp_path: Path, recipe_with: Callable[[int], Path]
) -> None:
    recipe = recipe_with(2)
    write(translator, recipe, tmp_path / "run", DistillationConfig(beam=4, choose="chrf"))
    loaded, similarity = sightline.load(translator, device="cpu"), sentence_scorer("chrf")
    references = dict(line.split("\t") for line in (tmp_path / "train.tsv").read_text().splitlines())
    rows = rows_of(tmp_path / "run" / FILE)
    result = loaded.predict_nbest([source for source, _ in rows], loaded.options(beam=4, nbest=4))
    for (source, target), nbest in zip(rows, result, strict=True):
        scores = [similarity(output.text, references[source]) for output in nbest]
        assert similarity(target, references[source]) == max(scores)


def test_if_all_pairs_are_dropped_the_folder_is_unchanged(
    translator: Path, tmp_path: Path, recipe_with: Callable[[int], Path]
) -> None:
    recipe, new, old = recipe_with(2), tmp_path / "new", tmp_path / "old"
    old.mkdir()
    for out in (new, old):
        with pytest.raises(RunError, match=r"nothing is left to write to .*; its name is free again"):
            write(translator, recipe, out, DistillationConfig(limits=Limits(max_tokens=1)))
    assert not new.exists() and list(old.iterdir()) == []
    _, counts = write(translator, recipe, new)
    assert counts["kept"] > 0


def test_mix_keeps_original_pairs_within_the_limit(
    translator: Path, tmp_path: Path, recipe_with: Callable[[int], Path]
) -> None:
    recipe = recipe_with(2)
    student, counts = write(
        translator, recipe, tmp_path / "run", DistillationConfig(beam=2, mix=0.5), ("data.limit=20",)
    )
    assert counts["read"] == 20
    assert [source.weight for source in student.data.train] == [1.0, 0.5]
    assert student.data.limit == counts["kept"] + 20
    assert student.data.train[1].file == "train.tsv"


def test_weights_of_distilled_and_mixed_pairs(tmp_path: Path, recipe_with: Callable[[int], Path]) -> None:
    recipe, _ = open_recipe(recipe_with(2), ["data.limit=20"])
    train = tuple(source.model_copy(update={"weight": 2.0}) for source in recipe.data.train)
    recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update={"train": train})})
    alone, mixed = (student_recipe(recipe, tmp_path / "x.tsv", 3, mix) for mix in (None, 0.25))
    assert ([source.weight for source in alone.data.train], alone.data.limit) == ([2.0], None)
    assert ([source.weight for source in mixed.data.train], mixed.data.limit) == ([2.0, 0.5], 3 + 20)


def test_a_swapped_recipe_reads_swapped_columns(
    translator: Path, tmp_path: Path, recipe_with: Callable[[int], Path]
) -> None:
    recipe, _ = open_recipe(recipe_with(2), ["data.swap=true"])
    student = student_recipe(recipe, tmp_path / "x.tsv", 3, None)
    (tmp_path / "x.tsv").write_text("read\twritten\n")
    from sightline.data.sources import read

    assert list(read(student.data.train[0], None, swap=student.data.swap)) == [("read", "written")]


def test_direction_check_locates_files_only_for_different_swaps(
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


LINKS = ["training.guided_alignment.file=links.txt", "model.decoder={kind: transformer, layers: 2, heads: 2}"]
WEIGHTS = ["data.train=[{kind: tsv, file: train.tsv}, {kind: tsv, file: valid.tsv, weight: 2}]"]
NOISE = ["data.noise={kind: text-infilling}", "evaluation.metrics=[perplexity]", "data.clean={}"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--choose", "ter"], "--choose ter: there is no such choice; use bleu or chrf"),
        (["--beam", "1", "--choose", "chrf"], "--choose chrf takes one of the outputs of a beam, and a beam of 1 has"),
        (["--max-ratio", "1"], "max_ratio (1.0) more than 1"),
        (["--mix", "0"], "--mix 0 must be more than 0"),
        (LINKS, "training.guided_alignment.file (links.txt) links the words of the original pairs"),
        (WEIGHTS, "data.train has sources of weights [1.0, 2.0]"),
        (NOISE, "this one learns from plain text (data.noise.kind: text-infilling); leave data.noise out"),
    ],
)
def test_errors_of_the_command(
    arguments: list[str], message: str, translator: Path, tmp_path: Path, recipe_with: Callable[[int], Path]
) -> None:
    recipe = recipe_with(4)
    (tmp_path / "links.txt").write_text("0-0\n" * 50)
    command = ["distill", str(translator), str(recipe), *arguments, "--out", str(tmp_path / "run")]
    error = CliRunner().invoke(app, command).exception
    assert isinstance(error, ValueError) and message in str(error)
    assert not (tmp_path / "run").exists()


def test_a_teacher_of_the_opposite_direction_is_refused(translator: Path) -> None:
    recipe, out = translator.parent / "recipe.yaml", translator.parent / "no"
    with pytest.raises(ValueError, match="the other direction of this corpus"):
        write(translator, recipe, out, changes=("data.swap=true",))
