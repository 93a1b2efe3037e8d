"""Validation during a training: loss on the validation set, the metric of early stopping, sample outputs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from sightline.data.collate import collate_fn, padded_batch
from sightline.data.noise import Corrupter
from sightline.data.preparation import PreparedData
from sightline.data.windows import token_stream
from sightline.decoding.engine import decode
from sightline.decoding.request import Request, capped, make_requests
from sightline.decoding.scoring import stream_losses
from sightline.evaluation.masked_lm import DenoisingScores, score_denoising
from sightline.evaluation.metrics import METRICS, needs_outputs, score
from sightline.layers.devices import autocast
from sightline.recipe import Decoding, MetricName
from sightline.recipe.recipe import carries
from sightline.recipe.tasks import suits
from sightline.tasks.base import Prediction, build_task, task_class
from sightline.tasks.incomplete import Incomplete
from sightline.terminal import truncate
from sightline.text.tokenizer import END
from sightline.training.reward import expected_reward

_TOKENS = 16_384  # of a validation batch, padding included, about
_PROMPT, _CONTINUATION = 32, 64  # tokens of the samples of a language model
_SAMPLE = 128  # most tokens of a sample output: decoding an abstract of 800 would delay the training


@dataclass(frozen=True)
class Validation:
    """The result of a validation."""

    score: float  # for early stopping, lower is better
    record: dict[str, Any] = field(default_factory=dict)  # for metrics.jsonl


class Validator:
    """Validates a model on pairs of a source and a target or labels; decodes only if early stopping needs it."""

    def __init__(self, prepared: PreparedData, device: torch.device) -> None:
        self.prepared, self.recipe, self.device = prepared, prepared.recipe, device
        store = prepared.validation
        self.sources, self.targets = store.take(np.arange(len(store)))
        self.decoded: list[Prediction] = []  # outputs for the metric of the newest validation

    def __call__(self, model: nn.Module) -> Validation:
        started = time.monotonic()
        with torch.inference_mode(), autocast(self.recipe.training.precision, self.device):
            loss = self.loss(model)
            record: dict[str, Any] = {"loss": loss, "perplexity": float(np.exp(min(loss, 700.0)))}
            value, record["samples"] = loss, self.samples(model)
            if self.recipe.training.stopping.monitor == "metric":
                name = self.recipe.evaluation.metrics[0]
                self.decoded = []
                record[name] = self.metric(model, name, loss)
                if self.recipe.task_spec.maps_text and needs_outputs(name):
                    beam = self.recipe.training.stopping.beam
                    record["search"] = "greedy search" if beam == 1 else f"beam {beam}"
                incomplete = Incomplete.of([[guess] for guess in self.decoded])
                if counts := incomplete.to_dict():
                    record |= {"outputs": incomplete.outputs, **counts}
                value = -record[name] if METRICS[name].higher_is_better else record[name]
            if self.recipe.training.reward is not None:
                record["reward"] = self.reward(model)
                value = -record["reward"] if self.recipe.training.stopping.monitor == "reward" else value
        record["validation_seconds"] = round(time.monotonic() - started, 3)
        return Validation(value, record)

    def loss(self, model: nn.Module) -> float:
        """−log p per label, on average; NaN without labels."""
        total, tokens, collate = 0.0, 0, collate_fn(self.recipe)
        for indices in self._by_length():
            sides = collate([self.sources[index] for index in indices], [self.targets[index] for index in indices])
            batch = padded_batch(sides, indices)
            batch = batch.to(self.device) if self.device.type != "cpu" else batch
            total += float(task_class(self.recipe).loss(model, batch).nll)
            tokens += batch.tokens
        return total / tokens if tokens else math.nan

    def _by_length(self) -> list[np.ndarray]:
        """Batches of examples of similar length, fewer of long texts; examples without a label are left out."""
        source, target = self.prepared.validation.source_lengths, self.prepared.validation.target_lengths
        labelled = np.flatnonzero(target) if self.prepared.vocabulary.labels != "none" else np.arange(len(target))
        if not len(labelled):
            return []
        by_length = labelled[np.lexsort((source[labelled], target[labelled]))]
        longest = int((source + target).max())
        parts = max(1, len(by_length) // 64, len(by_length) * longest // _TOKENS)
        return np.array_split(by_length, min(parts, len(by_length)))

    def reward(self, model: nn.Module) -> float:
        """The expected reward of sampled outputs."""
        sources, targets = ([ids.tolist() for ids in side] for side in (self.sources, self.targets))
        vocabulary, lengths = self.prepared.vocabulary, self.prepared.target_lengths
        return expected_reward(model, self.recipe, vocabulary, sources, targets, self.device, lengths)

    def samples(self, model: nn.Module) -> list[dict[str, Any]]:
        """Greedy outputs for the first examples; long ones are truncated and end with …"""
        shown = self.prepared.references[: self.recipe.training.samples]
        options, most = self._options(beam=1), math.inf
        if self.recipe.task_spec.maps_text and (options.max_length is None or options.max_length > _SAMPLE):
            options, most = capped(options, _SAMPLE, self.prepared.target_lengths), _SAMPLE - 1  # and an end mark
        guesses = self._answers(model, [example.source for example in shown], options)
        samples: list[dict[str, Any]] = []
        for example, guess in zip(shown, guesses, strict=True):
            samples.append({"source": truncate(example.source), "reference": truncate(example.target)})
            samples[-1]["output"] = guess.text + (" …" if len(guess.tokens) >= most else "")
            if guess.truncated and len(guess.tokens) < most:
                samples[-1]["truncated"] = True
        return samples

    def metric(self, model: nn.Module, name: MetricName, loss: float) -> float:
        """The metric that early stopping monitors."""
        if not needs_outputs(name):
            return math.exp(min(loss, 700.0))
        examples = self.prepared.references
        options = self._options(beam=self.recipe.training.stopping.beam)
        self.decoded = self._answers(model, [each.source for each in examples], options)
        outputs = [guess.text for guess in self.decoded]
        references = [[example.target] for example in examples]
        section = self.recipe.evaluation
        sources = [each.source for each in examples]
        return score(
            name, outputs, references, sources, lowercase=section.lowercase, section=section, bootstrap=0
        ).value

    def _options(self, *, beam: int) -> Decoding:
        """The decoding options of the recipe, with a plain beam."""
        changes: dict[str, Any] = {"beam": beam, "nbest": 1, "sample": None, "groups": 1, "mbr": None}
        if self.recipe.decoding.replace_unknown == "dictionary":  # written at the end of the training
            changes["replace_unknown"] = "copy"
        return self.recipe.decoding.model_copy(update=changes)

    def _answers(self, model: nn.Module, texts: list[str], options: Decoding) -> list[Prediction]:
        vocabulary, lengths = self.prepared.vocabulary, self.prepared.target_lengths
        task = build_task(self.recipe, vocabulary, model, self.device, lengths=lengths)
        return [guesses[0] for guesses in task.predict([Request(text, options) for text in texts])]


class TextValidator(Validator):
    """Validates a language model: its loss on the validation text; samples continue pieces of that text."""

    def __init__(self, prepared: PreparedData, device: torch.device) -> None:
        super().__init__(prepared, device)
        self.stream = token_stream(prepared.validation)

    def loss(self, model: nn.Module) -> float:
        context = self.recipe.training.batches.context
        losses = stream_losses(
            model,  # type: ignore[arg-type]
            self.stream,
            context=context,
            stride=context,
            carry=carries(self.recipe),
            device=self.device,
        )
        return float(losses.mean())

    def metric(self, model: nn.Module, name: MetricName, loss: float) -> float:
        if name != "bits-per-character":
            return super().metric(model, name, loss)
        normalize = self.prepared.vocabulary.target.normalize
        characters = sum(len(normalize(each.target)) + 1 for each in self.prepared.references)  # each with its end
        return loss * len(self.stream) / math.log(2) / characters

    def samples(self, model: nn.Module) -> list[dict[str, str]]:
        count = self.recipe.training.samples
        if not count:
            return []
        context = self.recipe.training.batches.context
        begin = min(_PROMPT, context // 2)  # a prompt and its continuation are no longer than a window
        more = min(_CONTINUATION, context - begin)
        starts = np.linspace(0, max(0, len(self.stream) - begin - more), count).astype(int)
        prompts = [[int(token) for token in self.stream[at : at + begin] if token != END] for at in starts]
        references = [self.stream[at : at + begin + more].tolist() for at in starts]
        return self.continued(model, prompts, references, more)

    def continued(
        self, model: nn.Module, prompts: list[list[int]], references: list[list[int]], most: int
    ) -> list[dict[str, str]]:
        """Prompts with their references and up to `most` new tokens."""
        target = self.prepared.vocabulary.target
        options = self.recipe.decoding.model_copy(update={"nbest": 1, "max_length": most, "beam": 1})
        requests = make_requests(prefixes=prompts, marks=len(target.marks))
        outputs = decode(model, requests, options, device=self.device)  # type: ignore[arg-type]
        return [
            {
                "source": target.decode(prompt),
                "reference": target.decode(reference),
                "output": target.decode(guesses[0].tokens),
            }
            for prompt, reference, guesses in zip(prompts, references, outputs, strict=True)
        ]


class SentenceValidator(TextValidator):
    """Validates a language model of sentences; samples continue the first half of some sentences."""

    def loss(self, model: nn.Module) -> float:
        return Validator.loss(self, model)

    def samples(self, model: nn.Module) -> list[dict[str, str]]:
        references = [ids.tolist() for ids in self.targets[: self.recipe.training.samples]]
        prompts = [ids[: min(_PROMPT, len(ids) // 2)] for ids in references]
        return self.continued(model, prompts, references, _CONTINUATION) if references else []


class DenoisingValidator(Validator):
    """Validates a masked-LM or denoising model: the noise of the validation text is always the same."""

    def __init__(self, prepared: PreparedData, device: torch.device) -> None:
        super().__init__(prepared, device)
        self.stream = token_stream(prepared.validation)
        self.scores: DenoisingScores | None = None  # of the newest validation

    def __call__(self, model: nn.Module) -> Validation:
        validation = super().__call__(model)
        assert self.scores is not None
        if suits("masked-accuracy", self.recipe.task_spec):
            validation.record["masked-accuracy"] = self.scores.accuracy
        return validation

    def loss(self, model: nn.Module) -> float:
        self.scores = score_denoising(model, self.recipe, self.prepared.vocabulary, self.stream, self.device)
        return self.scores.loss

    def metric(self, model: nn.Module, name: MetricName, loss: float) -> float:
        if name != "masked-accuracy":
            return super().metric(model, name, loss)
        assert self.scores is not None
        return self.scores.accuracy

    def samples(self, model: nn.Module) -> list[dict[str, str]]:
        """The beginnings of a few windows, corrupted, and the outputs of the model."""
        vocabulary, count = self.prepared.vocabulary, self.recipe.training.samples
        corrupter = Corrupter(self.recipe, vocabulary)
        length = min(_CONTINUATION, corrupter.length)
        starts = np.linspace(0, max(0, len(self.stream) - length), count).astype(int)
        windows = [self.stream[at : at + length].astype(np.int64) for at in starts]
        read = [ids.tolist() for ids in corrupter.held_out(windows)[0]]
        task = build_task(self.recipe, vocabulary, model, self.device)
        options = self._options(beam=1)
        outputs = task.predict([Request(options=options, source=ids) for ids in read])
        decode = vocabulary.target.decode
        return [
            {"source": decode(ids), "reference": decode(window.tolist()), "output": guesses[0].text}
            for ids, window, guesses in zip(read, windows, outputs, strict=True)
        ]


VALIDATORS = {
    "pairs": Validator,
    "sentences": SentenceValidator,
    "windows": TextValidator,
    "corrupted windows": DenoisingValidator,
}


def build_validator(prepared: PreparedData, device: torch.device) -> Callable[[nn.Module], Validation]:
    """The validator for the examples that the task of a recipe learns from."""
    return VALIDATORS[prepared.recipe.task_spec.examples](prepared, device)
