"""Losses of a test set: complete, in the requested order, and by length."""

from __future__ import annotations

import csv
import io
import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from sightline.data.sources import Example
from sightline.evaluation.breakdowns import LengthBucket
from sightline.inspection.corpus import (
    CorpusLosses,
    LengthLoss,
    SentenceLoss,
    TokenLoss,
    length_table,
    pair_losses,
    sentence_table,
    text_losses,
    token_table,
)
from sightline.models.seq2seq import Seq2Seq
from sightline.plots import lines
from sightline.plots.lines import Panel
from sightline.recipe import Recipe
from sightline.recipe.tokenizer import WordTokenizer
from sightline.text.tokenizer import END
from sightline.text.vocabulary import Vocabulary

EXAMPLES = [Example("ein hund", "a dog"), Example("hund", "dog"), Example("ein hund ein hund", "a dog a dog")]


def vocabulary() -> Vocabulary:
    return Vocabulary.train(WordTokenizer(kind="word", min_count=1, shared=True), lambda: iter(EXAMPLES))


def recipe() -> Recipe:
    body = {"kind": "recurrent", "cell": "gru", "layers": 1}
    source = {"kind": "tsv", "file": "none.tsv"}
    return Recipe.model_validate(
        {
            "data": {"train": [source], "validation": source},
            "tokenizer": {"kind": "word", "min_count": 1, "shared": True},
            "model": {"width": 8, "tie": "all", "encoder": body, "decoder": {**body, "attention": {"kind": "dot"}}},
        }
    )


def view() -> CorpusLosses:
    """Three sentences: the second is worst, the third longest, the first has the rarest token."""
    losses = {1: [(0.5, 1), (0.1, 50)], 2: [(3.0, 9)], 3: [(0.2, 7), (0.3, 90), (1.0, 80)]}
    rows = [
        SentenceLoss(
            number,
            f"source {number}",
            f"target {number}",
            [TokenLoss(number, p, f"w{number}{p}", loss, seen) for p, (loss, seen) in enumerate(own, 1)],
        )
        for number, own in losses.items()
    ]
    return CorpusLosses("test", rows)


def test_sentences_are_sorted_by_loss_length_and_rarity() -> None:
    assert [each.number for each in view().sorted("worst")] == [2, 3, 1]
    assert [each.number for each in view().sorted("longest")] == [3, 1, 2]
    assert [each.number for each in view().sorted("rarest")] == [1, 3, 2]


def test_tokens_are_sorted_by_loss_length_and_rarity() -> None:
    assert [each.token for each in view().sorted_tokens("worst")][:2] == ["w21", "w33"]
    assert [each.token for each in view().sorted_tokens("longest")] == ["w31", "w32", "w33", "w11", "w12", "w21"]
    assert [each.token for each in view().sorted_tokens("rarest")][:3] == ["w11", "w31", "w21"]


def test_the_loss_by_length_is_that_of_all_tokens() -> None:
    buckets = view().by_length()
    assert [bucket.label for bucket in buckets] == ["1", "2", "3"]
    assert sum(bucket.sentences for bucket in buckets) == 3
    assert sum(b.loss * b.tokens for b in buckets) / sum(b.tokens for b in buckets) == pytest.approx(view().loss)
    (whole,) = view().by_length(most=1)
    assert (whole.low, whole.high, whole.tokens) == (1, 3, 6)


def test_buckets_cover_all_sentences() -> None:
    tokens = [TokenLoss(1, 1, "x", 1.0)]
    many = CorpusLosses("test", [SentenceLoss(n, "", "", tokens * (1 + n % 40)) for n in range(200)])
    buckets = many.by_length(5)
    assert len(buckets) <= 5 and sum(bucket.sentences for bucket in buckets) == 200
    assert all(before.high < after.low for before, after in pairwise(buckets))


