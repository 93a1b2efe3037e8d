"""Sources of examples: parallel text, TSV, CSV, JSON Lines, patterns, CoNLL, chorales and generated data, streamed.

`READERS` has one function for each kind of source (registry.py), which plug-ins extend. Files may be compressed (.gz,
.xz, .bz2, .zst). Nothing is skipped or repaired silently: a file that differs from what the recipe says fails with
its name, the line and a remedy.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from sightline.data.locate import data_folder, source_files
from sightline.data.text_files import NO_LIMIT, DataError, LineLimit, LongLine, read_csv, read_lines, read_tsv
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

    A source's `share` is decided by its source side, swapped or not, so both directions split a corpus alike. If each
    word has a label (`labelled`), a line with more or fewer labels than words is an error. If lines beyond the limit
    are dropped, a `LongLine` takes the place of both sides.
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


def read_tsv_pairs(source: TsvSource, paths: list[Path], limit: LineLimit) -> Numbered:
    """Two columns of a TSV file."""
    for number, left, right in read_tsv(paths[0], source.columns, source.header, limit):
        yield number, Example(left, right)


def read_csv_pairs(source: CsvSource, paths: list[Path], limit: LineLimit) -> Numbered:
    """Two columns of a CSV file."""
    columns = (source.source, source.target)
    for number, left, right in read_csv(paths[0], columns, delimiter=source.delimiter, header=source.header):
        yield number, Example(left, right)


def read_json_lines(source: JsonLinesSource, paths: list[Path], limit: LineLimit) -> Numbered:
    """Two keys of the JSON object on each line."""
    for number, line in enumerate(read_lines(paths[0], limit), 1):
        if isinstance(line, LongLine):
            yield number, Example(line, line)
            continue
        where = f"{paths[0]}, line {number}"
        try:
            item = parse_json(line)
        except ValueError as error:
            raise DataError(f"{where}: not JSON ({error}); put one object on each line") from error
        yield number, Example(_value(item, source.source, where), _value(item, source.target, where))


def _value(item: Any, key: str, where: str) -> str:
    """A text of a JSON object."""
    if not isinstance(item, dict):
        raise DataError(f"{where}: not an object but {type(item).__name__}; put one JSON object on each line")
    if key not in item:
        keys = ", ".join(map(repr, item)) or "none"
        raise DataError(f"{where}: no key {key!r}, only {keys}; set `source` and `target` of the source in the recipe")
    value = item[key]
    if not isinstance(value, str):
        raise DataError(f"{where}: {key!r} is not a text but {type(value).__name__}; put it in quotes")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:  # JSON can escape half a surrogate pair, which is not valid text
        raise DataError(
            f"{where}: character {error.start + 1} of {key!r} is half a surrogate pair "
            f"(\\u{ord(value[error.start]):04x}), which is no character; correct the line"
        ) from error
    return value


def read_pattern(source: PatternSource, paths: list[Path], limit: LineLimit) -> Numbered:
    """The groups `source` and `target` of a regular expression that matches each line."""
    pattern = re.compile(source.pattern)
    skip = None if source.skip is None else re.compile(source.skip)
    for number, line in enumerate(read_lines(paths[0], limit), 1):
        if isinstance(line, LongLine):
            yield number, Example(line, line)
            continue
        if skip is not None and skip.search(line):
            continue
        match = pattern.fullmatch(line)
        if match is None:
            raise DataError(
                f"{paths[0]}, line {number}: {short(line)} does not match {source.pattern!r} from end to end; "
                f"change the pattern, or skip such lines with `skip`"
            )
        left, right = match["source"], match["target"]
        if left is None or right is None:
            raise DataError(f"{paths[0]}, line {number}: {short(line)} has no source or target; see the pattern")
        yield number, Example(left, right)


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
