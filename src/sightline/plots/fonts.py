"""Fonts for labels in any script: the installed families that have the characters, and a word where none has them."""

from __future__ import annotations

import logging
import unicodedata
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

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
