"""From a recipe to a run folder: prepare the data, build the model, train it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save as safetensors_bytes
from torch import nn

from sightline.data.epoch_plan import ExamplePlan, choose_layout
from sightline.data.locate import load_run_recipe
from sightline.data.noise import NoisePlan
from sightline.data.preparation import ExampleCounter, PreparedData, prepare_data, with_defaults
from sightline.data.sources import training_examples
from sightline.data.windows import WindowPlan
from sightline.decoding.unknown_words import FILE as DICTIONARY
from sightline.decoding.unknown_words import learn_dictionary, write_dictionary
from sightline.files import write_atomically
from sightline.layers.devices import choose_device, deterministic_algorithms, keep_freed_memory, resolve_precision
from sightline.models.build import build_model
from sightline.models.ngram import CountedModel, NgramModel
from sightline.models.protocol import FitsLengths
from sightline.models.seq2seq import parameter_count
from sightline.models.weights import load_parameters, load_weights
from sightline.models.window.config import NgramConfig
from sightline.recipe import Recipe
from sightline.recipe.loading import save_recipe
from sightline.recipe.plugins import used_plugins
from sightline.recipe.recipe import carries, differences, with_unset_from
from sightline.recipe.schema import Choice
from sightline.registry import Implementations
from sightline.run_folder import (
    WEIGHTS,
    RunError,
    check_links,
    environment,
    lock_run,
    read_config,
    replace_file,
    rewriting,
    write_config,
)
from sightline.tasks.base import task_class
from sightline.terminal import plural
from sightline.text.tokenizer import END, START
from sightline.text.vocabulary import Vocabulary
from sightline.training.checkpoints import Progress
from sightline.training.flops import flop_rate
from sightline.training.init_from import Start, adapt, initialize, vocabulary_of_start, write_start
from sightline.training.loggers import Display, Journal, LiveDisplay, PlainDisplay
from sightline.training.memory import check_memory
from sightline.training.model_card import write_model_card
from sightline.training.objectives import Objective, build_objective
from sightline.training.optimizers import trained_count
from sightline.training.resolve import open_recipe
from sightline.training.reward import ExpectedReward
from sightline.training.summary import count_notes, training_notes
from sightline.training.threads import CpuTimes, threads_by_load
from sightline.training.train_step import TrainStep, build_runner
from sightline.training.trainer import BatchPlan, Trainer
from sightline.training.validation import build_validator
from sightline.training.world import World

_DICTIONARY_PAIRS = 500_000  # of the training text that a dictionary for unknown words is learned from


def train(
    recipe: Recipe | str | Path,
    overrides: Sequence[str] = (),
    *,
    out: str | Path | None = None,
    resume: bool = False,
    display: Display | None = None,
    progress: ExampleCounter | None = None,
) -> Path:
    """Train what a recipe describes and return its run folder.

    `recipe` is a Recipe, a path, or the name of a shipped recipe; `overrides` are `section.key=value`. With `resume`,
    an interrupted run continues from its newest whole checkpoint, and ends as if it had never stopped.
    """
    started = CpuTimes.now()
    loaded, name = open_recipe(recipe, overrides)
    run = Path(out) if out is not None else Path(name)
    display = display or PlainDisplay()
    with lock_run(run):
        check_links(run)
        if not resume and (run / "recipe.yaml").exists():
            raise RunError(
                f"{run} holds a training already; continue it with --resume, or give another folder with --out"
            )
        device = choose_device(loaded.training.device)
        check_memory(loaded, device)  # before the text is read
        resumed = resume and (run / "recipe.yaml").exists()
        loaded, notes = (_resumable(run, loaded), []) if resumed else with_defaults(loaded)
        if isinstance(display, LiveDisplay):
            display.limits = loaded.training.limits
        for line in notes:
            display.note(line)
        check_memory(loaded, device)
        with _prepared(_with_precision(loaded, run, device), run, resume, display, progress, started) as prepared:
            _train(prepared, run, resume, display, device)
    return run


# --- the recipe ----------------------------------------------------------------------------------------------------


def _resumable(run: Path, recipe: Recipe) -> Recipe:
    """The recipe of a resumed training: keys that it does not set are those of the run."""
    config = read_config(run) if (run / "config.json").is_file() else {}
    if (origin := config.get("merged_from") or config.get("averaged_from")) is not None:
        raise RunError(
            f"{run} was made from {origin} and cannot be resumed; start a new training with model.init_from={run}"
        )
    saved = load_run_recipe(run)
    recipe = with_unset_from(recipe, saved)
    if differing := differences(saved, recipe):
        raise RunError(
            f"{run} was trained with another recipe, so it cannot be resumed with this one: " + "; ".join(differing)
        )
    return recipe


def _with_precision(recipe: Recipe, run: Path, device: torch.device) -> Recipe:
    """Resolve `training.precision: auto`; a resumed run keeps the precision it started with."""
    if recipe.training.precision != "auto":
        return recipe
    saved = load_run_recipe(run).training.precision if (run / "recipe.yaml").is_file() else "auto"
    precision = resolve_precision(saved, device) if saved == "auto" else saved
    return recipe.model_copy(update={"training": recipe.training.model_copy(update={"precision": precision})})


# --- the data ------------------------------------------------------------------------------------------------------


@contextmanager
def _prepared(
    recipe: Recipe,
    run: Path,
    resume: bool,
    display: Display,
    progress: ExampleCounter | None,
    started: CpuTimes | None,
) -> Iterator[PreparedData]:
    """Prepare text and vocabulary, with threads and deterministic kernels as in the recipe."""
    if recipe.training.threads is not None:
        torch.set_num_threads(recipe.training.threads)
    cpu = choose_device(recipe.training.device).type == "cpu"
    if cpu:
        keep_freed_memory()
    continued = resume and (run / "config.json").exists()
    vocabulary = Vocabulary.load(run, recipe.task_spec.labels) if continued else vocabulary_of_start(recipe)
    with (
        closing(prepare_data(recipe, vocabulary=vocabulary, progress=progress)) as prepared,
        deterministic_algorithms(recipe.training.deterministic),
    ):
        if continued:
            _check_text(run, prepared)
        elif cpu:
            prepared = _with_threads(prepared, started, display)
        prepared.train(0)  # refuses text and batches that cannot be used before the run folder exists
        yield prepared


def _with_threads(prepared: PreparedData, started: CpuTimes | None, display: Display) -> PreparedData:
    """Use fewer threads on a busy machine, and record them in the recipe for a resumed training."""
    training = prepared.recipe.training
    if training.threads is not None or training.deterministic:
        return prepared
    prepared.train(0)  # tokenizes the text; the load is measured until now
    fewer = threads_by_load(torch.get_num_threads(), started, os.environ)
    if fewer is None:
        return prepared
    threads, note = fewer
    display.note(note)
    torch.set_num_threads(threads)
    training = training.model_copy(update={"threads": threads})
    return replace(prepared, recipe=prepared.recipe.model_copy(update={"training": training}))


def _size(prepared: PreparedData) -> dict[str, int]:
    """The size of the training text."""
    store = prepared.train(0)
    return {"examples": len(store), "tokens": int(store.source_lengths.sum() + store.target_lengths.sum())}


def _check_text(run: Path, prepared: PreparedData) -> None:
    """Refuse to resume with another text; older run folders do not record its size."""
    then, now = read_config(run).get("training_text"), _size(prepared)
    if then not in (None, now):
        sizes = (
            f"{plural(each['examples'], 'example')} with {plural(each['tokens'], 'token')}" for each in (then, now)
        )
        raise RunError(
            f"{run} was trained on another text, so it cannot be resumed with this one: {' then, '.join(sizes)} now; "
            f"check data.folder ({prepared.recipe.data.folder}), or start a new training with model.init_from={run}"
        )


PLANS: dict[str, Callable[..., BatchPlan]] = {
    "pairs": ExamplePlan,
    "sentences": ExamplePlan,
    "windows": WindowPlan,
    "corrupted windows": NoisePlan,
}


def plan_for(prepared: PreparedData, device: torch.device) -> BatchPlan:
    """The batches of a recipe's training."""
    recipe = prepared.recipe
    plan = PLANS[recipe.task_spec.examples]
    return plan(recipe, prepared.vocabulary, choose_layout(recipe, device), prepared.train)


