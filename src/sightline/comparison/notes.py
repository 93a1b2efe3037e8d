"""Notes on particular runs of a comparison."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from sightline.comparison.costs import cut_off
from sightline.comparison.recipe_differences import format_value
from sightline.comparison.scoring import Scoring
from sightline.comparison.systems import ComparedRun, System
from sightline.data.locate import Provenance
from sightline.decoding.ensemble import Mean
from sightline.evaluation.test_set import TestSet
from sightline.files import checksum
from sightline.terminal import plural
from sightline.training.schedules import interrupted_at

_MEANS: dict[Mean, str] = {"probabilities": "probabilities", "logs": "log-probabilities"}


def run_notes(systems: Sequence[System], test: TestSet, scoring: Scoring) -> list[str]:
    """All notes on the runs."""
    trained = trained_systems(systems)
    runs = list({each.run.folder.resolve(): each for system in trained for each in system.trainings}.values())
    return [
        *_unfinished_notes(runs),
        *_ensemble_notes(trained),
        *_task_notes(trained, scoring),
        *_validation_notes(runs, test),
        *_log_notes(runs),
        *_init_notes(runs),
        *_generated_text_notes(runs),
        *_device_notes(trained),
        *_baseline_notes(systems),
    ]


def trained_systems(systems: Sequence[System]) -> list[System]:
    """The systems with a model."""
    return [system for system in systems if system.runs[0].baseline is None]


def _note(runs: Mapping[str, str] | Sequence[str], note: str, *, separator: str = ", ") -> list[str]:
    """The note with the names of runs, and a detail for each, in place of {}; nothing without runs."""
    names = [f"{name} ({detail})" for name, detail in runs.items()] if isinstance(runs, Mapping) else runs
    return [note.format(separator.join(names))] if names else []


# --- training ----------------------------------------------------------------------------------------------------


def _unfinished_notes(runs: Sequence[ComparedRun]) -> list[str]:
    steps = {each.name: interrupted_at(each.run.folder, each.recipe) for each in runs}
    names = {name: f"step {step:,}" for name, step in steps.items() if step is not None}
    return _note(names, "Training did not finish: {}; continue it with --resume.")


def _ensemble_notes(systems: Sequence[System]) -> list[str]:
    ensembles = [each for system in systems for each in system.runs if each.parts]
    sizes = {each.name: plural(len(each.parts), "run") for each in ensembles}
    mean = _MEANS[ensembles[0].run.model.mean] if ensembles else ""  # the same for all
    note = (
        f"Ensembles average the {mean} of their models: {{}}. Parameters, tokens, FLOPs and time are the sum over "
        f"their runs; they have no learning curve."
    )
    return _note(sizes, note, separator="; ")


def _log_notes(runs: Sequence[ComparedRun]) -> list[str]:
    """Logs that were cut off, and the source of the costs."""
    cuts = {each.name: cut for each in runs if (cut := cut_off(each.run.folder, each.recipe))}
    known = "those of the newest checkpoint; memory and learning curves lack the missing part"
    unknown = "lower bounds, because no checkpoint records the rest"
    notes = []
    for saved, costs in ((True, known), (False, unknown)):
        ends = {
            name: f"step {cut.step:,}" + (f" of {cut.steps:,}" if cut.steps else "")
            for name, cut in cuts.items()
            if cut.saved is saved
        }
        notes += _note(ends, f"The log (metrics.jsonl) was cut off: {{}}. Tokens, FLOPs and time are {costs}.")
    return notes


def _init_notes(runs: Sequence[ComparedRun]) -> list[str]:
    note = (
        "Initialized from other runs (model.init_from): {}. Tokens, FLOPs and time do not include the earlier training."
    )
    return _note([each.name for each in runs if each.recipe.model.init_from is not None], note)


def _generated_text_notes(runs: Sequence[ComparedRun]) -> list[str]:
    """Runs whose cost does not include the models that generated their training text."""
    generated = {each.name: origins for each in runs if (origins := each.origins)}
    if not generated:
        return []
    weights = {each.name: each.run.folder / "model.safetensors" for each in runs}
    names = {checksum(path): name for name, path in weights.items() if path.is_file()}
    texts = {run: ", ".join(_origin(each, names) for each in origins) for run, origins in generated.items()}
    note = (
        "Trained on text that other models generated: {}. Tokens, FLOPs and time do not include those models and the "
        "generation."
    )
    return _note(texts, note, separator="; ")


def _origin(origin: Provenance, names: Mapping[str, str]) -> str:
    """`distilled by big`, or `distilled` if a model is not part of the comparison."""
    known = [names[digest] for digest in origin.models if digest in names]
    return f"{origin.how} by {' and '.join(known)}" if len(known) == len(origin.models) else origin.how


def _device_notes(systems: Sequence[System]) -> list[str]:
    devices: dict[str, list[str]] = {}
    for system in systems:
        for device in dict.fromkeys(device for run in system.runs for device in run.devices):
            devices.setdefault(device, []).append(system.name)
    texts = [f"{device}: {', '.join(names)}" for device, names in devices.items()]
    note = "Trained on different devices, so training time and memory do not compare: {}."
    return _note(texts, note, separator="; ") if len(devices) > 1 else []


def _baseline_notes(systems: Sequence[System]) -> list[str]:
    kinds = {each.name: each.baseline for system in systems for each in system.runs if each.baseline is not None}
    note = "Baselines without a model, which extract sentences of the source (sightline baseline): {}."
    oracle = any(kind.startswith("oracle") for kind in kinds.values())
    return _note(kinds, note + (" An oracle has seen the references." if oracle else ""))


def _validation_notes(runs: Sequence[ComparedRun], test: TestSet) -> list[str]:
    """Runs validated on a part of the text, if it is the validation set."""
    counts = {each.name: count for each in runs if (count := each.recipe.validated(test.name, test.pairs)) is not None}
    names = {name: f"the first {plural(count, 'example')}" for name, count in counts.items()}
    return _note(names, "Training validated on a part of this text only (data.validation_limit): {}.")


# --- decoding ----------------------------------------------------------------------------------------------------


def _task_notes(systems: Sequence[System], scoring: Scoring) -> list[str]:
    if not systems:
        return []
    recipe = systems[0].runs[0].recipe
    if recipe.of_text:
        return [
            "Models of text are scored on the test text itself: there are no outputs to show and no decoding to time."
        ]
    if not scoring.needs_outputs:
        return ["No metric here needs outputs, so nothing was decoded, and there is no decoding to time."]
    return _decoding_notes(systems) if recipe.task_spec.maps_text else []


def _decoding_notes(systems: Sequence[System]) -> list[str]:
    """Decoding options that differ between systems."""
    options = {
        system.name: system.runs[0].options.model_dump(mode="json", exclude={"batch_tokens"}) for system in systems
    }
    keys = next(iter(options.values()))
    by_key = {key: {name: format_value(each[key]) for name, each in options.items()} for key in keys}
    texts = [f"{key} {group_values(values)}" for key, values in by_key.items() if len(set(values.values())) > 1]
    return [f"Decoding options differ between the recipes: {'; '.join(texts)}."] if texts else []


def group_values(values: Mapping[str, str]) -> str:
    """Each value once with its names, the most common one last: `5 (a, b), all others: 1`."""
    names: dict[str, list[str]] = {}
    for name, value in values.items():
        names.setdefault(value, []).append(name)
    common, count = Counter(values.values()).most_common(1)[0]
    if count == 1:
        return ", ".join(f"{value} ({name})" for name, value in values.items())
    texts = [f"{value} ({', '.join(several)})" for value, several in names.items() if value != common]
    return f"{', '.join(texts)}, all others: {common}"
