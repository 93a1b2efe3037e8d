"""Sources of examples, and errors in their files."""

from __future__ import annotations

import bz2
import gzip
import lzma
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sightline.data import sources, text_files
from sightline.data.locate import MovedFolder, folder_here, resolve_folder
from sightline.data.sources import Example, part_of, read, split_position
from sightline.data.text_files import DataError, read_lines
from sightline.recipe.sources import AnySource, JsonLinesSource, PatternSource, PlainSource, TextSource, TsvSource

TEXT = TextSource(source="a.de", target="a.en")


def write(folder: Path, **files: str | bytes) -> Path:
    for name, content in files.items():
        data = content.encode() if isinstance(content, str) else content
        (folder / name.replace("_", ".")).write_bytes(data)
    return folder


def examples(source: AnySource, folder: Path, *, swap: bool = False) -> list[tuple[str, str]]:
    return [(example.source, example.target) for example in read(source, folder, swap=swap)]


def test_two_files_are_read_side_by_side(tmp_path: Path) -> None:
    write(tmp_path, a_de="eins\nzwei\n", a_en="one\ntwo")
    assert examples(TEXT, tmp_path) == [("eins", "one"), ("zwei", "two")]
    assert examples(TEXT, tmp_path, swap=True) == [("one", "eins"), ("two", "zwei")]
    assert next(read(TEXT, tmp_path)) == Example(source="eins", target="one")


def test_only_newlines_end_lines(tmp_path: Path) -> None:
    write(tmp_path, a=b"\xef\xbb\xbfone\xe2\x80\xa8still one\x0b\x0c\x85\r\n\r\n\xc2\x85\n".replace(b"\x85\r", b"\r"))
    assert list(read_lines(tmp_path / "a")) == ["one\u2028still one\x0b\x0c", "", "\x85"]


