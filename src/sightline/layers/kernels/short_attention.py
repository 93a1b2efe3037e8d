"""Triton kernels for attention over packed batches of short sequences on CUDA.

Flash attention works on tiles of 128 rows; sentences have some thirty tokens. These kernels use tiles of 64 and keep
everything of a tile on the chip. Forward saves the log-sum-exp of each row; backward recomputes the weights from it,
once for dQ and once for dK and dV (Dao et al. 2022, with variable-length sequences located through offsets).

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

_ROWS, _WARPS = 64, 4  # per tile


@triton.jit
def _bounds(q_offsets, k_offsets):
    """Start and end of the queries and of the keys of this program's sequence."""
    sequence = tl.program_id(1)
    q_start, q_end = tl.load(q_offsets + sequence), tl.load(q_offsets + sequence + 1)
    k_start, k_end = tl.load(k_offsets + sequence), tl.load(k_offsets + sequence + 1)
    return q_start, q_end, k_start, k_end


@triton.jit
def _load_tile(x, rows, in_bounds, stride, features):
    """(ROWS, WIDTH): the features of one head, zeros out of bounds."""
    return tl.load(x + rows[:, None].to(tl.int64) * stride + features[None, :], mask=in_bounds[:, None], other=0.0)


@triton.jit
def _load_gradient(out, grad, lse, rows, in_bounds, heads, head, features, WIDTH: tl.constexpr):
    """dO (ROWS, WIDTH), δ (ROWS,) and lse (ROWS,) of a tile of queries."""
    outputs = _load_tile(out, rows, in_bounds, heads * WIDTH, features)
    grads = _load_tile(grad, rows, in_bounds, heads * WIDTH, features)
    delta = tl.sum(outputs.to(tl.float32) * grads.to(tl.float32), 1)
    return grads, delta, tl.load(lse + rows.to(tl.int64) * heads + head, mask=in_bounds, other=0.0)


