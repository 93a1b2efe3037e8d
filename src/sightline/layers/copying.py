"""The pointer-generator: a mixture of generating and copying words (See et al. 2017, §2.2).

    p(y) = p_gen P_vocab(y) + (1 − p_gen) Σ_{s : x_s = y} a_s

with copy attention a over the source tokens x. If words can be copied with or without a space before them, p_join
divides each a_s between the two forms of x_s. Ids past the end of the vocabulary are source words that are not in it:
they can be copied, not generated. Computed in float32 and, where possible, in logs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from sightline.layers.attention import masked_softmax
from sightline.layers.linear import Linear
from sightline.layers.tap import TapModule

_TINY = torch.finfo(torch.float32).tiny
_NEVER = float("-inf")


class Copies(NamedTuple):
    """The copy distribution at R positions of the target.

    C = S, or 2S if words can be copied in two forms: all positions with a space before the word, then all without.
    """

    gate: Tensor  # (B, R) logit of p_gen
    weights: Tensor  # (B, R, C) a; rows sum to one
    tokens: Tensor  # (B, C) the copied ids


class CopiedForms(TapModule):
    """Ids under which source tokens are copied, with and without a space before them (text/copying.py)."""

    def __init__(self, spaced: Sequence[int], joined: Sequence[int], bare: Sequence[int]) -> None:
        super().__init__()
        self._forms = torch.tensor([spaced, joined, bare], device="cpu")
        self.tables: Tensor
        self.register_buffer("tables", torch.empty_like(self._forms), persistent=False)  # (3, V)
        self.reset_buffers()

    def reset_buffers(self) -> None:
        self.tables.copy_(self._forms)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, S) → (B, 2S)."""
        size = self.tables.shape[1]
        known = tokens < size
        spaced, joined, bare = self.tables[:, tokens.where(known, 0)]  # (B, S) each
        same = (bare[:, :, None] == bare[:, None]) & known[:, None]  # (B, S, S)
        first = torch.where(known, same.int().argmax(-1), (tokens - size) // 2)  # first position of the same piece
        forms = [
            torch.where(known & (form >= 0), form, size + 2 * first + number)
            for number, form in enumerate((spaced, joined))
        ]
        return torch.cat(forms, dim=1)


class CopyAttention(TapModule):
    """Copy distribution and gate: a = softmax(q·k / √D), c = Σ a h, p_gen = σ(w·[f ; c ; y] + b).

    f: decoder features, h: encoder states, y: embedding of the previous token, q = W_q f, k = W_k h. The paper reuses
    the weights of the decoder's cross-attention; here copying has its own attention, the same for every decoder,
    because Transformers have many heads and fused kernels return no weights.
    """

    entry_points: ClassVar[tuple[str, ...]] = ("project_memory",)

    def __init__(self, width: int, *, forms: bool = False) -> None:
        super().__init__()
        self.query = Linear(width, width)
        self.key = Linear(width, width)
        self.gate = Linear(3 * width, 1)
        self.join = Linear(3 * width, 1) if forms else None
        self.scale = width**-0.5

    def project_memory(self, states: Tensor) -> Tensor:
        """Encoder states (B, S, D) → keys (B, S, D), computed once per sentence."""
        return self.key(states)

    def forward(
        self, features: Tensor, before: Tensor, keys: Tensor, states: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """f and y (B, R, D), keys and states (B, S, D), mask (B, S) → gate (B, R), a (B, R, C)."""
        scores = (self.query(features) * self.scale @ keys.mT).float()  # (B, R, S)
        weights = masked_softmax(scores, None if mask is None else mask[:, None, :])
        weights = self.tap("weights", weights, "softmax(W_q f · W_k h / √D)")
        context = weights.to(states.dtype) @ states  # (B, R, D)
        inputs = torch.cat([features, context, before], dim=-1)  # (B, R, 3D)
        gate = self.gate(inputs)[..., 0].float()  # (B, R)
        if self.recorded:
            self.tap("p_gen", gate.sigmoid(), "σ(w·[f ; c ; y] + b)", ["weights"])
        if self.join is None:
            return gate, weights
        p_join = self.join(inputs).float().sigmoid()  # (B, R, 1)
        shares = torch.cat([weights * (1 - p_join), weights * p_join], dim=-1)
        return gate, self.tap("forms", shares, "[a · (1 − p_join) ; a · p_join]", ["weights"])


def mixed_log_probabilities(logits: Tensor, copies: Copies) -> Tensor:
    """log p of every word: logits (B, R, V) → (B, R, V + X) with X source words that are not in the vocabulary.

    −∞ for words of other sources of the batch.
    """
    size, rows = logits.shape[-1], copies.weights.shape[1]
    extra = max(0, int(copies.tokens.max()) + 1 - size)
    places = copies.tokens[:, None].expand(-1, rows, -1)  # (B, R, S)
    copied = copies.weights.new_zeros(*logits.shape[:2], size + extra).scatter_add(2, places, copies.weights)
    generated = logits.float().log_softmax(-1)
    if extra:
        generated = torch.cat([generated, generated.new_full((*generated.shape[:2], extra), _NEVER)], dim=-1)
    logs = torch.logaddexp(
        logsigmoid(copies.gate)[..., None] + generated,
        logsigmoid(-copies.gate)[..., None] + copied.clamp(min=_TINY).log(),
    )
    if extra:
        possible = torch.zeros(len(logits), size + extra, dtype=torch.bool, device=logits.device)
        possible = possible.scatter(1, copies.tokens, True)
        possible[:, :size] = True
        logs = logs.masked_fill(~possible[:, None], _NEVER)
    return logs


def mixed_log_probability(log_p_vocab: Tensor, gate: Tensor, copied: Tensor, size: int, labels: Tensor) -> Tensor:
    """log p(y) of labels y (…,) from log P_vocab(y), the logit of p_gen and Σ_{s : x_s = y} a_s, (…,) each.

    `log_p_vocab` is ignored for labels past the end of the vocabulary.
    """
    generated = torch.where(labels < size, logsigmoid(gate) + log_p_vocab, _NEVER)
    return torch.logaddexp(generated, logsigmoid(-gate) + copied.clamp(min=_TINY).log())
