"""The mixture of experts against its formulas, written a second time with loops over tokens and experts."""

from __future__ import annotations

import math
from itertools import product
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from sightline.layers.feedforward import (
    Collected,
    Experts,
    build_experts,
    choice_probability,
    choose,
    collect,
    route,
    slots_each,
    squared_variation,
)
from sightline.layers.tap import Tapped, on_taps
from sightline.recipe.model import ExpertsConfig

WIDTH, HIDDEN = 6, 5
SIXTY_FOUR = {"rtol": 0.0, "atol": 1e-11}  # float64, sums of a few dozen products of numbers near one


def build(kind: str = "relu", **recipe: Any) -> Experts:
    """In float64, training, with weights at no special value."""
    layer = build_experts(ExpertsConfig.model_validate(recipe), WIDTH, HIDDEN, kind=kind).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(std=0.7)
    return layer


def some_tokens(*shape: int) -> Tensor:
    return torch.randn(*shape, WIDTH, dtype=torch.float64)


class Naive(NamedTuple):
    outputs: Tensor  # (N, D)
    loss: Tensor
    counts: list[int]  # choices for each expert, and those dropped


def expert(layer: Experts, kind: str, number: int, x: Tensor) -> Tensor:
    nets = layer.nets
    hidden = x @ nets.up[number] + nets.up_bias.view(layer.count, -1)[number]
    if kind == "swiglu":
        gate, value = hidden.chunk(2)
        hidden = gate * torch.sigmoid(gate) * value
    elif kind == "relu":
        hidden = hidden * (hidden > 0)
    else:
        hidden = hidden * 0.5 * (1 + torch.erf(hidden / math.sqrt(2)))
    return hidden @ nets.down[number] + nets.down_bias.view(layer.count, -1)[number]


def variation(amounts: Tensor) -> Tensor:
    mean = amounts.sum() / len(amounts)
    return ((amounts - mean) ** 2).sum() / len(amounts) / mean**2


def naive(layer: Experts, kind: str, tokens: Tensor, real: list[bool], draws: Tensor | None) -> Naive:
    """Shazeer et al. 2017, equations 2 to 11, token by token."""
    everybody = range(layer.count)
    zero = tokens.new_zeros(())
    importance, load = [zero] * layer.count, [zero] * layer.count
    wishes: list[list[tuple[int, Tensor]]] = []
    for x, is_real, draw in zip(tokens, real, tokens if draws is None else draws, strict=True):
        if not is_real:
            wishes.append([])
            continue
        clean = [layer.gate[e] @ x for e in everybody]
        spread = [torch.log1p(torch.exp(layer.noise[e] @ x)) if layer.noise is not None else zero for e in everybody]
        noisy = [clean[e] + (zero if draws is None else draw[e] * spread[e]) for e in everybody]
        best = sorted(everybody, key=lambda e: (-float(noisy[e].detach()), e))[: layer.top_k]
        powers = [torch.exp(noisy[e]) for e in best]
        wishes.append([(e, power / sum(powers)) for e, power in zip(best, powers, strict=True)])
        for e, gate in wishes[-1]:
            importance[e] = importance[e] + gate
        for e in everybody:
            others = sorted((noisy[i] for i in everybody if i != e), key=lambda score: -float(score.detach()))
            if layer.load:
                z = (clean[e] - others[layer.top_k - 1]) / spread[e]
                load[e] = load[e] + 0.5 * (1 + torch.erf(z / math.sqrt(2)))
    room = math.ceil(layer.capacity_factor * layer.top_k * len(tokens) / layer.count)
    outputs, taken, chosen, dropped = [zero.expand(WIDTH)] * len(tokens), [0] * layer.count, [0] * layer.count, 0
    for rank, (place, wish) in product(range(layer.top_k), enumerate(wishes)):
        if not wish:
            continue
        e, gate = wish[rank]
        chosen[e] += 1
        if draws is not None and taken[e] >= room:
            dropped += 1
            continue
        taken[e] += 1
        outputs[place] = outputs[place] + gate * expert(layer, kind, e, tokens[place])
    loss = layer.importance * variation(torch.stack(importance))
    if layer.load:
        loss = loss + layer.load * variation(torch.stack(load))
    return Naive(torch.stack(outputs), loss, [*chosen, dropped])


