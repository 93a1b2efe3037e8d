"""`sightline doctor` reports versions, devices, folders and missing features, and survives checks that fail."""

from __future__ import annotations

import importlib.util
import io
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from rich.console import Console

from sightline.cli import doctor
from sightline.cli.doctor import Finding, report
from sightline.layers import kernels

TORCH = Finding("torch", "2.13.0", group="torch")
MISSING = Finding("x", "no", "missing", "pip install 'a[b]'", "features")


def finding(name: str) -> Finding:
    return next(each for each in report() if each.name == name)


def hide(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == module else find(name))


def test_report_of_this_machine() -> None:
    findings = report()
    assert {each.group for each in findings} == {"software", "hardware", "torch", "folders", "features"}
    assert not [each for each in findings if each.state == "broken" or each.name == "check"]
    assert all(each.value for each in findings)
    assert all(each.remedy for each in findings if each.state == "missing")


@pytest.mark.parametrize(
    ("version", "state"), [("2.10.1", "broken"), ("2.11.0", "ok"), ("2.13.0+cpu", "ok"), ("2.14.0.dev1", "note")]
)
def test_torch_versions(version: str, state: str) -> None:
    assert doctor._torch_version(version).state == state


def test_a_missing_package_names_its_feature(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "matplotlib")
    assert finding("matplotlib").state == "missing"
    assert finding("matplotlib").remedy == "pictures: pip install 'sightline[viz]'"


def test_missing_torch_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "torch")
    assert finding("torch").state == "broken"


def test_packages_are_those_of_pyproject() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    dependencies = {re.split(r"[<>=]", requirement)[0] for requirement in project["dependencies"]}
    assert {*doctor._REQUIRED, "torch"} == dependencies
    extras = set(re.findall(r"sightline\[(\w+)\]", str(doctor._OPTIONAL)))
    assert extras and extras <= set(project["optional-dependencies"])


def test_folders_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SIGHTLINE_CORPORA", str(tmp_path / "none"))
    assert finding("corpora").state == "missing"
    monkeypatch.setenv("SIGHTLINE_CORPORA", str(tmp_path))
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "file").write_bytes(b"x" * 2048)
    assert finding("corpora") == Finding("corpora", str(tmp_path), group="folders")
    assert f"{tmp_path / 'cache'} (2 KiB used" in finding("cache").value
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SIGHTLINE_CACHE", "~/cache")
    assert f"{tmp_path / 'cache'} (2 KiB used" in finding("cache").value


def test_a_failing_check_is_reported_and_the_others_still_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> str:
        raise RuntimeError("no CPU")

    monkeypatch.setattr(doctor, "_cpu_model", fail)
    assert finding("check").value == "RuntimeError: no CPU"
    assert finding("torch").state == "ok"


@pytest.mark.parametrize("installed", [True, False])
def test_cuda_devices_and_triton(installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    device = SimpleNamespace(name="a GPU", total_memory=2**30, major=9, minor=0)
    cuda = SimpleNamespace(
        is_available=lambda: True,
        device_count=lambda: 1,
        current_device=lambda: 0,
        is_bf16_supported=lambda: True,
        get_device_properties=lambda index: device,
    )
    monkeypatch.setattr(kernels, "TRITON", installed)
    first, triton = doctor._devices(SimpleNamespace(cuda=cuda))
    assert first.name == "cuda:0" and "a GPU" in first.value
    assert (triton.name, triton.state, bool(triton.remedy)) == (
        "Triton",
        "ok" if installed else "missing",
        not installed,
    )


def test_output_that_is_not_a_terminal_is_tab_separated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "report", lambda: [TORCH, MISSING])
    doctor.doctor()
    assert capsys.readouterr().out == "torch\tok\ttorch\t2.13.0\nfeatures\tmissing\tx\tno (pip install 'a[b]')\n"


def test_a_broken_finding_makes_the_exit_code_one(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Finding("torch", "not installed", "broken", "pip install torch", "torch")
    monkeypatch.setattr(doctor, "report", lambda: [broken])
    with pytest.raises(typer.Exit) as error:
        doctor.doctor()
    assert error.value.exit_code == 1


def test_the_table_shows_brackets_as_written() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(doctor._table([TORCH, MISSING]))
    assert "pip install 'a[b]'" in console.export_text()
