"""Every command refuses files of a run that differ from the manifest."""

from __future__ import annotations

import json
import shutil
import struct
import warnings
from pathlib import Path

import pytest
from typer.testing import CliRunner

import sightline
from dated_runs import write_recipe
from sightline.augment.merging import average_run
from sightline.cli.app import app
from sightline.files import checksum
from sightline.run_folder import (
    MANIFEST,
    METRICS,
    SEALED_FILES,
    WEIGHTS,
    ManifestError,
    read_config,
    read_manifest,
    read_metrics,
    replace_file,
    rewriting,
)
from watched_runs import Killed, Silent, pull_the_plug

PLACES = 40  # bits that are flipped, evenly spread over the file


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def entries(run: Path) -> dict[str, str]:
    manifest = read_manifest(run)
    assert manifest is not None and not manifest.rewriting
    return {name: entry["sha256"] for name, entry in manifest.files.items()}


def test_the_manifest_describes_every_file_that_a_run_relies_on(finished: Path) -> None:
    there = {name for name in (*SEALED_FILES, METRICS) if (finished / name).is_file()}
    assert there >= {"recipe.yaml", "config.json", "tokenizer.json", "environment.json", WEIGHTS, METRICS}
    assert entries(finished) == {name: checksum(finished / name) for name in there}


def test_every_flipped_bit_of_the_weights_is_noticed(finished: Path) -> None:
    weights = finished / WEIGHTS
    bits = 8 * weights.stat().st_size
    header = struct.unpack("<Q", weights.read_bytes()[:8])[0]
    chosen = {*range(0, bits, bits // PLACES), *range(64, 8 * (8 + header), 8 * header // PLACES), bits - 1}
    for bit in sorted(chosen):
        flip(weights, bit)
        with pytest.raises(ManifestError, match=r"model\.safetensors is not the file that manifest\.json describes"):
            sightline.load(finished, device="cpu")
        flip(weights, bit)
    assert sightline.load(finished, device="cpu").predict(["1 January 2000"])


def test_another_type_in_the_header_of_the_weights_is_noticed(finished: Path) -> None:
    content = (finished / WEIGHTS).read_bytes()
    assert b'"F32"' in content
    (finished / WEIGHTS).write_bytes(content.replace(b'"F32"', b'"I32"'))
    with pytest.raises(ManifestError, match=r"copy the run folder again or, if the change is intended, accept it with"):
        sightline.load(finished, device="cpu").predict(["1 January 2000"])


def test_a_recipe_that_lost_its_last_lines_is_refused_everywhere(finished: Path, tmp_path: Path) -> None:
    lines = (finished / "recipe.yaml").read_text().splitlines(keepends=True)
    other = Path(shutil.copytree(finished, tmp_path / "other"))
    whole = [number for number, line in enumerate(lines) if not line.startswith(" ")]
    for end in whole[1:3]:
        (finished / "recipe.yaml").write_text("".join(lines[:end]))
        for use in (
            lambda: sightline.load(finished, device="cpu"),
            lambda: sightline.train(finished, resume=True, display=Silent()),
            lambda: average_run(finished, tmp_path / "mean", 2),
            lambda: sightline.compare([other, finished]),
            lambda: sightline.train(
                "dates", [f"model.start_from={finished}", "training.limits.steps=1"], out=tmp_path / "new"
            ),
        ):
            with pytest.raises(ManifestError, match=r"recipe\.yaml is not the file that manifest\.json describes"):
                use()
    assert not (tmp_path / "mean").exists() and not (tmp_path / "new" / "recipe.yaml").exists()


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "environment.json"])
def test_any_other_file_is_checked_too(finished: Path, name: str) -> None:
    flip(finished / name, 8 * 20)
    with pytest.raises(ManifestError, match=name):
        read_config(finished)


def test_a_file_that_came_later_is_refused(finished: Path) -> None:
    (finished / "dictionary.tsv").write_text("a\tb\t1\n")
    with pytest.raises(ManifestError, match=r"dictionary\.tsv"):
        sightline.load(finished, device="cpu").predict(["1 January 2000"])


def test_a_journal_that_was_changed_is_refused(finished: Path) -> None:
    assert read_metrics(finished)
    content = (finished / METRICS).read_bytes()
    (finished / METRICS).write_bytes(content.replace(b'"loss": ', b'"loss": 1', 1))
    with pytest.raises(ManifestError, match=r"metrics\.jsonl"):
        read_metrics(finished)


