"""What a training step minimizes: the loss of the task, alone or wrapped in R-Drop or guided alignment.

The objective that fine-tunes on expected reward is in reward.py.

R-Drop (Wu et al. 2021) pulls the distributions p and q of two passes with different dropout together. At a label y:

    loss = ½ (CE(p, y) + CE(q, y)) + α/2 · ½ (KL(p ‖ q) + KL(q ‖ p)),

half of the paper's, which adds the cross entropies up (its eq. 3): the α of the paper is the α here. CE is
label-smoothed as in plain training.

Guided alignment trains one attention head towards given word alignments. With α_ts, the weight the head gives to source
piece s while target piece t is predicted, and p(s | t), uniform over the pieces of the source words that the word of t
is aligned to:

    loss = Σ_t CE(y_t) − λ Σ_t Σ_s p(s | t) log α_ts    (Chen et al. 2016, eq. 5; Garg et al. 2019, eq. 6 and 7)

Pieces of unaligned words have no second term. With `shift`, α is taken one step later, where piece t is the input (Chen
et al. 2020). Only the weights of that head are computed; the attention itself keeps its fused kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from sightline.data.collate import AlignmentTargets, TrainingBatch
from sightline.layers.attention import masked_softmax
from sightline.layers.feedforward import collect
from sightline.layers.layout import Layout, Packed
from sightline.layers.linear import add_product, blockwise_precision, product
from sightline.layers.losses import Loss, smoothed_cross_entropy
from sightline.layers.multi_head import MultiHeadAttention
from sightline.layers.tap import Tapped, on_taps
from sightline.recipe import Training
from sightline.recipe.training import GuidedAlignment
from sightline.tasks.losses import batch_loss, with_extra
from sightline.text.tokenizer import PAD

TaskLoss = Callable[..., Loss]  # (model, batch, label_smoothing, carried): see tasks/losses.py
Carried = Mapping[str, Tensor]  # the state of a language model between batches, by name

_ROWS = 256  # rows of logits of each pass computed at a time on the CPU
_SMALLEST = 1e-30  # attention weights are clamped to this before the logarithm


class Objective:
    """The loss of the task with label smoothing; subclasses wrap it."""

    compiles = True  # True if torch.compile takes it

    def __init__(self, training: Training, task_loss: TaskLoss = batch_loss) -> None:
        self.task_loss, self.label_smoothing = task_loss, training.label_smoothing
        self.flops: Callable[[TrainingBatch], int] = lambda batch: 0  # of a step with a batch, once it is known

    def __call__(self, model: Any, batch: TrainingBatch, carried: Carried | None = None) -> Loss:
        """The loss of one batch, summed over its labels."""
        return self.task_loss(model, batch, self.label_smoothing, carried)

    def microbatches(self, model: Any, batch: TrainingBatch) -> Iterable[TrainingBatch]:
        """The batches whose losses, each with its own backward pass, add up to the loss of this one."""
        return (batch,)


class RDrop(Objective):
    """Two passes with different dropout, whose distributions are pulled together."""

    def __init__(self, training: Training, task_loss: TaskLoss = batch_loss) -> None:
        super().__init__(training, task_loss)
        assert training.rdrop is not None
        self.alpha = training.rdrop

    def __call__(self, model: Any, batch: TrainingBatch, carried: Carried | None = None) -> Loss:
        with collect(model) as extra:
            inputs = (batch.source, batch.source_layout, batch.decoder_input, batch.decoder_layout)
            one, other = (model(*inputs) for _ in range(2))
        output = model.output
        loss = rdrop(one, other, output.weight, output.bias, batch.labels, self.label_smoothing, self.alpha)
        return with_extra(loss, extra, batch.labels, passes=2)


class GuidedObjective(Objective):
    """The loss of the task plus the cross entropy of one attention head against given alignments."""

    compiles = False

    def __init__(self, training: Training, task_loss: TaskLoss = batch_loss) -> None:
        super().__init__(training, task_loss)
        assert training.guided_alignment is not None
        self.guide = training.guided_alignment

    def __call__(self, model: Any, batch: TrainingBatch, carried: Carried | None = None) -> Loss:
        head = GuidedHead(model, self.guide)
        with head.recording():
            loss = super().__call__(model, batch)
        assert batch.source_layout is not None
        weights = head.weights(batch.source_layout, batch.decoder_layout)  # (B, T, S)
        distance = 0.0 * weights.sum() if batch.alignment is None else alignment_loss(weights, batch.alignment)
        return loss._replace(total=loss.total + self.guide.weight * distance)


def build_objective(training: Training, task_loss: TaskLoss = batch_loss) -> Objective:
    """The objective a recipe asks for; expected reward needs more than the recipe (see reward.py)."""
    kind = Objective
    if training.guided_alignment is not None:
        kind = GuidedObjective
    elif training.rdrop is not None:
        kind = RDrop
    return kind(training, task_loss)


# --- guided alignment ----------------------------------------------------------------------------------------------


def alignment_loss(weights: Tensor, guide: AlignmentTargets) -> Tensor:
    """−Σ_t Σ_s p(s | t) log α_ts of weights (B, T, S), summed over the batch."""
    sequence, step, source = guide.places
    return -(guide.shares * weights[sequence, step, source].float().clamp(min=_SMALLEST).log()).sum()


class GuidedHead:
    """The guided attention head of a model, and its weights in the pass that is recorded."""

    def __init__(self, model: Any, guide: GuidedAlignment) -> None:
        self.path: str = model.cross_attention_paths[guide.place(len(model.cross_attention_paths))]
        self.model, self.head = model, guide.head
        self.attention = model.get_submodule(self.path)
        self.recorded: dict[str, list[Tensor]] = {}

    def recording(self) -> Any:
        """Record the head inside this block: its query and key where a fused kernel runs, else its weights."""
        points = ("query", "key") if isinstance(self.attention, MultiHeadAttention) else None
        return on_taps(self.model, self._record, (self.path,), points)

    def _record(self, tapped: Tapped) -> None:
        self.recorded.setdefault(tapped.name.rpartition(".")[2], []).append(tapped.tensor)

    def weights(self, source: Layout, target: Layout | None) -> Tensor:
        """(B, T, S) of the recorded pass."""
        if isinstance(self.attention, MultiHeadAttention):
            (query,), (key,) = self.recorded["query"], self.recorded["key"]
            return head_weights(self.attention, query, key, self.head, source, target)
        return torch.cat(self.recorded["weights"], dim=2)[:, self.head]  # input feeding records step by step


def head_weights(
    attention: MultiHeadAttention, query: Tensor, key: Tensor, head: int, source: Layout, target: Layout | None
) -> Tensor:
    """softmax(score(q, k)) of one head: (B, T, S).

    Query and key as the attention takes them: (N, H, Dh) and (N, G, Dh) packed, else (B, H, T, Dh) and (B, G, S, Dh).
    """
    group = head * key.shape[1] // attention.heads  # whose keys this head attends to
    q, k = query[:, head], key[:, group]
    if isinstance(target, Packed):
        q, k = target.pad(q), source.pad(k)  # (B, T, Dh), (B, S, Dh)
    scores = attention.score(q[:, None], k[:, None]).float()  # (B, 1, T, S)
    mask = source.key_mask()
    return masked_softmax(scores, None if mask is None else mask[:, None, None, :])[:, 0]


# --- R-Drop --------------------------------------------------------------------------------------------------------


def symmetric_divergence(first: Tensor, second: Tensor) -> Tensor:
    """KL(p ‖ q) + KL(q ‖ p) = Σ_v (p − q)(log p − log q) of log-probabilities (…, V) → (…,)."""
    return ((first.exp() - second.exp()) * (first - second)).sum(-1)


def rdrop_from_logits(first: Tensor, second: Tensor, targets: Tensor, smoothing: float, alpha: float) -> Loss:
    """The loss of logits (…, V) of two passes, summed over targets (…,) that are not PAD; nll is the mean of both."""
    one, other = (smoothed_cross_entropy(logits, targets, smoothing) for logits in (first, second))
    divergences = symmetric_divergence(first.float().log_softmax(-1), second.float().log_softmax(-1))
    divergence = (divergences * (targets != PAD)).sum()
    return Loss((one.total + other.total) / 2 + alpha / 4 * divergence, (one.nll + other.nll) / 2)


class ProjectedRDrop(torch.autograd.Function):
    """The same loss from features, without ever holding all logits: gradients are computed in the forward pass.

    With δ = log p − log q, the gradient by the logits of the first pass is
        ½ (p − (1 − ε) 1_y − ε/V) + α/4 (p (δ − KL(p ‖ q)) + p − q),
    and that of the second is the same with p and q exchanged. Products use `precision`; everything else, sums included,
    uses the precision of the weight.
    """

    @staticmethod
    def forward(
        ctx: Any,
        first: Tensor,
        second: Tensor,
        weight: Tensor,
        bias: Tensor,
        targets: Tensor,
        smoothing: float,
        alpha: float,
        precision: torch.dtype | None = None,
    ) -> tuple[Tensor, Tensor]:
        precision = precision or weight.dtype
        *sides, matrix, shift = (part.to(precision) for part in (first, second, weight, bias))
        grads = (torch.empty_like(first), torch.empty_like(second))
        grad_weight, grad_bias = torch.zeros_like(weight), torch.zeros_like(bias)
        nll, uniform, divergence = (weight.new_zeros(()) for _ in range(3))
        for start in range(0, len(first), _ROWS):
            rows = slice(start, start + _ROWS)
            right = targets[rows, None]
            logits = [product(side[rows], matrix, shift).to(weight.dtype) for side in sides]  # (rows, V) each
            logs = [torch.log_softmax(each, dim=-1) for each in logits]
            nll -= sum(each.gather(1, right).sum() for each in logs) / 2
            uniform -= sum(each.mean(-1).sum() for each in logs) / 2
            divergence += symmetric_divergence(*logs).sum()
            for side, grad, log_p, log_q in zip(sides, grads, logs, reversed(logs), strict=True):
                block = _gradient(log_p, log_q, right, smoothing, alpha)
                grad_bias += block.sum(0)
                rounded = block.to(precision)
                grad[rows] = product(rounded, matrix.t())
                add_product(grad_weight, rounded.t(), side[rows])
        ctx.save_for_backward(*grads, grad_weight, grad_bias)
        ctx.mark_non_differentiable(nll)
        return (1 - smoothing) * nll + smoothing * uniform + alpha / 4 * divergence, nll

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        return *(part * grad for part in ctx.saved_tensors), None, None, None, None


def _gradient(log_p: Tensor, log_q: Tensor, right: Tensor, smoothing: float, alpha: float) -> Tensor:
    """The gradient by the logits of one pass (rows, V)."""
    p, delta = log_p.exp(), log_p - log_q
    divergence = (p * delta).sum(-1, keepdim=True)  # KL(p ‖ q)
    grad = p * (0.5 + alpha / 4 * (delta - divergence + 1)) - alpha / 4 * log_q.exp() - 0.5 * smoothing / p.shape[1]
    return grad.scatter_add_(1, right, grad.new_full(right.shape, 0.5 * (smoothing - 1)))


def rdrop(
    first: Tensor, second: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float, alpha: float
) -> Loss:
    """The loss of features (…, D) of two passes for targets (…,), by the fastest kernel for them."""
    first, second = (features.reshape(-1, features.shape[-1]) for features in (first, second))  # (N, D)
    targets = targets.reshape(-1)  # (N,)
    precision = blockwise_precision(first, weight)
    if precision is not None:
        real = targets != PAD
        bias = weight.new_zeros(len(weight)) if bias is None else bias
        total, nll = ProjectedRDrop.apply(  # type: ignore[no-untyped-call]
            first[real], second[real], weight, bias, targets[real], smoothing, alpha, precision
        )
        return Loss(total, nll)
    one, other = (nn.functional.linear(features, weight, bias) for features in (first, second))
    return rdrop_from_logits(one, other, targets, smoothing, alpha)
