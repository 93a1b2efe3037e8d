"""Examples to tensors, and the thread that makes them ahead of time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sightline.data.collate import (
    StaticShape,
    TokenSequences,
    TrainingBatch,
    classification_ids,
    language_model_ids,
    masked_lm_ids,
    packed_batch,
    padded_batch,
    prefetch,
    seq2seq_ids,
    tagging_ids,
)
from sightline.layers.layout import Packed, Padded

PAD, START, END = 0, 2, 3
SEQUENCES = st.lists(st.lists(st.integers(4, 60_000), max_size=6), min_size=1, max_size=8)


def arrays(sequences: list[list[int]]) -> list[np.ndarray]:
    return [np.array(sequence, dtype=np.uint16) for sequence in sequences]  # as the store gives them


@given(sequences=SEQUENCES, before=st.booleans(), behind=st.booleans())
def test_sequences_are_joined_with_their_marks(sequences: list[list[int]], before: bool, behind: bool) -> None:
    expected = [token for s in sequences for token in [*[START] * before, *s, *[END] * behind]]
    joined = TokenSequences(arrays(sequences), START if before else None, END if behind else None).joined()
    assert joined.tolist() == expected
    assert joined.dtype == np.int64


@given(pairs=st.lists(st.tuples(*[st.lists(st.integers(4, 99), max_size=5)] * 2), min_size=1, max_size=6))
def test_a_padded_batch_and_a_packed_one_hold_the_same_examples(pairs: list[tuple[list[int], list[int]]]) -> None:
    sources, targets = ([list(side) for side in sides] for sides in zip(*pairs, strict=True))
    examples = np.arange(len(pairs))
    padded = padded_batch(seq2seq_ids(arrays(sources), arrays(targets)), examples)
    packed = packed_batch(seq2seq_ids(arrays(sources), arrays(targets)), examples)
    assert isinstance(padded.source_layout, Padded)
    assert isinstance(packed.source_layout, Packed)
    rows = zip(padded.source.tolist(), padded.decoder_input.tolist(), padded.labels.tolist(), pairs, strict=True)
    for source, given_, expected, (left, right) in rows:
        assert source == [*left, END] + [PAD] * (padded.source.shape[1] - len(left) - 1)
        assert given_ == [START, *right] + [PAD] * (padded.decoder_input.shape[1] - len(right) - 1)
        assert expected == [*right, END] + [PAD] * (padded.labels.shape[1] - len(right) - 1)
    assert packed.source.tolist() == [token for left, _ in pairs for token in [*left, END]]
    assert packed.decoder_input.tolist() == [token for _, right in pairs for token in [START, *right]]
    assert packed.labels.tolist() == [token for _, right in pairs for token in [*right, END]]
    for batch in (padded, packed):
        assert batch.source_layout.lengths.tolist() == [len(left) + 1 for left, _ in pairs]
        assert batch.decoder_layout.lengths.tolist() == [len(right) + 1 for _, right in pairs]
        assert batch.tokens == sum(len(right) + 1 for _, right in pairs)
        assert batch.examples is examples


@pytest.mark.parametrize("make", [padded_batch, packed_batch])
def test_processed_tokens_are_target_tokens_or_source_tokens_with_labels(
    make: Callable[..., TrainingBatch],
) -> None:
    texts, answers = arrays([[5, 6, 7], [8]]), arrays([[4], [5]])
    assert make(classification_ids(texts, answers), np.arange(2)).processed_tokens == 6  # an end mark each
    assert make(tagging_ids(texts, arrays([[4, 4, PAD], [5]])), np.arange(2)).processed_tokens == 4
    assert (
        make(masked_lm_ids(texts, arrays([[PAD, 6, PAD], [PAD]])), np.arange(2)).processed_tokens == 8
    )  # between two marks
    assert make(seq2seq_ids(texts, arrays([[9, 9], [9]])), np.arange(2)).processed_tokens == 5
    assert make(language_model_ids([], texts[:1]), np.arange(1)).processed_tokens == 2


PAIRS = [([5, 6], [7]), ([8], [9, 10, 11, 12]), ([5, 5, 5, 5, 5], [6, 6])]


@pytest.mark.parametrize("tokens", [20, 32, 60])
def test_a_static_batch_has_one_shape_filled_with_padding(tokens: int) -> None:
    shape = StaticShape(tokens=tokens, sequences=16, longest=8)
    sources, targets = (arrays(list(side)) for side in zip(*PAIRS, strict=True))
    for count in (1, 2, 3):
        batch = packed_batch(seq2seq_ids(sources[:count], targets[:count]), np.arange(count), shape)
        plain = packed_batch(seq2seq_ids(sources[:count], targets[:count]), np.arange(count))
        parts = (batch.source, batch.decoder_input, batch.labels)
        for part, real in zip(parts, (plain.source, plain.decoder_input, plain.labels), strict=True):
            assert part.shape == (tokens,)
            assert torch.equal(part[: len(real)], real)
            assert not part[len(real) :].any()  # PAD is 0
        for layout, real in (
            (batch.source_layout, plain.source_layout),
            (batch.decoder_layout, plain.decoder_layout),
        ):
            assert layout.batch == 16
            assert layout.longest == 8
            assert layout.offsets[-1] == tokens  # every position is in some sequence
            assert layout.lengths[:count].tolist() == real.lengths.tolist()
            assert int(layout.lengths.max()) <= 8
        # a filler must have keys where it has queries, or its rows would see nothing
        assert ((batch.decoder_layout.lengths > 0) <= (batch.source_layout.lengths > 0)).all()
        assert batch.tokens == plain.tokens


@pytest.mark.parametrize(
    "shape",
    [
        StaticShape(tokens=11, sequences=16, longest=8),  # 11 source tokens and no place for a filler
        StaticShape(tokens=32, sequences=5, longest=8),  # three examples and three fillers
    ],
)
def test_a_batch_too_large_for_the_static_shape_is_an_error(shape: StaticShape) -> None:
    sources, targets = (arrays(list(side)) for side in zip(*PAIRS, strict=True))
    with pytest.raises(ValueError, match=r"a batch of 3 examples, 11 \+ 10 tokens does not fit into StaticShape"):
        packed_batch(seq2seq_ids(sources, targets), np.arange(3), shape)


# --- ahead -------------------------------------------------------------------------------------------------------


def workers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "batches"]


def test_prefetch_keeps_the_order() -> None:
    assert list(prefetch(range(50), lambda n: n * n, depth=3)) == [n * n for n in range(50)]
    assert workers() == []


def test_prefetch_is_bounded() -> None:
    made: list[int] = []
    results = prefetch(range(100), lambda n: made.append(n) or n, depth=2)
    assert next(results) == 0
    deadline = time.monotonic() + 2
    while len(made) < 4 and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(0.05)
    assert len(made) == 4  # one taken, two waiting, one in hand
    results.close()


def test_prefetch_raises_errors_of_its_function() -> None:
    def make(n: int) -> int:
        if n == 3:
            raise KeyError("the third")
        return n

    results = prefetch(range(9), make)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(KeyError, match="the third"):
        next(results)
    assert workers() == []


def test_prefetch_raises_errors_of_its_iterable() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise OSError("the disk is gone")

    results = prefetch(items(), lambda n: n)
    assert next(results) == 1
    with pytest.raises(OSError, match="the disk is gone"):
        next(results)


def test_closing_prefetch_ends_its_thread() -> None:
    results = prefetch(range(10**9), lambda n: n)
    next(results)
    assert len(workers()) == 1
    results.close()
    assert workers() == []
