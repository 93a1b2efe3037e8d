"""Numbers with their nouns."""

from __future__ import annotations

import pytest

from sightline.terminal import plural


@pytest.mark.parametrize(
    ("number", "told"),
    [(0, "0 source words"), (1, "1 source word"), (2, "2 source words"), (2048, "2,048 source words")],
)
def test_only_of_one_the_noun_stands_alone(number: int, told: str) -> None:
    assert plural(number, "source word") == told