@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\ufeff")))
def test_lines_are_split_at_newlines(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("lines") / "a"
    path.write_bytes((text + "\n").encode())
    assert list(read_lines(path)) == text.split("\n")


def test_a_file_larger_than_a_block_is_read_whole(tmp_path: Path) -> None:
    lines = [f"{number} " + "ä" * (number % 700) for number in range(8_000)] + ["x" * 3_000_000, "", "end"]
    (tmp_path / "a.xz").write_bytes(lzma.compress("\n".join(lines).encode(), preset=0))
    assert list(read_lines(tmp_path / "a.xz")) == lines


@pytest.mark.parametrize("suffix", ["gz", "xz", "bz2", "zst"])
def test_compressed_files_are_read_by_their_suffix(tmp_path: Path, suffix: str) -> None:
    pack = {"gz": gzip.compress, "xz": lzma.compress, "bz2": bz2.compress, "zst": pa.Codec("zstd").compress}[suffix]
    data = "größer\tbigger\n".encode() * 500
    packed = pack(data)
    content = packed.to_pybytes() if isinstance(packed, pa.Buffer) else packed
    (tmp_path / f"a.{suffix}").write_bytes(content)
    assert examples(TsvSource(file=f"a.{suffix}"), tmp_path) == [("größer", "bigger")] * 500
    (tmp_path / f"B.{suffix.upper()}").write_bytes(content)
    assert list(read_lines(tmp_path / f"B.{suffix.upper()}")) == ["größer\tbigger"] * 500
    (tmp_path / f"a.{suffix}").write_bytes(content[:-20])
    with pytest.raises(DataError, match=rf"a\.{suffix} is damaged or cut off"):
        examples(TsvSource(file=f"a.{suffix}"), tmp_path)
    (tmp_path / f"a.{suffix}").write_bytes(b"this is not compressed")
    with pytest.raises(DataError, match=rf"a\.{suffix} is damaged or cut off"):
        examples(TsvSource(file=f"a.{suffix}"), tmp_path)


@pytest.mark.parametrize(("german", "english"), [("1\n2\n3\n4\n", "1\n2\n"), ("1\n2\n", "1\n2\n3\n4\n")])
def test_sides_of_different_length_fail_with_both_counts(tmp_path: Path, german: str, english: str) -> None:
    write(tmp_path, a_de=german, a_en=english)
    longer = "a.de" if len(german) > len(english) else "a.en"
    with pytest.raises(DataError, match=rf"{longer} has 4 lines and a\.\w\w has 2; line 3 of .*{longer} is the first"):
        examples(TEXT, tmp_path)


def test_an_empty_file_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, a_de="", a_en="one\n", a_tsv=b"\xef\xbb\xbf")
    with pytest.raises(DataError, match=r"a\.de is empty; give a file"):
        examples(TEXT, tmp_path)
    with pytest.raises(DataError, match=r"a\.tsv is empty"):
        examples(TsvSource(file="a.tsv"), tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.de does not exist; check"):
        examples(TEXT, tmp_path)


def test_bytes_that_are_not_utf8_are_found(tmp_path: Path) -> None:
    write(tmp_path, a_de=b"gut\nauch gut\nsch\xf6n\n", a_en="good\nalso\nnice\n")
    with pytest.raises(DataError, match=r"a\.de, line 3: byte 4 \(0xf6\) is not UTF-8; convert .*iconv"):
        examples(TEXT, tmp_path)


@pytest.mark.parametrize(
    ("content", "remedy"),
    [
        ("größer\tbigger\n".encode("utf-16"), "convert .*iconv -f utf-16 -t"),
        (b"\xfe\xff" + "größer\tbigger\n".encode("utf-16-be"), "convert .*iconv -f utf-16 -t"),
        (gzip.compress(b"a\tb\n", mtime=0), r"looks compressed: .* suffix \.gz"),
        (lzma.compress(b"a\tb\n"), r"looks compressed: .* suffix \.xz"),
        (bz2.compress(b"a\tb\n"), r"looks compressed: .* suffix \.bz2"),
        (pa.compress(b"a\tb\n", codec="zstd", asbytes=True), r"looks compressed: .* suffix \.zst"),
        (b"a\tb\n\xff\xfe\t\x1f\x8b\n", "convert .*iconv -f cp1252 -t"),
    ],
    ids=["utf-16", "utf-16-be", "gz", "xz", "bz2", "zst", "later"],
)
def test_encoding_is_guessed_from_the_beginning_of_the_file(tmp_path: Path, content: bytes, remedy: str) -> None:
    write(tmp_path, a_tsv=content)
    with pytest.raises(DataError, match=rf"a\.tsv, line \d: byte \d+ .* is not UTF-8; .*{remedy}"):
        examples(TsvSource(file="a.tsv"), tmp_path)


def test_columns_are_counted_from_one(tmp_path: Path) -> None:
    write(tmp_path, a_tsv="7\tHallo!\tHi.\textra\n8\t\tHey.\n")
    assert examples(TsvSource(file="a.tsv", columns=(3, 2)), tmp_path) == [("Hi.", "Hallo!"), ("Hey.", "")]
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        TsvSource(file="a.tsv", columns=(0, 1))


def test_a_line_with_too_few_columns_is_named(tmp_path: Path) -> None:
    write(tmp_path, a_tsv="a\tb\nHallo! Hi.\n")
    with pytest.raises(DataError, match=r"a\.tsv, line 2: 1 column, and columns: \[1, 2\] needs 2.*'Hallo! Hi\.'"):
        examples(TsvSource(file="a.tsv"), tmp_path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"de": "x"', r"line 2: not JSON .*one object on each line"),
        ("", r"line 2: not JSON"),
        pytest.param("[" * 100_000, r"line 2: not JSON .*one object on each line", id="deep"),
        ('["x", "y"]', r"line 2: not an object but list"),
        ("3", r"line 2: not an object but int"),
        ('{"de": "x", "fr": "y"}', r"line 2: no key 'en', only 'de', 'fr'; set `source` and `target`"),
        ('{"de": "x", "en": 3}', r"line 2: 'en' is not a text but int"),
        ('{"de": "x\\ud800", "en": "y"}', r"line 2: character 2 of 'de' is half a surrogate pair \(\\ud800\)"),
    ],
)
def test_json_lines_are_read_and_bad_ones_named(tmp_path: Path, line: str, message: str) -> None:
    source = JsonLinesSource(file="a.jsonl", source="de", target="en")
    good = '{"de": "Gr\\u00fcn\\nund blau", "en": "green", "id": 1}\n'
    write(tmp_path, a_jsonl=good)
    assert examples(source, tmp_path) == [("Grün\nund blau", "green")]
    write(tmp_path, a_jsonl=good + line + "\n")
    with pytest.raises(DataError, match=rf"a\.jsonl, {message}"):
        examples(source, tmp_path)


