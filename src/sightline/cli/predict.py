"""`sightline predict`: one output line per input line, as lines come in; or the continuation of a prompt."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sightline.cli.alignment_file import AlignmentFile, alignment_file, check_alignments
from sightline.cli.formats import csv_texts, is_csv
from sightline.cli.lines import (
    Companion,
    InputLength,
    MaxInputLength,
    PhraseFiles,
    Shortfalls,
    UnknownPieces,
    escaped,
    is_long,
    lines_of,
    named,
    phrase_warnings,
    print_notes,
    windows,
)
from sightline.cli.options import (
    Beam,
    Device,
    EnsembleMean,
    Overrides,
    Precision,
    RunFolder,
    Sample,
    Seed,
    Threads,
    With,
    change_run,
    check_files,
    check_search,
    decoding_flags,
    file_and_overrides,
    load_runs,
    refuse,
    use_threads,
)
from sightline.files import open_output
from sightline.progress import Progress, shown, silent
from sightline.recipe.tasks import TaskSpec
from sightline.terminal import plural

if TYPE_CHECKING:
    from sightline.cli.formats import Pieces
    from sightline.decoding.request import Request
    from sightline.recipe import Decoding
    from sightline.run import Run
    from sightline.tasks.base import Prediction


def predict(
    run: RunFolder,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="Input text, plain or compressed; default: standard input.")
    ] = None,
    overrides: Overrides = None,
    beam: Beam = None,
    nbest: Annotated[int | None, typer.Option(metavar="N", help="Print N outputs per line, with their scores.")] = None,
    sample: Sample = False,
    seed: Seed = None,
    prompt: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Language models: stream what follows this text.")
    ] = None,
    target: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Score the outputs in FILE, line by line.")
    ] = None,
    prefixes: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Begin each output with its line of FILE.")
    ] = None,
    require: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Phrases each output must contain, tab-separated.")
    ] = None,
    forbid: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Phrases each output must not contain, tab-separated.")
    ] = None,
    form: Annotated[
        str | None, typer.Option("--format", metavar="FORMAT", help="Input format: text, csv, conllu or columns.")
    ] = None,
    column: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="CSV: column of the texts. Taggers: column to fill.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write outputs there; default: standard output.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    alignments: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write attention there: .jsonl, or .pharaoh for word links.")
    ] = None,
    alignment_format: Annotated[str | None, typer.Option(hidden=True)] = None,
    alignment_heads: Annotated[str | None, typer.Option(hidden=True)] = None,
    shift: Annotated[bool, typer.Option("--shift", hidden=True)] = False,
    midi: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Chorale models: write a MIDI file, or several to a folder.")
    ] = None,
    others: With = None,
    ensemble_mean: EnsembleMean = "probabilities",
    max_input_length: MaxInputLength = None,
    device: Device = "auto",
    precision: Precision = "float32",
    threads: Threads = None,
) -> None:
    """Predict one output line for each input line, in order.

    Classifiers print a label per line, taggers a label per word.

    Examples:
      echo "3. März 2015" | sightline predict runs/dates
      sightline predict runs/en-de test.en --beam 5 --nbest 5 -o test.de
      sightline predict runs/en-de test.en decoding.length_penalty=0.6 --with runs/lstm-en-de
      sightline predict runs/shakespeare --prompt "ROMEO:" --sample decoding.sample.temperature=0.8
      sightline predict runs/ewt test.conllu > tagged.conllu
    """
    use_threads(threads)
    file, overrides = file_and_overrides(file, overrides)
    loaded = load_runs(run, others, ensemble_mean, device, precision)
    spec = loaded.recipe.task_spec
    own = loaded.recipe.decoding.nbest
    shows_several = nbest is None and target is None and own > 1 and spec.labels != "words"
    flags = decoding_flags(beam=beam, nbest=own if shows_several else nbest, seed=seed)
    loaded, written = change_run(loaded, [*overrides, *flags], sample=sample)
    asked_nbest = loaded.recipe.decoding.nbest if "decoding.nbest" in written else None
    phrases = PhraseFiles.of(require, forbid)
    search = check_search(loaded.recipe, written)
    if phrases is not None and (prompt is not None or not spec.writes_text):
        what = "--prompt is one text: use decoding.forbid" if prompt is not None else f"{spec} does not write text"
        raise ValueError(f"--{phrases.option} has phrases for each line; {what}")
    check_alignments(alignments, alignment_format, alignment_heads, shift)
    files = {"--prefixes": prefixes, "--require": require, "--forbid": forbid}
    check_files({"--out": out, "--alignments": alignments}, {"the input": file, "--target": target, **files})
    of_csv = is_csv(file, form)
    for_tasks = {"--target": target, "--prompt": prompt, "--midi": midi}
    if not of_csv and (form != "text" or column is not None):
        for_tasks |= {"--format": form, "--column": column}
    _check_task(loaded, for_tasks, nbest=asked_nbest, alignments=alignments)
    if target is not None:
        several = None if asked_nbest == 1 else asked_nbest
        refuse(
            {**search, "--nbest": several, **files},
            "says how outputs are found, and --target gives them; leave one of them out",
        )
    _check_prefixes(loaded, prefixes, prompt)
    if prompt is not None and file is not None:
        raise ValueError(f"--prompt and {file} are two inputs; give one of them")
    pieces = None
    if midi is not None:
        from sightline.cli.formats import Pieces

        pieces = Pieces(midi, loaded.recipe)
        prompt = "" if prompt is None and file is None else prompt  # a piece from nothing
    asked = Predictor(loaded, loaded.recipe.decoding, asked_nbest if target is None else 1, as_json)
    with _writing(out):
        if prompt is not None:
            _continue(asked, prompt, pieces)
            return
        of_lines = {"--nbest": asked_nbest, "--json": as_json}
        if spec.labels == "words" and not of_csv and _tagged(loaded, file, form, column, max_input_length, of_lines):
            return
        attention = alignment_file(loaded, alignments, alignment_format, alignment_heads, shift)
        limit = InputLength.of(loaded, max_input_length)
        texts = csv_texts(loaded.recipe, file, column) if of_csv else lines_of(file, limit.bytes)
        _each_line(asked, file, texts, Beside.of(prefixes, target, phrases), attention, pieces, limit)
    if limit.refused:
        raise typer.Exit(code=1)


@contextmanager
def _writing(out: Path | None) -> Iterator[None]:
    """Send standard output to a file, which is filled as outputs come."""
    if out is None:
        yield
        return
    with open_output(out) as file, redirect_stdout(file):
        yield


# --- refusals -----------------------------------------------------------------------------------------------------

_FOR: dict[str, tuple[str, Callable[[TaskSpec], bool]]] = {  # options for some tasks only: which, and a test for them
    "--target": ("seq2seq", lambda spec: spec.maps_text),
    "--prompt": ("language-model", lambda spec: spec.continues_text),
    "--midi": ("language-model", lambda spec: spec.continues_text),
    "--format": ("tagging", lambda spec: spec.labels == "words"),
    "--column": ("tagging", lambda spec: spec.labels == "words"),
}


def _check_task(run: Run, given: Mapping[str, Any], *, nbest: int | None, alignments: Path | None) -> None:
    """Refuse options that the run's task cannot follow."""
    spec = run.recipe.task_spec
    if alignments is not None and (not spec.maps_text or not run.model.cross_attention_paths):
        why = "its decoder does not attend to the source" if spec.maps_text else str(spec)
        raise ValueError(f"{run.folder} has no attention to show ({why})")
    for option, value in given.items():
        tasks, fits = _FOR[option]
        if value is not None and not fits(spec):
            raise ValueError(f"{option} is for task: {tasks}, and {run.folder} is {spec}")
    if spec.labels == "words" and nbest is not None and nbest > 1:
        raise ValueError(f"--nbest {nbest}: a tagger has one answer, the likeliest label of each word; leave it out")


