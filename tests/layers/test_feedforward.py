"""The position-wise network against its formula."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from sightline.layers.embedding import Embedding, Output
from sightline.layers.feedforward import FeedForwardNet, build_feedforward
from sightline.recipe.model import FeedForwardConfig

SIXTY_FOUR = {"rtol": 0.0, "atol": 1e-13}  # float64 sums of some 32 products of numbers near one
SCALARS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": lambda x: x.clamp(min=0),
    "gelu": lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))),
    "swiglu": lambda x: x / (1 + torch.exp(-x)),
}


@pytest.mark.parametrize("kind", SCALARS)
@pytest.mark.parametrize("inner", [None, 5])
def test_the_net_is_its_formula(kind: str, inner: int | None) -> None:
    net = build_feedforward(FeedForwardConfig(kind=kind, width=inner), 8, 0).double()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.normal_()
    size = 32 if inner is None else inner
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    wide = x @ net.up.weight.T + net.up.bias
    hidden = SCALARS[kind](wide[..., :size])
    if kind == "swiglu":
        assert wide.shape[-1] == 2 * size
        hidden = hidden * wide[..., size:]
    torch.testing.assert_close(net(x), hidden @ net.down.weight.T + net.down.bias, rtol=1e-14, atol=1e-12)


def test_inner_dropout_applies_in_training_only() -> None:
    x = torch.randn(4, 8)
    plain, dropping = FeedForwardNet(8, 32), FeedForwardNet(8, 32, dropout=0.5)
    assert torch.equal(plain(x), plain(x))
    assert not torch.equal(dropping(x), dropping(x))
    dropping.eval()
    assert torch.equal(dropping(x), dropping(x))


def test_an_embedding_is_a_row_times_the_root_of_the_width() -> None:
    layer = Embedding(7, 16)
    result = layer(torch.tensor([[3, 0], [6, 3]]))
    assert torch.equal(result[1], 4.0 * layer.weight[[6, 3]])
    assert torch.equal(result[0], 4.0 * layer.weight[[3, 0]])


def test_embeddings_have_variance_one() -> None:
    vectors = Embedding(1000, 64)(torch.arange(1000))
    assert abs(vectors.var().item() - 1.0) < 0.02  # 64,000 draws: the standard error is √(2/64000) = 0.006


def test_a_tied_output_layer_shares_the_embeddings_weight() -> None:
    embedding = Embedding(7, 4)
    assert Output(7, 4, embedding).weight is embedding.weight
    assert Output(7, 4, None).weight is not embedding.weight


def test_the_output_layer_scores_every_word() -> None:
    layer, features = Output(7, 4, None).double(), torch.randn(2, 3, 4, dtype=torch.float64)
    with torch.no_grad():
        layer.bias.normal_()
    torch.testing.assert_close(layer(features), features @ layer.weight.T + layer.bias, **SIXTY_FOUR)
