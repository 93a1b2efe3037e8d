"""Attention of the few queries that a step of a search has, on CUDA, as a Triton kernel.

Each hypothesis asks with one query a head, over some dozens of keys. Tiled kernels take 64 queries at a time, so for
one they do 64 times the work. Here every query is a program of its own that reads the keys and values it may see, and
no others: of a beam's slots only those in the past of its hypothesis.

    o = Σ_s α_s v_s,  α = softmax(q · k_s · scale) over the keys that may be seen; zero where there are none
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_KEYS, _WARPS = 16, 1  # read at a time by one program
_VARYING = ["keys", "m_sentence", "m_head", "m_query", "m_key"]  # from step to step: not worth a kernel for each


@triton.jit(do_not_specialize=_VARYING)
def _forward(
    q, k, v, mask, out, keys, m_sentence, m_head, m_query, m_key,
    q_sentence, q_head, q_query, k_sentence, k_head, k_key, v_sentence, v_head, v_key,
    HEADS: tl.constexpr, SHARED: tl.constexpr, QUERIES: tl.constexpr, SCALE: tl.constexpr, MASKED: tl.constexpr,
    WIDTH: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """One query of one head of one sentence."""
    program = tl.program_id(0)
    query, head = program % QUERIES, (program // QUERIES) % HEADS
    sentence = (program // (QUERIES * HEADS)).to(tl.int64)
    feature, place = tl.arange(0, WIDTH), tl.arange(0, KEYS)
    asked = tl.load(q + sentence * q_sentence + head * q_head + query * q_query + feature).to(tl.float32) * SCALE
    k += sentence * k_sentence + (head // SHARED) * k_head
    v += sentence * v_sentence + (head // SHARED) * v_head
    mask += sentence * m_sentence + head * m_head + query * m_query
    best = tl.full([], -float("inf"), tl.float32)
    total = tl.zeros([], tl.float32)
    result = tl.zeros([WIDTH], tl.float32)
    for start in range(0, keys, KEYS):
        places = (start + place).to(tl.int64)
        seen = places < keys
        if MASKED:
            seen = seen & (tl.load(mask + places * m_key, mask=seen, other=0) != 0)
        rows = seen[:, None]
        known = tl.load(k + places[:, None] * k_key + feature[None, :], mask=rows, other=0.0).to(tl.float32)
        scores = tl.where(seen, tl.sum(known * asked[None, :], 1), -float("inf"))
        peak = tl.maximum(best, tl.max(scores, 0))
        level = tl.where(peak == -float("inf"), 0.0, peak)  # nothing seen so far: all weights are zero
        weights = tl.exp(scores - level)
        shrink = tl.exp(best - level)
        worth = tl.load(v + places[:, None] * v_key + feature[None, :], mask=rows, other=0.0).to(tl.float32)
        result = result * shrink + tl.sum(weights[:, None] * worth, 0)
        total = total * shrink + tl.sum(weights, 0)
        best = peak
    result = result / tl.where(total > 0, total, 1.0)
    place_out = ((sentence * QUERIES + query) * HEADS + head) * WIDTH
    tl.store(out + place_out + feature, result.to(out.dtype.element_ty))


def attend_in_step(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Queries (B, H, T, Dh), keys and values (B, G, S, Dh) → (B, H, T, Dh), stored as (B, T, H, Dh). No gradients.

    The last dimension of each is contiguous; `mask` broadcasts to (B, H, T, S), True where attention is allowed.
    """
    sentences, heads, queries, width = query.shape
    out = query.new_empty(sentences, queries, heads, width)
    shown = query if mask is None else mask.expand(sentences, heads, queries, key.shape[2])
    _forward[(sentences * heads * queries,)](
        query, key, value, shown, out, key.shape[2], *shown.stride(), *query.stride()[:3], *key.stride()[:3],
        *value.stride()[:3], HEADS=heads, SHARED=heads // key.shape[1], QUERIES=queries, SCALE=scale,
        MASKED=mask is not None, WIDTH=width, KEYS=_KEYS, num_warps=_WARPS,
    )  # fmt: skip
    return out.transpose(1, 2)
