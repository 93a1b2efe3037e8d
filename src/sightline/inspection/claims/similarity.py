"""Self-attention by similarity, and with projections: does "bank" attend to "river"?

    simplified:  α_ij = softmax_j(x_i·x_j),                 y_i = Σ_j α_ij x_j
    projected:   α_ij = softmax_j(W_q x_i · W_k x_j / √D),  y_i = Σ_j α_ij W_v x_j

The task: one of four cue words says which of two meanings the last word of the sentence, "bank", has. The vectors of
words are random and fixed, so no two words are similar. W_q, W_k, W_v and a classifier of y_bank are trained for some
seconds; for simplified attention the classifier alone can be trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from sightline.inspection.claims.table import Claim, ClaimTable, matrix_table

FILLERS = ("the", "of", "a", "near", "by", "is", "we", "went", "to", "old")
CUES = {"river": 0, "water": 0, "money": 1, "loan": 1}  # word → meaning of "bank"
WORDS = (*FILLERS, *CUES, "bank")
SENTENCE = "the old river is near the bank"


@dataclass(frozen=True)
class Attended:
    """One kind of self-attention after training: its weights (T, T) on the sentence, and its accuracy."""

    weights: Tensor
    accuracy: float


class BankClassifier(nn.Module):
    """The meaning of the last word from one layer of self-attention."""

    def __init__(self, width: int, *, projected: bool) -> None:
        super().__init__()
        self.projected = projected
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.output = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x (B, T, D) → logits of the two meanings (B, 2), weights (B, T, T)."""
        query, key, value = (self.query(x), self.key(x), self.value(x)) if self.projected else (x, x, x)
        scores = query @ key.mT  # (B, T, T)
        weights = torch.softmax(scores / x.shape[-1] ** 0.5 if self.projected else scores, -1)
        return self.output((weights @ value)[:, -1]), weights


def vectors(width: int, generator: torch.Generator) -> Tensor:
    """A random vector of length 2 for each word (V, D)."""
    table = torch.randn(len(WORDS), width, generator=generator)
    return 2 * nn.functional.normalize(table, dim=1)


def sentences(count: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sentences (N, T) of fillers with one cue that end with "bank", and meanings (N)."""
    tokens = torch.randint(0, len(FILLERS), (count, length), generator=generator)
    cues = torch.randint(0, len(CUES), (count,), generator=generator)
    places = torch.randint(0, length - 1, (count,), generator=generator)
    tokens[torch.arange(count), places] = len(FILLERS) + cues
    tokens[:, -1] = len(WORDS) - 1
    return tokens, torch.tensor(list(CUES.values()))[cues]


def train(
    projected: bool, table: Tensor, sentence: Sequence[str], *, steps: int, generator: torch.Generator
) -> Attended:
    """Train on sentences as long as this one, test on others."""
    torch.manual_seed(int(generator.initial_seed()))
    model = BankClassifier(table.shape[1], projected=projected)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        tokens, meanings = sentences(64, len(sentence), generator)
        loss = nn.functional.cross_entropy(model(table[tokens])[0], meanings)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        tokens, meanings = sentences(1_000, len(sentence), generator)
        accuracy = float((model(table[tokens])[0].argmax(-1) == meanings).double().mean())
        ids = torch.tensor([[WORDS.index(word) for word in sentence]])
        return Attended(model(table[ids])[1][0], accuracy)


def similarity_claim(sentence: str = SENTENCE, *, width: int = 16, steps: int = 300, seed: int = 1) -> Claim:
    """The weights of every word in a sentence, with both kinds of self-attention."""
    words = sentence.split()
    unknown = [word for word in words if word not in WORDS]
    if unknown or not words or words[-1] != "bank":
        problem = f"{unknown[0]!r} has no vector" if unknown else f"{sentence!r} does not end with bank"
        raise ValueError(f"{problem}; write a sentence of {' '.join(WORDS)} that ends with bank")
    table = vectors(width, torch.Generator().manual_seed(seed))
    found = {
        name: train(name == "projected", table, words, steps=steps, generator=torch.Generator().manual_seed(seed))
        for name in ("simplified", "projected")
    }
    rows = [[name, *each.weights[-1].tolist(), each.accuracy] for name, each in found.items()]
    tables = [ClaimTable('weights of "bank"', ["", *words, "accuracy"], rows, fixed=True)]
    formulas = {"simplified": "softmax(x_i·x_j)", "projected": "softmax(W_q x_i · W_k x_j / √D)"}
    for name, each in found.items():
        tables.append(matrix_table(f"{name}: {formulas[name]}, rows attend to columns", each.weights, words, words))
    notes = [
        f"Word vectors: {width} random features of length 2, seed {seed}, fixed: x_i·x_i = 4 is the largest product, "
        "so a word attends to itself.",
        f"Projections and classifier: {steps} steps of training on 64 generated sentences; accuracy on 1,000 others.",
    ]

    def draw(path: Path) -> None:
        from sightline.plots.claims import draw_matrices

        draw_matrices({name: each.weights.numpy() for name, each in found.items()}, words, path)

    claim = '"bank" should attend to "river": similarity of vectors does not do it, learned projections do'
    return Claim(claim, tables, notes, {"accuracy": {name: each.accuracy for name, each in found.items()}}, draw)
