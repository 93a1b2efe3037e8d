"""Figures: files, fonts, captions, colours."""

from __future__ import annotations

import io
import logging
import re
import sys
import warnings
from itertools import pairwise
from pathlib import Path
from xml.dom.minidom import parseString

import numpy as np
import pytest
from PIL import Image

from sightline.inspection.alignment import Alignment
from sightline.inspection.formulas import mathml
from sightline.inspection.views import Subject, beam_view, heads_view
from sightline.plots import figures
from sightline.plots.figures import (
    FORMATS,
    MissingGlyphs,
    around_curves,
    breadth,
    check_figure,
    drawing,
    font_for,
    heading_lines,
    new_figure,
    package_for,
    power_of_ten,
    shortened,
    write_figure,
)
from sightline.plots.matrices import LEVELS, HeatMap, Scale, palette
from untrained_runs import untrained


def test_a_figure_is_refused_by_its_name_before_it_is_drawn() -> None:
    with pytest.raises(ValueError, match=r"a\.gif: a figure is a \.png, \.svg, \.pdf file; name it so"):
        check_figure(Path("a.gif"))


def test_missing_matplotlib_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'sightline\[viz\]'"):
        check_figure(Path("a.png"))


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("margin", [None, 0.2])
def test_figures_are_reproducible(suffix: str, margin: float | None, tmp_path: Path) -> None:
    for name in ("one", "other"):
        with drawing({**around_curves(), "font.size": 9}):
            figure = new_figure(figsize=(2.0, 1.0))
            figure.subplots().plot([1, 2, 3], label="$a$b$")
            write_figure(figure, tmp_path / f"{name}{suffix}", margin=margin)
    one, other = ((tmp_path / f"{name}{suffix}").read_bytes() for name in ("one", "other"))
    assert one == other
    assert one[:5] in (b"\x89PNG\r", b"<?xml", b"%PDF-")


def test_powers_of_ten_use_superscripts() -> None:
    assert [power_of_ten(value) for value in (1e7, 2e7, 2.5e15, 3e-4, 1.0)] == [
        "10⁷",
        "2·10⁷",
        "2.5·10¹⁵",
        "3·10⁻⁴",
        "10⁰",
    ]


