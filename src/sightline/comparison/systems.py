"""The runs of a comparison, alone or as ensembles, and which are one system: those that differ only in their seed."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from sightline.comparison.baselines import WrittenRun, is_baseline
from sightline.comparison.recipe_differences import differ_only_in_seed
from sightline.data.locate import Provenance, training_provenance
from sightline.decoding.ensemble import Mean
from sightline.evaluation.metrics import METRICS
from sightline.files import read_json
from sightline.progress import Progress
from sightline.recipe import Decoding, MetricName
from sightline.run import Run
from sightline.run_folder import RunError, read_config

Given = (
    str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
)  # a run, its folder, or those of an ensemble; as a path: with + between them
Runs = Sequence[Given] | Mapping[str, Given]  # or under the names they are to have


@dataclass(frozen=True)
class Contestant:
    """A run with its model in memory, ready to decode; or an ensemble, which is a run made of its `parts`."""

    name: str
    run: Run
    options: Decoding
    parts: tuple[Contestant, ...] = ()

    @property
    def trainings(self) -> tuple[Contestant, ...]:
        """The runs that were trained for it: itself, or its parts."""
        return self.parts or (self,)

    @property
    def baseline(self) -> str | None:
        """What it is where there are outputs and no model; a run that was trained is none."""
        return self.run.baseline if isinstance(self.run, WrittenRun) else None

    @property
    def on_gpu(self) -> bool:
        return not isinstance(self.run, WrittenRun) and self.run.device.type != "cpu"

    def has(self, metric: MetricName) -> bool:
        """Whether it can be measured so: what is made of losses needs a model."""
        return self.baseline is None or METRICS[metric].needs_outputs

    @property
    def origins(self) -> list[Provenance]:
        """How those texts were made that it learned from and models wrote; nobody taught what has no model."""
        return (
            []
            if self.baseline is not None
            else [o for each in self.trainings for o in training_provenance(each.run.recipe)]
        )

    @property
    def seed(self) -> int:
        return self.run.recipe.seed

    @property
    def parameters(self) -> int:
        """Of all its models."""
        return sum(int(read_config(each.run.folder)["parameters"]) for each in self.trainings)

    @property
    def devices(self) -> list[str]:
        """Where it was trained, as far as the run folders say it."""
        return list(dict.fromkeys(_trained_on(each.run) for each in self.trainings))

    def decode(self, sources: Sequence[str], *, first: int) -> list[str]:
        """The best output of each source; `first` is the number of the first one in the whole test set."""
        try:
            found = self.run.predict_nbest(sources, self.options, first=first, scored=False)
        except ValueError as error:
            raise RunError(f"{self.name}: {error}") from error
        return [guesses[0].text for guesses in found]


@dataclass(frozen=True)
class Group:
    """The runs of one system, and its name."""

    name: str
    contestants: list[Contestant]


def load_contestants(runs: Runs, *, beam: int | None, mean: Mean, device: str, progress: Progress) -> list[Contestant]:
    """Load every run once, also where it is alone and in ensembles; the same twice, or fewer than two, are refused."""
    named = _named(runs)
    _check_entries([folders for _, folders in named])
    given = {folders[0].resolve(): name for name, folders in named if len(folders) == 1 and name is not None}
    places = {folder.resolve(): folder for _, folders in named for folder in folders}
    names = dict(zip(places, _short_names(list(places.values())), strict=True)) | given
    written = {place: is_baseline(folder) for place, folder in places.items()}  # of all: one may be no run
    _check_models([folders for _, folders in named if len(folders) > 1], written)
    loaded: dict[Path, Contestant] = {}
    for number, (place, folder) in enumerate(places.items()):
        progress("loading runs", number, len(places))
        run = WrittenRun.open(folder) if written[place] else Run.load(folder, device=device)
        loaded[place] = Contestant(names[place], run, run.plain_search(beam))
    found = [
        loaded[folders[0].resolve()]
        if len(folders) == 1
        else _ensemble(name, [loaded[folder.resolve()] for folder in folders], beam, mean)
        for name, folders in named
    ]
    _check_names([*found, *(each for each in loaded.values() if each not in found)])
    return found


def _check_names(every: Sequence[Contestant]) -> None:
    """Refuse two of one name: nobody could tell their rows and notes apart."""
    for name, number in Counter(each.name for each in every).items():
        if number > 1:
            raise RunError(
                f"{number} of what is compared would be called {name}; rename a folder, or give names from Python: "
                f"sightline.compare({{name: folder}})"
            )


def _ensemble(name: str | None, parts: Sequence[Contestant], beam: int | None, mean: Mean) -> Contestant:
    run = Run.ensemble([part.run for part in parts], mean=mean)
    return Contestant(name or " + ".join(part.name for part in parts), run, run.plain_search(beam), tuple(parts))


def folders_of(given: Given) -> list[Path]:
    """The run folders: one, or those of an ensemble, unless a single folder has a + in its name."""
    if not isinstance(given, str | os.PathLike):
        return [Path(folder) for folder in given]
    parts = os.fspath(given).split("+")
    return [Path(given)] if Path(given).exists() or not all(parts) else [Path(part) for part in parts]


def _as_given(folders: Sequence[Path]) -> str:
    return "+".join(map(str, folders))


def _check_entries(entries: Sequence[Sequence[Path]]) -> None:
    """Refuse fewer than two, and what is given twice, whether as an entry or in an ensemble."""
    if len(entries) < 2:
        given = f"only {_as_given(entries[0])}" if entries else "none"
        raise RunError(f"a comparison needs at least two runs, and there is {given}; give another run folder")
    known: dict[frozenset[Path], str] = {}
    for folders in entries:
        places, given = frozenset(folder.resolve() for folder in folders), _as_given(folders)
        if len(places) < len(folders):
            raise RunError(f"{given}: a run that is in an ensemble twice only outweighs the others; name each run once")
        if places in known:
            raise RunError(f"{given} is given twice (as {known[places]} too); give each run once")
        known[places] = given


def _check_models(ensembles: Sequence[Sequence[Path]], written: Mapping[Path, bool]) -> None:
    """Refuse outputs without a model in an ensemble."""
    for folders in ensembles:
        if wrong := [folder for folder in folders if written[folder.resolve()]]:
            raise RunError(
                f"{_as_given(folders)}: {wrong[0]} holds outputs and no model, so it cannot be part of an ensemble; "
                f"leave it out there"
            )


def check_one_task(contestants: Sequence[Contestant]) -> None:
    """Refuse runs of several tasks, for no score means the same in two."""
    first = contestants[0]
    for other in contestants[1:]:
        if other.run.recipe.task_spec != first.run.recipe.task_spec:
            raise RunError(
                f"{first.name} is {first.run.recipe.task_spec} and {other.name} is {other.run.recipe.task_spec}; "
                f"what they do cannot be held against each other, so compare runs of one task"
            )


def group_by_seed(contestants: Sequence[Contestant]) -> tuple[list[Group], list[str]]:
    """The systems, and what is to be said about how they were found.

    Runs whose recipes differ only in the seed are one system, unless two of them have the same seed (then nobody knows
    what else differs) or all runs would be one (then it is the seeds that are compared). An ensemble is its own.
    """
    families: list[list[Contestant]] = []
    for contestant in contestants:
        for family in families:
            alike = all(each.baseline is None and not each.parts for each in (family[0], contestant))
            if alike and differ_only_in_seed(family[0].run.recipe, contestant.run.recipe):
                family.append(contestant)
                break
        else:
            families.append([contestant])
    notes: list[str] = []
    if len(families) == 1:
        if len({contestant.seed for contestant in contestants}) > 1:
            notes.append("All runs differ only in their seed, so each is compared on its own.")
        families = [[contestant] for contestant in contestants]
    kept: list[list[Contestant]] = []
    for family in families:
        if len({contestant.seed for contestant in family}) == len(family):
            kept.append(family)
            continue
        names = ", ".join(contestant.name for contestant in family)
        notes.append(f"{names} have the same recipe, some even the same seed, so each is a system of its own.")
        kept += [[contestant] for contestant in family]
    return _with_names(kept), notes


def choose_baseline(groups: Sequence[Group], wanted: str | os.PathLike[str] | None) -> list[Group]:
    """The systems with the baseline first: the one of that name, of that run's name or folder; else the first."""
    if wanted is None:
        return list(groups)
    places = _places(folders_of(wanted))
    for group in groups:
        found = [_places([each.run.folder for each in run.trainings]) for run in group.contestants]
        if os.fspath(wanted) in (group.name, *(run.name for run in group.contestants)) or places in found:
            return [group, *(other for other in groups if other is not group)]
    names = ", ".join(group.name for group in groups)
    raise RunError(f"the baseline {wanted} is none of the runs that are compared ({names}); name one of them")