def collected(layer: Experts, x: Tensor, valid: Tensor | None = None, seed: int = 3) -> tuple[Tensor, Collected]:
    torch.manual_seed(seed)
    with collect(layer) as extra:
        outputs = layer(x, valid)
    return outputs, extra


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "two of four": ("relu", {"count": 4, "top_k": 2, "capacity_factor": 9.0}),
    "one of three, tight": ("gelu", {"count": 3, "top_k": 1, "capacity_factor": 0.8, "importance": 0.3, "load": 0.7}),
    "three of five, tight": ("swiglu", {"count": 5, "top_k": 3, "capacity_factor": 0.6}),
    "all but one": ("relu", {"count": 3, "top_k": 2, "capacity_factor": 9.0}),
    "importance alone": ("relu", {"count": 4, "top_k": 2, "capacity_factor": 9.0, "load": 0.0}),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("padded", [False, True])
def test_outputs_losses_and_counts_are_those_of_the_formulas(name: str, padded: bool) -> None:
    kind, recipe = CASES[name]
    layer, x = build(kind, **recipe), some_tokens(3, 7)
    valid = torch.arange(7) < torch.tensor([[7], [2], [5]]) if padded else None
    outputs, extra = collected(layer, x, valid)
    torch.manual_seed(3)
    draws = torch.randn(21, layer.count, dtype=torch.float64)
    real = [True] * 21 if valid is None else valid.flatten().tolist()
    expected = naive(layer, kind, x.flatten(0, 1), real, draws)
    torch.testing.assert_close(outputs.flatten(0, 1), expected.outputs, **SIXTY_FOUR)
    torch.testing.assert_close(extra.losses, [expected.loss], **SIXTY_FOUR)
    row = extra.row()
    assert row is not None and row.tolist() == expected.counts
    assert padded or (expected.counts[-1] > 0) == ("tight" in name)


@pytest.mark.parametrize("name", ["two of four", "three of five, tight"])
def test_gradients_are_those_of_the_formulas(name: str) -> None:
    kind, recipe = CASES[name]
    layer, x = build(kind, **recipe), some_tokens(2, 8).requires_grad_()
    valid = torch.arange(8) < torch.tensor([[8], [6]])
    outputs, extra = collected(layer, x, valid)
    leaves = [x, *layer.parameters()]
    direction = torch.randn_like(outputs)
    result = torch.autograd.grad((outputs * direction).sum() + extra.losses[0], leaves)
    torch.manual_seed(3)
    draws = torch.randn(16, layer.count, dtype=torch.float64)
    expected = naive(layer, kind, x.flatten(0, 1), valid.flatten().tolist(), draws)
    scalar = (expected.outputs.view_as(x) * direction).sum() + expected.loss
    torch.testing.assert_close(result, torch.autograd.grad(scalar, leaves), **SIXTY_FOUR)


@torch.no_grad()
def test_in_evaluation_there_is_no_noise_and_no_capacity_limit() -> None:
    layer, x = build(count=4, capacity_factor=0.1).eval(), some_tokens(9)
    expected = naive(layer, "relu", x, [True] * 9, None)
    torch.testing.assert_close(layer(x), expected.outputs, **SIXTY_FOUR)
    torch.testing.assert_close(layer(x), torch.cat([layer(token[None]) for token in x]), **SIXTY_FOUR)
    assert expected.counts[-1] == 0


@torch.no_grad()
def test_tokens_for_a_full_expert_are_dropped() -> None:
    layer, x = build(count=4, top_k=1, capacity_factor=1.0), some_tokens(12).abs()
    layer.gate.copy_(torch.tensor([9.0, -9, -9, -9])[:, None].expand(4, WIDTH))  # all tokens want the first
    outputs, extra = collected(layer, x)
    assert extra.row().tolist() == [12, 0, 0, 0, 9]  # type: ignore[union-attr]
    assert torch.count_nonzero(outputs[3:]) == 0  # first come, first served
    torch.testing.assert_close(outputs[:3], torch.stack([expert(layer, "relu", 0, token) for token in x[:3]]))


def test_capacity_is_the_even_share_times_the_factor_and_at_most_all_tokens() -> None:
    assert slots_each(1.0, 2, 100, 8) == 25
    assert slots_each(1.25, 2, 101, 8) == 32  # 31.5…, rounded up
    assert slots_each(50.0, 2, 100, 8) == 100
    assert slots_each(0.001, 1, 4, 8) == 1


@torch.no_grad()
def test_first_choices_get_slots_before_second_choices() -> None:
    routes = route(torch.tensor([[1, 0], [0, 1], [0, 1]]), None, 2, 2)
    assert routes.kept.view(2, 3).tolist() == [[True, True, True], [False, True, False]]
    assert routes.slots.view(2, 3).tolist() == [[2, 0, 1], [4, 3, 4]]
    assert routes.counts.tolist() == [3, 3]


