"""The metrics of a comparison, measurements of runs, and tests between systems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sightline.comparison.results import Verdict
from sightline.comparison.systems import ComparedRun
from sightline.evaluation.measurement import Measurement
from sightline.evaluation.metrics import METRICS, measure, needs_outputs
from sightline.evaluation.significance import (
    approximate_randomization,
    check_comparable,
    mcnemar,
    paired_bootstrap,
    welch_test,
)
from sightline.evaluation.test_set import TestSet
from sightline.recipe import Evaluation, MetricName
from sightline.recipe.tasks import suits
from sightline.run_folder import RunError
from sightline.text.bleu_tokenizers import resolved, tokenization_note


@dataclass(frozen=True)
class Scoring:
    """The metrics of a comparison; a run without a model may lack any but the first."""

    metrics: list[MetricName]
    lowercase: bool | None  # None: each recipe's own
    bootstrap: int  # resamples for the intervals
    notes: list[str]

    @property
    def needs_outputs(self) -> bool:
        """True if anything has to be decoded."""
        return needs_outputs(self.metrics)

    def ignores_case(self, run: ComparedRun) -> bool:
        return run.recipe.evaluation.lowercase if self.lowercase is None else self.lowercase


def resolve_tokenization(
    runs: Sequence[ComparedRun], test: TestSet, bleu_tokenize: str | None, chrf_word_order: int | None
) -> list[str]:
    """Resolve the tokenization of BLEU and chrF for each run, by default its recipe's; return notes on `auto`."""
    texts = [text for several in test.references for text in several]
    notes = dict[str, None]()
    options = {"bleu_tokenize": bleu_tokenize, "chrf_word_order": chrf_word_order}
    changes = {key: value for key, value in options.items() if value is not None}
    for each in runs:
        section = Evaluation.model_validate({**each.recipe.evaluation.model_dump(), **changes})
        if "bleu" in section.metrics and (note := tokenization_note(section, texts)) is not None:
            notes[note[0].upper() + note[1:] + "."] = None
        section = section.model_copy(update={"bleu_tokenize": resolved(section, texts)})
        each.run.recipe = each.recipe.model_copy(update={"evaluation": section})
    return list(notes)


# --- metrics -----------------------------------------------------------------------------------------------------


def choose_scoring(runs: Sequence[ComparedRun], metrics: Sequence[str] | None, lowercase: bool | None) -> Scoring:
    """Check the given metrics, or take those that all recipes have, starting with those that every run has."""
    notes: list[str] = []
    if metrics is not None:
        chosen = [_known(name) for name in dict.fromkeys(metrics)]
        spec = runs[0].recipe.task_spec
        if wrong := [name for name in chosen if not suits(name, spec)]:
            raise RunError(f"{wrong[0]} is not for {spec}; choose from {', '.join(spec.metrics)}")
    else:
        every = dict.fromkeys(name for run in runs for name in run.recipe.evaluation.metrics)
        chosen = [name for name in every if all(name in run.recipe.evaluation.metrics for run in runs if run.has(name))]
        chosen.sort(key=lambda name: bool(_lacking(runs, name)))  # stable: in the order of the recipes
        if left_out := [METRICS[name].name for name in every if name not in chosen]:
            notes.append(f"Left out, because not every recipe has them: {', '.join(left_out)}.")
    if not chosen:
        have = "; ".join(f"{run.name} has {', '.join(run.recipe.evaluation.metrics)}" for run in runs)
        raise RunError(f"the recipes have no metric in common ({have}); choose with --metrics, e.g. bleu,chrf")
    if "perplexity" in chosen and (reason := _incomparable_perplexity(runs)):
        if chosen == ["perplexity"] or metrics is not None:
            lm = runs[0].recipe.task_spec.continues_text
            example = ", e.g. bits-per-character" if lm else ""
            raise RunError(f"{reason}; leave perplexity out, or compare by another metric with --metrics{example}")
        chosen.remove("perplexity")
        notes.append(f"Perplexity is left out: {reason}.")
    _check_first(runs, chosen)
    notes += _missing_notes(runs, chosen)
    scoring = Scoring(chosen, lowercase, runs[0].recipe.evaluation.bootstrap, notes)
    _check_signatures(runs, scoring)
    return scoring


def _known(name: str) -> MetricName:
    if name not in METRICS:
        raise ValueError(f"there is no metric {name!r}; choose from {', '.join(METRICS)}")
    return name  # type: ignore[return-value]


def _incomparable_perplexity(runs: Sequence[ComparedRun]) -> str | None:
    """The reason why perplexities do not compare, or None."""
    models = [each for each in runs if each.has("perplexity")]
    if not models:
        return f"{_no_model([each.name for each in runs])}, and so no perplexity"
    first = models[0]
    for other in models[1:]:
        if first.recipe.copies_unknown != other.recipe.copies_unknown:
            return f"of {first.name} and {other.name} only one has to name words outside the vocabulary (model.copying)"
        if first.run.vocabulary.target.content != other.run.vocabulary.target.content:
            return f"{first.name} and {other.name} have different tokenizers, and perplexity is one of tokens"
    return None


