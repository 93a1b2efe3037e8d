"""A comparison in sentences: conclusions, and the notes below the table."""

from __future__ import annotations

from sightline.comparison.results import ComparisonResult, SystemResult
from sightline.evaluation.metrics import METRICS
from sightline.evaluation.perplexity import WINDOW
from sightline.evaluation.significance import LEVEL, SEED, TRIALS, format_p
from sightline.terminal import plural


def conclusions(comparison: ComparisonResult) -> list[str]:
    """For each system but the baseline: better or worse, by how much, significance, and relative cost."""
    return [_conclusion(comparison, system) for system in comparison.others]


def _conclusion(comparison: ComparisonResult, system: SystemResult) -> str:
    metric = comparison.metrics[0]
    baseline, verdict, label = comparison.baseline, system.verdicts.get(metric), METRICS[metric].name
    if verdict is None:  # a value is infinite
        ours, theirs = (each.qualities[metric].value for each in (system, baseline))
        return f"{system.name} has {label} {ours:.2f} and {baseline.name} {theirs:.2f}: no difference was tested."
    change = f"{label} {verdict.difference:+.{METRICS[metric].digits}f}, p {format_p(verdict.p)}"
    if _same_outputs(baseline, system):
        text = f"{system.name} does not differ from {baseline.name}: it has the same outputs ({change})"
    elif verdict.difference == 0:
        text = f"{system.name} does not differ from {baseline.name} ({change})"
    elif verdict.significant:
        text = f"{system.name} is {'better' if verdict.better else 'worse'} than {baseline.name} ({change})"
    else:
        ahead = "ahead" if verdict.better else "behind"
        text = (
            f"There is no evidence of a difference between {system.name} and {baseline.name}: "
            f"{system.name} is {ahead}, but that could be chance ({change})"
        )
    return f"{text}{_relative_costs(comparison, system)}."


def _relative_costs(comparison: ComparisonResult, system: SystemResult) -> str:
    baseline = comparison.baseline
    ratios: list[tuple[float | None, float | None, str]] = [
        (system.parameters, baseline.parameters, "the parameters"),
    ]
    complete = not system.cost.least and not baseline.cost.least
    if complete and _same_init(comparison, system) and _teachers(system) == _teachers(baseline):
        ratios.append((system.cost.flops, baseline.cost.flops, "the training FLOPs"))
    if not _too_fast_to_time(comparison):
        ratios.append((system.sentences_per_second, baseline.sentences_per_second, "the decoding speed"))
    parts = [f"{ours / theirs:.2f}× {what}" for ours, theirs, what in ratios if ours and theirs]
    return f", at {', '.join(parts)}" if parts else ""


def _same_init(comparison: ComparisonResult, system: SystemResult) -> bool:
    """Return True if it was initialized like the baseline; otherwise its cost leaves out an earlier training."""
    place = comparison.systems.index(system)
    values = [each.values for each in comparison.differences if each.key.startswith("model.init_from")]
    return all(each[place] == each[0] for each in values)


def _teachers(system: SystemResult) -> set[str]:
    """Digests of the models that generated its training text; their cost is not part of its own."""
    return {digest for run in system.runs for digest in run.teachers}


def _same_outputs(baseline: SystemResult, system: SystemResult) -> bool:
    if len(baseline.runs) > 1 or len(system.runs) > 1 or not system.runs[0].outputs:
        return False
    return baseline.runs[0].outputs == system.runs[0].outputs


def _too_fast_to_time(comparison: ComparisonResult) -> bool:
    """Return True if some run decoded in less than a second, too short to compare speeds."""
    runs = (run for system in comparison.systems for run in system.runs)
    return any(run.seconds < 1 for run in runs if run.baseline is None)


# --- notes below the table ---------------------------------------------------------------------------------------


def footnotes(comparison: ComparisonResult) -> list[str]:
    """The notes below the table, ending with signatures."""
    size = plural(comparison.test.sentences, "document" if comparison.of_text else "sentence")
    first = f"{comparison.test.name}: {size}. Baseline: {comparison.baseline.name}."
    if comparison.test.others:
        first += f" All runs also share these test sets: {', '.join(comparison.test.others)}."
    notes = [first, _value_note(comparison), _test_note(comparison), *_holm_notes(comparison)]
    notes += [_cost_note(comparison), *comparison.notes]
    return [*(note.strip() for note in notes), *signatures(comparison)]


def representatives_note(comparison: ComparisonResult) -> str:
    """The runs whose outputs are shown for systems of several seeds; empty if there are none."""
    names = [f"{name}: {run}" for name, run in comparison.where.runs.items() if run != name]
    if not names:
        return ""
    return f"Of several seeds, where systems differ is shown for the run nearest to their mean ({'; '.join(names)})."


def signatures(comparison: ComparisonResult) -> list[str]:
    """The signatures of each metric; those of systems differ at most in the kind of interval."""
    lines = []
    for metric in comparison.metrics:
        every = dict.fromkeys(system.qualities[metric].signature for system in comparison.having(metric))
        lines.append(f"{METRICS[metric].name}: {'; '.join(every)}")
    return lines


def _value_note(comparison: ComparisonResult) -> str:
    what = f"windows of {WINDOW} tokens or characters of the text" if comparison.of_text else "the test sentences"
    note = f"Value [95% interval over {what}]."
    if comparison.seeded:
        note += (
            " Of several seeds: mean ± standard deviation over the seeds (n−1), and the interval of a single run "
            "(the mean of theirs)."
        )
    return note


def _test_note(comparison: ComparisonResult) -> str:
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


def _holm_notes(comparison: ComparisonResult) -> list[str]:
    """The effect of a correction for the number of tests."""
    if len(comparison.others) < 2:
        return []
    lost: list[str] = []
    marks = 0
    for metric in comparison.metrics:
        marked = [system for system in comparison.tested(metric) if system.verdicts[metric].significant]
        kept = comparison.significant_after_holm(metric)
        marks += len(marked)
        if len(kept) < len(marked):
            names = ", ".join(system.name for system in marked if system not in kept)
            lost.append(f"{METRICS[metric].name} of {names}")
    if not marks:
        return []
    effect = f"it would take the mark from {'; '.join(lost)}" if lost else "all marks would stay"
    return [f"Each system is tested on its own; corrected for the number of tests of a metric (Holm 1979) {effect}."]


def _cost_note(comparison: ComparisonResult) -> str:
    mean = " (mean over the seeds)" if comparison.seeded else ""
    note = (
        f"Cost of one training{mean}: target tokens; FLOPs of the matrix products, a multiply-add counted as two; "
        "time; largest memory (of tensors on CUDA, of the process on the CPU)."
    )
    if not comparison.has_outputs:
        return note
    return f"{note} Sentences/s: decoding, measured now on {comparison.decoded_on}, all runs in turns" + (
        "; some needed less than a second, too little for more than a rough idea."
        if _too_fast_to_time(comparison)
        else "."
    )
