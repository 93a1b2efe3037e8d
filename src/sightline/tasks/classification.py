"""Classification: one label for a whole text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from sightline.data.collate import ExampleIds, Ids, class_token_ids, classification_ids, padded_batch
from sightline.decoding.request import Request, length_batches
from sightline.recipe import Recipe
from sightline.tasks.base import Prediction, Probabilities, Score, Task, tokens_at_once
from sightline.text.tokenizer import SPECIALS
from sightline.text.vocabulary import label_id


class ClassificationTask(Task):
    """The label of each text; with n-best, the most probable labels. A text without tokens has an empty output."""

    @classmethod
    def collate(cls, recipe: Recipe) -> Callable[[Ids, Ids], ExampleIds]:
        assert recipe.model.pooling is not None
        return class_token_ids if recipe.model.pooling.kind == "class" else classification_ids

    def predict(
        self, requests: Sequence[Request], on_done: Callable[[int], None] | None = None
    ) -> list[list[Prediction]]:
        refuse_constraints(requests)
        predictions = [[Prediction("", 0.0, [])] for _ in requests]
        sources = [np.asarray(ids, np.int64) for ids in self.encode_requests(requests)]
        filled = [number for number, ids in enumerate(sources) if len(ids)]
        logs = self._logs([sources[number] for number in filled], tokens_at_once(requests, self.device))
        for number, row in zip(filled, logs, strict=True):
            best = np.argsort(-row, kind="stable")[: requests[number].options.nbest].tolist()
            predictions[number] = [Prediction(self._label(k), float(row[k]), [k + len(SPECIALS)]) for k in best]
        return predictions

    def _text_logs(self, texts: Sequence[str], tokens: int, *, first: int = 0) -> list[np.ndarray]:
        """(labels,) log-probabilities for each text, in batches of at most `tokens` tokens."""
        return self._logs([np.asarray(ids, np.int64) for ids in self.encode(texts, first=first)], tokens)

    @property
    def _tokens(self) -> int:
        return self.recipe.decoding.tokens_at_once(self.device.type)

    def probabilities(self, texts: Sequence[str]) -> list[Probabilities]:
        """The probability of every label, for each text."""
        return [self._named(logs) for logs in self._text_logs(texts, self._tokens)]

    def score(self, texts: Sequence[str], targets: Sequence[str] | None) -> list[Score]:
        assert targets is not None
        numbers = self._numbers(targets)
        logs = self._text_logs(texts, self._tokens)
        return [Score(float(own[number]), 1) for own, number in zip(logs, numbers, strict=True)]

    def _numbers(self, labels: Sequence[str]) -> list[int]:
        """Labels as columns of `_logs`; an unknown label is an error."""
        known = {name: label_id(self.vocabulary.target, name) - len(SPECIALS) for name in dict.fromkeys(labels)}
        return [known[name] for name in labels]

    def _named(self, logs: np.ndarray) -> Probabilities:
        """Probabilities by label, most probable first, from log-probabilities (labels,)."""
        return {self._label(int(k)): float(np.exp(logs[k])) for k in np.argsort(-logs, kind="stable")}

    def _label(self, number: int) -> str:
        return self.vocabulary.target.decode([number + len(SPECIALS)])

    def _logs(self, sources: Sequence[np.ndarray], tokens: int) -> list[np.ndarray]:
        """Log-probabilities of the labels: (labels,), or (S, labels) for a tagger."""
        if self.members:
            every = [each._logs(sources, tokens) for each in self.members if isinstance(each, ClassificationTask)]
            return [self._mean(parts) for parts in zip(*every, strict=True)]
        collate = self.collate(self.recipe)
        results: list[np.ndarray] = [np.empty(0)] * len(sources)
        lengths = [len(source) + 2 for source in sources]
        for indices in length_batches(lengths, tokens):
            taken = [sources[index] for index in indices]
            batch = padded_batch(collate(taken, [np.ones_like(source) for source in taken]), np.asarray(indices))
            batch = batch.to(self.device) if self.device.type != "cpu" else batch
            with torch.inference_mode():
                features = self.model(batch.source, batch.source_layout)
                logits = self.model.logits(features).float()[..., len(SPECIALS) :]  # without special tokens
                logs = self._normalized(logits).cpu().numpy()
            for place, index in enumerate(indices):
                results[index] = logs[place]
        return results

    def _normalized(self, logits: Tensor) -> Tensor:
        """Log-probabilities (…, labels) of logits."""
        return logits.log_softmax(-1)


def refuse_constraints(requests: Sequence[Request]) -> None:
    """Refuse prefixes and phrases: labels are chosen, not written."""
    if any(request.prefix_text is not None for request in requests):
        raise ValueError("classification and tagging do not support prefixes; leave them out")
    if any(request.phrases is not None for request in requests):
        raise ValueError("labels contain no phrases; leave them out")
