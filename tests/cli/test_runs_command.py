"""`sightline runs`: list and show runs, and the errors of seal, average and merge."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sightline.cli.app import app


def runs(*arguments: str | Path, code: int = 0) -> str:
    """Standard output of the command, or the message of its error."""
    result = CliRunner().invoke(app, ["runs", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else str(result.exception)


def test_list_shows_task_model_size_and_state(tasks: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(tasks["lm-gru"], tmp_path / "a")
    shutil.copytree(tasks["lm-gru"], tmp_path / "b")
    (tmp_path / "b" / "model.safetensors").unlink()
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "recipe.yaml").write_text("task: [\n")
    first, second, third = runs("list", tmp_path).splitlines()
    assert first.startswith(f"{tmp_path / 'a'}  language-model, gru decoder, ") and first.endswith(" parameters")
    assert second.endswith(", not finished")
    assert third.startswith(f"{tmp_path / 'c'}  unreadable: ")


def test_show_prints_the_model_card(tasks: dict[str, Path]) -> None:
    assert runs("show", tasks["lm-gru"]) == (tasks["lm-gru"] / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("list nothing", "nothing contains no runs; name another folder, or train one: sightline train dates"),
        ("show nothing", "nothing"),
        ("seal nothing", "nothing"),
        ("average nothing --out mean", "nothing"),
        ("average nothing --out mean --count 0", "--count 0: give 1 or more"),
        ("merge nothing --out merged", "nothing"),
        ("merge RUN --out merged", "RUN has no adapters"),
    ],
)
def test_wording_of_errors(
    tasks: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tasks["lm-gru"], "RUN")
    assert message in runs(*arguments.split(), code=1)
    assert [path.name for path in tmp_path.iterdir()] == ["RUN"]
