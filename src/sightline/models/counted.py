"""An n-gram model as a language model like the others: asked by the same search, scored by the same measure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sightline.layers.layout import Layout
from sightline.models.ngram import NgramModel
from sightline.models.protocol import join_rows

_NONE = -1


@dataclass(frozen=True)
class NgramState:
    """The last tokens of each hypothesis."""

    recent: Tensor  # (B, W, t), −1 before the first token of those that have fewer

    def select(self, parents: Tensor) -> NgramState:
        return NgramState(self.recent.gather(1, parents[:, :, None].expand(-1, -1, self.recent.shape[2])))

    def keep(self, sentences: Tensor) -> NgramState:
        return NgramState(self.recent.index_select(0, sentences))

    def append(self, other: NgramState) -> NgramState:
        both = join_rows(self.recent.flip(2), other.recent.flip(2), dim=2, fill=_NONE)  # padded before the first token
        return NgramState(both.flip(2))


class CountedModel(nn.Module):
    """p(text) from counts. Its features are log-probabilities already; it has no weights to learn by gradients."""

    def __init__(self, counts: NgramModel | None = None) -> None:
        super().__init__()
        self.counts = counts
        self.cross_attention_paths: tuple[str, ...] = ()
        self.longest: int | None = None

    @property
    def trained(self) -> NgramModel:
        """The counts, once there are some."""
        if self.counts is None:
            raise ValueError("this n-gram model has not been counted yet; train it first")
        return self.counts

    def encode(self, source: Tensor, layout: Layout) -> Tensor:
        return source

    def begin(self, memory: Tensor) -> NgramState:
        return self.blank(len(memory), memory.device)

    def blank(self, batch: int, device: torch.device | str = "cpu") -> NgramState:
        """Before the first token of so many texts, on the device where a search will say who goes on."""
        return NgramState(torch.empty(batch, 1, 0, dtype=torch.int64, device=device))

    def advance(self, tokens: Tensor, state: NgramState, layout: Layout | None = None) -> tuple[Tensor, NgramState]:
        """Tokens (B·W, T) → log-probabilities (B·W, T, V) of what follows each."""
        sentences, width = state.recent.shape[:2]
        past = torch.cat([state.recent.flatten(0, 1), tokens], dim=1)
        order, ends = self.trained.order, range(state.recent.shape[2] + 1, past.shape[1] + 1)
        said = past.cpu().numpy()
        rows = [
            [
                self.trained.distribution(recent[recent != _NONE])
                for recent in (row[max(0, end - order) : end] for end in ends)
            ]
            for row in said
        ]
        with np.errstate(divide="ignore"):
            features = torch.from_numpy(np.log(np.asarray(rows, np.float32))).to(tokens.device)
        recent = past[:, -order:].unflatten(0, (sentences, width))
        return features, NgramState(recent)

    def logits(self, features: Tensor) -> Tensor:
        return features

    def forward(self, *_: Any) -> Tensor:
        raise TypeError("an n-gram model is counted, not trained by gradients")
