"""Language modelling of sentences: each line is an example of its own, from <s> to </s>."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sightline.data.collate import ExampleIds, Ids, sentence_ids
from sightline.decoding.scoring import token_losses
from sightline.recipe import Recipe
from sightline.tasks.language_model import LanguageModelTask
from sightline.text.tokenizer import END


class SentenceModelTask(LanguageModelTask):
    """log p(w_1 … w_n) = Σ_t log p(w_t | <s> w_1 … w_{t−1}) + log p(</s> | <s> w_1 … w_n)."""

    @classmethod
    def collate(cls, recipe: Recipe) -> Callable[[Ids, Ids], ExampleIds]:
        return sentence_ids

    @property
    def begins(self) -> bool:
        """False: outputs begin with <s>, as the training sentences do."""
        return False

    def own_losses(self, stream: np.ndarray) -> np.ndarray:
        sentences = [each[:-1].tolist() for each in np.split(stream, np.flatnonzero(stream == END) + 1)[:-1]]
        return np.concatenate(token_losses(self.model, [[]] * len(sentences), sentences, device=self.device))
