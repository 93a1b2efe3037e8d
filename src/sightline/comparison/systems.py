"""Load the runs of a comparison, group seeds of one system, and read the common test set."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import count, zip_longest
from pathlib import Path

from sightline.comparison.baselines import BaselineRun, is_baseline
from sightline.comparison.recipe_differences import differ_only_in_seed
from sightline.data.locate import Provenance, is_reverse_direction, training_provenance
from sightline.data.sources import Example
from sightline.data.text_files import DataError
from sightline.decoding.ensemble import Mean
from sightline.evaluation.metrics import needs_outputs
from sightline.evaluation.test_set import TestSet
from sightline.files import read_json
from sightline.progress import Progress
from sightline.recipe import Decoding, MetricName, Recipe
from sightline.recipe.loading import change_sections
from sightline.run import Run
from sightline.run_folder import RunError, read_config
from sightline.terminal import plural, short

RunSpec = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]  # a run folder, or several for an ensemble ("a+b")
Runs = Sequence[RunSpec] | Mapping[str, RunSpec]  # a mapping gives names

_REMEDY = "give a test set that all have with --on, or files with --source and --reference"


@dataclass(frozen=True)
class ComparedRun:
    """A loaded run, or an ensemble of `parts`."""

    name: str
    run: Run
    options: Decoding
    parts: tuple[ComparedRun, ...] = ()

    @property
    def recipe(self) -> Recipe:
        return self.run.recipe

    @property
    def trainings(self) -> tuple[ComparedRun, ...]:
        """The trained runs: itself, or its parts."""
        return self.parts or (self,)

    @property
    def baseline(self) -> str | None:
        """The kind of a baseline without a model."""
        return self.run.baseline if isinstance(self.run, BaselineRun) else None

    @property
    def on_gpu(self) -> bool:
        return self.baseline is None and self.run.device.type != "cpu"

    def has(self, metric: MetricName) -> bool:
        """Return True if it can be scored by a metric; metrics of likelihood need a model."""
        return self.baseline is None or needs_outputs(metric)

    @property
    def origins(self) -> list[Provenance]:
        """The origins of generated training text."""
        if self.baseline is not None:
            return []
        return [origin for each in self.trainings for origin in training_provenance(each.recipe)]

    @property
    def seed(self) -> int:
        return self.recipe.seed

    @property
    def parameters(self) -> int:
        return sum(int(read_config(each.run.folder)["parameters"]) for each in self.trainings)

    @property
    def devices(self) -> list[str]:
        """Where it was trained."""
        return list(dict.fromkeys(_trained_on(each.run) for each in self.trainings))

    def decode(self, sources: Sequence[str], *, first: int) -> list[str]:
        """The best output of each source; `first` is the number of the first source in the test set."""
        try:
            outputs = self.run.predict_nbest(sources, self.options, first=first, scored=False)
        except ValueError as error:
            raise RunError(f"{self.name}: {error}") from error
        return [nbest[0].text for nbest in outputs]


@dataclass(frozen=True)
class System:
    """A named system: runs that differ only in their seed."""

    name: str
    runs: list[ComparedRun]

    @property
    def trainings(self) -> list[ComparedRun]:
        """Every trained run, including parts of ensembles."""
        return [each for run in self.runs for each in run.trainings]


def _trained_on(run: Run) -> str:
    try:
        environment = read_json(run.folder / "environment.json")
        cuda = [str(name) for name in environment["cuda"]]
    except (OSError, ValueError, KeyError, TypeError):
        return "unknown"
    return "CPU" if run.recipe.training.device == "cpu" or not cuda else cuda[0]


# --- loading -----------------------------------------------------------------------------------------------------


def load_runs(
    runs: Runs, *, beam: int | None, decoding: Sequence[str] = (), mean: Mean, device: str, progress: Progress
) -> list[ComparedRun]:
    """Load every run once; refuse duplicates and fewer than two runs."""
    if isinstance(runs, str | os.PathLike):
        raise TypeError(f"compare takes a list of runs, not {runs!r}; write [{str(runs)!r}, ...]")
    entries: list[tuple[str | None, list[Path]]] = [
        (name, folders_of(spec))
        for name, spec in (runs.items() if isinstance(runs, Mapping) else ((None, spec) for spec in runs))
    ]
    _check_entries([folders for _, folders in entries])
    places = {folder.resolve(): folder for _, folders in entries for folder in folders}
    names = dict(zip(places, _short_names(list(places.values())), strict=True))
    names |= {folders[0].resolve(): name for name, folders in entries if len(folders) == 1 and name is not None}
    baselines = {place: is_baseline(folder) for place, folder in places.items()}
    for _, folders in entries:
        if len(folders) > 1 and (wrong := [folder for folder in folders if baselines[folder.resolve()]]):
            raise RunError(
                f"{_joined(folders)}: {wrong[0]} holds outputs and no model, so it cannot be part of an ensemble; "
                f"leave it out there"
            )
    loaded: dict[Path, ComparedRun] = {}
    for number, (place, folder) in enumerate(places.items()):
        progress("loading runs", number, len(places))
        run = BaselineRun.open(folder) if baselines[place] else Run.load(folder, device=device)
        if decoding and isinstance(run, Run):
            run = copy(run)
            run.recipe = change_sections(run.recipe, decoding)
        loaded[place] = ComparedRun(names[place], run, run.plain_search(beam))
    entrants = []
    for name, folders in entries:
        parts = tuple(loaded[folder.resolve()] for folder in folders)
        if len(parts) > 1:
            ensemble = Run.ensemble([part.run for part in parts], mean=mean)
            label = name or " + ".join(part.name for part in parts)
            entrants.append(ComparedRun(label, ensemble, ensemble.plain_search(beam), parts))
        else:
            entrants.append(parts[0])
    _check_names([*entrants, *(each for each in loaded.values() if each not in entrants)])
    return entrants


def folders_of(spec: RunSpec) -> list[Path]:
    """The run folders of an entry; the path of an existing folder may contain a +."""
    if not isinstance(spec, str | os.PathLike):
        return [Path(folder) for folder in spec]
    parts = os.fspath(spec).split("+")
    return [Path(spec)] if Path(spec).exists() or not all(parts) else [Path(part) for part in parts]


def _joined(folders: Sequence[Path]) -> str:
    return "+".join(map(str, folders))


def _check_names(runs: Sequence[ComparedRun]) -> None:
    for name, number in Counter(each.name for each in runs).items():
        if number > 1:
            raise RunError(
                f"{number} of what is compared would be called {name}; rename a folder, or give names from Python: "
                f"sightline.compare({{name: folder}})"
            )


def _check_entries(entries: Sequence[Sequence[Path]]) -> None:
    """Refuse fewer than two entries, and duplicates."""
    if len(entries) < 2:
        runs = f"only {_joined(entries[0])}" if entries else "none"
        raise RunError(f"a comparison needs at least two runs, and there is {runs}; give another run folder")
    known: dict[frozenset[Path], str] = {}
    for folders in entries:
        places, entry = frozenset(folder.resolve() for folder in folders), _joined(folders)
        if len(places) < len(folders):
            raise RunError(f"{entry}: a run that is in an ensemble twice only gets more weight; name each run once")
        if places in known:
            raise RunError(f"{entry} is given twice (as {known[places]} too); give each run once")
        known[places] = entry


def _short_names(folders: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that are all different."""
    parts = [folder.resolve().parts for folder in folders]
    by_length = ([os.path.join(*each[-length:]) for each in parts] for length in count(1))
    return next(names for names in by_length if len(set(names)) == len(names))


