"""Taps: named points where layers show what they compute."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sightline.layers.layout import Padded
from sightline.layers.multi_head import MultiHeadAttention
from sightline.layers.tap import TapModule, Tapped, on_taps
from sightline.models.seq2seq import Seq2Seq


class Doubling(TapModule):
    def forward(self, x: Tensor) -> Tensor:
        return self.tap("double", 2 * x, "2 x", ["x"])


class Chain(TapModule):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.plain, self.second = Doubling(), nn.Linear(2, 2), Doubling()

    def forward(self, x: Tensor) -> Tensor:
        return self.tap("sum", self.first(x) + self.second(self.plain(x)), "a + b", ["first.double", "second.double"])


def test_without_listeners_a_tap_returns_its_tensor() -> None:
    module, x = Chain(), torch.randn(3, 2)
    assert not module.recorded
    assert module.explicit_tap is None
    assert module.tap("x", x) is x


def test_inside_taps_come_in_order_with_full_names_formulas_and_inputs() -> None:
    module, x, taps = Chain(), torch.randn(3, 2), []
    with on_taps(module, taps.append):
        output = module(x)
    assert [tapped.name for tapped in taps] == ["first.double", "second.double", "sum"]
    assert taps[0] == Tapped("first.double", taps[0].tensor, "2 x", ("first.x",))
    assert taps[2].inputs == ("first.double", "second.double")
    assert torch.equal(taps[0].tensor, 2 * x)
    assert taps[2].tensor is output


def test_listeners_can_be_limited_to_some_modules() -> None:
    module, taps = Chain(), []
    with on_taps(module, taps.append, only=["second"]):
        module(torch.randn(3, 2))
        assert [module.recorded, module.first.recorded, module.second.recorded] == [False, False, True]
    assert [tapped.name for tapped in taps] == ["second.double"]


def test_a_listener_for_no_module_receives_nothing() -> None:
    module, tapped = Chain(), []
    with on_taps(module, tapped.append, only=()):
        module(torch.randn(3, 2))
    assert tapped == []


def test_an_exception_removes_the_listener() -> None:
    module, tapped = Chain(), []
    with pytest.raises(RuntimeError, match="stop"), on_taps(module, tapped.append):
        raise RuntimeError("stop")
    module(torch.randn(3, 2))
    assert tapped == []
    assert not any(part.recorded for part in (module, module.first, module.second))


def test_an_outer_listener_stays_after_an_inner_one_is_removed() -> None:
    module, outer, inner = Chain(), [], []
    with on_taps(module, outer.append):
        with on_taps(module, inner.append, only=["second"]):
            module(torch.randn(3, 2))
        module(torch.randn(3, 2))
    assert [tapped.name for tapped in inner] == ["second.double"]
    assert [tapped.name for tapped in outer] == ["first.double", "second.double", "sum"] * 2
    assert not module.second.recorded


def test_each_listener_gets_paths_relative_to_its_own_model() -> None:
    module, whole, part = Chain(), [], []
    with on_taps(module, whole.append), on_taps(module.second, part.append):
        module(torch.randn(3, 2))
    assert [tapped.name for tapped in whole] == ["first.double", "second.double", "sum"]
    assert [tapped.name for tapped in part] == ["double"]


def test_a_returned_tensor_replaces_the_tapped_one() -> None:
    module, x, taps = Chain(), torch.randn(3, 2), []

    def silence(tapped: Tapped) -> Tensor | None:
        return torch.zeros_like(tapped.tensor) if tapped.name == "first.double" else None

    with torch.no_grad(), on_taps(module, silence), on_taps(module, taps.append):
        result = module(x)
    assert torch.equal(result, 2 * module.plain(x))
    assert not taps[0].tensor.any()  # who began later hears what is gone on with
    assert torch.equal(module(x), 2 * x + 2 * module.plain(x))  # and afterwards all is as it was


def test_a_replacement_of_another_shape_is_refused() -> None:
    module = Chain()
    refused = pytest.raises(ValueError, match=r"first.double, which is \(3, 2\), by a tensor \(1, 2\)")
    with refused, on_taps(module, lambda tapped: tapped.tensor[:1]):
        module(torch.randn(3, 2))


@pytest.mark.parametrize("point", ["query", "key", "value", "scores", "weights", "context", "output"])
def test_attention_uses_replacements_at_all_of_its_taps(point: str) -> None:
    attention, layout = MultiHeadAttention(8, 2), Padded.of([4, 3])
    heads = attention.queries_keys_values(torch.randn(2, 4, 8), None)
    with torch.no_grad():
        alone = attention(*heads, layout=(layout, layout))
        with on_taps(attention, lambda tapped: tapped.tensor.flip(-1) if tapped.name == point else None):
            other = attention(*heads, layout=(layout, layout))
    assert not torch.allclose(other, alone, atol=1e-3)


def test_taps_leave_no_trace_in_the_weights() -> None:
    module = Chain()
    with on_taps(module, lambda tapped: None):
        assert list(module.state_dict()) == ["plain.weight", "plain.bias"]
    assert not module.first.any_recorded


def test_a_listener_turns_the_fused_kernel_into_the_explicit_one(monkeypatch: pytest.MonkeyPatch) -> None:
    attention, layout = MultiHeadAttention(8, 2), Padded.of([4, 3])
    heads = attention.queries_keys_values(torch.randn(2, 4, 8), None)
    calls = []
    kernel = nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        nn.functional, "scaled_dot_product_attention", lambda *a, **k: calls.append(1) or kernel(*a, **k)
    )
    attention(*heads, layout=(layout, layout))
    assert calls == [1]
    with on_taps(attention, lambda tapped: None):
        attention(*heads, layout=(layout, layout))
    assert calls == [1]


def test_a_listener_for_named_points_keeps_the_fused_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attention, layout, taps = MultiHeadAttention(8, 2), Padded.of([4, 3]), []
    heads = attention.queries_keys_values(torch.randn(2, 4, 8), None)
    calls = []
    kernel = nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        nn.functional, "scaled_dot_product_attention", lambda *a, **k: calls.append(1) or kernel(*a, **k)
    )
    with torch.no_grad(), on_taps(attention, taps.append, points=("query", "output", "weights")):
        output = attention(*heads, layout=(layout, layout))
        assert not attention.recorded
    assert calls == [1]
    assert [tapped.name for tapped in taps] == ["query", "output"]
    assert taps[1].tensor is output


def test_a_listener_for_all_points_makes_weights_available_to_others() -> None:
    attention, layout, some, every = MultiHeadAttention(8, 2), Padded.of([4, 3]), [], []
    heads = attention.queries_keys_values(torch.randn(2, 4, 8), None)
    with on_taps(attention, some.append, points=("weights",)), on_taps(attention, every.append):
        attention(*heads, layout=(layout, layout))
    assert [tapped.name for tapped in some] == ["weights"]
    assert len(every) > 5


def test_recording_does_not_change_features(any_model: Seq2Seq) -> None:
    source, target = torch.tensor([[5, 6, 7, 3], [8, 3, 0, 0]]), torch.tensor([[2, 9, 4], [2, 12, 0]])
    layouts = Padded.of([4, 2]), Padded.of([3, 2])
    taps: list[Tapped] = []
    with torch.no_grad():
        alone = any_model(source, layouts[0], target, layouts[1])
        with on_taps(any_model, taps.append):
            seen = any_model(source, layouts[0], target, layouts[1])
    # two kernels of the same formula in float32, two layers deep, features of order one
    torch.testing.assert_close(seen[0], alone[0], rtol=0, atol=1e-5)
    torch.testing.assert_close(seen[1, :2], alone[1, :2], rtol=0, atol=1e-5)
    names = {tapped.name for tapped in taps}
    assert {"source_embedding.vectors", "target_embedding.vectors"} <= names
    for path in any_model.cross_attention_paths:
        assert f"{path}.weights" in names


def test_recorded_attention_sums_to_one_over_real_tokens(model: Seq2Seq) -> None:
    source, target = torch.tensor([[5, 6, 7, 3], [8, 3, 0, 0]]), torch.tensor([[2, 9, 4], [2, 12, 0]])
    taps: list[Tapped] = []
    with torch.no_grad(), on_taps(model, taps.append, model.cross_attention_paths):
        model(source, Padded.of([4, 2]), target, Padded.of([3, 2]))
    weights = [tapped.tensor for tapped in taps if tapped.name.endswith(".weights")]
    assert bool(weights) == bool(model.cross_attention_paths)
    for part in weights:
        assert not part[1, ..., 2:].any()
        torch.testing.assert_close(part.sum(-1), torch.ones(part.shape[:-1]), rtol=0, atol=1e-6)  # float32 sums of four
