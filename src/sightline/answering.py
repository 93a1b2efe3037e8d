"""Texts in, answers out, whatever the task: translations, continuations, labels, a tag for each word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from sightline.decoding.generate import generate, length_batches
from sightline.recipe import Decoding, Recipe, TaskName
from sightline.recipe_model import TransformerBody
from sightline.text.tokenizer import SPECIALS, Vocabulary
from sightline.training.batches import padded_batch
from sightline.training.sides import sides_of


@dataclass(frozen=True)
class Prediction:
    """One output for one input."""

    text: str
    score: float
    tokens: list[int]


@dataclass(frozen=True)
class Answerer:
    """A model that is asked in texts."""

    recipe: Recipe
    vocabulary: Vocabulary
    model: Any
    device: torch.device

    def longest_source(self) -> int | None:
        """The most tokens a source may have, where the model has a limit."""
        body = self.recipe.model.encoder or self.recipe.model.decoder
        if isinstance(body, TransformerBody) and body.positions.kind == "learned":
            return body.positions.longest - 1
        return None

    def encode(self, texts: Sequence[str], *, first: int = 0) -> list[list[int]]:
        """Token ids; a text longer than the model can take is an error that names it."""
        return self._checked(self.vocabulary.source.encode_many(list(texts)), first)

    def _checked(self, encoded: list[list[int]], first: int) -> list[list[int]]:
        longest = self.longest_source()
        for number, tokens in enumerate(encoded, first + 1):
            if longest is not None and len(tokens) > longest:
                raise ValueError(
                    f"line {number} has {len(tokens)} tokens and this model takes {longest} (its learned positions); "
                    f"shorten or split it"
                )
        return encoded

    def answer(
        self, texts: Sequence[str], options: Decoding, *, prefixes: Sequence[str] | None = None, first: int = 0
    ) -> list[list[Prediction]]:
        """For each text its best outputs, best first; `first` is the number of the first text in the whole input."""
        raise NotImplementedError


class Translator(Answerer):
    """The target of each source. An empty text gives one empty output."""

    def answer(
        self, texts: Sequence[str], options: Decoding, *, prefixes: Sequence[str] | None = None, first: int = 0
    ) -> list[list[Prediction]]:
        sources = self.encode(texts, first=first)
        forced = None if prefixes is None else self.vocabulary.target.encode_many(list(prefixes))
        found = generate(self.model, sources, options, device=self.device, prefixes=forced, first=first)
        texts_out = iter(self.vocabulary.target.decode_many([guess.tokens for guesses in found for guess in guesses]))
        return [[Prediction(one_line(next(texts_out)), g.score, g.tokens) for g in guesses] for guesses in found]


class Continuer(Answerer):
    """Each text with what may follow it."""

    def answer(
        self, texts: Sequence[str], options: Decoding, *, prefixes: Sequence[str] | None = None, first: int = 0
    ) -> list[list[Prediction]]:
        if prefixes is not None:
            raise ValueError("a language model goes on after the text itself; put the beginning there, not in prefixes")
        prompts = self.encode(texts, first=first)
        found = generate(self.model, None, options, device=self.device, prefixes=prompts, first=first)
        texts_out = iter(self.vocabulary.target.decode_many([guess.tokens for guesses in found for guess in guesses]))
        return [[Prediction(next(texts_out), g.score, g.tokens) for g in guesses] for guesses in found]


class Classifying(Answerer):
    """The label of each text; with n-best, the likeliest labels."""

    def answer(
        self, texts: Sequence[str], options: Decoding, *, prefixes: Sequence[str] | None = None, first: int = 0
    ) -> list[list[Prediction]]:
        _refuse_prefixes(prefixes)
        logs = self._logs([np.asarray(ids, np.int64) for ids in self.encode(texts, first=first)], options.batch_tokens)
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

    def answer(
        self, texts: Sequence[str], options: Decoding, *, prefixes: Sequence[str] | None = None, first: int = 0
    ) -> list[list[Prediction]]:
        _refuse_prefixes(prefixes)
        words = self.vocabulary.encode_words(_evenly(texts))
        flat = self._checked([[piece for word in sentence for piece in word] for sentence in words], first)
        filled = [number for number, ids in enumerate(flat) if ids]
        logs = dict(zip(filled, self._logs([np.asarray(flat[n]) for n in filled], options.batch_tokens), strict=True))
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


ANSWERERS: dict[TaskName, type[Answerer]] = {
    "seq2seq": Translator,
    "language-model": Continuer,
    "classify": Classifying,
    "tag": Tagging,
}


def build_answerer(recipe: Recipe, vocabulary: Vocabulary, model: Any, device: torch.device) -> Answerer:
    """Who answers for a model."""
    return ANSWERERS[recipe.task](recipe, vocabulary, model, device)


def one_line(text: str) -> str:
    """An output never breaks the line-by-line contract, whatever characters the vocabulary holds."""
    return text.replace("\r", " ").replace("\n", " ")


def _evenly(texts: Sequence[str]) -> list[str]:
    """Words apart by single spaces, as taggers count them."""
    return [" ".join(word for word in text.split(" ") if word) for text in texts]


def _refuse_prefixes(prefixes: Sequence[str] | None) -> None:
    if prefixes is not None:
        raise ValueError("labels have no beginnings to force; leave prefixes out")
