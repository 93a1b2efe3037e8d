"""Options of commands that decode: how outputs are searched for or drawn, by which models; and what is refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sightline.cli.lines import Companion
from sightline.recipe.tasks import TaskSpec
from sightline.terminal import plural

if TYPE_CHECKING:
    from sightline.decoding.request import Phrases
    from sightline.recipe import Decoding, Recipe
    from sightline.run import Run


Beam = Annotated[int | None, typer.Option(help="Hypotheses kept at each step; 1 is greedy, and costs least.")]
LengthPenalty = Annotated[float | None, typer.Option(help="Alpha of the length normalization.")]
MaxLength = Annotated[int | None, typer.Option(help="Most tokens of an output; of a language model, most new ones.")]
MaxRatio = Annotated[
    float | None, typer.Option(help="Most tokens of an output for each token of its source, plus ten.")
]
ReplaceUnknown = Annotated[
    str | None,
    typer.Option(help="Unknown words: none, copy (the source word looked at) or dictionary (its translation)."),
]
With = Annotated[
    list[Path] | None,
    typer.Option("--with", help="Another run with the same vocabulary, to write together with (an ensemble); again."),
]
EnsembleMean = Annotated[
    str, typer.Option(help="With --with: average the models' `probabilities`, or their `logs` (log-linear).")
]
Groups = Annotated[
    int | None,
    typer.Option(
        help="Diverse beam search: groups of the beam that avoid each other. What several say is told once, so "
        "--nbest may give fewer."
    ),
]
Diversity = Annotated[
    float | None, typer.Option(help="With --groups: penalty for a word each time an earlier group just said it.")
]
Mbr = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Minimum Bayes risk: of N outputs (--sample, or else a beam of N) the one most like the others; 0: none, "
        "whatever the recipe says.",
    ),
]
Utility = Annotated[str | None, typer.Option(help="With --mbr: what alike means, chrf or bleu.")]
MbrWeights = Annotated[
    str | None,
    typer.Option(help="With --mbr: what each output counts for, uniform, or probability (of a beam, not of samples)."),
]
NoRepeat = Annotated[int | None, typer.Option(help="No N tokens in a row come twice in an output.")]
MinLength = Annotated[int | None, typer.Option(help="Least tokens of an output; of a language model, least new ones.")]
ForbidEverywhere = Annotated[
    list[str] | None,
    typer.Option(
        help="A word or phrase that no output may contain; again for more. Whole words count, case too. An output "
        "that says it by other pieces is searched again; what stays is reported."
    ),
]


def load_together(run: Path, others: Sequence[Path] | None, mean: str, device: str, precision: str) -> Run:
    """A run, or the ensemble of it and others."""
    from sightline.run import Run

    if not others and mean != "probabilities":
        raise ValueError(f"--ensemble-mean {mean} is of several models, and there is one; add --with RUN")
    if not others:
        return Run.load(run, device=device, precision=precision)
    _check_once(run, others)
    together = [run, *others]
    return Run.ensemble(together, mean=mean, device=device, precision=precision)  # type: ignore[arg-type]


def _check_once(run: Path, others: Sequence[Path]) -> None:
    """Refuse a run that is named twice, by whatever path."""
    known = {run.resolve(): run}
    for other in others:
        if (same := known.get(other.resolve())) is not None:
            also = "" if same == other else f", which is {same}"
            raise ValueError(
                f"--with {other}{also}: that run is in the ensemble already, and twice it would only outweigh the "
                f"others; name each run once"
            )
        known[other.resolve()] = other


def risk(run: Run, candidates: int | None, utility: str | None, weights: str | None) -> dict[str, Any] | int | None:
    """How to choose by risk, if that is asked for, or changed where the recipe does it by itself; 0: not at all."""
    own = run.recipe.decoding.mbr
    if candidates == 1:
        raise ValueError("--mbr 1: of one output there is nothing to choose; take 2 or more, or 0 for none")
    if candidates == 0:
        refuse({"--utility": utility, "--mbr-weights": weights}, "says how to choose, and --mbr 0 not to; leave it out")
        return 0
    named = {"candidates": candidates, "utility": utility, "weights": weights}
    given = {key: value for key, value in named.items() if value is not None}
    if not given:
        return None
    if candidates is None and own is None:
        option = "--mbr-weights" if utility is None else "--utility"
        raise ValueError(f"{option} says how to choose among many outputs, and there is one; add --mbr N")
    return {**({} if own is None else own.model_dump()), **given}


def sampling(run: Run, wanted: bool, drawing: dict[str, Any], beam: int | None) -> dict[str, Any] | None:
    """How to draw, if that is asked for, or changed where the recipe draws by itself."""
    given = {key: value for key, value in drawing.items() if value is not None}
    own = run.recipe.decoding.sample
    if wanted and beam is not None:
        raise ValueError(f"--beam {beam} searches, and --sample draws; leave one of them out")
    if wanted or (given and own is not None and beam is None):
        return {**({} if own is None else own.model_dump()), **given}
    if given:
        raise ValueError(f"{option_of(next(iter(given)))} says how to draw, and nothing is drawn; add --sample")
    return None


def searching(
    run: Run,
    mbr: int | None,
    utility: str | None,
    mbr_weights: str | None,
    forbid_everywhere: list[str] | None,
    **others: Any,
) -> dict[str, Any]:
    """What these options change in the recipe's `decoding`; `others` by the names they have there, None: nothing."""
    forbidden = None if not forbid_everywhere else [*run.recipe.decoding.forbid, *forbid_everywhere]
    return {"mbr": risk(run, mbr, utility, mbr_weights), **others, "forbid": forbidden}


