"""Answers that are labels: one for a whole text, or one for each word."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch

from sightline.answering.answerer import Answerer, Asked, Prediction
from sightline.decoding.padding import length_batches
from sightline.recipe import Decoding
from sightline.text.labels import between_spaces
from sightline.text.tokenizer import SPECIALS
from sightline.training.batches import padded_batch
from sightline.training.sides import sides_of


class Classifying(Answerer):
    """The label of each text; with n-best, the likeliest labels."""

    def _answers(self, asked: Asked, options: Decoding) -> list[list[Prediction]]:
        _refuse(asked)
        sources = [np.asarray(ids, np.int64) for ids in self.encode(asked.texts, first=asked.first)]
        logs = self._logs(sources, options.tokens_at_once(self.device.type))
        count = min(options.nbest, len(logs[0])) if len(logs) else 0
        found = []
        for row in logs:
            best = np.argsort(-row, kind="stable")[:count]
            found.append([Prediction(self._label(int(k)), float(row[k]), [int(k) + len(SPECIALS)]) for k in best])
        return found

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
            batch = batch.to(self.device) if self.device.type == "cuda" else batch
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
        words = self.vocabulary.encode_words([" ".join(between_spaces(text)) for text in asked.texts])
        flat = self.checked([[piece for word in sentence for piece in word] for sentence in words], asked.first)
        filled = [number for number, ids in enumerate(flat) if ids]
        asked_for = self._logs([np.asarray(flat[n]) for n in filled], options.tokens_at_once(self.device.type))
        logs = dict(zip(filled, asked_for, strict=True))
        found = []
        for number, sentence in enumerate(words):
            if number not in logs:
                found.append([Prediction("", 0.0, [])])
                continue
            heads = [0, *accumulate(len(word) for word in sentence)][:-1]  # the first piece of each word
            own = logs[number][heads]  # (words, labels)
            best = own.argmax(-1)
            labels = [self._label(int(k)) for k in best]
            total = float(own[np.arange(len(best)), best].sum())
            found.append([Prediction(" ".join(labels), total, (best + len(SPECIALS)).tolist())])
        return found


def _refuse(asked: Asked) -> None:
    if asked.prefixes is not None:
        raise ValueError("labels have no beginnings to force; leave prefixes out")
    if asked.phrases is not None:
        raise ValueError("labels contain no phrases; leave them out")
