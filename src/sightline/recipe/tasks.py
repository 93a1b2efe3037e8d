"""The tasks: what each reads, writes and needs of a recipe. Free of torch.

`TASKS` is the only list of tasks there is. A spec answers what a recipe, a command or a view must know of a task; the
class that does the work is named by `implementation` and imported when it is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticKnownError, core_schema

from sightline.recipe.decoding import MetricName

Labels = Literal["none", "one", "words"]

_RECURRENT = {"kind": "recurrent", "cell": "lstm"}
_SEQ2SEQ = {
    "encoder": {**_RECURRENT, "layers": 2},
    "decoder": {**_RECURRENT, "layers": 1, "attention": {"kind": "additive"}},
}


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """What the rest of Sightline must know of a task."""

    name: str  # in recipes
    implementation: str  # module:Class, a subclass of sightline.tasks.base.Task
    description: str  # of its models, for a model card
    needs: frozenset[str]  # parts that the model section must have
    allows: frozenset[str]  # parts that it may have
    model: Mapping[str, Any]  # the default model section
    metrics: tuple[MetricName, ...]  # that it can be scored by
    default_metrics: tuple[MetricName, ...]
    labels: Labels = "none"  # targets: text, one label for each text, or one for each of its words
    reads_source: bool = True  # whether there is a source apart from the output
    writes_text: bool = False  # whether it writes text token by token, and so is decoded by a search
    plain_text: bool = False  # whether it learns from windows of plain text instead of pairs
    noise: tuple[str, ...] = ()  # kinds of data.noise that it learns to undo; one of them must be set
    with_noise: str | None = None  # the task of the same recipe with data.noise
    steps: int = 5_000  # training steps that the default number of epochs aims at ...
    epochs: tuple[int, int] = (5, 50)  # ... with so many epochs at least and at most
    aliases: tuple[str, ...] = ()  # other names in recipes
    variant: str | None = None  # the name in `TASKS` of what recipes write as another task with data.noise

    def __str__(self) -> str:
        """As error messages name it: `task: seq2seq`."""
        return f"task: {self.name}" + ("" if self.variant is None else " with data.noise")

    @property
    def maps_text(self) -> bool:
        """Whether a source text becomes a target text: translation, summarization, denoising."""
        return self.reads_source and self.writes_text

    @property
    def continues_text(self) -> bool:
        """Whether the output continues the input: language models."""
        return self.writes_text and not self.reads_source

    @property
    def fills_gaps(self) -> bool:
        """Whether the output is the input with its gaps filled: masked language models."""
        return self.plain_text and not self.writes_text


TASKS: dict[str, TaskSpec] = {
    "seq2seq": TaskSpec(
        name="seq2seq",
        implementation="sightline.tasks.seq2seq:Seq2SeqTask",
        description="A sequence-to-sequence model",
        needs=frozenset({"decoder"}),
        allows=frozenset({"encoder", "decoder"}),
        model=_SEQ2SEQ,
        metrics=(
            *("bleu", "chrf", "ter", "exact", "wer", "cer", "perplexity"),
            *("rouge-1", "rouge-2", "rouge-l", "rouge-lsum"),
        ),
        default_metrics=("bleu", "chrf"),
        writes_text=True,
        with_noise="denoising",
        steps=6_000,
        epochs=(10, 100),
    ),
    "language-model": TaskSpec(
        name="language-model",
        implementation="sightline.tasks.language_model:LanguageModelTask",
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
    ),
    "masked-lm": TaskSpec(
        name="masked-lm",
        implementation="sightline.tasks.masked_lm:MaskedLMTask",
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
    ),
    "denoising": TaskSpec(
        name="seq2seq",
        implementation="sightline.tasks.denoising:DenoisingTask",
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
    ),
    "classification": TaskSpec(
        name="classification",
        implementation="sightline.tasks.classification:ClassificationTask",
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
    ),
    "tagging": TaskSpec(
        name="tagging",
        implementation="sightline.tasks.tagging:TaggingTask",
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
    ),
}


def register_task(spec: TaskSpec) -> TaskSpec:
    """Add a task under the name that recipes give it."""
    if taken := sorted({spec.name, *spec.aliases} & {*TASKS, *task_aliases()}):
        raise ValueError(f"there is a task {taken[0]!r} already; register this one under another name")
    TASKS[spec.name] = spec
    return spec


def task_names() -> list[str]:
    """The names that recipes give to tasks."""
    return [spec.name for spec in TASKS.values() if spec.variant is None]


def task_aliases() -> dict[str, str]:
    """Other names in recipes, each with the name of the task."""
    return {alias: spec.name for spec in TASKS.values() for alias in spec.aliases}


def task_spec(name: Any, *, noise: bool = False) -> TaskSpec | None:
    """The spec of a task by its name in a recipe, with or without data.noise; None where there is no such task."""
    name = task_aliases().get(name, name) if isinstance(name, str) else None
    if name is None or name not in task_names():
        return None
    spec = TASKS[name]
    return TASKS[spec.with_noise] if noise and spec.with_noise is not None else spec


def spec_of_values(values: Any) -> TaskSpec | None:
    """The same of the content of a recipe that has not been validated."""
    if not isinstance(values, dict):
        return None
    data = values.get("data")
    noise = isinstance(data, dict) and data.get("noise") is not None
    return task_spec(values.get("task", "seq2seq"), noise=noise)


class _TaskNames:
    """A registered name, with pydantic's error for any other."""

    @staticmethod
    def choices() -> list[str]:
        return task_names()

    @staticmethod
    def _checked(value: Any) -> Any:
        value = task_aliases().get(value, value) if isinstance(value, str) else value
        if value not in (names := task_names()):
            *others, last = map(repr, names)
            raise PydanticKnownError("literal_error", {"expected": f"{', '.join(others)} or {last}"})
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._checked)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": "string", "enum": task_names()}


TaskName = Annotated[str, _TaskNames()]
