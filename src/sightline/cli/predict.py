"""`sightline predict`: lines in, lines out, as they come; a prompt in, and text streams out."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sightline.cli.align import AlignmentFile, alignment_file, check_alignments
from sightline.cli.formats import csv_texts, is_csv
from sightline.cli.lines import (
    Companion,
    InputLength,
    MaxInputLength,
    Shortfalls,
    UnknownPieces,
    escaped,
    is_long,
    lines_of,
    named,
    tell,
    windows,
)
from sightline.cli.options import Device, Precision, Sample, Seed, Temperature, Threads, TopK, TopP, use_threads
from sightline.cli.searching import (
    Beam,
    Diversity,
    EnsembleMean,
    ForbidEverywhere,
    Groups,
    LengthPenalty,
    MaxLength,
    MaxRatio,
    Mbr,
    MbrWeights,
    MinLength,
    NoRepeat,
    PhraseFiles,
    ReplaceUnknown,
    Utility,
    With,
    as_options,
    check_apart,
    check_prefixes,
    check_searching,
    check_task,
    load_together,
    phrases_told,
    refuse,
    sampling,
    searching,
)
from sightline.files import open_output
from sightline.progress import Progress, shown, silent
from sightline.terminal import plural

if TYPE_CHECKING:
    from sightline.cli.formats import Pieces
    from sightline.recipe import Decoding
    from sightline.run import Run
    from sightline.tasks.base import Prediction


def predict(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    file: Annotated[
        Path | None, typer.Argument(help="A text file (may be compressed), or - for standard input (the default).")
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(help="Language models: go on after this text, and print what comes as it comes.")
    ] = None,
    beam: Beam = None,
    nbest: Annotated[int | None, typer.Option(help="Outputs for each line, with their scores, tab-separated.")] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print a JSON object a line: text, score, truncated, unknown (number of <unk>)."),
    ] = False,
    length_penalty: LengthPenalty = None,
    coverage_penalty: Annotated[float | None, typer.Option(help="Beta of the coverage penalty.")] = None,
    max_length: MaxLength = None,
    max_ratio: MaxRatio = None,
    replace_unknown: ReplaceUnknown = None,
    sample: Sample = False,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Seed = None,
    prefixes: Annotated[Path | None, typer.Option(help="A file of what each output must begin with.")] = None,
    target: Annotated[
        Path | None, typer.Option(help="A file of outputs: tell the log-probability of each, and search for none.")
    ] = None,
    alignments: Annotated[
        Path | None, typer.Option(help="Write where the model looked, one JSON object a line, to this file.")
    ] = None,
    alignment_format: Annotated[
        str | None, typer.Option(help="json (all weights, the default) or pharaoh (links of words: 0-0 1-2).")
    ] = None,
    alignment_heads: Annotated[
        str | None, typer.Option(help="Pharaoh: heads or layers to read, e.g. decoder.2.cross.1,decoder.3.cross.")
    ] = None,
    shift: Annotated[
        bool, typer.Option("--shift", help="Pharaoh: align each word where it is read, a step after it is written.")
    ] = False,
    form: Annotated[
        str | None,
        typer.Option("--format", help="csv, text or, for taggers, conllu or columns; by default by name and content."),
    ] = None,
    column: Annotated[
        str | None, typer.Option(help="CSV: the column of the texts, by name. Taggers: where labels are written.")
    ] = None,
    midi: Annotated[
        Path | None, typer.Option(help="Models of chorales: write the first piece there, or all into a folder.")
    ] = None,
    others: With = None,
    ensemble_mean: EnsembleMean = "probabilities",
    groups: Groups = None,
    diversity: Diversity = None,
    mbr: Mbr = None,
    utility: Utility = None,
    mbr_weights: MbrWeights = None,
    no_repeat: NoRepeat = None,
    min_length: MinLength = None,
    forbid_everywhere: ForbidEverywhere = None,
    require: Annotated[
        Path | None,
        typer.Option(help="A file: phrases each output must contain as whole words, tab-separated, a line for a line."),
    ] = None,
    forbid: Annotated[
        Path | None, typer.Option(help="A file: phrases each output must not contain, in the same way.")
    ] = None,
    max_input_length: MaxInputLength = None,
    device: Device = "auto",
    precision: Precision = "float32",
    threads: Threads = None,
) -> None:
    r"""Predict one output line for each input line, in order, as the lines come.

    Classifiers print a label for each line, taggers one for each word of it. A CoNLL-U or column file (.conllu;
    .tsv, .conll, .col, .bio) comes out as it is, with nothing but the label column replaced.

    Of a CSV file, the texts of one column are read (`--column NAME`), and each row gives a line.

    An empty line gives an empty line, whatever the task. An empty file is an error, empty standard input is none.

    Models that learned to denoise restore text: each `[MASK]` is a gap to fill, with one piece by a masked language
    model.

    Language models go on after each line. What they write may have several lines, and is printed as one: a newline as
    `\n`, a carriage return as `\r`, a backslash as `\\`. After a `--prompt` the text comes raw, as it is written.

    Examples:

    - `echo "3. März 2015" | sightline predict runs/dates`
    - `sightline predict runs/en-de test.en.xz --beam 5 > test.de`
    - `sightline predict runs/en-de test.en --nbest 5 --beam 8`
    - `sightline predict runs/en-de test.en --sample --top-p 0.9 --seed 7`
    - `sightline predict runs/en-de test.en --with runs/en-de-2 --with runs/lstm-en-de`
    - `sightline predict runs/en-de test.en --mbr 64 --sample --utility chrf`
    - `sightline predict runs/en-de test.en --beam 8 --groups 4 --diversity 0.8 --nbest 8`
    - `sightline predict runs/en-de test.en --require names.txt --forbid-everywhere Handy`
    - `sightline predict runs/summaries articles.txt --no-repeat 3 --min-length 20`
    - `sightline predict runs/dates dates.txt --alignments looks.jsonl`
    - `sightline predict runs/de-en test.de --target test.en --alignments links.txt --alignment-format pharaoh`
    - `sightline predict runs/deep-att test.de --replace-unknown copy`
    - `sightline predict runs/shakespeare --prompt "ROMEO:" --sample --temperature 0.8`
    - `sightline predict runs/chorales --prompt "" --sample --midi chorale.mid`
    - `sightline predict runs/sst2 reviews.txt --nbest 2`
    - `sightline predict runs/sst2 reviews.csv --column review > labels.txt`
    - `echo "Two [MASK] play in the snow." | sightline predict runs/bert --nbest 5`
    - `sightline predict runs/ewt test.conllu > tagged.conllu`
    """
    use_threads(threads)
    loaded = load_together(run, others, ensemble_mean, device, precision)
    own = loaded.recipe.decoding.nbest
    if nbest is None and target is None and own > 1 and loaded.recipe.task_spec.labels != "words":
        nbest = own
    drawing = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    changes = {
        **searching(
            loaded,
            mbr,
            utility,
            mbr_weights,
            forbid_everywhere,
            groups=groups,
            diversity=diversity,
            no_repeat=no_repeat,
            min_length=min_length,
        ),
        "beam": beam,
        "length_penalty": length_penalty,
        "coverage_penalty": coverage_penalty,
        "max_length": max_length,
        "max_ratio": max_ratio,
        "replace_unknown": replace_unknown,
        "sample": sampling(loaded, sample, drawing, beam),
    }
    phrases = PhraseFiles.of(require, forbid)
    check_searching(loaded.recipe, changes, phrases, prompt=prompt is not None)
    check_alignments(alignments, alignment_format, alignment_heads, shift)
    files = {"--prefixes": prefixes, "--require": require, "--forbid": forbid}
    check_apart({"--alignments": alignments}, {"the input": file, "--target": target, **files})
    of_csv = is_csv(file, form)
    of_tasks = {"--target": target, "--prompt": prompt, "--midi": midi}
    if not of_csv and (form != "text" or column is not None):
        of_tasks |= {"--format": form, "--column": column}
    check_task(loaded, of_tasks, nbest=nbest, alignments=alignments)
    if target is not None:
        several = None if nbest == 1 else nbest  # one is what there is
        searched_for = {**as_options(changes), "--nbest": several, **files}
        refuse(searched_for, "says how outputs are found, and --target tells them; leave one of them out")
    check_prefixes(loaded, prefixes, prompt)
    if prompt is not None and file is not None:
        raise ValueError(f"--prompt and {file} are two inputs; give one of them")
    options = loaded.options(**changes, nbest=nbest)
    if coverage_penalty and (options.beam == 1 or options.sample is not None):
        raise ValueError(
            "--coverage-penalty ranks the hypotheses of a beam, and here is one; raise --beam, or leave it out"
        )
    pieces = None
    if midi is not None:
        from sightline.cli.formats import Pieces

        pieces = Pieces(midi, loaded.recipe)
        prompt = "" if prompt is None and file is None else prompt  # a piece from nothing
    several = nbest if target is None else 1  # of what is told, all that is new is its score
    asked = Predictor(loaded, options, several, as_json)
    if prompt is not None:
        _go_on(asked, prompt, pieces)
    elif (
        loaded.recipe.task_spec.labels != "words"
        or of_csv
        or not _tagged(loaded, file, form, column, max_input_length, {"--nbest": nbest, "--json": as_json})
    ):
        looks = alignment_file(loaded, alignments, alignment_format, alignment_heads, shift)
        limit = InputLength.of(loaded, max_input_length)
        texts = csv_texts(loaded.recipe, file, column) if of_csv else lines_of(file, limit.bytes)
        _each_line(asked, file, texts, Beside.of(prefixes, target, phrases), looks, pieces, limit)
        if limit.refused:
            raise typer.Exit(code=1)


@dataclass(frozen=True)
class Predictor:
    """A model, and what is asked of it."""

    run: Run
    options: Decoding
    nbest: int | None  # outputs that are shown, with their scores; None: the best one alone
    as_json: bool = False

    def shown(self, guesses: list[Prediction]) -> str:
        """The outputs for a line, in one line."""
        from sightline.tasks.base import one_line

        if self.as_json:
            told = [_record(guess) for guess in guesses]
            return json.dumps(told[0] if self.nbest is None else {"outputs": told}, ensure_ascii=False)
        even = escaped if self.run.recipe.task_spec.continues_text else one_line
        if self.nbest is None:
            return even(guesses[0].text)
        return "\t".join(f"{guess.score:.4f}\t{even(guess.text)}" for guess in guesses)


def _record(guess: Prediction) -> dict[str, Any]:
    """An output for JSON."""
    return {"text": guess.text, "score": guess.score, "truncated": guess.truncated, "unknown": guess.unknown}


def _tagged(
    run: Run, file: Path | None, form: str | None, column: str | None, longest: int | None, of_lines: dict[str, Any]
) -> bool:
    """Tag a file that has columns; False: it is plain text, and goes line by line as any other."""
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


def _go_on(asked: Predictor, prompt: str, pieces: Pieces | None) -> None:
    """Print the prompt and what follows it, as it comes; by a beam, or of several, when all of it is known."""
    from sightline.tasks.base import TooLong

    run, options, nbest = asked.run, asked.options, asked.nbest
    short = Shortfalls(run.task, options)
    short.read([prompt])
    try:
        longest, begun = run.task.longest_source(), len(run.encode_sources([prompt])[0])
    except TooLong as error:
        raise error.named("the text of --prompt") from None
    if longest is not None and begun + options.new_tokens > longest:
        room = f"{longest - begun:,} new ones at most, not {options.new_tokens:,}"
        print(f"sightline: this model has learned positions for {plural(longest, 'token')}, so {room}", file=sys.stderr)
    # what is known only when all has been written
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
    tell(short.notes())


# --- lines -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Beside:
    """Files that go with the input, a line for each of its lines."""

    prefixes: Companion | None  # what each output begins with
    targets: Companion | None  # outputs that are told
    phrases: PhraseFiles | None  # what each must or must not contain
    unknown: UnknownPieces  # what no vocabulary holds of the outputs, or of what they begin with

    @staticmethod
    def of(prefixes: Path | None, target: Path | None, phrases: PhraseFiles | None) -> Beside:
        return Beside(
            None if prefixes is None else Companion(prefixes, "give one prefix a line"),
            None if target is None else Companion(target, "give one target a line"),
            phrases,
            UnknownPieces("written as unknown (--prefixes)" if target is None else "judged as unknown (--target)"),
        )

    def check_spent(self, done: int) -> None:
        """Refuse lines that are left in one of them."""
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
    """Print what is answered to each line, as the lines come."""
    run, done = asked.run, 0
    short = Shortfalls(run.task, asked.options)
    kept = asked.options.replace_unknown != "none" or run.recipe.copies_unknown  # prefixes stand there as given
    opened = nullcontext() if alignments is None else open_output(alignments.path)
    with opened as looks, _counting(file) as progress, phrases_told():

        def answered(lines: int) -> None:
            progress("predicting, lines", lines, 0)

        for lines in windows(texts):
            window = limit.bounded(lines, done)
            forced = None if beside.prefixes is None else beside.prefixes.next(len(window), done)
            for text in () if kept or forced is None else forced:
                beside.unknown.add(run.vocabulary.target.unknown(text))
            short.read(window)
            found = _answers(asked, window, forced, beside, done, answered)
            short.wrote(found)
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
            answered(done)
    tell([*limit.notes(), *short.notes(), *beside.unknown.notes()])
    beside.check_spent(done)


@contextmanager
def _counting(file: Path | None) -> Iterator[Progress]:
    """Progress on standard error, unless a person types the lines or sees the outputs as they come."""
    typed = named(file) is None and sys.stdin is not None and sys.stdin.isatty()
    if typed or sys.stdout.isatty():
        yield silent
        return
    with shown(interval=10.0) as progress:
        yield progress


def _answers(
    asked: Predictor,
    window: list[str],
    prefixes: list[str] | None,
    beside: Beside,
    done: int,
    answered: Callable[[int], None],
) -> list[list[Prediction]]:
    """Outputs for some lines: found, or told and judged; `done` lines went before, and `answered` hears of more."""
    from sightline.tasks.seq2seq import Seq2SeqTask

    run, found = asked.run, done

    def more(lines: int) -> None:
        nonlocal found
        found += lines
        answered(found)

    if beside.targets is not None and isinstance(run.task, Seq2SeqTask):
        targets = beside.targets.next(len(window), done)
        judged = run.task.score_outputs(window, targets, first=done)  # it refuses what is too long, by its line
        for text, target in zip(window, targets, strict=True):
            beside.unknown.add(run.task.unknown_in(target, text))
        return judged
    phrases = None if beside.phrases is None else beside.phrases.next(len(window), done)
    scored = asked.nbest is not None or asked.as_json
    return run.predict_nbest(
        window, asked.options, prefixes=prefixes, first=done, phrases=phrases, scored=scored, on_done=more
    )
