"""Convert downloaded originals to the files that recipes name; each conversion is a pure function of its originals.

`docs/corpora.md` describes the conversions. Text changes only where that page says so.
"""

from __future__ import annotations

import gzip
import io
import re
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from sightline.data.corpora.catalogue import CatalogueEntry, CorpusError, number_lists
from sightline.data.corpora.europarl import europarl_files
from sightline.data.phrases import phrases
from sightline.data.sources import split_position
from sightline.data.text_files import read_lines
from sightline.files import READ_ERRORS
from sightline.recipe.sources import PhrasesSource
from sightline.terminal import short

_BOM = b"\xef\xbb\xbf"
_SEGMENT = re.compile(r"<seg[^>]*>(.*)</seg>")

Originals = Mapping[str, Path]  # by name
Made = Iterator[tuple[str, bytes]]  # file and content, one after the other


def convert(corpus: CatalogueEntry, originals: Originals) -> Made:
    """The files of a corpus with their content."""
    try:
        yield from CONVERSIONS[corpus.convert](corpus, originals)
    except (*READ_ERRORS, zipfile.BadZipFile, tarfile.TarError, KeyError, UnicodeDecodeError) as error:
        where = next(iter(originals.values())).parent if originals else "nowhere"
        raise CorpusError(
            f"{corpus.name}: the originals in {where} cannot be converted ({type(error).__name__}: {error}); remove "
            f"them and run the command again"
        ) from error


def _files(corpus: CatalogueEntry, originals: Originals) -> Made:
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


def _segments(corpus: CatalogueEntry, originals: Originals) -> Made:
    """WMT's SGML: the content of each <seg> as a line, as in sacreBLEU, except that inner spaces are kept."""
    for product in corpus.products:
        with tarfile.open(originals[product.original]) as archive:
            file = archive.extractfile(product.member)
            assert file is not None
            text = file.read().decode("utf-8")
        matches = [_SEGMENT.search(line) for line in text.split("\n") if line.startswith("<seg ")]
        yield product.name, _lines(match[1].strip(" \t\r") for match in matches if match is not None)


def _tatoeba(corpus: CatalogueEntry, originals: Originals) -> Made:
    """`English TAB German TAB attribution` to `German TAB English`."""
    (product,) = corpus.products
    with zipfile.ZipFile(originals[product.original]) as archive:
        lines = archive.read(product.member).decode("utf-8").splitlines()
    cells = (line.split("\t") for line in lines if line.strip())
    yield product.name, _lines(f"{row[1]}\t{row[0]}" for row in cells)


def _articles(corpus: CatalogueEntry, originals: Originals) -> Made:
    """Articles and abstracts, one a line, in the order of the list of their numbers; runs of spaces become one."""
    for part, numbers in number_lists("sumpubmed.txt").items():
        for side, name in (("src", "text_{}.txt"), ("tgt", "abstract_{}.txt")):
            texts = (originals[name.format(number)].read_text(encoding="utf-8", errors="replace") for number in numbers)
            yield f"{part}.{side}.xz", _lines(" ".join(text.split()) for text in texts)


def _phrases(corpus: CatalogueEntry, originals: Originals) -> Made:
    """The built-in corpus as files, with its gold alignments."""
    for part, examples in (("train", 20_000), ("validation", 500), ("test", 1_000)):
        pairs = list(phrases(PhrasesSource.model_validate({"split": part, "examples": examples})))
        yield f"{part}.en", _lines(each.english for each in pairs)
        yield f"{part}.de", _lines(each.german for each in pairs)
        yield f"{part}.tags", _lines(each.tags for each in pairs)
        yield f"{part}.sentiment", _lines(each.sentiment for each in pairs)
        yield f"{part}.links", _lines(" ".join(f"{i}-{j}" for i, j in sorted(each.links)) for each in pairs)


def _lines(lines: Iterable[str]) -> bytes:
    return "".join(line + "\n" for line in lines).encode("utf-8")


CONVERSIONS: dict[str, Callable[[CatalogueEntry, Originals], Made]] = {
    "files": _files,
    "segments": _segments,
    "tatoeba": _tatoeba,
    "articles": _articles,
    "europarl": lambda corpus, originals: europarl_files(originals),
    "synopses": lambda corpus, originals: synopses(list(originals.values())),
    "phrases": _phrases,
}


LISTS = Path("/var/lib/apt/lists")
SYNOPSES_SPLITS = {"train": (0.0, 0.95), "valid": (0.95, 0.975), "test": (0.975, 1.0)}

_FEWEST_SOURCE_WORDS, _FEWEST_TARGET_WORDS = 7, 2
_APT_HELPER = Path("/usr/lib/apt/apt-helper")  # decompresses whatever apt compresses


def apt_lists() -> list[Path]:
    """The lists of apt on this machine that have descriptions."""
    return sorted([*LISTS.glob("*_i18n_Translation-en*"), *LISTS.glob("*_Packages*")])


def synopses(files: Sequence[Path]) -> Iterator[tuple[str, bytes]]:
    """Source and target of each part; a description of several packages occurs once, with its first synopsis.

    A control stanza has `Description: synopsis` and, indented by a space, the description; a line with a single full
    stop is empty. Debian has descriptions in `Translation-en` files (`Description-en:`), its `Packages` files have
    only synopses; files of dpkg-scanpackages, and the status file of dpkg, have both.
    """
    pairs: dict[str, str] = {}
    for file in files:
        for synopsis, description in _descriptions(file):
            words = len(description.split()), len(synopsis.split())
            if words[0] >= _FEWEST_SOURCE_WORDS and words[1] >= _FEWEST_TARGET_WORDS:
                pairs.setdefault(description, synopsis)
    if not pairs:
        raise CorpusError(
            f"debian-synopsis: no descriptions in {', '.join(map(str, files)) or LISTS}; Debian has them in "
            f"Translation-en files: give one with --packages FILE, e.g. "
            f"http://deb.debian.org/debian/dists/bookworm/main/i18n/Translation-en.bz2"
        )
    positions = sorted((split_position(source), source, target) for source, target in pairs.items())
    for part, (start, stop) in SYNOPSES_SPLITS.items():
        own = [pair for position, *pair in positions if start <= position < stop]
        for side, name in enumerate(("src", "tgt")):
            yield f"{part}.{name}.xz", _lines(pair[side] for pair in own)


def _descriptions(file: Path) -> Iterator[tuple[str, str]]:
    """Synopsis and description of each stanza that has both."""
    synopsis, lines = "", list[str]()
    for line in (*_control_lines(file), ""):
        if line.startswith(("Description:", "Description-en:")):
            synopsis = line.split(":", 1)[1].strip()
        elif synopsis and line.startswith(" "):
            lines.append("" if line.strip() == "." else line)
        elif synopsis:
            if lines:
                yield synopsis, " ".join(" ".join(lines).split())
            synopsis, lines = "", []


def _control_lines(file: Path) -> Iterator[str]:
    if file.suffix != ".lz4":
        return read_lines(file)
    command = [str(_APT_HELPER), "cat-file"] if _APT_HELPER.exists() else [shutil.which("lz4") or "", "-dc"]
    if not command[0]:
        raise CorpusError(
            f"{file}: {_APT_HELPER} and lz4 are not installed; install one, or decompress the file by hand"
        )
    done = subprocess.run([*command, str(file)], capture_output=True, check=False)
    if done.returncode:
        raise CorpusError(f"{file} cannot be decompressed: {short(done.stderr.decode(errors='replace').strip())}")
    return iter(done.stdout.decode("utf-8").split("\n"))
