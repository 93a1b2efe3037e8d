"""Recurrent layers: one step by the formula, or whole sequences by PyTorch's fused kernels.

Both use the parameters of torch.nn.RNN, GRU and LSTM; tests compare them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from sightline.layers.layout import Layout
from sightline.layers.linear import Linear, linear
from sightline.layers.tap import Tap, TapModule

Merge = Literal["concatenate", "sum", "mean"]
_MERGED = {"concatenate": "[→h_t ; ←h_t]", "sum": "→h_t + ←h_t", "mean": "(→h_t + ←h_t) / 2"}
Hidden = tuple[Tensor, ...]  # (h,) for Elman and GRU, (h, c) for LSTM; each (B, D)


def _no_tap(name: str, tensor: Tensor, formula: str) -> Tensor:
    return tensor


def elman_step(inputs: Tensor, recurrent: Tensor, hidden: Hidden, tap: Tap = _no_tap) -> Hidden:
    """h_t = tanh(W_h h_{t−1} + W₁ x_t), given the two products (Elman 1990)."""
    return (tap("states", torch.tanh(inputs + recurrent), "tanh(W_h h_t−1 + W₁ x_t)"),)


def elman_relu_step(inputs: Tensor, recurrent: Tensor, hidden: Hidden, tap: Tap = _no_tap) -> Hidden:
    """h_t = ReLU(W_h h_{t−1} + W₁ x_t)."""
    return (tap("states", torch.relu(inputs + recurrent), "ReLU(W_h h_t−1 + W₁ x_t)"),)


def elman_sigmoid_step(inputs: Tensor, recurrent: Tensor, hidden: Hidden, tap: Tap = _no_tap) -> Hidden:
    """h_t = σ(W_h h_{t−1} + W₁ x_t)."""
    return (tap("states", torch.sigmoid(inputs + recurrent), "σ(W_h h_t−1 + W₁ x_t)"),)


def gru_step(inputs: Tensor, recurrent: Tensor, hidden: Hidden, tap: Tap = _no_tap) -> Hidden:
    """r, z = σ(…), n = tanh(r ∘ W_n h + U_n x), h_t = (1 − z) ∘ n + z ∘ h_{t−1} (Cho et al. 2014)."""
    reset_x, update_x, new_x = inputs.chunk(3, dim=-1)
    reset_h, update_h, new_h = recurrent.chunk(3, dim=-1)
    reset = tap("reset_gate", torch.sigmoid(reset_x + reset_h), "r = σ(W_r h_t−1 + U_r x_t)")
    update = tap("update_gate", torch.sigmoid(update_x + update_h), "z = σ(W_z h_t−1 + U_z x_t)")
    new = tap("candidate", torch.tanh(new_x + reset * new_h), "n = tanh(r ∘ W_n h_t−1 + U_n x_t)")
    return (tap("states", (1 - update) * new + update * hidden[0], "(1 − z) ∘ n + z ∘ h_t−1"),)


def lstm_step(inputs: Tensor, recurrent: Tensor, hidden: Hidden, tap: Tap = _no_tap) -> Hidden:
    """i, f, o = σ(W h + U x + b), c̃ = tanh(…), c_t = f∘c_{t−1} + i∘c̃, h_t = o∘tanh(c_t) (Hochreiter 1997)."""
    i, f, new, o = (inputs + recurrent).chunk(4, dim=-1)
    i = tap("input_gate", torch.sigmoid(i), "i = σ(W_i h_t−1 + U_i x_t + b_i)")
    f = tap("forget_gate", torch.sigmoid(f), "f = σ(W_f h_t−1 + U_f x_t + b_f)")
    new = tap("candidate", torch.tanh(new), "c̃ = tanh(W_c h_t−1 + U_c x_t + b_c)")
    o = tap("output_gate", torch.sigmoid(o), "o = σ(W_o h_t−1 + U_o x_t + b_o)")
    cell = tap("cell", f * hidden[1] + i * new, "c_t = f ∘ c_t−1 + i ∘ c̃")
    return tap("states", o * torch.tanh(cell), "h_t = o ∘ tanh(c_t)"), cell


class CellStep(Protocol):
    """One step of a cell: `inputs` U x + b, `recurrent` W h + b' and the previous hidden state → hidden state."""

    def __call__(self, inputs: Tensor, recurrent: Tensor, hidden: Hidden, tap: Tap = _no_tap) -> Hidden: ...


