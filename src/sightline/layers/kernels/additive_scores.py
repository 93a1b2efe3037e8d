"""The scores of additive attention on CUDA, as Triton kernels.

vᵀ tanh(W q + U h) has Dh hidden numbers for each pair of a query and a key. PyTorch's operations write them all down,
(B, T, S, Dh), several times, and took a third of a training step of an LSTM; here they never leave the chip. Backward
computes them once more and makes all three gradients of it on the way.

    e_ts = Σ_k v_k h_tsk,  h_tsk = tanh(a_tk + b_sk),  d_tsk = de_ts v_k (1 − h²_tsk)
    da_tk = Σ_s d_tsk,  db_sk = Σ_t d_tsk,  dv_k = Σ_ts de_ts h_tsk
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, library

_KEYS, _WARPS = 16, 4  # read at a time by one program, forward
_TILE = (32, 64, 2)  # keys, features and warps of one, backward: a thread has all keys of a feature
_VARYING = ["queries", "keys"]  # from batch to batch: not worth a kernel for each


@triton.jit
def _tanh(x):
    """1 − 2 / (1 + e^2x): where e^2x is too large, 1."""
    return 1.0 - 2.0 / (1.0 + tl.exp(2.0 * x))


@triton.jit(do_not_specialize=_VARYING)
def _forward(a, b, v, out, queries, keys, width, WIDTH: tl.constexpr, KEYS: tl.constexpr):
    """The scores of one query of one sentence."""
    row = tl.program_id(0).to(tl.int64)
    sentence = row // queries
    feature, place = tl.arange(0, WIDTH), tl.arange(0, KEYS)
    there = feature < width
    asked = tl.load(a + row * width + feature, mask=there, other=0.0).to(tl.float32)
    weight = tl.load(v + feature, mask=there, other=0.0).to(tl.float32)
    for start in range(0, keys, KEYS):
        seen = start + place < keys
        places = (sentence * keys + start + place) * width
        known = tl.load(b + places[:, None] + feature[None, :], mask=seen[:, None] & there[None, :], other=0.0)
        hidden = _tanh(asked[None, :] + known.to(tl.float32))
        tl.store(out + row * keys + start + place, tl.sum(hidden * weight[None, :], 1), mask=seen)


@triton.jit(do_not_specialize=_VARYING)
def _backward(
    a, b, v, grad, da, db, dv, queries, keys, width, KEYS: tl.constexpr, FEATURES: tl.constexpr,
):  # fmt: skip
    """All gradients of some features of one sentence; that of v is still to be summed over the sentences."""
    sentence = tl.program_id(0).to(tl.int64)
    feature, place = tl.program_id(1) * FEATURES + tl.arange(0, FEATURES), tl.arange(0, KEYS)
    there = feature < width
    weight = tl.load(v + feature, mask=there, other=0.0).to(tl.float32)
    whole = tl.zeros([FEATURES], tl.float32)
    for start in range(0, keys, KEYS):
        seen = start + place < keys
        places = (sentence * keys + start + place)[:, None] * width + feature[None, :]
        real = seen[:, None] & there[None, :]
        known = tl.load(b + places, mask=real, other=0.0).to(tl.float32)
        by_key = tl.zeros([KEYS, FEATURES], tl.float32)
        for query in range(queries):
            row = sentence * queries + query
            asked = tl.load(a + row * width + feature, mask=there, other=0.0).to(tl.float32)
            pull = tl.load(grad + row * keys + start + place, mask=seen, other=0.0)[:, None]
            hidden = _tanh(asked[None, :] + known)
            whole += tl.sum(pull * hidden, 0)
            slope = pull * (weight[None, :] * (1.0 - hidden * hidden))
            by_key += slope
            by_query = tl.sum(slope, 0)
            if start > 0:
                by_query += tl.load(da + row * width + feature, mask=there, other=0.0)
            tl.store(da + row * width + feature, by_query, mask=there)
        tl.store(db + places, by_key, mask=real)
        tl.debug_barrier()  # the sums over these keys are there before those over the next are added
    tl.store(dv + sentence * width + feature, whole, mask=there)


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
    """The gradients of all three."""
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
    gradients: tuple[Tensor, Tensor, Tensor] = additive_scores_backward(grad, *ctx.saved_tensors)
    return gradients


additive_scores.register_autograd(_gradients, setup_context=_save)
