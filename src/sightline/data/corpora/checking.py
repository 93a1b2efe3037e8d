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
        if not path.is_file():
            yield FileCheck(product.name, "missing", f"no {path}")
            continue
        try:
            content = read(path)
            other = None if against is None else read(against / product.name)
        except FileNotFoundError as error:
            yield FileCheck(product.name, "missing", f"no {error.filename}")
        except READ_ERRORS as error:
            yield FileCheck(product.name, "damaged", str(error))
        else:
            detail = recorded_difference(corpus, product, content) if other is None else difference(content, other)
            yield FileCheck(product.name, "differs" if detail else "ok", detail or plural(count(content), "line"))


def read(path: Path) -> bytes:
    """The decompressed content of a file."""
    with open_decompressed(path) as file:
        content: bytes = file.read()
    return content


def count(content: bytes) -> int:
    """The number of lines."""
    return content.count(b"\n") + (not content.endswith(b"\n") and bool(content))


def digests(content: bytes) -> str:
    """The digests of its blocks of lines, one after another."""
    lines = content.split(b"\n")
    blocks = (b"\n".join(lines[start : start + BLOCK]) for start in range(0, len(lines), BLOCK))
    return "".join(hashlib.sha256(block).hexdigest()[:_DIGITS] for block in blocks)


def recorded_difference(corpus: CatalogueEntry, product: Product, content: bytes) -> str:
    """The difference of a file from its record; "" if there is none."""
    if hashlib.sha256(content).hexdigest() == product.sha256:
        return ""
    size = f"{plural(count(content), 'line')}, {product.lines:,} recorded"
    recorded, own = block_digests().get(f"{corpus.name}/{product.name}", ""), digests(content)
    pairs = zip_longest(*(_cut(each) for each in (recorded, own)))
    wrong = [number for number, (one, other) in enumerate(pairs) if one != other]
    places = [f"{number * BLOCK + 1:,}–{(number + 1) * BLOCK:,}" for number in wrong[:_SHOWN]]
    return f"{size}; differences in {plural(len(wrong), 'block')} of {BLOCK} lines: lines {_listed(places, len(wrong))}"


def difference(content: bytes, other: bytes) -> str:
    """The number of differing lines of two files, and the first of them; "" if there are none."""
    if content == other:
        return ""
    pairs = zip_longest(content.split(b"\n"), other.split(b"\n"))
    wrong = [number for number, (one, two) in enumerate(pairs, 1) if one != two]
    size = f"{plural(count(content), 'line')} and {count(other):,}"
    lines, others = (set(each.split(b"\n")) for each in (content, other))
    places = _listed([f"{number:,}" for number in wrong[:_SHOWN]], len(wrong))
    shared = f"{len(lines & others):,} of {len(others):,} different lines are in both"
    return f"{size}; {len(wrong):,} differ: {places} ({shared})"


def _cut(text: str) -> list[str]:
    return [text[start : start + _DIGITS] for start in range(0, len(text), _DIGITS)]


def _listed(places: list[str], whole: int) -> str:
    return ", ".join(places) + (", …" if whole > len(places) else "")
