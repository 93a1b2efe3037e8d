"""What a reader of a comparison must know of these runs in particular."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from sightline.comparison.journals import cut_off
from sightline.comparison.quality import Scoring
from sightline.comparison.recipe_differences import written
from sightline.comparison.systems import Contestant, Group
from sightline.data.locate import Provenance
from sightline.decoding.ensemble import Mean
from sightline.evaluation.test_set import TestSet
from sightline.files import checksum
from sightline.terminal import plural
from sightline.training.schedules import broken_off_at

_MEANS: dict[Mean, str] = {"probabilities": "probabilities", "logs": "log-probabilities"}
_OWN_COST = "tokens, FLOPs and time are of their own training alone"


def run_notes(groups: Sequence[Group], test: TestSet, scoring: Scoring) -> list[str]:
    """All notes, for runs with a model and without."""
    models = of_models(groups)
    trained = (each for group in models for contestant in group.contestants for each in contestant.trainings)
    every = list({each.run.folder.resolve(): each for each in trained}.values())
    cost = [*_journal_notes(every), *_started_notes(every), *_taught_notes(every), *_device_notes(models)]
    task = [*_unfinished_notes(every), *_ensemble_notes(models), *_task_notes(models, scoring)]
    return [*task, *_validation_notes(every, test), *cost, *_baseline_notes(groups)]


def of_models(groups: Sequence[Group]) -> list[Group]:
    """Those that were trained."""
    return [group for group in groups if group.contestants[0].baseline is None]


# --- what was trained, and at what cost --------------------------------------------------------------------------


def _unfinished_notes(every: Sequence[Contestant]) -> list[str]:
    """A training that was broken off has a model too, but not the one its recipe promises."""
    steps = {each.name: broken_off_at(each.run.folder, each.run.recipe) for each in every}
    told = ", ".join(f"{name} (step {step:,})" for name, step in steps.items() if step is not None)
    return [f"Not trained to the end, so it may still get better: {told}; go on with --resume."] if told else []


def _ensemble_notes(groups: Sequence[Group]) -> list[str]:
    """What rows of several models are, and what stands for their cost."""
    together = [each for group in groups for each in group.contestants if each.parts]
    if not together:
        return []
    told = "; ".join(f"{each.name} ({plural(len(each.parts), 'run')})" for each in together)
    mean = together[0].run.model.mean  # the same for all
    return [
        f"Ensembles, which write by the mean of their models' {_MEANS[mean]}: {told}; parameters, tokens, FLOPs and "
        f"time are those of all their runs together, and none has a learning curve."
    ]


def _journal_notes(every: Sequence[Contestant]) -> list[str]:
    """What a journal that is cut off cannot tell, and who tells it instead, if anybody."""
    cut = {each.name: found for each in every if (found := cut_off(each.run.folder, each.run.recipe))}
    known = "those of the newest checkpoint; memory and learning curves are without what is missing"
    unknown = "the least that was spent, for no checkpoint tells what came after"
    notes = []
    for saved, rest in ((True, known), (False, unknown)):
        ends = {
            name: f"{each.step:,}" + (f" of {each.steps:,}" if each.steps else "")
            for name, each in cut.items()
            if each.saved is saved
        }
        if ends:
            told = ", ".join(f"{name} (step {end})" for name, end in ends.items())
            notes.append(f"The journal (metrics.jsonl) ends too soon: {told}; tokens, FLOPs and time are {rest}.")
    return notes


def _started_notes(every: Sequence[Contestant]) -> list[str]:
    """What runs cost that began with the weights of others is not all that was spent on them."""
    told = ", ".join(each.name for each in every if each.run.recipe.model.init_from is not None)
    note = f"Begun with the weights of other runs (model.init_from): {told}; {_OWN_COST}, without what went before."
    return [note] if told else []


def _taught_notes(every: Sequence[Contestant]) -> list[str]:
    """Nor is it where another model wrote the text they learned from."""
    taught = {each.name: origins for each in every if (origins := each.origins)}
    if not taught:
        return []
    names = {checksum(path): each.name for each in every if (path := _weights(each)).is_file()}
    told = "; ".join(f"{run} ({', '.join(_made(each, names) for each in own)})" for run, own in taught.items())
    return [
        f"Learned from text that other models wrote: {told}. Their {_OWN_COST}, without what those models and their "
        f"writing cost."
    ]


def _weights(contestant: Contestant) -> Path:
    return contestant.run.folder / "model.safetensors"


def _made(origin: Provenance, names: Mapping[str, str]) -> str:
    """`distilled by big`, where all who wrote are runs of this comparison; else how it was made alone."""
    known = [names[digest] for digest in origin.models if digest in names]
    return f"{origin.how} by {' and '.join(known)}" if len(known) == len(origin.models) else origin.how


def _device_notes(groups: Sequence[Group]) -> list[str]:
    """Times and memory are only worth comparing on the same device."""
    devices: dict[str, list[str]] = {}
    for group in groups:
        for device in dict.fromkeys(device for contestant in group.contestants for device in contestant.devices):
            devices.setdefault(device, []).append(group.name)
    if len(devices) < 2:
        return []
    told = "; ".join(f"{device}: {', '.join(names)}" for device, names in devices.items())
    return [f"Trained on different devices, so training time and memory do not compare: {told}."]


def _baseline_notes(groups: Sequence[Group]) -> list[str]:
    """What rows without a model are."""
    kinds = {each.name: each.baseline for group in groups for each in group.contestants if each.baseline is not None}
    if not kinds:
        return []
    seen = any(kind.startswith("oracle") for kind in kinds.values())
    told = ", ".join(f"{name} ({kind})" for name, kind in kinds.items())
    note = f"Without a model, sentences of the source as they are (sightline baseline): {told}."
    return [note + (" An oracle has seen the references." if seen else "")]


def _validation_notes(every: Sequence[Contestant], test: TestSet) -> list[str]:
    """On the validation text, what was chosen by a part of it is not what is measured here."""
    saw = {each.name: seen for each in every if (seen := each.run.recipe.validated(test.name, test.pairs)) is not None}
    told = ", ".join(f"{name} (the first {plural(seen, 'example')})" for name, seen in saw.items())
    return [f"Validations in training saw but a part of this text (data.validation_limit): {told}."] if told else []


# --- how outputs came about --------------------------------------------------------------------------------------


def _task_notes(groups: Sequence[Group], scoring: Scoring) -> list[str]:
    """What the task and the metrics mean for the comparison."""
    if not groups:
        return []
    recipe = groups[0].contestants[0].run.recipe
    if recipe.of_text:
        return [
            "Models of text are measured by the test text itself, so there are no outputs to show and no decoding "
            "to time."
        ]
    if not scoring.needs_outputs:
        return ["No metric here looks at outputs, so nothing was decoded, and there is no decoding to time."]
    return _decoding_notes(groups) if recipe.task_spec.maps_text else []


def _decoding_notes(groups: Sequence[Group]) -> list[str]:
    """Settings that change outputs, where systems do not share them."""
    options = {
        group.name: group.contestants[0].options.model_dump(mode="json", exclude={"batch_tokens"}) for group in groups
    }
    keys = next(iter(options.values()))
    by_key = {key: {name: written(each[key]) for name, each in options.items()} for key in keys}
    told = [f"{key} {shared(values)}" for key, values in by_key.items() if len(set(values.values())) > 1]
    return [f"Decoding settings differ, each run as its recipe says: {'; '.join(told)}."] if told else []


def shared(values: Mapping[str, str]) -> str:
    """Values under the names that have them, each told once: `5 (a, b), all others: 1`.

    The others are those with the most common value, the first of several; of one name each, all are named.
    """
    names: dict[str, list[str]] = {}
    for name, value in values.items():
        names.setdefault(value, []).append(name)
    common, count = Counter(values.values()).most_common(1)[0]
    if count == 1:
        return ", ".join(f"{value} ({name})" for name, value in values.items())
    told = [f"{value} ({', '.join(own)})" for value, own in names.items() if value != common]
    return f"{', '.join(told)}, all others: {common}"
