"""The built-in corpus of dates."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

import pytest

from sightline.data.sources import part_of, read
from sightline.data.synthetic import date_formats
from sightline.data.text_files import DataError
from sightline.recipe.data import DatesSource

DAY = datetime.date(2015, 3, 3)


def test_dates_are_written_as_people_do() -> None:
    written = {name: [form.write(DAY) for form in date_formats(name)] for name in ("de", "en_US", "en_GB", "ja")}
    assert "Dienstag, 3. März 2015" in written["de"]
    assert "03.03.2015" in written["de"]
    assert {"March 3, 2015", "Mar 3, 2015", "March 3rd, 2015", "3rd of March 2015"} <= set(written["en_US"])
    assert "Tuesday, 3 March 2015" in written["en_GB"]
    assert "2015年3月3日火曜日" in written["ja"]


@pytest.mark.parametrize("day", [1, 2, 3, 4, 11, 12, 13, 21, 22, 23, 30, 31])
def test_english_ordinals_are_right(day: int) -> None:
    ending = {1: "st", 2: "nd", 3: "rd", 21: "st", 22: "nd", 23: "rd", 31: "st"}.get(day, "th")
    written = {form.write(datetime.date(2015, 1, day)) for form in date_formats("en_US")}
    assert f"January {day}{ending}, 2015" in written


def test_no_form_leaves_day_and_month_to_guess() -> None:
    names = set(DatesSource(split="train").locales) | {"ja", "ko", "fi", "cs", "ru", "hu", "tr"}
    for name in names:
        for form in date_formats(name):
            text = form.write(datetime.date(2015, 4, 3))
            assert "2015" in text
            assert re.search(r"[^\W\d]{3}|年|월", text) or re.fullmatch(r"(\w+ )?0?3\. ?0?4\. ?2015", text), text


def test_a_corpus_is_the_same_every_time_and_has_no_text_twice() -> None:
    source = DatesSource(split="train", examples=500)
    pairs = list(read(source, None))
    assert pairs == list(read(source, None))
    assert len({pair.source for pair in pairs}) == 500
    assert pairs != list(read(source.model_copy(update={"seed": 2}), None))
    assert pairs[:100] == list(read(source.model_copy(update={"examples": 100}), None))


def test_no_date_is_in_two_parts() -> None:
    parts = ("train", "validation", "test")
    dates = {part: {pair.target for pair in read(DatesSource(split=part, examples=1_000), None)} for part in parts}
    for part in parts:
        assert {part_of(date) for date in dates[part]} == {part}


def test_a_wrong_locale_and_too_many_examples_are_named() -> None:
    with pytest.raises(DataError, match=r"locales: 'xx_YY' is not one that Babel knows"):
        list(read(DatesSource(split="test", locales=("xx_YY",)), Path()))
    with pytest.raises(
        DataError, match=r"examples: 30,000 are more than the [\d,]+ different .* test part .* lower `examples`"
    ):
        list(read(DatesSource(split="test", locales=("pl", "pl"), examples=30_000), None))
