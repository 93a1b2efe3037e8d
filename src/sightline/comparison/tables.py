"""A comparison as tables of text, the same for every format."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from sightline.comparison.results import Comparison, Member, Quality, System, Verdict
from sightline.comparison.seeds import SAMPLES, SEED, TRIALS
from sightline.comparison.where import Contrast
from sightline.comparison.wording import (
    NOTHING,
    count_text,
    duration_text,
    memory_text,
    power_text,
    probability_text,
    rate_text,
    share_text,
)
from sightline.evaluation.metrics import METRICS, Score
from sightline.terminal import plural

_ORDINALS = ("first", "second", "third", "fourth", "last")


@dataclass(frozen=True)
class Column:
    """The head of a column; numbers stand on the right and are ours, text may be anybody's."""

    title: str
    number: bool = True


@dataclass(frozen=True)
class Table:
    """Rows of cells under columns; the best cells of a column are set off."""

    title: str
    columns: list[Column]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)
    best: frozenset[tuple[int, int]] = frozenset()  # row, column

    def only(self, chosen: Sequence[int]) -> Table:
        """The table with some of its columns."""
        best = frozenset((row, chosen.index(column)) for row, column in self.best if column in chosen)
        rows = [[row[column] for column in chosen] for row in self.rows]
        return Table(self.title, [self.columns[column] for column in chosen], rows, self.notes, best)

    def turned(self) -> Table:
        """Columns as rows, for where there are more of them than fit side by side."""
        heads = [Column("", number=False), *(Column(row[0], number=self.columns[-1].number) for row in self.rows)]
        rows = [
            [column.title, *(row[place] for row in self.rows)] for place, column in enumerate(self.columns) if place > 0
        ]
        best = frozenset((column - 1, row + 1) for row, column in self.best if column > 0)
        return Table(f"{self.title} (across: {self.columns[0].title})", heads, rows, self.notes, best)


# --- the table ---------------------------------------------------------------------------------------------------

_COSTS = ("parameters", "tokens", "FLOPs", "time", "sentences/s", "memory")


def _costs(comparison: Comparison, system: System | Member) -> list[str]:
    """The cells below `_COSTS`."""
    cost = system.cost
    return [
        count_text(system.parameters),
        count_text(cost.tokens),
        power_text(cost.flops),
        duration_text(cost.seconds),
        *([] if comparison.of_text else [rate_text(system.sentences_per_second)]),
        memory_text(cost.peak_memory),
    ]


def _cost_titles(comparison: Comparison) -> list[str]:
    return [title for title in _COSTS if title != "sentences/s" or not comparison.of_text]


def main_table(comparison: Comparison) -> Table:
    """A row for each system: quality, luck and cost."""
    columns = [Column("system", number=False)]
    if comparison.seeded:
        columns.append(Column("runs"))
    for metric in comparison.metrics:
        label = METRICS[metric].label
        columns += [Column(label), Column(f"Δ {label} (p)")]
    columns += [Column(title) for title in _cost_titles(comparison)]
    rows = [_row(comparison, system) for system in comparison.systems]
    title = f"{plural(len(rows), 'system')} on {comparison.test.name}"
    return Table(title, columns, rows, best=frozenset(_best(comparison)))


def narrow_tables(comparison: Comparison) -> list[Table]:
    """The same in several tables, for where one would be too wide: each metric, then the costs."""
    whole = main_table(comparison)
    first = 2 if comparison.seeded else 1
    tables: list[Table] = []
    for number, metric in enumerate(comparison.metrics):
        place = first + 2 * number
        tables.append(replace(whole.only([*range(first), place, place + 1]), title=METRICS[metric].label))
    costs = range(len(whole.columns) - len(_cost_titles(comparison)), len(whole.columns))
    return [*tables, replace(whole.only([0, *costs]), title="What they cost")]


def _row(comparison: Comparison, system: System) -> list[str]:
    cells = [system.name]
    if comparison.seeded:
        cells.append(str(system.runs))
    for metric in comparison.metrics:
        quality, verdict = system.qualities.get(metric), system.verdicts.get(metric)
        base = "baseline" if quality and system is comparison.baseline else NOTHING
        cells += [NOTHING if quality is None else _value(quality), base if verdict is None else _change(verdict)]
    return [*cells, *_costs(comparison, system)]


