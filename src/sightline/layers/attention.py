"""Attention: one function, one definition, several kernels.

    e = score(q, k) + bias,  α = softmax(e) over the keys that the mask allows,  output = Σ α v

`attend` is called by the recurrent decoders' cross-attention, by multi-head attention (multi_head.py) and by
convolutional decoders. Parity tests hold every kernel to the explicit one, which is the formula and the only one that
has weights to show.
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

# Limits between kernels, measured: on two CPU cores and on one H200.
_SHORT_ON_CPU = 40  # the most keys for which the explicit kernel beats the fused one on the CPU
_MANY_ON_CPU = 128  # ... with at least so many heads of sentences; fewer are done before the calls are made
_FEW = 16  # the most queries for which one program per query beats tiles on CUDA
_MANY_ON_CUDA = 1_024  # ... with at least so many queries over all heads and sentences
_SHORT = 256  # the longest sequence for which tiles of 64 beat the 128 of flash attention on CUDA
_SHORT_WIDTHS = (16, 32, 64, 128)  # head widths of our kernels: powers of two that a matrix unit likes
_WIDEST = 256  # the widest head of PyTorch's variable-length kernel
_LOOPED = 400  # multiplications of a matrix below which PyTorch's batched product on the CPU is a plain loop


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

    Shapes without a layout: query (B, H, T, Dh), prepared key and value (B, G, S, Dh) → (B, H, T, Dh). G = H, or fewer
    heads that groups of H/G queries share (Ainslie et al. 2023). `mask` (True: visible) and `bias` broadcast to
    (B, H, T, S); `causal` hides later keys. With `layout` (of the queries, of the keys): query (B, T, H, Dh) or
    (N, H, Dh), key and value likewise → as the query.

    Kernels:
    - explicit: every score; with a tap, which gets scores and weights; on the CPU for few keys
    - PyTorch's scaled dot product attention (fused): dot products on the CPU, and padded batches on CUDA
    - ours for decoding steps on CUDA: a few queries each (kernels/step_attention.py)
    - ours for packed short sequences on CUDA (kernels/short_attention.py), PyTorch's varlen_attn for packed long ones
    """
    if layout is None:
        return _attend_padded(query, key, value, score, mask, bias, causal, dropout, tap)
    queries, keys = layout
    if isinstance(queries, Packed) and isinstance(keys, Packed) and mask is None and bias is None and tap is None:
        if _packed_fits(query, score, dropout):
            return _attend_packed(query, key, value, score, queries, keys, causal)
    # in packed self-attention no query precedes padding, so a causal kernel needs no mask
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
    """The kernels for (B, H, T, Dh): fused for dot products without a tap, else explicit."""
    many = query.shape[0] * query.shape[1] >= _MANY_ON_CPU or torch.is_grad_enabled()
    short = query.device.type == "cpu" and key.shape[-2] <= _SHORT_ON_CPU and many
    if tap is not None or score.fused_scale is None or query.shape[-2] == 0 or short:
        if causal:
            mask = combine_masks(mask, causal_mask(query.shape[-2], key.shape[-2], query.device))
        return explicit_attention(query, key, value, score, mask, bias, dropout, tap)
    if bias is None and not causal and not dropout and _step_fits(query, key, value):
        from sightline.layers.kernels.step_attention import attend_in_step

        return attend_in_step(query, key, value, mask, score.fused_scale)
    if causal and (mask is not None or bias is not None or query.shape[-2] != key.shape[-2]):
        mask, causal = combine_masks(mask, causal_mask(query.shape[-2], key.shape[-2], query.device)), False
    if bias is not None:  # the fused kernel takes it as a mask of numbers, in the queries' precision
        bias = bias.to(query.dtype)
        mask = bias if mask is None else bias.masked_fill(~mask, float("-inf"))
    grouped = key.shape[1] != query.shape[1]
    if grouped and not _fused_groups(query, mask):
        key, value, grouped = *(repeat_heads(part, query.shape[1], 1) for part in (key, value)), False
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


