"""A text as the heading of its picture: cut where it would take the room of the picture."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sightline.inspection.views import Subject, look
from sightline.plots.figures import heading_lines
from untrained_runs import untrained


def test_a_heading_has_three_lines_at_most() -> None:
    assert heading_lines("one two three", 7) == "one two\nthree"
    assert heading_lines(" ".join(["word"] * 300), 40).count("\n") == 2
    assert heading_lines(" ".join(["word"] * 300), 40).endswith("…")


@pytest.mark.parametrize("view", ["heads", "beam"])
def test_the_heading_of_a_long_text_has_three_lines_at_most(tmp_path: Path, view: str) -> None:
    text = "Zwei Männer " * 90 + "Schach"
    look(view, Subject(untrained("recurrent"), text)).picture(tmp_path / "a.svg")
    drawn = (tmp_path / "a.svg").read_text(encoding="utf-8")
    heading = [line for line in re.findall("<!-- (.*?) -->", drawn) if "Zwei Männer Zwei" in line]
    assert 1 <= len(heading) <= 3  # however wide the picture is
