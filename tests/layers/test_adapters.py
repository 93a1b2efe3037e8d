"""Low-rank adapters: the formula, where they stand, and that merging them changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from sightline.layers.adapters import LowRank, add_adapters, is_adapter, merge_adapters
from sightline.layers.layout import Packed, Padded
from sightline.layers.linear import pack
from sightline.layers.multi_head import MultiHeadAttention
from sightline.models.seq2seq import Seq2Seq
from sightline.recipe.model import AdaptersConfig

EVERYWHERE = ("query", "key", "value", "output", "feedforward")


def body(feedforward: str = "relu", **more: Any) -> dict[str, Any]:
    return {
        "kind": "transformer",
        "layers": 2,
        "heads": 2,
        "feedforward": {"kind": feedforward, "width": 12},
        "dropout": 0.0,
        **more,
    }


def learned(model: nn.Module) -> None:
    """Let the adapters add something, as after a training."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, LowRank):
                module.up.normal_(std=0.3)


def test_adapter_output_follows_the_formula() -> None:
    attention = MultiHeadAttention(8, 2).double()
    x = torch.randn(3, 5, 8).double()
    before = attention.queries_keys_values(x, None)
    add_adapters(attention, AdaptersConfig(rank=2, alpha=6, target_modules=("query", "value")))
    attention.double()
    learned(attention)
    query, key, value = attention.queries_keys_values(x, None)
    assert attention.qkv is not None
    for name, was, now in (("query", before[0], query), ("value", before[2], value)):
        own = attention.qkv.get_submodule(f"adapters.{name}")
        added = 3.0 * (x @ own.down.T @ own.up.T)
        torch.testing.assert_close(now.flatten(-2), was.flatten(-2) + added)
        assert not torch.allclose(now, was)
    torch.testing.assert_close(key, before[1], rtol=0, atol=0)


def test_adapting_rows_equals_adapting_the_whole_weight() -> None:
    """Attention to a source asks for the rows of the queries, and for those of keys and values."""
    attention = MultiHeadAttention(8, 4, groups=2)
    add_adapters(attention, AdaptersConfig(rank=2, target_modules=("query", "key", "value")))
    learned(attention)
    x = torch.randn(2, 5, 8)
    query, key, value = attention.queries_keys_values(x, None)
    torch.testing.assert_close(attention.queries(x), query)
    for part, whole in zip(attention.keys_values(x), (key, value), strict=True):
        torch.testing.assert_close(part, whole)


@pytest.fixture(params=["relu", "swiglu", "shared heads"])
def adapted(request: pytest.FixtureRequest, build_model: Callable[..., Seq2Seq]) -> Seq2Seq:
    own = body(attention={"kv_heads": 1}) if request.param == "shared heads" else body(request.param)
    model = build_model(own, own)
    add_adapters(model, AdaptersConfig(rank=3, target_modules=EVERYWHERE, dropout=0.5))
    return model.eval()


def features(model: Seq2Seq, *, packed: bool) -> torch.Tensor:
    source, target = torch.tensor([[4, 5, 6], [7, 8, 9]]), torch.tensor([[2, 5, 4, 6], [2, 9, 8, 7]])
    if not packed:
        return model(source, Padded.of([3, 3]), target, Padded.of([4, 4]))
    three, four = (Packed.of(torch.tensor([count, count]), longest=count) for count in (3, 4))
    return model(source.flatten(), three, target.flatten(), four).view(2, 4, -1)


def test_new_adapters_change_nothing(adapted: Seq2Seq, build_model: Callable[..., Seq2Seq]) -> None:
    names = [name for name, _ in adapted.named_parameters() if is_adapter(name)]
    assert len(names) == 2 * 2 * (6 + 10)  # A and B, two layers, maps of the encoder and of the decoder
    before = features(adapted, packed=False)
    assert merge_adapters(adapted) == len(names) // 2
    torch.testing.assert_close(features(adapted, packed=False), before)


@pytest.mark.parametrize("packed", [False, True])
def test_merging_adapters_does_not_change_outputs(adapted: Seq2Seq, packed: bool) -> None:
    plain = features(adapted.double(), packed=packed)
    learned(adapted)
    before = features(adapted, packed=packed)
    assert (before - plain).abs().max() > 0.01
    merge_adapters(adapted)
    torch.testing.assert_close(features(adapted, packed=packed), before, rtol=0.0, atol=1e-10)
    assert not any(is_adapter(name) for name, _ in adapted.named_parameters())


def test_adapter_dropout_applies_in_training_only(adapted: Seq2Seq) -> None:
    learned(adapted)
    torch.testing.assert_close(features(adapted, packed=False), features(adapted, packed=False), rtol=0, atol=0)
    adapted.train()
    assert not torch.equal(features(adapted, packed=False), features(adapted, packed=False))


def test_gradients_reach_the_adapters_and_not_the_frozen_weights(adapted: Seq2Seq) -> None:
    for name, parameter in adapted.named_parameters():
        parameter.requires_grad_(is_adapter(name))
    learned(adapted)
    features(adapted.train(), packed=False).square().sum().backward()
    for name, parameter in adapted.named_parameters():
        assert (parameter.grad is not None and bool(parameter.grad.abs().sum() > 0)) == is_adapter(name), name


def test_target_modules_that_no_layer_has_are_refused(build_model: Callable[..., Seq2Seq]) -> None:
    bare = body(attention={"projections": False})
    with pytest.raises(ValueError, match=r"model\.adapters\.target_modules: no layer of this model has a query"):
        add_adapters(build_model(bare, bare), AdaptersConfig())


def test_packing_for_prediction_keeps_adapters() -> None:
    """Adapters that are not merged are computed beside the weights, which oneDNN would not know."""
    attention = MultiHeadAttention(8, 2)
    add_adapters(attention, AdaptersConfig(rank=2, target_modules=("query",)))
    learned(attention)
    x = torch.randn(3, 5, 8)
    with torch.inference_mode():
        before = attention.queries_keys_values(x, None)
        pack(attention)
        after = attention.queries_keys_values(x, None)
    for was, now in zip(before, after, strict=True):
        torch.testing.assert_close(now, was)
