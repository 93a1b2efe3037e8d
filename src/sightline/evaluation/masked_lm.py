"""Evaluation of masked-LM and denoising models: likelihood and accuracy of the corrupted tokens of a text.

The noise of held-out text is fixed, so all models of a recipe see the same windows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from sightline.data.collate import TrainingBatch, collate_fn, padded_batch
from sightline.data.noise import Corrupter, fixed_windows
from sightline.evaluation.error_rates import percentage_of_sums
from sightline.evaluation.measurement import Measurement, fingerprint
from sightline.evaluation.perplexity import MaskedAccuracy, measure_perplexity
from sightline.recipe import MetricName, Recipe
from sightline.recipe.data import InfillingNoise, SpanNoise
from sightline.registry import version
from sightline.terminal import plural
from sightline.text.sentences import RULES, SCRIPTS
from sightline.text.tokenizer import PAD
from sightline.text.vocabulary import Vocabulary

_TOKENS = 4_096  # of the windows of one batch


@dataclass(frozen=True)
class DenoisingScores:
    """How a model predicts the labels of corrupted windows."""

    nll: np.ndarray  # (W,) −log p of the labels of each window
    labels: np.ndarray  # (W,) their number
    right: np.ndarray  # (W,) how many of them are the most likely token

    @property
    def loss(self) -> float:
        """Mean −log p of a label."""
        return float(self.nll.sum() / self.labels.sum())

    @property
    def accuracy(self) -> float:
        """Percentage of labels that are the most likely token."""
        return float(100 * self.right.sum() / self.labels.sum())


def score_denoising(
    model: Any, recipe: Recipe, vocabulary: Vocabulary, stream: np.ndarray, device: torch.device
) -> DenoisingScores:
    """Score the reconstruction of a text (ids with end marks), corrupted window by window."""
    noise, collate = Corrupter(recipe, vocabulary), collate_fn(recipe)
    windows = fixed_windows(stream, noise.length)
    sums = np.zeros((3, len(windows)))
    rows = max(1, _TOKENS // (noise.length + 2))
    with torch.inference_mode():
        for first in range(0, len(windows), rows):
            part = windows[first : first + rows]
            batch = padded_batch(collate(*noise.held_out(part, first)), np.arange(len(part)))
            window = _windows_of_labels(batch)
            batch = batch.to(device) if device.type != "cpu" else batch
            features = model(batch.source, batch.source_layout, batch.decoder_input, batch.decoder_layout)
            for total, each in zip(sums, _scores(model, features, batch.labels), strict=True):
                total[first : first + len(part)] = np.bincount(window, each, minlength=len(part))
    return DenoisingScores(*sums)


def _windows_of_labels(batch: TrainingBatch) -> np.ndarray:
    """(A,) the row of a padded batch that each label belongs to."""
    assert batch.source is not None and batch.decoder_input is not None
    picked = batch.decoder_layout is None
    places = batch.decoder_input if picked else torch.arange(batch.labels.numel())
    rows: np.ndarray = (places // (batch.source if picked else batch.decoder_input).shape[1]).numpy()
    return rows


def _scores(model: Any, features: torch.Tensor, labels: torch.Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(A,) each: −log p of a label, 1, and 1 if it is the most likely token; 0 at padding."""
    logits = model.logits(features.reshape(-1, features.shape[-1])).float()  # (A, V)
    labels = labels.reshape(-1)
    real = labels != PAD
    nll = (logits.logsumexp(-1) - logits.gather(-1, labels[:, None])[:, 0]) * real
    right = (logits.argmax(-1) == labels) & real
    return nll.double().cpu().numpy(), real.double().cpu().numpy(), right.double().cpu().numpy()


def measure_denoising(metric: MetricName, scores: DenoisingScores, recipe: Recipe) -> Measurement:
    """Perplexity or accuracy of a model on corrupted windows; the signature names the noise."""
    noise = recipe.data.noise
    assert noise is not None
    signature: dict[str, object] = {
        "noise": f"{noise.kind}-{noise.rate:g}",
        "window": noise.window(recipe.training.batches.context),
    }
    if not isinstance(noise, SpanNoise) and noise.whole_words:
        signature["words"] = f"scripts-{SCRIPTS}"
    if isinstance(noise, InfillingNoise) and noise.permute_sentences:
        signature["sent"] = f"rules-{RULES}"
    if metric == "perplexity":
        perplexity = measure_perplexity(scores.nll, scores.labels)
        return replace(perplexity, conditions={**signature, **perplexity.conditions})
    right, labels = int(scores.right.sum()), int(scores.labels.sum())
    return MaskedAccuracy().measurement(
        np.stack([scores.right, scores.labels], axis=1),
        percentage_of_sums,
        conditions={**signature, "bs": None, "seed": None, "unit": "token", "version": f"sightline-{version()}"},
        against=fingerprint("tokens", scores.labels),
        detail=f"{right:,} of {plural(labels, 'hidden token')} likeliest at their places",
    )
