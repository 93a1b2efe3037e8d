"""Heads are chosen by what two directions agree on."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from sightline.inspection.alignment import HeadSelection, select_heads
from untrained_runs import LOOKING, untrained

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("head_choice")


@pytest.mark.parametrize("name", LOOKING)
def test_candidates_are_all_heads_and_layers_at_both_steps_and_each_can_be_read(benchmark: Any, name: str) -> None:
    model = untrained(name).model
    found = benchmark.candidates(model)
    assert len(set(found)) == len(found) == {"transformer": 12, "convolutional": 4}.get(name, 2)
    for how in found:
        assert select_heads(model, how.heads)


def test_agreement_is_the_share_of_links_that_both_have(benchmark: Any) -> None:
    one, other = frozenset({(0, 0), (1, 1)}), frozenset({(0, 0), (1, 2), (2, 2), (3, 3)})
    assert benchmark.agreement([one, frozenset()], [other, frozenset()]) == pytest.approx(2 / 6)
    assert benchmark.agreement([frozenset()], [frozenset()]) == 0


def test_the_pair_of_heads_that_agrees_most_is_chosen(benchmark: Any) -> None:
    same, apart = [frozenset({(0, 0), (1, 1)})], [frozenset({(5, 5)})]
    heads = [HeadSelection((f"decoder.0.cross.{number}",)) for number in range(3)]
    found = benchmark.choose_by_agreement(
        {heads[0]: apart, heads[1]: same}, {heads[0]: [frozenset({(7, 7)})], heads[2]: [frozenset({(0, 0)})]}
    )
    assert (found.forward, found.backward) == (heads[1], heads[2])
    assert found.agreement == pytest.approx(2 / 3)
