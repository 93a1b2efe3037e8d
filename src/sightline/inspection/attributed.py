"""An attribution: to keep, to group into words, to print, to draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sightline.inspection.alignment import Alignment
from sightline.plots.heat_map import Numbers, row_shares
from sightline.text.tokenizer import SPACE
from sightline.text.word_pieces import word_groups


@dataclass(frozen=True, eq=False)
class Attribution:
    """What each answer owes to each token, in nats of its log-probability."""

    method: str
    outputs: list[str]
    scores: Numbers  # (A,) log p of each answer
    source: list[str]
    from_source: Numbers  # (A, S)
    target: list[str]  # the tokens given before an answer: <s>, then the outputs but the last
    from_target: Numbers  # (A, T), nothing from a token that comes later
    gaps: Numbers | None = None  # (A,) integrated gradients: f(x) − f(x') − Σ a, which should be nothing

    def __post_init__(self) -> None:
        for what, tokens, found in (
            ("source", self.source, self.from_source),
            ("target", self.target, self.from_target),
        ):
            if found.shape != (len(self.outputs), len(tokens)):
                raise ValueError(
                    f"the attributions to the {what} are {found.shape} and must be (outputs, tokens), here "
                    f"{(len(self.outputs), len(tokens))}"
                )

    def shares(self) -> tuple[Numbers, Numbers]:
        """(A, S) and (A, T): the size of each as a share of all that the answer has."""
        both = row_shares(np.concatenate([self.from_source, self.from_target], axis=1))
        return both[:, : len(self.source)], both[:, len(self.source) :]

    def alignment(self) -> Alignment:
        """The shares as a grid: source tokens, then target tokens (with » before them, where there are both)."""
        mark = "»" if self.source else ""
        columns = [*self.source, *(mark + token for token in self.target)]
        return Alignment(columns, self.outputs, np.concatenate(self.shares(), axis=1).astype(np.float32))

    def words(self) -> Attribution:
        """The same for words: the log p of a word is the sum of its pieces', and so is what it owes, and to it."""
        outputs, source, target = (word_groups(tokens) for tokens in (self.outputs, self.source, self.target))

        def summed(found: Numbers, columns: list[list[int]]) -> Numbers:
            rows = [found[group].sum(0) for group in outputs]
            return np.array([[row[group].sum() for group in columns] for row in rows]).reshape(len(rows), len(columns))

        return replace(
            self,
            outputs=_joined(self.outputs, outputs),
            scores=np.array([self.scores[group].sum() for group in outputs]),
            source=_joined(self.source, source),
            from_source=summed(self.from_source, source),
            target=_joined(self.target, target),
            from_target=summed(self.from_target, target),
            gaps=None if self.gaps is None else np.array([self.gaps[group].sum() for group in outputs]),
        )

    def to_dict(self) -> dict[str, Any]:
        """For JSON; numbers are kept to six digits."""

        def rows(found: Numbers) -> Any:
            return np.round(found, 6).tolist()

        return {
            "method": self.method,
            "outputs": self.outputs,
            "scores": rows(self.scores),
            "source": self.source,
            "from_source": rows(self.from_source),
            "target": self.target,
            "from_target": rows(self.from_target),
            **({} if self.gaps is None else {"gaps": rows(self.gaps)}),
        }


def _joined(pieces: Sequence[str], groups: Sequence[Sequence[int]]) -> list[str]:
    return ["".join(pieces[place] for place in group).lstrip(SPACE) or SPACE for group in groups]
