"""Sources of examples: parallel text, TSV, CSV, JSON Lines, patterns, CoNLL, chorales and generated data, streamed.

Files may be compressed (.gz, .xz, .bz2, .zst). Nothing is skipped or repaired silently: a file that differs from what
the recipe says fails with its name, the line and a remedy.
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
from sightline.recipe.data import (
    AnySource,
    ChoralesSource,
    ColumnsSource,
    ConlluSource,
    CsvSource,
    DatesSource,
    JsonLinesSource,
    PatternSource,
    PhrasesSource,
    PlainSource,
    SequencesSource,
    TextSource,
    TsvSource,
)
from sightline.terminal import plural, short
from sightline.text.tokenizer import spell_out
from sightline.text.vocabulary import uneven_labels


class Example(NamedTuple):
    """A source text and the target text it should become."""

    source: str
    target: str


def read(
    source: AnySource,
    folder: Path | None,
    *,
    swap: bool = False,
    labelled: bool = False,
    bound: LineLimit = NO_LIMIT,
) -> Iterator[Example]:
    """The examples of one source in their order, with the sides exchanged if `swap`.

    A source's `share` looks at its own source side even when swapped, so both directions split a corpus alike. Where
    each word has a label (`labelled`), a line with more or fewer labels than words is an error. Where lines beyond the
    bound are dropped, a `LongLine` stands on both sides in place of the example.
    """
    spell = isinstance(source, PatternSource) and source.spell
    for number, example in _numbered(source, folder, bound):
        if source.share is not None and not source.share[0] <= split_position(example.source) < source.share[1]:
            continue
        if spell:
            example = Example(spell_out(example.source), example.target)
        if swap:
            example = Example(example.target, example.source)
        if labelled and (wrong := uneven_labels(*example)) is not None:
            files = " and ".join(map(str, source_files(source, folder))) or f"kind: {source.kind}"
            raise DataError(f"{files}, line {number}: {wrong}")
        yield example


def _numbered(source: AnySource, folder: Path | None, bound: LineLimit) -> Iterator[tuple[int, Example]]:
    """All examples of a source, each with its line where it has one of its own, else counted."""
    if isinstance(source, PatternSource):
        return _matched(source_files(source, folder)[0], source, bound)
    if isinstance(source, TsvSource):
        rows = read_tsv(source_files(source, folder)[0], source.columns, source.header, bound)
        return ((number, Example(left, right)) for number, left, right in rows)
    if isinstance(source, CsvSource):
        path, wanted = source_files(source, folder)[0], (source.source, source.target)
        cells = read_csv(path, wanted, delimiter=source.delimiter, header=source.header)
        return ((number, Example(left, right)) for number, left, right in cells)
    return enumerate(_read_all(source, folder, bound), 1)


def _read_all(source: AnySource, folder: Path | None, bound: LineLimit) -> Iterator[Example]:
    """All examples of a source, as its files have them; tables and lines with a pattern are `_numbered`."""
    if isinstance(source, DatesSource):
        from sightline.data.synthetic import read_dates  # Babel is only needed here

        return read_dates(source)
    if isinstance(source, SequencesSource):
        from sightline.data.synthetic import read_sequences

        return read_sequences(source)
    if isinstance(source, PhrasesSource):
        from sightline.data.phrases import read_phrases

        return read_phrases(source)
    paths = source_files(source, folder)
    if isinstance(source, TextSource):
        return _read_text(paths[0], paths[1], bound)
    if isinstance(source, JsonLinesSource):
        return _read_json_lines(paths[0], source.source, source.target, bound)
    if isinstance(source, PlainSource):
        return _read_plain(paths[0], source)
    if isinstance(source, ConlluSource | ColumnsSource):
        from sightline.data import conll as tagged

        if isinstance(source, ConlluSource):
            return tagged.read_conllu(paths[0], source.column)
        return tagged.read_columns(paths[0], source.word, source.label)
    assert isinstance(source, ChoralesSource)
    return _read_chorales(paths[0], source)


def _read_plain(path: Path, source: PlainSource) -> Iterator[Example]:
    """Documents: nothing to read, a text to write."""
    first, last = source.part
    if source.document == "file":
        text = "\n".join(read_lines(path))
        yield Example("", text[round(first * len(text)) : round(last * len(text))])
        return
    lines = read_lines(path)
    if (first, last) != (0.0, 1.0):
        every = list(lines)
        lines = iter(every[round(first * len(every)) : round(last * len(every))])
    yield from (Example("", line) for line in lines if line.strip())


def _read_chorales(path: Path, source: ChoralesSource) -> Iterator[Example]:
    from sightline.data import music

    for number, chorale in enumerate(music.read_chorales(path, source.split), 1):
        for semitones in source.transpose:
            try:
                moved = music.transpose(chorale, semitones)
            except ValueError as error:
                raise DataError(f"{path}, {source.split}, piece {number}, {error} (see transpose)") from error
            yield Example("", music.to_events(moved))


def _read_text(source: Path, target: Path, bound: LineLimit) -> Iterator[Example]:
    sides = (read_lines(source, bound), read_lines(target, bound))
    for number, (left, right) in enumerate(zip_longest(*sides), 1):
        if left is None or right is None:
            longer, shorter = (source, target) if right is None else (target, source)
            count = number + sum(1 for _ in sides[0 if right is None else 1])
            raise DataError(
                f"{source} and {target} do not go together: {longer.name} has {plural(count, 'line')} and "
                f"{shorter.name} "
                f"has {number - 1:,}; line {number:,} of {longer} is the first without a partner. "
                f"Align the files line by line"
            )
        long = next((line for line in (left, right) if isinstance(line, LongLine)), None)
        yield Example(left, right) if long is None else Example(long, long)


def _read_json_lines(path: Path, source: str, target: str, bound: LineLimit) -> Iterator[Example]:
    for number, line in enumerate(read_lines(path, bound), 1):
        if isinstance(line, LongLine):
            yield Example(line, line)
            continue
        try:
            item = parse_json(line)
        except ValueError as error:
            raise DataError(f"{path}, line {number}: not JSON ({error}); put one object on each line") from error
        where = f"{path}, line {number}"
        yield Example(_value(item, source, where), _value(item, target, where))


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
    except UnicodeEncodeError as error:  # JSON can escape half a surrogate pair; no file can hold it
        raise DataError(
            f"{where}: character {error.start + 1} of {key!r} is half a surrogate pair "
            f"(\\u{ord(value[error.start]):04x}), which is no character; mend the line"
        ) from error
    return value


def _matched(path: Path, source: PatternSource, bound: LineLimit) -> Iterator[tuple[int, Example]]:
    """The example of each line that is not passed over, with its number."""
    pattern = re.compile(source.pattern)
    skip = None if source.skip is None else re.compile(source.skip)
    for number, line in enumerate(read_lines(path, bound), 1):
        if isinstance(line, LongLine):
            yield number, Example(line, line)
            continue
        if skip is not None and skip.search(line):
            continue
        match = pattern.fullmatch(line)
        if match is None:
            raise DataError(
                f"{path}, line {number}: {short(line)} does not match {source.pattern!r} from end to end; "
                f"change the pattern, or pass such lines over with skip"
            )
        left, right = match["source"], match["target"]
        if left is None or right is None:
            raise DataError(f"{path}, line {number}: {short(line)} has no source or target; see the pattern")
        yield number, Example(left, right)


SPLITS = {"train": (0.0, 0.8), "validation": (0.8, 0.9), "test": (0.9, 1.0)}  # of what is built in


def split_position(text: str) -> float:
    """Where a text falls in [0, 1): evenly spread, and the same for the same text everywhere and always."""
    digest = hashlib.blake2b(text.strip().encode("utf-8"), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / (1 << 53)


def part_of(text: str) -> str:
    """The part of a built-in corpus that a text belongs to."""
    spot = split_position(text)
    return next(part for part, (start, stop) in SPLITS.items() if start <= spot < stop)


def line_limit(recipe: Recipe, *, drop: bool = False) -> LineLimit:
    """The longest line that is read of pairs; of plain text, which is cut into windows, any line a machine can hold."""
    if recipe.of_text:
        return NO_LIMIT
    return LineLimit(recipe.data.clean.longest_line, drop, "cut it into shorter ones, or raise data.clean.max_tokens")


def recipe_examples(
    recipe: Recipe, sources: Sequence[AnySource], limit: int | None, *, drop: bool = False
) -> Iterator[Example]:
    how: Any = {
        "swap": recipe.data.swap,
        "labelled": recipe.task_spec.labels == "words",
        "bound": line_limit(recipe, drop=drop),
    }
    every = chain.from_iterable(read(source, data_folder(recipe), **how) for source in sources)
    for example in islice(every, limit):
        yield Example("", example.target) if recipe.of_text else example


def training_examples(recipe: Recipe) -> Iterator[Example]:
    """The texts a recipe trains on, before any of them is cleaned away."""
    return recipe_examples(recipe, recipe.data.train, recipe.data.limit, drop=True)
