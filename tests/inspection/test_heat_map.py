"""Matrices as colours."""

from __future__ import annotations

import io
from itertools import pairwise
from xml.dom.minidom import parseString

import numpy as np
import pytest
from PIL import Image

from sightline.inspection.formulas import mathml
from sightline.plots.matrices import LEVELS, HeatMap, Scale, palette


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


def test_scales_get_darker_to_both_sides_of_zero_so_that_grey_shows_them_too() -> None:
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


def test_names_that_do_not_fit_are_numbers() -> None:
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
def test_formulas_are_set(formula: str, part: str) -> None:
    element = mathml(formula)
    parseString(element)
    assert part in element


def test_no_formula_is_nothing() -> None:
    assert mathml("") == ""
