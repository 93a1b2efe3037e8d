"""Token embeddings, the output layer, and token vectors from characters (dos Santos and Zadrozny 2014)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sightline.layers.initialization import normal_
from sightline.layers.linear import Projection
from sightline.layers.tap import TapModule
from sightline.recipe.model import CharacterCNNConfig


class Embedding(TapModule):
    """E[token] · √D: rows start at N(0, 1/D), so that what enters the network has variance one."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, width))
        self.scale = width**0.5
        Embedding.reset_parameters(self)

    def reset_parameters(self) -> None:
        normal_(self.weight, self.weight.shape[1] ** -0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        """(…,) → (…, D)."""
        rows = self.tap("rows", nn.functional.embedding(tokens, self.weight), "E[token]")
        return self.tap("vectors", rows * self.scale, "E[token] √D", ["rows"])


class Output(Projection):
    """Features to scores of every word: f Wᵀ + b; W may be the embedding's (Press and Wolf 2017)."""

    bias: nn.Parameter

    def __init__(self, size: int, width: int, tied: Embedding | None) -> None:
        super().__init__()
        self.tied = tied is not None
        self.weight = nn.Parameter(torch.empty(size, width)) if tied is None else tied.weight
        self.bias = nn.Parameter(torch.empty(size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if not self.tied:
            normal_(self.weight, self.weight.shape[1] ** -0.5)
        nn.init.zeros_(self.bias)


_LONGEST = 16  # characters looked at; of longer tokens the first and the last, where prefixes and endings are


def spellings(pieces: Sequence[str]) -> tuple[Tensor, int]:
    """Each piece as numbers of its characters (V, ≤ 16), 0 behind shorter ones; and how many numbers there are."""
    half = _LONGEST // 2
    cut = [piece if len(piece) <= _LONGEST else piece[:half] + piece[-half:] for piece in pieces]
    numbers = {character: number for number, character in enumerate(sorted(set("".join(cut))), 1)}
    longest = max((len(piece) for piece in cut), default=1)
    rows = [[numbers[character] for character in piece] + [0] * (longest - len(piece)) for piece in cut]
    return torch.tensor(rows, device="cpu"), len(numbers) + 1


class SpelledEmbedding(Embedding):
    """E[token] · √D + W max_i f(window i of its characters): what a token is, and what it looks like.

    Tokens seen once, or never, still have endings and prefixes they share with others.
    """

    own_parameters_first = True
    characters: Tensor

    def __init__(self, recipe: CharacterCNNConfig, pieces: Sequence[str], width: int) -> None:
        super().__init__(len(pieces), width)
        self._spellings, count = spellings(pieces)
        self.register_buffer("characters", torch.empty_like(self._spellings), persistent=False)
        self.letters = nn.Parameter(torch.empty(count, recipe.width))
        normal_(self.letters, 1.0)
        self.reset_buffers()
        self.convolution = nn.Conv1d(recipe.width, recipe.channels, recipe.window, padding=recipe.window // 2)
        self.project = nn.Linear(recipe.channels, width, bias=False)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        normal_(self.letters, 1.0)

    def reset_buffers(self) -> None:
        self.characters.copy_(self._spellings)

    def forward(self, tokens: Tensor) -> Tensor:
        """(…,) → (…, D)."""
        spelled = self.characters[tokens.reshape(-1)]  # (N, L)
        letters = nn.functional.embedding(spelled, self.letters) * (spelled != 0)[..., None]  # (N, L, C)
        windows = torch.relu(self.convolution(letters.transpose(1, 2)))  # (N, channels, L)
        looks = self.tap("spelling", self.project(windows.amax(-1)), "W max f(characters)")
        return super().forward(tokens) + looks.view(*tokens.shape, -1)
