"""How every trace ends: probabilities and the loss, which live outside models."""

from __future__ import annotations

import torch
from torch import Tensor

from sightline.inspection.trace import Recorder
from sightline.layers.tap import Tapped


def tell_ending(recorder: Recorder, logits: Tensor, wanted: Tensor, places: Tensor | None = None) -> None:
    """softmax(logits) (…, V), −log p of each wanted token, and their mean over `places` (True: an answer is wanted)."""
    recorder.give("wanted", wanted, "tokens to be predicted")
    probabilities = torch.softmax(logits.float(), -1)
    recorder.hear(Tapped("probabilities", probabilities, "softmax(logits)", ()))
    right = probabilities.gather(-1, wanted[..., None])[..., 0]
    operands = {"probabilities": probabilities, "wanted": wanted}
    losses = -right.log()
    recorder.hear(Tapped("losses", losses, "−log p(wanted)", (), "surprise", operands))
    if places is not None:
        losses = losses[places]
    recorder.hear(Tapped("loss", losses.mean(), "mean of the losses", ()))
