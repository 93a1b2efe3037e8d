"""A file of pairs that takes hours to write: in parts, each complete or absent, so that a command can resume.

`FILE.parts/` has `plan.json` (everything that decides the content) and one file for each 2,048 lines (16,384 on a GPU,
which is idle while a part is compressed). `FILE.json` has the plan, and the number of lines read, kept, and dropped for
each reason. Memory does not grow with the corpus.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypeVar

from sightline.data.locate import provenance_file
from sightline.files import (
    READ_ERRORS,
    atomic_file,
    compressed,
    compressor,
    open_decompressed,
    parse_json,
    read_json,
    refuse_link,
    sync_folder,
    write_atomically,
)
from sightline.progress import Progress
from sightline.recipe.recipe import changed
from sightline.run_folder import RunError, lock_run

Item = TypeVar("Item")
Pair = tuple[str, str]
SIZE = 2_048  # lines per part
GPU_SIZE = 16_384  # a GPU is faster with thousands of lines at once, in batches of one length
_LINES = "lines of a part"


class EmptyCorpusError(RunError):
    """Every line was dropped."""


@dataclass(frozen=True)
class Part:
    """The pairs of some lines, and how many lines were kept or dropped, by reason."""

    pairs: list[Pair]
    counts: dict[str, int]


def part_size(device: str) -> int:
    """Lines per part on a device of this type (`cpu`, `cuda`)."""
    return SIZE if device == "cpu" else GPU_SIZE


def fingerprint(items: Iterable[str | Sequence[str]]) -> dict[str, Any]:
    """Number and digest of all lines: a resumed command must read the same corpus."""
    digest, count = hashlib.blake2b(digest_size=16), 0
    for item in items:
        digest.update(json.dumps(item, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n")
        count += 1
    return {"lines": count, "text": digest.hexdigest()}


@dataclass(frozen=True)
class PairFile(Generic[Item]):
    """A file of pairs, written in parts."""

    file: Path
    plan: dict[str, Any]  # everything that decides the content; `lines` is the number of lines to read
    size: int  # lines of a part; a resumed file keeps the size it was started with

    @property
    def parts(self) -> Path:
        return self.file.with_name(f"{self.file.name}.parts")

    @property
    def summary(self) -> Path:
        return provenance_file(self.file)

    def write(
        self, items: Iterator[Item], work: Callable[[int, list[Item]], Part], *, resume: bool, progress: Progress
    ) -> dict[str, int]:
        """Write the missing parts, join all parts, and return the counts.

        `work` maps the number of a first line and the lines to a part. Parts of another plan are refused. If no line
        was kept, no file is left.
        """
        if not self.file.absolute().parent.is_dir():
            raise ValueError(f"there is no folder {self.file.parent} for {self.file.name}; make it first")
        if (done := self._finished(resume)) is not None:
            return done
        refuse_link(self.parts)
        try:
            with lock_run(self.parts):
                counts = self._write_parts(items, work, self._begin(resume), progress)
        except EmptyCorpusError:  # nothing to resume
            self._remove_parts()
            raise
        self._remove_parts()
        return counts

    def _write_parts(
        self, items: Iterator[Item], work: Callable[[int, list[Item]], Part], size: int, progress: Progress
    ) -> dict[str, int]:
        count = 0
        for number, chunk in enumerate(iter(lambda: list(islice(items, size)), [])):
            path = self._part(number)
            if not path.exists():
                part = work(count, chunk)
                content = json.dumps({"counts": part.counts, "pairs": part.pairs}, ensure_ascii=False)
                write_atomically(path, compressed(path, content.encode("utf-8")))
            count += len(chunk)
            progress("translating", count, self.plan["lines"])
        counts = self._join(-(-self.plan["lines"] // size))
        summary = json.dumps({"counts": counts, "plan": self.plan}, indent=1) + "\n"
        write_atomically(self._temporary(self.summary), summary)
        for path in (self.file, self.summary):
            os.replace(self._temporary(path), path)
            sync_folder(path.absolute().parent)
        return counts

    def _temporary(self, path: Path) -> Path:
        """Written among the parts, which are removed at the end, so that no half of a file stays."""
        return self.parts / f"whole-{path.name}"

    def _remove_parts(self) -> None:
        shutil.rmtree(self.parts)
        sync_folder(self.file.absolute().parent)

    def _finished(self, resume: bool) -> dict[str, int] | None:
        """The counts of a file that is complete; None if there is something to write."""
        if not self.file.exists():
            return None
        if not resume:
            raise RunError(f"{self.file} exists already; continue with --resume, give another name, or remove it")
        if not self.summary.exists():
            if self.parts.exists():
                return None  # stopped between its last two files
            raise RunError(f"{self.file} exists without {self.summary.name}, so its origin is unknown; remove it")
        saved = read_json(self.summary)
        self._compare(saved["plan"])
        if self.parts.exists():  # stopped just before its removal
            with lock_run(self.parts):
                pass  # no other process is writing
            self._remove_parts()
        counts: dict[str, int] = saved["counts"]
        return counts

    def _begin(self, resume: bool) -> int:
        """Write the plan, or compare it with the plan of the parts; return the number of lines of a part."""
        path = self.parts / "plan.json"
        if not path.exists():
            for part in self.parts.glob("part-*"):  # of another plan, whose removal was interrupted
                part.unlink()
            write_atomically(path, json.dumps({**self.plan, _LINES: self.size}, indent=1) + "\n")
            return self.size
        if not resume:
            raise RunError(
                f"{self.parts} holds the beginning of {self.file.name}; continue with --resume, or remove it"
            )
        plan = read_json(path)
        size: int = plan.pop(_LINES, SIZE)
        self._compare(plan)
        return size

    def _compare(self, earlier: dict[str, Any]) -> None:
        if differing := changed(earlier, json.loads(json.dumps(self.plan))):
            raise RunError(
                f"{self.file} was started with different settings and cannot be resumed: {'; '.join(differing)}; use "
                f"the same settings, or write elsewhere with --out"
            )

    def _part(self, number: int) -> Path:
        return self.parts / f"part-{number:07d}.json.zst"

    def _join(self, parts: int) -> dict[str, int]:
        """Join all parts in one file, a pair on each line, separated by a tab."""
        counts: Counter[str] = Counter()
        with atomic_file(self._temporary(self.file)) as file, compressor(self.file, file) as out:
            for number in range(parts):
                part = _read_part(self._part(number))
                counts.update(part.counts)
                out.write("".join(f"{left}\t{right}\n" for left, right in part.pairs).encode("utf-8"))
            if not counts["kept"]:
                dropped = ", ".join(f"{count:,} {reason}" for reason, count in counts.items() if reason != "kept")
                remedy = "train the model that writes further, or raise --max-ratio or --max-tokens"
                what = f"{dropped}; {remedy}" if counts["read"] else "nothing was read"
                raise EmptyCorpusError(f"nothing is left to write to {self.file}: {what}; its name is free again")
        return dict(counts)


def _read_part(path: Path) -> Part:
    try:
        with open_decompressed(path) as file:
            content = parse_json(file.read())
        return Part([(left, right) for left, right in content["pairs"]], content["counts"])
    except (*READ_ERRORS, ValueError, KeyError) as error:
        raise RunError(f"{path} is damaged ({error}); remove it and continue with --resume") from error
