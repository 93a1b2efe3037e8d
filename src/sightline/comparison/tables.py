"""The tables of a comparison; `renderers.py` writes a `Table` in any format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sightline.comparison.published import PublishedTable
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
    """The head of a column of numbers, which are right-aligned, or of text, which renderers escape."""

    title: str
    number: bool = True


def _text(*titles: str) -> list[Column]:
    return [Column(title, number=False) for title in titles]


def _numbers(*titles: str) -> list[Column]:
    return [Column(title) for title in titles]


@dataclass(frozen=True)
class Table:
    """Rows of cells under columns, with notes; the best cells are highlighted."""

    title: str
    columns: list[Column]
    rows: list[list[Any]]  # text; in a table for CSV, any values
    notes: list[str] = field(default_factory=list)
    best: frozenset[tuple[int, int]] = frozenset()  # row, column

    def cells(self) -> Iterator[list[tuple[Any, Column, bool]]]:
        """Rows of (value, column, best)."""
        for number, row in enumerate(self.rows):
            columns = enumerate(zip(row, self.columns, strict=True))
            yield [(value, column, (number, place) in self.best) for place, (value, column) in columns]

    def select(self, chosen: Sequence[int]) -> Table:
        """A table of some of the columns."""
        best = frozenset((row, chosen.index(column)) for row, column in self.best if column in chosen)
        rows = [[row[column] for column in chosen] for row in self.rows]
        return Table(self.title, [self.columns[column] for column in chosen], rows, self.notes, best)

    def transposed(self) -> Table:
        """Swap rows and columns, for tables that are too wide."""
        heads = [*_text(""), *(Column(row[0], number=self.columns[-1].number) for row in self.rows)]
        titles = [column.title for column in self.columns]
        rows = [list(row) for row in zip(titles, *self.rows, strict=True)][1:]
        best = frozenset((column - 1, row + 1) for row, column in self.best if column > 0)
        return Table(f"{self.title} (across: {self.columns[0].title})", heads, rows, self.notes, best)


# --- quality and cost --------------------------------------------------------------------------------------------


def main_table(comparison: ComparisonResult) -> Table:
    """A row for each system: scores, significance and cost."""
    columns = [*_text("system"), *(_numbers("runs") if comparison.seeded else [])]
    for metric in comparison.metrics:
        label = METRICS[metric].name
        columns += _numbers(label, f"Δ {label} (p)")
    columns += _numbers(*_cost_titles(comparison))
    rows = [_system_row(comparison, system) for system in comparison.systems]
    title = f"{plural(len(rows), 'system')} on {comparison.test.name}"
    return Table(title, columns, rows, best=frozenset(_best(comparison)))


def narrow_tables(comparison: ComparisonResult) -> list[Table]:
    """The main table in parts, for narrow terminals: a table for each metric, then the costs."""
    whole = main_table(comparison)
    first = 2 if comparison.seeded else 1
    tables: list[Table] = []
    for number, metric in enumerate(comparison.metrics):
        place = first + 2 * number
        tables.append(replace(whole.select([*range(first), place, place + 1]), title=METRICS[metric].name))
    costs = range(len(whole.columns) - len(_cost_titles(comparison)), len(whole.columns))
    return [*tables, replace(whole.select([0, *costs]), title="What they cost")]


def _system_row(comparison: ComparisonResult, system: SystemResult) -> list[str]:
    cells = [system.name, *([str(system.trainings)] if comparison.seeded else [])]
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
    values: list[tuple[float | None, Callable[[float], str]]] = [
        (system.parameters, format_count),
        (cost.tokens, format_count),
        (cost.flops, format_flops),
        (cost.seconds, format_duration),
        *([] if comparison.of_text else [(system.sentences_per_second, format_rate)]),
        (cost.peak_memory, format_memory),
    ]
    return [NOTHING if value is None else form(value) for value, form in values]


def _value(result: MetricResult) -> str:
    digits = METRICS[result.metric].digits
    deviation = "" if result.deviation is None else f" ± {result.deviation:.{digits}f}"
    return f"{result.value:.{digits}f}{deviation} [{result.low:.{digits}f}, {result.high:.{digits}f}]"


def _change(metric: MetricName, verdict: Verdict) -> str:
    mark = "*" if verdict.significant else ""
    return f"{verdict.difference:+.{METRICS[metric].digits}f}{mark} ({format_probability(verdict.p)})"


def _best(comparison: ComparisonResult) -> Iterator[tuple[int, int]]:
    for number, metric in enumerate(comparison.metrics):
        if len(comparison.having(metric)) < 2:
            continue
        best = comparison.best(metric).qualities[metric].value
        for row, system in enumerate(comparison.systems):
            if metric in system.qualities and system.qualities[metric].value == best:
                yield row, (2 if comparison.seeded else 1) + 2 * number


def runs_table(comparison: ComparisonResult) -> Table:
    """A row for each run."""
    labels = [METRICS[metric].name for metric in comparison.metrics]
    columns = _text("run", "system") + _numbers("seed", *labels, "steps", *_cost_titles(comparison))
    columns += _text("trained on")
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
    """A row for each system with every number in full precision, for CSV; unknown values are None."""
    rows = [_number_row(comparison, system) for system in comparison.systems]
    return Table("Numbers", _numbers(*rows[0]), [list(row.values()) for row in rows])


def _number_row(comparison: ComparisonResult, system: SystemResult) -> dict[str, Any]:
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


# --- published tables --------------------------------------------------------------------------------------------


def published_table(published: PublishedTable) -> Table:
    """The numbers of a published table, with a column for the paper of each system."""
    columns = [*_text("system"), *_numbers(*published.columns), *_text("from")]
    rows = [
        [row.system, *(NOTHING if value is None else _published_value(value) for value in row.values), row.paper]
        for row in published.rows
    ]
    return Table(f"Published: {published.title}", columns, rows, [f"{published.source}, {published.url}"])


def corpora_table(published: PublishedTable, comparison: ComparisonResult | None = None) -> Table:
    """Training text, size and test set of the compared systems, if any, and of the published ones."""
    rows = [["published", each.name, f"{each.training}, {each.size}", each.test] for each in published.corpora]
    notes: list[str] = []
    if comparison is not None:
        test = f"{comparison.test.name}, {plural(comparison.test.sentences, 'text')}"
        ours = [["compared here", system.name, system.runs[0].corpus or NOTHING, test] for system in comparison.systems]
        rows = ours + rows
        notes = ["The published numbers are of other corpora, sizes and test sets: compare the order, not the values."]
    return Table("Corpus and size", _text("whose", "name", "training text", "test set"), rows, notes)


def published_numbers(published: PublishedTable) -> Table:
    """The numbers in full precision, for CSV."""
    rows = [[row.system, *row.values, row.paper] for row in published.rows]
    return Table("Numbers", [*_text("system"), *_numbers(*published.columns), *_text("from")], rows)


def published_tables(published: PublishedTable, comparison: ComparisonResult | None = None) -> list[Table]:
    """A published table and the table of corpora."""
    return [published_table(published), corpora_table(published, comparison)]


def _published_value(value: float) -> str:
    return format_flops(value) if value >= 1e4 else f"{value:g}"


# --- significance ------------------------------------------------------------------------------------------------


def significance_table(comparison: ComparisonResult) -> Table:
    """Every test of every difference."""
    verdicts = [verdict for system in comparison.others for verdict in system.verdicts.values()]
    with_seeds = any(verdict.seeds is not None for verdict in verdicts)
    with_mcnemar = any(verdict.mcnemar is not None for verdict in verdicts)
    columns = _text("system", "metric") + _numbers("Δ", "approx. rand. p", "with ties")
    columns += _numbers(*(["seeds p"] if with_seeds else []), "bootstrap p", *(["McNemar p"] if with_mcnemar else []))
    columns += _text("verdict")
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
    also = " together with the seeds' (Welch's t-test): the larger p counts" if with_seeds else ""
    shown = "like McNemar's exact test it is shown and" if with_mcnemar else "shown, and"
    notes = [
        f"Approx. rand.: approximate randomization, {TRIALS:,} trials, seed {SEED}; of single runs without ties it "
        f"is sacreBLEU's p. With ties, it decides{also}.",
        f"Bootstrap: paired, {SAMPLES:,} resamples, seed {SEED}; {shown} decides nothing.",
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
    columns = _text("key", *(system.name for system in comparison.systems))
    rows = [[each.key, *each.values] for each in comparison.differences]
    notes = [] if rows else ["The recipes are the same."]
    if any(NOTHING in values for _, *values in rows):
        notes.append(f"{NOTHING}: this recipe has no such key, because a part above it is of another kind.")
    return Table("What differs in the recipes", columns, rows, notes)


# --- where systems differ ----------------------------------------------------------------------------------------


def analysis_tables(comparison: ComparisonResult) -> list[Table]:
    """Quality by label, length, frequency and position; only tables with rows."""
    where, systems = comparison.where, _numbers(*(system.name for system in comparison.systems))
    tables = [
        Table(
            "F1 of each label",
            [*_text("label"), *_numbers("count"), *systems],
            [[each.label, f"{each.count:,}", *(f"{f1:.1f}" for f1 in each.f1.values())] for each in where.labels],
        ),
        Table(
            f"{where.corpus_metric} by length of the reference",
            [*_numbers("words", "sentences"), *systems],
            [
                [bucket.label, f"{bucket.sentences:,}", *(f"{value:.2f}" for value in bucket.scores.values())]
                for bucket in where.lengths
            ],
        ),
        Table(
            "F1 of words by how often they were seen",
            [*_numbers("seen", "count"), *systems],
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
            [*_text("fifth of the sentence"), *systems],
            [
                [_ORDINALS[part.part - 1], *(format_share(recall.recall) for recall in part.systems.values())]
                for part in where.positions
            ],
        ),
    ]
    return [table for table in tables if table.rows]


def ngram_table(comparison: ComparisonResult, contrast: Contrast, *, ahead: bool, most: int | None = None) -> Table:
    """N-grams that the system (with `ahead`) or the baseline matches more often."""
    winner = contrast.system if ahead else comparison.baseline.name
    ngrams = contrast.ngrams.system if ahead else contrast.ngrams.baseline
    columns = _text("n-gram") + _numbers("count", comparison.baseline.name, contrast.system)
    rows = [
        [" ".join(each.ngram), f"{each.count:,}", f"{each.baseline_matched:,}", f"{each.system_matched:,}"]
        for each in ngrams[:most]
    ]
    return Table(f"N-grams that {winner} gets right more often", columns, rows)


def word_table(comparison: ComparisonResult, contrast: Contrast, *, ahead: bool, most: int | None = None) -> Table:
    """Words that the system (with `ahead`) or the baseline produces more reliably."""
    winner = contrast.system if ahead else comparison.baseline.name
    words = contrast.words.system if ahead else contrast.words.baseline
    columns = _text("word") + _numbers("count", comparison.baseline.name, contrast.system, "p")
    rows = []
    for each in words[:most]:
        recalls = format_share(each.baseline_recall), format_share(each.system_recall)
        rows.append([each.word, f"{each.count:,}", *recalls, format_probability(each.p)])
    return Table(f"Words that {winner} produces more reliably", columns, rows)


# --- numbers -----------------------------------------------------------------------------------------------------


def format_count(value: float) -> str:
    """13035840 → 13.0M."""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= 0.99995 * size:
            return f"{value / size:.1f}{unit}"
    return f"{value:.0f}"


def format_flops(value: float) -> str:
    """3.3·10^18, as in published tables."""
    if value < 1e4:
        return f"{value:.0f}"
    digits, exponent = f"{value:.1e}".split("e")
    return f"{digits}·10^{int(exponent)}"


def format_duration(seconds: float) -> str:
    """330 → 5.5 min."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def format_memory(size: float) -> str:
    """1610612736 → 1.5 GiB."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def format_rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def format_probability(p: float) -> str:
    """0.0123, or <0.0001."""
    return "<0.0001" if p < 0.0001 else f"{p:.4f}"


def format_share(value: float) -> str:
    """0.4213 → 42.1%."""
    return f"{100 * value:.1f}%"
