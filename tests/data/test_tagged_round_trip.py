"""Tagged files, whatever is in them: read, tagged and written, they differ in their labels alone."""

from __future__ import annotations

import lzma
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sightline.data.conll import join_words, read_conllu, split_words, tagged_sentences

EWT = Path(os.environ.get("SIGHTLINE_CORPORA") or "nowhere") / "ud-ewt"  # asked now: fixtures of others hide it later


def cell(*, spaces: bool) -> st.SearchStrategy[str]:
    text = st.text(
        st.characters(exclude_categories=["Cs"], exclude_characters="\t\r\n" + " " * (not spaces)), min_size=1
    )
    return text.filter(lambda word: word.strip(" ") != "" and not word.startswith("-DOCSTART-"))


ANY, DENSE = cell(spaces=True), cell(spaces=False)
COMMENT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n")).map("#".__add__)


@st.composite
def conllu_lines(draw: st.DrawFn) -> list[str]:
    """Sentences with comments, multiword tokens and empty nodes between any number of blank lines."""
    lines = [""] * draw(st.integers(0, 2))
    for _ in range(draw(st.integers(0, 3))):
        lines += draw(st.lists(COMMENT, max_size=2))
        for number in range(1, 1 + draw(st.integers(0, 4))):
            if draw(st.booleans()):
                lines.append("\t".join([f"{number}-{number}", *draw(st.lists(ANY, min_size=9, max_size=9))]))
            lines.append("\t".join([str(number), *draw(st.lists(ANY, min_size=9, max_size=9))]))
            if draw(st.booleans()):
                lines.append("\t".join([f"{number}.1", *draw(st.lists(ANY, min_size=9, max_size=9))]))
        lines += [""] * draw(st.integers(1, 3))
    return lines[: len(lines) - draw(st.integers(0, 1))] if lines else lines


@st.composite
def column_lines(draw: st.DrawFn) -> list[str]:
    """Rows of two to four columns and document marks, between blank lines or none."""
    separator = draw(st.sampled_from(["\t", " ", "  "]))
    width = draw(st.integers(2, 4))
    rows = st.lists(ANY if separator == "\t" else DENSE, min_size=width, max_size=width).map(separator.join)
    if separator != "\t":
        rows = st.tuples(st.sampled_from(["", " "]), rows, st.sampled_from(["", " "])).map("".join)
    return draw(st.lists(st.one_of(rows, st.sampled_from(["", " ", "-DOCSTART-", "-DOCSTART- -X- O"]))))


@given(lines=conllu_lines(), column=st.sampled_from(["form", "lemma", "upos", "xpos", "feats", "deprel"]))
def test_conllu_with_its_own_labels_is_the_same_file(lines: list[str], column: str) -> None:
    parts = list(tagged_sentences(lines, "conllu"))
    assert [line for block in parts for line in block.tagged(block.labels(column), column)] == lines
    assert [line for block in parts for line in block.lines] == lines


@given(
    lines=conllu_lines(), label=DENSE.filter(lambda label: label == label.strip("\u00a0"))
)  # at an end it is padding
def test_conllu_with_other_labels_differs_in_that_column_of_words_alone(lines: list[str], label: str) -> None:
    tagged = [line for block in tagged_sentences(lines, "conllu") for line in block.tagged([label] * len(block.words))]
    for old, new in zip(lines, tagged, strict=True):
        before, after = old.split("\t"), new.split("\t")
        if len(before) == 10 and before[0].isdigit():
            assert after[3].strip(" ").replace(" ", "\u00a0") == label
            before[3] = after[3]
        assert before == after


@given(lines=column_lines(), column=st.integers(1, 2))
def test_columns_with_their_own_labels_are_the_same_file(lines: list[str], column: int) -> None:
    parts = list(tagged_sentences(lines, "columns"))
    assert [line for block in parts for line in block.tagged(block.labels(column), column)] == lines
    assert all(split_words(join_words(block.words)) == list(block.words) for block in parts)


@pytest.mark.corpora
@pytest.mark.skipif(not EWT.is_dir(), reason="no ud-ewt in $SIGHTLINE_CORPORA")
@pytest.mark.parametrize(
    ("part", "count", "words"), [("train", 12_544, 204_577), ("dev", 2_001, 25_147), ("test", 2_077, 25_094)]
)
def test_the_english_web_treebank_is_read_whole_and_comes_back_exactly(part: str, count: int, words: int) -> None:
    path = EWT / f"{part}.conllu.xz"
    examples = list(read_conllu(path))
    assert len(examples) == count
    assert sum(len(split_words(example.source)) for example in examples) == words
    assert all(len(split_words(example.source)) == len(split_words(example.target)) for example in examples)
    assert len({label for example in examples for label in split_words(example.target)}) == 17
    with lzma.open(path, "rt", encoding="utf-8", newline="") as file:
        content = file.read()
    parts = list(tagged_sentences(content.split("\n"), "conllu"))
    for column in ("upos", "feats"):
        assert "\n".join(line for block in parts for line in block.tagged(block.labels(column), column)) == content
