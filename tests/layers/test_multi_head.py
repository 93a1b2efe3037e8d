"""Attention in heads: that of torch.nn, its dropout, and widths that heads can share."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sightline.layers.attention import causal_mask
from sightline.layers.layout import Padded
from sightline.layers.multi_head import MultiHeadAttention
from sightline.layers.tap import Tapped, on_taps

SIXTY_FOUR = {"rtol": 0.0, "atol": 1e-13}  # sums of a few float64 products of numbers near one


def like_torch(width: int, count: int) -> tuple[MultiHeadAttention, nn.MultiheadAttention]:
    """Ours and PyTorch's with the same weights."""
    ours = MultiHeadAttention(width, count).double().eval()
    theirs = nn.MultiheadAttention(width, count, batch_first=True, dtype=torch.float64).eval()
    with torch.no_grad():
        theirs.in_proj_weight.copy_(ours.qkv.weight)
        theirs.in_proj_bias.copy_(ours.qkv.bias.normal_())
        theirs.out_proj.weight.copy_(ours.output.weight)
        theirs.out_proj.bias.copy_(ours.output.bias.normal_())
    return ours, theirs


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("causal", [False, True])
def test_self_attention_is_that_of_torch(count: int, causal: bool) -> None:
    ours, theirs = like_torch(8, count)
    x, layout = torch.randn(3, 5, 8, dtype=torch.float64), Padded.of([5, 2, 4])
    result = ours(*ours.queries_keys_values(x, None), causal=causal, layout=(layout, layout))
    future = ~causal_mask(5, 5, x.device) if causal else None
    expected, _ = theirs(x, x, x, key_padding_mask=~layout.key_mask(), attn_mask=future, need_weights=False)
    torch.testing.assert_close(result, expected, **SIXTY_FOUR)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_attention_to_a_source_is_that_of_torch_with_its_weights(count: int) -> None:
    ours, theirs = like_torch(8, count)
    x, source = torch.randn(3, 4, 8, dtype=torch.float64), torch.randn(3, 6, 8, dtype=torch.float64)
    target, layout = Padded.of([4, 4, 4]), Padded.of([6, 1, 3])
    three = (ours.queries(x), *ours.keys_values(source))
    expected, weights = theirs(x, source, source, key_padding_mask=~layout.key_mask(), average_attn_weights=False)
    torch.testing.assert_close(ours(*three, layout=(target, layout)), expected, **SIXTY_FOUR)
    taps: list[Tapped] = []
    with on_taps(ours, taps.append):
        torch.testing.assert_close(ours(*three, layout=(target, layout)), expected, **SIXTY_FOUR)
    shown = {tapped.name: tapped.tensor for tapped in taps}
    stations = ["products", "scores", "masked", "weights", "context", "joined", "output"]
    assert list(shown) == ["query", "key", "value", *stations]
    torch.testing.assert_close(shown["weights"], weights, **SIXTY_FOUR)


def test_dropout_on_the_weights_happens_in_training_only() -> None:
    attention = MultiHeadAttention(8, 2, dropout=0.5)
    x, layout = torch.randn(2, 4, 8), Padded.of([4, 4])
    three = attention.queries_keys_values(x, None)

    def run() -> Tensor:
        return attention(*three, layout=(layout, layout))

    assert not torch.equal(run(), run())
    attention.eval()
    assert torch.equal(run(), run())


def test_a_width_that_heads_do_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match=r"width \(10\) is not divisible by heads \(4\)"):
        MultiHeadAttention(10, 4)
