"""Every encoder and every decoder under the name recipes give it.

A new body is a section in recipe/bodies.py, an encoder (vectors and a layout → `Memory`) and a decoder (`Decoder`) that
stand here; both say what their layers are (`Layered`), the decoder what of it sees a source. Search, training,
freezing, rates by layer and starting from other runs ask no more.
"""

from __future__ import annotations

from typing import Any

from sightline.models.convolutional.bytenet import ByteNetDecoder, ByteNetEncoder
from sightline.models.convolutional.convs2s import ConvolutionalDecoder, ConvolutionalEncoder
from sightline.models.recurrent.modules import RecurrentDecoder, RecurrentEncoder
from sightline.models.transformer.modules import TransformerDecoder, TransformerEncoder
from sightline.models.window.modules import WindowDecoder, WindowEncoder
from sightline.recipe.model import ModelConfig

ENCODERS: dict[str, Any] = {
    "transformer": TransformerEncoder,
    "recurrent": RecurrentEncoder,
    "convolutional": ConvolutionalEncoder,
    "bytenet": ByteNetEncoder,
    "window": WindowEncoder,
}
DECODERS: dict[str, Any] = {
    "transformer": TransformerDecoder,
    "recurrent": RecurrentDecoder,
    "convolutional": ConvolutionalDecoder,
    "bytenet": ByteNetDecoder,
    "window": WindowDecoder,
}


def body_classes(recipe: ModelConfig) -> dict[str, Any]:
    """The `encoder` and the `decoder` that a recipe's model is made of, each where it has one."""
    kinds = {"encoder": ENCODERS, "decoder": DECODERS}
    return {side: kinds[side][body.kind] for side, body in recipe.bodies.items()}
