"""Training a model that has no gradients: an n-gram model is counted in one pass over the text."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from sightline.data.preparation import Prepared
from sightline.models.ngram import CountedModel, NgramModel
from sightline.recipe.bodies import NgramConfig
from sightline.terminal import plural
from sightline.text.tokenizer import END, START
from sightline.training.checkpoints import Progress
from sightline.training.display import Display
from sightline.training.journal import Journal


def text_to_count(prepared: Prepared) -> str:
    """How much text there is to count, and in what."""
    decoder, store = prepared.recipe.model.decoder, prepared.train(0)
    assert isinstance(decoder, NgramConfig)
    tokens = int(store.target_lengths.sum()) + len(store)
    grams = "single tokens" if decoder.order == 1 else f"n-grams of up to {decoder.order} tokens"
    return f"{plural(tokens, 'token')} of text, end marks included, counted once in {grams}"


def count_text(run: Path, model: CountedModel, prepared: Prepared, display: Display) -> None:
    """Count the training text, score the validation text, and leave a run folder like any other."""
    started = time.monotonic()
    decoder, store = prepared.recipe.model.decoder, prepared.train(0)
    assert isinstance(decoder, NgramConfig)
    _, documents = store.take(np.arange(len(store)))
    size = prepared.vocabulary.target.size
    model.counts = NgramModel.train(documents, order=decoder.order, vocabulary_size=size, start=START, end=END)
    model.counts.save(run / "model.safetensors")
    _, held_out = prepared.validation.take(np.arange(len(prepared.validation)))
    loss = -float(np.concatenate(model.counts.log_probabilities(held_out)).mean())
    progress = Progress(step=1, tokens=sum(len(document) + 1 for document in documents), best=loss, best_step=1)
    record = {
        "kind": "validation",
        "step": 1,
        "epoch": 1,
        "loss": loss,
        "perplexity": float(np.exp(loss)),
        "best": True,
        "tokens": progress.tokens,
        "flops": 0,
        "seconds": round(time.monotonic() - started, 3),
    }
    with Journal(run, tensorboard=False) as journal:
        journal.write(record)
    display.validation(progress, record)
