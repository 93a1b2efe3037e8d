"""`model.init_from`: initialize a training with the tokenizer and the weights of another run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from sightline.data.locate import data_folder
from sightline.data.sources import Example, training_examples
from sightline.files import read_json, write_json
from sightline.layers.adapters import is_adapter
from sightline.layers.embedding import Embedding
from sightline.models.language_model import LanguageModel
from sightline.models.ngram import CountedModel
from sightline.models.protocol import body_classes
from sightline.models.transfer import ModelWeights, Transfer, not_taken, part, plan_transfer, summary, transfer
from sightline.models.weights import load_weights, weights_of
from sightline.recipe import Recipe
from sightline.recipe.loading import load_recipe
from sightline.recipe.model import InitFromConfig
from sightline.recipe.recipe import section_differences
from sightline.run_folder import WEIGHTS, RunError, read_config, require_file, verify_file
from sightline.terminal import plural
from sightline.text.tokenizer import Tokenizer
from sightline.text.vocabulary import Vocabulary, extend_tokenizer
from sightline.text.word_vectors import initial_embeddings
from sightline.training.checkpoints import Checkpoints
from sightline.training.optimizers import freeze_for, lr_factors_for

START = "start.json"
_SHOWN = 8  # most differences in a message
_FREE = frozenset({"dropout", "attention_dropout", "variants"})  # these may change from one training to the next


@dataclass(frozen=True)
class Start:
    """The initial weights of a model: copied from the run, new, and left in the run."""

    run: str
    taken: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    numbers: int = 0  # taken, in all of these weights
    new_rows: int = 0  # of its embeddings, for tokens that the run does not have

    def notes(self) -> list[str]:
        """Notes for the display and the model card."""
        rows = f", and {plural(self.new_rows, 'new row')} for new tokens" if self.new_rows else ""
        taken = f"weights taken: {len(self.taken)}, {plural(self.numbers, 'number')} ({summary(self.taken)})"
        lines = [f"starting from {self.run}: {taken}{rows}"]
        lines += [f"new weights: {len(self.new)} ({summary(self.new)})"] if self.new else []
        lines += [f"weights left there: {len(self.left)} ({summary(self.left)})"] if self.left else []
        return lines


# --- the recipe and the tokenizer ---------------------------------------------------------------------------------


def with_start(recipe: Recipe) -> Recipe:
    """The recipe with an absolute path to its run, and with that run's tokenizer section (or size) if it has none."""
    start = recipe.model.init_from
    if start is None:
        return recipe
    folder = Path(start.run).expanduser().resolve()
    changed = start.model_copy(update={"run": str(folder)})
    recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"init_from": changed})})
    if not folder.is_dir():
        return recipe
    own, theirs = recipe.tokenizer, _recipe_of(folder).tokenizer
    if "tokenizer" in recipe.model_fields_set:
        if own.kind != theirs.kind or "size" in own.model_fields_set:
            return recipe
        theirs = own.model_copy(update={"size": theirs.size})
    return recipe.model_copy(update={"tokenizer": theirs})


def vocabulary_of_start(recipe: Recipe) -> Vocabulary | None:
    """The vocabulary of the run, with extend_vocabulary extended, and the labels of this text; None without init_from.

    The tokenizer section of the recipe must agree with the run, because other commands read it.
    """
    start = recipe.model.init_from
    if start is None:
        return None
    run = Path(start.run)
    theirs = _recipe_of(run)
    if different := section_differences(theirs.tokenizer, recipe.tokenizer, "tokenizer", _FREE | {"shared"}):
        raise RunError(
            f"model.init_from: {run} has another tokenizer, and its own is the one its weights know: "
            f"{_listed(different)}; give this recipe the same tokenizer section, or none"
        )
    loaded, labels = Vocabulary.load(run, theirs.task_spec.labels), recipe.task_spec.labels
    own = None
    if start.extend_vocabulary or labels != "none":
        own = Vocabulary.train(recipe.tokenizer, lambda: _texts(recipe), labels)
    read, written = loaded.source, loaded.target if theirs.task_spec.labels == "none" else loaded.source
    _check_marks(recipe, run, written)
    if own is not None and labels != "none":
        written = _labels(loaded.target if theirs.task_spec == recipe.task_spec else None, own.target)
    elif recipe.tokenizer.shared and read.content != written.content:
        raise RunError(
            f"model.init_from: {run} has a tokenizer for each side, and this recipe one for both; set "
            f"tokenizer.shared: false and model.tie: output or none"
        )
    if own is not None and start.extend_vocabulary:
        read, written = (
            extend_tokenizer(read, own.source),
            written if labels != "none" else extend_tokenizer(written, own.target),
        )
    shared = labels == "none" and recipe.tokenizer.shared
    return Vocabulary(read, read if shared else written, shared=shared, labels=labels)


