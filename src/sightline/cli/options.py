"""Options shared by several commands, overrides of a run's recipe (`decoding.beam=8`), and checks of both."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields, is_dataclass
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from sightline.cli.commands import Flag
from sightline.recipe.schema import ANY_INT, MOST

if TYPE_CHECKING:
    from sightline.recipe import Recipe
    from sightline.run import Run

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Recipe keys to change, e.g. decoding.beam=8.")
]
Beam = Annotated[int | None, typer.Option(metavar="N", help="Beam size; 1 is greedy search.")]
Sample = Annotated[bool, typer.Option("--sample", help="Sample outputs instead of searching.")]
Seed = Annotated[int | None, typer.Option(min=0, max=2**63 - 1, metavar="N", help="Seed for --sample.")]
With = Annotated[
    list[Path] | None,
    typer.Option("--with", metavar="RUN", help="Decode with an ensemble: add this run (repeatable)."),
]
EnsembleMean = Annotated[
    str, typer.Option(metavar="MEAN", help="Average probabilities, or logs (log-linear).", hidden=True)
]
Metrics = Annotated[str | None, typer.Option(metavar="NAMES", help="Metrics instead of the recipe's: bleu,chrf,ter.")]
Device = Annotated[str, typer.Option(metavar="DEVICE", help="auto, cpu, cuda or cuda:N.", show_default=False)]
Precision = Annotated[
    str, typer.Option(metavar="TYPE", help="float32, or bf16: faster on CPUs that support it.", show_default=False)
]
Threads = Annotated[int | None, typer.Option(min=1, metavar="N", help="CPU threads.")]
MaxRatio = Annotated[
    float, typer.Option(metavar="R", help="Drop pairs with more than R times as many tokens on one side, plus five.")
]


def expand_groups(function: Callable[..., None]) -> tuple[list[Parameter], Callable[[dict[str, Any]], None]]:
    """The options of a function whose parameters may be dataclasses, each field an option; and a builder of those.

    The builder replaces the values of the fields by the dataclasses, in place.
    """
    hints = get_type_hints(function, include_extras=True)
    parameters: list[Parameter] = []
    groups: dict[str, Any] = {}
    for name, parameter in signature(function).parameters.items():
        group = hints[name]
        if not is_dataclass(group):
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=group))
            continue
        groups[name] = group
        own = get_type_hints(group, include_extras=True)
        parameters += [
            Parameter(each.name, Parameter.KEYWORD_ONLY, annotation=own[each.name], default=each.default)
            for each in fields(group)
        ]

    def build(values: dict[str, Any]) -> None:
        for name, group in groups.items():
            values[name] = group(**{each.name: values.pop(each.name) for each in fields(group)})

    return parameters, build


def use_threads(count: int | None) -> None:
    """Let PyTorch use `count` threads; None leaves its default."""
    import torch

    if count is not None:
        torch.set_num_threads(count)


# --- runs ---------------------------------------------------------------------------------------------------------


def load_runs(run: Path, others: Sequence[Path] | None, mean: str, device: str, precision: str) -> Run:
    """Load a run, or an ensemble of it and others."""
    from sightline.run import Run

    if not others:
        if mean != "probabilities":
            raise ValueError(f"--ensemble-mean {mean} needs several models; add --with RUN")
        return Run.load(run, device=device, precision=precision)
    known = {run.resolve(): run}
    for other in others:
        if (same := known.get(other.resolve())) is not None:
            also = "" if same == other else f", which is {same}"
            raise ValueError(f"--with {other}{also}: this run is in the ensemble already; name each run once")
        known[other.resolve()] = other
    return Run.ensemble([run, *others], mean=mean, device=device, precision=precision)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Models:
    """Further runs of an ensemble, and where models run; an option group."""

    others: With = None
    ensemble_mean: EnsembleMean = "probabilities"
    device: Device = "auto"
    precision: Precision = "float32"

    def load(self, run: Path) -> Run:
        return load_runs(run, self.others, self.ensemble_mean, self.device, self.precision)


# --- overrides ----------------------------------------------------------------------------------------------------

_OVERRIDE = re.compile(r"[a-z_]+(\.[\w-]+)*=")
_CHANGEABLE = ("decoding", "evaluation")  # sections that can be changed after training


def split_overrides(words: Iterable[str | Path | None]) -> tuple[list[str], list[str]]:
    """Split arguments into other words (files, runs, texts) and overrides."""
    texts = [word if isinstance(word, str) else str(word) for word in words if word is not None]  # keeps `Flag`
    overrides = [word for word in texts if _OVERRIDE.match(word) and not Path(word.partition("\n")[0][:200]).exists()]
    return [word for word in texts if word not in overrides], overrides


def file_and_overrides(file: Path | None, overrides: Sequence[str] | None) -> tuple[Path | None, list[str]]:
    """Separate the optional FILE from the overrides; without a file, the parser takes the first override for it."""
    files, overrides = split_overrides([file, *(overrides or ())])
    if len(files) > 1:
        raise ValueError(f"unexpected argument {files[1]!r}: give one file, and overrides as key=value")
    return Path(files[0]) if files else None, overrides


def decoding_flags(*, beam: int | None = None, nbest: int | None = None, seed: int | None = None) -> list[str]:
    """Overrides for flags that set recipe keys."""
    keys = {"--beam": ("decoding.beam", beam), "--nbest": ("decoding.nbest", nbest)}
    keys["--seed"] = ("decoding.sample.seed", seed)
    return [Flag(key, value, flag) for flag, (key, value) in keys.items() if value is not None]


def change_run(run: Run, overrides: Sequence[str], *, sample: bool = False) -> tuple[Run, dict[str, str]]:
    """Copy a run and override keys of its recipe (`decoding.nbest` is 1 unless overridden).

    Also returns each changed key with its spelling on the command line, for messages.
    """
    from sightline.recipe.loading import change_sections
    from sightline.recipe.overrides import key_of
    from sightline.recipe.recipe import check_replacing

    written = {".".join(key_of(word)): getattr(word, "flag", word) for word in overrides}
    for key, word in written.items():
        if key.partition(".")[0] in set(type(run.recipe).model_fields) - {*_CHANGEABLE}:
            raise ValueError(
                f"override {word!r}: {key} is fixed once a run is trained; decoding.* and evaluation.* can be changed"
            )
    _check_sampling(run.recipe, written, sample)
    _check_risk(run.recipe, written)
    if sample:
        written["decoding.sample"] = "--sample"
        if run.recipe.decoding.sample is None:
            overrides = ["decoding.sample={}", *overrides]
    run = copy(run)
    if overrides:
        run.recipe = change_sections(run.recipe, overrides)
    elif run.recipe.decoding.nbest != 1:
        run.recipe = change_sections(run.recipe, ["decoding.nbest=1"])
    check_replacing([each.recipe for each in run.members or (run,)], run.recipe.decoding)
    return run, written


def _check_sampling(recipe: Recipe, written: Mapping[str, str], sample: bool) -> None:
    """Refuse --sample with a beam size, and sampling options without sampling."""
    beam = written.get("decoding.beam")
    if sample and beam is not None:
        raise ValueError(f"{beam} and --sample exclude each other; leave one of them out")
    sampling = sample or "decoding.sample" in written or (recipe.decoding.sample is not None and beam is None)
    for key, word in written.items():
        if key.startswith("decoding.sample.") and not sampling:
            raise ValueError(f"{word} applies to sampling; add --sample")


def _check_risk(recipe: Recipe, written: Mapping[str, str]) -> None:
    """Refuse options of minimum Bayes risk decoding while it is off."""
    own = recipe.decoding.mbr is not None and "decoding.mbr" not in written
    for key, word in written.items():
        if key.startswith("decoding.mbr.") and not own and "decoding.mbr.candidates" not in written:
            raise ValueError(f"{word} applies to minimum Bayes risk decoding; add decoding.mbr.candidates=N")


def check_search(recipe: Recipe, written: Mapping[str, str]) -> dict[str, bool]:
    """Refuse decoding overrides that have no effect; return the spelling of the others."""
    options, spec = recipe.decoding, recipe.task_spec
    search = {word: True for key, word in written.items() if key.startswith("decoding.") and key != "decoding.nbest"}
    if not spec.writes_text:
        refuse(search, f"applies to models that generate text, not to labels ({spec}); leave it out")
    if (word := written.get("decoding.diversity")) is not None and options.groups == 1:
        raise ValueError(f"{word} needs several groups; add decoding.groups=N")
    if (word := written.get("decoding.coverage_penalty")) is not None:
        if options.coverage_penalty and (options.beam == 1 or options.sample is not None):
            raise ValueError(f"{word} needs a beam of several hypotheses; raise --beam, or leave it out")
    return search


# --- checks -------------------------------------------------------------------------------------------------------


def refuse(options: Mapping[str, Any], why: str) -> None:
    """Raise an error with a reason if any of these options is set (neither None nor False)."""
    for option, value in options.items():
        if value is not None and value is not False:
            raise ValueError(f"{option} {why}")


def check_files(written: Mapping[str, Path | None], read: Mapping[str, Path | None]) -> None:
    """Refuse to write two outputs to one file, or to overwrite an input."""
    places: dict[Path, str] = {path.resolve(): option for option, path in read.items() if path is not None}
    for option, path in written.items():
        if path is None:
            continue
        if (other := places.get(path.resolve())) is not None:
            raise ValueError(f"{option} {path} is also the file of {other}; give another name")
        places[path.resolve()] = option


_POSITIVE = ("beam", "nbest", "next", "top", "max_tokens", "jobs", "threads", "count")
_LARGEST: dict[str, int] = {
    "jobs": 1_024,
    "top": 1_000_000,
    "most": 100_000,
    "sentences": 1_000_000,
    "count": 100_000,
    "lr": 1_000_000,
    "mix": int(MOST["weight"]),
}


def check_numbers(options: Mapping[str, Any]) -> None:
    """Refuse NaN, infinite, negative and far too large numbers."""
    for name, value in options.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        option = f"--{name.replace('_', '-')} {value}"
        if not math.isfinite(value):
            raise ValueError(f"{option}: give a finite number")
        least = 1 if name in _POSITIVE else 0
        if value < least:
            raise ValueError(f"{option}: give {least} or more")
        most = _LARGEST.get(name, MOST.get(name, ANY_INT if isinstance(value, int) else 1e12))
        if value > most:
            raise ValueError(f"{option}: give at most {most:,}")