def _value(quality: Quality) -> str:
    digits = METRICS[quality.metric].digits
    deviation = "" if quality.deviation is None else f" ± {quality.deviation:.{digits}f}"
    return f"{quality.value:.{digits}f}{deviation} [{quality.low:.{digits}f}, {quality.high:.{digits}f}]"


def _change(verdict: Verdict) -> str:
    digits = METRICS[verdict.metric].digits
    mark = "*" if verdict.significant else ""
    return f"{verdict.difference:+.{digits}f}{mark} ({probability_text(verdict.p)})"


def _best(comparison: Comparison) -> Iterable[tuple[int, int]]:
    for number, metric in enumerate(comparison.metrics):
        if len(comparison.having(metric)) < 2:
            continue
        best = comparison.best(metric).qualities[metric].value
        for row, system in enumerate(comparison.systems):
            if metric in system.qualities and system.qualities[metric].value == best:
                yield row, (2 if comparison.seeded else 1) + 2 * number


# --- the other tables --------------------------------------------------------------------------------------------


def luck_table(comparison: Comparison) -> Table:
    """Every test of every difference."""
    baseline = comparison.baseline.name
    columns = [Column("system", number=False), Column("metric", number=False), Column("Δ")]
    columns += [Column("approx. rand. p"), Column("with ties")]
    several = [verdict for system in comparison.others for verdict in system.verdicts.values()]
    with_seeds = any(verdict.seeds is not None for verdict in several)
    with_answers = any(verdict.mcnemar is not None for verdict in several)
    columns += [Column("seeds p")] if with_seeds else []
    columns += [Column("bootstrap p")]
    columns += [Column("McNemar p")] if with_answers else []
    columns.append(Column("verdict", number=False))
    rows: list[list[str]] = []
    for system in comparison.others:
        for metric, verdict in system.verdicts.items():
            first, second = verdict.randomization, verdict.seeds
            row = [system.name, METRICS[metric].label, f"{verdict.difference:+.{METRICS[metric].digits}f}"]
            row += [probability_text(first.p), probability_text(first.p_with_ties)]
            row += [NOTHING if second is None else probability_text(second.p)] if with_seeds else []
            row += [probability_text(verdict.bootstrap.p)]
            exact = verdict.mcnemar
            row += [NOTHING if exact is None else probability_text(exact.p)] if with_answers else []
            rows.append([*row, judgement(verdict)])
    decide = "With ties, it decides" + (
        " together with the seeds' (Welch's t-test): the larger p counts" if with_seeds else ""
    )
    notes = [
        f"Approx. rand.: approximate randomization, {TRIALS:,} trials, seed {SEED}; of single runs without ties it "
        f"is sacreBLEU's p. {decide}.",
        f"Bootstrap: paired, {SAMPLES:,} resamples, seed {SEED}; "
        + (
            "like McNemar's exact test it is shown and decides nothing."
            if with_answers
            else "shown, and decides nothing."
        ),
    ]
    return Table(f"Is it luck? Each system against {baseline}", columns, rows, notes)


def judgement(verdict: Verdict) -> str:
    """A verdict in a word or two."""
    if verdict.difference == 0:
        return "not different"
    if not verdict.significant:
        return "could be luck"
    return "better" if verdict.better else "worse"


def runs_table(comparison: Comparison) -> Table:
    """Every single run."""
    columns = [Column("run", number=False), Column("system", number=False), Column("seed")]
    columns += [Column(METRICS[metric].label) for metric in comparison.metrics]
    columns += [Column(title) for title in ("steps", *_cost_titles(comparison))] + [Column("trained on", number=False)]
    rows = [
        [
            member.name,
            system.name,
            NOTHING if member.together else str(member.seed),
            *(_score(member.scores.get(metric)) for metric in comparison.metrics),
            NOTHING if member.cost.steps is None else f"{member.cost.steps:,.0f}",
            *_costs(comparison, member),
            member.trained_on,
        ]
        for system in comparison.systems
        for member in system.members
    ]
    return Table("Every run", columns, rows)


