"""Store variants under BPE-dropout: the next one is built in the background and can be cancelled."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from sightline.data import store
from sightline.data.store import Stopped, StoreSpec, StoreVariants, load_or_build_store
from sightline.data.text_files import DataError
from sightline.recipe import Recipe
from sightline.recipe.sources import TsvSource
from sightline.text.vocabulary import Vocabulary
from sightline.training.dry_run import dry_run
from sightline.training.train import train
from sightline.training.world import Interrupted
from watched_runs import Silent, own_cache

LINES = 120
SLOW = 0.5  # seconds that each line of a copy takes that is cut ahead: 30 s for all, two at a time
SOON = 10.0  # seconds; a third of that
TRANSFORMER = {"kind": "transformer", "layers": 1, "heads": 2}


def test_next_variant_is_built_in_the_background_once() -> None:
    cut: list[int] = []
    ahead = threading.Event()

    def make(variant: int, stop: threading.Event) -> Any:
        cut.append(variant)
        if variant == 1:
            ahead.set()
        return f"copy {variant}"

    variants = StoreVariants(make, 2)
    assert variants(0) == "copy 0"
    assert ahead.wait(10)
    assert [variants(epoch) for epoch in range(5)] == ["copy 0", "copy 1", "copy 0", "copy 1", "copy 0"]
    variants.close()
    assert cut == [0, 1, 1]  # the second time it is found in the cache


def test_close_cancels_building_and_keeps_finished_stores() -> None:
    begun = threading.Event()

    def make(variant: int, stop: threading.Event) -> Any:
        if variant == 1:
            begun.set()
            if stop.wait(30):
                raise Stopped
        return f"copy {variant}"

    variants, started = StoreVariants(make, 3), time.monotonic()
    variants(0)
    assert begun.wait(10)
    variants.close()
    assert time.monotonic() - started < 10
    assert variants(0) == variants(3) == "copy 0"
    with pytest.raises(Stopped):
        variants(1)


def test_background_error_is_raised_when_the_variant_is_needed() -> None:
    def make(variant: int, stop: threading.Event) -> Any:
        if variant == 1:
            raise DataError("the disk is gone")
        return f"copy {variant}"

    variants = StoreVariants(make, 2)
    assert variants(0) == "copy 0"
    with pytest.raises(DataError, match="the disk is gone"):
        variants(1)


# --- stores that are given up ------------------------------------------------------------------------------------


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A chunk for each line."""
    monkeypatch.setattr(store, "_CHUNK", 1)
    for name in ("train", "valid"):
        (tmp_path / f"{name}.tsv").write_text("".join(f"number {n}\tnumero {n}\n" for n in range(LINES)))
    return tmp_path


def recipe(folder: Path) -> Recipe:
    return Recipe.model_validate(
        {
            "data": {
                "folder": str(folder),
                "train": [{"kind": "tsv", "file": "train.tsv"}],
                "validation": {"kind": "tsv", "file": "valid.tsv"},
            },
            "tokenizer": {"kind": "bpe", "size": 60, "dropout": 0.2, "variants": 3},
            "model": {"width": 8, "encoder": TRANSFORMER, "decoder": TRANSFORMER},
            "training": {"limits": {"steps": 50}, "batches": {"tokens": 512}, "log_every": 1, "device": "cpu"},
        }
    )


def ingredients(folder: Path) -> StoreSpec:
    vocabulary = Vocabulary.train(recipe(folder).tokenizer, lambda: iter([("number", "numero")]), "none")
    return StoreSpec((TsvSource(file="train.tsv"),), vocabulary, folder)


def test_building_stops_between_chunks_without_leftovers(corpus: Path) -> None:
    stop, told = threading.Event(), list[int]()

    def progress(read: int) -> None:
        told.append(read)
        if read == 5:
            stop.set()

    with pytest.raises(Stopped):
        load_or_build_store(ingredients(corpus), cache=corpus, progress=progress, stop=stop)
    assert told == [1, 2, 3, 4, 5]
    assert [path.suffix for path in (corpus / "stores").iterdir()] == [".lock"]
    assert len(load_or_build_store(ingredients(corpus), cache=corpus, stop=threading.Event())) == LINES


def test_waiting_for_another_builder_can_be_stopped(corpus: Path) -> None:
    stop, made = threading.Event(), ingredients(corpus)
    lock = corpus / "stores" / f"{made.key(corpus)}.lock"
    lock.parent.mkdir()
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        threading.Timer(0.2, stop.set).start()
        with pytest.raises(Stopped):
            load_or_build_store(made, cache=corpus, stop=stop)
    assert len(load_or_build_store(made, cache=corpus, stop=threading.Event())) == LINES


# --- trainings that end early ------------------------------------------------------------------------------------


@pytest.fixture
def slow(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """All copies but the first are cut slowly; the lines of them that were cut."""
    encode, cut = StoreSpec.encode, list[int]()

    def slowly(self: StoreSpec, texts: Any, number: int) -> Any:
        if self.dropout is not None and self.dropout.variant > 0:
            cut.append(number)
            time.sleep(SLOW)
        return encode(self, texts, number)

    monkeypatch.setattr(StoreSpec, "encode", slowly)
    return cut


def check_over(cache: Path, cut: list[int], started: float) -> None:
    """Nobody cuts any more, and a copy that was begun is gone."""
    assert time.monotonic() - started < SOON
    assert 0 < len(cut) < LINES / 2
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("variants")]
    assert not [path for path in (cache / "stores").iterdir() if path.suffix == ".tmp"]


def test_interrupted_training_does_not_wait_for_the_next_variant(corpus: Path, slow: list[int]) -> None:
    started = time.monotonic()
    display = Silent({1: lambda: os.kill(os.getpid(), signal.SIGINT)})
    with own_cache(corpus / "cache") as cache, pytest.raises(Interrupted):
        train(recipe(corpus), out=corpus / "run", display=display)
    check_over(cache, slow, started)


def test_failed_training_does_not_wait_for_the_next_variant(corpus: Path, slow: list[int]) -> None:
    class Refusing(Silent):
        def note(self, text: str) -> None:
            if not text.startswith("by default"):  # which is known before any text is cut
                raise KeyboardInterrupt

    started = time.monotonic()
    with own_cache(corpus / "cache") as cache, pytest.raises(KeyboardInterrupt):
        train(recipe(corpus), out=corpus / "run", display=Refusing())
    check_over(cache, slow, started)


def test_dry_run_does_not_wait_for_the_next_variant(corpus: Path, slow: list[int]) -> None:
    started = time.monotonic()
    with own_cache(corpus / "cache") as cache:
        found = dry_run(recipe(corpus))
    assert found.examples == LINES
    check_over(cache, slow, started)
