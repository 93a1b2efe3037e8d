"""A metric: how long outputs are, compared with their sources. `metrics: [bleu, length-ratio]`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import sightline
from sightline.evaluation.measurement import Measurement, Metric, fingerprint


@sightline.register("metric", "length-ratio", tasks=("seq2seq",))
class LengthRatio(Metric):
    """Characters of the outputs divided by those of the sources."""

    name: ClassVar[str] = "length ratio"
    needs: ClassVar[frozenset[str]] = frozenset({"outputs", "references", "sources"})

    def score(
        self, hypotheses: Sequence[str], references: Sequence[Sequence[str]], sources: Sequence[str] | None = None
    ) -> Measurement:
        assert sources is not None
        return self.measurement(
            [[len(output), max(1, len(source))] for output, source in zip(hypotheses, sources, strict=True)],
            lambda sums: sums[:, 0] / sums[:, 1],
            conditions={"version": "1"},
            against=fingerprint("references", references),
        )
