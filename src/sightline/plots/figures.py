"""Figures and the files they become: what every picture has in common, whatever is drawn in it.

matplotlib's global state (pyplot) is never touched, and the same picture is the same file, byte for byte.
"""

from __future__ import annotations

import io
import logging
import textwrap
import unicodedata
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.files import check_place, write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Style = Mapping[str, Any]  # of matplotlib: its name for a setting → what it is set to
FORMATS = (".png", ".svg", ".pdf")
INK, GRID = "#1f2933", "#dfe4ea"
LARGEST = 40.0  # inches, either way
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_DATED = {"png": "Software", "svg": "Date", "pdf": "CreationDate"}  # what matplotlib writes of its version, or the time


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def check_figure(path: Path) -> None:
    """Refuse a figure that could not be drawn, before there is anything to draw."""
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"{path}: a figure is a {', '.join(FORMATS)} file; name it so")
    check_can_draw()
    check_place(path)


def check_can_draw() -> None:
    """Refuse to draw without matplotlib."""
    if not can_draw():
        raise ModuleNotFoundError("pictures need matplotlib: pip install 'sightline[viz]'", name="matplotlib")


def plain_style(fonts: list[str], more: Style | None = None) -> dict[Any, Any]:
    """What is told to matplotlib of every picture."""
    return {
        "font.family": fonts,
        "text.color": INK,
        "text.parse_math": False,  # a label with two dollar signs is no formula
        "svg.hashsalt": "sightline",  # the same picture, the same file
        **(more or {}),
    }


def chart_style(fonts: list[str], more: Style | None = None, *, ink: str = INK, grid: str = GRID) -> dict[Any, Any]:
    """The same for curves."""
    return plain_style(fonts, {**around_curves(ink, grid), **(more or {})})


def around_curves(ink: str = INK, grid: str = GRID) -> Style:
    """A pale grid behind them, and no box around them."""
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


@contextmanager
def new_picture(
    path: Path, text: str, style: Style | None = None, *, dpi: int = 160, margin: float | None = 0.2, **shape: Any
) -> Iterator[Figure]:
    """A figure to draw into, with fonts for the characters of `text`; when the block ends, its file is written."""
    check_figure(path)
    with drawing(plain_style(fonts_for(text), style)):
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


def power_of_ten(value: float) -> str:
    """10⁷, 2·10⁷, 2.5·10⁻⁴: without a formula, which labels are not read as."""
    digits, exponent = f"{value:e}".split("e")
    raised = str(int(exponent)).translate(_RAISED)
    times = f"{float(digits):g}"
    return f"10{raised}" if times == "1" else f"{times}·10{raised}"


def content_of(figure: Figure, form: str, *, dpi: int, margin: float | None = None) -> bytes:
    """A figure as a file's content; with a margin (inches) it is cut, or grows, to just what is drawn."""
    content = io.BytesIO()
    tight: dict[str, Any] = {} if margin is None else {"bbox_inches": "tight", "pad_inches": margin}
    figure.savefig(content, format=form, dpi=dpi, metadata={_DATED[form]: None}, **tight)
    return content.getvalue()


def write_figure(figure: Figure, path: Path, *, dpi: int = 160, margin: float | None = 0.2) -> None:
    """Write the file in one piece; its suffix chooses the format."""
    write_atomically(path, content_of(figure, path.suffix.lower()[1:], dpi=dpi, margin=margin))