def option_of(key: str) -> str:
    """The option that changes this key of the recipe's `decoding`."""
    return {"forbid": "--forbid-everywhere"}.get(key, f"--{key.replace('_', '-')}")


def as_options(changes: dict[str, Any]) -> dict[str, Any]:
    """What is changed in the recipe's `decoding`, under the options that change it."""
    return {option_of(key): value for key, value in changes.items()}


def check_searching(
    recipe: Recipe, changes: dict[str, Any], phrases: PhraseFiles | None, *, prompt: bool = False
) -> None:
    """Refuse what has no meaning for the task, or would be left undone."""
    spec = recipe.task_spec
    if not spec.writes_text:
        why = f"is for models that write, and labels are given ({spec}); leave it out"
        refuse(as_options(changes), why)
    if changes["diversity"] is not None and (changes["groups"] or recipe.decoding.groups) == 1:
        raise ValueError("--diversity holds the groups of a beam apart, and there is one group; add --groups N")
    if phrases is not None and (prompt or not spec.writes_text):
        what = "is one text: use --forbid-everywhere" if prompt else f"is for models that write, not {spec}"
        raise ValueError(f"--{phrases.option} has phrases for each line; {'--prompt ' if prompt else 'it '}{what}")


def searched(options: Decoding) -> str:
    """How outputs were found, in a few words."""
    found = f"beam {options.beam}"
    if options.sample is not None:
        found = "drawn"
    elif options.groups > 1:
        found += f" in {options.groups} groups"
    if options.mbr is not None:
        found += f", least risk of {options.mbr.candidates} by {options.mbr.utility}"
        found += "" if options.mbr.weights == "uniform" else " and probability"
    ranked = options.sample is None and options.beam > 1  # of one hypothesis there is nothing to rank
    rest = {
        f"length normalization {options.length_normalization} {options.length_penalty:g}": ranked
        and (options.length_normalization, options.length_penalty) != ("length", 1),
        f"coverage penalty {options.coverage_penalty:g}": ranked and options.coverage_penalty,
        f"stopping {options.stopping}": ranked and options.stopping != "horizon",
        f"patience {options.patience}": ranked and options.patience is not None,
        f"no {plural(options.no_repeat, 'token')} twice": options.no_repeat,
        f"at least {plural(options.min_length, 'token')}": options.min_length,
        f"{plural(len(options.forbid), 'phrase')} forbidden": options.forbid,
        f"unknown words replaced ({options.replace_unknown})": options.replace_unknown != "none",
    }
    return ", ".join([found, *(told for told, is_so in rest.items() if is_so)])