# --- systems -----------------------------------------------------------------------------------------------------


def check_one_task(runs: Sequence[ComparedRun]) -> None:
    """Refuse runs of different tasks."""
    first = runs[0]
    for other in runs[1:]:
        if other.recipe.task_spec != first.recipe.task_spec:
            raise RunError(
                f"{first.name} is {first.recipe.task_spec} and {other.name} is {other.recipe.task_spec}; "
                f"their scores do not compare, so give runs of one task"
            )


def group_by_seed(runs: Sequence[ComparedRun]) -> tuple[list[System], list[str]]:
    """Group runs into systems, with notes on how.

    Runs whose recipes differ only in the seed are one system, unless two of them have the same seed (something else may
    differ), or all runs would be one system (then seeds are compared). An ensemble is a system of its own.
    """
    families: list[list[ComparedRun]] = []
    for run in runs:
        for family in families:
            trained = all(each.baseline is None and not each.parts for each in (family[0], run))
            if trained and differ_only_in_seed(family[0].recipe, run.recipe):
                family.append(run)
                break
        else:
            families.append([run])
    notes: list[str] = []
    if len(families) == 1:
        if len({run.seed for run in runs}) > 1:
            notes.append("All runs differ only in their seed, so each is compared on its own.")
        families = [[run] for run in runs]
    kept: list[list[ComparedRun]] = []
    for family in families:
        if len({run.seed for run in family}) == len(family):
            kept.append(family)
            continue
        names = ", ".join(run.name for run in family)
        notes.append(f"{names} have the same recipe, some even the same seed, so each is a system of its own.")
        kept += [[run] for run in family]
    family_names = [_family_name(family) for family in kept]
    systems = [
        System(name if family_names.count(name) == 1 else f"{name} ({family[0].name})", family)
        for name, family in zip(family_names, kept, strict=True)
    ]
    return systems, notes


