"""The plan of a sweep, checked before anything starts, and sweep.yaml, which records it.

The folder of a sweep has `sweep.yaml`, a run folder for each combination, `logs/` and `comparison/`. The state of a run
is read from its own folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from sightline.data.locate import data_folder, load_run_recipe, source_files
from sightline.files import read_json, write_atomically
from sightline.recipe import Recipe
from sightline.recipe.recipe import differences, with_unset_from
from sightline.recipe.yaml import read_yaml, write_yaml
from sightline.registry import version
from sightline.run_folder import newest_progress
from sightline.sweeps.grid import (
    Axes,
    Combination,
    Override,
    SweepError,
    as_given,
    combinations,
    key_label,
    name_runs,
    read_variants,
)
from sightline.terminal import plural
from sightline.training.resolve import open_recipe
from sightline.training.schedules import limit_reached


def is_finished(run: Path, recipe: Recipe) -> bool:
    """Return True if the training of a run reached its end.

    A training ends by validating, saving a checkpoint and writing the model, in this order. So the newest checkpoint
    must be validated and have reached a limit of the recipe (raising a limit continues the run), and the model must not
    be older. Counted models have no checkpoints; their model card is written last.
    """
    if recipe.model.counted:
        return (run / "model.safetensors").is_file() and (run / "README.md").is_file()
    saved = newest_progress(run)
    if saved is None:
        return False
    try:
        progress = read_json(saved)
        if (run / "model.safetensors").stat().st_mtime_ns < saved.stat().st_mtime_ns:
            return False
        return bool(progress["validated"] == progress["step"] and limit_reached(progress, recipe))
    except (OSError, ValueError, KeyError):  # damaged: resuming reports it
        return False


RECORD, LOGS, COMPARISON = "sweep.yaml", "logs", "comparison"
FORMAT = 2  # of sweep.yaml: 2 has runs with a recipe of their own
_SHOWN = 8  # most problems in a message
State = Literal["new", "begun", "finished"]


@dataclass(frozen=True)
class SweepRun:
    """A run of a sweep."""

    name: str
    sweep: Path  # the folder of the sweep
    recipe_name: str  # argument of `sightline train`
    overrides: tuple[str, ...]
    recipe: Recipe  # resolved
    state: State = "new"

    @property
    def folder(self) -> Path:
        return self.sweep / self.name

    @property
    def log(self) -> Path:
        return self.sweep / LOGS / f"{self.name}.log"


@dataclass(frozen=True)
class SweepPlan:
    """A sweep, ready to run."""

    recipe: str  # of all runs without their own
    folder: Path
    runs: tuple[SweepRun, ...]  # of this command
    others: tuple[SweepRun, ...] = ()  # of earlier commands
    merged: tuple[str, ...] = ()  # descriptions of combinations with the recipe of another
    before: bytes | None = None  # sweep.yaml when this was planned

    def record(self) -> None:
        """Write sweep.yaml; the caller holds the sweep's lock."""
        if _content(self.folder) != self.before:
            raise SweepError(f"{self.folder / RECORD} was changed by another sweep meanwhile; start this one again")
        runs = [self._entry(run) for run in (*self.others, *self.runs)]
        document = {"format": FORMAT, "sightline": version(), "recipe": self.recipe, "runs": runs}
        write_atomically(self.folder / RECORD, write_yaml(document))

    def _entry(self, run: SweepRun) -> dict[str, Any]:
        own = {} if run.recipe_name == self.recipe else {"recipe": run.recipe_name}
        return {"name": run.name, **own, "overrides": list(run.overrides)}


