"""CoNLL-U and column files: reading, labelling, detecting the format."""

from __future__ import annotations

import lzma
import os
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sightline.data.conll import (
    TaggedFormat,
    TaggedSentence,
    check_columns,
    detect_format,
    format_of,
    join_words,
    read_columns,
    read_conllu,
    split_words,
    tagged_sentences,
)
from sightline.data.sources import Example
from sightline.data.text_files import DataError

CONLLU = """\
# sent_id = 1
# text = Vámonos al mar 10 000 veces
1-2\tVámonos\t_\t_\t_\t_\t_\t_\t_\t_
1\tVamos\tir\tVERB\tV\tMood=Imp\t0\troot\t_\t_
2\tnos\tnosotros\tPRON\tP\t_\t1\tobj\t_\t_
3-4\tal\t_\t_\t_\t_\t_\t_\t_\t_
3\ta\ta\tADP\tE\t_\t5\tcase\t_\t_
4\tel\tel\tDET\tD\t_\t5\tdet\t_\t_
5\tmar\tmar\tNOUN\tN\t_\t1\tobl\t_\t_
6\t10 000\t10 000\tNUM\tM\t_\t7\tnummod\t_\tx y
6.1\tveces\tvez\tNOUN\tN\t_\t_\t_\t1:obl\t_

# sent_id = 2
1\t👍🏽\t_\tSYM\tS\t_\t0\troot\t_\t_
"""
CONLL_2003 = """\
-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O

Peter NNP B-NP B-PER
"""
CONLLU_WORDS = ["Vamos nos a el mar 10\u00a0000", "👍🏽"]


def write(folder: Path, content: str, name: str = "a.conllu") -> Path:
    path = folder / name
    path.write_bytes(content.encode())
    return path


def row(*cells: str, id_: int | str = 1) -> str:
    return "\t".join([str(id_), *cells, *"_" * (9 - len(cells))])


def blocks(content: str, form: TaggedFormat, word: int = 1) -> list[TaggedSentence]:
    return list(tagged_sentences(content.split("\n"), form, word, name="a"))


def test_conllu_gives_words_and_their_labels(tmp_path: Path) -> None:
    path = write(tmp_path, CONLLU)
    labels = ["VERB PRON ADP DET NOUN NUM", "SYM"]
    assert list(read_conllu(path)) == [Example(*pair) for pair in zip(CONLLU_WORDS, labels, strict=True)]


@pytest.mark.parametrize(
    ("column", "labels"),
    [
        ("form", "Vamos nos a el mar 10\u00a0000"),
        ("lemma", "ir nosotros a el mar 10\u00a0000"),
        ("xpos", "V P E D N M"),
        ("feats", "Mood=Imp _ _ _ _ _"),
        ("deprel", "root obj case det obl nummod"),
    ],
)
def test_any_column_of_conllu_can_be_the_label(tmp_path: Path, column: str, labels: str) -> None:
    assert next(read_conllu(write(tmp_path, CONLLU), column)).target == labels


def test_unknown_conllu_column_error_lists_columns(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.conllu: no column 'pos' .* form, lemma, upos, xpos, feats, deprel"):
        read_conllu(write(tmp_path, CONLLU), "pos")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["1\tonly\tthree"], r"line 3: 3 columns with tabs .* CoNLL-U has 10; correct"),
        (["word"], r"line 3: 1 column with"),
        ([row("a", "a", "X", id_=2)], r"line 3: id 2 is out of order where 1 should come"),
        ([row("a", "a", "X"), row("b", "b", "X")], r"line 4: id 1 is out of order where 2 .* blank line between"),
        ([row("a", "a", "X"), row("b", "b", "X", id_="1-2")], r"line 4: id 1-2 is out of order where 2"),
        ([row("a", id_="1-2"), row("b", id_="1-3")], r"line 4: id 1-3 is out of order where 3"),
        ([row("a", id_="2-3")], r"line 3: id 2-3 is out of order where 1"),
        ([row("a", "a", "X"), row("b", id_="2-1")], r"line 4: id 2-1 is out of order"),
        ([row("a", id_="1-2"), row("a", "a", "X"), "", ""], r"line 5: the sentence ends with word 1, .* on to 2"),
        ([row("a", id_="1-2"), row("a", "a", "X")], r"line 4: the sentence ends with word 1"),
        ([row("a", id_="1.1")], r"line 3: id 1\.1 is out of order where 0\.1"),
        ([row("a", "a", "X"), row("b", id_="1.2")], r"line 4: id 1\.2 is out of order where 1\.1"),
        ([row("a", id_="one")], r"line 3: 'one' is no id"),
        ([row("a", id_="01")], r"line 3: '01' is no id"),
        ([row("a", id_="")], r"line 3: '' is no id"),
        ([row("a", "a", "X"), row("b", "b", "_", id_=2)], r"line 4: 'b' has no label in column upos \('_'\); fill"),
        ([row("a", "a", "")], r"line 3: 'a' has no label"),
        ([row("", "a", "X")], r"line 3: the word is empty"),
        ([row("  ", "a", "X")], r"line 3: the word is empty .*; write it in"),
    ],
)
def test_invalid_conllu_is_an_error_with_the_line(tmp_path: Path, lines: Sequence[str], message: str) -> None:
    path = write(tmp_path, "\n".join([row("fine", "fine", "ADJ"), "", *lines]))
    with pytest.raises(DataError, match=rf"a\.conllu, {message}"):
        list(read_conllu(path))


