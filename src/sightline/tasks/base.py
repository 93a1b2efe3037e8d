"""What every task has: a model that reads texts and makes predictions, and notes on predictions that are incomplete."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
import torch

from sightline.data.collate import ExampleIds, Ids
from sightline.data.target_lengths import TargetLengths
from sightline.decoding.engine import decode
from sightline.decoding.ensemble import Ensemble, mean_log_probabilities, model_limits
from sightline.decoding.phrases import PhraseCutter, decode_with_phrases
from sightline.decoding.request import Hypothesis, Request
from sightline.layers.losses import Loss
from sightline.recipe import Decoding, Evaluation, Recipe
from sightline.recipe.tokenizer import WHOLE_WORDS
from sightline.registry import entries
from sightline.tasks.losses import batch_loss
from sightline.terminal import plural
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

    @classmethod
    def collate(cls, recipe: Recipe) -> Callable[[Ids, Ids], ExampleIds]:
        """The function that makes model inputs and labels of sources and targets (see data/collate.py)."""
        raise NotImplementedError

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
        return min((longest - 1 for longest, _ in model_limits(self.search_model)), default=None)

    def encode(self, texts: Sequence[str], *, first: int = 0) -> list[list[int]]:
        """Token ids, cut as the recipe's sources are; one longer than the model can take is an error that names it."""
        most = self.recipe.data.clean.truncate_source  # None: nothing is cut
        return self.checked([ids[:most] for ids in self.vocabulary.source.encode_many(list(texts))], first)

    def encode_requests(self, requests: Sequence[Request]) -> list[list[int]]:
        """The source ids of requests that follow one another in the whole input: given, or of their texts."""
        if requests and all(request.source is not None for request in requests):
            return [list(request.source or ()) for request in requests]
        return self.encode([each.text for each in requests], first=requests[0].number if requests else 0)

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

    def predict(
        self, requests: Sequence[Request], on_done: Callable[[int], None] | None = None
    ) -> list[list[Prediction]]:
        """The best outputs for each request, best first; `on_done` is called with how many more are done."""
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
        """log p of each target given its text; a language model is given texts alone."""
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
        """The model as a search calls it."""
        return self.model

    @property
    def banned_marks(self) -> int:
        """How many marks of noise its vocabulary has that no output may hold."""
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
        """The requests with token ids, and with what a search must know of this model."""
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
        """The search that finds the outputs of these encoded requests."""
        if any(request.known is not None for request in requests):
            return partial(decode_with_phrases, self.search_model, cutter=self._cutter, device=self.device)
        return partial(decode, self.search_model, device=self.device)

    def _mean(self, logs: Sequence[np.ndarray]) -> np.ndarray:
        """The log-probabilities of an ensemble, from those of its members."""
        together: Ensemble = self.model
        mean = mean_log_probabilities([torch.from_numpy(each) for each in logs], together.weights, together.mean)
        found: np.ndarray = mean.numpy()
        return found


def tokens_at_once(requests: Sequence[Request], device: torch.device) -> int:
    """How many tokens a model reads at a time."""
    options = requests[0].options if requests else Decoding()
    return options.tokens_at_once(device.type)


def one_line(text: str) -> str:
    """An output never breaks the line-by-line contract, whatever characters the vocabulary holds."""
    return text.replace("\r", " ").replace("\n", " ")


def as_predictions(
    texts: Sequence[str],
    found: Sequence[Hypothesis],
    options: Decoding,
    unknown: Sequence[int] | None = None,
    *,
    section: Evaluation | None = None,
) -> list[Prediction]:
    """The outputs asked for: all there are, or those of the least risk, with their expected utility as score.

    `unknown` is how often each text has <unk>; by default as often as its tokens. `section` configures the utility.
    """
    unknown = [each.tokens.count(UNK) for each in found] if unknown is None else unknown
    if options.mbr is None:
        parts = zip(texts, found, unknown, strict=True)
        return [Prediction(text, each.score, each.tokens, each.truncated, count) for text, each, count in parts]
    from sightline.decoding.mbr import UTILITIES, least_risk

    logs = [each.log_probability for each in found] if options.mbr.weights == "probability" else None
    order = least_risk(texts, partial(UTILITIES[options.mbr.utility], section=section), logs)
    best = [(texts[place], worth, found[place], unknown[place]) for place, worth in order[: options.nbest]]
    return [Prediction(text, worth, each.tokens, each.truncated, count) for text, worth, each, count in best]


