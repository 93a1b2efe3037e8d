"""Attention over packed batches of short sequences on CUDA, as Triton kernels.

Sentences have some thirty tokens. Flash kernels work on tiles of 128 rows, so on packed sentences they waste three
quarters of their work, and they took a third of a whole training step; these take tiles of 64 and everything of a
tile stays on the chip. Forward keeps the log-sum-exp of each row; backward recomputes the weights from it, once for
the queries' gradient and once for the keys' and values' (Dao et al. 2022, with sequences found through offsets).

    O = softmax(Q Kᵀ · scale) V,  P = exp(Q Kᵀ · scale − lse),  δ = rowsum(dO ∘ O)
    dV = Pᵀ dO,  dS = P ∘ (dO Vᵀ − δ),  dQ = dS K · scale,  dK = dSᵀ Q · scale
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, library

from sightline.layers.layout import Packed

_ROWS, _WARPS = 64, 4  # of a tile


@triton.jit
def _forward(
    q, k, v, out, lse, q_offsets, k_offsets, q_stride, k_stride, v_stride, heads,
    SCALE: tl.constexpr, CAUSAL: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """One tile of queries of one sequence and head."""
    tile, sequence, head = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    q_start, q_end = tl.load(q_offsets + sequence), tl.load(q_offsets + sequence + 1)
    k_start, k_end = tl.load(k_offsets + sequence), tl.load(k_offsets + sequence + 1)
    first = tile * ROWS
    if first >= q_end - q_start:
        return
    row, column, feature = tl.arange(0, ROWS), tl.arange(0, ROWS), tl.arange(0, WIDTH)
    rows = q_start + first + row
    real = rows < q_end
    at = head * WIDTH + feature
    queries = tl.load(q + rows[:, None].to(tl.int64) * q_stride + at[None, :], mask=real[:, None], other=0.0)
    best = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    result = tl.zeros([ROWS, WIDTH], tl.float32)
    stop = k_end - k_start
    if CAUSAL:
        stop = tl.minimum(stop, first + ROWS)
    for start in range(0, stop, ROWS):
        columns = k_start + start + column
        seen = columns < k_end
        places = columns[:, None].to(tl.int64)
        keys = tl.load(k + places * k_stride + at[None, :], mask=seen[:, None], other=0.0)
        values = tl.load(v + places * v_stride + at[None, :], mask=seen[:, None], other=0.0)
        scores = tl.dot(queries, tl.trans(keys)) * SCALE
        visible = seen[None, :]
        if CAUSAL:
            visible = visible & ((first + row)[:, None] >= (start + column)[None, :])
        scores = tl.where(visible, scores, -float("inf"))
        peak = tl.maximum(best, tl.max(scores, 1))
        weights = tl.exp(scores - peak[:, None])
        shrink = tl.exp(best - peak)
        total = total * shrink + tl.sum(weights, 1)
        result = result * shrink[:, None] + tl.dot(weights.to(values.dtype), values)
        best = peak
    safe = tl.where(total > 0, total, 1.0)
    result = result / safe[:, None]
    places = rows[:, None].to(tl.int64) * (heads * WIDTH) + at[None, :]
    tl.store(out + places, result.to(out.dtype.element_ty), mask=real[:, None])
    tl.store(lse + rows.to(tl.int64) * heads + head, tl.where(total > 0, best + tl.log(safe), 0.0), mask=real)


@triton.jit
def _backward_queries(
    q, k, v, out, grad, lse, dq, q_offsets, k_offsets, q_stride, k_stride, v_stride, heads,
    SCALE: tl.constexpr, CAUSAL: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """dQ of one tile of queries."""
    tile, sequence, head = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    q_start, q_end = tl.load(q_offsets + sequence), tl.load(q_offsets + sequence + 1)
    k_start, k_end = tl.load(k_offsets + sequence), tl.load(k_offsets + sequence + 1)
    first = tile * ROWS
    if first >= q_end - q_start:
        return
    row, column, feature = tl.arange(0, ROWS), tl.arange(0, ROWS), tl.arange(0, WIDTH)
    rows = q_start + first + row
    real = rows < q_end
    at = head * WIDTH + feature
    queries = tl.load(q + rows[:, None].to(tl.int64) * q_stride + at[None, :], mask=real[:, None], other=0.0)
    own = rows[:, None].to(tl.int64) * (heads * WIDTH) + at[None, :]
    outputs = tl.load(out + own, mask=real[:, None], other=0.0)
    grads = tl.load(grad + own, mask=real[:, None], other=0.0)
    delta = tl.sum(outputs.to(tl.float32) * grads.to(tl.float32), 1)
    whole = tl.load(lse + rows.to(tl.int64) * heads + head, mask=real, other=0.0)
    result = tl.zeros([ROWS, WIDTH], tl.float32)
    stop = k_end - k_start
    if CAUSAL:
        stop = tl.minimum(stop, first + ROWS)
    for start in range(0, stop, ROWS):
        columns = k_start + start + column
        seen = columns < k_end
        places = columns[:, None].to(tl.int64)
        keys = tl.load(k + places * k_stride + at[None, :], mask=seen[:, None], other=0.0)
        values = tl.load(v + places * v_stride + at[None, :], mask=seen[:, None], other=0.0)
        visible = seen[None, :] & real[:, None]
        if CAUSAL:
            visible = visible & ((first + row)[:, None] >= (start + column)[None, :])
        scores = tl.where(visible, tl.dot(queries, tl.trans(keys)) * SCALE, -float("inf"))
        weights = tl.exp(scores - whole[:, None])
        change = weights * (tl.dot(grads, tl.trans(values)) - delta[:, None]) * SCALE
        result += tl.dot(change.to(keys.dtype), keys)
    tl.store(dq + own, result.to(dq.dtype.element_ty), mask=real[:, None])


@triton.jit
def _backward_keys(
    q, k, v, out, grad, lse, dk, dv, q_offsets, k_offsets, q_stride, k_stride, v_stride, heads,
    SCALE: tl.constexpr, CAUSAL: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """dK and dV of one tile of keys."""
    tile, sequence, head = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    q_start, q_end = tl.load(q_offsets + sequence), tl.load(q_offsets + sequence + 1)
    k_start, k_end = tl.load(k_offsets + sequence), tl.load(k_offsets + sequence + 1)
    first = tile * ROWS
    if first >= k_end - k_start:
        return
    row, column, feature = tl.arange(0, ROWS), tl.arange(0, ROWS), tl.arange(0, WIDTH)
    columns = k_start + first + column
    seen = columns < k_end
    at = head * WIDTH + feature
    places = columns[:, None].to(tl.int64)
    keys = tl.load(k + places * k_stride + at[None, :], mask=seen[:, None], other=0.0)
    values = tl.load(v + places * v_stride + at[None, :], mask=seen[:, None], other=0.0)
    result_k = tl.zeros([ROWS, WIDTH], tl.float32)
    result_v = tl.zeros([ROWS, WIDTH], tl.float32)
    begin = 0
    if CAUSAL:
        begin = first
    for start in range(begin, q_end - q_start, ROWS):
        rows = q_start + start + row
        real = rows < q_end
        queries = tl.load(q + rows[:, None].to(tl.int64) * q_stride + at[None, :], mask=real[:, None], other=0.0)
        own = rows[:, None].to(tl.int64) * (heads * WIDTH) + at[None, :]
        outputs = tl.load(out + own, mask=real[:, None], other=0.0)
        grads = tl.load(grad + own, mask=real[:, None], other=0.0)
        delta = tl.sum(outputs.to(tl.float32) * grads.to(tl.float32), 1)
        whole = tl.load(lse + rows.to(tl.int64) * heads + head, mask=real, other=0.0)
        visible = seen[None, :] & real[:, None]
        if CAUSAL:
            visible = visible & ((start + row)[:, None] >= (first + column)[None, :])
        scores = tl.where(visible, tl.dot(queries, tl.trans(keys)) * SCALE, -float("inf"))
        weights = tl.exp(scores - whole[:, None])
        result_v += tl.dot(tl.trans(weights).to(grads.dtype), grads)
        change = weights * (tl.dot(grads, tl.trans(values)) - delta[:, None]) * SCALE
        result_k += tl.dot(tl.trans(change).to(queries.dtype), queries)
    own = places * (heads * WIDTH) + at[None, :]
    tl.store(dk + own, result_k.to(dk.dtype.element_ty), mask=seen[:, None])
    tl.store(dv + own, result_v.to(dv.dtype.element_ty), mask=seen[:, None])


def _arguments(q: Tensor, k: Tensor, v: Tensor, q_offsets: Tensor, k_offsets: Tensor) -> tuple[Any, ...]:
    return q_offsets, k_offsets, q.stride(0), k.stride(0), v.stride(0), q.shape[1]


def _grid(longest: int, sequences: int, heads: int) -> tuple[int, int, int]:
    return triton.cdiv(longest, _ROWS), sequences, heads


@library.triton_op("sightline::short_attention", mutates_args=())
def short_attention(
    q: Tensor, k: Tensor, v: Tensor, q_offsets: Tensor, k_offsets: Tensor, q_longest: int, k_longest: int,
    scale: float, causal: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(N, H, Dh) queries, (M, H, Dh) keys and values → output (N, H, Dh) and log-sum-exp (N, H)."""
    out = q.new_empty(q.shape)
    lse = q.new_empty(q.shape[:2], dtype=torch.float32)
    library.wrap_triton(_forward)[_grid(q_longest, len(q_offsets) - 1, q.shape[1])](
        q, k, v, out, lse, *_arguments(q, k, v, q_offsets, k_offsets),
        SCALE=scale, CAUSAL=causal, WIDTH=q.shape[2], ROWS=_ROWS, num_warps=_WARPS,
    )  # fmt: skip
    return out, lse