def plan_sweep(
    recipe: str | Path,
    overrides: Axes = (),
    *,
    variants: str | Path | Sequence[Mapping[str, Any]] | None = None,
    out: str | Path | None = None,
) -> SweepPlan:
    """Expand, check and name the runs, and read the state of existing ones, without writing anything."""
    requested = combinations(overrides, read_variants(variants) if variants is not None else ())
    recipe_name = as_given(recipe)
    resolved, merged = _distinct(_checked(recipe_name, requested))
    folder = Path(out) if out is not None else Path("runs") / f"sweep-{Path(recipe).stem}"
    content = _content(folder)
    recorded = _recorded(recipe_name, folder, content)
    names = _known(resolved, recorded)
    new = [combination for combination in resolved if combination not in names]
    beside = [[_override(text) for text in run.overrides] for run in recorded]
    taken = [RECORD, LOGS, COMPARISON, *(run.name for run in recorded)]
    names |= dict(zip(new, name_runs(new, beside=beside, taken=taken, plain=Path(recipe).stem), strict=True))
    runs = [
        SweepRun(
            names[combination],
            folder,
            combination.variant.recipe or recipe_name,
            tuple(map(str, combination.overrides)),
            own_recipe,
        )
        for combination, own_recipe in resolved.items()
    ]
    others = [run for run in recorded if run.name not in names.values()]
    runs, others = [_with_state(run) for run in runs], [_with_state(run) for run in others]
    return SweepPlan(recipe_name, folder, tuple(runs), tuple(others), tuple(merged), content)


def is_sweep(folder: Path) -> bool:
    """Return True if a folder is the folder of a sweep."""
    return (folder / RECORD).is_file()


def trained_runs(folder: Path) -> list[Path]:
    """The run folders of a sweep that have a model."""
    path = folder / RECORD
    runs = [folder / name for name, *_ in _entries(path, path.read_bytes())]
    trained = [run for run in runs if (run / "model.safetensors").is_file()]
    if not trained:
        raise SweepError(f"{folder}: none of {plural(len(runs), 'run')} of this sweep has a model yet; continue it")
    return trained


# --- checking ------------------------------------------------------------------------------------------------------


def recipe_to_train(recipe_name: str, overrides: Sequence[str]) -> Recipe:
    """The resolved recipe, after checking that its corpora exist."""
    recipe, _ = open_recipe(recipe_name, overrides)
    for source in (*recipe.data.train, recipe.data.validation):
        source_files(source, data_folder(recipe))
    return recipe


def _checked(recipe_name: str, requested: Sequence[Combination]) -> list[tuple[Combination, Recipe]]:
    resolved: list[tuple[Combination, Recipe]] = []
    problems: dict[str, list[Combination]] = {}
    for combination in requested:
        try:
            own = combination.variant.recipe or recipe_name
            resolved.append((combination, recipe_to_train(own, list(map(str, combination.overrides)))))
        except ValueError as error:
            problems.setdefault(str(error), []).append(combination)
    if problems:
        lines = [_problem_line(problem, failed, len(requested)) for problem, failed in problems.items()]
        more = [f"and {plural(len(lines) - _SHOWN, 'more problem')}"] if len(lines) > _SHOWN else []
        raise SweepError("\n".join([*lines[:_SHOWN], *more]))
    return resolved


def _problem_line(problem: str, failed: Sequence[Combination], count: int) -> str:
    if len(failed) == count > 1:
        return f"in every combination: {problem}"
    more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
    return f"combination {failed[0]}{more}: {problem}"


def _distinct(resolved: Sequence[tuple[Combination, Recipe]]) -> tuple[dict[Combination, Recipe], list[str]]:
    """Each resolved recipe with its first combination, and descriptions of the duplicates."""
    first: dict[str, tuple[Combination, Recipe]] = {}
    merged = []
    for combination, recipe in resolved:
        same, _ = first.setdefault(_text(recipe), (combination, recipe))
        if same is not combination:
            merged.append(f"{combination} has the same recipe as {same}")
    return dict(first.values()), merged


def _text(recipe: Recipe) -> str:
    return json.dumps(recipe.model_dump(mode="json"), sort_keys=True)


# --- existing sweeps -----------------------------------------------------------------------------------------


