"""Which sentences go together, and padding behind the shorter ones."""

from __future__ import annotations

import pytest

from sightline.decoding.request import length_batches, pad_tokens


@pytest.mark.parametrize(("tokens", "fewest"), [(1, 8), (7, 7), (40, 2), (1000, 1)])
def test_batches_by_length_hold_every_sentence_once_within_the_budget(tokens: int, fewest: int) -> None:
    lengths = [3, 9, 1, 4, 4, 12, 2, 9]
    batches = list(length_batches(lengths, tokens))
    assert sorted(index for batch in batches for index in batch) == list(range(8))
    flat = [lengths[index] for batch in batches for index in batch]
    assert flat == sorted(lengths, reverse=True)
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[index] for index in batch) <= tokens
    assert len(batches) == fewest


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_several_batches_are_as_many_for_each_thread_and_even(threads: int) -> None:
    lengths = [1 + 7 * number % 23 for number in range(200)]
    batches = length_batches(lengths, 300, threads)
    assert len(batches) % threads == 0
    sizes = [len(batch) * lengths[batch[0]] for batch in batches]
    assert max(sizes) <= 300
    assert min(sizes) > 0.6 * max(sizes)
    assert len(length_batches(lengths[:9], 300, threads)) == 1


def test_a_batch_may_be_full_to_the_last_token_and_two_are_even() -> None:
    assert length_batches([2] * 4, 8) == [[0, 1, 2, 3]]
    assert [len(batch) for batch in length_batches([1] * 10, 6)] == [5, 5]


def test_tokens_are_padded_behind() -> None:
    assert pad_tokens([[5], [6, 7, 8]], "cpu").tolist() == [[5, 0, 0], [6, 7, 8]]
