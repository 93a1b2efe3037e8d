"""Drawing words instead of searching for them."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from made_sources import many_sources

from sightline.decoding.engine import decode
from sightline.decoding.greedy import finished
from sightline.decoding.request import make_requests
from sightline.decoding.scoring import log_probabilities
from sightline.models.seq2seq import Seq2Seq
from sightline.recipe import Decoding

END, START = 3, 2
SHARES = {4: 0.3, 5: 0.2, 6: 0.15, 7: 0.12, 8: 0.1, 9: 0.06, 10: 0.04, END: 0.03}


def options(nbest: int = 1, **sampling: Any) -> Decoding:
    limits = {key: sampling.pop(key) for key in ("max_length", "max_ratio", "batch_tokens") if key in sampling}
    return Decoding.model_validate({"beam": 1, "nbest": nbest, "sample": sampling, "max_length": 12, **limits})


def tokens(result: list[list[Any]]) -> list[list[list[int]]]:
    return [[hypothesis.tokens for hypothesis in beams] for beams in result]


def constant(script: type[Any]) -> Any:
    """A model that always has the same distribution, whatever was said."""
    return script(lambda first, prefix: SHARES)


def chi_square(counts: Counter[Any], shares: dict[Any, float]) -> float:
    total = sum(counts.values())
    return sum((counts[key] - total * share) ** 2 / (total * share) for key, share in shares.items())


def test_samples_depend_on_the_seed_only(model: Seq2Seq) -> None:
    sources = many_sources(12)
    one, same, other = (tokens(decode(model, make_requests(sources), options(3, seed=seed))) for seed in (1, 1, 2))
    assert one == same
    assert one != other


@pytest.mark.parametrize("nbest", [1, 3])
def test_samples_do_not_depend_on_the_batch(model: Seq2Seq, nbest: int) -> None:
    """Nor on the neighbours' limits: a source of n tokens (its end counted) may become n + 10 here."""
    sources = many_sources(10)
    limits = {"max_length": 30, "max_ratio": 1.0}
    one, all_ = (
        tokens(decode(model, make_requests(sources), options(nbest, **limits, batch_tokens=size))) for size in (1, 9999)
    )
    assert one == all_


def test_samples_do_not_depend_on_the_division_into_calls(model: Seq2Seq) -> None:
    sources = many_sources(10)
    whole = decode(model, make_requests(sources), options(2))
    parts = [
        *decode(model, make_requests(sources[:4]), options(2)),
        *decode(model, make_requests(sources[4:], first=4), options(2)),
    ]
    assert tokens(whole) == tokens(parts)


def test_equal_sentences_are_drawn_differently(model: Seq2Seq) -> None:
    result = tokens(decode(model, make_requests([[5, 6]] * 8), options(1)))
    assert len({tuple(beams[0]) for beams in result}) > 1


def test_sample_frequencies_match_the_probabilities(script: type[Any]) -> None:
    result = decode(constant(script), make_requests([[5]] * 1000), options(4, max_length=2))
    counts = Counter(beams[w].tokens[0] if beams[w].tokens else END for beams in result for w in range(4))
    assert sum(counts.values()) == 4000
    assert chi_square(counts, SHARES) < 24.3  # 7 degrees of freedom: less in 999 of 1000 draws; the seed is fixed


def test_the_words_of_one_output_are_drawn_independently(script: type[Any]) -> None:
    words = {4: 0.5, 5: 0.3, 6: 0.2}
    model = script(lambda first, prefix: words if len(prefix) < 2 else {END: 1.0})
    result = decode(model, make_requests([[5]] * 1000), options(2))
    counts = Counter(tuple(h.tokens) for beams in result for h in beams)
    shares = {(a, b): words[a] * words[b] for a in words for b in words}
    assert chi_square(counts, shares) < 26.1  # 8 degrees of freedom, as above


def test_temperature_sharpens_the_distribution(script: type[Any]) -> None:
    result = decode(constant(script), make_requests([[5]] * 2000), options(1, max_length=2, temperature=0.5))
    counts = Counter(beams[0].tokens[0] if beams[0].tokens else END for beams in result)
    total = sum(share**2 for share in SHARES.values())
    assert chi_square(counts, {word: share**2 / total for word, share in SHARES.items()}) < 24.3


