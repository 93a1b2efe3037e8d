"""A run and a text, traced: what the model computed, from tokens to probabilities, whatever its task.

The output is decoded as always; then one pass over text and output is recorded, in which each output token is predicted
from those before it. Searching step by step computes the same numbers (tests hold that); one pass shows them together.
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
from sightline.inspection.trace import Trace
from sightline.layers.layout import Padded
from sightline.models.ngram import CountedModel
from sightline.recipe.data import MASK
from sightline.recipe.recipe import carries
from sightline.tasks.base import Task
from sightline.tasks.language_model import LanguageModelTask
from sightline.terminal import plural
from sightline.text.tokenizer import END, SPECIALS, START
from sightline.text.vocabulary import Vocabulary, between_spaces, label_id

_LABELS = 200  # names of outputs are kept up to so many; a vocabulary is larger
OWN = "The run's own output was decoded first; recorded is one pass over it, each token predicted from those before it."
LABELLED = "The run's own answer was taken first; recorded is one pass over the text, which answers all at once."
FORCED_LABELS = "Recorded is one pass over the text, measured by the given answer."
COPYING = "The mixture is the logarithm of probabilities that sum to 1 already, so its softmax only takes that back."
NO_SPECIALS = (
    f"The first {len(SPECIALS)} logits are those of {', '.join(SPECIALS)}, "
    "which are no answers: the softmax leaves them out."
)
FORCED = "Recorded is one pass over the given output, each token predicted from those before it."


def trace_text(asked: Task, text: str, target: str | None, step: int | None) -> Trace:
    """Trace a text with an output that is given, or the run's own; with `step`, no further than that output token."""
    if isinstance(asked.model, CountedModel):
        raise ValueError(
            "an n-gram model counts and computes nothing in between; there is nothing to trace; --corpus shows what "
            "each token of a text costs it"
        )
    if asked.members:
        raise ValueError("an ensemble has no computation of its own to trace; trace its members one by one")
    if step is not None and step < 0:
        raise ValueError(f"step ({step}) counts output tokens from 0")
    trace = _tracer(asked)(asked, text, target, step)
    forced = target is not None
    writes = asked.recipe.task_spec.writes_text
    notes = [(FORCED if forced else OWN) if writes else (FORCED_LABELS if forced else LABELLED)]
    notes += [f"{key}: {each.note}" for key, each in ((each.key, each) for each in trace.records) if each.note]
    trace.about = {
        "task": asked.recipe.task_spec.name,
        "text": text,
        "forced": forced,
        "loss": float(trace["loss"]),
        "notes": notes,
        **trace.about,
        **_unknown_shown(asked, trace.about, text, target or ""),
    }
    return trace


def _tracer(asked: Task) -> Callable[[Any, str, str | None, int | None], Trace]:
    spec = asked.recipe.task_spec
    if spec.writes_text:
        return _trace_translation if spec.reads_source else _trace_language
    if spec.fills_gaps:
        return _trace_gaps
    return _trace_label if spec.labels == "one" else _trace_tags


def _unknown_shown(asked: Task, about: dict[str, Any], text: str, target: str) -> dict[str, list[str]]:
    """The tokens that were read, and those of an output that was forced, each <unk> with what it stands for."""
    read, write = asked.vocabulary.source.show_unknown, asked.vocabulary.target.show_unknown
    if asked.recipe.task_spec.continues_text:  # it reads what it goes on after
        return {key: write(about[key], text + target) for key in ("given_tokens", "target_tokens")}
    found = {"source_tokens": read(about["source_tokens"], text)}
    if asked.recipe.task_spec.maps_text:
        before = found["source_tokens"] if asked.recipe.model.encoder is None else []  # one sequence with the output
        found["given_tokens"] = [*before, *write(about["given_tokens"][len(before) :], target)]
        found["target_tokens"] = write(about["target_tokens"], target)
    return found


def _upto(tokens: Sequence[int], step: int | None) -> list[int]:
    """Output tokens up to that one."""
    if step is None:
        return list(tokens)
    if step >= len(tokens):
        raise ValueError(f"the output has {len(tokens)} tokens, its end included; there is no step {step} (from 0)")
    return list(tokens[: step + 1])


def _row(tokens: Sequence[int], device: torch.device) -> torch.Tensor:
    return torch.tensor([list(tokens)], device=device)


def _words(vocabulary: Any, tokens: Sequence[int]) -> list[str]:
    return [SPECIALS[token] if token < len(SPECIALS) else vocabulary.pieces([token])[0] for token in tokens]


