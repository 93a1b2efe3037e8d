"""The interface of tasks: a model that reads texts and makes predictions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
import torch

from sightline.data.collate import ExampleIds, Ids
from sightline.data.target_lengths import TargetLengths
from sightline.decoding.engine import decode
from sightline.decoding.ensemble import Ensemble, mean_log_probabilities, model_limits
from sightline.decoding.next_words import NextWord
from sightline.decoding.phrases import PhraseCutter, decode_with_phrases
from sightline.decoding.request import Hypothesis, Request
from sightline.layers.losses import Loss
from sightline.recipe import Decoding, Evaluation, Recipe
from sightline.registry import entries
from sightline.tasks.losses import batch_loss
from sightline.text.copying import ReadSource
from sightline.text.tokenizer import END, SPECIALS, UNK
from sightline.text.vocabulary import Vocabulary

Probabilities = dict[str, float]  # of each label, most probable first


@dataclass(frozen=True)
class Prediction:
    """One output for one input."""

    text: str
    score: float
    tokens: list[int]
    truncated: bool = False  # ended by a length limit where the model preferred another token
    unknown: int = 0  # number of <unk> tokens


@dataclass(frozen=True)
class Score:
    """The likelihood of a given output."""

    log_probability: float  # log p (natural logarithm), with the end mark of a text
    tokens: int  # number of predictions it sums

    @property
    def nll(self) -> float:
        """−log p."""
        return -self.log_probability

    @property
    def perplexity(self) -> float:
        """exp(−log p / tokens); 1 for an output of no tokens."""
        return math.exp(self.nll / self.tokens) if self.tokens else 1.0


class TooLong(ValueError):
    """A text has more tokens than a model can take."""

    def __init__(self, name: str, tokens: int, longest: int) -> None:
        super().__init__(
            f"{name} has {tokens:,} tokens and this model takes {longest:,} (its learned positions); shorten or split "
            f"it"
        )
        self.tokens, self.longest = tokens, longest

    def named(self, name: str) -> TooLong:
        """The same error for a text with another name."""
        return TooLong(name, self.tokens, self.longest)


def build_task(
    recipe: Recipe,
    vocabulary: Vocabulary,
    model: Any,
    device: torch.device,
    dictionary: Mapping[str, str] | None = None,
    lengths: TargetLengths | None = None,
) -> Task:
    """The task of a recipe, with its model."""
    return task_class(recipe)(recipe, vocabulary, model, device, dictionary, lengths=lengths)


def task_class(recipe: Recipe) -> type[Task]:
    """The class that implements the task of a recipe."""
    spec = recipe.task_spec
    implementation: type[Task] = entries("task")[spec.variant or spec.name].load()
    return implementation


@dataclass(frozen=True)
class Task:
    """A trained model with its recipe and vocabulary: texts in, predictions out."""

    recipe: Recipe
    vocabulary: Vocabulary
    model: Any
    device: torch.device
    dictionary: Mapping[str, str] | None = None  # translations of unknown words
    members: tuple[Task, ...] = ()  # of an ensemble
    lengths: TargetLengths | None = None  # of the training text, from which limits of outputs are derived
    unit: ClassVar[str] = "line"  # name of an input text in errors
    loss: ClassVar[Callable[..., Loss]] = staticmethod(batch_loss)  # of a training batch (tasks/losses.py)

    @classmethod
    def collate(cls, recipe: Recipe) -> Callable[[Ids, Ids], ExampleIds]:
        """The function that turns sources and targets into model inputs and labels (data/collate.py)."""
        raise NotImplementedError

    def longest_source(self) -> int | None:
        """The maximum number of source tokens; None without a limit."""
        if self.members:
            limits = [each.longest_source() for each in self.members]
            return min((limit for limit in limits if limit is not None), default=None)
        body = self.recipe.model.encoder or self.recipe.model.decoder
        longest = None if body is None else body.max_positions
        if longest is None:
            return None
        pooling = self.recipe.model.pooling
        two = pooling is not None and pooling.kind == "class"  # special tokens beside the text, or the target after it
        two |= self.recipe.task_spec.maps_text and self.recipe.model.encoder is None
        return longest - (2 if two else 1)

    def longest_output(self) -> int | None:
        """The maximum number of output tokens set by learned positions; None without a limit."""
        return min((longest - 1 for longest, _ in model_limits(self.search_model)), default=None)

    def encode(self, texts: Sequence[str], *, first: int = 0) -> list[list[int]]:
        """Token ids, truncated by data.clean.truncate_source; a text that is too long for the model is an error."""
        most = self.recipe.data.clean.truncate_source
        return self.checked([ids[:most] for ids in self.vocabulary.source.encode_many(list(texts))], first)

    def encode_requests(self, requests: Sequence[Request]) -> list[list[int]]:
        """The source ids of consecutive requests: their `source`, or their encoded text."""
        if requests and all(request.source is not None for request in requests):
            return [list(request.source or ()) for request in requests]
        return self.encode([each.text for each in requests], first=requests[0].number if requests else 0)

    def cut_short(self, texts: Sequence[str]) -> int:
        """The number of texts that data.clean.truncate_source truncates."""
        most = self.recipe.data.clean.truncate_source
        if most is None:
            return 0
        return sum(len(ids) > most for ids in self.vocabulary.source.encode_many(list(texts)))

    def unknown(self, text: str) -> list[str]:
        """The pieces of a text that are not in the vocabulary."""
        return self.vocabulary.source.unknown(text)

    def ended_short(self, answers: Sequence[Sequence[Prediction]]) -> int:
        """The number of best outputs that end at the last learned position."""
        return 0

    def checked(self, encoded: list[list[int]], first: int) -> list[list[int]]:
        """The same ids; raise `TooLong` for a text that is too long for the model."""
        longest = self.longest_source()
        for number, tokens in enumerate(encoded, first + 1):
            if longest is not None and len(tokens) > longest:
                raise TooLong(f"{self.unit} {number}", len(tokens), longest)
        return encoded

    def predict(
        self, requests: Sequence[Request], on_done: Callable[[int], None] | None = None
    ) -> list[list[Prediction]]:
        """The best outputs for each request, best first; `on_done` is called with the number of finished requests."""
        raise NotImplementedError

    def generate(self, text: str) -> list[int]:
        """The token ids of the best output for one text, without the text itself."""
        return self.predict([Request(text, self.recipe.decoding)])[0][0].tokens

    def read_source(self, text: str) -> ReadSource:
        """A source as the model reads it."""
        return ReadSource(self.encode([text])[0], [])

    def special_tokens(self) -> tuple[list[int], list[int]]:
        """The ids of the special tokens before and after a text that the model reads, as in training."""
        source = self.collate(self.recipe)([np.ones(1, np.int64)], [np.ones(1, np.int64)]).source
        if source is None:  # one sequence: source, end mark, target
            return [], [END]
        before, after = ([] if mark is None else [mark] for mark in (source.before, source.behind))
        return before, after

    def score(self, texts: Sequence[str], targets: Sequence[str] | None) -> list[Score]:
        """log p(target | text) of each pair; log p(text) for a language model."""
        raise NotImplementedError

    # --- what only some tasks do; their TaskSpec says which -----------------------------------------------------------

    def score_outputs(self, texts: Sequence[str], targets: Sequence[str], *, first: int = 0) -> list[list[Prediction]]:
        """`maps_text`: targets as predictions, with log p(target | text) as score."""
        raise NotImplementedError

    def unknown_in(self, target: str, text: str) -> list[str]:
        """`maps_text`: the pieces of a target that the model cannot write for this text."""
        raise NotImplementedError

    def continuations(self, text: str, options: Decoding) -> list[Prediction]:
        """`continues_text`: continuations of a text (or of ""), best first."""
        raise NotImplementedError

    def stream(self, text: str, options: Decoding, write: Callable[[str], None]) -> Prediction:
        """`continues_text`: continue a text, and write each token as it is chosen."""
        raise NotImplementedError

    def next_words(self, text: str, count: int) -> list[NextWord]:
        """`continues_text`: the most probable next words after a text, most probable first."""
        raise NotImplementedError

    def text_losses(self, stream: np.ndarray) -> np.ndarray:
        """`continues_text`: −log p of each token of a text (ids with end marks)."""
        raise NotImplementedError

    def probabilities(self, texts: Sequence[str]) -> list[Probabilities] | list[list[Probabilities]]:
        """`labels`: the probability of every label for each text, or for each word of each text."""
        raise NotImplementedError

    @property
    def labels(self) -> list[str]:
        """`labels`: those of the vocabulary."""
        target = self.vocabulary.target
        return [target.decode([number]) for number in range(len(SPECIALS), target.size)]

    # --- decoding ---------------------------------------------------------------------------------------------------

    @cached_property
    def search_model(self) -> Any:
        """The model that a search decodes with."""
        return self.model

    @property
    def banned_marks(self) -> int:
        """The number of noise marks in the vocabulary that outputs must not contain."""
        return len(self.vocabulary.target.marks)

    @cached_property
    def _cutter(self) -> PhraseCutter:
        return PhraseCutter(self.vocabulary.target)

    def encoded(
        self,
        requests: Sequence[Request],
        sources: Sequence[Sequence[int]] | None,
        prefixes: Sequence[Sequence[int]] | None = None,
    ) -> list[Request]:
        """The requests with token ids and what a search needs to know about the model."""
        encoded, limits, marks = [], model_limits(self.search_model), self.banned_marks
        for index, request in enumerate(requests):
            phrases = request.phrases is not None or bool(request.options.forbid)
            new = request.replace(
                source=None if sources is None else sources[index],
                prefix=() if prefixes is None else prefixes[index],
                scored=request.scored or request.options.mbr is not None,
                marks=marks,
                known=self.vocabulary.target.size if phrases else None,
                lengths=self.lengths,
            )
            new.check_min_length(limits)
            encoded.append(new)
        return encoded

    def search(self, requests: Sequence[Request]) -> Callable[..., list[list[Hypothesis]]]:
        """The function that decodes these encoded requests."""
        if any(request.known is not None for request in requests):
            return partial(decode_with_phrases, self.search_model, cutter=self._cutter, device=self.device)
        return partial(decode, self.search_model, device=self.device)

    def _mean(self, logs: Sequence[np.ndarray]) -> np.ndarray:
        """The log-probabilities of an ensemble from those of its members."""
        together: Ensemble = self.model
        mean = mean_log_probabilities([torch.from_numpy(each) for each in logs], together.weights, together.mean)
        result: np.ndarray = mean.numpy()
        return result


def tokens_at_once(requests: Sequence[Request], device: torch.device) -> int:
    """The maximum number of padded tokens in a batch."""
    options = requests[0].options if requests else Decoding()
    return options.tokens_at_once(device.type)


def one_line(text: str) -> str:
    """Replace line breaks, so that an output is one line."""
    return text.replace("\r", " ").replace("\n", " ")


def as_predictions(
    texts: Sequence[str],
    hypotheses: Sequence[Hypothesis],
    options: Decoding,
    unknown: Sequence[int] | None = None,
    *,
    section: Evaluation | None = None,
) -> list[Prediction]:
    """Predictions from hypotheses: all, or with `mbr` those of least risk, scored by expected utility.

    `unknown` counts <unk> in each text (default: in its tokens). `section` configures the utility.
    """
    unknown = [each.tokens.count(UNK) for each in hypotheses] if unknown is None else unknown
    if options.mbr is None:
        parts = zip(texts, hypotheses, unknown, strict=True)
        return [Prediction(text, each.score, each.tokens, each.truncated, count) for text, each, count in parts]
    from sightline.decoding.mbr import UTILITIES, least_risk

    logs = [each.log_probability for each in hypotheses] if options.mbr.weights == "probability" else None
    order = least_risk(texts, partial(UTILITIES[options.mbr.utility], section=section), logs)
    best = [(texts[place], worth, hypotheses[place], unknown[place]) for place, worth in order[: options.nbest]]
    return [Prediction(text, worth, each.tokens, each.truncated, count) for text, worth, each, count in best]
