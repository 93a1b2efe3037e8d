"""Word vectors learned from text."""

from __future__ import annotations

import lzma
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sightline.data.sources import DataError
from sightline.text.word_vectors import nearest_words, read_word_vectors
from sightline.training.skipgram import (
    LearnedVectors,
    SkipgramError,
    SkipgramOptions,
    SkipgramProgress,
    adagrad_,
    kept_share,
    learn_word_vectors,
    noise_share,
    skipgram_loss,
    skipgram_slopes,
)

ANIMALS, FRUIT = ["cat", "dog", "horse", "sheep"], ["apple", "plum", "cherry", "pear"]
TINY = SkipgramOptions(dim=16, window=2, epochs=3, min_count=2, subsample=0, seed=3)


def corpus(folder: Path, lines: int = 1500, name: str = "text.txt") -> Path:
    """Animals and fruit never stand in one line, and words of a kind never stand beside each other."""
    draw = random.Random(7)
    text = []
    for _ in range(lines):
        animal, fruit = draw.choice(ANIMALS), draw.choice(FRUIT)
        text += [f"the {animal} {draw.choice(['runs', 'sleeps', 'eats'])} outside", f"a {fruit} tastes sweet, ripe"]
    path = folder / name
    path.write_text("\n".join(text), encoding="utf-8")
    return path


def cosines(learned: LearnedVectors) -> dict[tuple[str, str], float]:
    return {
        (word, other): cosine
        for word in ANIMALS + FRUIT
        for other, cosine in nearest_words(learned.words, learned.matrix, word, len(learned.words))
    }


def test_words_that_share_contexts_end_nearer_than_words_that_do_not(tmp_path: Path) -> None:
    found = cosines(learn_word_vectors([corpus(tmp_path)], TINY))
    alike = [found[a, b] for kind in (ANIMALS, FRUIT) for a in kind for b in kind if a != b]
    unlike = [found[a, b] for a in ANIMALS for b in FRUIT]
    assert min(alike) > max(unlike) + 0.2


def test_the_slopes_are_those_of_autograd() -> None:
    torch.manual_seed(1)
    words = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)  # (T, P, D)
    contexts = torch.randn(3, 6 + 7, 5, dtype=torch.float64, requires_grad=True)  # (T, C + M, D)
    near = (torch.rand(3, 4, 6) < 0.4).double()
    loss = skipgram_loss(words @ contexts.mT, near, negatives=5)
    by_words, by_contexts = torch.autograd.grad(loss, (words, contexts))
    slopes = skipgram_slopes((words @ contexts.mT).detach(), near, negatives=5)
    torch.testing.assert_close(slopes @ contexts, by_words)
    torch.testing.assert_close(slopes.mT @ words, by_contexts)


def test_the_loss_is_that_of_pairs_with_noise_words_of_their_own() -> None:
    """One pair that shares seven noise words weighs each by 5/7: five draws of the same seven, on average."""
    scores = torch.randn(1, 1, 2 + 7, dtype=torch.float64)
    near = torch.tensor([[[1.0, 0.0]]], dtype=torch.float64)
    noise = -torch.sigmoid(-scores[0, 0, 2:]).log().mean() * 5
    expected = -torch.sigmoid(scores[0, 0, 0]).log() + noise
    torch.testing.assert_close(skipgram_loss(scores, near, negatives=5), expected)


