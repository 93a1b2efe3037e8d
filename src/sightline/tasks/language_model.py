"""Language modelling: a text and its continuation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sightline.data.collate import ExampleIds, Ids, language_model_ids
from sightline.decoding.next_words import NextWord, next_words
from sightline.decoding.request import Edges, Hypothesis, Request
from sightline.decoding.scoring import stream_losses, token_losses
from sightline.layers.layout import Layout
from sightline.models.ngram import CountedModel
from sightline.models.protocol import Memory
from sightline.recipe import Decoding, Recipe
from sightline.recipe.recipe import carries
from sightline.recipe.sources import PlainSource
from sightline.recipe.tokenizer import WHOLE_WORDS
from sightline.tasks.base import Prediction, Score, Task, as_predictions
from sightline.text.tokenizer import END, START, UNK


class LanguageModelTask(Task):
    """Each text with its continuation. For models of many documents, the text is the beginning of a document.

    An empty text has an empty output, as in every task; `continuations` and `stream` also start from an empty text.
    """

    @classmethod
    def collate(cls, recipe: Recipe) -> Callable[[Ids, Ids], ExampleIds]:
        return language_model_ids

    def longest_source(self) -> int | None:
        longest = super().longest_source()
        return longest if longest is None or not self.begins else longest - 1  # the end mark before it

    def ended_short(self, answers: Sequence[Sequence[Prediction]]) -> int:
        """The outputs that reach the last learned position, counting the prompt."""
        longest = self.longest_source()
        return 0 if longest is None else sum(len(guesses[0].tokens) >= longest for guesses in answers)

    @property
    def begins(self) -> bool:
        """True if outputs are decoded as beginnings of documents; n-gram models have a start mark of their own.

        Each model of an ensemble is wrapped on its own.
        """
        if self.members:
            return False
        return not self._whole and not isinstance(self.model, CountedModel)

    @property
    def _whole(self) -> bool:
        """True if each training file was one document, so that document ends were hardly ever seen."""
        return all(isinstance(source, PlainSource) and source.document == "file" for source in self.recipe.data.train)

    @cached_property
    def search_model(self) -> Any:
        return _FromBeginning(self.model, start=not carries(self.recipe)) if self.begins else self.model

    def predict(
        self, requests: Sequence[Request], on_done: Callable[[int], None] | None = None
    ) -> list[list[Prediction]]:
        if any(request.prefix_text is not None for request in requests):
            raise ValueError("a language model goes on after the text itself; put the beginning there, not in prefixes")
        prompts = self.encode_requests(requests)
        filled = [number for number, prompt in enumerate(prompts) if prompt]
        results = [[Prediction("", 0.0, [])] for _ in requests]
        continued = [requests[number] for number in filled]
        encoded = self.encoded(continued, None, [prompts[number] for number in filled])
        hypotheses = self.search(encoded)(encoded, on_done=on_done) if encoded else []
        for number, request, own in zip(filled, encoded, hypotheses, strict=True):
            results[number] = self._predictions(request, own)
        return results

    def continuations(self, text: str, options: Decoding) -> list[Prediction]:
        """Continuations of a text (or of ""), best first."""
        requests = self.encoded([Request(text, options)], None, self.encode([text]))
        (hypotheses,) = self.search(requests)(requests)
        return self._predictions(requests[0], hypotheses)

    def generate(self, text: str) -> list[int]:
        (prompt,) = self.encode([text])
        return self.continuations(text, self.recipe.decoding)[0].tokens[len(prompt) :]

    def next_words(self, text: str, count: int) -> list[NextWord]:
        (prompt,) = self.encode([text.rstrip(" ")])
        whole = self.recipe.tokenizer.kind in WHOLE_WORDS
        edges = Edges.none(self.vocabulary.target.size) if whole else self._cutter.edges
        return next_words(self.search_model, self.vocabulary.target, edges, prompt, count, device=self.device)

    def special_tokens(self) -> tuple[list[int], list[int]]:
        if not self.begins:
            return [START], []
        return ([] if carries(self.recipe) else [START]) + [END], []

    def _predictions(self, request: Request, hypotheses: Sequence[Hypothesis]) -> list[Prediction]:
        target, prompt = self.vocabulary.target, request.prefix
        if UNK in prompt:  # shown as in the prompt
            pieces = target.surfaces(request.text)
            texts = [target.decode_with(each.tokens, pieces) for each in hypotheses]
        else:
            texts = target.decode_many([each.tokens for each in hypotheses])
        unknown = [each.tokens[len(prompt) :].count(UNK) for each in hypotheses]
        return as_predictions(texts, hypotheses, request.options, unknown, section=self.recipe.evaluation)

    def score(self, texts: Sequence[str], targets: Sequence[str] | None) -> list[Score]:
        """log p of each text as the beginning of a document; its end counts where the model learned where texts end."""
        ids = self.encode(texts)
        losses = token_losses(self.search_model, [[] for _ in ids], ids, device=self.device)
        own = [each[: len(tokens)] if self._whole else each for each, tokens in zip(losses, ids, strict=True)]
        return [Score(-float(each.sum()), len(each)) for each in own]

    def text_losses(self, stream: np.ndarray) -> np.ndarray:
        """−log p of each token of a text (ids with end marks)."""
        if self.members:
            if self.model.mean == "logs":
                raise ValueError("a text is measured by the mean of probabilities; make the ensemble with that mean")
            pairs = zip(self.members, self.model.weights, strict=True)
            losses = [np.log(w) - task.text_losses(stream) for task, w in pairs if isinstance(task, LanguageModelTask)]
            mean: np.ndarray = np.logaddexp.reduce(losses, axis=0)
            return -mean
        if isinstance(self.model, CountedModel):
            documents = np.split(stream, np.flatnonzero(stream == END) + 1)[:-1]
            return -np.concatenate(self.model.trained.log_probabilities([each[:-1] for each in documents]))
        return self.own_losses(stream)

    def own_losses(self, stream: np.ndarray) -> np.ndarray:
        """−log p of each token by a neural model: here of running text, in windows."""
        context = self.recipe.training.batches.context
        return stream_losses(
            self.model,
            stream,
            context=context,
            stride=max(1, context // 2),
            carry=carries(self.recipe),
            device=self.device,
        )

    def stream(self, text: str, options: Decoding, write: Callable[[str], None]) -> Prediction:
        """Continue a text, and write the text itself and then new text as tokens are chosen.

        The pieces written add up to the text of the prediction.
        """
        if options.mbr is not None or options.forbid:
            what = "mbr" if options.mbr is not None else "forbid"
            raise ValueError(f"decoding.{what} compares whole outputs, so tokens cannot be streamed")
        options = options.model_copy(update={"nbest": 1})  # the best of several is known only at their end
        pieces = self.vocabulary.target.surfaces(text)
        growing = _Growing(lambda tokens: self.vocabulary.target.decode_with(tokens, pieces), write)
        requests = self.encoded([Request(text, options, on_token=growing.add)], None, self.encode([text]))
        ((output, *_),) = self.search(requests)(requests)
        growing.show(output.tokens, whole=True)
        unknown = output.tokens[len(requests[0].prefix) :].count(UNK)
        return Prediction(growing.decode(output.tokens), output.score, output.tokens, output.truncated, unknown)


class _FromBeginning(nn.Module):
    """Wraps a language model so that it starts at the beginning of a document.

    Training windows start anywhere in the text, so START carries no information (and a model with carried state never
    sees it); documents begin after END. So START is read as END, after the START of a window if the model uses one.
    """

    def __init__(self, model: Any, *, start: bool) -> None:
        super().__init__()
        self.model, self.start = model, start
        self.cross_attention_paths: tuple[str, ...] = model.cross_attention_paths
        self.longest: int | None = None if model.longest is None else model.longest - start

    def encode(self, source: Tensor, layout: Layout) -> Memory:
        memory: Memory = self.model.encode(source, layout)
        return memory

    def begin(self, memory: Memory) -> Any:
        state = self.model.begin(memory)
        if self.start:
            marks = torch.full((len(memory.states), 1), START, device=memory.states.device)
            _, state = self.model.advance(marks, state)
        return state

    def advance(self, tokens: Tensor, state: Any, layout: Layout | None = None) -> tuple[Tensor, Any]:
        results: tuple[Tensor, Any] = self.model.advance(tokens.masked_fill(tokens == START, END), state, layout)
        return results

    def logits(self, features: Tensor) -> Tensor:
        scores: Tensor = self.model.logits(features)
        return scores


class _Growing:
    """Streams the text of tokens as they are added.

    A token may have no text of its own (a leading space is dropped; a character may take several tokens), so all tokens
    are decoded each time and only new text is written.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], write: Callable[[str], None]) -> None:
        self.decode, self.write = decode, write
        self.tokens: list[int] = []
        self.shown = 0

    def add(self, token: int, sample: int = 0) -> None:
        self.tokens.append(token)
        self.show(self.tokens)

    def show(self, tokens: Sequence[int], *, whole: bool = False) -> None:
        text = self.decode(tokens)
        if not whole:
            text = text.rstrip("\ufffd")  # an incomplete character
        if len(text) > self.shown:
            self.write(text[self.shown :])
            self.shown = len(text)
