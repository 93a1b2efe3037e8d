"""`sightline backtranslate`: its pairs, the counts of dropped lines, and resumed files equal to uninterrupted ones."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import sightline
from sightline.augment import corpus
from sightline.augment.backtranslation import backtranslate
from sightline.augment.translator import Limits, Translator, describe_counts, sentence_scorer, single_line
from sightline.cli.app import app
from sightline.recipe.decoding import Decoding, Sampling
from sightline.recipe.loading import load_recipe, save_recipe
from sightline.run import Run
from sightline.run_folder import RunError, seal_run
from watched_runs import Silent

LINES = ["one two", "", "three four five", "two\ttwo", "one " * 40, "five one", "  ", "four four"]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "mono.txt"
    path.write_text("".join(line + "\n" for line in LINES))
    return path


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "SIZE", 3)


def write(run: Path, text: Path, out: Path, *, resume: bool = False, **settings: Any) -> dict[str, int]:
    loaded = sightline.load(run, device="cpu")
    options = loaded.options(**{"beam": 2, "nbest": 1, **settings.pop("options", {})})
    return backtranslate(loaded, text, out, options, limits=Limits(max_tokens=20), resume=resume, **settings)


def test_each_line_becomes_a_pair_or_is_counted_as_dropped(translator: Path, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "back.tsv.gz"
    counts = write(translator, text, out, tag="<BT>")
    rows = [line.split("\t") for line in gzip.decompress(out.read_bytes()).decode().splitlines()]
    assert [target for _, target in rows] == ["one two", "three four five", "two two", "five one", "four four"]
    loaded = sightline.load(translator, device="cpu")
    assert [source for source, _ in rows] == [f"<BT> {each}" for each in loaded.predict([t for _, t in rows], beam=2)]
    assert counts == {"read": 8, "kept": 5, "empty": 2, "too long": 1}
    assert json.loads((tmp_path / "back.tsv.gz.json").read_text())["counts"] == counts
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back.tsv.gz", "back.tsv.gz.json", "mono.txt"]


def test_beam_option_replaces_groups_and_mbr_of_the_recipe(translator: Path, text: Path, tmp_path: Path) -> None:
    run, out = Path(shutil.copytree(translator, tmp_path / "run")), tmp_path / "back.tsv"
    recipe = load_recipe(run / "recipe.yaml")
    own = Decoding.model_validate({**recipe.decoding.model_dump(), "beam": 6, "groups": 3, "mbr": {"candidates": 4}})
    save_recipe(recipe.model_copy(update={"decoding": own}), run / "recipe.yaml")
    seal_run(run)
    for beam, expected in (([], (6, 3, True)), (["--beam", "4"], (4, 1, False))):
        command = ["backtranslate", str(run), str(text), "--out", str(out), "--device", "cpu", *beam]
        assert CliRunner().invoke(app, command, catch_exceptions=False).exit_code == 0
        plan = json.loads((tmp_path / "back.tsv.json").read_text())["plan"]["decoding"]
        assert (plan["beam"], plan["groups"], plan["mbr"] is not None) == expected
        out.unlink()


@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2", ".xz", ".zst"])
def test_recipe_reads_the_written_file_with_any_compression(
    suffix: str, translator: Path, text: Path, tmp_path: Path
) -> None:
    from sightline.data.sources import read
    from sightline.recipe.sources import TsvSource

    out = tmp_path / f"back.tsv{suffix}"
    write(translator, text, out)
    assert [pair.target for pair in read(TsvSource(file=str(out)), None)][:2] == ["one two", "three four five"]


def stopping(after: int) -> Callable[[str, int, int], None]:
    def progress(what: str, done: int, total: int) -> None:
        if done >= after:
            raise KeyboardInterrupt

    return progress


@pytest.mark.parametrize("after", [3, 6, 8])
@pytest.mark.parametrize("sampled", [True, False])
def test_resumed_file_equals_an_uninterrupted_one(
    after: int, sampled: bool, translator: Path, text: Path, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"options": {"beam": None, "sample": {"seed": 7}} if sampled else {}}
    write(translator, text, tmp_path / "whole.tsv", **options)
    out = tmp_path / "back.tsv"
    with pytest.raises(KeyboardInterrupt):
        write(translator, text, out, progress=stopping(after), **options)
    assert not out.exists()
    made = sorted((tmp_path / "back.tsv.parts").glob("part-*"))
    stamps = [path.stat().st_mtime_ns for path in made]
    assert len(made) == -(-after // 3)
    with pytest.raises(KeyboardInterrupt):
        write(translator, text, out, resume=True, progress=stopping(8), **options)
    assert [path.stat().st_mtime_ns for path in made] == stamps  # nothing is done twice
    counts = write(translator, text, out, resume=True, **options)
    assert out.read_bytes() == (tmp_path / "whole.tsv").read_bytes()
    assert write(translator, text, out, resume=True, **options) == counts  # already complete
    with pytest.raises(RunError, match="exists already; continue with --resume"):
        write(translator, text, out, **options)


def test_resuming_with_other_settings_is_refused(translator: Path, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "back.tsv"
    with pytest.raises(KeyboardInterrupt):
        write(translator, text, out, progress=stopping(3))
    with pytest.raises(RunError, match="continue with --resume, or remove it"):
        write(translator, text, out)
    with pytest.raises(RunError, match=r"cannot be resumed: tag: None then, '<BT>' now; use .* with --out"):
        write(translator, text, out, resume=True, tag="<BT>")
    with pytest.raises(RunError, match=r"cannot be resumed: decoding\.beam: 2 then, 3 now; use"):
        write(translator, text, out, resume=True, options={"beam": 3})
    text.write_text("one\n")
    with pytest.raises(RunError, match=r"lines: 8 then, 1 now"):
        write(translator, text, out, resume=True)


def test_a_resumed_file_keeps_its_part_size(
    translator: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(translator, text, tmp_path / "whole.tsv")
    out = tmp_path / "back.tsv"
    with pytest.raises(KeyboardInterrupt):
        write(translator, text, out, progress=stopping(3))
    monkeypatch.setattr(corpus, "SIZE", 5)  # another device has larger parts
    counts = write(translator, text, out, resume=True)
    assert counts["read"] == 8
    assert out.read_bytes() == (tmp_path / "whole.tsv").read_bytes()


def test_sampled_output_does_not_depend_on_dropped_lines(translator: Path) -> None:
    loaded = sightline.load(translator, device="cpu")
    options = loaded.options(sample=Sampling(seed=3, temperature=3.0), nbest=1)
    writer = Translator(loaded, options, Limits(max_tokens=20, max_ratio=9.0))
    whole = writer(0, LINES)
    assert whole == [writer(number, [line])[0] for number, line in enumerate(LINES)]
    lines = [line if len(line) < 50 else "one one" for line in LINES]
    others = [number for number, line in enumerate(LINES) if line == lines[number]]
    assert [whole[number] for number in others] == [writer(0, lines)[number] for number in others]


def test_parts_on_a_gpu_are_larger() -> None:
    assert corpus.part_size("cuda") > corpus.part_size("cpu") == corpus.SIZE


def test_if_all_lines_are_dropped_the_error_names_reasons_and_remedy(
    translator: Path, text: Path, tmp_path: Path
) -> None:
    command = ["backtranslate", str(translator), str(text), "--out", str(tmp_path / "x.tsv"), "--max-tokens", "1"]
    done = CliRunner().invoke(app, command)
    message = "nothing is left to write to .*: 8 read, 6 too long, 2 empty; train the model .* or raise --max-ratio"
    assert isinstance(done.exception, RunError) and re.search(message, str(done.exception))
    assert [path.name for path in tmp_path.iterdir()] == ["mono.txt"]  # the command can be repeated
    again = CliRunner().invoke(app, [*command[:-1], "20"])
    assert again.exit_code == 0, again.output


def test_parts_left_by_a_kill_at_the_end_are_removed(translator: Path, text: Path, tmp_path: Path) -> None:
    out, begun = tmp_path / "back.tsv", tmp_path / "back.tsv.parts"
    with pytest.raises(KeyboardInterrupt):
        write(translator, text, out, progress=stopping(8))
    shutil.copytree(begun, kept := tmp_path / "kept")
    counts = write(translator, text, out, resume=True)
    kept.rename(begun)
    whole = out.read_bytes()
    assert write(translator, text, out, resume=True) == counts
    assert out.read_bytes() == whole and not begun.exists()


def test_parts_without_a_plan_are_ignored(translator: Path, text: Path, tmp_path: Path) -> None:
    """An interrupted removal of another plan's parts may have removed the plan and left parts."""
    counts = write(translator, text, tmp_path / "whole.tsv")
    out, begun = tmp_path / "back.tsv", tmp_path / "back.tsv.parts"
    with pytest.raises(KeyboardInterrupt):
        write(translator, text, out, progress=stopping(3), tag="<BT>")
    (begun / "plan.json").unlink()
    assert write(translator, text, out) == counts
    assert out.read_bytes() == (tmp_path / "whole.tsv").read_bytes()


