"""What every step of a search does, whoever takes it: what may come next, and who goes on."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sightline.decoding.batch import Batch
from sightline.text.tokenizer import END, PAD, SPECIALS, START

_MORE = 8  # an output that is longer than the sources of its batch by so many words runs on


def next_scores(logs: Tensor, batch: Batch, step: int, said: Tensor) -> Tensor:
    """logs (B·W, V) of what follows said (B, W, t), with what may not come at −∞.

    That is padding, start, marks of noise, all but a forced prefix, all but the end where a limit is reached, and what
    the rules say; a forced prefix is above them, and a hypothesis that has nothing left to say ends.
    """
    forced = _forced(logs, batch, step, said.shape[1])
    end = logs[:, END].clone()
    if batch.rules is not None:
        batch.rules.mask(logs, said)
    logs[:, PAD] = float("-inf")
    logs[:, START] = float("-inf")
    logs[:, len(SPECIALS) : len(SPECIALS) + batch.marks] = float("-inf")
    if batch.known is not None:
        logs[:, batch.known :] = float("-inf")
    if batch.rules is not None:
        stuck = logs.amax(-1) == float("-inf")
        logs[:, END] = torch.where(stuck, end, logs[:, END])
    if forced is not None:
        logs[forced.rows] = float("-inf")
        logs[forced.rows, forced.tokens] = forced.logs
    return logs


class _Forced(NamedTuple):
    """What must come next, where something must: N of the rows (B·W)."""

    rows: Tensor  # (N,)
    tokens: Tensor  # (N,)
    logs: Tensor  # (N,) of each its own log-probability


def _forced(logs: Tensor, batch: Batch, step: int, width: int) -> _Forced | None:
    """The next token of a forced prefix, or the end where a limit is reached; logs (B·W, V) are the model's own."""
    if batch.prefixes is None and step + 1 < batch.least:
        return None
    wanted = torch.where(batch.limits == step + 1, END, PAD)  # (B,), PAD: free
    if batch.prefixes is not None and step < batch.prefixes.shape[1]:
        wanted = torch.where(batch.prefixes[:, step] != PAD, batch.prefixes[:, step], wanted)
    sentences = (wanted != PAD).nonzero()  # (N / W, 1)
    if not len(sentences):
        return None
    rows = (sentences * width + torch.arange(width, device=sentences.device)).flatten()
    tokens = wanted[sentences[:, 0]].repeat_interleave(width)
    return _Forced(rows, tokens, logs[rows, tokens])


def truncated(logs: Tensor, batch: Batch, step: int, width: int) -> Tensor | None:
    """(B, W) which hypotheses a length limit ends after this step, although another token is more probable than END.

    logs (B·W, V) are the model's own; None where no limit is reached.
    """
    if step + 1 < batch.least:
        return None
    reached = batch.limits == step + 1  # (B,)
    if not reached.any():
        return None
    return reached[:, None] & (logs.argmax(-1) != END).view(-1, width)


def given_up(batch: Batch, step: int) -> int:
    """So many unfinished sentences are given up after this step, at most.

    None before an output is longer than the sources by some words: most end soon, and to decode them again from their
    first word would take more steps than are left.
    """
    return batch.few if step >= batch.source.shape[1] + _MORE else 0


def size_for(alive: int, size: int, device: torch.device) -> int:
    """How many of `size` sentences a batch should go on with: the living, above 16 of them rounded up.

    To eights on a CPU: oneDNN makes a kernel for each number of rows, and keeps about a thousand of them. To eighths of
    the batch on a GPU, for which it is more work to move sentences together than to take a step for some that are done.
    """
    grain = 8 if device.type == "cpu" else max(8, -(-size // 8))
    return alive if alive <= 16 else min(size, -(-alive // grain) * grain)


def staying(done: Tensor, count: int) -> Tensor:
    """Indices (count,) of all that is not done, and of some that is, if there is room.

    As many as possible stay in their places: the last ones fill holes.
    """
    rows = torch.arange(count, device=done.device)
    movers = (~done[count:]).nonzero()[:, 0] + count
    rows[done[:count].nonzero()[: len(movers), 0]] = movers
    return rows
