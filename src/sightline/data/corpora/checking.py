"""Compare the files of a corpus with recorded checksums, and locate differences."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Literal

from sightline.data.corpora.catalogue import CatalogueEntry, Product, block_digests
from sightline.files import READ_ERRORS, open_decompressed
from sightline.terminal import plural

BLOCK = 256  # lines
_DIGITS = 4  # of a block's digest
_SHOWN = 5  # places of differences

State = Literal["ok", "missing", "differs", "damaged"]


@dataclass(frozen=True)
class FileCheck:
    """The result of checking a file."""

    name: str
    state: State
    detail: str = ""


def check(corpus: CatalogueEntry, folder: Path, against: Path | None = None) -> Iterator[FileCheck]:
    """Check the files of a corpus against their checksums, or line by line against the files of another folder."""
    for product in corpus.products:
        path = folder / product.name
        try:
            content = _read(path)
            other = None if against is None else _read(against / product.name)
        except FileNotFoundError as error:
            yield FileCheck(product.name, "missing", f"no {error.filename}")
        except READ_ERRORS as error:
            yield FileCheck(product.name, "damaged", str(error))
        else:
            detail = recorded_difference(corpus, product, content) if other is None else difference(content, other)
            yield FileCheck(product.name, "differs" if detail else "ok", detail or plural(_lines(content), "line"))


def _read(path: Path) -> bytes:
    """The decompressed content of a file."""
    with open_decompressed(path) as file:
        content: bytes = file.read()
    return content


def _lines(content: bytes) -> int:
    """The number of lines."""
    return content.count(b"\n") + (not content.endswith(b"\n") and bool(content))


def digests(content: bytes) -> str:
    """The digests of the blocks of lines, joined."""
    lines = content.split(b"\n")
    blocks = (b"\n".join(lines[start : start + BLOCK]) for start in range(0, len(lines), BLOCK))
    return "".join(hashlib.sha256(block).hexdigest()[:_DIGITS] for block in blocks)


def recorded_difference(corpus: CatalogueEntry, product: Product, content: bytes) -> str:
    """The difference of a file from its record; "" if there is none."""
    if hashlib.sha256(content).hexdigest() == product.sha256:
        return ""
    recorded, own = block_digests().get(f"{corpus.name}/{product.name}", ""), digests(content)
    starts = range(0, max(len(recorded), len(own)), _DIGITS)
    differing = [at // _DIGITS for at in starts if recorded[at : at + _DIGITS] != own[at : at + _DIGITS]]
    places = _list_first([f"{number * BLOCK + 1:,}–{(number + 1) * BLOCK:,}" for number in differing])
    return (
        f"{plural(_lines(content), 'line')}, {product.lines:,} recorded; differences in "
        f"{plural(len(differing), 'block')} of {BLOCK} lines: lines {places}"
    )


def difference(content: bytes, other: bytes) -> str:
    """The number of differing lines of two files, and the first of them; "" if there are none."""
    if content == other:
        return ""
    pair = content.split(b"\n"), other.split(b"\n")
    differing = [f"{number:,}" for number, (one, two) in enumerate(zip_longest(*pair), 1) if one != two]
    lines, others = map(set, pair)
    return (
        f"{plural(_lines(content), 'line')} and {_lines(other):,}; {len(differing):,} differ: {_list_first(differing)} "
        f"({len(lines & others):,} of {len(others):,} different lines are in both)"
    )


def _list_first(places: list[str]) -> str:
    return ", ".join(places[:_SHOWN]) + (", …" if len(places) > _SHOWN else "")
