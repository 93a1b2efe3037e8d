"""What a training step minimizes: likelihood, with R-Drop, guided alignment or copying from the source."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from sightline.data.collate import AlignmentTargets, TrainingBatch
from sightline.layers.attention import masked_softmax
from sightline.layers.copying import mixed_log_probability
from sightline.layers.experts import Collected, collect
from sightline.layers.layout import Layout, Packed
from sightline.layers.linear import add_product, blockwise_precision, linear, product
from sightline.layers.losses import Loss, cross_entropy, smoothed_cross_entropy
from sightline.layers.multi_head import MultiHeadAttention
from sightline.layers.tap import Tapped, on_taps
from sightline.models.seq2seq import CopyingSeq2Seq
from sightline.recipe import Training
from sightline.recipe.training import GuidedAlignment
from sightline.text.tokenizer import PAD


def batch_loss(model: Any, batch: TrainingBatch, smoothing: float) -> Loss:
    """The loss of one batch, summed over the answers wanted."""
    if isinstance(model, CopyingSeq2Seq):
        with collect(model) as extra:
            loss = copying_loss(model, batch, smoothing)
        return with_extra(loss, extra, batch.labels)
    with collect(model) as extra:
        features = model(batch.source, batch.source_layout, batch.decoder_input, batch.decoder_layout)
    loss = cross_entropy(features, model.output.weight, model.output.bias, batch.labels, smoothing)
    return with_extra(loss, extra, batch.labels)


def with_extra(loss: Loss, extra: Collected, wanted: Tensor, passes: int = 1) -> Loss:
    """The loss with those that layers have of their own, of so many passes.

    `total` is a sum over answers that will be divided by their number, the loss of a layer one number for the whole
    batch: so it is added as many times. It is minimized, not reported: `nll` stays as it is.
    """
    if not extra.losses:
        return loss
    answers = (wanted != PAD).sum()
    return Loss(loss.total + answers / passes * sum_of(extra.losses), loss.nll, extra.row())


def training_loss(model: Any, batch: TrainingBatch, training: Training) -> Loss:
    """What a step minimizes: the loss of one batch or, with R-Drop, of two passes over it with different dropout."""
    if training.guided_alignment is not None:
        return guided_loss(model, batch, training.guided_alignment, training.label_smoothing)
    if training.rdrop is None:
        return batch_loss(model, batch, training.label_smoothing)
    with collect(model) as extra:
        one, other = (
            model(batch.source, batch.source_layout, batch.decoder_input, batch.decoder_layout) for _ in range(2)
        )
    output = model.output
    loss = rdrop(one, other, output.weight, output.bias, batch.labels, training.label_smoothing, training.rdrop)
    return with_extra(loss, extra, batch.labels, passes=2)


def guided_loss(model: Any, batch: TrainingBatch, guide: GuidedAlignment, smoothing: float) -> Loss:
    """The loss of one batch and that of a head that should look where the batch says (guiding.py)."""
    head = GuidedHead(model, guide)
    with head.listening():
        loss = batch_loss(model, batch, smoothing)
    assert batch.source_layout is not None
    weights = head.weights(batch.source_layout, batch.decoder_layout)
    apart = 0.0 * weights.sum() if batch.alignment is None else alignment_loss(weights, batch.alignment)
    return loss._replace(total=loss.total + guide.weight * apart)


def sum_of(values: Iterable[Tensor]) -> Tensor:
    """One after the other, so that a sum of one is that one."""
    return functools.reduce(operator.add, values)


def copying_loss(model: CopyingSeq2Seq, batch: TrainingBatch, smoothing: float) -> Loss:
    """The loss of a padded batch, summed over its real target tokens."""
    assert batch.source is not None and batch.source_layout is not None and batch.decoder_input is not None
    state = model.begin(model.encode(batch.source, batch.source_layout))
    features, copies, _ = model.attend_copies(batch.decoder_input, state, batch.decoder_layout)
    real = batch.labels != PAD  # (B, T)
    wanted, gate = batch.labels[real], copies.gate[real]  # (R,)
    here = copies.tokens[:, None] == batch.labels[..., None]  # (B, T, S) where each wanted word stands in the source
    copied = (copies.weights * here).sum(-1)[real]
    scores = linear(features[real], model.output.weight, model.output.bias).float()  # (R, V)
    whole = scores.logsumexp(-1)
    written = scores.gather(1, wanted.clamp(max=model.size - 1)[:, None])[:, 0] - whole
    nll = -mixed_log_probability(written, gate, copied, model.size, wanted).sum()
    if smoothing == 0:
        return Loss(nll, nll.detach())
    uniform = (whole - scores.mean(-1)).sum()
    return Loss((1 - smoothing) * nll + smoothing * uniform, nll.detach())


_LEAST = 1e-30  # of a weight, before its logarithm


def alignment_loss(weights: Tensor, guide: AlignmentTargets) -> Tensor:
    """−Σ_t Σ_s p(s | t) log α_ts of weights (B, T, S), summed over the batch."""
    sequence, step, source = guide.places
    return -(guide.shares * weights[sequence, step, source].float().clamp(min=_LEAST).log()).sum()


class GuidedHead:
    """The head of a model that a recipe guides, and its weights in the pass that is heard."""

    def __init__(self, model: Any, guide: GuidedAlignment) -> None:
        self.path: str = model.cross_attention_paths[guide.place(len(model.cross_attention_paths))]
        self.model, self.head = model, guide.head
        self.attention = model.get_submodule(self.path)
        self.heard: dict[str, list[Tensor]] = {}

    def listening(self) -> Any:
        """Inside this block the head is heard. Where kernels are fused, that is what its weights are made of."""
        points = ("query", "key") if isinstance(self.attention, MultiHeadAttention) else None
        return on_taps(self.model, self._hear, (self.path,), points)

    def _hear(self, tapped: Tapped) -> None:
        self.heard.setdefault(tapped.name.rpartition(".")[2], []).append(tapped.tensor)

    def weights(self, source: Layout, target: Layout | None) -> Tensor:
        """(B, T, S) of the pass."""
        if isinstance(self.attention, MultiHeadAttention):
            (query,), (key,) = self.heard["query"], self.heard["key"]
            return head_weights(self.attention, query, key, self.head, source, target)
        return torch.cat(self.heard["weights"], dim=2)[:, self.head]  # one step after the other, with input feeding


def head_weights(
    attention: MultiHeadAttention, query: Tensor, key: Tensor, head: int, source: Layout, target: Layout | None
) -> Tensor:
    """softmax(score(q, k)) of one head alone: (B, T, S).

    Query and key as the attention takes them: (N, H, K) and (N, G, K) packed, else (B, H, T, K) and (B, G, S, K).
    """
    group = head * key.shape[1] // attention.heads  # whose keys this head looks at
    mine, its = query[:, head], key[:, group]
    if isinstance(target, Packed):
        mine, its = target.pad(mine), source.pad(its)  # (B, T, K), (B, S, K)
    scores = attention.score(mine[:, None], its[:, None]).float()  # (B, 1, T, S)
    seen = source.key_mask()
    return masked_softmax(scores, None if seen is None else seen[:, None, None, :])[:, 0]


_ROWS = 256  # rows of logits of each pass computed at a time on the CPU


def both_divergences(first: Tensor, second: Tensor) -> Tensor:
    """KL(p ‖ q) + KL(q ‖ p) = Σ_v (p − q)(log p − log q) of log-probabilities (…, V) → (…,)."""
    return ((first.exp() - second.exp()) * (first - second)).sum(-1)


def rdrop_from_logits(first: Tensor, second: Tensor, targets: Tensor, smoothing: float, alpha: float) -> Loss:
    """The loss of logits (…, V) of two passes, summed over targets (…,) that are not PAD; nll is the mean of both."""
    one, other = (smoothed_cross_entropy(logits, targets, smoothing) for logits in (first, second))
    gaps = both_divergences(first.float().log_softmax(-1), second.float().log_softmax(-1))
    apart = (gaps * (targets != PAD)).sum()
    return Loss((one.total + other.total) / 2 + alpha / 4 * apart, (one.nll + other.nll) / 2)


class ProjectedRDrop(torch.autograd.Function):
    """The same from features, without ever holding all logits: gradients are made on the way forward.

    With δ = log p − log q, the gradient by the logits of the first pass is
        ½ (p − (1 − ε) 1_y − ε/V) + α/4 (p (δ − KL(p ‖ q)) + p − q),
    and that of the second is the same with p and q exchanged. Products are taken in `precision`, all else and all sums
    in that of the weight.
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
        nll, uniform, apart = (weight.new_zeros(()) for _ in range(3))
        for start in range(0, len(first), _ROWS):
            rows = slice(start, start + _ROWS)
            right = targets[rows, None]
            logits = [product(side[rows], matrix, shift).to(weight.dtype) for side in sides]  # (rows, V) each
            logs = [torch.log_softmax(each, dim=-1) for each in logits]
            nll -= sum(each.gather(1, right).sum() for each in logs) / 2
            uniform -= sum(each.mean(-1).sum() for each in logs) / 2
            apart += both_divergences(*logs).sum()
            for side, grad, own, other in zip(sides, grads, logs, reversed(logs), strict=True):
                block = _gradient(own, other, right, smoothing, alpha)
                grad_bias += block.sum(0)
                rounded = block.to(precision)
                grad[rows] = product(rounded, matrix.t())
                add_product(grad_weight, rounded.t(), side[rows])
        ctx.save_for_backward(*grads, grad_weight, grad_bias)
        ctx.mark_non_differentiable(nll)
        return (1 - smoothing) * nll + smoothing * uniform + alpha / 4 * apart, nll

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        return *(part * grad for part in ctx.saved_tensors), None, None, None, None


