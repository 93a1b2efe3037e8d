"""Sources of examples: parallel text, TSV, CSV, JSON Lines, patterns, CoNLL, chorales and generated data, streamed.

`READERS` has one function for each kind of source (registry.py), which plug-ins extend. Files may be compressed (.gz,
.xz, .bz2, .zst). Nothing is skipped or repaired silently: a file that differs from what the recipe says fails with
its name, the line and a remedy.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from sightline.data.locate import data_folder, source_files
from sightline.data.text_files import (
    NO_LIMIT,
    DataError,
    LineLimit,
    LongLine,
    open_lines,
    read_csv,
    read_lines,
)
from sightline.files import parse_json
from sightline.recipe import Recipe
from sightline.recipe.sources import (
    AnySource,
    CsvSource,
    JsonLinesSource,
    PatternSource,
    PlainSource,
    TextSource,
    TsvSource,
)
from sightline.registry import Implementations
from sightline.terminal import plural, short
from sightline.text.tokenizer import spell_out
from sightline.text.vocabulary import uneven_labels

READERS = Implementations("source")  # kind → (source, its files, limit) → numbered examples

SPLITS = {"train": (0.0, 0.8), "validation": (0.8, 0.9), "test": (0.9, 1.0)}  # of generated corpora


class Example(NamedTuple):
    """A source text and its target text."""

    source: str
    target: str


Numbered = Iterator[tuple[int, Example]]  # examples with their line numbers, or counted


def read(
    source: AnySource,
    folder: Path | None,
    *,
    swap: bool = False,
    labelled: bool = False,
    limit: LineLimit = NO_LIMIT,
) -> Iterator[Example]:
    """The examples of one source in order; with `swap`, source and target are exchanged.

    The source side, swapped or not, decides whether an example is in a `share`, so both directions split a corpus the
    same way. If each word has a label (`labelled`), a line with more or fewer labels than words is an error. If lines
    beyond the limit are dropped, a `LongLine` takes the place of both sides.
    """
    paths = source_files(source, folder)
    spell = isinstance(source, PatternSource) and source.spell
    for number, example in READERS[source.kind](source, paths, limit):
        if source.share is not None and not source.share[0] <= split_position(example.source) < source.share[1]:
            continue
        if spell:
            example = Example(spell_out(example.source), example.target)
        if swap:
            example = Example(example.target, example.source)
        if labelled and (problem := uneven_labels(*example)) is not None:
            files = " and ".join(map(str, paths)) or f"kind: {source.kind}"
            raise DataError(f"{files}, line {number}: {problem}")
        yield example


def training_examples(recipe: Recipe) -> Iterator[Example]:
    """The training examples of a recipe, before cleaning."""
    return recipe_examples(recipe, recipe.data.train, recipe.data.limit, drop=True)


def recipe_examples(
    recipe: Recipe, sources: Sequence[AnySource], limit: int | None, *, drop: bool = False
) -> Iterator[Example]:
    """The first `limit` examples of some sources of a recipe; with `drop`, too long lines are dropped."""
    options: Any = {
        "swap": recipe.data.swap,
        "labelled": recipe.task_spec.labels == "words",
        "limit": line_limit(recipe, drop=drop),
    }
    examples = chain.from_iterable(read(source, data_folder(recipe), **options) for source in sources)
    for example in islice(examples, limit):
        yield Example("", example.target) if recipe.of_text else example


def line_limit(recipe: Recipe, *, drop: bool = False) -> LineLimit:
    """The longest line of a recipe's data. Plain text is cut into windows, so its lines are not limited."""
    if recipe.of_text:
        return NO_LIMIT
    return LineLimit(recipe.data.clean.longest_line, drop, "cut it into shorter ones, or raise data.clean.max_tokens")


