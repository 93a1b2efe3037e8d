"""Soft and hard lookup, "bank" and "river", chains of bigrams, and heads by relation, against counts by hand."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from sightline.cli.app import app
from sightline.inspection.attention import attentions, short_name, trace_heads
from sightline.inspection.claims.bigrams import TEXT, Bigrams, bigrams_claim
from sightline.inspection.claims.lookup import hard_lookup, keys_and_values, lookup_claim, soft_lookup
from sightline.inspection.claims.relations import (
    ParsedSentence,
    RelationScores,
    read_parsed,
    sentence_weights,
    word_weights,
)
from sightline.inspection.claims.similarity import CUES, FILLERS, BankClassifier, sentences, similarity_claim
from sightline.run import Run


def test_a_soft_lookup_averages_all_values_by_similarity() -> None:
    keys, values = keys_and_values()
    weights, output = soft_lookup(keys[3], keys, values, 4.0)
    exponentials = [math.exp(4 * math.cos(2 * math.pi * (3 - j) / 5)) for j in range(5)]
    assert weights.tolist() == pytest.approx([each / sum(exponentials) for each in exponentials])
    expected = sum(10 * (j + 1) * each for j, each in enumerate(exponentials)) / sum(exponentials)
    assert output == pytest.approx(expected)


def test_a_sharp_soft_lookup_is_a_hard_lookup() -> None:
    keys, values = keys_and_values()
    for key, value in zip(keys, values.tolist(), strict=True):
        assert hard_lookup(key, keys, values) == value
        assert soft_lookup(key, keys, values, 200.0)[1] == pytest.approx(value)
    between = (keys[0] + keys[1]) / 2
    assert hard_lookup(between, keys, values) is None and soft_lookup(between, keys, values)[1] > 0
    assert any("no answer" in note for note in lookup_claim("200").notes)


def test_simplified_self_attention_is_a_softmax_of_similarities() -> None:
    torch.manual_seed(2)
    x = torch.randn(1, 3, 4)
    weights = BankClassifier(4, projected=False)(x)[1][0]
    for i in range(3):
        row = [math.exp(float(x[0, i] @ x[0, j])) for j in range(3)]
        assert weights[i].tolist() == pytest.approx([each / sum(row) for each in row], rel=1e-4)
    model = BankClassifier(4, projected=True)
    query, key = model.query.weight, model.key.weight
    row = [math.exp(float((query @ x[0, 2]) @ (key @ x[0, j])) / 2) for j in range(3)]
    assert model(x)[1][0, 2].tolist() == pytest.approx([each / sum(row) for each in row], rel=1e-4)


def test_each_sentence_has_one_cue_and_ends_with_bank() -> None:
    tokens, meanings = sentences(50, 6, torch.Generator().manual_seed(1))
    cues = (tokens >= len(FILLERS)) & (tokens < len(FILLERS) + len(CUES))
    assert (cues.sum(1) == 1).all() and (tokens[:, -1] == len(FILLERS) + len(CUES)).all()
    assert (meanings == (tokens[cues] - len(FILLERS)) // 2).all()


def test_learned_projections_let_bank_attend_to_river() -> None:
    rows = {row[0]: row for row in similarity_claim("the river is near the bank", steps=150).tables[0].rows}
    river, bank = 2, 6
    assert rows["simplified"][bank] > 0.5 > rows["simplified"][river]  # type: ignore[operator]
    assert rows["projected"][river] > 0.9  # type: ignore[operator]
    assert rows["projected"][-1] > rows["simplified"][-1]  # type: ignore[operator]
    with pytest.raises(ValueError, match="'dog' has no vector"):
        similarity_claim("the dog bank")


def test_the_chain_of_bigrams_is_counted() -> None:
    claim = bigrams_claim(sentence="I want to eat Chinese food")
    lines, product = [f"<s> {line} </s>".split() for line in TEXT.splitlines()], 1.0
    chain = pairwise(["<s>", "I", "want", "to", "eat", "Chinese", "food", "</s>"])
    for row, (before, word) in zip(claim.tables[0].rows, chain, strict=True):
        pairs = sum(line[k : k + 2] == [before, word] for line in lines for k in range(len(line)))
        times = sum(line[:-1].count(before) for line in lines)
        assert (str(row[0]).strip(), row[1], row[2]) == (f"{before} {word}", pairs, times)
        assert row[3] == pytest.approx(pairs / times)
        product *= pairs / times
    assert claim.numbers["probability"] == pytest.approx(product) == pytest.approx(1 / 12)
    assert any("no probability" in note for note in bigrams_claim(sentence="I sleep").notes)


def test_sentences_are_drawn_by_the_counts() -> None:
    from random import Random

    bigrams, random = Bigrams.of(line.split() for line in TEXT.splitlines()), Random(1)
    drawn = [bigrams.draw(random) for _ in range(2_000)]
    assert all(bigrams.probability(a, b) > 0 for words in drawn for a, b in pairwise(words))
    assert sum(words[0] == "I" for words in drawn) / 2_000 == pytest.approx(0.5, abs=0.05)


def test_weights_of_words_add_up_tokens_attended_to() -> None:
    weights = np.array([[0.1, 0.2, 0.7], [0.3, 0.3, 0.4], [0.0, 0.5, 0.5]])
    expected = [[(0.1 + 0.2 + 0.3 + 0.3) / 2, (0.7 + 0.4) / 2], [0.5, 0.5]]  # two tokens, one token
    np.testing.assert_allclose(word_weights(weights, [2, 1]), expected)


def test_heads_and_offsets_are_scored_by_relation() -> None:
    sentence = ParsedSentence(("the", "dog", "sleeps"), (1, 2, -1), ("det", "nsubj", "root"))
    right_neighbour = np.array([[0.9, 0.1, 0.0], [0.1, 0.5, 0.4], [0.5, 0.2, 0.3]])  # itself does not count
    first = np.array([[0.0, 0.5, 0.5], [0.9, 0.0, 0.1], [0.9, 0.1, 0.0]])
    scores = RelationScores()
    scores.add(sentence, {"0.0": right_neighbour, "0.1": first})
    assert scores.total == {"det": 1, "nsubj": 1} and scores.offsets["det"] == {1: 1}
    assert scores.right["det"]["0.0", "to head"] == 1 and scores.right["nsubj"]["0.0", "to head"] == 1
    assert scores.right["det"]["0.1", "from head"] == 1 and scores.right["nsubj"]["0.1", "to head"] == 0
    assert scores.rows(1)[0][:4] == ["det", 1, "+1", 1.0]


def test_a_treebank_is_read_with_heads_and_relations(tmp_path: Path) -> None:
    file = tmp_path / "small.conllu"
    rows = [("1", "dogs", "2", "nsubj:pass"), ("2", "bark", "0", "root")]
    lines = ["\t".join((number, word, *"_" * 4, head, name, "_", "_")) for number, word, head, name in rows]
    file.write_text("\n".join(lines) + "\n\n", encoding="utf-8")
    (sentence,) = read_parsed(file)
    assert sentence == ParsedSentence(("dogs", "bark"), (1, -1), ("nsubj", "root"))


@pytest.mark.parametrize("name", ["lookup", "similarity --steps 5", "mask", "bigrams"])
def test_the_commands_print_and_write_json(name: str, tmp_path: Path) -> None:
    words, file = ["inspect", "claims", *name.split()], tmp_path / "claim.json"
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0 and len(result.output.splitlines()) > 8
    assert CliRunner().invoke(app, [*words, "--json", str(file)], catch_exceptions=False).exit_code == 0
    assert file.stat().st_size > 200


@pytest.fixture(scope="module")
def tagger(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A Transformer tagger after two steps."""
    folder = tmp_path_factory.mktemp("runs") / "tagger"
    body = "model.encoder={kind: transformer, layers: 2, heads: 2, dropout: 0.0}"
    sizes = ["data.train.0.examples=100", "data.validation.examples=10", "training.limits.steps=2", "model.width=16"]
    words = ["train", "phrases/tagger", body, *sizes, "tokenizer={kind: bpe, size: 150, shared: true}"]
    result = CliRunner().invoke(app, [*words, "--out", str(folder)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return Run.load(folder, device="cpu")


def test_weights_between_words_are_those_of_a_trace(tagger: Run) -> None:
    words = ["the", "old", "dog", "knew", "Martha"]
    weights = sentence_weights(tagger, list(attentions(tagger.model)), words)
    (pieces,) = tagger.vocabulary.encode_words([" ".join(words)])
    counts = [len(word) for word in pieces]
    assert weights is not None and max(counts) > 1
    heads = trace_heads(tagger.trace(" ".join(words)))
    assert {short_name(f"{head.path}.{head.number}") for head in heads} == set(weights) and len(heads) == 4
    for head in heads:
        expected = word_weights(head.weights[: sum(counts), : sum(counts)].astype(np.float64), counts)
        np.testing.assert_allclose(weights[short_name(f"{head.path}.{head.number}")], expected, atol=1e-5)


def test_relations_of_a_tagger_are_shown(tagger: Run, tmp_path: Path) -> None:
    file = tmp_path / "small.conllu"
    rows = [("1", "the", "2", "det"), ("2", "dog", "3", "nsubj"), ("3", "barks", "0", "root")]
    lines = ["\t".join((number, word, *"_" * 4, head, name, "_", "_")) for number, word, head, name in rows]
    file.write_text(("\n".join(lines) + "\n\n") * 3, encoding="utf-8")
    words = ["inspect", "claims", "relations", str(tagger.folder), "--file", str(file), "--fewest", "3"]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0 and "det" in result.output and "nsubj" in result.output
    with pytest.raises(ValueError, match="no relation has 50 words"):
        CliRunner().invoke(app, words[:-2], catch_exceptions=False)
