"""Dry run: load the data, build the model, run one step, write nothing."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from sightline.data.preparation import ExampleCounter, PreparedData, held_out_notes, prepare_data, with_defaults
from sightline.layers.devices import choose_device, precision_note
from sightline.models.ngram import CountedModel
from sightline.models.seq2seq import parameter_count
from sightline.recipe import Recipe
from sightline.training.init_from import vocabulary_of_start
from sightline.training.memory import MemoryEstimate, check_memory, estimate_memory, peak_memory
from sightline.training.optimizers import build_optimizer, trained_count
from sightline.training.schedules import warmup_note
from sightline.training.summary import cut_reference_notes, text_to_count
from sightline.training.train import initialized_model, objective_for, plan_for
from sightline.training.train_step import StepRunner, TrainStep


@dataclass(frozen=True)
class FirstStep:
    """The batches of a training, and the measurements of its first step."""

    batches: int  # an epoch
    planned: float  # steps of the whole training; under a time limit, by the speed of a few steps
    layout: str
    waste: float
    seconds: float
    loss: float
    peak_memory: int  # bytes


@dataclass(frozen=True)
class DryRun:
    """The sizes of a training."""

    counts: dict[str, Any]
    examples: int
    source_vocabulary: int
    target_vocabulary: int
    parameters: int
    parts: dict[str, int]  # of each part, without those that it shares with an earlier part
    shared: dict[str, int]  # those
    trained: dict[str, int]  # of each part, and of all under ""
    memory: MemoryEstimate  # before anything is built
    notes: list[str]  # on data and initial weights
    step: FirstStep | None  # None for an n-gram model


def dry_run(recipe: Recipe, *, progress: ExampleCounter | None = None) -> DryRun:
    """Load the data, estimate the memory, build the model, run one step; a model that cannot fit is refused."""
    device = choose_device(recipe.training.device)
    check_memory(recipe, device)  # before the text is read
    recipe, chosen = with_defaults(recipe)
    with closing(prepare_data(recipe, vocabulary=vocabulary_of_start(recipe), progress=progress)) as prepared:
        result = _run(recipe, prepared, device)
    return replace(result, notes=[*chosen, *result.notes])


def _run(recipe: Recipe, prepared: PreparedData, device: torch.device) -> DryRun:
    memory = check_memory(recipe, device, estimate_memory(recipe, prepared.vocabulary))
    model, lr_factors, _, notes = initialized_model(prepared)
    if isinstance(model, CountedModel):
        step, notes = None, [text_to_count(prepared), *held_out_notes(prepared), *notes]
    else:
        model = model.to(device).train()
        step = _first_step(model, prepared, device, lr_factors)
        note = precision_note(recipe.training.precision, device)
        notes = notes if note is None else [*notes, note]
        notes = [*held_out_notes(prepared), *cut_reference_notes(prepared), *notes]
        if (warning := warmup_note(recipe.training.schedule, step.planned)) is not None:
            notes = [*notes, warning]
    store = prepared.train(0)
    parts = _parts(model)
    return DryRun(
        counts=store.counts,
        examples=len(store),
        source_vocabulary=prepared.vocabulary.source.size,
        target_vocabulary=prepared.vocabulary.target.size,
        parameters=parameter_count(model),
        parts={name: _size(new) for name, (new, _) in parts.items()},
        shared={name: _size(shared) for name, (_, shared) in parts.items()},
        trained={"": trained_count(model)}
        | {name: _size(each for each in new if each.requires_grad) for name, (new, _) in parts.items()},
        memory=memory,
        notes=notes,
        step=step,
    )


def _parts(model: nn.Module) -> dict[str, tuple[list[nn.Parameter], list[nn.Parameter]]]:
    """The parameters of each part of a model, and those that it shares with an earlier part."""
    parts: dict[str, tuple[list[nn.Parameter], list[nn.Parameter]]] = {}
    counted: set[int] = set()
    for name, part in (*model.named_children(), ("other", model)):
        every = list(part.parameters())
        new = [each for each in every if id(each) not in counted]
        parts[name] = new, [each for each in every if id(each) in counted]
        counted.update(map(id, every))
    if not parts["other"][0]:  # few models have parameters outside of their parts
        del parts["other"]
    return parts


def _size(parameters: Iterable[nn.Parameter]) -> int:
    return sum(each.numel() for each in parameters)


def _first_step(
    model: nn.Module, prepared: PreparedData, device: torch.device, lr_factors: dict[str, float]
) -> FirstStep:
    """One step with the largest of the first batches."""
    recipe, plan = prepared.recipe, plan_for(prepared, device)
    batches = plan.epoch(0)
    if not batches:
        raise ValueError(f"there is nothing to train on: every example was dropped ({prepared.train(0).counts})")
    some = [plan.batch(0, examples) for examples in batches[: min(len(batches), 64)]]
    batch = max(some, key=lambda batch: batch.tokens)
    batch = batch.to(device) if device.type != "cpu" else batch
    optimizer = build_optimizer(model, recipe.training, lr_factors)
    runner = StepRunner(TrainStep(model, recipe.training, device, objective_for(prepared, device)))
    started = time.monotonic()
    loss = runner([batch])
    optimizer.step()
    value = float(loss.nll) / batch.tokens
    seconds = again = time.monotonic() - started
    if recipe.training.limits.minutes is not None:  # the first step is slower than the others
        started = time.monotonic()
        runner([batch])
        optimizer.step()
        again = time.monotonic() - started
    planned = _planned_steps(recipe, len(batches), again)
    return FirstStep(len(batches), planned, plan.layout, plan.waste(), seconds, value, peak_memory(device))


def _planned_steps(recipe: Recipe, batches: int, seconds: float) -> float:
    """Steps until the first limit, with `seconds` for each."""
    limits, accumulate = recipe.training.limits, recipe.training.batches.accumulate
    planned = [
        math.inf if limits.steps is None else limits.steps,
        math.inf if limits.epochs is None else limits.epochs * -(-batches // accumulate),
        math.inf if limits.minutes is None else 60 * limits.minutes / max(1e-9, seconds * accumulate),
    ]
    return min(planned)
