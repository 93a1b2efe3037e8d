"""Task losses: one batch through a model, and the loss of its labels.

A task names its loss as `Task.loss`; a plug-in task overrides it. `training/objectives.py` wraps these functions.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from sightline.data.collate import TrainingBatch
from sightline.layers.copying import mixed_log_probability
from sightline.layers.feedforward import Collected, collect
from sightline.layers.linear import linear
from sightline.layers.losses import Loss, binary_cross_entropy, cross_entropy
from sightline.models.seq2seq import CopyingSeq2Seq
from sightline.text.tokenizer import PAD, SPECIALS


def batch_loss(
    model: Any, batch: TrainingBatch, label_smoothing: float = 0.0, carried: Mapping[str, Tensor] | None = None
) -> Loss:
    """The loss of one batch, summed over its labels; `carried` is the state of a language model (`carried_loss`)."""
    if carried is not None:
        return carried_loss(model, batch, label_smoothing, carried)
    with collect(model) as extra:
        if isinstance(model, CopyingSeq2Seq):
            loss = copying_loss(model, batch, label_smoothing)
        else:
            features = model(batch.source, batch.source_layout, batch.decoder_input, batch.decoder_layout)
            loss = cross_entropy(features, model.output.weight, model.output.bias, batch.labels, label_smoothing)
    return with_extra(loss, extra, batch.labels)


def label_set_loss(
    model: Any, batch: TrainingBatch, label_smoothing: float = 0.0, carried: Mapping[str, Tensor] | None = None
) -> Loss:
    """Binary cross entropy of a batch of texts with label sets (B, L): every label is there or not."""
    with collect(model) as extra:
        logits = model.logits(model(batch.source, batch.source_layout))  # (B, special tokens and labels)
        targets = torch.zeros_like(logits).scatter_(1, batch.labels, 1.0)
        loss = binary_cross_entropy(logits[:, len(SPECIALS) :], targets[:, len(SPECIALS) :], label_smoothing)
    return with_extra(loss, extra, batch.labels)


def carried_loss(model: Any, batch: TrainingBatch, label_smoothing: float, carried: Mapping[str, Tensor]) -> Loss:
    """The loss of a language model that continues from the final state of the previous batch, without its graph.

    `carried` has the state by name (empty before the first batch); the loss returns the new one.
    """
    assert batch.decoder_input is not None
    state = model.begin_empty(len(batch.decoder_input))
    if batch.continues and carried:
        state = state.with_parts(carried)
    with collect(model) as extra:
        features, state = model.advance(batch.decoder_input, state)
    loss = cross_entropy(features, model.output.weight, model.output.bias, batch.labels, label_smoothing)
    return with_extra(loss, extra, batch.labels)._replace(carried=state.parts())


def copying_loss(model: CopyingSeq2Seq, batch: TrainingBatch, label_smoothing: float) -> Loss:
    """The loss of a padded batch for a model that copies from the source, in float32 (See et al. 2017, eq. 9).

        loss = −(1 − ε) log p(y) − ε/V Σ_v log P_vocab(v),  p(y) = p_gen P_vocab(y) + (1 − p_gen) Σ_{s : x_s = y} a_s

    Label smoothing applies to generated words, not to copied ones. The mixture is never held as a whole.
    """
    assert batch.source is not None and batch.source_layout is not None and batch.decoder_input is not None
    state = model.begin(model.encode(batch.source, batch.source_layout))
    features, copies, _ = model.attend_copies(batch.decoder_input, state, batch.decoder_layout)
    real = batch.labels != PAD  # (B, T)
    labels, gate = batch.labels[real], copies.gate[real]  # (N,)
    in_source = copies.tokens[:, None] == batch.labels[..., None]  # (B, T, S)
    copied = (copies.weights * in_source).sum(-1)[real]  # (N,)
    logits = linear(features[real], model.output.weight, model.output.bias).float()  # (N, V)
    lse = logits.logsumexp(-1)
    generated = logits.gather(1, labels.clamp(max=model.size - 1)[:, None])[:, 0] - lse
    nll = -mixed_log_probability(generated, gate, copied, model.size, labels).sum()
    if label_smoothing == 0:
        return Loss(nll, nll.detach())
    uniform = (lse - logits.mean(-1)).sum()
    return Loss((1 - label_smoothing) * nll + label_smoothing * uniform, nll.detach())


def with_extra(loss: Loss, extra: Collected, labels: Tensor, passes: int = 1) -> Loss:
    """The loss plus the losses of layers (experts), averaged over `passes` forward passes.

    `total` is a sum over labels that is divided by their number later; a layer's loss is one number for the batch, so
    it is added once per label. `nll` does not include it.
    """
    if not extra.losses:
        return loss
    count = (labels != PAD).sum()
    return Loss(loss.total + count / passes * sum_of(extra.losses), loss.nll, extra.row())


def sum_of(values: Iterable[Tensor]) -> Tensor:
    """The sum in order; of a single tensor, that tensor."""
    return functools.reduce(operator.add, values)
