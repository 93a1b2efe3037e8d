"""Fonts and captions: what is drawn, and what is said of what cannot be."""

from __future__ import annotations

import logging
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from sightline.inspection.alignment import Alignment
from sightline.plots import figures
from sightline.plots.figures import MissingGlyphs, breadth, covers, drawing, fonts_for, package_for, shortened


@pytest.fixture
def plain_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which there is the font of matplotlib and no other."""
    from matplotlib.font_manager import fontManager

    own = [entry for entry in fontManager.ttflist if entry.name == "DejaVu Sans" and "matplotlib" in entry.fname]
    monkeypatch.setattr(fontManager, "ttflist", own)
    monkeypatch.setattr("matplotlib.font_manager.findSystemFonts", list)
    figures._tell.cache_clear()


@pytest.mark.usefixtures("plain_alone")
def test_characters_that_no_font_has_are_named_with_what_to_install() -> None:
    with pytest.warns(MissingGlyphs) as told:
        assert fonts_for("Hund 狗 कि 🐕 ❤️") == ["DejaVu Sans"]
    (said,) = (str(each.message) for each in told)
    assert all(character in said for character in ("狗", "क", "🐕"))
    assert "❤" not in said and "\ufe0f" not in said, "the plain font has the heart, and a selector is never drawn"
    assert all(package in said for package in ("fonts-noto-cjk", "fonts-noto-core", "fonts-symbola"))
    assert not covers("狗") and covers("Hund größer ❤️")


@pytest.mark.usefixtures("plain_alone")
def test_of_many_missing_characters_some_are_named_and_the_others_counted() -> None:
    with pytest.warns(MissingGlyphs, match=r"and 28 more: boxes"):
        fonts_for("".join(chr(0x4E00 + number) for number in range(40)))


def test_missing_characters_are_told_once_by_the_program_in_one_line(tmp_path: Path) -> None:
    script = (
        "from matplotlib.font_manager import fontManager\n"
        "import matplotlib.font_manager as manager, sys\n"
        "fontManager.ttflist = [e for e in fontManager.ttflist if e.name == 'DejaVu Sans']\n"
        "manager.findSystemFonts = lambda: []\n"
        "from sightline.cli.errors import error_boundary\n"
        "from sightline.inspection.alignment import Alignment\n"
        "with error_boundary():\n"
        "    for number in range(3):\n"
        "        Alignment(['狗'], ['dog'], [[1.0]]).draw(sys.argv[1] + f'/{number}.png')\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("sightline: no installed font can draw 狗:"), done.stderr
    assert len(list(tmp_path.iterdir())) == 3


def test_a_font_installed_after_matplotlib_made_its_list_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.font_manager import FontEntry, fontManager

    own = [entry for entry in fontManager.ttflist if "matplotlib" in entry.fname]
    signs = next(
        entry for entry in own if entry.name == "STIXGeneral" and entry.style == "normal" and entry.weight == 400
    )
    monkeypatch.setattr(fontManager, "ttflist", [entry for entry in own if entry.name == "DejaVu Sans"])
    monkeypatch.setattr("matplotlib.font_manager.findSystemFonts", lambda: [signs.fname])
    private = sorted(figures._characters(signs.fname) - figures._characters(fontManager.ttflist[0].fname))
    drawn = next(character for character in private if figures._is_drawn(character))
    families = fonts_for("a" + drawn)
    assert families == ["DejaVu Sans", "STIXGeneral"]
    assert isinstance(fontManager.ttflist[-1], FontEntry) and fontManager.ttflist[-1].fname == signs.fname


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


def test_han_characters_are_drawn_as_the_letters_beside_them_are_read() -> None:
    assert figures._east_asian("狗跑")[0] == "Noto Sans CJK SC"
    assert figures._east_asian("犬が走る")[0] == "Noto Sans CJK JP"
    assert figures._east_asian("개 犬")[0] == "Noto Sans CJK KR"


@pytest.mark.parametrize(
    "tokens", [["Straße", "größer"], ["狗", "奔跑"], ["क्षत्रिय", "कि"], ["🐕", "👩‍👩‍👧", "🇩🇪", "❤️"]]
)
def test_matplotlib_says_nothing_where_fonts_cover_the_labels(tmp_path: Path, tokens: list[str]) -> None:
    if not covers("".join(tokens)):
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
