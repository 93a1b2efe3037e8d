"""The run folder: the only thing that passes between commands.

recipe.yaml  tokenizer.json  config.json  model.safetensors  metrics.jsonl  checkpoints/  environment.json  README.md
manifest.json (SHA-256 of the files that commands rely on); with decoding.replace_unknown: dictionary also
dictionary.tsv (decoding/unknown_words.py)
"""

from __future__ import annotations

import json
import os
import platform
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from sightline.files import (
    MAX_JSON,
    checksum,
    checksum_of,
    file_lock,
    parse_json,
    read_bounded,
    read_json,
    refuse_link,
    write_atomically,
    write_json,
)
from sightline.registry import version

FORMAT = 1  # raised when older programs could no longer read a run folder
LOCK = ".lock"


class RunError(ValueError):
    """A run folder is not usable for a command."""


@contextmanager
def lock_run(run: Path) -> Iterator[None]:
    """Hold the lock of a run folder during training; it is released with the process, however that ends.

    If the folder was created for the lock and stayed empty, it is removed afterwards.
    """
    new = not run.exists()
    with ExitStack() as stack:
        try:
            run.mkdir(parents=True, exist_ok=True)
            stack.enter_context(file_lock(run / LOCK, wait=lambda: False))
        except BlockingIOError as error:
            raise RunError(
                f"another training is writing to {run}; wait for it, stop it, or give another folder with --out"
            ) from error
        except OSError as error:
            raise RunError(
                f"{run} cannot be written: {error.strerror} ({error.filename}); give another folder with --out"
            ) from error
        try:
            yield
        finally:
            if new and [path.name for path in run.glob("*")] == [LOCK]:
                (run / LOCK).unlink()
                run.rmdir()


def check_links(run: Path) -> None:
    """Before training: refuse a run folder in which it would write or delete through symbolic links."""
    for name in (LOCK, "metrics.jsonl", "checkpoints", "tensorboard"):
        refuse_link(run / name)


def write_config(run: Path, config: dict[str, Any]) -> None:
    """Write config.json: what building the model needs before its weights are read."""
    write_json(run / "config.json", {"format": FORMAT, "sightline": version(), **config}, indent=2)


def read_config(run: Path) -> dict[str, Any]:
    """config.json of a run, after its files were verified."""
    if (run / "config.json").is_file():
        verify(run)
    return parse_config(run)


def parse_config(run: Path) -> dict[str, Any]:
    """config.json without verification; an error if the folder is no run folder, incomplete or of a newer version."""
    _check_folder(run)
    path = run / "config.json"
    if not path.is_file():
        if not (run / "recipe.yaml").is_file():
            raise RunError(f"{run} is not a run folder: it has no recipe.yaml and no config.json")
        raise RunError(f"{run} has no config.json: its training did not get far enough, or the file was removed")
    try:
        config: dict[str, Any] = parse_json(read_bounded(path, MAX_JSON))
    except ValueError as error:  # not UTF-8, or not JSON
        raise RunError(f"{path} is damaged ({error}); copy the folder again, or train anew") from error
    if not isinstance(config, dict) or not isinstance(config.get("format"), int):
        raise RunError(f"{path} is damaged (it is not a mapping with a format); copy the folder again, or train anew")
    if config["format"] > FORMAT:
        raise RunError(
            f"{run} was written by Sightline {config.get('sightline')} in format {config['format']}, and this is "
            f"{version()}, which reads up to format {FORMAT}; update with pip install -U sightline"
        )
    return config


def _check_folder(run: Path) -> None:
    if not run.is_dir():
        raise RunError(f"{run} is not a folder; give the folder that `sightline train` wrote (its --out)")


def require_file(run: Path, name: str, remedy: str) -> Path:
    """The path of a file that the folder must have."""
    path = run / name
    if not path.is_file():
        raise RunError(f"{run} has no {name}; {remedy}")
    return path


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """The records of metrics.jsonl, in order (training/loggers.py writes them); none without the file.

    The last line may be incomplete if training was killed or is still running; it is skipped.
    """
    _check_folder(run)
    path = run / "metrics.jsonl"
    content = path.read_bytes() if path.is_file() else b""
    verify_metrics(run, content)
    lines = content.split(b"\n")
    records: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = parse_json(line)
        except ValueError as error:
            if number == len(lines):
                break
            raise RunError(f"{path}, line {number} is damaged ({error}); copy the run folder again") from error
        if not isinstance(record, dict):
            raise RunError(f"{path}, line {number} is not a JSON object; copy the run folder again")
        records.append(record)
    return records