def sigmoid_rnn(rnn: nn.RNN, x: Any, start: Tensor | None = None) -> Any:
    """Elman recurrence with g = σ, by PyTorch's tanh kernel; arguments and results are those of `rnn(x, start)`.

    σ(a) = (1 + tanh(a/2)) / 2, so the states 2h − 1 are those of a tanh recurrence with the weights W₁/2 and W_h/4.
    """
    weights = []
    for direction in ("", "_reverse")[: 1 + rnn.bidirectional]:
        own = {
            name: rnn._parameters.get(f"{name}_l0{direction}")
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        }
        inputs, recurrent = own["weight_ih"], own["weight_hh"]
        assert inputs is not None and recurrent is not None
        bias = recurrent.sum(1) / 4
        if own["bias_ih"] is not None and own["bias_hh"] is not None:
            bias = bias + (own["bias_ih"] + own["bias_hh"]) / 2
        weights += [inputs / 2, recurrent / 4, bias, torch.zeros_like(bias)]
    packed = isinstance(x, PackedSequence)
    rows = int(x.batch_sizes[0]) if packed else len(x)
    if start is None:
        state = weights[0].new_full((1 + rnn.bidirectional, rows, rnn.hidden_size), -1.0)
    else:
        state = 2 * start - 1
    options = (True, 1, 0.0, rnn.training, rnn.bidirectional)
    if packed:
        output, final = torch.rnn_tanh(x.data, x.batch_sizes, state, weights, *options)
        return PackedSequence((output + 1) / 2, x.batch_sizes, x.sorted_indices, x.unsorted_indices), (final + 1) / 2
    output, final = torch.rnn_tanh(x, state, weights, *options, rnn.batch_first)
    return (output + 1) / 2, (final + 1) / 2


CELLS: dict[str, tuple[Callable[..., nn.RNNBase], CellStep, int]] = {  # module, step, size of the hidden state
    "elman": (nn.RNN, elman_step, 1),
    "elman_relu": (partial(nn.RNN, nonlinearity="relu"), elman_relu_step, 1),
    "elman_sigmoid": (nn.RNN, elman_sigmoid_step, 1),
    "gru": (nn.GRU, gru_step, 1),
    "lstm": (nn.LSTM, lstm_step, 2),
}


