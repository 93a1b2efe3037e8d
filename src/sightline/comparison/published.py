"""Published tables (published.yaml), to be shown beside one's own runs with corpus and size of both."""

from __future__ import annotations

from functools import cache
from importlib import resources

import yaml
from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass


@dataclass(frozen=True)
class PublishedCorpus:
    """A corpus of a published table, with its size in words."""

    name: str
    training: str
    size: str
    test: str


@dataclass(frozen=True)
class PublishedRow:
    """A system, the paper it is from, and a value for each column; None where the table has no number."""

    system: str
    paper: str
    values: list[float | None]


@dataclass(frozen=True)
class PublishedTable:
    """A published table: its source, corpora and numbers."""

    title: str
    source: str
    url: str
    corpora: list[PublishedCorpus]
    columns: list[str]
    rows: list[PublishedRow]


@cache
def _tables() -> dict[str, PublishedTable]:
    text = (resources.files("sightline.comparison") / "published.yaml").read_text(encoding="utf-8")
    return TypeAdapter(dict[str, PublishedTable]).validate_python(yaml.safe_load(text))


def published(name: str) -> PublishedTable:
    """The published table of this name: `translation` or `summarization`."""
    if name not in _tables():
        raise ValueError(f"there is no published table {name!r}; choose from {', '.join(_tables())}")
    return _tables()[name]
