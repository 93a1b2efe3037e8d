"""A comparison in sentences: the answer in a line for each system, and what stands below the table."""

from __future__ import annotations

from sightline.comparison.results import Comparison, System
from sightline.comparison.seeds import SEED, TRIALS
from sightline.evaluation.hearing import WINDOW
from sightline.evaluation.metrics import METRICS
from sightline.evaluation.significance import LEVEL, written_p
from sightline.terminal import plural


def answers(comparison: Comparison) -> list[str]:
    """Which is better, by how much, is it luck, what does it cost: a line for each system but the baseline."""
    return [_answer(comparison, system) for system in comparison.others]


def _answer(comparison: Comparison, system: System) -> str:
    metric = comparison.metrics[0]
    baseline, verdict = comparison.baseline, system.verdicts[metric]
    label = METRICS[metric].label
    change = f"{label} {verdict.difference:+.{METRICS[metric].digits}f}, p {written_p(verdict.p)}"
    if _same_outputs(baseline, system):
        said = f"{system.name} is not different from {baseline.name}: it has the same outputs ({change})"
    elif verdict.difference == 0:
        said = f"{system.name} is not different from {baseline.name} ({change})"
    elif verdict.significant:
        said = f"{system.name} is {'better' if verdict.better else 'worse'} than {baseline.name} ({change})"
    else:
        ahead = "ahead" if verdict.better else "behind"
        said = (
            f"There is no evidence of a difference between {system.name} and {baseline.name}: "
            f"{system.name} is {ahead}, but that could be luck ({change})"
        )
    return f"{said}{_price(comparison, system)}."


def _price(comparison: Comparison, system: System) -> str:
    baseline = comparison.baseline
    ratios: list[tuple[float | None, float | None, str]] = [
        (system.parameters, baseline.parameters, "the parameters"),
    ]
    whole = not system.cost.least and not baseline.cost.least
    if whole and _began_alike(comparison, system) and _teachers(system) == _teachers(baseline):
        ratios.append((system.cost.flops, baseline.cost.flops, "the training FLOPs"))
    if not _hurried(comparison):
        ratios.append((system.sentences_per_second, baseline.sentences_per_second, "the decoding speed"))
    told = [f"{ours / theirs:.2f}× {what}" for ours, theirs, what in ratios if ours and theirs]
    return f", at {', '.join(told)}" if told else ""


def _began_alike(comparison: Comparison, system: System) -> bool:
    """Whether it and the baseline were trained from the same weights on; else what one cost leaves something out."""
    place = comparison.systems.index(system)
    begun = [each.values for each in comparison.differences if each.key.startswith("model.init_from")]
    return all(values[place] == values[0] for values in begun)


def _teachers(system: System) -> set[str]:
    """The models that wrote text for it to learn from, which its own cost leaves out too."""
    return {digest for member in system.members for digest in member.taught_by}


def _same_outputs(baseline: System, system: System) -> bool:
    if len(baseline.members) > 1 or len(system.members) > 1 or not system.members[0].outputs:
        return False
    return baseline.members[0].outputs == system.members[0].outputs


def footnotes(comparison: Comparison) -> list[str]:
    """What a reader of the table needs to know; signatures come last."""
    first = f"{comparison.test.name}: {_size(comparison)}. Baseline: {comparison.baseline.name}."
    if comparison.other_tests:
        first += f" All runs have these test sets too: {', '.join(comparison.other_tests)}."
    notes = [first, _value_note(comparison), _test_note(comparison), *_many_notes(comparison)]
    notes += [_cost_note(comparison), *comparison.notes]
    return [*(note.strip() for note in notes), *signatures(comparison)]


def _size(comparison: Comparison) -> str:
    return plural(comparison.sentences, "document" if comparison.of_text else "sentence")


def looked_at(comparison: Comparison) -> str:
    """Which run stands for each system where outputs are looked at; nothing where every system is one run."""
    names = [f"{name}: {run}" for name, run in comparison.where.runs.items() if run != name]
    if not names:
        return ""
    return f"Of several seeds, where systems differ is asked of the run nearest to their mean ({'; '.join(names)})."


def signatures(comparison: Comparison) -> list[str]:
    """How each metric was computed, once for all systems that share it: only how intervals were made may differ."""
    told = []
    for metric in comparison.metrics:
        every = dict.fromkeys(system.qualities[metric].signature for system in comparison.having(metric))
        told.append(f"{METRICS[metric].label}: {'; '.join(every)}")
    return told


def _value_note(comparison: Comparison) -> str:
    what = f"windows of {WINDOW} tokens or characters of the text" if comparison.of_text else "the test sentences"
    note = f"Value [95% interval over {what}]."
    if comparison.seeded:
        note += (
            " Of several seeds: mean ± standard deviation over the seeds (n−1), and the interval of a single run "
            "(the mean of theirs)."
        )
    return note


def _test_note(comparison: Comparison) -> str:
    note = (
        f"Δ: difference to the baseline, with p by approximate randomization ({TRIALS:,} trials, seed {SEED}); "
        f"* marks p < {LEVEL}. Ties count, which they do not in sacreBLEU's p (both in the table of tests). "
    )
    if comparison.seeded:
        note += (
            "With several seeds p is the larger of two: that of approximate randomization between the means over the "
            "seeds, a sentence swapped in all runs at once, and that of Welch's t-test between the scores of the runs. "
            "So a difference is marked only if neither the test sentences nor the seeds explain it. "
        )
    return note


def _many_notes(comparison: Comparison) -> list[str]:
    """With many systems some will look different by luck alone."""
    if len(comparison.others) < 2:
        return []
    told: list[str] = []
    marks = 0
    for metric in comparison.metrics:
        marked = [system for system in comparison.tested(metric) if system.verdicts[metric].significant]
        standing = comparison.standing(metric)
        marks += len(marked)
        if len(standing) < len(marked):
            names = ", ".join(system.name for system in marked if system not in standing)
            told.append(f"{METRICS[metric].label} of {names}")
    if not marks:
        return []
    lost = f"it would take the mark from {'; '.join(told)}" if told else "all marks would stay"
    return [f"Each system is tested on its own; corrected for how many are tested by a metric (Holm 1979) {lost}."]


def _cost_note(comparison: Comparison) -> str:
    mean = " (mean over the seeds)" if comparison.seeded else ""
    return (
        f"Cost of one training{mean}: target tokens; FLOPs of the matrix products, a multiply-add counted as two; "
        "time; largest memory (of tensors on CUDA, of the process on the CPU)."
    ) + (_speed_note(comparison) if comparison.writes else "")


def _speed_note(comparison: Comparison) -> str:
    return f" Sentences/s: decoding, measured now on {comparison.decoded_on}, all runs in turns" + (
        "; some needed less than a second, too little for more than a rough idea." if _hurried(comparison) else "."
    )


def _hurried(comparison: Comparison) -> bool:
    """Whether decoding was over too soon to say who is faster."""
    members = (member for system in comparison.systems for member in system.members)
    return any(member.seconds < 1 for member in members if member.baseline is None)
