"""LocalAttention and compressed attention: by other cuts = with a tap = the formula with a mask written here."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from sightline.layers import local_attention as cuts
from sightline.layers.attention import attend, causal_mask, combine_masks, explicit_attention
from sightline.layers.layout import Packed, Padded
from sightline.layers.local_attention import CompressedAttention, LocalAttention, Pattern
from sightline.layers.multi_head import MultiHeadAttention
from sightline.layers.positions import Rotation
from sightline.layers.scores import AttentionScore, Dot, ScaledDot, UnnormalizedScore
from sightline.layers.tap import Tapped, on_taps

K, H = 4, 2
LENGTHS = [7, 1, 0, 12, 3, 6]
CLOSE = {"rtol": 0.0, "atol": 1e-12}  # float64: sums of a few dozen products of numbers near one
SPANS = {
    "local": lambda: LocalAttention(3),
    "local-1": lambda: LocalAttention(1),
    "local-wide": lambda: LocalAttention(64),
    "look-back": lambda: LocalAttention(2, look_back=1),
    "look-far-back": lambda: LocalAttention(2, look_back=3),
    "compressed": lambda: CompressedAttention(H * K),
    "compressed-overlapping": lambda: CompressedAttention(H * K, kernel=4, stride=2),
    "compressed-1": lambda: CompressedAttention(H * K, kernel=1, stride=1),
    "compressed-rotary": lambda: CompressedAttention(H * K, rotary=True),
}


@pytest.fixture(params=SPANS)
def span(request: pytest.FixtureRequest) -> Pattern:
    pattern: Pattern = SPANS[request.param]().double()
    return pattern


@pytest.fixture(params=["counted", "static"])
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """On CUDA and in compiled steps no size follows from what is in a tensor: more rows, that stand for nothing."""
    if request.param == "static":
        monkeypatch.setattr(cuts, "countable", lambda device: False)
    return str(request.param)


def local_mask(count: int, block: int, look_back: int, causal: bool) -> Tensor:
    rows = []
    for t in range(count):
        near = [s for s in range(count) if abs(t // block - s // block) <= look_back]
        rows.append([s in near and (s <= t or not causal) for s in range(count)])
    return torch.tensor(rows).view(count, count)


def compressed_by_hand(span: CompressedAttention, x: Tensor, weights: Any, causal: bool) -> Tensor:
    """(T, I) of one sequence → (C, I): one window after the other."""
    pattern = []
    for anchor in range(0, len(x), span.stride):
        tokens = range(anchor - span.kernel + 1, anchor + 1) if causal else range(anchor, anchor + span.kernel)
        parts = [x[t] if 0 <= t < len(x) else torch.zeros_like(x[0]) for t in tokens]
        pattern.append(weights.weight @ torch.cat(parts) + weights.bias)
    return torch.stack(pattern)


def by_hand(span: Pattern, query: Tensor, key: Tensor, value: Tensor, score: AttentionScore, causal: bool) -> Tensor:
    """One sequence: heads (T, H, K) → (T, H, K)."""
    count = len(query)
    if count == 0:
        return query
    if isinstance(span, LocalAttention):
        mask = local_mask(count, span.block, span.look_back, causal)
    else:
        key, value = (
            compressed_by_hand(span, part.flatten(1), weights, causal).unflatten(1, (-1, query.shape[-1]))
            for part, weights in ((key, span.keys), (value, span.values))
        )
        index = torch.arange(len(key))
        if span.rotates_keys:
            places = index * span.stride + (0 if causal else (span.kernel - 1) // 2)
            key = Rotation.at(places, key.shape[-1])(key)
        mask = torch.tensor([[c * span.stride <= t or not causal for c in index.tolist()] for t in range(count)])
    assert mask.any(1).all()  # the very first query, too, has something to see
    heads = (part.transpose(0, 1)[None] for part in (query, key, value))
    return explicit_attention(*heads, score, mask)[0].transpose(0, 1)


def heads(groups: int = H, lengths: list[int] = LENGTHS) -> tuple[Tensor, Tensor, Tensor]:
    count = sum(lengths)
    shapes = ((count, H, K), (count, groups, K), (count, groups, K))
    return tuple(torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in shapes)


def look(score: AttentionScore | None = None, tap: Any = None) -> Any:
    return partial(attend, score=score or ScaledDot(K), tap=tap)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("longest", [None, 20])
def test_patterns_equal_a_mask_and_a_convolution_per_sequence(
    span: Pattern, causal: bool, longest: int | None, sizes: str
) -> None:
    three, layout = heads(), Packed.of(LENGTHS, longest=longest)
    result = span(*three, layout, look(), causal, None)
    pieces = zip(*(part.split(LENGTHS) for part in three), strict=True)
    expected = torch.cat([by_hand(span, *piece, ScaledDot(K), causal) for piece in pieces])
    torch.testing.assert_close(result, expected, **CLOSE)
    learned, pull = (*three, *span.parameters()), torch.randn_like(result)
    gradients = [torch.autograd.grad(output, learned, pull) for output in (result, expected)]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11)


@pytest.mark.parametrize("causal", [True, False])
def test_with_a_tap_the_explicit_kernel_gives_the_same_and_weights(span: Pattern, causal: bool, sizes: str) -> None:
    three, layout, shown = heads(), Packed.of(LENGTHS), {}

    def tap(name: str, tensor: Tensor, *_: Any, **__: Any) -> Tensor:
        shown[name] = tensor
        return tensor

    result = span(*three, layout, look(), causal, None)
    torch.testing.assert_close(span(*three, layout, look(tap=tap), causal, tap), result, **CLOSE)
    keys = 12 if isinstance(span, LocalAttention) else -(-12 // span.stride)
    assert shown["weights"].shape == (len(LENGTHS), H, 12, keys)
    assert isinstance(span, LocalAttention) or shown["compressed_key"].shape == (len(LENGTHS), keys, H, K)


@pytest.mark.parametrize("causal", [True, False])
def test_padded_is_packed(span: Pattern, causal: bool) -> None:
    three, packed, padded = heads(), Packed.of(LENGTHS), Padded.of(LENGTHS)
    result = packed.unpad(span(*(packed.pad(part) for part in three), padded, look(), causal, None))
    torch.testing.assert_close(result, span(*three, packed, look(), causal, None), **CLOSE)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("score", [Dot(), UnnormalizedScore(K)], ids=["dot", "linear"])
def test_patterns_work_with_every_score_and_grouped_heads(score: AttentionScore, causal: bool, sizes: str) -> None:
    layout = Packed.of(LENGTHS)
    for span in (LocalAttention(3), LocalAttention(2, look_back=1), CompressedAttention(K)):
        span, three = span.double(), heads(groups=1)
        result = span(*three, layout, look(score), causal, None)
        pieces = zip(*(part.split(LENGTHS) for part in three), strict=True)
        expected = torch.cat([by_hand(span, *piece, score, causal) for piece in pieces])
        torch.testing.assert_close(result, expected, **CLOSE)


def test_dummy_tokens_of_static_batches_have_no_effect_and_no_gradient(span: Pattern, sizes: str) -> None:
    """Dummy sequences behind the real ones, as training on CUDA has them."""
    lengths = [5, 4, 2, 2]  # the last two are nobody's
    three, real = heads(lengths=lengths), Packed.of(lengths[:2])
    result = span(*three, Packed.of(lengths, longest=9), look(), True, None)
    alone = span(*(part[:9] for part in three), real, look(), True, None)
    torch.testing.assert_close(result[:9], alone, **CLOSE)
    for gradient in torch.autograd.grad(result[:9].sum(), three):
        assert not gradient[9:].any()


@pytest.mark.parametrize("causal", [True, False])
def test_every_query_of_a_static_layout_sees_a_key(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fused kernels on CUDA may make no number of it, in gradients of the blocks beside it too."""
    monkeypatch.setattr(cuts, "countable", lambda device: False)
    masks = []

    def watch(*heads: Tensor, mask: Tensor, causal: bool) -> Tensor:
        lower = causal_mask(heads[0].shape[2], heads[1].shape[2], mask.device) if causal else None
        masks.append(combine_masks(mask, lower))
        return attend(*heads, score=ScaledDot(K), mask=mask, causal=causal)

    LocalAttention(3, look_back=1)(*heads(lengths=[7, 0, 4]), Packed.of([7, 0, 4]), watch, causal, None)
    assert len(masks[0]) > 5  # three blocks of the first and two of the last, and room
    assert masks[0].any(-1).all()


