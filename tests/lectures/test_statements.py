"""docs/lectures.md: keys, recipes, commands, functions and tests of its table exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
import typer

from documented import ROOT, SPAN
from sightline.cli.app import app
from sightline.recipe.loading import shipped_recipes
from sightline.recipe.reference import UnknownKey, reference

PAGE = ROOT / "docs" / "lectures.md"
DECKS = {"Transformers", "RNNs to seq2seq", "Building blocks", "Self-attention", "Worked example"}
NOT_YET = "not yet"
SECTIONS = ("data.", "tokenizer.", "model.", "training.", "decoding.", "evaluation.")


class Statement(NamedTuple):
    number: str
    decks: str
    text: str
    place: str
    test: str

    def __str__(self) -> str:
        return f"statement {self.number}: {self.text}"


def statements() -> list[Statement]:
    """The rows of the tables of statements, which have a number."""
    rows = [line.strip("| ").split(" | ") for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    return [Statement(*row) for row in rows if row[0].isdecimal()]


STATEMENTS = statements()
PRESENT = [each for each in STATEMENTS if each.test != NOT_YET]


@cache
def defined(path: Path) -> frozenset[str]:
    """The functions and classes of a file."""
    kinds = ast.FunctionDef | ast.ClassDef
    return frozenset(each.name for each in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(each, kinds))


def check_key(span: str) -> None:
    """`key` or `key: value` is in the reference of `sightline recipes keys`, and the value is one of its values."""
    key, _, value = span.partition(": ")
    try:
        text = reference(key)
    except UnknownKey:
        pytest.fail(f"no recipe has the key {key}")
    assert not value or re.search(rf"(?<![\w-]){re.escape(value)}(?![\w-])", text), f"{key} has no value {value}"


def check_command(words: list[str]) -> None:
    """The words up to the first argument name a command, and it has the options."""
    command = typer.main.get_command(app)
    while hasattr(command, "commands"):
        name = words.pop(0) if words and words[0] in command.commands else None
        if name is None:  # a view without its name
            assert words, "a group alone"
            command = command.commands["walkthrough"] if "walkthrough" in command.commands else pytest.fail(str(words))
        else:
            command = command.commands[name]
    known = {option for each in command.params for option in each.opts}
    assert {word for word in words if word.startswith("-")} <= known, f"unknown options among {words}"


def check_place(span: str) -> None:
    """A command, a key of a recipe, a shipped recipe, or a file with a class or function."""
    if span.startswith("sightline "):
        check_command(span.split()[1:])
    elif span.startswith(SECTIONS):
        check_key(span)
    elif span not in shipped_recipes():
        file, _, name = span.partition(":")
        path = next(root / file for root in (ROOT / "src" / "sightline", ROOT) if (root / file).exists())
        assert not name or name in defined(path), f"{file} has no {name}"


def test_there_are_enough_statements_and_they_are_numbered() -> None:
    assert [each.number for each in STATEMENTS] == [str(number) for number in range(1, len(STATEMENTS) + 1)]
    assert len(PRESENT) >= 150
    assert len({each.text for each in STATEMENTS}) == len(STATEMENTS)


def test_every_statement_is_of_decks_and_every_deck_has_statements() -> None:
    named = {deck for each in STATEMENTS for deck in each.decks.split(", ")}
    assert named == DECKS


def test_what_is_missing_is_counted() -> None:
    missing = [each for each in STATEMENTS if NOT_YET in (each.place, each.test)]
    assert all(each.place == each.test == NOT_YET for each in missing)
    assert f"{len(missing)} of {len(STATEMENTS)} rows" in " ".join(PAGE.read_text(encoding="utf-8").split())


@pytest.mark.parametrize("statement", PRESENT, ids=str)
def test_place_and_test_of_a_statement_exist(statement: Statement) -> None:
    spans = SPAN.findall(statement.place)
    assert spans
    for span in spans:
        check_place(span)
    (test,) = SPAN.findall(statement.test)
    file, name = test.split("::")
    assert name.startswith("test_") and name in defined(ROOT / file), f"{file} has no {name}"


@pytest.mark.parametrize(
    "span",
    [
        "model.decoder.cell: elmann",
        "model.decoder.cells",
        "sightline inspect heads RUN TEXT --none",
        "layers/attention.py:attends",
        "multi30k/unknown",
    ],
)
def test_what_does_not_exist_is_found(span: str) -> None:
    with pytest.raises((AssertionError, StopIteration, pytest.fail.Exception)):
        check_place(span)


def test_every_erratum_says_what_sightline_does() -> None:
    text = PAGE.read_text(encoding="utf-8").split("## Errata")[1]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 10 and all(len(row) == 4 and row[3] for row in rows)
    for row in rows:
        for span in SPAN.findall(row[3]):
            check_place(span)
