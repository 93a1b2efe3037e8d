"""One attention: every kernel means what the explicit one, and the formula, mean."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sightline.layers import attention
from sightline.layers.attention import (
    attend,
    causal_mask,
    combine_masks,
    explicit_attention,
    masked_softmax,
    weighted_sum,
)
from sightline.layers.layout import Packed, Padded
from sightline.layers.scores import AttentionScore, Dot, ScaledDot, build_score

KINDS = ("dot", "scaled-dot", "bilinear", "additive", "linear", "unnormalized")
FUSED = ("dot", "scaled-dot", "bilinear")
K = 4
SIXTY_FOUR = {"rtol": 0.0, "atol": 1e-13}  # sums of a few float64 products of numbers near one
THIRTY_TWO = {"rtol": 0.0, "atol": 2e-6}  # the same in float32, with an exponential in between: a dozen roundings


def heads(queries: int, keys: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Query (2, 3, T, K), key and value (2, 3, S, K)."""
    shapes = ((2, 3, queries, K), (2, 3, keys, K), (2, 3, keys, K))
    return tuple(torch.randn(shape, dtype=torch.float64).to(dtype) for shape in shapes)


def double_score(kind: str, dtype: torch.dtype = torch.float64) -> AttentionScore:
    return build_score(kind, K).to(dtype)


def by_loops(query: Tensor, key: Tensor, value: Tensor, score: AttentionScore, mask: Tensor) -> Tensor:
    """α = softmax(e) over what may be seen (or e / N without a softmax), c = Σ α v: one query at a time."""
    scores = score(query, score.prepare(key))
    output = torch.zeros(*query.shape[:-1], value.shape[-1], dtype=value.dtype)
    for b, h, t in torch.cartesian_prod(*(torch.arange(n) for n in query.shape[:3])).tolist():
        seen = [s for s in range(key.shape[2]) if mask[b, h, t, s]]
        if not seen:
            continue
        if score.softmax:
            shares = [math.exp(scores[b, h, t, s]) for s in seen]
            weights = [share / sum(shares) for share in shares]
        else:
            weights = [float(scores[b, h, t, s]) / len(seen) for s in seen]
        for weight, s in zip(weights, seen, strict=True):
            output[b, h, t] += weight * value[b, h, s]
    return output


def some_mask(queries: int, keys: int) -> Tensor:
    """(2, 1, T, S), at random, but the second sentence's first query may see nothing at all."""
    mask = torch.rand(2, 1, queries, keys) < 0.6
    mask[1, 0, 0] = False
    return mask


# --- the formula -------------------------------------------------------------------------------------------------


def test_weight_0_7_on_a_vector_gives_the_context_of_the_lecture() -> None:
    """weight 0.7 on (0.8, 0.2) gives (0.56, 0.14); scores log 0.7 and log 0.3 have such weights."""
    query = torch.tensor([[[[1.0, 0.0]]]], dtype=torch.float64)
    key = torch.tensor([[[[math.log(0.7), 5.0], [math.log(0.3), -5.0]]]], dtype=torch.float64)
    value = torch.tensor([[[[0.8, 0.2], [0.0, 0.0]]]], dtype=torch.float64)
    for kernel in (attend(query, key, value, score=Dot()), explicit_attention(query, key, value, Dot(), None)):
        torch.testing.assert_close(kernel[0, 0, 0], torch.tensor([0.56, 0.14], dtype=torch.float64), **SIXTY_FOUR)


@pytest.mark.parametrize("keys", [1, 7, 15, 16, 40])
def test_the_softmax_for_short_rows_is_the_softmax(keys: int) -> None:
    scores = (30 * torch.randn(3, 2, 4, keys)).requires_grad_()
    mask = torch.rand(3, 1, 4, keys) > 0.4
    mask[0, 0, 1] = False  # nothing to see
    mask[1] = True
    expected = torch.softmax(scores.double().masked_fill(~mask, float("-inf")), dim=-1).nan_to_num(0.0)
    result = masked_softmax(scores, mask)
    torch.testing.assert_close(result.double(), expected, rtol=1e-5, atol=1e-7)
    pull = torch.randn_like(result)
    gradients = [torch.autograd.grad((weights * pull).sum(), scores)[0] for weights in (result, expected)]
    gradients[1] = gradients[1].nan_to_num(0.0)
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(masked_softmax(scores, None), torch.softmax(scores, dim=-1))