def _check_prefixes(run: Run, prefixes: Path | None, prompt: str | None) -> None:
    """Refuse prefixes beside a prompt, and for labels."""
    if prefixes is not None and (prompt is not None or run.recipe.task_spec.labels == "words"):
        what = "--prompt is the beginning itself" if prompt is not None else "labels have no beginnings to force"
        raise ValueError(f"--prefixes {prefixes}: {what}; leave it out")


# --- outputs ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Predictor:
    """A model, its decoding options, and how outputs are printed."""

    run: Run
    options: Decoding
    nbest: int | None  # outputs to print with their scores; None: the best, without
    as_json: bool = False

    def shown(self, guesses: list[Prediction]) -> str:
        """The outputs of one input, on one line."""
        from sightline.tasks.base import one_line

        if self.as_json:
            records = [_record(guess) for guess in guesses]
            return json.dumps(records[0] if self.nbest is None else {"outputs": records}, ensure_ascii=False)
        even = escaped if self.run.recipe.task_spec.continues_text else one_line
        if self.nbest is None:
            return even(guesses[0].text)
        return "\t".join(f"{guess.score:.4f}\t{even(guess.text)}" for guess in guesses)


def _record(guess: Prediction) -> dict[str, Any]:
    """One output for JSON."""
    return {"text": guess.text, "score": guess.score, "truncated": guess.truncated, "unknown": guess.unknown}