def _step_fits(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether our kernel for decoding steps takes these."""
    return (
        kernels.triton_takes(query)
        and not torch.is_grad_enabled()
        and query.shape[-2] <= _FEW
        and query.shape[:-1].numel() >= _MANY_ON_CUDA
        and query.shape[-1] in _SHORT_WIDTHS
        and all(part.stride(-1) == 1 for part in (query, key, value))
    )


def _fused_groups(query: Tensor, mask: Tensor | None) -> bool:
    """Whether a fused kernel takes fewer heads of keys; on CUDA only flash does, in half precision without a mask."""
    half = query.dtype in (torch.bfloat16, torch.float16)
    return query.device.type == "cpu" or (query.device.type == "cuda" and half and mask is None)


def causal_mask(queries: int, keys: int, device: torch.device) -> Tensor:
    """(T, S), True where key s ≤ query t; the last query is at the last key."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def combine_masks(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """Visible in both; None: everything is visible."""
    if first is None or second is None:
        return first if second is None else second
    return first & second


def repeat_heads(heads: Tensor, count: int, axis: int) -> Tensor:
    """(…, G, …) → (…, H, …): each head as often as queries share it, next to each other."""
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
    """The formula: scores and weights (B, H, T, S), output (B, H, T, Dh)."""
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

    PyTorch's batched product on the CPU is a plain loop below 400 multiplications, as for one query and a few keys. Two
    passes over everything take less than half of that.
    """
    small = weights.shape[-2] == 1 and 0 < weights.shape[-1] * value.shape[-1] < _LOOPED
    if small and weights.device.type == "cpu" and not torch.is_grad_enabled():
        return (weights.mT * value).sum(-2, keepdim=True)
    return weights @ value


def _group_queries(rows: Tensor, groups: int) -> Tensor:
    """(B, H, T, ·) → (B, G, H/G · T, ·): for shared keys the queries of several heads are one longer query."""
    return rows if rows.shape[1] == groups else rows.unflatten(1, (groups, -1)).flatten(2, 3)


class ShortSoftmax(torch.autograd.Function):
    """Softmax over a short last axis on the CPU; a row of −∞ alone gives zeros.

    PyTorch's kernel takes row by row, without vector instructions below 16 elements: a quarter of a microsecond a row,
    as much as the products around it. These passes over all rows at once take a quarter of that.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        highest = scores.amax(-1, keepdim=True).clamp_(min=torch.finfo(scores.dtype).min)  # −∞ − −∞ is not a number
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
    """Softmax over the last axis where `mask` is True; a row without a visible key gives zeros, never NaN.

    Scores are finite: only the mask hides keys.
    """
    if _few(scores):
        hidden = scores if mask is None else scores.masked_fill(~mask, float("-inf"))
        result: Tensor = ShortSoftmax.apply(hidden)  # type: ignore[no-untyped-call]
        return result
    if mask is None:
        return torch.softmax(scores, dim=-1)
    if _all_see(scores, mask):
        return torch.softmax(scores.masked_fill(~mask, float("-inf")), dim=-1)
    # in float32 here: CUDA's autocast would widen it inside, where the derivative does not expect it
    wide = scores.float() if scores.dtype in (torch.bfloat16, torch.float16) else scores
    return torch._safe_softmax(wide.masked_fill(~mask, float("-inf")), dim=-1).to(scores.dtype)


def _few(scores: Tensor) -> bool:
    """Whether rows are shorter than a vector register, on the CPU."""
    return _plain(scores) and 0 < scores.shape[-1] < 16


def _all_see(scores: Tensor, mask: Tensor) -> bool:
    """Whether every row has a visible key, where asking the mask is cheaper than looking for NaN."""
    return _plain(scores) and not torch.is_grad_enabled() and bool(mask.any(-1).all())


def _plain(scores: Tensor) -> bool:
    """Float32 on the CPU, outside a compiled graph."""
    return scores.device.type == "cpu" and scores.dtype == torch.float32 and not torch.compiler.is_compiling()


def _tap_scores(
    query: Tensor, key: Tensor, score: AttentionScore, bias: Tensor | None, unbiased: Tensor, scores: Tensor, tap: Tap
) -> Tensor:
    """Tap Q Kᵀ, Q Kᵀ scaled, the bias, and their sum; returns the scores."""
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
    """Tap the masked scores and the weights; returns the weights."""
    if not score.softmax:
        return tap("weights", weights, "scores / N", ["scores"], "mean_over_visible", {"x": scores, "visible": mask})
    masked, source = scores, "scores"
    if mask is not None:
        source = "masked"
        masked = tap("masked", scores.masked_fill(~mask, float("-inf")), "scores, −∞ where masked", ["scores"])
    return tap("weights", weights, f"softmax({source})", [source], "softmax", {"x": masked})


# --- packed batches on CUDA -------------------------------------------------------------------------------------------


def _packed_fits(query: Tensor, score: AttentionScore, dropout: float) -> bool:
    """Whether a kernel for packed batches takes this."""
    return (
        query.device.type == kernels.DEVICE
        and score.fused_scale is not None
        and dropout == 0.0
        and query.dtype in (torch.bfloat16, torch.float16)
        and packed_width(query.shape[-1])
    )


def packed_width(width: int) -> bool:
    """Whether the kernels for packed batches take heads that wide."""
    return width <= _WIDEST and width % 8 == 0


def _attend_packed(
    query: Tensor, key: Tensor, value: Tensor, score: AttentionScore, queries: Packed, keys: Packed, causal: bool
) -> Tensor:
    """(N, H, Dh) without padding: our kernel for short sequences, PyTorch's variable-length one for long ones.

    Shared key heads are repeated: not every supported version of PyTorch has groups here, nor has our kernel.
    """
    key, value = (repeat_heads(part, query.shape[1], 1) for part in (key, value))
    width, scale = query.shape[-1], score.fused_scale
    assert scale is not None
    contiguous = all(part.stride(1) == width and part.stride(2) == 1 for part in (query, key, value))
    aligned = not causal or queries.offsets is keys.offsets  # our kernel counts both from the first token
    short = max(queries.longest, keys.longest) <= _SHORT and width in _SHORT_WIDTHS
    if contiguous and aligned and short and kernels.triton_takes(query):
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
    """x in the precision that a projection would give it under autocast."""
    kind = x.device.type
    lowered = x.dtype == torch.float32 and torch.is_autocast_enabled(kind)
    return x.to(torch.get_autocast_dtype(kind)) if lowered else x