@pytest.mark.parametrize("content", ["", "[]", '{"files": 1}', '{"files": {"recipe.yaml": {}}}', "\udcff"])
def test_a_damaged_manifest_says_so(finished: Path, content: str) -> None:
    (finished / MANIFEST).write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(ManifestError, match=r"manifest\.json is damaged .*sightline seal"):
        read_config(finished)


def test_a_run_without_a_manifest_is_warned_of_once_and_can_be_sealed(finished: Path) -> None:
    (finished / MANIFEST).unlink()
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        sightline.load(finished, device="cpu").predict(["1 January 2000"])
    told = [str(warning.message) for warning in shown if "manifest" in str(warning.message)]
    assert len(told) == 1 and told[0].endswith(f"seal it with: sightline seal {finished}")
    done = CliRunner().invoke(app, ["seal", str(finished)])
    assert done.exit_code == 0 and done.stdout.startswith(f"{finished}: sealed 6 files, ")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sightline.load(finished, device="cpu").predict(["1 January 2000"])


def test_a_change_on_purpose_is_accepted_and_named(finished: Path) -> None:
    text = (finished / "recipe.yaml").read_text()
    (finished / "recipe.yaml").write_text(text.replace("beam: 2", "beam: 3"))
    done = CliRunner().invoke(app, ["seal", str(finished)])
    assert done.stdout.splitlines()[1:] == ["  recipe.yaml changed; accepted"]
    assert sightline.load(finished, device="cpu").recipe.decoding.beam == 3


def test_seal_requires_a_run_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a run folder"):
        CliRunner().invoke(app, ["seal", str(tmp_path)], catch_exceptions=False)
    assert not list(tmp_path.iterdir())


def test_killed_at_any_write_leaves_a_usable_run(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """os.replace is what puts a file into its place: the power goes before each of them once."""
    from sightline import files

    recipe = write_recipe(tmp_path, limits={"steps": 2}, validate_every=1, save_every=1)
    sightline.train(recipe, out=tmp_path / "whole", display=Silent())
    expected = (tmp_path / "whole" / WEIGHTS).read_bytes()
    replace, number = files.os.replace, 0
    finished = False
    while not finished:
        number += 1
        left = number

        def counted(source: object, target: object) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise Killed
            replace(source, target)  # type: ignore[type-var]

        run = tmp_path / f"killed-{number}"
        monkeypatch.setattr(files.os, "replace", counted)
        try:
            sightline.train(recipe, out=run, display=Silent())
            finished = True
        except Killed:
            pass
        monkeypatch.setattr(files.os, "replace", replace)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sightline.train(recipe, out=run, resume=True, display=Silent())
        assert (run / WEIGHTS).read_bytes() == expected
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert sightline.load(run, device="cpu").predict(["1 January 2000"])
        shutil.rmtree(run)
    assert number > 10


def test_while_a_file_is_replaced_both_its_contents_are_valid(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sightline import files

    old, replace = (finished / WEIGHTS).read_bytes(), files.os.replace
    monkeypatch.setattr(files.os, "replace", lambda a, b: pull_the_plug() if Path(b).name == WEIGHTS else replace(a, b))
    with pytest.raises(Killed):
        replace_file(finished, WEIGHTS, old[:-1] + b"\x00")
    monkeypatch.setattr(files.os, "replace", replace)
    sightline.load(finished, device="cpu").predict(["1 January 2000"])
    replace_file(finished, WEIGHTS, old)
    assert entries(finished)[WEIGHTS] == checksum(finished / WEIGHTS)
    assert json.loads((finished / MANIFEST).read_text())["files"][WEIGHTS].keys() == {"sha256", "size"}


def test_a_writing_that_was_interrupted_is_a_warning(finished: Path) -> None:
    with pytest.raises(Killed), rewriting(finished):  # noqa: PT012
        (finished / "environment.json").write_text("{}")
        raise Killed
    with pytest.warns(UserWarning, match=r"environment\.json does not match manifest\.json, whose writing was"):
        read_config(finished)


def test_resuming_seals_no_damaged_weights(finished: Path) -> None:
    flip(finished / WEIGHTS, 8 * (finished / WEIGHTS).stat().st_size - 9)
    with pytest.raises(ManifestError, match=r"model\.safetensors"):
        sightline.load(finished, device="cpu").predict(["1 January 2000"])
    sightline.train(finished, resume=True, display=Silent())
    sightline.load(finished, device="cpu").predict(["1 January 2000"])  # written again from the checkpoint