def _tagged(
    run: Run, file: Path | None, form: str | None, column: str | None, longest: int | None, of_lines: dict[str, Any]
) -> bool:
    """Tag a file with columns; False if it is plain text."""
    from sightline.cli.formats import form_for, tag_file

    chosen = form_for(file, form, run)
    if chosen is None:
        if column is not None:
            raise ValueError(
                f"--column {column} is of a file with columns, and this one is plain text; leave it out, or say what "
                f"the file is with --format"
            )
        return False
    refuse(of_lines, "has no place in a tagged file, with a label for each word; leave it out")
    tag_file(run, file, chosen, column, longest)
    return True


# --- a prompt ----------------------------------------------------------------------------------------------------


def _continue(asked: Predictor, prompt: str, pieces: Pieces | None) -> None:
    """Print the prompt and its continuation: token by token, or at the end where a search decides."""
    from sightline.tasks.base import TooLong

    run, options, nbest = asked.run, asked.options, asked.nbest
    short = Shortfalls(run.task, options)
    short.add_inputs([prompt])
    try:
        longest, begun = run.task.longest_source(), len(run.encode_sources([prompt])[0])
    except TooLong as error:
        raise error.named("the text of --prompt") from None
    if longest is not None and begun + options.new_tokens > longest:
        room = f"{longest - begun:,} new ones at most, not {options.new_tokens:,}"
        print(f"sightline: this model has learned positions for {plural(longest, 'token')}, so {room}", file=sys.stderr)
    whole = options.mbr is not None or bool(options.forbid) or asked.as_json
    if nbest is None and not whole and (options.sample is not None or options.beam == 1):

        def write(text: str) -> None:
            sys.stdout.write(text)
            sys.stdout.flush()

        guesses = [run.stream(prompt, options, write=write)]
        print(flush=True)
    else:
        guesses = run.continuations(prompt, options)
        print(guesses[0].text if nbest is None and not asked.as_json else asked.shown(guesses), flush=True)
    if pieces is not None:
        for guess in guesses:
            pieces.take(guess.text)
    short.incomplete.add([guesses])
    print_notes(short.notes())


