"""Decoding in turns: every run decodes the same part of the test set before any goes on to the next.

A machine that is slower for a while (other programs, heat) is so for all runs alike. The order rotates, so that nobody
always comes first, and the outputs of these very turns are the ones that are scored.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from sightline.comparison.systems import Contestant
from sightline.progress import Progress

_MOST_PARTS = 8
_LEAST_SENTENCES = 25  # in a part: fewer would not fill a batch
_LEAST_ON_GPU = 250
_WARM_UP = 16  # sentences


@dataclass(frozen=True)
class Decoded:
    """The outputs of a run, and how long it took over them."""

    outputs: list[str]
    seconds: float


def take_turns(contestants: Sequence[Contestant], sources: Sequence[str], progress: Progress) -> dict[str, Decoded]:
    """The outputs of each run, under its name, for all sources in their order."""
    for number, contestant in enumerate(contestants):
        progress("warming up", number, len(contestants))
        contestant.decode(sources[:_WARM_UP], first=0)
    gpu = any(contestant.on_gpu for contestant in contestants)
    parts = _parts(len(sources), _LEAST_ON_GPU if gpu else _LEAST_SENTENCES)
    outputs: list[list[str]] = [[] for _ in contestants]
    seconds = [0.0] * len(contestants)
    done = 0
    for number, (start, stop) in enumerate(parts):
        for place in _rotated(len(contestants), number, len(parts)):
            progress(f"decoding, part {number + 1} of {len(parts)}", done, len(parts) * len(contestants))
            began = time.perf_counter()
            outputs[place] += contestants[place].decode(sources[start:stop], first=start)
            seconds[place] += time.perf_counter() - began
            done += 1
    return {
        contestant.name: Decoded(texts, spent)
        for contestant, texts, spent in zip(contestants, outputs, seconds, strict=True)
    }


def _parts(sentences: int, least: int) -> list[tuple[int, int]]:
    """From and to of each part: parts of nearly the same size."""
    count = max(1, min(_MOST_PARTS, sentences // least))
    ends = [sentences * number // count for number in range(count + 1)]
    return list(pairwise(ends))


def _rotated(runs: int, number: int, parts: int) -> list[int]:
    """Whose turn it is, in order; of more runs than parts, the first ones lie far apart."""
    start = number * max(1, runs // parts) % runs
    return [*range(start, runs), *range(start)]
