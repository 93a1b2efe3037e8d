"""Which experts the tokens of a text were sent to: read from the gates of a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from sightline.inspection.alignment import visible
from sightline.inspection.trace import Trace
from sightline.inspection.walk_through import layer_of

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, eq=False)
class Routing:
    """One layer of experts over one text."""

    path: str  # of the experts in the model
    tokens: list[str]
    gates: NDArray[np.float32]  # (T, E), each row sums to one, zeros where an expert was not asked

    @property
    def shares(self) -> NDArray[np.float32]:
        """(E,) how much of the text each expert wrote: its gates, over the tokens."""
        result: NDArray[np.float32] = self.gates.mean(axis=0)
        return result

    @property
    def asked(self) -> list[int]:
        """(E,) how many tokens were sent to each."""
        return [int(count) for count in (self.gates > 0).sum(axis=0)]

    def best(self, token: int) -> list[tuple[int, float]]:
        """The experts of a token with their gates, the largest first."""
        row = self.gates[token]
        return [(int(each), float(row[each])) for each in np.argsort(-row, kind="stable") if row[each] > 0]

    def to_dict(self) -> dict[str, Any]:
        """For JSON; gates are kept to six digits."""
        rows = [[round(float(gate), 6) for gate in row] for row in self.gates]
        shares = [round(float(share), 6) for share in self.shares]
        return {"path": self.path, "tokens": self.tokens, "shares": shares, "asked": self.asked, "gates": rows}


def routings(trace: Trace, *, layer: int | None = None) -> list[Routing]:
    """Every layer of experts in a trace, or one; none where the model has none."""
    found: dict[str, list[torch.Tensor]] = {}
    for step in trace:
        if step.point == "gates" and (layer is None or layer_of(step.name) == layer):
            found.setdefault(step.path, []).append(step.tensor)
    made = []
    for path, parts in found.items():
        gates = torch.cat(parts, dim=1)[0].float().cpu().numpy()  # (T, E)
        tokens = list(trace.read_by(path))
        labels = tokens if len(tokens) == len(gates) else [str(place) for place in range(len(gates))]
        made.append(Routing(path, labels, gates))
    return made


def routing_table(found: Sequence[Routing]) -> Table:
    """For a terminal: a row for each token, a column for each layer, and the shares of the experts below."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, title="experts of each token, and their gates", title_justify="left")
    table.add_column("token")
    for routing in found:
        table.add_column(routing.path, overflow="fold")
    sides = list(dict.fromkeys(tuple(routing.tokens) for routing in found))
    for side in sides:
        for place, token in enumerate(side):
            cells = [
                "  ".join(f"{number}: {gate:.2f}" for number, gate in routing.best(place))
                if tuple(routing.tokens) == side
                else ""
                for routing in found
            ]
            table.add_row(Text(visible(token)), *cells)
        table.add_section()
    shares = ["  ".join(f"{number}: {share:.0%}" for number, share in enumerate(each.shares)) for each in found]
    table.add_row("share of each", *shares)
    return table