# --- the training --------------------------------------------------------------------------------------------------


def _train(prepared: PreparedData, run: Path, resume: bool, display: Display, device: torch.device) -> None:
    """Build the model, start or continue the run folder, train, write the results."""
    recipe = prepared.recipe
    model, lr_factors, start, notes = initialized_model(prepared, run if resume else None)
    if isinstance(model, CountedModel):
        _start_folder(run, recipe, prepared, model, start)
        _count(prepared, run, model, display, notes)
        return
    plan = plan_for(prepared, device)
    plan.epoch(0)
    _start_folder(run, recipe, prepared, model, start)
    model = model.to(device)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    for line in training_notes(prepared, plan, model, device, notes):
        display.note(line)
    world, objective = World(), objective_for(prepared, device)
    step = TrainStep(model, recipe.training, device, objective)
    flops = flop_rate(step, plan)
    objective.flops = flops
    carry = recipe.task_spec.examples == "windows" and carries(recipe)

    def export(weights: dict[str, torch.Tensor]) -> None:
        replace_file(run, WEIGHTS, safetensors_bytes(weights))
        write_model_card(run, recipe, parameter_count(model), trained_count(model))

    trainer = Trainer(
        recipe=recipe,
        run=run,
        plan=plan,
        runner=build_runner(step, recipe.training, carry=carry, static=plan.shape is not None, world=world),
        validator=build_validator(prepared, device),
        export=export,
        display=display,
        flops=flops,
        lr_factors=lr_factors,
        world=world,
    )
    trainer.fit(resume=resume)
    with rewriting(run, (DICTIONARY,), finished=True):
        if recipe.decoding.replace_unknown == "dictionary":
            _write_dictionary(run, recipe, prepared.vocabulary, model, display)


