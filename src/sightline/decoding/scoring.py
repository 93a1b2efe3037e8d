"""What a model thinks of a given output: its log-probability, and where it looked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from sightline.decoding.generate import length_batches, pad_tokens
from sightline.decoding.search import Stepper
from sightline.layers.layout import Padded
from sightline.layers.tap import Tapped, listen
from sightline.text.tokenizer import END, START


@torch.inference_mode()
def log_probabilities(
    model: Stepper,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    *,
    device: torch.device | str = "cpu",
    tokens: int = 4096,
) -> np.ndarray:
    """(number of pairs,) log p(target, end | source)."""
    totals = np.zeros(len(sources))
    lengths = [max(len(source), len(target)) + 1 for source, target in zip(sources, targets, strict=True)]
    for indices in length_batches(lengths, tokens):
        rows = [[*sources[index], END] for index in indices]
        given = [[START, *targets[index]] for index in indices]
        state = model.begin(model.encode(pad_tokens(rows, device), Padded.of([len(row) for row in rows], device)))
        features, _ = model.advance(pad_tokens(given, device), state)
        scores = model.logits(features).float().log_softmax(-1)  # (B, T, V)
        for place, index in enumerate(indices):
            wanted = torch.tensor([*targets[index], END], device=scores.device)
            totals[index] = float(scores[place, : len(wanted)].gather(1, wanted[:, None]).double().sum())
    return totals


@torch.inference_mode()
def attention_to_source(
    model: Stepper, source: Sequence[int], target: Sequence[int], *, device: torch.device | str = "cpu"
) -> np.ndarray | None:
    """(T + 1, S + 1) mean attention over the heads, end marks included, or None for a model without attention.

    Of several layers the last but one is taken, where Transformers align best (Garg et al. 2019).
    """
    if not model.looks:
        return None
    heard: list[Tapped] = []
    path = model.looks[max(len(model.looks) - 2, 0)]
    with listen(model, heard.append, (path,)):  # type: ignore[arg-type]
        state = model.begin(model.encode(pad_tokens([[*source, END]], device), Padded.of([len(source) + 1], device)))
        model.advance(pad_tokens([[START, *target]], device), state)
    weights = [tapped.tensor for tapped in heard if tapped.name.endswith(".weights")]
    rows = torch.cat([part[0].mean(0) for part in weights])  # (T + 1, S + 1): at once, or step by step
    return rows.float().cpu().numpy()
