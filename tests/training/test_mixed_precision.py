"""A step in bfloat16 has the gradients of one in float32, up to rounding, for every kind of model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from sightline.data.collate import padded_batch, seq2seq_ids
from sightline.layers.devices import autocast
from sightline.layers.layout import Padded
from sightline.layers.recurrent import Recurrence
from sightline.models.seq2seq import Seq2Seq
from sightline.tasks.losses import batch_loss

TRANSFORMER = {"kind": "transformer", "layers": 2, "heads": 2, "dropout": 0.0}
LSTM = {"kind": "recurrent", "cell": "lstm", "layers": 1, "dropout": 0.0}
MODELS = {
    "transformer": (TRANSFORMER, TRANSFORMER),
    "transformer-to-gru": (TRANSFORMER, {**LSTM, "cell": "gru", "attention": {"kind": "additive"}}),
    **{
        kind: ({**TRANSFORMER, "positions": {"kind": kind}},) * 2  # the bias is added in one precision or the other
        for kind in ("alibi", "t5", "shaw")
    },
    **{
        f"norm-{'-'.join(map(str, norm.values()))}": ({**TRANSFORMER, "norm": norm},) * 2
        for norm in (
            {"kind": "batch", "place": "pre"},
            {"kind": "layer", "place": "post", "gain": False},
            {"kind": "layer", "place": "pre", "bias": False},
            {"kind": "rms", "place": "pre", "gain": False},
        )
    },
    **{
        f"lstm-{score}": (LSTM, {**LSTM, "attention": {"kind": score}})
        for score in ("none", "dot", "scaled-dot", "bilinear", "additive", "linear", "unnormalized")
    },
}


def gradients(model: Seq2Seq, device: torch.device, precision: str) -> tuple[float, torch.Tensor]:
    numbers = np.random.default_rng(1)
    sources, targets = (
        [numbers.integers(4, 13, length).astype(np.uint16) for length in lengths]
        for lengths in ([5, 1, 9, 4], [3, 8, 2, 6])
    )
    batch = padded_batch(seq2seq_ids(sources, targets), np.arange(4))
    batch = batch.to(device) if device.type == "cuda" else batch
    with autocast(precision, device):
        loss = batch_loss(model, batch, 0.1)
    loss.total.backward()
    return float(loss.nll.detach()), torch.cat(
        [p.grad.float().flatten() for p in model.parameters() if p.grad is not None]
    )


def check(build_model: Callable[..., Seq2Seq], name: str, device: torch.device) -> None:
    (exact, expected), (rounded, found) = (
        gradients(build_model(*MODELS[name]).to(device).train(), device, precision) for precision in ("float32", "bf16")
    )
    assert rounded == pytest.approx(exact, rel=0.01)
    assert float((found - expected).norm()) < 0.1 * float(
        expected.norm()
    )  # a rounding is 0.4%, and dozens follow each other


@pytest.mark.parametrize("name", MODELS)
def test_gradients_in_bfloat16_are_those_in_float32_up_to_rounding(
    build_model: Callable[..., Seq2Seq], name: str
) -> None:
    check(build_model, name, torch.device("cpu"))


@pytest.mark.cuda
@pytest.mark.parametrize("name", MODELS)
def test_the_same_on_cuda(build_model: Callable[..., Seq2Seq], name: str, cuda: torch.device) -> None:
    check(build_model, name, cuda)


@pytest.mark.cuda
@pytest.mark.parametrize("cell", ["elman", "gru", "lstm"])
def test_recurrences_on_cuda_stay_in_float32(cell: str, cuda: torch.device) -> None:
    layer = Recurrence(cell, 6, 5).to(cuda)
    x = torch.randn(3, 7, 6, device=cuda)
    exact, _ = layer(x, layer.start(3, x))
    with torch.autocast("cuda", torch.bfloat16):
        states, hidden = layer(x.bfloat16(), layer.start(3, x.bfloat16()))
        read, _ = layer.read(x, Padded.of([7, 2, 4], cuda))
    assert {states.dtype, read.dtype, *(part.dtype for part in hidden)} == {torch.float32}
    torch.testing.assert_close(states, exact, rtol=0.02, atol=0.02)