@pytest.mark.parametrize("keys", [4, 20])
def test_masked_softmax_keeps_the_dtype(keys: int) -> None:
    scores, mask = torch.randn(2, 3, keys).bfloat16(), torch.rand(2, 3, keys) < 0.5
    assert masked_softmax(scores, mask).dtype == masked_softmax(scores, None).dtype == torch.bfloat16


def test_the_softmax_over_no_keys_has_no_weights() -> None:
    scores = torch.zeros(2, 3, 0)
    assert masked_softmax(scores, None).shape == masked_softmax(scores, scores > 0).shape == (2, 3, 0)


@pytest.mark.parametrize("blind", [False, True])
def test_masked_softmax_is_the_same_without_gradients(blind: bool) -> None:
    scores, mask = torch.randn(5, 3, 2, 20), torch.rand(5, 1, 2, 20) < 0.5
    mask[..., 7] = True
    if blind:
        mask[2, :, 1] = False
    with torch.no_grad():
        result = masked_softmax(scores, mask)
    assert torch.equal(result, masked_softmax(scores, mask))
    torch.testing.assert_close(result.sum(-1), mask.any(-1).float().expand(5, 3, 2))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("queries", [1, 3, 5])
def test_attention_is_its_formula(kind: str, queries: int) -> None:
    query, key, value = heads(queries, 5)
    score, mask = double_score(kind), some_mask(queries, 5)
    with torch.no_grad():
        result = attend(query, score.prepare(key), value, score=score, mask=mask)
        expected = by_loops(query, key, value, score, mask.expand(2, 3, queries, 5))
    torch.testing.assert_close(result, expected, **SIXTY_FOUR)


@pytest.mark.parametrize("queries", [1, 2])
@pytest.mark.parametrize("keys", [0, 1, 6, 7, 20])
def test_the_sum_over_a_few_keys_is_the_product(queries: int, keys: int) -> None:
    weights, value = torch.rand(2, 3, queries, keys), torch.randn(2, 3, 2 * keys, 64)[:, :, :keys]
    with torch.no_grad():
        result = weighted_sum(weights, value)
    torch.testing.assert_close(result, weights @ value, rtol=0.0, atol=1e-5)  # 20 products of numbers near one


@pytest.mark.parametrize("kind", KINDS)
def test_causal_attention_sees_nothing_after_the_query(kind: str) -> None:
    query, key, value = heads(3, 5)  # three queries that stand at the last three of five keys
    score = double_score(kind)
    mask = torch.tensor([[s <= t + 2 for s in range(5)] for t in range(3)])
    with torch.no_grad():
        result = attend(query, score.prepare(key), value, score=score, causal=True)
        expected = by_loops(query, key, value, score, mask.expand(2, 3, 3, 5))
    torch.testing.assert_close(result, expected, **SIXTY_FOUR)


def test_a_bias_is_added_to_the_scores() -> None:
    query, key, value = heads(3, 4)
    bias = torch.randn(3, 3, 4, dtype=torch.float64)  # one for each head
    result = attend(query, key, value, score=ScaledDot(K), bias=bias)
    weights = torch.softmax(query @ key.mT / math.sqrt(K) + bias, dim=-1)
    torch.testing.assert_close(result, weights @ value, **SIXTY_FOUR)


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_of_explicit_attention_is_that_of_its_formula(kind: str) -> None:
    score = double_score(kind)
    query, key, value = (part[:1, :1].clone().requires_grad_() for part in heads(3, 4))
    mask = some_mask(3, 4)[1:]  # with a row that sees nothing
    parameters = tuple(score.parameters())

    def run(q: Tensor, k: Tensor, v: Tensor, *_: Tensor) -> Tensor:
        return explicit_attention(q, score.prepare(k), v, score, mask)

    assert torch.autograd.gradcheck(run, (query, key, value, *parameters))


