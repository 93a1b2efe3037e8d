"""Encoders with a head: classifiers, taggers and masked language models."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sightline.layers.dropout import Dropout
from sightline.layers.embedding import CharacterEmbedding, Embedding, Output, build_embedding
from sightline.layers.layout import Layout
from sightline.layers.linear import Linear
from sightline.layers.tap import TapModule
from sightline.models.protocol import ENCODERS, EncoderModel, Memory
from sightline.recipe.model import ModelConfig


def build_source_embedding(recipe: ModelConfig, pieces: Sequence[str]) -> Embedding:
    """Build the embedding of a label model, with a CNN over characters if the recipe has one."""
    if (cnn := recipe.character_cnn) is None:
        return build_embedding(recipe, "encoder", len(pieces), tied=False)
    return CharacterEmbedding(
        pieces,
        recipe.embedding_width_of("encoder"),
        character_width=cnn.width,
        channels=cnn.channels,
        window=cnn.window,
        scaled=recipe.scale_embeddings,
    )


class LabelModel(EncoderModel):
    """Base class of taggers and classifiers: embeddings, an encoder, and an output layer over the labels."""

    def __init__(self, recipe: ModelConfig, pieces: Sequence[str], labels: int, features: int) -> None:
        super().__init__()
        assert recipe.encoder is not None
        self.source_embedding = build_source_embedding(recipe, pieces)
        self.encoder = ENCODERS[recipe.encoder.kind](recipe.encoder, recipe.width_of("encoder"))
        self.output = Output(labels, features, None, recipe.output_bias)


class Tagger(LabelModel):
    """One label per token: softmax(W h_t + b)."""

    def __init__(self, recipe: ModelConfig, pieces: Sequence[str], labels: int) -> None:
        super().__init__(recipe, pieces, labels, recipe.width_of("encoder"))
        assert recipe.encoder is not None
        self.dropout = Dropout(getattr(recipe.encoder, "dropout", 0.0))

    def forward(self, source: Tensor, layout: Layout, decoder_input: None = None, target_layout: None = None) -> Tensor:
        """Tokens (B, S) or (N,) → features (…, D)."""
        return self.dropout(self.encode(source, layout).states)


def pool(memory: Memory, kind: str) -> Tensor:
    """Pool the states of each sequence to (B, D): mean or max over tokens, `last` or `class`.

    `last`: the final states of a recurrent encoder, else the state of the last token, `</s>`. `last-word`: the state of
    the token before it. `class`: the state of the first token.
    """
    if kind == "last" and memory.finals is not None:
        return memory.finals[:, -1]
    states, mask = memory.layout.pad(memory.states), memory.layout.key_mask()  # (B, S, D), (B, S)
    if kind == "class":
        return states[:, 0]
    if kind in ("last", "last-word"):
        behind = 1 if kind == "last" else 2  # tokens from the end, </s> included
        ends = memory.layout.lengths.clamp(min=behind).to(states.device) - behind
        return states.gather(1, ends[:, None, None].expand(-1, 1, states.shape[2]))[:, 0]
    if kind == "max":
        return (states if mask is None else states.masked_fill(~mask[..., None], float("-inf"))).amax(1)
    return memory.mean()


class ClassificationHead(TapModule):
    """tanh(W p + b) of the pooled vector p."""

    def __init__(self, width: int, *, kind: str, hidden: int, dropout: float) -> None:
        super().__init__()
        self.kind = kind
        self.hidden = Linear(width, hidden)
        self.dropout = Dropout(dropout)

    def forward(self, memory: Memory) -> Tensor:
        pooled = self.tap("pooled", pool(memory, self.kind), f"{self.kind}(h_1 … h_S)")
        hidden = torch.tanh(self.hidden(self.dropout(pooled)))
        return self.dropout(self.tap("features", hidden, "tanh(W p + b)", ["pooled"]))


class Classifier(LabelModel):
    """One label per text: softmax(W f + b) of the features f of a classification head."""

    def __init__(self, recipe: ModelConfig, pieces: Sequence[str], labels: int) -> None:
        assert recipe.pooling is not None
        pooling, width = recipe.pooling, recipe.width_of("encoder")
        hidden = pooling.hidden or width
        super().__init__(recipe, pieces, labels, hidden)
        self.pooling = ClassificationHead(width, kind=pooling.kind, hidden=hidden, dropout=pooling.dropout)

    def forward(self, source: Tensor, layout: Layout, decoder_input: None = None, target_layout: None = None) -> Tensor:
        """Tokens (B, S) or (N,) → features (B, D)."""
        return self.pooling(self.encode(source, layout))


class MaskedLM(EncoderModel):
    """p(token | context) at masked positions: softmax(W h_t + b) (Devlin et al. 2019)."""

    def __init__(self, recipe: ModelConfig, size: int) -> None:
        super().__init__()
        assert recipe.encoder is not None
        width = recipe.width_of("encoder")
        self.source_embedding = build_embedding(recipe, "encoder", size, tied=recipe.tie != "none")
        self.encoder = ENCODERS[recipe.encoder.kind](recipe.encoder, width)
        tied = None if recipe.tie == "none" else self.source_embedding
        self.output = Output(size, width, tied, recipe.output_bias)

    def forward(
        self, source: Tensor, layout: Layout, positions: Tensor | None = None, target_layout: None = None
    ) -> Tensor:
        """Tokens (B, S) or (N,) → features (…, D), or (A, D) at these positions (A,) among all tokens of the batch."""
        states = self.encode(source, layout).states
        return states if positions is None else states.reshape(-1, states.shape[-1]).index_select(0, positions)
