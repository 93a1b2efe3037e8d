"""Pictures of a comparison: what is drawn over what, and that it can be drawn of any journal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from sightline.comparison import ComparisonResult
from sightline.comparison.results import Cost, Difference, SystemResult, Validation
from sightline.plots import comparison as figures
from sightline.plots.comparison import draw, mean_line, write_figure


def changed(system: SystemResult, change: Callable[[Validation], Validation], **more: object) -> SystemResult:
    """The same system with other validations."""
    members = [replace(each, validations=[change(v) for v in each.validations], **more) for each in system.runs]  # type: ignore[arg-type]
    return replace(system, runs=members)


def panels(comparison: ComparisonResult, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, int]]:
    """x, y and how many lines each panel of the learning curves has."""
    seen: list[tuple[str, str, int]] = []
    draw_lines = figures._draw_lines

    def watched(axes: object, comparison: ComparisonResult, key: str, value: str, scale: float) -> None:
        draw_lines(axes, comparison, key, value, scale)  # type: ignore[arg-type]
        seen.append((key, value, len(axes.get_lines())))  # type: ignore[attr-defined]

    monkeypatch.setattr(figures, "_draw_lines", watched)
    draw(comparison, "svg", parts=("curves",))
    return seen


def test_loss_and_metric_are_drawn_over_steps_tokens_flops_and_time(
    seeded: ComparisonResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two systems of two seeds: two thin lines and a bold one for each."""
    assert panels(seeded, monkeypatch) == [
        (key, value, 6) for value in ("loss", "bleu") for key in ("step", "tokens", "flops", "seconds")
    ]


