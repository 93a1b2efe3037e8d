"""Diverse beam search against one written with lists."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import pytest
import torch

from sightline.decoding.diverse_beam import DiverseBeam, selected
from sightline.decoding.engine import decode
from sightline.decoding.request import make_requests
from sightline.layers.layout import Padded
from sightline.models.seq2seq import Seq2Seq
from sightline.recipe import Decoding

UNK, START, END = 1, 2, 3
WORDS = [UNK, *range(4, 13)]
SOURCES = [[5, 9, 4], [6], [12, 8, 5, 7, 10]]
Path = tuple[float, list[int]]


@cache
def next_logs(model: Seq2Seq, source: tuple[int, ...], past: tuple[int, ...]) -> list[float]:
    """Without any cache of the model's; the same beginnings are asked for again and again."""
    with torch.no_grad():
        state = model.begin(model.encode(torch.tensor([[*source, END]]), Padded.of([len(source) + 1])))
        features, _ = model.advance(torch.tensor([[START, *past]]), state)
        result: list[float] = model.logits(features[0, -1]).double().log_softmax(-1).tolist()
    return result


def by_lists(model: Seq2Seq, source: list[int], beam: int, groups: int, diversity: float, limit: int) -> list[Path]:
    """Every group a beam of its own; what earlier groups took at a step costs λ for each time they did."""
    width = beam // groups
    alive: list[list[Path]] = [[(0.0, [])] for _ in range(groups)]
    finished: list[list[Path]] = [[] for _ in range(groups)]
    for step in range(limit):
        taken: Counter[int] = Counter()
        for group in range(groups):
            every = []
            for total, past in alive[group]:
                logs = next_logs(model, tuple(source), tuple(past))
                for word in [END] if step + 1 == limit else [END, *WORDS]:
                    every.append((total + logs[word] - diversity * taken[word], total + logs[word], [*past, word]))
            best = sorted(every, key=lambda each: -each[0])[: 2 * width]
            ends = [(total, past) for _, total, past in best[:width] if past[-1] == END]
            going = [(total, past) for _, total, past in best if past[-1] != END][:width]
            taken.update(past[-1] for _, past in [*ends, *going])
            finished[group] += ends
            alive[group] = going if len(finished[group]) < width else []
    result = {tuple(past[:-1]): total for each in finished for total, past in each}
    ranked = sorted(result, key=lambda past: -result[past] / ((5 + len(past) + 1) / 6))
    return [(result[past], list(past)) for past in ranked]


@pytest.mark.parametrize(("beam", "groups", "diversity"), [(4, 2, 0.4), (3, 3, 3.0), (6, 2, 0.0), (6, 3, 0.4)])
def test_groups_are_those_written_with_lists(model: Seq2Seq, beam: int, groups: int, diversity: float) -> None:
    shape = {"beam": beam, "groups": groups, "diversity": diversity, "nbest": beam, "max_length": 5}
    options = Decoding(stopping="count", length_penalty=1.0, **shape)
    for source, result in zip(SOURCES, decode(model, make_requests(SOURCES), options), strict=True):
        expected = by_lists(model, source, beam, groups, diversity, 5)[:beam]
        assert [h.tokens for h in result] == [past for _, past in expected]
        assert [h.log_probability for h in result] == pytest.approx([total for total, _ in expected], abs=5e-5)


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_one_group_is_beam_search(model: Seq2Seq, monkeypatch: pytest.MonkeyPatch, alpha: float) -> None:
    options = Decoding(beam=4, nbest=4, groups=1, diversity=0.7, max_length=9, length_penalty=alpha)
    plain = decode(model, make_requests(SOURCES), options)
    monkeypatch.setattr("sightline.decoding.engine.Beam", DiverseBeam)
    assert decode(model, make_requests(SOURCES), options) == plain


def test_a_high_penalty_makes_first_words_differ(script: type[Any]) -> None:
    shares = {4: 0.4, 5: 0.3, 6: 0.2, 7: 0.1}
    model = script(lambda first, prefix: shares if not prefix else {END: 1.0})
    plain, diverse = (
        decode(model, make_requests([[5]]), Decoding(beam=4, nbest=4, groups=groups, diversity=9.0))[0]
        for groups in (1, 4)
    )
    assert [h.tokens for h in diverse] == [h.tokens for h in plain] == [[4], [5], [6], [7]]
    narrow = decode(model, make_requests([[5]]), Decoding(beam=2, nbest=2, groups=2, diversity=0.0))[0]
    assert [h.tokens for h in narrow] == [[4]]  # both groups say the same, which is told once
    fewer = decode(model, make_requests([[5]]), Decoding(beam=4, nbest=2, groups=2, diversity=0.0))[0]
    assert [h.tokens for h in fewer] == [[4], [5]]  # what is told once leaves room for others


@pytest.mark.parametrize("diversity", [0.3, 2.0])
def test_groups_do_not_depend_on_the_batch(model: Seq2Seq, diversity: float) -> None:
    sources = [[4 + (3 * n + k) % 9 for k in range(1 + n % 6)] for n in range(8)]
    shape = {"beam": 4, "nbest": 4, "groups": 2, "diversity": diversity, "max_length": 10}
    one, all_ = (decode(model, make_requests(sources), Decoding(**shape, batch_tokens=size)) for size in (1, 9999))
    assert [[h.tokens for h in beams] for beams in one] == [[h.tokens for h in beams] for beams in all_]


def test_groups_go_with_a_coverage_penalty(looking_model: Seq2Seq) -> None:
    shape = {"beam": 4, "nbest": 4, "groups": 2, "diversity": 0.5, "max_length": 6, "length_penalty": 1.0}
    options = Decoding(coverage_penalty=0.2, stopping="count", **shape)  # no rule that looks at scores
    plain = decode(looking_model, make_requests(SOURCES), options.model_copy(update={"coverage_penalty": 0.0}))
    lower = 0
    for covered, free in zip(decode(looking_model, make_requests(SOURCES), options), plain, strict=True):
        scores = {tuple(h.tokens): h.score for h in free}
        assert {tuple(h.tokens) for h in covered} == set(scores)  # it ranks, and chooses no word
        assert all(h.score <= scores[tuple(h.tokens)] + 1e-5 for h in covered)
        lower += sum(h.score < scores[tuple(h.tokens)] - 1e-3 for h in covered)
    assert lower > 0


def test_missing_candidates_are_not_taken() -> None:
    never = float("-inf")
    totals = torch.tensor([[-1.0, -2.0, -3.0, -4.0], [-1.0, never, never, never]])
    ends = torch.tensor([[False, True, False, True], [False] * 4])
    assert selected(totals, ends, 2).tolist() == [[True, True, True, False], [True, False, False, False]]


def test_groups_may_be_wider_than_a_vocabulary(script: type[Any]) -> None:
    model = script(lambda first, prefix: {4: 0.6, 5: 0.4} if not prefix else {END: 1.0}, 6)
    (result,) = decode(model, make_requests([[5]]), Decoding(beam=8, nbest=8, groups=2, diversity=0.0))
    assert [h.tokens for h in result] == [[4], [5]]
