"""From a recipe to tokens: find the corpora, train the tokenizer, tokenize, check that the data fits the model."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, islice

import numpy as np

from sightline.data.locate import alignment_file, data_folder, source_files
from sightline.data.sources import Example, line_limit, recipe_examples, training_examples
from sightline.data.store import BpeDropout, Store, StoreSpec, StoreVariants, load_or_build_store
from sightline.data.target_lengths import TargetLengths
from sightline.data.text_files import DataError
from sightline.recipe import Recipe
from sightline.recipe.bodies import learned_positions
from sightline.recipe.data import AnySource, BpeTokenizer
from sightline.recipe.defaults import TextSize, fill_in, open_keys
from sightline.terminal import plural
from sightline.text.bleu_tokenizers import check_tokenizer, tokenization_note
from sightline.text.tokenizer import PAD, SPECIALS, UNK, SpelledSide
from sightline.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class PreparedData:
    """Everything read and tokenized; to be closed by whoever asked for it."""

    recipe: Recipe
    vocabulary: Vocabulary
    train: Callable[[int], Store]  # epoch → store
    validation: Store
    references: list[Example]  # the validation texts

    @cached_property
    def target_lengths(self) -> TargetLengths | None:
        """How long the training targets are beside their sources; None where there are no pairs of texts."""
        if not self.recipe.task_spec.maps_text or self.recipe.of_text:
            return None
        store = self.train(0)
        return TargetLengths.of(store.source_lengths, store.target_lengths)

    def close(self) -> None:
        """Cut no text for epochs that do not come. What is there stays in use."""
        if isinstance(self.train, StoreVariants):
            self.train.close()


ExampleCounter = Callable[[str, int], None]  # is told what is being done, and examples so far


def with_defaults(recipe: Recipe) -> tuple[Recipe, list[str]]:
    """The recipe with every key filled in that it leaves to the training text, and a note on what was chosen."""
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


def with_preprocessing(recipe: Recipe, vocabulary: Vocabulary) -> Vocabulary:
    """The vocabulary that does to raw text what the sources of the recipe do to it.

    Normalization and lowercasing are in its tokenizers; spelling follows from the training sources, so that runs of
    older versions have it too. Columns and patterns say where a text stands in a file: prediction is given the text.
    """
    side: SpelledSide | None = recipe.data.spelled_side
    if recipe.of_text:  # there is but one text, the target side of pairs
        side = "both" if side == "target" else None
    return vocabulary.with_spelling(side)


def prepare_data(
    recipe: Recipe, *, vocabulary: Vocabulary | None = None, progress: ExampleCounter | None = None
) -> PreparedData:
    """Train the tokenizer (unless one is given) and tokenize the corpora, or find them tokenized already."""
    data, tokenizer = recipe.data, recipe.tokenizer

    def tell(what: str) -> Callable[[int], None] | None:
        return None if progress is None else lambda count: progress(what, count)

    def watched() -> Iterator[Example]:
        show = tell("reading for the tokenizer")
        for number, example in enumerate(recipe_examples(recipe, data.train, data.limit, drop=True), 1):
            if show is not None and number % 10_000 == 0:
                show(number)
            yield example

    if "bleu" in recipe.evaluation.metrics:
        check_tokenizer(recipe.evaluation.bleu_tokenize)
    if vocabulary is None:
        marks = () if data.noise is None else data.noise.marks
        vocabulary = Vocabulary.train(tokenizer, watched, recipe.task_spec.labels, marks)
    vocabulary = with_preprocessing(recipe, vocabulary)
    dropout = tokenizer.dropout if isinstance(tokenizer, BpeTokenizer) else 0.0
    variants = tokenizer.variants if isinstance(tokenizer, BpeTokenizer) and dropout else 1

    held_out = _held_out(recipe, vocabulary, data.validation, data.validation_limit)
    learned = replace(
        held_out,
        sources=tuple(data.train),
        limit=data.limit,
        clean=None if recipe.of_text else data.clean,  # of text there are no pairs to clean
        bound=line_limit(recipe, drop=True),
        links=alignment_file(recipe),
    )

    def cut(variant: int, stop: threading.Event) -> Store:
        dropped = BpeDropout(dropout, variant, recipe.seed) if dropout else None
        show = tell("tokenizing") if variant == 0 else None
        return load_or_build_store(replace(learned, dropped=dropped), progress=show, stop=stop)

    validation = load_or_build_store(held_out)
    references = list(recipe_examples(recipe, [data.validation], data.validation_limit))
    _check_validation_fits(recipe, validation)
    return PreparedData(recipe, vocabulary, StoreVariants(cut, variants), validation, references)


def _held_out(recipe: Recipe, vocabulary: Vocabulary, source: AnySource, limit: int | None = None) -> StoreSpec:
    """What the store of a text that is not trained on is made of: nothing is cleaned away."""
    return StoreSpec(
        (source,),
        vocabulary,
        data_folder(recipe),
        swap=recipe.data.swap,
        limit=limit,
        longest_source=recipe.data.clean.truncate_source,
        copying=recipe.copies_unknown,
        forms=recipe.copies_forms,
        bound=line_limit(recipe),
        text_alone=recipe.of_text,
    )


def test_store(prepared: PreparedData, name: str) -> Store:
    """A test set of the recipe, tokenized."""
    return load_or_build_store(_held_out(prepared.recipe, prepared.vocabulary, prepared.recipe.data.tests[name]))


def held_out_notes(prepared: PreparedData) -> list[str]:
    """What would be missed only after the training: labels that are never learned, test sets that are not there."""
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
    """Labels of the validation that are never learned, empty ones among them; labels that only spaces tell apart."""
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
        if len(alike := list(group)) > 1:
            notes.append(
                f"labels {', '.join(map(repr, alike))}: only spaces tell them apart, so they are learned as "
                f"{len(alike)} and scored as one; write them alike"
            )
    return notes


def _check_validation_fits(recipe: Recipe, store: Store) -> None:
    """Learned positions end somewhere; a validation sentence past that end is better known before training."""
    model = recipe.model
    if recipe.of_text:
        return  # its text is cut into windows
    sides = [("source", model.encoder, store.source_lengths), ("target", model.decoder, store.target_lengths)]
    if model.encoder is None:  # all in one sequence
        least, read = recipe.decoding.min_length, store.source_lengths
        with_least = f"source with decoding.min_length ({least})"  # the least that is written behind it
        sides = [("pair", model.decoder, read + store.target_lengths), (with_least, model.decoder, read + least)]
    classed = model.pooling is not None and model.pooling.kind == "class"
    count, marks = (2, "two marks") if classed or model.encoder is None else (1, "an end mark")
    for side, body, lengths in sides:
        longest = learned_positions(body)
        if longest is not None and len(lengths) and lengths.max() + count > longest:
            worst = int(lengths.argmax())
            raise ValueError(
                f"data.validation, example {worst + 1}: its {side} has {lengths[worst]} tokens and {marks}, "
                f"more than positions.max_positions ({longest}); raise it, or take the example out"
            )


_SAMPLE = 20_000  # examples that are searched for copied words
_TAGS = 1_000  # different target words that are looked at, to know whether they are tags
_RARE = 2  # a word is rare if the targets have it so many times or fewer
_MARKS = ".,;:!?'\"()[]{}<>=«»„“”‘’"


def measure(examples: Iterable[Example]) -> TextSize:
    """Count the examples, words and characters of a text in one pass."""
    count = source_words = target_words = source_characters = target_characters = 0
    alphabet: set[str] = set()
    tags: set[str] = set()
    sample: list[Example] = []
    for example in examples:
        count += 1
        source_words += len(example.source.split())
        target_words += len(example.target.split())
        source_characters += len(example.source)
        target_characters += len(example.target)
        alphabet.update(example.source)
        alphabet.update(example.target)
        if len(tags) < _TAGS:
            tags.update(example.target.split())
        if len(sample) < _SAMPLE:
            sample.append(example)
    return TextSize(
        count,
        source_words,
        target_words,
        source_characters,
        target_characters,
        len(alphabet),
        copied_share(sample),
        marks_spans(tags),
    )


def marks_spans(tags: Collection[str]) -> bool:
    """Whether tags are of a scheme that marks spans: B-X or I-X, O, and E-X and S-X where a scheme has them."""
    return any(tag.startswith(("B-", "I-")) for tag in tags) and all(
        tag == "O" or tag.startswith(("B-", "I-", "E-", "S-")) for tag in tags
    )


def copied_share(examples: Iterable[Example]) -> float:
    """The share of the rare target words that also occur in their own source: names and numbers to copy."""
    pairs = [(_words(example.source), _words(example.target)) for example in islice(examples, _SAMPLE)]
    counts = Counter(word for _, target in pairs for word in target)
    rare = [word in source for source, target in pairs for word in target if counts[word] <= _RARE]
    return sum(rare) / len(rare) if rare else 0.0


def _words(text: str) -> set[str]:
    return {word for word in (each.strip(_MARKS) for each in text.split()) if word}
