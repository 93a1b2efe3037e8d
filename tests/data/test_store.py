"""The tokenized corpus on disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sightline.data import store
from sightline.data import store as ingredients
from sightline.data.corpora.catalogue import cache_folder
from sightline.data.sources import Example
from sightline.data.store import BpeDropout, Store, StoreSpec, content_hash, load_or_build_store
from sightline.data.text_files import DataError
from sightline.recipe.data import Clean
from sightline.recipe.sources import AnySource, DatesSource, JsonLinesSource, TsvSource
from sightline.recipe.tokenizer import BpeTokenizer
from sightline.text.tokenizer import Tokenizer
from sightline.text.vocabulary import Vocabulary

PAIRS = [("ein Hund", "a dog"), ("eine Katze", "a cat"), ("der Hund läuft", "the dog runs"), ("", "nothing"), ("", "")]
VOCABULARY = Vocabulary.train(BpeTokenizer(size=80, min_count=1), lambda: iter([Example(*pair) for pair in PAIRS]))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return write(tmp_path, PAIRS)


def write(folder: Path, pairs: Sequence[tuple[str, str]], name: str = "a.tsv") -> Path:
    (folder / name).write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    return folder


def make(folder: Path, *sources: AnySource, progress: Callable[[int], None] | None = None, **options: Any) -> Store:
    made = StoreSpec(sources or (TsvSource(file="a.tsv"),), VOCABULARY, folder)
    return load_or_build_store(replace(made, **options), cache=folder / "cache", progress=progress)


def texts(made: Store) -> list[tuple[str, str]]:
    source, target = made.take(range(len(made)))
    decode = VOCABULARY.source.decode
    return [(decode(s.tolist()), decode(t.tolist())) for s, t in zip(source, target, strict=True)]


def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A minute on, for whoever asks how old a file is."""
    monkeypatch.setattr("sightline.data.store.time", SimpleNamespace(time=lambda: time.time() + 60))


def stores(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "cache" / "stores").iterdir() if path.is_dir())


def test_store_round_trip(place: Path) -> None:
    made = make(place)
    assert texts(made) == PAIRS
    assert made.counts == dict.fromkeys(made.counts, 0) | {"read": 5, "kept": 5}
    assert made.source_lengths.tolist() == [len(VOCABULARY.source.encode(pair[0])) for pair in PAIRS]
    assert made.target_lengths.dtype == np.int32
    source, target = made.take(np.array([2, 0]))
    assert source[0].dtype == np.uint16
    assert source[0].tolist() == VOCABULARY.source.encode("der Hund läuft")
    assert target[1].tolist() == VOCABULARY.source.encode("a dog")
    assert not source[0].flags.owndata  # a view of the file
    assert not source[0].flags.writeable
    with pytest.raises(IndexError, match="store of 5"):
        made.take([5])


@pytest.mark.parametrize(("size", "kind"), [(1 << 16, np.uint16), ((1 << 16) + 1, np.uint32)])
def test_small_vocabularies_use_16_bit_ids(place: Path, monkeypatch: pytest.MonkeyPatch, size: int, kind: type) -> None:
    monkeypatch.setattr(Tokenizer, "size", property(lambda self: size))
    assert make(place).take([0])[0][0].dtype == kind


def test_copied_words_use_32_bit_ids(place: Path) -> None:
    assert make(place, copying=True).take([0])[0][0].dtype == np.uint32


def test_index_out_of_range(place: Path) -> None:
    made = make(place)
    for wrong in (-1, len(made)):
        with pytest.raises(IndexError, match=f"examples {wrong} to {wrong} of a store of {len(made)}"):
            made.take([wrong])


def test_uneven_labels_are_an_error_with_the_line(place: Path) -> None:
    made = StoreSpec((TsvSource(file="a.tsv"),), replace(VOCABULARY, labels="words"), place)
    with pytest.raises(DataError, match=r"a\.tsv, line 4: "):
        list(made.examples())


def test_sides_can_be_exchanged(place: Path) -> None:
    assert texts(make(place, swap=True)) == [(target, source) for source, target in PAIRS]