def test_empty_node_before_the_first_word(tmp_path: Path) -> None:
    path = write(tmp_path, "\n".join([row("none", id_="0.1"), row("a", "a", "X")]))
    assert list(read_conllu(path)) == [Example("a", "X")]


def test_columns_separated_by_spaces_with_document_marks(tmp_path: Path) -> None:
    path = write(tmp_path, CONLL_2003, "a.conll")
    assert list(read_columns(path, label=4)) == [Example("EU rejects", "B-ORG O"), Example("Peter", "B-PER")]
    assert next(read_columns(path, word=2, label=1)) == Example("NNP VBZ", "EU rejects")


def test_columns_separated_by_tabs_may_contain_spaces(tmp_path: Path) -> None:
    path = write(tmp_path, "-DOCSTART- -X- O\nNew York\tB LOC\n \n\nis\tO\textra\n\n", "a.tsv")
    assert list(read_columns(path)) == [Example("New\u00a0York", "B\u00a0LOC"), Example("is", "O")]


def test_files_with_windows_line_ends_and_compressed_files_are_read_too(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv.xz"
    path.write_bytes(lzma.compress(b"a\tX\r\nb\tY\r\n\r\nc\tZ\r\n"))
    assert list(read_columns(path)) == [Example("a b", "X Y"), Example("c", "Z")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a\tX\nb", r"line 2: 1 column, and the label should be in column 2; correct"),
        ("New\nYork X", r"line 1: 1 column, and the label"),
        ("a\tX\nNew York", r"line 2: 1 column"),
        ("a\tX\nb\t", r"line 2: 'b' has no label in column 2"),
        ("a\tX\n\tX", r"line 2: the word is empty"),
        ("a\tX\n  \tX", r"line 2: the word is empty"),
        (
            "a X\nNew York X",
            r"line 2: 3 columns .*, and line 1 has 2; correct the line, or set all columns off by tabs",
        ),
        ("a X\n X", r"line 2: 1 column \(' X'\), and line 1 has 2"),
        ("a X\nb\tX", r"line 2: a tab \('b\\tX'\), and line 1 has none; use tabs"),
        ("-DOCSTART-\n\na X\nb\tX", r"line 4: a tab .* line 3 has none"),
    ],
)
def test_invalid_column_file_is_an_error_with_the_line(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(DataError, match=rf"a\.tsv, {message}"):
        list(read_columns(write(tmp_path, content, "a.tsv")))


def test_columns_of_words_and_labels_are_counted_from_one(tmp_path: Path) -> None:
    path = write(tmp_path, "a\tX\n", "a.tsv")
    with pytest.raises(DataError, match=r"a\.tsv: word column 0; columns are counted from 1"):
        read_columns(path, word=0)
    with pytest.raises(DataError, match="label column 0"):
        read_columns(path, label=0)
    with pytest.raises(DataError, match=r"line 1: 2 columns, and the word should be in column 3"):
        list(read_columns(path, word=3))


def test_a_document_mark_is_one_only_as_a_whole_word() -> None:
    assert blocks("-DOCSTART-x\tO", "columns")[0].words == ("-DOCSTART-x",)
    assert blocks("-DOCSTART-\tO", "columns")[0].words == ()


@pytest.mark.parametrize("word", ["😀", "\u200b", "...", "\u0301", "\u00a0", "\u2028", "\ufeff", "#", "_", "\x0b"])
def test_a_word_can_be_anything(tmp_path: Path, word: str) -> None:
    twice = [Example(f"x {word}", "X Y")]
    assert list(read_conllu(write(tmp_path, f"{row('x', '_', 'X')}\n{row(word, '_', 'Y', id_=2)}\n"))) == twice
    assert list(read_columns(write(tmp_path, f"x\tX\n{word}\tY\n", "a.tsv"))) == twice
    assert list(read_columns(write(tmp_path, f"x X\n{word} Y\n", "a.col"))) == twice
    assert split_words(twice[0].source) == ["x", word]


def test_join_words_replaces_spaces_inside_words() -> None:
    assert join_words(["New York", "is", "\u200b"]) == "New\u00a0York is \u200b"
    assert split_words("New\u00a0York is \u200b") == ["New\u00a0York", "is", "\u200b"]
    assert join_words([]) == "" and split_words("") == []
    with pytest.raises(ValueError, match="word 2 of 3 is empty"):
        join_words(["a", "", "b"])


@given(st.lists(st.text(min_size=1)))
def test_split_words_inverts_join_words(words: list[str]) -> None:
    assert split_words(join_words(words)) == [word.replace(" ", "\u00a0") for word in words]


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("a.conllu", "conllu"),
        ("a.CoNLLU", "conllu"),
        ("a.conllu.xz", "conllu"),
        ("a.conllu.gz", "conllu"),
        ("a.tsv", "columns"),
        ("a.conll", "columns"),
        ("a.conll.zst", "columns"),
        ("a.col", "columns"),
        ("a.bio.bz2", "columns"),
        ("a.txt", None),
        ("a.conllu.txt", None),
        ("a.xz", None),
        ("conllu", None),
    ],
)
def test_format_by_suffix(name: str, form: str | None) -> None:
    assert format_of(Path("folder.conllu") / name) == form