CMUDICT = r"(?P<source>[^ (]+)(?:\(\d+\))? (?P<target>[^#]+?)(?: #.*)?"


def test_a_pronouncing_dictionary_is_a_pattern(tmp_path: Path) -> None:
    write(tmp_path, a_dict=";;; header\n'em AH0 M\na AH0\na(2) EY1\naalen AE1 L AH0 N # place, german\n")
    source = PatternSource(file="a.dict", pattern=CMUDICT, skip="^;;;", spell=True)
    expected = [("' e m", "AH0 M"), ("a", "AH0"), ("a", "EY1"), ("a a l e n", "AE1 L AH0 N")]
    assert examples(source, tmp_path) == expected
    with pytest.raises(DataError, match=r"a\.dict, line 1: ';;; header' does not match .* skip such lines with `skip`"):
        examples(PatternSource(file="a.dict", pattern=r"(?P<source>\w+) (?P<target>.*)"), tmp_path)


def test_unmatched_pattern_group_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, a_txt="a b\na\n")
    with pytest.raises(DataError, match=r"line 2: 'a' has no source or target"):
        examples(PatternSource(file="a.txt", pattern="(?P<source>a)(?: (?P<target>b))?"), tmp_path)


def test_a_pattern_is_checked_with_the_recipe() -> None:
    with pytest.raises(ValidationError, match="not a regular expression"):
        PatternSource(file="a", pattern="(?P<source>")
    with pytest.raises(ValidationError, match=r"needs the groups"):
        PatternSource(file="a", pattern="(?P<source>.*)")


def test_shares_are_disjoint_complete_and_the_same_in_both_directions(tmp_path: Path) -> None:
    write(tmp_path, a_tsv="".join(f"Satz {n // 2}\tsentence {n}\n" for n in range(400)))
    parts = [TsvSource(file="a.tsv", share=share) for share in ((0.0, 0.5), (0.5, 0.9), (0.9, 1.0))]
    split = [examples(part, tmp_path) for part in parts]
    assert sorted(chain.from_iterable(split)) == sorted(examples(TsvSource(file="a.tsv"), tmp_path))
    sources = [{source for source, _ in part} for part in split]
    assert not sources[0] & sources[1] | sources[0] & sources[2] | sources[1] & sources[2]
    assert [len(part) for part in split] == pytest.approx([200, 160, 40], abs=40)
    assert examples(parts[1], tmp_path, swap=True) == [(target, source) for source, target in split[1]]


def test_part_of_a_plain_source_counts_lines_or_characters(tmp_path: Path) -> None:
    write(tmp_path, a_txt="one\ntwo\n \nfour\nfive\n")
    every = PlainSource(file="a.txt")
    assert examples(every, tmp_path) == [("", "one"), ("", "two"), ("", "four"), ("", "five")]  # blank ones are none
    some = PlainSource(file="a.txt", part=(0.2, 0.8))
    assert examples(some, tmp_path) == [("", "two"), ("", "four")]
    letters = PlainSource(file="a.txt", document="file", part=(0.25, 0.75))  # of nineteen
    assert examples(letters, tmp_path) == [("", "one\ntwo\n \nfour\nfive"[5:14])]


@pytest.mark.parametrize("size", [3, 4, 8])
def test_byte_order_mark_is_removed_only_at_the_beginning_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(text_files, "_BLOCK", size)
    write(tmp_path, a_txt="\ufeffabcd\n\ufeffxy\nz\n")  # 3 + 5 bytes, then another mark
    assert list(read_lines(tmp_path / "a.txt")) == ["abcd", "\ufeffxy", "z"]


def test_a_line_far_into_a_file_is_named_by_its_number_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_files, "_BLOCK", 6)
    write(tmp_path, a_txt=b"a\nb\nc\nd\n\xff\ne\n", b_txt=b"a\nb\nc\n\x1f\x8b\x08\x00\n")
    with pytest.raises(DataError, match=r"a.txt, line 5: byte 1 \(0xff\) is not UTF-8; convert the file"):
        list(read_lines(tmp_path / "a.txt"))
    with pytest.raises(DataError, match=r"b.txt, line 4: byte 2 \(0x8b\) .*iconv -f cp1252"):  # it begins as a text
        list(read_lines(tmp_path / "b.txt"))