# --- explicit = fused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (3, 5), (1, 5), (1, 1)])
@pytest.mark.parametrize("kind", FUSED)
def test_the_fused_kernel_is_the_explicit_one(
    kind: str, queries: int, keys: int, causal: bool, masked: bool, dtype: torch.dtype
) -> None:
    query, key, value = (part.requires_grad_() for part in heads(queries, keys, dtype))
    score = double_score(kind, dtype)
    mask = some_mask(queries, keys) if masked else None
    fused = attend(query, score.prepare(key), value, score=score, mask=mask, causal=causal)
    whole = combine_masks(mask, causal_mask(queries, keys, query.device) if causal else None)
    explicit = explicit_attention(query, score.prepare(key), value, score, whole)
    tolerance = SIXTY_FOUR if dtype == torch.float64 else THIRTY_TWO
    torch.testing.assert_close(fused, explicit, **tolerance)
    pull = torch.randn_like(fused)
    gradients = (torch.autograd.grad(result, (query, key, value), pull) for result in (fused, explicit))
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, **tolerance)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tap_selects_the_explicit_kernel_and_receives_its_tensors(kind: str) -> None:
    query, key, value = heads(3, 4)
    score, mask, shown = double_score(kind), some_mask(3, 4), {}

    def tap(name: str, tensor: Tensor, *_: Any) -> Tensor:
        shown[name] = tensor
        return tensor

    prepared = score.prepare(key)
    result = attend(query, prepared, value, score=score, mask=mask, tap=tap)
    dots = ["products"] if score.scale != 1 else []
    assert list(shown) == [*dots, "scores", *(["masked"] if score.softmax else []), "weights", "context"]
    torch.testing.assert_close(shown["scores"], score(query, prepared), rtol=0, atol=0)
    torch.testing.assert_close(shown["weights"] @ value, result, rtol=0, atol=0)
    torch.testing.assert_close(result, attend(query, prepared, value, score=score, mask=mask), **SIXTY_FOUR)
    if score.softmax:
        sums = mask.expand_as(shown["weights"]).any(-1).double()  # one, or zero where nothing may be seen
        torch.testing.assert_close(shown["weights"].sum(-1), sums, **SIXTY_FOUR)


# --- rows that see nothing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_a_fully_masked_row_attends_to_nothing(kind: str, dtype: torch.dtype) -> None:
    query, key, value = (part.requires_grad_() for part in heads(3, 4, dtype))
    score, mask = double_score(kind, dtype), torch.ones(2, 1, 3, 4, dtype=torch.bool)
    mask[0, 0, 1] = False
    prepared = score.prepare(key)
    outputs = [explicit_attention(query, prepared, value, score, mask)]
    outputs.append(attend(query, prepared, value, score=score, mask=mask))
    for output in outputs:
        assert torch.equal(output[0, :, 1], torch.zeros(3, K, dtype=dtype))
        assert output[0, :, 0].abs().min() > 0
        gradients = torch.autograd.grad(output.square().sum(), (query, key, value), retain_graph=True)
        assert all(torch.isfinite(gradient).all() for gradient in gradients)
        assert torch.equal(gradients[0][0, :, 1], torch.zeros(3, K, dtype=dtype))


@pytest.mark.parametrize("kind", KINDS)
def test_a_sentence_without_any_real_position_attends_to_nothing(kind: str) -> None:
    query, key, value = (part.transpose(1, 2).contiguous().requires_grad_() for part in heads(4, 4))
    score, layout = double_score(kind), Padded.of([4, 0])
    output = attend(query, score.prepare(key), value, score=score, layout=(layout, layout))
    assert torch.equal(output[1], torch.zeros(4, 3, K, dtype=torch.float64))
    gradients = torch.autograd.grad(output.square().sum(), (query, key, value))
    assert all(torch.isfinite(gradient).all() for gradient in gradients)


# --- layouts -----------------------------------------------------------------------------------------------------

