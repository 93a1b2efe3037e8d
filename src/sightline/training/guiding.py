"""Guided alignment: one attention head is trained towards word alignments that somebody gives.

With α_ts, what the head gives to source piece s while target piece t is written, and p(s | t), even over the pieces of
the source words that the word of t is linked to:

    loss = Σ_t CE(y_t) − λ Σ_t Σ_s p(s | t) log α_ts    (Chen et al. 2016, eq. 5; Garg et al. 2019, eq. 6 and 7)

Pieces of words without links have no second term. With `shift`, α is taken one step later, where piece t is read (Chen
et al. 2020). The weights are those of that head alone: the attention itself goes on by its fast kernel.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sightline.data.batches import Guide
from sightline.layers.layout import Layout, Packed
from sightline.layers.multi_head import MultiHeadAttention
from sightline.layers.softmax import masked_softmax
from sightline.layers.tap import Tapped, on_taps
from sightline.recipe.guiding import GuidedAlignment

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
