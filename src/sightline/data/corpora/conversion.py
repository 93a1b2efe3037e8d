"""From originals to the files that recipes name: each conversion is a pure function of its originals.

`docs/corpora.md` describes them. Text is not changed but where it says so.
"""

from __future__ import annotations

import gzip
import io
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from sightline.data.corpora.catalogue import Corpus, CorpusError, number_lists
from sightline.files import BROKEN

_BOM = b"\xef\xbb\xbf"
_SEGMENT = re.compile(r"<seg[^>]*>(.*)</seg>")

Originals = Mapping[str, Path]  # by name
Made = Iterator[tuple[str, bytes]]  # file and content, one after the other


def convert(corpus: Corpus, originals: Originals) -> Made:
    """The files of a corpus with their content."""
    try:
        yield from CONVERSIONS[corpus.convert](corpus, originals)
    except (*BROKEN, zipfile.BadZipFile, tarfile.TarError, KeyError, UnicodeDecodeError) as error:
        where = next(iter(originals.values())).parent if originals else "nowhere"
        raise CorpusError(
            f"{corpus.name}: the originals in {where} cannot be converted ({type(error).__name__}: {error}); remove "
            f"them and run the command again"
        ) from error


def _files(corpus: Corpus, originals: Originals) -> Made:
    """Each file is one original: decompressed, taken out of its archive, without a byte-order mark."""
    for product in corpus.products:
        path = originals[product.original]
        content = path.read_bytes()
        if product.member:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                content = archive.read(product.member)
        elif path.suffix == ".gz":
            content = gzip.decompress(content)
        yield product.name, content.removeprefix(_BOM)


def _segments(corpus: Corpus, originals: Originals) -> Made:
    """WMT's SGML: the content of each <seg>, a line each, as sacreBLEU reads it, but spaces inside are left alone."""
    for product in corpus.products:
        with tarfile.open(originals[product.original]) as archive:
            file = archive.extractfile(product.member)
            assert file is not None
            text = file.read().decode("utf-8")
        found = [_SEGMENT.search(line) for line in text.split("\n") if line.startswith("<seg ")]
        yield product.name, _lines(match[1].strip(" \t\r") for match in found if match is not None)


def _tatoeba(corpus: Corpus, originals: Originals) -> Made:
    """`English TAB German TAB attribution` to `German TAB English`."""
    (product,) = corpus.products
    with zipfile.ZipFile(originals[product.original]) as archive:
        lines = archive.read(product.member).decode("utf-8").splitlines()
    cells = (line.split("\t") for line in lines if line.strip())
    yield product.name, _lines(f"{row[1]}\t{row[0]}" for row in cells)


def _articles(corpus: Corpus, originals: Originals) -> Made:
    """Articles and abstracts, one a line, in the order of the list of their numbers; runs of spaces become one."""
    for part, numbers in number_lists("sumpubmed.txt").items():
        for side, name in (("src", "text_{}.txt"), ("tgt", "abstract_{}.txt")):
            texts = (originals[name.format(number)].read_text(encoding="utf-8", errors="replace") for number in numbers)
            yield f"{part}.{side}.xz", _lines(" ".join(text.split()) for text in texts)


def _phrases(corpus: Corpus, originals: Originals) -> Made:
    """The built-in corpus as files, with its gold alignments."""
    from sightline.data.phrases import phrases
    from sightline.recipe.data import PhrasesSource

    for part, examples in (("train", 20_000), ("validation", 500), ("test", 1_000)):
        found = list(phrases(PhrasesSource.model_validate({"split": part, "examples": examples})))
        yield f"{part}.en", _lines(each.english for each in found)
        yield f"{part}.de", _lines(each.german for each in found)
        yield f"{part}.tags", _lines(each.tags for each in found)
        yield f"{part}.sentiment", _lines(each.sentiment for each in found)
        yield f"{part}.links", _lines(" ".join(f"{i}-{j}" for i, j in sorted(each.links)) for each in found)


def _europarl(corpus: Corpus, originals: Originals) -> Made:
    from sightline.data.corpora.europarl import make

    return make(originals)


def _synopses(corpus: Corpus, originals: Originals) -> Made:
    from sightline.data.corpora.synopses import make

    return make(list(originals.values()))


def _lines(lines: Iterator[str]) -> bytes:
    return "".join(line + "\n" for line in lines).encode("utf-8")


CONVERSIONS: dict[str, Callable[[Corpus, Originals], Made]] = {
    "files": _files,
    "segments": _segments,
    "tatoeba": _tatoeba,
    "articles": _articles,
    "europarl": _europarl,
    "synopses": _synopses,
    "phrases": _phrases,
}
