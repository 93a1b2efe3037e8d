"""Lines are read within a bound of memory, whatever the file holds, and what cannot be read is named with a remedy."""

from __future__ import annotations

import gzip
import io
import lzma
import tracemalloc
import warnings
from pathlib import Path

import pytest

from sightline.data import text_files
from sightline.data.sources import Example, read
from sightline.data.text_files import DataError, LineLimit, LongLine, lines_of_stream, read_lines
from sightline.recipe.data import Clean, JsonLinesSource, PatternSource, TextSource, TsvSource

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
def test_lines_beyond_the_bound_are_passed_over_wherever_blocks_end(
    content: str, found: list[str | int], block: int
) -> None:
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


def test_of_many_long_lines_a_few_are_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("xxxx\n" * 100)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert len(list(read_lines(tmp_path / "a", LineLimit(3, drop=True)))) == 100
    assert len(caught) == 6 and "as are more of this file" in str(caught[-1].message)


def test_the_bound_follows_from_what_is_trained_on() -> None:
    assert Clean().longest_line == 64 * 4_096
    assert Clean(max_tokens=10_000).longest_line == 64 * 80_000
    assert Clean(truncate_source=1_000).longest_line == 64 * 8_000


@pytest.mark.parametrize("content", [b"a b\rc d\r", b"a\r" * 100_000, b"a b\rc d"])
def test_a_file_of_carriage_returns_alone_is_refused_with_their_count(tmp_path: Path, content: bytes) -> None:
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
def test_the_encoding_that_is_advised_is_the_right_one(tmp_path: Path, content: bytes, remedy: str) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(DataError) as refused:
        list(read_lines(tmp_path / "a.txt"))
    assert remedy in str(refused.value)
