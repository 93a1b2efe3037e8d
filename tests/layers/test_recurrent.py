"""Recurrent cells: the formulas, step by step = PyTorch's kernels over whole sequences."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sightline.layers.layout import Layout, Packed, Padded, Steps
from sightline.layers.recurrent import CELLS, Hidden, Recurrence
from sightline.layers.tap import Tapped, on_taps

INPUTS, WIDTH = 5, 4
SIXTY_FOUR = {"rtol": 0.0, "atol": 1e-13}  # float64: some ten steps of sums of nine products each
THIRTY_TWO = {"rtol": 0.0, "atol": 2e-6}  # the same in float32
CELL_KINDS = ("elman", "gru", "lstm")


def recurrence(cell: str, *, bidirectional: bool = False, dtype: torch.dtype = torch.float64) -> Recurrence:
    layer = Recurrence(cell, INPUTS, WIDTH, bidirectional=bidirectional)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(std=0.5)
    return layer.to(dtype)


def some_hidden(layer: Recurrence, batch: int, dtype: torch.dtype = torch.float64) -> Hidden:
    return tuple(torch.randn(batch, WIDTH, dtype=torch.float64).to(dtype) for _ in range(layer.parts))


def test_all_cells_are_tested_here() -> None:
    assert tuple(CELLS) == ("elman", "elman_relu", "elman_sigmoid", "gru", "lstm")


def test_an_elman_step_is_its_formula() -> None:
    """h_t = g(W_h h_{t−1} + W₁ x_t)."""
    layer, x = recurrence("elman"), torch.randn(2, INPUTS, dtype=torch.float64)
    (h,) = some_hidden(layer, 2)
    p = dict(layer.rnn.named_parameters())
    expected = torch.tanh(h @ p["weight_hh_l0"].T + p["bias_hh_l0"] + x @ p["weight_ih_l0"].T + p["bias_ih_l0"])
    torch.testing.assert_close(layer.advance(x, (h,))[0], expected, **SIXTY_FOUR)


def test_a_gru_step_is_its_formula() -> None:
    """Cho et al. 2014: r, z = σ(…), n = tanh(W x + b + r ∘ (U h + b')), h = (1 − z) ∘ n + z ∘ h."""
    layer, x = recurrence("gru"), torch.randn(2, INPUTS, dtype=torch.float64)
    (h,) = some_hidden(layer, 2)
    p = dict(layer.rnn.named_parameters())

    def products(gate: int) -> tuple[Tensor, Tensor]:
        rows = slice(gate * WIDTH, (gate + 1) * WIDTH)
        from_x = x @ p["weight_ih_l0"][rows].T + p["bias_ih_l0"][rows]
        return from_x, h @ p["weight_hh_l0"][rows].T + p["bias_hh_l0"][rows]

    reset, update = (torch.sigmoid(sum(products(gate))) for gate in (0, 1))
    from_x, from_h = products(2)
    expected = (1 - update) * torch.tanh(from_x + reset * from_h) + update * h
    torch.testing.assert_close(layer.advance(x, (h,))[0], expected, **SIXTY_FOUR)


def test_an_lstm_step_is_its_formula() -> None:
    """f, i, o = σ(W h + U x + b), c̃ = tanh(…), c = f∘c + i∘c̃, h = o∘tanh(c)."""
    layer, x = recurrence("lstm"), torch.randn(2, INPUTS, dtype=torch.float64)
    h, c = some_hidden(layer, 2)
    p = dict(layer.rnn.named_parameters())

    def gate(number: int) -> Tensor:
        rows = slice(number * WIDTH, (number + 1) * WIDTH)
        bias = p["bias_ih_l0"][rows] + p["bias_hh_l0"][rows]
        return h @ p["weight_hh_l0"][rows].T + x @ p["weight_ih_l0"][rows].T + bias

    i, f, o = (torch.sigmoid(gate(number)) for number in (0, 1, 3))
    cell = f * c + i * torch.tanh(gate(2))
    result = layer.advance(x, (h, c))
    torch.testing.assert_close(result[1], cell, **SIXTY_FOUR)
    torch.testing.assert_close(result[0], o * torch.tanh(cell), **SIXTY_FOUR)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("length", [1, 2, 6])
@pytest.mark.parametrize("cell", CELL_KINDS)
def test_unrolled_is_fused_is_torch(cell: str, length: int, dtype: torch.dtype) -> None:
    layer = recurrence(cell, dtype=dtype)
    theirs = CELLS[cell][0](INPUTS, WIDTH, batch_first=True, dtype=dtype)
    theirs.load_state_dict(layer.rnn.state_dict())
    x, hidden = torch.randn(3, length, INPUTS, dtype=torch.float64).to(dtype), some_hidden(layer, 3, dtype)
    start = tuple(part[None] for part in hidden)
    expected, last = theirs(x, start if cell == "lstm" else start[0])
    finals = [part[0] for part in (last if cell == "lstm" else (last,))]
    tolerance = THIRTY_TWO if dtype == torch.float32 else SIXTY_FOUR
    for states, final in (layer(x, hidden), layer.unrolled(x, hidden)):
        torch.testing.assert_close(states, expected, **tolerance)
        for ours, its in zip(final, finals, strict=True):
            torch.testing.assert_close(ours, its, **tolerance)


@pytest.mark.parametrize("cell", CELLS)
def test_unrolled_and_fused_have_the_same_gradients(cell: str) -> None:
    layer = recurrence(cell)
    x, hidden = torch.randn(3, 5, INPUTS, dtype=torch.float64, requires_grad=True), some_hidden(layer, 3)
    expected = [x, *layer.parameters()]
    result = [
        torch.autograd.grad(states.square().sum(), expected)
        for states, _ in (layer(x, hidden), layer.unrolled(x, hidden))
    ]
    for fused, unrolled in zip(*result, strict=True):
        torch.testing.assert_close(fused, unrolled, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_a_batch_is_read_as_each_sentence_alone_from_its_own_ends(cell: str, bidirectional: bool) -> None:
    layer, lengths = recurrence(cell, bidirectional=bidirectional), [4, 1, 6, 3]
    x = torch.randn(4, 6, INPUTS, dtype=torch.float64)
    states, finals = layer.read(x, Padded.of(lengths))
    for row, length in enumerate(lengths):
        zeros = layer.start(1, x)
        forward, hidden = [], zeros
        for t in range(length):
            hidden = layer.advance(x[row : row + 1, t], hidden)
            forward.append(hidden[0])
        reference, last = torch.cat(forward), hidden
        if bidirectional:
            backward, hidden = [], zeros
            for t in reversed(range(length)):
                hidden = layer.advance(x[row : row + 1, t], hidden, "_reverse")
                backward.insert(0, hidden[0])
            reference = torch.cat([reference, torch.cat(backward)], -1)
            last = tuple(torch.cat(both, -1) for both in zip(last, hidden, strict=True))
        torch.testing.assert_close(states[row, :length], reference, **SIXTY_FOUR)
        for part, expected in zip(finals, last, strict=True):
            torch.testing.assert_close(part[row : row + 1], expected, **SIXTY_FOUR)
        assert not states[row, length:].any()


@pytest.mark.parametrize("cell", CELL_KINDS)
def test_padding_is_not_read(cell: str) -> None:
    layer, layout = recurrence(cell, bidirectional=True), Padded.of([4, 2])
    x = torch.randn(2, 4, INPUTS, dtype=torch.float64)
    other = x.clone()
    other[1, 2:] = 100.0
    (states, final), (other_states, other_final) = layer.read(x, layout), layer.read(other, layout)
    for ours, theirs in zip((states, *final), (other_states, *other_final), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("cell", CELL_KINDS)
def test_recording_does_not_change_states(cell: str, bidirectional: bool) -> None:
    layer, layout = recurrence(cell, bidirectional=bidirectional), Padded.of([3, 5, 2])
    x = torch.randn(3, 5, INPUTS, dtype=torch.float64)
    alone, final = layer.read(x, layout)
    with on_taps(layer, lambda tapped: None):
        states, last = layer.read(x, layout)
    torch.testing.assert_close(states, alone, **SIXTY_FOUR)
    for part, expected in zip(last, final, strict=True):
        torch.testing.assert_close(part, expected, **SIXTY_FOUR)


@pytest.mark.parametrize("cell", CELL_KINDS)
def test_a_packed_batch_is_read_like_a_padded_one(cell: str) -> None:
    layer, lengths = recurrence(cell, bidirectional=True), [3, 5, 2]
    packed = Packed.of(lengths)
    x = packed.pad(torch.randn(10, INPUTS, dtype=torch.float64))
    (states, final), (other_states, other_final) = layer.read(x, packed), layer.read(x, Padded.of(lengths))
    for ours, theirs in zip((states, *final), (other_states, *other_final), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("cell", CELL_KINDS)
def test_batches_without_padding_skip_packing(cell: str, bidirectional: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = recurrence(cell, bidirectional=bidirectional)
    x = torch.randn(3, 5, INPUTS, dtype=torch.float64, requires_grad=True)
    expected = [x, *layer.parameters()]

    def read(layout: Layout) -> list[Tensor]:
        states, final = layer.read(x, layout)
        assert states.is_contiguous()
        total = states.square().sum() + final[0].sum()
        return [states, *final, *torch.autograd.grad(total, expected)]

    full = [Padded.of([5, 5, 5]), Packed.of([5, 5, 5])]
    packed = Padded(torch.tensor([5, 5, 5]), 5, torch.ones(3, 5, dtype=torch.bool))  # with a mask that hides nothing
    theirs = read(packed)
    monkeypatch.delattr(Steps, "of")
    for layout in full:
        for mine, other in zip(read(layout), theirs, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-12)


def test_layouts_cached_in_inference_mode_work_in_training() -> None:
    """Nothing that a layout keeps from inference mode is in the way of gradients."""
    layer, layout = recurrence("lstm"), Padded.of([3, 2])
    x = torch.randn(2, 3, INPUTS, dtype=torch.float64, requires_grad=True)
    with torch.inference_mode():
        expected, _ = layer.read(x, layout)
    states, _ = layer.read(x, layout)
    states.sum().backward()
    assert torch.equal(states, expected) and bool(x.grad.any())


GATES = {
    "elman": ["recurrent"],
    "gru": ["recurrent", "reset_gate", "update_gate", "candidate"],
    "lstm": ["recurrent", "input_gate", "forget_gate", "candidate", "output_gate", "cell_before", "cell"],
}


@pytest.mark.parametrize("cell", CELL_KINDS)
def test_taps_record_gates_and_states(cell: str) -> None:
    layer = recurrence(cell)
    x, hidden, taps = torch.randn(2, 5, INPUTS, dtype=torch.float64), some_hidden(layer, 2), []
    alone, _ = layer(x, hidden)
    with on_taps(layer, taps.append):
        states, _ = layer(x, hidden)
    names = [tapped.name for tapped in taps]
    assert names[:2] == ["inputs", "state_before"]
    assert set(GATES[cell]) < set(names)
    assert names[-1] == "states"
    assert isinstance(taps[-1], Tapped)
    assert torch.equal(taps[-1].tensor, states)
    torch.testing.assert_close(states, alone, **SIXTY_FOUR)


def test_the_forget_gates_start_open_and_recurrence_starts_orthogonal() -> None:
    layer = Recurrence("lstm", INPUTS, WIDTH)
    p = dict(layer.rnn.named_parameters())
    bias = p["bias_ih_l0"] + p["bias_hh_l0"]
    assert bias.tolist() == [0.0] * WIDTH + [1.0] * WIDTH + [0.0] * 2 * WIDTH  # input, forget, cell, output
    for gate in p["weight_hh_l0"].chunk(4):
        torch.testing.assert_close(gate @ gate.T, torch.eye(WIDTH), rtol=0, atol=1e-6)  # a float32 QR of 4 × 4
