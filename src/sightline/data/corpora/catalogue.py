"""The corpora of `catalogue.yaml`, and the folders for corpora and for the cache on this machine."""

from __future__ import annotations

import difflib
import json
import os
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

_GITHUB = "https://raw.githubusercontent.com"


class CorpusError(ValueError):
    """A corpus cannot be downloaded, or is not as recorded."""


@dataclass(frozen=True)
class Original:
    """A file of the publisher."""

    name: str  # of the local copy until it is converted
    url: str
    hash: str | None = None  # "sha256:…" or "md5:…"; None: not pinned, or checked after the conversion


@dataclass(frozen=True)
class Product:
    """A file that recipes name, with the checksum of its decompressed content."""

    name: str
    lines: int
    sha256: str
    original: str = ""  # the original it is made from, if any
    member: str = ""  # of an archive


@dataclass(frozen=True)
class CatalogueEntry:
    """A corpus: a folder of files made from originals."""

    name: str
    title: str
    source: str
    terms: str  # empty for generated corpora
    download: str  # the download size, in words
    convert: str  # a name in conversion.CONVERSIONS
    originals: tuple[Original, ...]
    products: tuple[Product, ...]
    note: str = ""  # differences from the files of the published scores of our recipes


def corpus(name: str) -> CatalogueEntry:
    """The corpus of that name."""
    known = catalogue()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        guess = f"did you mean {near[0]}? " if near else ""
        raise CorpusError(f"{name}: there is no such corpus; {guess}they are {', '.join(known)}")
    return known[name]


@cache
def catalogue() -> dict[str, CatalogueEntry]:
    """All corpora by name."""
    from sightline.recipe.yaml import read_yaml

    entries = read_yaml(_packaged("catalogue.yaml"), "catalogue.yaml").value
    return {name: _corpus(name, entry) for name, entry in entries.items()}


@cache
def block_digests() -> dict[str, str]:
    """For each file (`corpus/file`), the first 4 hex digits of the SHA-256 of each block of 256 lines, joined."""
    digests: dict[str, str] = json.loads(_packaged("blocks.json"))
    return digests


def number_lists(name: str) -> dict[str, list[str]]:
    """A list beside the catalogue: `part: number number …` on each line."""
    return {part: numbers.split() for part, numbers in (line.split(":") for line in _packaged(name).splitlines())}


def _packaged(name: str) -> str:
    return (resources.files("sightline") / "data/corpora" / name).read_text(encoding="utf-8")


def _corpus(name: str, entry: dict[str, Any]) -> CatalogueEntry:
    base = f"{_GITHUB}/{entry['repository']}/{entry['commit']}" if "repository" in entry else ""
    originals = [
        Original(path.rsplit("/", 1)[-1], path if "://" in path else f"{base}/{path}", digest)
        for path, digest in (entry.get("originals") or {}).items()
    ]
    for template in entry.get("expand", ()):
        numbers = [number for part in number_lists(entry["numbers"]).values() for number in part]
        paths = [template.format(number) for number in numbers]
        originals += [Original(path.rsplit("/", 1)[-1], f"{base}/{path}") for path in paths]
    products = [
        Product(file, record["lines"], record["sha256"], record.get("from", ""), record.get("member", ""))
        for file, record in entry["files"].items()
    ]
    return CatalogueEntry(
        name,
        entry["title"],
        f"github.com/{entry['repository']} at {entry['commit'][:7]}" if base else entry["source"],
        entry.get("terms", ""),
        entry["download"],
        entry.get("convert", "files"),
        tuple(originals),
        tuple(products),
        entry.get("note", ""),
    )


def corpora_folders() -> list[Path]:
    """The folders in which recipes look for corpora: $SIGHTLINE_CORPORA, then one in the user's data folder."""
    from platformdirs import user_data_path

    folders = [user_data_path("sightline", appauthor=False) / "corpora"]
    if named := os.environ.get("SIGHTLINE_CORPORA"):
        folders.insert(0, Path(named).expanduser().resolve())
    return list(dict.fromkeys(folders))


def cache_folder() -> Path:
    """$SIGHTLINE_CACHE, or sightline in the user's cache folder."""
    if chosen := os.environ.get("SIGHTLINE_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "sightline"
