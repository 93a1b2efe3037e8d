"""`sightline embed`: vectors of lines, words and pieces, nearest lines, senses of a word, exported tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from sightline.cli.app import app
from sightline.recipe.sources import ConlluSource
from sightline.run import Run
from sightline.tasks.base import Task
from sightline.text.word_vectors import read_all_word_vectors
from untrained_runs import PAIRS, by_folder, untrained

TEXTS = [source for source, _ in PAIRS]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with texts.txt; run folders are untrained runs of the same name."""
    monkeypatch.setattr(Run, "load", staticmethod(by_folder))
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def embed(*arguments: str, code: int = 0) -> str:
    """Standard output of the command, or the message of its error."""
    result = CliRunner().invoke(app, ["embed", *arguments])
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else str(result.exception)


def rows(name: str) -> list[str]:
    return Path(name).read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "nothing to do with the vectors; give --out FILE, --nearest TEXT, --word WORD --figure FILE, or --export"),
        ("--word Hund", "--word and --figure need each other"),
        ("--figure a.png", "--word and --figure need each other"),
        ("--word hund --figure a.png --most 0", "--most 0 leaves nothing to compare; give 2 or more"),
        ("--word hund --figure a.png --layer 0", "--figure draws every layer of one word; leave --layer"),
        ("--word hund --figure a.png --words", "--figure draws every layer of one word; leave --layer"),
        ("--word hund --figure a.png --out v.npy", "--figure cannot be combined with --out or --nearest"),
        ("--word hund --figure a.doc", "a.doc"),
        ("--nearest x --words", "--nearest compares lines; leave --words out"),
        ("--nearest=  ", "--nearest '' is empty; give some words"),
        ("--nearest x --top 0", "--top 0: give 1 or more"),
        ("--out v.npy --top 3", "--top 3 needs --nearest TEXT"),
        ("--out v.npy --most 3", "--most 3 needs --word WORD --figure FILE"),
        ("--out v.txt", "v.txt: vectors are written as .npy or .parquet"),
        ("--out v.npy --layer top", "layer 'top' is neither a number from 0, nor last, nor embedding"),
        ("--out v.npy --pooling sum", "pooling 'sum'"),
        ("--export v.txt", "--export writes the embedding table, which needs no texts"),
    ],
)
def test_wording_of_errors(folder: Path, arguments: str, message: str) -> None:
    assert embed("transformer", "texts.txt", *arguments.split(), code=1).startswith(message)
    assert [path.name for path in folder.iterdir()] == ["texts.txt"]


def test_one_vector_per_line() -> None:
    embed("transformer", "texts.txt", "--out", "v.npy", "--layer", "0", "--pooling", "max")
    expected = untrained("transformer").embed(TEXTS, layer=0, pooling="max")
    np.testing.assert_allclose(np.load("v.npy"), expected, atol=1e-5)
    assert rows("v.tsv") == [f"{number}\t{text}" for number, text in enumerate(TEXTS, 1)]


@pytest.mark.parametrize(("layer", "width"), [("0", 24), ("last", 16)])
def test_vectors_have_the_width_of_their_layer(layer: str, width: int) -> None:
    embed("wider layers", "texts.txt", "--out", "v.npy", "--layer", layer)
    assert np.load("v.npy").shape == (len(TEXTS), width)


def test_one_vector_per_word() -> None:
    embed("language-model", "texts.txt", "--out", "v.npy", "--words")
    assert rows("v.tsv") == [f"{number}\t{word}" for number, text in enumerate(TEXTS, 1) for word in text.split()]
    assert np.load("v.npy").shape == (len(rows("v.tsv")), 16)


def test_taggers_embed_the_words_of_tagged_files(monkeypatch: pytest.MonkeyPatch) -> None:
    run = untrained("tagger")
    data = run.recipe.data.model_copy(update={"train": (ConlluSource(file="train.conllu"),)})
    run.recipe = run.recipe.model_copy(update={"data": data})
    monkeypatch.setattr(Run, "load", staticmethod(lambda folder, **how: run))
    table = [
        [f"{place}\t{word}\t" + "\t".join("_" * 8) for place, word in enumerate(text.split(), 1)] for text in TEXTS
    ]
    Path("texts.conllu").write_text("".join("# text\n" + "\n".join(each) + "\n\n" for each in table), encoding="utf-8")
    for name in ("texts.txt", "texts.conllu"):
        embed("tagger", name, "--out", "texts.npy")
        assert rows("texts.tsv")[:2] == [f"1\t{TEXTS[0]}", f"2\t{TEXTS[1]}"]
    embed("tagger", "texts.conllu", "--out", "words.npy", "--words")
    assert len(np.load("words.npy")) == sum(map(len, table))


def test_the_nearest_line_to_a_line_is_itself() -> None:
    lines = embed("recurrent", "texts.txt", "--nearest", TEXTS[1], "--top", "2").splitlines()
    assert len(lines) == 2
    assert lines[0] == f"1.0000\t2\t{TEXTS[1]}"


def test_too_long_texts_are_named_by_option_or_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Task, "longest_source", lambda self: 40)
    message = embed("transformer", "texts.txt", "--nearest", "Hund " * 50, code=1)
    assert message.startswith("the text of --nearest has ")
    assert message.endswith("tokens and this model takes 40 (its learned positions); shorten or split it")
    (folder / "texts.txt").write_text("Hund\n" + "Hund " * 50 + "\n", encoding="utf-8")
    assert embed("transformer", "texts.txt", "--nearest", "Hund", code=1).startswith("line 2 has ")


def test_the_occurrences_of_a_word_are_drawn(folder: Path) -> None:
    embed("transformer", "texts.txt", "--word", "hund", "--figure", "hund.png")
    assert (folder / "hund.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["vectors.txt", "vectors.bin"])
@pytest.mark.parametrize("model", ["transformer", "language-model"])
def test_an_exported_table_is_read_back_as_word_vectors(model: str, name: str) -> None:
    embed(model, "--export", name)
    words, vectors = read_all_word_vectors(Path(name))
    run = untrained(model)
    source = model == "transformer"
    tokenizer = run.vocabulary.source if source else run.vocabulary.target
    table = run.model.source_embedding if source else run.model.embedding
    pieces = tokenizer.pieces(range(tokenizer.size))
    assert len(words) == len(set(words)) > 20
    for word, vector in list(zip(words, vectors, strict=True))[:20]:
        row = pieces.index("▁" + word) if "▁" + word in pieces else pieces.index(word)
        np.testing.assert_array_equal(vector, table.weight[row].detach().numpy())


def test_the_input_is_not_overwritten(folder: Path) -> None:
    texts = (folder / "texts.txt").rename(folder / "texts.tsv")  # texts.npy has its units in texts.tsv
    before = texts.read_bytes()
    message = embed("transformer", "texts.tsv", "--out", "texts.npy", code=1)
    assert message == "--out texts.npy would overwrite the input texts.tsv; give another name"
    assert texts.read_bytes() == before
    embed("transformer", "texts.tsv", "--out", "texts.parquet")
    assert texts.read_bytes() == before
