"""Token embeddings, the output layer, and token vectors from characters (dos Santos and Zadrozny 2014)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sightline.layers.linear import Projection
from sightline.layers.tap import TapModule
from sightline.recipe.model import CharacterCNNConfig


class Embedding(TapModule):
    """E[token] · √D: rows start at N(0, 1/D), so that what enters the network has variance one."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size, width) * width**-0.5)
        self.scale = width**0.5

    def forward(self, tokens: Tensor) -> Tensor:
        """(…,) → (…, D)."""
        rows = self.tap("rows", nn.functional.embedding(tokens, self.weight), "E[token]")
        return self.tap("vectors", rows * self.scale, "E[token] √D", ["rows"])


class Output(Projection):
    """Features to scores of every word: f Wᵀ + b; W may be the embedding's (Press and Wolf 2017)."""

    def __init__(self, size: int, width: int, tied: Embedding | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size, width) * width**-0.5) if tied is None else tied.weight
        self.bias = nn.Parameter(torch.zeros(size))


_LONGEST = 16  # characters looked at; of longer tokens the first and the last, where prefixes and endings are


def spellings(pieces: Sequence[str]) -> tuple[Tensor, int]:
    """Each piece as numbers of its characters (V, ≤ 16), 0 behind shorter ones; and how many numbers there are."""
    half = _LONGEST // 2
    cut = [piece if len(piece) <= _LONGEST else piece[:half] + piece[-half:] for piece in pieces]
    numbers = {character: number for number, character in enumerate(sorted(set("".join(cut))), 1)}
    longest = max((len(piece) for piece in cut), default=1)
    rows = [[numbers[character] for character in piece] + [0] * (longest - len(piece)) for piece in cut]
    return torch.tensor(rows), len(numbers) + 1


class SpelledEmbedding(Embedding):
    """E[token] · √D + W max_i f(window i of its characters): what a token is, and what it looks like.

    Tokens seen once, or never, still have endings and prefixes they share with others.
    """

    characters: Tensor

    def __init__(self, recipe: CharacterCNNConfig, pieces: Sequence[str], width: int) -> None:
        super().__init__(len(pieces), width)
        table, count = spellings(pieces)
        self.register_buffer("characters", table, persistent=False)  # made again from the tokenizer
        self.letters = nn.Parameter(torch.randn(count, recipe.width))
        self.convolution = nn.Conv1d(recipe.width, recipe.channels, recipe.window, padding=recipe.window // 2)
        self.project = nn.Linear(recipe.channels, width, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """(…,) → (…, D)."""
        spelled = self.characters[tokens.reshape(-1)]  # (N, L)
        letters = nn.functional.embedding(spelled, self.letters) * (spelled != 0)[..., None]  # (N, L, C)
        windows = torch.relu(self.convolution(letters.transpose(1, 2)))  # (N, channels, L)
        looks = self.tap("spelling", self.project(windows.amax(-1)), "W max f(characters)")
        return super().forward(tokens) + looks.view(*tokens.shape, -1)
