"""Runs with random weights, one of each family that attends, to look into."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch

from shared_models import shared
from sightline.models.build import build_model
from sightline.recipe import Recipe
from sightline.run import Run
from sightline.text.vocabulary import Vocabulary

PAIRS = [
    ("Ein Hund bellt laut.", "A dog barks loudly."),
    ("Zwei Männer spielen Schach, 漢字 und mehr.", "Two men play chess, 漢字 and more."),
    ("Die Kinder lachen über den Hund 🙂.", "The children laugh about the dog 🙂."),
]
BODY: dict[str, Any] = {"kind": "transformer", "layers": 2, "heads": 2, "feedforward": {"kind": "relu", "width": 16}}
READER: dict[str, Any] = {"kind": "recurrent", "cell": "gru", "layers": 1}
WRITER: dict[str, Any] = {"kind": "recurrent", "cell": "lstm", "layers": 1, "input_feeding": True}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "transformer": ("seq2seq", {"encoder": BODY, "decoder": BODY}),
    "recurrent": ("seq2seq", {"encoder": READER, "decoder": {**WRITER, "attention": {"kind": "additive"}}}),
    "linear": ("seq2seq", {"encoder": BODY, "decoder": {**WRITER, "attention": {"kind": "unnormalized"}}}),
    "convolutional": (
        "seq2seq",
        {"encoder": {"kind": "convolutional", "layers": 2}, "decoder": {"kind": "convolutional", "layers": 2}},
    ),
    "decoder-only": ("seq2seq", {"decoder": BODY, "tie": "all"}),
    "language-model": ("language-model", {"decoder": BODY}),
    "classifier": ("classification", {"encoder": BODY, "pooling": {"kind": "class"}}),
    "tagger": ("tagging", {"encoder": BODY}),
}
EXPERTS = {"count": 4, "top_k": 2, "every": 2, "noise": False, "load": 0.0}
BYTENET: dict[str, Any] = {"kind": "bytenet", "layers": 3, "kernel": 3, "dilations": [1, 2]}
MIXED: dict[str, Any] = {**BODY, "feedforward": {"kind": "relu", "width": 16, "experts": EXPERTS}}
SPANNED: dict[str, Any] = {**BODY, "attention": {"pattern": [{"kind": "local", "block": 3}, {"kind": "compressed"}]}}
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {  # to look into otherwise than by attention
    "experts": ("seq2seq", {"encoder": MIXED, "decoder": MIXED}),
    "bytenet": ("seq2seq", {"encoder": BYTENET, "decoder": BYTENET}),
}
SPANS: dict[str, tuple[str, dict[str, Any]]] = {"spans": ("seq2seq", {"encoder": SPANNED, "decoder": SPANNED})}
WIDER: dict[str, Any] = {"kind": "convolutional", "layers": 2, "channels": 24}
WIDTHS: dict[str, tuple[str, dict[str, Any]]] = {
    "wider layers": ("seq2seq", {"encoder": WIDER, "decoder": WIDER}),
    "wider encoder": ("seq2seq", {"encoder": WIDER, "decoder": BODY}),
    "wider language-model": ("language-model", {"decoder": WIDER}),
}
STATES: dict[str, tuple[str, dict[str, Any]]] = {  # of recurrences that write
    "recurrent language-model": ("language-model", {"decoder": {**READER, "layers": 2, "attention": {"kind": "none"}}}),
}
WRITING = [name for name, (task, _) in MODELS.items() if task in ("seq2seq", "language-model")]
LOOKING = ["transformer", "recurrent", "linear", "convolutional"]
BOTTLENECK = (
    "seq2seq",
    {"encoder": READER, "decoder": {**WRITER, "input_feeding": False, "attention": {"kind": "none"}}},
)


@cache
def untrained(name: str) -> Run:
    """Shared by all tests, so not to be changed."""
    torch.manual_seed(3)
    task, model = BOTTLENECK if name == "bottleneck" else {**MODELS, **OTHERS, **SPANS, **WIDTHS, **STATES}[name]
    recipe = Recipe.model_validate(
        {
            "task": task,
            "data": {"train": [{"kind": "tsv", "file": "a.tsv"}], "validation": {"kind": "tsv", "file": "b.tsv"}},
            "tokenizer": {"kind": "bpe", "size": 90, "min_count": 1},
            "model": {"width": 16, "tie": "none", **model},
            "decoding": {"beam": 3, "max_length": 12, "min_length": 3},
        }
    )
    labels = {"tagging": "words", "classification": "one"}.get(task, "none")
    pairs = PAIRS if labels == "none" else [(text, "A B A B" if labels == "words" else "A") for text in ["a b c d"]]
    vocabulary = Vocabulary.train(recipe.tokenizer, lambda: iter(pairs), labels)  # type: ignore[arg-type]
    built = build_model(recipe, vocabulary).eval()
    with torch.no_grad():
        for parameter in built.parameters():
            if parameter.dim() > 1:
                parameter *= 2.5  # untrained attention is nearly even, and outputs nearly alike
    return Run(Path("untrained") / name, recipe, vocabulary, shared(built), torch.device("cpu"))


def turned(name: str) -> Run:
    """The same, as if it had learned the other direction."""
    run = untrained(name)
    recipe = run.recipe.model_copy(update={"data": run.recipe.data.model_copy(update={"swap": True})})
    return Run(Path("untrained") / f"{name}-turned", recipe, run.vocabulary, run.model, run.device)


def by_folder(folder: str | Path, device: str = "auto", precision: str = "float32") -> Run:
    """In the place of `Run.load`: the run of that name, or (`NAME-turned`) as if of the other direction."""
    name = Path(folder).name
    return turned(name.removesuffix("-turned")) if name.endswith("-turned") else untrained(name)
