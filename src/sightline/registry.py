"""Registries of the parts that recipes name, open to plug-ins; and the version of Sightline.

A registry maps a name (`kind: lstm`, `metrics: [bleu]`) to an implementation and, for parts with keys of their own, to
a config: a recipe section. Both may be `module:name` strings, which are imported at first use, so that reading a recipe
imports neither PyTorch nor a model. Sightline's own parts are the entries of `REGISTRIES` below.

A plug-in is a package with an entry point in the group `sightline.plugins`, which names a module that calls `register`
when it is imported, or a function that does. Plug-ins are loaded once, before the first look into a registry.
"""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

GROUP = "sightline.plugins"


class PluginWarning(UserWarning):
    """A plug-in that is installed cannot be loaded."""


@dataclass(frozen=True)
class Plugin:
    """The package that registered a part."""

    package: str
    version: str | None = None  # None: not an installed package

    def __str__(self) -> str:
        return self.package if self.version is None else f"{self.package} {self.version}"


@dataclass(frozen=True)
class Entry:
    """A registered part."""

    implementation: Any  # a class or function, or `module:name`
    config: Any = None  # a recipe section with `kind`, or `module:name`; of a task its TaskSpec. None: no keys
    about: str = ""  # one line, for `sightline recipes keys`; by default the first line of the config's docstring
    options: Mapping[str, Any] = field(default_factory=dict)  # what else `register` was given
    plugin: Plugin | None = None  # None: a part of Sightline

    def load(self) -> Any:
        """The implementation."""
        return _load(self.implementation)

    def load_config(self) -> Any:
        """The config, or None."""
        return _load(self.config)


# --- Sightline's own parts --------------------------------------------------------------------------------------------

_TRANSFORMER = "sightline.models.transformer"
_RECURRENT = "sightline.models.recurrent"
_CONVOLUTIONAL = "sightline.models.convolutional"
_WINDOW = "sightline.models.window"
_EMBEDDING = "sightline.models.embedding"
_SCORES = "sightline.layers.scores"
_POSITIONS = "sightline.layers.positions"
_NORMS = "sightline.layers.norms"
_FEEDFORWARD = Entry("sightline.layers.feedforward:FeedForwardNet", "sightline.recipe.model:FeedForwardConfig")
_TASKS = "sightline.recipe.tasks"
_DATA = "sightline.recipe.data"
_SOURCES = "sightline.recipe.sources"
_CALLBACKS = "sightline.training.callbacks"
_TOKENIZER = "sightline.text.tokenizer_training:train_tokenizer"


def _sharing(config: str, module: str, **targets: str) -> dict[str, Entry]:
    """Entries of one module that share a config."""
    section = f"sightline.recipe.{config}"
    return {name.replace("_", "-"): Entry(f"{module}:{target}", section) for name, target in targets.items()}


def _positions(relative: bool, **targets: str) -> dict[str, Entry]:
    """Entries of positions; `relative`: attention scores depend on distances."""
    config, options = "sightline.recipe.model:PositionsConfig", {"relative": relative}
    return {name: Entry(f"{_POSITIONS}:{target}", config, options=options) for name, target in targets.items()}


def _of(module: str, **targets: str) -> dict[str, Entry]:
    """Entries of one module without a config."""
    return {name.replace("_", "-"): Entry(f"sightline.{module}:{target}") for name, target in targets.items()}


def _configs(module: str, **targets: str) -> dict[str, Entry]:
    """Entries whose implementation looks at the config alone."""
    return {name.replace("_", "-"): Entry(None, f"sightline.recipe.{module}:{each}") for name, each in targets.items()}


