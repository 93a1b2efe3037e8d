"""The n-gram language model."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from sightline.models.ngram import NgramError, NgramModel

SIZE, START, END = 7, 2, 3
WORD = st.sampled_from([0, 1, 4, 5, 6])
SEQUENCES = st.lists(st.lists(WORD, max_size=12), min_size=1, max_size=12)
WANT = ["I want to eat", "I want Chinese food", "you want to eat food", "I eat food"]
WORDS = ["<pad>", "<unk>", "<s>", "</s>", *sorted({word for line in WANT for word in line.split()})]
# A longer text with something to discount at every order: estimated discounts, not the fallback.
RICH = [list(row) for row in np.random.default_rng(5).choice([0, 1, 4, 5, 6], (60, 9), p=[0.5, 0.2, 0.15, 0.1, 0.05])]


def trained(sequences: list[list[int]], order: int) -> NgramModel:
    return NgramModel.train(sequences, order=order, vocabulary_size=SIZE, start=START, end=END)


def ids(line: str) -> list[int]:
    return [WORDS.index(word) for word in line.split()]


class Naive:
    """The formula of the module's docstring with dictionaries, one word at a time."""

    def __init__(self, sequences: list[list[int]], order: int) -> None:
        self.order = order
        counts: Counter[tuple[int, ...]] = Counter()
        for inner in sequences:
            full = (START, *inner, END)
            for last in range(1, len(full)):
                for length in range(1, min(order, last + 1) + 1):
                    counts[full[last + 1 - length : last + 1]] += 1
        before: dict[tuple[int, ...], set[int]] = defaultdict(set)
        for gram in counts:
            before[gram[1:]].add(gram[0])
        self.adjusted = {
            gram: count if len(gram) == order or gram[0] == START else len(before[gram])
            for gram, count in counts.items()
        }
        self.discounts = {length: self.estimate(length) for length in range(1, order + 1)}

    def estimate(self, length: int) -> list[float]:
        n = Counter(a for gram, a in self.adjusted.items() if len(gram) == length)
        if not (n[1] and n[2] and n[3] and n[4]):
            return [0.0, 0.5, 1.0, 1.5]
        y = n[1] / (n[1] + 2 * n[2])
        estimated = [j - (j + 1) * y * n[j + 1] / n[j] for j in (1, 2, 3)]
        return [0.0, *estimated] if min(estimated) > 0 else [0.0, 0.5, 1.0, 1.5]

    def probability(self, word: int, history: tuple[int, ...]) -> float:
        history = history[len(history) - min(len(history), self.order - 1) :]
        follow = {v: self.adjusted[(*history, v)] for v in range(SIZE) if (*history, v) in self.adjusted}
        uniform = 0.0 if word == START else 1 / (SIZE - 1)
        shorter = self.probability(word, history[1:]) if history else uniform
        if not follow:
            return shorter
        discounts = self.discounts[len(history) + 1]
        total = sum(follow.values())
        weight = sum(discounts[min(a, 3)] for a in follow.values()) / total
        a = follow.get(word, 0)
        return (a - discounts[min(a, 3)]) / total + weight * shorter


@given(
    sequences=SEQUENCES,
    order=st.integers(1, 5),
    at_start=st.booleans(),
    history=st.lists(st.integers(3, 6), max_size=8),
)
@settings(deadline=None, max_examples=200)
def test_probabilities_sum_to_one_after_any_history(
    sequences: list[list[int]], order: int, at_start: bool, history: list[int]
) -> None:
    distribution = trained(sequences, order).distribution([START] * at_start + history)
    assert distribution.sum() == pytest.approx(1, abs=1e-12)
    assert distribution[START] == 0
    assert (np.delete(distribution, START) > 0).all()


@given(sequences=SEQUENCES, order=st.integers(1, 5), scored=st.lists(st.lists(WORD, max_size=8), max_size=4))
@settings(deadline=None, max_examples=200)
def test_it_equals_the_formula_written_with_dictionaries(
    sequences: list[list[int]], order: int, scored: list[list[int]]
) -> None:
    agree(sequences, order, scored)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_it_equals_the_formula_where_discounts_are_estimated(order: int) -> None:
    if order in (3, 4):
        assert Naive(RICH, order).discounts[order] != [0.0, 0.5, 1.0, 1.5]
    agree(RICH, order, [[0, 0, 1, 4], [6, 6, 6, 6, 6], [], [5, 0, 1, 0, 0, 0]])


def agree(sequences: list[list[int]], order: int, scored: list[list[int]]) -> None:
    model, naive = trained(sequences, order), Naive(sequences, order)
    logs = model.log_probabilities(scored)
    assert len(logs) == len(scored)
    for inner, values in zip(scored, logs, strict=True):
        full = (START, *inner, END)
        expected = [naive.probability(full[t], full[:t]) for t in range(1, len(full))]
        np.testing.assert_allclose(np.exp(values), expected, rtol=1e-10)
        stepwise = [model.distribution(full[:t])[full[t]] for t in range(1, len(full))]
        np.testing.assert_allclose(stepwise, expected, rtol=1e-10)


def test_a_bigram_worked_out_by_hand() -> None:
    """Sequences "a b", "a b", "a c" with a, b, c = 4, 5, 6; no order has enough n-grams to estimate discounts.

    Bigrams: <s>a 3, ab 2, ac 1, b</s> 2, c</s> 1. Words seen before: a 1 (<s>), b 1 (a), c 1 (a), </s> 2 (b, c).
    """
    model = trained([[4, 5], [4, 5], [4, 6]], 2)
    weight = (0.5 + 0.5 + 0.5 + 1.0) / 5  # of the uniform distribution over the six ids that can come
    b = (1 - 0.5) / 5 + weight / 6
    end = (2 - 1.0) / 5 + weight / 6
    assert model.distribution([])[5] == pytest.approx(b)
    assert model.distribution([])[END] == pytest.approx(end)
    assert model.distribution([4])[5] == pytest.approx((2 - 1.0) / 3 + (1.0 + 0.5) / 3 * b)
    assert model.distribution([4])[END] == pytest.approx(1.5 / 3 * end)
    assert model.distribution([START])[5] == pytest.approx(1.5 / 3 * b)