@pytest.mark.parametrize("name", ["back.tsv", "back.tsv.json"])
def test_a_kill_while_joining_parts_leaves_no_file_after_resuming(
    name: str, translator: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, replace = tmp_path / "back.tsv", os.replace

    def kill(one: Path, other: Path) -> None:
        if other.name == name:  # the file is complete but not yet renamed
            raise KeyboardInterrupt
        replace(one, other)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", kill)
        patch.setattr(Path, "unlink", lambda path, missing_ok=False: None)  # a killed process removes nothing
        with pytest.raises(KeyboardInterrupt):
            write(translator, text, out)
    write(translator, text, out, resume=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back.tsv", "back.tsv.json", "mono.txt"]


def test_a_pipe_is_refused(translator: Path, tmp_path: Path) -> None:
    """As in `sightline backtranslate RUN <(zcat news.gz)`."""
    reader, writer = os.pipe()
    os.write(writer, b"one two\n")
    os.close(writer)
    with pytest.raises(ValueError, match="is a pipe, and the text is read twice; write it to a file first"):
        write(translator, Path(f"/dev/fd/{reader}"), tmp_path / "back.tsv")
    os.close(reader)
    assert not (tmp_path / "back.tsv.parts").exists()


def test_truncated_sources_are_not_dropped_as_too_long(tmp_path: Path, recipe_with: Callable[[int], Path]) -> None:
    body = "{kind: transformer, layers: 1, heads: 2, positions: {kind: learned, longest: 9}}"
    changes = [f"model.encoder={body}", "data.clean.truncate_source=6", "data.clean.max_tokens=8"]
    run = sightline.load(sightline.train(recipe_with(2), changes, out=tmp_path / "run", display=Silent()), device="cpu")
    writer = Translator(run, run.options(beam=1, min_length=2), Limits(max_tokens=20))
    whole, cut = writer(0, ["one two " * 30, "one two " * 3])
    assert whole == cut and cut.dropped is None


def test_a_damaged_part_is_reported(translator: Path, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "back.tsv"
    with pytest.raises(KeyboardInterrupt):
        write(translator, text, out, progress=stopping(3))
    (tmp_path / "back.tsv.parts" / "part-0000000.json.zst").write_bytes(b"half")
    with pytest.raises(RunError, match=r"part-0000000.json.zst is damaged .* remove it"):
        write(translator, text, out, resume=True)


def test_useless_outputs_are_dropped_with_a_reason(translator: Path) -> None:
    from sightline.tasks.base import Prediction

    run = sightline.load(translator, device="cpu")
    writer = Translator(run, run.recipe.decoding, Limits(max_tokens=20, max_ratio=2.0))
    cases = [
        (Prediction("", 0.0, []), "no output"),
        (Prediction("x <unk>", 0.0, [5, 1], unknown=1), "unknown word in output"),
        (Prediction("x", 0.0, [5] * 5, truncated=True), "output cut at the length limit"),
        (Prediction("x", 0.0, [5] * 21), "output too long"),
        (Prediction("x", 0.0, [5] * 12), "ratio"),
        (Prediction("x", 0.0, [5] * 11), None),  # 11 = 2 · 3 + 5
    ]
    for prediction, reason in cases:
        assert writer._filter(prediction, 3).dropped == reason
    assert writer._filter(Prediction("x", 0.0, [5] * 20), 10).dropped is None  # the most tokens allowed


def test_max_tokens_is_inclusive(translator: Path) -> None:
    run = sightline.load(translator, device="cpu")
    writer = Translator(run, run.options(beam=1, nbest=1, max_length=3), Limits(max_tokens=2))
    assert [outcome.dropped for outcome in writer(0, ["one two", "one two two", ""])] == [None, "too long", "empty"]


@pytest.mark.parametrize("limits", [{"max_tokens": 0}, {"max_ratio": 1.0}])
def test_invalid_limits_are_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be at least 1 and max_ratio .* more than 1"):
        Limits(**limits)


def test_single_line_replaces_tabs_and_line_breaks() -> None:
    assert single_line(" a\tb\nc\rd ") == "a b c d"


def test_counts_name_only_reasons_that_occurred() -> None:
    assert describe_counts({"read": 2, "kept": 1, "empty": 0, "ratio": 1}) == "1 of 2 pairs kept; dropped 1 ratio"
    assert describe_counts({"read": 2, "kept": 2, "empty": 0}) == "2 of 2 pairs kept"


def test_a_fingerprint_counts_and_tells_texts_apart() -> None:
    assert corpus.fingerprint(["a", "b"])["lines"] == 2
    texts = [["a", "b"], ["ab"], ["b", "a"], ["a", "b", ""], ["\ud800"]]  # the last is half of a character
    assert len({corpus.fingerprint(each)["text"] for each in texts}) == len(texts)


@pytest.mark.parametrize("name", ["bleu", "chrf"])
def test_sentence_scorer_ranks_the_reference_first(name: str) -> None:
    similarity = sentence_scorer(name)  # type: ignore[arg-type]
    assert similarity("a b c", "a b c") > similarity("a b d", "a b c") > similarity("x y z", "a b c")
    assert similarity("a b", "a b") == pytest.approx(100.0)  # BLEU too, of the orders that it has


def test_the_command_prints_counts_and_the_recipe_entry(translator: Path, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "back.tsv"
    done = CliRunner().invoke(
        app, ["backtranslate", str(translator), str(text), "--out", str(out), "--max-tokens", "20", "--device", "cpu"]
    )
    assert done.exit_code == 0, done.output
    assert "5 of 8 pairs kept; dropped 2 empty, 1 too long" in done.stderr
    assert f"{{kind: tsv, file: {out}, weight: 1.0}}" in done.stderr


def test_an_ensemble_translates_back(
    translator: Path, text: Path, tmp_path: Path, recipe_with: Callable[[int], Path]
) -> None:
    other = sightline.train(recipe_with(4), ["seed=2"], out=tmp_path / "other", display=Silent()).folder
    command = ["backtranslate", str(translator), str(text), "--out", str(tmp_path / "back.tsv"), "--beam", "1"]
    done = CliRunner().invoke(app, [*command, "--with", str(other), "--ensemble-mean", "logs"])
    assert done.exit_code == 0, done.output
    rows = [line.split("\t") for line in (tmp_path / "back.tsv").read_text().splitlines()]
    ensemble = Run.ensemble([translator, other], mean="logs", device="cpu")
    assert [source for source, _ in rows] == ensemble.predict([target for _, target in rows], beam=1)
    plan = json.loads((tmp_path / "back.tsv.json").read_text())["plan"]["model"]
    assert (len(set(plan["models"])), plan["weights"], plan["mean"]) == (2, [0.5, 0.5], "logs")


def test_seed_applies_to_a_recipe_that_samples(translator: Path, text: Path, tmp_path: Path) -> None:
    shutil.copytree(translator, run := tmp_path / "drawing")
    recipe = load_recipe(run / "recipe.yaml")
    sampling = recipe.decoding.model_copy(update={"sample": Sampling(top_k=3)})
    save_recipe(recipe.model_copy(update={"decoding": sampling}), run / "recipe.yaml")
    seal_run(run)
    command = ["backtranslate", str(run), str(text), "--out", str(tmp_path / "back.tsv"), "--seed", "7"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    sample = json.loads((tmp_path / "back.tsv.json").read_text())["plan"]["decoding"]["sample"]
    assert (sample["seed"], sample["top_k"]) == (7, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--seed", "7"], "--seed applies to sampling; add --sample"),
        (["--sample", "--beam", "4"], "--beam and --sample exclude each other"),
        (["--tag", "a\tb"], "must be a word or more"),
        (["--max-ratio", "1"], "max_ratio"),
    ],
)
def test_errors_of_the_command(options: list[str], message: str, translator: Path, text: Path, tmp_path: Path) -> None:
    arguments = ["backtranslate", str(translator), str(text), "--out", str(tmp_path / "x.tsv"), *options]
    done = CliRunner().invoke(app, arguments)
    assert isinstance(done.exception, ValueError)
    assert message in str(done.exception)
