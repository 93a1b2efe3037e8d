"""Set-up shared by all figures: style, fonts, writing files, cutting labels.

matplotlib's global state (pyplot) is not used, and equal figures are equal files, byte for byte. Labels may be in any
script: matplotlib draws each character with the first font family of a list that has it.
"""

from __future__ import annotations

import io
import logging
import re
import textwrap
import unicodedata
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len  # East Asian characters are two columns wide, combining marks none

from sightline.files import check_writable, write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Style = Mapping[str, Any]  # matplotlib's rcParams
FORMATS = (".png", ".svg", ".pdf")
INK, GRID = "#1f2933", "#dfe4ea"
LARGEST = 40.0  # inches of width or height
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_DATED = {"png": "Software", "svg": "Date", "pdf": "CreationDate"}  # metadata with a version or a time
_FAMILIES = (  # in this order, if installed; matplotlib's own font first
    "DejaVu Sans",
    "Noto Sans",
    *("Noto Sans CJK JP", "Noto Sans CJK SC", "Noto Sans CJK KR", "Noto Sans JP", "Noto Sans SC", "Noto Sans KR"),
    *("WenQuanYi Zen Hei", "Source Han Sans", "Hiragino Sans", "PingFang SC", "Apple SD Gothic Neo"),
    *("Yu Gothic", "Microsoft YaHei", "Malgun Gothic"),
    *("Noto Naskh Arabic", "Noto Sans Arabic", "Noto Sans Hebrew", "Noto Sans Devanagari", "Noto Sans Bengali"),
    *("Noto Sans Tamil", "Noto Sans Thai", "Noto Sans Symbols2", "Noto Emoji", "Symbola", "Segoe UI Emoji"),
    "Arial Unicode MS",
)
_MISSING = re.compile(r"Glyph (\d+) .*missing from")
_MOST_NAMED = 12  # missing characters named in a warning
_EAST_ASIAN = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO", "IDEOGRAPHIC")
_REMEDIES = {
    "fonts-noto-cjk": "Chinese, Japanese, Korean: apt install fonts-noto-cjk",
    "fonts-symbola": "emoji and signs: apt install fonts-symbola (matplotlib draws outlines, no colour fonts)",
    "fonts-noto-core": "other scripts: apt install fonts-noto-core",
}
_JOINER = "\u200d"
_VIRAMA = 9  # combining class


# --- files ------------------------------------------------------------------------------------------------------------


def can_draw() -> bool:
    """Return True if matplotlib is installed."""
    return find_spec("matplotlib") is not None


def check_figure(path: Path) -> None:
    """Check format, matplotlib and folder before anything is computed."""
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"{path}: a figure is a {', '.join(FORMATS)} file; name it so")
    check_can_draw()
    check_writable(path)


def check_can_draw() -> None:
    """Refuse to draw without matplotlib."""
    if not can_draw():
        raise ModuleNotFoundError("pictures need matplotlib: pip install 'sightline[viz]'", name="matplotlib")


@contextmanager
def new_picture(
    path: Path | None, style: Style | None = None, *, dpi: int = 160, margin: float | None = 0.2, **shape: Any
) -> Iterator[Figure]:
    """A figure to draw into; at the end of the block it is written to `path`, if there is one."""
    check_can_draw() if path is None else check_figure(path)
    with drawing(style):
        figure = new_figure(facecolor="white", **shape)
        yield figure
        if path is not None:
            write_figure(figure, path, dpi=dpi, margin=margin)


def new_figure(**shape: Any) -> Figure:
    """An empty figure with its own canvas."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(**shape)
    FigureCanvasAgg(figure)
    return figure


def content_of(figure: Figure, form: str, *, dpi: int, margin: float | None = None) -> bytes:
    """The bytes of a figure's file; with a margin (inches) its size is fitted to what is drawn."""
    content = io.BytesIO()
    tight: dict[str, Any] = {} if margin is None else {"bbox_inches": "tight", "pad_inches": margin}
    figure.savefig(content, format=form, dpi=dpi, metadata={_DATED[form]: None}, **tight)
    return content.getvalue()


def write_figure(figure: Figure, path: Path, *, dpi: int = 160, margin: float | None = 0.2) -> None:
    """Write a .png, .svg or .pdf file atomically."""
    write_atomically(path, content_of(figure, path.suffix.lower()[1:], dpi=dpi, margin=margin))


# --- style ------------------------------------------------------------------------------------------------------------