def _lacking(runs: Sequence[ComparedRun], metric: MetricName) -> list[str]:
    """The names of the runs without a metric."""
    return [each.name for each in runs if not each.has(metric)]


def _no_model(names: Sequence[str]) -> str:
    """`lead-10 and oracle have no model`."""
    *most, last = names
    return f"{', '.join(most)} and {last} have no model" if most else f"{last} has no model"


def _check_first(runs: Sequence[ComparedRun], chosen: Sequence[MetricName]) -> None:
    """Refuse a first metric that not all runs have: systems are ranked by it."""
    if not (lacking := _lacking(runs, chosen[0])):
        return
    recipe = runs[0].recipe
    candidates = [*chosen, *recipe.evaluation.metrics, *recipe.task_spec.metrics]
    first = next(name for name in candidates if not _lacking(runs, name))
    raise RunError(
        f"{chosen[0]} cannot come first: {_no_model(lacking)}, and systems are ranked and drawn by the first metric; "
        f"start with one that all have, e.g. --metrics {','.join(dict.fromkeys([first, *chosen]))}"
    )


def _missing_notes(runs: Sequence[ComparedRun], chosen: Sequence[MetricName]) -> list[str]:
    """Notes on empty cells."""
    first = runs[0]
    untested = f"; {first.name} is the baseline, so no difference is tested (--baseline chooses another)"
    return [
        f"{METRICS[name].name}: {_no_model(lacking)}{'' if first.has(name) else untested}."
        for name in chosen
        if (lacking := _lacking(runs, name))
    ]


def _check_signatures(runs: Sequence[ComparedRun], scoring: Scoring) -> None:
    """Compare the signatures of a measured sample before anything is decoded."""
    first = runs[0]

    def sample(name: MetricName, run: ComparedRun) -> Measurement:
        lowercase = scoring.ignores_case(run)
        return measure(name, ["a"], [["a"]], ["a"], lowercase=lowercase, section=run.recipe.evaluation)

    for name in scoring.metrics:
        if not needs_outputs(name):
            continue
        ours = sample(name, first)
        for other in runs[1:]:
            try:
                check_comparable(ours, sample(name, other))
            except ValueError as error:
                raise RunError(
                    f"{first.name} and {other.name} are scored differently: {error}; "
                    f"set evaluation.lowercase, evaluation.bleu_tokenize and evaluation.chrf_word_order for all"
                ) from error


def check_text(runs: Sequence[ComparedRun], test: TestSet, scoring: Scoring) -> None:
    """Refuse bits per character of language models whose tokenizers normalize the text differently.

    The letters of an <unk> do not count, so a model that knows fewer words would need fewer bits.
    """
    if "bits-per-character" not in scoring.metrics:
        return
    first = runs[0]
    texts = [text for several in test.references for text in several]
    ours = [first.run.vocabulary.target.normalize(text) for text in texts]
    for other in runs[1:]:
        if [other.run.vocabulary.target.normalize(text) for text in texts] != ours:
            raise RunError(
                f"{first.name} and {other.name} do not read the same text of {test.name}: their tokenizers change it "
                f"differently, and bits per character compare only for one text; train both with the same "
                f"tokenizer.normalize, lowercase and spaces, or compare by perplexity"
            )
    unknown = _unknown(first, texts)
    for other in runs[1:]:
        if (theirs := _unknown(other, texts)) != unknown:
            raise RunError(
                f"{first.name} and {other.name} do not know the same words of {test.name}: {len(unknown):,} and "
                f"{len(theirs):,} of its characters are unknown to them, and bits per character count nothing for the "
                f"letters of <unk>; train both with tokenizers that know the text (characters, or BPE), or with one"
            )


def _unknown(run: ComparedRun, texts: Sequence[str]) -> str:
    """The characters unknown to a tokenizer, without spaces."""
    unknown = run.run.vocabulary.target.unknown
    return "".join("".join(piece.split()) for text in texts for piece in unknown(text))


# --- measurements and tests --------------------------------------------------------------------------------------


def measure_run(
    run: ComparedRun, test: TestSet, outputs: Sequence[str], scoring: Scoring
) -> dict[MetricName, Measurement]:
    """Measure a run by every metric that it has."""
    lowercase = scoring.ignores_case(run)
    return {
        name: run.run.measure(name, test, outputs, lowercase=lowercase) for name in scoring.metrics if run.has(name)
    }


def judge(baseline: Sequence[Measurement], system: Sequence[Measurement]) -> Verdict:
    """Test a system against the baseline, with a measurement for each seed."""
    first, second = baseline[0].outcomes, system[0].outcomes  # of outputs that are right or wrong
    exact = None
    if len(baseline) == len(system) == 1 and first is not None and second is not None:
        exact = mcnemar(first, second, metric=baseline[0].name)
    return Verdict(
        approximate_randomization=approximate_randomization(baseline, system),
        paired_bootstrap=paired_bootstrap(baseline, system),
        mcnemar=exact,
        seeds=welch_test([each.value for each in baseline], [each.value for each in system]),
    )
