"""How good a model is while it is being trained: its loss on the validation set, its metric, samples of its output."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from sightline.decoding.generate import generate
from sightline.evaluation.metrics import METRICS, score
from sightline.preparation import Prepared
from sightline.training.batches import padded_batch
from sightline.training.job import Validation
from sightline.training.step import autocast, batch_loss


class Validator:
    """Loss on the validation set, its metric by real decoding if early stopping wants it, and sample outputs."""

    def __init__(self, prepared: Prepared, device: torch.device) -> None:
        self.prepared, self.recipe, self.device = prepared, prepared.recipe, device
        store = prepared.validation
        self.sources, self.targets = store.take(np.arange(len(store)))

    def __call__(self, model: nn.Module) -> Validation:
        started = time.monotonic()
        with torch.inference_mode(), autocast(self.recipe.training.precision, self.device):
            loss = self._loss(model)
            record: dict[str, Any] = {"loss": loss, "perplexity": float(np.exp(min(loss, 700.0)))}
            value, record["samples"] = loss, self._samples(model)
            if self.recipe.training.stopping.on == "metric":
                name = self.recipe.evaluation.metrics[0]
                found = self._metric(model, name)
                record[name] = found
                value = -found if METRICS[name].better == "higher" else found
        record["validation_seconds"] = round(time.monotonic() - started, 3)
        return Validation(value, record)

    def _loss(self, model: nn.Module) -> float:
        total, tokens = 0.0, 0
        lengths = self.prepared.validation.target_lengths
        for indices in np.array_split(np.argsort(lengths, kind="stable"), max(1, len(lengths) // 64)):
            batch = padded_batch(
                [self.sources[index] for index in indices], [self.targets[index] for index in indices], indices
            )
            batch = batch.to(self.device) if self.device.type == "cuda" else batch
            total += float(batch_loss(model, batch, 0.0).nll)
            tokens += batch.tokens
        return total / tokens

    def _decode(self, model: nn.Module, sources: Sequence[np.ndarray], beam: int) -> list[str]:
        options = self.recipe.decoding.model_copy(update={"beam": beam, "nbest": 1, "sample": None})
        found = generate(model, [source.tolist() for source in sources], options, device=self.device)  # type: ignore[arg-type]
        return self.prepared.vocabulary.target.decode_many([hypotheses[0].tokens for hypotheses in found])

    def _samples(self, model: nn.Module) -> list[dict[str, str]]:
        count = min(self.recipe.training.samples, len(self.sources))
        if not count:
            return []
        outputs = self._decode(model, self.sources[:count], 1)
        return [
            {"source": example.source, "reference": example.target, "output": output}
            for example, output in zip(self.prepared.references[:count], outputs, strict=True)
        ]

    def _metric(self, model: nn.Module, name: Any) -> float:
        outputs = self._decode(model, self.sources, self.recipe.training.stopping.beam)
        references = [[example.target] for example in self.prepared.references]
        return score(name, outputs, references, lowercase=self.recipe.evaluation.lowercase, bootstrap=0).value
