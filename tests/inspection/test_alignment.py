"""Alignments: kept, linked, printed in any terminal, drawn in any script."""

from __future__ import annotations

import io
import json
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from sightline.inspection.alignment import Alignment
from sightline.plots.figures import MissingGlyphs
from sightline.terminal import visible

DATE = [*"Donnerstag, der 23. September 2021", "</s>"]


def sharp(source: list[str], target: list[str]) -> Alignment:
    weights = np.full((len(target), len(source)), 0.01)
    for row in range(len(target)):
        weights[row, row % len(source)] = 0.9
    return Alignment(source, target, weights)


def printed(alignment: Alignment, width: int, **options: object) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, **options).print(alignment.grid())  # type: ignore[arg-type]
    return out.getvalue().rstrip("\n").split("\n")


def test_an_alignment_survives_json() -> None:
    alignment = sharp(["ein", "Hund"], ["a", "dog", "</s>"])
    again = Alignment(**json.loads(json.dumps(alignment.to_dict())))
    assert (again.source, again.target) == (alignment.source, alignment.target)
    np.testing.assert_allclose(again.weights, alignment.weights, atol=1e-6)
    assert Alignment(**Alignment([], [], np.zeros((0, 0), np.float32)).to_dict()).weights.shape == (0, 0)


def test_weights_of_another_shape_or_not_finite_are_refused() -> None:
    with pytest.raises(ValueError, match=r"weights \(2, 1\) must be \(target tokens, source tokens\), here \(1, 2\)"):
        Alignment(["a", "b"], ["c"], np.zeros((2, 1), np.float32))
    with pytest.raises(ValueError, match="finite"):
        Alignment(["a"], ["c"], np.array([[np.nan]], np.float32))


def test_without_colours_the_cells_are_shades_under_their_labels() -> None:
    weights = np.array([[0.95, 0.05], [0.3, 0.7]], np.float32)
    assert printed(Alignment(["ein", "Hund"], ["a", "dog"], weights), 40)[:3] == [
        "    ein Hund",
        "  a ███ ░░░░ ",
        "dog ▒▒▒ ▓▓▓▓ ",
    ]


@pytest.mark.parametrize(("system", "code", "weight"), [("truecolor", "48;2;", 0.77), ("256", "48;5;", 0.66)])
def test_with_colours_the_cells_have_backgrounds(system: str, code: str, weight: float) -> None:
    # Two weights, because rich keeps the codes of a style it has met whatever console asks next.
    alignment = Alignment(["ein"], ["a"], np.array([[weight]], np.float32))
    assert code in printed(alignment, 40, force_terminal=True, color_system=system, no_color=False)[1]


def test_a_terminal_that_wants_no_colours_gets_shades() -> None:
    lines = printed(sharp(["ein"], ["a"]), 40, force_terminal=True, color_system="truecolor", no_color=True)
    assert "█" in lines[1]


def test_a_date_of_forty_characters_fits_in_a_hundred_columns_as_one_block() -> None:
    lines = printed(sharp([*"Mittwoch, der 22. September 2021 n. Chr.", "</s>"], list("2021-09-22")), 100)
    assert max(map(cell_len, lines)) <= 100
    assert sum(line.startswith("9 ") for line in lines) == 1


def test_what_does_not_fit_is_cut_into_blocks_and_nothing_is_lost() -> None:
    lines = printed(sharp(DATE * 2, ["a"]), 60)
    rows = [line for line in lines if line.startswith("a ")]
    assert max(map(cell_len, lines)) <= 60
    assert sum(len(row[2:]) // 2 for row in rows) == 2 * len(DATE)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (["日本", "語"], ["日付", "a", "e\u0301e\u0301"]),
        (["e\u0301", "👨‍👩‍👧", "\u0301", " "], ["x", "\u0301"]),
        (["ولد", "صغير"], ["小さな", "boy"]),
    ],
)
def test_wide_combining_and_right_to_left_labels_keep_the_columns_aligned(source: list[str], target: list[str]) -> None:
    lines = printed(sharp(source, target), 80)[1 : 1 + len(target)]
    assert len({cell_len(line) for line in lines}) == 1


def test_labels_that_cannot_be_seen_get_a_sign() -> None:
    assert [visible(token) for token in (" ", "\n", "", "\u0301", "a\x1bb")] == ["␣", "⏎", "∅", "◌\u0301", "a�b"]


def test_nothing_to_show_is_shown_as_nothing() -> None:
    assert len(printed(Alignment([], [], np.zeros((0, 0), np.float32)), 80)) >= 1


@pytest.mark.parametrize("tokens", [["Mädchen", "$x$", "a_b^2", "\\frac"], ["ولد", "小さな", " "]])
def test_a_picture_is_drawn_without_warnings_whatever_the_labels(tmp_path: Path, tokens: list[str]) -> None:
    pytest.importorskip("matplotlib")
    before = "matplotlib.pyplot" in sys.modules
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", MissingGlyphs)  # tests/inspection/test_fonts.py
        sharp(tokens, tokens[::-1]).draw(tmp_path / "picture.png", title="$ " + tokens[0])
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert [file.name for file in tmp_path.iterdir()] == ["picture.png"]
    assert ("matplotlib.pyplot" in sys.modules) == before


def test_negative_weights_of_linear_attention_are_drawn_and_printed(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    alignment = Alignment(["a", "b"], ["c"], np.array([[-3.0, 6.0]], np.float32))
    alignment.draw(tmp_path / "picture.png")
    assert "█" in printed(alignment, 40)[1]


def test_an_empty_alignment_cannot_be_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(ValueError, match="nothing to draw: 0 source and 1 target"):
        Alignment([], ["a"], np.zeros((1, 0), np.float32)).draw(tmp_path / "picture.png")
