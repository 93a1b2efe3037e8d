"""Trace a run on a text: everything the model computes, from tokens to probabilities, for every task.

The output is decoded as usual; then one pass over text and output is recorded, in which each output token is predicted
from those before it. Step-by-step search computes the same numbers (tested); one pass shows them together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from sightline.data.collate import collate_fn, padded_batch
from sightline.decoding.request import Request
from sightline.inspection.axes import BATCH, SOURCE, TARGET
from sightline.inspection.recorder import record_arithmetic
from sightline.inspection.samples import refuse_label_sets
from sightline.inspection.trace import Trace
from sightline.layers.layout import Padded
from sightline.models.ngram import CountedModel
from sightline.recipe.data import MASK
from sightline.tasks.base import Task
from sightline.terminal import plural
from sightline.text.tokenizer import END, SPECIALS, START
from sightline.text.vocabulary import Vocabulary, between_spaces, label_id

_LABELS = 200  # a trace keeps the names of the vocabulary up to this size
OWN = "The output was decoded first; one pass over it was recorded, each token predicted from those before it."
FORCED = "One pass over the given output was recorded, each token predicted from those before it."
LABELLED = "The labels were predicted first; one pass over the text was recorded, which predicts all of them."
FORCED_LABELS = "One pass over the text was recorded; losses are those of the given labels."
COPYING = "The mixture is the logarithm of probabilities that sum to 1, so its softmax only undoes the logarithm."
NO_SPECIALS = (
    f"The first {len(SPECIALS)} logits are those of {', '.join(SPECIALS)}, "
    "which are no labels: the softmax leaves them out."
)


def trace_text(task: Task, text: str, target: str | None, step: int | None) -> Trace:
    """Trace a text with a given output, or the run's own; with `step`, up to that output token."""
    if isinstance(task.model, CountedModel):
        raise ValueError(
            "an n-gram model counts and computes nothing in between, so there is nothing to trace; --corpus shows the "
            "loss of each token of a text"
        )
    if task.members:
        raise ValueError("an ensemble has no computation of its own to trace; trace its members one by one")
    if step is not None and step < 0:
        raise ValueError(f"step ({step}) counts output tokens from 0")
    spec, forced = task.recipe.task_spec, target is not None
    refuse_label_sets(spec)
    if step is not None and not spec.writes_text:
        raise ValueError(f"step ({step}) is for models that write token by token; labels come at once; leave it out")
    trace = _tracing_function(task)(task, text, target, step)
    notes = [(FORCED if forced else OWN) if spec.writes_text else (FORCED_LABELS if forced else LABELLED)]
    notes += [f"{record.key}: {record.note}" for record in trace.records if record.note]
    trace.about = {
        "task": spec.name,
        "text": text,
        "forced": forced,
        "loss": float(trace["loss"]),
        "notes": notes,
        **trace.about,
        **_show_unknown(task, trace.about, text, target or ""),
    }
    return trace


def _tracing_function(task: Task) -> Callable[[Task, str, str | None, int | None], Trace]:
    spec = task.recipe.task_spec
    if spec.writes_text:
        return _trace_translation if spec.reads_source else _trace_language
    if spec.fills_gaps:
        return _trace_gaps
    return _trace_label if spec.labels == "one" else _trace_tags


def _show_unknown(task: Task, about: dict[str, Any], text: str, target: str) -> dict[str, list[str]]:
    """Source and target tokens in which each <unk> is shown with its text."""
    read, write = task.vocabulary.source.show_unknown, task.vocabulary.target.show_unknown
    if task.recipe.task_spec.continues_text:
        return {key: write(about[key], text + target) for key in ("given_tokens", "target_tokens")}
    shown = {"source_tokens": read(about["source_tokens"], text)}
    if task.recipe.task_spec.maps_text:
        before = shown["source_tokens"] if task.recipe.model.encoder is None else []  # one sequence with the output
        shown["given_tokens"] = [*before, *write(about["given_tokens"][len(before) :], target)]
        shown["target_tokens"] = write(about["target_tokens"], target)
    return shown


def _up_to(tokens: Sequence[int], step: int | None) -> list[int]:
    """The output tokens up to number `step`."""
    if step is not None and step >= len(tokens):
        raise ValueError(f"the output has {len(tokens)} tokens, its end included; there is no step {step} (from 0)")
    return list(tokens[: None if step is None else step + 1])


def _batch(tokens: Sequence[int], device: torch.device) -> torch.Tensor:
    return torch.tensor([list(tokens)], device=device)  # (1, T)


