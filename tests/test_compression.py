"""Compressed files of several streams are read completely or are an error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sightline.data.text_files import DataError, read_lines
from sightline.files import compressed, open_decompressed

SUFFIXES = [".gz", ".bz2", ".xz", ".zst"]


def two_streams(path: Path, between: Callable[[bytes], bytes] = bytes) -> None:
    """A file of a, b and then of many more lines; `between` changes the second stream."""
    second = compressed(path, b"".join(b"%d\n" % number for number in range(2000)))
    path.write_bytes(compressed(path, b"a\nb\n") + between(second))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_two_streams_are_read_as_one_text(tmp_path: Path, suffix: str) -> None:
    two_streams(path := tmp_path / f"text{suffix}")
    assert list(read_lines(path)) == ["a", "b", *map(str, range(2000))]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_second_stream_with_a_damaged_head_is_an_error(tmp_path: Path, suffix: str) -> None:
    two_streams(path := tmp_path / f"text{suffix}", lambda stream: b"XXXX" + stream[4:])
    with pytest.raises(DataError, match=rf"text\{suffix} is damaged or cut off \(.*\); get the file again"):
        list(read_lines(path))


@pytest.mark.parametrize("suffix", [".bz2", ".xz"])
def test_a_damaged_stream_is_named_by_where_it_begins(tmp_path: Path, suffix: str) -> None:
    two_streams(path := tmp_path / f"text{suffix}", lambda stream: stream[:30] + b"XXXX" + stream[34:])
    first = len(compressed(path, b"a\nb\n"))
    with pytest.raises(DataError, match=rf"the stream that begins at byte {first + 1}: "):
        list(read_lines(path))


@pytest.mark.parametrize("suffix", [".bz2", ".xz"])
def test_garbage_after_the_last_stream_is_an_error(tmp_path: Path, suffix: str) -> None:
    two_streams(path := tmp_path / f"text{suffix}", lambda stream: b"no stream at all")
    with pytest.raises(DataError, match="the stream that begins at byte"):
        list(read_lines(path))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_second_stream_that_is_cut_off_is_an_error(tmp_path: Path, suffix: str) -> None:
    two_streams(path := tmp_path / f"text{suffix}", lambda stream: stream[:-20])
    with pytest.raises(DataError, match="is damaged or cut off"):
        list(read_lines(path))


@pytest.mark.parametrize("suffix", [".bz2", ".xz"])
def test_a_stream_that_is_cut_off_is_named_by_where_it_begins(tmp_path: Path, suffix: str) -> None:
    two_streams(path := tmp_path / f"text{suffix}", lambda stream: stream[:-20])
    first = len(compressed(path, b"a\nb\n"))
    with pytest.raises(DataError, match=f"the stream that begins at byte {first + 1} has no end"):
        list(read_lines(path))


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz"])
def test_zeros_between_and_after_streams_are_padding(tmp_path: Path, suffix: str) -> None:
    two_streams(path := tmp_path / f"text{suffix}", lambda stream: b"\0" * 200_000 + stream + b"\0" * 8)
    assert list(read_lines(path)) == ["a", "b", *map(str, range(2000))]


@pytest.mark.parametrize("size", [1000, 1 << 20])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_text_is_the_same_for_every_read_size(tmp_path: Path, suffix: str, size: int) -> None:
    text = b"".join(b"%d\n" % (number * number) for number in range(30_000))
    (path := tmp_path / f"text{suffix}").write_bytes(compressed(path, text))
    with open_decompressed(path) as file:
        assert b"".join(iter(lambda: file.read(size), b"")) == text
