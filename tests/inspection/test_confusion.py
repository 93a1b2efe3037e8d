"""Confusions drawn and printed: nothing clipped, no number cut, the same file for the same counts."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from sightline.evaluation.labels import Confusion
from sightline.plots.confusion import TerminalConfusion, confusion_text, draw_confusion, percentage

LONG = "business and financial news from all around the world, daily edition"


def confused(labels: list[str]) -> Confusion:
    counts = np.random.default_rng(0).poisson(0.8, (len(labels), len(labels)))
    return Confusion(tuple(labels), counts + np.diag(np.arange(len(labels)) * 700 + 5))


def size(path: Path) -> tuple[int, int]:
    header = path.read_bytes()[:24]
    assert header.startswith(b"\x89PNG")
    return int.from_bytes(header[16:20], "big"), int.from_bytes(header[20:24], "big")


@pytest.mark.parametrize("count", [1, 2, 20, 60])
def test_any_number_of_labels_is_drawn_to_one_file(count: int, tmp_path: Path) -> None:
    draw_confusion(confused([f"label {number}" for number in range(count)]), tmp_path / "picture.png", title="Topics")
    width, height = size(tmp_path / "picture.png")
    assert min(width, height) > 250 and max(width, height) < 7000
    assert [file.name for file in tmp_path.iterdir()] == ["picture.png"]


def test_long_labels_get_room_around_the_same_cells(tmp_path: Path) -> None:
    draw_confusion(confused(["a", "b"]), tmp_path / "short.png")
    draw_confusion(confused([LONG, "b"]), tmp_path / "long.png")
    (narrow, low), (wide, high) = size(tmp_path / "short.png"), size(tmp_path / "long.png")
    assert wide > narrow + 150 and high > low + 150


@pytest.mark.parametrize("label", ["日本語", "خبر", "новости", "$a$b$", "", " ", "x_{y"])
@pytest.mark.filterwarnings("error", "ignore::sightline.plots.figures.MissingGlyphs")  # test_fonts.py
def test_labels_with_math_characters_are_drawn(label: str, tmp_path: Path) -> None:
    draw_confusion(confused([label, "b"]), tmp_path / "picture.png", title=f"$ {label} $")
    assert size(tmp_path / "picture.png")


def test_the_same_confusion_makes_the_same_svg(tmp_path: Path) -> None:
    for name in ("one.svg", "two.SVG"):
        draw_confusion(confused(["a", LONG]), tmp_path / name)
    one = (tmp_path / "one.svg").read_text(encoding="utf-8")
    assert one.startswith("<?xml") and one == (tmp_path / "two.SVG").read_text(encoding="utf-8")


def test_invalid_confusion_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"picture\.jpg: a figure is a \.png, \.svg, \.pdf file"):
        draw_confusion(confused(["a"]), tmp_path / "picture.jpg")
    with pytest.raises(ValueError, match="the confusion has no labels"):
        draw_confusion(confused([]), tmp_path / "picture.png")
    assert not list(tmp_path.iterdir())


def test_shares_are_rounded_to_0_or_100_only_if_exact() -> None:
    shares = (0, 0.001, 0.005, 0.01, 0.5, 0.99, 0.996, 1)
    assert [percentage(share) for share in shares] == ["0%", "<1%", "<1%", "1%", "50%", "99%", ">99%", "100%"]


def test_small_confusions_are_printed_under_their_labels() -> None:
    text = confusion_text(Confusion(("neg", "pos"), np.array([[843, 57], [0, 1198]])), width=80)
    assert text.splitlines() == [
        "right ↓ predicted →  neg   pos",
        "──────────────────────────────",
        "neg                  843    57",
        "pos                    ·  1198",
        "",
        "label  precision  recall     F1  support  most often taken for",
        "──────────────────────────────────────────────────────────────",
        "neg        100.0    93.7   96.7      900  57 × pos",
        "pos         95.5   100.0   97.7     1198",
    ]


@pytest.mark.parametrize("width", [80, 100, 140])
def test_printed_confusion_fits_terminal(width: int) -> None:
    confusion = confused(
        [LONG, "日本語のラベル", "[bold]x", *(f"label.called.{letter}" for letter in "abcdefghijklmnopq")]
    )
    text = confusion_text(confusion, width)
    lines = text.splitlines()
    assert max(map(cell_len, lines)) <= width
    assert not re.search(r"\d…", text)
    assert "[bold]x" in text  # labels are not markup
    for row, name in enumerate(confusion.labels[3:], start=3):
        printed = [line.split()[2:] for line in lines if line.startswith(f"{row + 1} {name} ")]
        expected = [str(count) if count else "·" for count in confusion.counts[row].tolist()]
        assert [cell for part in printed for cell in part] == expected


def test_a_terminal_with_colours_gets_them() -> None:
    out = io.StringIO()
    Console(file=out, width=80, force_terminal=True, color_system="standard").print(
        TerminalConfusion(confused(["a", "b"]))
    )
    assert "\x1b[" in out.getvalue()
    assert "\x1b[" not in confusion_text(confused(["a", "b"]))
