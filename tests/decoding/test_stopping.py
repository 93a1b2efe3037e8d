"""When a beam search ends: never below greedy search, never where a longer search finds better."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from sightline.decoding import beam as beam_module
from sightline.decoding.engine import decode
from sightline.decoding.ranking import SearchProgress, is_over
from sightline.decoding.request import BeamStep, Demands, Edges, Hypothesis, make_requests
from sightline.models.seq2seq import Seq2Seq
from sightline.recipe import Decoding

START, END = 2, 3
WORDS = range(4, 9)
FORMS = [("gnmt", 0.0), ("gnmt", 1.0), ("gnmt", 2.0), ("length", 0.6), ("length", 1.0), ("reward", 0.4)]
CLOSE = 2e-5
Rule = Callable[[int, list[int]], dict[int, float]]


def random_rule(seed: int) -> Rule:
    """Distributions drawn for every beginning: some are nearly certain, and most outputs are several words long."""

    def rule(first: int, prefix: list[int]) -> dict[int, float]:
        rng = random.Random(f"{seed} {first} {prefix}")
        sharp = rng.choice((0.5, 2.0, 6.0))
        weights = {word: math.exp(sharp * rng.gauss(0, 1)) for word in WORDS}
        total = sum(weights.values())
        end = rng.choice((0.001, 0.02, 0.2, 0.6))
        return {END: end} | {word: (1 - end) * weight / total for word, weight in weights.items()}

    return rule


def near_certain(first: int, prefix: list[int]) -> dict[int, float]:
    """One output of twelve words, so likely that greedy search finds it; at each step it might also end at once."""
    if len(prefix) == 12:
        return {END: 0.999, 5: 0.001}
    return {4: 0.98, END: 0.01, 5: 0.006, 6: 0.004}


def searched(model: Any, options: Decoding, **request: Any) -> list[Hypothesis]:
    return decode(model, make_requests([[5]], **request), options)[0]


class Followed:
    """Whether a beam still has a given output in it: live, or finished."""

    def __init__(self, tokens: list[int]) -> None:
        self.target = [*tokens, END]
        self.beginnings: list[list[int]] = [[]]
        self.lost = False

    def __call__(self, step: BeamStep) -> None:
        words, parents = step.words[0].tolist(), step.parents[0].tolist()
        grown = [[*self.beginnings[parent], word] for word, parent in zip(words, parents, strict=True)]
        for place, finished in enumerate(step.finished[0].tolist()):
            if finished and grown[place] == self.target:
                return
        slots = zip(step.slots[0].tolist(), step.alive[0].tolist(), strict=True)
        live = [grown[slot] for slot, alive in slots if alive]
        self.beginnings = [grown[slot] for slot in step.slots[0].tolist()]
        self.lost |= self.target[: step.step + 1] not in live


def pruned(model: Any, options: Decoding, greedy: list[int], **request: Any) -> bool:
    """Whether the output of greedy search fell out of the beam, because enough other beginnings were more likely."""
    follow = Followed(greedy)
    decode(model, make_requests([[5]], on_step=follow, **request), options)
    return follow.lost


# --- against greedy search -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("form", "alpha"), FORMS)
@pytest.mark.parametrize("beam", [2, 5])
def test_by_default_a_beam_is_not_worse_than_greedy_search(
    script: type[Any], beam: int, form: str, alpha: float
) -> None:
    """Five outputs that end too early have finished long before the right one."""
    shape: dict[str, Any] = {"length_normalization": form, "length_penalty": alpha}
    greedy, result = (searched(script(near_certain), Decoding(beam=width, **shape))[0] for width in (1, beam))
    assert greedy.tokens == result.tokens == [4] * 12


def test_as_many_finished_outputs_as_the_beam_is_wide_are_enough_for_the_count_rule_alone(script: type[Any]) -> None:
    options = Decoding(beam=5, stopping="count")
    assert len(searched(script(near_certain), options)[0].tokens) < 12
    patient = options.model_copy(update={"patience": 10.0})
    assert searched(script(near_certain), patient)[0].tokens == [4] * 12


@pytest.mark.parametrize(("form", "alpha"), FORMS)
@pytest.mark.parametrize("beam", [2, 3, 5])
def test_under_the_exact_bound_only_pruning_makes_a_beam_worse_than_greedy_search(
    script: type[Any], form: str, alpha: float, beam: int
) -> None:
    shape: dict[str, Any] = {"length_normalization": form, "length_penalty": alpha, "max_length": 9}
    options = Decoding(beam=beam, stopping="bound", **shape)
    for seed in range(12):
        model = script(random_rule(seed), 9)
        greedy, result = searched(model, Decoding(beam=1, **shape))[0], searched(model, options)[0]
        if result.score < greedy.score - CLOSE:
            assert pruned(model, options, greedy.tokens)


@pytest.mark.parametrize("changes", [{"beam": 4, "groups": 2}, {"beam": 6, "groups": 2, "diversity": 2.0}], ids=str)
@pytest.mark.parametrize("seed", range(12))
def test_groups_follow_the_same_rule(script: type[Any], changes: dict[str, Any], seed: int) -> None:
    model = script(random_rule(seed), 9)
    greedy = searched(model, Decoding(beam=1, max_length=9))[0]
    options = Decoding(stopping="bound", max_length=9, **changes)
    result = searched(model, options)[0]
    first = Decoding(beam=options.beam // options.groups, stopping="bound", max_length=9)
    assert result.score >= searched(model, first)[0].score - CLOSE  # no penalty in the first group: it is a plain beam
    if result.score < greedy.score - CLOSE:
        assert pruned(model, options, greedy.tokens)


@pytest.mark.parametrize("phrase", [[], [6], [7, 5]], ids=str)
@pytest.mark.parametrize(("seed", "beam"), [(seed, 2 + 2 * (seed % 2)) for seed in range(8)])
def test_required_phrases_follow_the_same_rule(script: type[Any], seed: int, beam: int, phrase: list[int]) -> None:
    demands = [Demands(required=(tuple(phrase),) if phrase else ())]
    model = script(random_rule(seed), 9)
    greedy = searched(model, Decoding(beam=1, max_length=9), demands=demands, edges=Edges.none(9))[0]
    options = Decoding(beam=beam, stopping="bound", max_length=9)
    result = searched(model, options, demands=demands, edges=Edges.none(9))[0]
    if result.score < greedy.score - CLOSE:
        assert pruned(model, options, greedy.tokens, demands=demands, edges=Edges.none(9))


# --- against a search that never ends before its limit ---------------------------------------------------------------


def endless(progress: SearchProgress, options: Decoding) -> torch.Tensor:
    return progress.best == float("-inf")


def scores(model: Any, options: Decoding, **request: Any) -> list[float]:
    return [result.score for result in searched(model, options, **request)]


@pytest.mark.parametrize("nbest", [1, 3])
@pytest.mark.parametrize(("form", "alpha"), FORMS)
@pytest.mark.parametrize(("limit", "prefix"), [(2, []), (6, [4, 7]), (9, [6]), (9, [])], ids=str)
def test_a_longer_search_than_to_the_exact_bound_finds_nothing_better(
    script: type[Any], form: str, alpha: float, nbest: int, limit: int, prefix: list[int]
) -> None:
    shape: dict[str, Any] = {"length_normalization": form, "length_penalty": alpha, "max_length": limit}
    options = Decoding(beam=4, nbest=nbest, stopping="bound", **shape)
    for seed in range(6):
        model = script(random_rule(seed), 9)
        result = scores(model, options, prefixes=[prefix])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(beam_module, "is_over", endless)
            assert result == pytest.approx(scores(model, options, prefixes=[prefix]), abs=CLOSE)


@pytest.mark.parametrize(("form", "alpha", "groups"), [("gnmt", 1.0, 1), ("length", 1.0, 2), ("reward", 0.4, 1)])
def test_nor_with_a_coverage_penalty(
    looking_model: Seq2Seq, form: str, alpha: float, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape: dict[str, Any] = {"length_normalization": form, "length_penalty": alpha, "groups": groups}
    options = Decoding(beam=4, nbest=2, stopping="bound", coverage_penalty=0.3, max_length=8, **shape)
    request = make_requests([[5, 9, 4], [6], [12, 8, 5, 7, 10]])
    result, longer = decode(looking_model, request, options), []
    monkeypatch.setattr(beam_module, "is_over", endless)
    longer = decode(looking_model, request, options)
    for ours, theirs in zip(result, longer, strict=True):
        assert [each.score for each in ours] == pytest.approx([each.score for each in theirs], abs=CLOSE)


# --- the rules, by hand ----------------------------------------------------------------------------------------------


def over(rule: str, best: float, finished: list[float], **changes: Any) -> bool:
    """Ten tokens live, at most twenty; as many kept as the beam is wide."""
    progress = SearchProgress(
        torch.tensor([best]), 10, torch.tensor([20]), torch.tensor([finished]), torch.tensor([changes.pop("total", 0)])
    )
    shape = {"beam": len(finished), "length_normalization": "length", "length_penalty": 1.0, "stopping": rule}
    return bool(is_over(progress, Decoding.model_validate(shape | changes)))


def test_the_exact_bound_takes_the_length_of_the_limit() -> None:
    assert over("bound", -10.0, [-0.5, -9.0])  # −10 / 20
    assert not over("bound", -9.9, [-0.5, -9.0])
    assert not over("bound", -10.0, [-0.5, -9.0], nbest=2)  # the second best counts too
    assert over("bound", float("-inf"), [float("-inf")] * 2)


def test_the_rule_of_transformers_compares_the_present_length_with_the_worst_that_is_kept() -> None:
    assert over("present", -11.0, [-0.9, -1.0])  # −11 / 11
    assert not over("present", -10.9, [-0.9, -1.0])
    assert not over("present", -11.0, [-0.9, float("-inf")])  # two are to be kept


def test_the_horizon_takes_a_length_a_little_above_the_present_one() -> None:
    assert over("horizon", -5.6, [-0.4, -9.0], total=2)  # −5.6 / (1.25 · 11)
    assert not over("horizon", -5.6, [-0.4, -9.0], total=1)
    assert not over("horizon", -5.4, [-0.4, -9.0], total=2)
    assert not over("horizon", -5.6, [-0.4, -9.0], total=2, patience=1.5)
    assert over("horizon", -8.1, [-0.4, -9.0], patience=9.0)  # −8.1 / 20: never beyond the limit
    assert not over("horizon", -5.6, [-0.4, -9.0], total=2, nbest=2)


@pytest.mark.parametrize(("form", "alpha"), FORMS)
def test_by_default_outputs_score_no_lower_than_with_the_count_rule(script: type[Any], form: str, alpha: float) -> None:
    shape: dict[str, Any] = {"beam": 3, "length_normalization": form, "length_penalty": alpha, "max_length": 9}
    for seed in range(12):
        model = script(random_rule(seed), 9)
        result, early = (scores(model, Decoding(**shape, **rule))[0] for rule in ({}, {"stopping": "count"}))
        assert result >= early - CLOSE


def test_patience_is_refused_where_nothing_waits() -> None:
    with pytest.raises(ValueError, match=r"patience \(2\) is for stopping: horizon or count, not bound"):
        Decoding(stopping="bound", patience=2.0)


def test_the_count_rule_counts() -> None:
    assert over("count", -0.1, [-8.0, -9.0], total=2)
    assert not over("count", -0.1, [-8.0, -9.0], total=1)
    assert not over("count", -0.1, [-8.0, -9.0], total=3, patience=2.0)


def test_a_search_with_one_hypothesis_is_greedy_and_ends_with_its_output() -> None:
    assert over("bound", -0.1, [-9.0], total=1)
    assert not over("bound", -99.0, [-9.0], total=0)
