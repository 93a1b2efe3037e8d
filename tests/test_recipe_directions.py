"""Which way recipes go through a corpus, by the names of its texts."""

from __future__ import annotations

from typing import Any

import pytest

from sightline.recipe.data import Data, direction


def text(source: str, target: str, **more: Any) -> dict[str, Any]:
    return {"kind": "text", "source": source, "target": target, **more}


def data(*train: dict[str, Any], validation: dict[str, Any] | None = None, swap: bool = False) -> Data:
    return Data.model_validate({"train": train, "validation": validation or train[0] | {"weight": 1.0}, "swap": swap})


ONE = data(text("de", "en"), validation=text("v.de", "v.en"))
TABLE = {"kind": "tsv", "file": "pairs.tsv"}
OBJECTS = {"kind": "jsonl", "file": "pairs.jsonl", "source": "de", "target": "en"}
TURNED = {
    "sides exchanged": (ONE, data(text("de", "en"), validation=text("v.de", "v.en"), swap=True)),
    "files the other way round": (ONE, data(text("en", "de"), validation=text("v.en", "v.de"))),
    "other weights and shares": (ONE, data(text("en", "de", weight=2.0, share=[0.0, 0.5]))),
    "more text beside it": (ONE, data(text("en", "de"), text("more.en", "made.de"))),
    "only the validation": (ONE, data(text("distilled.en", "distilled.de"), validation=text("v.en", "v.de"))),
    "columns": (data(TABLE), data(TABLE | {"columns": [2, 1]})),
    "keys": (data(OBJECTS), data(OBJECTS | {"source": "en", "target": "de"})),
    "what is built in": (
        data({"kind": "dates", "split": "train"}),
        data({"kind": "dates", "split": "train"}, swap=True),
    ),
}
ALIKE = {
    "the same": (ONE, ONE),
    "exchanged twice": (ONE, data(text("en", "de"), swap=True)),
    "another corpus": (ONE, data(text("a", "b"), swap=True)),
    "another target of the same source": (ONE, data(text("de", "fr"))),
    "only one side in common, crossed": (ONE, data(text("en", "fr"))),
    "both directions at once": (ONE, data(text("de", "en"), text("en", "de"))),
    "other columns": (data(TABLE), data(TABLE | {"columns": [3, 1]})),
    "a text by itself": (data(text("de", "de")), data(text("de", "de"), swap=True)),
    "other built-in text": (
        data({"kind": "dates", "split": "train", "seed": 1}),
        data({"kind": "dates", "split": "train", "seed": 2}, swap=True),
    ),
}


@pytest.mark.parametrize("name", TURNED)
def test_opposite_directions_are_recognized(name: str) -> None:
    one, two = map(direction, TURNED[name])
    assert one.is_turned(two) and two.is_turned(one)


@pytest.mark.parametrize("name", ALIKE)
def test_directions_with_a_common_or_no_side_are_not_opposite(name: str) -> None:
    one, two = map(direction, ALIKE[name])
    assert not one.is_turned(two) and not two.is_turned(one)
