"""Classification with several labels: a set of labels for a whole text, each of which is there or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from sightline.data.collate import ExampleIds, Ids, label_set_ids
from sightline.decoding.request import Request
from sightline.layers.losses import Loss
from sightline.recipe import Recipe
from sightline.tasks.base import Prediction, Score, tokens_at_once
from sightline.tasks.classification import ClassificationTask, refuse_constraints
from sightline.tasks.losses import label_set_loss
from sightline.text.tokenizer import SPECIALS
from sightline.text.vocabulary import between_spaces

_THRESHOLD = 0.5


class MultiLabelTask(ClassificationTask):
    """p(label | text) = σ(w_label · f + b_label) for each label; an output lists those with p ≥ ½."""

    loss: ClassVar[Callable[..., Loss]] = staticmethod(label_set_loss)

    @classmethod
    def collate(cls, recipe: Recipe) -> Callable[[Ids, Ids], ExampleIds]:
        single = super().collate(recipe)
        return lambda sources, targets: label_set_ids(single(sources, targets))

    def predict(
        self, requests: Sequence[Request], on_done: Callable[[int], None] | None = None
    ) -> list[list[Prediction]]:
        refuse_constraints(requests)
        predictions = [[Prediction("", 0.0, [])] for _ in requests]
        sources = [np.asarray(ids, np.int64) for ids in self.encode_requests(requests)]
        filled = [number for number, ids in enumerate(sources) if len(ids)]
        logs = self._logs([sources[number] for number in filled], tokens_at_once(requests, self.device))
        for number, row in zip(filled, logs, strict=True):
            chosen = np.flatnonzero(row >= np.log(_THRESHOLD)).tolist()
            text = " ".join(map(self._label, chosen))
            predictions[number] = [Prediction(text, _log_probability(row, chosen), [k + len(SPECIALS) for k in chosen])]
        return predictions

    def score(self, texts: Sequence[str], targets: Sequence[str] | None) -> list[Score]:
        assert targets is not None
        sets = [self._numbers(between_spaces(labels)) for labels in targets]
        logs = self._text_logs(texts, self._tokens)
        return [Score(_log_probability(row, own), len(row)) for row, own in zip(logs, sets, strict=True)]

    def _normalized(self, logits: Tensor) -> Tensor:
        return torch.nn.functional.logsigmoid(logits)

    def _mean(self, logs: Sequence[np.ndarray]) -> np.ndarray:
        if self.model.mean == "logs":
            raise ValueError("several labels for each text need the mean of probabilities, not of logs")
        return super()._mean(logs)


def _log_probability(row: np.ndarray, chosen: Sequence[int]) -> float:
    """log p of a set of labels: Σ log p of those in it, and log(1 − p) of the others; `row` (labels,) has log p."""
    inside = np.zeros(len(row), bool)
    inside[list(chosen)] = True
    outside = np.log1p(-np.minimum(np.exp(row.astype(np.float64)), 1 - 1e-12))
    return float(np.where(inside, row, outside).sum())