def _pieces(tokenizer: Any, tokens: Sequence[int]) -> list[str]:
    return [SPECIALS[token] if token < len(SPECIALS) else tokenizer.pieces([token])[0] for token in tokens]


def _about(
    vocabulary: Vocabulary, source: Sequence[int], decoder_input: Sequence[int], labels: Sequence[int]
) -> dict[str, Any]:
    target = vocabulary.target
    about = {
        "output": target.decode(labels),
        "source_tokens": _pieces(vocabulary.source, source),
        "given_tokens": _pieces(target, decoder_input),
        "target_tokens": _pieces(target, labels),
    }
    return about if target.size > _LABELS else {**about, "labels": _pieces(target, range(target.size))}


# --- models that write ------------------------------------------------------------------------------------------------


def trace_pair(
    model: Any,
    source: Sequence[int],
    labels: Sequence[int],
    device: torch.device,
    formulas: tuple[str, str] = ("tokens of the source", "tokens of the output, one place later"),
    *,
    formula: str = "softmax(logits)",
    note: str = "",
) -> Trace:
    """Trace an encoder-decoder model on one pair, up to the loss; formula and note describe its last softmax."""
    with record_arithmetic(model) as recorder:
        model = recorder.model
        source_tokens = recorder.give("source.tokens", _batch(source, device), formulas[0], (BATCH, SOURCE))
        tokens = recorder.give("target.tokens", _batch([START, *labels[:-1]], device), formulas[1], (BATCH, TARGET))
        features, _ = model.advance(tokens, model.begin(model.encode(source_tokens, Padded.of([len(source)], device))))
        recorder.end(model.logits(features), _batch(labels, device), formula=formula, note=note)
    return recorder.finish()


def _trace_translation(task: Task, text: str, target: str | None, step: int | None) -> Trace:
    vocabulary = task.vocabulary
    source = [*task.encode([text])[0], END]
    output = task.generate(text) if target is None else vocabulary.target.encode(target)
    labels = _up_to([*output, END], step)
    decoder_input = [START, *labels[:-1]]
    if task.recipe.model.encoder is None:
        trace = _trace_sequence(task, source, [START], labels)
        trace.about = _about(vocabulary, source, [*source, *decoder_input], labels)
        trace.about["places"] = _last(len(source) + len(labels), len(labels))
        return trace
    if task.recipe.model.copying:
        trace = trace_pair(task.model, source, labels, task.device, formula="softmax(mixture)", note=COPYING)
    else:
        trace = trace_pair(task.model, source, labels, task.device)
    trace.about = _about(vocabulary, source, decoder_input, labels)
    return trace


def _trace_language(task: Task, text: str, target: str | None, step: int | None) -> Trace:
    tokenizer = task.vocabulary.target
    (prompt,) = task.encode([text])
    if target is None:
        output = task.generate(text)
    else:
        whole = tokenizer.encode(text + target)
        if whole[: len(prompt)] != prompt:
            raise ValueError(
                f"the target ({target!r}) changes how the text before it ({text!r}) is cut into tokens; "
                "let the border between them be one of tokens too, e.g. a space"
            )
        output = whole[len(prompt) :]
    labels = _up_to(output, step)
    if not labels:
        raise ValueError("there is no output to trace: the model generated nothing; give a target")
    before = [*task.special_tokens()[0], *prompt]
    trace = _trace_sequence(task, before[:-1], before[-1:], labels)
    decoder_input = [*before, *labels[:-1]]
    trace.about = _about(task.vocabulary, [], decoder_input, [*before[1:], *labels])
    trace.about |= {"output": tokenizer.decode(labels), "places": _last(len(decoder_input), len(labels))}
    return trace


def _trace_sequence(task: Task, before: list[int], first: list[int], labels: list[int]) -> Trace:
    """Trace a decoder-only model on text and output as one sequence; the loss is that of the output."""
    model, device = task.model, task.device
    decoder_input = [*before, *first, *labels[:-1]]
    every = [*decoder_input[1 : len(decoder_input) - len(labels) + 1], *labels]
    with record_arithmetic(model) as recorder:
        tokens = recorder.give(
            "target.tokens", _batch(decoder_input, device), "tokens, one place later", (BATCH, TARGET)
        )
        model = recorder.model
        features, _ = model.advance(tokens, model.begin_empty(1))
        places = torch.arange(len(decoder_input), device=device)[None] >= len(decoder_input) - len(labels)
        recorder.end(model.logits(features), _batch(every, device), places)
    return recorder.finish()


