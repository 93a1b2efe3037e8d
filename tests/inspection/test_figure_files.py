"""What all pictures have in common: formats, what is missing, the same file each time, nothing left behind."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sightline.plots.figures import (
    FORMATS,
    around_curves,
    check_figure,
    drawing,
    new_figure,
    power_of_ten,
    write_figure,
)


def test_a_figure_is_refused_by_its_name_before_it_is_drawn() -> None:
    with pytest.raises(ValueError, match=r"a\.gif: a figure is a \.png, \.svg, \.pdf file; name it so"):
        check_figure(Path("a.gif"))


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'sightline\[viz\]'"):
        check_figure(Path("a.png"))


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("margin", [None, 0.2])
def test_the_same_picture_is_the_same_file(suffix: str, margin: float | None, tmp_path: Path) -> None:
    for name in ("one", "other"):
        with drawing({**around_curves(), "font.size": 9}):
            figure = new_figure(figsize=(2.0, 1.0))
            figure.subplots().plot([1, 2, 3], label="$a$b$")
            write_figure(figure, tmp_path / f"{name}{suffix}", margin=margin)
    one, other = ((tmp_path / f"{name}{suffix}").read_bytes() for name in ("one", "other"))
    assert one == other
    assert one[:5] in (b"\x89PNG\r", b"<?xml", b"%PDF-")


def test_powers_of_ten_are_spelt_without_formulas() -> None:
    assert [power_of_ten(value) for value in (1e7, 2e7, 2.5e15, 3e-4, 1.0)] == [
        "10⁷",
        "2·10⁷",
        "2.5·10¹⁵",
        "3·10⁻⁴",
        "10⁰",
    ]
