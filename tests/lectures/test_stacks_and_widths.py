"""Scaling, rank collapse, norms, word order, positions and parameters, against loops and formulas by hand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from sightline.cli.app import app
from sightline.inspection.claims.context_length import examples_by_position, parameters, phrases_positions
from sightline.inspection.claims.scaling import measure, softmax_gradient
from sightline.inspection.claims.stacks import (
    COLLAPSE,
    NORMS,
    ORDERS,
    activation_ranges,
    difference_share,
    encoder_of,
    inputs_of,
    layer_outputs,
    order_errors,
)


def test_dot_products_grow_with_the_root_of_the_width_and_scaled_ones_do_not() -> None:
    for width in (16, 256):
        assert measure(width, 1.0).deviation == pytest.approx(math.sqrt(width), rel=0.1)
        assert measure(width, width**-0.5).deviation == pytest.approx(1, rel=0.1)
    assert measure(1024, 1.0).gradient < 0.2 * measure(1024, 1 / 32).gradient
    assert measure(1024, 1 / 32).gradient == pytest.approx(measure(16, 1 / 4).gradient, rel=0.1)


def test_the_gradient_of_a_softmax_is_its_jacobian() -> None:
    """∂α_i/∂e_j = α_i (1[i = j] − α_j)."""
    alpha = [0.7, 0.2, 0.1]
    squares = sum((alpha[i] * ((i == j) - alpha[j])) ** 2 for i in range(3) for j in range(3))
    assert float(softmax_gradient(torch.tensor([alpha]))[0]) == pytest.approx(math.sqrt(squares))


def test_measured_softmaxes_are_those_of_loops() -> None:
    found = measure(4, 0.5, keys=3, queries=2, seed=5)
    generator = torch.Generator().manual_seed(5)
    query = torch.randn(2, 4, generator=generator, dtype=torch.float64)
    key = torch.randn(2, 3, 4, generator=generator, dtype=torch.float64)
    largest = []
    for n in range(2):
        scores = [0.5 * sum(float(query[n, k] * key[n, j, k]) for k in range(4)) for j in range(3)]
        largest.append(max(math.exp(score) for score in scores) / sum(math.exp(score) for score in scores))
    assert found.largest == pytest.approx(sum(largest) / 2)


def test_the_difference_share_is_zero_for_equal_positions() -> None:
    x = [[1.0, 2.0], [3.0, 6.0]]
    mean = [2.0, 4.0]
    distance = math.sqrt(sum((row[k] - mean[k]) ** 2 for row in x for k in range(2)))
    size = math.sqrt(sum(value**2 for row in x for value in row))
    assert difference_share(torch.tensor(x)) == pytest.approx(distance / size)
    assert difference_share(torch.ones(5, 3)) == 0


@torch.no_grad()
def test_self_attention_alone_makes_positions_alike_and_residuals_do_not() -> None:
    x = inputs_of(8, 16, 1)[None]
    shares = {
        name: difference_share(layer_outputs(encoder_of(options, layers=6, width=16, seed=1), x)[-1][0])
        for name, options in COLLAPSE.items()
    }
    assert shares["attention alone"] < 1e-6 and shares["+ feed-forward"] < 1e-6
    assert shares["+ residual"] > 0.5 and shares["+ both"] > 0.3


@torch.no_grad()
def test_a_layer_of_attention_alone_is_the_average_of_its_values() -> None:
    """Heads of softmax(Q Kᵀ/√Dh) V, projected, without residual and feed-forward net."""
    encoder = encoder_of(COLLAPSE["attention alone"], layers=1, width=8, seed=2)
    x = inputs_of(5, 8, 2)
    attention = encoder.layers[0].attention
    heads = attention.queries_keys_values(x[None], None)
    query, key, value = (part[0].transpose(0, 1) if part.shape[1] == 5 else part[0] for part in heads)  # (H, T, Dh)
    mixed = torch.cat(
        [torch.softmax(q @ k.T / math.sqrt(2), -1) @ v for q, k, v in zip(query, key, value, strict=True)], 1
    )
    expected = mixed @ attention.output.weight.T + attention.output.bias
    torch.testing.assert_close(layer_outputs(encoder, x[None])[-1][0], expected)


def test_norms_keep_activations_and_gradients_in_range() -> None:
    x = inputs_of(8, 16, 1)
    ranges = {
        name: activation_ranges(encoder_of(options, layers=16, width=16, seed=1), x) for name, options in NORMS.items()
    }
    growth = {name: each.largest[-1] / each.largest[0] for name, each in ranges.items()}
    assert growth["none"] > 5 * growth["pre"] > 0 and growth["post"] < 2
    assert ranges["none"].gradient[0] > 10 * ranges["pre"].gradient[0]
    assert ranges["pre"].largest[0] == pytest.approx(float(x.abs().max()))
    assert len(ranges["pre"].deviation) == 17


def test_only_encoders_without_positions_are_equivariant() -> None:
    x, order = inputs_of(6, 16, 1), torch.tensor([3, 0, 5, 1, 4, 2])
    for name, options in ORDERS.items():
        moved, mean = order_errors(encoder_of(options, layers=2, width=16, seed=1), x, order)
        if name == "Transformer without positions":
            assert moved < 1e-10 and mean < 1e-10
        else:
            assert moved > 1e-2 and mean > 1e-3


def test_positions_are_counted() -> None:
    assert examples_by_position([3, 1, 2]) == [3, 2, 1]
    counts = phrases_positions(200)["source"]
    assert counts[0] == 200 and counts == sorted(counts, reverse=True) and counts[-1] < 20


def test_parameters_grow_with_the_window_and_with_learned_positions_alone() -> None:
    sizes = {"width": 8, "vocabulary": 20}
    for kind in ("Elman", "LSTM", "Transformer, sinusoidal"):
        assert parameters(kind, 4, **sizes) == parameters(kind, 64, **sizes)
    learned = [parameters("Transformer, learned", length, **sizes) for length in (4, 64)]
    assert learned[1] - learned[0] == 60 * 8  # a vector for each position
    window = [parameters("window", length, **sizes) for length in (4, 64)]
    assert window[1] - window[0] == 60 * 8 * 16  # from each further token to the hidden layer, 2 · 8 wide
    elman = 20 * 8 + (8 * 8 + 8 * 8 + 2 * 8) + (20 * 8 + 20)  # embedding; W₁, W_h and biases; output
    assert parameters("Elman", 4, **sizes) == elman


@pytest.mark.parametrize("name", ["scaling", "collapse --layers 3", "norms --layers 3", "positions", "parameters"])
def test_the_commands_print_and_draw(name: str, tmp_path: Path) -> None:
    words, figure = ["inspect", "claims", *name.split()], tmp_path / "claim.png"
    result = CliRunner().invoke(app, [*words, "--figure", str(figure)], catch_exceptions=False)
    assert result.exit_code == 0 and figure.stat().st_size > 5_000
    shown = CliRunner().invoke(app, words, catch_exceptions=False)
    assert shown.exit_code == 0 and len(shown.output.splitlines()) > 6


def test_word_order_is_shown() -> None:
    result = CliRunner().invoke(app, ["inspect", "claims", "permutation"], catch_exceptions=False)
    assert result.exit_code == 0 and "Transformer without positions" in result.output
