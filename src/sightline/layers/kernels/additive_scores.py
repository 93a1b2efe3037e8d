"""Triton kernels for the scores of additive attention on CUDA.

vᵀ tanh(W q + U h) needs Dh intermediate values for each pair of query and key: PyTorch stores a (B, T, S, Dh) tensor
several times, a third of the training step of an LSTM. Here they stay on the chip, and backward recomputes them.

    e_ts = Σ_k v_k h_tsk,  h_tsk = tanh(a_tk + b_sk),  d_tsk = de_ts v_k (1 − h²_tsk)
    da_tk = Σ_s d_tsk,  db_sk = Σ_t d_tsk,  dv_k = Σ_ts de_ts h_tsk
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, library

_KEYS, _WARPS = 16, 4  # forward: keys per iteration, warps
_TILE = (32, 64, 2)  # backward: keys, features and warps of a program; each thread has all keys of a feature
_VARYING = ["queries", "keys"]  # differ between batches: no specialized kernels for their values


@triton.jit
def _tanh(x):
    """1 − 2 / (1 + e^2x), which is 1 where e^2x overflows."""
    return 1.0 - 2.0 / (1.0 + tl.exp(2.0 * x))


@triton.jit(do_not_specialize=_VARYING)
def _forward(a, b, v, out, queries, keys, width, WIDTH: tl.constexpr, KEYS: tl.constexpr):
    """The scores of one query of one sentence."""
    row = tl.program_id(0).to(tl.int64)
    sentence = row // queries
    feature, offset = tl.arange(0, WIDTH), tl.arange(0, KEYS)
    feature_valid = feature < width
    query = tl.load(a + row * width + feature, mask=feature_valid, other=0.0).to(tl.float32)
    weight = tl.load(v + feature, mask=feature_valid, other=0.0).to(tl.float32)
    for start in range(0, keys, KEYS):
        key_valid = start + offset < keys
        places = (sentence * keys + start + offset) * width
        valid = key_valid[:, None] & feature_valid[None, :]
        key = tl.load(b + places[:, None] + feature[None, :], mask=valid, other=0.0)
        hidden = _tanh(query[None, :] + key.to(tl.float32))
        tl.store(out + row * keys + start + offset, tl.sum(hidden * weight[None, :], 1), mask=key_valid)


@triton.jit(do_not_specialize=_VARYING)
def _backward(
    a, b, v, grad, da, db, dv, queries, keys, width, KEYS: tl.constexpr, FEATURES: tl.constexpr,
):  # fmt: skip
    """Gradients of some features of one sentence; the caller sums dv over the sentences."""
    sentence = tl.program_id(0).to(tl.int64)
    feature, offset = tl.program_id(1) * FEATURES + tl.arange(0, FEATURES), tl.arange(0, KEYS)
    feature_valid = feature < width
    weight = tl.load(v + feature, mask=feature_valid, other=0.0).to(tl.float32)
    v_sum = tl.zeros([FEATURES], tl.float32)
    for start in range(0, keys, KEYS):
        key_valid = start + offset < keys
        places = (sentence * keys + start + offset)[:, None] * width + feature[None, :]
        valid = key_valid[:, None] & feature_valid[None, :]
        key = tl.load(b + places, mask=valid, other=0.0).to(tl.float32)
        key_sum = tl.zeros([KEYS, FEATURES], tl.float32)
        for index in range(queries):
            row = sentence * queries + index
            query = tl.load(a + row * width + feature, mask=feature_valid, other=0.0).to(tl.float32)
            de = tl.load(grad + row * keys + start + offset, mask=key_valid, other=0.0)[:, None]
            hidden = _tanh(query[None, :] + key)
            v_sum += tl.sum(de * hidden, 0)
            d = de * (weight[None, :] * (1.0 - hidden * hidden))
            key_sum += d
            query_sum = tl.sum(d, 0)
            if start > 0:
                query_sum += tl.load(da + row * width + feature, mask=feature_valid, other=0.0)
            tl.store(da + row * width + feature, query_sum, mask=feature_valid)
        tl.store(db + places, key_sum, mask=valid)
        tl.debug_barrier()  # da of these keys is stored before the next iteration loads it
    tl.store(dv + sentence * width + feature, v_sum, mask=feature_valid)


@library.triton_op("sightline::additive_scores", mutates_args=())
def additive_scores(a: Tensor, b: Tensor, v: Tensor) -> Tensor:
    """a (B, T, Dh) of the queries, b (B, S, Dh) of the keys, v (Dh,) → scores (B, T, S), float32."""
    a, b, v = a.contiguous(), b.contiguous(), v.contiguous()
    (sentences, queries, width), keys = a.shape, b.shape[1]
    out = a.new_empty(sentences, queries, keys, dtype=torch.float32)
    library.wrap_triton(_forward)[(sentences * queries,)](
        a, b, v, out, queries, keys, width, WIDTH=triton.next_power_of_2(width), KEYS=_KEYS, num_warps=_WARPS
    )
    return out


@library.triton_op("sightline::additive_scores_backward", mutates_args=())
def additive_scores_backward(grad: Tensor, a: Tensor, b: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of a, b and v."""
    grad, a, b, v = (part.contiguous() for part in (grad, a, b, v))
    (sentences, queries, width), keys = a.shape, b.shape[1]
    da, db = (part.new_zeros(part.shape, dtype=torch.float32) for part in (a, b))
    dv = v.new_empty(sentences, width, dtype=torch.float32)
    rows, features, warps = _TILE
    library.wrap_triton(_backward)[(sentences, triton.cdiv(width, features))](
        a, b, v, grad, da, db, dv, queries, keys, width, KEYS=rows, FEATURES=features, num_warps=warps
    )
    return da.to(a.dtype), db.to(b.dtype), dv.sum(0).to(v.dtype)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return additive_scores_backward(grad, *ctx.saved_tensors)


additive_scores.register_autograd(_gradients, setup_context=_save)
