"""Corpora: download from a local server, conversion, checks."""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import re
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sightline.cli.app import app
from sightline.data.corpora import catalogue as catalogues
from sightline.data.corpora import checking, europarl
from sightline.data.corpora.catalogue import (
    CatalogueEntry,
    CorpusError,
    Original,
    Product,
    catalogue,
    corpora_folders,
    corpus,
)
from sightline.data.corpora.checking import BLOCK, difference, digests
from sightline.data.corpora.conversion import CONVERSIONS, convert
from sightline.data.corpora.conversion import synopses as make_synopses
from sightline.data.corpora.download import download
from sightline.data.locate import resolve_folder, source_files
from sightline.data.text_files import DataError
from sightline.recipe.loading import load_recipe, shipped_recipes
from sightline.recipe.sources import TextSource

GERMAN, ENGLISH = "Zwei Hunde spielen.\nEin Kind lacht.\n", "Two dogs play.\nA child laughs.\n"


class Server(ThreadingHTTPServer):
    """Files by path; counts what it sends, and may break off."""

    files: dict[str, bytes]
    resumes = True
    breaks_after: int | None = None  # bytes of the next answer
    ranges: list[str | None]


class Handler(BaseHTTPRequestHandler):
    """Plain files, with ranges."""

    server: Server

    def do_GET(self) -> None:
        content = self.server.files.get(self.path)
        wanted = self.headers.get("Range")
        self.server.ranges.append(wanted)
        if content is None:
            self.send_error(404, "Not Found")
            return
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and self.server.resumes else 0
        if start >= len(content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        rest = content[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        self.wfile.write(rest[: self.server.breaks_after])
        self.server.breaks_after = None

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as one:
        one.files, one.ranges = {}, []
        thread = threading.Thread(target=one.serve_forever, daemon=True)
        thread.start()
        yield one
        one.shutdown()
        thread.join()


def mirror(server: Server) -> str:
    return f"http://127.0.0.1:{server.server_port}"


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def zipped(**members: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in members.items():
            archive.writestr(name.replace("__", "/").replace("_txt", ".txt"), text)
    return buffer.getvalue()


@pytest.fixture
def tiny(server: Server, monkeypatch: pytest.MonkeyPatch) -> CatalogueEntry:
    """A corpus like multi30k, with its originals on the server, under its name."""
    files = {"train.de": GERMAN, "train.en": ENGLISH}
    originals, products = [], []
    for name, text in files.items():
        content = gzip.compress(text.encode(), mtime=0)
        server.files[f"/example.org/{name}.gz"] = content
        originals.append(Original(f"{name}.gz", f"https://example.org/{name}.gz", f"sha256:{sha(content)}"))
        products.append(Product(f"{name}.xz", 2, sha(text.encode()), f"{name}.gz"))
    one = CatalogueEntry(
        "multi30k", "captions", "example.org", "do good", "1 kB", "files", tuple(originals), tuple(products)
    )
    monkeypatch.setattr(catalogues, "catalogue", lambda: {"multi30k": one})
    blocks = {"multi30k/train.de.xz": digests(GERMAN.encode()), "multi30k/train.en.xz": digests(ENGLISH.encode())}
    monkeypatch.setattr(checking, "block_digests", lambda: blocks)
    return one


# --- the command -----------------------------------------------------------------------------------------------------


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["data", *words])
    return result.exit_code, f"{result.output}{result.exception or ''}"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without $SIGHTLINE_CORPORA."""
    monkeypatch.delenv("SIGHTLINE_CORPORA", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home" / "sightline" / "corpora"


@pytest.mark.skipif("sys.platform != 'linux'", reason="other platforms have their data folders elsewhere")
def test_downloaded_corpus_is_found_without_environment_variable(
    server: Server, tiny: CatalogueEntry, home: Path
) -> None:
    with pytest.raises(DataError, match=r"get it with `sightline data get multi30k`, or set data\.folder"):
        resolve_folder("multi30k", None)
    code, output = run("get", "multi30k", "--yes", "--mirror", mirror(server))
    assert code == 0, output
    assert "terms: do good" in output and output.count("as recorded, 2 lines") == 2
    assert resolve_folder("multi30k", None) == home / "multi30k"
    assert lzma.decompress((home / "multi30k" / "train.de.xz").read_bytes()).decode() == GERMAN
    assert not (home / ".originals" / "multi30k").exists()
    before = len(server.ranges)
    assert "is in" in run("get", "multi30k", "--yes", "--mirror", mirror(server))[1]
    assert len(server.ranges) == before  # nothing was asked for again
    assert run("check")[0] == 0


def test_terms_must_be_accepted_before_anything_is_downloaded(
    server: Server, tiny: CatalogueEntry, tmp_path: Path
) -> None:
    code, output = run("get", "multi30k", "--to", str(tmp_path), "--mirror", mirror(server))
    assert code == 1 and "terms: do good" in output and "accept its terms (do good) with --yes" in output
    assert server.ranges == []


def test_a_generated_corpus_asks_no_question(tmp_path: Path) -> None:
    code, output = run("get", "phrases", "--to", str(tmp_path))
    assert code == 0 and "terms: none" in output
    assert (tmp_path / "phrases" / "train.de").is_file()


def test_an_unknown_corpus_suggests_the_nearest() -> None:
    assert "did you mean multi30k?" in run("get", "multi30", "--yes")[1]


def test_check_says_which_lines_differ(server: Server, tiny: CatalogueEntry, tmp_path: Path) -> None:
    run("get", "multi30k", "--yes", "--to", str(tmp_path), "--mirror", mirror(server))
    (tmp_path / "multi30k" / "train.de.xz").write_bytes(lzma.compress(GERMAN.replace("Kind", "Rind").encode()))
    (tmp_path / "multi30k" / "train.en.xz").unlink()
    code, output = run("check", "multi30k", "--in", str(tmp_path))
    assert code == 1
    assert "train.de.xz: differs, 2 lines, 2 recorded; differences in 1 block of 256 lines" in output
    assert "train.en.xz: missing" in output
    other = tmp_path / "other" / "multi30k"
    other.mkdir(parents=True)
    (other / "train.de.xz").write_bytes(lzma.compress(GERMAN.encode()))
    output = run("check", "multi30k", "--in", str(tmp_path), "--against", str(other.parent))[1]
    assert "train.de.xz: differs, 2 lines and 2; 1 differ: 2 " in output


def test_the_help_is_one_screen_and_needs_no_torch() -> None:
    code, output = run("--help")
    assert code == 0 and len(output.splitlines()) <= 40 and "sightline data get multi30k" in output


# --- downloads -------------------------------------------------------------------------------------------------------


def test_partial_download_is_resumed(server: Server, tmp_path: Path) -> None:
    content = bytes(range(256)) * 1_000
    server.files["/example.org/big"] = content
    part = tmp_path / "big.part"
    part.write_bytes(content[:100_000])
    place = download(
        Original("big", "https://example.org/big", f"sha256:{sha(content)}"), tmp_path, mirror=mirror(server)
    )
    assert place.read_bytes() == content and not part.exists()
    assert server.ranges == ["bytes=100000-"]


def test_broken_connection_is_retried(server: Server, tmp_path: Path) -> None:
    content = bytes(300_000)
    server.files["/example.org/big"], server.breaks_after = content, 131_072
    seen: list[int] = []
    place = download(
        Original("big", "https://example.org/big"),
        tmp_path,
        mirror=mirror(server),
        progress=lambda what, done, total: seen.append(done),
    )
    assert place.read_bytes() == content and len(server.ranges) == 2
    assert server.ranges[1] is not None and seen[-1] == 300_000


def test_server_without_ranges_restarts_the_download(server: Server, tmp_path: Path) -> None:
    server.files["/example.org/file"], server.resumes = b"whole file", False
    (tmp_path / "file.part").write_bytes(b"xxxxx")
    assert (
        download(Original("file", "https://example.org/file"), tmp_path, mirror=mirror(server)).read_bytes()
        == b"whole file"
    )


def test_a_file_that_was_changed_is_refused(server: Server, tmp_path: Path) -> None:
    server.files["/example.org/file"] = b"other"
    with pytest.raises(CorpusError, match=r"file is not the file that was recorded \(sha256:0+\)"):
        download(Original("file", "https://example.org/file", "sha256:" + "0" * 64), tmp_path, mirror=mirror(server))
    assert [path.name for path in tmp_path.iterdir()] == []


@pytest.mark.parametrize("offline", [True, False])
def test_download_error_names_url_and_remedy(server: Server, tmp_path: Path, offline: bool) -> None:
    where = "http://127.0.0.1:9" if offline else mirror(server)
    cause = "Connection refused; is this machine offline" if offline else "HTTP 404 Not Found"
    told = (
        rf"{where}/example.org/none cannot be downloaded \({cause}.*save it as {re.escape(str(tmp_path))}/none and run"
    )
    with pytest.raises(CorpusError, match=told):
        download(Original("none", "https://example.org/none"), tmp_path, mirror=where)


def test_a_file_that_was_downloaded_by_hand_is_taken(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"by hand")
    found = download(Original("file", "https://example.org/file", f"sha256:{sha(b'by hand')}"), tmp_path)
    assert found.read_bytes() == b"by hand"


# --- conversions -----------------------------------------------------------------------------------------------------


def made(kind: str, originals: dict[str, bytes], folder: Path, *products: Product) -> dict[str, str]:
    paths = {}
    for name, content in originals.items():
        paths[name] = folder / name
        paths[name].write_bytes(content)
    one = CatalogueEntry("tiny", "", "", "", "", kind, (), products)
    return {name: content.decode() for name, content in convert(one, paths)}


def test_files_are_unpacked_without_byte_order_mark(tmp_path: Path) -> None:
    product = Product("test.de", 1, "", "a.zip", "folder/test.txt")
    assert made("files", {"a.zip": zipped(folder__test_txt="\ufeffhallo\n")}, tmp_path, product) == {
        "test.de": "hallo\n"
    }


def test_wmt_segments_are_read_as_sacrebleu_reads_them(tmp_path: Path) -> None:
    from sacrebleu.dataset.fake_sgml import FakeSGMLDataset

    text = '<srcset setid="a">\n<doc id="1">\n<seg id="1">One &amp; two.</seg>\n<seg id="2"> Three. </seg>\n</doc>\n'
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        info = tarfile.TarInfo("test/a.sgm")
        info.size = len(text)
        archive.addfile(info, io.BytesIO(text.encode()))
    ours = made("segments", {"t.tgz": buffer.getvalue()}, tmp_path, Product("a.en", 2, "", "t.tgz", "test/a.sgm"))[
        "a.en"
    ]
    (tmp_path / "a.sgm").write_text(text)
    theirs = FakeSGMLDataset("tiny", data=[], langpairs={})
    theirs._convert_format(str(tmp_path / "a.sgm"), str(tmp_path / "a.txt"))
    assert ours == (tmp_path / "a.txt").read_text() == "One &amp; two.\nThree.\n"


def test_tatoeba_has_german_first_and_no_attribution(tmp_path: Path) -> None:
    content = zipped(deu_txt="Hi.\tHallo!\tCC-BY 2.0 (France)\nRun!\tLauf!\tCC-BY\n")
    product = Product("pairs.tsv", 2, "", "z.zip", "deu.txt")
    assert made("tatoeba", {"z.zip": content}, tmp_path, product) == {"pairs.tsv": "Hallo!\tHi.\nLauf!\tRun!\n"}


def test_articles_and_abstracts_are_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sightline.data.corpora.conversion.number_lists", lambda name: {"test": ["7"]})
    originals = {"text_7.txt": b"BACKGROUND\na  b \n", "abstract_7.txt": b"c\nd\n"}
    assert made("articles", originals, tmp_path) == {"test.src.xz": "BACKGROUND a b\n", "test.tgt.xz": "c d\n"}


def test_a_damaged_original_is_named(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=rf"tiny: the originals in {re.escape(str(tmp_path))} cannot be converted"):
        made("files", {"a.gz": b"not gzip"}, tmp_path, Product("a", 1, "", "a.gz"))


def test_sentences_of_speeches_are_aligned_by_their_lengths(tmp_path: Path) -> None:
    german = [
        "Das ist ein kurzer Satz.",
        "Dies dagegen ist ein sehr langer Satz, und er geht noch weiter.",
        "Ja.",
    ]
    english = [
        "This is a short one.",
        "This, however, is a very long sentence.",
        "And it goes on and on.",
        "Yes.",
    ]
    pairs = europarl.align(german, english)
    assert pairs == [(german[0], english[0]), (german[1], f"{english[1]} {english[2]}"), (german[2], english[3])]


def test_proceedings_are_matched_by_speech_and_filtered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def proceedings(language: str, *speeches: tuple[str, str]) -> None:
        inner = "".join(f'<intervention id="{number}"><p>{text}</p></intervention>' for number, text in speeches)
        (tmp_path / f"20110101.{language}.xml").write_text(f"<text><section>{inner}</section></text>")

    proceedings("DE", ("1", "Das ist gut."), ("2", "(Beifall ist das)"), ("3", "Dobrze, bardzo."), ("4", "Das fehlt."))
    proceedings("EN", ("1", "That is good."), ("2", "(That is applause)"), ("3", "That is very good."))
    originals = {path.name: path for path in tmp_path.iterdir()}
    lists = {"train": [], "valid": [], "test": ["20110101"]}
    monkeypatch.setattr(europarl, "number_lists", lambda name: lists)
    found = dict(europarl.europarl_files(originals))
    assert found["test.de.xz"] == b"Das ist gut.\n" and found["test.en.xz"] == b"That is good.\n"


PACKAGES = """Package: {0}
Description: {1}
 This is the first line of it
 and this is the second.
 .
  - a list
Description-md5: abc

Package: short
Description: a short one
 Too short.

"""


@pytest.mark.parametrize("name", ["Packages", "Packages.xz"])
def test_synopses_are_made_of_a_packages_file(name: str, tmp_path: Path) -> None:
    text = PACKAGES.format("one", "tool for tests").encode()
    (tmp_path / name).write_bytes(lzma.compress(text) if name.endswith("xz") else text)
    found = dict(make_synopses([tmp_path / name]))
    assert b"".join(found[f"{part}.src.xz"] for part in ("train", "valid", "test")) == (
        b"This is the first line of it and this is the second. - a list\n"
    )
    assert b"".join(found[f"{part}.tgt.xz"] for part in ("train", "valid", "test")) == b"tool for tests\n"


def test_a_packages_file_without_descriptions_says_where_they_are(tmp_path: Path) -> None:
    (tmp_path / "Packages").write_text("Package: a\nDescription: only a synopsis\n\n")
    with pytest.raises(CorpusError, match=r"no descriptions in .*Packages; Debian has them in Translation-en"):
        dict(make_synopses([tmp_path / "Packages"]))


def test_phrases_are_written_as_files_with_their_recorded_content() -> None:
    for name, content in CONVERSIONS["phrases"](corpus("phrases"), {}):
        recorded = next(product for product in corpus("phrases").products if product.name == name)
        assert sha(content) == recorded.sha256


# --- the catalogue ---------------------------------------------------------------------------------------------------


def test_every_corpus_that_a_shipped_recipe_names_is_in_the_catalogue() -> None:
    for name in shipped_recipes():
        data = load_recipe(name).data
        sources = (*data.train, data.validation, *data.tests.values())
        for file in (Path(getattr(source, key)) for source in sources for key in source.file_keys):
            folder = file.parent.name or data.folder or ""
            assert file.name in {product.name for product in catalogue()[folder].products}, (name, file)


def test_originals_are_pinned_and_their_names_differ() -> None:
    for one in catalogue().values():
        assert len({original.name for original in one.originals}) == len(one.originals)
        assert one.convert in CONVERSIONS and one.title and (one.terms or one.source == "generated")
        assert {product.original for product in one.products} <= {"", *(original.name for original in one.originals)}
        for original in one.originals:
            assert re.search(r"/[0-9a-f]{40}/", original.url) or original.hash or one.note


def test_places_of_differences() -> None:
    lines = [f"{number}\n".encode() for number in range(1_000)]
    changed = [*lines[:700], b"other\n", *lines[701:]]
    one, other = digests(b"".join(lines)), digests(b"".join(changed))
    assert [place for place in range(0, len(one), 4) if one[place : place + 4] != other[place : place + 4]] == [
        700 // BLOCK * 4
    ]
    assert difference(b"".join(changed), b"".join(lines)).startswith("1,000 lines and 1,000; 1 differ: 701 ")


# --- where recipes look ----------------------------------------------------------------------------------------------


def test_a_file_that_is_missing_in_a_known_corpus_names_the_command(tmp_path: Path) -> None:
    (tmp_path / "multi30k").mkdir()
    source = TextSource(source="train.de.xz", target="train.en.xz")
    with pytest.raises(DataError, match=r"train.de.xz does not exist; get it with `sightline data get multi30k`"):
        source_files(source, tmp_path / "multi30k")


def test_the_variable_comes_before_the_users_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIGHTLINE_CORPORA", str(tmp_path))
    assert corpora_folders()[0] == tmp_path and len(corpora_folders()) == 2