def _check_marks(recipe: Recipe, run: Path, tokenizer: Tokenizer) -> None:
    """Refuse noise with marks missing from the vocabulary of the run: their ids come first, so none can be added."""
    noise = recipe.data.noise
    missing = [] if noise is None else [mark for mark in noise.marks if mark not in tokenizer.marks]
    if noise is not None and missing:
        raise RunError(
            f"model.init_from: the vocabulary of {run} has no {missing[0]}, which data.noise.kind: {noise.kind} puts "
            f"into texts (it has {plural(len(tokenizer.marks), 'mark')}), and marks cannot be added later; start "
            f"from a run whose data.noise has them, or leave model.init_from out"
        )


def _texts(recipe: Recipe) -> Iterator[Example]:
    """The texts a tokenizer is trained on."""
    return (Example("", each.target) if recipe.of_text else each for each in training_examples(recipe))


def _labels(theirs: Tokenizer | None, own: Tokenizer) -> Tokenizer:
    """The labels of the run if they include all labels of this text, else those of this text."""
    if theirs is None:
        return own
    known = set(theirs.pieces(range(theirs.size)))
    return theirs if known.issuperset(own.pieces(range(own.size))) else own


# --- the weights --------------------------------------------------------------------------------------------------


def start_from_run(model: nn.Module, recipe: Recipe, vocabulary: Vocabulary) -> Start | None:
    """Copy the weights of model.init_from into a model; None without it."""
    start = recipe.model.init_from
    if start is None:
        return None
    theirs = _recipe_of(Path(start.run))
    if isinstance(model, CountedModel) or theirs.model.counted:
        raise RunError("model.init_from: an n-gram model has no weights to start from; leave it out")
    if theirs.model.adapters is not None:
        raise RunError(
            f"model.init_from: {start.run} has adapters beside its weights; make a plain run of it with: "
            f"sightline runs merge {start.run} --out DIR"
        )
    tensors = _weights_of_run(Path(start.run))
    pieces = _pieces(Vocabulary.load(Path(start.run), theirs.task_spec.labels))
    other = ModelWeights(tensors, pieces, body_classes(theirs.model))
    weights = {name: weight for name, weight in weights_of(model).items() if not is_adapter(name)}
    own = ModelWeights(weights, _pieces(vocabulary), body_classes(recipe.model))
    plan = plan_transfer(own, other, start.parts)
    _check(plan, own, other, start, whole=recipe.training.reward is not None)
    transfer(plan, weights, tensors)
    numbers = sum(tensors[name].numel() for name in set(plan.taken.values()))
    new_rows = max((rows for name, rows in plan.rows.items() if "embedding" in name), default=0)
    return Start(start.run, tuple(plan.taken), plan.new, plan.left, numbers, new_rows)


def other_bodies(recipe: Recipe) -> list[str]:
    """Notes on settings of encoder and decoder that differ from the run although all shapes may fit."""
    start = recipe.model.init_from
    if start is None:
        return []
    theirs = _recipe_of(Path(start.run)).model.bodies
    both = [(side, theirs[side], body) for side, body in recipe.model.bodies.items() if side in theirs]
    different = [line for side, its, own in both for line in section_differences(its, own, f"model.{side}", _FREE)]
    return [f"not the same model in all: {_listed(different)}"] if different else []


def _check(plan: Transfer, own: ModelWeights, theirs: ModelWeights, start: InitFromConfig, *, whole: bool) -> None:
    """Named parts must fit whole, and at least one weight; reward training needs the `whole` model."""
    for named in start.parts or ():
        if problems := not_taken(plan, own, theirs, named):
            raise RunError(
                f"model.init_from: the {named} of {start.run} does not fit this model whole: {_listed(problems)}; use "
                f"the model section of {start.run}/recipe.yaml, or leave {named} out of parts"
            )
    if not any(own.weights[name].dim() > 1 and part(name) != "head" for name in plan.taken):
        raise RunError(
            f"model.init_from: nothing of {start.run} fits this model; use the model section of "
            f"{start.run}/recipe.yaml (model.width, layers, heads and the like)"
        )
    if whole and (plan.new or plan.left):
        names = [f"{name} is not there" for name in plan.new] + [f"{name} is left there" for name in plan.left]
        raise RunError(
            f"model.init_from: training.reward fine-tunes a model that can do its task, and that of {start.run} is "
            f"not this one: {_listed(names)}; use the model section of {start.run}/recipe.yaml"
        )


