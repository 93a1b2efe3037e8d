"""A model that is asked in texts: what every task's has."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch

from sightline.data.target_lengths import TargetLengths
from sightline.decoding.batch import Hypothesis, Told, Watch
from sightline.decoding.ensemble import Ensemble, mean_log_probabilities, rooms
from sightline.decoding.generate import generate
from sightline.decoding.phrases import PhraseCutter, Phrases, generate_with_phrases
from sightline.decoding.request import Request, check_least
from sightline.layers.losses import Loss
from sightline.recipe import Decoding, Evaluation, Recipe
from sightline.registry import entries
from sightline.tasks.losses import batch_loss
from sightline.text.tokenizer import UNK
from sightline.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class Prediction:
    """One output for one input."""

    text: str
    score: float
    tokens: list[int]
    truncated: bool = False  # a length limit ended it, where the model would have written on
    unknown: int = 0  # how often it has <unk>, where the model meant a word that its vocabulary does not have


@dataclass(frozen=True)
class Score:
    """How likely a model finds an output that is given to it."""

    log_probability: float  # log p, natural logarithm; of a written output with its end mark
    tokens: int  # how many predictions that is the sum of

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
        """The same of a text that has another name than its number."""
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
    """The class that a recipe's task names as its implementation."""
    spec = recipe.task_spec
    implementation: type[Task] = entries("task")[spec.variant or spec.name].load()
    return implementation


@dataclass(frozen=True)
class Asked:
    """Texts to answer, and what is settled of their answers beforehand."""

    texts: Sequence[str]
    prefixes: Sequence[str] | None = None  # what each begins with
    first: int = 0  # the number of the first text in the whole input
    phrases: Sequence[Phrases] | None = None  # what each must or must not contain
    scored: bool = True  # whether scores are wanted too; a greedy search is faster without
    watch: Watch | None = None  # is told of every step of the beam, where there is but one text
    told: Told | None = None  # is told how many more texts are done, while others are not


