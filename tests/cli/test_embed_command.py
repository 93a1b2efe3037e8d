"""`sightline embed` and `sightline align`, as they are called."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import sightline.run
from sightline.cli.align import align
from sightline.cli.embed import embed
from sightline.inspection.alignment import HeadSelection, align_pairs
from sightline.recipe.data import ConlluSource
from sightline.run import Run
from sightline.tasks.base import Task
from sightline.text.word_vectors import read_all_word_vectors
from untrained_runs import PAIRS, by_folder, untrained

TEXTS = [source for source, _ in PAIRS]


@pytest.fixture(autouse=True)
def runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run folders that are not there are runs with random weights."""
    monkeypatch.setattr(sightline.run.Run, "load", staticmethod(by_folder))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")
    return path


def test_vectors_of_sentences_are_written_line_by_line(file: Path, tmp_path: Path) -> None:
    embed(Path("transformer"), file, out=tmp_path / "v.npy", layer="0", pooling="max")
    run: Run = untrained("transformer")
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), run.embed(TEXTS, layer=0, pooling="max"), atol=1e-5)
    beside = (tmp_path / "v.tsv").read_text(encoding="utf-8").splitlines()
    assert beside == [f"{number}\t{text}" for number, text in enumerate(TEXTS, 1)]


def test_vectors_of_wider_layers_are_written_as_wide_as_they_are(file: Path, tmp_path: Path) -> None:
    for layer, width in (("0", 24), ("last", 16)):
        embed(Path("wider layers"), file, out=tmp_path / "v.npy", layer=layer)
        assert np.load(tmp_path / "v.npy").shape == (len(TEXTS), width)


def test_vectors_of_words_have_their_words_beside_them(file: Path, tmp_path: Path) -> None:
    embed(Path("language-model"), file, out=tmp_path / "v.npy", words=True)
    beside = (tmp_path / "v.tsv").read_text(encoding="utf-8").splitlines()
    assert beside == [f"{number}\t{word}" for number, text in enumerate(TEXTS, 1) for word in text.split()]
    assert np.load(tmp_path / "v.npy").shape == (len(beside), 16)


