"""From a corpus's name to its files: download, convert, write; what is there and right already is left alone."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from sightline.data.corpora.catalogue import Corpus, CorpusError
from sightline.data.corpora.checking import Check, check
from sightline.data.corpora.conversion import convert
from sightline.data.corpora.download import download
from sightline.data.corpora.places import corpora_folders
from sightline.files import packed, write_atomically
from sightline.progress import Progress, silent


def destination(to: Path | None) -> Path:
    """Where corpora are written: the folder named, else $SIGHTLINE_CORPORA, else the user's own."""
    return to or corpora_folders()[0]


def get(
    corpus: Corpus,
    folder: Path,
    *,
    packages: Sequence[Path] = (),
    mirror: str | None = None,
    keep: bool = False,
    progress: Progress = silent,
) -> list[Check]:
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
        from sightline.data.corpora.synopses import apt_lists

        originals = {str(path): path for path in packages or apt_lists()}
    for number, (name, content) in enumerate(convert(corpus, originals), 1):
        progress(f"{corpus.name}: files written", number, len(corpus.products))
        write_atomically(place / name, packed(Path(name), content))
    if not keep:
        shutil.rmtree(kept, ignore_errors=True)
    return list(check(corpus, place))
