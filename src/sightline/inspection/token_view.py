"""Token by token: how likely each token of the output was, and what else might have stood there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from rich.table import Table
from rich.text import Text

from sightline.inspection.trace import Trace
from sightline.inspection.trace_display import first_written, headline
from sightline.terminal import visible

_WIDEST = 78  # of what a short table is widened to


@dataclass(frozen=True)
class TokenChoice:
    """One place of the output: the token that stands there, its probability, and the likeliest ones."""

    place: int
    token: str
    probability: float
    loss: float
    likeliest: tuple[tuple[str, float], ...]


def token_choices(trace: Trace, name: Callable[[int], str], count: int = 5) -> list[TokenChoice]:
    """Every place where an answer is wanted; `name` gives the token of a column of the probabilities.

    Places of what is written are counted from the first output token, those of labels in the text.
    """
    probabilities = trace["probabilities"].reshape(-1, trace["probabilities"].shape[-1])  # (T, V)
    wanted, losses = trace["wanted"].flatten(), trace["losses"].flatten()
    found, first = [], first_written(trace)
    for place in trace.about.get("places", range(len(wanted))):
        row, token, loss = probabilities[place], int(wanted[place]), float(losses[place])
        best = torch.topk(row, min(count, len(row)))
        likeliest = tuple((name(k), p) for p, k in zip(best.values.tolist(), best.indices.tolist(), strict=True))
        found.append(TokenChoice(place - first, name(token), float(row[token]), loss, likeliest))
    return found


def token_table(trace: Trace, choices: Sequence[TokenChoice]) -> Table:
    """The same for a terminal."""
    title = Text(headline(trace))
    width = min(title.cell_len, _WIDEST)  # or it would be broken where the table ends
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, min_width=width)
    for column, justify in (
        ("", "right"),
        ("token", "left"),
        ("p", "right"),
        ("−log p", "right"),
        ("likeliest", "left"),
    ):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for each in choices:
        best = "  ".join(f"{visible(token)} {share:.3f}" for token, share in each.likeliest)
        first = each.likeliest[0][0] == each.token
        token = Text(visible(each.token), style="" if first else "bold yellow")
        table.add_row(str(each.place), token, f"{each.probability:.4f}", f"{each.loss:.3f}", Text(best))
    return table