def test_chunks_are_limited_by_characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_CHARACTERS", 200)
    handed: list[int] = []
    tokenize = store._tokenize

    def watched(ingredients: StoreSpec, schema: Any, numbered: Any) -> Any:
        handed.append(sum(len(source) + len(target) for _, (source, target), _ in numbered[1]))
        return tokenize(ingredients, schema, numbered)

    monkeypatch.setattr(store, "_tokenize", watched)
    pairs = [("a dog " * 5 + "a", "a cat")] * 40
    assert texts(make(write(tmp_path, pairs))) == pairs
    assert max(handed) < 200 + 36 and sum(handed) == 40 * 36


def test_many_batches_are_one_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_CHUNK", 3)
    write(tmp_path, PAIRS * 4)
    told: list[int] = []
    made = make(tmp_path, clean=Clean(), progress=told.append)
    assert texts(made) == PAIRS[:3] * 4
    assert told == [3, 6, 9, 12, 15, 18, 20]


def test_each_example_knows_its_source(place: Path) -> None:
    write(place, [("eine", "one")], "b.tsv")
    made = make(place, TsvSource(file="a.tsv"), TsvSource(file="b.tsv", weight=3))
    assert made.origin.tolist() == [0, 0, 0, 0, 0, 1]
    assert make(place, TsvSource(file="a.tsv"), TsvSource(file="b.tsv"), limit=2).origin.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("rules", "kept", "reason"),
    [
        (Clean(max_tokens=2), [0, 1, 2, 3, 5], {"too long": 1, "empty": 1}),
        (Clean(max_ratio=1.4), [0, 1, 2, 3, 5], {"ratio": 1, "empty": 1}),
        (Clean(deduplicate="pairs"), [0, 1, 2, 4, 5], {"duplicate": 1, "empty": 1}),
        (Clean(deduplicate="sources"), [0, 1, 4, 5], {"duplicate": 2, "empty": 1}),
        (Clean(deduplicate="targets"), [0, 1, 2, 5], {"duplicate": 2, "empty": 1}),
        (Clean(drop_copies=True), [0, 1, 2, 3, 4], {"copy": 1, "empty": 1}),
    ],
)
def test_dropped_examples_are_counted_by_reason(
    tmp_path: Path, rules: Clean, kept: list[int], reason: dict[str, int]
) -> None:
    pairs = [
        ("ein", "a"),
        ("ein Hund", "a dog"),
        ("ein Hund", "the dog"),
        (" ein Hund ", "a dog"),
        ("eine Katze läuft", "a dog"),
        ("the cat", "the cat"),
        ("", "a dog"),
    ]
    write(tmp_path, pairs)  # every word is one token
    made = make(tmp_path, clean=rules)
    assert texts(made) == [(pairs[number][0].strip(), pairs[number][1]) for number in kept]
    assert {name: count for name, count in made.counts.items() if count} == {"read": 7, "kept": len(kept), **reason}


def cleaned(folder: Path, pairs: Sequence[tuple[str, str]], rules: Clean) -> tuple[list[str], dict[str, int]]:
    """The targets that are left, and what was counted beside them."""
    made = make(write(folder, pairs), clean=rules)
    counts = {name: count for name, count in made.counts.items() if count and name not in ("read", "kept")}
    return [target for _, target in texts(made)], counts


def test_max_ratio_applies_to_both_sides(tmp_path: Path) -> None:
    pairs = [("ein", "a dog"), ("ein", "a dog runs"), ("ein Hund", "a"), ("ein Hund läuft", "a")]
    assert cleaned(tmp_path, pairs, Clean(max_ratio=2)) == (["a dog", "a"], {"ratio": 2})


def test_dropped_example_is_counted_once(tmp_path: Path) -> None:
    pairs = [("ein Hund läuft", "a"), ("ein", "a")]
    assert cleaned(tmp_path, pairs, Clean(max_tokens=2, max_ratio=2)) == (["a"], {"too long": 1})


def test_dropped_examples_do_not_count_for_deduplication(tmp_path: Path) -> None:
    pairs = [("ein", "a dog runs"), ("ein", "a"), ("ein", "a dog")]
    assert cleaned(tmp_path, pairs, Clean(max_ratio=2, deduplicate="sources")) == (["a"], {"ratio": 1, "duplicate": 1})


def test_drop_copies_ignores_surrounding_spaces(tmp_path: Path) -> None:
    assert cleaned(tmp_path, [(" a dog", "a dog "), ("ein", "a")], Clean(drop_copies=True)) == (["a"], {"copy": 1})


