"""Files to examples, streaming: two texts side by side, TSV, JSON Lines, any lines with a pattern, built-in dates.

Plain or compressed by suffix (.gz, .xz, .bz2, .zst). Nothing is skipped or mended in silence: a file that is not as
the recipe says fails with its name, the line and a remedy.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from sightline.data.corpora.places import corpora_folders
from sightline.data.splitting import place
from sightline.data.tables import read_csv, read_tsv
from sightline.data.text_lines import UNBOUNDED, Bound, LongLine
from sightline.data.text_lines import DataError as DataError
from sightline.data.text_lines import read_lines as read_lines
from sightline.files import parse_json
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
from sightline.terminal import plural
from sightline.text.labels import uneven_labels
from sightline.text.shown import short
from sightline.text.spelling import spelled


class Example(NamedTuple):
    """A source text and the target text it should become."""

    source: str
    target: str


class MovedFolder(UserWarning):
    """A corpus is not where a recipe has it, and one of its name is among the corpora of this machine."""


def resolve_folder(folder: str | None, recipe: Path | None) -> Path | None:
    """Where relative file names of a recipe start.

    A folder is looked for beside the recipe file, then in $SIGHTLINE_CORPORA; an absolute one where it should be, then
    there by its name alone: a run saves absolute folders, and may have been trained on another machine. Without a
    folder, names start beside the recipe (or, when there is no recipe file either, where we stand: None).
    """
    if folder is None:
        return None if recipe is None else recipe.resolve().parent
    wanted = Path(folder).expanduser()
    for found in (places := _places(wanted, recipe)):
        if found.is_dir():
            if wanted.is_absolute() and found != wanted:
                said = f"data.folder: {wanted} is not here; its files are read from {found} ($SIGHTLINE_CORPORA)"
                warnings.warn(MovedFolder(said), stacklevel=1)
            return found
    raise _no_folder(folder, places)


def folder_here(folder: str) -> Path:
    """The folder of a run, wherever it was trained (see `resolve_folder`).

    Where there is none it is what the recipe says: an error for whoever wants a file in it, and for nobody else.
    """
    try:
        return resolve_folder(folder, None) or Path(folder)
    except DataError:
        return Path(folder)


def _places(wanted: Path, recipe: Path | None) -> list[Path]:
    """Where a folder may lie, best first."""
    beside = (recipe.resolve().parent if recipe is not None else Path.cwd()) / wanted
    among = [folder / (wanted.name if wanted.is_absolute() else wanted) for folder in corpora_folders()]
    return list(dict.fromkeys([beside, *among]))


def _no_folder(folder: str, places: Sequence[Path]) -> DataError:
    if Path(folder).is_absolute():
        told = "there is no " + " and no ".join(map(str, places))
    else:
        looked = "not " + str(places[0]) if len(places) == 1 else "neither " + " nor ".join(map(str, places))
        told = f"{folder!r} is {looked}"
    unset = "" if os.environ.get("SIGHTLINE_CORPORA") else " ($SIGHTLINE_CORPORA is not set)"
    return DataError(
        f"data.folder: {told}{unset}; {_how_to_get(folder)}set data.folder (of a run, in its recipe.yaml) to where the "
        f"corpus lies, or SIGHTLINE_CORPORA to the folder that holds it"
    )


def _how_to_get(folder: str) -> str:
    """The command that gets a corpus, where it is one of the catalogue."""
    from sightline.data.corpora.catalogue import catalogue

    name = Path(folder).name
    return f"get it with `sightline data get {name}`, or " if name in catalogue() else ""


def source_files(source: AnySource, folder: Path | None) -> list[Path]:
    """The files a source reads; all of them exist."""
    paths = [(folder or Path()) / Path(getattr(source, key)).expanduser() for key in source.file_keys]
    for path in paths:
        if path.is_file():
            continue
        if folder is not None and path.is_relative_to(folder) and not folder.is_dir():
            raise _no_folder(str(folder), _places(folder, None))
        remedy = _how_to_get(str(path.absolute().resolve().parent))
        raise DataError(
            f"{path} does not exist; {remedy}check its name in the recipe, data.folder and SIGHTLINE_CORPORA"
        )
    return paths


def read(
    source: AnySource,
    folder: Path | None,
    *,
    swap: bool = False,
    labelled: bool = False,
    bound: Bound = UNBOUNDED,
) -> Iterator[Example]:
    """The examples of one source in their order, with the sides exchanged if `swap`.

    A source's `share` looks at its own source side even when swapped, so both directions split a corpus alike. Where
    each word has a label (`labelled`), a line with more or fewer labels than words is an error. Where lines beyond the
    bound are dropped, a `LongLine` stands on both sides in place of the example.
    """
    spell = isinstance(source, PatternSource) and source.spell
    for number, example in _numbered(source, folder, bound):
        if source.share is not None and not source.share[0] <= place(example.source) < source.share[1]:
            continue
        if spell:
            example = Example(spelled(example.source), example.target)
        if swap:
            example = Example(example.target, example.source)
        if labelled and (wrong := uneven_labels(*example)) is not None:
            files = " and ".join(map(str, source_files(source, folder))) or f"kind: {source.kind}"
            raise DataError(f"{files}, line {number}: {wrong}")
        yield example


def _numbered(source: AnySource, folder: Path | None, bound: Bound) -> Iterator[tuple[int, Example]]:
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


def _read_all(source: AnySource, folder: Path | None, bound: Bound) -> Iterator[Example]:
    """All examples of a source, as its files have them; tables and lines with a pattern are `_numbered`."""
    if isinstance(source, DatesSource):
        from sightline.data.dates import read_dates  # Babel is only needed here

        return read_dates(source)
    if isinstance(source, SequencesSource):
        from sightline.data.sequences import read_sequences

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
        from sightline.data import tagged

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
                moved = music.transposed(chorale, semitones)
            except ValueError as error:
                raise DataError(f"{path}, {source.split}, piece {number}, {error} (see transpose)") from error
            yield Example("", music.to_events(moved))


def _read_text(source: Path, target: Path, bound: Bound) -> Iterator[Example]:
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


def _read_json_lines(path: Path, source: str, target: str, bound: Bound) -> Iterator[Example]:
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


def _matched(path: Path, source: PatternSource, bound: Bound) -> Iterator[tuple[int, Example]]:
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
