"""TSV with and without a header line; CSV."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from sightline.data.sources import Example, read
from sightline.data.text_files import DataError, SkippedHeader, csv_columns
from sightline.recipe.data import CsvSource, TsvSource

ROWS = "a good film\tpositive\na bad one\tnegative\ngood\tpositive\n"
EXAMPLES = [Example("a good film", "positive"), Example("a bad one", "negative"), Example("good", "positive")]


def test_a_header_line_of_a_table_is_skipped_and_reported(tmp_path: Path) -> None:
    path = tmp_path / "in.tsv"
    path.write_text("sentence\tlabel\n" + ROWS)
    with pytest.warns(SkippedHeader, match=r"in\.tsv, line 1 names the columns \('sentence\\tlabel'\) and is skipped"):
        assert list(read(TsvSource(file=str(path)), None)) == EXAMPLES
    assert list(read(TsvSource(file=str(path), header=True), None)) == EXAMPLES
    assert list(read(TsvSource(file=str(path), header=False), None)) == [Example("sentence", "label"), *EXAMPLES]


@pytest.mark.parametrize("first", ["", "text\tpositive\n", "the film\tlabel\n"])
def test_what_is_not_evidently_a_header_is_an_example(first: str, tmp_path: Path) -> None:
    (tmp_path / "in.tsv").write_text(first + ROWS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = list(read(TsvSource(file=str(tmp_path / "in.tsv")), None))
    assert len(found) == 3 + bool(first)


def test_words_that_come_again_below_are_no_header(tmp_path: Path) -> None:
    (tmp_path / "in.tsv").write_text("word\ttarget\nlabel\ttarget\n")
    assert len(list(read(TsvSource(file=str(tmp_path / "in.tsv")), None))) == 2


def test_errors_name_the_line_behind_a_header(tmp_path: Path) -> None:
    (tmp_path / "in.tsv").write_text("text\tlabel\na b\tX\nc\tY\n")
    with pytest.raises(DataError, match=r"in\.tsv, line 2: 1 label"):
        list(read(TsvSource(file=str(tmp_path / "in.tsv"), header=True), None, labelled=True))


def test_csv_has_quoted_cells_and_named_columns(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text('id,label,text\n1,good,"a ""fine"" film,\nreally"\n\n2,bad,no\n', newline="")
    found = list(read(CsvSource(file=str(path), source="text", target="label"), None))
    assert found == [Example('a "fine" film,\nreally', "good"), Example("no", "bad")]
    assert list(read(CsvSource(file=str(path), source=3, target=2), None)) == found
    assert list(read(CsvSource(file=str(path), source="text", target="label"), None, swap=True))[1] == Example(
        "bad", "no"
    )
    assert csv_columns(path) == ["id", "label", "text"]


def test_csv_without_a_header_counts_its_columns(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("a;x\nb;y\n")
    source = CsvSource(file=str(tmp_path / "in.csv"), source=1, target=2, delimiter=";", header=False)
    assert list(read(source, None)) == [Example("a", "x"), Example("b", "y")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("txt,label\na,b\n", r"there is no column 'text'; did you mean 'txt'\?"),
        ("one,label\na,b\n", r"there is no column 'text'; its columns are 'one', 'label'"),
        ("text,label\na,b,c\n", r"in\.csv, line 2: 3 cells, and the first line has 2; put cells that contain ','"),
        ('text,label\nb,c\n"a" b,c\n', r"in\.csv, line 3: not CSV"),
        ("text,text,label\na,b,c\n", r"2 columns are named 'text'"),
    ],
)
def test_what_is_wrong_with_a_csv_file_is_named_with_its_place(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text(text)
    with pytest.raises(DataError, match=said):
        list(read(CsvSource(file=str(tmp_path / "in.csv"), source="text", target="label"), None))
