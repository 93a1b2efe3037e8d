"""Triton kernel for the attention of decoding steps on CUDA.

A decoding step has one query per hypothesis and head, over some dozens of keys; tiled kernels process 64 queries at a
time. Here every query is a program of its own, which loads visible keys and values only: of a beam's slots those of its
hypothesis.

    o = Σ_s α_s v_s,  α = softmax(q · k_s · scale) over the visible keys; o = 0 if there are none
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_KEYS, _WARPS = 16, 1  # keys per iteration, warps
_VARYING = ["keys", "m_sentence", "m_head", "m_query", "m_key"]  # differ between steps: no specialized kernels


@triton.jit(do_not_specialize=_VARYING)
def _forward(
    q, k, v, mask, out, keys, m_sentence, m_head, m_query, m_key,
    q_sentence, q_head, q_query, k_sentence, k_head, k_key, v_sentence, v_head, v_key,
    HEADS: tl.constexpr, SHARED: tl.constexpr, QUERIES: tl.constexpr, SCALE: tl.constexpr, MASKED: tl.constexpr,
    WIDTH: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """One query of one head of one sentence."""
    program = tl.program_id(0)
    index, head = program % QUERIES, (program // QUERIES) % HEADS
    sentence = (program // (QUERIES * HEADS)).to(tl.int64)
    feature, offset = tl.arange(0, WIDTH), tl.arange(0, KEYS)
    query = tl.load(q + sentence * q_sentence + head * q_head + index * q_query + feature).to(tl.float32) * SCALE
    k += sentence * k_sentence + (head // SHARED) * k_head
    v += sentence * v_sentence + (head // SHARED) * v_head
    mask += sentence * m_sentence + head * m_head + index * m_query
    running_max = tl.full([], -float("inf"), tl.float32)
    total = tl.zeros([], tl.float32)
    result = tl.zeros([WIDTH], tl.float32)
    for start in range(0, keys, KEYS):
        places = (start + offset).to(tl.int64)
        visible = places < keys
        if MASKED:
            visible = visible & (tl.load(mask + places * m_key, mask=visible, other=0) != 0)
        rows = visible[:, None]
        key = tl.load(k + places[:, None] * k_key + feature[None, :], mask=rows, other=0.0).to(tl.float32)
        scores = tl.where(visible, tl.sum(key * query[None, :], 1), -float("inf"))
        new_max = tl.maximum(running_max, tl.max(scores, 0))
        shift = tl.where(new_max == -float("inf"), 0.0, new_max)  # no visible key so far: all weights are zero
        weights = tl.exp(scores - shift)
        rescale = tl.exp(running_max - shift)
        value = tl.load(v + places[:, None] * v_key + feature[None, :], mask=rows, other=0.0).to(tl.float32)
        result = result * rescale + tl.sum(weights[:, None] * value, 0)
        total = total * rescale + tl.sum(weights, 0)
        running_max = new_max
    result = result / tl.where(total > 0, total, 1.0)
    row = ((sentence * QUERIES + index) * HEADS + head) * WIDTH
    tl.store(out + row + feature, result.to(out.dtype.element_ty))


def attend_in_step(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Queries (B, H, T, Dh), keys and values (B, G, S, Dh) → (B, H, T, Dh), stored as (B, T, H, Dh). No gradients.

    The last dimension of each is contiguous; `mask` broadcasts to (B, H, T, S), True where attention is allowed.
    """
    sentences, heads, queries, width = query.shape
    out = query.new_empty(sentences, queries, heads, width)
    pointer = query if mask is None else mask.expand(sentences, heads, queries, key.shape[2])
    _forward[(sentences * heads * queries,)](
        query, key, value, pointer, out, key.shape[2], *pointer.stride(), *query.stride()[:3], *key.stride()[:3],
        *value.stride()[:3], HEADS=heads, SHARED=heads // key.shape[1], QUERIES=queries, SCALE=scale,
        MASKED=mask is not None, WIDTH=width, KEYS=_KEYS, num_warps=_WARPS,
    )  # fmt: skip
    return out.transpose(1, 2)
