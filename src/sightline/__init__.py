"""Sightline: sequence-to-sequence models you can train, compare and see into.

import sightline
run = sightline.train("dates", out="runs/dates")
sightline.load(run).predict(["3. März 2015"])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sightline.comparison import compare
    from sightline.experiment import train
    from sightline.inspection.trace import Trace, record
    from sightline.run import Run
    from sightline.sweeping.sweep import sweep

__all__ = ["Run", "Trace", "compare", "load", "record", "sweep", "train"]


def load(run: Any, *, device: str = "auto", precision: str = "float32") -> Run:
    """Load a run folder, ready to predict; of a list of them, the ensemble.

    `precision="bf16"` takes matrix products in bfloat16, on CPUs that have such: faster, and a word here and there
    differs.
    """
    from sightline.run import Run

    if isinstance(run, list | tuple):
        return Run.ensemble(run, device=device, precision=precision)
    return Run.load(run, device=device, precision=precision)


def __dir__() -> list[str]:
    """What is imported only when somebody asks for it is there, too."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """PyTorch is imported when something needs it, not when the package is."""
    if name == "train":
        from sightline.experiment import train

        return train
    if name == "compare":
        from sightline.comparison import compare

        return compare
    if name == "Run":
        from sightline.run import Run

        return Run
    if name == "sweep":
        from sightline.sweeping.sweep import sweep

        return sweep
    if name in ("Trace", "record"):
        from sightline.inspection import trace

        return getattr(trace, name)
    raise AttributeError(f"module 'sightline' has no attribute {name!r}")