def split_position(text: str) -> float:
    """The hash of a text as a number in [0, 1), the same on every machine: it decides between splits."""
    digest = hashlib.blake2b(text.strip().encode("utf-8"), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / (1 << 53)


def part_of(text: str) -> str:
    """The split of a generated corpus that a text belongs to."""
    position = split_position(text)
    return next(part for part, (start, stop) in SPLITS.items() if start <= position < stop)


def read_parallel(source: TextSource, paths: list[Path], limit: LineLimit) -> Numbered:
    """Two text files, line by line."""
    sides = (read_lines(paths[0], limit), read_lines(paths[1], limit))
    for number, (left, right) in enumerate(zip_longest(*sides), 1):
        if left is None or right is None:
            longer, shorter = paths if right is None else paths[::-1]
            count = number + sum(1 for _ in sides[0 if right is None else 1])
            raise DataError(
                f"{paths[0]} and {paths[1]} do not go together: {longer.name} has {plural(count, 'line')} and "
                f"{shorter.name} has {number - 1:,}; line {number:,} of {longer} is the first without a partner. "
                f"Align the files line by line"
            )
        long = next((line for line in (left, right) if isinstance(line, LongLine)), None)
        yield number, Example(left, right) if long is None else Example(long, long)


def _parse_lines(path: Path, parse: Callable[[str], Example | None], limit: LineLimit, *, skip: int = 0) -> Numbered:
    """The example of each line after the first `skip`; `parse` returns None for lines without one.

    A ValueError of `parse` becomes a DataError with file and line. Too long lines are not parsed.
    """
    for number, line in islice(enumerate(read_lines(path, limit), 1), skip, None):
        try:
            example = Example(line, line) if isinstance(line, LongLine) else parse(line)
        except ValueError as error:
            raise DataError(f"{path}, line {number}: {error}") from error
        if example is not None:
            yield number, example


class SkippedHeader(UserWarning):
    """The first line of a TSV file is a header and was skipped."""


_SAMPLE = 200  # lines that are compared with the first
_COLUMN_NAME = re.compile(
    "source|target|src|tgt|trg|input|output|texts?|sentence[12]?|labels?|class|category|tags?|translation|question|"
    "answer|query|reference|summary|document|article|review|title|sentiment|words?"
)


def is_header(cells: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Return True if the first line is a header: all cells are column names that do not recur in their column."""
    plain = [cell.strip().strip("\"'#").lower() for cell in cells]
    if not rows or not all(map(_COLUMN_NAME.fullmatch, plain)):
        return False
    return not any(row[place].strip().lower() == name for row in rows for place, name in enumerate(plain))


def read_tsv_pairs(source: TsvSource, paths: list[Path], limit: LineLimit) -> Numbered:
    """Two columns of tab-separated lines, without the header; `auto` skips an evident header, with a warning."""
    path, needed = paths[0], max(source.columns)

    def cells(line: str) -> list[str]:
        row = line.split("\t")
        return [row[number - 1] for number in source.columns] if len(row) >= needed else []

    def parse(line: str) -> Example:
        if row := cells(line):
            return Example(*row)
        count = plural(line.count("\t") + 1, "column")
        raise ValueError(
            f"{count}, and columns: {list(source.columns)} needs {needed} with tabs between them; correct the line "
            f"({short(line)}) or set columns"
        )

    header = source.header
    if header == "auto":
        first = [line for line in islice(open_lines(path, limit.most), 1 + _SAMPLE) if not isinstance(line, LongLine)]
        rows = [row for row in map(cells, first[1:]) if row]
        header = bool(first and cells(first[0])) and is_header(cells(first[0]), rows)
        if header:
            warning = (
                f"{path}, line 1 names the columns ({short(first[0])}) and is skipped; set header of the source to "
                f"true, or to false if it is an example"
            )
            warnings.warn(SkippedHeader(warning), stacklevel=2)
    return _parse_lines(path, parse, limit, skip=int(header))


def read_csv_pairs(source: CsvSource, paths: list[Path], limit: LineLimit) -> Numbered:
    """Two columns of a CSV file."""
    columns = (source.source, source.target)
    for number, left, right in read_csv(paths[0], columns, delimiter=source.delimiter, header=source.header):
        yield number, Example(left, right)


def read_json_lines(source: JsonLinesSource, paths: list[Path], limit: LineLimit) -> Numbered:
    """Two keys of the JSON object on each line."""

    def parse(line: str) -> Example:
        try:
            item = parse_json(line)
        except ValueError as error:
            raise ValueError(f"not JSON ({error}); put one object on each line") from error
        return Example(_value(item, source.source), _value(item, source.target))

    return _parse_lines(paths[0], parse, limit)


def _value(item: Any, key: str) -> str:
    """A text of a JSON object."""
    if not isinstance(item, dict):
        raise ValueError(f"not an object but {type(item).__name__}; put one JSON object on each line")
    if key not in item:
        keys = ", ".join(map(repr, item)) or "none"
        raise ValueError(f"no key {key!r}, only {keys}; set `source` and `target` of the source in the recipe")
    value = item[key]
    if not isinstance(value, str):
        raise ValueError(f"{key!r} is not a text but {type(value).__name__}; put it in quotes")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:  # JSON can escape half a surrogate pair, which is not valid text
        raise ValueError(
            f"character {error.start + 1} of {key!r} is half a surrogate pair (\\u{ord(value[error.start]):04x}), "
            f"which is no character; correct the line"
        ) from error
    return value


def read_pattern(source: PatternSource, paths: list[Path], limit: LineLimit) -> Numbered:
    """The groups `source` and `target` of a regular expression that matches each line."""
    pattern = re.compile(source.pattern)
    skip = None if source.skip is None else re.compile(source.skip)

    def parse(line: str) -> Example | None:
        if skip is not None and skip.search(line):
            return None
        match = pattern.fullmatch(line)
        if match is None:
            raise ValueError(
                f"{short(line)} does not match {source.pattern!r} from end to end; change the pattern, or skip such "
                f"lines with `skip`"
            )
        if match["source"] is None or match["target"] is None:
            raise ValueError(f"{short(line)} has no source or target; see the pattern")
        return Example(match["source"], match["target"])

    return _parse_lines(paths[0], parse, limit)


def read_plain(source: PlainSource, paths: list[Path], limit: LineLimit) -> Numbered:
    """Documents for language models: the source is empty."""
    first, last = source.part
    if source.document == "file":
        text = "\n".join(read_lines(paths[0]))
        yield 1, Example("", text[round(first * len(text)) : round(last * len(text))])
        return
    lines = read_lines(paths[0])
    if (first, last) != (0.0, 1.0):
        all_lines = list(lines)
        lines = iter(all_lines[round(first * len(all_lines)) : round(last * len(all_lines))])
    yield from enumerate((Example("", line) for line in lines if line.strip()), 1)
