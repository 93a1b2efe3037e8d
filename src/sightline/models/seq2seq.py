"""Sequence to sequence: any encoder, any decoder, the embeddings around them."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from sightline.layers.embedding import Embedding, Output
from sightline.layers.layout import Layout
from sightline.models.bodies import DECODERS, ENCODERS
from sightline.models.ends import Reading
from sightline.models.protocol import Memory
from sightline.recipe.model import Model


class Seq2Seq(Reading):
    """p(target | source), one token after the other.

    Losses live outside: the model returns features, and `logits` turns features into scores of every word.
    """

    def __init__(self, recipe: Model, source_size: int, target_size: int) -> None:
        super().__init__()
        assert recipe.encoder is not None and recipe.decoder is not None
        width = recipe.width
        self.target_embedding = Embedding(target_size, width)
        self.source_embedding = self.target_embedding if recipe.tie == "all" else Embedding(source_size, width)
        self.encoder = ENCODERS[recipe.encoder.kind](recipe.encoder, width)
        self.decoder = DECODERS[recipe.decoder.kind](recipe.decoder, width)
        self.output = Output(target_size, width, None if recipe.tie == "none" else self.target_embedding)
        self.cross_attention_paths = tuple(f"decoder.{path}" for path in self.decoder.cross_attention_paths)
        self.longest: int | None = self.decoder.longest

    def begin(self, memory: Memory) -> Any:
        """Where decoding starts."""
        return self.decoder.begin(memory)

    def advance(self, tokens: Tensor, state: Any, layout: Layout | None = None) -> tuple[Tensor, Any]:
        """Tokens (B·W, 1), (B, T) or (N,) → features (…, D) that predict the tokens after them."""
        features, state = self.decoder.advance(self.target_embedding(tokens), state, layout)
        return features, state

    def forward(self, source: Tensor, source_layout: Layout, target: Tensor, target_layout: Layout) -> Tensor:
        """Features for every target position, given the source and the target shifted right."""
        features, _ = self.advance(target, self.begin(self.encode(source, source_layout)), target_layout)
        return features


def parameter_count(model: nn.Module) -> int:
    """How many numbers the model learns; shared ones once."""
    return sum(parameter.numel() for parameter in model.parameters())