def _about(
    vocabulary: Vocabulary, source: Sequence[int], given: Sequence[int], wanted: Sequence[int]
) -> dict[str, Any]:
    target = vocabulary.target
    labels = _words(target, range(target.size)) if target.size <= _LABELS else None
    found = {
        "output": target.decode(wanted),
        "source_tokens": _words(vocabulary.source, source),
        "given_tokens": _words(target, given),
        "target_tokens": _words(target, wanted),
    }
    return found if labels is None else {**found, "labels": labels}


# --- tasks ------------------------------------------------------------------------------------------------------------


def _trace_translation(asked: Task, text: str, target: str | None, step: int | None) -> Trace:
    vocabulary, model, device = asked.vocabulary, asked.model, asked.device
    (source,) = asked.encode([text])
    if target is None:
        output = asked.predict([Request(text, asked.recipe.decoding)])[0][0].tokens
    else:
        output = vocabulary.target.encode(target)
    wanted = _upto([*output, END], step)
    if asked.recipe.model.encoder is None:
        before = [*source, END]
        trace = _trace_sequence(asked, before, [START], wanted)
        trace.about = _about(vocabulary, before, [*before, START, *wanted[:-1]], wanted)
        trace.about["places"] = _last(len(before) + len(wanted), len(wanted))
        return trace
    read, given = [*source, END], [START, *wanted[:-1]]
    with record_arithmetic(model) as recorder:
        row = recorder.give("source.tokens", _row(read, device), "tokens of the source", (BATCH, SOURCE))
        said = recorder.give(
            "target.tokens", _row(given, device), "tokens of the output, one place later", (BATCH, TARGET)
        )
        model = recorder.model
        features, _ = model.advance(said, model.begin(model.encode(row, Padded.of([len(read)], device))))
        copying: dict[str, Any] = {"formula": "softmax(mixture)", "note": COPYING} if asked.recipe.model.copying else {}
        recorder.end(model.logits(features), _row(wanted, device), **copying)
    trace = recorder.finish()
    trace.about = _about(vocabulary, read, given, wanted)
    return trace


def _trace_language(asked: Task, text: str, target: str | None, step: int | None) -> Trace:
    assert isinstance(asked, LanguageModelTask)
    tokenizer = asked.vocabulary.target
    (prompt,) = asked.encode([text])
    if target is None:
        output = asked.continuations(text, asked.recipe.decoding)[0].tokens[len(prompt) :]
    else:
        whole = tokenizer.encode(text + target)
        if whole[: len(prompt)] != prompt:
            raise ValueError(
                f"the target ({target!r}) changes how the text before it ({text!r}) is cut into tokens; "
                "let the border between them be one of tokens too, e.g. a space"
            )
        output = whole[len(prompt) :]
    wanted = _upto(output, step)
    if not wanted:
        raise ValueError("there is no output to trace: the model went on with nothing; give a target")
    marks = ([] if carries(asked.recipe) else [START]) + [END] if asked.begins else [START]
    trace = _trace_sequence(asked, [*marks, *prompt][:-1], [*marks, *prompt][-1:], wanted)
    given = [*marks, *prompt, *wanted[:-1]]
    trace.about = _about(asked.vocabulary, [], given, [*given[1 : len(given) - len(wanted) + 1], *wanted])
    trace.about |= {"output": tokenizer.decode(wanted), "places": _last(len(given), len(wanted))}
    return trace


def _trace_sequence(asked: Task, before: list[int], first: list[int], wanted: list[int]) -> Trace:
    """A decoder that stands alone, over all in one sequence; the loss is that of the output."""
    model, device = asked.model, asked.device
    given = [*before, *first, *wanted[:-1]]
    every = [*given[1 : len(given) - len(wanted) + 1], *wanted]  # what follows each token
    with record_arithmetic(model) as recorder:
        row = recorder.give("target.tokens", _row(given, device), "tokens, one place later", (BATCH, TARGET))
        model = recorder.model
        features, _ = model.advance(row, model.begin_empty(1))
        places = torch.arange(len(given), device=device)[None] >= len(given) - len(wanted)
        recorder.end(model.logits(features), _row(every, device), places)
    return recorder.finish()


def _last(count: int, wanted: int) -> list[int]:
    """Where the output stands in one sequence of `count` tokens: behind what was given."""
    return list(range(count - wanted, count))


