"""Sequence-to-sequence models, with and without copying from the source."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sightline.layers.copying import CopiedForms, Copies, CopyAttention, mixed_log_probabilities
from sightline.layers.embedding import Output, build_embedding
from sightline.layers.layout import Layout, Padded
from sightline.models.protocol import DECODERS, ENCODERS, EncoderModel, Memory, join_masks, join_rows, keep_rows
from sightline.recipe.model import ModelConfig
from sightline.text.copying import CopyForms
from sightline.text.tokenizer import PAD, UNK


class Seq2Seq(EncoderModel):
    """p(target | source), token by token. Returns features; `logits` maps them to scores of all tokens."""

    entry_points: ClassVar[tuple[str, ...]] = ("encode", "begin", "advance", "logits")

    def __init__(self, recipe: ModelConfig, source_size: int, target_size: int) -> None:
        super().__init__()
        assert recipe.encoder is not None and recipe.decoder is not None
        source_width, width = recipe.width_of("encoder"), recipe.width_of("decoder")
        other_width = {} if source_width == width else {"memory_width": source_width}
        self.target_embedding = build_embedding(recipe, "decoder", target_size, tied=recipe.tie != "none")
        self.source_embedding = (
            self.target_embedding
            if recipe.tie == "all"
            else build_embedding(recipe, "encoder", source_size, tied=False)
        )
        self.encoder = ENCODERS[recipe.encoder.kind](recipe.encoder, source_width)
        self.decoder = DECODERS[recipe.decoder.kind](recipe.decoder, width, **other_width)
        tied = None if recipe.tie == "none" else self.target_embedding
        self.output = Output(target_size, getattr(self.decoder, "features_width", width), tied, recipe.output_bias)
        self.cross_attention_paths = tuple(f"decoder.{path}" for path in self.decoder.cross_attention_paths)
        self.longest: int | None = self.decoder.longest

    def begin(self, memory: Memory) -> Any:
        """The decoder state before the first token."""
        return self.decoder.begin(memory)

    def advance(self, tokens: Tensor, state: Any, layout: Layout | None = None) -> tuple[Tensor, Any]:
        """Tokens (B·W, 1), (B, T) or (N,) → features (…, D) that predict the tokens after them."""
        features, state = self.decoder.advance(self.target_embedding(tokens), state, layout)
        return features, state

    def forward(self, source: Tensor, source_layout: Layout, target: Tensor, target_layout: Layout) -> Tensor:
        """Features for every position of the labels, from the source and the decoder input (teacher forcing)."""
        features, _ = self.advance(target, self.begin(self.encode(source, source_layout)), target_layout)
        return features


def parameter_count(model: nn.Module) -> int:
    """The number of parameters, shared ones counted once."""
    return sum(parameter.numel() for parameter in model.parameters())


@dataclass(frozen=True)
class TokenMemory(Memory):
    """Memory with the source tokens."""

    tokens: Tensor | None = None  # (B, S) or (N,)


@dataclass(frozen=True)
class CopyingState:
    """The state of the decoder, and the source to copy from."""

    decoder: Any
    keys: Tensor  # (B, S, D) of the copy attention
    states: Tensor  # (B, S, D)
    tokens: Tensor  # (B, S)
    copied: Tensor  # (B, C) ids under which tokens are copied
    mask: Tensor | None  # (B, S)

    def select(self, parents: Tensor) -> CopyingState:
        return replace(self, decoder=self.decoder.select(parents))

    def keep(self, sentences: Tensor) -> CopyingState:
        parts = (self.keys, self.states, self.tokens, self.copied)
        keys, states, tokens, copied = (part.index_select(0, sentences) for part in parts)
        mask = keep_rows(self.mask, sentences)
        return CopyingState(self.decoder.keep(sentences), keys, states, tokens, copied, mask)

    def append(self, other: CopyingState) -> CopyingState:
        forms = self.copied.shape[1] // max(1, self.tokens.shape[1])  # one or two per source token
        copied = join_rows(*(each.copied.unflatten(1, (forms, -1)) for each in (self, other)), dim=2, fill=PAD)
        return CopyingState(
            self.decoder.append(other.decoder),
            join_rows(self.keys, other.keys, dim=1),
            join_rows(self.states, other.states, dim=1),
            join_rows(self.tokens, other.tokens, dim=1, fill=PAD),
            copied.flatten(1),
            join_masks(self.mask, other.mask, (self.keys, other.keys)),
        )


class CopyingSeq2Seq(Seq2Seq):
    """p(target | source), each token generated or copied (See et al. 2017)."""

    entry_points: ClassVar[tuple[str, ...]] = (*Seq2Seq.entry_points, "attend_copies")

    def __init__(self, recipe: ModelConfig, size: int, forms: CopyForms | None = None) -> None:
        super().__init__(recipe, size, size)
        self.size = size
        self.copying = CopyAttention(recipe.width_of("decoder"), forms=forms is not None)
        self.forms = None if forms is None else CopiedForms(forms.spaced, forms.joined, forms.bare)

    def encode(self, source: Tensor, layout: Layout) -> TokenMemory:
        """Tokens (B, S) or (N,) → memory."""
        memory = super().encode(self._known(source), layout)
        return TokenMemory(**{part.name: getattr(memory, part.name) for part in fields(memory)}, tokens=source)

    def begin(self, memory: Memory) -> CopyingState:
        assert isinstance(memory, TokenMemory) and memory.tokens is not None
        assert isinstance(memory.layout, Padded), "copying models take padded batches"
        keys = self.copying.project_memory(memory.states)
        copied = memory.tokens if self.forms is None else self.forms(memory.tokens)
        mask = memory.layout.key_mask()
        return CopyingState(self.decoder.begin(memory), keys, memory.states, memory.tokens, copied, mask)

    def advance(self, tokens: Tensor, state: CopyingState, layout: Layout | None = None) -> tuple[Tensor, CopyingState]:
        """Tokens (B·W, 1) or (B, T) → log-probabilities (…, V + X) of the tokens after them."""
        features, copies, state = self.attend_copies(tokens, state, layout)
        scores = super().logits(features).reshape(len(copies.tokens), -1, self.size)  # (B, W or T, V)
        logs = self.tap(
            "mixture",
            mixed_log_probabilities(scores, copies),
            "log(p_gen softmax(logits) + (1 − p_gen) Σ a)",
            ["logits", "copying.p_gen", "copying.weights" if self.forms is None else "copying.forms"],
            "copy_mixture",
            {"logits": scores, **copies._asdict()},
        )
        return logs.reshape(*tokens.shape, -1), state

    def attend_copies(
        self, tokens: Tensor, state: CopyingState, layout: Layout | None = None
    ) -> tuple[Tensor, Copies, CopyingState]:
        """Decoder features (…, D) after these tokens, the copy distribution, and the new state."""
        before = self.target_embedding(self._copied(tokens, state.tokens))
        features, decoder = self.decoder.advance(before, state.decoder, layout)
        sentences = len(state.tokens)
        gate, weights = self.copying(
            features.reshape(sentences, -1, features.shape[-1]),  # (B, W or T, D)
            before.reshape(sentences, -1, before.shape[-1]),
            state.keys,
            state.states,
            state.mask,
        )
        return features, Copies(gate, weights, state.copied), replace(state, decoder=decoder)

    def logits(self, features: Tensor) -> Tensor:
        """The identity: features are log-probabilities already."""
        return features

    def _copied(self, tokens: Tensor, source: Tensor) -> Tensor:
        """Replace copied tokens in (B·W, 1) or (B, T) by the vocabulary ids of their source tokens (B, S)."""
        rows = tokens.reshape(len(source), -1)
        places = ((rows - self.size) // 2).clamp(min=0, max=source.shape[1] - 1)
        copied = torch.where(rows < self.size, rows, source.gather(1, places))
        return self._known(copied).view_as(tokens)

    def _known(self, tokens: Tensor) -> Tensor:
        return tokens.masked_fill(tokens >= self.size, UNK)
