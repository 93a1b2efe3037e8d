"""How order enters a Transformer."""

from __future__ import annotations

import math

import pytest
import torch

from sightline.layers.positions import Learned, NoPositions, Rotation, Sinusoidal, build_added, sinusoids
from sightline.recipe.model import PositionsConfig


@pytest.mark.parametrize("width", [2, 6, 8, 64])
def test_sinusoids_are_their_formula(width: int) -> None:
    """PE(pos, 2i) = sin(pos / 10000^(2i/D)), PE(pos, 2i+1) = cos(pos / 10000^(2i/D))."""
    table = sinusoids(torch.arange(100), width)
    assert table.shape == (100, width)
    expected = torch.empty(100, width, dtype=torch.float64)
    for position in range(100):
        for i in range(width // 2):
            angle = position / 10_000 ** (2 * i / width)
            expected[position, 2 * i], expected[position, 2 * i + 1] = math.sin(angle), math.cos(angle)
    # an angle of up to 100 has an error of 100 · 2⁻²⁴ from its own rounding and as much from that of its rate
    torch.testing.assert_close(table.double(), expected, rtol=0, atol=3 * 100 * 2**-24)


@pytest.mark.parametrize("count", [4, 5, 9])
def test_sinusoids_are_added_and_the_table_grows_as_needed(count: int) -> None:
    layer, x = Sinusoidal(6, 4), torch.randn(2, count, 6)
    positions = torch.arange(count)[None]
    assert torch.equal(layer(x, positions, count), x + sinusoids(positions, 6))
    assert layer(x.bfloat16(), positions, count).dtype == torch.bfloat16
    assert not list(layer.parameters())
    assert not layer.state_dict()  # it is never saved


def test_a_table_that_grew_while_decoding_serves_training() -> None:
    """Decoding runs in inference mode, whose tensors autograd may not keep."""
    layer, positions = Sinusoidal(6, 4), torch.arange(9)[None]
    with torch.inference_mode():
        layer(torch.randn(1, 9, 6), positions, 9)
    x = torch.randn(1, 9, 6, requires_grad=True)
    layer(x, positions, 9).square().sum().backward()
    assert torch.isfinite(x.grad).all()


def test_learned_positions_are_added_by_index() -> None:
    layer, x = Learned(6, 5), torch.randn(2, 3, 6)
    assert torch.equal(layer(x, torch.tensor([[4, 0, 2]]), 5), x + layer.table[[4, 0, 2]])


def test_learned_positions_start_as_small_as_the_model_is_wide() -> None:
    assert float(Learned(64, 300).table.detach().std()) == pytest.approx(1 / 8, rel=0.02)  # of 19,200 draws


def test_too_many_positions_give_an_error_with_the_remedy() -> None:
    message = (
        r"position 6 is past the 5 learned ones; shorten the input, or train with a larger positions\.max_positions"
    )
    with pytest.raises(ValueError, match=message):
        Learned(6, 5)(torch.randn(1, 6, 6), torch.arange(6)[None], 6)


def test_no_positions_add_nothing() -> None:
    x = torch.randn(2, 3, 6)
    assert NoPositions(6, 5)(x, torch.arange(3)[None], 3) is x


# --- rotary ------------------------------------------------------------------------------------------------------

# Rotation is computed in float32, with angles up to 50 that are rounded to 50 · 2⁻²⁴; vectors have norms of some 3.
ROTATION = {"rtol": 0.0, "atol": 5e-5}


def rotate(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    return Rotation.at(positions, x.shape[-1])(x)


@pytest.mark.parametrize("width", [2, 8])
def test_rotation_rotates_each_pair_by_its_own_angle(width: int) -> None:
    x = torch.randn(7, 2, width)
    result = rotate(x, torch.arange(7))
    for position in range(7):
        for i in range(width // 2):
            angle = position / 10_000 ** (2 * i / width)
            turn = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
            pair = slice(2 * i, 2 * i + 2)
            torch.testing.assert_close(result[position, :, pair], x[position, :, pair] @ turn.T, rtol=0, atol=5e-6)


def test_rotation_keeps_norms() -> None:
    x = torch.randn(50, 3, 8)
    torch.testing.assert_close(rotate(x, torch.arange(50)).norm(dim=-1), x.norm(dim=-1), rtol=1e-6, atol=0)


def test_after_rotation_a_dot_product_depends_on_the_distance_alone() -> None:
    query, key = torch.randn(1, 1, 8), torch.randn(1, 1, 8)

    def score(at: int, distance: int) -> torch.Tensor:
        turned = rotate(query, torch.tensor([at])), rotate(key, torch.tensor([at - distance]))
        return (turned[0] * turned[1]).sum()

    for distance in (0, 1, 5):
        scores = torch.stack([score(at, distance) for at in range(distance, 50, 7)])
        torch.testing.assert_close(scores, scores[:1].expand_as(scores), **ROTATION)
    assert abs(score(9, 0) - score(9, 5)) > 0.1  # and it does depend on that


def test_position_zero_is_not_rotated() -> None:
    x = torch.randn(1, 2, 8)
    assert torch.equal(rotate(x, torch.tensor([0])), x)


def test_rotation_computes_in_float32_and_keeps_the_dtype() -> None:
    """bfloat16 has no 257: neighbours would be turned alike."""
    x, positions = torch.randn(300, 2, 8, dtype=torch.bfloat16), torch.arange(300)
    result = rotate(x, positions)
    assert result.dtype == torch.bfloat16
    assert torch.equal(result, rotate(x.float(), positions).bfloat16())


# --- beside the embedding ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sinusoidal", "learned"])
def test_concatenated_positions_are_projected_back_to_the_model_width(kind: str) -> None:
    layer = build_added(PositionsConfig(kind=kind, combine="concatenate", width=4, max_positions=9), 6)
    assert layer.project.weight.shape == (6, 6 + 4)
    x, positions = torch.randn(2, 3, 6), torch.tensor([[0, 1, 2]])
    joined = torch.cat([x, layer.table.vectors(positions, 3).expand(2, -1, -1)], dim=-1)
    expected = joined @ layer.project.weight.T + layer.project.bias
    torch.testing.assert_close(layer(x, positions, 3), expected, rtol=0, atol=1e-6)


def test_concatenated_learned_positions_end_with_the_same_error() -> None:
    layer = build_added(PositionsConfig(kind="learned", combine="concatenate", max_positions=5), 6)
    with pytest.raises(ValueError, match="position 6 is past the 5 learned ones"):
        layer(torch.randn(1, 6, 6), torch.arange(6)[None], 6)