def _score(score: Score | None) -> str:
    if score is None:
        return NOTHING
    return f"{score.value:.{score.digits}f} [{score.low:.{score.digits}f}, {score.high:.{score.digits}f}]"


def differences_table(comparison: Comparison) -> Table:
    """What differs between the recipes."""
    columns = [Column("key", number=False), *(Column(system.name, number=False) for system in comparison.systems)]
    rows = [[each.key, *each.values] for each in comparison.differences]
    notes = [] if rows else ["The recipes are the same."]
    if any(NOTHING in values for _, *values in rows):
        notes.append(f"{NOTHING}: this recipe has no such key, because something above it is of another kind.")
    return Table("What differs in the recipes", columns, rows, notes)


def where_tables(comparison: Comparison) -> list[Table]:
    """Where systems differ: by label, length, frequency and place; only those that have something to show."""
    makers = (_label_table, _length_table, _frequency_table, _position_table)
    return [table for table in (make(comparison) for make in makers) if table.rows]


def _length_table(comparison: Comparison) -> Table:
    where = comparison.where
    columns = [Column("words"), Column("sentences"), *(Column(system.name) for system in comparison.systems)]
    rows = [
        [bucket.label, f"{bucket.sentences:,}", *(f"{value:.2f}" for value in bucket.scores.values())]
        for bucket in where.lengths
    ]
    return Table(f"{where.corpus_metric} by length of the reference", columns, rows)


def _label_table(comparison: Comparison) -> Table:
    """F1 of every label, of classifiers and taggers."""
    columns = [Column("label", number=False), Column("wanted"), *(Column(system.name) for system in comparison.systems)]
    rows = [
        [each.label, f"{each.wanted:,}", *(f"{value:.1f}" for value in each.f1.values())]
        for each in comparison.where.labels
    ]
    return Table("F1 of each label", columns, rows)


def _frequency_table(comparison: Comparison) -> Table:
    where = comparison.where
    columns = [Column("seen"), Column("wanted"), *(Column(system.name) for system in comparison.systems)]
    rows = [
        [
            bucket.label,
            f"{max(quality.wanted for quality in bucket.systems.values()):,}",
            *(share_text(quality.f1) for quality in bucket.systems.values()),
        ]
        for bucket in where.frequencies
    ]
    return Table("F1 of words by how often they were seen", columns, rows, [f"Counted in {where.counted_in}."])


def _position_table(comparison: Comparison) -> Table:
    columns = [Column("fifth of the sentence", number=False), *(Column(system.name) for system in comparison.systems)]
    rows = [
        [_ORDINALS[part.part - 1], *(share_text(recall.recall) for recall in part.systems.values())]
        for part in comparison.where.positions
    ]
    return Table("Words of the reference produced, by their place", columns, rows)


def ngram_table(comparison: Comparison, contrast: Contrast, *, ahead: bool, most: int | None = None) -> Table:
    """The n-grams that the system (or, not `ahead`, the baseline) gets right more often than the other."""
    winner = contrast.system if ahead else comparison.baseline.name
    found = contrast.ngrams.system if ahead else contrast.ngrams.baseline
    columns = [Column("n-gram", number=False), Column("wanted"), Column(comparison.baseline.name)]
    rows = [
        [" ".join(each.ngram), f"{each.wanted:,}", f"{each.baseline_matched:,}", f"{each.system_matched:,}"]
        for each in found[:most]
    ]
    return Table(f"N-grams that {winner} gets right more often", [*columns, Column(contrast.system)], rows)


def word_table(comparison: Comparison, contrast: Contrast, *, ahead: bool, most: int | None = None) -> Table:
    """The words that the system (or, not `ahead`, the baseline) produces more reliably."""
    winner = contrast.system if ahead else comparison.baseline.name
    found = contrast.words.system if ahead else contrast.words.baseline
    columns = [Column("word", number=False), Column("wanted"), Column(comparison.baseline.name)]
    rows = [
        [
            each.word,
            f"{each.wanted:,}",
            share_text(each.baseline_recall),
            share_text(each.system_recall),
            probability_text(each.p),
        ]
        for each in found[:most]
    ]
    columns += [Column(contrast.system), Column("p")]
    return Table(f"Words that {winner} produces more reliably", columns, rows)
