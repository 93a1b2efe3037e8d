"""Lines of text files, TSV and CSV."""

from __future__ import annotations

import gzip
import io
import lzma
import tracemalloc
import warnings
from pathlib import Path

import pytest

from sightline.data import text_files
from sightline.data.sources import Example, SkippedHeader, read
from sightline.data.text_files import (
    DataError,
    LineLimit,
    LongLine,
    csv_columns,
    lines_of_stream,
    read_lines,
)
from sightline.recipe.data import Clean
from sightline.recipe.sources import CsvSource, JsonLinesSource, PatternSource, TextSource, TsvSource

MEGABYTE = 1 << 20


def texts(content: bytes, most: int, block: int) -> list[str | int]:
    stream = io.BytesIO(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_files, "_BLOCK", block)
        found = list(lines_of_stream(stream.read, "a.txt", most))
    return [line.size if isinstance(line, LongLine) else line for line in found]


@pytest.mark.parametrize("block", [1, 2, 3, 7, 64])
@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("ab\ncdefgh\nij\n", ["ab", 6, "ij"]),
        ("abcdefgh\n\nij", [8, "", "ij"]),
        ("ab\ncdefghi", ["ab", 7]),
        ("ab\r\n12345\nöö\nööö\n", ["ab", "12345", "öö", 6]),
        ("\ufeffab\n\n", ["ab", ""]),
        ("a\rb\n", ["a\rb"]),
        ("a\r", ["a"]),
        ("", []),
    ],
)
def test_too_long_lines_for_every_block_size(content: str, found: list[str | int], block: int) -> None:
    assert texts(content.encode(), 5, block) == found


@pytest.mark.parametrize("opener", [gzip.open, lzma.open], ids=["gz", "xz"])
def test_a_compressed_bomb_takes_no_memory(tmp_path: Path, opener: type[gzip.GzipFile]) -> None:
    path = tmp_path / f"a.txt.{'gz' if opener is gzip.open else 'xz'}"
    with opener(path, "wb") as file:
        for _ in range(64):
            file.write(bytes(b"x" * MEGABYTE))
        file.write(b"\nb\n")
    assert path.stat().st_size < MEGABYTE
    tracemalloc.start()
    with pytest.warns(
        UserWarning, match=r"a\.txt\..., line 1: 67,108,864 bytes, more than the 100,000 a line may have"
    ):
        assert list(read_lines(path, LineLimit(100_000, drop=True))) == ["", "b"]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 24 * MEGABYTE  # the dictionary of xz alone has 8


SOURCES = {
    "text": TextSource(source="a", target="b"),
    "tsv": TsvSource(file="a.tsv"),
    "jsonl": JsonLinesSource(file="a.jsonl"),
    "pattern": PatternSource(file="a.tsv", pattern=r"(?P<source>[^\t]*)\t(?P<target>.*)"),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_a_line_of_a_corpus_that_is_too_long_is_named(tmp_path: Path, kind: str) -> None:
    long = "x" * 5_000
    (tmp_path / "a").write_text(f"one\n{long}\nthree\n")
    (tmp_path / "b").write_text("1\n2\n3\n")
    (tmp_path / "a.tsv").write_text(f"one\t1\n{long}\t2\nthree\t3\n")
    (tmp_path / "a.jsonl").write_text(
        "".join(f'{{"source": "{a}", "target": "{b}"}}\n' for a, b in [("one", 1), (long, 2), ("three", 3)])
    )
    with pytest.raises(DataError, match=r"line 2: 5,0\d\d bytes, more than the 4,096 a line may have; shorten it"):
        list(read(SOURCES[kind], tmp_path, limit=LineLimit(4_096, remedy="shorten it")))
    with pytest.warns(UserWarning, match=r"line 2: 5,0\d\d bytes, .*; dropped"):
        found = list(read(SOURCES[kind], tmp_path, limit=LineLimit(4_096, drop=True)))
    assert found == [Example("one", "1"), Example("", ""), Example("three", "3")]
    assert [isinstance(each.source, LongLine) for each in found] == [False, True, False]


def test_warnings_about_long_lines_are_limited(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("xxxx\n" * 100)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert len(list(read_lines(tmp_path / "a", LineLimit(3, drop=True)))) == 100
    assert len(caught) == 6 and "as are more of this file" in str(caught[-1].message)


def test_longest_line_follows_from_the_cleaning_rules() -> None:
    assert Clean().longest_line == 64 * 4_096
    assert Clean(max_tokens=10_000).longest_line == 64 * 80_000
    assert Clean(truncate_source=1_000).longest_line == 64 * 8_000


@pytest.mark.parametrize("content", [b"a b\rc d\r", b"a\r" * 100_000, b"a b\rc d"])
def test_file_with_carriage_returns_only_is_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "mac.txt").write_bytes(content)
    count = content.rstrip(b"\r").count(b"\r")
    with pytest.raises(DataError, match=rf"mac\.txt has no newline but {count:,}|mac\.txt has no newline but 100,000"):
        list(read_lines(tmp_path / "mac.txt", LineLimit(1_000)))


@pytest.mark.parametrize(
    ("content", "remedy"),
    [
        ("a – b “c”\n".encode("cp1252"), "`iconv -f cp1252 -t utf-8`"),
        ("größer\n".encode("latin1"), "`iconv -f cp1252 -t utf-8`"),
        (b"a\x81b\xf6\n", "nor is it cp1252; find out its encoding"),
        ("a b\n".encode("utf-16"), "`iconv -f utf-16 -t utf-8`"),
        ("a b\n".encode("utf-16-le"), "`iconv -f utf-16le -t utf-8`"),
        ("a b\n".encode("utf-16-be"), "`iconv -f utf-16be -t utf-8`"),
    ],
)
def test_suggested_encoding(tmp_path: Path, content: bytes, remedy: str) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(DataError) as refused:
        list(read_lines(tmp_path / "a.txt"))
    assert remedy in str(refused.value)


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
def test_first_line_that_is_no_header_is_an_example(first: str, tmp_path: Path) -> None:
    (tmp_path / "in.tsv").write_text(first + ROWS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = list(read(TsvSource(file=str(tmp_path / "in.tsv")), None))
    assert len(found) == 3 + bool(first)


def test_repeated_first_line_is_no_header(tmp_path: Path) -> None:
    (tmp_path / "in.tsv").write_text("word\ttarget\nlabel\ttarget\n")
    assert len(list(read(TsvSource(file=str(tmp_path / "in.tsv")), None))) == 2


def test_line_numbers_after_a_header(tmp_path: Path) -> None:
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
def test_csv_errors_name_the_place(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text(text)
    with pytest.raises(DataError, match=said):
        list(read(CsvSource(file=str(tmp_path / "in.csv"), source="text", target="label"), None))