def test_csv_has_a_line_for_each_token_and_json_everything() -> None:
    rows = list(csv.DictReader(io.StringIO(view().to_csv("worst"))))
    assert len(rows) == 6 and rows[0]["token"] == "w21" and rows[0]["frequency"] == "9"
    data = json.loads(json.dumps(view().to_dict("longest")))
    assert data["sentences"][0]["number"] == 3 and len(data["sentences"][0]["tokens"]) == 3
    assert data["lengths"][0]["sentences"] == 1


def test_tables_escape_markup() -> None:
    marked = CorpusLosses("test", [SentenceLoss(1, "", "x", [TokenLoss(1, 1, "[bold]", 2.0, None, "[/]", "at")])])
    console = Console(width=120, record=True, file=io.StringIO())
    for table in (
        sentence_table(view(), "worst", 2),
        token_table(marked, "worst", 5),
        length_table(view().by_length()),
    ):
        console.print(table)
    text = console.export_text()
    assert "target 2" in text and "target 1" not in text
    assert "[bold]" in text and "[/]" in text


def test_losses_of_pairs_are_the_log_probabilities_of_their_tokens() -> None:
    torch.manual_seed(1)
    words, plan = vocabulary(), recipe()
    model = Seq2Seq(plan.model, words.source.size, words.target.size).eval()
    counts = np.arange(words.target.size) * 10
    found = pair_losses(model, plan, words, [*EXAMPLES, Example("", "")], on="test", counts=counts)
    assert [len(each.tokens) for each in found.sentences] == [3, 2, 5]  # with end marks, without empty examples
    from sightline.decoding.scoring import log_probabilities

    ids = [words.encode_pairs([e.source], [e.target]) for e in EXAMPLES]
    expected = log_probabilities(model, [pair[0][0] for pair in ids], [pair[1][0] for pair in ids])
    totals = [-sum(token.loss for token in each.tokens) for each in found.sentences]
    np.testing.assert_allclose(totals, expected, rtol=1e-4)
    token = found.sentences[0].tokens[1]
    assert token.token == "▁dog" and token.position == 2
    assert token.frequency == 10 * words.target.encode("dog")[0]


def test_language_model_text_is_split_into_windows() -> None:
    words = vocabulary()
    a, dog = words.target.encode("a dog")
    stream = np.array([a, dog, END, *[dog] * 300, END])
    losses = np.linspace(0, 1, len(stream))
    found = text_losses(stream, losses, words, on="text")
    assert [len(each.tokens) for each in found.sentences] == [3, 256, 45]
    assert found.loss == pytest.approx(losses.mean())
    assert found.sentences[0].target == "a dog"
    assert all(token.frequency is None and token.guess is None for token in found.sentences[0].tokens)


def test_empty_test_set_is_an_error() -> None:
    torch.manual_seed(1)
    words, plan = vocabulary(), recipe()
    model = Seq2Seq(plan.model, words.source.size, words.target.size).eval()
    with pytest.raises(ValueError, match="test_x has no tokens"):
        pair_losses(model, plan, words, [Example("", "")], on="test_x")


def test_uncounted_token_is_not_rarest() -> None:
    sentence = SentenceLoss(1, "", "", [TokenLoss(1, 1, "a", 1.0, None), TokenLoss(1, 2, "b", 2.0, 3)])
    assert sentence.rarest.token == "b" and not math.isinf(sentence.loss)


def test_losses_and_scores_are_drawn_in_the_middle_of_their_buckets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Panel] = []
    monkeypatch.setattr(lines, "draw_lines", lambda panels, *_, **__: drawn.extend(panels))
    losses = [LengthLoss(1, 4, 9, 30, 0.5), LengthLoss(5, 5, 8, 40, 0.7)]
    scores = [LengthBucket(2, 8, 9, {"lstm": 30.0}), LengthBucket(9, 30, 8, {"lstm": 20.0})]
    lines.draw_lengths(losses, scores, tmp_path / "lengths.png", name="lstm", metric="BLEU")
    assert [(list(line.x), list(line.y)) for panel in drawn for line in panel.lines] == [
        ([2.5, 5.0], [0.5, 0.7]),
        ([5.0, 19.5], [30.0, 20.0]),
    ]
    assert drawn[1].y_label == "BLEU"