def test_only_the_label_column_of_conllu_changes() -> None:
    first, second = blocks(CONLLU.removesuffix("\n"), "conllu")
    assert [join_words(first.words), join_words(second.words)] == CONLLU_WORDS
    changed = first.tagged(list("ABCDEF"), "xpos") + second.tagged("G", "xpos")
    expected = CONLLU
    for old, new in zip(["\tV\t", "\tP\t", "\tE\t", "\tD\t", "\tN\t", "\tM\t", "\tS\t"], "ABCDEFG", strict=True):
        expected = expected.replace(old, f"\t{new}\t", 1)
    assert "\n".join(changed) + "\n" == expected
    assert first.tagged(["X"] * 6) == first.tagged(["X"] * 6, "upos")


def test_only_the_label_column_changes_and_spacing_is_kept() -> None:
    (block,) = blocks("EU  NNP B-NP   B-ORG \nrejects VBZ B-VP O", "columns")
    assert block.tagged(["O", "B-X"], 4) == ["EU  NNP B-NP   O ", "rejects VBZ B-VP B-X"]
    assert block.tagged(["A", "B"]) == ["EU  A B-NP   B-ORG ", "rejects B B-VP O"]
    assert block.tagged(["A\u00a0C", "B C"], 5) == [
        "EU  NNP B-NP   B-ORG  A\u00a0C",
        "rejects VBZ B-VP O B\u00a0C",
    ]


def test_a_missing_label_column_is_appended() -> None:
    (words,) = blocks("The\nNew York", "columns")
    assert words.words == ("The", "New\u00a0York")
    assert words.tagged(["DET", "A\u00a0B"]) == ["The\tDET", "New York\tA B"]
    (tabs,) = blocks("The\tX\nNew York", "columns")
    assert tabs.tagged(["DET", "PROPN"]) == ["The\tDET", "New York\tPROPN"]
    with pytest.raises(DataError, match=r"a, line 2: 1 column, so a label cannot become column 3; .* column 2"):
        tabs.tagged(["DET", "PROPN"], 3)


def test_unchanged_label_keeps_its_spelling() -> None:
    (block,) = blocks("a\tB\u00a0C\nb\tB C\nc\t B ", "columns")
    assert block.labels() == ["B\u00a0C", "B\u00a0C", "B"]
    assert block.tagged(block.labels()) == list(block.lines)


@pytest.mark.parametrize(("content", "form"), [(CONLLU, "conllu"), (CONLL_2003, "columns")])
def test_labels_that_do_not_fit_are_refused(content: str, form: TaggedFormat) -> None:
    block = next(block for block in blocks(content.removesuffix("\n"), form) if block.words)
    count = len(block.words)
    with pytest.raises(ValueError, match=rf"a, line \d: {count + 1} labels for {count} words"):
        block.tagged(["X"] * (count + 1))
    with pytest.raises(ValueError, match=rf"0 labels for {count} words"):
        block.tagged([])
    for label in ("", " ", "a\tb", "a\nb"):
        with pytest.raises(ValueError, match=r"cannot be a label"):
            block.tagged(["X"] * (count - 1) + [label])


def test_invalid_column_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"no column 'pos' in CoNLL-U; choose one of form"):
        blocks(CONLLU, "conllu")[0].tagged(["X"] * 6, "pos")
    for column in ("upos", 0):
        with pytest.raises(ValueError, match=rf"column {column!r} of a column file; give a number"):
            blocks("a\tX", "columns")[0].tagged(["X"], column)


