"""Token embeddings, the output layer, and a CNN over the characters of tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sightline.layers.initialization import normal_
from sightline.layers.linear import Projection
from sightline.layers.tap import TapModule
from sightline.recipe.model import ModelConfig


class Embedding(TapModule):
    """E[token] · √D with E ~ N(0, 1/D), or, not `scaled`, E[token] with E ~ N(0, 1): both have variance one.

    E is N(0, 1/D) as well if it is `tied` to the output layer.
    """

    def __init__(self, size: int, width: int, *, scaled: bool = True, tied: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, width))
        self.scale = width**0.5 if scaled else None
        self.std = width**-0.5 if scaled or tied else 1.0
        Embedding.reset_parameters(self)

    def reset_parameters(self) -> None:
        normal_(self.weight, self.std)

    def forward(self, tokens: Tensor) -> Tensor:
        """(…,) → (…, D)."""
        rows = self.tap("rows", nn.functional.embedding(tokens, self.weight), "E[token]")
        return rows if self.scale is None else self.tap("vectors", rows * self.scale, "E[token] √D", ["rows"])


def build_embedding(recipe: ModelConfig, side: str, size: int, *, tied: bool) -> Embedding:
    """Build the token embeddings that the `encoder` or `decoder` reads; `tied`: they are the output layer, too."""
    return Embedding(size, recipe.embedding_width_of(side), scaled=recipe.scale_embeddings, tied=tied)


class Output(Projection):
    """Logits f Wᵀ + b; W may be tied to the embedding (Press and Wolf 2017), b may be left out."""

    def __init__(self, size: int, width: int, tied: Embedding | None, bias: bool = True) -> None:
        super().__init__()
        self.tied = tied is not None
        self.weight = nn.Parameter(torch.empty(size, width)) if tied is None else tied.weight
        self.bias = nn.Parameter(torch.empty(size)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if not self.tied:
            normal_(self.weight, self.weight.shape[1] ** -0.5)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


_LONGEST = 16  # characters per token; longer tokens keep their first and last ones


def spellings(pieces: Sequence[str]) -> tuple[Tensor, int]:
    """Character ids of each piece (V, ≤ 16), padded with 0, and the number of different ids."""
    half = _LONGEST // 2
    cut = [piece if len(piece) <= _LONGEST else piece[:half] + piece[-half:] for piece in pieces]
    numbers = {character: number for number, character in enumerate(sorted(set("".join(cut))), 1)}
    longest = max((len(piece) for piece in cut), default=1)
    rows = [[numbers[character] for character in piece] + [0] * (longest - len(piece)) for piece in cut]
    return torch.tensor(rows, device="cpu"), len(numbers) + 1


class CharacterEmbedding(Embedding):
    """`Embedding` + W max_i ReLU(conv(characters))_i (dos Santos and Zadrozny 2014)."""

    own_parameters_first = True
    characters: Tensor

    def __init__(
        self,
        pieces: Sequence[str],
        width: int,
        *,
        character_width: int,
        channels: int,
        window: int,
        scaled: bool = True,
    ) -> None:
        super().__init__(len(pieces), width, scaled=scaled)
        self._spellings, count = spellings(pieces)
        self.register_buffer("characters", torch.empty_like(self._spellings), persistent=False)
        self.character_vectors = nn.Parameter(torch.empty(count, character_width))
        normal_(self.character_vectors, 1.0)
        self.reset_buffers()
        self.convolution = nn.Conv1d(character_width, channels, window, padding=window // 2)
        self.project = nn.Linear(channels, width, bias=False)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        normal_(self.character_vectors, 1.0)

    def reset_buffers(self) -> None:
        self.characters.copy_(self._spellings)

    def forward(self, tokens: Tensor) -> Tensor:
        """(…,) → (…, D)."""
        ids = self.characters[tokens.reshape(-1)]  # (N, L)
        vectors = nn.functional.embedding(ids, self.character_vectors) * (ids != 0)[..., None]  # (N, L, C)
        windows = torch.relu(self.convolution(vectors.transpose(1, 2)))  # (N, channels, L)
        spelled = self.tap("spelling", self.project(windows.amax(-1)), "W max f(characters)")
        return super().forward(tokens) + spelled.view(*tokens.shape, -1)
