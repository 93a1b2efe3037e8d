"""Text as a stream of tokens on disk, cut into windows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sightline.data import store as stores
from sightline.data.store import Store, StoreSpec, load_or_build_store
from sightline.data.windows import FullWindows, TokenStream, full_windows
from sightline.recipe.sources import PlainSource, TsvSource
from sightline.recipe.tokenizer import CharacterTokenizer
from sightline.text.tokenizer import END
from sightline.text.vocabulary import Vocabulary


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Two sources, in parts of a few documents each."""
    folder = tmp_path_factory.mktemp("stream")
    random = np.random.default_rng(1)
    for name, count in (("a", 40), ("b", 25)):
        words = ["".join(random.choice(list("abcdef"), random.integers(1, 9))) for _ in range(count)]
        (folder / f"{name}.txt").write_text("\n".join(words) + "\n")
    sources = (PlainSource(file="a.txt"), PlainSource(file="b.txt"))
    vocabulary = Vocabulary.train(CharacterTokenizer(), lambda: iter([("", "abcdef")]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stores, "_CHUNK", 7)
        return load_or_build_store(StoreSpec(sources, vocabulary, folder, text_only=True), cache=folder / "cache")


def token_stream(store: Store) -> np.ndarray:
    """The documents with their end tokens as one array, for comparison."""
    _, documents = store.take(np.arange(len(store)))
    return np.concatenate([[*document, END] for document in documents])


def test_token_stream_concatenates_documents(store: Store) -> None:
    stream, whole = TokenStream(store), token_stream(store)
    assert len(stream) == len(whole)
    for start in range(len(whole)):
        for stop in (start, start + 1, start + 13, len(whole)):
            assert stream.between(start, min(stop, len(whole))).tolist() == whole[start:stop].tolist()


def test_each_source_has_its_own_part_of_the_stream(store: Store) -> None:
    stream = TokenStream(store)
    ends = np.flatnonzero(token_stream(store) == END)
    assert stream.bounds.tolist() == [0, ends[39] + 1, len(stream)]


def test_window_wraps_around_at_the_end_of_a_source(store: Store) -> None:
    stream, whole = TokenStream(store), token_stream(store)
    for source in (0, 1):
        low, high = (int(bound) for bound in stream.bounds[source : source + 2])
        assert stream.around(high - 3, 8, source).tolist() == [*whole[high - 3 : high], *whole[low : low + 5]]
        assert stream.around(high - 8, 8, source).tolist() == whole[high - 8 : high].tolist()
        assert len(stream.around(low, 10_000, source)) == high - low  # no token twice


@given(
    sizes=st.lists(st.integers(0, 90), min_size=1, max_size=4),
    length=st.integers(1, 20),
    epoch=st.integers(0, 5),
    seed=st.integers(0, 9),
)
def test_windows_are_full_and_do_not_overlap(sizes: list[int], length: int, epoch: int, seed: int) -> None:
    bounds = np.cumsum([0, *sizes])
    starts, sources = full_windows(bounds, length, [1.0] * len(sizes), seed=seed, epoch=epoch)
    for number, size in enumerate(sizes):
        own = starts[sources == number] - bounds[number]
        assert len(own) == (max(1, size // length) if size else 0)  # a text shorter than a window is one, none is none
        assert all(0 <= start < size for start in own)
        covered = Counter(int(at) % size for start in own for at in range(start, start + min(length, size)))
        assert not covered or max(covered.values()) == 1
        assert len(covered) > size - length or size == 0  # less than a window is left out


def test_windows_shift_with_the_epoch_deterministically() -> None:
    bounds = np.array([0, 1_000])
    first, second = (full_windows(bounds, 50, [1.0], seed=1, epoch=epoch)[0] for epoch in (1, 2))
    assert set(first % 50) != set(second % 50)
    assert (first == full_windows(bounds, 50, [1.0], seed=1, epoch=1)[0]).all()
    other = full_windows(bounds, 50, [1.0], seed=2, epoch=1)[0]
    assert (first != other).any() and set(first % 50) != set(other % 50)


def test_windows_of_the_first_epoch_begin_at_the_beginning() -> None:
    bounds = np.array([0, 1_000, 2_000])
    starts, _ = full_windows(bounds, 50, [1.0, 1.0], seed=1, epoch=0)
    assert sorted(starts.tolist()) == list(range(0, 2_000, 50))
    starts, sources = full_windows(bounds, 50, [1.0, 1.0], seed=1, epoch=1)
    assert set(starts[sources == 0] % 50) != set(starts[sources == 1] % 50)


def test_source_weights_apply_to_windows() -> None:
    bounds = np.array([0, 1_000, 2_000])
    found = [full_windows(bounds, 100, [2.0, 0.5], seed=1, epoch=epoch)[1] for epoch in range(2)]
    assert [np.bincount(each).tolist() for each in found] == [[20, 5], [20, 5]]


def test_windows_are_identified_by_position_in_the_epoch(store: Store) -> None:
    windows = FullWindows(lambda epoch: store, 11, [1.0, 3.0], seed=5)
    every = windows.take(1, np.arange(windows.count(1)))
    assert {len(each) for each in every} == {11}
    again = FullWindows(lambda epoch: store, 11, [1.0, 3.0], seed=5)
    assert again.take(1, np.array([4, 2]))[1].tolist() == every[2].tolist()
    other = again.take(2, np.arange(again.count(2)))  # of another epoch, by whoever had the first at hand
    assert [each.tolist() for each in other] != [each.tolist() for each in every]
    assert [each.tolist() for each in again.take(1, np.arange(again.count(1)))] == [each.tolist() for each in every]


def test_pairs_read_as_text_leave_their_sources_out(tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("aaa\tbcd\nfff\tde\n")
    vocabulary = Vocabulary.train(CharacterTokenizer(), lambda: iter([("abcdef", "abcdef")]))
    made = load_or_build_store(
        StoreSpec((TsvSource(file="pairs.tsv"),), vocabulary, tmp_path, text_only=True), cache=tmp_path
    )
    assert made.source_lengths.tolist() == [0, 0]
    assert made.target_lengths.tolist() == [3, 2]