class Recurrence(TapModule):
    """A recurrent layer over (B, T, ·) in one or both directions, each of `width` features.

    The states of both directions are concatenated, added or averaged (`merge`).
    """

    entry_points: ClassVar[tuple[str, ...]] = ("read", "read_through")

    def __init__(
        self,
        cell: str,
        inputs: int,
        width: int,
        *,
        bidirectional: bool = False,
        bias: bool = True,
        merge: Merge = "concatenate",
    ) -> None:
        super().__init__()
        build, self.step, self.parts = CELLS[cell]
        self.cell, self.width, self.bidirectional, self.merge = cell, width, bidirectional, merge
        self.rnn = build(inputs, width, bias=bias, batch_first=True, bidirectional=bidirectional)
        self.reset_parameters()

    def kernel(self, x: Any, start: Any) -> Any:
        """PyTorch's kernel for this cell."""
        if self.cell == "elman_sigmoid":
            assert isinstance(self.rnn, nn.RNN)
            return sigmoid_rnn(self.rnn, x, start)
        return self.rnn(x, start)

    def reset_parameters(self) -> None:
        """Orthogonal recurrent weights, Xavier input weights, forget bias 1 (Jozefowicz et al. 2015), by gate."""
        for name, parameter in self.rnn.named_parameters():
            if parameter.is_meta:
                continue
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
        """The initial hidden state: zeros (B, D) each."""
        return tuple(like.new_zeros(batch, self.width) for _ in range(self.parts))

    def advance(self, x: Tensor, hidden: Hidden, direction: str = "") -> Hidden:
        """One step: x (B, ·), hidden (B, D) each → hidden."""
        return self.step(self._inputs(x, direction), self._recurrent(hidden[0], direction), hidden)

    def _inputs(self, x: Tensor, direction: str) -> Tensor:
        parameters = self.rnn._parameters
        return linear(x, parameters[f"weight_ih_l0{direction}"], parameters.get(f"bias_ih_l0{direction}"))  # type: ignore[arg-type]

    def _recurrent(self, state: Tensor, direction: str) -> Tensor:
        parameters = self.rnn._parameters
        return linear(state, parameters[f"weight_hh_l0{direction}"], parameters.get(f"bias_hh_l0{direction}"))  # type: ignore[arg-type]

    def forward(self, x: Tensor, hidden: Hidden) -> tuple[Tensor, Hidden]:
        """All steps in one direction: (B, T, ·) → states (B, T, D) and the hidden state after the last step."""
        if self.recorded:
            return self._recorded(x, hidden)
        if x.shape[1] == 1:
            states, hidden = self.unrolled(x, hidden)
            return self.tap("states", states, "h_1 … h_T"), hidden
        start = tuple(part[None].contiguous() for part in hidden)
        states, final = self._fused(x, start if self.parts == 2 else start[0])
        states = self.tap("states", states, "h_1 … h_T")
        return states, tuple(part[0] for part in (final if self.parts == 2 else (final,)))

    def _fused(self, x: Any, start: Any = None) -> Any:
        """PyTorch's kernel over all steps.

        In float32 on CUDA (with products in TF32): under autocast cuDNN uses float16 for any dtype (torch 2.11), which
        loses small gradients without loss scaling.
        """
        device = (x.data if isinstance(x, PackedSequence) else x).device.type
        if device != "cuda" or not torch.is_autocast_enabled(device):
            return self.kernel(x, start)
        with torch.autocast(device, enabled=False):
            start = tuple(part.float() for part in start) if isinstance(start, tuple) else start
            start = start.float() if isinstance(start, Tensor) else start
            return self.kernel(x.to(torch.float32), start)

    def unrolled(self, x: Tensor, hidden: Hidden) -> tuple[Tensor, Hidden]:
        """`forward` step by step, by the formula."""
        if self.recorded:
            return self._recorded(x, hidden)
        states = []
        for t in range(x.shape[1]):
            hidden = self.advance(x[:, t], hidden)
            states.append(hidden[0])
        return torch.stack(states, dim=1), hidden

    def _recorded(self, x: Tensor, hidden: Hidden) -> tuple[Tensor, Hidden]:
        """`forward` in a recording."""
        states, hiddens = self._recorded_steps(x, hidden)
        return states, hiddens[-1]

    def _recorded_steps(self, x: Tensor, hidden: Hidden, direction: str = "") -> tuple[Tensor, list[Hidden]]:
        """All states (B, T, D) step by step, then gates of all steps at once for the taps; each step's hidden state."""
        prefix = "backward." if direction else ""
        hiddens = [hidden]
        for t in range(x.shape[1]):
            hiddens.append(self.advance(x[:, t], hiddens[-1], direction))
        states = torch.stack([after[0] for after in hiddens[1:]], dim=1)

        def tap(name: str, tensor: Tensor, formula: str, operation: str = "", **operands: Any) -> Tensor:
            if name == "states":  # tap the values computed step by step, with the gates as operands
                tensor, operation, operands = states, "shown_as", {"x": tensor}
            return self.tap(prefix + name, tensor, formula, (), operation, operands)

        parameters = self.rnn._parameters
        elman, bias = self.cell.startswith("elman"), " + b" if self.rnn.bias else ""
        inputs = tap("inputs", self._inputs(x, direction), f"{'W₁' if elman else 'U'} x_t{bias}")  # (B, T, gates · D)
        operands = {
            "inputs": inputs,
            "weight": parameters[f"weight_hh_l0{direction}"],
            "bias": parameters.get(f"bias_hh_l0{direction}"),
            "start": list(hidden),
            "cell": self.cell,
        }
        names = zip(("state", "cell"), "hc", zip(*hiddens[:-1], strict=True), strict=False)
        before = tuple(
            tap(f"{name}_before", torch.stack(parts, dim=1), f"{sign}_t−1", "states_before", **operands, part=part)
            for part, (name, sign, parts) in enumerate(names)
        )
        recurrent = tap("recurrent", self._recurrent(before[0], direction), f"{'W_h' if elman else 'W'} h_t−1{bias}")
        return self.step(inputs, recurrent, before, tap)[0], hiddens[1:]

    def read_through(self, x: Tensor, layout: Layout, start: Hidden) -> tuple[Tensor, Hidden]:
        """Read sequences forwards: (B, T, ·) → states (B, T, D), hidden state after the last token of each.

        All sequences have the same initial state `start`, (B, D) each.
        """
        states, final = self._read_steps(x, layout, start)
        return states, tuple(part[0] for part in final)

    def read(self, x: Tensor, layout: Layout) -> tuple[Tensor, Hidden]:
        """Encode sequences: (B, T, ·) → states (B, T, D'), final hidden states (B, D') each.

        D' is twice the width if both directions are concatenated, else the width.
        """
        states, final = self._read(x, layout)
        states, final = self.merged(states), tuple(self.merged(part) for part in final)
        return self.tap("output", states, _MERGED[self.merge] if self.bidirectional else "h_1 … h_S"), final

    def merged(self, both: Tensor) -> Tensor:
        """Both directions (…, 2D), joined as `merge` says."""
        if self.merge == "concatenate" or not self.bidirectional:
            return both
        forward, backward = both.chunk(2, dim=-1)
        return forward + backward if self.merge == "sum" else (forward + backward) / 2

    def _read_recorded(self, x: Tensor, layout: Layout) -> tuple[Tensor, Hidden]:
        """`_read` in a recording."""
        start = self.start(len(x), x)
        ends = layout.lengths.clamp(min=1).to(x.device)[:, None, None].expand(-1, 1, self.width) - 1
        parts, finals = [], []
        for direction in ("", "_reverse")[: 1 + self.bidirectional]:
            states, every = self._recorded_steps(reverse_sequences(x, layout) if direction else x, start, direction)
            cells = [torch.stack(part, dim=1) for part in list(zip(*every, strict=True))[1:]]
            finals.append([part.gather(1, ends)[:, 0] for part in (states, *cells)])
            parts.append(reverse_sequences(states, layout) if direction else states)
        states, mask = torch.cat(parts, dim=-1), layout.key_mask()
        final = tuple(torch.cat(parts, dim=-1) for parts in zip(*finals, strict=True))
        return states if mask is None else states * mask[..., None], final

    def _read(self, x: Tensor, layout: Layout) -> tuple[Tensor, Hidden]:
        if self.recorded:
            return self._read_recorded(x, layout)
        states, final = self._read_steps(x, layout)
        return states, tuple(part.transpose(0, 1).flatten(1) for part in final)

    def _read_steps(self, x: Tensor, layout: Layout, start: Hidden | None = None) -> tuple[Tensor, Hidden]:
        """PyTorch's kernel over real tokens: (B, T, ·) → states (B, T, D·dir), zeros at padding; final (dir, B, D).

        Faster than `pack_padded_sequence` and `pad_packed_sequence`, which copy step by step and synchronize on CUDA.
        """
        before: Any = None if start is None else tuple(part[None].contiguous() for part in start)
        before = before[0] if before is not None and self.parts == 1 else before
        if layout.full:
            states, final = self._fused(x, before)
            return states.contiguous(), final if self.parts == 2 else (final,)
        steps = layout.steps.to(x.device)
        packed = PackedSequence(x.flatten(0, 1).index_select(0, steps.places), steps.sizes)
        output, final = self._fused(packed, before)
        states = output.data.new_zeros(x.shape[:2].numel(), output.data.shape[1])
        states = states.index_copy_(0, steps.places, output.data).view(*x.shape[:2], -1)
        return states, tuple(part.index_select(1, steps.ranks) for part in (final if self.parts == 2 else (final,)))


