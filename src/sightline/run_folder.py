"""The run folder: the only thing that passes between commands.

recipe.yaml  tokenizer.json  config.json  model.safetensors  metrics.jsonl  checkpoints/  environment.json  README.md
manifest.json (SHA-256 of those that commands rely on, see manifest.py)

With decoding.replace_unknown: dictionary also dictionary.tsv (see decoding/unknown_words.py).
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from sightline.files import MAX_JSON, file_lock, parse_json, read_bounded, refuse_link, write_json
from sightline.manifest import verify, verify_journal
from sightline.version import version

FORMAT = 1  # raised when older programs could no longer read a run folder
LOCK = ".lock"


class RunError(ValueError):
    """A run folder is not what a command needs."""


@contextmanager
def locked(run: Path) -> Iterator[None]:
    """Hold the folder for one training; the lock goes with the process, however it ends.

    A folder that was made for it, and into which nothing came, is gone again afterwards.
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
            if new and [found.name for found in run.glob("*")] == [LOCK]:
                (run / LOCK).unlink()
                run.rmdir()


def check_links(run: Path) -> None:
    """Refuse a run folder in which training would write or delete through symbolic links, before it begins."""
    for name in (LOCK, "metrics.jsonl", "checkpoints", "tensorboard"):
        refuse_link(run / name)


def write_config(run: Path, config: dict[str, Any]) -> None:
    """config.json: what is needed to build the model before its weights are read."""
    record = {"format": FORMAT, "sightline": version(), **config}
    write_json(run / "config.json", record, indent=2)


def read_config(run: Path) -> dict[str, Any]:
    """config.json of a finished run, whose files are those that were sealed (manifest.py)."""
    if (run / "config.json").is_file():
        verify(run)
    return parse_config(run)


def parse_config(run: Path) -> dict[str, Any]:
    """config.json as it is; a folder that is no run folder, is not whole or is too new says so."""
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


def need(run: Path, name: str, remedy: str) -> Path:
    """The path of a file the folder must have."""
    path = run / name
    if not path.is_file():
        raise RunError(f"{run} has no {name}; {remedy}")
    return path


def journal(run: Path) -> list[dict[str, Any]]:
    """The records of metrics.jsonl, in order (training/journal.py says what they are); without the file there are none.

    A training that was killed, or still goes on, may end in half a line: it is passed over.
    """
    _check_folder(run)
    path = run / "metrics.jsonl"
    content = path.read_bytes() if path.is_file() else b""
    verify_journal(run, content)
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
    """Whether a training into this folder wrote a journal, and was interrupted before its first validation."""
    path = run / "metrics.jsonl"
    if not path.is_file():
        return False
    with path.open("rb") as lines:
        return not any(b'"kind": "validation"' in line for line in lines)


def environment() -> dict[str, Any]:
    """With what a run was made, for whoever wants to make it again."""
    import torch

    packages = ("torch", "tokenizers", "numpy", "pyarrow", "safetensors", "sacrebleu", "pydantic", "babel")
    versions = {}
    for name in (*packages, "rouge-score"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "missing"
    cuda = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "sightline": version(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": versions,
        "cuda": cuda,
        "threads": torch.get_num_threads(),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
    }
