"""The whole recipe, and whether its sections fit each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from sightline.recipe.adapting import with_start_moved
from sightline.recipe.bodies import (
    ByteNetBody,
    Ngram,
    RecurrentDecoder,
    RecurrentEncoder,
    TransformerBody,
    WindowBody,
    learned_positions,
)
from sightline.recipe.copying import check_copied_words, check_copying, copies_unknown
from sightline.recipe.data import AnyTokenizer, BpeTokenizer, Data
from sightline.recipe.decoding import Decoding, Evaluation, MetricName
from sightline.recipe.guiding import check_guiding
from sightline.recipe.model import Model
from sightline.recipe.pretraining import check_text
from sightline.recipe.sections import Section
from sightline.recipe.sides import check_sides
from sightline.recipe.training import Training

TaskName = Literal["seq2seq", "language-model", "masked-words", "classify", "tag"]

# What a model must have and may have, and the metrics that make sense, for each task.
PARTS: dict[TaskName, tuple[set[str], set[str]]] = {
    "seq2seq": ({"decoder"}, {"encoder", "decoder"}),
    "language-model": ({"decoder"}, {"decoder"}),
    "masked-words": ({"encoder"}, {"encoder"}),
    "classify": ({"encoder", "pooling"}, {"encoder", "pooling"}),
    "tag": ({"encoder"}, {"encoder"}),
}
ROUGE: tuple[MetricName, ...] = ("rouge-1", "rouge-2", "rouge-l", "rouge-lsum")
TASK_METRICS: dict[TaskName, tuple[MetricName, ...]] = {
    "seq2seq": ("bleu", "chrf", "ter", "exact", "wer", "cer", "perplexity", *ROUGE),
    "language-model": ("perplexity", "bits-per-character"),
    "masked-words": ("perplexity", "masked-accuracy"),
    "classify": ("accuracy", "macro-f1"),
    "tag": ("token-accuracy", "span-f1"),
}

DEFAULT_METRICS: dict[TaskName, tuple[MetricName, ...]] = {
    "seq2seq": ("bleu", "chrf"),
    "language-model": ("perplexity",),
    "masked-words": ("perplexity", "masked-accuracy"),
    "classify": ("accuracy", "macro-f1"),
    "tag": ("token-accuracy",),
}


class Recipe(Section):
    """A whole experiment."""

    task: TaskName = "seq2seq"
    seed: int = Field(1, ge=0)
    data: Data
    tokenizer: AnyTokenizer = BpeTokenizer()
    model: Model
    training: Training = Training()
    decoding: Decoding = Decoding()
    evaluation: Evaluation = Evaluation()

    @model_validator(mode="before")
    @classmethod
    def _metrics_of_the_task(cls, values: Any) -> Any:
        """The task's own metrics, where the recipe names none."""
        values = with_start_moved(values)
        if isinstance(values, dict) and (task := values.get("task", "seq2seq")) in TASK_METRICS:
            section = values.get("evaluation") or {}
            if isinstance(section, dict) and "metrics" not in section:
                data = values.get("data")
                mends = task == "seq2seq" and isinstance(data, dict) and data.get("noise") is not None
                own = ("perplexity",) if mends else DEFAULT_METRICS[task]
                return {**values, "evaluation": {**section, "metrics": own}}
        return values

    @model_validator(mode="after")
    def _parts_fit(self) -> Recipe:
        self._check_task()
        check_copying(self.task, self.data, self.tokenizer, self.model, self._rivals_of_copying())
        check_guiding(self.training.guided_alignment, self.task, self.model, self._rivals_of_guiding())
        self._check_additions()
        self.check_replacing(self.decoding)
        check_text(self)
        check_sides(self)
        if self.task == "seq2seq" and self.model.tie == "all" and not self.tokenizer.shared:
            raise ValueError("model.tie: all needs one vocabulary; set tokenizer.shared: true or model.tie: output")
        if self.task == "seq2seq" and self.model.encoder is None and self.model.tie != "all":
            raise ValueError("a decoder that reads the source too has one embedding; set model.tie: all")
        if self.decoding.coverage_penalty > 0 and self.blind:
            raise ValueError("decoding.coverage_penalty needs a decoder with attention to an encoder; set it to 0")
        self._check_least()
        longest, what = self.longest_sequence()
        for side, body in self.model.bodies.items():
            places = learned_positions(body)
            if places is not None and places < longest:
                raise ValueError(
                    f"model.{side}.positions.longest ({places}) is less than {what} ({longest}); "
                    f"raise it, or lower that"
                )
        return self

    def _check_least(self) -> None:
        """Whether outputs can be as long as they must; where sources take room too, that is known line by line."""
        least, room = self.decoding.min_length, learned_positions(self.model.decoder)
        if self.task == "seq2seq" and self.model.encoder is not None and room is not None and least >= room:
            raise ValueError(
                f"decoding.min_length ({least}) leaves no room for an end mark below model.decoder.positions.longest "
                f"({room}); lower it, or raise that"
            )

    def _check_additions(self) -> None:
        """Whether what is beyond the likelihood of a training, or beside it, can do its work here."""
        training = self.training
        if training.stopping.on == "reward" and training.reward is None:
            raise ValueError("training.stopping.on: reward needs training.reward; add that section, or stop on loss")
        if training.recompute_layers and not any(isinstance(b, TransformerBody) for b in self.model.bodies.values()):
            raise ValueError(
                "training.recompute_layers: true is for Transformer layers, and this model has none; leave it out"
            )
        if training.reward is not None:
            self._check_reward()
        elif training.rdrop is not None:
            self._check_rdrop()

    def _check_rdrop(self) -> None:
        carried = self.task == "language-model" and isinstance(self.model.decoder, RecurrentDecoder)
        if carried and self.training.batches.carry is not False:
            raise ValueError(
                "training.rdrop reads every window twice, and this model goes on from the state of the window "
                "before; set training.batches.carry: false"
            )
        if not any(value for key, value in _settings(self.model.model_dump()) if key.endswith(("dropout", "noise"))):
            raise ValueError(
                "training.rdrop makes two passes with different dropout agree, and without any they are the same "
                "twice; set dropout in the model, or leave training.rdrop out"
            )

    def _check_reward(self) -> None:
        training = self.training
        if training.compile:
            raise ValueError(
                "training.compile: true cannot be had with training.reward, whose steps are not compiled; leave it"
            )
        if training.rdrop is not None:
            raise ValueError("training.rdrop and training.reward are two objectives; leave one of them out")
        if self.task != "seq2seq" or self.model.encoder is None:
            raise ValueError("training.reward needs task: seq2seq and a model with an encoder; leave it out")
        if training.batches.layout == "packed":
            raise ValueError("training.reward draws from padded batches; leave training.batches.layout out")
        if training.stopping.on == "loss" and training.result == "best":
            raise ValueError(
                "training.reward does not lower the loss, so the best loss is not the best model; set "
                "training.stopping.on: reward (or metric), or training.result: last"
            )

    def _rivals_of_guiding(self) -> dict[str, object]:
        """What cannot be had beside guided alignment: other objectives, other words, a compiled step."""
        training = self.training
        return {
            "training.rdrop": training.rdrop is not None,
            "training.reward": training.reward is not None,
            "training.compile: true": training.compile,
            "model.copying: true": self.model.copying,
            "data.noise": self.data.noise is not None,
        }

    def check_replacing(self, options: Decoding) -> None:
        """Whether unknown words can be replaced as these options want it."""
        if self.copies_unknown:
            check_copied_words(options.replace_unknown, options.forbid)
        if options.replace_unknown == "none":
            return
        what = f"decoding.replace_unknown: {options.replace_unknown}"
        if self.task != "seq2seq" or self.tokenizer.kind != "word":
            raise ValueError(
                f"{what} puts words of the source where the vocabulary has none, and needs task: seq2seq with "
                f"tokenizer.kind: word, not {self.task} with {self.tokenizer.kind}; set it to none"
            )
        if self.blind:
            raise ValueError(f"{what} needs a decoder with attention to an encoder; set it to none")

    @property
    def blind(self) -> bool:
        """Whether no decoder looks at an encoder while it writes."""
        decoder = self.model.decoder
        alone = self.model.encoder is None or decoder is None or isinstance(decoder, ByteNetBody | WindowBody)
        return alone or (isinstance(decoder, RecurrentDecoder) and decoder.attention.kind == "none")

    def _rivals_of_copying(self) -> dict[str, object]:
        """What cannot be had with model.copying, by key, where it is set."""
        training = self.training
        return {
            "training.rdrop": training.rdrop is not None,
            "training.reward": training.reward,
            "training.guided_alignment": training.guided_alignment,
            "training.batches.layout: packed": training.batches.layout == "packed",
            "training.compile: true": training.compile,
        }

    @property
    def copies_unknown(self) -> bool:
        """Whether words that are in no vocabulary can be copied from the source (text/copying.py)."""
        return copies_unknown(self.model, self.tokenizer)

    @property
    def of_text(self) -> bool:
        """Whether examples are windows of plain text: there are no pairs, and no outputs to hold against others."""
        return self.task == "language-model" or self.data.noise is not None

    def gathers(self, name: str) -> bool:
        """Whether all translations of a source in this test set are its references.

        So it is in a list of pairs, which may have many of one source; of files that go line by line, each line counts.
        """
        return self.task == "seq2seq" and not self.of_text and self.data.held_out(name).kind != "text"

    def longest_sequence(self) -> tuple[int, str]:
        """The most tokens of a training sequence, marks included, and the key that says so."""
        if self.of_text:
            return self.training.batches.context, "training.batches.context"
        most = self.data.clean.max_tokens + 1
        if self.task == "seq2seq" and self.model.encoder is None:
            read = most if self.data.clean.cut_source is None else min(most, self.data.clean.cut_source + 1)
            return read + most, "the longest pair of sentences data.clean.max_tokens lets through, end to end"
        if self.model.pooling is not None and self.model.pooling.kind == "class":
            return most + 1, "the longest text data.clean.max_tokens lets through, with its end mark and class token"
        return most, "the longest sentence data.clean.max_tokens lets through, with its end mark"

    def _check_task(self) -> None:
        """Whether the model has the parts of the task, and the metrics are its own."""
        needed, allowed = PARTS[self.task]
        present = {part for part in ("encoder", "decoder", "pooling") if getattr(self.model, part) is not None}
        if missing := sorted(needed - present):
            raise ValueError(f"task: {self.task} needs model.{missing[0]}")
        if extra := sorted(present - allowed):
            raise ValueError(f"task: {self.task} has no use for model.{extra[0]}; leave it out, or change the task")
        if self.model.spelling is not None and self.task not in ("classify", "tag"):
            raise ValueError(f"model.spelling is for classifiers and taggers, not for task: {self.task}; leave it out")
        if self.task == "tag" and self.data.clean.cut_source is not None:
            raise ValueError("data.clean.cut_source would leave words without their tags; leave it out for task: tag")
        if self.of_text and self.data.clean.cut_source is not None:
            raise ValueError(
                f"data.clean.cut_source ({self.data.clean.cut_source}) cuts sources, and what is learned from plain "
                f"text has none; leave it out"
            )
        decoder = self.model.decoder
        if isinstance(decoder, Ngram) and self.task != "language-model":
            raise ValueError(
                "model.decoder.kind: ngram counts text and cannot look at a source; use it with task: language-model"
            )
        alone = self.model.encoder is None
        if alone and isinstance(decoder, RecurrentDecoder) and decoder.attention.kind != "none":
            raise ValueError(
                f"model.decoder.attention.kind: {decoder.attention.kind} has no encoder to look at; set it to none"
            )
        encoder, pooling = self.model.encoder, self.model.pooling
        forward = isinstance(encoder, RecurrentEncoder) and not encoder.bidirectional
        if forward and pooling is not None and pooling.kind == "class":
            raise ValueError(
                "model.pooling.kind: class looks at the state of the first token, where an encoder that reads forwards "
                "has seen no other; set it to last, or model.encoder.bidirectional: true"
            )
        if wrong := [name for name in self.evaluation.metrics if name not in TASK_METRICS[self.task]]:
            known = ", ".join(TASK_METRICS[self.task])
            raise ValueError(f"evaluation.metrics: {wrong[0]} is not for task: {self.task}; use {known}")


def check_replacing(recipes: Iterable[Recipe], options: Decoding) -> None:
    """Whether runs that write together can replace unknown words as asked: one that looks at the source is enough."""
    min(recipes, key=lambda recipe: recipe.blind).check_replacing(options)


def _settings(section: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The keys of a section and of those within it, with their values."""
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from _settings(value)
        else:
            yield key, value
