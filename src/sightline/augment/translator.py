"""A model that writes one side of a training corpus, with filters for its outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from sightline.augment.corpus import Pair, PairFile, Part, fingerprint, part_size
from sightline.decoding.ensemble import Ensemble
from sightline.files import checksum
from sightline.recipe import Decoding
from sightline.run import Run
from sightline.tasks.base import Prediction
from sightline.terminal import plural

Choice = Literal["bleu", "chrf"]
RATIO_SLACK = 5  # tokens added to the largest ratio of lengths: short sentences differ more


class Outcome(NamedTuple):
    """The translation of a line, or the reason why it was dropped."""

    text: str
    dropped: str | None = None


@dataclass(frozen=True)
class Limits:
    """Filters: the most tokens of a line or an output, and the largest ratio of the two lengths."""

    max_tokens: int = 256
    max_ratio: float = 3.0

    def __post_init__(self) -> None:
        if self.max_tokens < 1 or self.max_ratio <= 1:
            raise ValueError(
                f"max_tokens ({self.max_tokens}) must be at least 1 and max_ratio ({self.max_ratio}) more than 1"
            )

    def uneven(self, left: int, right: int) -> bool:
        """True if one side is longer than `max_ratio` times the other plus a slack."""
        return max(left, right) > self.max_ratio * min(left, right) + RATIO_SLACK


def single_line(text: str) -> str:
    """Replace tabs and line breaks, for one cell of a TSV file."""
    return text.replace("\t", " ").replace("\n", " ").replace("\r", " ").strip()


@dataclass(frozen=True)
class Translator:
    """Translates one side of a corpus and filters the outputs."""

    run: Run
    options: Decoding
    limits: Limits
    choice: Choice | None = None  # take the n-best output closest to the reference by this metric

    def __post_init__(self) -> None:
        if not self.run.recipe.task_spec.maps_text:
            raise ValueError(f"{self.run.folder} does not translate ({self.run.recipe.task_spec}); give a seq2seq run")

    def __call__(self, first: int, texts: Sequence[str], references: Sequence[str] | None = None) -> list[Outcome]:
        """Translate texts; `first` is the number of the first one in the whole input."""
        longest = min(self.limits.max_tokens, self.run.task.longest_source() or self.limits.max_tokens)
        sources, cut = [single_line(text) for text in texts], self.run.recipe.data.clean.truncate_source
        lengths = [len(ids[:cut]) for ids in self.run.vocabulary.source.encode_many(sources)]
        # empty lines are not decoded, but keep their numbers, which seed the sampling
        inputs = [source if length <= longest else "" for source, length in zip(sources, lengths, strict=True)]
        outputs = self.run.predict_nbest(inputs, self.options, first=first, scored=False)
        outcomes = []
        for index, (length, nbest) in enumerate(zip(lengths, outputs, strict=True)):
            reference = None if references is None else references[index]
            if 0 < length <= longest:
                outcomes.append(self._filter(self._choose(nbest, reference), length))
            else:
                outcomes.append(Outcome("", "too long" if length else "empty"))
        return outcomes

    def pair_file(self, file: Path, model_key: str, texts: Iterable[str | Sequence[str]], **plan: Any) -> PairFile[Any]:
        """The file to write, with everything that decides its content as its plan."""
        plan = {
            model_key: weights_digest(self.run),
            **fingerprint(texts),
            "decoding": self.options.model_dump(mode="json", exclude={"batch_tokens"}),
            # plans of older versions, all of them in float32, have no precision
            **({} if self.run.precision == "float32" else {"precision": self.run.precision}),
            "max_tokens": self.limits.max_tokens,
            "max_ratio": self.limits.max_ratio,
            **plan,
        }
        return PairFile(file, plan, part_size(self.run.device.type))

    def _choose(self, nbest: Sequence[Prediction], reference: str | None) -> Prediction:
        if self.choice is None or reference is None:
            return nbest[0]
        similarity = sentence_scorer(self.choice)
        return max(nbest, key=lambda prediction: similarity(prediction.text, reference))  # the first of equals

    def _filter(self, prediction: Prediction, length: int) -> Outcome:
        text = single_line(prediction.text)
        if not text:
            return Outcome("", "no output")
        if prediction.unknown:  # and not replaced by a source word
            return Outcome("", "unknown word in output")
        if prediction.truncated:
            return Outcome("", "output cut at the length limit")
        if len(prediction.tokens) > self.limits.max_tokens:
            return Outcome("", "output too long")
        return Outcome("", "ratio") if self.limits.uneven(length, len(prediction.tokens)) else Outcome(text)


@cache
def sentence_scorer(name: Choice) -> Callable[[str, str], float]:
    """Similarity of two texts: sacreBLEU's sentence BLEU (with effective order) or chrF."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    metric = BLEU(effective_order=True, force=True) if name == "bleu" else CHRF()
    return lambda output, reference: float(metric.sentence_score(output, [reference]).score)


def make_part(pairs: Iterable[Pair], outcomes: Sequence[Outcome]) -> Part:
    """The pairs whose translation was kept, and the number of lines read, kept, and dropped for each reason."""
    counts = Counter(outcome.dropped or "kept" for outcome in outcomes)
    kept = [pair for pair, outcome in zip(pairs, outcomes, strict=True) if outcome.dropped is None]
    return Part(kept, {"read": len(outcomes), "kept": 0, **counts})


def weights_digest(run: Run) -> str | dict[str, Any]:
    """The SHA-256 of a run's weights, or of the weights of an ensemble's runs."""
    if not run.members:
        return checksum(run.folder / "model.safetensors")
    model: Ensemble = run.model
    models = [checksum(each.folder / "model.safetensors") for each in run.members]
    return {"models": models, "weights": model.weights, "mean": model.mean}


def describe_counts(counts: dict[str, int]) -> str:
    """`5 of 8 pairs kept; dropped 2 empty, 1 too long`."""
    dropped = [f"{count:,} {reason}" for reason, count in counts.items() if reason not in ("read", "kept") and count]
    kept = f"{counts['kept']:,} of {plural(counts['read'], 'pair')} kept"
    return kept + (f"; dropped {', '.join(dropped)}" if dropped else "")