@triton.jit
def _forward(
    q, k, v, out, lse, q_offsets, k_offsets, q_stride, k_stride, v_stride, heads,
    SCALE: tl.constexpr, CAUSAL: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Output and log-sum-exp of one tile of queries of one sequence and head."""
    head, first = tl.program_id(2), tl.program_id(0) * ROWS
    q_start, q_end, k_start, k_end = _bounds(q_offsets, k_offsets)
    if first >= q_end - q_start:
        return
    row, features = tl.arange(0, ROWS), head * WIDTH + tl.arange(0, WIDTH)
    rows = q_start + first + row
    q_valid = rows < q_end
    queries = _load_tile(q, rows, q_valid, q_stride, features)
    running_max = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    result = tl.zeros([ROWS, WIDTH], tl.float32)
    stop = k_end - k_start
    if CAUSAL:
        stop = tl.minimum(stop, first + ROWS)
    for start in range(0, stop, ROWS):
        columns = k_start + start + row
        k_valid = columns < k_end
        keys = _load_tile(k, columns, k_valid, k_stride, features)
        values = _load_tile(v, columns, k_valid, v_stride, features)
        scores = tl.dot(queries, tl.trans(keys)) * SCALE
        visible = k_valid[None, :]
        if CAUSAL:
            visible = visible & ((first + row)[:, None] >= (start + row)[None, :])
        scores = tl.where(visible, scores, -float("inf"))
        new_max = tl.maximum(running_max, tl.max(scores, 1))
        weights = tl.exp(scores - new_max[:, None])
        rescale = tl.exp(running_max - new_max)
        total = total * rescale + tl.sum(weights, 1)
        result = result * rescale[:, None] + tl.dot(weights.to(values.dtype), values)
        running_max = new_max
    safe = tl.where(total > 0, total, 1.0)
    result = result / safe[:, None]
    places = rows[:, None].to(tl.int64) * (heads * WIDTH) + features[None, :]
    tl.store(out + places, result.to(out.dtype.element_ty), mask=q_valid[:, None])
    tl.store(lse + rows.to(tl.int64) * heads + head, tl.where(total > 0, running_max + tl.log(safe), 0.0), mask=q_valid)


@triton.jit
def _backward_queries(
    q, k, v, out, grad, lse, dq, q_offsets, k_offsets, q_stride, k_stride, v_stride, heads,
    SCALE: tl.constexpr, CAUSAL: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """dQ of one tile of queries."""
    head, first = tl.program_id(2), tl.program_id(0) * ROWS
    q_start, q_end, k_start, k_end = _bounds(q_offsets, k_offsets)
    if first >= q_end - q_start:
        return
    row, features = tl.arange(0, ROWS), head * WIDTH + tl.arange(0, WIDTH)
    rows = q_start + first + row
    q_valid = rows < q_end
    queries = _load_tile(q, rows, q_valid, q_stride, features)
    grads, delta, row_lse = _load_gradient(out, grad, lse, rows, q_valid, heads, head, features, WIDTH)
    result = tl.zeros([ROWS, WIDTH], tl.float32)
    stop = k_end - k_start
    if CAUSAL:
        stop = tl.minimum(stop, first + ROWS)
    for start in range(0, stop, ROWS):
        columns = k_start + start + row
        k_valid = columns < k_end
        keys = _load_tile(k, columns, k_valid, k_stride, features)
        values = _load_tile(v, columns, k_valid, v_stride, features)
        visible = k_valid[None, :] & q_valid[:, None]
        if CAUSAL:
            visible = visible & ((first + row)[:, None] >= (start + row)[None, :])
        scores = tl.where(visible, tl.dot(queries, tl.trans(keys)) * SCALE, -float("inf"))
        weights = tl.exp(scores - row_lse[:, None])
        dscores = weights * (tl.dot(grads, tl.trans(values)) - delta[:, None]) * SCALE
        result += tl.dot(dscores.to(keys.dtype), keys)
    places = rows[:, None].to(tl.int64) * (heads * WIDTH) + features[None, :]
    tl.store(dq + places, result.to(dq.dtype.element_ty), mask=q_valid[:, None])


@triton.jit
def _backward_keys(
    q, k, v, out, grad, lse, dk, dv, q_offsets, k_offsets, q_stride, k_stride, v_stride, heads,
    SCALE: tl.constexpr, CAUSAL: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """dK and dV of one tile of keys."""
    head, first = tl.program_id(2), tl.program_id(0) * ROWS
    q_start, q_end, k_start, k_end = _bounds(q_offsets, k_offsets)
    if first >= k_end - k_start:
        return
    row, features = tl.arange(0, ROWS), head * WIDTH + tl.arange(0, WIDTH)
    columns = k_start + first + row
    k_valid = columns < k_end
    keys = _load_tile(k, columns, k_valid, k_stride, features)
    values = _load_tile(v, columns, k_valid, v_stride, features)
    result_k = tl.zeros([ROWS, WIDTH], tl.float32)
    result_v = tl.zeros([ROWS, WIDTH], tl.float32)
    begin = 0
    if CAUSAL:
        begin = first
    for start in range(begin, q_end - q_start, ROWS):
        rows = q_start + start + row
        q_valid = rows < q_end
        queries = _load_tile(q, rows, q_valid, q_stride, features)
        grads, delta, row_lse = _load_gradient(out, grad, lse, rows, q_valid, heads, head, features, WIDTH)
        visible = k_valid[None, :] & q_valid[:, None]
        if CAUSAL:
            visible = visible & ((start + row)[:, None] >= (first + row)[None, :])
        scores = tl.where(visible, tl.dot(queries, tl.trans(keys)) * SCALE, -float("inf"))
        weights = tl.exp(scores - row_lse[:, None])
        result_v += tl.dot(tl.trans(weights).to(grads.dtype), grads)
        dscores = weights * (tl.dot(grads, tl.trans(values)) - delta[:, None]) * SCALE
        result_k += tl.dot(tl.trans(dscores).to(queries.dtype), queries)
    places = columns[:, None].to(tl.int64) * (heads * WIDTH) + features[None, :]
    tl.store(dk + places, result_k.to(dk.dtype.element_ty), mask=k_valid[:, None])
    tl.store(dv + places, result_v.to(dv.dtype.element_ty), mask=k_valid[:, None])


def _launch(
    kernel: Any, longest: int, q: Tensor, k: Tensor, v: Tensor, *tensors: Tensor, offsets: tuple[Tensor, Tensor],
    scale: float, causal: bool,
) -> None:  # fmt: skip
    heads, width = q.shape[1:]
    library.wrap_triton(kernel)[(triton.cdiv(longest, _ROWS), len(offsets[0]) - 1, heads)](
        q, k, v, *tensors, *offsets, q.stride(0), k.stride(0), v.stride(0), heads,
        SCALE=scale, CAUSAL=causal, WIDTH=width, ROWS=_ROWS, num_warps=_WARPS,
    )  # fmt: skip


@library.triton_op("sightline::short_attention", mutates_args=())
def short_attention(
    q: Tensor, k: Tensor, v: Tensor, q_offsets: Tensor, k_offsets: Tensor, q_longest: int, k_longest: int,
    scale: float, causal: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(N, H, Dh) queries, (M, H, Dh) keys and values → output (N, H, Dh) and log-sum-exp (N, H)."""
    out = q.new_empty(q.shape)
    lse = q.new_empty(q.shape[:2], dtype=torch.float32)
    _launch(_forward, q_longest, q, k, v, out, lse, offsets=(q_offsets, k_offsets), scale=scale, causal=causal)
    return out, lse


@library.triton_op("sightline::short_attention_backward", mutates_args=())
def short_attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, q_offsets: Tensor, k_offsets: Tensor,
    q_longest: int, k_longest: int, scale: float, causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of queries, keys and values."""
    dq, dk, dv = q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)
    inputs = (q, k, v, out, grad.contiguous(), lse)
    offsets = (q_offsets, k_offsets)
    _launch(_backward_queries, q_longest, *inputs, dq, offsets=offsets, scale=scale, causal=causal)
    _launch(_backward_keys, k_longest, *inputs, dk, dv, offsets=offsets, scale=scale, causal=causal)
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
