"""The models Sightline is compared with, in the same sizes: MarianMTModel and torch.nn.Transformer.

Each is used as an expert would without changing its code: fused attention, the same dropout, the output layer only for
real labels, fused cross entropy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus import END, PAD, START


@dataclass(frozen=True)
class Size:
    """A Transformer's sizes."""

    layers: int
    width: int
    feedforward: int
    heads: int
    vocabulary: int
    longest: int = 256
    dropout: float = 0.1


SMALL = Size(layers=3, width=256, feedforward=1024, heads=4, vocabulary=8_000)
BASE = Size(layers=6, width=512, feedforward=2048, heads=8, vocabulary=32_000)


def smoothed_loss(features: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """Label-smoothed cross entropy of features (N, D) against labels (N,), output layer included."""
    return functional.cross_entropy(functional.linear(features, weight), labels, ignore_index=PAD, label_smoothing=0.1)


def marian(size: Size, *, training: bool = True) -> Any:
    """transformers' MarianMTModel with fused attention, tied embeddings, ReLU and dropout on the residuals.

    The attention is transformers' "sdpa" under another name: transformers builds no masks for unknown names. Its masks
    would break a compiled graph and hide from the kernel that the decoder is causal.
    """
    from transformers import AttentionInterface, MarianConfig, MarianMTModel
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    AttentionInterface.register("sdpa_without_masks", sdpa_attention_forward)
    config = MarianConfig(
        vocab_size=size.vocabulary,
        decoder_vocab_size=size.vocabulary,
        d_model=size.width,
        encoder_layers=size.layers,
        decoder_layers=size.layers,
        encoder_ffn_dim=size.feedforward,
        decoder_ffn_dim=size.feedforward,
        encoder_attention_heads=size.heads,
        decoder_attention_heads=size.heads,
        activation_function="relu",
        dropout=size.dropout,
        attention_dropout=0.0,
        activation_dropout=0.0,
        scale_embedding=True,
        max_position_embeddings=size.longest,
        pad_token_id=PAD,
        bos_token_id=START,
        eos_token_id=END,
        decoder_start_token_id=START,
        forced_eos_token_id=None,
        init_std=size.width**-0.5,
        use_cache=False,
        attn_implementation="sdpa_without_masks" if training else "sdpa",
    )
    return MarianMTModel(config)


class MarianStep(nn.Module):
    """Marian's loss on one batch.

    In training mode Marian's stacks draw a random number before each layer (LayerDrop, unused here), which breaks a
    compiled graph. So the stacks, not their layers, are set to evaluation mode, and a hook applies the dropout on the
    embeddings. `everywhere` computes logits for padding too (static shapes, for torch.compile).
    """

    def __init__(self, size: Size, *, everywhere: bool = False) -> None:
        super().__init__()
        self.model = marian(size)
        self.everywhere = everywhere
        for stack in (self.model.model.encoder, self.model.model.decoder):
            stack.layers[0].register_forward_pre_hook(_drop_first(size.dropout))

    def train(self, mode: bool = True) -> MarianStep:
        super().train(mode)
        self.model.model.encoder.training = self.model.model.decoder.training = False
        return self

    def forward(self, source: Tensor, inputs: Tensor, labels: Tensor, padded: bool = True) -> Tensor:
        """Loss of source (B, S), inputs (B, T), labels (B, T)."""
        mask = (source != PAD)[:, None, None, :] if padded else None  # the causal target needs none
        features = self.model.model(
            input_ids=source, attention_mask=mask, decoder_input_ids=inputs, use_cache=False
        ).last_hidden_state
        return _loss(features, labels, self.model.lm_head.weight, self.everywhere)


def _drop_first(probability: float) -> Callable[[nn.Module, tuple[Any, ...]], tuple[Any, ...]]:
    def hook(module: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        return functional.dropout(arguments[0], probability, module.training), *arguments[1:]

    return hook


class TorchTransformer(nn.Module):
    """torch.nn.Transformer with tied embeddings and sinusoidal positions."""

    positions: Tensor

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size.vocabulary, size.width, padding_idx=PAD)
        nn.init.normal_(self.embedding.weight, std=size.width**-0.5)
        self.body = nn.Transformer(
            size.width,
            size.heads,
            size.layers,
            size.layers,
            size.feedforward,
            dropout=size.dropout,
            activation="relu",
            batch_first=True,
        )
        self.dropout = nn.Dropout(size.dropout)
        self.scale = math.sqrt(size.width)
        for module in self.body.modules():  # as in the other contestants
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
            if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                module.dropout.p = 0.0
        position = torch.arange(size.longest)[:, None]
        rate = torch.exp(torch.arange(0, size.width, 2) * (-math.log(10_000.0) / size.width))
        table = torch.stack([torch.sin(position * rate), torch.cos(position * rate)], dim=-1).flatten(1)
        self.register_buffer("positions", table, persistent=False)
        self.register_buffer("causal", nn.Transformer.generate_square_subsequent_mask(size.longest), persistent=False)

    def embed(self, tokens: Tensor) -> Tensor:
        """Embeddings (B, T, D) of tokens (B, T)."""
        return self.dropout(self.embedding(tokens) * self.scale + self.positions[: tokens.shape[1]])

    def forward(self, source: Tensor, inputs: Tensor, padded: bool = True) -> Tensor:
        """Features (B, T, D)."""
        mask = (source == PAD) if padded else None  # the causal target needs none
        width = inputs.shape[1]
        return self.body(
            self.embed(source),
            self.embed(inputs),
            tgt_mask=self.causal[:width, :width],
            src_key_padding_mask=mask,
            memory_key_padding_mask=mask,
            tgt_is_causal=True,
        )


class TorchStep(nn.Module):
    """nn.Transformer's loss on one batch."""

    def __init__(self, size: Size, *, everywhere: bool = False) -> None:
        super().__init__()
        self.model = TorchTransformer(size)
        self.everywhere = everywhere

    def forward(self, source: Tensor, inputs: Tensor, labels: Tensor, padded: bool = True) -> Tensor:
        """Loss of source (B, S), inputs (B, T), labels (B, T)."""
        features = self.model(source, inputs, padded)
        return _loss(features, labels, self.model.embedding.weight, self.everywhere)


def _loss(features: Tensor, labels: Tensor, weight: Tensor, everywhere: bool) -> Tensor:
    features, labels = features.flatten(0, 1), labels.flatten()
    if not everywhere:
        real = labels.nonzero().squeeze(1)  # PAD is 0
        if len(real) < len(labels):
            features, labels = features[real], labels[real]
    return smoothed_loss(features, labels, weight)