@dataclass(frozen=True)
class Task:
    """A model that is asked in texts."""

    recipe: Recipe
    vocabulary: Vocabulary
    model: Any
    device: torch.device
    dictionary: Mapping[str, str] | None = None  # of a translator that replaces unknown words by its entries
    members: tuple[Task, ...] = ()  # of an ensemble
    lengths: TargetLengths | None = None  # of the training text, from which limits of outputs are derived
    unit: ClassVar[str] = "line"  # what errors call a text of the input
    loss: ClassVar[Callable[..., Loss]] = staticmethod(batch_loss)  # of a training batch: see tasks/losses.py

    def longest_source(self) -> int | None:
        """The most tokens a source may have, where the model has a limit."""
        if self.members:
            limits = [each.longest_source() for each in self.members]
            return min((limit for limit in limits if limit is not None), default=None)
        body = self.recipe.model.encoder or self.recipe.model.decoder
        longest = None if body is None else body.max_positions
        if longest is None:
            return None
        pooling = self.recipe.model.pooling
        two = pooling is not None and pooling.kind == "class"  # marks beside the text, or what is written behind it
        two |= self.recipe.task_spec.maps_text and self.recipe.model.encoder is None
        return longest - (2 if two else 1)

    def longest_output(self) -> int | None:
        """The most tokens of any output, where learned positions set a limit."""
        return min((longest - 1 for longest, _ in rooms(self.writer())), default=None)

    def encode(self, texts: Sequence[str], *, first: int = 0) -> list[list[int]]:
        """Token ids, cut as the recipe's sources are; one longer than the model can take is an error that names it."""
        most = self.recipe.data.clean.truncate_source  # None: nothing is cut
        return self.checked([ids[:most] for ids in self.vocabulary.source.encode_many(list(texts))], first)

    def cut_short(self, texts: Sequence[str]) -> int:
        """How many texts lose their end to data.clean.truncate_source."""
        most = self.recipe.data.clean.truncate_source
        if most is None:
            return 0
        return sum(len(ids) > most for ids in self.vocabulary.source.encode_many(list(texts)))

    def unknown(self, text: str) -> list[str]:
        """The pieces of a text that are read as unknown."""
        return self.vocabulary.source.unknown(text)

    def ended_short(self, answers: Sequence[Sequence[Prediction]]) -> int:
        """How many of the best answers end because the model has no more room, not because it wants to."""
        return 0

    def checked(self, encoded: list[list[int]], first: int) -> list[list[int]]:
        """The same ids; one text with more than the model can take is an error that names it."""
        longest = self.longest_source()
        for number, tokens in enumerate(encoded, first + 1):
            if longest is not None and len(tokens) > longest:
                raise TooLong(f"{self.unit} {number}", len(tokens), longest)
        return encoded

    def answer(
        self,
        texts: Sequence[str],
        options: Decoding,
        *,
        prefixes: Sequence[str] | None = None,
        first: int = 0,
        phrases: Sequence[Phrases] | None = None,
        scored: bool = True,
        watch: Watch | None = None,
        told: Told | None = None,
    ) -> list[list[Prediction]]:
        """For each text its best outputs, best first; `first` is the number of the first text in the whole input.

        `phrases` say for each text what its output must or must not contain. Not `scored`, scores may be NaN. `watch`
        is told of every step of the beam that is searched for a single text, `told` how many more texts are done.
        """
        return self._answers(Asked(texts, prefixes, first, phrases, scored, watch, told), options)

    def _answers(self, asked: Asked, options: Decoding) -> list[list[Prediction]]:
        raise NotImplementedError

    def score(self, texts: Sequence[str], targets: Sequence[str] | None) -> list[Score]:
        """log p of each target given its text; a language model is given texts alone."""
        raise NotImplementedError

    def writer(self) -> Any:
        """The model as a search is given it."""
        return self.model

    @property
    def unsaid(self) -> int:
        """How many marks of noise its vocabulary has that no output may hold."""
        return len(self.vocabulary.target.marks)

    @cached_property
    def _cutter(self) -> PhraseCutter:
        return PhraseCutter(self.vocabulary.target)

    def _search(
        self,
        sources: Sequence[Sequence[int]] | None,
        options: Decoding,
        asked: Asked,
        prefixes: Sequence[Sequence[int]] | None = None,
        numbers: Sequence[int] | None = None,
    ) -> list[list[Hypothesis]]:
        """What the model writes, to choose from. `numbers`: which of the texts are searched for; by default all."""
        scored = asked.scored or options.mbr is not None
        known = self.vocabulary.target.size if asked.phrases is not None or options.forbid else None
        request = Request(sources, prefixes, marks=self.unsaid, scored=scored, known=known, lengths=self.lengths)
        numbers = range(len(request)) if numbers is None else numbers
        request = replace(request, numbers=[asked.first + number for number in numbers])
        writer = self.writer()
        check_least(request, options, rooms(writer))
        options = options.model_copy(update={"nbest": options.candidates})
        how: Any = {"device": self.device, "watch": asked.watch, "told": asked.told}
        if asked.phrases is None and not options.forbid:
            return generate(writer, request, options, **how)
        return generate_with_phrases(writer, request, options, self._cutter, asked.phrases, **how)

    def _mean(self, logs: Sequence[np.ndarray]) -> np.ndarray:
        """The log-probabilities of an ensemble, from those of its members."""
        together: Ensemble = self.model
        mean = mean_log_probabilities([torch.from_numpy(each) for each in logs], together.weights, together.mean)
        found: np.ndarray = mean.numpy()
        return found


def one_line(text: str) -> str:
    """An output never breaks the line-by-line contract, whatever characters the vocabulary holds."""
    return text.replace("\r", " ").replace("\n", " ")


def chosen(
    texts: Sequence[str],
    found: Sequence[Hypothesis],
    options: Decoding,
    unknown: Sequence[int] | None = None,
    *,
    section: Evaluation | None = None,
) -> list[Prediction]:
    """The outputs asked for: all there are, or those of the least risk, with their expected utility as score.

    `unknown` is how often each text has <unk>; by default as often as its tokens. `section` says how the utility cuts
    texts.
    """
    unknown = [each.tokens.count(UNK) for each in found] if unknown is None else unknown
    if options.mbr is None:
        parts = zip(texts, found, unknown, strict=True)
        return [Prediction(text, each.score, each.tokens, each.truncated, count) for text, each, count in parts]
    from sightline.decoding.risk import least_risk

    weighed = options.mbr.weights == "probability"
    logs = [each.log_probability for each in found] if weighed else None
    order = least_risk(texts, options.mbr.utility, logs, section)
    best = [(texts[place], worth, found[place], unknown[place]) for place, worth in order[: options.nbest]]
    return [Prediction(text, worth, each.tokens, each.truncated, count) for text, worth, each, count in best]
