"""From a recipe to a run folder: prepare the data, build the model, train it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save as safetensors_bytes
from torch import Tensor, nn

from sightline.data.sources import Example, read, resolve_folder
from sightline.data.store import Store, prepare
from sightline.decoding.generate import generate
from sightline.evaluation.metrics import METRICS, score
from sightline.files import write_atomically
from sightline.layers.layout import Packed
from sightline.model_card import write_model_card
from sightline.models.seq2seq import Seq2Seq, parameter_count
from sightline.recipe import AnySource, BpeTokenizer, Recipe, TransformerBody
from sightline.recipe_files import load_recipe, save_recipe
from sightline.run_folder import RunError, environment, locked, write_config
from sightline.text.tokenizer import Vocabulary
from sightline.training.batches import TrainingBatch, padded_batch
from sightline.training.display import Display, PlainDisplay
from sightline.training.loop import Fit, Validation, autocast, batch_loss, fit, step_seed
from sightline.training.objectives import Loss
from sightline.training.optimizers import build_optimizer
from sightline.training.plan import EpochPlan, choose_layout


def choose_device(name: str) -> torch.device:
    """The device of that name; `auto` is CUDA where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"training.device is {name}, but PyTorch sees no CUDA device; use cpu or auto")
    return device


@dataclass(frozen=True)
class Prepared:
    """Everything read and tokenized."""

    recipe: Recipe
    vocabulary: Vocabulary
    train: Callable[[int], Store]  # epoch → store
    validation: Store
    references: list[Example]  # the validation texts


Progress = Callable[[str, int], None]  # what is being done, examples so far


def with_folder(recipe: Recipe, path: Path | None) -> Recipe:
    """The recipe with data.folder made absolute, so that the run folder can be used from anywhere."""
    folder = resolve_folder(recipe.data.folder, path)
    absolute = str(folder.resolve()) if folder is not None else None
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"folder": absolute})})


def data_folder(recipe: Recipe) -> Path | None:
    return None if recipe.data.folder is None else Path(recipe.data.folder)


def _examples(recipe: Recipe, sources: Sequence[AnySource], limit: int | None) -> Iterator[Example]:
    count = 0
    for source in sources:
        for example in read(source, data_folder(recipe), swap=recipe.data.swap):
            if limit is not None and count >= limit:
                return
            count += 1
            yield example


def prepare_data(recipe: Recipe, *, vocabulary: Vocabulary | None = None, progress: Progress | None = None) -> Prepared:
    """Train the tokenizer (unless one is given) and tokenize the corpora, or find them tokenized already."""
    data, tokenizer = recipe.data, recipe.tokenizer

    def tell(what: str) -> Callable[[int], None] | None:
        return None if progress is None else lambda count: progress(what, count)

    def watched() -> Iterator[Example]:
        show = tell("reading for the tokenizer")
        for number, example in enumerate(_examples(recipe, data.train, data.limit), 1):
            if show is not None and number % 10_000 == 0:
                show(number)
            yield example

    if vocabulary is None:
        vocabulary = Vocabulary.train(tokenizer, watched)
    dropout = tokenizer.dropout if isinstance(tokenizer, BpeTokenizer) else 0.0
    variants = tokenizer.variants if isinstance(tokenizer, BpeTokenizer) and dropout else 1

    def cut(variant: int) -> Store:
        return prepare(
            data,
            data.train,
            vocabulary,
            folder=data_folder(recipe),
            dropout=dropout,
            variant=variant,
            seed=recipe.seed,
            limit=data.limit,
            progress=tell("tokenizing") if variant == 0 else None,
        )

    validation = prepare(
        data,
        [data.validation],
        vocabulary,
        folder=data_folder(recipe),
        limit=data.validation_limit,
        clean=False,
    )
    references = list(_examples(recipe, [data.validation], data.validation_limit))
    _check_validation_fits(recipe, validation)
    return Prepared(recipe, vocabulary, Variants(cut, variants), validation, references)


class Variants:
    """The differently cut copies of the training text, in turns: while one epoch is learned from, the next is cut."""

    def __init__(self, cut: Callable[[int], Store], count: int) -> None:
        self.cut, self.count = cut, count
        self.stores: dict[int, Store] = {}
        self.coming: Future[Store] | None = None

    def __call__(self, epoch: int) -> Store:
        """The store of an epoch."""
        variant = epoch % self.count
        if variant not in self.stores:
            if self.coming is not None:
                self.coming.result()
            self.stores[variant] = self.cut(variant)  # found in the cache, if it was cut ahead
            following = (epoch + 1) % self.count
            if following not in self.stores:
                pool = ThreadPoolExecutor(max_workers=1)
                self.coming = pool.submit(self.cut, following)
                pool.shutdown(wait=False)
        return self.stores[variant]