class BackwardRecurrence(Recurrence):
    """A recurrent layer that reads each sequence backwards."""

    def _read(self, x: Tensor, layout: Layout) -> tuple[Tensor, Hidden]:
        states, final = super()._read(reverse_sequences(x, layout), layout)
        return reverse_sequences(states, layout), final


def reverse_sequences(x: Tensor, layout: Layout) -> Tensor:
    """Reverse the tokens of each sequence (B, T, D); padding stays at the end."""
    positions, lengths = torch.arange(x.shape[1], device=x.device), layout.lengths.to(x.device)[:, None]
    order = torch.where(positions < lengths, lengths - 1 - positions, positions)  # (B, T)
    return x.gather(1, order[:, :, None].expand_as(x))


RESIDUAL_FROM = 2  # first layer (from 0) with a residual connection: "the third from the bottom" (Wu et al. 2016)


class SkipConnection(nn.Module):
    """No skip connection: the next layer reads the output h of the recurrence."""

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        """Input x (…, I) and output h (…, D) of the recurrence → (…, D)."""
        return h


class ResidualConnection(SkipConnection):
    """h + x (Wu et al. 2016, eq. 6)."""

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        return h + x


class FastForwardConnection(SkipConnection):
    """W_f [x ; h]: a linear path from the input to the top of the stack (Zhou et al. 2016)."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.map = Linear(inputs + width, width)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        return self.map(torch.cat([x, h], dim=-1))


def build_skip_connection(kind: str, number: int, inputs: int, width: int) -> SkipConnection:
    """Build the skip connection of layer `number` (from 0), which reads `inputs` features."""
    if kind == "fast-forward":
        return FastForwardConnection(inputs, width)
    return ResidualConnection() if kind == "residual" and number >= RESIDUAL_FROM else SkipConnection()