def test_a_low_temperature_is_greedy(model: Seq2Seq) -> None:
    sources = many_sources(12)
    greedy = decode(model, make_requests(sources), Decoding(beam=1, max_length=12))
    assert tokens(decode(model, make_requests(sources), options(1, temperature=1e-4))) == tokens(greedy)


@pytest.mark.parametrize(
    ("cut", "nucleus"),
    [
        ({"top_k": 1}, {4}),
        ({"top_k": 3}, {4, 5, 6}),
        ({"top_k": 100}, set(SHARES)),
        ({"top_p": 0.01}, {4}),
        ({"top_p": 0.49}, {4, 5}),
        ({"top_p": 0.51}, {4, 5, 6}),  # 0.5 is not yet enough
        ({"top_p": 1.0}, set(SHARES)),
        ({"top_k": 4, "top_p": 0.6}, {4, 5}),  # of the four's mass, 0.77, the first two have 0.65
    ],
)
def test_nothing_outside_the_nucleus_is_drawn_and_all_inside_is(
    script: type[Any], cut: dict[str, Any], nucleus: set[int]
) -> None:
    result = decode(constant(script), make_requests([[5]] * 400), options(1, max_length=2, **cut))
    counts = Counter(beams[0].tokens[0] if beams[0].tokens else END for beams in result)
    assert set(counts) == nucleus
    total = sum(SHARES[word] for word in nucleus)
    expected = {word: SHARES[word] / total for word in nucleus}
    assert chi_square(counts, expected) < 24.3  # at most 7 degrees of freedom


def test_a_drawn_output_has_the_models_own_probability_whatever_the_temperature(model: Seq2Seq) -> None:
    sources = many_sources(8)
    result = decode(model, make_requests(sources), options(3, temperature=0.7, top_k=5))
    for source, beams in zip(sources, result, strict=True):
        logs = log_probabilities(model, [source] * 3, [h.tokens for h in beams])
        # some ten float32 log-probabilities near −3, added in two orders
        assert [h.log_probability for h in beams] == pytest.approx(logs.tolist(), rel=0, abs=5e-5)


def test_several_samples_come_best_first(script: type[Any]) -> None:
    (result,) = decode(constant(script), make_requests([[5]]), options(6))
    assert [h.score for h in result] == sorted((h.score for h in result), reverse=True)
    for hypothesis in result:
        logs = sum(math.log(SHARES[word]) for word in hypothesis.tokens) + math.log(SHARES[END])
        assert hypothesis.log_probability == pytest.approx(logs, abs=1e-4)  # float32 sums near −30


def test_the_best_is_so_by_its_score_not_by_its_probability() -> None:
    tokens = torch.tensor([[[START, 4, END, 0, 0, 0, 0, 0], [START, 4, 5, 4, 5, 4, 5, END]]])
    (result,) = finished(tokens, torch.tensor([[-2.0, -2.25]]), Decoding(length_penalty=1.0), scored=True)
    assert [(len(sample.tokens), sample.log_probability) for sample in result] == [(6, -2.25), (1, -2.0)]


@pytest.mark.parametrize("drawn", [True, False])
def test_on_token_is_called_with_every_token(model: Seq2Seq, drawn: bool) -> None:
    chosen = options(2, seed=5) if drawn else Decoding(beam=1, max_length=12)
    by_sample: dict[int, list[int]] = {}
    request = make_requests(
        [[5, 6, 7]], prefixes=[[8, 9]], on_token=lambda token, sample: by_sample.setdefault(sample, []).append(token)
    )
    result = decode(model, request, chosen)
    rows = list(by_sample.values())
    assert all(row[-1] == END and END not in row[:-1] for row in rows)
    ended = sorted(row[:-1] for row in rows)
    assert ended == sorted(hypothesis.tokens for hypothesis in result[0])
    assert all(row[:2] == [8, 9] for row in rows)
    assert tokens(result) == tokens(decode(model, request, chosen))


def test_a_beam_has_no_tokens_to_report_before_its_end(model: Seq2Seq) -> None:
    with pytest.raises(ValueError, match=r"beam search \(beam 3\) cannot report tokens"):
        decode(model, make_requests([[5]], on_token=lambda token, sample: None), Decoding(beam=3))
