"""The two ends that models share: an encoder that reads tokens, and an output layer that scores answers."""

from __future__ import annotations

from torch import Tensor, nn

from sightline.layers.embedding import Output
from sightline.layers.layout import Layout
from sightline.layers.tap import TapModule
from sightline.models.protocol import Memory


class Scoring(TapModule):
    """A model that scores answers, be they tokens or labels."""

    output: Output

    def logits(self, features: Tensor) -> Tensor:
        """(…, D) → (…, V)."""
        scores: Tensor = self.output(features)
        return self.tap("logits", scores, "f Wᵀ + b")


class Reading(Scoring):
    """A model that reads a source with an encoder, too."""

    source_embedding: nn.Module
    encoder: nn.Module

    def encode(self, source: Tensor, layout: Layout) -> Memory:
        """Tokens (B, S) or (N,) → memory."""
        memory: Memory = self.encoder(self.source_embedding(source), layout)
        return memory
