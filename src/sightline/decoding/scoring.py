"""Log-probabilities of outputs under teacher forcing, and the attention of their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from sightline.decoding.ensemble import Ensemble, model_limits
from sightline.decoding.request import DecodableModel, length_batches, pad_tokens
from sightline.layers.layout import Padded
from sightline.layers.tap import Tapped, on_taps
from sightline.text.tokenizer import END, START


def initial_state(model: DecodableModel, sources: Sequence[Sequence[int]], device: torch.device | str) -> Any:
    """The decoder state for sources (without END), before the first target token."""
    rows = [[*source, END] for source in sources]
    return model.begin(model.encode(pad_tokens(rows, device), Padded.of([len(row) for row in rows], device)))


@torch.inference_mode()
def log_probabilities(
    model: DecodableModel,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    *,
    device: torch.device | str = "cpu",
    tokens: int = 4096,
    first: int = 0,
) -> np.ndarray:
    """(number of pairs,) log p(target, end | source); `first` is the number of the first pair, for errors."""
    losses = token_losses(model, sources, targets, device=device, tokens=tokens, first=first)
    return np.array([-own.sum() for own in losses])


@torch.inference_mode()
def token_losses(
    model: DecodableModel,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    *,
    device: torch.device | str = "cpu",
    tokens: int = 4096,
    first: int = 0,
) -> list[np.ndarray]:
    """For each pair (T + 1,) −log p of each target token and the end mark, given the source and the tokens before."""
    losses_by_pair = [np.empty(0)] * len(sources)
    for longest in (longest for longest, in_one in model_limits(model) if in_one):
        for number, (source, target) in enumerate(zip(sources, targets, strict=True), first + 1):
            if (count := len(source) + len(target) + 2) > longest:
                raise ValueError(
                    f"pair {number} has {count} tokens, marks included, and this model takes {longest} (its "
                    f"learned positions); shorten or split it"
                )
    lengths = [max(len(source), len(target)) + 1 for source, target in zip(sources, targets, strict=True)]
    for indices in length_batches(lengths, tokens):
        inputs, labels = ([[START, *targets[n]] for n in indices], [[*targets[n], END] for n in indices])
        features, _ = model.advance(
            pad_tokens(inputs, device), initial_state(model, [sources[n] for n in indices], device)
        )
        losses = _nll(model, features, pad_tokens(labels, device))  # (B, T)
        for index, own in zip(indices, losses, strict=True):
            losses_by_pair[index] = own[: len(targets[index]) + 1]
    return losses_by_pair


@torch.inference_mode()
def stream_losses(
    model: DecodableModel,
    stream: np.ndarray,
    *,
    context: int,
    stride: int,
    carry: bool = False,
    device: torch.device | str = "cpu",
    tokens: int = 16_384,
) -> np.ndarray:
    """(len(stream),) −log p of each token of a text given those before it.

    Windows of `context` tokens slide by `stride`; only the last `stride` tokens of each are scored, so every token but
    the first ones has a context of at least `context − stride`. With `carry` (recurrent models), each window continues
    from the state of the previous one, in a few rows that each warm up on the window before their part.
    """
    if carry:
        return _carried_losses(model, stream, context, max(1, tokens // context), device)
    ends = np.minimum(np.arange(min(context, len(stream)), len(stream) + stride, stride), len(stream))
    starts = np.maximum(ends - context, 0)
    losses, done = np.zeros(len(stream)), 0
    together = max(1, tokens // context)
    for at in range(0, len(ends), together):
        group = list(zip(starts[at : at + together], ends[at : at + together], strict=True))
        labels = [stream[start:end].astype(np.int64) for start, end in group]
        inputs = [[START, *part[:-1].tolist()] for part in labels]
        features, _ = model.advance(pad_tokens(inputs, device), initial_state(model, [[]] * len(group), device))
        nll = _nll(model, features, pad_tokens([part.tolist() for part in labels], device))
        for row, (start, end) in enumerate(group):
            losses[done:end] = nll[row, done - start : end - start]
            done = end
    return losses


def _carried_losses(model: Any, stream: np.ndarray, context: int, rows: int, device: torch.device | str) -> np.ndarray:
    rows = max(1, min(rows, len(stream) // (4 * context)))
    bounds = np.linspace(0, len(stream), rows + 1).astype(np.int64)
    begins = np.maximum(bounds[:-1] - context, 0)  # each row warms up on the window before its part
    losses = np.zeros(len(stream))
    state = model.begin_empty(rows)
    before = np.concatenate([[START], stream.astype(np.int64)])  # the token before each token
    for at in range(0, int((bounds[1:] - begins).max()), context):
        places = begins[:, None] + at + np.arange(context)  # (rows, context)
        safe = np.minimum(places, len(stream) - 1)
        features, state = model.advance(torch.from_numpy(before[safe]).to(device), state)
        nll = _nll(model, features, torch.from_numpy(stream[safe].astype(np.int64)).to(device))
        scored = (places >= bounds[:-1, None]) & (places < bounds[1:, None])
        losses[places[scored]] = nll[scored]
    return losses


def _nll(model: DecodableModel, features: torch.Tensor, labels: torch.Tensor) -> np.ndarray:
    """(B, T) −log p of the labels."""
    scores = model.logits(features).float().log_softmax(-1)  # (B, T, V), in half the time of logsumexp on a CPU
    losses: np.ndarray = -scores.gather(-1, labels[..., None])[..., 0].cpu().double().numpy()
    return losses


@torch.inference_mode()
def attention_to_source(
    model: DecodableModel, source: Sequence[int], target: Sequence[int], *, device: torch.device | str = "cpu"
) -> np.ndarray | None:
    """(T + 1, S + 1) mean attention over the heads, end marks included, or None for a model without attention.

    Of several layers the last but one is taken, where Transformers align best (Garg et al. 2019); of an ensemble, the
    mean over models with attention.
    """
    if not model.cross_attention_paths:
        return None
    return _attention(model, [source], [target], device)[0].cpu().numpy()


@torch.inference_mode()
def strongest_links(
    model: DecodableModel,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    *,
    device: torch.device | str = "cpu",
    tokens: int = 4096,
) -> list[np.ndarray]:
    """For each pair (T,) the source token with the most attention as each target token is predicted, without END."""
    if not model.cross_attention_paths:
        raise ValueError("this model has no attention to a source, so nothing links its output to one")
    links = [np.zeros(0, np.int64)] * len(sources)
    lengths = [max(len(source), len(target)) + 1 for source, target in zip(sources, targets, strict=True)]
    for indices in length_batches(lengths, tokens):
        weights = _attention(model, [sources[n] for n in indices], [targets[n] for n in indices], device)
        for place, index in enumerate(indices):
            own = weights[place, : len(targets[index]), : len(sources[index])]
            links[index] = own.argmax(-1).cpu().numpy()
    return links


def _attention(
    model: DecodableModel,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    device: torch.device | str,
) -> torch.Tensor:
    """(B, T + 1, S + 1) mean attention over the heads of the layer that aligns best, for the longest of each side."""
    if isinstance(model, Ensemble):
        weights = [_attention(each, sources, targets, device) for each in model.members() if each.cross_attention_paths]
        return torch.stack(weights).mean(0)
    recorded: list[Tapped] = []
    path = model.cross_attention_paths[max(len(model.cross_attention_paths) - 2, 0)]
    with on_taps(model, recorded.append, (path,)):  # type: ignore[arg-type]
        state = initial_state(model, sources, device)
        model.advance(pad_tokens([[START, *target] for target in targets], device), state)
    weights = [tapped.tensor for tapped in recorded if tapped.name.endswith(".weights")]
    return torch.cat(weights, dim=2).mean(1).float()  # at once, or step by step
