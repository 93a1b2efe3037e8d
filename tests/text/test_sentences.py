"""Where sentences end."""

from __future__ import annotations

import pytest

from sightline.text.sentences import sentences


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("one. two! three? four", ["one.", "two!", "three?", "four"]),
        ("spaces stand before it . and behind it .", ["spaces stand before it .", "and behind it ."]),
        (
            "grown in e. coli, e.g. at 3.5 degrees (see fig. 2). then",
            ["grown in e. coli, e.g. at 3.5 degrees (see fig. 2).", "then"],
        ),
        ('he said "no." and left', ['he said "no."', "and left"]),
        ("a line\nanother line\n", ["a line", "another line"]),
        ("これは本です。それも。", ["これは本です。", "それも。"]),
        ("no end", ["no end"]),
        ("", []),
    ],
)
def test_a_text_is_cut_where_its_sentences_end(text: str, wanted: list[str]) -> None:
    assert sentences(text) == wanted
