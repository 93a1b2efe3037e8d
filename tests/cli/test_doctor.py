"""The doctor: tells what is there, what is missing and for what, and never falls ill itself."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from sightline.cli import doctor
from sightline.cli.doctor import Finding, report
from sightline.layers import kernels


def found(name: str) -> Finding:
    return next(finding for finding in report() if finding.name == name)


def test_this_machine_is_fit_and_every_finding_says_something() -> None:
    findings = report()
    assert {finding.group for finding in findings} == {"software", "hardware", "torch", "folders", "features"}
    assert not [finding for finding in findings if finding.state == "broken"]
    assert all(finding.value for finding in findings)
    assert all(finding.remedy for finding in findings if finding.state in ("missing", "broken"))


def test_no_check_fails_on_this_machine() -> None:
    assert not [finding for finding in report() if finding.name == "check"]


@pytest.mark.parametrize(
    ("version", "state"), [("2.10.1", "broken"), ("2.11.0", "ok"), ("2.13.0+cpu", "ok"), ("2.14.0.dev1", "note")]
)
def test_torch_is_compared_with_the_range_that_is_tested(version: str, state: str) -> None:
    assert doctor._torch_version(version).state == state


def test_a_missing_package_names_the_feature_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name))
    assert found("matplotlib").state == "missing"
    assert found("matplotlib").remedy == "pictures: pip install 'sightline[viz]'"


def test_what_it_asks_for_is_what_the_package_needs_and_offers() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    needed = {re.split(r"[<>=]", requirement)[0] for requirement in project["dependencies"]}
    assert {*doctor._REQUIRED, "torch"} == needed
    extras = set(re.findall(r"sightline\[(\w+)\]", str(doctor._OPTIONAL)))
    assert extras and extras <= set(project["optional-dependencies"])


def test_torch_that_is_not_installed_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else find(name))
    assert found("torch").state == "broken"


def test_folders_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SIGHTLINE_CORPORA", str(tmp_path / "none"))
    assert found("corpora").state == "missing"
    monkeypatch.setenv("SIGHTLINE_CORPORA", str(tmp_path))
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "file").write_bytes(b"x" * 2048)
    assert found("corpora") == Finding("folders", "corpora", str(tmp_path))
    assert f"{tmp_path / 'cache'} (2 KiB used" in found("cache").value
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SIGHTLINE_CACHE", "~/cache")  # as the store reads it
    assert f"{tmp_path / 'cache'} (2 KiB used" in found("cache").value


def test_a_check_that_fails_is_reported_and_the_others_still_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def fall_ill() -> str:
        raise RuntimeError("no CPU")

    monkeypatch.setattr(doctor, "_cpu_model", fall_ill)
    assert found("check").value == "RuntimeError: no CPU"
    assert found("torch").state == "ok"


@pytest.mark.parametrize("there", [True, False])
def test_on_cuda_it_tells_whether_our_kernels_run(there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    device = SimpleNamespace(name="a GPU", total_memory=2**30, major=9, minor=0)
    cuda = SimpleNamespace(
        is_available=lambda: True,
        device_count=lambda: 1,
        current_device=lambda: 0,
        is_bf16_supported=lambda: True,
        get_device_properties=lambda index: device,
    )
    monkeypatch.setattr(kernels, "TRITON", there)
    first, triton = doctor._devices(SimpleNamespace(cuda=cuda))
    assert first.name == "cuda:0" and "a GPU" in first.value
    assert triton.group == first.group
    assert (triton.name, triton.state, bool(triton.remedy)) == ("Triton", "ok" if there else "missing", not there)
