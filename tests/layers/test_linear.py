"""oneDNN's product is torch.nn.functional.linear, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor, nn

from sightline.layers.kernels import cpu_multiplies_bfloat16
from sightline.layers.linear import Linear, linear, onednn_fits, pack

INPUTS, OUTPUTS = 24, 40
# Two orders of adding up to 40 float32 products of numbers near one: sums of some 6, rounded some 40 times at random.
CLOSE = {"rtol": 0.0, "atol": 1e-5}


def contiguous(*shape: int) -> Tensor:
    return torch.randn(*shape)


def transposed(*shape: int) -> Tensor:
    return torch.randn(*shape[:-2], shape[-1], shape[-2]).mT


def strided(*shape: int) -> Tensor:
    return torch.randn(*shape[:-1], 2 * shape[-1])[..., ::2]


def expanded(*shape: int) -> Tensor:
    return torch.randn(1, *shape[1:]).expand(*shape)


MEMORIES = [contiguous, transposed, strided, expanded]
CASES = [((), contiguous), *product([(7,), (1,), (3, 5), (2, 3, 4)], MEMORIES)]


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(("shape", "memory"), CASES, ids=[f"{shape}-{memory.__name__}" for shape, memory in CASES])
def test_it_is_the_linear_function_of_torch(
    shape: tuple[int, ...], memory: Callable[..., Tensor], biased: bool
) -> None:
    x = memory(*shape, INPUTS)
    weight, bias = torch.randn(OUTPUTS, INPUTS), torch.randn(OUTPUTS) if biased else None
    expected = nn.functional.linear(x, weight, bias)
    with torch.no_grad():
        torch.testing.assert_close(linear(x, weight, bias), expected, **CLOSE)

    def leaves() -> list[Tensor | None]:
        return [None if part is None else part.detach().requires_grad_() for part in (x, weight, bias)]

    ours, theirs = leaves(), leaves()
    result, other = linear(*ours), nn.functional.linear(*theirs)
    torch.testing.assert_close(result, expected, **CLOSE)
    pull = torch.randn_like(result)
    result.backward(pull)
    other.backward(pull)
    for mine, its in zip(ours, theirs, strict=True):
        if mine is not None:
            torch.testing.assert_close(mine.grad, its.grad, **CLOSE)


@pytest.mark.parametrize("memory", [transposed, strided, expanded], ids=["transposed", "strided", "expanded"])
@pytest.mark.parametrize("shape", [(6,), (2, 3)])
def test_a_non_contiguous_gradient_comes_through(shape: tuple[int, ...], memory: Callable[..., Tensor]) -> None:
    x, weight = torch.randn(*shape, INPUTS, requires_grad=True), torch.randn(OUTPUTS, INPUTS, requires_grad=True)
    pull = memory(*shape, OUTPUTS)
    result = torch.autograd.grad(linear(x, weight), (x, weight), pull)
    torch.testing.assert_close(result[0], pull @ weight, **CLOSE)
    torch.testing.assert_close(result[1], pull.reshape(-1, OUTPUTS).T @ x.reshape(-1, INPUTS), **CLOSE)


def test_a_part_of_a_weight_works_as_a_weight() -> None:
    x, weight, bias = torch.randn(5, INPUTS), torch.randn(OUTPUTS, INPUTS), torch.randn(OUTPUTS)
    part = slice(8, 20)
    result = linear(x, weight[part], bias[part])
    torch.testing.assert_close(result, nn.functional.linear(x, weight, bias)[:, part], **CLOSE)


@pytest.mark.parametrize("learned", ["x", "weight", "bias"])
def test_whichever_operand_is_learned_alone_gets_its_gradient(learned: str) -> None:
    operands = {"x": torch.randn(5, INPUTS), "weight": torch.randn(OUTPUTS, INPUTS), "bias": torch.randn(OUTPUTS)}
    operands[learned].requires_grad_()
    result = torch.autograd.grad(linear(*operands.values()).square().sum(), operands[learned])
    expected = torch.autograd.grad(nn.functional.linear(*operands.values()).square().sum(), operands[learned])
    # squares of sums of 24 products reach some hundreds
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("x", [torch.randn(3, 4).double(), torch.randn(3, 4).bfloat16(), torch.empty(0, 4)])
def test_operands_that_onednn_does_not_support_use_torch(x: Tensor) -> None:
    weight = torch.randn(2, 4, dtype=x.dtype)
    assert not onednn_fits(x, weight)
    assert torch.equal(linear(x, weight), nn.functional.linear(x, weight))


def test_autocast_is_obeyed() -> None:
    x, weight = torch.randn(3, 4), torch.randn(2, 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(x, weight).dtype == torch.bfloat16


def test_on_this_processor_float32_goes_to_onednn() -> None:
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this PyTorch has no oneDNN")
    assert onednn_fits(torch.randn(3, 4), torch.randn(2, 4))


def test_the_module_is_torchs_with_a_xavier_start() -> None:
    torch.manual_seed(1)
    module = Linear(INPUTS, OUTPUTS)
    bound = (6 / (INPUTS + OUTPUTS)) ** 0.5
    assert 0.95 * bound < module.weight.abs().max() <= bound  # of 960 uniform draws the largest is near the bound
    assert not module.bias.any()
    x = torch.randn(3, INPUTS)
    torch.testing.assert_close(module(x), nn.functional.linear(x, module.weight, module.bias), **CLOSE)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this PyTorch has no oneDNN")
def test_packed_weights_give_the_same_whole_and_in_parts() -> None:
    layer, x = Linear(24, 40), torch.randn(3, 5, 24)
    whole, part = layer(x), layer.apply_rows(x, 8, 24)
    pack(layer)
    with torch.no_grad():
        # sums of 24 products in another order: a few units in the last place
        torch.testing.assert_close(layer(x), whole, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(layer.apply_rows(x, 8, 24), part, rtol=1e-5, atol=1e-6)
        assert layer._packed
    assert layer(x).requires_grad  # learning goes past the packed weights


@pytest.mark.skipif(not cpu_multiplies_bfloat16(), reason="this CPU has no products of bfloat16")
@pytest.mark.parametrize("activation", ["none", "relu"])
def test_packed_bfloat16_weights_round_inputs_and_outputs(activation: str) -> None:
    layer, x = Linear(24, 40), torch.randn(3, 5, 24)
    nn.init.normal_(layer.bias)
    pack(layer, torch.bfloat16)
    with torch.no_grad():
        result, part = layer(x, activation), layer.apply_rows(x, 8, 24, activation)
    expected = nn.functional.linear(*(each.detach().bfloat16().double() for each in (x, layer.weight, layer.bias)))
    expected = expected.relu() if activation == "relu" else expected
    assert result.dtype == part.dtype == torch.float32
    assert torch.equal(result, result.bfloat16().float()) and torch.equal(part, result[..., 8:24])
    # half a unit in the last of eight binary places, or a whole one where sums in float32 tip it over
    torch.testing.assert_close(result.double(), expected, rtol=2**-8, atol=1e-6)
    torch.testing.assert_close(
        layer(x), nn.functional.linear(x, layer.weight, layer.bias), **CLOSE
    )  # learning is exact
