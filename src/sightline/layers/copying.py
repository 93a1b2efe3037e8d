"""The pointer-generator mixture of generating and copying words (See et al. 2017, §2.2).

    p(y) = p_gen P_vocab(y) + (1 − p_gen) Σ_{s : x_s = y} a_s

with a the copy attention over the source tokens x, and p_gen between 0 and 1. Where words are copied with or without a
space before them, a third number, p_join, divides each a_s between the two forms of x_s. Ids past the end of the
vocabulary are source words outside the vocabulary: they can be copied, not generated. Computed in float32 and, where
possible, in logs.
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
    """The copy distribution at each of R steps.

    Where words can be copied with or without a space before them, C = 2S: first all positions with one, then without.
    """

    gate: Tensor  # (B, R) logit of p_gen
    weights: Tensor  # (B, R, C) a, each row sums to one
    tokens: Tensor  # (B, C) the copied ids


class CopiedForms(TapModule):
    """The ids by which each position of a source is copied, with and without a space before it (text/copying.py)."""

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
        first = torch.where(known, same.int().argmax(-1), (tokens - size) // 2)  # where this piece comes first
        forms = [
            torch.where(known & (form >= 0), form, size + 2 * first + joined_)
            for joined_, form in enumerate((spaced, joined))
        ]
        return torch.cat(forms, dim=1)


class CopyAttention(TapModule):
    """Copy distribution and gate: a = softmax(q·k / √D), c = Σ a h, p_gen = σ(w·[f ; c ; y] + b).

    f are the decoder's features, h the encoder's states, y the vector of the token before, q = W_q f, k = W_k h. The
    paper copies with the weights that made the decoder's context; Transformers have many such heads and decoders may
    run kernels that show no weights, so here copying has one attention of its own, the same for every decoder.
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
        """Encoder states (B, S, D) → keys (B, S, D), computed once a sentence."""
        keys: Tensor = self.key(states)
        return keys

    def forward(
        self, features: Tensor, before: Tensor, keys: Tensor, states: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Features and vectors before (B, R, D), keys and states (B, S, D), mask (B, S) → gate (B, R), a (B, R, C)."""
        scores = (self.query(features) * self.scale @ keys.mT).float()  # (B, R, S)
        weights = masked_softmax(scores, None if mask is None else mask[:, None, :])
        weights = self.tap("weights", weights, "softmax(W_q f · W_k h / √D)")
        context = weights.to(states.dtype) @ states  # (B, R, D)
        seen = torch.cat([features, context, before], dim=-1)  # (B, R, 3D)
        gate = self.gate(seen)[..., 0].float()  # (B, R)
        if self.recorded:
            self.tap("p_gen", gate.sigmoid(), "σ(w·[f ; c ; y] + b)", ["weights"])
        if self.join is None:
            return gate, weights
        p_join = self.join(seen).float().sigmoid()  # (B, R, 1)
        shares = torch.cat([weights * (1 - p_join), weights * p_join], dim=-1)
        return gate, self.tap("forms", shares, "[a · (1 − p_join) ; a · p_join]", ["weights"])


def mixed_log_probabilities(logits: Tensor, copies: Copies) -> Tensor:
    """log p of every word: logits (B, R, V) → (B, R, V + X), X words that only the sources of the batch hold.

    −∞ for those of them that are in another source of the batch.
    """
    size, rows = logits.shape[-1], copies.weights.shape[1]
    extra = max(0, int(copies.tokens.max()) + 1 - size)
    places = copies.tokens[:, None].expand(-1, rows, -1)  # (B, R, S)
    copied = copies.weights.new_zeros(*logits.shape[:2], size + extra).scatter_add(2, places, copies.weights)
    written = logits.float().log_softmax(-1)
    if extra:
        written = torch.cat([written, written.new_full((*written.shape[:2], extra), _NEVER)], dim=-1)
    logs = torch.logaddexp(
        logsigmoid(copies.gate)[..., None] + written,
        logsigmoid(-copies.gate)[..., None] + copied.clamp(min=_TINY).log(),  # where nothing is copied, next to nothing
    )
    if extra:
        here = torch.zeros(len(logits), size + extra, dtype=torch.bool, device=logits.device)
        here = here.scatter(1, copies.tokens, True)
        here[:, :size] = True
        logs = logs.masked_fill(~here[:, None], _NEVER)
    return logs


def mixed_log_probability(written: Tensor, gate: Tensor, copied: Tensor, size: int, wanted: Tensor) -> Tensor:
    """log p of the words wanted (…,), from log P_vocab of each, the gate, and the sum of a where it stands: (…,) each.

    `written` may be anything for a word past the end of the vocabulary.
    """
    generated = torch.where(wanted < size, logsigmoid(gate) + written, _NEVER)
    return torch.logaddexp(generated, logsigmoid(-gate) + copied.clamp(min=_TINY).log())
