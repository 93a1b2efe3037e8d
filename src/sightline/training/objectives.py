"""What a training step minimizes: likelihood, with R-Drop, guided alignment or copying from the source."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from sightline.data.batches import Guide, TrainingBatch
from sightline.layers.attention import masked_softmax
from sightline.layers.copying import mixed_log_probability
from sightline.layers.experts import Collected, collect
from sightline.layers.layout import Layout, Packed
from sightline.layers.linear import linear
from sightline.layers.losses import Loss, cross_entropy, rdrop
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
        return with_extra(loss, extra, batch.wanted)
    with collect(model) as extra:
        features = model(batch.source, batch.source_layout, batch.given, batch.target_layout)
    loss = cross_entropy(features, model.output.weight, model.output.bias, batch.wanted, smoothing)
    return with_extra(loss, extra, batch.wanted)


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
        one, other = (model(batch.source, batch.source_layout, batch.given, batch.target_layout) for _ in range(2))
    output = model.output
    loss = rdrop(one, other, output.weight, output.bias, batch.wanted, training.label_smoothing, training.rdrop)
    return with_extra(loss, extra, batch.wanted, passes=2)


def guided_loss(model: Any, batch: TrainingBatch, guide: GuidedAlignment, smoothing: float) -> Loss:
    """The loss of one batch and that of a head that should look where the batch says (guiding.py)."""
    head = GuidedHead(model, guide)
    with head.listening():
        loss = batch_loss(model, batch, smoothing)
    assert batch.source_layout is not None
    weights = head.weights(batch.source_layout, batch.target_layout)
    apart = 0.0 * weights.sum() if batch.guide is None else alignment_loss(weights, batch.guide)
    return loss._replace(total=loss.total + guide.weight * apart)


def sum_of(values: Iterable[Tensor]) -> Tensor:
    """One after the other, so that a sum of one is that one."""
    return functools.reduce(operator.add, values)


def copying_loss(model: CopyingSeq2Seq, batch: TrainingBatch, smoothing: float) -> Loss:
    """The loss of a padded batch, summed over its real target tokens."""
    assert batch.source is not None and batch.source_layout is not None and batch.given is not None
    state = model.begin(model.encode(batch.source, batch.source_layout))
    features, copies, _ = model.look(batch.given, state, batch.target_layout)
    real = batch.wanted != PAD  # (B, T)
    wanted, gate = batch.wanted[real], copies.gate[real]  # (R,)
    here = copies.tokens[:, None] == batch.wanted[..., None]  # (B, T, S) where each wanted word stands in the source
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


def alignment_loss(weights: Tensor, guide: Guide) -> Tensor:
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