REGISTRIES: dict[str, dict[str, Entry]] = {
    "task": {
        "seq2seq": Entry("sightline.tasks.seq2seq:Seq2SeqTask", f"{_TASKS}:SEQ2SEQ"),
        "language-model": Entry("sightline.tasks.language_model:LanguageModelTask", f"{_TASKS}:LANGUAGE_MODEL"),
        "sentence-model": Entry("sightline.tasks.sentence_model:SentenceModelTask", f"{_TASKS}:SENTENCE_MODEL"),
        "masked-lm": Entry("sightline.tasks.masked_lm:MaskedLMTask", f"{_TASKS}:MASKED_LM"),
        "denoising": Entry("sightline.tasks.denoising:DenoisingTask", f"{_TASKS}:DENOISING"),
        "classification": Entry("sightline.tasks.classification:ClassificationTask", f"{_TASKS}:CLASSIFICATION"),
        "multi-label": Entry("sightline.tasks.multi_label:MultiLabelTask", f"{_TASKS}:MULTI_LABEL"),
        "tagging": Entry("sightline.tasks.tagging:TaggingTask", f"{_TASKS}:TAGGING"),
    },
    "encoder": {
        "transformer": Entry(f"{_TRANSFORMER}.modules:TransformerEncoder", f"{_TRANSFORMER}.config:TransformerConfig"),
        "recurrent": Entry(f"{_RECURRENT}.modules:RecurrentEncoder", f"{_RECURRENT}.config:RecurrentEncoderConfig"),
        "convolutional": Entry(
            f"{_CONVOLUTIONAL}.convs2s:ConvolutionalEncoder", f"{_CONVOLUTIONAL}.config:ConvolutionalConfig"
        ),
        "bytenet": Entry(f"{_CONVOLUTIONAL}.bytenet:ByteNetEncoder", f"{_CONVOLUTIONAL}.config:ByteNetConfig"),
        "window": Entry(f"{_WINDOW}.modules:WindowEncoder", f"{_WINDOW}.config:WindowConfig"),
        "embedding": Entry(f"{_EMBEDDING}.modules:EmbeddingEncoder", f"{_EMBEDDING}.config:EmbeddingConfig"),
    },
    "decoder": {
        "transformer": Entry(f"{_TRANSFORMER}.modules:TransformerDecoder", f"{_TRANSFORMER}.config:TransformerConfig"),
        "recurrent": Entry(f"{_RECURRENT}.modules:RecurrentDecoder", f"{_RECURRENT}.config:RecurrentDecoderConfig"),
        "convolutional": Entry(
            f"{_CONVOLUTIONAL}.convs2s:ConvolutionalDecoder", f"{_CONVOLUTIONAL}.config:ConvolutionalConfig"
        ),
        "bytenet": Entry(f"{_CONVOLUTIONAL}.bytenet:ByteNetDecoder", f"{_CONVOLUTIONAL}.config:ByteNetConfig"),
        "window": Entry(f"{_WINDOW}.modules:WindowDecoder", f"{_WINDOW}.config:WindowConfig"),
        "ngram": Entry("sightline.models.ngram:CountedModel", f"{_WINDOW}.config:NgramConfig"),
    },
    "score": {
        "dot": Entry(f"{_SCORES}:Dot", about="q·h (Luong et al. 2015)."),
        "scaled-dot": Entry(f"{_SCORES}:ScaledDot", about="q·h / √Dh (Vaswani et al. 2017)."),
        "bilinear": Entry(f"{_SCORES}:Bilinear", about="qᵀ W h (Luong et al. 2015)."),
        "additive": Entry(f"{_SCORES}:Additive", about="vᵀ tanh(W q + U h) (Bahdanau et al. 2015)."),
        "linear": Entry(f"{_SCORES}:LinearScore", about="vᵀ (W q + U h): the softmax cancels the query's part."),
        "unnormalized": Entry(f"{_SCORES}:UnnormalizedScore", about="q·h / √Dh without a softmax: a mean over keys."),
        "unnormalized-dot": Entry(f"{_SCORES}:UnnormalizedDot", about="q·h without a softmax: a mean over keys."),
    },
    "positions": {
        **_positions(False, sinusoidal="Sinusoidal", learned="Learned", rotary="Rotation", none="NoPositions"),
        **_positions(True, alibi="Alibi", t5="Buckets", shaw="RelativeKeys"),
    },
    "norm": _sharing("model:NormConfig", _NORMS, layer="LayerNorm", rms="RMSNorm", batch="BatchNorm"),
    "feedforward": {
        **dict.fromkeys(("relu", "gelu", "tanh", "swiglu"), _FEEDFORWARD),
        "none": Entry(None, "sightline.recipe.model:FeedForwardConfig", about="Blocks of attention alone."),
    },
    "pattern": _configs(
        "model", full="FullAttentionConfig", local="LocalAttentionConfig", compressed="CompressedAttentionConfig"
    ),
    "source": {
        "text": Entry("sightline.data.sources:read_parallel", f"{_SOURCES}:TextSource"),
        "tsv": Entry("sightline.data.sources:read_tsv_pairs", f"{_SOURCES}:TsvSource"),
        "csv": Entry("sightline.data.sources:read_csv_pairs", f"{_SOURCES}:CsvSource"),
        "jsonl": Entry("sightline.data.sources:read_json_lines", f"{_SOURCES}:JsonLinesSource"),
        "pattern": Entry("sightline.data.sources:read_pattern", f"{_SOURCES}:PatternSource"),
        "plain": Entry("sightline.data.sources:read_plain", f"{_SOURCES}:PlainSource"),
        "conllu": Entry("sightline.data.conll:read_conllu_source", f"{_SOURCES}:ConlluSource"),
        "columns": Entry("sightline.data.conll:read_columns_source", f"{_SOURCES}:ColumnsSource"),
        "chorales": Entry("sightline.data.music:read_chorales_source", f"{_SOURCES}:ChoralesSource"),
        "dates": Entry("sightline.data.synthetic:read_dates_source", f"{_SOURCES}:DatesSource"),
        "sequences": Entry("sightline.data.synthetic:read_sequences_source", f"{_SOURCES}:SequencesSource"),
        "recall": Entry("sightline.data.synthetic:read_recall_source", f"{_SOURCES}:RecallSource"),
        "phrases": Entry("sightline.data.phrases:read_phrases_source", f"{_SOURCES}:PhrasesSource"),
        "questions": Entry("sightline.data.phrases.questions:read_questions_source", f"{_SOURCES}:QuestionsSource"),
    },
    "noise": {
        "mask": Entry("sightline.data.noise:mask_tokens", f"{_DATA}:MaskNoise"),
        "text-infilling": Entry("sightline.data.noise:corrupt_text", f"{_DATA}:InfillingNoise"),
        "span-corruption": Entry("sightline.data.noise:corrupt_spans", f"{_DATA}:SpanNoise"),
    },
    "tokenizer": {
        "word": Entry(_TOKENIZER, "sightline.recipe.tokenizer:WordTokenizer"),
        "whitespace": Entry(_TOKENIZER, "sightline.recipe.tokenizer:WhitespaceTokenizer"),
        "character": Entry(_TOKENIZER, "sightline.recipe.tokenizer:CharacterTokenizer"),
        "bpe": Entry(_TOKENIZER, "sightline.recipe.tokenizer:BpeTokenizer"),
        "unigram": Entry(_TOKENIZER, "sightline.recipe.tokenizer:UnigramTokenizer"),
    },
    "metric": {
        **_of("evaluation.bleu", bleu="Bleu", chrf="ChrF", ter="TranslationEditRate"),
        **_of("evaluation.error_rates", exact="ExactMatch", wer="WordErrorRate", cer="CharacterErrorRate"),
        **_of("evaluation.answers", token_f1="TokenF1"),
        **_of("evaluation.perplexity", perplexity="Perplexity"),
        **_of("evaluation.labels", accuracy="Accuracy", macro_f1="MacroF1"),
        **_of(
            "evaluation.label_sets", multilabel_micro_f1="MultilabelMicroF1", multilabel_macro_f1="MultilabelMacroF1"
        ),
        **_of("evaluation.labels", token_accuracy="TokenAccuracy", span_f1="SpanF1"),
        **_of("evaluation.perplexity", bits_per_character="BitsPerCharacter", masked_accuracy="MaskedAccuracy"),
        **_of("evaluation.rouge", rouge_1="Rouge1", rouge_2="Rouge2", rouge_l="RougeL", rouge_lsum="RougeLsum"),
    },
    "loss": {"cross-entropy": Entry("sightline.tasks.losses:batch_loss", about="The loss of the task.")},
    "optimizer": {
        "adamw": Entry(
            "sightline.training.optimizers:adamw",
            about="Adam with decoupled weight decay (Loshchilov and Hutter 2019); training.betas and eps are its keys.",
        ),
    },
    "schedule": _sharing(
        "training:Schedule",
        "sightline.training.schedules",
        constant="constant",
        inverse_sqrt="inverse_sqrt",
        cosine="cosine",
        warmup_stable_decay="warmup_stable_decay",
    ),
    "callback": {
        "warmup-check": Entry(f"{_CALLBACKS}:WarmupCheck", about="Warns if the warm-up is too long for the limits."),
        "expert-routing": Entry(f"{_CALLBACKS}:RoutingRecord", about="Logs the share of tokens of each expert."),
        "gradient-norms": Entry(f"{_CALLBACKS}:GradientNorms", about="Logs gradient norms with training.log_layers."),
    },
    "logger": {"tensorboard": Entry("sightline.training.loggers:TensorBoard", about="Events for TensorBoard.")},
    "processor": {},
}


