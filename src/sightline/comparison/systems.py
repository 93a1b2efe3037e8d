"""The runs of a comparison, and which of them are one system: those that differ only in their seed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sightline.baselines.written import WrittenRun, is_baseline
from sightline.comparison.recipe_differences import differ_only_in_seed
from sightline.data.origins import Origin, origins
from sightline.evaluation.metrics import METRICS
from sightline.progress import Progress
from sightline.recipe import Decoding, MetricName
from sightline.run import Run
from sightline.run_folder import RunError, read_config

Runs = Sequence[str | Path] | Mapping[str, str | Path]  # folders, or folders under the names they are to have


@dataclass(frozen=True)
class Contestant:
    """A run with its model in memory, ready to decode."""

    name: str
    run: Run
    options: Decoding

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
    def origins(self) -> list[Origin]:
        """How those texts were made that it learned from and models wrote; nobody taught what has no model."""
        return [] if self.baseline is not None else origins(self.run.recipe)

    @property
    def seed(self) -> int:
        return self.run.recipe.seed

    @property
    def parameters(self) -> int:
        return int(read_config(self.run.folder)["parameters"])

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


def load_contestants(runs: Runs, *, beam: int | None, device: str, progress: Progress) -> list[Contestant]:
    """Load every run; the same folder twice, or fewer than two, are refused."""
    named = _named(runs)
    if len(named) < 2:
        given = f"only {named[0][1]}" if named else "none"
        raise RunError(f"a comparison needs at least two runs, and there is {given}; give another run folder")
    places: dict[Path, Path] = {}
    for _, folder in named:
        place = folder.resolve()
        if place in places:
            raise RunError(f"{folder} is given twice (as {places[place]} too); give each run once")
        places[place] = folder
    written = [is_baseline(folder) for _, folder in named]  # of all, before the first is loaded: one may be no run
    contestants = []
    for number, (name, folder) in enumerate(named):
        progress("loading runs", number, len(named))
        run = WrittenRun.open(folder) if written[number] else Run.load(folder, device=device)
        contestants.append(Contestant(name, run, run.options(beam=beam)))
    return contestants


def check_one_task(contestants: Sequence[Contestant]) -> None:
    """Refuse runs of several tasks, for no score means the same in two."""
    first = contestants[0]
    for other in contestants[1:]:
        if other.run.recipe.task != first.run.recipe.task:
            raise RunError(
                f"{first.name} is task: {first.run.recipe.task} and {other.name} is task: {other.run.recipe.task}; "
                f"what they do cannot be held against each other, so compare runs of one task"
            )


def group_by_seed(contestants: Sequence[Contestant]) -> tuple[list[Group], list[str]]:
    """The systems, and what is to be said about how they were found.

    Runs whose recipes differ only in the seed are one system, unless two of them have the same seed (then nobody knows
    what else differs) or all runs would be one (then it is the seeds that are compared).
    """
    families: list[list[Contestant]] = []
    for contestant in contestants:
        for family in families:
            trained = family[0].baseline is None and contestant.baseline is None
            if trained and differ_only_in_seed(family[0].run.recipe, contestant.run.recipe):
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


def choose_baseline(groups: Sequence[Group], wanted: str | Path | None) -> list[Group]:
    """The systems with the baseline first: the one of that name, of that run's name or folder; else the first."""
    if wanted is None:
        return list(groups)
    place = Path(wanted).resolve()
    for group in groups:
        runs = group.contestants
        if str(wanted) in (group.name, *(run.name for run in runs)) or place in [r.run.folder.resolve() for r in runs]:
            return [group, *(other for other in groups if other is not group)]
    names = ", ".join(group.name for group in groups)
    raise RunError(f"the baseline {wanted} is none of the runs that are compared ({names}); name one of them")


def trained_on(run: Run) -> str:
    """The device of a training, as far as the run folder says it."""
    try:
        environment = json.loads((run.folder / "environment.json").read_text(encoding="utf-8"))
        cuda = [str(name) for name in environment["cuda"]]
    except (OSError, ValueError, KeyError, TypeError):
        return "unknown"
    return "CPU" if run.recipe.training.device == "cpu" or not cuda else cuda[0]


def _named(runs: Runs) -> list[tuple[str, Path]]:
    if isinstance(runs, str | Path):
        raise TypeError(f"compare takes a list of runs, not {runs!r}; write [{str(runs)!r}, ...]")
    if isinstance(runs, Mapping):
        return [(name, Path(folder)) for name, folder in runs.items()]
    folders = [Path(folder) for folder in runs]
    return list(zip(_short_names(folders), folders, strict=True))


def _short_names(folders: Sequence[Path]) -> list[str]:
    """The last part of each path; more parts where that is not enough to tell them apart."""
    parts = [folder.resolve().parts for folder in folders]
    for length in range(1, max(map(len, parts), default=1) + 1):
        names = [os.path.join(*each[-length:]) for each in parts]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]  # a folder is given twice, which is refused


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
