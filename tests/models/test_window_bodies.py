"""Bodies that see a fixed window (Bengio et al. 2003) against their formulas, one place at a time.

What all bodies owe to training and search is in test_decoders.py and test_language_models.py.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sightline.layers.layout import Padded
from sightline.models.protocol import Memory
from sightline.models.window.config import WindowConfig
from sightline.models.window.modules import WindowDecoder, WindowEncoder

WIDTH = 4
EXACT = {"rtol": 0.0, "atol": 1e-12}  # float64, up to three layers of sums of some twenty products


def randomized(body: nn.Module) -> nn.Module:
    with torch.no_grad():
        for parameter in body.parameters():
            parameter.normal_(std=0.5)
    return body.double().eval()


def net(body: nn.Module, window: list[Tensor]) -> Tensor:
    """tanh(W_n … tanh(W_1 [x_1 ; … ; x_k]))."""
    x = torch.cat(window)
    for layer in body.net.layers:
        x = torch.tanh(layer.weight @ x + layer.bias)
    return x


@torch.no_grad()
@pytest.mark.parametrize(("size", "layers"), [(1, 1), (2, 1), (2, 3)])
def test_an_encoder_sees_each_token_with_its_neighbours_and_nothing_of_the_padding(size: int, layers: int) -> None:
    body = randomized(WindowEncoder(WindowConfig(size=size, layers=layers, hidden=5), WIDTH))
    assert [tuple(layer.weight.shape) for layer in body.net.layers] == [
        (5, (2 * size + 1) * WIDTH),
        *[(5, 5)] * (layers - 1),
        (WIDTH, 5),
    ]
    x, lengths, zero = torch.randn(2, 6, WIDTH).double(), [6, 3], torch.zeros(WIDTH).double()
    result = body(x, Padded.of(lengths)).states
    for row, length in enumerate(lengths):
        for place in range(length):
            around = range(place - size, place + size + 1)
            expected = net(body, [x[row, at] if 0 <= at < length else zero for at in around])
            torch.testing.assert_close(result[row, place], expected, **EXACT)


@torch.no_grad()
@pytest.mark.parametrize("size", [1, 3])
def test_a_window_decoder_sees_the_last_tokens_and_the_source_vector(size: int) -> None:
    body = randomized(WindowDecoder(WindowConfig(size=size, layers=2, hidden=5), WIDTH))
    x, states, zero = torch.randn(2, 5, WIDTH).double(), torch.randn(2, 6, WIDTH).double(), torch.zeros(WIDTH).double()
    finals = torch.randn(2, 3, WIDTH).double()  # of three layers: the top one is told
    means = torch.stack([states[0].mean(0), states[1, :4].mean(0)])
    for memory, message in (
        (Memory(states, Padded.of([6, 4])), means),
        (Memory(states, Padded.of([6, 4]), finals), finals[:, 2]),
    ):
        result, _ = body.advance(x, body.begin(memory))
        for row in range(2):
            source = body.bridge.weight @ message[row] + body.bridge.bias
            for place in range(5):
                last = [x[row, at] if at >= 0 else zero for at in range(place - size + 1, place + 1)]
                torch.testing.assert_close(result[row, place], net(body, last) + source, **EXACT)
