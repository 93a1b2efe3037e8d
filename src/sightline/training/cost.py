"""What a training costs: floating-point operations and memory."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from sightline.data.collate import StaticShape, TrainingBatch, packed_batch, padded_batch
from sightline.layers.devices import autocast, fork_rng
from sightline.layers.experts import Experts, slots_each
from sightline.layers.layout import Packed
from sightline.models.weights import weights_of
from sightline.recipe import Training
from sightline.recipe.bodies import ExpertsConfig
from sightline.training.flops import count_flops
from sightline.training.objectives import training_loss
from sightline.training.span_sizes import SpanSize, longest_told, small_blocks, span_sizes

if TYPE_CHECKING:
    from sightline.training.trainer import Plan

_DRAWN, _CHECKS = 50, 2  # tiny batches to choose from, and how many see whether what the others told is so
_FEW = 4  # sequences in most of them


def step_flops(model: nn.Module, batch: TrainingBatch, training: Training, device: torch.device) -> int:
    """The operations of forward, loss and backward, counted while they run.

    No gradient and no draw stays behind, nor what norms have gathered on the way.
    """
    model.train()
    gathered = [(part, part.clone()) for part in weights_of(model).values() if not isinstance(part, nn.Parameter)]
    with fork_rng(device), count_flops() as count:
        with autocast(training.precision, device):
            loss = training_loss(model, batch, training)
        learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
        torch.autograd.grad(loss.total, learned, allow_unused=True)
    for buffer, before in gathered:
        buffer.copy_(before)
    return count.total


@dataclass(frozen=True)
class StepCost:
    """The floating-point operations of a training step: linear in the sizes of its batch.

    Every product runs over tokens, over places of a padded tensor, over pairs of them or over the slots that experts
    have for so many, so these sizes are all that counts, and what each weighs can be found on batches of a few tokens:
    no large step is ever counted. A pure function of model, layout and device: a resumed run finds the same.
    """

    weights: tuple[int, ...]
    experts: tuple[ExpertsConfig, ...] = ()
    spans: tuple[SpanSize, ...] = ()

    def __call__(self, batch: TrainingBatch) -> int:
        """Of a batch whose layouts are still on the host."""
        sizes = _sizes(batch, self.experts, self.spans)
        return sum(weight * size for weight, size in zip(self.weights, sizes, strict=True))


def _mixtures(model: nn.Module) -> tuple[ExpertsConfig, ...]:
    """The kinds of experts in a model that differ in how many slots they have for the same tokens."""
    recipes = (module.recipe for module in model.modules() if isinstance(module, Experts))
    return tuple({(each.count, each.top_k, each.capacity_factor): each for each in recipes}.values())


def _slots(experts: ExpertsConfig, places: int) -> int:
    """E · C: empty ones take part in the products too."""
    return experts.count * slots_each(experts.capacity_factor, experts.top_k, places, experts.count)


def _sizes(batch: TrainingBatch, experts: Sequence[ExpertsConfig] = (), spans: Sequence[SpanSize] = ()) -> list[int]:
    """How many sequences, tokens, places and pairs of them there are in a batch."""
    layouts = [layout for layout in (batch.source_layout, batch.decoder_layout) if layout is not None]
    lengths = [layout.lengths.numpy() for layout in layouts]
    s, t, longest = lengths[0], lengths[-1], [layout.longest for layout in layouts]  # one side stands for both
    rows, source, target = len(s), longest[0], longest[-1]
    sizes = [
        rows,
        # A recurrent encoder starts from zeros, which need no gradient. Reading backwards only the longest start
        # together; and oneDNN's LSTM, which takes batches of one length, makes that gradient all the same.
        np.count_nonzero(s == s.max()),
        rows * (s.min() == s.max()),
        s.sum(),
        t.sum(),
        batch.tokens,  # answers: without what fills a static batch up, and where nothing is wanted
        batch.labels.numel() if _answers_are_picked(batch) else 0,  # with what fills them up
        rows * source,
        rows * target,
        rows * source**2,
        rows * target**2,
        rows * source * target,
    ]
    # Experts stand over tokens end to end, or over the places of a padded tensor (recurrent layers)
    seen = (s.sum(), t.sum(), rows * source, rows * target)
    sizes += [_slots(each, int(places)) for each in experts for places in seen]
    if isinstance(layouts[0], Packed):  # the kernels for packed batches look at real pairs alone
        sizes += [(s * s).sum(), (t * t).sum(), (s * t).sum()]
    for span in spans:
        each, most = (s, source) if span.reads else (t, target)
        sizes += span.sizes(each, most, rows_as_they_are=not isinstance(layouts[0], Packed))
    return [int(size) for size in sizes]


def _answers_are_picked(batch: TrainingBatch) -> bool:
    return batch.decoder_input is not None and batch.decoder_layout is None


def step_cost(model: nn.Module, plan: Plan, device: torch.device) -> StepCost:
    """What a step of this model costs, found by counting a few tiny ones."""
    sizes, counts, experts = [], [], _mixtures(model)
    with small_blocks(model):
        spans = span_sizes(model, device)
        for batch in _telling(plan, experts, spans):
            sizes.append(_sizes(batch, experts, spans))
            moved = batch.to(device) if device.type != "cpu" else batch
            counts.append(step_flops(model, moved, plan.recipe.training, device))
    table, wanted = np.array(sizes, np.float64), np.array(counts, np.float64)
    cost = StepCost(_whole_solution(table, wanted), experts, span_sizes(model, device))
    off = float(np.abs(table @ np.array(cost.weights, np.float64) / wanted - 1).max())
    if off > 1e-9:
        warnings.warn(
            f"what a step of this model costs does not follow from the lengths in its batch alone (off by {off:.1%} "
            f"on a small one): take flops in metrics.jsonl as an estimate, or teach sightline.training.cost its sizes",
            stacklevel=2,
        )
    if device.type == "cuda":  # no trace of this in the memory that the training will have taken
        torch.cuda.reset_peak_memory_stats(device)
    return cost


def _whole_solution(table: np.ndarray, wanted: np.ndarray) -> tuple[int, ...]:
    """Whole numbers w with table · w = wanted. Columns that follow from others, as in static batches, weigh nothing."""
    kept: list[int] = []
    for column in range(table.shape[1]):
        if np.linalg.matrix_rank(table[:, [*kept, column]]) > len(kept):
            kept.append(column)
    weights = np.zeros(table.shape[1])
    weights[kept] = np.linalg.lstsq(table[:, kept], wanted)[0]
    return tuple(int(weight) for weight in weights.round())


def _telling(plan: Plan, experts: Sequence[ExpertsConfig], spans: Sequence[SpanSize]) -> list[TrainingBatch]:
    """Of many tiny batches those whose sizes do not follow from those of others, and some more to check with."""
    chosen, others = [], []
    table: list[list[int]] = []
    for batch in _tiny_batches(plan, _most_rows(experts), longest_told(spans)):
        sizes = _sizes(batch, experts, spans)
        if sizes not in table and np.linalg.matrix_rank([*table, sizes]) > len(table):
            table.append(sizes)
            chosen.append(batch)
        else:
            others.append(batch)
    return chosen + sorted(others, key=_sizes)[-_CHECKS:]  # the largest


def _most_rows(experts: Sequence[ExpertsConfig]) -> int:
    """How many sequences tell enough: experts have no more than a slot each until there are tokens for all of them."""
    return max([_FEW, *(math.ceil(2 * each.count / (each.capacity_factor * each.top_k)) for each in experts)])


def _tiny_batches(plan: Plan, most: int, longest: int) -> Iterator[TrainingBatch]:
    """Batches of a few sequences of a few tokens, end marks included: every model can take them.

    Where up to `most` sequences are asked for, as many batches of more sequences follow. All of those would have the
    same longest one, so how long it may be is drawn too. `longest` is how long some should be, where that is more.
    """
    random = np.random.default_rng(0)
    for number in range(_DRAWN if most <= _FEW else 2 * _DRAWN):
        few = number < _DRAWN
        rows, more, spare = (
            int(random.integers(low, high)) for low, high in ((1, _FEW + 1 if few else most + 1), (4, 9), (0, 4))
        )
        ends = (3, 3) if few else random.integers(1, 4, 2)
        if longest:  # parts of sequences are counted: their number must differ
            ends = random.integers(1, longest + 1, 2)
        sides = plan.tiny([random.integers(0, end, rows) for end in ends])
        if plan.layout == "padded":
            yield padded_batch(sides, np.arange(rows))
            continue
        shape = plan.shape
        if shape is not None:  # as long as the real ones, for nothing says how the costs of another length would be
            tokens = max(max(side.lengths()) for side in sides.inputs) * rows + more
            answers = None if shape.labels is None else sum(sides.labels.lengths()) + spare
            given = None if shape.decoder_tokens is None else tokens + int(random.integers(0, 9))
            sequences = rows + (given or tokens) // 3 + spare
            shape = StaticShape(tokens, sequences, shape.longest, given, answers)
        yield packed_batch(sides, np.arange(rows), shape)


def peak_memory(device: torch.device) -> int:
    """The most bytes held at once so far: by tensors on a CUDA device, by the whole process on the CPU.

    The process's peak is that of all it ever did, preparing the data included; on Windows it is not known, and 0.
    """
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    if device.type == "mps":
        return int(torch.mps.driver_allocated_memory())
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux KiB
