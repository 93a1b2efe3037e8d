"""How good each run is, by the metrics they share, and whether systems differ by more than luck."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from sightline.comparison.results import Verdict
from sightline.comparison.seeds import bootstrap, randomization, seed_test
from sightline.comparison.systems import Contestant
from sightline.evaluation.measurement import Measurement, aligned
from sightline.evaluation.metrics import METRICS, look_at_outputs, measure
from sightline.evaluation.significance import check_comparable, mcnemar
from sightline.evaluation.test_set import TestSet
from sightline.recipe import Evaluation, MetricName
from sightline.run_folder import RunError
from sightline.text.bleu_tokenizers import resolved, tokenization_note


@dataclass(frozen=True)
class Scoring:
    """By what the runs are judged. A run without a model lacks metrics of losses, but not the first."""

    metrics: list[MetricName]
    lowercase: bool | None  # None: as each recipe says
    bootstrap: int  # resamples for the intervals
    notes: list[str]

    @property
    def needs_outputs(self) -> bool:
        """Whether something has to be decoded for it."""
        return look_at_outputs(self.metrics)

    def folds_case(self, contestant: Contestant) -> bool:
        return contestant.run.recipe.evaluation.lowercase if self.lowercase is None else self.lowercase


def choose_scoring(contestants: Sequence[Contestant], metrics: Sequence[str] | None, lowercase: bool | None) -> Scoring:
    """The metrics asked for, or those that all recipes have; refused where they would not mean the same.

    Of the recipes' metrics those that every run has come first; of those asked for, the first must be one.
    """
    recipes = [contestant.run.recipe.evaluation for contestant in contestants]
    notes: list[str] = []
    if metrics is not None:
        chosen = [_known(name) for name in dict.fromkeys(metrics)]
        spec = contestants[0].run.recipe.task_spec
        if wrong := [name for name in chosen if name not in spec.metrics]:
            raise RunError(f"{wrong[0]} is not for {spec}; choose from {', '.join(spec.metrics)}")
    else:
        every = dict.fromkeys(name for each in recipes for name in each.metrics)
        chosen = [
            name
            for name in every
            if all(name in each.metrics for c, each in zip(contestants, recipes, strict=True) if c.has(name))
        ]
        chosen.sort(key=lambda name: bool(_lacking(contestants, name)))  # stable: in the order of the recipes
        if left_out := [METRICS[name].label for name in every if name not in chosen]:
            notes.append(f"Left out, because not every recipe has them: {', '.join(left_out)}.")
    if not chosen:
        have = "; ".join(f"{c.name} has {', '.join(e.metrics)}" for c, e in zip(contestants, recipes, strict=True))
        raise RunError(f"the recipes have no metric in common ({have}); choose with --metrics, e.g. bleu,chrf")
    if "perplexity" in chosen and (reason := _other_tokens(contestants)):
        if chosen == ["perplexity"] or metrics is not None:
            lm = contestants[0].run.recipe.task_spec.continues_text
            example = ", e.g. bits-per-character" if lm else ""
            raise RunError(f"{reason}; leave perplexity out, or compare by another metric with --metrics{example}")
        chosen.remove("perplexity")
        notes.append(f"Perplexity is left out: {reason}.")
    _check_first(contestants, chosen)
    notes += _missing_notes(contestants, chosen)
    scoring = Scoring(chosen, lowercase, recipes[0].bootstrap, notes)
    _check_signatures(contestants, scoring)
    return scoring


def settle_ngrams(
    contestants: Sequence[Contestant], test: TestSet, bleu_tokenize: str | None, chrf_word_order: int | None
) -> list[str]:
    """Fix for each run how BLEU and chrF cut texts: as asked for, else as its recipe says, `auto` by these references.

    Returns a note on what `auto` chose.
    """
    texts = [text for several in test.references for text in several]
    notes = dict[str, None]()
    asked = {"bleu_tokenize": bleu_tokenize, "chrf_word_order": chrf_word_order}
    for contestant in contestants:
        run = contestant.run
        given = {key: value for key, value in asked.items() if value is not None}
        section = Evaluation.model_validate({**run.recipe.evaluation.model_dump(), **given})
        if "bleu" in section.metrics and (note := tokenization_note(section, texts)) is not None:
            notes[note[0].upper() + note[1:] + "."] = None
        section = section.model_copy(update={"bleu_tokenize": resolved(section, texts)})
        run.recipe = run.recipe.model_copy(update={"evaluation": section})
    return list(notes)


def check_text(contestants: Sequence[Contestant], test: TestSet, scoring: Scoring) -> None:
    """Refuse bits per character of language models whose tokenizers make different texts of one.

    What is unknown to a tokenizer is as good as changed: `<unk>` says nothing of the letters it stands for, so a model
    that knows fewer words would need fewer bits.
    """
    if "bits-per-character" not in scoring.metrics:
        return
    first = contestants[0]
    texts = [text for several in test.references for text in several]
    ours = [first.run.vocabulary.target.normalize(text) for text in texts]
    for other in contestants[1:]:
        if [other.run.vocabulary.target.normalize(text) for text in texts] != ours:
            raise RunError(
                f"{first.name} and {other.name} do not read the same text of {test.name}, for their tokenizers change "
                f"it differently, and bits per character are those of one text; train both with the same "
                f"tokenizer.normalize, lowercase and spaces, or compare by perplexity"
            )
    unknown = _unknown(first, texts)
    for other in contestants[1:]:
        if (theirs := _unknown(other, texts)) != unknown:
            raise RunError(
                f"{first.name} and {other.name} do not know the same words of {test.name}: {len(unknown):,} and "
                f"{len(theirs):,} of its characters are unknown to them, and bits per character count nothing for the "
                f"letters of <unk>; train both with tokenizers that know the text (characters, or BPE), or with one"
            )


def _unknown(contestant: Contestant, texts: Sequence[str]) -> str:
    """All that a tokenizer does not know of some texts, in a row, without the spaces between."""
    find = contestant.run.vocabulary.target.unknown
    return "".join("".join(piece.split()) for text in texts for piece in find(text))


def measured(
    contestant: Contestant, test: TestSet, outputs: Sequence[str], scoring: Scoring
) -> dict[MetricName, Measurement]:
    """Every metric that a run has."""
    lowercase = scoring.folds_case(contestant)
    return {
        name: contestant.run.measure(name, test, outputs, lowercase=lowercase)
        for name in scoring.metrics
        if contestant.has(name)
    }


def judge(metric: MetricName, baseline: Sequence[Measurement], system: Sequence[Measurement]) -> Verdict:
    """Hold the runs of a system against those of the baseline (one measurement for each seed)."""
    alone = len(baseline) == len(system) == 1
    theirs, ours = baseline[0].outcomes, system[0].outcomes  # of answers that are right or wrong
    exact = None
    if alone and theirs is not None and ours is not None:
        exact = mcnemar(theirs, ours, metric=baseline[0].name)
    together = aligned([*baseline, *system])  # over the labels of all runs
    baseline, system = together[: len(baseline)], together[len(baseline) :]
    return Verdict(
        metric=metric,
        randomization=randomization(baseline, system),
        bootstrap=bootstrap(baseline, system),
        mcnemar=exact,
        seeds=seed_test([each.value for each in baseline], [each.value for each in system]),
    )


def _known(name: str) -> MetricName:
    for known in get_args(MetricName):
        if name == known:
            return known  # type: ignore[no-any-return]
    raise ValueError(f"there is no metric {name!r}; choose from {', '.join(METRICS)}")


def _other_tokens(contestants: Sequence[Contestant]) -> str | None:
    """Why perplexities cannot be compared, if they cannot."""
    models = [each for each in contestants if each.has("perplexity")]
    if not models:
        return f"{_no_model([each.name for each in contestants])}, and so no perplexity"
    first = models[0]
    for other in models[1:]:
        if first.run.recipe.copies_unknown != other.run.recipe.copies_unknown:
            return f"of {first.name} and {other.name} only one has to name words outside the vocabulary (model.copying)"
        if first.run.vocabulary.target.content != other.run.vocabulary.target.content:
            return f"{first.name} and {other.name} have different tokenizers, and perplexity is one of tokens"
    return None


def _lacking(contestants: Sequence[Contestant], metric: MetricName) -> list[str]:
    """The names of those who do not have a metric."""
    return [each.name for each in contestants if not each.has(metric)]


def _no_model(names: Sequence[str]) -> str:
    """Why they lack it: `lead-10 and oracle have no model`."""
    *most, last = names
    return f"{', '.join(most)} and {last} have no model" if most else f"{last} has no model"


def _check_first(contestants: Sequence[Contestant], chosen: Sequence[MetricName]) -> None:
    """Systems are ranked and drawn by the first metric, so all must have it."""
    if not (lacking := _lacking(contestants, chosen[0])):
        return
    recipe = contestants[0].run.recipe
    candidates = [*chosen, *recipe.evaluation.metrics, *recipe.task_spec.metrics]
    first = next(name for name in candidates if not _lacking(contestants, name))
    raise RunError(
        f"{chosen[0]} cannot come first: {_no_model(lacking)}, and systems are ranked and drawn by the first metric; "
        f"begin with one that all have, e.g. --metrics {','.join(dict.fromkeys([first, *chosen]))}"
    )


def _missing_notes(contestants: Sequence[Contestant], chosen: Sequence[MetricName]) -> list[str]:
    """Why some cells are empty."""
    notes: list[str] = []
    for name in chosen:
        if lacking := _lacking(contestants, name):
            first = contestants[0]
            untested = f"; {first.name} is the baseline, so no difference is tested (--baseline chooses another)"
            notes.append(f"{METRICS[name].label}: {_no_model(lacking)}{'' if first.has(name) else untested}.")
    return notes


def _check_signatures(contestants: Sequence[Contestant], scoring: Scoring) -> None:
    """Before anything is decoded: a measurement of one sentence says how all would be measured."""
    first = contestants[0]

    def sample(name: MetricName, contestant: Contestant) -> Measurement:
        section = contestant.run.recipe.evaluation
        return measure(name, ["a"], [["a"]], lowercase=scoring.folds_case(contestant), section=section)

    for name in scoring.metrics:
        if not METRICS[name].needs_outputs:
            continue
        ours = sample(name, first)
        for other in contestants[1:]:
            try:
                check_comparable(ours, sample(name, other))
            except ValueError as error:
                raise RunError(
                    f"{first.name} and {other.name} are scored differently: {error}; "
                    f"--lowercase or --no-lowercase, --bleu-tokenize and --chrf-word-order make it the same for all"
                ) from error
