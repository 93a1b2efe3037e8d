"""Noise: statistics, invariants, and no lost tokens."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sightline.data.noise import NoiseRandom, PieceTable, corrupt_spans, corrupt_text, mask_tokens, span_places
from sightline.recipe.data import MASK, InfillingNoise, MaskNoise, SpanNoise
from sightline.recipe.tokenizer import AnyTokenizer, BpeTokenizer, CharacterTokenizer, WordTokenizer
from sightline.text.tokenizer import END, PAD, SPACE, SPECIALS, Tokenizer

LINES = [
    "The old lighthouse keeper counted seventeen seagulls, and then he slept.",
    "Did nobody understand the unbelievable announcements?",
    "Extraordinarily well-known photographers don't hesitate!",
    "A cat sees a dog.",
]
SPANS = SpanNoise()


@cache
def tokenizer() -> Tokenizer:
    """Small pieces, so that most words have several; and every mark there is."""
    return Tokenizer.train(BpeTokenizer(size=190, min_count=1), LINES * 3, (*SPANS.marks, MASK))


def pieces(*marks: str) -> PieceTable:
    return PieceTable.of(tokenizer(), marks or (MASK,))


@cache
def text(length: int = 4_000) -> np.ndarray:
    """Documents with their end marks, in an order of no pattern."""
    cut = [np.array([*ids, END]) for ids in tokenizer().encode_many(LINES)]
    order = np.random.default_rng(3).integers(0, len(cut), length)
    return np.concatenate([cut[number] for number in order])[:length]


def windows(length: int) -> list[np.ndarray]:
    return [text()[at : at + length] for at in range(0, len(text()) - length, length)]


def word_numbers(ids: np.ndarray) -> np.ndarray:
    """The word each token belongs to, from the pieces as they are written."""
    found, word = [], -1
    after_special = False
    for piece, number in zip(tokenizer().pieces(ids.tolist()), ids.tolist(), strict=True):
        special = number < len(SPECIALS)
        word += special or after_special or word < 0 or not piece[0].isalpha()
        found.append(word)
        after_special = special
    return np.array(found)


def test_random_numbers_depend_on_the_key() -> None:
    assert (NoiseRandom(1, 2, 3).raw(5) == NoiseRandom(1, 2, 3).raw(5)).all()
    assert (NoiseRandom(1, 2, 3).raw(5) != NoiseRandom(1, 2, 4).raw(5)).all()


def test_choose_draws_all_sets_equally_often() -> None:
    counts = np.zeros((4, 4))
    for key in range(3_000):
        low, high = NoiseRandom(key).choose(2, 4)
        counts[low, high] += 1
    assert counts[np.triu_indices(4, 1)] == pytest.approx(500, abs=100)
    assert counts.sum() == counts[np.triu_indices(4, 1)].sum()


# --- masked words --------------------------------------------------------------------------------------------------


def masked(noise: MaskNoise, length: int = 128, repeats: int = 40) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    return [
        (window, *mask_tokens(window, noise, pieces(), NoiseRandom(repeat, number)))
        for repeat in range(repeats)
        for number, window in enumerate(windows(length))
    ]


@pytest.mark.parametrize("whole", [True, False])
def test_masking_rates(whole: bool) -> None:
    found = masked(MaskNoise(whole_words=whole))
    before, after, wanted = (np.concatenate([each[part] for each in found]) for part in range(3))
    chosen = wanted != PAD
    assert chosen.mean() == pytest.approx(0.15, abs=0.005)
    assert (wanted[chosen] == before[chosen]).all()
    assert (after[~chosen] == before[~chosen]).all()
    mask = tokenizer().mark(MASK)
    fate = after[chosen]
    assert (fate == mask).mean() == pytest.approx(0.8, abs=0.01)
    # another token is by chance the same one, now and then
    assert ((fate != mask) & (fate != before[chosen])).mean() == pytest.approx(0.1, abs=0.012)
    assert fate[fate != mask].min() >= pieces().first  # nothing becomes a special or a mark of another noise


def test_whole_word_masking() -> None:
    parts = 0
    for before, _, wanted in masked(MaskNoise(), repeats=5):
        words, chosen = word_numbers(before), wanted != PAD
        share = np.bincount(words, chosen) / np.bincount(words)
        assert set(share) <= {0.0, 1.0}
        parts += int(np.bincount(words)[share == 1].max() > 1)
    assert parts > 50  # words of several pieces were among them


def test_whole_word_masking_in_scripts_without_spaces() -> None:
    line = "雪の中で二人の子供が犬と遊んでいるのを見た、そして山の上に月が出るまで歩いた。"
    cutter = Tokenizer.train(BpeTokenizer(size=45, min_count=1), [line], (MASK,))
    ids = np.array(cutter.encode(line))
    assert len(ids) > 30
    shares = [
        np.count_nonzero(mask_tokens(ids, MaskNoise(), PieceTable.of(cutter, (MASK,)), NoiseRandom(key))[1]) / len(ids)
        for key in range(200)
    ]
    assert min(shares) > 0.1 and max(shares) < 0.2  # not a clause as a whole, nor a mark of punctuation alone


def test_token_masking() -> None:
    some = [
        np.bincount(word_numbers(before), wanted != PAD) / np.bincount(word_numbers(before))
        for before, _, wanted in masked(MaskNoise(whole_words=False), repeats=1)
    ]
    assert not set(np.concatenate(some)) <= {0.0, 1.0}


def test_special_tokens_are_not_masked() -> None:
    for before, _, wanted in masked(MaskNoise(rate=0.9), length=16, repeats=3):
        assert (wanted[before < len(SPECIALS)] == PAD).all()


@given(length=st.integers(1, 80), rate=st.floats(0.01, 0.95), key=st.integers(0, 1_000))
def test_masking_has_at_least_one_label_and_at_most_the_limit(length: int, rate: float, key: int) -> None:
    noise = MaskNoise(rate=rate)
    _, wanted = mask_tokens(text()[key : key + length], noise, pieces(), NoiseRandom(key))
    assert 1 <= np.count_nonzero(wanted) <= noise.most(length)


# --- spans ---------------------------------------------------------------------------------------------------------


@given(lengths=st.lists(st.integers(0, 6), max_size=8), rest=st.integers(0, 30), key=st.integers(0, 999))
def test_spans_are_placed_in_order_and_apart(lengths: list[int], rest: int, key: int) -> None:
    rest = max(rest, len(lengths) - 1)
    units = sum(lengths) + rest
    starts = span_places(units, np.array(lengths, np.int64), NoiseRandom(key))
    stops = starts + np.array(lengths, np.int64)
    assert (starts[1:] > stops[:-1]).all()
    assert not len(starts) or (starts[0] >= 0 and stops[-1] <= units)


def put_together(source: list[int], target: list[int], marks: list[int]) -> list[int]:
    """The text again: each mark of the source replaced by what follows it in the target."""
    spans: dict[int, list[int]] = {}
    for token in target:
        if token in marks:
            current = spans.setdefault(token, [])
        else:
            current.append(token)
    return [token for place in source for token in (spans[place] if place in marks else [place])]


@given(length=st.integers(1, 200), rate=st.floats(0.02, 0.9), mean=st.floats(1, 6), key=st.integers(0, 999))
def test_span_corruption_keeps_every_token(length: int, rate: float, mean: float, key: int) -> None:
    noise, window = SpanNoise(rate=rate, mean_span_length=mean), text()[key : key + length]
    source, target = (each.tolist() for each in corrupt_spans(window, noise, pieces(*noise.marks), NoiseRandom(key)))
    marks = [tokenizer().mark(mark) for mark in noise.marks]
    plain = window[window != END]
    if len(plain):
        covered, count = noise.counts(len(plain))
        assert [token for token in source if token in marks] == marks[:count]  # in order, each once
        assert [token for token in target if token in marks] == marks[:count]
        assert target[0] == marks[0]
        assert len(target) == covered + count
        assert (len(source), len(target)) <= noise.sides(length)
    assert put_together(source, target, marks) == plain.tolist()


def test_span_corruption_rate_and_mean_length() -> None:
    lengths, places = [], np.zeros(120)
    marks = [tokenizer().mark(mark) for mark in SPANS.marks]
    plain = text()[text() != END]
    for key in range(400):
        at = (key * 37) % (len(plain) - 120)
        source, target = corrupt_spans(plain[at : at + 120], SPANS, pieces(*SPANS.marks), NoiseRandom(key))
        spots = np.flatnonzero(np.isin(target, marks))
        own = np.diff(np.append(spots, len(target))) - 1
        lengths += own.tolist()
        before = np.flatnonzero(np.isin(source, marks)) - np.arange(len(own)) + np.cumsum(own) - own
        for start, size in zip(before, own, strict=True):
            places[start : start + size] += 1
    assert np.mean(lengths) == pytest.approx(3.0, abs=0.05)
    assert min(lengths) >= 1
    assert places.sum() / 400 == pytest.approx(0.15 * 120)
    thirds = places.reshape(3, 40).sum(1) / places.sum()
    assert thirds == pytest.approx(1 / 3, abs=0.03)


def test_span_corruption_window_fills_the_context() -> None:
    for context in (8, 64, 256, 512):
        length = SPANS.window(context)
        assert SPANS.sides(length)[0] == context - 1
        assert SPANS.sides(length + 1)[0] >= context - 1


# --- denoising -----------------------------------------------------------------------------------------------------


def test_sentence_permutation() -> None:
    noise = InfillingNoise(rate=0.001)
    moved = 0
    for number, window in enumerate(windows(120)):
        source, target = corrupt_text(window, noise, pieces(), NoiseRandom(number))
        plain = window[window != END]
        assert (target == plain).all()
        assert sorted(source.tolist()) == sorted(plain.tolist())
        sentences, order = _sentences(window), []
        rest = source.tolist()
        while rest:  # what is read is made of whole sentences, each once
            found = next(at for at, each in enumerate(sentences) if at not in order and rest[: len(each)] == each)
            order.append(found)
            rest = rest[len(sentences[found]) :]
        moved += order != sorted(order)
    assert moved > 20


def _sentences(window: np.ndarray) -> list[list[int]]:
    stops = {tokenizer().encode("a" + stop)[-1] for stop in ".!?"}
    found: list[list[int]] = [[]]
    for token in window.tolist():
        if token != END:
            found[-1].append(token)
        if token in stops or token == END:
            found.append([])
    return sorted((each for each in found if each), key=len, reverse=True)


DOCUMENTS = [
    ["It weighs 3.5 kg.", "Mr. Smith met z. B. E. coli.", "Is it?", "Yes!"],
    ["这是书。那也是。"],
    ["No end"],
]
CUTTERS = [BpeTokenizer(size=90, min_count=1), CharacterTokenizer(), WordTokenizer(min_count=1)]


@pytest.mark.parametrize("section", CUTTERS, ids=lambda section: section.kind)
def test_sentence_permutation_with_abbreviations(section: AnyTokenizer) -> None:
    texts = [" ".join(parts) for parts in DOCUMENTS]
    cutter = Tokenizer.train(section, texts, (MASK,))
    window = np.array([token for text in texts for token in (*cutter.encode(text), END)])
    sentences = ["Itweighs3.5kg.", "Mr.Smithmetz.B.E.coli.", "Isit?", "Yes!", "这是书。", "那也是。", "Noend"]
    orders = set()
    for key in range(60):
        source, _ = corrupt_text(window, InfillingNoise(rate=0.001), PieceTable.of(cutter, (MASK,)), NoiseRandom(key))
        rest, order = "".join(cutter.pieces(source.tolist())).replace(SPACE, ""), list[str]()
        while rest:
            order.append(next(each for each in sentences if rest.startswith(each)))
            rest = rest.removeprefix(order[-1])
        assert sorted(order) == sorted(sentences)
        orders.add(tuple(order))
    assert len(orders) > 50


def test_line_breaks_do_not_end_sentences() -> None:
    cutter = Tokenizer.train(CharacterTokenizer(spaces="keep"), ["to be\nor not. That\nis"], (MASK,))
    window = np.array(cutter.encode("to be\nor not. That\nis"))
    found = {
        cutter.decode(
            corrupt_text(window, InfillingNoise(rate=0.001), PieceTable.of(cutter, (MASK,)), NoiseRandom(key))[
                0
            ].tolist()
        )
        for key in range(20)
    }
    assert found == {"to be\nor not. That\nis", " That\nisto be\nor not."}


def test_text_infilling_masks_whole_words_with_poisson_lengths() -> None:
    noise = InfillingNoise(permute_sentences=False)
    mask, lengths, units, covered = tokenizer().mark(MASK), [], 0, 0
    for key in range(300):
        window = text()[key * 11 : key * 11 + 150]
        plain = window[window != END]
        words = word_numbers(plain)
        source, _ = corrupt_text(window, noise, pieces(), NoiseRandom(key))
        own, at = [], 0
        marks = np.flatnonzero(source == mask)
        bounds = np.append(marks, len(source))
        at = int(marks[0]) if len(marks) else 0
        for number, _ in enumerate(marks):  # each mask stands for what lies before the next piece that was kept
            kept = source[bounds[number] + 1 : bounds[number + 1]].tolist()
            last = number == len(marks) - 1
            stop = len(plain) - len(kept) if last else _find(plain.tolist(), kept, at)
            span = words[at:stop]
            if len(span) and at:
                assert words[at - 1] != span[0]  # begins where a word begins
            if len(span) and stop < len(plain):
                assert words[stop] != span[-1]  # and ends where one ends
            own.append(len(set(span.tolist())))
            at = stop + len(kept)
        units += len(set(words.tolist()))
        covered += sum(own)
        lengths += own[:-1]  # the last may be cut off
    assert covered / units == pytest.approx(0.3, abs=0.02)
    assert np.mean(lengths) == pytest.approx(3.0, abs=0.25)
    assert 0.02 < np.mean(np.array(lengths) == 0) < 0.09  # Poisson(3): 0.05


def _find(text: list[int], part: list[int], at: int) -> int:
    return next(place for place in range(at, len(text)) if text[place : place + len(part)] == part)


def test_token_deletion_keeps_masks() -> None:
    mask, masks, kept, plain_kept = tokenizer().mark(MASK), 0, 0, 0
    for key in range(100):
        window = text()[key * 13 : key * 13 + 150]
        with_all, _ = corrupt_text(window, InfillingNoise(permute_sentences=False), pieces(), NoiseRandom(key))
        with_less, _ = corrupt_text(
            window, InfillingNoise(permute_sentences=False, deletion_ratio=0.2), pieces(), NoiseRandom(key)
        )
        assert np.count_nonzero(with_all == mask) == np.count_nonzero(with_less == mask)
        masks += np.count_nonzero(with_all == mask)
        kept += len(with_less)
        plain_kept += len(with_all)
    assert (kept - masks) / (plain_kept - masks) == pytest.approx(0.8, abs=0.02)


@given(
    length=st.integers(1, 120),
    rate=st.floats(0.01, 0.95),
    mean=st.floats(0.1, 8),
    delete=st.floats(0, 0.5),
    key=st.integers(0, 999),
)
def test_denoising_source_is_not_longer_than_its_text(
    length: int, rate: float, mean: float, delete: float, key: int
) -> None:
    noise, window = InfillingNoise(rate=rate, mean_span_length=mean, deletion_ratio=delete), text()[key : key + length]
    source, target = corrupt_text(window, noise, pieces(), NoiseRandom(key))
    assert len(source) <= len(target) <= length