def choose_baseline(systems: Sequence[System], baseline: str | os.PathLike[str] | None) -> list[System]:
    """Move the baseline, named by system, run or folder, to the front."""
    if baseline is None:
        return list(systems)
    places = {folder.resolve() for folder in folders_of(baseline)}
    for system in systems:
        folders = [{each.run.folder.resolve() for each in run.trainings} for run in system.runs]
        if os.fspath(baseline) in (system.name, *(run.name for run in system.runs)) or places in folders:
            return [system, *(other for other in systems if other is not system)]
    names = ", ".join(system.name for system in systems)
    raise RunError(f"the baseline {baseline} is none of the runs that are compared ({names}); name one of them")


def _family_name(family: Sequence[ComparedRun]) -> str:
    """The common name without seeds: `dot` for dot-seed1 and dot-seed2."""
    if len(family) == 1:
        return family[0].name
    bare = {_without_seed(run.name, run.seed) for run in family}
    if len(bare) == 1 and "" not in bare:
        return bare.pop()
    return f"{family[0].name} and {len(family) - 1} more"


def _without_seed(name: str, seed: int) -> str:
    bare = re.sub(rf"[\W_]*seed[\W_]*{seed}(?!\d)", "", name, count=1, flags=re.IGNORECASE)
    if bare == name:  # dot-1, dot/s1
        bare = re.sub(rf"[\W_]+s?{seed}$", "", name)
    return bare.strip(" -_,;./")


# --- the test set ------------------------------------------------------------------------------------------------


def common_test_set(runs: Sequence[ComparedRun], on: str | TestSet | None) -> tuple[TestSet, list[str]]:
    """The test set, by default the first that all runs have, and the names of other common ones.

    Runs whose texts differ are refused.
    """
    _check_direction(runs)
    if isinstance(on, TestSet):
        _check_not_empty(on)
        return on, []
    first = runs[0]
    tests = list(first.recipe.data.tests)
    shared = [name for name in tests if all(name in other.recipe.data.tests for other in runs)]
    name = _default_test_set(shared, runs) if on is None else on
    examples = _examples(first, name)
    seen = {_origin(first, name)}
    for other in runs[1:]:
        origin = _origin(other, name)
        if origin in seen:
            continue
        seen.add(origin)
        _check_same(name, first, examples, other, _examples(other, name))
    test = TestSet.of(name, examples, gathered=all(each.recipe.gathers(name) for each in runs))
    _check_not_empty(test)
    return test, [each for each in shared if each != name]


def _check_direction(runs: Sequence[ComparedRun]) -> None:
    """Refuse runs of opposite translation directions."""
    first = runs[0]
    for other in runs[1:]:
        if is_reverse_direction(first.recipe, other.recipe):
            raise RunError(
                f"{other.name} learned the other direction of the corpus of {first.name} (data.swap: "
                f"{str(other.recipe.data.swap).lower()}), and a comparison is on one text; compare runs of one "
                f"direction"
            )


def _default_test_set(shared: Sequence[str], runs: Sequence[ComparedRun]) -> str:
    """The first test set that all runs have; the validation set if no run has any."""
    if shared:
        return shared[0]
    if not any(each.recipe.data.tests for each in runs):
        return "validation"
    have = "; ".join(f"{each.name} has {', '.join(each.recipe.data.tests) or 'none'}" for each in runs)
    raise RunError(f"the runs have no test set in common ({have}); {_REMEDY}")


def _examples(run: ComparedRun, name: str) -> list[Example]:
    if name not in run.run.test_sets():
        has = ", ".join(run.run.test_sets())
        raise RunError(f"{run.name} has no test set {name!r}; it has {has}; {_REMEDY}")
    try:
        return list(run.run.test_examples(name))
    except DataError as error:
        raise RunError(f"the test set {name} of {run.name} cannot be read: {error}; or {_REMEDY}") from error


def _origin(run: ComparedRun, name: str) -> str | None:
    """A key of the source of the examples, so that each source is read once."""
    data = run.recipe.data
    source = data.validation if name == "validation" else data.tests.get(name)
    return None if source is None else f"{source.model_dump_json()} {data.folder} {data.swap}"


def _check_same(name: str, first: ComparedRun, ours: list[Example], other: ComparedRun, theirs: list[Example]) -> None:
    for number, (one, two) in enumerate(zip_longest(ours, theirs), 1):
        if one == two:
            continue
        if one is None or two is None:
            longer, count = (first, len(ours)) if two is None else (other, len(theirs))
            what = f"{longer.name} has {plural(count, 'line')} there, the other only {number - 1:,}"
        else:
            side = "source" if one.source != two.source else "target"
            what = f"line {number:,} has the {side} {short(getattr(one, side))} and {short(getattr(two, side))}"
        raise RunError(
            f"the test set {name} of {first.name} is not that of {other.name}: {what}. Scores on different texts "
            f"cannot be compared; {_REMEDY}"
        )


def _check_not_empty(test: TestSet) -> None:
    if not test.sources:
        raise RunError(f"the test set {test.name} has no sentences, so there is nothing to compare; {_REMEDY}")