@library.triton_op("sightline::short_attention_backward", mutates_args=())
def short_attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, q_offsets: Tensor, k_offsets: Tensor,
    q_longest: int, k_longest: int, scale: float, causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of queries, keys and values."""
    dq, dk, dv = q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)
    sequences, heads = len(q_offsets) - 1, q.shape[1]
    rest = _arguments(q, k, v, q_offsets, k_offsets)
    grad = grad.contiguous()
    library.wrap_triton(_backward_queries)[_grid(q_longest, sequences, heads)](
        q, k, v, out, grad, lse, dq, *rest, SCALE=scale, CAUSAL=causal, WIDTH=q.shape[2], ROWS=_ROWS, num_warps=_WARPS
    )
    library.wrap_triton(_backward_keys)[_grid(k_longest, sequences, heads)](
        q,
        k,
        v,
        out,
        grad,
        lse,
        dk,
        dv,
        *rest,
        SCALE=scale,
        CAUSAL=causal,
        WIDTH=q.shape[2],
        ROWS=_ROWS,
        num_warps=_WARPS,
    )
    return dq, dk, dv


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, q_offsets, k_offsets, *ctx.rest = inputs
    ctx.save_for_backward(q, k, v, *output, q_offsets, k_offsets)


def _backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
    q, k, v, out, lse, q_offsets, k_offsets = ctx.saved_tensors
    grads = short_attention_backward(grad, q, k, v, out, lse, q_offsets, k_offsets, *ctx.rest)
    return (*grads, None, None, None, None, None, None)


short_attention.register_autograd(_backward, setup_context=_save)


def attend_short(
    query: Tensor, key: Tensor, value: Tensor, queries: Packed, keys: Packed, scale: float, causal: bool
) -> Tensor:
    """(N, H, Dh) → (N, H, Dh): the packed kernel for short sequences."""
    output: Tensor = short_attention(
        query, key, value, queries.offsets, keys.offsets, queries.longest, keys.longest, scale, causal
    )[0]
    return output
