"""Sightline: sequence-to-sequence models you can train, compare and see into.

import sightline
run = sightline.train("dates", out="runs/dates")
run.predict(["3. März 2015"])
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sightline.comparison import compare
    from sightline.data.preparation import ExampleCounter
    from sightline.inspection.recorder import record
    from sightline.inspection.trace import Trace
    from sightline.recipe import Recipe
    from sightline.registry import register
    from sightline.run import Run
    from sightline.sweeps.sweep import sweep
    from sightline.training.loggers import Display

    __version__: str

__all__ = ["Recipe", "Run", "Trace", "__version__", "compare", "load", "record", "register", "sweep", "train"]

_LAZY = {  # public name → the module that has it; each is imported at its first use, PyTorch with it
    "Recipe": "sightline.recipe",
    "Run": "sightline.run",
    "Trace": "sightline.inspection.trace",
    "compare": "sightline.comparison",
    "record": "sightline.inspection.recorder",
    "register": "sightline.registry",
    "sweep": "sightline.sweeps.sweep",
}


def train(
    recipe: Recipe | str | os.PathLike[str],
    overrides: Sequence[str] = (),
    *,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    display: Display | None = None,
    progress: ExampleCounter | None = None,
) -> Run:
    """Train what a recipe describes and return the run; its model is loaded when you first use it.

    `recipe` is a Recipe, a path, or the name of a shipped recipe; `overrides` are `section.key=value`. The run folder
    (`run.folder`) is `out`, by default runs/NAME. With `resume`, an interrupted training continues at its newest
    checkpoint.
    """
    from sightline.run import Run
    from sightline.training.train import train as train_recipe

    source: Any = Path(recipe) if isinstance(recipe, os.PathLike) else recipe
    where = None if out is None else Path(out)
    return Run.lazy(train_recipe(source, overrides, out=where, resume=resume, display=display, progress=progress))


def load(run: Any, *, device: str = "auto", precision: str = "float32") -> Run:
    """Load a run folder, ready to predict; of a list of them, the ensemble.

    A Run is returned as it is, unless another device or precision is given. `precision="bf16"` computes matrix
    products in bfloat16, on CPUs that support it: faster, and a word here and there differs.
    """
    from sightline.run import Run

    if isinstance(run, list | tuple):
        return Run.ensemble(run, device=device, precision=precision)
    return run.on(device, precision) if isinstance(run, Run) else Run.load(run, device=device, precision=precision)


def __dir__() -> list[str]:
    """The lazily imported names, too."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Import at the first use: `import sightline` does not import PyTorch."""
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    if name == "__version__":
        from sightline.registry import version

        return version()
    raise AttributeError(f"module 'sightline' has no attribute {name!r}")
