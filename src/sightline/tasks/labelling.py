"""Answers that are labels: one for a whole text, or one for each word."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch

from sightline.data.batches import padded_batch
from sightline.data.collate import sides_of
from sightline.decoding.padding import length_batches
from sightline.recipe import Decoding
from sightline.tasks.answerer import Answerer, Asked, Prediction, Score
from sightline.terminal import plural
from sightline.text.labels import between_spaces, label_id
from sightline.text.tokenizer import SPECIALS

Probabilities = dict[str, float]  # of each label, likeliest first


class Classifying(Answerer):
    """The label of each text; with n-best, the likeliest labels. A text without tokens has an empty output."""

    def _answers(self, asked: Asked, options: Decoding) -> list[list[Prediction]]:
        _refuse(asked)
        sources = [np.asarray(ids, np.int64) for ids in self.encode(asked.texts, first=asked.first)]
        found = [[Prediction("", 0.0, [])] for _ in sources]
        filled = [number for number, ids in enumerate(sources) if len(ids)]
        logs = self._logs([sources[number] for number in filled], options.tokens_at_once(self.device.type))
        for number, row in zip(filled, logs, strict=True):
            best = np.argsort(-row, kind="stable")[: options.nbest]
            found[number] = [Prediction(self._label(int(k)), float(row[k]), [int(k) + len(SPECIALS)]) for k in best]
        return found

    def _text_logs(self, texts: Sequence[str], options: Decoding, *, first: int = 0) -> list[np.ndarray]:
        """(labels,) log-probabilities for each text."""
        sources = [np.asarray(ids, np.int64) for ids in self.encode(texts, first=first)]
        return self._logs(sources, options.tokens_at_once(self.device.type))

    def probabilities(self, texts: Sequence[str]) -> list[Probabilities]:
        """The probability of every label, for each text."""
        return [self._named(logs) for logs in self._text_logs(texts, self.recipe.decoding)]

    def score(self, texts: Sequence[str], targets: Sequence[str] | None) -> list[Score]:
        assert targets is not None
        numbers = self._numbers(targets)
        logs = self._text_logs(texts, self.recipe.decoding)
        return [Score(float(own[number]), 1) for own, number in zip(logs, numbers, strict=True)]

    def _numbers(self, labels: Sequence[str]) -> list[int]:
        """Labels as columns of `_logs`; one that is not there is an error that names it."""
        known = {name: label_id(self.vocabulary.target, name) - len(SPECIALS) for name in dict.fromkeys(labels)}
        return [known[name] for name in labels]

    def _named(self, logs: np.ndarray) -> Probabilities:
        """Log-probabilities (labels,) by label, likeliest first."""
        return {self._label(int(k)): float(np.exp(logs[k])) for k in np.argsort(-logs, kind="stable")}

    def _label(self, number: int) -> str:
        return self.vocabulary.target.decode([number + len(SPECIALS)])

    def _logs(self, sources: Sequence[np.ndarray], tokens: int) -> list[np.ndarray]:
        """Log-probabilities of the labels, where the model answers: (labels,), or (S, labels) for a tagger."""
        if self.members:
            every = [each._logs(sources, tokens) for each in self.members if isinstance(each, Classifying)]
            return [self._mean(parts) for parts in zip(*every, strict=True)]
        show = sides_of(self.recipe)
        found: list[np.ndarray] = [np.empty(0)] * len(sources)
        lengths = [len(source) + 2 for source in sources]
        for indices in length_batches(lengths, tokens):
            taken = [sources[index] for index in indices]
            batch = padded_batch(show(taken, [np.ones_like(source) for source in taken]), np.asarray(indices))
            batch = batch.to(self.device) if self.device.type != "cpu" else batch
            with torch.inference_mode():
                features = self.model(batch.source, batch.source_layout)
                logits = self.model.logits(features).float()[..., len(SPECIALS) :]  # a special is no answer
                logs = logits.log_softmax(-1).cpu().numpy()
            for place, index in enumerate(indices):
                found[index] = logs[place]
        return found


class Tagging(Classifying):
    """A label for every word of each text, whatever the words are made of. An empty text gives an empty output."""

    unit = "sentence"  # which in a tagged file has a line for each word

    def _answers(self, asked: Asked, options: Decoding) -> list[list[Prediction]]:
        _refuse(asked)
        found = []
        for own in self._text_logs(asked.texts, options, first=asked.first):
            best = own.argmax(-1)
            labels = [self._label(int(k)) for k in best]
            total = float(own[np.arange(len(best)), best].sum())
            found.append([Prediction(" ".join(labels), total, (best + len(SPECIALS)).tolist())])
        return found

    def _text_logs(self, texts: Sequence[str], options: Decoding, *, first: int = 0) -> list[np.ndarray]:
        """(words, labels) log-probabilities for each text, each word's where its first piece is."""
        words = self.vocabulary.encode_words([" ".join(between_spaces(text)) for text in texts])
        flat = self.checked([[piece for word in sentence for piece in word] for sentence in words], first)
        filled = [number for number, ids in enumerate(flat) if ids]
        logs = self._logs([np.asarray(flat[n]) for n in filled], options.tokens_at_once(self.device.type))
        found = [np.empty((0, self.vocabulary.target.size - len(SPECIALS)), np.float32)] * len(texts)
        for number, own in zip(filled, logs, strict=True):
            found[number] = own[[0, *accumulate(len(word) for word in words[number])][:-1]]
        return found

    def word_probabilities(self, texts: Sequence[str]) -> list[list[Probabilities]]:
        """The probability of every label, for each word of each text."""
        return [[self._named(word) for word in own] for own in self._text_logs(texts, self.recipe.decoding)]

    def score(self, texts: Sequence[str], targets: Sequence[str] | None) -> list[Score]:
        assert targets is not None
        found = []
        logs = self._text_logs(texts, self.recipe.decoding)
        for number, (own, target) in enumerate(zip(logs, targets, strict=True)):
            tags = self._numbers(between_spaces(target))
            if len(tags) != len(own):
                raise ValueError(
                    f"targets[{number}] has {plural(len(tags), 'label')} for {plural(len(own), 'word')}; give one for "
                    f"each word"
                )
            found.append(Score(float(own[np.arange(len(tags)), tags].sum()), len(tags)))
        return found


def _refuse(asked: Asked) -> None:
    if asked.prefixes is not None:
        raise ValueError("labels have no beginnings to force; leave prefixes out")
    if asked.phrases is not None:
        raise ValueError("labels contain no phrases; leave them out")
