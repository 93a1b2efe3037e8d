"""Recipes that do not fit their task are refused with the key and the remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sightline.recipe.loading import RecipeError, load_recipe
from sightline.training.resolve import open_recipe
from task_cases import CASES, LEARNED, LSTM, TRANSFORMER, WRITER, case, metrics, write

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a tagger that writes": (
        case("tagging", {"encoder": LSTM, "decoder": LSTM}),
        r"task: tagging has no use for model\.decoder; leave it out, or change the task",
    ),
    "a language model that reads": (
        case("language-model", {"encoder": LSTM, "decoder": WRITER}),
        r"task: language-model has no use for model\.encoder; leave it out",
    ),
    "a tagger that pools": (
        case("tagging", {"encoder": LSTM, "pooling": {"kind": "max"}}),
        r"task: tagging has no use for model\.pooling; leave it out",
    ),
    "a classifier without pooling": (
        case("classification", {"encoder": LSTM}),
        r"task: classification needs model\.pooling",
    ),
    "a tagger without an encoder": (case("tagging", {"decoder": LSTM}), r"task: tagging needs model\.encoder"),
    "a translator without a decoder": (case("seq2seq", {"encoder": LSTM}), r"task: seq2seq needs model\.decoder"),
    "counts that translate": (
        case("seq2seq", {"encoder": LSTM, "decoder": {"kind": "ngram"}}),
        r"model\.decoder\.kind: ngram counts text and cannot look at a source; use it with task: language-model",
    ),
    "counts that translate alone": (case("seq2seq", {"decoder": {"kind": "ngram"}}), r"use it with task: language-mod"),
    "attention to nothing": (
        case("language-model", {"decoder": LSTM}),
        r"model\.decoder\.attention\.kind: additive has no encoder to look at; set it to none",
    ),
    "attention of a decoder alone": (case("seq2seq", {"decoder": LSTM}), r"has no encoder to look at; set it to none"),
    "a decoder alone with two embeddings": (
        case("seq2seq", {"decoder": WRITER, "tie": "output"}),
        r"has one embedding; set model\.tie: all",
    ),
    "a class token read forwards": (
        case("classification", {"encoder": {**LSTM, "bidirectional": False}, "pooling": {"kind": "class"}}),
        r"model\.pooling\.kind: class .* set it to last, or model\.encoder\.bidirectional: true",
    ),
    "a metric of another task": (
        metrics(case("tagging", {"encoder": LSTM}), "bleu"),
        r"evaluation\.metrics: bleu is not for task: tagging; use token-accuracy, span-f1",
    ),
    "a metric that needs a translation": (
        metrics(case("language-model", {"decoder": WRITER}), "perplexity", "exact"),
        r"evaluation\.metrics: exact is not for task: language-model; use perplexity, bits-per-character",
    ),
    "too few learned positions": (
        case("language-model", {"decoder": {**TRANSFORMER, "positions": {"kind": "learned", "max_positions": 15}}}),
        r"decoder\.positions\.max_positions \(15\) is less than training\.batches\.context \(16\); raise it, or lower",
    ),
    "too few learned positions for a class token": (
        case(
            "classification",
            {
                "encoder": {**TRANSFORMER, "positions": {"kind": "learned", "max_positions": 33}},
                "pooling": {"kind": "class"},
            },
        ),
        r"model\.encoder\.positions\.max_positions \(33\) is less than .* class token \(34\)",
    ),
    "too few learned positions for a pair": (
        case("seq2seq", {"decoder": {**TRANSFORMER, "positions": {"kind": "learned", "max_positions": 65}}}),
        r"model\.decoder\.positions\.max_positions \(65\) is less than .* end to end \(66\)",
    ),
    "outputs longer than the learned positions": (
        {
            **case("seq2seq", {"encoder": LSTM, "decoder": {**TRANSFORMER, "positions": LEARNED}}),
            "decoding": {"min_length": 34},
        },
        r"decoding\.min_length \(34\) leaves no room for an end mark below .*positions\.max_positions \(34\)",
    ),
    "text that is cleaned in pairs": (
        {**CASES["language model, lstm"], "data": {**CASES["tagger, lstm"]["data"]}},
        r"data\.clean is for pairs of texts, and task: language-model has none; leave it out",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_unsuitable_recipes_are_refused_with_the_remedy(name: str, tmp_path: Path) -> None:
    recipe, match = WRONG[name]
    with pytest.raises(RecipeError, match=match):
        open_recipe(write(tmp_path, recipe))


@pytest.mark.parametrize("task", ["language-model", "classification", "tagging"])
def test_every_task_has_a_default_metric(task: str, tmp_path: Path) -> None:
    parts = {"language-model": {"decoder": WRITER}, "tagging": {"encoder": LSTM}}
    model = parts.get(task, {"encoder": LSTM, "pooling": {"kind": "mean"}})
    defaults = {"language-model": "perplexity", "classification": "accuracy", "tagging": "token-accuracy"}
    assert load_recipe(write(tmp_path, case(task, model))).evaluation.metrics[0] == defaults[task]