@torch.no_grad()
def test_padding_is_not_routed() -> None:
    layer, x = build(count=3, capacity_factor=0.5), some_tokens(2, 6)
    valid = torch.arange(6) < torch.tensor([[2], [4]])
    other = torch.where(valid[..., None], x, 100 * some_tokens(2, 6))
    one, extra = collected(layer, x, valid)
    two, again = collected(layer, other, valid)
    assert torch.equal(one, two)
    assert torch.equal(extra.losses[0], again.losses[0])
    assert torch.equal(extra.row(), again.row())  # type: ignore[arg-type]
    assert extra.row()[:3].sum() == 2 * 6  # type: ignore[index]
    assert torch.count_nonzero(one[~valid]) == 0
    nothing, extra = collected(layer, x, torch.zeros_like(valid))
    assert torch.count_nonzero(nothing) == 0 and extra.losses[0] == 0 and extra.row().sum() == 0  # type: ignore[union-attr]
    assert torch.count_nonzero(layer.eval()(x, torch.zeros_like(valid))) == 0


@torch.no_grad()
def test_a_listener_can_replace_the_gates() -> None:
    layer, x = build(count=4).eval(), some_tokens(2, 5)
    seen: dict[str, Tensor] = {}

    def switch_off(tapped: Tapped) -> Tensor | None:
        seen[tapped.name] = tapped.tensor
        return tapped.tensor * torch.tensor([1.0, 0, 0, 0]) if tapped.name == "gates" else None

    whole = layer(x)
    with on_taps(layer, lambda tapped: None):
        torch.testing.assert_close(layer(x), whole, **SIXTY_FOUR)
    with on_taps(layer, switch_off):
        result = layer(x)
    gates = seen["gates"]
    assert gates.shape == (2, 5, 4)
    assert ((gates > 0).sum(-1) == 2).all()
    torch.testing.assert_close(gates.sum(-1), torch.ones(2, 5, dtype=torch.float64))
    expected = [[gates[i, j, 0] * expert(layer, "relu", 0, x[i, j]) for j in range(5)] for i in range(2)]
    torch.testing.assert_close(result, torch.stack([torch.stack(row) for row in expected]), **SIXTY_FOUR)


@torch.no_grad()
def test_in_training_the_output_tap_has_no_operation() -> None:
    layer, x, operations = build(count=4), some_tokens(5), []

    def hear(tapped: Tapped) -> None:
        if tapped.name == "output":
            operations.append(tapped.operation)

    with on_taps(layer, hear):
        layer(x)
        layer.eval()(x)
    assert operations == ["", "mixture_of_experts"]


def test_ties_go_to_the_expert_with_the_lower_index() -> None:
    scores = torch.tensor([[0.0, 1.0, 1.0, 1.0], [2.0, 2.0, 2.0, 2.0]]).repeat(50, 1)
    choice = choose(scores, 2)
    assert choice.experts.tolist() == [[1, 2], [0, 1]] * 50
    torch.testing.assert_close(choice.gates, torch.full((100, 2), 0.5))


def test_the_same_seed_chooses_the_same() -> None:
    layer, x = build(count=4), some_tokens(30)
    assert torch.equal(collected(layer, x, seed=5)[0], collected(layer, x, seed=5)[0])
    assert not torch.equal(collected(layer, x, seed=5)[0], collected(layer, x, seed=6)[0])


@torch.no_grad()
def test_with_k_equal_to_the_number_of_experts_loads_are_equal() -> None:
    layer, x = build(count=3, top_k=3, importance=0.0, load=1.0), some_tokens(5)
    outputs, extra = collected(layer, x)
    assert float(extra.losses[0]) == 0.0
    assert torch.isfinite(outputs).all()
    sure = choice_probability(x[:, :3], torch.ones(5, 3), choose(x[:, :3], 3))
    assert torch.equal(sure, torch.ones(5, 3, dtype=torch.float64))


def test_vanishing_noise_has_finite_gradients() -> None:
    layer, x = build(count=4), some_tokens(9).abs()
    with torch.no_grad():
        layer.noise.fill_(-1e3)  # whose softplus is zero
    _, extra = collected(layer, x)
    extra.losses[0].backward()
    assert layer.gate.grad.isfinite().all()


def test_under_autocast_experts_run_in_bfloat16_and_are_chosen_in_float32() -> None:
    layer, x = build(count=4).float(), some_tokens(40).float()
    exact, extra = collected(layer, x)
    with torch.autocast("cpu", torch.bfloat16):
        rounded, again = collected(layer, x)
        assert rounded.dtype == torch.bfloat16
        (rounded.float().sum() + again.losses[0]).backward()
    assert torch.equal(extra.losses[0], again.losses[0])
    assert torch.equal(extra.row(), again.row())  # type: ignore[arg-type]
    torch.testing.assert_close(rounded.float(), exact, rtol=0.05, atol=0.05)
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in layer.parameters())


