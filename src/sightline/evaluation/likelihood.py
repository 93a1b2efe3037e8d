"""Evaluation of a model on test sets: metrics of outputs and of the likelihood of references."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from sightline.decoding.ensemble import Ensemble
from sightline.evaluation.labels import Confusion, count_unknown_labels
from sightline.evaluation.masked_lm import DenoisingScores, measure_denoising, score_denoising
from sightline.evaluation.measurement import Measurement
from sightline.evaluation.metrics import measure
from sightline.evaluation.perplexity import TextLikelihood, measure_perplexity, measure_text, text_likelihood
from sightline.evaluation.test_set import Report, TestSet
from sightline.progress import Progress
from sightline.recipe import Decoding, Evaluation, MetricName, Recipe
from sightline.tasks.base import Prediction, Task
from sightline.tasks.incomplete import Incomplete
from sightline.terminal import plural
from sightline.text.tokenizer import END

Scores = TypeVar("Scores", TextLikelihood, DenoisingScores)


class ModelScores:
    """Scores of a task's model; all likelihood metrics of the last test set share its losses."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._last: tuple[TestSet, TextLikelihood | DenoisingScores] | None = None

    def report(
        self,
        test: TestSet,
        answers: Sequence[Sequence[Prediction]],
        recipe: Recipe,
        options: Decoding,
        progress: Progress | None = None,
    ) -> Report:
        """Score every metric of a recipe on a test set; `answers` are the decoded outputs, empty if none are needed."""
        section, spec = recipe.evaluation, recipe.task_spec
        outputs, incomplete = [guesses[0].text for guesses in answers], Incomplete.of(answers)
        scores = []
        for number, name in enumerate(section.metrics):
            if progress is not None:
                progress(f"scoring {test.name} by {name}", number, len(section.metrics))
            measured = self.measure(name, test, outputs, section, lowercase=section.lowercase)
            scores.append(measured.score(bootstrap=section.bootstrap))
        tokens, unknown = self.tokens(test, section.metrics)
        notes = incomplete.notes(self.task, options)
        if spec.continues_text and (never := int(np.isinf(self.text(test).nll).sum())):
            notes.append(f"{never:,} of {plural(tokens or 0, 'token')} have probability 0, so perplexity is infinite")
        confusion, unlearned = None, 0
        if spec.labels != "none":
            of_words, lowercase = spec.labels != "one", section.lowercase
            if spec.labels != "several":
                confuse = Confusion.of_tokens if of_words else Confusion.of
                confusion = confuse(outputs, test.references, lowercase=lowercase)
            unlearned = count_unknown_labels(test.references, self.task.labels, of_words=of_words, lowercase=lowercase)
        return Report(
            on=test.name,
            sentences=len(test.sources),
            scores=scores,
            outputs=outputs,
            tokens=tokens,
            unknown=unknown,
            confusion=confusion,
            unlearned=unlearned,
            cut=self.task.cut_short(test.sources),
            validated=recipe.validated(test.name, test.pairs),
            incomplete=incomplete.to_dict(),
            notes=notes,
        )

    def measure(
        self, metric: MetricName, test: TestSet, outputs: Sequence[str], section: Evaluation, *, lowercase: bool
    ) -> Measurement:
        """One metric on a test set, of outputs or of the likelihood of references."""
        if not (self.task.recipe.of_text or metric == "perplexity"):
            return measure(metric, outputs, test.references, test.sources, lowercase=lowercase, section=section)
        if self.task.recipe.task_spec.continues_text:
            return measure_text(metric, self.text(test))
        if self.task.recipe.data.noise is not None:
            return measure_denoising(metric, self.denoising(test), self.task.recipe)
        return self._perplexity(test)

    def tokens(self, test: TestSet, metrics: Sequence[MetricName]) -> tuple[int | None, int]:
        """The number of scored tokens (None except for running text), and of unknown tokens."""
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
        """−log p of the corrupted tokens in each window of a test set."""
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
        """Perplexity of every reference given its source."""
        pairs = test.source_reference_pairs()
        scored = self.task.score_outputs([source for source, _ in pairs], [target for _, target in pairs])
        losses = np.array([-output.score for (output,) in scored])
        tokens = [len(output.tokens) + 1 for (output,) in scored]
        return measure_perplexity(losses, tokens, copied=self.task.recipe.copies_unknown)


def _documents(test: TestSet) -> list[str]:
    return [document for documents in test.references for document in documents]