_PLAIN = "DejaVu Sans"  # comes with matplotlib
_JAPANESE = ("Noto Sans CJK JP", "Noto Sans JP", "Source Han Sans", "Hiragino Sans", "Yu Gothic")
_KOREAN = ("Noto Sans CJK KR", "Noto Sans KR", "Source Han Sans K", "Apple SD Gothic Neo", "Malgun Gothic")
_CHINESE = ("Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "PingFang SC", "Microsoft YaHei")
_GOOD_FONTS = (  # tried first, in this order, where the plain one lacks a character
    "Noto Sans",
    "WenQuanYi Zen Hei",
    "Noto Naskh Arabic",
    "Noto Sans Arabic",
    "Noto Sans Hebrew",
    "Noto Sans Devanagari",
    "Noto Sans Thai",
    "Noto Emoji",
    "Symbola",
    "Segoe UI Emoji",
    "Arial Unicode MS",
)
_NAMED = 12  # missing characters that are named; of more, how many there are
_EAST_ASIAN = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO", "IDEOGRAPHIC")
_REMEDIES = {
    "fonts-noto-cjk": "Chinese, Japanese, Korean: apt install fonts-noto-cjk",
    "fonts-symbola": "emoji and signs: apt install fonts-symbola (matplotlib draws outlines, no colour fonts)",
    "fonts-noto-core": "other scripts: apt install fonts-noto-core",
}


class MissingGlyphs(UserWarning):
    """Characters of a label that no installed font can draw."""


def fonts_for(text: str) -> list[str]:
    """Installed font families that have the characters of `text` between them, the plain one first.

    Where none has a character, that is said (once for the same characters), with what to install: a box is drawn then.
    """
    families, missing = _search(text)
    if missing:
        _tell(_said(missing))
    return families


@cache
def _tell(said: str) -> None:
    """Once in a process: Python's own "once" is forgotten with every `catch_warnings`."""
    warnings.warn(MissingGlyphs(said), stacklevel=3)


def covers(text: str) -> bool:
    """Whether the installed fonts have every character of `text`."""
    return not _search(text)[1]


@contextmanager
def drawing(style: dict[Any, Any]) -> Iterator[None]:
    """Draw in a style, in which `fonts_for` chose the fonts: what it said of them is not said again by matplotlib."""
    from matplotlib import rc_context

    log = logging.getLogger("matplotlib.font_manager")
    with rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        log.addFilter(_is_no_weight)  # a fallback font has often one weight alone; that is drawn
        try:
            yield
        finally:
            log.removeFilter(_is_no_weight)


def _is_no_weight(record: logging.LogRecord) -> bool:
    return "Failed to find font weight" not in record.getMessage()


def package_for(character: str) -> str:
    """The Debian package with a font for a character that is missing."""
    if unicodedata.name(character, "").startswith(_EAST_ASIAN):
        return "fonts-noto-cjk"
    return "fonts-symbola" if unicodedata.category(character) in ("So", "Sk", "Sm") else "fonts-noto-core"


def _said(missing: set[str]) -> str:
    shown = " ".join(sorted(missing)[:_NAMED]) + (f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else "")
    packages = sorted({package_for(character) for character in missing})
    remedies = "; ".join(_REMEDIES[package] for package in packages)
    return f"no installed font can draw {shown}: boxes stand in the picture instead ({remedies})"


def _search(text: str) -> tuple[list[str], set[str]]:
    """The families to use for `text`, and the characters that none of them has."""
    wanted = {character for character in text if _is_drawn(character)}
    chosen, missing = _chosen(text, wanted)
    if missing and _made_known(missing):
        chosen, missing = _chosen(text, wanted)
    return chosen, missing


def _chosen(text: str, wanted: set[str]) -> tuple[list[str], set[str]]:
    """Of the families on matplotlib's list: those that are needed, and what they lack."""
    files = _known_files()
    chosen, missing = [_PLAIN], set(wanted)
    for name in dict.fromkeys([_PLAIN, *_east_asian(text), *_GOOD_FONTS, *sorted(files)]):
        if name in files and missing and (has := missing & _characters(files[name])):
            missing -= has
            chosen.append(name)
    return list(dict.fromkeys(chosen)), missing


def _is_drawn(character: str) -> bool:
    """Not so: controls, spaces, and the selectors that say in which of its forms the character before is to be."""
    return not (
        unicodedata.category(character).startswith(("C", "Z"))
        or "VARIATION SELECTOR" in unicodedata.name(character, "")
    )


def _east_asian(text: str) -> tuple[str, ...]:
    """A character is written otherwise in China, Japan and Korea: other letters in `text` tell which is meant."""
    names = {unicodedata.name(character, "").split(" ")[0] for character in text}
    if names & {"HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA"}:
        return (*_JAPANESE, *_CHINESE, *_KOREAN)
    return (*_KOREAN, *_CHINESE, *_JAPANESE) if "HANGUL" in names else (*_CHINESE, *_JAPANESE, *_KOREAN)


def _known_files() -> dict[str, str]:
    """Family → file of its plain face, of the fonts on matplotlib's list."""
    from matplotlib.font_manager import fontManager

    files: dict[str, str] = {}
    for entry in fontManager.ttflist:
        plain = entry.style == "normal" and entry.weight in (400, "normal", "regular", "book")
        if plain and "Last Resort" not in entry.name:
            files.setdefault(entry.name, entry.fname)
    return files


def _made_known(missing: set[str]) -> bool:
    """Put fonts that have some of `missing` on matplotlib's list; it keeps that in a cache, so new ones are not on it.

    They stay there for as long as this process lives.
    """
    from matplotlib.font_manager import findSystemFonts, fontManager

    listed = {entry.fname for entry in fontManager.ttflist}
    found = False
    for path in sorted(set(findSystemFonts()) - listed):
        if missing & _characters(path):
            try:
                fontManager.addfont(path)
            except Exception:  # a broken font, or colour emoji, which are no outlines: one fewer to draw with
                continue
            found = True
    return found


@cache
def _characters(path: str) -> set[str]:
    """What a font has glyphs for; of a broken one, nothing."""
    from matplotlib.ft2font import FT2Font

    try:
        return {chr(code) for code in FT2Font(path).get_charmap()}
    except (OSError, RuntimeError):
        return set()


_JOINER = "\u200d"


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
