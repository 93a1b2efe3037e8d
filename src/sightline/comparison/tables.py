"""The tables of a comparison. Each is a `Table`, which `renderers.py` writes in any format."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sightline.comparison.results import (
    NOTHING,
    ComparisonResult,
    Contrast,
    MetricResult,
    RunResult,
    SystemResult,
    Verdict,
)
from sightline.evaluation.measurement import MetricScore
from sightline.evaluation.metrics import METRICS
from sightline.evaluation.significance import SAMPLES, SEED, TRIALS
from sightline.recipe import MetricName
from sightline.terminal import plural

_ORDINALS = ("first", "second", "third", "fourth", "last")
_COSTS = ("parameters", "tokens", "FLOPs", "time", "sentences/s", "memory")


@dataclass(frozen=True)
class Column:
    """The head of a column. Numbers are right-aligned and formatted by us; other text may come from anywhere."""

    title: str
    number: bool = True


@dataclass(frozen=True)
class Table:
    """Rows of cells under columns, with notes; the best cells are set off."""

    title: str
    columns: list[Column]
    rows: list[list[Any]]  # text; of a table for CSV, any values
    notes: list[str] = field(default_factory=list)
    best: frozenset[tuple[int, int]] = frozenset()  # row, column

    def select(self, chosen: Sequence[int]) -> Table:
        """The table with some of its columns."""
        best = frozenset((row, chosen.index(column)) for row, column in self.best if column in chosen)
        rows = [[row[column] for column in chosen] for row in self.rows]
        return Table(self.title, [self.columns[column] for column in chosen], rows, self.notes, best)

    def transposed(self) -> Table:
        """Columns as rows, for tables that are too wide."""
        heads = [Column("", number=False), *(Column(row[0], number=self.columns[-1].number) for row in self.rows)]
        rows = [
            [column.title, *(row[place] for row in self.rows)] for place, column in enumerate(self.columns) if place > 0
        ]
        best = frozenset((column - 1, row + 1) for row, column in self.best if column > 0)
        return Table(f"{self.title} (across: {self.columns[0].title})", heads, rows, self.notes, best)


# --- quality and cost --------------------------------------------------------------------------------------------


def main_table(comparison: ComparisonResult) -> Table:
    """A row for each system: scores, significance and cost."""
    columns = [Column("system", number=False)]
    if comparison.seeded:
        columns.append(Column("runs"))
    for metric in comparison.metrics:
        label = METRICS[metric].name
        columns += [Column(label), Column(f"Δ {label} (p)")]
    columns += [Column(title) for title in _cost_titles(comparison)]
    rows = [_system_row(comparison, system) for system in comparison.systems]
    title = f"{plural(len(rows), 'system')} on {comparison.test.name}"
    return Table(title, columns, rows, best=frozenset(_best(comparison)))


def narrow_tables(comparison: ComparisonResult) -> list[Table]:
    """The main table in parts, for narrow terminals: one for each metric, then the costs."""
    whole = main_table(comparison)
    first = 2 if comparison.seeded else 1
    tables: list[Table] = []
    for number, metric in enumerate(comparison.metrics):
        place = first + 2 * number
        tables.append(replace(whole.select([*range(first), place, place + 1]), title=METRICS[metric].name))
    costs = range(len(whole.columns) - len(_cost_titles(comparison)), len(whole.columns))
    return [*tables, replace(whole.select([0, *costs]), title="What they cost")]


def _system_row(comparison: ComparisonResult, system: SystemResult) -> list[str]:
    cells = [system.name]
    if comparison.seeded:
        cells.append(str(system.trainings))
    for metric in comparison.metrics:
        result, verdict = system.qualities.get(metric), system.verdicts.get(metric)
        baseline = "baseline" if result and system is comparison.baseline else NOTHING
        cells += [NOTHING if result is None else _value(result)]
        cells += [baseline if verdict is None else _change(metric, verdict)]
    return [*cells, *_costs(comparison, system)]


def _cost_titles(comparison: ComparisonResult) -> list[str]:
    return [title for title in _COSTS if title != "sentences/s" or not comparison.of_text]


def _costs(comparison: ComparisonResult, system: SystemResult | RunResult) -> list[str]:
    """The cells below `_cost_titles`."""
    cost = system.cost
    return [
        format_count(system.parameters),
        format_count(cost.tokens),
        format_flops(cost.flops),
        format_duration(cost.seconds),
        *([] if comparison.of_text else [format_rate(system.sentences_per_second)]),
        format_memory(cost.peak_memory),
    ]


def _value(result: MetricResult) -> str:
    digits = METRICS[result.metric].digits
    deviation = "" if result.deviation is None else f" ± {result.deviation:.{digits}f}"
    return f"{result.value:.{digits}f}{deviation} [{result.low:.{digits}f}, {result.high:.{digits}f}]"


def _change(metric: MetricName, verdict: Verdict) -> str:
    mark = "*" if verdict.significant else ""
    return f"{verdict.difference:+.{METRICS[metric].digits}f}{mark} ({format_probability(verdict.p)})"


def _best(comparison: ComparisonResult) -> Iterable[tuple[int, int]]:
    for number, metric in enumerate(comparison.metrics):
        if len(comparison.having(metric)) < 2:
            continue
        best = comparison.best(metric).qualities[metric].value
        for row, system in enumerate(comparison.systems):
            if metric in system.qualities and system.qualities[metric].value == best:
                yield row, (2 if comparison.seeded else 1) + 2 * number


def runs_table(comparison: ComparisonResult) -> Table:
    """A row for each run."""
    columns = [Column("run", number=False), Column("system", number=False), Column("seed")]
    columns += [Column(METRICS[metric].name) for metric in comparison.metrics]
    columns += [Column(title) for title in ("steps", *_cost_titles(comparison))] + [Column("trained on", number=False)]
    rows = [
        [
            run.name,
            system.name,
            NOTHING if run.ensemble else str(run.seed),
            *(_score(run.scores.get(metric)) for metric in comparison.metrics),
            NOTHING if run.cost.steps is None else f"{run.cost.steps:,.0f}",
            *_costs(comparison, run),
            run.trained_on,
        ]
        for system in comparison.systems
        for run in system.runs
    ]
    return Table("Every run", columns, rows)


def _score(score: MetricScore | None) -> str:
    if score is None:
        return NOTHING
    return f"{score.value:.{score.digits}f} [{score.low:.{score.digits}f}, {score.high:.{score.digits}f}]"


def numbers_table(comparison: ComparisonResult) -> Table:
    """A row for each system with every number in full, for CSV; unknown values are None."""
    rows = [_numbers(comparison, system) for system in comparison.systems]
    return Table("Numbers", [Column(key) for key in rows[0]], [list(row.values()) for row in rows])


def _numbers(comparison: ComparisonResult, system: SystemResult) -> dict[str, Any]:
    row: dict[str, Any] = {"system": system.name, "runs": system.trainings, "test": comparison.test.name}
    for metric in comparison.metrics:
        result, verdict = system.qualities.get(metric), system.verdicts.get(metric)
        row |= {metric: result and result.value, f"{metric}_deviation": result and result.deviation}
        row |= {f"{metric}_low": result and result.low, f"{metric}_high": result and result.high}
        tests = {
            "difference": verdict and verdict.difference,
            "p": verdict and verdict.p,
            "significant": verdict and verdict.significant,
            "p_randomization": verdict and verdict.approximate_randomization.p,
            "p_randomization_with_ties": verdict and verdict.approximate_randomization.p_with_ties,
            "p_bootstrap": verdict and verdict.paired_bootstrap.p,
            "p_mcnemar": verdict and verdict.mcnemar and verdict.mcnemar.p,
            "p_seeds": verdict and verdict.seeds and verdict.seeds.p,
        }
        row |= {f"{metric}_{name}": value for name, value in tests.items()}
        row[f"{metric}_signature"] = result and result.signature
    cost = system.cost
    row |= {"parameters": system.parameters, "training_tokens": cost.tokens, "training_flops": cost.flops}
    row |= {"training_seconds": cost.seconds, "sentences_per_second": system.sentences_per_second}
    return row | {"peak_memory": cost.peak_memory}


# --- significance ------------------------------------------------------------------------------------------------


def significance_table(comparison: ComparisonResult) -> Table:
    """Every test of every difference."""
    verdicts = [verdict for system in comparison.others for verdict in system.verdicts.values()]
    with_seeds = any(verdict.seeds is not None for verdict in verdicts)
    with_mcnemar = any(verdict.mcnemar is not None for verdict in verdicts)
    columns = [Column("system", number=False), Column("metric", number=False), Column("Δ")]
    columns += [Column("approx. rand. p"), Column("with ties")]
    columns += [Column("seeds p")] if with_seeds else []
    columns += [Column("bootstrap p")]
    columns += [Column("McNemar p")] if with_mcnemar else []
    columns.append(Column("verdict", number=False))
    rows: list[list[str]] = []
    for system in comparison.others:
        for metric, verdict in system.verdicts.items():
            randomization, seeds, exact = verdict.approximate_randomization, verdict.seeds, verdict.mcnemar
            row = [system.name, METRICS[metric].name, f"{verdict.difference:+.{METRICS[metric].digits}f}"]
            row += [format_probability(randomization.p), format_probability(randomization.p_with_ties)]
            row += [NOTHING if seeds is None else format_probability(seeds.p)] if with_seeds else []
            row += [format_probability(verdict.paired_bootstrap.p)]
            row += [NOTHING if exact is None else format_probability(exact.p)] if with_mcnemar else []
            rows.append([*row, _judgement(verdict)])
    decide = "With ties, it decides" + (
        " together with the seeds' (Welch's t-test): the larger p counts" if with_seeds else ""
    )
    notes = [
        f"Approx. rand.: approximate randomization, {TRIALS:,} trials, seed {SEED}; of single runs without ties it "
        f"is sacreBLEU's p. {decide}.",
        f"Bootstrap: paired, {SAMPLES:,} resamples, seed {SEED}; "
        + (
            "like McNemar's exact test it is shown and decides nothing."
            if with_mcnemar
            else "shown, and decides nothing."
        ),
    ]
    return Table(f"Significance: each system against {comparison.baseline.name}", columns, rows, notes)


def _judgement(verdict: Verdict) -> str:
    if verdict.difference == 0:
        return "not different"
    if not verdict.significant:
        return "not significant"
    return "better" if verdict.better else "worse"


def differences_table(comparison: ComparisonResult) -> Table:
    """What differs between the recipes."""
    columns = [Column("key", number=False), *(Column(system.name, number=False) for system in comparison.systems)]
    rows = [[each.key, *each.values] for each in comparison.differences]
    notes = [] if rows else ["The recipes are the same."]
    if any(NOTHING in values for _, *values in rows):
        notes.append(f"{NOTHING}: this recipe has no such key, because a part above it is of another kind.")
    return Table("What differs in the recipes", columns, rows, notes)


# --- where systems differ ----------------------------------------------------------------------------------------


def analysis_tables(comparison: ComparisonResult) -> list[Table]:
    """Quality by label, length, frequency and position, as far as there is any."""
    where, systems = comparison.where, [Column(system.name) for system in comparison.systems]
    tables = [
        Table(
            "F1 of each label",
            [Column("label", number=False), Column("count"), *systems],
            [[each.label, f"{each.count:,}", *(f"{f1:.1f}" for f1 in each.f1.values())] for each in where.labels],
        ),
        Table(
            f"{where.corpus_metric} by length of the reference",
            [Column("words"), Column("sentences"), *systems],
            [
                [bucket.label, f"{bucket.sentences:,}", *(f"{value:.2f}" for value in bucket.scores.values())]
                for bucket in where.lengths
            ],
        ),
        Table(
            "F1 of words by how often they were seen",
            [Column("seen"), Column("count"), *systems],
            [
                [
                    bucket.label,
                    f"{max(quality.count for quality in bucket.systems.values()):,}",
                    *(format_share(quality.f1) for quality in bucket.systems.values()),
                ]
                for bucket in where.frequencies
            ],
            [f"Counted in {where.counted_in}."],
        ),
        Table(
            "Words of the reference produced, by their place",
            [Column("fifth of the sentence", number=False), *systems],
            [
                [_ORDINALS[part.part - 1], *(format_share(recall.recall) for recall in part.systems.values())]
                for part in where.positions
            ],
        ),
    ]
    return [table for table in tables if table.rows]


def ngram_table(comparison: ComparisonResult, contrast: Contrast, *, ahead: bool, most: int | None = None) -> Table:
    """The n-grams that the system (or, not `ahead`, the baseline) matches more often than the other."""
    winner = contrast.system if ahead else comparison.baseline.name
    ngrams = contrast.ngrams.system if ahead else contrast.ngrams.baseline
    columns = [Column("n-gram", number=False), Column("count"), Column(comparison.baseline.name)]
    rows = [
        [" ".join(each.ngram), f"{each.count:,}", f"{each.baseline_matched:,}", f"{each.system_matched:,}"]
        for each in ngrams[:most]
    ]
    return Table(f"N-grams that {winner} gets right more often", [*columns, Column(contrast.system)], rows)


def word_table(comparison: ComparisonResult, contrast: Contrast, *, ahead: bool, most: int | None = None) -> Table:
    """The words that the system (or, not `ahead`, the baseline) produces more reliably."""
    winner = contrast.system if ahead else comparison.baseline.name
    words = contrast.words.system if ahead else contrast.words.baseline
    columns = [Column("word", number=False), Column("count"), Column(comparison.baseline.name)]
    rows = [
        [
            each.word,
            f"{each.count:,}",
            format_share(each.baseline_recall),
            format_share(each.system_recall),
            format_probability(each.p),
        ]
        for each in words[:most]
    ]
    return Table(f"Words that {winner} produces more reliably", [*columns, Column(contrast.system), Column("p")], rows)


# --- numbers -----------------------------------------------------------------------------------------------------


def format_count(value: float | None) -> str:
    """13035840 → 13.0M."""
    if value is None:
        return NOTHING
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= 0.99995 * size:
            return f"{value / size:.1f}{unit}"
    return f"{value:.0f}"


def format_flops(value: float | None) -> str:
    """3.3·10^18, as published tables write it."""
    if value is None:
        return NOTHING
    if value < 1e4:
        return f"{value:.0f}"
    exponent = math.floor(math.log10(value))
    digits = f"{value / 10**exponent:.1f}"
    if digits == "10.0":
        digits, exponent = "1.0", exponent + 1
    return f"{digits}·10^{exponent}"


def format_duration(seconds: float | None) -> str:
    """330 → 5.5 min."""
    if seconds is None:
        return NOTHING
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def format_memory(size: float | None) -> str:
    """1610612736 → 1.5 GiB."""
    if size is None:
        return NOTHING
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def format_rate(value: float | None) -> str:
    """Sentences per second."""
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def format_probability(p: float) -> str:
    """0.0123, or <0.0001."""
    return "<0.0001" if p < 0.0001 else f"{p:.4f}"


def format_share(value: float) -> str:
    """0.4213 → 42.1%."""
    return f"{100 * value:.1f}%"