# --- incomplete outputs --------------------------------------------------------------------------------------------

_KEPT = 1_000  # lines that are remembered by their number
_SHOWN = 8  # and shown to a person


@dataclass
class Lines:
    """How many lines something is the matter with, and the numbers of the first ones, counted from 1."""

    count: int = 0
    first: list[int] = field(default_factory=list)

    def add(self, line: int) -> None:
        self.count += 1
        if len(self.first) < _KEPT:
            self.first.append(line)

    def __str__(self) -> str:
        """`line 4`, `lines 4, 17, 20, …`."""
        numbers = ", ".join(map(str, self.first[:_SHOWN])) + (", …" if self.count > _SHOWN else "")
        return f"{'line' if self.count == 1 else 'lines'} {numbers}"


@dataclass
class Incomplete:
    """What is missing from the best outputs of some lines, in the order of the lines."""

    outputs: int = 0
    truncated: Lines = field(default_factory=Lines)
    unknown: Lines = field(default_factory=Lines)  # of outputs that have <unk> ...
    tokens: int = 0  # ... so often, all together

    @staticmethod
    def of(answers: Sequence[Sequence[Prediction]]) -> Incomplete:
        counts = Incomplete()
        counts.add(answers)
        return counts

    def add(self, answers: Sequence[Sequence[Prediction]]) -> None:
        """Count the best outputs of the next lines."""
        for best, *_ in answers:
            self.outputs += 1
            if best.truncated:
                self.truncated.add(self.outputs)
            if best.unknown:
                self.unknown.add(self.outputs)
                self.tokens += best.unknown

    def to_dict(self) -> dict[str, Any]:
        """For JSON; nothing where all is complete."""
        found: dict[str, Any] = {}
        if self.truncated.count:
            found |= {"truncated": self.truncated.count, "truncated_lines": self.truncated.first}
        if self.unknown.count:
            found |= {"outputs_with_unknown": self.unknown.count, "unknown_lines": self.unknown.first}
        return found

    def notes(self, task: Task, options: Decoding) -> list[str]:
        """For a person, with the remedy. The length of a continuation is asked for, so that is no news."""
        notes, every = [], plural(self.outputs, "output")
        if self.truncated.count and not task.recipe.task_spec.continues_text:
            reached = f"{self.truncated.count:,} of {every} reached the length limit ({self.truncated})"
            notes.append(f"{reached}; {_remedy(task, options)}")
        if self.unknown.count:
            said = f"<unk> is in {self.unknown.count:,} of {every} ({self.unknown})"
            notes.append(f"{said}, where the vocabulary has no word or character; {_other_vocabulary(task)}")
        return notes


def _other_vocabulary(task: Task) -> str:
    """What to do against <unk>."""
    recipe = task.recipe
    if recipe.task_spec.maps_text and recipe.tokenizer.kind in WHOLE_WORDS and not recipe.model.copying:
        looks = "" if recipe.blind else "replace it by the source word looked at (--replace-unknown copy), or "
        return f"{looks}train with tokenizer.kind: bpe"
    return "train with a larger tokenizer.size or a smaller tokenizer.min_count"


def _remedy(task: Task, options: Decoding) -> str:
    """Which key to raise."""
    given = {"max_length": options.max_length, "max_ratio": options.max_ratio}
    keys = [f"decoding.{key} ({value:g})" for key, value in given.items() if value is not None]
    if keys:
        found = f"raise {' or '.join(keys)}"
    elif task.lengths is not None:
        found = "it follows from the longest targets of the training text; set decoding.max_length (--max-length)"
    else:
        found = "set decoding.max_length (--max-length)"
    longest = task.longest_output()
    return found if longest is None else f"{found}; no output of this model can have more than {longest:,} tokens"