def initialized_model(
    prepared: PreparedData, resumed: Path | None = None
) -> tuple[nn.Module, dict[str, float], Start | None, list[str]]:
    """The model with its initial weights, its learning rate factors, the run the weights come from, and notes."""
    recipe, model = prepared.recipe, build_model(prepared.recipe, prepared.vocabulary)
    for part in model.modules():
        if isinstance(part, FitsLengths):
            store = prepared.train(0)
            part.fit_lengths(store.source_lengths, store.target_lengths)
    notes, start = initialize(model, recipe, prepared.vocabulary, resumed)
    return model, adapt(model, recipe, start), start, notes


def objective_for(prepared: PreparedData, device: torch.device) -> Objective:
    """The objective of a recipe: the loss of its task or of a plug-in, in a wrapper if it asks for one."""
    recipe, loss = prepared.recipe, prepared.recipe.training.loss
    task_loss = task_class(recipe).loss
    if loss.kind != "cross-entropy":
        task_loss = partial(Implementations("loss")[loss.kind], **loss.options(Choice))
    if recipe.training.reward is not None:
        return ExpectedReward(recipe, prepared.vocabulary, device, prepared.target_lengths, task_loss)
    return build_objective(recipe.training, task_loss)


def _start_folder(run: Path, recipe: Recipe, prepared: PreparedData, model: nn.Module, start: Start | None) -> None:
    """Write a run folder without results; config.json comes last and marks it as complete."""
    with rewriting(run):
        save_recipe(recipe, run / "recipe.yaml")
        prepared.vocabulary.save(run)
        if start is not None:
            write_start(run, start)
        write_atomically(run / "environment.json", json.dumps(environment(), indent=2) + "\n")
        write_config(
            run,
            {
                "task": recipe.task_spec.name,
                "source_vocabulary": prepared.vocabulary.source.size,
                "target_vocabulary": prepared.vocabulary.target.size,
                "parameters": parameter_count(model),
                "training_text": _size(prepared),
                **({"plugins": plugins} if (plugins := used_plugins(recipe)) else {}),
                **({"copying": "forms"} if recipe.model.copying is True else {}),
                **({} if prepared.target_lengths is None else prepared.target_lengths.save()),
            },
        )


def _write_dictionary(run: Path, recipe: Recipe, vocabulary: Vocabulary, model: Any, display: Display) -> None:
    """Write dictionary.tsv, learned with the finished weights from the beginning of the training text."""
    load_parameters(model, load_weights(run / "model.safetensors"))
    dictionary = learn_dictionary(
        model.eval(),
        vocabulary,
        islice(training_examples(recipe), _DICTIONARY_PAIRS),
        longest=recipe.data.clean.max_tokens,
        cut=recipe.data.clean.truncate_source,
        device=choose_device(recipe.training.device),
    )
    write_dictionary(run, dictionary)
    display.note(f"{plural(len(dictionary), 'translation')} of source words, to replace unknown words")


# --- n-gram models -------------------------------------------------------------------------------------------------


def _count(prepared: PreparedData, run: Path, model: CountedModel, display: Display, notes: Sequence[str]) -> None:
    """Train an n-gram model, which has no gradients: count the text in one pass, score the validation text."""
    for line in count_notes(prepared, notes):
        display.note(line)
    started = time.monotonic()
    decoder, store = prepared.recipe.model.decoder, prepared.train(0)
    assert isinstance(decoder, NgramConfig)
    with rewriting(run, (WEIGHTS,), finished=True):
        _, documents = store.take(np.arange(len(store)))
        size = prepared.vocabulary.target.size
        options: Any = {"order": decoder.order, "smoothing": decoder.smoothing}
        model.counts = NgramModel.train(documents, vocabulary_size=size, start=START, end=END, **options)
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
        with Journal(run) as journal:
            journal.write(record)
        display.validation(progress, record)
    write_model_card(run, prepared.recipe, 0)
