"""From a recipe to a run folder: prepare the data, build the model, train it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save as safetensors_bytes
from torch import Tensor, nn

from sightline.data.epoch_plan import ExamplePlan, choose_layout
from sightline.data.locate import load_run_recipe
from sightline.data.noise import NoisePlan
from sightline.data.preparation import ExampleCounter, PreparedData, held_out_notes, prepare_data, with_defaults
from sightline.data.sources import training_examples
from sightline.data.windows import WindowPlan
from sightline.decoding.unknown_words import FILE as DICTIONARY
from sightline.decoding.unknown_words import learn_dictionary, write_dictionary
from sightline.files import write_atomically
from sightline.layers.devices import (
    choose_device,
    deterministic_algorithms,
    keep_freed_memory,
    precision_note,
    resolve_precision,
)
from sightline.models.build import build_model
from sightline.models.ngram import CountedModel, NgramModel
from sightline.models.protocol import FitsLengths
from sightline.models.seq2seq import parameter_count
from sightline.models.weights import load_parameters, load_weights
from sightline.recipe import Recipe
from sightline.recipe.bodies import NgramConfig
from sightline.recipe.loading import save_recipe
from sightline.recipe.recipe import differences, with_unset_from
from sightline.run_folder import (
    WEIGHTS,
    RunError,
    check_links,
    environment,
    locked,
    read_config,
    replace_file,
    rewriting,
    write_config,
)
from sightline.terminal import plural
from sightline.text.tokenizer import END, START
from sightline.text.vocabulary import Vocabulary
from sightline.training.checkpoints import Progress
from sightline.training.cost import StepCost, step_cost
from sightline.training.init_from import Start, adapt, first_weights, vocabulary_of_start, write_start
from sightline.training.loggers import Display, Journal, PlainDisplay
from sightline.training.model_card import write_model_card
from sightline.training.optimizers import trained_count
from sightline.training.resolve import open_recipe
from sightline.training.reward import RewardGradients
from sightline.training.summary import cut_reference_notes, describe, describe_data, objective_notes, text_to_count
from sightline.training.threads import CpuTimes, threads_by_load
from sightline.training.train_step import CarriedGradients, Gradients, GraphedGradients, PlainGradients, compiled_loss
from sightline.training.trainer import Fit, Plan, fit
from sightline.training.validation import build_validator

_DICTIONARY_PAIRS = 500_000  # of the training text that a dictionary for unknown words is learned from


def fit_to_lengths(model: nn.Module, prepared: PreparedData) -> None:
    """Tell the parts of a model that ask for it how long the sources and targets of the training are."""
    for part in model.modules():
        if isinstance(part, FitsLengths):
            store = prepared.train(0)
            part.fit_lengths(store.source_lengths, store.target_lengths)


def plan_for(prepared: PreparedData, device: torch.device) -> Plan:
    """The batches of a recipe's training."""
    recipe = prepared.recipe
    kind: Any = WindowPlan if recipe.task_spec.continues_text else ExamplePlan
    if recipe.data.noise is not None:
        kind = NoisePlan
    plan: Plan = kind(recipe, prepared.vocabulary, choose_layout(recipe, device), prepared.train)
    return plan


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
    a run that was interrupted goes on where its newest whole checkpoint stands, and ends as if nothing had happened.
    """
    started = CpuTimes.now()
    loaded, name = open_recipe(recipe, overrides)
    run = Path(out) if out is not None else Path(name)
    display = display or PlainDisplay()
    with locked(run):
        check_links(run)
        _check_folder(run, resume)
        loaded, notes = complete_recipe(loaded, run, resume=resume)
        for line in notes:
            display.note(line)
        _train_locked(loaded, run, resume, display, progress, started)
    return run


def complete_recipe(recipe: Recipe, run: Path, *, resume: bool) -> tuple[Recipe, list[str]]:
    """The recipe with every key set: by the run that is resumed, else by the training text; and notes on the latter."""
    if resume and (run / "recipe.yaml").exists():
        return _resumable(run, recipe), []
    return with_defaults(recipe)


def _check_folder(run: Path, resume: bool) -> None:
    """Whether a training may write to this folder."""
    if not resume and (run / "recipe.yaml").exists():
        raise RunError(f"{run} holds a training already; go on with --resume, or give another folder with --out")


def _resumable(run: Path, recipe: Recipe) -> Recipe:
    """The recipe of a training that is to be resumed: keys that it does not set are as the run has them."""
    config = read_config(run) if (run / "config.json").is_file() else {}
    if (origin := config.get("merged_from") or config.get("averaged_from")) is not None:
        raise RunError(
            f"{run} was made from {origin} and has nothing to go on with; begin anew with model.init_from={run}"
        )
    saved = load_run_recipe(run)
    recipe = with_unset_from(recipe, saved)
    if differing := differences(saved, recipe):
        raise RunError(
            f"{run} was trained with another recipe, so it cannot be resumed with this one: " + "; ".join(differing)
        )
    return recipe


def _train_locked(
    recipe: Recipe,
    run: Path,
    resume: bool,
    display: Display,
    progress: ExampleCounter | None,
    started: CpuTimes | None,
) -> None:
    if recipe.training.threads is not None:
        torch.set_num_threads(recipe.training.threads)
    device = choose_device(recipe.training.device)
    recipe = _with_precision(recipe, run, device)
    if device.type == "cpu":
        keep_freed_memory()
    labels = recipe.task_spec.labels
    begun = resume and (run / "config.json").exists()
    vocabulary = Vocabulary.load(run, labels) if begun else vocabulary_of_start(recipe)
    with (
        closing(prepare_data(recipe, vocabulary=vocabulary, progress=progress)) as prepared,
        deterministic_algorithms(recipe.training.deterministic),
    ):
        if begun:
            _check_text(run, prepared)
        elif device.type == "cpu":
            prepared = _with_threads(prepared, started, display)
        _train_prepared(prepared, run, resume, display, device)


def _with_threads(prepared: PreparedData, started: CpuTimes | None, display: Display) -> PreparedData:
    """Leave cores to other programs, and record it in the recipe, so that a resumed training does the same."""
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


def _with_precision(recipe: Recipe, run: Path, device: torch.device) -> Recipe:
    """`training.precision: auto` as what it means here; a run that is resumed keeps the precision it began with."""
    if recipe.training.precision != "auto":
        return recipe
    began = load_run_recipe(run).training.precision if (run / "recipe.yaml").is_file() else "auto"
    precision = resolve_precision(began, device) if began == "auto" else began
    return recipe.model_copy(update={"training": recipe.training.model_copy(update={"precision": precision})})


def _train_prepared(prepared: PreparedData, run: Path, resume: bool, display: Display, device: torch.device) -> None:
    """Begin the folder, or go on in it, with text that is at hand."""
    recipe = prepared.recipe
    prepared.train(0)  # text and batches that cannot be used are known before the folder is begun: it stays free
    model = build_model(recipe, prepared.vocabulary)
    fit_to_lengths(model, prepared)  # weights that are loaded bring their own
    notes, start = first_weights(model, recipe, prepared.vocabulary, run if resume else None)
    rates = adapt(model, recipe, start)
    if isinstance(model, CountedModel):
        _begin_folder(run, recipe, prepared, model, start)
        for line in (*describe_data(prepared), text_to_count(prepared), *held_out_notes(prepared), *notes):
            display.note(line)
        with rewriting(run, (WEIGHTS,), finished=True):
            count_text(run, model, prepared, display)
        write_model_card(run, recipe, 0)
        return
    plan = plan_for(prepared, device)
    plan.epoch(0)
    _begin_folder(run, recipe, prepared, model, start)
    model = model.to(device)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    told = (
        *describe(prepared, plan, model, device),
        *held_out_notes(prepared),
        *cut_reference_notes(prepared),
        *notes,
        *objective_notes(plan),
    )
    slow = precision_note(recipe.training.precision, device)
    for line in (*told, *([] if slow is None else [slow])):
        display.note(line)
    flops = step_cost(model, plan, device)
    job = Fit(
        recipe=recipe,
        run=run,
        model=model,
        plan=plan,
        device=device,
        validate=build_validator(prepared, device),
        export=lambda weights: _export(run, recipe, model, weights),
        display=display,
        flops=flops,
        gradients=_gradients(model, plan, device, prepared, flops),
        rates=rates,
    )
    fit(job, resume=resume)
    with rewriting(run, (DICTIONARY,), finished=True):
        if recipe.decoding.replace_unknown == "dictionary":
            _make_dictionary(run, recipe, prepared.vocabulary, model, display)


def _make_dictionary(run: Path, recipe: Recipe, vocabulary: Vocabulary, model: Any, display: Display) -> None:
    """dictionary.tsv, by the finished weights, from the first of the training text: more adds little."""
    load_parameters(model, load_weights(run / "model.safetensors"))
    found = learn_dictionary(
        model.eval(),
        vocabulary,
        islice(training_examples(recipe), _DICTIONARY_PAIRS),
        longest=recipe.data.clean.max_tokens,
        cut=recipe.data.clean.truncate_source,
        device=choose_device(recipe.training.device),
    )
    write_dictionary(run, found)
    display.note(f"{plural(len(found), 'translation')} of source words, to put in the place of unknown words")


def _gradients(
    model: nn.Module, plan: Plan, device: torch.device, prepared: PreparedData, flops: StepCost
) -> Gradients:
    """How a step finds its gradients: compiled where the batches have a static shape, unless the recipe says no.

    Drawn outputs (reward) are never compiled; a recipe that asks for both is refused.
    """
    training = plan.recipe.training
    if training.reward is not None:
        return RewardGradients(model, prepared.recipe, prepared.vocabulary, device, flops, prepared.target_lengths)
    if isinstance(plan, WindowPlan) and plan.carry:
        return CarriedGradients(model, training, device)
    if plan.shape is None or training.compile is False:
        return PlainGradients(model, training, device)
    if training.batches.accumulate > 1 or device.type != "cuda":
        return PlainGradients(model, training, device, compiled_loss(model, training))
    return GraphedGradients(model, training, device)


def _export(run: Path, recipe: Recipe, model: nn.Module, weights: dict[str, Tensor]) -> None:
    """The finished weights and the model card."""
    replace_file(run, WEIGHTS, safetensors_bytes(weights))
    write_model_card(run, recipe, parameter_count(model), trained_count(model))


def _amount(prepared: PreparedData) -> dict[str, int]:
    """How much there is to learn from."""
    store = prepared.train(0)
    return {"examples": len(store), "tokens": int(store.source_lengths.sum() + store.target_lengths.sum())}


def _check_text(run: Path, prepared: PreparedData) -> None:
    """Refuse to go on with another text; folders that were begun before this was written down go on with any."""
    then, now = read_config(run).get("training_text"), _amount(prepared)
    if then not in (None, now):
        told = (f"{plural(each['examples'], 'example')} with {plural(each['tokens'], 'token')}" for each in (then, now))
        raise RunError(
            f"{run} was trained on another text, so it cannot be resumed with this one: {' then, '.join(told)} now; "
            f"check data.folder ({prepared.recipe.data.folder}), or begin anew with model.init_from={run}"
        )


def _begin_folder(run: Path, recipe: Recipe, prepared: PreparedData, model: nn.Module, start: Start | None) -> None:
    """Everything of a run folder but the results; config.json last, as the sign that the rest is there."""
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
                "training_text": _amount(prepared),
                **({"copying": "forms"} if recipe.model.copying is True else {}),
                **({} if prepared.target_lengths is None else prepared.target_lengths.save()),
            },
        )


def count_text(run: Path, model: CountedModel, prepared: PreparedData, display: Display) -> None:
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