class PhraseFiles:
    """Files of phrases, one line for each line of the input, tabs between phrases."""

    def __init__(self, require: Path | None, forbid: Path | None) -> None:
        remedy = "give one line of phrases for each, empty where there are none"
        given = {"require": require, "forbid": forbid}
        self.files = {name: Companion(path, remedy) for name, path in given.items() if path is not None}

    @staticmethod
    def of(require: Path | None, forbid: Path | None) -> PhraseFiles | None:
        return None if require is None and forbid is None else PhraseFiles(require, forbid)

    @property
    def option(self) -> str:
        """The first that was given."""
        return next(iter(self.files))

    def next(self, count: int, done: int) -> list[Phrases]:
        """Those of the next lines."""
        from sightline.decoding.request import Phrases

        taken = {name: self._take(name, count, done) for name in ("require", "forbid")}
        return [Phrases(*pair) for pair in zip(taken["require"], taken["forbid"], strict=True)]

    def _take(self, name: str, count: int, done: int) -> list[tuple[str, ...]]:
        if name not in self.files:
            return [()] * count
        found = self.files[name].next(count, done)
        return [tuple(phrase for phrase in line.split("\t") if phrase.strip()) for line in found]

    def check_spent(self, done: int) -> None:
        """Refuse phrases for lines that never came."""
        for file in self.files.values():
            file.check_spent(done)


@contextmanager
def phrases_told() -> Iterator[None]:
    """Whatever an output could not be made to say, or not to say, is told (cli/errors.py), however often."""
    from sightline.decoding.phrases import PhraseWarning

    with warnings.catch_warnings():
        warnings.simplefilter("always", PhraseWarning)
        yield


_FOR: dict[str, tuple[str, Callable[[TaskSpec], bool]]] = {  # options for some tasks only: which, and a test for them
    "--target": ("seq2seq", lambda spec: spec.maps_text),
    "--prompt": ("language-model", lambda spec: spec.continues_text),
    "--midi": ("language-model", lambda spec: spec.continues_text),
    "--format": ("tagging", lambda spec: spec.labels == "words"),
    "--column": ("tagging", lambda spec: spec.labels == "words"),
}


def check_task(run: Run, asked: dict[str, Any], *, nbest: int | None, alignments: Path | None) -> None:
    """Refuse what the model of this task cannot do, rather than leave it undone in silence."""
    spec = run.recipe.task_spec
    if alignments is not None and (not spec.maps_text or not run.model.cross_attention_paths):
        why = "its decoder does not look at the source" if spec.maps_text else str(spec)
        raise ValueError(f"{run.folder} has no attention to show ({why})")
    for option, value in asked.items():
        tasks, fits = _FOR[option]
        if value is not None and not fits(spec):
            raise ValueError(f"{option} is for task: {tasks}, and {run.folder} is {spec}")
    if spec.labels == "words" and nbest is not None and nbest > 1:
        raise ValueError(f"--nbest {nbest}: a tagger has one answer, the likeliest label of each word; leave it out")


def refuse(asked: dict[str, Any], why: str) -> None:
    """Refuse options that are set (neither None nor False), the first of them with the reason."""
    for option, value in asked.items():
        if value is not None and value is not False:
            raise ValueError(f"{option} {why}")


def check_prefixes(run: Run, prefixes: Path | None, prompt: str | None) -> None:
    """What outputs must begin with, where the beginning is given already, or there is none."""
    if prefixes is not None and (prompt is not None or run.recipe.task_spec.labels == "words"):
        what = "--prompt is the beginning itself" if prompt is not None else "labels have no beginnings to force"
        raise ValueError(f"--prefixes {prefixes}: {what}; leave it out")


def check_decoded(run: Run, search: dict[str, Any], *, lowercase: bool, outputs: Path | None) -> None:
    """Options about outputs, where no metric looks at them: none are found then, unless they are to be written."""
    from sightline.evaluation.metrics import check_output_options

    if not run.recipe.of_text:
        asked = {"--lowercase": lowercase or None} | (search if outputs is None else {})
        check_output_options(run.recipe.evaluation.metrics, asked)


def check_apart(written: dict[str, Path | None], read: dict[str, Path | None]) -> None:
    """Refuse to write two things to one file, of which the second would replace the first, or over what is read."""
    places: dict[Path, str] = {path.resolve(): option for option, path in read.items() if path is not None}
    for option, path in written.items():
        if path is None:
            continue
        if (other := places.get(path.resolve())) is not None:
            raise ValueError(f"{option} {path} is the file of {other} too, and would replace it; give another name")
        places[path.resolve()] = option
