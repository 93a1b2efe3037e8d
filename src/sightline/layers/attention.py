"""Attention: one function, one meaning, several kernels.

    e = score(q, k),  α = softmax(e) over the keys that may be seen,  output = Σ α v

`attend` picks the kernel: the explicit one (every score function; has weights to show), PyTorch's fused
scaled-dot-product kernel, or, on CUDA, our own for the few queries of a step of a search, and for packed batches our
own for short sequences and PyTorch's variable-length one. Parity tests hold them to the explicit one. The recurrent
decoders' attention and the Transformer's heads (multi_head.py) both come through here. Keys and values may have fewer
heads than the queries, which then share them (Ainslie et al. 2023); they are repeated for kernels that cannot share,
and nowhere else.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from sightline.layers import kernels
from sightline.layers.layout import Layout, Packed
from sightline.layers.scores import Score
from sightline.layers.tap import Tap


class ShortSoftmax(torch.autograd.Function):
    """Softmax over a short last axis on the CPU, −∞ anywhere; a row of nothing but −∞ gives zeros.

    PyTorch's kernel takes each row alone, and below 16 elements (a vector of AVX-512) without vectors: a quarter of a
    microsecond a row, which is as much as the products around it. These passes over all rows at once take a quarter.
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
    """Softmax over the last axis where `mask` is True; a row with nothing to see gives zeros, never NaN.

    Scores are finite: what may not be seen is said by the mask.
    """
    if _few(scores):
        hidden = scores if mask is None else scores.masked_fill(~mask, float("-inf"))
        result: Tensor = ShortSoftmax.apply(hidden)  # type: ignore[no-untyped-call]
        return result
    if mask is None:
        return torch.softmax(scores, dim=-1)
    if _all_see(scores, mask):
        return torch.softmax(scores.masked_fill(~mask, float("-inf")), dim=-1)
    # bfloat16 is widened here: CUDA's autocast would do it inside, where the derivative does not expect it
    wide = scores.float() if scores.dtype in (torch.bfloat16, torch.float16) else scores
    return torch._safe_softmax(wide.masked_fill(~mask, float("-inf")), dim=-1).to(scores.dtype)


def _few(scores: Tensor) -> bool:
    """Whether rows are shorter than a vector register, on the CPU."""
    return _plain(scores) and 0 < scores.shape[-1] < 16


def _all_see(scores: Tensor, mask: Tensor) -> bool:
    """Whether no row is without keys, where it is cheaper to ask the mask (all heads have one) than to look for NaN."""
    return _plain(scores) and not torch.is_grad_enabled() and bool(mask.any(-1).all())


def _plain(scores: Tensor) -> bool:
    """Float32 on the CPU, not on its way into a compiled graph."""
    return scores.device.type == "cpu" and scores.dtype == torch.float32 and not torch.compiler.is_compiling()


_SHORT = 256  # on CUDA, the longest sequence for which tiles of 64 beat the flash kernel's 128
_SHORT_WIDTHS = (16, 32, 64, 128)  # of heads, which those tiles take: powers of two that a matrix unit likes
_WIDEST = 256  # the widest head that PyTorch's variable-length kernel takes
_FEW = 16  # on CUDA, the most queries that are better asked one by one than in tiles
_MANY_ON_CUDA = 1_024  # ... when there are so many over all heads of sentences; fewer take longer to ask than to answer
_SHORT_ON_CPU = 40  # there, the most keys for which the explicit kernel beats the fused one (measured on two cores)
_MANY_ON_CPU = 128  # ... when there are so many heads of sentences; a few are done sooner than the calls are made
_LOOPED = 400  # multiplications of a matrix below which PyTorch's batched product has no kernel on the CPU


