"""Convolutions against loops over their formula; what is padding, and what is to come, is never seen."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from torch import Tensor

from sightline.layers.convolution import (
    Convolution,
    NormalizedLinear,
    glu,
    scale_gradient,
    weight_normalized,
    windows,
)
from sightline.layers.layout import Packed, Padded
from sightline.layers.linear import Linear, pack, shallow_copy

INPUTS, OUTPUTS = 3, 4
LENGTHS = [5, 1, 9, 3]
EXACT = {"rtol": 0.0, "atol": 1e-12}  # float64 sums of some twenty products of numbers near one
SHAPES = [
    (kernel, dilation, causal)
    for kernel, dilation, causal in product((1, 2, 3, 5), (1, 2, 4), (True, False))
    if causal or kernel % 2
]


def layer(kernel: int, dilation: int, causal: bool) -> Convolution:
    project = Linear(kernel * INPUTS, OUTPUTS)
    torch.nn.init.normal_(project.bias)
    return Convolution(project, kernel, dilation=dilation, causal=causal).double()


def by_loops(convolution: Convolution, x: Tensor) -> Tensor:
    """y_t = b + Σ_j W_j x_{t − before + j·d}, x (T, I) of one sequence; nothing is before it or behind it."""
    kernel, dilation = convolution.kernel, convolution.dilation
    weight, bias = convolution.project.weight.detach(), convolution.project.bias.detach()
    before = (kernel - 1) * dilation if convolution.causal else (kernel - 1) // 2 * dilation
    rows = []
    for t in range(len(x)):
        y = bias.clone()
        for j in range(kernel):
            place = t - before + j * dilation
            if 0 <= place < len(x):
                y += weight[:, j * INPUTS : (j + 1) * INPUTS] @ x[place]
        rows.append(y)
    return torch.stack(rows)


@pytest.mark.parametrize(("kernel", "dilation", "causal"), SHAPES)
@pytest.mark.parametrize("longest", [9, 12])
def test_a_convolution_is_its_formula_and_never_sees_padding(
    kernel: int, dilation: int, causal: bool, longest: int
) -> None:
    convolution = layer(kernel, dilation, causal)
    sequences = [torch.randn(length, INPUTS, dtype=torch.float64) for length in LENGTHS]
    expected = [by_loops(convolution, sequence) for sequence in sequences]
    rows = torch.full((len(LENGTHS), longest, INPUTS), float("nan"), dtype=torch.float64)  # nobody may look there
    for row, sequence in zip(rows, sequences, strict=True):
        row[: len(sequence)] = sequence
    padded = convolution(rows, Padded.of(LENGTHS, longest=longest))
    for row, one in zip(padded, expected, strict=True):
        torch.testing.assert_close(row[: len(one)], one, **EXACT)
    packed = convolution(torch.cat(sequences), Packed.of(LENGTHS, longest=longest))
    torch.testing.assert_close(packed, torch.cat(expected), **EXACT)


@pytest.mark.parametrize(("kernel", "dilation", "causal"), SHAPES)
def test_each_output_depends_on_its_window_only(kernel: int, dilation: int, causal: bool) -> None:
    convolution, at = layer(kernel, dilation, causal), 8
    x = torch.randn(1, 17, INPUTS, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(convolution(x, Padded.of([17]))[0, at].sum(), x)
    before = (kernel - 1) * dilation // (1 if causal else 2)
    expected = {at - before + j * dilation for j in range(kernel)}
    assert set(gradient[0].abs().sum(-1).nonzero()[:, 0].tolist()) == {place for place in expected if 0 <= place < 17}


@pytest.mark.parametrize(("kernel", "dilation"), [(kernel, dilation) for kernel, dilation, causal in SHAPES if causal])
@pytest.mark.parametrize("cuts", [[1] * 7, [3, 4], [1, 5, 1]], ids=str)
def test_incremental_convolution_equals_the_whole_one(kernel: int, dilation: int, cuts: list[int]) -> None:
    convolution = layer(kernel, dilation, True)
    x = torch.randn(2, 7, INPUTS, dtype=torch.float64)
    recent, result = x.new_zeros(2, convolution.reach, INPUTS), []
    for part in x.split(cuts, dim=1):
        y, recent = convolution.advance(part, recent)
        assert recent.shape == (2, convolution.reach, INPUTS)
        result.append(y)
    torch.testing.assert_close(torch.cat(result, dim=1), convolution(x, Padded.of([7, 7])), **EXACT)


@pytest.mark.parametrize(("kernel", "dilation"), [(2, 1), (3, 2), (3, 4)])
def test_sequences_of_different_lengths_continue_from_their_own_ends(kernel: int, dilation: int) -> None:
    convolution, ends = layer(kernel, dilation, True), torch.tensor([4, 1, 6])
    x, more = torch.randn(3, 6, INPUTS, dtype=torch.float64), torch.randn(3, 2, INPUTS, dtype=torch.float64)
    _, recent = convolution.advance(x, x.new_zeros(3, convolution.reach, INPUTS), ends)
    result, _ = convolution.advance(more, recent)
    for row in range(3):
        whole = by_loops(convolution, torch.cat([x[row, : ends[row]], more[row]]))
        torch.testing.assert_close(result[row], whole[-2:], **EXACT)


def test_non_causal_convolutions_need_an_odd_kernel() -> None:
    with pytest.raises(ValueError, match=r"kernel \(4\) must be odd to see as much on either side"):
        layer(4, 1, False)


def test_windows_concatenate_neighbouring_inputs() -> None:
    x = torch.arange(6.0).view(1, 6, 1)
    assert windows(x, 3, 2).tolist() == [[[0, 2, 4], [1, 3, 5]]]
    assert windows(x, 2).tolist() == [[[0, 1], [1, 2], [2, 3], [3, 4], [4, 5]]]


def test_glu_gates_the_first_half_by_the_second() -> None:
    x = torch.randn(5, 6, dtype=torch.float64)
    expected = [[float(row[i]) / (1 + math.exp(-float(row[3 + i]))) for i in range(3)] for row in x]
    torch.testing.assert_close(glu(x), torch.tensor(expected, dtype=torch.float64), **EXACT)


def test_normalized_weights_have_the_given_length_and_direction() -> None:
    v, g = torch.randn(3, 5, dtype=torch.float64), torch.tensor([2.0, -0.5, 3.0], dtype=torch.float64)
    result = weight_normalized(v, g)
    for row, direction, length in zip(result.tolist(), v.tolist(), g.tolist(), strict=True):
        norm = math.sqrt(sum(value * value for value in direction))
        assert row == pytest.approx([length * value / norm for value in direction], abs=1e-12)
    torch.testing.assert_close(weight_normalized(7 * v, g), result, **EXACT)  # how long v is does not matter


def test_the_gradient_of_a_direction_does_not_change_its_length() -> None:
    v, g = torch.randn(3, 5, dtype=torch.float64, requires_grad=True), torch.ones(3, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((weight_normalized(v, g) * torch.randn(3, 5)).sum(), v)
    assert gradient.abs().max() > 1e-3
    torch.testing.assert_close((gradient * v).sum(1), torch.zeros(3, dtype=torch.float64), **EXACT)


def test_gradients_are_those_of_the_formulas() -> None:
    def convolved(x: Tensor, direction: Tensor, length: Tensor, bias: Tensor) -> Tensor:
        weight = weight_normalized(direction, length)
        return glu(torch.nn.functional.linear(windows(x, 3, 2), weight, bias))

    shapes = [(2, 7, 2), (4, 6), (4,), (4,)]
    parts = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    assert torch.autograd.gradcheck(convolved, parts)
    layout = Padded.of([5, 2])
    for causal in (True, False):
        convolution = layer(3, 2, causal)
        x = torch.randn(2, 5, INPUTS, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda x, c=convolution: c(x, layout), [x])


def test_a_scaled_gradient_leaves_the_value_alone() -> None:
    x = torch.randn(4, 5, requires_grad=True)
    scaled = scale_gradient(x * 1.7, 0.125)
    assert torch.equal(scaled, x * 1.7)
    pull = torch.randn(4, 5)
    (result,) = torch.autograd.grad(scaled, x, pull)
    torch.testing.assert_close(result, 0.125 * 1.7 * pull)
    plain = torch.randn(3)
    assert scale_gradient(plain, 0.125) is plain


def test_a_normalized_projection_is_initialized_with_its_direction() -> None:
    project = NormalizedLinear(400, 300, std=0.2)
    torch.testing.assert_close(project.weight, project.direction.detach())
    assert float(project.weight.detach().std()) == pytest.approx(0.2, rel=0.02)  # of 120,000 draws
    assert set(dict(project.named_parameters())) == {"direction", "length", "bias"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # oneDNN takes the first alone
def test_packed_normalized_projections_give_the_same_output(dtype: torch.dtype) -> None:
    project, x = NormalizedLinear(6, 4, std=1.0).to(dtype), torch.randn(3, 5, 6, dtype=dtype)
    with torch.no_grad():
        project.length.normal_()
        project.bias.normal_()
        expected = project(x)
        pack(project)
        for _ in range(2):  # the second time from what the first one packed
            torch.testing.assert_close(project(x), expected, rtol=0.0, atol=1e-6)  # float32 sums of six products
    (gradient,) = torch.autograd.grad(project(x).sum(), project.length)  # what was packed has none
    assert gradient.abs().max() > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_packed_projections_do_not_recompute_the_normalized_weight(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To make it is more work than the product of the few rows of a search."""
    layer: list[int] = []

    def counted(direction: Tensor, length: Tensor) -> Tensor:
        layer.append(len(direction))
        return weight_normalized(direction, length)

    monkeypatch.setattr("sightline.layers.convolution.weight_normalized", counted)
    project, x = NormalizedLinear(6, 4, std=1.0).to(dtype), torch.randn(3, 6, dtype=dtype)
    project(x)
    assert layer == [4]
    with torch.no_grad():
        for rows in (slice(1, 3), slice(2, 4)):
            result = project.apply_rows(x, rows.start, rows.stop)
            torch.testing.assert_close(result, project(x)[:, rows], rtol=0.0, atol=1e-6)
        pack(project)
        project(x)
        layer.clear()
        project(x)
        assert layer == []
        shallow_copy(project, packed=False)(x)  # a recording sees it computed
        assert layer == [4]
        project(x)
    assert layer == [4]
    project(x)  # and so does who learns
    assert layer == [4, 4]


def test_without_onednn_the_normalized_weight_is_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    project = NormalizedLinear(6, 4, std=1.0)
    pack(project)
    with torch.no_grad():
        assert project.weight is project.weight
