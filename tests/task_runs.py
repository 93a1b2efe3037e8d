"""Tiny runs of language models, classifiers and taggers, for tests of the verbs that work with them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

import sightline
from watched_runs import Silent, own_cache

GRU = {"kind": "recurrent", "cell": "gru", "layers": 1, "dropout": 0.0}
ALONE = {**GRU, "attention": {"kind": "none"}}
LEARNED = {"kind": "transformer", "layers": 1, "heads": 2, "dropout": 0.0, "positions": {"kind": "learned"}}
CHARACTERS = {"kind": "character", "normalize": "none", "spaces": "keep"}

TAGS = {"the": "DET", "a": "DET", "dog": "NOUN", "cat": "NOUN", "sees": "VERB", "hears": "VERB", "old": "ADJ"}
NAMES = {"anna": "B-PER", "bohr": "I-PER", "rome": "B-LOC", "went": "O", "to": "O"}
MOODS = {"good": "positive", "fine": "positive", "bad": "negative", "dull": "negative"}


def verses(lines: int, seed: int) -> str:
    draw = random.Random(seed)
    return "".join(
        f"{draw.choice(['ANNA', 'BOHR'])}: {' '.join(draw.choices(list(TAGS), k=4))}\n" for _ in range(lines)
    )


def conllu(sentences: int, seed: int) -> str:
    draw = random.Random(seed)
    blocks = []
    for number in range(sentences):
        words = draw.choices(list(TAGS), k=draw.randint(2, 6))
        rows = [f"{at}\t{word}\t{word}\t{TAGS[word]}\t_\t_\t0\troot\t_\t_\n" for at, word in enumerate(words, 1)]
        blocks.append(f"# sent_id = {number}\n" + "".join(rows) + "\n")
    return "".join(blocks)


def columns(sentences: int, seed: int) -> str:
    draw = random.Random(seed)
    picked = [draw.choices(list(NAMES), k=draw.randint(2, 6)) for _ in range(sentences)]
    return "".join("".join(f"{word} x {NAMES[word]}\n" for word in words) + "\n" for words in picked)


def moods(texts: int, seed: int) -> str:
    draw = random.Random(seed)
    picked = [(draw.choice(list(MOODS)), draw.choices(list(TAGS), k=3)) for _ in range(texts)]
    return "".join(f"{' '.join([*words, mood])}\t{MOODS[mood]}\n" for mood, words in picked)


def chorales(pieces: int, seed: int) -> list[Any]:
    draw = random.Random(seed)
    return [[[60 + draw.randint(0, 3), 57, 53, 41]] * 2 * draw.randint(2, 4) for _ in range(pieces)]


def source(kind: str, file: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "file": file, **more}


def recipe(task: str, kind: str, suffix: str, model: dict[str, Any], **sections: Any) -> dict[str, Any]:
    more = sections.pop("source", {})
    return {
        "task": task,
        "data": {
            "train": [source(kind, f"train.{suffix}", **more)],
            "validation": source(kind, f"valid.{suffix}", **more),
            "tests": {"test": source(kind, f"test.{suffix}", **more)},
        },
        "tokenizer": sections.pop("tokenizer", {"kind": "word", "min_count": 1}),
        "model": {"width": 16, "tie": "none", **model},
        "training": {
            "precision": "float32",
            "lr": 0.02,
            "schedule": {"kind": "constant", "warmup": 3},
            "batches": {"tokens": 256, "context": 32},
            "limits": {"steps": 40},
            "label_smoothing": 0.0,
            "validate_every": 20,
            "samples": 1,
            "device": "cpu",
            "threads": 1,
        },
        "decoding": {"beam": 1, "max_length": 12},
        "evaluation": {"bootstrap": 50, **sections.pop("evaluation", {})},
        **sections,
    }


BITS = {"metrics": ["perplexity", "bits-per-character"]}
SPANS = {"metrics": ["token-accuracy", "span-f1"]}
WHOLE = {"document": "file"}


def recipes() -> dict[str, dict[str, Any]]:
    text = {"tokenizer": CHARACTERS, "source": WHOLE, "evaluation": BITS}
    parts = {name: {"split": name} for name in ("train", "valid", "test")}
    music = recipe("language-model", "chorales", "json", {"decoder": ALONE})
    music["data"] = {
        "train": [source("chorales", "chorales.json", **parts["train"])],
        "validation": source("chorales", "chorales.json", **parts["valid"]),
    }
    return {
        "lm-gru": recipe("language-model", "plain", "txt", {"decoder": ALONE}, **text),
        "lm-transformer": recipe("language-model", "plain", "txt", {"decoder": LEARNED}, **text),
        "lm-lines": recipe(
            "language-model", "plain", "txt", {"decoder": ALONE}, evaluation=BITS, tokenizer={"kind": "character"}
        ),
        "lm-bpe": recipe(
            "language-model", "plain", "txt", {"decoder": ALONE}, evaluation=BITS, tokenizer={"kind": "bpe", "size": 60}
        ),
        "lm-squeezed": recipe(
            "language-model",
            "plain",
            "txt",
            {"decoder": ALONE},
            source=WHOLE,
            evaluation=BITS,
            tokenizer={"kind": "bpe", "size": 60},
        ),
        "music": music,
        "classify-mean": recipe("classification", "tsv", "tsv", {"encoder": GRU, "pooling": {"kind": "mean"}}),
        "classify-max": recipe("classification", "tsv", "tsv", {"encoder": GRU, "pooling": {"kind": "max"}}, seed=2),
        "tag-gru": recipe("tagging", "conllu", "conllu", {"encoder": GRU}),
        "tag-lstm": recipe("tagging", "conllu", "conllu", {"encoder": {**GRU, "cell": "lstm"}}),
        "names-gru": recipe("tagging", "columns", "col", {"encoder": GRU}, source={"label": 3}, evaluation=SPANS),
        "names-lstm": recipe(
            "tagging", "columns", "col", {"encoder": {**GRU, "cell": "lstm"}}, source={"label": 3}, evaluation=SPANS
        ),
    }


@contextmanager
def trained_tasks(folder: Path, names: list[str]) -> Iterator[dict[str, Path]]:
    """Run folders by name; shared, so not to be changed."""
    for name, size, seed in (("train", 80, 1), ("valid", 10, 2), ("test", 30, 3)):
        for suffix, write in {"txt": verses, "conllu": conllu, "col": columns, "tsv": moods}.items():
            (folder / f"{name}.{suffix}").write_text(write(size, seed), encoding="utf-8")
    pieces = {"train": chorales(20, 1), "valid": chorales(4, 2), "test": chorales(4, 3)}
    (folder / "chorales.json").write_text(json.dumps(pieces))
    with own_cache(folder / "cache"):
        runs = {}
        for name in names:
            path = folder / f"{name}.yaml"
            path.write_text(yaml.safe_dump(recipes()[name], sort_keys=False))
            runs[name] = sightline.train(path, out=folder / "runs" / name, display=Silent()).folder
        yield runs