@pytest.fixture
def plain_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the font of matplotlib is installed."""
    monkeypatch.setattr(figures, "font_families", lambda: ("DejaVu Sans",))
    figures._warn_once.cache_clear()


def label(tokens: list[str], path: Path) -> None:
    Alignment(tokens, ["a"], np.ones((1, len(tokens)), np.float32)).draw(path)


@pytest.mark.usefixtures("plain_alone")
@pytest.mark.parametrize("form", ["png", "svg"])
def test_missing_glyphs_name_font_packages(tmp_path: Path, form: str) -> None:
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
def test_many_missing_glyphs_are_counted(tmp_path: Path) -> None:
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
def test_covered_labels_raise_no_warnings(tmp_path: Path, tokens: list[str]) -> None:
    if font_for("".join(tokens)) is None:
        pytest.skip(f"no installed font can draw {' '.join(tokens)}: see `sightline doctor`")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Alignment(tokens, tokens, np.eye(len(tokens), dtype=np.float32)).draw(tmp_path / "a.png", title=tokens[0])
    assert (tmp_path / "a.png").stat().st_size > 1_000


def test_missing_font_weight_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
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
def test_breadth_of_captions(caption: str, columns: int) -> None:
    assert breadth(caption) == columns


@pytest.mark.parametrize(
    ("caption", "most", "cut"),
    [
        ("Fußgängerzone", 8, "Fußgäng…"),
        ("在草地上奔跑", 7, "在草地…"),
        ("Hund", 4, "Hund"),
        ("ab👩‍👩‍👧cd", 5, "ab…"),  # a family emoji is one cluster
        ("e\u0301e\u0301e\u0301", 2, "e\u0301…"),
        ("कक्षत्रिय", 3, "क…"),  # so is क्ष
    ],
)
def test_a_caption_is_cut_by_columns_and_between_signs(caption: str, most: int, cut: str) -> None:
    assert shortened(caption, most) == cut
    assert breadth(cut) <= most


def test_a_heading_has_three_lines_at_most() -> None:
    assert heading_lines("one two three", 7) == "one two\nthree"
    assert heading_lines(" ".join(["word"] * 300), 40).count("\n") == 2
    assert heading_lines(" ".join(["word"] * 300), 40).endswith("…")


@pytest.mark.parametrize("view", [heads_view, beam_view], ids=["heads", "beam"])
def test_the_heading_of_a_long_text_has_three_lines_at_most(tmp_path: Path, view: str) -> None:
    text = "Zwei Männer " * 90 + "Schach"
    view(Subject(untrained("recurrent"), text)).picture(tmp_path / "a.svg")
    drawn = (tmp_path / "a.svg").read_text(encoding="utf-8")
    heading = [line for line in re.findall("<!-- (.*?) -->", drawn) if "Zwei Männer Zwei" in line]
    assert 1 <= len(heading) <= 3  # however wide the picture is


def pixels(png: bytes) -> tuple[list[tuple[int, ...]], np.ndarray]:
    """(palette, indices)."""
    image = Image.open(io.BytesIO(png))
    assert image.mode == "P"
    flat = image.getpalette() or []
    return [tuple(flat[k : k + 3]) for k in range(0, len(flat), 3)], np.asarray(image)


def test_a_picture_has_one_pixel_a_number_from_pale_to_deep() -> None:
    shown = HeatMap.of(np.array([[0.0, 0.5, 1.0], [-np.inf, np.nan, 0.25]]))
    colours, indices = pixels(shown.png())
    assert indices.shape == (2, 3)
    lightness = [sum(colours[level]) for level in indices[[0, 1, 0, 0], [0, 2, 1, 2]]]
    assert lightness == sorted(lightness, reverse=True)


def test_signed_scale_darkens_away_from_zero() -> None:
    colours = [sum(colour) for colour in palette(True)[:LEVELS]]
    middle = LEVELS // 2
    assert all(before <= after for before, after in pairwise(colours[:middle]))
    assert all(before >= after for before, after in pairwise(colours[middle:]))
    assert Scale.of(np.array([[-3.0, 1.0]])) == Scale(-3.0, 3.0)
    assert Scale.of(np.array([[0.2, 1.0]])) == Scale(0.0, 1.0)
    assert Scale.of(np.full((1, 2), -np.inf)) == Scale(0.0, 1.0)


def test_a_large_matrix_keeps_the_largest_of_each_block_and_says_so() -> None:
    values = np.zeros((5, 4))
    values[4, 3], values[0, 1], values[2, 2] = 0.7, -0.9, 0.3
    shown, note = HeatMap.of(values, list("abcde"), list("wxyz")).within(2)
    assert shown.values.tolist() == [[-0.9, 0.3], [0.0, 0.7]]
    assert (shown.rows, shown.columns) == (["a … c", "d … e"], ["w … x", "y … z"])
    assert note == "sampled: each cell is the largest of 3×2, of 5×4 in all"
    whole = HeatMap.of(values)
    assert whole.within(5) == (whole, "")


def test_too_many_names_become_numbers() -> None:
    shown = HeatMap.of(np.zeros((2, 3)), ["a"], ["x", "y", "z"])
    assert (shown.rows, shown.columns) == (["0", "1"], ["x", "y", "z"])


@pytest.mark.parametrize(
    ("formula", "part"),
    [
        ("Q Kᵀ / √d_k + bias", "<msqrt><mrow><msub><mi>d</mi>"),
        ("h_t−1", "<msub><mi>h</mi><mrow><mi>t</mi>"),
        ("x W_kᵀ", "<msubsup><mi>W</mi>"),
        ("mean of the losses", "<mtext>mean"),
        ("a < b & c", "&lt;"),
        ("(never closed", "<mtext>never"),
    ],
)
def test_formulas_become_mathml(formula: str, part: str) -> None:
    element = mathml(formula)
    parseString(element)
    assert part in element


def test_empty_formula_has_no_mathml() -> None:
    assert mathml("") == ""