def _pieces(vocabulary: Vocabulary) -> dict[str, list[str]]:
    sides = {"source": vocabulary.source, "target": vocabulary.target}
    return {side: tokenizer.pieces(range(tokenizer.size)) for side, tokenizer in sides.items()}


def _weights_of_run(run: Path) -> dict[str, Tensor]:
    weights = require_file(run, "model.safetensors", f"finish its training with: sightline train {run} --resume")
    verify_file(run, WEIGHTS)
    try:
        return load_weights(weights)
    except SafetensorError as error:
        raise RunError(f"{weights} is damaged ({error}); copy it again, or resume that training") from error


def _recipe_of(run: Path) -> Recipe:
    read_config(run)
    return load_recipe(require_file(run, "recipe.yaml", "it is part of every run folder; copy the whole folder"))


def _listed(different: list[str]) -> str:
    more = f"; and {len(different) - _SHOWN} more" if len(different) > _SHOWN else ""
    return "; ".join(different[:_SHOWN]) + more


# --- start.json ---------------------------------------------------------------------------------------------------


def write_start(run: Path, start: Start) -> None:
    """Write start.json, for resuming and for the model card."""
    write_json(run / START, {"notes": start.notes(), **asdict(start)})


def read_start(run: Path) -> Start | None:
    """Read start.json; None if there is none."""
    if not (run / START).is_file():
        return None
    values = read_json(run / START)
    names = {key: tuple(values[key]) for key in ("taken", "new", "left")}
    return Start(values["run"], **names, numbers=values["numbers"], new_rows=values["new_rows"])


def start_from_word_vectors(
    model: nn.Module, recipe: Recipe, vocabulary: Vocabulary, start: Start | None
) -> str | None:
    """Copy word vectors into the source embeddings unless these come from another run; a note on their coverage."""
    section = recipe.model.word_vectors
    if section is None:
        return None
    embedding = model.embedding if isinstance(model, LanguageModel) else model.source_embedding
    assert isinstance(embedding, Embedding)
    embedding.weight.requires_grad_(not section.frozen)
    kept = ", kept as they are" if section.frozen else ""
    own = dict(model.named_parameters(remove_duplicate=False))
    if start is not None and any(own.get(name) is embedding.weight for name in start.taken):
        return (
            f"word vectors: none taken from {section.file}, for the embeddings are those of {start.run}{kept}; for the "
            f"vectors, name model.init_from.parts without embeddings"
        )
    path = (data_folder(recipe) or Path()) / Path(section.file).expanduser()
    table, coverage = initial_embeddings(path, vocabulary.source, embedding.weight.shape[1], embedding.weight.detach())
    with torch.no_grad():
        embedding.weight.copy_(table)
    return coverage.describe() + kept


def initialize(
    model: nn.Module, recipe: Recipe, vocabulary: Vocabulary, resumed: Path | None
) -> tuple[list[str], Start | None]:
    """Set the initial weights of a model and return notes on them; a checkpoint of `resumed` replaces them later."""
    if isinstance(model, CountedModel):
        return [], start_from_run(model, recipe, vocabulary)
    run = None if recipe.model.init_from is None else resumed
    if run is not None and Checkpoints(run, recipe.training.keep).newest() is not None:
        start, notes = read_start(run), []  # the run it came from is not needed any more
    else:
        start = start_from_run(model, recipe, vocabulary)
        notes = [] if start is None else start.notes() + other_bodies(recipe)
    vectors = start_from_word_vectors(model, recipe, vocabulary, start)
    return [*([] if vectors is None else [vectors]), *notes], start


def adapt(model: nn.Module, recipe: Recipe, start: Start | None) -> dict[str, float]:
    """Freeze parameters and return the learning rate factors of the rest."""
    new = () if start is None else start.new
    if not isinstance(model, CountedModel):
        freeze_for(model, recipe, new)
    return lr_factors_for(model, recipe, new)
