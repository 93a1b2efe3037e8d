"""Download a corpus: resume partial downloads, check hashes, convert the originals and write the files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sightline.data.corpora.catalogue import CatalogueEntry, CorpusError, Original, corpora_folders
from sightline.data.corpora.checking import FileCheck, check
from sightline.data.corpora.conversion import apt_lists, convert
from sightline.files import compressed, write_atomically
from sightline.progress import Progress, silent


def destination(to: Path | None) -> Path:
    """The folder for corpora: `to`, else $SIGHTLINE_CORPORA, else in the user's data folder."""
    return to or corpora_folders()[0]


def get_corpus(
    corpus: CatalogueEntry,
    folder: Path,
    *,
    packages: Sequence[Path] = (),
    mirror: str | None = None,
    keep: bool = False,
    progress: Progress = silent,
) -> list[FileCheck]:
    """Write the files of a corpus into `folder/NAME` and check them; originals are kept until that is done."""
    place, kept = folder / corpus.name, folder / ".originals" / corpus.name
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CorpusError(f"{place} cannot be made ({error.strerror}); name another folder with --to") from error
    if not os.access(place, os.W_OK):
        raise CorpusError(f"{place} cannot be written to; name another folder with --to")
    originals = {}
    for number, original in enumerate(corpus.originals, 1):
        originals[original.name] = download(original, kept, mirror=mirror, progress=progress)
        progress(f"{corpus.name}: files downloaded", number, len(corpus.originals))
    if corpus.convert == "synopses":
        originals = {str(path): path for path in packages or apt_lists()}
    for number, (name, content) in enumerate(convert(corpus, originals), 1):
        progress(f"{corpus.name}: files written", number, len(corpus.products))
        write_atomically(place / name, compressed(Path(name), content))
    if not keep:
        shutil.rmtree(kept, ignore_errors=True)
    return list(check(corpus, place))


_CHUNK = 1 << 16
_ATTEMPTS = 3
_TIMEOUT = 30.0  # seconds without a byte


def download(original: Original, folder: Path, *, mirror: str | None = None, progress: Progress = silent) -> Path:
    """Download an original into a folder, unless it is there; a partial download is resumed.

    A `mirror` has the same files under the same names: `MIRROR/raw.githubusercontent.com/…`.
    """
    import pooch
    import requests

    pooch.get_logger().setLevel("ERROR")
    url = original.url if mirror is None else f"{mirror.rstrip('/')}/{original.url.split('://', 1)[1]}"
    place = folder / original.name
    folder.mkdir(parents=True, exist_ok=True)
    part = place.with_name(place.name + ".part")
    try:
        pooch.retrieve(
            url, original.hash, fname=original.name, path=folder, downloader=ResumingDownloader(part, progress)
        )
    except (requests.RequestException, OSError) as error:
        kept = f"{part.stat().st_size:,} bytes are kept, so the same command resumes" if part.exists() else "try again"
        raise CorpusError(
            f"{url} cannot be downloaded ({_cause(error)}); {kept}. Or download it by hand, save it as {place} and run "
            f"the command again"
        ) from error
    except ValueError as error:  # pooch's, of a wrong hash
        part.unlink(missing_ok=True)
        raise CorpusError(
            f"{url} is not the file that was recorded ({original.hash}): it was changed, or damaged on the way; "
            f"try again, or save the right file as {place}"
        ) from error
    return place


@dataclass
class ResumingDownloader:
    """A downloader for pooch that resumes after the content of `part`, and keeps it if the connection breaks."""

    part: Path
    progress: Progress

    def __call__(self, url: str, output_file: Any, pooch: Any) -> None:
        """Download to `part`, then move it to `output_file`."""
        import requests

        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._receive(url)
                break
            except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError):
                if attempt == _ATTEMPTS:
                    raise
        self.part.replace(output_file)

    def _receive(self, url: str) -> None:
        import requests

        done = self.part.stat().st_size if self.part.exists() else 0
        headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={done}-"} if done else {})}
        with requests.get(url, headers=headers, stream=True, timeout=_TIMEOUT) as response:
            if response.status_code == requests.codes.requested_range_not_satisfiable:  # nothing is left, or it changed
                if response.headers.get("Content-Range", "").endswith(f"/{done}"):
                    return
                self.part.unlink()
                raise requests.ConnectionError("the file has changed since its download began")
            response.raise_for_status()
            if response.status_code != requests.codes.partial_content:
                done = 0  # a server that does not resume sends all of it
            total = done + int(response.headers.get("Content-Length", 0))
            with self.part.open("ab" if done else "wb") as file:
                for block in response.iter_content(_CHUNK):
                    file.write(block)
                    done += len(block)
                    self.progress(f"downloading {self.part.stem} (bytes)", done, total)
            if "Content-Length" in response.headers and done != total:
                raise requests.ConnectionError(f"the connection ended after {done:,} of {total:,} bytes")


def _cause(error: Exception) -> str:
    """The reason without the objects of urllib3 around it."""
    response = getattr(error, "response", None)
    if response is not None:
        return f"HTTP {response.status_code} {response.reason}"
    text = str(error)
    for known in ("Name or service not known", "Temporary failure in name resolution", "Connection refused"):
        if known in text or known.lower() in text.lower():
            return f"{known}; is this machine offline?"
    return text if len(text) < 200 else f"{type(error).__name__}: {text[:200]}…"
