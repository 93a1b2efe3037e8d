"""Notes before a training: data, model, objective, and limits that would truncate outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import nn

from sightline.data.cleaning import REASONS, TRUNCATED
from sightline.data.preparation import PreparedData, held_out_notes, load_test_store
from sightline.data.store import Store
from sightline.data.text_files import DataError
from sightline.decoding.request import source_limits
from sightline.layers.devices import precision_note, resolve_precision
from sightline.models.seq2seq import parameter_count
from sightline.models.window.config import NgramConfig
from sightline.terminal import plural
from sightline.training.optimizers import trained_count
from sightline.training.trainer import BatchPlan


def training_notes(
    prepared: PreparedData, plan: BatchPlan, model: nn.Module, device: torch.device, notes: Sequence[str]
) -> list[str]:
    """All notes; `notes` are those on the initial weights."""
    slow = precision_note(prepared.recipe.training.precision, device)
    return [
        *describe(prepared, plan, model, device),
        *held_out_notes(prepared),
        *cut_reference_notes(prepared),
        *notes,
        *_objective_notes(plan),
        *([] if slow is None else [slow]),
    ]


def count_notes(prepared: PreparedData, notes: Sequence[str]) -> list[str]:
    """The same for an n-gram model."""
    return [*describe_data(prepared), text_to_count(prepared), *held_out_notes(prepared), *notes]


def _objective_notes(plan: BatchPlan) -> list[str]:
    """Notes on objectives beyond the likelihood, and on steps that cannot be compiled."""
    training = plan.recipe.training
    rdrop, reward, guide = training.rdrop, training.reward, training.guided_alignment
    if reward is not None:
        parts = f"{reward.samples} outputs drawn for each source, plus {reward.nll_weight:g} of the likelihood"
        return [f"expected {reward.metric} of {parts}; steps are not compiled"]
    if guide is not None:
        return [f"one head is guided by {guide.file}, with weight {guide.weight:g}; steps are not compiled"]
    lines = [] if rdrop is None else [f"R-Drop with alpha {rdrop:g}: every batch goes twice through the model"]
    if training.compile and plan.shape is None:
        why = f"a step is compiled where all batches have one static shape, and these {plan.layout} ones have none"
        lines.append(f"training.compile: true has no effect: {why}")
    return lines


def describe(prepared: PreparedData, plan: BatchPlan, model: nn.Module, device: torch.device) -> list[str]:
    """Notes on data, model, device and batches."""
    parameters, trained = parameter_count(model), trained_count(model)
    frozen = "" if trained == parameters else f" ({trained:,} trained, the others frozen)"
    return [
        *describe_data(prepared),
        f"{parameters:,} parameters{frozen} on {device} in "
        f"{resolve_precision(plan.recipe.training.precision, device)}; {plan.layout} batches, "
        f"{plan.waste():.1%} padding",
    ]


def describe_data(prepared: PreparedData) -> list[str]:
    """The number of examples and the size of the vocabulary."""
    store = prepared.train(0)
    dropped = {reason: count for reason, count in store.counts.items() if reason in REASONS and count}
    cut = store.counts[TRUNCATED]
    return [
        f"{len(store):,} training and {plural(len(prepared.validation), 'validation example')}"
        + (f"; dropped {', '.join(f'{count:,} {reason}' for reason, count in dropped.items())}" if dropped else "")
        + (f"; {plural(cut, 'source')} cut to {prepared.recipe.data.clean.truncate_source:,} tokens" if cut else ""),
        f"vocabulary {prepared.vocabulary.source.size:,} and {prepared.vocabulary.target.size:,}"
        + (" (shared)" if prepared.vocabulary.shared else ""),
    ]


def text_to_count(prepared: PreparedData) -> str:
    """A note on the text that an n-gram model counts."""
    decoder, store = prepared.recipe.model.decoder, prepared.train(0)
    assert isinstance(decoder, NgramConfig)
    tokens = int(store.target_lengths.sum()) + len(store)
    grams = "single tokens" if decoder.order == 1 else f"n-grams of up to {decoder.order} tokens"
    return f"{plural(tokens, 'token')} of text, end marks included, counted once in {grams}"


def cut_references(prepared: PreparedData, store: Store) -> int:
    """The number of targets longer than the recipe allows outputs for their sources to be."""
    recipe = prepared.recipe
    limits = np.array(source_limits((store.source_lengths + 1).tolist(), recipe.decoding, prepared.target_lengths))
    longest = recipe.model.decoder.max_positions if recipe.model.encoder and recipe.model.decoder else None
    limits = limits if longest is None else np.minimum(limits, longest)
    return int((store.target_lengths + 1 > limits).sum())


def cut_reference_notes(prepared: PreparedData) -> list[str]:
    """A note on references that are longer than outputs may be."""
    recipe = prepared.recipe
    if not recipe.task_spec.maps_text or recipe.of_text:
        return []
    parts = []
    for name, store in _stores(prepared):
        if cut := cut_references(prepared, store):
            parts.append(f"{cut:,} of {plural(len(store), name)}")
    if not parts:
        return []
    keys = {key: getattr(recipe.decoding, key) for key in ("max_length", "max_ratio")}
    set_keys = [f"decoding.{key} ({value:g})" for key, value in keys.items() if value is not None]
    what = " and ".join(set_keys) or "the limit of outputs, which follows from the training text,"
    remedy = "raise it, or leave decoding.max_length and max_ratio out" if set_keys else "set decoding.max_length"
    return [f"{what} would cut {', '.join(parts)}; {remedy}"]


def _stores(prepared: PreparedData) -> Iterator[tuple[str, Store]]:
    """Every readable text with targets."""
    yield "training target", prepared.train(0)
    yield "validation reference", prepared.validation
    for name in prepared.recipe.data.tests:
        try:
            yield f"{name} reference", load_test_store(prepared, name)
        except DataError:
            continue
