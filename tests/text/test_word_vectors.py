"""Word vectors from files."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sightline.recipe.tokenizer import WordTokenizer
from sightline.text.tokenizer import Tokenizer
from sightline.text.word_vectors import (
    Format,
    WordVectorError,
    initial_embeddings,
    read_all_word_vectors,
    read_word_vectors,
    write_word_vectors,
)

WORDS = ["the", "Grüße", "日本語", "привет", "👍🏽", "नमस्ते", "2024"]
MATRIX = np.random.default_rng(0).normal(size=(len(WORDS), 5)).astype(np.float32)
PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda content: pyarrow.compress(content, codec="zstd", asbytes=True),
}


def content(kind: Format, *, newline: bytes = b"\n", end: str = "") -> bytes:
    """A file of WORDS as the program that the format is named after writes it."""
    header = f"{len(WORDS)} {MATRIX.shape[1]}\n".encode()
    if kind == "word2vec-binary":
        rows = zip(WORDS, MATRIX, strict=True)
        return header + b"".join(word.encode() + b" " + row.astype("<f4").tobytes() + newline for word, row in rows)
    lines = [" ".join([word, *map(repr, row.tolist())]) for word, row in zip(WORDS, MATRIX, strict=True)]
    text = "".join(line + end + "\n" for line in lines).encode()
    return text if kind == "glove" else header + text


def written(folder: Path, data: bytes | str, name: str = "vectors.txt") -> Path:
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


@pytest.mark.parametrize("suffix", PACK)
@pytest.mark.parametrize("guessed", [True, False])
@pytest.mark.parametrize("kind", ["word2vec", "word2vec-binary", "glove"])
def test_every_format_is_read_plain_or_compressed(tmp_path: Path, kind: Format, guessed: bool, suffix: str) -> None:
    path = written(tmp_path, PACK[suffix](content(kind)), f"vectors{suffix}")
    vocabulary = ["missing", *reversed(WORDS)]
    vectors = read_word_vectors(path, vocabulary, format=None if guessed else kind, width=5)
    assert vectors.matrix.dtype == np.float32
    np.testing.assert_array_equal(vectors.matrix[1:], MATRIX[::-1])
    assert np.isnan(vectors.matrix[0]).all()
    assert vectors.known.tolist() == [False] + [True] * len(WORDS)
    assert vectors.coverage.missing == ("missing",)


def test_binary_files_without_newlines_and_text_lines_that_end_with_a_space_are_read(tmp_path: Path) -> None:
    for data in (content("word2vec-binary", newline=b""), content("word2vec", end=" "), content("glove", end=" \r")):
        np.testing.assert_array_equal(read_word_vectors(written(tmp_path, data), WORDS).matrix, MATRIX)


def test_binary_files_longer_than_a_block_are_read(tmp_path: Path) -> None:
    matrix = np.random.default_rng(1).normal(size=(3000, 200)).astype("<f4")
    rows = b"".join(b"word%d " % number + row.tobytes() + b"\n" for number, row in enumerate(matrix))
    path = written(tmp_path, b"3000 200\n" + rows)
    vectors = read_word_vectors(path, [f"word{number}" for number in range(3000)])
    np.testing.assert_array_equal(vectors.matrix, matrix)


def test_words_with_spaces_are_read_from_the_right(tmp_path: Path) -> None:
    path = written(tmp_path, ". . . 0.5 1\nat name@domain.com 2 -3e-1\nroute 66 1 1\n3 4 5\n")
    vectors = read_word_vectors(path, [". . .", "at name@domain.com", "route 66", "3"], format="glove", width=2)
    np.testing.assert_array_equal(vectors.matrix, np.array([[0.5, 1], [2, -0.3], [1, 1], [4, 5]], np.float32))


def test_exact_match_precedes_lowercased_match(tmp_path: Path) -> None:
    vocabulary = ["The", "the", "US", "Us", "ÄRGER"]
    for lines in (["the 0.1", "us 0.2", "US 0.3", "ärger 0.4"], ["US 0.3", "ärger 0.4", "us 0.2", "the 0.1"]):
        path = written(tmp_path, "\n".join(lines))
        vectors = read_word_vectors(path, vocabulary, lowercase=True)
        np.testing.assert_array_equal(vectors.matrix[:, 0], np.array([0.1, 0.1, 0.3, 0.2, 0.4], np.float32))
        assert (vectors.coverage.found, vectors.coverage.lowercased, vectors.coverage.missing) == (2, 3, ())
        exact = read_word_vectors(path, vocabulary)
        assert exact.known.tolist() == [False, True, True, False, False]


def test_repeated_words(tmp_path: Path) -> None:
    vectors = read_word_vectors(written(tmp_path, "a 0.1\na 0.2\n"), ["a", "a"])
    np.testing.assert_array_equal(vectors.matrix, np.array([[0.1], [0.1]], np.float32))


def test_coverage_lists_missing_words(tmp_path: Path) -> None:
    path = written(tmp_path, "a 0.1\nb 0.2\n")
    coverage = read_word_vectors(path, ["x", "A", "y", "b", "z"], lowercase=True).coverage
    assert (coverage.found, coverage.lowercased, coverage.missing) == (1, 1, ("x", "y", "z"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a 0.1 0.2\nb 0.1\n", r"line 2: 'b 0.1' has 1 values, not 2; correct"),
        ("a 0.1 0.2\nb 0.1 0.2 0.3\n", r"line 2: 'b 0.1 0.2 0.3' has 3 values, not 2"),
        ("2 2\na 0.1 0.2\nb 0.1\n", r"line 3: 'b 0.1' has 1 values, not 2"),
        ("2 2\na 0.1\nb 0.1 0.2\n", r"line 2: 'a 0.1' has 1 values, not 2"),
        ("a 0.1 0.2\n\nb 0.1 0.2\n", r"line 2: '' has 0 values, not 2"),
        ("c 0.1 0.2\na 0.1 zero\n", r"line 2: could not convert .*zero.*; correct"),
        ("c 0.1 0.2\na 0.1 nan\n", r"line 2: a value is not finite"),
        ("3 2\na 0.1 0.2\nb 0.1 0.2\n", r"has 2 words, and its first line says 3; get the file again"),
        ("1 2\na 0.1 0.2\nb 0.1 0.2\n", r"has 2 words, and its first line says 1"),
        ("a b c\n", r"line 1: 'a b c' is not a word and its values"),
        ("", r"is empty"),
    ],
)
def test_malformed_text_is_named_by_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(WordVectorError, match=rf"vectors\.txt.*{message}"):
        read_word_vectors(written(tmp_path, text), ["a", "b"])


def test_a_binary_file_that_is_cut_off_anywhere_is_named_by_byte(tmp_path: Path) -> None:
    data = content("word2vec-binary", newline=b"")
    for length in range(data.index(b"\n") + 1, len(data)):
        with pytest.raises(WordVectorError, match=r"vectors\.txt, byte \d+: no whole word with 5 values, and \d of 7"):
            read_word_vectors(written(tmp_path, data[:length]), WORDS, format="word2vec-binary")
    assert read_word_vectors(written(tmp_path, data), WORDS).known.all()


@pytest.mark.parametrize("values", ["0.12345 zero 0.5", "zero 1 1"])
def test_text_detected_as_binary_names_the_line(tmp_path: Path, values: str) -> None:
    message = r"get the file again, or, if it is text, correct its second line, which is not a word with 3 numbers$"
    with pytest.raises(WordVectorError, match=message):
        read_word_vectors(written(tmp_path, f"2 3\na {values}\nb 0.1 0.2 0.3\n"), ["a", "b"])


def test_binary_files_with_extra_data_or_without_a_header_are_refused(tmp_path: Path) -> None:
    data = content("word2vec-binary")
    more = rf"byte {len(data) - 1}: there is more after the 7 words that the first line says"
    with pytest.raises(WordVectorError, match=more):
        read_word_vectors(written(tmp_path, data + b"more"), WORDS)
    with pytest.raises(WordVectorError, match=r"line 1: .* leave the format out to detect it$"):
        read_word_vectors(written(tmp_path, content("glove")), WORDS, format="word2vec-binary")
    with pytest.raises(WordVectorError, match=r"line 1: .* leave the format out to detect it$"):
        read_word_vectors(written(tmp_path, content("glove")), WORDS, format="word2vec")
    broken = data.replace(MATRIX[0].tobytes(), np.full(5, np.inf, "<f4").tobytes())
    with pytest.raises(WordVectorError, match="byte 8: a value is not finite"):
        read_word_vectors(written(tmp_path, broken), WORDS, format="word2vec-binary")


@pytest.mark.parametrize("kind", ["word2vec", "word2vec-binary", "glove"])
def test_vectors_of_another_width_are_an_error(tmp_path: Path, kind: Format) -> None:
    with pytest.raises(WordVectorError, match=r"has vectors of 5 values, and 300 are needed; set the width"):
        read_word_vectors(written(tmp_path, content(kind)), WORDS, width=300)


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
def test_a_damaged_compressed_file_is_named(tmp_path: Path, suffix: str) -> None:
    packed = PACK[suffix](content("glove") * 50)
    path = written(tmp_path, packed[: len(packed) // 2], f"v{suffix}")
    with pytest.raises(WordVectorError, match=rf"v\{suffix} cannot be read to its end"):
        read_word_vectors(path, WORDS)
    with pytest.raises(WordVectorError, match=r"none\.txt does not exist"):
        read_word_vectors(tmp_path / "none.txt", WORDS)


def test_words_that_are_not_utf8_are_ignored(tmp_path: Path) -> None:
    path = written(tmp_path, b"\xff\xfe 0.1 0.2\n" + "caf\u00e9 0.3 0.4\n".encode())
    vectors = read_word_vectors(path, ["café", "\ud800"])
    assert vectors.known.tolist() == [True, False]


WORD = st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), min_size=1, max_size=8)


@given(
    words=st.lists(WORD.filter(lambda word: " " not in word), unique=True, min_size=1, max_size=6),
    values=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=18, max_size=18),
    suffix=st.sampled_from(list(PACK)),
)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_text_format_round_trip(tmp_path: Path, words: list[str], values: list[float], suffix: str) -> None:
    matrix = np.array(values, np.float32).reshape(6, 3)[: len(words)]
    path = tmp_path / f"vectors{suffix}"
    write_word_vectors(path, words, matrix)
    vectors = read_word_vectors(path, words)
    np.testing.assert_array_equal(vectors.matrix, matrix)
    assert vectors.coverage.found == len(words)


def test_unreadable_words_are_not_written(tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    for word in ("", "two\nlines", "a 0.5"):
        with pytest.raises(WordVectorError, match="could not be read back"):
            write_word_vectors(path, [word], np.ones((1, 2)))
    with pytest.raises(WordVectorError, match="the vector of 'a' is not finite"):
        write_word_vectors(path, ["a"], np.array([[np.nan]]))
    with pytest.raises(WordVectorError, match=r"1 word and a matrix of shape \(2, 3\)"):
        write_word_vectors(path, ["a"], np.ones((2, 3)))
    assert not path.exists()
    write_word_vectors(path, ["route 66", ". ."], np.ones((2, 2)))
    assert read_word_vectors(path, [". .", "route 66"]).known.all()


def test_binary_format_round_trip(tmp_path: Path) -> None:
    for suffix in PACK:
        path = tmp_path / f"vectors.bin{suffix}"
        write_word_vectors(path, WORDS, MATRIX, format="word2vec-binary")
        words, matrix = read_all_word_vectors(path)
        assert words == WORDS
        np.testing.assert_array_equal(matrix, MATRIX)
    assert (tmp_path / "vectors.bin").read_bytes() == content("word2vec-binary")
    with pytest.raises(WordVectorError, match="'route 66' could not be read back from word2vec-binary"):
        write_word_vectors(path, ["route 66"], np.ones((1, 2)), format="word2vec-binary")


@pytest.mark.parametrize("kind", ["word2vec", "word2vec-binary", "glove"])
def test_all_words_of_a_file_are_read_in_its_order(tmp_path: Path, kind: Format) -> None:
    words, matrix = read_all_word_vectors(written(tmp_path, content(kind)))
    assert words == WORDS
    np.testing.assert_array_equal(matrix, MATRIX)


TEXT = ["The cat (cat) sat, the dog saw"] * 3
TOKENIZER = Tokenizer.train(WordTokenizer(size=50, min_count=1), TEXT)
PIECES = TOKENIZER.pieces(range(TOKENIZER.size))
TABLE = np.random.default_rng(2).normal(size=(TOKENIZER.size, 4)).astype(np.float32)
FOUND = {"the": [1.0, 2, 3, 4], "cat": [-8.0, 0, 0, 8], "saw": [3.0, 3, 3, 3], "</s>": [9.0, 9, 9, 9]}


def vector_file(folder: Path) -> Path:
    path = folder / "vectors.txt"
    write_word_vectors(path, list(FOUND), np.array(list(FOUND.values())))
    return path


def test_initial_embeddings_change_only_known_rows(tmp_path: Path) -> None:
    given = TABLE.copy()
    table, coverage = initial_embeddings(vector_file(tmp_path), TOKENIZER, 4, given)
    np.testing.assert_array_equal(given, TABLE)  # a new table is made
    rows = {piece: row for row, piece in enumerate(PIECES)}
    expected = {"▁The": "the", "▁the": "the", "▁cat": "cat", "cat": "cat", "▁saw": "saw"}
    known = {rows[piece]: FOUND[word] for piece, word in expected.items()}
    ratios = np.array([table[row] @ vector / np.dot(vector, vector) for row, vector in known.items()])
    for row, vector in known.items():
        np.testing.assert_allclose(table[row], np.array(vector) * ratios[0], rtol=1e-6, atol=1e-7)
    others = [row for row in range(TOKENIZER.size) if row not in known]
    np.testing.assert_array_equal(table[others], TABLE[others])
    assert set(range(4)) <= set(others)  # the file's </s> is not ours
    assert (coverage.found, coverage.lowercased, coverage.size) == (4, 1, TOKENIZER.size - 4)


def test_vectors_are_scaled_to_the_size_of_the_rows_they_replace(tmp_path: Path) -> None:
    path = vector_file(tmp_path)
    table, _ = initial_embeddings(path, TOKENIZER, 4, TABLE)
    changed = (table != TABLE).any(1)
    assert np.square(table[changed]).mean() == pytest.approx(np.square(TABLE[changed]).mean(), rel=1e-5)


def test_a_tensor_comes_back_as_a_tensor_of_its_kind(tmp_path: Path) -> None:
    path = vector_file(tmp_path)
    given = torch.nn.Parameter(torch.from_numpy(TABLE))
    tensor, _ = initial_embeddings(path, TOKENIZER, 4, given)
    np.testing.assert_array_equal(tensor.detach().numpy(), initial_embeddings(path, TOKENIZER, 4, TABLE)[0])
    assert tensor.dtype == torch.float32 and not tensor.requires_grad
    np.testing.assert_array_equal(given.detach().numpy(), TABLE)


def test_coverage_describes_itself_in_one_line(tmp_path: Path) -> None:
    path = vector_file(tmp_path)
    _, coverage = initial_embeddings(path, TOKENIZER, 4, TABLE)
    words = TOKENIZER.size - 4
    assert coverage.describe() == f"word vectors: 5 of {words} words ({5 / words:.1%}) found in vectors.txt"


def test_vectors_that_do_not_fit_a_model_are_an_error_with_a_remedy(tmp_path: Path) -> None:
    path = vector_file(tmp_path)
    wide = np.zeros((TOKENIZER.size, 6), np.float32)
    with pytest.raises(WordVectorError, match=r"4 values, and 6 are needed; .*model\.width=4.* vectors of 6 values"):
        initial_embeddings(path, TOKENIZER, 6, wide)
    with pytest.raises(WordVectorError, match=r"the table has shape \(3, 4\), and"):
        initial_embeddings(path, TOKENIZER, 4, TABLE[:3])
    write_word_vectors(path, ["Grüße"], np.ones((1, 4)))
    with pytest.raises(WordVectorError, match=r"a vector for none of the .* pieces of the vocabulary; take"):
        initial_embeddings(path, TOKENIZER, 4, TABLE)
    write_word_vectors(path, ["cat"], np.zeros((1, 4)))
    with pytest.raises(WordVectorError, match="all vectors are zero"):
        initial_embeddings(path, TOKENIZER, 4, TABLE)