def test_a_run_that_counted_no_flops_is_missing_in_that_panel_alone(
    seeded: ComparisonResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without(validation: Validation) -> Validation:
        return {key: value for key, value in validation.items() if key != "flops"}

    old = replace(seeded, systems=[changed(seeded.systems[0], without, cost=Cost()), seeded.systems[1]])
    assert panels(old, monkeypatch) == [
        (key, value, 3 if key == "flops" else 6)
        for value in ("loss", "bleu")
        for key in ("step", "tokens", "flops", "seconds")
    ]
    monkeypatch.undo()
    none = replace(seeded, systems=[changed(system, without, cost=Cost()) for system in seeded.systems])
    assert {key for key, _, _ in panels(none, monkeypatch)} == {"step", "tokens", "seconds"}
    assert draw(none, "png").startswith(b"\x89PNG")


def test_without_a_metric_in_the_journal_the_loss_is_drawn_alone(
    seeded: ComparisonResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bare(validation: Validation) -> Validation:
        return {key: value for key, value in validation.items() if key != "bleu"}

    found = replace(seeded, systems=[changed(system, bare) for system in seeded.systems])
    assert {value for _, value, _ in panels(found, monkeypatch)} == {"loss"}


def test_a_single_validation_is_a_point_also_of_several_seeds(
    seeded: ComparisonResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    def first_alone(system: SystemResult) -> SystemResult:
        return replace(system, runs=[replace(each, validations=each.validations[:1]) for each in system.runs])

    marks: list[str] = []
    draw_lines = figures._draw_lines

    def watched(axes: Any, *rest: Any) -> None:
        draw_lines(axes, *rest)
        marks.extend(line.get_marker() for line in axes.get_lines())

    monkeypatch.setattr(figures, "_draw_lines", watched)
    for systems, marker in ((seeded.systems, "None"), ([first_alone(each) for each in seeded.systems], "o")):
        marks.clear()
        draw(replace(seeded, systems=systems), "svg", parts=("curves",))
        assert marks and set(marks) == {marker}


def test_names_that_are_too_long_are_told_apart_by_both_ends() -> None:
    begun = "transformer-seed1 + transformer-seed2 + "
    cut = [figures._short(begun + last) for last in ("transformer-seed3", "experts-transformer")]
    assert cut == ["transformer-seed1 +… + transformer-seed3", "transformer-seed1 +… experts-transformer"]
    assert figures._short("n" * 40) == "n" * 40


def test_runs_without_a_journal_can_be_drawn(seeded: ComparisonResult) -> None:
    empty = [
        replace(system, runs=[replace(each, validations=[], cost=Cost()) for each in system.runs])
        for system in seeded.systems
    ]
    assert draw(replace(seeded, systems=empty), "png").startswith(b"\x89PNG")


def test_the_mean_is_taken_where_all_seeds_were_validated(seeded: ComparisonResult) -> None:
    def journal(points: Sequence[tuple[int, int, float]]) -> list[Validation]:
        return [{"step": step, "tokens": tokens, "loss": loss} for step, tokens, loss in points]

    first, second = seeded.systems[0].runs
    members = [
        replace(first, validations=journal([(10, 100, 4.0), (20, 200, 2.0), (30, 300, 1.0)])),
        replace(second, validations=journal([(10, 120, 5.0), (20, 220, float("nan")), (30, 320, 2.0)])),
    ]
    system = replace(seeded.systems[0], runs=members)
    assert mean_line(system, "tokens", "loss") == [(110, 4.5), (310, 1.5)]
    assert mean_line(system, "flops", "loss") == []


def test_formats_go_by_suffix_and_others_are_refused(seeded: ComparisonResult, tmp_path: Path) -> None:
    for name, start in (("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.pdf", b"%PDF")):
        write_figure(seeded, tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(start)
    ElementTree.parse(tmp_path / "a.svg")
    with pytest.raises(ValueError, match=r"a\.gif: a figure is a \.png, \.svg, \.pdf file"):
        write_figure(seeded, tmp_path / "a.gif")
    assert not (tmp_path / "a.gif").exists()


def test_the_same_comparison_makes_the_same_picture(seeded: ComparisonResult) -> None:
    assert draw(seeded, "svg") == draw(seeded, "svg")


def test_names_are_no_formulas_and_twenty_systems_have_room(seeded: ComparisonResult) -> None:
    names = ["$\\frac{", "نموذج", *(f"system {number} with a rather long name, and more of it" for number in range(18))]
    systems = [replace(seeded.systems[number % 2], name=name) for number, name in enumerate(names)]
    assert draw(replace(seeded, systems=systems), "png").startswith(b"\x89PNG")


def test_the_legend_shows_a_broken_line_as_one(seeded: ComparisonResult) -> None:
    """Its marker hides the middle: so much of the line stands beside it that two gaps are seen."""
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    place = Figure()
    figures._legend(replace(seeded, systems=[seeded.systems[0]] * 12), place)
    (legend,) = place.legends
    (broken, *_) = (line for line in legend.get_lines() if line.get_linestyle() == "--")
    period = sum(rcParams["lines.dashed_pattern"]) * broken.get_linewidth()
    length = legend.handlelength * legend.get_texts()[0].get_fontsize()
    assert length - broken.get_markersize() > 2 * period


def test_systems_that_cost_the_same_stand_side_by_side() -> None:
    assert figures._offsets([100.0, 200.0, 100.5, None, 100.2]) == [-9.0, 0.0, 0.0, 0.0, 9.0]
    assert figures._offsets([5.0]) == [0.0]


def test_an_interval_that_does_not_hold_its_value_can_be_drawn(seeded: ComparisonResult) -> None:
    first, *rest = seeded.systems
    metric = seeded.metrics[0]
    quality = replace(first.qualities[metric], value=0.0, low=1e-15, high=0.4)
    odd = replace(seeded, systems=[replace(first, qualities={**first.qualities, metric: quality}), *rest])
    assert draw(odd, "svg", parts=("costs",)).startswith(b"<?xml")


def test_costs_far_apart_have_ticks_in_plain_letters(seeded: ComparisonResult) -> None:
    def with_parameters(system: SystemResult, count: int) -> SystemResult:
        return replace(system, runs=[replace(each, parameters=count) for each in system.runs])

    first, second = seeded.systems
    apart = replace(seeded, systems=[with_parameters(first, 3_000_000), with_parameters(second, 40_000_000)])
    drawn = draw(apart, "svg", parts=("costs",)).decode()  # beside its paths, the text of every label is a comment
    assert "<!-- 10⁷ -->" in drawn
    assert "mathdefault" not in drawn


@pytest.mark.parametrize(
    ("keys", "label"),
    [
        ([], "loss (nats a token)"),
        (["model.width", "tokenizer.dropout"], "loss (nats a token)"),
        (["tokenizer.kind", "tokenizer.dropout"], "loss (nats a token;\ntokenizers differ, so do these)"),
    ],
)
def test_losses_of_different_tokens_are_said_to_be_so(pair: ComparisonResult, keys: list[str], label: str) -> None:
    differing = replace(pair, differences=[Difference(key, ["1", "2"]) for key in keys])
    assert figures._shown_values(differing)[0] == ("loss", label)