@contextmanager
def drawing(style: Style | None = None) -> Iterator[None]:
    """Apply a style. Characters that no font has are drawn as boxes and reported once, with a remedy."""
    from matplotlib import rc_context

    settings: dict[Any, Any] = {
        "font.family": list(font_families()),
        "text.color": INK,
        "text.parse_math": False,  # dollar signs in labels do not start a formula
        "svg.hashsalt": "sightline",  # deterministic identifiers
        **(style or {}),
    }
    log = logging.getLogger("matplotlib.font_manager")
    log.addFilter(_not_about_weights)  # fallback fonts often have a single weight
    try:
        with rc_context(settings), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
    finally:
        log.removeFilter(_not_about_weights)
    _report(caught)


def around_curves(ink: str = INK, grid: str = GRID) -> dict[str, Any]:
    """A style for curves: a pale grid, and no top and right spines."""
    return {
        "text.color": ink,
        "axes.edgecolor": grid,
        "axes.labelcolor": ink,
        "axes.titlecolor": ink,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "grid.color": grid,
        "grid.linewidth": 0.7,
        "xtick.color": ink,
        "ytick.color": ink,
    }


def power_of_ten(value: float) -> str:
    """10⁷, 2·10⁷, 2.5·10⁻⁴, without a formula."""
    digits, exponent = f"{value:e}".split("e")
    raised = str(int(exponent)).translate(_RAISED)
    times = f"{float(digits):g}"
    return f"10{raised}" if times == "1" else f"{times}·10{raised}"


# --- fonts ------------------------------------------------------------------------------------------------------------


class MissingGlyphs(UserWarning):
    """Characters of a label that no installed font can draw."""


@cache
def font_families() -> tuple[str, ...]:
    """The families of the list that are installed."""
    from matplotlib.font_manager import fontManager

    installed = set(fontManager.get_font_names())
    return tuple(name for name in _FAMILIES if name in installed)


def font_for(text: str) -> str | None:
    """The first installed family of the list that has every character of `text`."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    for family in font_families():
        characters = get_font(findfont(FontProperties(family=[family]))).get_charmap()
        if all(ord(character) in characters for character in text):
            return family
    return None


def _not_about_weights(record: logging.LogRecord) -> bool:
    return "Failed to find font weight" not in record.getMessage()


def _report(caught: list[warnings.WarningMessage]) -> None:
    """Replace warnings about missing glyphs by a single one; pass on all others."""
    missing = set()
    for warning in caught:
        match = _MISSING.search(str(warning.message))
        if match:
            missing.add(chr(int(match[1])))
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    visible = {
        each
        for each in missing
        if unicodedata.category(each)[0] not in "CZ" and "VARIATION SELECTOR" not in unicodedata.name(each, "")
    }
    if visible:
        _warn_once(_missing_message(visible))


@cache
def _warn_once(message: str) -> None:
    """Once in a process: `catch_warnings` resets Python's own filter "once"."""
    warnings.warn(MissingGlyphs(message), stacklevel=4)


def _missing_message(missing: set[str]) -> str:
    shown = " ".join(sorted(missing)[:_MOST_NAMED])
    shown += f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
    remedies = "; ".join(_REMEDIES[package] for package in sorted({package_for(each) for each in missing}))
    return f"no installed font can draw {shown}: boxes are drawn instead ({remedies})"


def package_for(character: str) -> str:
    """The Debian package with a font for a character."""
    if unicodedata.name(character, "").startswith(_EAST_ASIAN):
        return "fonts-noto-cjk"
    return "fonts-symbola" if unicodedata.category(character) in ("So", "Sk", "Sm") else "fonts-noto-core"


# --- captions ---------------------------------------------------------------------------------------------------------


def breadth(caption: str) -> int:
    """Approximate width in columns: East Asian characters and emoji take two, marks and joiners none."""
    return sum(map(cell_len, caption))


def shortened(caption: str, most: int) -> str:
    """Cut to `most` columns between graphemes, the last column being "…"."""
    if breadth(caption) <= most:
        return caption
    parts = graphemes(caption)
    widths = accumulate(map(breadth, parts))
    return "".join(part for part, width in zip(parts, widths, strict=True) if width < most) + "…"


def heading_lines(heading: str, columns: int) -> str:
    """Wrap a heading into at most three lines, so that a long text leaves room for the figure."""
    lines = textwrap.wrap(heading, columns)
    return "\n".join(lines if len(lines) <= 3 else [*lines[:2], shortened(" ".join(lines[2:]), columns)])


def graphemes(caption: str) -> list[str]:
    """Split, approximately, into graphemes: a letter with its marks, a conjunct, joined emoji."""
    parts: list[str] = []
    for character in caption:
        joined = parts and (parts[-1].endswith(_JOINER) or unicodedata.combining(parts[-1][-1]) == _VIRAMA)
        if parts and (joined or cell_len(character) == 0):
            parts[-1] += character
        else:
            parts.append(character)
    return parts