def stopped_before_validation(run: Path) -> bool:
    """Return True if a training in this folder wrote metrics, and was interrupted before its first validation."""
    path = run / "metrics.jsonl"
    if not path.is_file():
        return False
    with path.open("rb") as lines:
        return not any(b'"kind": "validation"' in line for line in lines)


def environment() -> dict[str, Any]:
    """Versions, devices and the command of a run, to reproduce it."""
    import torch

    packages = ("torch", "tokenizers", "numpy", "pyarrow", "safetensors", "sacrebleu", "pydantic", "babel")
    versions = {}
    for name in (*packages, "rouge-score"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "missing"
    return {
        "sightline": version(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": versions,
        "cuda": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        "threads": torch.get_num_threads(),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
    }


MANIFEST = "manifest.json"
WEIGHTS = "model.safetensors"
METRICS = "metrics.jsonl"  # grows during training; sealed at its end
SMALL_FILES = (
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
SEALED_FILES = (*SMALL_FILES, WEIGHTS)


class ManifestError(ValueError):
    """A file of a run folder does not match the manifest."""


@dataclass(frozen=True)
class Manifest:
    """The content of manifest.json: the valid SHA-256 digests of each file, and its size."""

    files: dict[str, dict[str, Any]] = field(default_factory=dict)  # name → sha256, size, perhaps previous
    rewriting: bool = False  # several files are being written, or were when the process was killed

    def digests(self, name: str) -> set[str]:
        """The valid digests of a file."""
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


def seal_run(run: Path, *, finished: bool = False) -> dict[str, dict[str, Any]]:
    """Write manifest.json for the files as they are, and return its entries; for a `finished` run also the metrics."""
    names = (*SEALED_FILES, METRICS) if finished else SEALED_FILES
    files = {name: _entry(run / name) for name in names if (run / name).is_file()}
    _write(run, files)
    return files


@contextmanager
def rewriting(run: Path, names: Iterable[str] = SMALL_FILES, *, finished: bool = False) -> Iterator[None]:
    """Write files of these names inside the block. They are sealed at its end; other files keep their seals.

    The metrics are sealed if the training has `finished`, for otherwise they still change.
    """
    manifest = read_manifest(run)
    files = {} if manifest is None else manifest.files
    before = {name: entry for name, entry in files.items() if name != METRICS}
    if manifest is not None:
        _write(run, before, rewriting=True)
    yield
    written = {*names, *([METRICS] if finished else [])}
    new = {*written, *(SEALED_FILES if manifest is None else ())}
    kept = {name: entry for name, entry in before.items() if name not in written}
    changed = [name for name in (*SEALED_FILES, METRICS) if name in new and (run / name).is_file()]
    _write(run, kept | {name: _entry(run / name) for name in changed})


def replace_file(run: Path, name: str, content: bytes) -> None:
    """Write one file so that it matches the manifest at every moment, with its old or its new content."""
    manifest = read_manifest(run) or Manifest()
    entry: dict[str, Any] = {"sha256": checksum_of(content), "size": len(content)}
    before = manifest.files.get(name)
    files = {**manifest.files, name: entry}
    if before is not None:
        _write(run, {**files, name: {**entry, "previous": before["sha256"]}}, rewriting=manifest.rewriting)
    write_atomically(run / name, content)
    _write(run, files, rewriting=manifest.rewriting)


def verify(run: Path, names: Iterable[str] = SMALL_FILES) -> None:
    """Refuse files of a run folder that do not match the manifest.

    A folder without a manifest, as older versions wrote it, gives a warning with the command that seals it.
    """
    manifest = read_manifest(run)
    if manifest is None:
        if (run / "config.json").is_file():  # else no run, or nothing to rely on yet
            warnings.warn(
                f"{run} has no {MANIFEST}, so damaged files are not noticed; if its outputs are right, seal it with: "
                f"sightline seal {run}",
                stacklevel=1,  # the same for every caller, so it is shown once
            )
        return
    for name in names:
        _compare(run, name, manifest)


def verified_later(run: Path, name: str = WEIGHTS) -> Future[None]:
    """`verify_file` in a thread, while the caller reads the file (hashing releases the GIL).

    The future raises if the file does not match. Wait for it before using the content.
    """
    pool = ThreadPoolExecutor(1, thread_name_prefix="sha256")
    try:
        return pool.submit(verify_file, run, name)
    finally:
        pool.shutdown(wait=False)


def verify_file(run: Path, name: str) -> None:
    """Refuse one file that does not match the manifest; a missing manifest was reported before."""
    manifest = read_manifest(run)
    if manifest is not None:
        _compare(run, name, manifest)


def verify_metrics(run: Path, content: bytes) -> None:
    """Refuse metrics whose beginning differs from what was sealed at the end of training."""
    manifest = read_manifest(run)
    if manifest is None or (entry := manifest.files.get(METRICS)) is None:
        return
    if checksum_of(content[: entry["size"]]) != entry["sha256"]:
        raise _mismatch(run, METRICS)


def changed_files(run: Path) -> list[str]:
    """The files that differ from the manifest, as `sightline seal` would accept them: `recipe.yaml changed`."""
    manifest = read_manifest(run)
    if manifest is None:
        return []
    changes = []
    for name in (*SEALED_FILES, METRICS):
        exists, sealed = (run / name).is_file(), name in manifest.files
        if sealed and not exists:
            changes.append(f"{name} is gone")
        elif exists and not sealed and name != METRICS:
            changes.append(f"{name} is new")
        elif exists and sealed and checksum(run / name) not in manifest.digests(name):
            changes.append(f"{name} changed")
    return changes


def _compare(run: Path, name: str, manifest: Manifest) -> None:
    path = run / name
    if not path.is_file() or _matches(path, name, manifest):  # a missing file is reported by the code that needs it
        return
    current = read_manifest(run)  # a training may have written both in the meantime
    if current is None or _matches(path, name, current):
        return
    if current.rewriting:
        warnings.warn(
            f"{path} does not match {MANIFEST}, whose writing was interrupted; resume the training, or seal the run "
            f"with: sightline seal {run}",
            stacklevel=1,
        )
        return
    raise _mismatch(run, name)


def _matches(path: Path, name: str, manifest: Manifest) -> bool:
    entry = manifest.files.get(name)
    if entry is None or ("previous" not in entry and path.stat().st_size != entry["size"]):
        return False
    return checksum(path) in manifest.digests(name)


def _mismatch(run: Path, name: str) -> ManifestError:
    return ManifestError(f"{run / name} is not the file that {MANIFEST} describes (SHA-256 differs); {_remedy(run)}")


def _remedy(run: Path) -> str:
    return f"copy the run folder again or, if the change is intended, accept it with: sightline seal {run}"


def _entry(path: Path) -> dict[str, Any]:
    return {"sha256": checksum(path), "size": os.path.getsize(path)}


def _write(run: Path, files: Mapping[str, Mapping[str, Any]], *, rewriting: bool = False) -> None:
    record: dict[str, Any] = {"format": 1, "sightline": version(), "files": files}
    write_json(run / MANIFEST, {**record, "rewriting": True} if rewriting else record, indent=2)


def newest_progress(run: Path) -> Path | None:
    """The progress.json of the newest checkpoint of a run; None without a checkpoint."""
    checkpoints = sorted((run / "checkpoints").glob("step-" + "[0-9]" * 8))
    return checkpoints[-1] / "progress.json" if checkpoints else None


def saved_progress(run: Path) -> dict[str, Any] | None:
    """The training progress that the newest checkpoint recorded; None if there is none that can be read."""
    saved = newest_progress(run)
    try:
        progress = None if saved is None else read_json(saved)
    except (OSError, ValueError):
        return None
    return progress if isinstance(progress, dict) else None
