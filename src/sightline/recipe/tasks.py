"""Task specs: what each task reads, writes and needs of a recipe. Free of torch.

The registry (`registry.py`) is the only list of tasks; it has the class that implements each task beside its spec.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from sightline.recipe.decoding import MetricName
from sightline.recipe.schema import Registered
from sightline.registry import entries

Labels = Literal["none", "one", "several", "words"]

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
    labels: Labels = "none"  # targets: text; one label or a set of labels for each text; or one for each of its words
    reads_source: bool = True  # has a source apart from the output
    writes_text: bool = False  # writes text token by token, by a search
    plain_text: bool = False  # learns from windows of plain text instead of pairs
    noise: tuple[str, ...] = ()  # kinds of data.noise that it learns to undo; one of them must be set
    by_sentence: bool = False  # learns from plain text line by line: each is an example of its own
    with_noise: str | None = None  # the task of the same recipe with data.noise
    with_sentences: str | None = None  # the task of the same recipe with data.context: sentence
    steps: int = 5_000  # training steps that the default number of epochs aims at ...
    epochs: tuple[int, int] = (5, 50)  # ... within these bounds
    aliases: tuple[str, ...] = ()  # other names in recipes
    variant: str | None = None  # its name in the registry, where recipes write another task and this setting:
    setting: str | None = None

    def __str__(self) -> str:
        """For error messages: `task: seq2seq`."""
        return f"task: {self.name}" + ("" if self.setting is None else f" with {self.setting}")

    @property
    def maps_text(self) -> bool:
        """True if a source text becomes a target text: translation, summarization, denoising."""
        return self.reads_source and self.writes_text

    @property
    def continues_text(self) -> bool:
        """True if the output continues the input: language models."""
        return self.writes_text and not self.reads_source

    @property
    def examples(self) -> Literal["pairs", "sentences", "windows", "corrupted windows"]:
        """What the task learns from: pairs of texts, sentences, windows of a text, or windows that noise corrupts."""
        if self.noise:
            return "corrupted windows"
        return "sentences" if self.by_sentence else "windows" if self.plain_text else "pairs"

    @property
    def cuts_windows(self) -> bool:
        """True if text is cut into windows, wherever its lines end."""
        return self.plain_text and not self.by_sentence

    @property
    def one_answer(self) -> bool:
        """True if a model decides by item, so that there is no list of the n best outputs."""
        return self.labels in ("several", "words")

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
    with_sentences="sentence-model",
    steps=5_000,
    epochs=(3, 40),
)
SENTENCE_MODEL = replace(
    LANGUAGE_MODEL,
    description="A language model of sentences",
    by_sentence=True,
    with_sentences=None,
    variant="sentence-model",
    setting="data.context: sentence",
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
    setting="data.noise",
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
MULTI_LABEL = replace(
    CLASSIFICATION,
    name="multi-label",
    description="A classifier of texts with several labels each",
    metrics=("multilabel-micro-f1", "multilabel-macro-f1"),
    default_metrics=("multilabel-micro-f1", "multilabel-macro-f1"),
    labels="several",
    aliases=(),
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


def task_spec(name: Any, *, noise: bool = False, context: Any = "running") -> TaskSpec | None:
    """The spec of a task by its name in a recipe, its data.context and whether it has data.noise; None if unknown."""
    name = task_aliases().get(name, name) if isinstance(name, str) else None
    if name is None or name not in task_names():
        return None
    spec = tasks()[name]
    variant = spec.with_noise if noise else spec.with_sentences if context == "sentence" else None
    return spec if variant is None else tasks()[variant]


def spec_of_values(values: Any) -> TaskSpec | None:
    """The same for the content of a recipe that has not been validated."""
    if not isinstance(values, dict):
        return None
    data = values.get("data")
    data = data if isinstance(data, dict) else {}
    return task_spec(
        values.get("task", "seq2seq"), noise=data.get("noise") is not None, context=data.get("context", "running")
    )


class _TaskNames(Registered):
    """The name of a task in a recipe, or an old one."""

    def choices(self) -> list[str]:
        return task_names()

    def _validate(self, value: Any) -> str:
        return super()._validate(task_aliases().get(value, value) if isinstance(value, str) else value)


TaskName = Annotated[str, _TaskNames("task")]
