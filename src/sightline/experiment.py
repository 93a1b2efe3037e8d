"""From a recipe to a run folder: prepare the data, build the model, train it."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as safetensors_bytes
from torch import Tensor, nn

from sightline.allocation import keep_freed_memory
from sightline.counting import count_text
from sightline.files import write_atomically
from sightline.layers.embedding import Embedding
from sightline.model_card import write_model_card
from sightline.models.counted import CountedModel
from sightline.models.labellers import Classifier, Tagger
from sightline.models.language_model import DecoderOnly, LanguageModel
from sightline.models.seq2seq import Seq2Seq, parameter_count
from sightline.preparation import LABELS, Prepared, Progress, data_folder, prepare_data, with_folder
from sightline.recipe import Recipe
from sightline.recipe_changes import differences
from sightline.recipe_files import load_recipe, save_recipe
from sightline.recipe_model import Ngram
from sightline.run_folder import RunError, environment, locked, write_config
from sightline.text.tokenizer import Vocabulary
from sightline.text.word_vectors import initial_embeddings
from sightline.training.compiled import GraphedGradients, compiled_loss
from sightline.training.cost import peak_memory, step_cost
from sightline.training.display import Display, PlainDisplay
from sightline.training.job import Fit, Plan
from sightline.training.loop import fit
from sightline.training.optimizers import build_optimizer
from sightline.training.plan import EpochPlan, choose_layout
from sightline.training.step import CarriedGradients, Gradients, PlainGradients, autocast, batch_loss, step_seed
from sightline.training.windows import WindowPlan
from sightline.validation import build_validator


def choose_device(name: str) -> torch.device:
    """The device of that name; `auto` is CUDA where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"there is no device {name!r}; use auto, cpu, cuda or cuda:N") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"training.device is {name}, but PyTorch sees no CUDA device; use cpu or auto")
    return device


def build_model(recipe: Recipe, vocabulary: Vocabulary) -> nn.Module:
    """The model a recipe describes, with its weights drawn from the recipe's seed."""
    torch.manual_seed(step_seed(recipe.seed, 0))
    model, source, target = recipe.model, vocabulary.source.size, vocabulary.target.size
    if recipe.task in ("tag", "classify"):
        kind = Tagger if recipe.task == "tag" else Classifier
        return kind(model, vocabulary.source.pieces(range(source)), target)
    if recipe.task == "language-model":
        return CountedModel() if isinstance(model.decoder, Ngram) else LanguageModel(model, target)
    return DecoderOnly(model, target) if model.encoder is None else Seq2Seq(model, source, target)


def start_from_word_vectors(model: nn.Module, recipe: Recipe, vocabulary: Vocabulary) -> str | None:
    """Put the word vectors a recipe names where the source is read, and say how many words have one."""
    section = recipe.model.word_vectors
    if section is None:
        return None
    embedding = model.embedding if isinstance(model, LanguageModel) else model.source_embedding
    assert isinstance(embedding, Embedding)
    path = (data_folder(recipe) or Path()) / Path(section.file).expanduser()
    table, coverage = initial_embeddings(path, vocabulary.source, recipe.model.width, embedding.weight.detach())
    with torch.no_grad():
        embedding.weight.copy_(table)
    embedding.weight.requires_grad_(not section.frozen)
    return coverage.describe() + (", kept as they are" if section.frozen else "")


def plan_for(prepared: Prepared, device: torch.device) -> Plan:
    """The batches of a recipe's training."""
    recipe = prepared.recipe
    kind = WindowPlan if recipe.task == "language-model" else EpochPlan
    return kind(recipe, prepared.vocabulary, choose_layout(recipe, device), prepared.train)


@dataclass(frozen=True)
class DryRun:
    """What a training would be, measured without writing anything."""

    counts: dict[str, Any]
    examples: int
    batches: int
    layout: str
    waste: float
    source_vocabulary: int
    target_vocabulary: int
    parameters: int
    parts: dict[str, int]
    step_seconds: float
    loss: float
    peak_memory: int  # bytes


def dry_run(recipe: Recipe, *, progress: Progress | None = None) -> DryRun:
    """Load the data, build the model, run one step."""
    device = choose_device(recipe.training.device)
    prepared = prepare_data(recipe, progress=progress)
    model = build_model(recipe, prepared.vocabulary)
    if isinstance(model, CountedModel):
        raise ValueError("an n-gram model is counted in one go, there is no step to try; train it without --dry-run")
    start_from_word_vectors(model, recipe, prepared.vocabulary)
    model = model.to(device).train()
    plan = plan_for(prepared, device)
    batches = plan.epoch(0)
    if not batches:
        raise ValueError(f"there is nothing to train on: every example was dropped ({prepared.train(0).counts})")
    some = [plan.batch(0, examples) for examples in batches[: min(len(batches), 64)]]
    batch = max(some, key=lambda batch: batch.tokens)
    batch = batch.to(device) if device.type == "cuda" else batch
    optimizer = build_optimizer(model, recipe.training, device)
    started = time.monotonic()
    with autocast(recipe.training.precision, device):
        loss = batch_loss(model, batch, recipe.training.label_smoothing)
    (loss.total / batch.tokens).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    value = float(loss.nll) / batch.tokens
    store = prepared.train(0)
    return DryRun(
        counts=store.counts,
        examples=len(store),
        batches=len(batches),
        layout=plan.layout,
        waste=plan.waste(),
        source_vocabulary=prepared.vocabulary.source.size,
        target_vocabulary=prepared.vocabulary.target.size,
        parameters=parameter_count(model),
        parts={name: parameter_count(part) for name, part in model.named_children()},
        step_seconds=time.monotonic() - started,
        loss=value,
        peak_memory=peak_memory(device),
    )