def _last(count: int, labels: int) -> list[int]:
    """The positions of the output in a sequence of `count` tokens: the last ones."""
    return list(range(count - labels, count))


# --- models that label ------------------------------------------------------------------------------------------------


def _trace_label(task: Task, text: str, target: str | None, step: int | None) -> Trace:
    (source,) = task.encode([text])
    if not source:
        raise ValueError("an empty text has no label; give one with words")
    label = task.generate(text)[0] if target is None else label_id(task.vocabulary.target, target)
    return _trace_labels(task, source, torch.tensor([label], device=task.device), None, [label])


def _trace_gaps(task: Task, text: str, target: str | None, step: int | None) -> Trace:
    """Trace what a masked language model predicts at the [MASK]s of a text."""
    if target is not None:
        raise ValueError(f"a target ({target!r}) is not for task: masked-lm; write the text with [MASK] for its gaps")
    (source,), mask = task.encode([text]), task.vocabulary.source.mark(MASK)
    if mask not in source:
        raise ValueError(f"{text!r} has no gap to fill; put [MASK] where a word is to be predicted")
    filled = task.predict([Request(text, task.recipe.decoding)])[0][0]
    gaps = [False, *(token == mask for token in source), False]  # the text has a mark before and behind it
    every = [filled.tokens[0], *filled.tokens, filled.tokens[-1]]
    labels = [max(token, len(SPECIALS)) for token in every]  # outside the gaps they are not used
    predicted = [token for token, gap in zip(every, gaps, strict=True) if gap]
    places = torch.tensor([gaps], device=task.device)
    trace = _trace_labels(task, source, _batch(labels, task.device), places, predicted)
    trace.about |= {"output": filled.text, "target_tokens": _pieces(task.vocabulary.target, every)}
    if task.vocabulary.target.size > _LABELS:
        del trace.about["labels"]
    return trace


def _trace_tags(task: Task, text: str, target: str | None, step: int | None) -> Trace:
    words = task.vocabulary.encode_words([" ".join(between_spaces(text))])[0]
    pieces = [piece for word in words for piece in word]
    if not pieces:
        raise ValueError("an empty text has no words to tag; give one with words")
    if target is None:
        tags = task.generate(text)
    else:
        tags = [label_id(task.vocabulary.target, tag) for tag in between_spaces(target)]
    if len(tags) != len(words):
        raise ValueError(f"{plural(len(tags), 'label')} for {plural(len(words), 'word')}; give one for each")
    labels = [tag for word, tag in zip(words, tags, strict=True) for _ in word]
    first = [place == 0 for word in words for place in range(len(word))]
    places = None if all(first) else torch.tensor([first], device=task.device)
    return _trace_labels(task, pieces, _batch(labels, task.device), places, tags)


def _trace_labels(
    task: Task, source: list[int], labels: torch.Tensor, places: torch.Tensor | None, predicted: list[int]
) -> Trace:
    """Trace a text up to the losses of its labels; probabilities are over the labels alone, without the specials."""
    ids = [np.asarray(source, np.int64)]
    batch = padded_batch(collate_fn(task.recipe)(ids, [np.ones_like(ids[0])]), np.asarray([0]))
    batch = batch.to(task.device) if task.device.type != "cpu" else batch
    assert batch.source is not None and batch.source_layout is not None
    with record_arithmetic(task.model) as recorder:
        recorder.give("source.tokens", batch.source, "tokens of the text", (BATCH, SOURCE))
        model = recorder.model
        logits = model.logits(model(batch.source, batch.source_layout))[..., len(SPECIALS) :]
        formula = f"softmax(logits[{len(SPECIALS)}:])"
        recorder.end(logits, labels - len(SPECIALS), places, formula=formula, note=NO_SPECIALS)
    trace = recorder.finish()
    tokenizer = task.vocabulary.target
    trace.about = {
        "output": " ".join(tokenizer.decode([label]) for label in predicted),
        "source_tokens": _pieces(task.vocabulary.source, batch.source.flatten().tolist()),
        "target_tokens": [tokenizer.decode([label]) for label in labels.flatten().tolist()],
        "labels": [tokenizer.decode([label]) for label in range(len(SPECIALS), tokenizer.size)],
    }
    if places is not None:
        trace.about["places"] = places.flatten().nonzero()[:, 0].tolist()  # where a label is predicted
    return trace