def causal_mask(queries: int, keys: int, device: torch.device) -> Tensor:
    """(T, S), True where key s ≤ query t, the last query standing at the last key."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def combine_masks(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """Both masks at once."""
    if first is None or second is None:
        return first if second is None else second
    return first & second


def repeat_heads(heads: Tensor, count: int, axis: int) -> Tensor:
    """(…, G, …) → (…, H, …): each head as often as queries share it, one next to the other."""
    groups = heads.shape[axis]
    return heads if groups == count else heads.repeat_interleave(count // groups, axis)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    score: Score,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
    layout: tuple[Layout, Layout] | None = None,
    tap: Tap | None = None,
) -> Tensor:
    """What the queries see in the values.

    Without a layout: query (B, H, T, Dh), prepared key (B, H, S, Dh), value (B, H, S, Dh) → (B, H, T, Dh); `mask`, True
    where a query may look, and `bias`, added to the scores, broadcast to (B, H, T, S). Where key and value have only
    G heads, the queries' first H/G share the first of them, and so on.
    With a layout (of the queries, of the keys): query (B, T, H, Dh) or (N, H, Dh) as it says, and the same comes back.
    With a tap, the explicit kernel runs and shows its scores and weights.
    """
    if layout is None:
        return _attend_heads(query, key, value, score, mask, bias, causal, dropout, tap)
    queries, keys = layout
    if isinstance(queries, Packed) and isinstance(keys, Packed) and mask is None and bias is None and tap is None:
        if _packed_fits(query, score, dropout):
            return _attend_packed(query, key, value, score, queries, keys, causal)
    # of packed sequences no query stands before its keys' padding, so the causal kernel needs no mask for it
    alone = causal and tap is None and isinstance(keys, Packed) and queries is keys
    seen = None if alone else keys.key_mask()  # (B, S)
    seen = combine_masks(mask, None if seen is None else seen[:, None, None, :])
    query, key, value = queries.pad_heads(query), keys.pad_heads(key), keys.pad_heads(value)  # (B, H, ·, Dh)
    output = _attend_heads(query, key, value, score, seen, bias, causal, dropout, tap)
    return queries.unpad(output.transpose(1, 2))


def _attend_heads(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score: Score,
    mask: Tensor | None,
    bias: Tensor | None,
    causal: bool,
    dropout: float,
    tap: Tap | None,
) -> Tensor:
    """The padded kernels: fused if the score is a scaled dot product and nobody listens, else explicit."""
    many = query.shape[0] * query.shape[1] >= _MANY_ON_CPU or torch.is_grad_enabled()
    short = query.device.type == "cpu" and key.shape[-2] <= _SHORT_ON_CPU and many
    if tap is None and score.fused_scale is not None and query.shape[-2] > 0 and not short:
        if bias is None and not causal and not dropout and _step_fits(query, key, value):
            from sightline.layers.kernels.step_attention import attend_in_step

            return attend_in_step(query, key, value, mask, score.fused_scale)
        if causal and (mask is not None or bias is not None):
            mask, causal = combine_masks(mask, causal_mask(query.shape[-2], key.shape[-2], query.device)), False
        elif causal and query.shape[-2] != key.shape[-2]:
            mask, causal = causal_mask(query.shape[-2], key.shape[-2], query.device), False
        if bias is not None:  # the kernel takes it as a mask of numbers, in the queries' precision
            bias = bias.to(query.dtype)
            mask = bias if mask is None else bias.masked_fill(~mask, float("-inf"))
        shared = key.shape[1] != query.shape[1]
        if shared and not _fused_shares(query, mask):
            key, value, shared = *(repeat_heads(part, query.shape[1], 1) for part in (key, value)), False
        return nn.functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            dropout_p=dropout,
            is_causal=causal,
            scale=score.fused_scale,
            enable_gqa=shared,
        )
    if causal:
        mask = combine_masks(mask, causal_mask(query.shape[-2], key.shape[-2], query.device))
    return explicit_attention(query, key, value, score, mask, bias, dropout, tap)


def _step_fits(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether the kernel for a step of a search can take this."""
    return (
        kernels.triton_takes(query)
        and not torch.is_grad_enabled()
        and query.shape[-2] <= _FEW
        and query.shape[:-1].numel() >= _MANY_ON_CUDA
        and query.shape[-1] in _SHORT_WIDTHS
        and all(part.stride(-1) == 1 for part in (query, key, value))
    )


def _fused_shares(query: Tensor, mask: Tensor | None) -> bool:
    """Whether a fused kernel takes keys that heads share; on CUDA only flash does, in half precision with no mask."""
    half = query.dtype in (torch.bfloat16, torch.float16)
    return query.device.type == "cpu" or (query.device.type == "cuda" and half and mask is None)


def _stack(rows: Tensor, groups: int) -> Tensor:
    """(B, H, T, ·) → (B, G, H/G · T, ·): for keys that heads share, another head's queries are further queries."""
    return rows if rows.shape[1] == groups else rows.unflatten(1, (groups, -1)).flatten(2, 3)


def explicit_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score: Score,
    mask: Tensor | None,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    tap: Tap | None = None,
) -> Tensor:
    """The formula as it stands: scores (B, H, T, S), weights (B, H, T, S), output (B, H, T, Dh)."""
    groups = key.shape[1]
    scores = score(_stack(query, groups), key)  # (B, G, H/G · T, S)
    if groups != query.shape[1]:
        scores = scores.view(*query.shape[:3], key.shape[-2])  # (B, H, T, S)
    plain = scores
    if bias is not None:
        scores = scores + bias
    if tap is not None:
        scores = _show_scores(query, key, score, bias, plain, scores, tap)
    if score.softmax:
        weights = masked_softmax(scores, mask)
    elif mask is None:
        weights = scores / max(scores.shape[-1], 1)
    else:
        seen = mask.expand(*mask.shape[:-1], scores.shape[-1])
        weights = scores.masked_fill(~seen, 0.0) / seen.sum(-1, keepdim=True).clamp(min=1)
    if tap is not None:
        weights = _show_weights(score, mask, scores, weights, tap)
    if dropout:
        weights = nn.functional.dropout(weights, dropout)
    output = weighted_sum(_stack(weights, groups), value)  # (B, G, H/G · T, Dh)
    if groups != query.shape[1]:
        output = output.view(*query.shape[:3], value.shape[-1])  # (B, H, T, Dh)
    return output if tap is None else tap("context", output, "Σ weights · value", ["weights", "value"])


