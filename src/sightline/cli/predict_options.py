"""Options of `sightline predict` in groups, and which of them exclude one another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sightline.cli.lines import MaxInputLength, PhraseFiles
from sightline.cli.options import Beam, Sample, Seed
from sightline.recipe.tasks import TaskSpec

if TYPE_CHECKING:
    from sightline.run import Run


@dataclass(frozen=True)
class SearchFlags:
    """Flags that set recipe keys."""

    beam: Beam = None
    nbest: Annotated[int | None, typer.Option(metavar="N", help="Print N outputs per line, with their scores.")] = None
    sample: Sample = False
    seed: Seed = None


@dataclass(frozen=True)
class Continuation:
    """Language models: what follows one text, or the words that may follow each."""

    prompt: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Language models: stream what follows this text.")
    ] = None
    next: Annotated[
        int | None, typer.Option("--next", metavar="N", help="Language models: the N most probable next words.")
    ] = None


@dataclass(frozen=True)
class LineFiles:
    """Files with one line for each input line."""

    target: Annotated[Path | None, typer.Option(metavar="FILE", help="Score the outputs in FILE, line by line.")] = None
    prefixes: Annotated[Path | None, typer.Option(metavar="FILE", help="Begin each output with its line of FILE.")] = (
        None
    )
    require: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Phrases each output must contain, tab-separated.")
    ] = None
    forbid: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Phrases each output must not contain, tab-separated.")
    ] = None

    def constraints(self) -> dict[str, Path | None]:
        """The files that constrain a search, by option."""
        return {"--prefixes": self.prefixes, "--require": self.require, "--forbid": self.forbid}


@dataclass(frozen=True)
class InputFormat:
    """How the input is read."""

    form: Annotated[
        str | None, typer.Option("--format", metavar="FORMAT", help="Input format: text, csv, conllu or columns.")
    ] = None
    column: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="CSV: column of the texts. Taggers: column to fill.")
    ] = None


@dataclass(frozen=True)
class OutputOptions:
    """Where outputs are written, and how."""

    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write outputs there; default: standard output.")
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False
    alignments: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write attention there: .jsonl, or .pharaoh for word links.")
    ] = None
    midi: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Chorale models: write a MIDI file, or several to a folder.")
    ] = None


@dataclass(frozen=True)
class Hidden:
    """Options that --help does not list."""

    alignment_format: Annotated[str | None, typer.Option(hidden=True)] = None
    alignment_heads: Annotated[str | None, typer.Option(hidden=True)] = None
    shift: Annotated[bool, typer.Option("--shift", hidden=True)] = False
    max_input_length: MaxInputLength = None

    def alignments(self) -> tuple[str | None, str | None, bool]:
        return self.alignment_format, self.alignment_heads, self.shift


# --- refusals -----------------------------------------------------------------------------------------------------

_FOR: dict[str, tuple[str, Callable[[TaskSpec], bool]]] = {  # options for some tasks only: which, and a test for them
    "--target": ("seq2seq", lambda spec: spec.maps_text),
    "--prompt": ("language-model", lambda spec: spec.continues_text),
    "--next": ("language-model", lambda spec: spec.continues_text),
    "--midi": ("language-model", lambda spec: spec.continues_text),
    "--format": ("tagging", lambda spec: spec.labels == "words"),
    "--column": ("tagging", lambda spec: spec.labels == "words"),
}


def check_task(run: Run, options: Mapping[str, Any], *, nbest: int | None, alignments: Path | None) -> None:
    """Refuse options that do not apply to the run's task."""
    spec = run.recipe.task_spec
    if alignments is not None and (not spec.maps_text or not run.model.cross_attention_paths):
        why = "its decoder does not attend to the source" if spec.maps_text else str(spec)
        raise ValueError(f"{run.folder} has no attention to show ({why})")
    for option, value in options.items():
        tasks, applies = _FOR[option]
        if value is not None and not applies(spec):
            raise ValueError(f"{option} is for task: {tasks}, and {run.folder} is {spec}")
    if spec.one_answer and nbest is not None and nbest > 1:
        tagger = spec.labels == "words"
        what = "a tagger has one answer, the likeliest label of each word" if tagger else "a text has one set of labels"
        raise ValueError(f"--nbest {nbest}: {what}; leave it out")


def check_phrases(phrases: PhraseFiles | None, spec: TaskSpec, prompt: str | None) -> None:
    """Refuse phrases by line beside a prompt, and for tasks that do not write text."""
    if phrases is not None and (prompt is not None or not spec.writes_text):
        what = "--prompt is one text: use decoding.forbid" if prompt is not None else f"{spec} does not write text"
        raise ValueError(f"--{phrases.option} has phrases for each line; {what}")


def check_prompt(run: Run, prompt: str | None, file: Path | None, prefixes: Path | None) -> None:
    """Refuse a prompt beside an input file, and prefixes beside a prompt or for labels."""
    if prefixes is not None and (prompt is not None or run.recipe.task_spec.labels == "words"):
        what = "--prompt is the beginning itself" if prompt is not None else "labels have no beginnings to force"
        raise ValueError(f"--prefixes {prefixes}: {what}; leave it out")
    if prompt is not None and file is not None:
        raise ValueError(f"--prompt and {file} are two inputs; give one of them")