# --- looking up -------------------------------------------------------------------------------------------------------


def entries(part: str) -> dict[str, Entry]:
    """The parts of a kind (`encoder`, `score`, `metric`, ...) by name, with those of plug-ins."""
    load_plugins()
    return REGISTRIES[part]


class Implementations(Mapping[str, Any]):
    """What is registered for a part, by name: `ENCODERS = Implementations("encoder")`. Imported when looked up."""

    def __init__(self, part: str) -> None:
        self.part = part

    def __getitem__(self, name: str) -> Any:
        return entries(self.part)[name].load()

    def __iter__(self) -> Iterator[str]:
        return iter(entries(self.part))

    def __len__(self) -> int:
        return len(entries(self.part))


def _load(target: Any) -> Any:
    if not isinstance(target, str):
        return target
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


# --- registering ------------------------------------------------------------------------------------------------------


def register(
    part: str, name: str, implementation: Any = None, *, config: Any = None, about: str = "", **options: Any
) -> Any:
    """Register a part under the name that recipes give it.

    ```python
    sightline.register("score", "cosine", Cosine)               # attention: {kind: cosine}
    sightline.register("encoder", "mean", MeanEncoder, config=MeanConfig)

    @sightline.register("processor", "no-digits")
    class NoDigits: ...
    ```

    `config` is a recipe section (`sightline.recipe.schema.Section`) with the field `kind: Literal["cosine"]`; a part
    without keys of its own needs none. The config of a task is its `TaskSpec`. docs/plugins.md lists what each part's
    implementation is called with. Without `implementation`, returns a decorator.
    """
    if part not in REGISTRIES:
        raise ValueError(f"there is no registry of {part!r} parts; choose from {', '.join(sorted(REGISTRIES))}")
    if implementation is None:
        return lambda target: register(part, name, target, config=config, about=about, **options)
    known = REGISTRIES[part].get(name)
    if known is not None and known.implementation is not implementation:
        owner = "Sightline" if known.plugin is None else f"the plug-in {known.plugin}"
        raise ValueError(f"{owner} has a {part} {name!r} already; register this one under another name")
    plugin = _loading[-1] if _loading else Plugin(_module_of(implementation).partition(".")[0])
    REGISTRIES[part][name] = Entry(implementation, config, about, options, plugin)
    return implementation


