"""A model whose distributions are written down, so that what a search must find is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from sightline.layers.layout import Layout

_NOTHING = -1  # before the first token of a sentence that joined later
Rule = Callable[[int, list[int]], dict[int, float]]  # first source token, words so far → probability of each next word


@dataclass(frozen=True)
class ScriptState:
    """Which sentence each row is (its first source token), and what it has said."""

    sentences: Tensor  # (B, W)
    said: Tensor  # (B, W, t)

    def select(self, parents: Tensor) -> ScriptState:
        past = parents[:, :, None].expand(-1, -1, self.said.shape[2])
        return ScriptState(self.sentences.gather(1, parents), self.said.gather(1, past))

    def keep(self, sentences: Tensor) -> ScriptState:
        return ScriptState(self.sentences[sentences], self.said[sentences])

    def append(self, other: ScriptState) -> ScriptState:
        longest = max(self.said.shape[2], other.said.shape[2])
        said = [pad(each.said, (longest - each.said.shape[2], 0), value=_NOTHING) for each in (self, other)]
        return ScriptState(torch.cat([self.sentences, other.sentences]), torch.cat(said))


class Script(nn.Module):
    """Follows a rule, and counts the rows it is asked about at each step."""

    cross_attention_paths: tuple[str, ...] = ()
    longest: int | None = None

    def __init__(self, rule: Rule, vocabulary: int = 12) -> None:
        super().__init__()
        self.rule, self.vocabulary = rule, vocabulary
        self.rows: list[int] = []

    def encode(self, source: Tensor, layout: Layout) -> Tensor:
        return source[:, :1]

    def begin(self, memory: Tensor) -> ScriptState:
        return ScriptState(memory, memory.new_zeros(len(memory), 1, 0))

    def advance(self, tokens: Tensor, state: ScriptState, layout: Layout | None = None) -> tuple[Tensor, ScriptState]:
        shape = state.sentences.shape
        self.rows.append(len(tokens))
        said = torch.cat([state.said, tokens.view(*shape, 1)], dim=2)
        features = torch.full((len(tokens), 1, self.vocabulary), float("-inf"))
        pairs = zip(state.sentences.flatten().tolist(), said.flatten(0, 1).tolist(), strict=True)
        for row, (sentence, words) in enumerate(pairs):
            for word, probability in self.rule(sentence, [w for w in words if w != _NOTHING][1:]).items():
                features[row, 0, word] = torch.tensor(probability).log()
        return features, replace(state, said=said)

    def logits(self, features: Tensor) -> Tensor:
        return features.clone()


@pytest.fixture
def script() -> type[Script]:
    return Script
