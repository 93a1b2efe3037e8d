"""`sightline predict`: one output line per input line, as lines come in; or the continuation of a prompt."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
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
    Models,
    Overrides,
    RunFolder,
    Threads,
    change_run,
    check_files,
    check_search,
    decoding_flags,
    file_and_overrides,
    refuse,
    use_threads,
)
from sightline.cli.predict_options import (
    Continuation,
    Hidden,
    InputFormat,
    LineFiles,
    OutputOptions,
    SearchFlags,
    check_phrases,
    check_prompt,
    check_task,
)
from sightline.files import open_output
from sightline.progress import Progress, shown, silent
from sightline.terminal import plural

if TYPE_CHECKING:
    from sightline.cli.formats import Pieces
    from sightline.decoding.request import Request
    from sightline.recipe import Decoding, Recipe
    from sightline.run import Run
    from sightline.tasks.base import Prediction


def predict(
    run: RunFolder,
    *,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="Input text, plain or compressed; default: standard input.")
    ] = None,
    overrides: Overrides = None,
    flags: SearchFlags,
    continuation: Continuation,
    lines: LineFiles,
    table: InputFormat,
    output: OutputOptions,
    models: Models,
    hidden: Hidden,
    threads: Threads = None,
) -> None:
    """Predict a line of text or labels for each input line.

    Examples:
      echo "3. März 2015" | sightline predict runs/dates
      sightline predict runs/en-de test.en --beam 5 --nbest 5 -o test.de
      sightline predict runs/en-de test.en decoding.length_penalty=0.6 --with runs/lstm-en-de
      sightline predict runs/shakespeare --prompt "ROMEO:" --sample decoding.sample.temperature=0.8
      sightline predict runs/lm-lstm --prompt "the students" --next 10
      sightline predict runs/ewt test.conllu > tagged.conllu
    """
    use_threads(threads)
    file, overrides = file_and_overrides(file, overrides)
    loaded = models.load(run)
    loaded, written = _change(loaded, overrides, flags, several=lines.target is None)
    nbest = loaded.recipe.decoding.nbest if "decoding.nbest" in written else None
    of_csv = is_csv(file, table.form)
    phrases = PhraseFiles.of(lines.require, lines.forbid)
    search, prompt = check_search(loaded.recipe, written), continuation.prompt
    check_phrases(phrases, loaded.recipe.task_spec, prompt)
    check_alignments(output.alignments, *hidden.alignments())
    check_files(
        {"--out": output.out, "--alignments": output.alignments},
        {"the input": file, "--target": lines.target, **lines.constraints()},
    )
    for_tasks: dict[str, Any] = {
        "--target": lines.target,
        "--prompt": prompt,
        "--next": continuation.next,
        "--midi": output.midi,
    }
    if not of_csv and (table.form != "text" or table.column is not None):
        for_tasks |= {"--format": table.form, "--column": table.column}
    check_task(loaded, for_tasks, nbest=nbest, alignments=output.alignments)
    if lines.target is not None:
        how = {**search, "--nbest": None if nbest == 1 else nbest, **lines.constraints()}
        refuse(how, "sets the search for outputs, and --target gives them; leave one of them out")
    if continuation.next is not None:
        others = {**search, "--nbest": flags.nbest, **lines.constraints(), "--midi": output.midi}
        refuse(others, "is for outputs that are searched for, and --next lists words; leave one of them out")
    check_prompt(loaded, prompt, file, lines.prefixes)
    pieces = _midi(output.midi, loaded.recipe)
    if pieces is not None and prompt is None and file is None:
        prompt = ""  # a piece from nothing
    predictor = Predictor(loaded, loaded.recipe.decoding, nbest if lines.target is None else 1, output.as_json)
    with _writing(output.out):
        if continuation.next is not None:
            texts = csv_texts(loaded.recipe, file, table.column) if of_csv else lines_of(file, None)
            _list_next_words(predictor, continuation.next, prompt, texts)
        elif prompt is not None:
            _continue(predictor, prompt, pieces)
        elif of_csv or not _tagged(predictor, file, table, hidden.max_input_length):
            limit = InputLength.of(loaded, hidden.max_input_length)
            attention = alignment_file(loaded, output.alignments, *hidden.alignments())
            texts = csv_texts(loaded.recipe, file, table.column) if of_csv else lines_of(file, limit.bytes)
            beside = Beside.of(lines.prefixes, lines.target, phrases)
            _each_line(predictor, file, texts, beside, attention, pieces, limit)
            if limit.refused:
                raise typer.Exit(code=1)


def _change(run: Run, overrides: list[str], flags: SearchFlags, *, several: bool) -> tuple[Run, dict[str, str]]:
    """Apply overrides and flags; without --nbest, print as many outputs as the recipe says, if `several` may be."""
    own, nbest = run.recipe.decoding.nbest, flags.nbest
    if nbest is None and several and own > 1 and not run.recipe.task_spec.one_answer:
        nbest = own
    changes = [*overrides, *decoding_flags(beam=flags.beam, nbest=nbest, seed=flags.seed)]
    return change_run(run, changes, sample=flags.sample)


def _midi(place: Path | None, recipe: Recipe) -> Pieces | None:
    if place is None:
        return None
    from sightline.cli.formats import Pieces

    return Pieces(place, recipe)


@contextmanager
def _writing(out: Path | None) -> Iterator[None]:
    """Send standard output to a file, which is filled as outputs come."""
    if out is None:
        yield
        return
    with open_output(out) as file, redirect_stdout(file):
        yield


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


def _tagged(predictor: Predictor, file: Path | None, table: InputFormat, longest: int | None) -> bool:
    """Tag a file with columns; False for plain text and for other tasks."""
    from sightline.cli.formats import form_for, tag_file

    if predictor.run.recipe.task_spec.labels != "words":
        return False
    form = form_for(file, table.form, predictor.run)
    if form is None:
        if table.column is not None:
            raise ValueError(
                f"--column {table.column} is of a file with columns, and this one is plain text; leave it out, or say "
                f"what the file is with --format"
            )
        return False
    options = {"--nbest": predictor.nbest, "--json": predictor.as_json}
    refuse(options, "has no place in a tagged file, with a label for each word; leave it out")
    tag_file(predictor.run, file, form, table.column, longest)
    return True


# --- a prompt ----------------------------------------------------------------------------------------------------


def _continue(predictor: Predictor, prompt: str, pieces: Pieces | None) -> None:
    """Print the prompt and its continuation: token by token, or at the end where a search decides."""
    from sightline.tasks.base import TooLong

    run, options, nbest = predictor.run, predictor.options, predictor.nbest
    short = Shortfalls(run.task, options)
    short.add_inputs([prompt])
    try:
        longest, prompt_length = run.task.longest_source(), len(run.encode_sources([prompt])[0])
    except TooLong as error:
        raise error.named("the text of --prompt") from None
    if longest is not None and prompt_length + options.new_tokens > longest:
        room = f"{longest - prompt_length:,} new ones at most, not {options.new_tokens:,}"
        print(f"sightline: this model has learned positions for {plural(longest, 'token')}, so {room}", file=sys.stderr)
    whole = options.mbr is not None or bool(options.forbid) or predictor.as_json
    if nbest is None and not whole and (options.sample is not None or options.beam == 1):

        def write(text: str) -> None:
            sys.stdout.write(text)
            sys.stdout.flush()

        guesses = [run.stream(prompt, options, write=write)]
        print(flush=True)
    else:
        guesses = run.continuations(prompt, options)
        print(guesses[0].text if nbest is None and not predictor.as_json else predictor.shown(guesses), flush=True)
    if pieces is not None:
        for guess in guesses:
            pieces.take(guess.text)
    short.incomplete.add([guesses])
    print_notes(short.notes())


def _list_next_words(predictor: Predictor, count: int, prompt: str | None, texts: Iterator[str]) -> None:
    """Print the most probable next words: of a prompt one on each line, of lines of text all on one line."""
    short = Shortfalls(predictor.run.task, predictor.options)
    for text in texts if prompt is None else (prompt,):
        short.add_inputs([text])
        words = predictor.run.next_words(text, count) if text or prompt is not None else []
        if predictor.as_json:
            print(json.dumps({"text": text, "next": [word._asdict() for word in words]}, ensure_ascii=False))
        else:
            shown = [f"{word.probability:.4f}\t{escaped(word.word)}" for word in words]
            print("\t".join(shown) if prompt is None else "\n".join(shown))
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

    def requests(self, predictor: Predictor, window: list[str], done: int) -> list[Request]:
        """One request for each line; `done` lines went before."""
        from sightline.decoding.request import Request

        prefixes = None if self.prefixes is None else self.prefixes.next(len(window), done)
        phrases = None if self.phrases is None else self.phrases.next(len(window), done)
        # replaced and copied words keep unknown prefixes as written
        kept = predictor.options.replace_unknown != "none" or predictor.run.recipe.copies_unknown
        for prefix in () if kept or prefixes is None else prefixes:
            self.unknown.add(predictor.run.vocabulary.target.unknown(prefix))
        return [
            Request(
                text,
                predictor.options,
                prefix_text=None if prefixes is None else prefixes[index],
                phrases=None if phrases is None else phrases[index],
                number=done + index,
                scored=predictor.nbest is not None or predictor.as_json,
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
    predictor: Predictor,
    file: Path | None,
    texts: Iterator[str],
    beside: Beside,
    alignments: AlignmentFile | None,
    pieces: Pieces | None,
    limit: InputLength,
) -> None:
    """Print the outputs of each line, as lines come in."""
    run, done = predictor.run, 0
    short = Shortfalls(run.task, predictor.options)
    opened = nullcontext() if alignments is None else open_output(alignments.path)
    with opened as link_file, _counting(file) as progress, phrase_warnings():
        counted = 0

        def count(more: int) -> None:
            nonlocal counted
            counted += more
            progress("predicting, lines", counted, 0)

        for lines in windows(texts):
            window = limit.bounded(lines, done)
            short.add_inputs(window)
            if beside.targets is not None:
                answers = beside.scored(run, window, done)
            else:
                answers = run.task.predict(beside.requests(predictor, window, done), count)
            short.add_outputs(answers)
            for text, guesses in zip(window, answers, strict=True):
                print("" if is_long(text) else predictor.shown(guesses), flush=False)
                if pieces is not None:
                    for guess in guesses:
                        pieces.take(guess.text)
            if alignments is not None and link_file is not None:
                best = [guesses[0] for guesses in answers]
                link_file.writelines(f"{line}\n" for line in alignments.lines(run, window, best))
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
