"""Answers of a language model: the text, and what may follow it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sightline.data.collate import ExampleIds, Ids, language_model_ids
from sightline.decoding.request import Hypothesis, Request
from sightline.decoding.scoring import stream_losses, token_losses
from sightline.layers.layout import Layout
from sightline.models.ngram import CountedModel
from sightline.models.protocol import Memory
from sightline.recipe import Decoding, Recipe
from sightline.recipe.recipe import carries
from sightline.recipe.sources import PlainSource
from sightline.tasks.base import Prediction, Score, Task, as_predictions
from sightline.text.tokenizer import END, START, UNK


class LanguageModelTask(Task):
    """Each text with what may follow it; where it learned from many documents, the text is the beginning of one.

    An empty text has an empty output, as in every task; `continuations` and `stream` begin from nothing, too.
    """

    @classmethod
    def collate(cls, recipe: Recipe) -> Callable[[Ids, Ids], ExampleIds]:
        return language_model_ids

    def longest_source(self) -> int | None:
        longest = super().longest_source()
        return longest if longest is None or not self.begins else longest - 1  # the end mark before it

    def ended_short(self, answers: Sequence[Sequence[Prediction]]) -> int:
        """Those that went on up to the last learned position; the text they go on after counts."""
        longest = self.longest_source()
        return 0 if longest is None else sum(len(guesses[0].tokens) >= longest for guesses in answers)

    @property
    def begins(self) -> bool:
        """Whether there were beginnings to learn; a count of n-grams has them behind its start mark.

        The models of an ensemble come with their own.
        """
        if self.members:
            return False
        return not self._whole and not isinstance(self.model, CountedModel)

    @property
    def _whole(self) -> bool:
        """Whether each training file was one text, so that the ends of documents were hardly ever seen."""
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
        found = [[Prediction("", 0.0, [])] for _ in requests]
        continued = [requests[number] for number in filled]
        encoded = self.encoded(continued, None, [prompts[number] for number in filled])
        hypotheses = self.search(encoded)(encoded, on_done=on_done) if encoded else []
        for number, request, own in zip(filled, encoded, hypotheses, strict=True):
            found[number] = self._predictions(request, own)
        return found

    def continuations(self, text: str, options: Decoding) -> list[Prediction]:
        """What may follow a text, or nothing: the best outputs, best first."""
        requests = self.encoded([Request(text, options)], None, self.encode([text]))
        (hypotheses,) = self.search(requests)(requests)
        return self._predictions(requests[0], hypotheses)

    def generate(self, text: str) -> list[int]:
        (prompt,) = self.encode([text])
        return self.continuations(text, self.recipe.decoding)[0].tokens[len(prompt) :]

    def special_tokens(self) -> tuple[list[int], list[int]]:
        if not self.begins:
            return [START], []
        return ([] if carries(self.recipe) else [START]) + [END], []

    def _predictions(self, request: Request, hypotheses: Sequence[Hypothesis]) -> list[Prediction]:
        target, prompt = self.vocabulary.target, request.prefix
        if UNK in prompt:  # which is shown as it was given
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
        """Go on after one text and hand over what is new as soon as it is known, the text itself first.

        All that is handed over, one after the other, is the text of the prediction, whatever a token is: a piece of a
        word, or of a character.
        """
        if options.mbr is not None or options.forbid:
            what = "mbr" if options.mbr is not None else "forbid"
            raise ValueError(f"decoding.{what} looks at whole outputs, so nothing can be told before their end")
        options = options.model_copy(update={"nbest": 1})  # which of several is best is known only at their end
        pieces = self.vocabulary.target.surfaces(text)
        growing = _Growing(lambda tokens: self.vocabulary.target.decode_with(tokens, pieces), write)
        requests = self.encoded([Request(text, options, on_token=growing.add)], None, self.encode([text]))
        ((output, *_),) = self.search(requests)(requests)
        growing.show(output.tokens, whole=True)
        unknown = output.tokens[len(requests[0].prefix) :].count(UNK)
        return Prediction(growing.decode(output.tokens), output.score, output.tokens, output.truncated, unknown)


class _FromBeginning(nn.Module):
    """A language model that writes from the beginning of a text on, not from its midst.

    Windows of the training text begin anywhere, so a start mark says nothing of what comes (and a model that reads on
    from window to window never sees one); it is an end mark that stands before the beginning of a document. So the
    start mark of a search is read as one, behind the start mark of a window where the model knows that.
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
        found: tuple[Tensor, Any] = self.model.advance(tokens.masked_fill(tokens == START, END), state, layout)
        return found

    def logits(self, features: Tensor) -> Tensor:
        scores: Tensor = self.model.logits(features)
        return scores


class _Growing:
    """Tokens that come one by one, as the text that each adds.

    A token need not have a text of its own (the space before it is not written at the start; a character may be made
    of several), so it is always all tokens that are decoded, and only what is new is handed on.
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
            text = text.rstrip("\ufffd")  # a character of which not all bytes have come
        if len(text) > self.shown:
            self.write(text[self.shown :])
            self.shown = len(text)
