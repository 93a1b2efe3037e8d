"""A model with written-down distributions, so that the correct outputs of a search are known."""

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
    """The sentence of each row (its first source token), and its words so far."""

    sentences: Tensor  # (B, W)
    words: Tensor  # (B, W, t)

    def select(self, parents: Tensor) -> ScriptState:
        past = parents[:, :, None].expand(-1, -1, self.words.shape[2])
        return ScriptState(self.sentences.gather(1, parents), self.words.gather(1, past))

    def keep(self, sentences: Tensor) -> ScriptState:
        return ScriptState(self.sentences[sentences], self.words[sentences])

    def append(self, other: ScriptState) -> ScriptState:
        longest = max(self.words.shape[2], other.words.shape[2])
        words = [pad(each.words, (longest - each.words.shape[2], 0), value=_NOTHING) for each in (self, other)]
        return ScriptState(torch.cat([self.sentences, other.sentences]), torch.cat(words))


class Script(nn.Module):
    """A model with the distributions of a rule; counts the rows of each step."""

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
        words = torch.cat([state.words, tokens.view(*shape, 1)], dim=2)
        features = torch.full((len(tokens), 1, self.vocabulary), float("-inf"))
        pairs = zip(state.sentences.flatten().tolist(), words.flatten(0, 1).tolist(), strict=True)
        for row, (sentence, row_words) in enumerate(pairs):
            for word, probability in self.rule(sentence, [w for w in row_words if w != _NOTHING][1:]).items():
                features[row, 0, word] = torch.tensor(probability).log()
        return features, replace(state, words=words)

    def logits(self, features: Tensor) -> Tensor:
        return features.clone()


@pytest.fixture
def script() -> type[Script]:
    return Script
