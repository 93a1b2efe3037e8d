"""Contextual vectors, and the occurrences of a word."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from pyarrow import parquet
from torch import nn

from sightline.inspection import word_senses
from sightline.inspection.embeddings import (
    Nearest,
    VectorOptions,
    cosines,
    embed_texts,
    layer_count,
    pool_pieces,
    vector_file,
)
from sightline.inspection.word_senses import Occurrences, find_occurrences, places_of, shown_layers
from sightline.layers.layout import Padded
from sightline.layers.tap import Tapped, on_taps
from sightline.models.ngram import CountedModel
from sightline.models.recurrent.config import RecurrentDecoderConfig
from sightline.models.transformer.config import TransformerConfig
from sightline.plots.senses import align_axes, draw_senses, principal_plane
from sightline.recipe.model import PositionsConfig
from sightline.text.tokenizer import END, START
from sightline.text.word_pieces import align_words
from untrained_runs import MODELS, WIDTHS, untrained

TEXTS = ["Ein Hund bellt laut.", "", "Zwei Männer spielen Schach, 漢字 und mehr.", "Hund"]


@pytest.mark.parametrize("name", list(MODELS))
def test_every_kind_of_model_has_vectors_of_every_layer_for_every_piece(name: str) -> None:
    run = untrained(name)
    for layer in ("embedding", *range(layer_count(run.model)), "last"):
        found = run.embed_units(TEXTS, layer=layer)  # type: ignore[arg-type]
        assert [len(each.units) for each in found] == [each.vectors.shape[0] for each in found]
        assert found[1].units == [] and len(found[0].units) > 3
        assert all(each.vectors.shape[1] == 16 and np.isfinite(each.vectors).all() for each in found)
    assert run.embed(TEXTS).shape == (4, 16)


@pytest.mark.parametrize("name", list(WIDTHS))
def test_empty_text_has_vectors_of_layer_width(name: str) -> None:
    run = untrained(name)
    for layer, width in (("embedding", 16), (0, 24), (1, 24), ("last", 16)):
        assert [each.vectors.shape[1] for each in run.embed_units(TEXTS, layer=layer)] == [width] * 4  # type: ignore[arg-type]
        assert run.embed(TEXTS, layer=layer).shape == (4, width)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [name for name in MODELS if name != "decoder-only"])
def test_batched_vectors_equal_single(name: str) -> None:
    run = untrained(name)
    for layer in ("last", 0):
        together = run.embed_units(TEXTS, layer=layer)[0].vectors  # type: ignore[arg-type]
        alone = run.embed_units(TEXTS[:1], layer=layer)[0].vectors  # type: ignore[arg-type]
        np.testing.assert_allclose(together, alone, atol=1e-5)


def test_vectors_equal_states_of_padded_pass() -> None:
    run = untrained("transformer")
    ids = run.encode_sources(TEXTS[:1])[0]
    recorded: dict[str, torch.Tensor] = {}

    def hear(tapped: Tapped) -> None:
        recorded[tapped.name] = tapped.tensor

    with torch.inference_mode(), on_taps(run.model, hear):
        run.model.encode(torch.tensor([[*ids, END]]), Padded.of([len(ids) + 1]))
    for layer, tap in (("last", "encoder.output"), (0, "encoder.layers.0.output")):
        found = run.embed_units(TEXTS[:1], layer=layer)[0]  # type: ignore[arg-type]
        np.testing.assert_allclose(found.vectors, recorded[tap][0, :-1].numpy(), atol=1e-5)
    entering = run.model.source_embedding(torch.tensor(ids)).detach()
    np.testing.assert_allclose(run.embed_units(TEXTS[:1], layer="embedding")[0].vectors, entering.numpy(), atol=1e-6)


@pytest.mark.parametrize("carried", [False, True])
def test_language_model_vectors_follow_its_special_tokens(carried: bool) -> None:
    """With carried states, a text is preceded only by the end mark of the text before it."""
    run = untrained("language-model")
    recipe, marks = run.recipe, [START, END]
    if carried:
        own = recipe.model.model_copy(update={"decoder": RecurrentDecoderConfig()})
        recipe, marks = recipe.model_copy(update={"model": own}), [END]
    (ids,) = run.encode_sources(TEXTS[:1])
    with torch.inference_mode():
        whole = run.model(None, None, torch.tensor([[*marks, *ids]]), Padded.of([len(marks) + len(ids)]))[0]
    (found,) = embed_texts(replace(run.task, recipe=recipe), TEXTS[:1], VectorOptions(pooling="none"))
    np.testing.assert_allclose(found.vectors, whole[len(marks) :].numpy(), atol=1e-5)


def test_classifier_vectors_follow_class_token() -> None:
    run = untrained("classifier")
    ids = run.encode_sources(TEXTS[:1])[0]
    assert run.embed_units(TEXTS[:1], layer="embedding")[0].vectors == pytest.approx(
        run.model.source_embedding(torch.tensor(ids)).detach().numpy(), abs=1e-6
    )


def test_the_vectors_of_a_recurrent_language_model_are_the_states_of_its_layers() -> None:
    run = untrained("recurrent language-model")
    assert layer_count(run.model) == 2
    (first,), (second,), (last,) = (run.embed_units(TEXTS[:1], layer=layer) for layer in (0, 1, "last"))  # type: ignore[arg-type]
    np.testing.assert_allclose(second.vectors, last.vectors, atol=1e-6)
    assert not np.allclose(first.vectors, last.vectors, atol=1e-2)


def test_truncated_source_has_vectors_for_kept_pieces() -> None:
    run = untrained("transformer")
    text, word = "Ein Hund bellt laut.", "Hund"
    first, second, *_ = align_words(run.vocabulary.source, text).members.sum(axis=0).tolist()
    clean = run.recipe.data.clean.model_copy(update={"truncate_source": first + second})
    recipe = run.recipe.model_copy(update={"data": run.recipe.data.model_copy(update={"clean": clean})})
    case = replace(run.task, recipe=recipe)
    (found,) = embed_texts(case, [text], VectorOptions(words=True))
    assert found.units == ["Ein", "Hund", "bellt", "laut."]
    assert found.vectors.any(axis=1).tolist() == [True, True, False, False]
    texts = [text, "Ein Ein Hund", text]  # the second is truncated before the word
    assert find_occurrences(case, texts, word).contexts == ["Ein [Hund] bellt laut."] * 2


def test_no_attention_is_computed_explicitly_for_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    run = untrained("transformer")
    calls = []
    kernel = nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        nn.functional, "scaled_dot_product_attention", lambda *a, **k: calls.append(1) or kernel(*a, **k)
    )
    run.embed_units(["Hund"], layer=0)
    assert len(calls) == 2  # one for each layer of the encoder


def test_texts_are_pooled_batch_by_batch() -> None:
    run = untrained("transformer")
    texts = ["Ein Hund bellt laut. " * 100] * 32
    expected = run.embed(texts[:1])[0]
    tracemalloc.start()
    found = embed_texts(run.task, texts, VectorOptions())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    pieces = sum(len(ids) for ids in run.encode_sources(texts))
    assert peak < pieces * 16 * 4, "less than the states of all of them"
    np.testing.assert_allclose(found[-1].vectors[0], expected, atol=1e-5)


def test_a_word_is_the_mean_the_maximum_or_the_first_of_its_pieces() -> None:
    states = np.array([[1.0, 4.0], [3.0, 2.0], [5.0, 5.0]], np.float32)
    members = np.array([[True, False, False], [True, False, False], [False, True, False]])
    assert pool_pieces(states, members, "mean").tolist() == [[2, 3], [5, 5], [0, 0]]
    assert pool_pieces(states, members, "max").tolist() == [[3, 4], [5, 5], [0, 0]]
    assert pool_pieces(states, members, "first").tolist() == [[1, 4], [5, 5], [0, 0]]


@pytest.mark.parametrize("name", ["transformer", "recurrent", "language-model"])
def test_words_are_pooled_over_their_own_pieces(name: str) -> None:
    run = untrained(name)
    (pieces,), (words,) = (
        run.embed_units(["Zwei Männer"]),
        run.embed_units(["Zwei Männer"], pooling="mean", words=True),
    )
    members = align_words(run.vocabulary.source, "Zwei Männer").members
    assert words.units == ["Zwei", "Männer"]
    for number in range(2):
        np.testing.assert_allclose(pieces.vectors[members[:, number]].mean(0), words.vectors[number], atol=1e-5)


def test_tagger_words_are_tokenized_separately() -> None:
    run = untrained("tagger")
    first, second = (len(word) for word in run.vocabulary.encode_words(["abc d"])[0])
    (pieces,), (words,) = run.embed_units(["abc d"]), run.embed_units(["abc d"], pooling="first", words=True)
    assert len(pieces.units) == first + second
    np.testing.assert_allclose(words.vectors, pieces.vectors[[0, first]])
    assert run.embed_units(["abc  d"], pooling="first", words=True)[0].units == ["abc", "d"]
    (nothing,) = run.embed_units([" "], pooling="first", words=True)
    assert nothing.units == [] and nothing.vectors.shape == (0, 16)


def test_states_depend_on_context_and_embeddings_do_not() -> None:
    run = untrained("transformer")
    texts = ["Ein Hund bellt", "Zwei Hund bellt"]
    plain, read = (
        [each.vectors[1] for each in run.embed_units(texts, layer=layer, pooling="mean", words=True)]  # type: ignore[arg-type]
        for layer in ("embedding", "last")
    )
    np.testing.assert_allclose(*plain, atol=1e-6)
    assert not np.allclose(*read, atol=1e-2)


def test_models_without_vectors_are_refused() -> None:
    run = untrained("transformer")
    with pytest.raises(ValueError, match="there is no layer 2: this model has layers 0 to 1; last and embedding"):
        run.embed(TEXTS, layer=2)
    with pytest.raises(ValueError, match="there is no layer -1"):
        run.embed(TEXTS, layer=-1)
    with pytest.raises(ValueError, match="vectors of words need a pooling"):
        run.embed_units(TEXTS, words=True)
    with pytest.raises(TypeError, match=r"embed takes a list of texts"):
        run.embed("Ein Hund")
    with pytest.raises(ValueError, match="embed with one of them"):
        embed_texts(replace(run.task, members=(run.task,)), TEXTS, VectorOptions())


# --- places of a word -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "text", "found"),
    [
        ("bank", "Bank banks at the bank, riverbank", [(0, 4), (18, 22)]),
        ("銀行", "彼は銀行へ行く", [(2, 4)]),
        ("bank", "銀行bankへbanks", [(2, 6)]),
        ("क", "क की", [(0, 1)]),
        ("ल", "नील ल", [(4, 5)]),
        ("a.b", "a.b axb", [(0, 3)]),
    ],
)
def test_places_of_finds_whole_words_in_any_case(word: str, text: str, found: list[tuple[int, int]]) -> None:
    assert places_of(word, text) == found


@pytest.mark.parametrize("name", ["transformer", "language-model", "tagger"])
def test_occurrences_have_vectors_and_contexts(name: str) -> None:
    run = untrained(name)
    texts = ["Ein Hund bellt laut.", "Zwei Männer", "über den hund 🙂. " + "und mehr " * 9]
    found = find_occurrences(run.task, texts, "Hund")
    assert found.contexts == ["Ein [Hund] bellt laut.", "über den [hund] 🙂. und mehr und mehr…"]
    assert list(found.layers) == ["embedding", "layer 0", "last"]
    assert all(vectors.shape == (2, 16) for vectors in found.layers.values())
    words = run.embed_units(texts, words=True, pooling="mean")
    np.testing.assert_allclose(found.layers["last"], [words[0].vectors[1], words[2].vectors[2]], atol=1e-5)
    assert find_occurrences(run.task, texts * 2, "Hund", most=3).contexts == [*found.contexts, found.contexts[0]]
    with pytest.raises(ValueError, match="'Schach' occurs 0 times"):
        find_occurrences(run.task, texts, "Schach")
    with pytest.raises(ValueError, match="'Zwei' occurs 1 time "):
        find_occurrences(run.task, texts, "Zwei")


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        ("one two three four five ", " one two three four five", "one two three four five [x] one two three four five"),
        (
            "tone two three four five ",
            " one two three four fives",
            "…two three four five [x] one two three four…",
        ),
        (
            "and one two three four five ",
            " one two three four five and",
            "…one two three four five [x] one two three four five…",
        ),
        ("a" * 30, "b" * 30, "…" + "a" * 24 + "[x]" + "b" * 24 + "…"),
        ("a" * 30 + " ", " " + "b" * 30, "…" + "a" * 23 + " [x] " + "b" * 23 + "…"),
    ],
)
def test_context_has_24_characters_of_whole_words(before: str, after: str, shown: str) -> None:
    assert word_senses._context(f"{before}x{after}", len(before), len(before) + 1) == shown


def test_occurrences_in_tagger_text_with_extra_spaces() -> None:
    run = untrained("tagger")
    texts = ["Zwei\u00a0Hunde\u00a0hier und (Ein Hund", "Ein Hund"]
    found = find_occurrences(run.task, texts, "ein")
    assert found.contexts == ["Zwei Hunde hier und ([Ein] Hund", "[Ein] Hund"]
    last = run.embed_units(texts, words=True, pooling="mean")
    np.testing.assert_allclose(found.layers["last"], [last[0].vectors[2], last[1].vectors[0]], atol=1e-5)


def test_occurrences_need_vectors() -> None:
    answerer = replace(untrained("language-model").task, model=CountedModel())
    with pytest.raises(ValueError, match="an n-gram model counts and has no vectors"):
        find_occurrences(answerer, ["Ein Hund", "Ein Hund"], "Hund")


def test_a_sentence_too_long_for_a_tagger_is_named() -> None:
    run = untrained("tagger")
    encoder = run.recipe.model.encoder
    assert isinstance(encoder, TransformerConfig)
    few = encoder.model_copy(update={"positions": PositionsConfig(kind="learned", max_positions=4)})
    recipe = run.recipe.model_copy(update={"model": run.recipe.model.model_copy(update={"encoder": few})})
    case = replace(run.task, recipe=recipe)
    with pytest.raises(ValueError, match="sentence 2 has 6 tokens and this model takes 3"):
        embed_texts(case, ["a b", "a b c d e"], VectorOptions())
    with pytest.raises(ValueError, match="sentence 2 has 6 tokens and this model takes 3"):
        find_occurrences(case, ["a b", "a b c d e"], "e")


@pytest.mark.parametrize(("count", "shown"), [(5, [0, 1, 2, 3]), (6, [0, 1, 3, 4]), (12, [0, 3, 7, 10])])
def test_shown_layers_are_evenly_spaced(count: int, shown: list[int]) -> None:
    case = untrained("transformer").task
    deep = nn.Module()
    deep.encoder = nn.Module()
    deep.encoder.layers = nn.ModuleList(case.model.encoder.layers[0] for _ in range(count))
    assert shown_layers(replace(case, model=deep)) == ["embedding", *shown, "last"]


def test_the_plane_holds_the_two_directions_of_most_variance() -> None:
    draw = np.random.default_rng(1)
    flat = draw.normal(size=(20, 2)) * [5.0, 1.0]
    turn = np.linalg.qr(draw.normal(size=(6, 6)))[0][:2]
    places, shares = principal_plane((flat @ turn + 3.0).astype(np.float32))
    centred = flat - flat.mean(0)
    apart = np.linalg.norm(places[:, None] - places[None], axis=-1)
    np.testing.assert_allclose(apart, np.linalg.norm(centred[:, None] - centred[None], axis=-1), atol=1e-4)
    assert shares.sum() == pytest.approx(1.0)
    assert shares[0] > 0.8


def test_equal_vectors_project_to_one_point() -> None:
    places, shares = principal_plane(np.full((5, 3), 0.1, np.float32))
    assert not places.any() and not shares.any()


def test_planes_are_aligned_by_rotation() -> None:
    model = np.array([[1.0, 2.0], [-1.0, -2.0]])
    assert align_axes(model * [-1, 1], model).tolist() == model.tolist()


def test_a_picture_is_drawn_for_places_in_any_script(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    contexts = ["at the [bank] of the river", "彼は[銀行]へ行く", "$a [बैंक] b$ 🙂"]
    layers = {"embedding": np.ones((3, 4), np.float32), "last": draw.normal(size=(3, 4)).astype(np.float32)}
    for name in ("a.png", "b.png", "c.svg"):
        draw_senses(Occurrences("bank", contexts, layers), tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert (tmp_path / "c.svg").stat().st_size > 1000


# --- neighbours -------------------------------------------------------------------------------------------------------


def test_nearest_in_blocks_equals_all_at_once() -> None:
    draw = np.random.default_rng(1)
    vectors, query = draw.normal(size=(50, 8)).astype(np.float32), draw.normal(size=8).astype(np.float32)
    near = Nearest(query, 5)
    for start in range(0, 50, 7):
        lines = list(range(start, min(start + 7, 50)))
        near.offer(lines, [f"t{line}" for line in lines], vectors[start : start + 7])
    expected = vectors @ query / np.linalg.norm(vectors, axis=1) / np.linalg.norm(query)
    assert [line for _, line, _ in near.best] == np.argsort(-expected)[:5].tolist()
    assert near.best[0][0] == pytest.approx(expected.max(), abs=1e-6)
    assert near.best[0][2] == f"t{near.best[0][1]}"


def test_zero_vector_has_cosine_zero() -> None:
    assert cosines(np.array([[0.0, 0.0], [2.0, 0.0]], np.float32), np.array([1.0, 0.0], np.float32)).tolist() == [0, 1]


# --- files ------------------------------------------------------------------------------------------------------------

BLOCKS = [([1, 1, 2], ["▁Ein", "x\ty", "漢"], np.arange(6, dtype=np.float32).reshape(3, 2))] * 2


@pytest.mark.parametrize("count", [0, 2])
def test_npy_file_written_in_blocks(tmp_path: Path, count: int) -> None:
    with vector_file(tmp_path / "v.npy", 2) as rows:
        for block in BLOCKS[:count]:
            rows.write(*block)
    found = np.load(tmp_path / "v.npy")
    assert found.dtype == np.float32
    assert found.tolist() == [row for _, _, vectors in BLOCKS[:count] for row in vectors.tolist()]
    assert (tmp_path / "v.tsv").read_text(encoding="utf-8") == "1\t▁Ein\n1\tx y\n2\t漢\n" * count


def test_parquet_file_written_in_blocks(tmp_path: Path) -> None:
    with vector_file(tmp_path / "v.parquet", 2) as rows:
        for block in BLOCKS:
            rows.write(*block)
    table = parquet.read_table(tmp_path / "v.parquet")
    assert table.column("line").to_pylist() == [1, 1, 2] * 2
    assert table.column("unit").to_pylist() == ["▁Ein", "x\ty", "漢"] * 2
    assert table.column("vector").to_pylist() == [[0, 1], [2, 3], [4, 5]] * 2


def test_unfinished_vector_file_is_removed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="longer"), vector_file(tmp_path / "v.npy", 2) as rows:
        rows.write([1], ["one", "too many"], np.ones((1, 2), np.float32))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match=r"written as .npy or .parquet"), vector_file(tmp_path / "v.txt", 2):
        pass
