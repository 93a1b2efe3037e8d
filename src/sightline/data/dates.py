"""The built-in corpus: dates as people write them, in many languages, and the same dates in ISO 8601.

"Dienstag, 3. März 2015" -> "2015-03-03". Small enough to learn in a minute, real enough to need attention: the order
of day, month and year changes with the language, and month names must be read, not copied. What a date hashes to
decides whether it is for training, validation or test, so no date, in whatever form, is in two parts.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from babel import Locale, UnknownLocaleError
from babel.dates import DateTimePattern, parse_pattern

from sightline.data.sources import DataError, Example
from sightline.data.splitting import part_of
from sightline.recipe.data import DatesSource

FIRST, LAST = datetime.date(1900, 1, 1), datetime.date(2099, 12, 31)

_NAMED = ("full", "long", "medium")
_SKELETONS = ("yMMMd", "yMMMEd", "yMMMMd", "yMMMMEEEEd")
# Numbers alone tell day from month only where everybody agrees on the order: 3.4.2015, 2015年4月3日.
_CLEAR_NUMBERS = re.compile(r".*年.*|((E+|c+)[, ]*)?d+\. ?M+\. ?y+\.?")
_ENGLISH = ("MMMM 'DAY', y", "'DAY' MMMM y", "EEEE, MMMM 'DAY', y", "'DAY' 'of' MMMM y")


@dataclass(frozen=True)
class Form:
    """One way to write a date; "DAY" in an English pattern is the day as people say it, 3rd."""

    locale: Locale
    pattern: DateTimePattern

    def write(self, day: datetime.date) -> str:
        """The date in this form."""
        return self.pattern.apply(day, self.locale).replace("DAY", _ordinal(day.day))


def read_dates(source: DatesSource) -> Iterator[Example]:
    """Pairs of a written date and the same date in ISO 8601: a pure function of the source (and Babel's version).

    No text comes twice: one that could mean two dates (the names of months in two languages may clash) means the
    first that was drawn.
    """
    forms = [form for name in source.locales for form in forms_of(name)]
    dates = [day for day in _days() if part_of(day.isoformat()) == source.split]
    random = Random(f"{source.seed}:{source.split}")
    most = len({form.write(dates[0]) for form in forms}) * len(dates) * 9 // 10  # the last take for ever to find
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


def _days() -> Iterator[datetime.date]:
    for ordinal in range(FIRST.toordinal(), LAST.toordinal() + 1):
        yield datetime.date.fromordinal(ordinal)


def forms_of(name: str) -> list[Form]:
    """The ways a date is written in a language, each once, without those that could mean another date."""
    try:
        locale = Locale.parse(name)
    except (UnknownLocaleError, ValueError) as error:
        raise DataError(f"locales: {name!r} is not one that Babel knows ({error}); try en_US, de or fr") from error
    known = locale.datetime_skeletons
    patterns = [str(locale.date_formats[form]) for form in _NAMED]
    patterns += [str(known[skeleton]) for skeleton in _SKELETONS if skeleton in known]
    clear = [pattern for pattern in dict.fromkeys(patterns) if "MMM" in pattern or _CLEAR_NUMBERS.fullmatch(pattern)]
    clear += _ENGLISH if locale.language == "en" else ()
    return [Form(locale, parse_pattern(pattern)) for pattern in clear]


def _ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th, ... 11th, ... 21st."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number // 10 != 1 else "th"
    return f"{number}{ending}"
