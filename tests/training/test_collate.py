"""What each task shows its model, and what it wants of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sightline.data.collate import (
    ExampleIds,
    TokenSequences,
    class_token_ids,
    classification_ids,
    collate_fn,
    decoder_only_ids,
    language_model_ids,
    packed_batch,
    padded_batch,
    seq2seq_ids,
    tagging_ids,
)
from sightline.decoding.request import make_requests
from sightline.recipe import Recipe

PAD, START, END = 0, 2, 3
SOURCE, TARGET = [5, 6, 7], [8, 9]
TEXTS = {"kind": "text", "source": "a", "target": "b"}
READER = {"kind": "recurrent"}
WRITER = {"kind": "recurrent", "attention": {"kind": "none"}}


def rows(side: TokenSequences | None) -> list[list[int]] | None:
    """Each sequence with its marks."""
    if side is None:
        return None
    ends = np.cumsum(side.lengths())
    return [part.tolist() for part in np.split(side.joined(), ends[:-1])]


def shown(sides: ExampleIds) -> tuple[Any, Any, Any]:
    return rows(sides.source), rows(sides.decoder_input), rows(sides.labels)


def both(*sequences: list[int]) -> list[np.ndarray]:
    return [np.array(sequence, np.uint16) for sequence in sequences]


def test_seq2seq_decoder_input_is_the_shifted_target() -> None:
    assert shown(seq2seq_ids(both(SOURCE, []), both(TARGET, [4]))) == (
        [[5, 6, 7, END], [END]],
        [[START, 8, 9], [START, 4]],
        [[8, 9, END], [4, END]],
    )


def test_decoder_only_input_is_source_and_target_with_labels_on_the_target() -> None:
    assert shown(decoder_only_ids(both(SOURCE, []), both(TARGET, [4]))) == (
        None,
        [[5, 6, 7, END, START, 8, 9], [END, START, 4]],
        [[PAD, PAD, PAD, PAD, 8, 9, END], [PAD, 4, END]],
    )


def test_decoder_only_training_input_equals_that_of_a_search() -> None:
    (request,) = make_requests([SOURCE])
    (trained,) = rows(decoder_only_ids(both(SOURCE), both(TARGET)).decoder_input) or []
    read = request.encoder_input
    assert read == trained[: len(read)]
    assert trained[len(read)] == START  # which every search begins with


def test_a_classifier_has_one_label_per_text() -> None:
    assert shown(classification_ids(both(SOURCE, [4]), both([8], [9]))) == (
        [[5, 6, 7, END], [4, END]],
        None,
        [[8], [9]],
    )
    assert shown(class_token_ids(both(SOURCE), both([8]))) == ([[START, 5, 6, 7, END]], None, [[8]])


def test_a_tagger_has_labels_at_first_pieces_of_words() -> None:
    assert shown(tagging_ids(both(SOURCE), both([8, PAD, 9]))) == ([[5, 6, 7]], None, [[8, PAD, 9]])


def test_language_model_labels_are_the_next_tokens() -> None:
    assert shown(language_model_ids([], both([START, 5, 6], [4, 7]))) == (None, [[START, 5], [4]], [[5, 6], [7]])


@pytest.mark.parametrize(
    ("task", "model", "expected"),
    [
        ("seq2seq", {"encoder": READER, "decoder": WRITER}, seq2seq_ids),
        ("seq2seq", {"decoder": WRITER}, decoder_only_ids),
        ("classification", {"encoder": READER, "pooling": {"kind": "max"}}, classification_ids),
        ("classification", {"encoder": READER, "pooling": {"kind": "class"}}, class_token_ids),
        ("tagging", {"encoder": READER}, tagging_ids),
        ("language-model", {"decoder": WRITER}, language_model_ids),
    ],
)
def test_collate_follows_the_task(task: str, model: dict[str, Any], expected: Any) -> None:
    data = {"train": [TEXTS], "validation": TEXTS}
    assert collate_fn(Recipe.model_validate({"task": task, "data": data, "model": model})) is expected


IDS = st.lists(st.integers(4, 99), min_size=1, max_size=5)


@given(
    pairs=st.lists(st.tuples(IDS, IDS), min_size=1, max_size=5), kind=st.sampled_from([seq2seq_ids, decoder_only_ids])
)
def test_padded_and_packed_batches_have_the_same_labels(pairs: list[Any], kind: Any) -> None:
    sides = kind(both(*(left for left, _ in pairs)), both(*(right for _, right in pairs)))
    padded, packed = (make(sides, np.arange(len(pairs))) for make in (padded_batch, packed_batch))
    expected = [token for _, right in pairs for token in [*right, END]]
    for batch in (padded, packed):
        assert batch.labels[batch.labels != PAD].tolist() == expected
        assert batch.tokens == len(expected)
        assert batch.decoder_input.shape == batch.labels.shape  # an answer stands where what it follows from is given


def test_labels_of_a_classifier_are_not_padded() -> None:
    batch = padded_batch(classification_ids(both(SOURCE, [4]), both([8], [9])), np.arange(2))
    assert batch.decoder_input is None
    assert batch.labels.tolist() == [[8], [9]]
    assert batch.tokens == 2
    assert packed_batch(classification_ids(both(SOURCE, [4]), both([8], [9])), np.arange(2)).labels.tolist() == [8, 9]
