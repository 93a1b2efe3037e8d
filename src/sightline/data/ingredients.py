"""All that goes into a store: where its text comes from, what is made of it, and the name that follows from both."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from sightline.data.links import Links, in_step
from sightline.data.phrases.lexicon import GRAMMAR_VERSION
from sightline.data.sources import Example, read, source_files
from sightline.data.text_lines import UNBOUNDED, Bound
from sightline.files import checksum, make_folder, read_json, write_atomically
from sightline.recipe.data import AnySource, Clean, DatesSource, PhrasesSource
from sightline.text.copying import Forms, with_unknown
from sightline.text.tokenizer import Vocabulary

FORMAT = 2


class Dropped(NamedTuple):
    """BPE-dropout: how many merges are left out; each variant, and each seed, leaves out others."""

    share: float
    variant: int
    seed: int


@dataclass(frozen=True)
class Ingredients:
    """All that goes into a store."""

    sources: tuple[AnySource, ...]
    vocabulary: Vocabulary
    folder: Path | None  # where the sources' files lie
    swap: bool = False  # whether source and target change places
    clean: Clean | None = None  # what is dropped; None: nothing, as validation and test sets are scored as they are
    limit: int | None = None  # examples that are read, all sources together
    dropped: Dropped | None = None  # with BPE-dropout
    links: Path | None = None  # a file of word alignments, a line for each example that is read, which they stay with
    longest_source: int | None = None  # tokens; what is behind them is cut off, cleaned or not
    copying: bool = False  # whether source words outside the vocabulary have ids past its end (text/copying.py)
    forms: bool = False  # whether they are copied with or without the space before them
    bound: Bound = UNBOUNDED  # of lines; what is longer than it is never kept, so it is no part of the key
    text_alone: bool = False  # whether sources are left out: of pairs, the target side is text to model for itself

    def key(self, cache: Path) -> str:
        """The name of the store: where files lie and what weights they have does not matter, what is in them does."""
        ingredients = {
            "format": FORMAT,
            "sources": [_identity(source, self.folder, cache) for source in self.sources],
            "tokenizers": [_digest(side.content) for side in (self.vocabulary.source, self.vocabulary.target)],
            "labels": self.vocabulary.labels,
            "swap": self.swap,
            "clean": self.clean.model_dump(mode="json") if self.clean else None,
            "limit": self.limit,
            "cut": self.dropped,
            "longest source": self.longest_source,
            "copying": self.copying,
        }
        if self.copying:
            ingredients["copied"] = "forms" if self.forms else "exact"
        if self.text_alone:
            ingredients["text alone"] = True
        if self.links is not None:
            ingredients["links"] = content_hash(self.links, cache)
        return _digest(json.dumps(ingredients, sort_keys=True))[:32]

    def examples(self) -> Iterator[tuple[int, Example, Links]]:
        """Every example with the number of its source, and the links between its words."""
        how: Any = {"swap": self.swap, "labelled": self.vocabulary.labels == "words", "bound": self.bound}
        everything = (
            (number, example)
            for number, source in enumerate(self.sources)
            for example in read(source, self.folder, **how)
        )
        limited = islice(everything, self.limit)
        if self.text_alone:
            return ((number, Example("", example.target), []) for number, example in limited)
        if self.links is not None:
            return in_step(limited, self.links, limited=self.limit is not None)
        return ((number, example, []) for number, example in limited)

    def encode(self, texts: list[Example], number: int) -> tuple[list[list[int]], list[list[int]], list[bool]]:
        """Cut the texts of a chunk; under dropout differently in each chunk, and on either side.

        Last comes which sources were cut short.
        """
        dropout, variant, seed = self.dropped or Dropped(0.0, 0, 0)
        drawn = [int(_digest(json.dumps([seed, variant, number, side]))[:16], 16) for side in (0, 1)]
        sources, targets = [text.source for text in texts], [text.target for text in texts]
        found = self.vocabulary.encode_pairs(sources, targets, dropout=dropout, seeds=(drawn[0], drawn[1]))
        most = self.longest_source
        short = [most is not None and len(ids) > most for ids in found[0]]
        read = [ids[:most] for ids in found[0]] if any(short) else found[0]
        if not self.copying or dropout:  # pieces that are drawn are not those that the texts have otherwise
            return read, found[1], short
        tokenizer = self.vocabulary.source
        forms = Forms.of(tokenizer.all_pieces) if self.forms else None
        return *with_unknown(tokenizer, texts, read, found[1], forms), short


def _identity(source: AnySource, folder: Path | None, cache: Path) -> dict[str, Any]:
    """What a source gives, whatever its files are called."""
    said = source.model_dump(mode="json", exclude={"weight", *source.file_keys})
    if isinstance(source, DatesSource):
        said["babel"] = version("babel")  # the forms of dates are Babel's
    if isinstance(source, PhrasesSource):
        said["grammar"] = GRAMMAR_VERSION
    if paths := source_files(source, folder):
        said["files"] = [content_hash(path, cache) for path in paths]
        said["suffixes"] = [path.suffix for path in paths]
    return said


def content_hash(path: Path, cache: Path) -> str:
    """The checksum of a file, remembered in the cache as long as the file's size and times stay as they are.

    The time of its last change counts as well: the other can be set to anything (`cp -p`, `touch -r`), this one cannot.
    """
    state = path.stat()
    stamp = [state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino]
    memory = cache / "checksums" / f"{_digest(str(path.resolve()))[:32]}.json"
    try:
        remembered = read_json(memory)
        if remembered["stamp"] == stamp:
            return str(remembered["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # not there, or not readable: work it out
    found = checksum(path)
    if time.time() - state.st_ctime > 2:  # a file just written could change again without its time changing
        make_folder(memory.parent)
        write_atomically(memory, json.dumps({"path": str(path), "stamp": stamp, "sha256": found}))
    return found


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
