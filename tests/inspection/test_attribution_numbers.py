"""The numbers in the cells of an attribution's picture: each tells more than zero, however small all of them are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sightline.inspection.attribution import Attribution
from sightline.plots.alignment import draw_attribution


@pytest.mark.parametrize(
    ("values", "written"),
    [
        ([-0.03, -0.02, -0.16], ["−0.03", "−0.02", "−0.16"]),
        ([30.12, -8.04, 1.0], ["30.1", "−8.0"]),
        ([240.4, -31.2, 5.0], ["240", "−31"]),
    ],
)
def test_numbers_have_the_digits_that_they_need(tmp_path: Path, values: list[float], written: list[str]) -> None:
    source, none = ["good", "movie", "</s>"], np.zeros((1, 0))
    found = Attribution("occlusion", ["0"], np.zeros(1), source, np.array([values]), [], none)
    draw_attribution(found, tmp_path / "a.svg")
    drawn = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert [f"<!-- {number} -->" in drawn for number in written] == [True] * len(written)