def _gradient(own: Tensor, other: Tensor, right: Tensor, smoothing: float, alpha: float) -> Tensor:
    """By the logits of one pass (rows, V), from the log-probabilities of both."""
    p, gap = own.exp(), own - other
    apart = (p * gap).sum(-1, keepdim=True)  # KL(p ‖ q)
    grad = p * (0.5 + alpha / 4 * (gap - apart + 1)) - alpha / 4 * other.exp() - 0.5 * smoothing / own.shape[1]
    return grad.scatter_add_(1, right, grad.new_full(right.shape, 0.5 * (smoothing - 1)))


def rdrop(
    first: Tensor, second: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, smoothing: float, alpha: float
) -> Loss:
    """The loss of features (…, D) of two passes against targets (…,), by the fastest way there is for them."""
    first, second = (features.reshape(-1, features.shape[-1]) for features in (first, second))
    targets = targets.reshape(-1)
    precision = blockwise_precision(first, weight)
    if precision is not None:
        real = targets != PAD
        total, nll = ProjectedRDrop.apply(  # type: ignore[no-untyped-call]
            first[real], second[real], weight, bias, targets[real], smoothing, alpha, precision
        )
        return Loss(total, nll)
    one, other = (nn.functional.linear(features, weight, bias) for features in (first, second))
    return rdrop_from_logits(one, other, targets, smoothing, alpha)
