"""Which source token each target token looked at: to keep, to print, to draw."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True, eq=False)
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

    def scaled(self) -> NDArray[np.float32]:
        """Weights for showing, at most 1: as they are, unless (linear attention) they are no shares of one."""
        peak = float(np.abs(self.weights).max(initial=0.0))
        return self.weights / peak if peak > 1.001 else self.weights


def render_terminal(alignment: Alignment) -> RenderableType:
    """A grid for a terminal: target tokens downwards, source tokens across; see terminal_grid.py."""
    from sightline.inspection.terminal_grid import TerminalGrid

    return TerminalGrid(alignment)


def draw(alignment: Alignment, path: str | Path, *, title: str | None = None) -> None:
    """A picture of the grid as a file (needs matplotlib: `pip install 'sightline[viz]'`); see pictures/alignment.py."""
    from sightline.inspection.pictures.alignment import draw_alignment

    draw_alignment(alignment, Path(path), title=title)


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