def _module_of(target: Any) -> str:
    return target if isinstance(target, str) else str(getattr(target, "__module__", type(target).__module__))


# --- plug-ins ---------------------------------------------------------------------------------------------------------

_loading: list[Plugin] = []  # the plug-in that is being imported
_loaded: set[str] = set()  # entry points that were imported, or failed to be


def load_plugins() -> None:
    """Import every plug-in that is installed, once. One that fails is a warning with its name."""
    if "" in _loaded:
        return
    _loaded.add("")
    for entry_point in metadata.entry_points(group=GROUP):
        _load_plugin(entry_point)


def _load_plugin(entry_point: metadata.EntryPoint) -> None:
    package = entry_point.dist.name if entry_point.dist is not None else entry_point.value.partition(":")[0]
    plugin = Plugin(package, entry_point.dist.version if entry_point.dist is not None else None)
    if entry_point.value in _loaded:
        return
    _loaded.add(entry_point.value)
    _loading.append(plugin)
    try:
        target = entry_point.load()
        if callable(target):
            target()
    except Exception as error:
        warnings.warn(
            PluginWarning(
                f"the plug-in {plugin} cannot be loaded ({entry_point.value}): {type(error).__name__}: {error}; update "
                f"it, or uninstall it with `pip uninstall {package}`"
            ),
            stacklevel=2,
        )
    finally:
        _loading.pop()


# --- the version ------------------------------------------------------------------------------------------------------


def version() -> str:
    """The installed version; in a checkout that is not installed, the one in its pyproject.toml."""
    try:
        return metadata.version("sightline")
    except metadata.PackageNotFoundError:
        project = Path(__file__).parents[2] / "pyproject.toml"
        try:
            return f"{tomllib.loads(project.read_text(encoding='utf-8'))['project']['version']}+source"
        except (OSError, KeyError, tomllib.TOMLDecodeError):
            return "0+source"