def test_unseen_ngrams_have_a_probability_above_zero() -> None:
    model = trained([[4, 5], [4, 4]], 3)
    (logs,) = model.log_probabilities([[6, 0, 6, 1]])
    assert np.isfinite(logs).all()
    np.testing.assert_array_equal(model.distribution([6, 6]), model.distribution([]))  # an unseen history says nothing


def test_perplexity_falls_with_the_order_and_rises_again() -> None:
    generator = np.random.default_rng(1)
    rows = [generator.dirichlet([0.3] * 5) for _ in range(25)]

    def text(length: int) -> list[int]:
        """Ids of which each depends on the two before it, and on nothing else."""
        drawn = [0, 1]
        for _ in range(length):
            drawn.append(int(generator.choice(5, p=rows[drawn[-2] * 5 + drawn[-1]])))
        return [(0, 1, 4, 5, 6)[number] for number in drawn]

    train, test = text(2000), text(2000)
    perplexity = [float(np.exp(-trained([train], order).log_probabilities([test])[0].mean())) for order in range(1, 8)]
    assert perplexity[0] > perplexity[1] > perplexity[2]
    assert perplexity[2] < perplexity[4] < perplexity[6]


def test_a_saved_model_is_the_same_to_the_last_bit(tmp_path: Path) -> None:
    model = trained(RICH, 4)
    model.save(tmp_path / "model.safetensors")
    loaded = NgramModel.load(tmp_path / "model.safetensors")
    assert (loaded.order, loaded.vocabulary_size, loaded.start, loaded.end) == (4, SIZE, START, END)
    for ours, theirs in zip(model.log_probabilities(RICH), loaded.log_probabilities(RICH), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    trained(RICH, 4).save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "model.safetensors").read_bytes()


def test_generation_goes_from_bigram_to_bigram_until_the_end() -> None:
    lines = [ids(line) for line in WANT * 20]
    model = NgramModel.train(lines, order=2, vocabulary_size=len(WORDS), start=START, end=END)
    seen = {pair for line in lines for pair in zip([START, *line], [*line, END], strict=True)}
    generator = np.random.default_rng(0)
    drawn = [list(model.draw(generator)) for _ in range(100)]
    pairs = [pair for line in drawn for pair in zip([START, *line], [*line, END], strict=True)]
    assert sum(pair in seen for pair in pairs) > 0.9 * len(pairs)  # the rest is what smoothing gave away
    assert any(line not in lines and all(p in seen for p in pairwise(line)) for line in drawn)
    assert not {START, END} & {word for line in drawn for word in line}
    again = np.random.default_rng(0)
    assert [list(model.draw(again)) for _ in range(100)] == drawn


def test_generation_continues_a_prompt() -> None:
    lines = [ids(line) for line in WANT * 20]
    model = NgramModel.train(lines, order=3, vocabulary_size=len(WORDS), start=START, end=END)
    generator = np.random.default_rng(0)
    nexts = Counter(next(iter(model.draw(generator, ids("you want"))), END) for _ in range(50))
    assert WORDS[nexts.most_common(1)[0][0]] == "to"
    assert len(list(islice(model.draw(generator, [1, 0]), 2))) <= 2


def test_sequences_shorter_than_the_order_can_be_counted_and_scored() -> None:
    model = trained([[], [4]], 6)
    assert model.order == 6
    assert [values.size for values in model.log_probabilities([[], [4, 4], []])] == [1, 3, 1]
    assert model.log_probabilities([]) == []
    assert model.distribution([START, 4]).sum() == pytest.approx(1)


def test_wrong_ids_and_settings_are_named() -> None:
    with pytest.raises(NgramError, match=r"sequence 2: id 7 is not in the vocabulary of 7"):
        trained([[4], [4, 7]], 2)
    with pytest.raises(NgramError, match=r"sequence 1: id 2 is start"):
        trained([[4, START]], 2)
    with pytest.raises(NgramError, match="id -1 is not in the vocabulary"):
        trained([[4]], 2).distribution([-1])
    with pytest.raises(NgramError, match="order is 0"):
        trained([[4]], 0)
    with pytest.raises(NgramError, match="no sequences"):
        trained([], 2)
    with pytest.raises(NgramError, match=r"start \(3\) and end \(3\)"):
        NgramModel.train([[4]], order=2, vocabulary_size=7, start=3, end=3)


def test_a_file_that_is_no_model_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with pytest.raises(NgramError, match=r"model\.safetensors does not exist"):
        NgramModel.load(path)
    trained(RICH, 3).save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-8])
    with pytest.raises(NgramError, match=r"model\.safetensors is no n-gram model, or damaged"):
        NgramModel.load(path)
    arrays = safetensors.numpy.load(whole)
    for name, value in (("2.keys", arrays["2.keys"][::-1]), ("3.weight", arrays["3.weight"][1:])):
        path.write_bytes(safetensors.numpy.save(arrays | {name: np.ascontiguousarray(value)}))
        with pytest.raises(NgramError, match=r"the \d-grams|arrays of the 3-grams"):
            NgramModel.load(path)
    path.write_bytes(safetensors.numpy.save({"weight": arrays["3.weight"]}))
    with pytest.raises(NgramError, match="ids"):
        NgramModel.load(path)
