"""Word alignments stay in step with their examples through cleaning and BPE-dropout."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sightline.data.store import BpeDropout, Store, StoreSpec, load_or_build_store
from sightline.data.text_files import DataError
from sightline.data.word_alignments import members, piece_links
from sightline.recipe.data import Data
from sightline.recipe.tokenizer import BpeTokenizer
from sightline.text.tokenizer import SPACE
from sightline.text.vocabulary import Vocabulary

PAIRS = [
    ("ein Hund bellt", "a dog barks"),
    ("", "nothing"),  # dropped
    ("zwei Hunde bellen laut", "two dogs bark loudly"),
    ("ein Hund bellt", "a dog barks"),  # a duplicate
    ("laut", "loudly"),
]
LINES = ["0-0 1-1 2-2", "", "0-0 1-1 2-2 3-3", "0-2", "0-0"]


def store(folder: Path, lines: list[str], *, dropout: float = 0.0, variant: int = 0, limit: int | None = None) -> Store:
    (folder / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in PAIRS), encoding="utf-8")
    (folder / "links.txt").write_text("".join(f"{line}\n" for line in lines))
    data = Data.model_validate(
        {
            "train": [{"kind": "tsv", "file": "pairs.tsv"}],
            "validation": {"kind": "tsv", "file": "pairs.tsv"},
            "clean": {"deduplicate": "pairs"},
        }
    )
    vocabulary = Vocabulary.train(BpeTokenizer(size=40, min_count=1), lambda: iter(PAIRS))
    ingredients = StoreSpec(
        data.train,
        vocabulary,
        folder,
        clean=data.clean,
        limit=limit,
        dropout=BpeDropout(dropout, variant, 0) if dropout else None,
        links=folder / "links.txt",
    )
    return load_or_build_store(ingredients, cache=folder / "cache")


def linked_words(found: Store, number: int) -> set[tuple[int, int]]:
    """The links of an example, by the words its pieces begin or go on."""
    vocabulary = Vocabulary.train(BpeTokenizer(size=40, min_count=1), lambda: iter(PAIRS))
    (links,) = found.links([number]) or []
    owners = []
    for (ids,), side in zip(found.take([number]), (vocabulary.source, vocabulary.target), strict=True):
        owners.append(np.cumsum([piece.startswith(SPACE) for piece in side.pieces(ids.tolist())]) - 1)
    return {(int(owners[0][s]), int(owners[1][t])) for s, t in links}


@pytest.mark.parametrize(("dropout", "variant"), [(0.0, 0), (0.4, 0), (0.4, 1)])
def test_links_belong_to_their_example_after_cleaning_and_dropout(tmp_path: Path, dropout: float, variant: int) -> None:
    found = store(tmp_path, LINES, dropout=dropout, variant=variant)
    assert len(found) == 3
    assert [linked_words(found, number) for number in range(3)] == [
        {(0, 0), (1, 1), (2, 2)},
        {(0, 0), (1, 1), (2, 2), (3, 3)},
        {(0, 0)},
    ]
    for number in range(3):  # every piece with letters in it is linked, for every word is
        (links,) = found.links([number]) or []
        assert len({int(s) for s, _ in links}) >= len(found.take([number])[0][0]) - 3


def test_store_key_depends_on_links(tmp_path: Path) -> None:
    first = store(tmp_path, LINES)
    second = store(tmp_path, ["", *LINES[1:]])
    assert first.folder != second.folder
    assert len((second.links([0]) or [])[0]) == 0


def test_a_file_may_be_longer_than_the_examples_only_if_those_are_limited(tmp_path: Path) -> None:
    assert len(store(tmp_path, LINES, limit=3)) == 2
    with pytest.raises(DataError, match=r"has 1 line more than there are training examples \(5\)"):
        store(tmp_path, [*LINES, "0-0"])
    assert len(store(tmp_path, [*LINES, "", " "])) == 3  # empty lines at the end are none


def test_every_piece_of_a_word_is_linked_to_every_piece_of_the_other_in_order() -> None:
    source, target = np.eye(3, dtype=bool), np.array([[0, 1], [0, 1], [1, 0]], dtype=bool)
    assert piece_links([(2, 0), (0, 1), (0, 1)], source, target) == [0, 0, 0, 1, 2, 2]
    every = np.ones((4, 1), dtype=bool)
    assert piece_links([(0, 0)], every, every) == [number for s in range(4) for t in range(4) for number in (s, t)]


@pytest.mark.parametrize(
    ("pieces", "found"),
    [
        ([f"{SPACE}a", "b", f"{SPACE}c"], [[1, 0], [1, 0], [0, 1]]),
        ([f"{SPACE}ab", SPACE, "c"], [[1, 0], [0, 0], [0, 1]]),  # a space alone is part of no word
        ([f"{SPACE}a", "b"], [[1, 0], [1, 0]]),  # the beginning of a text that was cut
        (["a", "b", f"{SPACE}c"], None),
        ([f"{SPACE}a", f"{SPACE}b", f"{SPACE}c"], None),
        ([], np.empty((0, 2)).tolist()),
    ],
)
def test_under_dropout_a_word_begins_where_a_piece_begins_with_a_space(
    pieces: list[str], found: list[list[int]] | None
) -> None:
    tokenizer: Any = SimpleNamespace(pieces=lambda ids: pieces)
    made = members(tokenizer, "ab c", range(len(pieces)), dropout=True)
    assert (None if made is None else made.astype(int).tolist()) == found


def test_members_of_a_truncated_text() -> None:
    tokenizer = Vocabulary.train(BpeTokenizer(size=40, min_count=1), lambda: iter(PAIRS)).source
    ids = tokenizer.encode_many(["ein Hund bellt"])[0]
    whole = members(tokenizer, "ein Hund bellt", ids, dropout=False)
    assert whole is not None and len(whole) == len(ids) > 2
    assert members(tokenizer, "ein Hund bellt", ids[:2], dropout=False).tolist() == whole[:2].tolist()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (LINES[:3], r"has 3 lines, and there are more training examples; .*\(sightline align RUN --training"),
        (["0-0 1:1", *LINES[1:]], "line 1: '1:1' is not a link"),
        ([*LINES[:4], "0-1"], "line 5: 0-1 points past the end of sentences of 1 and 1 words"),
        ([*LINES[:4], "1-0"], "line 5: 1-0 points past the end of sentences of 1 and 1 words"),
    ],
)
def test_a_file_that_does_not_belong_to_the_examples_is_refused(tmp_path: Path, lines: list[str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        store(tmp_path, lines)