# --- lines -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Beside:
    """Files with one line for each input line."""

    prefixes: Companion | None  # the beginning of each output
    targets: Companion | None  # outputs to score
    phrases: PhraseFiles | None  # required and forbidden phrases
    unknown: UnknownPieces  # pieces of targets or prefixes that are not in the vocabulary

    @staticmethod
    def of(prefixes: Path | None, target: Path | None, phrases: PhraseFiles | None) -> Beside:
        return Beside(
            None if prefixes is None else Companion(prefixes, "give one prefix a line"),
            None if target is None else Companion(target, "give one target a line"),
            phrases,
            UnknownPieces("written as unknown (--prefixes)" if target is None else "judged as unknown (--target)"),
        )

    def requests(self, asked: Predictor, window: list[str], done: int) -> list[Request]:
        """One request for each line; `done` lines went before."""
        from sightline.decoding.request import Request

        prefixes = None if self.prefixes is None else self.prefixes.next(len(window), done)
        phrases = None if self.phrases is None else self.phrases.next(len(window), done)
        kept = asked.options.replace_unknown != "none" or asked.run.recipe.copies_unknown  # prefixes stay as given
        for prefix in () if kept or prefixes is None else prefixes:
            self.unknown.add(asked.run.vocabulary.target.unknown(prefix))
        return [
            Request(
                text,
                asked.options,
                prefix_text=None if prefixes is None else prefixes[index],
                phrases=None if phrases is None else phrases[index],
                number=done + index,
                scored=asked.nbest is not None or asked.as_json,
            )
            for index, text in enumerate(window)
        ]

    def scored(self, run: Run, window: list[str], done: int) -> list[list[Prediction]]:
        """The given outputs of some lines with their scores; one that is too long is refused by its line."""
        assert self.targets is not None
        targets = self.targets.next(len(window), done)
        scored = run.task.score_outputs(window, targets, first=done)
        for text, target in zip(window, targets, strict=True):
            self.unknown.add(run.task.unknown_in(target, text))
        return scored

    def check_spent(self, done: int) -> None:
        """Refuse files with more lines than the input."""
        for companion in (self.prefixes, self.targets, self.phrases):
            if companion is not None:
                companion.check_spent(done)


def _each_line(
    asked: Predictor,
    file: Path | None,
    texts: Iterator[str],
    beside: Beside,
    alignments: AlignmentFile | None,
    pieces: Pieces | None,
    limit: InputLength,
) -> None:
    """Print the outputs of each line, as lines come in."""
    run, done = asked.run, 0
    short = Shortfalls(run.task, asked.options)
    opened = nullcontext() if alignments is None else open_output(alignments.path)
    with opened as looks, _counting(file) as progress, phrase_warnings():
        counted = 0

        def count(more: int) -> None:
            nonlocal counted
            counted += more
            progress("predicting, lines", counted, 0)

        for lines in windows(texts):
            window = limit.bounded(lines, done)
            short.add_inputs(window)
            if beside.targets is not None:
                found = beside.scored(run, window, done)
            else:
                found = run.task.predict(beside.requests(asked, window, done), count)
            short.add_outputs(found)
            for text, guesses in zip(window, found, strict=True):
                print("" if is_long(text) else asked.shown(guesses), flush=False)
                if pieces is not None:
                    for guess in guesses:
                        pieces.take(guess.text)
            if alignments is not None and looks is not None:
                best = [guesses[0] for guesses in found]
                looks.writelines(f"{line}\n" for line in alignments.lines(run, window, best))
            done += len(window)
            sys.stdout.flush()
            counted = done
            count(0)
    print_notes([*limit.notes(), *short.notes(), *beside.unknown.notes()])
    beside.check_spent(done)


@contextmanager
def _counting(file: Path | None) -> Iterator[Progress]:
    """Show progress, unless lines are typed or outputs are printed to a terminal."""
    typed = named(file) is None and sys.stdin is not None and sys.stdin.isatty()
    if typed or sys.stdout.isatty():
        yield silent
        return
    with shown(interval=10.0) as progress:
        yield progress
