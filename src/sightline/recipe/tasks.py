"""Task specs: what each task reads, writes and needs of a recipe. Free of torch.

The registry (`registry.py`) is the only list of tasks; it has the class that implements each task beside its spec.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from sightline.recipe.decoding import MetricName
from sightline.recipe.schema import Registered
from sightline.registry import entries

Labels = Literal["none", "one", "words"]

_RECURRENT = {"kind": "recurrent", "cell": "lstm"}
_SEQ2SEQ = {
    "encoder": {**_RECURRENT, "layers": 2},
    "decoder": {**_RECURRENT, "layers": 1, "attention": {"kind": "additive"}},
}


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """The properties of a task that recipes, commands and views read."""

    name: str  # in recipes
    description: str  # of its models, for a model card
    needs: frozenset[str]  # parts that the model section must have
    allows: frozenset[str]  # parts that it may have
    model: Mapping[str, Any]  # the default model section
    metrics: tuple[MetricName, ...]  # that it can be scored by
    default_metrics: tuple[MetricName, ...]
    labels: Labels = "none"  # targets: text, one label for each text, or one for each of its words
    reads_source: bool = True  # has a source apart from the output
    writes_text: bool = False  # writes text token by token, by a search
    plain_text: bool = False  # learns from windows of plain text instead of pairs
    noise: tuple[str, ...] = ()  # kinds of data.noise that it learns to undo; one of them must be set
    with_noise: str | None = None  # the task of the same recipe with data.noise
    steps: int = 5_000  # training steps that the default number of epochs aims at ...
    epochs: tuple[int, int] = (5, 50)  # ... within these bounds
    aliases: tuple[str, ...] = ()  # other names in recipes
    variant: str | None = None  # its name in the registry, where recipes write another task and data.noise

    def __str__(self) -> str:
        """For error messages: `task: seq2seq`."""
        return f"task: {self.name}" + ("" if self.variant is None else " with data.noise")

    @property
    def maps_text(self) -> bool:
        """True if a source text becomes a target text: translation, summarization, denoising."""
        return self.reads_source and self.writes_text

    @property
    def continues_text(self) -> bool:
        """True if the output continues the input: language models."""
        return self.writes_text and not self.reads_source

    @property
    def examples(self) -> Literal["pairs", "windows", "corrupted windows"]:
        """What the task learns from: pairs of texts, windows of a text, or windows that noise corrupts."""
        return "corrupted windows" if self.noise else "windows" if self.plain_text else "pairs"

    @property
    def fills_gaps(self) -> bool:
        """True if the output is the input with its gaps filled: masked language models."""
        return self.plain_text and not self.writes_text


SEQ2SEQ = TaskSpec(
    name="seq2seq",
    description="A sequence-to-sequence model",
    needs=frozenset({"decoder"}),
    allows=frozenset({"encoder", "decoder"}),
    model=_SEQ2SEQ,
    metrics=(
        *("bleu", "chrf", "ter", "exact", "token-f1", "wer", "cer", "perplexity"),
        *("rouge-1", "rouge-2", "rouge-l", "rouge-lsum"),
    ),
    default_metrics=("bleu", "chrf"),
    writes_text=True,
    with_noise="denoising",
    steps=6_000,
    epochs=(10, 100),
)
LANGUAGE_MODEL = TaskSpec(
    name="language-model",
    description="A language model",
    needs=frozenset({"decoder"}),
    allows=frozenset({"decoder"}),
    model={"decoder": {**_RECURRENT, "layers": 2, "attention": {"kind": "none"}}},
    metrics=("perplexity", "bits-per-character"),
    default_metrics=("perplexity",),
    reads_source=False,
    writes_text=True,
    plain_text=True,
    steps=5_000,
    epochs=(3, 40),
)
MASKED_LM = TaskSpec(
    name="masked-lm",
    description="A masked language model",
    needs=frozenset({"encoder"}),
    allows=frozenset({"encoder"}),
    model={"encoder": {"kind": "transformer", "layers": 4, "heads": 4, "positions": {"kind": "rotary"}}},
    metrics=("perplexity", "masked-accuracy"),
    default_metrics=("perplexity", "masked-accuracy"),
    plain_text=True,
    noise=("mask",),
    steps=20_000,
    epochs=(3, 100),
    aliases=("masked-words",),
)
DENOISING = TaskSpec(
    name="seq2seq",
    description="A sequence-to-sequence model",
    needs=frozenset({"decoder"}),
    allows=frozenset({"encoder", "decoder"}),
    model=_SEQ2SEQ,
    metrics=("perplexity",),
    default_metrics=("perplexity",),
    writes_text=True,
    plain_text=True,
    noise=("text-infilling", "span-corruption"),
    steps=6_000,
    epochs=(10, 100),
    variant="denoising",
)
CLASSIFICATION = TaskSpec(
    name="classification",
    description="A text classifier",
    needs=frozenset({"encoder", "pooling"}),
    allows=frozenset({"encoder", "pooling"}),
    model={"encoder": {**_RECURRENT, "layers": 1}, "pooling": {"kind": "max"}},
    metrics=("accuracy", "macro-f1"),
    default_metrics=("accuracy", "macro-f1"),
    labels="one",
    steps=1_500,
    epochs=(8, 30),
    aliases=("classify",),
)
TAGGING = TaskSpec(
    name="tagging",
    description="A tagger",
    needs=frozenset({"encoder"}),
    allows=frozenset({"encoder"}),
    model={"encoder": {**_RECURRENT, "layers": 2}, "character_cnn": {}},
    metrics=("token-accuracy", "span-f1"),
    default_metrics=("token-accuracy",),
    labels="words",
    steps=3_000,
    epochs=(10, 40),
    aliases=("tag",),
)


def tasks() -> dict[str, TaskSpec]:
    """The spec of every task, with those of plug-ins."""
    return {name: entry.load_config() for name, entry in entries("task").items()}


def suits(metric: str, spec: TaskSpec) -> bool:
    """True if a metric can score the outputs of a task; a plug-in registers its metric with the names of tasks."""
    entry = entries("metric").get(metric)
    return metric in spec.metrics or (entry is not None and spec.name in entry.options.get("tasks", ()))


def task_names() -> list[str]:
    """The names that recipes give to tasks."""
    return [spec.name for spec in tasks().values() if spec.variant is None]


def task_aliases() -> dict[str, str]:
    """Old names of tasks in recipes, each with the present one."""
    return {alias: spec.name for spec in tasks().values() for alias in spec.aliases}


def task_spec(name: Any, *, noise: bool = False) -> TaskSpec | None:
    """The spec of a task by its name in a recipe, with or without data.noise; None if there is no such task."""
    name = task_aliases().get(name, name) if isinstance(name, str) else None
    if name is None or name not in task_names():
        return None
    spec = tasks()[name]
    return tasks()[spec.with_noise] if noise and spec.with_noise is not None else spec


def spec_of_values(values: Any) -> TaskSpec | None:
    """The same for the content of a recipe that has not been validated."""
    if not isinstance(values, dict):
        return None
    data = values.get("data")
    noise = isinstance(data, dict) and data.get("noise") is not None
    return task_spec(values.get("task", "seq2seq"), noise=noise)


class _TaskNames(Registered):
    """The name of a task in a recipe, or an old one."""

    def choices(self) -> list[str]:
        return task_names()

    def _validate(self, value: Any) -> str:
        return super()._validate(task_aliases().get(value, value) if isinstance(value, str) else value)


TaskName = Annotated[str, _TaskNames("task")]