def train(
    recipe: Recipe | str | Path,
    overrides: Sequence[str] = (),
    *,
    out: str | Path | None = None,
    resume: bool = False,
    display: Display | None = None,
    progress: Progress | None = None,
) -> Path:
    """Train what a recipe describes and return its run folder.

    `recipe` is a Recipe, a path, or the name of a shipped recipe; `overrides` are `section.key=value`. With `resume`,
    a run that was interrupted goes on where its newest whole checkpoint stands, and ends as if nothing had happened.
    """
    loaded, name = open_recipe(recipe, overrides)
    run = Path(out) if out is not None else Path(name)
    with locked(run):
        _check_folder(run, loaded, resume)
        _train_locked(loaded, run, resume, display or PlainDisplay(), progress)
    return run


def open_recipe(recipe: Recipe | str | Path, overrides: Sequence[str] = ()) -> tuple[Recipe, str]:
    """The recipe, its data folder found, and the run folder it is trained into when none is named.

    A run folder may stand for its own recipe, and is then trained further in place.
    """
    if isinstance(recipe, Recipe):
        return with_folder(recipe, None), "runs/run"
    path = Path(recipe)
    if (path / "recipe.yaml").is_file():
        return with_folder(load_recipe(path / "recipe.yaml", overrides), None), str(path)
    loaded = load_recipe(recipe, overrides)
    return with_folder(loaded, path if path.is_file() else None), f"runs/{path.stem}"


def _check_folder(run: Path, recipe: Recipe, resume: bool) -> None:
    """Whether this recipe may be trained into this folder."""
    saved = run / "recipe.yaml"
    if not resume:
        if saved.exists():
            raise RunError(f"{run} holds a training already; go on with --resume, or give another folder with --out")
        return
    if not saved.exists():
        return
    differing = differences(load_recipe(saved), recipe)
    if differing:
        raise RunError(
            f"{run} was trained with another recipe, so it cannot be resumed with this one: " + "; ".join(differing)
        )


def _train_locked(recipe: Recipe, run: Path, resume: bool, display: Display, progress: Progress | None) -> None:
    if recipe.training.threads is not None:
        torch.set_num_threads(recipe.training.threads)
    device = choose_device(recipe.training.device)
    if device.type == "cpu":
        keep_freed_memory()
    labels = LABELS[recipe.task]
    vocabulary = Vocabulary.load(run, labels) if resume and (run / "config.json").exists() else None
    prepared = prepare_data(recipe, vocabulary=vocabulary, progress=progress)
    model = build_model(recipe, prepared.vocabulary)
    _begin_folder(run, recipe, prepared, model)
    if isinstance(model, CountedModel):
        count_text(run, model, prepared, display)
        write_model_card(run, recipe, 0)
        return
    vectors = start_from_word_vectors(model, recipe, prepared.vocabulary)
    model = model.to(device)
    plan = plan_for(prepared, device)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    for line in describe(prepared, plan, model, device):
        display.note(line)
    if vectors is not None:
        display.note(vectors)
    job = Fit(
        recipe=recipe,
        run=run,
        model=model,
        plan=plan,
        device=device,
        validate=build_validator(prepared, device),
        export=lambda weights: _export(run, recipe, model, weights),
        display=display,
        flops=step_cost(model, plan, device),
        gradients=_gradients(model, plan, device),
    )
    fit(job, resume=resume)


def _gradients(model: nn.Module, plan: Plan, device: torch.device) -> Gradients:
    """How a step finds its gradients: compiled where the batches have a static shape, unless the recipe says no."""
    training = plan.recipe.training
    if isinstance(plan, WindowPlan) and plan.carry:
        return CarriedGradients(model, training, device)
    if plan.shape is None or training.compile is False:
        return PlainGradients(model, training, device)
    if training.batches.accumulate > 1 or device.type != "cuda":
        return PlainGradients(model, training, device, compiled_loss(model, training.label_smoothing))
    return GraphedGradients(model, training.label_smoothing, training.precision, device)


def _export(run: Path, recipe: Recipe, model: nn.Module, weights: dict[str, Tensor]) -> None:
    """The finished weights and the model card."""
    write_atomically(run / "model.safetensors", safetensors_bytes(weights))
    write_model_card(run, recipe, parameter_count(model))


def describe(prepared: Prepared, plan: Plan, model: nn.Module, device: torch.device) -> list[str]:
    """A few lines on what will be trained on what."""
    store = prepared.train(0)
    dropped = {reason: count for reason, count in store.counts.items() if reason not in ("read", "kept") and count}
    return [
        f"{len(store):,} training and {len(prepared.validation):,} validation examples"
        + (f"; dropped {', '.join(f'{count:,} {reason}' for reason, count in dropped.items())}" if dropped else ""),
        f"vocabulary {prepared.vocabulary.source.size:,} and {prepared.vocabulary.target.size:,}"
        + (" (shared)" if prepared.vocabulary.shared else ""),
        f"{parameter_count(model):,} parameters on {device}; {plan.layout} batches, {plan.waste():.1%} padding",
    ]


def _begin_folder(run: Path, recipe: Recipe, prepared: Prepared, model: nn.Module) -> None:
    """Everything of a run folder but the results; config.json last, as the sign that the rest is there."""
    save_recipe(recipe, run / "recipe.yaml")
    prepared.vocabulary.save(run)
    write_atomically(run / "environment.json", json.dumps(environment(), indent=2) + "\n")
    write_config(
        run,
        {
            "task": recipe.task,
            "source_vocabulary": prepared.vocabulary.source.size,
            "target_vocabulary": prepared.vocabulary.target.size,
            "parameters": parameter_count(model),
        },
    )
