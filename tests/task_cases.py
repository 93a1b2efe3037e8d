"""A recipe of each task with each kind of body, and texts for it: four steps, and small."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

LSTM = {"kind": "recurrent", "cell": "lstm", "layers": 1, "dropout": 0.2}
WRITER = {**LSTM, "attention": {"kind": "none"}}
TRANSFORMER = {"kind": "transformer", "layers": 1, "heads": 2, "dropout": 0.2}
LEARNED = {"kind": "learned", "max_positions": 34}
CHARACTERS, WORDS = {"kind": "character"}, {"kind": "word", "min_count": 1}
BPE = {"kind": "bpe", "size": 40, "dropout": 0.2, "variants": 2}

NOUNS = ["cat", "dog", "cow", "hen", "owl", "naïve 🦉"]
SENTENCES = [f"{article} {noun} {verb} ." for verb in ("sat", "ran") for article in ("the", "a") for noun in NOUNS]
FILES = {
    "seq2seq": [f"{text}\t{' '.join(reversed(text.split()))}\n" for text in SENTENCES],
    "language-model": [text + "\n" for text in SENTENCES],
    "classification": [f"{text}\t{'one thing' if text[0] == 'a' else 'that thing'}\n" for text in SENTENCES],
    "multi-label": [f"{text}\t{text.split()[-2]} {text.split()[0]}\n" for text in SENTENCES],
    "tagging": [
        f"{text}\t{' '.join(['DET', *['NOUN'] * (len(text.split()) - 3), 'VERB', 'PUNCT'])}\n" for text in SENTENCES
    ],
}


def case(task: str, model: dict[str, Any], tokenizer: dict[str, Any] = CHARACTERS, **training: Any) -> dict[str, Any]:
    source = {"kind": "plain" if task == "language-model" else "tsv"}
    clean = {} if task == "language-model" else {"clean": {"max_tokens": 32}}
    files = {name: {**source, "file": f"{name}.txt"} for name in ("train", "valid", "test")}
    return {
        "task": task,
        "data": {"train": [files["train"]], "validation": files["valid"], "tests": {"other": files["test"]}, **clean},
        "tokenizer": tokenizer,
        "model": {"width": 8, **model},
        "training": {
            "precision": "float32",
            "lr": 1e-2,
            "schedule": {"kind": "constant", "warmup": 0},
            "batches": {"tokens": 128, "context": 16},
            "limits": {"steps": 4},
            "validate_every": 2,
            "save_every": 2,
            "log_every": 1,
            "samples": 1,
            "device": "cpu",
            "threads": 1,
            **training,
        },
        "decoding": {"beam": 2, "max_length": 9},
        "evaluation": {"bootstrap": 10},
    }


def metrics(recipe: dict[str, Any], *names: str, stop: bool = False) -> dict[str, Any]:
    training = {**recipe["training"], **({"stopping": {"monitor": "metric"}} if stop else {})}
    return {**recipe, "training": training, "evaluation": {**recipe["evaluation"], "metrics": list(names)}}


def sentences(recipe: dict[str, Any]) -> dict[str, Any]:
    """The same with each line as an example of its own."""
    return {**recipe, "data": {**recipe["data"], "context": "sentence", "clean": {"max_tokens": 32}}}


CASES: dict[str, dict[str, Any]] = {
    "translator": metrics(case("seq2seq", {"encoder": LSTM, "decoder": LSTM}), "exact", "perplexity"),
    "decoder alone, lstm": metrics(case("seq2seq", {"decoder": WRITER}), "exact", "perplexity", "chrf"),
    "decoder alone, transformer": metrics(
        case("seq2seq", {"decoder": {**TRANSFORMER, "positions": {"kind": "learned", "max_positions": 66}}}, BPE),
        "bleu",
        "perplexity",
        stop=True,
    ),
    "decoder alone, window": metrics(case("seq2seq", {"decoder": {"kind": "window"}}, WORDS), "wer", "perplexity"),
    "language model, lstm": metrics(
        case("language-model", {"decoder": WRITER}, batches={"tokens": 48, "context": 16}),
        "perplexity",
        "bits-per-character",
    ),
    "language model, gru, accumulated": metrics(
        case(
            "language-model",
            {"decoder": {**WRITER, "cell": "gru", "layers": 2}},
            BPE,
            batches={"tokens": 32, "context": 8, "accumulate": 2, "layout": "packed"},
            averaging={"kind": "ema", "decay": 0.9},
        ),
        "bits-per-character",
        stop=True,
    ),
    "language model, lstm that begins anew": case(
        "language-model", {"decoder": WRITER}, batches={"tokens": 48, "context": 16, "carry": False}
    ),
    "language model, transformer": metrics(
        case(
            "language-model", {"decoder": {**TRANSFORMER, "positions": {"kind": "learned", "max_positions": 16}}}, WORDS
        ),
        "perplexity",
        stop=True,
    ),
    "language model, window": metrics(case("language-model", {"decoder": {"kind": "window"}}), "bits-per-character"),
    "language model of sentences, gru": metrics(
        sentences(case("language-model", {"decoder": {**WRITER, "cell": "gru"}}, BPE)), "perplexity", stop=True
    ),
    "language model of sentences, transformer": metrics(
        sentences(case("language-model", {"decoder": {**TRANSFORMER, "positions": LEARNED}}, WORDS)),
        "perplexity",
        "bits-per-character",
    ),
    "language model, counted": metrics(
        case("language-model", {"decoder": {"kind": "ngram", "order": 3}}), "perplexity", "bits-per-character"
    ),
    "classifier, lstm": case("classification", {"encoder": LSTM, "pooling": {"kind": "last"}}, BPE),
    "classifier, transformer": metrics(
        case("classification", {"encoder": {**TRANSFORMER, "positions": LEARNED}, "pooling": {"kind": "class"}}),
        "macro-f1",
        "accuracy",
        stop=True,
    ),
    "classifier, window": case("classification", {"encoder": {"kind": "window"}, "pooling": {"kind": "max"}}, WORDS),
    "several labels, lstm": metrics(
        case("multi-label", {"encoder": LSTM, "pooling": {"kind": "max"}}, BPE),
        "multilabel-micro-f1",
        "multilabel-macro-f1",
        stop=True,
    ),
    "tagger, lstm": metrics(case("tagging", {"encoder": LSTM}, BPE), "token-accuracy", "span-f1", stop=True),
    "tagger, transformer": case("tagging", {"encoder": {**TRANSFORMER, "positions": LEARNED}}),
    "tagger, embeddings alone": case("tagging", {"encoder": {"kind": "embedding"}}, WORDS),
    "tagger, window": case("tagging", {"encoder": {"kind": "window"}}, {"kind": "unigram", "size": 40}),
}
NEURAL = [name for name in CASES if "counted" not in name]


def write(folder: Path, recipe: dict[str, Any]) -> Path:
    lines = FILES[recipe["task"]]
    for name, part in (("train", lines), ("valid", lines[::7]), ("test", lines[1::5])):
        (folder / f"{name}.txt").write_text("".join(part), encoding="utf-8")
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return folder / "recipe.yaml"
