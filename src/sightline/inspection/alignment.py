"""Which source token each target token looked at: to keep, to print, to draw."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import RenderableType


@dataclass(frozen=True, eq=False, repr=False)
class Alignment:
    """Attention weights between two token sequences; row t holds what target token t gave to each source token."""

    source: list[str]
    target: list[str]
    weights: NDArray[np.float32]  # (T, S)

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", np.asarray(self.weights, dtype=np.float32))
        expected = (len(self.target), len(self.source))
        if self.weights.shape != expected and self.weights.size + expected[0] * expected[1]:
            raise ValueError(f"weights {self.weights.shape} must be (target tokens, source tokens), here {expected}")
        object.__setattr__(self, "weights", self.weights.reshape(expected))
        if not np.isfinite(self.weights).all():
            raise ValueError("weights must be finite numbers; nan or infinity means the model's attention went wrong")

    def to_dict(self) -> dict[str, Any]:
        """For JSON; weights are kept to six digits."""
        rows = [[round(float(weight), 6) for weight in row] for row in self.weights]
        return {"source": list(self.source), "target": list(self.target), "weights": rows}

    def draw(self, path: str | os.PathLike[str] | None = None, *, title: str | None = None) -> Figure:
        """A matplotlib figure of the weights; with a path (.png, .svg or .pdf) it is written to that file, too.

        Labels may be of any script for which a font is installed. To save the figure yourself, without cutting labels:
        `figure.savefig(path, bbox_inches="tight")`. Needs matplotlib: `pip install 'sightline[viz]'`.
        """
        from sightline.plots.alignment import draw_alignment

        return draw_alignment(self, None if path is None else Path(path), title=title)

    def text(self, width: int = 100) -> str:
        """The weights as a grid of characters: target tokens downwards, source tokens across."""
        from sightline.inspection.terminal_grid import plain_text

        return plain_text(render_terminal(self), width)

    def __repr__(self) -> str:
        size = f"{len(self.target)} target tokens × {len(self.source)} source tokens"
        both = f"{_beginning(self.target)} ← {_beginning(self.source)}"
        return f"Alignment({size}: {both}; .text() or .draw() shows it, .weights are the numbers)"

    def scaled(self) -> NDArray[np.float32]:
        """Weights for showing, at most 1: as they are, unless (linear attention) they are no shares of one."""
        peak = float(np.abs(self.weights).max(initial=0.0))
        return self.weights / peak if peak > 1.001 else self.weights


def render_terminal(alignment: Alignment) -> RenderableType:
    """A grid for a terminal: target tokens downwards, source tokens across; see terminal_grid.py."""
    from sightline.inspection.terminal_grid import TerminalGrid

    return TerminalGrid(alignment)


def _beginning(tokens: list[str]) -> str:
    return repr(" ".join(tokens[:6]) + (" …" if len(tokens) > 6 else ""))


def visible(token: str) -> str:
    """A token as a label: what cannot be seen gets a sign, a lone combining mark gets a circle to sit on."""
    import unicodedata

    if not token:
        return "∅"
    signs = {" ": "␣", "\n": "⏎", "\t": "⇥", "\u00a0": "⍽"}
    if token.isspace():
        return "".join(signs.get(character, "␣") for character in token)
    label = "".join("�" if unicodedata.category(c) in ("Cc", "Cs") else c for c in " ".join(token.split()))
    return "◌" + label if unicodedata.category(label[0]).startswith("M") else label
