"""Floating-point operations, counted from the operations that run.

`count_flops` watches every operator that PyTorch dispatches, backward passes and custom autograd functions included,
and adds up what those do that multiply matrices. One convention everywhere:

- A multiply-add is 2 operations: (m, k) × (k, n) is 2mkn. What works element by element (norms, softmax, gates, sums,
  outer products, the optimizer) is not counted; beside matrix products it is little work.
- Attention counts as the explicit kernel does it: the whole rectangle of T queries and S keys even where a mask hides
  half of it, two products forward and four backward. Fused kernels skip hidden tiles and compute the scores a second
  time for the gradients; neither changes the count, so runs on different devices can be compared. PyTorch's own
  counter has the whole rectangle too, but five products in the backward pass of a fused kernel.
- Padding that takes part in a product counts. Where a kernel leaves it out (packed batches on CUDA), so does the count.
- A fused recurrent kernel multiplies every weight matrix once with every token; backward that is done twice, for the
  gradient of the tokens and for that of the weights.

A warning names operators that seem to multiply matrices and have no formula here. Kernels that are launched outside of
an operator (plain Triton) are not counted.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from sightline.data.collate import TrainingBatch
from sightline.layers.devices import fork_rng
from sightline.models.weights import weights_of

if TYPE_CHECKING:
    from sightline.training.train_step import TrainStep
    from sightline.training.trainer import BatchPlan

Formula = Callable[[tuple[Any, ...], Any], int]  # the arguments of an operator and its result → operations


def _product(left: int) -> Formula:
    """Each element of the result is a dot product as long as a row of the left factor, the argument of that number."""

    def count(arguments: tuple[Any, ...], result: Tensor) -> int:
        return 2 * result.numel() * int(arguments[left].shape[-1])

    return count


def _summed_product(arguments: tuple[Any, ...], result: Tensor) -> int:
    """addbmm: the products of a whole batch, added up."""
    batch, _, inner = arguments[1].shape
    return 2 * result.numel() * int(batch * inner)


def _attention(query: int, times: int) -> Formula:
    """Fused attention over (B, H, T, K); the queries are the argument of that number, keys and values follow."""

    def count(arguments: tuple[Any, ...], result: Any) -> int:
        queries, keys, values = arguments[query : query + 3]
        pairs = queries.shape[:-1].numel() * keys.shape[-2]
        return int(times * 2 * pairs * (queries.shape[-1] + values.shape[-1]))

    return count


def _packed_attention(query: int, offsets: int, times: int) -> Formula:
    """The same over (N, H, K), sequences end to end: both offsets follow one another too."""

    def count(arguments: tuple[Any, ...], result: Any) -> int:
        queries, _, values = arguments[query : query + 3]
        first, second = arguments[offsets : offsets + 2]
        lengths = first.diff().long(), (first if second is None else second).diff().long()
        pairs = int((lengths[0] * lengths[1]).sum()) * queries.shape[1]
        return int(times * 2 * pairs * (queries.shape[-1] + values.shape[-1]))

    return count


def _additive_scores(queries: int) -> Formula:
    """vᵀ h for each pair of a query (B, T, K) and a key (B, S, K), which follows it; backward, Σ de h."""

    def count(arguments: tuple[Any, ...], result: Any) -> int:
        query, key = arguments[queries : queries + 2]
        return int(2 * query.numel() * key.shape[1])

    return count


def _recurrence(times: int) -> Formula:
    """One or more recurrent layers: every weight matrix is multiplied by every token (the first argument)."""

    def count(arguments: tuple[Any, ...], result: Any) -> int:
        tokens: int = arguments[0].shape[:-1].numel()  # (B, T, ·), or (N, ·) without padding
        return times * 2 * tokens * sum(weight.numel() for weight in _matrices(arguments))

    return count


def _matrices(arguments: tuple[Any, ...]) -> Iterator[Tensor]:
    """The weights without the biases, by position: under autocast, cuDNN gets columns of a flat buffer.

    cuDNN takes a list and its length per layer and direction: two matrices, two optional biases, an optional
    projection. oneDNN takes two matrices and two biases.
    """
    weights = arguments[1]
    if not isinstance(weights, list | tuple):
        yield from arguments[1:3]
        return
    group: int = arguments[2]
    for number, weight in enumerate(weights):
        place = number % group
        if place < 2 or (group % 2 == 1 and place == group - 1):
            yield weight


_FUSED = ("flash_attention", "flash_attention_for_cpu", "efficient_attention", "cudnn_attention")
FORMULAS: dict[str, Formula] = {  # by name, for some operators are registered only where their kernels are imported
    **{f"aten::{name}": _product(0) for name in ("mm", "bmm", "mv", "dot", "vdot", "matmul", "linear")},
    **{f"aten::{name}": _product(1) for name in ("addmm", "baddbmm", "addmv", "_addmm_activation")},
    "aten::addbmm": _summed_product,
    "mkldnn::_linear_pointwise": _product(0),
    **{f"aten::_scaled_dot_product_{name}": _attention(0, 1) for name in _FUSED},
    **{f"aten::_scaled_dot_product_{name}_backward": _attention(1, 2) for name in _FUSED},
    "torch_attn::_varlen_attn": _packed_attention(0, 3, 1),
    "torch_attn::_varlen_attn_backward": _packed_attention(1, 6, 2),
    "sightline::short_attention": _packed_attention(0, 3, 1),
    "sightline::short_attention_backward": _packed_attention(1, 6, 2),
    "sightline::additive_scores": _additive_scores(0),
    "sightline::additive_scores_backward": _additive_scores(1),
    "aten::_cudnn_rnn": _recurrence(1),
    "aten::_cudnn_rnn_backward": _recurrence(2),
    "aten::mkldnn_rnn_layer": _recurrence(1),
    "aten::mkldnn_rnn_layer_backward": _recurrence(2),
}
# Names of operators that multiply, and exceptions: the recurrent cells receive their products.
_PRODUCTS = re.compile(
    r"(?:[a-z]*mm|(?:add)?mv|v?dot|tensordot|matmul|(?:bi|tri)?linear|conv(?:olution)?\d?d?|"
    r"attention|attn|rnn|lstm|gru|einsum|cdist|linalg|transformer)"
)
_CELLS = [f"aten::_thnn_fused_{cell}_cell" for cell in ("lstm", "gru")]
_HARMLESS = {
    *_CELLS,
    *(f"{cell}_backward" for cell in _CELLS),
    "aten::_thnn_fused_lstm_cell_backward_impl",
    "aten::_cudnn_rnn_flatten_weight",
    "aten::linalg_vector_norm",
    "mkldnn::_reorder_linear_weight",
    "mkldnn::_is_mkldnn_bf16_supported",
}
_PYTORCH = {
    "aten",
    "prim",
    "prims",
    "profiler",
    "c10d",
    "_c10d_functional",
}  # of PyTorch itself: their names can be trusted


@cache
def _may_multiply(name: str) -> bool:
    """True if the name of an operator suggests a product, or if it is not one of PyTorch."""
    space, _, operator = name.partition("::")
    if name in _HARMLESS:
        return False
    return space not in _PYTORCH or any(_PRODUCTS.fullmatch(word) for word in operator.split("_"))


@dataclass
class FlopCount:
    """Operations counted so far."""

    by_operator: Counter[str] = field(default_factory=Counter)
    unknown: set[str] = field(default_factory=set)  # operators that may multiply and were not counted

    @property
    def total(self) -> int:
        return self.by_operator.total()


class _Counter(TorchDispatchMode):
    """Counts every operator that is dispatched."""

    supports_higher_order_operators = True

    def __init__(self, count: FlopCount) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = count

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        plain = isinstance(func, torch._ops.OpOverload)
        name: str = func._schema.name if plain else f"higher_order::{func.name()}"
        formula = FORMULAS.get(name) or FORMULAS.get(name.removesuffix("_"))  # addmm_ is addmm in place
        theirs = flop_registry.get(func._overloadpacket if plain else func)
        if formula is None and theirs is None and plain and torch.is_inference_mode_enabled():
            with self:  # in that mode composite operators come here whole
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        result = func(*args, **kwargs)
        if formula is not None:
            self.count.by_operator[name] += formula(args, result)
        elif theirs is not None:  # convolutions and rarer products, as PyTorch counts them
            self.count.by_operator[name] += theirs(*args, **kwargs, out_val=result)
        elif _may_multiply(name):
            self.count.unknown.add(name)
        return result


@contextmanager
def count_flops() -> Iterator[FlopCount]:
    """Count what runs inside: `with count_flops() as count: ...`, then `count.total`."""
    count = FlopCount()
    with _Counter(count):
        yield count
    if count.unknown:
        warnings.warn(
            f"floating-point operations are counted without those of {', '.join(sorted(count.unknown))}, which may "
            f"multiply matrices; add a formula to sightline.training.flops.FORMULAS",
            stacklevel=3,
        )


# --- the cost of a training step -----------------------------------------------------------------------------------

_COUNTED = 8  # batches of the first epoch that are counted
_ROWS = 8  # examples of each


@dataclass(frozen=True)
class FlopRate:
    """Operations of a training step, estimated from those counted on a few real batches: proportional to its tokens.

    Padding counts where the model computes it. Over an epoch the estimate is within a few percent of counting every
    batch; for a single batch it is further off, because attention grows with the square of the length.
    """

    per_token: float

    def __call__(self, batch: TrainingBatch) -> int:
        return round(self.per_token * positions(batch))


def positions(batch: TrainingBatch) -> int:
    """Tokens that a model computes on both sides of a batch, padding included."""
    return sum(tokens.numel() for tokens in (batch.source, batch.decoder_input) if tokens is not None)


def flop_rate(step: TrainStep, plan: BatchPlan) -> FlopRate:
    """Count the operations of a few examples from batches spread over the first epoch.

    A pure function of model, data and device: a resumed run finds the same. Parameters, gradients, buffers and random
    state are left as they were.
    """
    batches, rates = plan.epoch(0), []
    for number in np.linspace(0, len(batches) - 1, min(_COUNTED, len(batches))).astype(int).tolist():
        examples = batches[number]
        batch = plan.batch(0, examples if plan.shape is not None else examples[:_ROWS])  # a static shape is always full
        moved = batch.to(step.device) if step.device.type != "cpu" else batch
        rates.append(step_flops(step, moved) / max(1, positions(batch)))  # batches have about the same size
    if step.device.type == "cuda":  # keep this out of the peak memory of the training
        torch.cuda.reset_peak_memory_stats(step.device)
    return FlopRate(sum(rates) / max(1, len(rates)))


def step_flops(step: TrainStep, batch: TrainingBatch) -> int:
    """The operations of forward, loss and backward for one batch, counted while they run."""
    model = step.model.train()
    buffers = [(part, part.clone()) for part in weights_of(model).values() if not isinstance(part, nn.Parameter)]
    with fork_rng(step.device), count_flops() as count:
        loss = step(batch)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        torch.autograd.grad(loss.total, trained, allow_unused=True)
    for buffer, before in buffers:
        buffer.copy_(before)
    return count.total