def _content(folder: Path) -> bytes | None:
    if (folder / "recipe.yaml").exists():
        raise SweepError(f"{folder} is the folder of a run; give the sweep another folder with --out")
    path = folder / RECORD
    return path.read_bytes() if path.exists() else None


def _recorded(recipe_name: str, folder: Path, content: bytes | None) -> list[SweepRun]:
    """The runs of sweep.yaml, by default with the recipe of this command."""
    if content is None:
        return []
    runs = []
    for name, own, overrides in _entries(folder / RECORD, content):
        recipe = own or recipe_name
        try:
            runs.append(SweepRun(name, folder, recipe, overrides, recipe_to_train(recipe, overrides)))
        except ValueError as error:
            why = f"{folder} is a sweep of another recipe" if own is None else f"{folder / RECORD} names another recipe"
            raise SweepError(
                f"{why}: {recipe} cannot make its run {name} ({error}); give this sweep another folder with --out"
            ) from error
    return runs


def _entries(path: Path, content: bytes) -> Iterator[tuple[str, str | None, tuple[str, ...]]]:
    """Name, own recipe (if any) and overrides of each run."""
    remedy = "restore it, or give this sweep another folder with --out"
    try:
        document = read_yaml(content.decode("utf-8"), str(path))
    except UnicodeDecodeError as error:
        raise SweepError(f"{path} is damaged ({error}); {remedy}") from error
    value = document.value
    if isinstance(value, dict) and isinstance(value.get("format"), int) and value["format"] > FORMAT:
        raise SweepError(
            f"{path} was written by Sightline {value.get('sightline')} in format {value['format']}, and this is "
            f"{version()}, which reads up to format {FORMAT}; update with pip install -U sightline"
        )
    try:
        if document.problems:
            raise ValueError(document.problems[0])
        for run in value["runs"]:
            own = run.get("recipe")
            yield str(run["name"]), None if own is None else str(own), tuple(map(str, run["overrides"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SweepError(f"{path} is damaged ({error}); {remedy}") from error


def _known(resolved: Mapping[Combination, Recipe], recorded: Sequence[SweepRun]) -> dict[Combination, str]:
    """The names of combinations that are existing runs of this sweep.

    These have the same recipe, or continue exactly one run that continues no other combination:
    `training.limits.steps=2000` in a second command extends the runs of the first.
    """
    by_text = {_text(run.recipe): run.name for run in recorded}
    texts = {combination: _text(recipe) for combination, recipe in resolved.items()}
    names = {combination: by_text[text] for combination, text in texts.items() if text in by_text}
    left = [run for run in recorded if run.name not in names.values()]
    fitting = {
        combination: [run.name for run in left if _continues(run, combination, recipe)]
        for combination, recipe in resolved.items()
        if combination not in names
    }
    claims = [name for fits in fitting.values() for name in fits]
    return names | {c: fits[0] for c, fits in fitting.items() if len(fits) == 1 and claims.count(fits[0]) == 1}


def _continues(run: SweepRun, combination: Combination, recipe: Recipe) -> bool:
    """Return True if a run can be continued as this combination; `steps=100` cannot be extended under its name."""
    if differences(run.recipe, recipe):
        return False
    changed = {str(override) for override in combination.overrides} ^ set(run.overrides)
    return not any(f"{key_label(_override(text).key)}=" in run.name for text in changed)


def _with_state(run: SweepRun) -> SweepRun:
    """The run with its state; a folder with a different training is refused."""
    if not (run.folder / "recipe.yaml").exists():
        return run
    before = load_run_recipe(run.folder)
    recipe = with_unset_from(run.recipe, before)
    if differing := differences(before, recipe):
        raise SweepError(
            f"{run.folder} was trained with another recipe: {'; '.join(differing)}; give this sweep another folder "
            f"with --out"
        )
    done = before == recipe and is_finished(run.folder, recipe)
    return replace(run, recipe=recipe, state="finished" if done else "begun")


def _override(text: str) -> Override:
    key, _, value = text.partition("=")
    return Override(key, value)