def test_deduplication_keeps_different_examples(tmp_path: Path) -> None:
    words = sorted({word for pair in PAIRS for side in pair for word in side.split()})
    pairs = [(f"{one} {two} {three}", "a") for one in words for two in words for three in words]
    assert len(pairs) > 500
    assert len(cleaned(tmp_path, pairs, Clean(deduplicate="pairs"))[0]) == len(pairs)


def test_deduplication_separates_source_and_target(tmp_path: Path) -> None:
    pairs = [("ein\nHund", "a dog"), ("ein", "Hund\na dog"), ("ein", "Hund\na dog ")]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"source": s, "target": t}) + "\n" for s, t in pairs))
    made = make(tmp_path, JsonLinesSource(file="a.jsonl"), clean=Clean(deduplicate="pairs"))
    assert (made.counts["kept"], made.counts["duplicate"]) == (2, 1)


def test_a_store_is_built_once_and_found_again(place: Path) -> None:
    told: list[int] = []
    first = make(place, progress=told.append)
    again = make(place, progress=told.append)
    assert told == [5]
    assert again.folder == first.folder


def test_store_key_depends_on_content(place: Path) -> None:
    make(place)
    make(place, swap=True)
    make(place, limit=4)
    make(place, clean=Clean())
    make(place, clean=Clean(max_tokens=20))
    make(place, TsvSource(file="a.tsv", columns=(2, 1)))
    make(place, dropout=BpeDropout(0.1, 1, 0))
    make(place, dropout=BpeDropout(0.1, 2, 0))
    make(place, dropout=BpeDropout(0.1, 1, 1))
    make(place, vocabulary=Vocabulary.train(BpeTokenizer(size=60, min_count=1), lambda: iter(PAIRS)))
    assert len(stores(place)) == 10
    write(place, PAIRS[:3])
    assert texts(make(place)) == PAIRS[:3]


