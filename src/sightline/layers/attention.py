"""Attention: one function with several kernels.

    e = score(q, k) + bias,  α = softmax(e) over the keys that the mask allows,  output = Σ α v

Multi-head attention (multi_head.py) and the cross-attention of recurrent and convolutional decoders call `attend`.
Parity tests hold every kernel to the explicit one, which follows the formula and is the only one that returns weights.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from sightline.layers import kernels
from sightline.layers.layout import Layout, Packed
from sightline.layers.scores import AttentionScore
from sightline.layers.tap import Tap

# Thresholds between kernels, measured on two CPU cores and on one H200.
_SHORT_ON_CPU = 40  # CPU: the explicit kernel is faster than the fused one up to this number of keys
_MANY_ON_CPU = 128  # ... if B · H is at least this
_FEW = 16  # CUDA: one program per query is faster than tiles up to this number of queries
_MANY_ON_CUDA = 1_024  # ... if B · H · T is at least this
_SHORT = 256  # CUDA: tiles of 64 are faster than flash attention's 128 up to this length
_SHORT_WIDTHS = (16, 32, 64, 128)  # head widths of the Triton kernels
_WIDEST = 256  # maximum head width of PyTorch's variable-length kernel
_LOOPED = 400  # CPU: PyTorch's batched product is a plain loop below this number of multiplications per matrix
_VECTOR = 16  # CPU: PyTorch's softmax is not vectorized for rows shorter than this


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    score: AttentionScore,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
    layout: tuple[Layout, Layout] | None = None,
    tap: Tap | None = None,
) -> Tensor:
    """softmax(score(query, key) + bias) value.

    Shapes without `layout`: query (B, H, T, Dh), prepared key and value (B, G, S, Dh) → (B, H, T, Dh). Each of the
    G ≤ H heads of keys serves H/G heads of queries (Ainslie et al. 2023). `mask` (True: visible) and `bias` broadcast
    to (B, H, T, S); `causal` hides later keys. With `layout` = (layout of the queries, layout of the keys): query
    (B, T, H, Dh) or (N, H, Dh), key and value likewise → the shape of the query.

    Kernels:
    - explicit: any score, and the only one with a tap; on the CPU also for few keys
    - PyTorch's scaled_dot_product_attention: dot products on the CPU, and padded batches on CUDA
    - kernels/step_attention.py: decoding steps (a few queries) on CUDA
    - kernels/short_attention.py: packed short sequences on CUDA; PyTorch's varlen_attn for packed long ones
    """
    if layout is None:
        return _attend_padded(query, key, value, score, mask, bias, causal, dropout, tap)
    queries, keys = layout
    if isinstance(queries, Packed) and isinstance(keys, Packed) and mask is None and bias is None and tap is None:
        if _fits_packed_kernel(query, score, dropout):
            return _attend_packed(query, key, value, score, queries, keys, causal)
    # padding is at the end, where causal self-attention hides it from all real tokens
    unmasked = causal and tap is None and isinstance(keys, Packed) and queries is keys
    padding_mask = None if unmasked else keys.key_mask()  # (B, S)
    mask = combine_masks(mask, None if padding_mask is None else padding_mask[:, None, None, :])
    query, key, value = queries.pad_heads(query), keys.pad_heads(key), keys.pad_heads(value)  # (B, H, ·, Dh)
    output = _attend_padded(query, key, value, score, mask, bias, causal, dropout, tap)
    return queries.unpad(output.transpose(1, 2))


def _attend_padded(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score: AttentionScore,
    mask: Tensor | None,
    bias: Tensor | None,
    causal: bool,
    dropout: float,
    tap: Tap | None,
) -> Tensor:
    """(B, H, T, Dh) → (B, H, T, Dh): fused kernels for dot products without a tap, else the explicit one."""
    many = query.shape[0] * query.shape[1] >= _MANY_ON_CPU or torch.is_grad_enabled()
    short = query.device.type == "cpu" and key.shape[-2] <= _SHORT_ON_CPU and many
    if tap is not None or score.fused_scale is None or query.shape[-2] == 0 or short:
        if causal:
            mask = combine_masks(mask, causal_mask(query.shape[-2], key.shape[-2], query.device))
        return explicit_attention(query, key, value, score, mask, bias, dropout, tap)
    if bias is None and not causal and not dropout and _fits_step_kernel(query, key, value):
        from sightline.layers.kernels.step_attention import attend_in_step

        return attend_in_step(query, key, value, mask, score.fused_scale)
    if causal and (mask is not None or bias is not None or query.shape[-2] != key.shape[-2]):
        mask, causal = combine_masks(mask, causal_mask(query.shape[-2], key.shape[-2], query.device)), False
    if bias is not None:  # the fused kernel takes a float mask of the query's dtype
        bias = bias.to(query.dtype)
        mask = bias if mask is None else bias.masked_fill(~mask, float("-inf"))
    grouped = key.shape[1] != query.shape[1]
    if grouped and not _supports_grouped_heads(query, mask):
        key, value = (repeat_heads(part, query.shape[1], 1) for part in (key, value))
        grouped = False
    return nn.functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        dropout_p=dropout,
        is_causal=causal,
        scale=score.fused_scale,
        enable_gqa=grouped,
    )


def _fits_step_kernel(query: Tensor, key: Tensor, value: Tensor) -> bool:
    return (
        kernels.supports_triton(query)
        and not torch.is_grad_enabled()
        and query.shape[-2] <= _FEW
        and query.shape[:-1].numel() >= _MANY_ON_CUDA
        and query.shape[-1] in _SHORT_WIDTHS
        and all(part.stride(-1) == 1 for part in (query, key, value))
    )


def _supports_grouped_heads(query: Tensor, mask: Tensor | None) -> bool:
    """True on the CPU; on CUDA for flash attention only: half precision without a mask."""
    half = query.dtype in (torch.bfloat16, torch.float16)
    return query.device.type == "cpu" or (query.device.type == "cuda" and half and mask is None)


def causal_mask(queries: int, keys: int, device: torch.device) -> Tensor:
    """(T, S), True where key s is visible to query t; the last query is aligned with the last key."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def combine_masks(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """first ∧ second; None: everything is visible."""
    if first is None or second is None:
        return first if second is None else second
    return first & second


def repeat_heads(heads: Tensor, count: int, axis: int) -> Tensor:
    """(…, G, …) → (…, H, …): repeat each head for its group of H/G queries."""
    groups = heads.shape[axis]
    return heads if groups == count else heads.repeat_interleave(count // groups, axis)


# --- the explicit kernel ----------------------------------------------------------------------------------------------


def explicit_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score: AttentionScore,
    mask: Tensor | None,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    tap: Tap | None = None,
) -> Tensor:
    """Attention by the formula: scores and weights (B, H, T, S), output (B, H, T, Dh)."""
    groups = key.shape[1]
    scores = score(_group_queries(query, groups), key)  # (B, G, H/G · T, S)
    if groups != query.shape[1]:
        scores = scores.view(*query.shape[:3], key.shape[-2])  # (B, H, T, S)
    unbiased = scores
    if bias is not None:
        scores = scores + bias
    if tap is not None:
        scores = _tap_scores(query, key, score, bias, unbiased, scores, tap)
    if score.softmax:
        weights = masked_softmax(scores, mask)
    elif mask is None:
        weights = scores / max(scores.shape[-1], 1)
    else:
        visible = mask.expand(*mask.shape[:-1], scores.shape[-1])
        weights = scores.masked_fill(~visible, 0.0) / visible.sum(-1, keepdim=True).clamp(min=1)
    if tap is not None:
        weights = _tap_weights(score, mask, scores, weights, tap)
    if dropout:
        weights = nn.functional.dropout(weights, dropout)
    output = weighted_sum(_group_queries(weights, groups), value)  # (B, G, H/G · T, Dh)
    if groups != query.shape[1]:
        output = output.view(*query.shape[:3], value.shape[-1])  # (B, H, T, Dh)
    return output if tap is None else tap("context", output, "Σ weights · value", ["weights", "value"])


def weighted_sum(weights: Tensor, value: Tensor) -> Tensor:
    """Σ_s α_s v_s: (…, T, S) and (…, S, Dh) → (…, T, Dh).

    In decoding steps on the CPU with few keys, an elementwise product and a sum take less than half the time of
    PyTorch's batched product.
    """
    small = weights.shape[-2] == 1 and 0 < weights.shape[-1] * value.shape[-1] < _LOOPED
    if small and weights.device.type == "cpu" and not torch.is_grad_enabled():
        return (weights.mT * value).sum(-2, keepdim=True)
    return weights @ value


def _group_queries(rows: Tensor, groups: int) -> Tensor:
    """(B, H, T, ·) → (B, G, H/G · T, ·): concatenate the queries of the heads that share keys."""
    return rows if rows.shape[1] == groups else rows.unflatten(1, (groups, -1)).flatten(2, 3)


class ShortSoftmax(torch.autograd.Function):
    """Softmax over a short last axis on the CPU; rows of −∞ give zeros.

    Elementwise operations over all rows take a quarter of the time of PyTorch's softmax, which is not vectorized for
    rows this short.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        highest = scores.amax(-1, keepdim=True).clamp_(min=torch.finfo(scores.dtype).min)  # −∞ − (−∞) is NaN
        weights = (scores - highest).exp_()
        weights /= weights.sum(-1, keepdim=True).clamp_(min=torch.finfo(scores.dtype).tiny)
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (weights,) = ctx.saved_tensors
        product = grad * weights
        result: Tensor = product.sub_(weights * product.sum(-1, keepdim=True))
        return result