def test_adjacent_shares_do_not_overlap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, a_tsv="0.25\tlow\n0.5\tmiddle\n0.75\thigh\n")
    monkeypatch.setattr(sources, "split_position", float)
    assert examples(TsvSource(file="a.tsv", share=(0.25, 0.5)), tmp_path) == [("0.25", "low")]
    assert examples(TsvSource(file="a.tsv", share=(0.5, 0.75)), tmp_path) == [("0.5", "middle")]
    assert [part_of(text) for text in ("0.0", "0.8", "0.9")] == ["train", "validation", "test"]


def test_split_position_is_unchanged() -> None:
    assert split_position("Satz") == split_position(" Satz ") == pytest.approx(0.9503143899796342, abs=1e-12)


def test_data_folder_is_searched_beside_the_recipe_then_in_the_corpora_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, corpora = tmp_path / "recipes" / "a.yaml", tmp_path / "corpora"
    (corpora / "m30k").mkdir(parents=True)
    monkeypatch.delenv("SIGHTLINE_CORPORA", raising=False)
    with pytest.raises(DataError, match=r"'m30k' is neither .*recipes/m30k nor .*_CORPORA is not set\); set"):
        resolve_folder("m30k", recipe)
    monkeypatch.setenv("SIGHTLINE_CORPORA", str(corpora))
    assert resolve_folder("m30k", recipe) == corpora / "m30k"
    (corpora / "m30k" / "de").mkdir()
    assert resolve_folder("m30k/de", recipe) == corpora / "m30k" / "de"
    with pytest.raises(DataError, match=r"'other' is neither .*recipes/other nor .*corpora/other.*; set data\.folder"):
        resolve_folder("other", recipe)
    (tmp_path / "recipes" / "m30k").mkdir(parents=True)
    assert resolve_folder("m30k", recipe) == tmp_path / "recipes" / "m30k"
    assert resolve_folder(str(corpora), recipe) == corpora
    assert resolve_folder(None, recipe) == tmp_path / "recipes"
    assert resolve_folder(None, None) is None


def test_absolute_data_folder_of_another_machine_is_found_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m30k").mkdir()
    write(tmp_path / "m30k", a_de="eins\n", a_en="one\n")
    monkeypatch.setenv("SIGHTLINE_CORPORA", str(tmp_path))
    told = rf"data\.folder: /server/corpora/m30k is not here; its files are read from {tmp_path}/m30k"
    for lookup in (lambda: resolve_folder("/server/corpora/m30k", None), lambda: folder_here("/server/corpora/m30k")):
        with pytest.warns(MovedFolder, match=told):
            assert lookup() == tmp_path / "m30k"
    assert examples(TEXT, tmp_path / "m30k") == [("eins", "one")]


def test_existing_data_folder_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    for folder in ("here/m30k", "corpora/m30k"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.setenv("SIGHTLINE_CORPORA", str(tmp_path / "corpora"))
    assert folder_here(str(tmp_path / "here" / "m30k")) == tmp_path / "here" / "m30k"
    assert resolve_folder("m30k", tmp_path / "here" / "a.yaml") == tmp_path / "here" / "m30k"
    assert resolve_folder("m30k", tmp_path / "a.yaml") == tmp_path / "corpora" / "m30k"  # as it is written: no surprise
    assert not recwarn.list


def test_missing_data_folder_error_names_all_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIGHTLINE_CORPORA", str(tmp_path))
    gone = folder_here("/server/m30k")
    with pytest.raises(DataError, match=rf"there is no /server/m30k and no {tmp_path}/m30k.*; set .*recipe\.yaml"):
        next(read(TEXT, gone))
    monkeypatch.delenv("SIGHTLINE_CORPORA")
    with pytest.raises(
        DataError,
        match=r"there is no /server/m30k and no \S+/m30k \(\$SIGHTLINE_CORPORA is not set\); set data\.folder",
    ):
        next(read(TEXT, gone))
    (tmp_path / "a.tsv").write_text("one\teins\n")
    absolute = TsvSource(file=str(tmp_path / "a.tsv"))  # needs no folder
    assert examples(absolute, gone) == [("one", "eins")]
