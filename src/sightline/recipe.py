"""The recipe: one YAML file that describes a whole experiment.

Each section is a frozen pydantic model; the parts of a model (encoder, decoder, attention, positions, ...) are
discriminated unions on `kind`, so a recipe is put together, not flagged. Unknown keys fail with the nearest right
key and the line they stand on. See `recipe_files.py` for reading, overriding and saving.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from sightline.recipe_adapting import with_start_moved
from sightline.recipe_copying import check_copied_words, check_copying, copies_unknown
from sightline.recipe_data import AnyTokenizer, BpeTokenizer, Data
from sightline.recipe_guiding import GuidedAlignment, check_guiding
from sightline.recipe_model import (
    ByteNetBody,
    Model,
    Ngram,
    RecurrentDecoder,
    RecurrentEncoder,
    TransformerBody,
    WindowBody,
    learned_positions,
)
from sightline.recipe_pretraining import check_text
from sightline.recipe_sections import Probability, Section

# --- training ------------------------------------------------------------------------------------------------------


class Schedule(Section):
    """How the learning rate moves; `lr` is its peak."""

    kind: Literal["constant", "inverse-sqrt", "cosine", "warmup-stable-decay"] = "inverse-sqrt"
    warmup: int = Field(4_000, ge=0, description="steps of linear rise")
    decay: float = Field(0.2, gt=0, le=1, description="warmup-stable-decay: share of all steps spent decaying")
    floor: float = Field(0.0, ge=0, le=1, description="cosine and warmup-stable-decay: where to end, as share of lr")


class Batches(Section):
    """How examples are put together."""

    tokens: int = Field(4_096, ge=1, description="most tokens on the longer side of a batch")
    accumulate: int = Field(1, ge=1, description="batches per optimizer step")
    context: int = Field(256, ge=2, description="language models, data.noise: tokens in a window of text")
    carry: bool | None = Field(
        None,
        description="language models: each window goes on from the state of the one before; by default if recurrent",
    )
    layout: Literal["auto", "packed", "padded"] = Field("auto", description="see layers/layout.py")


class Limits(Section):
    """When training ends: at the first of these."""

    steps: int | None = Field(None, ge=1)
    epochs: int | None = Field(None, ge=1)
    minutes: float | None = Field(None, gt=0)

    @model_validator(mode="after")
    def _some_limit(self) -> Limits:
        if self.steps is None and self.epochs is None and self.minutes is None:
            raise ValueError("training needs an end: set limits.steps, limits.epochs or limits.minutes")
        return self


class Stopping(Section):
    """Early stopping, and which checkpoint is the best."""

    on: Literal["loss", "metric", "reward"] = Field(
        "loss", description="metric: decode the validation set, use the first metric; reward: see training.reward"
    )
    beam: int = Field(1, ge=1, description="beam of that decoding")
    patience: int | None = Field(None, ge=1, description="validations without a new best before stopping")


class Averaging(Section):
    """Averages of weights over time, which are often better than any one of them."""

    kind: Literal["none", "ema", "checkpoints"] = Field(
        "none",
        description="ema: running average, validated and saved; checkpoints: mean of the newest ones, at the end",
    )
    decay: float = Field(0.999, gt=0, lt=1, description="ema: how much of the average is kept each step")
    count: int = Field(5, ge=1, description="checkpoints: how many")


class Reward(Section):
    """Fine-tuning on expected sentence reward (Wu et al. 2016, §5): loss = −E[reward] + mix · (−log-likelihood).

    The expectation is over outputs drawn from the model, without dropout, each measured against the reference. To run
    it: train a model by likelihood, then the same recipe from its weights, with a small lr and, as the paper does, no
    dropout: `sightline train RECIPE model.start_from=runs/NAME training.reward.samples=15
    training.stopping.on=reward training.lr=1e-5 training.schedule.kind=constant training.schedule.warmup=0 --out
    runs/NAME-reward`. Validations show the expected `reward` on held-out text, the first one before any step.
    """

    metric: Literal["gleu"] = Field("gleu", description="min of precision and recall of 1- to 4-grams, from 0 to 1")
    unit: Literal["tokens", "words"] = Field("tokens", description="n-grams of what: tokens, or words between spaces")
    samples: int = Field(15, ge=2, description="outputs drawn for each source; the others' mean is each one's baseline")
    mix: float = Field(
        0.017, ge=0, description="weight of the log-likelihood of a reference beside the reward of 0 to 1"
    )
    temperature: float = Field(1.0, gt=0, description="of the drawing; only 1 draws from the model itself")
    max_length: int = Field(128, ge=1, description="most tokens drawn; decoding.max_ratio holds too")


class Training(Section):
    """The loop."""

    lr: float = Field(5e-4, gt=0)
    schedule: Schedule = Schedule()
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = Field(1e-9, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    clip: float | None = Field(1.0, gt=0, description="largest norm of the gradient")
    label_smoothing: Probability = 0.1
    rdrop: float | None = Field(
        None,
        ge=0,
        description="R-Drop: each batch goes twice through the model; alpha of how much both passes must agree "
        "(Wu et al. 2021: 5 for translation)",
    )
    reward: Reward | None = Field(None, description="fine-tune on expected sentence reward; see Reward")
    guided_alignment: GuidedAlignment | None = Field(
        None, description="train one attention head towards given word alignments; see GuidedAlignment"
    )
    freeze: tuple[str, ...] = Field(
        (), description="what stays as it is: embeddings, a layer (encoder.0), or how names of parameters begin"
    )
    layer_lr_decay: float | None = Field(
        None, gt=0, le=1, description="factor of lr from each layer to the one below it; what is new has the full lr"
    )
    batches: Batches = Batches()
    limits: Limits = Limits(epochs=10)
    validate_every: int | None = Field(None, ge=1, description="steps between validations; by default once an epoch")
    save_every: int | None = Field(None, ge=1, description="steps between checkpoints; by default at each validation")
    keep: int = Field(3, ge=2, description="newest checkpoints kept, beside the best")
    log_every: int = Field(50, ge=1)
    log_layers: bool = Field(False, description="write down the gradient norm of each layer too, at every log_every")
    samples: int = Field(3, ge=0, description="translations shown at each validation")
    stopping: Stopping = Stopping()
    averaging: Averaging = Averaging()
    result: Literal["best", "last"] = Field("best", description="which weights the finished model has")
    precision: Literal["float32", "bf16"] = Field("float32", description="bf16: matrix products in bfloat16")
    recompute_layers: bool = Field(
        False,
        description="Transformer layers keep only their inputs and are computed again on the way back (gradient "
        "checkpointing, Chen et al. 2016): less memory, a third more work",
    )
    compile: bool | None = Field(None, description="torch.compile the step; by default on CUDA where shapes are static")
    device: str = Field("auto", description="auto, cpu, cuda or cuda:N")
    threads: int | None = Field(None, ge=1, description="CPU threads; by default what PyTorch chooses")
    tensorboard: bool = False


# --- decoding and evaluation ---------------------------------------------------------------------------------------


class Sampling(Section):
    """Drawing instead of searching."""

    temperature: float = Field(1.0, gt=0)
    top_k: int | None = Field(None, ge=1)
    top_p: float | None = Field(None, gt=0, le=1)
    seed: int = Field(1, ge=0)


class Risk(Section):
    """Minimum Bayes risk: of many outputs, the one that is most like the others (Kumar and Byrne 2004)."""

    candidates: int = Field(32, ge=2, description="how many outputs, drawn or the best of a beam")
    utility: Literal["chrf", "bleu"] = Field(
        "chrf", description="how alike two outputs are: sentence scores, sacreBLEU"
    )


class Decoding(Section):
    """From a distribution to a text."""

    beam: int = Field(5, ge=1, description="1 is greedy")
    nbest: int = Field(1, ge=1)
    length_penalty: float = Field(1.0, ge=0, description="alpha of ((5 + length) / 6)^alpha (Wu et al. 2016)")
    coverage_penalty: float = Field(0.0, ge=0, description="beta of the same; needs attention weights")
    max_length: int = Field(256, ge=1, description="most tokens of output")
    max_ratio: float = Field(3.0, gt=0, description="most output tokens per source token, plus ten")
    sample: Sampling | None = None
    mbr: Risk | None = Field(None, description="choose by minimum Bayes risk; mbr: {} for the defaults")
    groups: int = Field(1, ge=1, description="of hypotheses that differ: diverse beam search (Vijayakumar et al. 2016)")
    diversity: float = Field(
        0.5, ge=0, description="groups: penalty for a word each time an earlier group just said it"
    )
    no_repeat: int = Field(0, ge=0, description="n: no n tokens in a row come twice in an output; 0: they may")
    min_length: int = Field(0, ge=0, description="least tokens of output; of a language model, least new ones")
    forbid: tuple[str, ...] = Field((), description="words and phrases that no output may contain")
    replace_unknown: Literal["none", "copy", "dictionary"] = Field(
        "none",
        description="put the source word looked at in the place of an unknown one, as it is or (dictionary) translated",
    )
    batch_tokens: int = Field(8_192, ge=1, description="source tokens decoded together, times beam")

    @model_validator(mode="after")
    def _fits(self) -> Decoding:
        if self.sample is None and self.nbest > self.beam:
            raise ValueError(f"nbest ({self.nbest}) is more than beam ({self.beam}); raise beam to at least nbest")
        if self.groups > 1 and self.sample is not None:
            raise ValueError(f"groups ({self.groups}) are parts of a beam, and sample draws; leave one of them out")
        if self.beam % self.groups:
            raise ValueError(f"groups ({self.groups}) do not divide beam ({self.beam}) evenly; change one of them")
        if self.min_length >= self.max_length:
            raise ValueError(
                f"min_length ({self.min_length}) leaves no room for an end mark below max_length ({self.max_length}); "
                f"lower it, or raise max_length"
            )
        if any(not phrase.strip() for phrase in self.forbid):
            raise ValueError("forbid has an empty phrase, which every output contains; leave it out")
        if self.mbr is not None:
            self._check_risk(self.mbr)
        return self

    def _check_risk(self, mbr: Risk) -> None:
        if self.sample is None and self.beam == 1:
            raise ValueError("mbr chooses among several outputs, and beam 1 finds one; set sample, or raise beam")
        if self.sample is None and mbr.candidates > self.beam:
            raise ValueError(
                f"mbr.candidates ({mbr.candidates}) is more than beam ({self.beam}); raise beam to at least that, or "
                f"set sample"
            )
        if self.nbest > mbr.candidates:
            raise ValueError(f"nbest ({self.nbest}) is more than mbr.candidates ({mbr.candidates}); raise those")


MetricName = Literal[
    "bleu",
    "chrf",
    "ter",
    "exact",
    "wer",
    "cer",
    "perplexity",
    "accuracy",
    "macro-f1",
    "token-accuracy",
    "span-f1",
    "bits-per-character",
    "masked-accuracy",
    "rouge-1",
    "rouge-2",
    "rouge-l",
    "rouge-lsum",
]


class Evaluation(Section):
    """How outputs are scored; the first metric is the one that early stopping and tables look at."""

    metrics: tuple[MetricName, ...] = Field(("bleu", "chrf"), min_length=1)
    lowercase: bool = Field(False, description="score in lower case")
    bootstrap: int = Field(1_000, ge=2, description="resamples for the 95% interval")


TaskName = Literal["seq2seq", "language-model", "masked-words", "classify", "tag"]

# What a model must have and may have, and the metrics that make sense, for each task.
PARTS: dict[TaskName, tuple[set[str], set[str]]] = {
    "seq2seq": ({"decoder"}, {"encoder", "decoder"}),
    "language-model": ({"decoder"}, {"decoder"}),
    "masked-words": ({"encoder"}, {"encoder"}),
    "classify": ({"encoder", "pooling"}, {"encoder", "pooling"}),
    "tag": ({"encoder"}, {"encoder"}),
}
ROUGE: tuple[MetricName, ...] = ("rouge-1", "rouge-2", "rouge-l", "rouge-lsum")
TASK_METRICS: dict[TaskName, tuple[MetricName, ...]] = {
    "seq2seq": ("bleu", "chrf", "ter", "exact", "wer", "cer", "perplexity", *ROUGE),
    "language-model": ("perplexity", "bits-per-character"),
    "masked-words": ("perplexity", "masked-accuracy"),
    "classify": ("accuracy", "macro-f1"),
    "tag": ("token-accuracy", "span-f1"),
}

DEFAULT_METRICS: dict[TaskName, tuple[MetricName, ...]] = {
    "seq2seq": ("bleu", "chrf"),
    "language-model": ("perplexity",),
    "masked-words": ("perplexity", "masked-accuracy"),
    "classify": ("accuracy", "macro-f1"),
    "tag": ("token-accuracy",),
}


class Recipe(Section):
    """A whole experiment."""

    task: TaskName = "seq2seq"
    seed: int = Field(1, ge=0)
    data: Data
    tokenizer: AnyTokenizer = BpeTokenizer()
    model: Model
    training: Training = Training()
    decoding: Decoding = Decoding()
    evaluation: Evaluation = Evaluation()

    @model_validator(mode="before")
    @classmethod
    def _metrics_of_the_task(cls, values: Any) -> Any:
        """The task's own metrics, where the recipe names none."""
        values = with_start_moved(values)
        if isinstance(values, dict) and (task := values.get("task", "seq2seq")) in TASK_METRICS:
            section = values.get("evaluation") or {}
            if isinstance(section, dict) and "metrics" not in section:
                data = values.get("data")
                mends = task == "seq2seq" and isinstance(data, dict) and data.get("noise") is not None
                own = ("perplexity",) if mends else DEFAULT_METRICS[task]
                return {**values, "evaluation": {**section, "metrics": own}}
        return values

    @model_validator(mode="after")
    def _parts_fit(self) -> Recipe:
        self._check_task()
        self._check_additions()
        check_copying(self.task, self.data, self.tokenizer, self.model, self._rivals_of_copying())
        check_guiding(self.training.guided_alignment, self.task, self.model, self._rivals_of_guiding())
        self.check_replacing(self.decoding)
        check_text(self)
        if self.task == "seq2seq" and self.model.tie == "all" and not self.tokenizer.shared:
            raise ValueError("model.tie: all needs one vocabulary; set tokenizer.shared: true or model.tie: output")
        decoder = self.model.decoder
        if self.task == "seq2seq" and self.model.encoder is None and self.model.tie != "all":
            raise ValueError("a decoder that reads the source too has one embedding; set model.tie: all")
        blind = isinstance(decoder, RecurrentDecoder) and decoder.attention.kind == "none"
        if self.decoding.coverage_penalty > 0 and (blind or isinstance(decoder, ByteNetBody | WindowBody)):
            raise ValueError("decoding.coverage_penalty needs a decoder with attention")
        longest, what = self.longest_sequence()
        for side, body in self.model.bodies.items():
            places = learned_positions(body)
            if places is not None and places < longest:
                raise ValueError(
                    f"model.{side}.positions.longest ({places}) is less than {what} ({longest}); "
                    f"raise it, or lower that"
                )
        return self

    def _check_additions(self) -> None:
        """Whether R-Drop and reward can do their work in this training."""
        training, decoder = self.training, self.model.decoder
        if training.stopping.on == "reward" and training.reward is None:
            raise ValueError("training.stopping.on: reward needs training.reward; add that section, or stop on loss")
        transformers = [body for body in self.model.bodies.values() if isinstance(body, TransformerBody)]
        if training.recompute_layers and not transformers:
            raise ValueError(
                "training.recompute_layers: true is for Transformer layers, and this model has none; leave it out"
            )
        if training.rdrop is None and training.reward is None:
            return
        if training.reward is not None and training.compile:
            raise ValueError(
                "training.compile: true cannot be had with training.reward, whose steps are not compiled; leave it"
            )
        if training.reward is None:
            carried = self.task == "language-model" and isinstance(decoder, RecurrentDecoder)
            if carried and training.batches.carry is not False:
                raise ValueError(
                    "training.rdrop reads every window twice, and this model goes on from the state of the window "
                    "before; set training.batches.carry: false"
                )
            return
        if training.rdrop is not None:
            raise ValueError("training.rdrop and training.reward are two objectives; leave one of them out")
        if self.task != "seq2seq" or self.model.encoder is None:
            raise ValueError("training.reward needs task: seq2seq and a model with an encoder; leave it out")
        if training.batches.layout == "packed":
            raise ValueError("training.reward draws from padded batches; leave training.batches.layout out")
        if training.stopping.on == "loss" and training.result == "best":
            raise ValueError(
                "training.reward does not lower the loss, so the best loss is not the best model; set "
                "training.stopping.on: reward (or metric), or training.result: last"
            )

    def _rivals_of_guiding(self) -> dict[str, object]:
        """What cannot be had beside guided alignment: other objectives, other words, a compiled step."""
        training = self.training
        return {
            "training.rdrop": training.rdrop is not None,
            "training.reward": training.reward is not None,
            "training.compile: true": training.compile,
            "model.copying: true": self.model.copying,
            "data.noise": self.data.noise is not None,
        }

    def check_replacing(self, options: Decoding) -> None:
        """Whether unknown words can be replaced as these options want it."""
        if self.copies_unknown:
            check_copied_words(options.replace_unknown, options.forbid)
        if options.replace_unknown == "none":
            return
        what, decoder = f"decoding.replace_unknown: {options.replace_unknown}", self.model.decoder
        if self.task != "seq2seq" or self.tokenizer.kind != "word":
            raise ValueError(
                f"{what} puts words of the source where the vocabulary has none, and needs task: seq2seq with "
                f"tokenizer.kind: word, not {self.task} with {self.tokenizer.kind}; set it to none"
            )
        blind = isinstance(decoder, RecurrentDecoder) and decoder.attention.kind == "none"
        if blind or self.model.encoder is None or isinstance(decoder, ByteNetBody | WindowBody):
            raise ValueError(f"{what} needs a decoder with attention to an encoder; set it to none")

    def _rivals_of_copying(self) -> dict[str, object]:
        """What cannot be had with model.copying, by key, where it is set."""
        training = self.training
        return {
            "training.rdrop": training.rdrop is not None,
            "training.reward": training.reward,
            "training.guided_alignment": training.guided_alignment,
            "training.batches.layout: packed": training.batches.layout == "packed",
            "training.compile: true": training.compile,
        }

    @property
    def copies_unknown(self) -> bool:
        """Whether words that are in no vocabulary can be copied from the source (text/copying.py)."""
        return copies_unknown(self.model, self.tokenizer)

    @property
    def of_text(self) -> bool:
        """Whether examples are windows of plain text: there are no pairs, and no outputs to hold against others."""
        return self.task == "language-model" or self.data.noise is not None

    def longest_sequence(self) -> tuple[int, str]:
        """The most tokens of a training sequence, marks included, and the key that says so."""
        if self.of_text:
            return self.training.batches.context, "training.batches.context"
        most = self.data.clean.max_tokens + 1
        if self.task == "seq2seq" and self.model.encoder is None:
            read = most if self.data.clean.cut_source is None else min(most, self.data.clean.cut_source + 1)
            return read + most, "the longest pair of sentences data.clean.max_tokens lets through, end to end"
        if self.model.pooling is not None and self.model.pooling.kind == "class":
            return most + 1, "the longest text data.clean.max_tokens lets through, with its end mark and class token"
        return most, "the longest sentence data.clean.max_tokens lets through, with its end mark"

    def _check_task(self) -> None:
        """Whether the model has the parts of the task, and the metrics are its own."""
        needed, allowed = PARTS[self.task]
        present = {part for part in ("encoder", "decoder", "pooling") if getattr(self.model, part) is not None}
        if missing := sorted(needed - present):
            raise ValueError(f"task: {self.task} needs model.{missing[0]}")
        if extra := sorted(present - allowed):
            raise ValueError(f"task: {self.task} has no use for model.{extra[0]}; leave it out, or change the task")
        if self.model.spelling is not None and self.task not in ("classify", "tag"):
            raise ValueError(f"model.spelling is for classifiers and taggers, not for task: {self.task}; leave it out")
        if self.task == "tag" and self.data.clean.cut_source is not None:
            raise ValueError("data.clean.cut_source would leave words without their tags; leave it out for task: tag")
        decoder = self.model.decoder
        if isinstance(decoder, Ngram) and self.task != "language-model":
            raise ValueError(
                "model.decoder.kind: ngram counts text and cannot look at a source; use it with task: language-model"
            )
        alone = self.model.encoder is None
        if alone and isinstance(decoder, RecurrentDecoder) and decoder.attention.kind != "none":
            raise ValueError(
                f"model.decoder.attention.kind: {decoder.attention.kind} has no encoder to look at; set it to none"
            )
        encoder, pooling = self.model.encoder, self.model.pooling
        forward = isinstance(encoder, RecurrentEncoder) and not encoder.bidirectional
        if forward and pooling is not None and pooling.kind == "class":
            raise ValueError(
                "model.pooling.kind: class looks at the state of the first token, where an encoder that reads forwards "
                "has seen no other; set it to last, or model.encoder.bidirectional: true"
            )
        if wrong := [name for name in self.evaluation.metrics if name not in TASK_METRICS[self.task]]:
            known = ", ".join(TASK_METRICS[self.task])
            raise ValueError(f"evaluation.metrics: {wrong[0]} is not for task: {self.task}; use {known}")
