"""How well a model mends spoilt text: −log p of each window of a text under noise that is always the same."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from sightline.data.collate import TrainingBatch, collate_fn, padded_batch
from sightline.data.noise import Corrupter, fixed_windows
from sightline.evaluation.errors import share
from sightline.evaluation.measurement import Measurement, fingerprint
from sightline.evaluation.metrics import METRICS, measure_perplexity
from sightline.recipe import MetricName, Recipe
from sightline.recipe.data import InfillingNoise, SpanNoise
from sightline.registry import version
from sightline.terminal import plural
from sightline.text.sentences import RULES, SCRIPTS
from sightline.text.tokenizer import PAD
from sightline.text.vocabulary import Vocabulary

_TOKENS = 4_096  # of the windows that are looked at together


@dataclass(frozen=True)
class Mended:
    """What a model made of the windows of a text."""

    nll: np.ndarray  # (W,) −log p of what was wanted in each
    answers: np.ndarray  # (W,) how many tokens that is
    right: np.ndarray  # (W,) how many of them are the likeliest

    @property
    def loss(self) -> float:
        """−log p of a wanted token, on average."""
        return float(self.nll.sum() / self.answers.sum())

    @property
    def accuracy(self) -> float:
        """Of 100 wanted tokens, how many are the likeliest."""
        return float(100 * self.right.sum() / self.answers.sum())


def mend(model: Any, recipe: Recipe, vocabulary: Vocabulary, stream: np.ndarray, device: torch.device) -> Mended:
    """Give a model the windows of a text (ids with end marks), spoilt, and see what it thinks of what was there."""
    spoiler, show = Corrupter(recipe, vocabulary), collate_fn(recipe)
    windows = fixed_windows(stream, spoiler.length)
    sums = np.zeros((3, len(windows)))
    rows = max(1, _TOKENS // (spoiler.length + 2))
    with torch.inference_mode():
        for first in range(0, len(windows), rows):
            own = windows[first : first + rows]
            batch = padded_batch(show(*spoiler.held_out(own, first)), np.arange(len(own)))
            owner = _windows_of_answers(batch)
            batch = batch.to(device) if device.type != "cpu" else batch
            features = model(batch.source, batch.source_layout, batch.decoder_input, batch.decoder_layout)
            found = _scored(model, features, batch.labels)
            for total, each in zip(sums, found, strict=True):
                total[first : first + len(own)] = np.bincount(owner, each, minlength=len(own))
    return Mended(*sums)


def _windows_of_answers(batch: TrainingBatch) -> np.ndarray:
    """(A,) the row of a padded batch that each answer belongs to."""
    assert batch.source is not None and batch.decoder_input is not None
    picked = batch.decoder_layout is None
    places = batch.decoder_input if picked else torch.arange(batch.labels.numel())
    rows: np.ndarray = (places // (batch.source if picked else batch.decoder_input).shape[1]).numpy()
    return rows


def _scored(model: Any, features: torch.Tensor, wanted: torch.Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """−log p, 1 and whether it is the likeliest, of each answer; 0 where none is wanted."""
    logits = model.logits(features.reshape(-1, features.shape[-1])).float()  # (A, V)
    wanted = wanted.reshape(-1)
    real = wanted != PAD
    nll = (logits.logsumexp(-1) - logits.gather(-1, wanted[:, None])[:, 0]) * real
    right = (logits.argmax(-1) == wanted) & real
    return nll.double().cpu().numpy(), real.double().cpu().numpy(), right.double().cpu().numpy()


def measure_mended(metric: MetricName, mended: Mended, recipe: Recipe) -> Measurement:
    """Perplexity or accuracy of a model on the windows of a text; noise that differs makes another measure."""
    assert recipe.data.noise is not None
    noise = recipe.data.noise
    told: dict[str, str | int] = {
        "noise": f"{noise.kind}-{noise.rate:g}",
        "window": noise.window(recipe.training.batches.context),
    }
    if not isinstance(noise, SpanNoise) and noise.whole_words:
        told["words"] = f"scripts-{SCRIPTS}"
    if isinstance(noise, InfillingNoise) and noise.permute_sentences:
        told["sent"] = f"rules-{RULES}"
    if metric == "perplexity":
        found = measure_perplexity(mended.nll, mended.answers)
        return replace(found, conditions={**told, **found.conditions})
    right, answers = int(mended.right.sum()), int(mended.answers.sum())
    return Measurement(
        name=METRICS[metric].label,
        better="higher",
        statistics=np.stack([mended.right, mended.answers], axis=1),
        values=share,
        conditions={**told, "bs": None, "seed": None, "unit": "token", "version": f"sightline-{version()}"},
        against=fingerprint("tokens", mended.answers),
        detail=f"{right:,} of {plural(answers, 'hidden token')} likeliest at their places",
    )
