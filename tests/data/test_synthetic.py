"""Generated data: dates, and sequences to copy or reverse."""

from __future__ import annotations

import datetime
import re
from collections import Counter
from pathlib import Path

import pytest
from pydantic import ValidationError

from sightline.data.locate import source_files
from sightline.data.sources import part_of, read
from sightline.data.store import _identity
from sightline.data.synthetic import date_formats
from sightline.data.text_files import DataError
from sightline.recipe.sources import DatesSource, SequencesSource

DAY = datetime.date(2015, 3, 3)


def test_date_formats_of_languages() -> None:
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


def test_ambiguous_date_formats_are_left_out() -> None:
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


def test_splits_share_no_date() -> None:
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


def test_a_sequence_is_copied_or_reversed_word_by_word() -> None:
    copied = list(read(SequencesSource(split="train", examples=50), None))
    reversed_ = list(read(SequencesSource(split="train", examples=50, operation="reverse"), None))
    assert all(pair.target == pair.source for pair in copied)
    assert all(pair.target.split() == pair.source.split()[::-1] for pair in reversed_)
    assert [pair.source for pair in copied] == [pair.source for pair in reversed_]
    assert all(len(word) == 1 for pair in copied for word in pair.source.split(" "))


def test_sequences_are_deterministic_for_every_number_of_examples() -> None:
    source = SequencesSource(split="train", examples=500)
    pairs = list(read(source, None))
    assert pairs[:2] == [*read(source.model_copy(update={"examples": 2}), None)]
    assert pairs == list(read(source, None))
    assert pairs != list(read(source.model_copy(update={"seed": 2}), None))


def test_sequences_are_unchanged() -> None:
    source = SequencesSource(split="test", examples=2, lengths=(4, 6))
    assert [pair.source for pair in read(source, None)] == ["u e s x p", "b t e n"]


def test_sequence_lengths_are_uniform() -> None:
    pairs = read(SequencesSource(split="train", examples=4_000, lengths=(5, 8)), None)
    counts = Counter(len(pair.source.split()) for pair in pairs)
    assert set(counts) == {5, 6, 7, 8}
    assert all(850 < count < 1_150 for count in counts.values())  # 1,000 ± 5 standard deviations


def test_only_the_first_symbols_are_used() -> None:
    pairs = read(SequencesSource(split="train", examples=200, symbols=3), None)
    assert {word for pair in pairs for word in pair.source.split()} == {"a", "b", "c"}


def test_splits_share_no_sequence() -> None:
    parts = ("train", "validation", "test")
    found = {
        part: {pair.source for pair in read(SequencesSource(split=part, examples=2_000, lengths=(1, 3)), None)}
        for part in parts
    }
    for part in parts:
        assert {part_of(text.replace(" ", "")) for text in found[part]} == {part}


def test_impossible_lengths_are_an_error() -> None:
    told = r"lengths: \[1, 1\] of 2 symbols have no sequence in the \w+ part; raise `lengths` or `symbols`"
    empty = ({"train", "validation", "test"} - {part_of("a"), part_of("b")}).pop()
    with pytest.raises(DataError, match=told):
        list(read(SequencesSource.model_validate({"split": empty, "lengths": (1, 1), "symbols": 2}), None))


@pytest.mark.parametrize("lengths", [(0, 4), (5, 4)])
def test_invalid_length_range_is_rejected(lengths: tuple[int, int]) -> None:
    with pytest.raises(ValidationError, match=r"must be \[from, to\] with 1 <= from <= to"):
        SequencesSource(split="train", lengths=lengths)


def test_sequences_have_no_files_and_a_key_without_weight(tmp_path: Path) -> None:
    source = SequencesSource(split="train")
    assert source_files(source, None) == []
    assert _identity(source, None, tmp_path) == _identity(source.model_copy(update={"weight": 2.0}), None, tmp_path)
    for change in ({"operation": "reverse"}, {"lengths": (1, 20)}, {"symbols": 5}, {"seed": 2}, {"examples": 9}):
        changed = source.model_copy(update=change)
        assert _identity(changed, None, tmp_path) != _identity(source, None, tmp_path)