def masked_softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax of finite scores over the last axis where `mask` is True; rows without a visible key give zeros."""
    eager_cpu = scores.device.type == "cpu" and scores.dtype == torch.float32 and not torch.compiler.is_compiling()
    if eager_cpu and 0 < scores.shape[-1] < _VECTOR:
        hidden = scores if mask is None else scores.masked_fill(~mask, float("-inf"))
        return ShortSoftmax.apply(hidden)  # type: ignore[no-untyped-call]
    if mask is None:
        return torch.softmax(scores, dim=-1)
    if eager_cpu and not torch.is_grad_enabled() and bool(mask.any(-1).all()):
        return torch.softmax(scores.masked_fill(~mask, float("-inf")), dim=-1)
    # _safe_softmax has no correct gradient where CUDA's autocast converts its input to float32
    wide = scores.float() if scores.dtype in (torch.bfloat16, torch.float16) else scores
    return torch._safe_softmax(wide.masked_fill(~mask, float("-inf")), dim=-1).to(scores.dtype)


def _tap_scores(
    query: Tensor, key: Tensor, score: AttentionScore, bias: Tensor | None, unbiased: Tensor, scores: Tensor, tap: Tap
) -> Tensor:
    """Tap the products Q Kᵀ, their scaled values, the bias and the sum; returns the scores."""
    formula = score.formula
    if score.scale != 1.0:
        formula, heads = "Q Kᵀ / √d_k", repeat_heads(key, query.shape[1], 1)
        factors = {"a": query, "b": heads.mT}
        products = tap("products", unbiased / score.scale, "Q Kᵀ", ["query", "key"], "matmul", factors)
        scaled = {"a": products, "b": score.scale}
        if bias is None:
            return tap("scores", scores, formula, ["products"], "multiply", scaled)
        unbiased = tap("scaled", unbiased, formula, ["products"], "multiply", scaled)
    if bias is None:
        return tap("scores", scores, formula, ["query", "key"])
    tap("bias", bias, "b(distance)")
    return tap("scores", scores, f"{formula} + bias", ["bias"], "add", {"a": unbiased, "b": bias})


def _tap_weights(score: AttentionScore, mask: Tensor | None, scores: Tensor, weights: Tensor, tap: Tap) -> Tensor:
    """Tap masked scores and weights; returns the weights."""
    if not score.softmax:
        return tap("weights", weights, "scores / N", ["scores"], "mean_over_visible", {"x": scores, "visible": mask})
    masked, source = scores, "scores"
    if mask is not None:
        source = "masked"
        masked = tap("masked", scores.masked_fill(~mask, float("-inf")), "scores, −∞ where masked", ["scores"])
    return tap("weights", weights, f"softmax({source})", [source], "softmax", {"x": masked})


# --- packed batches on CUDA -------------------------------------------------------------------------------------------


def _fits_packed_kernel(query: Tensor, score: AttentionScore, dropout: float) -> bool:
    return (
        query.device.type == kernels.DEVICE
        and score.fused_scale is not None
        and dropout == 0.0
        and query.dtype in (torch.bfloat16, torch.float16)
        and packed_width(query.shape[-1])
    )


def packed_width(width: int) -> bool:
    """True if the kernels for packed batches support this head width."""
    return width <= _WIDEST and width % 8 == 0


def _attend_packed(
    query: Tensor, key: Tensor, value: Tensor, score: AttentionScore, queries: Packed, keys: Packed, causal: bool
) -> Tensor:
    """(N, H, Dh) → (N, H, Dh): our kernel for short sequences, PyTorch's variable-length kernel for long ones.

    Grouped heads of keys are repeated: neither kernel supports them in all versions of PyTorch.
    """
    key, value = (repeat_heads(part, query.shape[1], 1) for part in (key, value))
    width, scale = query.shape[-1], score.fused_scale
    assert scale is not None
    contiguous = all(part.stride(1) == width and part.stride(2) == 1 for part in (query, key, value))
    aligned = not causal or queries.offsets is keys.offsets  # our kernel aligns first queries with first keys
    short = max(queries.longest, keys.longest) <= _SHORT and width in _SHORT_WIDTHS
    if contiguous and aligned and short and kernels.supports_triton(query):
        from sightline.layers.kernels.short_attention import attend_short

        return attend_short(query, key, value, queries, keys, scale, causal)
    from torch.nn.attention.varlen import varlen_attn

    window = (-1, 0 if causal else -1)
    output = varlen_attn(
        query, key, value, queries.offsets, keys.offsets, queries.longest, keys.longest, scale=scale, window_size=window
    )
    assert isinstance(output, Tensor)
    return output


def in_autocast(x: Tensor) -> Tensor:
    """Cast x to the dtype that a projection would give it under autocast."""
    kind = x.device.type
    lowered = x.dtype == torch.float32 and torch.is_autocast_enabled(kind)
    return x.to(torch.get_autocast_dtype(kind)) if lowered else x
