"""How the learning rate moves."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from sightline.recipe import Schedule
from sightline.training.schedules import learning_rate_factor as factor
from sightline.training.schedules import warmup_note

KINDS = ("constant", "inverse-sqrt", "cosine", "warmup-stable-decay")


@pytest.mark.parametrize("kind", KINDS)
def test_the_rate_rises_linearly_to_its_peak(kind: str) -> None:
    schedule = Schedule(kind=kind, warmup=10)
    assert [factor(schedule, step, 0.0) for step in (1, 5, 9)] == [0.1, 0.5, 0.9]
    assert factor(schedule, 10, 0.0) == 1.0


@pytest.mark.parametrize("kind", KINDS)
def test_without_warmup_the_first_step_has_the_peak_rate(kind: str) -> None:
    assert factor(Schedule(kind=kind, warmup=0), 1, 0.0) == 1.0


@pytest.mark.parametrize("kind", KINDS)
def test_the_learning_rate_is_continuous(kind: str) -> None:
    schedule, steps = Schedule(kind=kind, warmup=50, decay=0.2), 1000
    rates = [factor(schedule, step, step / steps, 50 / steps) for step in range(1, steps + 1)]
    assert max(abs(after - before) for before, after in pairwise(rates)) <= 1 / 50 + 1e-9  # the warmup is the steepest
    assert max(rates) == rates[49] == 1.0  # the peak is reached, where the warmup ends
    assert min(rates) >= 0.0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [100, 1_000, 10_000])
def test_a_warmup_below_one_is_a_share_of_the_training_whatever_its_length(kind: str, steps: int) -> None:
    schedule = Schedule(kind=kind, warmup=0.1, decay=0.2)
    rates = [factor(schedule, step, step / steps) for step in range(1, steps + 1)]
    assert rates[steps // 20 - 1] == pytest.approx(0.5)
    assert rates[steps // 10 - 1] == pytest.approx(1.0) == max(rates)
    assert max(abs(after - before) for before, after in pairwise(rates)) <= 10 / steps + 1e-9


def test_a_share_is_never_fewer_than_ten_steps() -> None:
    """Under a time limit the first steps may take longer than the whole warm-up."""
    schedule = Schedule(kind="constant", warmup=0.1)
    assert [factor(schedule, step, 0.5) for step in (1, 5, 10)] == [0.1, 0.5, 1.0]


@pytest.mark.parametrize("warmup", [1.5, -0.1])
def test_a_warmup_is_a_share_or_whole_steps(warmup: float) -> None:
    with pytest.raises(ValueError, match="warmup"):
        Schedule(warmup=warmup)


def test_a_warning_names_a_warmup_that_is_too_long_for_the_limits() -> None:
    schedule = Schedule(warmup=4_000)
    assert "more than the whole training (about 450 steps" in str(warmup_note(schedule, 450.0))
    assert "80% of the training (about 5,000 steps" in str(warmup_note(schedule, 5_000.0))
    assert warmup_note(schedule, 40_000.0) is None
    assert warmup_note(Schedule(warmup=0.9), 10.0) is None


def test_the_inverse_square_root_halves_when_steps_quadruple() -> None:
    schedule = Schedule(kind="inverse-sqrt", warmup=100)
    assert factor(schedule, 400, 0.0) == 0.5
    assert factor(schedule, 2500, 0.0) == 0.2


def test_inverse_sqrt_equals_the_formula_of_the_paper() -> None:
    """D^−0.5 · min(step^−0.5, step · warmup^−1.5) (Vaswani et al. 2017, §5.3), with its peak as lr."""
    schedule = Schedule(kind="inverse-sqrt", warmup=4000)
    peak = 512**-0.5 * 4000**-0.5
    for step in (1, 100, 3999, 4000, 4001, 100_000):
        paper = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
        assert peak * factor(schedule, step, 0.0) == pytest.approx(paper, rel=1e-12)


def test_the_cosine_ends_at_its_floor() -> None:
    schedule = Schedule(kind="cosine", warmup=0, floor=0.1)
    assert factor(schedule, 1, 0.0) == 1.0
    assert factor(schedule, 50, 0.5) == pytest.approx(0.55, rel=1e-12)
    assert factor(schedule, 50, 1 / 3) == pytest.approx(0.1 + 0.9 * (1 + math.cos(math.pi / 3)) / 2, rel=1e-12)
    assert factor(schedule, 100, 1.0) == pytest.approx(0.1, rel=1e-12)


def test_the_cosine_falls_over_what_the_warmup_leaves() -> None:
    schedule = Schedule(kind="cosine", warmup=20, floor=0.0)
    assert factor(schedule, 20, 0.2, 0.2) == 1.0
    assert factor(schedule, 60, 0.6, 0.2) == pytest.approx(0.5, rel=1e-12)
    assert factor(schedule, 100, 1.0, 0.2) == pytest.approx(0.0, abs=1e-12)


def test_the_cosine_starts_after_the_warmup_and_never_rises_again() -> None:
    schedule = Schedule(kind="cosine", warmup=20, floor=0.1)
    assert factor(schedule, 20, 0.1, 0.2) == 1.0
    assert factor(schedule, 120, 1.2, 0.2) == pytest.approx(0.1, rel=1e-12)
    assert factor(schedule, 20, 1.0, 1.0) == 1.0  # all of it is warmup


def test_warmup_stable_decay_ends_at_its_floor() -> None:
    schedule = Schedule(kind="warmup-stable-decay", warmup=10, decay=0.2, floor=0.1)
    assert factor(schedule, 50, 0.5) == 1.0
    assert factor(schedule, 90, 0.9) == pytest.approx(0.55, rel=1e-12)
    assert factor(schedule, 100, 1.0) == pytest.approx(0.1, rel=1e-12)


def test_warmup_stable_decay_is_stable_until_it_decays() -> None:
    schedule = Schedule(kind="warmup-stable-decay", warmup=10, decay=0.2, floor=0.0)
    assert factor(schedule, 11, 0.1) == 1.0
    assert factor(schedule, 79, 0.79) == 1.0
    assert factor(schedule, 90, 0.9) == pytest.approx(0.5, rel=1e-12)
    assert factor(schedule, 100, 1.0) == 0.0