def test_sentences_are_streamed() -> None:
    lines = iter(["a\tX", "", "b\tY", "", "c\tZ"])
    stream = tagged_sentences(lines, "columns")
    assert next(stream).words == ("a",)
    assert next(lines) == "b\tY"


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize(("content", "form"), [(CONLLU, "conllu"), (CONLL_2003, "columns")])
def test_lines_keep_their_ends(content: str, form: TaggedFormat, end: str) -> None:
    lines = content.replace("\n", end).splitlines(keepends=True)
    again = [block.tagged(["new"] * len(block.words)) for block in tagged_sentences(lines, form)]
    column = {"conllu": 3, "columns": 1}[form]
    for old, new in zip(lines, chain.from_iterable(again), strict=True):
        assert new.endswith(end)
        if old != new:
            separator = "\t" if form == "conllu" else " "
            cells = old.split(separator)
            cells[column] = "new"
            assert new == separator.join(cells)


@pytest.mark.parametrize("separator", ["\t", " \t ", "\t\t", " "])
def test_a_line_of_spaces_and_tabs_separates_sentences(separator: str, tmp_path: Path) -> None:
    (tmp_path / "in.col").write_text(f"a\tX\n{separator}\nb\tY\n")
    assert list(read_columns(tmp_path / "in.col")) == [("a", "X"), ("b", "Y")]
    row = "1\t{}\t_\tX" + "\t_" * 6 + "\n"
    (tmp_path / "in.conllu").write_text(row.format("a") + f"{separator}\n" + row.format("b"))
    assert list(read_conllu(tmp_path / "in.conllu")) == [("a", "X"), ("b", "X")]


LABELS = {"O", "B-PER", "I-PER", "Noun", "Verb"}
CONLLU_LINES = [
    "# text = a b",
    "1\ta\t" + "\t".join("_" * 8),
    "2-3\tbc\t" + "\t".join("_" * 8),
    "",
    "1\tb\t" + "\t".join("_" * 8),
]


@pytest.mark.parametrize(
    ("lines", "form"),
    [
        (CONLLU_LINES, "conllu"),
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
def test_format_by_content(lines: list[str], form: str | None) -> None:
    assert detect_format(lines, 1, 2, LABELS) == form


def test_plain_text_is_refused_as_columns() -> None:
    blocks = list(tagged_sentences(["the dog sees\n", "old cats run\n"], "columns", name="in.txt"))
    for label in (2, 3, 4):
        with pytest.raises(DataError, match=r"in\.txt, line 1: '\w+' would be a label .*--format text .*--column"):
            check_columns(blocks, label, LABELS)


@pytest.mark.parametrize(
    "rows", [["Anna B-PER", "sings O"], ["Anna Noun", "x NNP"], ["a ?", "b _"], ["a\tdog", "b\tcat"]]
)
def test_lines_with_labels_are_columns(rows: list[str]) -> None:
    check_columns(list(tagged_sentences([row + "\n" for row in rows], "columns")), 2, LABELS)


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
def test_conllu_round_trip(lines: list[str], column: str) -> None:
    parts = list(tagged_sentences(lines, "conllu"))
    assert [line for block in parts for line in block.tagged(block.labels(column), column)] == lines
    assert [line for block in parts for line in block.lines] == lines


@given(
    lines=conllu_lines(), label=DENSE.filter(lambda label: label == label.strip("\u00a0"))
)  # at an end it is padding
def test_conllu_with_new_labels_changes_only_the_label_column(lines: list[str], label: str) -> None:
    tagged = [line for block in tagged_sentences(lines, "conllu") for line in block.tagged([label] * len(block.words))]
    for old, new in zip(lines, tagged, strict=True):
        before, after = old.split("\t"), new.split("\t")
        if len(before) == 10 and before[0].isdigit():
            assert after[3].strip(" ").replace(" ", "\u00a0") == label
            before[3] = after[3]
        assert before == after


@given(lines=column_lines(), column=st.integers(1, 2))
def test_columns_round_trip(lines: list[str], column: int) -> None:
    parts = list(tagged_sentences(lines, "columns"))
    assert [line for block in parts for line in block.tagged(block.labels(column), column)] == lines
    assert all(split_words(join_words(block.words)) == list(block.words) for block in parts)


@pytest.mark.corpora
@pytest.mark.skipif(not EWT.is_dir(), reason="no ud-ewt in $SIGHTLINE_CORPORA")
@pytest.mark.parametrize(
    ("part", "count", "words"), [("train", 12_544, 204_577), ("dev", 2_001, 25_147), ("test", 2_077, 25_094)]
)
def test_english_web_treebank_round_trip(part: str, count: int, words: int) -> None:
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