@pytest.mark.parametrize("weights", [{"importance": 1.0, "load": 0.0}, {"importance": 0.0, "load": 1.0}])
def test_minimizing_either_loss_evens_out_the_shares(weights: dict[str, float]) -> None:
    layer, x = build(count=4, **weights).float(), some_tokens(400).float() + 0.5
    with torch.no_grad():
        layer.gate[0] += 1.5  # a favourite

    def unevenness() -> float:
        row = torch.stack([collected(layer, x, seed=seed)[1].row()[:4] for seed in range(20)]).sum(0)  # type: ignore[index]
        return float(squared_variation(row.float()))

    optimizer, before, losses = torch.optim.Adam(layer.parameters(), lr=0.02), unevenness(), []
    for step in range(150):
        loss = collected(layer, x, seed=100 + step)[1].losses[0]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.1 * losses[0]
    assert unevenness() < 0.2 * before


@torch.no_grad()
def test_dropout_applies_inside_experts_of_the_configured_width() -> None:
    recipe = ExpertsConfig(count=4, hidden=7, capacity_factor=9.0)
    layer, x = build_experts(recipe, WIDTH, HIDDEN, dropout=0.99999), some_tokens(9).float()  # next to all is dropped
    assert layer.nets.down.shape == (4, 7, WIDTH)
    layer.nets.down_bias.copy_(torch.arange(WIDTH).repeat(4))
    torch.testing.assert_close(layer(x), torch.arange(WIDTH).expand(9, -1).float())


def test_without_noise_every_expert_can_be_chosen_from_the_start() -> None:
    torch.manual_seed(0)
    layer = Experts(WIDTH, HIDDEN, count=4, noise=False)
    assert layer.noise is None
    _, extra = collected(layer, some_tokens(100).float())
    assert extra.row()[:4].min() > 0  # type: ignore[index]


def test_with_noise_gates_are_initially_zero() -> None:
    layer = Experts(WIDTH, HIDDEN, count=4)
    _, extra = collected(layer, some_tokens(4000).float())
    row = extra.row()
    assert row is not None
    torch.testing.assert_close(row[:4] / 8000, torch.full((4,), 0.25), rtol=0.0, atol=0.02)


def test_losses_are_collected_in_training_inside_collect_only() -> None:
    layer, x = build(count=4), some_tokens(5)
    _, extra = collected(layer, x)
    assert len(extra.losses) == 1
    layer(x)
    assert len(extra.losses) == 1
    assert not [name for name, value in vars(layer).items() if isinstance(value, Tensor | Collected)]
    layer.eval()
    _, extra = collected(layer, x)
    assert extra.losses == [] and extra.row() is None
    with pytest.raises(RuntimeError), collect(layer):
        raise RuntimeError
    assert layer._collected is None


def test_nested_collections_are_separate() -> None:
    layer, x = build(count=4), some_tokens(5)
    with collect(layer) as outer:
        layer(x)
        with collect(layer) as inner:
            layer(x)
            layer(x)
        layer(x)
    assert (len(outer.losses), len(inner.losses)) == (2, 2)
    assert int(outer.row().sum()) == 2 * 2 * 5 + int(outer.row()[4])  # type: ignore[union-attr, index]


def test_the_layer_and_its_collection_are_one_graph_for_all_batches_of_a_size() -> None:
    torch._dynamo.reset()
    layer, graphs = build(count=4, capacity_factor=0.7), []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        graphs.append(graph)
        return graph.forward

    def run(x: Tensor, valid: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        with collect(layer) as extra:
            outputs = layer(x, valid)
        return outputs, extra.losses[0], extra.row()

    compiled = torch.compile(run, backend=backend, fullgraph=True, dynamic=False)
    for seed, kept in enumerate([5, 2, 9]):
        x, valid = some_tokens(10), torch.arange(10) < kept
        torch.manual_seed(seed)
        result = compiled(x, valid)
        torch.manual_seed(seed)
        torch.testing.assert_close(result, run(x, valid))
    assert len(graphs) == 1
    assert layer._collected is None


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ({"count": 2, "top_k": 3}, r"experts\.top_k \(3\) is more than experts\.count \(2\)"),
        ({"noise": False}, r"experts\.load \(0\.1\) is estimated through the noise.*set experts\.load: 0"),
    ],
)
def test_invalid_expert_configs_are_refused(recipe: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ExpertsConfig.model_validate(recipe)