def test_store_key_depends_on_every_field(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Vocabulary.train(BpeTokenizer(size=60, min_count=1), lambda: iter(PAIRS))
    changes: list[dict[str, Any]] = [
        {},
        {"longest_source": 5},
        {"copying": True},
        {"text_only": True},
        {"vocabulary": replace(VOCABULARY, labels="one")},
        {"vocabulary": replace(VOCABULARY, source=other.source)},
        {"vocabulary": replace(VOCABULARY, target=other.target)},
        {"sources": (TsvSource(file="a.tsv"), TsvSource(file="a.tsv"))},
    ]
    plain = StoreSpec((TsvSource(file="a.tsv"),), VOCABULARY, place)
    names = {replace(plain, **change).key(place / "cache") for change in changes}
    assert len(names) == len(changes)
    (place / "a.gz").write_bytes((place / "a.tsv").read_bytes())  # the same bytes, to be read otherwise
    assert replace(plain, sources=(TsvSource(file="a.gz"),)).key(place / "cache") not in names
    monkeypatch.setattr(ingredients, "FORMAT", ingredients.FORMAT + 1)
    assert plain.key(place / "cache") not in names


def test_store_key_depends_on_the_version_of_babel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = StoreSpec((DatesSource(split="train", examples=1),), VOCABULARY, None)
    before = made.key(tmp_path)
    monkeypatch.setattr(ingredients, "version", lambda name: "another")
    assert made.key(tmp_path) != before


def test_store_key_ignores_paths_and_weights(place: Path) -> None:
    first = make(place)
    (place / "a.tsv").rename(place / "b.tsv")
    assert make(place, TsvSource(file="b.tsv", weight=2.0)).folder == first.folder


def test_changed_file_with_the_same_size_and_time_is_noticed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    later(monkeypatch)  # or nothing would be remembered of a file just written
    first = make(place)
    assert make(place).folder == first.folder
    stamp = (place / "a.tsv").stat()
    (place / "a.tsv").write_bytes((place / "a.tsv").read_bytes().replace(b"cat", b"dog"))
    os.utime(place / "a.tsv", ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert make(place).folder != first.folder


def test_checksum_of_an_unchanged_file_is_cached(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, cache = place / "a.tsv", place / "cache"
    os.utime(path, (time.time() - 60, time.time() - 60))
    content_hash(path, cache)
    assert not (cache / "checksums").exists()  # its content may be new, whatever that time says
    later(monkeypatch)
    found = content_hash(path, cache)
    (memory,) = (cache / "checksums").iterdir()
    memory.write_text(memory.read_text().replace(found, "remembered"))
    assert content_hash(path, cache) == "remembered"
    memory.write_text("{")
    assert content_hash(path, cache) == found


def test_dropout_is_deterministic_and_differs_between_variants(tmp_path: Path) -> None:
    write(tmp_path, PAIRS[:3] * 20)

    def cut(variant: int) -> list[list[int]]:
        made = make(tmp_path, dropout=BpeDropout(0.5, variant, 3))
        assert texts(made) == PAIRS[:3] * 20
        return [row.tolist() for row in made.take(range(60))[0]]

    first = cut(0)
    assert first != cut(1)
    for name in stores(tmp_path):
        (tmp_path / "cache" / "stores" / name).rename(tmp_path / name)
    assert cut(0) == first


def test_source_of_the_maximum_length_is_not_truncated() -> None:
    plain, pairs = StoreSpec((), VOCABULARY, None), [Example("der Hund läuft", "the dog runs"), Example("ein", "a")]
    (whole, short), targets, cut = plain.encode(pairs, 0)
    assert cut == [False, False] and len(whole) > len(short)
    assert replace(plain, longest_source=len(whole)).encode(pairs, 0) == ([whole, short], targets, [False, False])
    fewer = replace(plain, longest_source=len(whole) - 1)
    assert fewer.encode(pairs, 0) == ([whole[:-1], short], targets, [True, False])


def test_dropout_differs_between_chunks_and_sides() -> None:
    made = StoreSpec((), VOCABULARY, None, dropout=BpeDropout(0.5, 0, 0))
    text = "der Hund läuft a dog runs"
    chunks = [made.encode([Example(text, text)], number)[:2] for number in range(4)]
    assert len({tuple(ids) for sides in chunks for (ids,) in sides}) == 8


def test_an_interrupted_build_leaves_nothing_that_is_used(place: Path) -> None:
    def stop(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(place, progress=stop)
    assert stores(place) == []
    assert texts(make(place)) == PAIRS


def test_a_half_built_store_is_never_used(place: Path) -> None:
    script = f"""
import os, signal
from pathlib import Path
from sightline.data.store import StoreSpec, load_or_build_store
from sightline.recipe.sources import TsvSource
from sightline.text.vocabulary import Vocabulary
folder = Path({str(place)!r})
kill = lambda _: os.kill(os.getpid(), signal.SIGKILL)
spec = StoreSpec((TsvSource(file="a.tsv"),), Vocabulary.load(folder), folder)
load_or_build_store(spec, cache=folder / "cache", progress=kill)
"""
    VOCABULARY.save(place)
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    (left,) = stores(place)
    assert left.endswith(".tmp")
    assert texts(make(place)) == PAIRS
    assert [name for name in stores(place) if name.endswith(".tmp")] == []  # and what it left is gone
    assert make(place).folder.name == left.split(".")[1]


def test_concurrent_processes_build_a_store_once(place: Path) -> None:
    told: list[int] = []

    def slowly(count: int) -> None:
        time.sleep(0.05)
        told.append(count)

    def one(_: int) -> list[tuple[str, str]]:
        return texts(make(place, progress=slowly))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(one, range(4))) == [PAIRS] * 4
    assert told == [5]
    assert len(stores(place)) == 1


def test_a_disk_that_fills_up_leaves_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "write_json", full)
    with pytest.raises(OSError, match="No space left"):
        make(place)
    assert stores(place) == []


def test_empty_store_is_an_error(place: Path) -> None:
    write(place, PAIRS[2:])
    with pytest.raises(DataError, match=r"no examples are left of the 3 read \(2 empty, 1 too long\); check"):
        make(place, clean=Clean(max_tokens=2))
    assert stores(place) == []


def test_bad_input_is_named_through_the_store(place: Path) -> None:
    (place / "a.tsv").write_text("a\tb\nc\n")
    with pytest.raises(DataError, match=r"a\.tsv, line 2"):
        make(place)


def test_the_dates_need_no_folder(tmp_path: Path) -> None:
    ingredients = StoreSpec((DatesSource(split="test", examples=5),), VOCABULARY, None)
    assert len(load_or_build_store(ingredients, cache=tmp_path)) == 5


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "here"))
    assert cache_folder() == tmp_path / "here"
    monkeypatch.delenv("SIGHTLINE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "sightline"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "sightline"


def test_the_counts_are_kept_beside_the_examples(place: Path) -> None:
    made = make(place)
    assert json.loads((made.folder / "counts.json").read_text()) == made.counts
