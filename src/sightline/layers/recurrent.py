"""Recurrent layers: the formulas one step at a time, and PyTorch's fused kernels over whole sequences.

Both use the same parameters, those of torch.nn.RNN, GRU and LSTM, and tests hold them equal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from sightline.layers.layout import Layout
from sightline.layers.linear import linear
from sightline.layers.tap import TapModule

Hidden = tuple[Tensor, ...]  # (h,) for Elman and GRU, (h, c) for LSTM; each (B, D)


def elman_step(inputs: Tensor, recurrent: Tensor, hidden: Hidden) -> Hidden:
    """h_t = tanh(W₁ x_t + W_h h_{t−1}), given the two products (Elman 1990)."""
    return (torch.tanh(inputs + recurrent),)


def gru_step(inputs: Tensor, recurrent: Tensor, hidden: Hidden) -> Hidden:
    """r, z = σ(…), n = tanh(W_n x + r ∘ U_n h), h_t = (1 − z) ∘ n + z ∘ h_{t−1} (Cho et al. 2014)."""
    reset_x, update_x, new_x = inputs.chunk(3, dim=-1)
    reset_h, update_h, new_h = recurrent.chunk(3, dim=-1)
    reset, update = torch.sigmoid(reset_x + reset_h), torch.sigmoid(update_x + update_h)
    new = torch.tanh(new_x + reset * new_h)
    return ((1 - update) * new + update * hidden[0],)


def lstm_step(inputs: Tensor, recurrent: Tensor, hidden: Hidden) -> Hidden:
    """i, f, o = σ(U x + W h + b), c̃ = tanh(…), c_t = f∘c_{t−1} + i∘c̃, h_t = o∘tanh(c_t) (Hochreiter 1997)."""
    i, f, g, o = (inputs + recurrent).chunk(4, dim=-1)
    cell = torch.sigmoid(f) * hidden[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(cell), cell


class Step(Protocol):
    """One step of a cell, given W x + b, U h + b' and the hidden state before it."""

    def __call__(self, inputs: Tensor, recurrent: Tensor, hidden: Hidden) -> Hidden: ...


CELLS: dict[str, tuple[Callable[..., nn.RNNBase], Step, int]] = {  # fused kernel, step, tensors in the hidden state
    "elman": (nn.RNN, elman_step, 1),
    "gru": (nn.GRU, gru_step, 1),
    "lstm": (nn.LSTM, lstm_step, 2),
}


class Recurrence(TapModule):
    """One recurrent layer over (B, T, ·), in one or both directions; each direction is `width` wide."""

    def __init__(self, cell: str, inputs: int, width: int, *, bidirectional: bool = False) -> None:
        super().__init__()
        kernel, self.step, self.parts = CELLS[cell]
        self.cell, self.width, self.bidirectional = cell, width, bidirectional
        self.kernel = kernel(inputs, width, batch_first=True, bidirectional=bidirectional)
        self._initialize()

    def _initialize(self) -> None:
        """Orthogonal recurrence, Xavier input, forget gates open (Jozefowicz et al. 2015)."""
        for name, parameter in self.kernel.named_parameters():
            if name.startswith("weight_hh"):
                for gate in parameter.data.chunk(parameter.shape[0] // self.width):
                    nn.init.orthogonal_(gate)
            elif name.startswith("weight_ih"):
                for gate in parameter.data.chunk(parameter.shape[0] // self.width):
                    nn.init.xavier_uniform_(gate)
            else:
                nn.init.zeros_(parameter)
                if self.cell == "lstm" and name.startswith("bias_ih"):
                    parameter.data[self.width : 2 * self.width] = 1.0

    def start(self, batch: int, like: Tensor) -> Hidden:
        """Zeros to begin from."""
        return tuple(like.new_zeros(batch, self.width) for _ in range(self.parts))

    def advance(self, x: Tensor, hidden: Hidden, direction: str = "") -> Hidden:
        """One step: x (B, ·), hidden (B, D) each → hidden."""
        parameters = self.kernel._parameters
        inputs = linear(x, parameters[f"weight_ih_l0{direction}"], parameters[f"bias_ih_l0{direction}"])  # type: ignore[arg-type]
        before = linear(hidden[0], parameters[f"weight_hh_l0{direction}"], parameters[f"bias_hh_l0{direction}"])  # type: ignore[arg-type]
        return self.step(inputs, before, hidden)

    def forward(self, x: Tensor, hidden: Hidden) -> tuple[Tensor, Hidden]:
        """All steps in one direction: (B, T, ·) → states (B, T, D) and the hidden state after the last step."""
        if self.heard or x.shape[1] == 1:
            return self.unrolled(x, hidden)
        start = tuple(part[None].contiguous() for part in hidden)
        states, final = self._fused(x, start if self.parts == 2 else start[0])
        return states, tuple(part[0] for part in (final if self.parts == 2 else (final,)))

    def _fused(self, x: Any, start: Any = None) -> Any:
        """PyTorch's kernel over all steps.

        Under autocast cuDNN's runs in float16, whatever type was asked for (torch 2.11), and nothing scales the loss
        so that small gradients survive that. So on CUDA a recurrence stays in float32 (its products in TF32).
        """
        device = (x.data if isinstance(x, PackedSequence) else x).device.type
        if device != "cuda" or not torch.is_autocast_enabled(device):
            return self.kernel(x, start)
        with torch.autocast(device, enabled=False):
            start = tuple(part.float() for part in start) if isinstance(start, tuple) else start
            start = start.float() if isinstance(start, Tensor) else start
            return self.kernel(x.to(torch.float32), start)

    def unrolled(self, x: Tensor, hidden: Hidden) -> tuple[Tensor, Hidden]:
        """The same by the formula, step by step."""
        states = []
        for t in range(x.shape[1]):
            hidden = self.advance(x[:, t], hidden)
            states.append(hidden[0])
        return self.tap("states", torch.stack(states, dim=1), f"{self.cell}(x_t, h_t−1)"), hidden

    def read_through(self, x: Tensor, layout: Layout) -> tuple[Tensor, Hidden]:
        """In one direction, each sequence to its own end: (B, T, ·) → states (B, T, D), hidden after the last token."""
        packed = pack_padded_sequence(x, layout.lengths.clamp(min=1), batch_first=True, enforce_sorted=False)
        output, final = self._fused(packed)
        states, _ = pad_packed_sequence(output, batch_first=True, total_length=x.shape[1])
        return states, tuple(part[0] for part in (final if self.parts == 2 else (final,)))

    def read(self, x: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        """A whole batch, each sequence from and to its own ends: (B, T, ·) → states (B, T, D·dir), final (B, D·dir)."""
        packed = pack_padded_sequence(x, layout.lengths.clamp(min=1), batch_first=True, enforce_sorted=False)
        output, final = self._fused(packed)
        states, _ = pad_packed_sequence(output, batch_first=True, total_length=x.shape[1])
        hidden = final[0] if self.parts == 2 else final  # (dir, B, D)
        self.tap("states", states, f"{self.cell}(x_t, h_t−1)")
        return states, hidden.transpose(0, 1).flatten(1)