@pytest.mark.parametrize("count", [16, 64])
@pytest.mark.parametrize(("span", "keys"), [(LocalAttention(4, look_back=1), 8), (LocalAttention(4), 4)])
def test_each_query_of_local_attention_meets_as_many_keys_however_long_the_sequence(
    span: LocalAttention, keys: int, count: int
) -> None:
    pairs: list[int] = []

    def watch(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        if "layout" in options:
            cut, _ = options["layout"]
            pairs.append(cut.batch * cut.longest**2)
        else:
            pairs.append(query.shape[0] * query.shape[2] * key.shape[2])  # (M, H, b, K) and (M, H, S, K)
        return attend(query, key, value, score=ScaledDot(K), **options)

    span(*heads(lengths=[count]), Packed.of([count]), watch, True, None)
    assert pairs == [count * keys]


def test_a_step_with_patterns_compiles_as_one_graph() -> None:
    spans = (LocalAttention(3), LocalAttention(2, look_back=1), CompressedAttention(H * K))
    attention = [MultiHeadAttention(H * K, H, pattern=span).double() for span in spans]  # oneDNN has no such numbers

    def run(x: Tensor, layout: Packed) -> Tensor:
        for each in attention:
            x = x + each(*each.queries_keys_values(x, None), causal=True, layout=(layout, layout))
        return x

    compiled = torch.compile(run, backend="eager", fullgraph=True, dynamic=False)
    first, second = ([7, 2, 3], [1, 5, 6])
    torch._dynamo.reset()
    with torch._dynamo.config.patch(error_on_recompile=True):  # one shape, whatever the lengths in it
        for lengths in (first, second):
            x, layout = torch.randn(12, H * K, dtype=torch.float64), Packed.of(lengths, longest=8)
            torch.testing.assert_close(compiled(x, layout), run(x, layout), **CLOSE)


def test_a_layer_with_a_pattern_taps_weights_that_can_be_replaced() -> None:
    attention = MultiHeadAttention(H * K, H, pattern=LocalAttention(2)).eval()
    layout, taps = Packed.of([5]), {}

    def hear(tapped: Tapped) -> None:
        taps[tapped.name] = tapped.tensor

    x = torch.randn(5, H * K)
    three = attention.queries_keys_values(x, None)
    plain = attention(*three, causal=True, layout=(layout, layout))
    with on_taps(attention, hear):
        torch.testing.assert_close(attention(*three, causal=True, layout=(layout, layout)), plain, rtol=0, atol=1e-5)
    seen = taps["weights"][0, 0] > 0
    assert torch.equal(seen, local_mask(5, 2, 0, True))


@pytest.mark.kernels
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    "name",  # the first two are for our kernel, the others for PyTorch's
    ["local", "compressed", *(pytest.param(name, marks=pytest.mark.cuda) for name in ("look-back", "long blocks"))],
)
def test_the_kernels_for_packed_batches_say_the_same(
    kernels: torch.device, half: torch.dtype, name: str, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In half precision, with the room that is left on CUDA, against the formula in float64."""
    monkeypatch.setattr(cuts, "countable", lambda device: False)
    width, lengths = 16, [*LENGTHS, 700]  # longer than our kernel for short sequences takes
    pattern = {
        "local": LocalAttention(64),
        "look-back": LocalAttention(64, look_back=1),
        "long blocks": LocalAttention(300),
    }
    span = pattern[name] if name in pattern else CompressedAttention(H * width).double()
    three = [torch.randn(sum(lengths), H, width).to(half) for _ in range(3)]
    exact = [part.double().requires_grad_() for part in three]
    pieces = zip(*(part.split(lengths) for part in exact), strict=True)
    expected = torch.cat([by_hand(span, *piece, ScaledDot(width), causal) for piece in pieces])
    pull = torch.randn_like(expected).to(half)
    gradients = torch.autograd.grad(expected, exact, pull.double())
    span = span.to(kernels, torch.float32)
    ours = [part.to(kernels).requires_grad_() for part in three]
    with torch.autocast(kernels.type, half):
        result = span(*ours, Packed.of(lengths, kernels), look(ScaledDot(width)), causal, None)
    step = torch.finfo(half).eps
    torch.testing.assert_close(result.double().cpu(), expected, rtol=4 * step, atol=4 * step)
    for mine, theirs in zip(torch.autograd.grad(result, ours, pull.to(kernels)), gradients, strict=True):
        torch.testing.assert_close(mine.double().cpu(), theirs, rtol=8 * step, atol=8 * step)