def weighted_sum(weights: Tensor, value: Tensor) -> Tensor:
    """Σ_s α_s v_s: (…, T, S) and (…, S, Dh) → (…, T, Dh).

    PyTorch's batched product on the CPU is a plain loop where one has fewer than 400 multiplications: one query that
    sees the first few words. Two whole passes take less than half of that.
    """
    small = weights.shape[-2] == 1 and 0 < weights.shape[-1] * value.shape[-1] < _LOOPED
    if small and weights.device.type == "cpu" and not torch.is_grad_enabled():
        return (weights.mT * value).sum(-2, keepdim=True)
    return weights @ value


def _show_scores(
    query: Tensor, key: Tensor, score: Score, bias: Tensor | None, plain: Tensor, scores: Tensor, tap: Tap
) -> Tensor:
    """Q Kᵀ, the same scaled (`plain`), what the distances add, and the scores made of both."""
    formula = score.formula
    if score.scale != 1.0:
        formula, heads = "Q Kᵀ / √d_k", repeat_heads(key, query.shape[1], 1)
        factors = {"a": query, "b": heads.mT}
        products = tap("products", plain / score.scale, "Q Kᵀ", ["query", "key"], "matmul", factors)
        scaled = {"a": products, "b": score.scale}
        if bias is None:
            return tap("scores", scores, formula, ["products"], "multiply", scaled)
        plain = tap("scaled", plain, formula, ["products"], "multiply", scaled)
    if bias is None:
        return tap("scores", scores, formula, ["query", "key"])
    tap("bias", bias, "b(distance)")
    return tap("scores", scores, f"{formula} + bias", ["bias"], "add", {"a": plain, "b": bias})


def _show_weights(score: Score, mask: Tensor | None, scores: Tensor, weights: Tensor, tap: Tap) -> Tensor:
    """The scores of what may be seen, and the weights made of them; those that a listener may put in their place."""
    if not score.softmax:
        return tap("weights", weights, "scores / N", ["scores"], "mean_over_visible", {"x": scores, "visible": mask})
    seen, source = scores, "scores"
    if mask is not None:
        source = "masked"
        seen = tap("masked", scores.masked_fill(~mask, float("-inf")), "scores, −∞ where nothing is seen", ["scores"])
    return tap("weights", weights, f"softmax({source})", [source], "softmax", {"x": seen})


def _packed_fits(query: Tensor, score: Score, dropout: float) -> bool:
    """Whether a kernel for packed batches can take this."""
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


def in_autocast(x: Tensor) -> Tensor:
    """What stands there, in the precision in which a projection would give it."""
    kind = x.device.type
    lowered = x.dtype == torch.float32 and torch.is_autocast_enabled(kind)
    return x.to(torch.get_autocast_dtype(kind)) if lowered else x


def _attend_packed(
    query: Tensor, key: Tensor, value: Tensor, score: Score, queries: Packed, keys: Packed, causal: bool
) -> Tensor:
    """(N, H, Dh) with no padding anywhere: our kernel for short sequences, PyTorch's variable-length one for others.

    Both get a key head for each of the queries': ours knows no other way, the other one not in every PyTorch we take.
    """
    key, value = (repeat_heads(part, query.shape[1], 1) for part in (key, value))
    width, scale = query.shape[-1], score.fused_scale
    assert scale is not None
    plain = all(part.stride(1) == width and part.stride(2) == 1 for part in (query, key, value))
    aligned = not causal or queries.offsets is keys.offsets  # the short kernel counts both from the first token
    short = max(queries.longest, keys.longest) <= _SHORT and width in _SHORT_WIDTHS
    if plain and aligned and short and kernels.triton_takes(query):
        from sightline.layers.kernels.short_attention import attend_short

        return attend_short(query, key, value, queries, keys, scale, causal)
    from torch.nn.attention.varlen import varlen_attn

    window = (-1, 0 if causal else -1)
    output = varlen_attn(
        query, key, value, queries.offsets, keys.offsets, queries.longest, keys.longest, scale=scale, window_size=window
    )
    assert isinstance(output, Tensor)
    return output
