"""What the cost of local and compressed attention is counted in: blocks and compressed keys, and pairs of them.

What each of them weighs does not depend on how long a block is, so it is found with blocks of a few tokens: a batch of
a few tokens has several of those.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from sightline.layers import local_attention as cuts
from sightline.layers.local_attention import Compressed, Local, Span


@dataclass(frozen=True)
class SpanSize:
    """Where a span cuts sequences: every `step` tokens, into blocks or into what one compressed key stands for."""

    reads: bool  # the source; else what is written
    step: int
    local: bool
    beside: bool = False  # blocks see their neighbours
    exact: bool = True  # on CUDA there are as many parts as there may be at most: see layers/local_attention.py

    def sizes(self, lengths: np.ndarray, longest: int, *, rows_as_they_are: bool) -> list[int]:
        """Parts, pairs of places in a padded tensor of them, and real pairs, for sequences of these lengths.

        (An encoder cuts sequences end to end; a decoder that is given padded rows cuts those.)
        """
        if rows_as_they_are and not self.reads:
            lengths = np.full_like(lengths, longest)
        each, rows = -(-lengths // self.step), len(lengths)
        parts = int(each.sum()) if self.exact else int(lengths.sum()) // self.step + rows
        if not self.local:
            spare = 0 if self.exact else rows
            width, real = -(-longest // self.step), int((each**2).sum()) + parts - int(each.sum())
            return [parts, (rows + spare) * width**2, 0 if self.exact else real]
        last = lengths - self.step * (each - 1)  # of the last block of each
        real = int((np.maximum(each - 1, 0) * self.step**2 + np.where(each > 0, last**2, 0)).sum())
        pairs = parts * min(self.step, longest) ** 2
        around = self.beside and longest > self.step
        return [0 if around else pairs, pairs if around else 0, 0 if self.exact else real]


def _spans(model: nn.Module) -> dict[str, Span]:
    """By path."""
    return {path: module for path, module in model.named_modules() if isinstance(module, Local | Compressed)}


def span_sizes(model: nn.Module, device: torch.device) -> tuple[SpanSize, ...]:
    """The kinds of spans in a model that cut differently, in the order of their first layer."""
    found = []
    for path, span in _spans(model).items():
        local = isinstance(span, Local)
        step, beside = (span.block, span.look_back > 0) if isinstance(span, Local) else (span.stride, False)
        found.append(SpanSize(path.startswith("encoder."), step, local, beside, exact=cuts.countable(device)))
    return tuple(dict.fromkeys(found))


@contextmanager
def small_blocks(model: nn.Module) -> Iterator[None]:
    """Inside the block the blocks of local attention have a few tokens.

    Those that differ go on differing, and none is as long as a stride: else two costs would look like one.
    """
    spans = _spans(model).values()
    found = [span for span in spans if isinstance(span, Local)]
    before = [span.block for span in found]
    smallest = 1 + max([1, *(span.stride for span in spans if isinstance(span, Compressed))])
    small = {block: smallest + number for number, block in enumerate(dict.fromkeys(before))}
    for span in found:
        span.block = small[span.block]
    try:
        yield
    finally:
        for span, block in zip(found, before, strict=True):
            span.block = block


def longest_told(spans: Sequence[SpanSize]) -> int:
    """How many tokens sequences must have at most to tell what these weigh: parts enough to see the square in them."""
    return max([0, *(3 * each.step + 1 for each in spans)])
