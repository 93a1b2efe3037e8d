"""Variants of the Transformer's attention against their formulas: unscaled, bare, linear, with shared keys."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from sightline.layers.attention import attend, causal_mask, combine_masks, explicit_attention, repeat_heads
from sightline.layers.layout import Packed, Padded
from sightline.layers.multi_head import MultiHeadAttention
from sightline.layers.positions import Distances, Relative, RelativeKeys, Rotation, build_bias, build_relative_keys
from sightline.layers.scores import AttentionScore, Dot, ScaledDot, UnnormalizedDot, UnnormalizedScore, build_score
from sightline.layers.tap import Tapped, on_taps
from sightline.models.transformer.config import HeadAttentionConfig, TransformerConfig
from sightline.recipe.model import PositionsConfig
from sightline.training.flops import count_flops

WIDTH, HEADS, K = 8, 4, 2
SIXTY_FOUR = {"rtol": 0.0, "atol": 1e-12}  # float64 sums of some tens of products of numbers near one
THIRTY_TWO = {"rtol": 0.0, "atol": 5e-6}
LENGTHS = [5, 2, 4]
VARIANTS: dict[str, dict[str, Any]] = {
    f"{kind}-{how}": {"kind": kind, **options}
    for kind in ("scaled-dot", "dot", "unnormalized", "unnormalized-dot")
    for how, options in (
        ("full", {}),
        ("bare", {"projections": False}),
        ("pairs", {"kv_heads": 2}),
        ("one", {"kv_heads": 1}),
    )
}


def build(section: dict[str, Any], **others: Any) -> MultiHeadAttention:
    """As a model builds it, with biases that are not zero."""
    recipe = HeadAttentionConfig.model_validate(section)
    score = build_score(recipe.kind, K)
    attention = MultiHeadAttention(
        WIDTH, HEADS, score=score, projections=recipe.projections, groups=recipe.kv_heads, **others
    )
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.normal_(std=0.7)
    return attention.double().eval()


def by_formula(
    attention: MultiHeadAttention, section: dict[str, Any], x: Tensor, source: Tensor, seen: Tensor, **options: Any
) -> Tensor:
    """(B, T, D), (B, S, D) → (B, T, D), one head, one query and one key at a time.

    `seen` (B, T, S); `rotary`: turn queries and keys; `bias(h, q, t, s)`: what is added to the scores.
    """
    groups = section.get("kv_heads") or HEADS
    projected, looked = x, (source, source)
    if section.get("projections", True):
        bounds = [0, WIDTH, WIDTH + groups * K, WIDTH + 2 * groups * K]
        rows = [slice(*pair) for pair in pairwise(bounds)]
        weight, bias = attention.qkv.weight, attention.qkv.bias
        assert weight.shape == (bounds[-1], WIDTH)
        projected = x @ weight[rows[0]].T + bias[rows[0]]
        looked = tuple(source @ weight[row].T + bias[row] for row in rows[1:])
    contexts = torch.zeros(*x.shape, dtype=x.dtype)
    for h in range(HEADS):
        g = h * groups // HEADS  # the queries' first H/G heads share the first of the keys', and so on
        query, own = projected[..., h * K : (h + 1) * K], slice(g * K, (g + 1) * K)
        key, value = (part[..., own] for part in looked)
        if options.get("rotary"):
            turn = Rotation.at(torch.arange(x.shape[1])[None], K)
            query, key = (turn(part[:, :, None])[:, :, 0] for part in (query, key))
        for b, t in torch.cartesian_prod(torch.arange(x.shape[0]), torch.arange(x.shape[1])).tolist():
            places = [s for s in range(source.shape[1]) if seen[b, t, s]]
            scale = 1 / math.sqrt(K) if section["kind"] in ("scaled-dot", "unnormalized") else 1.0
            scores = [
                (query[b, t] * key[b, s]).sum() * scale + options.get("bias", lambda *_: 0.0)(h, query[b, t], t, s)
                for s in places
            ]
            shares = [score.exp() for score in scores] if section["kind"] in ("dot", "scaled-dot") else scores
            whole = sum(shares) if section["kind"] in ("dot", "scaled-dot") else len(places)
            for share, s in zip(shares, places, strict=True):
                contexts[b, t, h * K : (h + 1) * K] += share / whole * value[b, s]
    return contexts @ attention.output.weight.T + attention.output.bias if attention.output is not None else contexts


def self_attention(attention: MultiHeadAttention, x: Tensor, layout: Padded | Packed, **options: Any) -> Tensor:
    rotation = Rotation.at(layout.positions(x.device), K) if attention.rotary else None
    heads = attention.queries_keys_values(x, rotation)
    result: Tensor = attention(*heads, layout=(layout, layout), **options)
    return result


# --- the formula -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_self_attention_is_its_formula_by_every_kernel(name: str, causal: bool) -> None:
    attention, x, layout = build(VARIANTS[name]), torch.randn(3, 5, WIDTH).double(), Padded.of(LENGTHS)
    seen = layout.key_mask()[:, None, :].expand(3, 5, 5)
    seen = seen & causal_mask(5, 5, x.device) if causal else seen
    expected = by_formula(attention, VARIANTS[name], x, x, seen)
    torch.testing.assert_close(self_attention(attention, x, layout, causal=causal), expected, **SIXTY_FOUR)
    taps: list[Tapped] = []
    with on_taps(attention, taps.append):
        torch.testing.assert_close(self_attention(attention, x, layout, causal=causal), expected, **SIXTY_FOUR)
    weights = {tapped.name: tapped.tensor for tapped in taps}["weights"]
    assert weights.shape == (3, HEADS, 5, 5)
    assert not weights[~seen[:, None].expand_as(weights)].any()


@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_attention_to_a_source_is_its_formula(name: str) -> None:
    attention, x, source = build(VARIANTS[name]), torch.randn(3, 4, WIDTH).double(), torch.randn(3, 5, WIDTH).double()
    target, layout = Padded.of([4, 4, 4]), Padded.of(LENGTHS)
    result = attention(attention.queries(x), *attention.keys_values(source), layout=(target, layout))
    seen = layout.key_mask()[:, None, :].expand(3, 4, 5)
    torch.testing.assert_close(result, by_formula(attention, VARIANTS[name], x, source, seen), **SIXTY_FOUR)


@pytest.mark.parametrize("positions", ["rotary", "alibi", "t5", "shaw"])
@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_positions_work_the_same_in_all_attention_variants(name: str, positions: str) -> None:
    """Queries and keys are turned; or a bias of each head of queries; or q·a, scaled as q·k is."""
    section, layout, x = VARIANTS[name], Padded.of(LENGTHS), torch.randn(3, 5, WIDTH).double()
    recipe = PositionsConfig(kind=positions, buckets=4, max_distance=3 if positions != "alibi" else None)
    keys, shared = build_relative_keys(recipe, K, causal=True), build_bias(recipe, HEADS, WIDTH, causal=True)
    attention = build(section, rotary=positions == "rotary", relative_keys=keys)
    distances = Distances.within(5, x.device)
    bias = None if shared is None else shared.double()(distances)
    scale = 1 / math.sqrt(K) if section["kind"] in ("scaled-dot", "unnormalized") else 1.0

    def added(h: int, query: Tensor, t: int, s: int) -> Any:
        if isinstance(keys, RelativeKeys):
            return (query * keys.table[max(s - t, -3) + 3]).sum() * scale
        return 0.0 if bias is None else bias[0, h, t, s]

    seen = layout.key_mask()[:, None, :] & causal_mask(5, 5, x.device)
    expected = by_formula(attention, section, x, x, seen, rotary=positions == "rotary", bias=added)
    relative = None if positions == "rotary" else Relative(distances, bias)
    tolerance = THIRTY_TWO if positions == "rotary" else SIXTY_FOUR  # angles are float32
    result = self_attention(attention, x, layout, causal=True, relative=relative)
    torch.testing.assert_close(result, expected, **tolerance)
    packed = Packed.of(LENGTHS)
    flat = self_attention(attention, packed.unpad(x), packed, causal=True, relative=relative)
    torch.testing.assert_close(flat, packed.unpad(expected), **tolerance)


@pytest.mark.parametrize("explicit", [False, True], ids=["chosen", "explicit"])
@pytest.mark.parametrize("name", VARIANTS)
def test_the_gradient_is_that_of_the_formula(name: str, explicit: bool) -> None:
    attention, layout = build(VARIANTS[name]), Padded.of([3, 2])
    x = torch.randn(2, 3, WIDTH, dtype=torch.float64, requires_grad=True)

    def run(x: Tensor, *_: Tensor) -> Tensor:
        return self_attention(attention, x, layout, causal=True)

    with on_taps(attention, lambda tapped: None, only=None if explicit else ()):
        assert torch.autograd.gradcheck(run, (x, *attention.parameters()))


# --- kernels and layouts -----------------------------------------------------------------------------------------

SCORES = {"scaled": ScaledDot(K), "unscaled": Dot(), "linear": UnnormalizedScore(K), "both": UnnormalizedDot()}


def shared_heads(queries: int, keys: int, groups: int, dtype: torch.dtype) -> list[Tensor]:
    """Query (2, H, T, K), key and value (2, G, S, K)."""
    shapes = ((2, HEADS, queries, K), (2, groups, keys, K), (2, groups, keys, K))
    return [torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shown", ["all", "causal", "masked", "biased"])
@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (3, 5), (1, 5), (1, 1)])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("score", SCORES)
def test_shared_keys_are_keys_that_were_repeated(
    score: str, groups: int, queries: int, keys: int, shown: str, dtype: torch.dtype
) -> None:
    three, kind, causal = shared_heads(queries, keys, groups, dtype), SCORES[score], shown == "causal"
    mask = torch.rand(2, 1, queries, keys) < 0.6 if shown in ("masked", "biased") else None
    bias = torch.randn(1, HEADS, queries, keys).to(dtype) if shown == "biased" else None
    whole = combine_masks(mask, causal_mask(queries, keys, three[0].device) if causal else None)
    query, *shared = three
    repeated = [repeat_heads(part, HEADS, 1) for part in shared]
    expected = explicit_attention(query, *repeated, kind, whole, bias)
    pull = torch.randn_like(expected)
    theirs = torch.autograd.grad(expected, three, pull)
    tolerance = SIXTY_FOUR if dtype == torch.float64 else THIRTY_TWO
    for result in (
        attend(*three, score=kind, mask=mask, bias=bias, causal=causal),
        explicit_attention(*three, kind, whole, bias),
    ):
        torch.testing.assert_close(result, expected, **tolerance)
        for ours, other in zip(torch.autograd.grad(result, three, pull), theirs, strict=True):
            torch.testing.assert_close(ours, other, **tolerance)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("score", SCORES)
def test_a_fully_masked_row_attends_to_nothing_in_any_variant(score: str, groups: int) -> None:
    three, mask = shared_heads(3, 4, groups, torch.float32), torch.ones(2, 1, 3, 4, dtype=torch.bool)
    mask[0, 0, 1] = False
    for result in (attend(*three, score=SCORES[score], mask=mask), explicit_attention(*three, SCORES[score], mask)):
        assert torch.equal(result[0, :, 1], torch.zeros(HEADS, K))
        gradients = torch.autograd.grad(result.square().sum(), three)
        assert all(torch.isfinite(gradient).all() for gradient in gradients)
        assert torch.equal(gradients[0][0, :, 1], torch.zeros(HEADS, K))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_packed_is_padded_in_every_variant(name: str, causal: bool) -> None:
    attention, packed = build(VARIANTS[name]), Packed.of(LENGTHS, longest=6)
    x = torch.randn(sum(LENGTHS), WIDTH).double()
    padded = packed.unpad(self_attention(attention, packed.pad(x), Padded.of(LENGTHS, longest=6), causal=causal))
    torch.testing.assert_close(self_attention(attention, x, packed, causal=causal), padded, **SIXTY_FOUR)


@pytest.mark.kernels
@pytest.mark.parametrize("which", ["self", "causal", "cross"])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize(  # the first is for our kernel, the others for PyTorch's
    "layout", ["short", *(pytest.param(name, marks=pytest.mark.cuda) for name in ("flash", "padded", "full"))]
)
def test_every_kernel_shares_keys_as_the_explicit_one_does(
    kernels: torch.device, half: torch.dtype, layout: str, scaled: bool, groups: int, which: str
) -> None:
    lengths = [4, 1, 100, 64, 65, 3] if layout != "full" else [64, 64]
    others = [7, 30, 1, 64, 5, 2] if which == "cross" and layout != "full" else lengths
    shapes = [(sum(lengths), HEADS, 16), (sum(others), groups, 16), (sum(others), groups, 16)]
    three = [torch.randn(shape, dtype=torch.float64).to(half) for shape in shapes]
    three[0] *= 0.5 if scaled else 0.25  # unscaled scores near one, as scaled ones are
    score, causal = build_score("scaled-dot" if scaled else "dot", 16), which == "causal"
    exact = [part.double().requires_grad_() for part in three]
    sides = Packed.of(lengths), Packed.of(others)
    expected = attend(
        exact[0], *(repeat_heads(part, HEADS, 1) for part in exact[1:]), score=score, causal=causal, layout=sides
    )

    ours = [part.to(kernels).requires_grad_() for part in three]
    longest = 300 if layout == "flash" else None
    queries = Packed.of(lengths, kernels, longest=longest)
    packed = queries, queries if others is lengths else Packed.of(others, kernels, longest=longest)
    if layout in ("short", "flash"):
        result = attend(*ours, score=score, causal=causal, layout=packed)
        assert ("short_attention" in result.grad_fn.name()) == (layout == "short")
    else:
        rows = [packed[0].pad(ours[0]), packed[1].pad(ours[1]), packed[1].pad(ours[2])]
        padded = Padded.of(lengths, kernels), Padded.of(others, kernels)
        result = packed[0].unpad(attend(*rows, score=score, causal=causal, layout=padded))
    step = torch.finfo(half).eps  # weights and outputs are rounded to it
    torch.testing.assert_close(result.double().cpu(), expected, rtol=2 * step, atol=2 * step)
    pull = torch.randn_like(expected).to(half)
    theirs = torch.autograd.grad(expected, exact, pull.double())
    for mine, other in zip(torch.autograd.grad(result, ours, pull.to(kernels)), theirs, strict=True):
        # a key's gradient adds up some hundred roundings, and those of the heads that share it
        torch.testing.assert_close(mine.double().cpu(), other, rtol=4 * step, atol=16 * step)


# --- what is learned, and what it costs --------------------------------------------------------------------------


def test_attention_without_projections_has_no_parameters() -> None:
    attention, layout, x = build({"projections": False}).float(), Padded.of([5, 5]), torch.randn(2, 5, WIDTH)
    assert list(attention.parameters()) == []
    with count_flops() as count:
        self_attention(attention, x, layout)
    assert count.total == 2 * 2 * 5 * 5 * (WIDTH + WIDTH)


@pytest.mark.parametrize("explicit", [False, True], ids=["fused", "explicit"])
def test_groups_save_projections_and_no_scores(explicit: bool) -> None:
    attention, layout, x = build({"kv_heads": 1}).float(), Padded.of([5, 5]), torch.randn(2, 5, WIDTH)
    with on_taps(attention, lambda tapped: None, only=None if explicit else ()), count_flops() as count:
        self_attention(attention, x, layout)
    assert count.total == 2 * 10 * WIDTH * (WIDTH + 2 * K + WIDTH) + 2 * 2 * 5 * 5 * (WIDTH + WIDTH)


def test_weights_start_in_the_same_range_whatever_the_groups() -> None:
    ranges = [MultiHeadAttention(64, 8, groups=groups).qkv.weight.abs().max().item() for groups in (8, 4, 1)]
    assert ranges == pytest.approx([(0.75 / 64) ** 0.5] * 3, rel=0.01)  # the largest of thousands that are uniform


def test_groups_of_one_head_each_are_the_original() -> None:
    torch.manual_seed(1)
    plain = MultiHeadAttention(WIDTH, HEADS).state_dict()
    torch.manual_seed(1)
    grouped = MultiHeadAttention(WIDTH, HEADS, groups=HEADS).state_dict()
    assert list(plain) == list(grouped)
    assert all(torch.equal(plain[name], grouped[name]) for name in plain)


def test_under_autocast_heads_without_projections_are_cast_to_bfloat16() -> None:
    """The kernels for packed batches take bfloat16 only, and a norm gives float32."""
    x = torch.randn(2, 5, WIDTH)
    with torch.autocast("cpu", torch.bfloat16):
        for section in ({}, {"projections": False}):
            attention = build(section).float()
            heads = attention.queries_keys_values(x, None)
            assert {part.dtype for part in (*heads, attention.queries(x), *attention.keys_values(x))} == {
                torch.bfloat16
            }


@pytest.mark.parametrize(
    ("kind", "scaled"), [("scaled-dot", True), ("dot", False), ("unnormalized", True), ("unnormalized-dot", False)]
)
def test_a_head_score_is_a_dot_product_times_its_scale(kind: str, scaled: bool) -> None:
    score: AttentionScore = build_score(kind, 16)
    query, key = torch.randn(1, 2, 3, 16).double(), torch.randn(1, 2, 4, 16).double()
    assert score.scale == (0.25 if scaled else 1.0)
    assert score.formula == ("q·h / √d_k" if scaled else "q·h")
    assert score.softmax == (kind in ("dot", "scaled-dot"))
    assert score.fused_scale == (score.scale if score.softmax else None)
    torch.testing.assert_close(score(query, key), score.scale * query @ key.mT, **SIXTY_FOUR)


# --- recipes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"heads": 8, "attention": {"kv_heads": 3}}, r"heads \(8\) is not divisible by attention\.kv_heads \(3\)"),
        ({"heads": 4, "attention": {"kv_heads": 8}}, r"heads \(4\) is not divisible by attention\.kv_heads \(8\)"),
        ({"attention": {"kv_heads": 2, "projections": False}}, r"attention\.kv_heads \(2\) share projected"),
        ({"attention": {"kv_heads": 0}}, "greater than or equal to 1"),
        (
            {"attention": {"kind": "unnormalized"}, "positions": {"kind": "alibi"}},
            "alibi lowers weights through the softmax",
        ),
    ],
)
def test_impossible_attention_recipes_are_refused(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TransformerConfig.model_validate(section)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary", "t5", "shaw", "none"])
def test_linear_attention_works_with_positions_that_need_no_softmax(positions: str) -> None:
    TransformerConfig.model_validate({"attention": {"kind": "unnormalized"}, "positions": {"kind": positions}})


def test_invalid_numbers_of_groups_are_refused() -> None:
    with pytest.raises(ValueError, match=r"heads \(4\) is not divisible by groups \(3\)"):
        MultiHeadAttention(8, 4, groups=3)
    with pytest.raises(ValueError, match=r"without projections there are as many groups as heads \(4\), not 2"):
        MultiHeadAttention(8, 4, groups=2, projections=False)
