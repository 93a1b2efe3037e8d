"""manifest.json: the SHA-256 and size of every file of a run folder that a command relies on.

A bit that flips in `model.safetensors` or a line that is lost from `recipe.yaml` would change results without an error.
So whoever writes a run folder seals it (`seal`), and whoever reads one compares it with its seal first (`verify`).

Files are replaced one by one and a process may be killed at any moment. A manifest therefore names two valid contents
of a file while that file is replaced (`replace_file`), and while several are written (`rewriting`) it says so: what
does not match then is a warning, not an error, and the next training that resumes the run seals it again.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sightline.files import checksum, checksum_of, write_atomically, write_json
from sightline.version import version

MANIFEST = "manifest.json"
WEIGHTS = "model.safetensors"
JOURNAL = "metrics.jsonl"  # grows while a run is trained; sealed when the training has ended
SMALL = (
    "recipe.yaml",
    "config.json",
    "tokenizer.json",
    "tokenizer.source.json",
    "tokenizer.target.json",
    "dictionary.tsv",
    "start.json",
    "environment.json",
    "outputs.jsonl",
)
SEALED = (*SMALL, WEIGHTS)


class ManifestError(ValueError):
    """A file of a run folder is not the one that was sealed."""


@dataclass(frozen=True)
class Manifest:
    """What manifest.json says: the valid SHA-256 digests of each file, and its size."""

    files: dict[str, dict[str, Any]] = field(default_factory=dict)  # name → sha256, size, perhaps previous
    rewriting: bool = False  # several files are being written, or were when the writer was killed

    def digests(self, name: str) -> set[str]:
        """The contents that are valid for a file."""
        entry = self.files.get(name, {})
        return {entry[key] for key in ("sha256", "previous") if key in entry}


def read_manifest(run: Path) -> Manifest | None:
    """The manifest of a run folder; None if it has none."""
    path = run / MANIFEST
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ManifestError(f"{path} is damaged ({error}); {_remedy(run)}") from error
    try:
        record = json.loads(text)
        files = {str(name): dict(entry) for name, entry in record["files"].items()}
        if not all(isinstance(entry["sha256"], str) and isinstance(entry["size"], int) for entry in files.values()):
            raise TypeError("an entry has no sha256 or size")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ManifestError(f"{path} is damaged ({error}); {_remedy(run)}") from error
    return Manifest(files, bool(record.get("rewriting", False)))


def seal(run: Path, *, finished: bool = False) -> dict[str, dict[str, Any]]:
    """Write manifest.json over the files as they are, and return its entries; of a `finished` run the journal too."""
    names = (*SEALED, JOURNAL) if finished else SEALED
    files = {name: _entry(run / name) for name in names if (run / name).is_file()}
    _write(run, files)
    return files


@contextmanager
def rewriting(run: Path, names: Iterable[str] = SMALL, *, finished: bool = False) -> Iterator[None]:
    """Write files of these names inside the block; they are sealed at its end, the others keep their seals.

    The journal is sealed if the training has `finished`, and else open: it will grow, or be cut where a resumed
    training begins.
    """
    manifest = read_manifest(run)
    before = {} if manifest is None else manifest.files
    before = {name: entry for name, entry in before.items() if name != JOURNAL}
    if manifest is not None:
        _write(run, before, rewriting=True)
    yield
    written = {*names, *([JOURNAL] if finished else [])}
    new = {*written, *(SEALED if manifest is None else ())}
    kept = {name: entry for name, entry in before.items() if name not in written}
    _write(
        run, kept | {name: _entry(run / name) for name in (*SEALED, JOURNAL) if name in new and (run / name).is_file()}
    )


def replace_file(run: Path, name: str, content: bytes) -> None:
    """Write one file so that it matches the manifest at every moment: with its old content or with the new one."""
    manifest = read_manifest(run) or Manifest()
    entry: dict[str, Any] = {"sha256": checksum_of(content), "size": len(content)}
    before = manifest.files.get(name)
    files = {**manifest.files, name: entry}
    if before is not None:
        _write(run, {**files, name: {**entry, "previous": before["sha256"]}}, rewriting=manifest.rewriting)
    write_atomically(run / name, content)
    _write(run, files, rewriting=manifest.rewriting)


def verify(run: Path, names: Iterable[str] = SMALL) -> None:
    """Refuse files of a run folder that are not the ones that were sealed.

    A folder without a manifest, as older versions wrote it, gives a warning that names the command that seals it.
    """
    manifest = read_manifest(run)
    if manifest is None:
        if (run / "config.json").is_file():  # else there is nothing to rely on yet, or no run at all
            warnings.warn(
                f"{run} has no {MANIFEST}, so damaged files are not noticed; if its outputs are right, seal it with: "
                f"sightline seal {run}",
                stacklevel=1,  # the same place for every caller, so that it is shown once
            )
        return
    for name in names:
        _compare(run, name, manifest)


def verified_later(run: Path, name: str = WEIGHTS) -> Future[None]:
    """The same for one large file, in a thread beside the reader (hashing releases the interpreter's lock).

    The result is an exception if the file does not match; no result of the file may be used before.
    """
    pool = ThreadPoolExecutor(1, thread_name_prefix="sha256")
    try:
        return pool.submit(verify_file, run, name)
    finally:
        pool.shutdown(wait=False)


def verify_file(run: Path, name: str) -> None:
    """Refuse one file that is not the one that was sealed; a missing manifest was warned of before."""
    manifest = read_manifest(run)
    if manifest is not None:
        _compare(run, name, manifest)


def verify_journal(run: Path, content: bytes) -> None:
    """Refuse a journal whose beginning is not what was sealed when the training ended."""
    manifest = read_manifest(run)
    if manifest is None or (entry := manifest.files.get(JOURNAL)) is None:
        return
    if checksum_of(content[: entry["size"]]) != entry["sha256"]:
        raise ManifestError(_mismatch(run, JOURNAL))


def changes(run: Path) -> list[str]:
    """The files that are not what the manifest says, as `seal` would accept them: `recipe.yaml changed`."""
    manifest = read_manifest(run)
    if manifest is None:
        return []
    found = []
    for name in (*SEALED, JOURNAL):
        there, known = (run / name).is_file(), name in manifest.files
        if known and not there:
            found.append(f"{name} is gone")
        elif there and not known and name != JOURNAL:
            found.append(f"{name} is new")
        elif there and known and checksum(run / name) not in manifest.digests(name):
            found.append(f"{name} changed")
    return found


def _compare(run: Path, name: str, manifest: Manifest) -> None:
    path = run / name
    if not path.is_file():
        return  # whoever needs it says what is missing
    if _matches(path, name, manifest):
        return
    now = read_manifest(run)  # a training may have written both since
    if now is None or _matches(path, name, now):
        return
    if now.rewriting:
        warnings.warn(
            f"{path} does not match {MANIFEST}, whose writing was interrupted; resume the training, or seal the run "
            f"with: sightline seal {run}",
            stacklevel=1,
        )
        return
    raise ManifestError(_mismatch(run, name))


def _matches(path: Path, name: str, manifest: Manifest) -> bool:
    valid = manifest.digests(name)
    entry = manifest.files.get(name)
    if entry is None or ("previous" not in entry and path.stat().st_size != entry["size"]):
        return False
    return checksum(path) in valid


def _mismatch(run: Path, name: str) -> str:
    return f"{run / name} is not the file that {MANIFEST} describes (SHA-256 differs); {_remedy(run)}"


def _remedy(run: Path) -> str:
    return f"copy the run folder again or, if the change is intended, accept it with: sightline seal {run}"


def _entry(path: Path) -> dict[str, Any]:
    return {"sha256": checksum(path), "size": os.path.getsize(path)}


def _write(run: Path, files: Mapping[str, Mapping[str, Any]], *, rewriting: bool = False) -> None:
    record: dict[str, Any] = {"format": 1, "sightline": version(), "files": files}
    write_json(run / MANIFEST, {**record, "rewriting": True} if rewriting else record, indent=2)
