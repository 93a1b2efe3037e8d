"""From a recipe to tokens: find the corpora, train the tokenizer, cut the text, check that it fits the model."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any

import numpy as np

from sightline.data.ingredients import Dropped, Ingredients
from sightline.data.sources import DataError, Example, folder_here, read, resolve_folder, source_files
from sightline.data.store import Store, prepare
from sightline.data.target_lengths import TargetLengths
from sightline.data.text_lines import UNBOUNDED, Bound
from sightline.data.text_size import measure
from sightline.data.variants import Variants
from sightline.recipe import Recipe
from sightline.recipe.bodies import learned_positions
from sightline.recipe.data import AnySource, BpeTokenizer, TsvSource, direction
from sightline.recipe.defaults import fill_in, open_keys
from sightline.recipe.loading import load_recipe
from sightline.run_folder import read_config, verify
from sightline.terminal import plural
from sightline.text.bleu_tokenizers import check_tokenizer, tokenization_note
from sightline.text.spelling import Side
from sightline.text.tokenizer import PAD, SPECIALS, UNK, Vocabulary


@dataclass(frozen=True)
class Prepared:
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
        if isinstance(self.train, Variants):
            self.train.close()


ExampleCounter = Callable[[str, int], None]  # is told what is being done, and examples so far


def with_folder(recipe: Recipe, path: Path | None) -> Recipe:
    """The recipe with data.folder made absolute, so that the run folder can be used from anywhere.

    A folder in which nothing is looked for need not be there: text that is built in (dates) is read from no file.
    """
    if recipe.data.folder is not None and not _reads_files(recipe):
        return recipe
    folder = resolve_folder(recipe.data.folder, path)
    absolute = str(folder.resolve()) if folder is not None else None
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"folder": absolute})})


def _reads_files(recipe: Recipe) -> bool:
    data = recipe.data
    sources = (*data.train, data.validation, *data.tests.values())
    beside = recipe.model.word_vectors is not None or recipe.training.guided_alignment is not None
    return beside or any(source.file_keys for source in sources)


def run_recipe(run: Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe of a run folder: text that lay in it (distilled) lies there still, wherever the folder is now."""
    verify(run)
    recipe = load_recipe(run / "recipe.yaml", overrides)

    def found(source: AnySource) -> AnySource:
        if not isinstance(source, TsvSource) or not Path(source.file).is_absolute() or Path(source.file).is_file():
            return source
        own = run.resolve() / Path(source.file).name
        return source.model_copy(update={"file": str(own)}) if own.is_file() else source

    train = tuple(found(source) for source in recipe.data.train)
    recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update={"train": train})})
    if recipe.model.copying is True and (run / "config.json").is_file() and "copying" not in read_config(run):
        recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"copying": "exact"})})
    return recipe


def data_folder(recipe: Recipe) -> Path | None:
    """Where its files start on this machine."""
    return None if recipe.data.folder is None else folder_here(recipe.data.folder)


def other_direction(recipe: Recipe, other: Recipe) -> bool:
    """Whether two recipes learn the two directions of one corpus, as the names of their texts say."""
    if not direction(recipe.data).is_turned(direction(other.data)):  # then nobody need know where the files lie
        return False
    return data_folder(recipe) == data_folder(other)


def same_direction(recipe: Recipe, other: Recipe) -> bool:
    """Whether two recipes read and write the same texts of one corpus."""
    return direction(recipe.data) == direction(other.data) and data_folder(recipe) == data_folder(other)


def guiding_file(recipe: Recipe) -> Path | None:
    """The word alignments of training.guided_alignment, if there are some."""
    guide = recipe.training.guided_alignment
    return None if guide is None else (data_folder(recipe) or Path()) / Path(guide.file).expanduser()


def line_bound(recipe: Recipe, *, drop: bool = False) -> Bound:
    """The longest line that is read of pairs; of plain text, which is cut into windows, any line a machine can hold."""
    if recipe.of_text:
        return UNBOUNDED
    return Bound(recipe.data.clean.longest_line, drop, "cut it into shorter ones, or raise data.clean.max_tokens")


def _examples(
    recipe: Recipe, sources: Sequence[AnySource], limit: int | None, *, drop: bool = False
) -> Iterator[Example]:
    how: Any = {
        "swap": recipe.data.swap,
        "labelled": recipe.task_spec.labels == "words",
        "bound": line_bound(recipe, drop=drop),
    }
    every = chain.from_iterable(read(source, data_folder(recipe), **how) for source in sources)
    for example in islice(every, limit):
        yield Example("", example.target) if recipe.of_text else example


def training_examples(recipe: Recipe) -> Iterator[Example]:
    """The texts a recipe trains on, before any of them is cleaned away."""
    return _examples(recipe, recipe.data.train, recipe.data.limit, drop=True)


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
    side: Side | None = recipe.data.spelled_side
    if recipe.of_text:  # there is but one text, the target side of pairs
        side = "both" if side == "target" else None
    return vocabulary.with_spelling(side)


def prepare_data(
    recipe: Recipe, *, vocabulary: Vocabulary | None = None, progress: ExampleCounter | None = None
) -> Prepared:
    """Train the tokenizer (unless one is given) and tokenize the corpora, or find them tokenized already."""
    data, tokenizer = recipe.data, recipe.tokenizer

    def tell(what: str) -> Callable[[int], None] | None:
        return None if progress is None else lambda count: progress(what, count)

    def watched() -> Iterator[Example]:
        show = tell("reading for the tokenizer")
        for number, example in enumerate(_examples(recipe, data.train, data.limit, drop=True), 1):
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
        bound=line_bound(recipe, drop=True),
        links=guiding_file(recipe),
    )

    def cut(variant: int, stop: threading.Event) -> Store:
        dropped = Dropped(dropout, variant, recipe.seed) if dropout else None
        show = tell("tokenizing") if variant == 0 else None
        return prepare(replace(learned, dropped=dropped), progress=show, stop=stop)

    validation = prepare(held_out)
    references = list(_examples(recipe, [data.validation], data.validation_limit))
    _check_validation_fits(recipe, validation)
    return Prepared(recipe, vocabulary, Variants(cut, variants), validation, references)


def _held_out(recipe: Recipe, vocabulary: Vocabulary, source: AnySource, limit: int | None = None) -> Ingredients:
    """What the store of a text that is not trained on is made of: nothing is cleaned away."""
    return Ingredients(
        (source,),
        vocabulary,
        data_folder(recipe),
        swap=recipe.data.swap,
        limit=limit,
        longest_source=recipe.data.clean.truncate_source,
        copying=recipe.copies_unknown,
        forms=recipe.copies_forms,
        bound=line_bound(recipe),
        text_alone=recipe.of_text,
    )


def store_of_test(prepared: Prepared, name: str) -> Store:
    """A test set of the recipe, tokenized."""
    return prepare(_held_out(prepared.recipe, prepared.vocabulary, prepared.recipe.data.tests[name]))


def held_out_notes(prepared: Prepared) -> list[str]:
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


def _label_notes(prepared: Prepared) -> list[str]:
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
