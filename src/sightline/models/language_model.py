"""Models without an encoder: language models, and seq2seq with source and target in one sequence."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from sightline.layers.embedding import Output, build_embedding
from sightline.layers.layout import Layout, Padded
from sightline.models.protocol import DECODERS, Memory, ScoringModel
from sightline.recipe.model import ModelConfig


class LanguageModel(ScoringModel):
    """p(text), token by token."""

    entry_points: ClassVar[tuple[str, ...]] = ("encode", "begin", "begin_empty", "advance", "logits")

    def __init__(self, recipe: ModelConfig, size: int) -> None:
        super().__init__()
        assert recipe.decoder is not None
        width = recipe.width_of("decoder")
        self.embedding = build_embedding(recipe, "decoder", size, tied=recipe.tie != "none")
        self.decoder = DECODERS[recipe.decoder.kind](recipe.decoder, width, source=False)
        self.output = Output(size, width, None if recipe.tie == "none" else self.embedding, recipe.output_bias)
        self.cross_attention_paths: tuple[str, ...] = ()
        self.longest: int | None = self.decoder.longest

    def encode(self, source: Tensor, layout: Layout) -> Memory:
        """An empty memory for the B texts of tokens (B, S)."""
        return Memory(self._empty_features().expand(len(source), 0, -1), layout)

    def begin(self, memory: Memory) -> Any:
        """The state before the first token."""
        return self.decoder.begin_empty(len(memory.states), memory.states)

    def advance(self, tokens: Tensor, state: Any, layout: Layout | None = None) -> tuple[Tensor, Any]:
        """Tokens (B·W, 1), (B, T) or (N,) → features (…, D) that predict the tokens after them."""
        features, state = self.decoder.advance(self.embedding(tokens), state, layout)
        return features, state

    def begin_empty(self, batch: int) -> Any:
        """The state before the first token of a batch of texts."""
        return self.decoder.begin_empty(batch, self._empty_features())

    def _empty_features(self) -> Tensor:
        """(0, D), of the type and device of the features."""
        weight = self.embedding.weight
        return torch.empty(0, weight.shape[1], dtype=weight.dtype, device=weight.device)

    def forward(
        self, source: Tensor | None, source_layout: Layout | None, decoder_input: Tensor, layout: Layout
    ) -> Tensor:
        """Features for every token of whole texts (teacher forcing)."""
        features, _ = self.advance(decoder_input, self.begin_empty(layout.batch), layout)
        return features


class DecoderOnly(LanguageModel):
    """p(target | source) with one decoder over the sequence source, end token, start token, target.

    In training the whole sequence is the decoder input. Decoding prefills the KV cache with the source, and generates
    from the start token.
    """

    def encode(self, source: Tensor, layout: Layout) -> Memory:
        """Tokens (B, S) → memory of their embeddings."""
        return Memory(self.embedding(source), layout)

    def begin(self, memory: Memory) -> Any:
        assert isinstance(memory.layout, Padded)
        return self.decoder.prefill(memory.states, memory.layout)
