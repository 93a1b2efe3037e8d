"""Figures and the files they become: what every picture has in common, whatever is drawn in it.

matplotlib's global state (pyplot) is never touched, and the same picture is the same file, byte for byte.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.files import check_place, write_atomically
from sightline.plots.fonts import drawing, fonts_for

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