def _places(folders: Sequence[Path]) -> set[Path]:
    return {folder.resolve() for folder in folders}


def _trained_on(run: Run) -> str:
    try:
        environment = read_json(run.folder / "environment.json")
        cuda = [str(name) for name in environment["cuda"]]
    except (OSError, ValueError, KeyError, TypeError):
        return "unknown"
    return "CPU" if run.recipe.training.device == "cpu" or not cuda else cuda[0]


def _named(runs: Runs) -> list[tuple[str | None, list[Path]]]:
    """What takes part, under the name it was given, if any."""
    if isinstance(runs, str | os.PathLike):
        raise TypeError(f"compare takes a list of runs, not {runs!r}; write [{str(runs)!r}, ...]")
    named = runs.items() if isinstance(runs, Mapping) else ((None, given) for given in runs)
    return [(name, folders_of(given)) for name, given in named]


def _short_names(folders: Sequence[Path]) -> list[str]:
    """The last part of each path; more parts where that is not enough to tell them apart. All lie apart."""
    parts = [folder.resolve().parts for folder in folders]
    by_length = ([os.path.join(*each[-length:]) for each in parts] for length in count(1))
    return next(names for names in by_length if len(set(names)) == len(names))


def _with_names(families: Sequence[Sequence[Contestant]]) -> list[Group]:
    names = [_family_name(family) for family in families]
    return [
        Group(name if names.count(name) == 1 else f"{name} ({family[0].name})", list(family))
        for name, family in zip(names, families, strict=True)
    ]


def _family_name(family: Sequence[Contestant]) -> str:
    """The names of the runs without their seeds: dot-seed1, dot-seed2 are `dot`."""
    if len(family) == 1:
        return family[0].name
    bare = {_without_seed(contestant.name, contestant.seed) for contestant in family}
    if len(bare) == 1 and "" not in bare:
        return bare.pop()
    return f"{family[0].name} and {len(family) - 1} more"


def _without_seed(name: str, seed: int) -> str:
    bare = re.sub(rf"[\W_]*seed[\W_]*{seed}(?!\d)", "", name, count=1, flags=re.IGNORECASE)
    if bare == name:  # it may stand at the end without a word: dot-1, dot/s1
        bare = re.sub(rf"[\W_]+s?{seed}$", "", name)
    return bare.strip(" -_,;./")