def _trace_label(asked: Task, text: str, target: str | None, step: int | None) -> Trace:
    _no_steps(step)
    (source,) = asked.encode([text])
    if not source:
        raise ValueError("an empty text has no label; give one with words")
    if target is None:
        label = asked.predict([Request(text, asked.recipe.decoding)])[0][0].tokens[0]
    else:
        label = label_id(asked.vocabulary.target, target)
    return _trace_labels(asked, source, torch.tensor([label], device=asked.device), None, [label])


def _trace_gaps(asked: Task, text: str, target: str | None, step: int | None) -> Trace:
    """What a masked language model puts into the gaps of a text; elsewhere it is not asked."""
    _no_steps(step)
    if target is not None:
        raise ValueError(f"a target ({target!r}) is not for task: masked-lm; write the text with [MASK] for its gaps")
    (source,), mark = asked.encode([text]), asked.vocabulary.source.mark(MASK)
    if mark not in source:
        raise ValueError(f"{text!r} has no gap to fill; put [MASK] where a word is to be guessed")
    (filled,) = asked.predict([Request(text, asked.recipe.decoding)])[0][:1]
    gaps = [False, *(token == mark for token in source), False]  # between the marks it is read between
    every = [filled.tokens[0], *filled.tokens, filled.tokens[-1]]
    wanted = [max(token, len(SPECIALS)) for token in every]  # outside the gaps nobody looks at it
    labels = [token for token, gap in zip(every, gaps, strict=True) if gap]
    places = torch.tensor([gaps], device=asked.device)
    trace = _trace_labels(asked, source, _row(wanted, asked.device), places, labels)
    pieces = _words(asked.vocabulary.target, every)
    trace.about |= {"output": filled.text, "target_tokens": pieces}
    if asked.vocabulary.target.size > _LABELS:
        del trace.about["labels"]
    return trace


def _trace_tags(asked: Task, text: str, target: str | None, step: int | None) -> Trace:
    _no_steps(step)
    words = asked.vocabulary.encode_words([" ".join(between_spaces(text))])[0]
    pieces = [piece for word in words for piece in word]
    if not pieces:
        raise ValueError("an empty text has no words to tag; give one with words")
    if target is None:
        tags = asked.predict([Request(text, asked.recipe.decoding)])[0][0].tokens
    else:
        tags = [label_id(asked.vocabulary.target, tag) for tag in between_spaces(target)]
    if len(tags) != len(words):
        raise ValueError(f"{plural(len(tags), 'label')} for {plural(len(words), 'word')}; give one for each")
    wanted, first = [], []
    for word, tag in zip(words, tags, strict=True):
        wanted += [tag] * len(word)
        first += [True, *[False] * (len(word) - 1)]
    places = None if all(first) else torch.tensor([first], device=asked.device)
    return _trace_labels(asked, pieces, _row(wanted, asked.device), places, tags)


def _trace_labels(
    asked: Task, source: list[int], wanted: torch.Tensor, places: torch.Tensor | None, labels: list[int]
) -> Trace:
    """A special is no answer: probabilities are over the labels, counted without the specials."""
    taken = [np.asarray(source, np.int64)]
    batch = padded_batch(collate_fn(asked.recipe)(taken, [np.ones_like(taken[0])]), np.asarray([0]))
    batch = batch.to(asked.device) if asked.device.type != "cpu" else batch
    assert batch.source is not None and batch.source_layout is not None
    with record_arithmetic(asked.model) as recorder:
        recorder.give("source.tokens", batch.source, "tokens of the text", (BATCH, SOURCE))
        model = recorder.model
        logits = model.logits(model(batch.source, batch.source_layout))[..., len(SPECIALS) :]
        recorder.end(
            logits, wanted - len(SPECIALS), places, formula=f"softmax(logits[{len(SPECIALS)}:])", note=NO_SPECIALS
        )
    trace = recorder.finish()
    tokenizer = asked.vocabulary.target
    trace.about = {
        "output": " ".join(tokenizer.decode([label]) for label in labels),
        "source_tokens": _words(asked.vocabulary.source, batch.source.flatten().tolist()),
        "target_tokens": [tokenizer.decode([label]) for label in wanted.flatten().tolist()],
        "labels": [tokenizer.decode([label]) for label in range(len(SPECIALS), tokenizer.size)],
    }
    if places is not None:
        trace.about["places"] = places.flatten().nonzero()[:, 0].tolist()  # where an answer is wanted
    return trace


def _no_steps(step: int | None) -> None:
    if step is not None:
        raise ValueError(f"step ({step}) is for models that write token by token; labels come at once; leave it out")
