"""Figures and the files they become: what every figure has in common, whatever is drawn in it.

matplotlib's global state (pyplot) is never touched, and the same figure is the same file, byte for byte. Labels may be
in any script: matplotlib takes each character from the first font family of a list that has it.
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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.files import check_writable, write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Style = Mapping[str, Any]  # of matplotlib: its name for a setting → its value
FORMATS = (".png", ".svg", ".pdf")
INK, GRID = "#1f2933", "#dfe4ea"
LARGEST = 40.0  # inches, either way
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_DATED = {"png": "Software", "svg": "Date", "pdf": "CreationDate"}  # where matplotlib writes its version or the time
_FAMILIES = (  # matplotlib's own font first; then, of those that are installed, the first that has a character
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
_NAMED = 12  # missing characters that are named; of more, how many there are
_EAST_ASIAN = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO", "IDEOGRAPHIC")
_REMEDIES = {
    "fonts-noto-cjk": "Chinese, Japanese, Korean: apt install fonts-noto-cjk",
    "fonts-symbola": "emoji and signs: apt install fonts-symbola (matplotlib draws outlines, no colour fonts)",
    "fonts-noto-core": "other scripts: apt install fonts-noto-core",
}
_JOINER = "\u200d"


# --- files ------------------------------------------------------------------------------------------------------------


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def check_figure(path: Path) -> None:
    """Refuse a figure that could not be drawn, before there is anything to draw."""
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
    path: Path, style: Style | None = None, *, dpi: int = 160, margin: float | None = 0.2, **shape: Any
) -> Iterator[Figure]:
    """A figure to draw into; when the block ends, its file is written."""
    check_figure(path)
    with drawing(style):
        figure = new_figure(facecolor="white", **shape)
        yield figure
        write_figure(figure, path, dpi=dpi, margin=margin)


def new_figure(**shape: Any) -> Figure:
    """An empty figure with a canvas of its own."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(**shape)
    FigureCanvasAgg(figure)
    return figure


def content_of(figure: Figure, form: str, *, dpi: int, margin: float | None = None) -> bytes:
    """A figure as a file's content; with a margin (inches) it is cut, or grows, to just what is drawn."""
    content = io.BytesIO()
    tight: dict[str, Any] = {} if margin is None else {"bbox_inches": "tight", "pad_inches": margin}
    figure.savefig(content, format=form, dpi=dpi, metadata={_DATED[form]: None}, **tight)
    return content.getvalue()


def write_figure(figure: Figure, path: Path, *, dpi: int = 160, margin: float | None = 0.2) -> None:
    """Write the file in one piece; its suffix chooses the format."""
    write_atomically(path, content_of(figure, path.suffix.lower()[1:], dpi=dpi, margin=margin))


# --- style ------------------------------------------------------------------------------------------------------------


@contextmanager
def drawing(style: Style | None = None) -> Iterator[None]:
    """Draw in a style. Characters that no font has are reported once, with what to install; a box is drawn for them."""
    from matplotlib import rc_context

    settings: dict[Any, Any] = {
        "font.family": list(font_families()),
        "text.color": INK,
        "text.parse_math": False,  # a label with two dollar signs is no formula
        "svg.hashsalt": "sightline",  # the same figure, the same file
        **(style or {}),
    }
    log = logging.getLogger("matplotlib.font_manager")
    log.addFilter(_not_about_weights)  # a fallback font often has one weight alone; that is drawn
    try:
        with rc_context(settings), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
    finally:
        log.removeFilter(_not_about_weights)
    _report(caught)


def around_curves(ink: str = INK, grid: str = GRID) -> dict[str, Any]:
    """A style for curves: a pale grid behind them, and no box around them."""
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
    """10⁷, 2·10⁷, 2.5·10⁻⁴: without a formula, which labels are not read as."""
    digits, exponent = f"{value:e}".split("e")
    raised = str(int(exponent)).translate(_RAISED)
    times = f"{float(digits):g}"
    return f"10{raised}" if times == "1" else f"{times}·10{raised}"


# --- fonts ------------------------------------------------------------------------------------------------------------


class MissingGlyphs(UserWarning):
    """Characters of a label that no installed font can draw."""


@cache
def font_families() -> tuple[str, ...]:
    """The installed families of the list."""
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
    """Report the characters that matplotlib could not draw in one warning, and other warnings as they were."""
    missing = set()
    for warning in caught:
        match = _MISSING.search(str(warning.message))
        if match:
            missing.add(chr(int(match[1])))
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    drawn = {each for each in missing if unicodedata.category(each)[0] not in "CZ" and not _is_selector(each)}
    if drawn:
        _warn_once(_missing_message(drawn))


def _is_selector(character: str) -> bool:
    """Selectors say in which of its forms the character before is drawn."""
    return "VARIATION SELECTOR" in unicodedata.name(character, "")


@cache
def _warn_once(message: str) -> None:
    """Once in a process: Python's own "once" is forgotten with every `catch_warnings`."""
    warnings.warn(MissingGlyphs(message), stacklevel=4)


def _missing_message(missing: set[str]) -> str:
    shown = " ".join(sorted(missing)[:_NAMED]) + (f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else "")
    remedies = "; ".join(_REMEDIES[package] for package in sorted({package_for(each) for each in missing}))
    return f"no installed font can draw {shown}: boxes stand in the picture instead ({remedies})"


def package_for(character: str) -> str:
    """The Debian package with a font for a character that is missing."""
    if unicodedata.name(character, "").startswith(_EAST_ASIAN):
        return "fonts-noto-cjk"
    return "fonts-symbola" if unicodedata.category(character) in ("So", "Sk", "Sm") else "fonts-noto-core"


# --- captions ---------------------------------------------------------------------------------------------------------


def breadth(caption: str) -> int:
    """Width in columns, near enough: East Asian characters and emoji are two wide, marks and joiners none."""
    return sum(_columns(character) for character in caption)


def shortened(caption: str, most: int) -> str:
    """At most so many columns, the last one "…" where something is cut; what is drawn as one sign is not cut in two."""
    if breadth(caption) <= most:
        return caption
    room = most - 1
    kept = ""
    for sign in _signs(caption):
        room -= breadth(sign)
        if room < 0:
            break
        kept += sign
    return kept + "…"


def heading_lines(heading: str, columns: int) -> str:
    """A heading in lines of so many columns, three at most: a long text would leave no room for its picture."""
    lines = textwrap.wrap(heading, columns)
    return "\n".join(lines if len(lines) <= 3 else [*lines[:2], shortened(" ".join(lines[2:]), columns)])


def _columns(character: str) -> int:
    if unicodedata.category(character)[0] == "M" or unicodedata.category(character) == "Cf":
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _signs(caption: str) -> list[str]:
    """Split into what is drawn together, near enough: a letter and its marks, a conjunct, emoji that are joined."""
    signs: list[str] = []
    for character in caption:
        joined = bool(signs) and (signs[-1].endswith(_JOINER) or unicodedata.combining(signs[-1][-1]) == 9)
        if signs and (joined or _columns(character) == 0):
            signs[-1] += character
        else:
            signs.append(character)
    return signs
