"""The form of a file of words is known from its content; plain text is never read as columns."""

from __future__ import annotations

import pytest

from sightline.data.conll import check_columns, detect_format, tagged_sentences
from sightline.data.text_files import DataError

LABELS = {"O", "B-PER", "I-PER", "Noun", "Verb"}
CONLLU = [
    "# text = a b",
    "1\ta\t" + "\t".join("_" * 8),
    "2-3\tbc\t" + "\t".join("_" * 8),
    "",
    "1\tb\t" + "\t".join("_" * 8),
]


@pytest.mark.parametrize(
    ("lines", "form"),
    [
        (CONLLU, "conllu"),
        (["Anna\tB-PER", "sings\tO", "", "New York\tO"], "columns"),
        (["Anna\tsomething", " \t ", "sings\telse"], "columns"),
        (["Anna B-PER", "sings O", "", "well O"], "columns"),
        (["-DOCSTART- O", "Anna Noun", "sings Verb"], "columns"),
        (["the dog sees", "an old cat"], None),
        (["Anna sings", "Noun runs"], None),
        (["Anna sings very well .", "She does ."], None),
        (["one\ttwo", "no tab here"], None),
        (["word"], None),
        (["", " "], None),
        ([], None),
    ],
)
def test_the_content_says_which_form_it_is(lines: list[str], form: str | None) -> None:
    assert detect_format(lines, 1, 2, LABELS) == form


def test_plain_text_is_refused_as_columns() -> None:
    blocks = list(tagged_sentences(["the dog sees\n", "old cats run\n"], "columns", name="in.txt"))
    for label in (2, 3, 4):
        with pytest.raises(DataError, match=r"in\.txt, line 1: '\w+' would be a label .*--format text .*--column"):
            check_columns(blocks, label, LABELS)


@pytest.mark.parametrize(
    "rows", [["Anna B-PER", "sings O"], ["Anna Noun", "x NNP"], ["a ?", "b _"], ["a\tdog", "b\tcat"]]
)
def test_labels_and_what_looks_like_one_are_columns(rows: list[str]) -> None:
    check_columns(list(tagged_sentences([row + "\n" for row in rows], "columns")), 2, LABELS)
