"""Tagging: one label for each word of a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np

from sightline.data.collate import ExampleIds, Ids, tagging_ids
from sightline.decoding.request import Request
from sightline.recipe import Recipe
from sightline.tasks.base import Prediction, Probabilities, Score, tokens_at_once
from sightline.tasks.classification import ClassificationTask, refuse_constraints
from sightline.terminal import plural
from sightline.text.tokenizer import SPECIALS
from sightline.text.vocabulary import between_spaces


class TaggingTask(ClassificationTask):
    """A label for every word of each text. An empty text gives an empty output."""

    unit = "sentence"  # a tagged file has a line for each word

    @classmethod
    def collate(cls, recipe: Recipe) -> Callable[[Ids, Ids], ExampleIds]:
        return tagging_ids

    def predict(
        self, requests: Sequence[Request], on_done: Callable[[int], None] | None = None
    ) -> list[list[Prediction]]:
        refuse_constraints(requests)
        predictions = []
        first = requests[0].number if requests else 0
        texts, tokens = [request.text for request in requests], tokens_at_once(requests, self.device)
        for own in self._text_logs(texts, tokens, first=first):
            best = own.argmax(-1)
            labels = [self._label(int(k)) for k in best]
            total = float(own[np.arange(len(best)), best].sum())
            predictions.append([Prediction(" ".join(labels), total, (best + len(SPECIALS)).tolist())])
        return predictions

    def _text_logs(self, texts: Sequence[str], tokens: int, *, first: int = 0) -> list[np.ndarray]:
        """(words, labels) log-probabilities for each text, read at the first piece of each word."""
        words = self.vocabulary.encode_words([" ".join(between_spaces(text)) for text in texts])
        flat = self.checked([[piece for word in sentence for piece in word] for sentence in words], first)
        filled = [number for number, ids in enumerate(flat) if ids]
        logs = self._logs([np.asarray(flat[n]) for n in filled], tokens)
        results = [np.empty((0, self.vocabulary.target.size - len(SPECIALS)), np.float32)] * len(texts)
        for number, own in zip(filled, logs, strict=True):
            results[number] = own[[0, *accumulate(len(word) for word in words[number])][:-1]]
        return results

    def probabilities(self, texts: Sequence[str]) -> list[list[Probabilities]]:  # type: ignore[override]
        """The probability of every label, for each word of each text."""
        return [[self._named(word) for word in own] for own in self._text_logs(texts, self._tokens)]

    def score(self, texts: Sequence[str], targets: Sequence[str] | None) -> list[Score]:
        assert targets is not None
        results = []
        logs = self._text_logs(texts, self._tokens)
        for number, (own, target) in enumerate(zip(logs, targets, strict=True)):
            tags = self._numbers(between_spaces(target))
            if len(tags) != len(own):
                raise ValueError(
                    f"targets[{number}] has {plural(len(tags), 'label')} for {plural(len(own), 'word')}; give one for "
                    f"each word"
                )
            results.append(Score(float(own[np.arange(len(tags)), tags].sum()), len(tags)))
        return results
