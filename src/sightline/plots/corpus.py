"""A test set by length as a picture: nats a token and, where it was decoded, the score, of short and long sentences."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sightline.evaluation.breakdowns import LengthBucket
from sightline.inspection.corpus_view import LengthLoss
from sightline.plots.lines import Line, Panel, draw_lines


def draw_lengths(
    losses: Sequence[LengthLoss],
    qualities: Sequence[LengthBucket],
    path: Path,
    *,
    name: str,
    metric: str = "",
    title: str | None = None,
) -> None:
    """A panel for the loss of a system, one for its `metric` if there are `qualities`; a point is a bucket's middle."""
    lengths = [(each.low + each.high) / 2 for each in losses]
    loss = Line(name, lengths, [each.loss for each in losses], 0)
    panels = [Panel("loss by length", "tokens of the target", "nats a token", [loss], log_y=False)]
    if qualities:
        words = [(each.low + each.high) / 2 for each in qualities]
        scores = [each.scores[name] for each in qualities]
        quality = Line(name, words, scores, 0)
        panels.append(Panel("quality by length", "words of the reference", metric, [quality], log_y=False))
    draw_lines(panels, path, title=title)