def _check_validation_fits(recipe: Recipe, store: Store) -> None:
    """Learned positions end somewhere; a validation sentence past that end is better known before training."""
    model = recipe.model
    for side, body, lengths in (
        ("source", model.encoder, store.source_lengths),
        ("target", model.decoder, store.target_lengths),
    ):
        if isinstance(body, TransformerBody) and body.positions.kind == "learned" and len(lengths):
            worst = int(lengths.argmax())
            if lengths[worst] + 1 > body.positions.longest:
                raise ValueError(
                    f"data.validation, example {worst + 1}: its {side} has {lengths[worst]} tokens and an end "
                    f"mark, more than positions.longest ({body.positions.longest}); raise it, or take the example out"
                )


def build_model(recipe: Recipe, vocabulary: Vocabulary) -> Seq2Seq:
    """The model a recipe describes, with its weights drawn from the recipe's seed."""
    torch.manual_seed(step_seed(recipe.seed, 0))
    return Seq2Seq(recipe.model, vocabulary.source.size, vocabulary.target.size)


class Validator:
    """Loss on the validation set, its metric by real decoding if early stopping wants it, and sample outputs."""

    def __init__(self, prepared: Prepared, device: torch.device) -> None:
        self.prepared, self.recipe, self.device = prepared, prepared.recipe, device
        store = prepared.validation
        self.sources, self.targets = store.take(np.arange(len(store)))

    def __call__(self, model: nn.Module) -> Validation:
        started = time.monotonic()
        with torch.inference_mode(), autocast(self.recipe.training.precision, self.device):
            loss = self._loss(model)
            record: dict[str, Any] = {"loss": loss, "perplexity": float(np.exp(min(loss, 700.0)))}
            value, record["samples"] = loss, self._samples(model)
            if self.recipe.training.stopping.on == "metric":
                name = self.recipe.evaluation.metrics[0]
                found = self._metric(model, name)
                record[name] = found
                value = -found if METRICS[name].better == "higher" else found
        record["validation_seconds"] = round(time.monotonic() - started, 3)
        return Validation(value, record)

    def _loss(self, model: nn.Module) -> float:
        total, tokens = 0.0, 0
        lengths = self.prepared.validation.target_lengths
        for indices in np.array_split(np.argsort(lengths, kind="stable"), max(1, len(lengths) // 64)):
            batch = padded_batch(
                [self.sources[index] for index in indices], [self.targets[index] for index in indices], indices
            )
            batch = batch.to(self.device) if self.device.type == "cuda" else batch
            total += float(batch_loss(model, batch, 0.0).nll)
            tokens += batch.tokens
        return total / tokens

    def _decode(self, model: nn.Module, sources: Sequence[np.ndarray], beam: int) -> list[str]:
        options = self.recipe.decoding.model_copy(update={"beam": beam, "nbest": 1, "sample": None})
        found = generate(model, [source.tolist() for source in sources], options, device=self.device)  # type: ignore[arg-type]
        return self.prepared.vocabulary.target.decode_many([hypotheses[0].tokens for hypotheses in found])

    def _samples(self, model: nn.Module) -> list[dict[str, str]]:
        count = min(self.recipe.training.samples, len(self.sources))
        if not count:
            return []
        outputs = self._decode(model, self.sources[:count], 1)
        return [
            {"source": example.source, "reference": example.target, "output": output}
            for example, output in zip(self.prepared.references[:count], outputs, strict=True)
        ]

    def _metric(self, model: nn.Module, name: Any) -> float:
        outputs = self._decode(model, self.sources, self.recipe.training.stopping.beam)
        references = [[example.target] for example in self.prepared.references]
        return score(name, outputs, references, lowercase=self.recipe.evaluation.lowercase, bootstrap=0).value


def compiled_loss(model: Seq2Seq, smoothing: float) -> Callable[[TrainingBatch], Loss]:
    """`batch_loss` over packed batches of one static shape, compiled once."""

    def run(
        source: Tensor, given: Tensor, wanted: Tensor, first: list[Tensor], second: list[Tensor], shape: Any
    ) -> Loss:
        source_layout, target_layout = (
            Packed(offsets, index, slots, *shape) for offsets, index, slots in (first, second)
        )
        empty = np.empty(0)
        return batch_loss(
            model, TrainingBatch(source, source_layout, given, wanted, target_layout, 0, empty), smoothing
        )

    compiled = torch.compile(run, dynamic=False)

    def loss(batch: TrainingBatch) -> Loss:
        source, target = batch.source_layout, batch.target_layout
        assert isinstance(source, Packed) and isinstance(target, Packed)
        result: Loss = compiled(
            batch.source,
            batch.given,
            batch.wanted,
            [source.offsets, source.index, source.slots],
            [target.offsets, target.index, target.slots],
            (source.batch, source.longest),
        )
        return result

    return loss


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
    model = build_model(recipe, prepared.vocabulary).to(device).train()
    plan = EpochPlan(recipe, prepared.vocabulary, choose_layout(recipe, device), prepared.train)
    batches = plan.epoch(0)
    if not batches:
        raise ValueError(f"there is nothing to train on: every example was dropped ({prepared.train(0).counts})")
    largest = max(batches, key=lambda examples: int(prepared.train(0).target_lengths[examples].sum()))
    batch = plan.batch(0, largest)
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
        peak_memory=_peak_memory(device),
    )


def _peak_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


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


# What may change between the sittings of one training. Only the limits change what is learned: training longer than
# planned moves the end of a cosine or warmup-stable-decay schedule, which is what whoever raises them wants.
_FREE: set[tuple[str, ...]] = {
    *(("training", key) for key in ("limits", "device", "threads", "tensorboard", "keep", "log_every")),
    ("training", "stopping", "patience"),
    ("data", "tests"),
    ("decoding",),
    ("evaluation", "bootstrap"),
}


def _differences(old: Any, new: Any, path: tuple[str, ...] = ()) -> list[str]:
    if path in _FREE or old == new:
        return []
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted(set(old) | set(new))
        return [line for key in keys for line in _differences(old.get(key), new.get(key), (*path, key))]
    return [f"{'.'.join(path)}: {old!r} then, {new!r} now"]


def _check_folder(run: Path, recipe: Recipe, resume: bool) -> None:
    """Whether this recipe may be trained into this folder."""
    saved = run / "recipe.yaml"
    if not resume:
        if saved.exists():
            raise RunError(f"{run} holds a training already; go on with --resume, or give another folder with --out")
        return
    if not saved.exists():
        return
    before = load_recipe(saved)
    differing = _differences(before.model_dump(mode="json"), recipe.model_dump(mode="json"))
    if differing:
        raise RunError(
            f"{run} was trained with another recipe, so it cannot be resumed with this one: " + "; ".join(differing)
        )


def _train_locked(recipe: Recipe, run: Path, resume: bool, display: Display, progress: Progress | None) -> None:
    if recipe.training.threads is not None:
        torch.set_num_threads(recipe.training.threads)
    device = choose_device(recipe.training.device)
    vocabulary = Vocabulary.load(run) if resume and (run / "config.json").exists() else None
    prepared = prepare_data(recipe, vocabulary=vocabulary, progress=progress)
    model = build_model(recipe, prepared.vocabulary)
    _begin_folder(run, recipe, prepared, model)
    model = model.to(device)
    plan = EpochPlan(recipe, prepared.vocabulary, choose_layout(recipe, device), prepared.train)
    compile_step = recipe.training.compile
    if compile_step is None:
        compile_step = plan.layout == "static"
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    for line in describe(prepared, plan, model, device):
        display.note(line)
    job = Fit(
        recipe=recipe,
        run=run,
        model=model,
        plan=plan,
        device=device,
        validate=Validator(prepared, device),
        export=lambda weights: _export(run, recipe, model, weights),
        display=display,
        loss=compiled_loss(model, recipe.training.label_smoothing) if compile_step and plan.shape else None,
    )
    fit(job, resume=resume)


def _export(run: Path, recipe: Recipe, model: nn.Module, weights: dict[str, Tensor]) -> None:
    """The finished weights and the model card."""
    write_atomically(run / "model.safetensors", safetensors_bytes(weights))
    write_model_card(run, recipe, parameter_count(model))


def describe(prepared: Prepared, plan: EpochPlan, model: nn.Module, device: torch.device) -> list[str]:
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


def _begin_folder(run: Path, recipe: Recipe, prepared: Prepared, model: Seq2Seq) -> None:
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
