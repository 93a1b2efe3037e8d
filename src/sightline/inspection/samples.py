"""Examples of a test set, spread evenly over it, as padded batches to measure a model on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from sightline.data.collate import (
    ExampleIds,
    TokenSequences,
    TrainingBatch,
    collate_fn,
    language_model_ids,
    padded_batch,
)
from sightline.data.noise import Corrupter, fixed_windows
from sightline.data.sources import Example
from sightline.recipe import Recipe
from sightline.recipe.recipe import carries
from sightline.recipe.tasks import TaskSpec
from sightline.text.tokenizer import END, START
from sightline.text.vocabulary import Vocabulary, between_spaces, label_id

_LONGEST = 256  # tokens; longer examples are skipped
_ROWS = 16  # of a batch


def refuse_label_sets(spec: TaskSpec) -> None:
    """Refuse a task with several labels for each text."""
    if spec.labels == "several":
        raise ValueError(f"{spec} has several labels for each text, and inspect looks at the loss of one; see evaluate")


def sample_batches(
    recipe: Recipe,
    vocabulary: Vocabulary,
    examples: Sequence[Example],
    *,
    sentences: int = 64,
    device: torch.device | str = "cpu",
) -> list[TrainingBatch]:
    """Batches of up to `sentences` examples of similar length; for language models windows of the training length."""
    refuse_label_sets(recipe.task_spec)
    if not examples:
        raise ValueError("there are no examples to measure; give a test set that has some")
    if recipe.data.noise is not None:
        sides = _noised_windows(recipe, vocabulary, examples, sentences)
    elif recipe.task_spec.continues_text and recipe.task_spec.cuts_windows:
        sides = _windows(recipe, vocabulary, examples, sentences)
    else:
        chosen = [examples[place] for place in _evenly(len(examples), sentences)]
        sides = _examples(recipe, vocabulary, chosen, _LONGEST)
    ordered = sorted(sides, key=lambda side: side.inputs[-1].lengths()[0])
    if not ordered:
        raise ValueError(
            f"every example is empty on a side or has over {_LONGEST} tokens; give a test set of shorter ones"
        )
    batches = [_joined(ordered[at : at + _ROWS]) for at in range(0, len(ordered), _ROWS)]
    target = torch.device(device)
    return [batch.to(target) if target.type != "cpu" else batch for batch in batches]


def example_batch(recipe: Recipe, vocabulary: Vocabulary, source: str, target: str) -> TrainingBatch:
    """A batch of one pair, one text with its labels, or for a language model one text (`target`)."""
    refuse_label_sets(recipe.task_spec)
    if recipe.task_spec.continues_text and recipe.task_spec.cuts_windows:
        ids = np.asarray([START, *vocabulary.target.encode(target)], np.int64)
        if len(ids) < 2:
            raise ValueError("the text is empty, so there is no token to look at; give some")
        return padded_batch(language_model_ids([], [ids]), np.arange(1))
    if recipe.task_spec.fills_gaps:
        raise ValueError("task: masked-lm has an answer at each gap and no output for a whole text")
    if recipe.task_spec.labels == "words" and not (source := " ".join(between_spaces(source))):
        raise ValueError("an empty text has no words to look at; give one with words")
    if vocabulary.labels != "none":
        for label in [target] if vocabulary.labels == "one" else between_spaces(target):
            label_id(vocabulary.target, label)  # what is not one would be measured as <unk>
    (sides,) = _examples(recipe, vocabulary, [Example(source, target)])
    return padded_batch(sides, np.arange(1))


def _examples(
    recipe: Recipe, vocabulary: Vocabulary, examples: Sequence[Example], longest: int | None = None
) -> Iterator[ExampleIds]:
    """Collate examples one by one; with `longest`, skip empty and longer ones."""
    collate = collate_fn(recipe)
    pairs = vocabulary.encode_pairs([each.source for each in examples], [each.target for each in examples])
    for source, target in zip(*pairs, strict=True):
        source = source[: recipe.data.clean.truncate_source]
        if longest is None or ((source or recipe.of_text) and target and max(len(source), len(target)) <= longest):
            yield collate([np.asarray(source, np.int64)], [np.asarray(target, np.int64)])


def _windows(recipe: Recipe, vocabulary: Vocabulary, examples: Sequence[Example], count: int) -> Iterator[ExampleIds]:
    context, tokens = min(recipe.training.batches.context, _LONGEST), 0
    documents: list[np.ndarray] = []
    for example in examples:
        documents.append(np.asarray([*vocabulary.target.encode(example.target), END], np.int64))
        tokens += len(documents[-1])
        if tokens > 50 * count * context:  # more than enough to choose from
            break
    stream = np.concatenate(documents)
    starts = np.arange(1, max(2, len(stream) - context), context)
    carried = carries(recipe)
    for place in _evenly(len(starts), count):
        start = int(starts[place])
        before = stream[start - 1] if carried else START
        yield language_model_ids([], [np.concatenate([[before], stream[start : start + context]])])


def _noised_windows(
    recipe: Recipe, vocabulary: Vocabulary, examples: Sequence[Example], count: int
) -> Iterator[ExampleIds]:
    """Windows of the text with the noise of validation."""
    corrupter, collate = Corrupter(recipe, vocabulary), collate_fn(recipe)
    documents = vocabulary.target.encode_many([example.target for example in examples])
    every = fixed_windows(np.concatenate([[*ids, END] for ids in documents]), min(corrupter.length, _LONGEST))
    for place in _evenly(len(every), count):
        yield collate(*corrupter.held_out([every[place]], place))


def _evenly(count: int, most: int) -> list[int]:
    return [int(place) for place in np.unique(np.linspace(0, count - 1, min(count, most)).round())]


def _joined(parts: Sequence[ExampleIds]) -> TrainingBatch:
    """Collate examples into one batch."""

    def side(every: Sequence[TokenSequences | None]) -> TokenSequences | None:
        whole = [each for each in every if each is not None]
        return (
            TokenSequences([each.sequences[0] for each in whole], whole[0].before, whole[0].behind) if whole else None
        )

    labels = side([part.labels for part in parts])
    assert labels is not None
    sides = ExampleIds(side([part.source for part in parts]), side([part.decoder_input for part in parts]), labels)
    return padded_batch(sides, np.arange(len(parts)))
