"""Generated data: dates in many languages with their ISO 8601 form, letters to copy or reverse, and to recall.

Dates: "Dienstag, 3. März 2015" -> "2015-03-03". The data is learned in a minute and needs attention: the order of day,
month and year depends on the language, and month names must be read, not copied.

Sequences: "q c a" -> "q c a" or "a c q". Only the position of each letter matters, so the accuracy on sequences longer
than those in training measures how well positional encodings extrapolate.

Recall: "c x y y = c". The letter after "=" is the first one of the line, so a model must carry it past all fillers.
There are only a few such lines with few fillers, so splits have these in common.

The hash of a date or a sequence decides between training, validation and test, so no date or sequence is in two splits.
"""

from __future__ import annotations

import datetime
import re
import string
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from sightline.data.sources import Example, Numbered, part_of
from sightline.data.text_files import DataError, LineLimit
from sightline.recipe.sources import DatesSource, RecallSource, SequencesSource

if TYPE_CHECKING:
    from babel import Locale
    from babel.dates import DateTimePattern

FIRST, LAST = datetime.date(1900, 1, 1), datetime.date(2099, 12, 31)

_NAMED = ("full", "long", "medium")
_SKELETONS = ("yMMMd", "yMMMEd", "yMMMMd", "yMMMMEEEEd")
# Numbers distinguish day and month only where the order is unambiguous: 3.4.2015, 2015年4月3日.
_CLEAR_NUMBERS = re.compile(r".*年.*|((E+|c+)[, ]*)?d+\. ?M+\. ?y+\.?")
_ENGLISH = ("MMMM 'DAY', y", "'DAY' MMMM y", "EEEE, MMMM 'DAY', y", "'DAY' 'of' MMMM y")


@dataclass(frozen=True)
class DateFormat:
    """One way to write a date; "DAY" in an English pattern is the ordinal, 3rd."""

    locale: Locale
    pattern: DateTimePattern

    def write(self, day: datetime.date) -> str:
        """The date in this format."""
        ending = "th" if 11 <= day.day <= 13 else {1: "st", 2: "nd", 3: "rd"}.get(day.day % 10, "th")
        return self.pattern.apply(day, self.locale).replace("DAY", f"{day.day}{ending}")


def read_dates(source: DatesSource) -> Iterator[Example]:
    """Pairs of a written date and the same date in ISO 8601: a pure function of the source (and Babel's version).

    No text occurs twice: of two dates with the same text (month names of two languages may clash), the first one drawn
    is kept.
    """
    forms = [form for name in source.locales for form in date_formats(name)]
    days = map(datetime.date.fromordinal, range(FIRST.toordinal(), LAST.toordinal() + 1))
    dates = [day for day in days if part_of(day.isoformat()) == source.split]
    random = Random(f"{source.seed}:{source.split}")
    most = len({form.write(dates[0]) for form in forms}) * len(dates) * 9 // 10  # the last take forever
    if source.examples > most:
        raise DataError(
            f"examples: {source.examples:,} are more than the {most:,} different dates that the {source.split} part "
            f"has in these locales; lower `examples` or add `locales`"
        )
    seen: set[str] = set()
    while len(seen) < source.examples:
        day = random.choice(dates)
        text = random.choice(forms).write(day)
        if text not in seen:
            seen.add(text)
            yield Example(text, day.isoformat())


def date_formats(name: str) -> list[DateFormat]:
    """The date formats of a language, without ambiguous ones."""
    from babel import Locale, UnknownLocaleError
    from babel.dates import parse_pattern

    try:
        locale = Locale.parse(name)
    except (UnknownLocaleError, ValueError) as error:
        raise DataError(f"locales: {name!r} is not one that Babel knows ({error}); try en_US, de or fr") from error
    known = locale.datetime_skeletons
    patterns = [str(locale.date_formats[form]) for form in _NAMED]
    patterns += [str(known[skeleton]) for skeleton in _SKELETONS if skeleton in known]
    clear = [pattern for pattern in dict.fromkeys(patterns) if "MMM" in pattern or _CLEAR_NUMBERS.fullmatch(pattern)]
    clear += _ENGLISH if locale.language == "en" else ()
    return [DateFormat(locale, parse_pattern(pattern)) for pattern in clear]


_PATIENCE = 10_000  # draws for one example; a split has at least a tenth of all sequences


def read_sequences(source: SequencesSource) -> Iterator[Example]:
    """Pairs of a sequence and its copy or its reverse: a pure function of the source.

    Both operations use the same sequences. A length without a sequence in this split (few of the 26 single letters are
    for tests) is skipped; it is an error if no length has one.
    """
    letters = string.ascii_lowercase[: source.symbols]
    random = Random(f"{source.seed}:{source.split}:{source.symbols}:{source.lengths}")
    for _ in range(source.examples):
        for _ in range(_PATIENCE):
            sequence = "".join(random.choices(letters, k=random.randint(*source.lengths)))
            if part_of(sequence) == source.split:
                break
        else:
            raise DataError(
                f"lengths: {list(source.lengths)} of {source.symbols} symbols have no sequence in the {source.split} "
                f"part; raise `lengths` or `symbols`"
            )
        answer = sequence if source.operation == "copy" else sequence[::-1]
        yield Example(" ".join(sequence), " ".join(answer))


FILLERS, RECALL = "xy", "="


def read_recall(source: RecallSource) -> Iterator[Example]:
    """Lines that end with their first letter: a pure function of the source."""
    letters = string.ascii_lowercase[: source.symbols]
    random = Random(f"recall:{source.seed}:{source.split}:{source.symbols}:{source.fillers}")
    for _ in range(source.examples):
        letter = random.choice(letters)
        fillers = random.choices(FILLERS, k=random.randint(*source.fillers))
        yield Example("", " ".join([letter, *fillers, RECALL, letter]))


def read_dates_source(source: DatesSource, paths: list[Path], limit: LineLimit) -> Numbered:
    """The examples of `kind: dates`."""
    return enumerate(read_dates(source), 1)


def read_sequences_source(source: SequencesSource, paths: list[Path], limit: LineLimit) -> Numbered:
    """The examples of `kind: sequences`."""
    return enumerate(read_sequences(source), 1)


def read_recall_source(source: RecallSource, paths: list[Path], limit: LineLimit) -> Numbered:
    """The examples of `kind: recall`."""
    return enumerate(read_recall(source), 1)
