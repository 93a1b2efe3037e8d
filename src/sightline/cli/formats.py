"""Input that is more than plain lines: columns of CSV files, CoNLL-U and column files; output as MIDI."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from sightline.cli.lines import BOM, InputLength, Shortfalls, lines_of, named, print_notes, whole_lines, windows
from sightline.terminal import plural

if TYPE_CHECKING:
    from sightline.data.conll import TaggedFormat, TaggedSentence
    from sightline.data.music import ParsedChorale
    from sightline.recipe import Recipe
    from sightline.run import Run


_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")


def is_csv(file: Path | None, form: str | None) -> bool:
    """Return True if the input is CSV, by --format or else by the file name."""
    if form is not None or (path := named(file)) is None:
        return form == "csv"
    plain = path.with_suffix("") if path.suffix.lower() in _COMPRESSED else path
    return plain.suffix.lower() == ".csv"


def csv_texts(recipe: Recipe, file: Path | None, column: str | None) -> Iterator[str]:
    """The texts of a column, with newlines as spaces; by default the training column, or the only one."""
    from sightline.data.text_files import csv_columns, read_csv
    from sightline.recipe.sources import CsvSource

    if (path := named(file)) is None:
        raise ValueError("--format csv needs a file, whose columns have names; give one instead of standard input")
    learned = next((source for source in recipe.data.train if isinstance(source, CsvSource)), None)
    delimiter = "," if learned is None else learned.delimiter
    selected: str | int
    if column is not None:
        selected = int(column) if column.isdecimal() and column not in csv_columns(path, delimiter) else column
    elif learned is not None:
        selected = learned.target if recipe.data.swap else learned.source
    elif len(columns := csv_columns(path, delimiter)) == 1:
        selected = 1
    else:
        raise ValueError(
            f"{path} has the columns {', '.join(columns)}; say with --column which one holds the texts, or read its "
            f"lines as they are with --format text"
        )
    header = True if learned is None else learned.header
    cells = read_csv(path, [selected], delimiter=delimiter, header=header)
    return (" ".join(text.split("\n")) for _, text in cells)


def form_for(file: Path | None, name: str | None, run: Run | None = None) -> TaggedFormat | None:
    """The format of the input: as given, by the file name, or (with a run) by its content; None is plain text."""
    from sightline.data.conll import format_of

    if name is None:
        if (path := named(file)) is None:
            return None
        form = format_of(path)
        return form if form is not None or run is None else _detected(run, path)
    forms: dict[str, TaggedFormat | None] = {"conllu": "conllu", "columns": "columns", "text": None}
    if name not in forms:
        raise ValueError(f"--format {name} is unknown; use {', '.join(forms)}")
    return forms[name]


def _detected(run: Run, path: Path) -> TaggedFormat | None:
    """The format of a file by its content."""
    from itertools import islice

    from sightline.data.conll import DETECTION_LINES, detect_format

    word, label = _learned_columns(run.recipe)
    form = detect_format(islice(lines_of(path), DETECTION_LINES), word, label, set(run.task.labels))
    if form is not None or path.suffix.lower() != ".txt":
        kind_name = {"conllu": "CoNLL-U", "columns": "columns", None: "plain text, a sentence a line"}[form]
        print(f"sightline: {path} is read as {kind_name}, by its content; --format says otherwise", file=sys.stderr)
    return form


def _learned_columns(recipe: Recipe) -> tuple[int, int]:
    """The columns of words and labels in the training files; by default the first two."""
    from sightline.recipe.sources import ColumnsSource

    learned = recipe.data.train[0]
    return (learned.word, learned.label) if isinstance(learned, ColumnsSource) else (1, 2)


def texts_of(recipe: Recipe, file: Path | None) -> Iterator[str]:
    """The lines of the input; for taggers trained on tagged files, the words of each sentence of such a file."""
    from sightline.data.conll import join_words, tagged_sentences
    from sightline.recipe.sources import ColumnsSource, ConlluSource

    learned, form = recipe.data.train[0], form_for(file, None)
    if form is None or not isinstance(learned, ConlluSource | ColumnsSource):
        return lines_of(file)
    word = learned.word if isinstance(learned, ColumnsSource) else 1
    return (
        join_words(block.words) for block in tagged_sentences(lines_of(file), form, word, name=str(file)) if block.words
    )


def column_for(recipe: Recipe, form: TaggedFormat, name: str | None) -> tuple[int, str | int]:
    """The columns of words and labels: the given one, or those of training."""
    from sightline.data.conll import CONLLU_COLUMNS
    from sightline.recipe.sources import ColumnsSource, ConlluSource

    learned = recipe.data.train[0]
    word = learned.word if isinstance(learned, ColumnsSource) else 1
    if name is not None:
        if form == "conllu":
            if name not in CONLLU_COLUMNS:
                raise ValueError(f"--column {name}: CoNLL-U has {', '.join(CONLLU_COLUMNS)}; name one of them")
            return word, name
        if not name.isdecimal() or int(name) < 1:
            raise ValueError(f"--column {name}: give a number, counted from 1, for a column file")
        return word, int(name)
    if form == "conllu" and isinstance(learned, ConlluSource):
        return word, learned.column
    if form == "columns" and isinstance(learned, ColumnsSource):
        return word, learned.label
    example = "--column upos" if form == "conllu" else "--column 2"
    raise ValueError(
        f"this run learned from {learned.kind}, so which column of {form} its labels belong in is not known; "
        f"say it with --column, e.g. {example}"
    )


def tag_file(run: Run, file: Path | None, form: TaggedFormat, column: str | None, longest: int | None = None) -> None:
    """Write the file to standard output with predicted labels, sentence by sentence; report unknown words."""
    from sightline.data.conll import check_columns, join_words, split_words, tagged_sentences

    word, label = column_for(run.recipe, form, column)
    known = set(run.task.labels)
    out = sys.stdout.buffer  # keeps line ends
    lines = whole_lines(file)
    name = "standard input" if named(file) is None else str(file)
    short, done = Shortfalls(run.task, run.recipe.decoding, unit="sentence"), 0
    limit = InputLength.of(run, longest)
    for window in windows(tagged_sentences(_without_mark(lines), form, word, name=name)):
        if form == "columns" and column is None:
            check_columns(window, int(label), known)
        texts = [join_words(block.words) for block in window]
        limit.check(texts, name, done)
        short.add_inputs(texts)
        answers = run.predict_nbest(texts, first=done)
        for block, guesses in zip(window, answers, strict=True):
            out.write("".join(_tagged(block, split_words(guesses[0].text), label)).encode("utf-8"))
        out.flush()
        done += len(window)
    print_notes(short.notes())


def _tagged(block: TaggedSentence, labels: list[str], column: str | int) -> list[str]:
    return block.tagged(labels, column) if block.words else list(block.lines)


def _without_mark(lines: Iterator[str]) -> Iterator[str]:
    """The lines without a byte-order mark, which is written at once."""
    for number, line in enumerate(lines):
        if number == 0 and line == BOM:
            sys.stdout.buffer.write(BOM.encode("utf-8"))
        else:
            yield line


_SUFFIXES = (".mid", ".midi")


class Pieces:
    """Writes generated texts as MIDI: the first to a file, or all to a folder."""

    def __init__(self, place: Path, recipe: Recipe) -> None:
        from sightline.data.music import import_mido
        from sightline.files import check_writable
        from sightline.recipe.sources import ChoralesSource

        if not any(isinstance(source, ChoralesSource) for source in recipe.data.train):
            kinds = ", ".join(dict.fromkeys(source.kind for source in recipe.data.train))
            raise ValueError(f"--midi is for runs that learned from chorales, and this one learned from {kinds}")
        self.place, self.several = place, place.is_dir()
        if not self.several and place.suffix.lower() not in _SUFFIXES:
            raise ValueError(f"--midi {place}: name a file that ends in .mid, or a folder that exists for several")
        if not self.several:
            check_writable(place)
        import_mido()  # fail before decoding
        self.taken = 0

    def take(self, text: str) -> None:
        """Write a piece; report on standard error what was dropped."""
        from sightline.data.music import parse_events, write_midi

        self.taken += 1
        if not self.several and self.taken > 1:
            return
        path = self.place / f"piece-{self.taken:04d}.mid" if self.several else self.place
        parsed = parse_events(text)
        if not parsed.chorale.steps:
            what = f"{path}: the text has no whole step of four voices, so there is nothing to write"
            if not self.several:
                raise ValueError(f"{what}; raise decoding.max_length, or sample with another --seed")
            print(f"sightline: {what}; not written", file=sys.stderr)
            return
        write_midi(parsed.chorale, path)
        print(f"wrote {path}: {plural(len(parsed.chorale.steps), 'step')}{_lost(parsed)}", file=sys.stderr)


def _lost(parsed: ParsedChorale) -> str:
    """A note on dropped words, by reason."""
    reasons = {
        "neither pitch nor rest": parsed.unknown,
        "outside MIDI": parsed.outside,
        "of a last step that is not complete": parsed.unfinished,
    }
    counts = ", ".join(f"{count:,} {reason}" for reason, count in reasons.items() if count)
    return f"; {plural(parsed.dropped, 'word')} dropped ({counts})" if counts else ""
