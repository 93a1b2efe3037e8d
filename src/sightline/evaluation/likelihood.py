"""Metrics that ask the model itself: the perplexity of references, of running text, and of text under noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from sightline.decoding.ensemble import Ensemble
from sightline.evaluation.masked_lm import DenoisingScores, measure_denoising, score_denoising
from sightline.evaluation.measurement import Measurement
from sightline.evaluation.perplexity import TextLikelihood, measure_perplexity, measure_text, text_likelihood
from sightline.evaluation.test_set import TestSet
from sightline.recipe import MetricName
from sightline.tasks.base import Task
from sightline.text.tokenizer import END

Scores = TypeVar("Scores", TextLikelihood, DenoisingScores)


class ModelScores:
    """What a task's model thinks of test sets; all metrics of the last one are computed from the same losses."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._last: tuple[TestSet, TextLikelihood | DenoisingScores] | None = None

    def measure(self, metric: MetricName, test: TestSet) -> Measurement:
        """A metric that looks at the references alone."""
        if self.task.recipe.task_spec.continues_text:
            return measure_text(metric, self.text(test))
        if self.task.recipe.data.noise is not None:
            return measure_denoising(metric, self.denoising(test), self.task.recipe)
        return self._perplexity(test)

    def tokens(self, test: TestSet, metrics: Sequence[MetricName]) -> tuple[int | None, int]:
        """How many tokens the model is scored on, where that is running text, and how many are unknown to it."""
        recipe = self.task.recipe
        if recipe.task_spec.continues_text:
            text = self.text(test)
            return len(text.stream), text.unknown
        if recipe.data.noise is not None:
            return int(self.denoising(test).labels.sum()), 0
        if not recipe.task_spec.maps_text or "perplexity" not in metrics:
            return None, 0
        pairs = test.source_reference_pairs()
        return None, sum(len(self.task.unknown_in(target, source)) for source, target in pairs)

    def text(self, test: TestSet) -> TextLikelihood:
        """−log p of each token of a test set of running text."""
        task = self.task
        return self._of_last(
            test, lambda: text_likelihood(_documents(test), task.vocabulary.target, task.text_losses), TextLikelihood
        )

    def denoising(self, test: TestSet) -> DenoisingScores:
        """−log p of what noise hid, in each window of a test set."""
        task = self.task
        if isinstance(task.model, Ensemble):
            raise ValueError("ensembles do not support masked-LM or denoising evaluation; evaluate one run")

        def score() -> DenoisingScores:
            stream = np.concatenate([[*ids, END] for ids in task.vocabulary.target.encode_many(_documents(test))])
            return score_denoising(task.model, task.recipe, task.vocabulary, stream, task.device)

        return self._of_last(test, score, DenoisingScores)

    def _of_last(self, test: TestSet, score: Callable[[], Scores], kind: type[Scores]) -> Scores:
        if self._last is None or self._last[0] is not test:
            self._last = (test, score())
        scores = self._last[1]
        assert isinstance(scores, kind)
        return scores

    def _perplexity(self, test: TestSet) -> Measurement:
        """Of every reference, given its source."""
        pairs = test.source_reference_pairs()
        scored = self.task.score_outputs([source for source, _ in pairs], [target for _, target in pairs])
        losses = np.array([-output.score for (output,) in scored])
        tokens = [len(output.tokens) + 1 for (output,) in scored]
        return measure_perplexity(losses, tokens, copied=self.task.recipe.copies_unknown)


def _documents(test: TestSet) -> list[str]:
    return [document for documents in test.references for document in documents]
