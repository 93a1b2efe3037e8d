"""From a recipe to tokens: find the corpora, train the tokenizer, tokenize, check that the data fits the model."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

import numpy as np

from sightline.data.locate import alignment_file, data_folder, source_files
from sightline.data.sources import Example, line_limit, recipe_examples, training_examples
from sightline.data.store import BpeDropout, Store, StoreSpec, StoreVariants, load_or_build_store
from sightline.data.target_lengths import TargetLengths
from sightline.data.text_files import DataError
from sightline.recipe import Recipe
from sightline.recipe.defaults import TextSize, fill_in, open_keys
from sightline.recipe.sources import AnySource
from sightline.recipe.tokenizer import BpeTokenizer
from sightline.terminal import plural
from sightline.text.bleu_tokenizers import check_tokenizer, tokenization_note
from sightline.text.tokenizer import PAD, SPECIALS, UNK
from sightline.text.vocabulary import Vocabulary, with_preprocessing

_SAMPLE = 20_000  # examples that are searched for copied words
_TAGS = 1_000  # distinct target words that are inspected to recognise tags
_RARE = 2  # most occurrences of a rare word in the targets
_PUNCTUATION = ".,;:!?'\"()[]{}<>=«»„“”‘’"

ExampleCounter = Callable[[str, int], None]  # description of the step, examples so far


@dataclass(frozen=True)
class PreparedData:
    """The tokenized data of a recipe. Close it when training ends."""

    recipe: Recipe
    vocabulary: Vocabulary
    train: Callable[[int], Store]  # epoch → store
    validation: Store
    references: list[Example]  # the validation texts

    @cached_property
    def target_lengths(self) -> TargetLengths | None:
        """Target lengths of the training data by source length; None if examples are not pairs of texts."""
        if not self.recipe.task_spec.maps_text or self.recipe.of_text:
            return None
        store = self.train(0)
        return TargetLengths.of(store.source_lengths, store.target_lengths)

    def close(self) -> None:
        """Cancel tokenizing for later epochs. Finished stores stay usable."""
        if isinstance(self.train, StoreVariants):
            self.train.close()


def with_defaults(recipe: Recipe) -> tuple[Recipe, list[str]]:
    """The recipe with the defaults that depend on the training text, and notes on what was chosen."""
    if not open_keys(recipe):
        return recipe, []
    text = measure(training_examples(recipe))
    filled, chosen = fill_in(recipe, text)
    metrics = chosen.pop("evaluation.metrics", None)
    values = (f"{key}={value}" for key, value in chosen.items())
    notes = [f"by default, for {plural(text.examples, 'training example')}: {' '.join(values)}"] if chosen else []
    if metrics is not None:
        notes.append(
            f"the labels are B-, I- and O tags, which mark spans, so the first metric is span F1: evaluation.metrics: "
            f"[{', '.join(metrics)}]"
        )
    return filled, notes


def prepare_data(
    recipe: Recipe, *, vocabulary: Vocabulary | None = None, progress: ExampleCounter | None = None
) -> PreparedData:
    """Train the tokenizer (unless a vocabulary is passed) and tokenize the corpora, or load them from the cache."""
    data, tokenizer = recipe.data, recipe.tokenizer

    def counter(step: str) -> Callable[[int], None] | None:
        return None if progress is None else lambda count: progress(step, count)

    def counted_examples() -> Iterator[Example]:
        show = counter("reading for the tokenizer")
        for number, example in enumerate(training_examples(recipe), 1):
            if show is not None and number % 10_000 == 0:
                show(number)
            yield example

    if "bleu" in recipe.evaluation.metrics:
        check_tokenizer(recipe.evaluation.bleu_tokenize)
    if vocabulary is None:
        marks = () if data.noise is None else data.noise.marks
        vocabulary = Vocabulary.train(tokenizer, counted_examples, recipe.task_spec.labels, marks)
    vocabulary = with_preprocessing(recipe, vocabulary)
    dropout = tokenizer.dropout if isinstance(tokenizer, BpeTokenizer) else 0.0
    variants = tokenizer.variants if isinstance(tokenizer, BpeTokenizer) and dropout else 1

    held_out = _held_out_spec(recipe, vocabulary, data.validation, data.validation_limit)
    training = replace(
        held_out,
        sources=tuple(data.train),
        limit=data.limit,
        clean=None if recipe.task_spec.cuts_windows else data.clean,
        line_limit=line_limit(recipe, drop=True),
        links=alignment_file(recipe),
    )

    def build(variant: int, stop: threading.Event) -> Store:
        spec = replace(training, dropout=BpeDropout(dropout, variant, recipe.seed) if dropout else None)
        return load_or_build_store(spec, progress=counter("tokenizing") if variant == 0 else None, stop=stop)

    validation = load_or_build_store(held_out)
    references = list(recipe_examples(recipe, [data.validation], data.validation_limit))
    _check_validation_fits(recipe, validation)
    return PreparedData(recipe, vocabulary, StoreVariants(build, variants), validation, references)


def load_test_store(prepared: PreparedData, name: str) -> Store:
    """A test set of the recipe, tokenized."""
    return load_or_build_store(_held_out_spec(prepared.recipe, prepared.vocabulary, prepared.recipe.data.tests[name]))


def _held_out_spec(recipe: Recipe, vocabulary: Vocabulary, source: AnySource, limit: int | None = None) -> StoreSpec:
    """The store of a validation or test set: nothing is cleaned away."""
    return StoreSpec(
        (source,),
        vocabulary,
        data_folder(recipe),
        swap=recipe.data.swap,
        limit=limit,
        longest_source=recipe.data.clean.truncate_source,
        copying=recipe.copies_unknown,
        forms=recipe.copies_forms,
        line_limit=line_limit(recipe),
        text_only=recipe.of_text,
    )


def held_out_notes(prepared: PreparedData) -> list[str]:
    """Problems that would show only after training: labels that are never learned, missing test sets."""
    recipe = prepared.recipe
    notes = [] if recipe.task_spec.labels == "none" else _label_notes(prepared)
    if (uneven := recipe.data.uneven_spelling()) is not None:
        notes.append(uneven)
    references = (example.target for example in prepared.references)
    if not recipe.of_text and (note := tokenization_note(recipe.evaluation, references)) is not None:
        notes.append(note)
    for name, source in recipe.data.tests.items():
        try:
            source_files(source, data_folder(recipe))
        except DataError as error:
            notes.append(f"data.tests.{name}: {error}")
    return notes


def _label_notes(prepared: PreparedData) -> list[str]:
    """Validation labels (empty ones too) that are not in the training text; labels that differ only by spaces."""
    notes, target, store = [], prepared.vocabulary.target, prepared.validation
    ids = np.concatenate([ids for _, ids in store.targets])
    empty = int((store.target_lengths == 0).sum()) if prepared.vocabulary.labels == "one" else 0
    unknown, known = int((ids == UNK).sum()) + empty, target.size - len(SPECIALS)
    if unknown:
        notes.append(
            f"{unknown:,} of {plural(int((ids != PAD).sum()) + empty, 'validation label')} not among the {known:,} of "
            f"the training text, so never right; check data.validation and data.train"
        )
    labels = sorted(target.decode([number]) for number in range(len(SPECIALS), target.size))
    for _, group in groupby(sorted(labels, key=str.strip), str.strip):
        if len(similar := list(group)) > 1:
            notes.append(
                f"labels {', '.join(map(repr, similar))}: only spaces tell them apart, so they are learned as "
                f"{len(similar)} and scored as one; write them the same way"
            )
    return notes


def _check_validation_fits(recipe: Recipe, store: Store) -> None:
    """Refuse validation sentences that are longer than the learned positions, before training starts."""
    model = recipe.model
    if recipe.task_spec.cuts_windows:
        return
    in_one = model.encoder is None and recipe.task_spec.maps_text  # source and target are one sequence
    sides = [("source", model.encoder, store.source_lengths), ("target", model.decoder, store.target_lengths)]
    if in_one:
        least, read = recipe.decoding.min_length, store.source_lengths
        with_least = f"source with decoding.min_length ({least})"  # the shortest output after the source
        sides = [("pair", model.decoder, read + store.target_lengths), (with_least, model.decoder, read + least)]
    classed = model.pooling is not None and model.pooling.kind == "class"
    count, marks = (2, "two marks") if classed or in_one else (1, "an end mark")
    for side, body, lengths in sides:
        longest = None if body is None else body.max_positions
        if longest is not None and len(lengths) and lengths.max() + count > longest:
            worst = int(lengths.argmax())
            raise ValueError(
                f"data.validation, example {worst + 1}: its {side} has {lengths[worst]} tokens and {marks}, "
                f"more than positions.max_positions ({longest}); raise it, or take the example out"
            )


def measure(examples: Iterable[Example]) -> TextSize:
    """The size of a text, for the defaults that depend on it: one pass over its examples."""
    count, words, characters = 0, [0, 0], [0, 0]
    alphabet: set[str] = set()
    tags: set[str] = set()
    sample: list[Example] = []
    for example in examples:
        count += 1
        for side, text in enumerate(example):
            words[side] += len(text.split())
            characters[side] += len(text)
            alphabet.update(text)
        if len(tags) < _TAGS:
            tags.update(example.target.split())
        if len(sample) < _SAMPLE:
            sample.append(example)
    return TextSize(
        count,
        source_words=words[0],
        target_words=words[1],
        source_characters=characters[0],
        target_characters=characters[1],
        alphabet=len(alphabet),
        copied=copied_share(sample),
        spans=marks_spans(tags),
    )


def marks_spans(tags: Collection[str]) -> bool:
    """Return True if tags mark spans: B-X or I-X, O, and E-X and S-X in some schemes."""
    return any(tag.startswith(("B-", "I-")) for tag in tags) and all(
        tag == "O" or tag.startswith(("B-", "I-", "E-", "S-")) for tag in tags
    )


def copied_share(examples: Iterable[Example]) -> float:
    """The share of rare target words that also occur in their own source: names and numbers to copy."""

    def words(text: str) -> set[str]:
        return {word for word in (each.strip(_PUNCTUATION) for each in text.split()) if word}

    pairs = [(words(example.source), words(example.target)) for example in examples]
    counts = Counter(word for _, target in pairs for word in target)
    rare = [word in source for source, target in pairs for word in target if counts[word] <= _RARE]
    return sum(rare) / len(rare) if rare else 0.0
