"""Recipes whose sources have not the sides that the task needs, and what is said of sides that are not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sightline.recipe.checks import check_trainable
from sightline.recipe.loading import RecipeError, load_recipe
from sightline.training.resolve import open_recipe
from task_cases import LSTM, TRANSFORMER, WRITER, case, write

TRANSLATOR = case("seq2seq", {"encoder": LSTM, "decoder": LSTM})
WRITING = case("language-model", {"decoder": WRITER})
COUNTING = case("language-model", {"decoder": {"kind": "ngram"}})
PLAIN = {"kind": "plain", "file": "train.txt"}


def with_data(recipe: dict[str, Any], **data: Any) -> dict[str, Any]:
    return {**recipe, "data": {**recipe["data"], **data}}


WRONG = {
    "a translator of plain text": (
        with_data(TRANSLATOR, train=[PLAIN]),
        r"data\.train\.0\.kind: plain is text without a source side, and task: seq2seq learns from pairs; use text",
    ),
    "a classifier tested on plain text": (
        with_data(case("classification", {"encoder": LSTM, "pooling": {"kind": "max"}}), tests={"own": PLAIN}),
        r"data\.tests\.own\.kind: plain is text without a source side, and task: classification",
    ),
    "sides of plain text exchanged": (
        with_data(WRITING, swap=True),
        r"data\.swap: true has no sides to exchange in data\.train\.0, of kind: plain; leave it out",
    ),
    "a share of plain text": (
        with_data(WRITING, train=[{**PLAIN, "share": [0.0, 0.5]}]),
        r"data\.train\.0\.share goes by a hash of the source side, and kind: plain has none.*by data\.train\.0\.part",
    ),
    "two vocabularies of one text": (
        {**WRITING, "tokenizer": {"kind": "word", "shared": False}},
        r"tokenizer\.shared: false .* is for two vocabularies, and task: language-model has one text; leave it out",
    ),
    "vectors of counted words": (
        {**COUNTING, "model": {**COUNTING["model"], "word_vectors": {"file": "glove.txt"}}},
        r"model\.word_vectors .* model\.decoder\.kind: ngram has no embeddings; leave it out",
    ),
    "counts of half a text": (
        with_data(COUNTING, train=[{**PLAIN, "weight": 0.5}]),
        r"weights \(0\.5\) of data\.train: model\.decoder\.kind: ngram counts every text once; leave the weights out",
    ),
    "a validation that counts half": (
        with_data(WRITING, validation={**PLAIN, "weight": 0.5}),
        r"validation\.weight \(0\.5\) says how often an example is trained on, and these are not; leave it out",
    ),
    "a test that counts twice": (
        with_data(WRITING, tests={"own": {**PLAIN, "weight": 2}}),
        r"tests\.own\.weight \(2\)",
    ),
    "coverage of a decoder alone": (
        {**case("seq2seq", {"decoder": TRANSFORMER}), "decoding": {"coverage_penalty": 0.2}},
        r"decoding\.coverage_penalty.* needs a decoder with attention to an encoder; set it to 0",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_sources_without_the_needed_sides_are_refused(name: str, tmp_path: Path) -> None:
    recipe, match = WRONG[name]
    with pytest.raises(RecipeError, match=match):
        open_recipe(write(tmp_path, recipe))


def test_the_other_side_of_pairs_is_a_text_too(tmp_path: Path) -> None:
    pairs = {"kind": "tsv", "file": "pairs.tsv"}
    recipe = with_data(WRITING, train=[pairs], validation=pairs, tests={}, swap=True)
    check_trainable(load_recipe(write(tmp_path, recipe)))