def test_a_row_that_occurs_twice_gets_both_gradients_at_the_rate_of_their_squares() -> None:
    table, squares = torch.zeros(3, 2), torch.zeros(3)
    gradient = torch.tensor([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
    adagrad_(table, squares, torch.tensor([2, 0, 2]), gradient.clone(), rate=0.5)
    assert squares.tolist() == [4, 0, 10]
    torch.testing.assert_close(table[2], torch.full((2,), -0.5 * 4 / 10**0.5))
    torch.testing.assert_close(table[:2], torch.tensor([[-0.5, -0.5], [0.0, 0.0]]))


def test_frequent_words_are_thinned_out_and_rare_ones_are_not() -> None:
    kept = kept_share(torch.tensor([0.01, 4e-4, 1e-4, 1e-6]), 1e-4)
    torch.testing.assert_close(kept, torch.tensor([0.11, 0.75, 1.0, 1.0]))
    assert kept_share(torch.tensor([0.5]), 0) == 1


def test_noise_is_drawn_by_counts_to_the_three_quarters() -> None:
    torch.testing.assert_close(noise_share(torch.tensor([81.0, 16.0, 1.0])), torch.tensor([27.0, 8.0, 1.0]) / 36)


def test_a_text_that_is_thinned_out_keeps_few_of_its_frequent_words(tmp_path: Path) -> None:
    """With nearly everything dropped nobody has neighbours, and vectors hardly leave where they began."""
    path = corpus(tmp_path, 100)
    thin = learn_word_vectors([path], replace(TINY, subsample=1e-9))
    assert np.abs(thin.matrix).max() <= 0.5 / TINY.dim < np.abs(learn_word_vectors([path], TINY).matrix).max()


@pytest.mark.parametrize("threads", [1, 2])
def test_the_same_seed_gives_the_same_vectors_and_another_others(tmp_path: Path, threads: int) -> None:
    path = corpus(tmp_path, 100)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        first, second = (learn_word_vectors([path], TINY) for _ in range(2))
        other = learn_word_vectors([path], replace(TINY, seed=4))
    finally:
        torch.set_num_threads(before)
    assert first.words == second.words
    np.testing.assert_array_equal(first.matrix, second.matrix)
    assert not np.allclose(first.matrix, other.matrix)


def test_global_random_numbers_are_left_alone(tmp_path: Path) -> None:
    path = corpus(tmp_path, 20)
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    learn_word_vectors([path], TINY)
    assert torch.rand(1) == expected


def test_a_word_is_one_word_with_and_without_a_space_before_it(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("the cat (cat) Cat\nthe end (the)\n", encoding="utf-8")
    learned = learn_word_vectors([path], SkipgramOptions(dim=2, min_count=2, epochs=1))
    assert dict(zip(learned.words, learned.counts, strict=True)) == {"the": 3, "(": 2, ")": 2, "cat": 2}
    assert learned.words[0] == "the"
    lowered = learn_word_vectors([path], SkipgramOptions(dim=2, min_count=3, epochs=1, lowercase=True))
    assert lowered.words == ("cat", "the")
    few = learn_word_vectors([path], SkipgramOptions(dim=2, min_count=1, epochs=1, size=2))
    assert few.words == ("the", "(")


def test_no_window_reaches_over_the_end_of_a_line(tmp_path: Path) -> None:
    """One word a line has no neighbours, so nothing is learned: context vectors stay zero and so do all gradients."""
    path = tmp_path / "text.txt"
    path.write_text("a\nb\n" * 300, encoding="utf-8")
    apart = learn_word_vectors([path], TINY)
    assert np.abs(apart.matrix).max() <= 0.5 / TINY.dim
    path.write_text("a b\n" * 300, encoding="utf-8")
    assert np.abs(learn_word_vectors([path], TINY).matrix).max() > 0.5 / TINY.dim


def test_progress_counts_the_words_of_all_epochs_thinned_out_or_not(tmp_path: Path) -> None:
    seen: list[SkipgramProgress] = []
    options = SkipgramOptions(dim=4, epochs=2, min_count=1, subsample=0.01)
    learned = learn_word_vectors([corpus(tmp_path, 6000)], options, progress=seen.append)
    assert {each.stage for each in seen} == {"reading", "cutting", "learning"}
    assert (seen[-1].done, seen[-1].epoch) == (seen[-1].total, 2)
    assert seen[-1].total == 2 * sum(learned.counts)
    assert np.isfinite(seen[-1].loss) and seen[-1].words_per_second > 0


@pytest.mark.parametrize("name", ["vectors.txt", "vectors.bin", "vectors.bin.gz"])
def test_what_is_learned_from_compressed_text_is_written_and_read_again(tmp_path: Path, name: str) -> None:
    packed = tmp_path / "text.xz"
    packed.write_bytes(lzma.compress(corpus(tmp_path, 50).read_bytes()))
    learned = learn_word_vectors([packed], TINY)
    learned.write(tmp_path / name)
    kind = "word2vec-binary" if "bin" in name else "word2vec"
    vectors = read_word_vectors(tmp_path / name, learned.words, format=kind)  # type: ignore[arg-type]
    np.testing.assert_array_equal(vectors.matrix, learned.matrix)


def test_too_little_text_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("one two three three\n", encoding="utf-8")
    with pytest.raises(SkipgramError, match=r"0 of 3 words occur 5 times or more in .*text\.txt; lower the minimum"):
        learn_word_vectors([path], SkipgramOptions())
    path.write_text("   \n\n", encoding="utf-8")
    with pytest.raises(SkipgramError, match=r"not one word in .*text\.txt; give files with text"):
        learn_word_vectors([path], SkipgramOptions())
    with pytest.raises(DataError, match="does not exist"):
        learn_word_vectors([tmp_path / "none.txt"], SkipgramOptions())


@pytest.mark.parametrize("option", ["dim", "window", "epochs", "min_count", "size", "negatives", "rate"])
def test_options_that_make_no_sense_are_named(option: str) -> None:
    with pytest.raises(SkipgramError, match=f"{option} is 0; give"):
        SkipgramOptions(**{option: 0})
    with pytest.raises(SkipgramError, match="subsample is -1"):
        SkipgramOptions(subsample=-1)


@pytest.mark.cuda
def test_cuda_learns_the_same_neighbours(tmp_path: Path, cuda: torch.device) -> None:
    found = cosines(learn_word_vectors([corpus(tmp_path)], TINY, device=cuda))
    alike = [found[a, b] for kind in (ANIMALS, FRUIT) for a in kind for b in kind if a != b]
    assert min(alike) > max(found[a, b] for a in ANIMALS for b in FRUIT)