def test_of_a_tagged_file_a_tagger_embeds_the_words(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = untrained("tagger")
    data = run.recipe.data.model_copy(update={"train": (ConlluSource(file="train.conllu"),)})
    run.recipe = run.recipe.model_copy(update={"data": data})
    monkeypatch.setattr(sightline.run.Run, "load", staticmethod(lambda folder, **how: run))
    rows = [[f"{place}\t{word}\t" + "\t".join("_" * 8) for place, word in enumerate(text.split(), 1)] for text in TEXTS]
    tagged = tmp_path / "texts.conllu"
    tagged.write_text("".join("# text\n" + "\n".join(each) + "\n\n" for each in rows), encoding="utf-8")
    for path in (file, tagged):
        embed(Path("tagger"), path, out=path.with_suffix(".npy"))
        assert (tmp_path / "texts.tsv").read_text(encoding="utf-8").startswith(f"1\t{TEXTS[0]}\n2\t{TEXTS[1]}\n")
    embed(Path("tagger"), tagged, out=tmp_path / "words.npy", words=True)
    assert len(np.load(tmp_path / "words.npy")) == sum(map(len, rows))


def test_the_nearest_line_to_a_line_is_itself(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    embed(Path("recurrent"), file, nearest=TEXTS[1], top=2)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[0] == f"1.0000\t2\t{TEXTS[1]}"


def test_a_text_to_be_near_to_that_is_too_long_is_named_as_what_it_is(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Task, "longest_source", lambda self: 40)
    told = (
        r"^the text of --nearest has \d+ tokens and this model takes 40 \(its learned positions\); shorten or split it$"
    )
    with pytest.raises(ValueError, match=told):
        embed(Path("transformer"), file, nearest="Hund " * 50)
    file.write_text("Hund\n" + "Hund " * 50 + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"^line 2 has \d+ tokens"):
        embed(Path("transformer"), file, nearest="Hund")


def test_the_places_of_a_word_are_drawn(file: Path, tmp_path: Path) -> None:
    embed(Path("transformer"), file, word="hund", figure=tmp_path / "hund.png")
    assert (tmp_path / "hund.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "say what to do with the vectors"),
        ({"word": "Hund"}, "--word and --figure go together"),
        ({"nearest": "x", "words": True}, "--nearest compares whole lines"),
        ({"nearest": " "}, "--nearest ' ' is no text"),
        ({"nearest": "x", "top": 0}, r"top \(0\) is how many neighbours to keep"),
        ({"out": Path("v.npy"), "top": 3}, "--top 3 says how many neighbours are printed"),
        ({"out": Path("v.npy"), "most": 3}, "--most 3 says how many places are drawn"),
        ({"word": "hund", "figure": Path("a.png"), "most": 0}, "--most 0 leaves nothing to compare"),
        ({"word": "hund", "figure": Path("a.png"), "layer": "0"}, "--figure draws every layer"),
        ({"word": "hund", "figure": Path("a.png"), "words": True}, "--figure draws every layer"),
        ({"out": Path("v.txt")}, r"written as .npy or .parquet"),
        ({"export": Path("v.txt")}, "--export writes the embedding table, which needs no texts"),
        ({"out": Path("v.npy"), "layer": "top"}, "layer 'top' is neither a number from 0, nor last, nor embedding"),
    ],
)
def test_what_would_be_left_undone_is_refused(file: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        embed(Path("transformer"), file, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["vectors.txt", "vectors.bin"])
@pytest.mark.parametrize("model", ["transformer", "language-model"])
def test_an_exported_table_is_read_back_as_word_vectors(model: str, name: str, tmp_path: Path) -> None:
    embed(Path(model), export=tmp_path / name)
    words, vectors = read_all_word_vectors(tmp_path / name)
    run = untrained(model)
    source = model == "transformer"
    tokenizer = run.vocabulary.source if source else run.vocabulary.target
    table = run.model.source_embedding if source else run.model.embedding
    pieces = tokenizer.pieces(range(tokenizer.size))
    assert len(words) == len(set(words)) > 20
    for word, vector in list(zip(words, vectors, strict=True))[:20]:
        row = pieces.index("▁" + word) if "▁" + word in pieces else pieces.index(word)
        np.testing.assert_array_equal(vector, table.weight[row].detach().numpy())


# --- align ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def pairs(tmp_path: Path) -> tuple[Path, Path]:
    for name, side in (("a", 0), ("b", 1)):
        (tmp_path / name).write_text("".join(f"{pair[side]}\n" for pair in PAIRS), encoding="utf-8")
    return tmp_path / "a", tmp_path / "b"


def test_given_pairs_are_aligned_by_a_chosen_head(pairs: tuple[Path, Path], tmp_path: Path) -> None:
    align(Path("transformer"), *pairs, out=tmp_path / "links", layer=1, head=0, shift=True)
    found = align_pairs(
        untrained("transformer"), TEXTS, [pair[1] for pair in PAIRS], HeadSelection(("decoder.1.cross.0",), True)
    )
    assert (tmp_path / "links").read_text().splitlines() == [each.pharaoh() for each in found]


def test_with_another_direction_both_must_agree(pairs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    align(Path("transformer"), *pairs, reverse=Path("recurrent-turned"), symmetrize="intersection")
    both = capsys.readouterr().out.splitlines()
    align(Path("transformer"), *pairs)
    alone = capsys.readouterr().out.splitlines()
    assert len(both) == len(alone) == len(PAIRS)
    assert all(set(few.split()) <= set(many.split()) for few, many in zip(both, alone, strict=True))


def test_files_of_different_lengths_are_refused(pairs: tuple[Path, Path], tmp_path: Path) -> None:
    pairs[1].write_text("one\n")
    with pytest.raises(ValueError, match="b ends before line 2"):
        align(Path("transformer"), *pairs, out=tmp_path / "links")
    assert not (tmp_path / "links").exists()


def test_it_must_be_said_which_pairs(pairs: tuple[Path, Path]) -> None:
    for given in ({}, {"source": pairs[0]}, {"source": pairs[0], "target": pairs[1], "training": True}):
        with pytest.raises(ValueError, match="say which pairs"):
            align(Path("transformer"), **given)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="there is no layer 7 with cross-attention; there are 2"):
        align(Path("transformer"), *pairs, layer=7)


def test_the_texts_themselves_are_not_written_over(file: Path, tmp_path: Path) -> None:
    texts = file.rename(tmp_path / "texts.tsv")  # the name that the units of texts.npy have
    before = texts.read_bytes()
    with pytest.raises(ValueError, match=r"would be written over the texts themselves \(.*texts\.tsv\)"):
        embed(Path("transformer"), texts, out=tmp_path / "texts.npy")
    assert texts.read_bytes() == before
    embed(Path("transformer"), texts, out=tmp_path / "texts.parquet")
    assert texts.read_bytes() == before
