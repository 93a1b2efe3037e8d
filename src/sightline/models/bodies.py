"""Every encoder and every decoder under the name recipes give it.

A new body is a section in recipe/bodies.py, an encoder (vectors and a layout → `Memory`) and a decoder (`Decoder`) that
stand here; both say what their layers are (`Layered`). Search, training, freezing and rates by layer ask no more.
"""

from __future__ import annotations

from typing import Any

from sightline.models.bytenet import ByteNetDecoder, ByteNetEncoder
from sightline.models.convolutional import ConvolutionalDecoder, ConvolutionalEncoder
from sightline.models.recurrent import RecurrentDecoder, RecurrentEncoder
from sightline.models.transformer import TransformerDecoder, TransformerEncoder
from sightline.models.window import WindowDecoder, WindowEncoder

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
