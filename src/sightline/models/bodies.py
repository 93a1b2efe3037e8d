"""Encoders and decoders under the names that recipes use: see `registry.py`.

A new one is a config (a `BodyConfig`) and a class. An encoder is called with vectors and a layout and returns a
`Memory`; a decoder is a `Decoder`. Both say what their layers are (`Layered`), a decoder also which parts attend to a
source. Search, training, freezing, layer-wise learning rates and `init_from` need no more.
"""

from __future__ import annotations

from typing import Any

from sightline.recipe.model import ModelConfig
from sightline.registry import Implementations

ENCODERS = Implementations("encoder")
DECODERS = Implementations("decoder")


def body_classes(recipe: ModelConfig) -> dict[str, Any]:
    """The classes of the encoder and the decoder of a recipe's model."""
    classes = {"encoder": ENCODERS, "decoder": DECODERS}
    return {side: classes[side][body.kind] for side, body in recipe.bodies.items()}
