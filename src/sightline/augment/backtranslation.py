"""Back-translation (Sennrich et al. 2016): text of the target language becomes pairs with synthetic sources.

A model of the other direction translates monolingual target text. With a tag before each synthetic source the model
that learns from it can tell it from real text (Caswell et al. 2019); drawing instead of searching makes sources that
teach more (Edunov et al. 2018).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from sightline.augment.corpus import PairFile, Part, fingerprint, part_size
from sightline.data.text_files import read_lines
from sightline.decoding.ensemble import Ensemble
from sightline.files import checksum
from sightline.progress import Progress, silent
from sightline.recipe import Decoding
from sightline.run import Run
from sightline.tasks.base import Prediction
from sightline.terminal import plural

Choice = Literal["bleu", "chrf"]
SLACK = 5  # tokens that do not count in the ratio: short sentences differ more


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
        """Whether one side has more than `max_ratio` times the tokens of the other, and a few."""
        return max(left, right) > self.max_ratio * min(left, right) + SLACK


def weights_digest(run: Run) -> str | dict[str, Any]:
    """The digest of a run's weights, or of those of an ensemble: part of the plan."""
    if not run.members:
        return checksum(run.folder / "model.safetensors")
    model: Ensemble = run.model
    models = [checksum(each.folder / "model.safetensors") for each in run.members]
    return {"models": models, "weights": model.weights, "mean": model.mean}


def precision_entry(run: Run) -> dict[str, str]:
    """The precision as part of a plan; none for float32, as in plans of older versions."""
    return {} if run.precision == "float32" else {"precision": run.precision}


def single_line(text: str) -> str:
    """The text without tabs and line breaks, for one cell of a TSV file."""
    return text.replace("\t", " ").replace("\n", " ").replace("\r", " ").strip()


@dataclass(frozen=True)
class Translator:
    """A model that translates one side of a corpus and filters its outputs."""

    run: Run
    options: Decoding
    limits: Limits
    choice: Choice | None = None  # of the n-best, the one nearest to the reference

    def __post_init__(self) -> None:
        if not self.run.recipe.task_spec.maps_text:
            raise ValueError(f"{self.run.folder} does not translate ({self.run.recipe.task_spec}); give a seq2seq run")

    def __call__(self, first: int, texts: Sequence[str], references: Sequence[str] | None = None) -> list[Outcome]:
        """The outcome of each text; `first` is the number of the first one in the whole input."""
        longest = min(self.limits.max_tokens, self.run.task.longest_source() or self.limits.max_tokens)
        sources, cut = [single_line(text) for text in texts], self.run.recipe.data.clean.truncate_source
        lengths = [len(ids[:cut]) for ids in self.run.vocabulary.source.encode_many(sources)]  # what is read of each
        # empty lines are not decoded, but keep their numbers, which seed the sampling
        read = [source if length <= longest else "" for source, length in zip(sources, lengths, strict=True)]
        nbest = self.run.predict_nbest(read, self.options, first=first, scored=False)
        outcomes = []
        for index, (length, guesses) in enumerate(zip(lengths, nbest, strict=True)):
            reference = None if references is None else references[index]
            if 0 < length <= longest:
                outcomes.append(self._filtered(self._choose(guesses, reference), length))
            else:
                outcomes.append(Outcome("", "too long" if length else "empty"))
        return outcomes

    def _choose(self, guesses: Sequence[Prediction], reference: str | None) -> Prediction:
        if self.choice is None or reference is None:
            return guesses[0]
        similarity = sentence_scorer(self.choice)
        return max(guesses, key=lambda guess: similarity(guess.text, reference))  # the first of equals

    def _filtered(self, guess: Prediction, length: int) -> Outcome:
        text = single_line(guess.text)
        if not text:
            return Outcome("", "no output")
        if guess.unknown:  # not replaced through the attention either
            return Outcome("", "unknown word in output")
        if guess.truncated:
            return Outcome("", "output cut at the length limit")
        if len(guess.tokens) > self.limits.max_tokens:
            return Outcome("", "output too long")
        return Outcome("", "ratio") if self.limits.uneven(length, len(guess.tokens)) else Outcome(text)


def sentence_scorer(name: Choice) -> Callable[[str, str], float]:
    """Similarity of two texts: sacreBLEU's sentence BLEU (with effective order) or chrF."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    metric = BLEU(effective_order=True, force=True) if name == "bleu" else CHRF()
    return lambda output, reference: float(metric.sentence_score(output, [reference]).score)


def count_outcomes(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """How many lines were read, kept, and dropped for which reason."""
    return {"read": len(outcomes), "kept": 0, **Counter(outcome.dropped or "kept" for outcome in outcomes)}


def describe_counts(counts: dict[str, int]) -> str:
    """Counts for a person to read."""
    dropped = [f"{count:,} {reason}" for reason, count in counts.items() if reason not in ("read", "kept") and count]
    kept = f"{counts['kept']:,} of {plural(counts['read'], 'pair')} kept"
    return kept + (f"; dropped {', '.join(dropped)}" if dropped else "")


def backtranslate(
    run: Run,
    monolingual: Path,
    out: Path,
    options: Decoding,
    *,
    limits: Limits = Limits(),
    tag: str | None = None,
    resume: bool = False,
    progress: Progress = silent,
) -> dict[str, int]:
    """Write (synthetic source, real target) for each line, a pair a line, and return what was kept and dropped."""
    if tag is not None and (not tag.strip() or single_line(tag) != tag):
        raise ValueError(f"--tag {tag!r} must be a word or more, without tabs, line breaks or spaces around it")
    if monolingual.exists() and not (monolingual.is_file() or monolingual.is_dir()):
        raise ValueError(f"{monolingual} is a pipe, and the text is read twice; write it to a file first")
    before = "" if tag is None else f"{tag} "
    plan = {
        "model": weights_digest(run),
        **fingerprint(read_lines(monolingual)),
        "decoding": options.model_dump(mode="json", exclude={"batch_tokens"}),
        **precision_entry(run),
        "max_tokens": limits.max_tokens,
        "max_ratio": limits.max_ratio,
        "tag": tag,
    }
    translate = Translator(run, options, limits)

    def work(first: int, lines: list[str]) -> Part:
        outcomes = translate(first, lines)
        pairs = [
            (before + each.text, single_line(line))
            for line, each in zip(lines, outcomes, strict=True)
            if each.dropped is None
        ]
        return Part(pairs, count_outcomes(outcomes))

    corpus: PairFile[str] = PairFile(out, plan, part_size(run.device.type))
    return corpus.make(iter(read_lines(monolingual)), work, resume=resume, progress=progress)
