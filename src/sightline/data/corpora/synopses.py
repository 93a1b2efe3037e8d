"""Debian's package descriptions and their one-line synopses, from the control files that the user names.

A stanza has `Description: synopsis` and, indented by a space, the description; a line with a single full stop is an
empty one. Debian keeps descriptions in `Translation-en` files (`Description-en:`), its `Packages` files have synopses
alone; those made by dpkg-scanpackages, and dpkg's status file, have both.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from sightline.data.corpora.catalogue import CorpusError
from sightline.data.sources import read_lines
from sightline.data.splitting import place
from sightline.text.shown import short

LISTS = Path("/var/lib/apt/lists")
PARTS = {"train": (0.0, 0.95), "valid": (0.95, 0.975), "test": (0.975, 1.0)}

_FEWEST = {"source": 7, "target": 2}  # words
_HELPER = Path("/usr/lib/apt/apt-helper")  # decompresses whatever apt compresses


def apt_lists() -> list[Path]:
    """The files of apt's own lists that have descriptions."""
    return sorted([*LISTS.glob("*_i18n_Translation-en*"), *LISTS.glob("*_Packages*")])


def make(files: Sequence[Path]) -> Iterator[tuple[str, bytes]]:
    """Source and target of each part; a description that several packages have comes once, with its first synopsis."""
    pairs: dict[str, str] = {}
    for file in files:
        for synopsis, description in _descriptions(file):
            if len(description.split()) >= _FEWEST["source"] and len(synopsis.split()) >= _FEWEST["target"]:
                pairs.setdefault(description, synopsis)
    if not pairs:
        raise CorpusError(
            f"debian-synopsis: no descriptions in {', '.join(map(str, files)) or LISTS}; Debian has them in "
            f"Translation-en files: give one with --packages FILE, e.g. "
            f"http://deb.debian.org/debian/dists/bookworm/main/i18n/Translation-en.bz2"
        )
    by_place = sorted((place(source), source, target) for source, target in pairs.items())
    for part, (start, stop) in PARTS.items():
        own = [(source, target) for spot, source, target in by_place if start <= spot < stop]
        for side, name in enumerate(("src", "tgt")):
            yield f"{part}.{name}.xz", "".join(pair[side] + "\n" for pair in own).encode()


def _descriptions(file: Path) -> Iterator[tuple[str, str]]:
    """Synopsis and description of each stanza that has both."""
    synopsis, lines = "", list[str]()
    for line in (*_text(file), ""):
        if line.startswith(("Description:", "Description-en:")):
            synopsis = line.split(":", 1)[1].strip()
        elif synopsis and line.startswith(" "):
            lines.append("" if line.strip() == "." else line)
        elif synopsis:
            if lines:
                yield synopsis, " ".join(" ".join(lines).split())
            synopsis, lines = "", []


def _text(file: Path) -> Iterator[str]:
    if file.suffix != ".lz4":
        return read_lines(file)
    command = [str(_HELPER), "cat-file"] if _HELPER.exists() else [shutil.which("lz4") or "", "-dc"]
    if not command[0]:
        raise CorpusError(f"{file}: neither {_HELPER} nor lz4 is there to decompress it; decompress it by hand")
    done = subprocess.run([*command, str(file)], capture_output=True, check=False)
    if done.returncode:
        raise CorpusError(f"{file} cannot be decompressed: {short(done.stderr.decode(errors='replace').strip())}")
    return iter(done.stdout.decode("utf-8").split("\n"))
