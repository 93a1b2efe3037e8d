"""Fonts and captions: what is drawn, and what is said of what cannot be."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from sightline.inspection.alignment import Alignment
from sightline.plots import figures
from sightline.plots.figures import MissingGlyphs, breadth, drawing, font_for, package_for, shortened


@pytest.fixture
def plain_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which there is the font of matplotlib and no other."""
    monkeypatch.setattr(figures, "font_families", lambda: ("DejaVu Sans",))
    figures._warn_once.cache_clear()


def label(tokens: list[str], path: Path) -> None:
    Alignment(tokens, ["a"], np.ones((1, len(tokens)), np.float32)).draw(path)


@pytest.mark.usefixtures("plain_alone")
@pytest.mark.parametrize("form", ["png", "svg"])
def test_characters_that_no_font_has_are_named_with_what_to_install(tmp_path: Path, form: str) -> None:
    with pytest.warns(MissingGlyphs) as caught:
        label(["Hund", "狗", "कि", "🐕", "❤️"], tmp_path / f"a.{form}")
    (message,) = (str(each.message) for each in caught)
    assert all(character in message for character in ("狗", "क", "🐕"))
    assert "❤" not in message and "\ufe0f" not in message, "the plain font has the heart; selectors are never drawn"
    assert all(package in message for package in ("fonts-noto-cjk", "fonts-noto-core", "fonts-symbola"))
    assert font_for("狗") is None and font_for("größer ❤") == "DejaVu Sans"
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # reported once in a process
        label(["Hund", "狗", "कि", "🐕", "❤️"], tmp_path / f"b.{form}")


@pytest.mark.usefixtures("plain_alone")
def test_of_many_missing_characters_some_are_named_and_the_others_counted(tmp_path: Path) -> None:
    with pytest.warns(MissingGlyphs, match=r"and 28 more: boxes"):
        label([chr(0x4E00 + number) for number in range(40)], tmp_path / "a.png")


@pytest.mark.parametrize(
    ("character", "package"),
    [
        ("狗", "fonts-noto-cjk"),
        ("ひ", "fonts-noto-cjk"),
        ("한", "fonts-noto-cjk"),
        ("🐕", "fonts-symbola"),
        ("क", "fonts-noto-core"),
        ("ม", "fonts-noto-core"),
    ],
)
def test_a_missing_character_leads_to_a_package(character: str, package: str) -> None:
    assert package_for(character) == package


@pytest.mark.parametrize(
    "tokens", [["Straße", "größer"], ["狗", "奔跑"], ["क्षत्रिय", "कि"], ["🐕", "👩‍👩‍👧", "🇩🇪", "❤️"]]
)
def test_matplotlib_says_nothing_where_fonts_cover_the_labels(tmp_path: Path, tokens: list[str]) -> None:
    if font_for("".join(tokens)) is None:
        pytest.skip(f"no installed font can draw {' '.join(tokens)}: see `sightline doctor`")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Alignment(tokens, tokens, np.eye(len(tokens), dtype=np.float32)).draw(tmp_path / "a.png", title=tokens[0])
    assert (tmp_path / "a.png").stat().st_size > 1_000


def test_a_weight_that_a_fallback_font_lacks_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("matplotlib.font_manager")
    with caplog.at_level(logging.WARNING, log.name):
        with drawing({}):
            log.warning("findfont: Failed to find font weight %s for %s, now using %s.", "bold", "Symbola", 400)
            log.warning("findfont: something else")
        log.warning("findfont: Failed to find font weight bold for Symbola, now using 400.")
    assert [record.getMessage()[:30] for record in caplog.records] == [
        "findfont: something else",
        "findfont: Failed to find font ",
    ]


@pytest.mark.parametrize(
    ("caption", "columns"), [("Hund", 4), ("狗跑", 4), ("कि", 1), ("क्षत्रिय", 5), ("🐕", 2), ("e\u0301", 1)]
)
def test_breadth_counts_what_is_drawn(caption: str, columns: int) -> None:
    assert breadth(caption) == columns


@pytest.mark.parametrize(
    ("caption", "most", "cut"),
    [
        ("Fußgängerzone", 8, "Fußgäng…"),
        ("在草地上奔跑", 7, "在草地…"),
        ("Hund", 4, "Hund"),
        ("ab👩‍👩‍👧cd", 5, "ab…"),  # a family is not torn apart
        ("e\u0301e\u0301e\u0301", 2, "e\u0301…"),
        ("कक्षत्रिय", 3, "क…"),  # neither is क्ष
    ],
)
def test_a_caption_is_cut_by_columns_and_between_signs(caption: str, most: int, cut: str) -> None:
    assert shortened(caption, most) == cut
    assert breadth(cut) <= most