QUERIES, KEYS = [4, 1, 6, 3], [2, 5, 1, 7]


def packed_heads(lengths: list[int], dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(sum(lengths), 3, K, dtype=torch.float64).to(dtype)


def sentence_by_sentence(
    query: Tensor, key: Tensor, value: Tensor, score: AttentionScore, lengths: tuple[list[int], list[int]], causal: bool
) -> Tensor:
    """Each sentence of a packed batch alone, (N, H, K)."""
    parts = zip(query.split(lengths[0]), key.split(lengths[1]), value.split(lengths[1]), strict=True)
    return torch.cat(
        [
            explicit_attention(
                *(part.transpose(0, 1)[None] for part in three),
                score,
                causal_mask(len(three[0]), len(three[1]), query.device) if causal else None,
            )[0].transpose(0, 1)
            for three in parts
        ]
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_causal_packed_batch_needs_no_mask_for_its_padding(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which would have a place for every pair of tokens; and a causal kernel leaves out half of its work."""
    lengths, masks, fused = [44, 3, 0, 61], [], nn.functional.scaled_dot_product_attention
    query, key, value = (packed_heads(lengths).requires_grad_() for _ in range(3))
    score, layout = double_score(kind), Packed.of(lengths, longest=70)
    expected = sentence_by_sentence(query, score.prepare(key), value, score, (lengths, lengths), True)

    def watch(*heads: Tensor, attn_mask: Tensor | None, **options: Any) -> Tensor:
        masks.append(attn_mask)
        return fused(*heads, attn_mask=attn_mask, **options)

    monkeypatch.setattr(nn.functional, "scaled_dot_product_attention", watch)
    result = attend(query, score.prepare(key), value, score=score, causal=True, layout=(layout, layout))
    assert masks == ([None] if kind in FUSED else [])
    torch.testing.assert_close(result, expected, **SIXTY_FOUR)
    pull, three = torch.randn_like(result), (query, key, value)
    for one, other in zip(*(torch.autograd.grad(created, three, pull) for created in (result, expected)), strict=True):
        torch.testing.assert_close(one, other, rtol=0.0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("which", ["self", "causal", "cross"])
@pytest.mark.parametrize("longest", [None, 9])
def test_packed_and_padded_attention_are_that_of_each_sentence_alone(
    kind: str, which: str, longest: int | None
) -> None:
    lengths = (QUERIES, KEYS if which == "cross" else QUERIES)
    query, key, value = packed_heads(lengths[0]), packed_heads(lengths[1]), packed_heads(lengths[1])
    score, causal = double_score(kind), which == "causal"
    prepared = score.prepare(key)
    expected = sentence_by_sentence(query, prepared, value, score, lengths, causal)
    packed = tuple(Packed.of(side, longest=longest) for side in lengths)
    result = attend(query, prepared, value, score=score, causal=causal, layout=packed)
    torch.testing.assert_close(result, expected, **SIXTY_FOUR)

    first, second = packed
    padded = tuple(Padded.of(side, longest=longest) for side in lengths)
    three = (first.pad(query), second.pad(prepared), second.pad(value))
    result = first.unpad(attend(*three, score=score, causal=causal, layout=padded))
    torch.testing.assert_close(result, expected, **SIXTY_FOUR)


def test_sentences_of_one_length_need_no_mask_and_give_the_same() -> None:
    lengths = [4, 4, 4]
    query, key, value = (packed_heads(lengths) for _ in range(3))
    layout, score = Packed.of(lengths), ScaledDot(K)
    assert layout.key_mask() is None
    expected = sentence_by_sentence(query, key, value, score, (lengths, lengths), True)
    result = attend(query, key, value, score=score, causal=True, layout=(layout, layout))
    torch.testing.assert_close(result, expected, **SIXTY_FOUR)


def test_an_explicit_mask_is_combined_with_the_layouts() -> None:
    query, key, value = (torch.randn(2, 4, 3, K, dtype=torch.float64) for _ in range(3))  # (B, T, H, K)
    layout, score, mask = Padded.of([4, 2]), ScaledDot(K), some_mask(4, 4)
    result = attend(query, key, value, score=score, mask=mask, layout=(layout, layout))
    both = mask & torch.tensor([[True] * 4, [True, True, False, False]])[:, None, None, :]
    expected = by_loops(*(part.transpose(1, 2) for part in (query, key, value)), score, both.expand(2, 3, 4, 4))
    torch.testing.assert_close(result.transpose(1, 2), expected, **SIXTY_FOUR)


CUDA_QUERIES, CUDA_KEYS = [4, 1, 100, 64, 65, 0, 3], [2, 130, 1, 64, 7, 5, 0]  # over several tiles, and empty ones


def among_nothing(part: Tensor, heads: int) -> Tensor:
    """The same heads (N, H, K) in a tensor that has more of them and more rows, full of NaN: not to be read."""
    wide = part.new_full((len(part) + 3, part.shape[1] + heads, part.shape[2]), torch.nan)
    inner = wide[: len(part), : part.shape[1]]
    return inner.copy_(part).requires_grad_()


@pytest.mark.kernels
@pytest.mark.parametrize("which", ["self", "causal", "cross"])
@pytest.mark.parametrize("width", [16, 64, *(pytest.param(width, marks=pytest.mark.cuda) for width in (32, 128))])
@pytest.mark.parametrize(  # ours is for sequences up to 256
    "longest", [pytest.param(None, id="short"), pytest.param(300, id="flash", marks=pytest.mark.cuda)]
)
@pytest.mark.parametrize("dtype", [pytest.param(torch.bfloat16, marks=pytest.mark.cuda), torch.float16])
def test_the_kernels_for_packed_batches_are_the_explicit_one(
    kernels: torch.device, which: str, width: int, longest: int | None, dtype: torch.dtype
) -> None:
    lengths = (CUDA_QUERIES, CUDA_KEYS if which == "cross" else CUDA_QUERIES)
    causal = which == "causal"
    shapes = [(sum(side), 3, width) for side in (lengths[0], lengths[1], lengths[1])]
    three = tuple(torch.randn(shape, dtype=torch.float64).to(dtype) for shape in shapes)
    score = ScaledDot(width)
    exact = [part.double().requires_grad_() for part in three]
    expected = sentence_by_sentence(*exact, score, lengths, causal)
    ours = [among_nothing(part.to(kernels), number) for number, part in enumerate(three, 1)]
    queries = Packed.of(lengths[0], kernels, longest=longest)
    keys = Packed.of(lengths[1], kernels, longest=longest) if which == "cross" else queries
    result = attend(*ours, score=score, causal=causal, layout=(queries, keys))
    assert ("short_attention" in result.grad_fn.name()) == (longest is None)
    # weights are rounded to `step` before they meet values of up to 4, and so is the output
    step = torch.finfo(dtype).eps
    torch.testing.assert_close(result.double().cpu(), expected, rtol=2 * step, atol=2 * step)
    pull = torch.randn(3, len(expected), width).to(dtype).transpose(0, 1)
    theirs = torch.autograd.grad(expected, exact, pull.double())
    for mine, other in zip(torch.autograd.grad(result, ours, pull.to(kernels)), theirs, strict=True):
        # gradients add up to 130 such roundings of terms near one: the largest of them may be √130 steps off
        torch.testing.assert_close(mine.double().cpu(), other, rtol=2 * step, atol=8 * step)


@pytest.mark.kernels
def test_very_negative_scores_have_finite_weights_and_gradients(kernels: torch.device, half: torch.dtype) -> None:
    """The padding of a tile must not have a weight of e^100 there."""
    layout, score = Packed.of([5, 70], kernels), ScaledDot(16)
    query, key, value = (torch.randn(75, 3, 16).to(half) for _ in range(3))
    three = query - 5, key + 5, value  # 16 products of −25, times ¼
    exact = [part.double().requires_grad_() for part in three]
    expected = sentence_by_sentence(*exact, score, ([5, 70], [5, 70]), False)
    ours = [part.to(kernels).requires_grad_() for part in three]
    result = attend(*ours, score=score, layout=(layout, layout))
    step = torch.finfo(half).eps
    torch.testing.assert_close(result.double().cpu(), expected, rtol=2 * step, atol=2 * step)
    pull = torch.randn_like(expected).to(half)
    theirs = torch.autograd.grad(expected, exact, pull.double())
    for mine, other in zip(torch.autograd.grad(result, ours, pull.to(kernels)), theirs, strict=True):
        # as above, but keys and queries, which meet the roundings, are five times as large
        torch.testing.assert_close(mine.double().cpu(), other, rtol=2 * step, atol=40 * step)


@pytest.mark.cuda
@pytest.mark.parametrize("longest", [None, 300], ids=["short", "flash"])
def test_causal_masks_align_the_last_query_with_the_last_key_on_cuda(cuda: torch.device, longest: int | None) -> None:
    lengths, score = ([2, 3, 1], [4, 3, 70]), ScaledDot(16)
    three = [torch.randn(sum(side), 3, 16).bfloat16() for side in (lengths[0], lengths[1], lengths[1])]
    expected = sentence_by_sentence(*(part.double() for part in three), score, lengths, True)
    layout = tuple(Packed.of(side, cuda, longest=longest) for side in lengths)
    result = attend(*(part.to(cuda) for part in three), score=score, causal=True, layout=layout)
    step = torch.finfo(torch.bfloat16).eps
    torch.testing.assert_close(result.double().cpu(), expected, rtol=2 * step, atol=2 * step)


def test_the_step_kernel_does_not_accept_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """It computes in float32."""
    monkeypatch.setattr(attention.kernels, "DEVICE", "cpu")
    monkeypatch.setattr(attention.kernels, "TRITON", True)
    with torch.no_grad():
        for dtype in (torch.float32, torch.bfloat16, torch.float64):
            three = torch.zeros(3, 64, 16, 1, 16, dtype=dtype)
            assert attention._fits_step_kernel(*three) == (dtype != torch.float64)


STEPS = {  # sentences, heads, heads of keys, queries, keys, width of a head
    "greedy": (3, 4, 4, 1, 70, 64),
    "beam": (2, 4, 4, 5, 33, 32),
    "shared": (2, 8, 2, 3, 32, 16),
    "first": (2, 2, 2, 1, 1, 128),
    "nothing": (2, 2, 1, 2, 0, 16),
}


@pytest.mark.kernels
@pytest.mark.parametrize("sizes", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("which", ["all", "source", "past", "heads"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_for_a_step_is_the_explicit_one(
    kernels: torch.device, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...], which: str, dtype: torch.dtype
) -> None:
    sentences, heads, groups, queries, keys, width = sizes
    query = torch.randn(sentences, queries, heads, width).transpose(1, 2)
    slots = torch.randn(keys + 3, sentences, groups, width)  # as in a buffer, which is not yet full
    slots[keys:] = torch.nan
    value = torch.randn(sentences, groups, keys, width)
    masks = {
        "all": None,
        "source": torch.rand(sentences, 1, 1, keys) > 0.4,
        "past": torch.rand(sentences, 1, queries, keys) > 0.4,
        "heads": torch.rand(sentences, heads, keys, queries).mT > 0.4,
    }
    mask = masks[which]
    if mask is not None:
        mask[0] = False  # a query that may look at nothing
    three = [part.to(kernels, dtype) for part in (query, slots.permute(1, 2, 0, 3)[:, :, :keys], value)]
    expected = explicit_attention(
        *(part.double() for part in three), ScaledDot(width), None if mask is None else mask.to(kernels)
    )
    monkeypatch.setattr(attention, "_MANY_ON_CUDA", 1)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", None)  # nobody else is asked
    with torch.inference_mode():
        result = attend(*three, score=ScaledDot(width), mask=None if mask is None else mask.to(kernels))
    step = torch.finfo(dtype).eps  # of the one rounding at the end, or of sums of up to 70 products in float32
    torch.testing.assert_close(
        result.double(), expected, rtol=2 * step, atol=(8 if dtype == torch.float32 else 2) * step
    )
