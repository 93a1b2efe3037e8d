"""The training section of a recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field, field_validator, model_validator

from sightline.recipe.schema import Choice, Probability, Section, default_of, open_union


class Schedule(Section):
    """The learning rate over time; `lr` is its peak."""

    kind: Literal["constant", "inverse-sqrt", "cosine", "warmup-stable-decay"] = Field(
        "cosine", description="decay after the warm-up"
    )
    warmup: int | float = Field(
        0.1,
        ge=0,
        description="linear increase from 0 to lr: a number of steps, or below 1 a share of the training, by the limit "
        "that comes first (at least 10 steps)",
    )
    decay: float = Field(0.2, gt=0, le=1, description="warmup-stable-decay: share of the steps that decay")
    floor: float = Field(0.0, ge=0, le=1, description="cosine and warmup-stable-decay: final rate, as a share of lr")

    @field_validator("warmup")
    @classmethod
    def _whole_steps(cls, value: float) -> int | float:
        if value < 1 and value != 0:
            return value
        if value != int(value):
            raise ValueError(f"{value} is neither a number of steps nor a share of the training below 1")
        return int(value)


if TYPE_CHECKING:
    AnySchedule = Schedule
    AnyOptimizer = Choice
    AnyLoss = Choice
    AnyCallback = Choice
    AnyLogger = Choice
else:
    AnySchedule = open_union("schedule", default="cosine", base=Schedule, short=True)
    AnyOptimizer = open_union("optimizer", default="adamw", base=Choice, short=True)
    AnyLoss = open_union("loss", default="cross-entropy", base=Choice, short=True)
    AnyCallback = open_union("callback", base=Choice, short=True)
    AnyLogger = open_union("logger", base=Choice, short=True)


class Batches(Section):
    """How examples are batched."""

    tokens: int = Field(
        4_096,
        ge=1,
        description="most tokens on the longer side of a batch; the default depends on the size of the training text",
    )
    accumulate: int = Field(1, ge=1, description="batches per optimizer step")
    context: int = Field(256, ge=2, description="language models, data.noise: tokens in a window of text")
    carry: bool | None = Field(
        None,
        description="language models: start each window from the last state of the one before; by default if recurrent",
    )
    layout: Literal["auto", "packed", "padded"] = Field(
        "auto", description="padded rows, or sequences one after the other; auto: the faster one"
    )

    def windows(self) -> int:
        """Windows of text in a batch."""
        if self.context > self.tokens:
            raise ValueError(
                f"training.batches.context ({self.context}) is more than training.batches.tokens ({self.tokens}); "
                f"raise that to a multiple of it"
            )
        return self.tokens // self.context


class LimitsConfig(Section):
    """The training ends at the first of these limits."""

    steps: int | None = Field(None, ge=1, description="optimizer steps")
    epochs: int | None = Field(
        None,
        ge=1,
        description="without steps, the default depends on the size of the training text; null: no limit",
    )
    minutes: float | None = Field(None, gt=0, description="of training and validation")

    @model_validator(mode="after")
    def _some_limit(self) -> LimitsConfig:
        if self.steps is None and self.epochs is None and self.minutes is None:
            raise ValueError("training needs an end: set limits.steps, limits.epochs or limits.minutes")
        return self


class Stopping(Section):
    """Early stopping, and the choice of the best checkpoint."""

    monitor: Literal["loss", "metric", "reward"] = Field(
        "loss",
        description="metric: decode the validation set and compute the first metric; reward: see training.reward",
    )
    beam: int = Field(1, ge=1, description="beam size of that decoding")
    patience: int | None = Field(None, ge=1, description="validations without a new best before stopping")


class Averaging(Section):
    """Averages of weights over time."""

    kind: Literal["none", "ema", "checkpoints"] = Field(
        "none",
        description="ema: running average, which is validated and saved; checkpoints: mean of the newest ones at the "
        "end, whatever training.result is",
    )
    decay: float = Field(0.999, gt=0, lt=1, description="ema: share of the average that is kept in each step")
    count: int = Field(5, ge=1, description="checkpoints: number of them")


class Reward(Section):
    """Fine-tuning on expected sentence reward (Wu et al. 2016, §5): loss = −E[reward] + nll_weight · (−log-likelihood).

    The expectation is over outputs sampled from the model, without dropout, each compared with the reference. To use
    it, train a model by likelihood, then the same recipe from its weights, with a small lr and, as in the paper, no
    dropout: `sightline train RECIPE model.init_from=runs/NAME training.reward.samples=15
    training.stopping.monitor=reward training.lr=1e-5 training.schedule.kind=constant training.schedule.warmup=0 --out
    runs/NAME-reward`. Validations show the expected `reward` on held-out text, the first one before any step.
    """

    metric: Literal["gleu"] = Field("gleu", description="min of precision and recall of 1- to 4-grams, from 0 to 1")
    unit: Literal["tokens", "words"] = Field(
        "tokens", description="unit of the n-grams: tokens, or words between spaces"
    )
    samples: int = Field(
        15, ge=2, description="outputs sampled for each source; the baseline of each is the mean of the others"
    )
    nll_weight: float = Field(
        0.017, ge=0, description="weight of the log-likelihood of the reference; the reward is from 0 to 1"
    )
    temperature: float = Field(1.0, gt=0, description="of sampling; only 1 samples from the model itself")
    max_length: int = Field(
        128,
        ge=1,
        description="longest sample; decoding.max_ratio applies too, by default 1.5 times that of the training text",
    )


class GuidedAlignment(Section):
    """Loss = cross entropy of the words + weight · cross entropy of one head's attention (Garg et al. 2019, §4.2).

    The file has a line for each example of data.train in the order of reading, before cleaning: `0-0 1-2`, source and
    target word from 0; words are separated by spaces. `sightline align RUN --training --out FILE` writes one.
    """

    file: str = Field(description="word alignments in Pharaoh format, relative to data.folder")
    weight: float = Field(0.05, gt=0, description="weight of the alignment loss")
    layer: int | None = Field(None, ge=0, description="of the decoder, from 0; by default the second to last")
    head: int = Field(0, ge=0, description="of that layer, from 0; recurrent and convolutional decoders have one")
    shift: bool = Field(
        False,
        description="guide attention where a word is the input, one step after it is predicted (Chen et al. 2020)",
    )

    def place(self, layers: int) -> int:
        """The layer whose head is guided, among `layers` with cross-attention."""
        return max(layers - 2, 0) if self.layer is None else self.layer


class Training(Section):
    """How the model is trained."""

    lr: float = Field(5e-4, gt=0, description="peak learning rate; the default depends on the model")
    schedule: AnySchedule = Field(Schedule(), description="the learning rate over time")
    betas: tuple[Probability, Probability] = Field((0.9, 0.98), description="of Adam")
    eps: float = Field(1e-9, gt=0, description="of Adam")
    weight_decay: float = Field(0.0, ge=0, description="decoupled weight decay of matrices")
    clip: float | None = Field(1.0, gt=0, description="clip the norm of the gradient to this")
    label_smoothing: Probability = Field(0.1, description="of the cross-entropy; by default 0 for plain text")
    rdrop: float | None = Field(
        None,
        ge=0,
        description="weight alpha of R-Drop, which makes two passes with different dropout agree (Wu et al. 2021: 5 "
        "for translation)",
    )
    reward: Reward | None = Field(None, description="fine-tune on expected sentence reward; see Reward")
    guided_alignment: GuidedAlignment | None = Field(
        None, description="train one attention head on word alignments; see GuidedAlignment"
    )
    freeze: tuple[str, ...] = Field(
        (), description="what is not trained: embeddings, a layer (encoder.0), or a prefix of parameter names"
    )
    layer_lr_decay: float | None = Field(
        None, gt=0, le=1, description="factor of lr from each layer to the one below; new parameters have the full lr"
    )
    batches: Batches = Field(Batches(), description="how examples are batched")
    limits: LimitsConfig = Field(
        LimitsConfig.model_construct(_fields_set=set(), epochs=10),  # none of it set: see defaults.py
        description="when the training ends",
    )
    validate_every: int | None = Field(
        None,
        ge=1,
        description="steps between validations; null: once an epoch, the default unless epochs are short or long",
    )
    save_every: int | None = Field(None, ge=1, description="steps between checkpoints; by default at each validation")
    keep: int = Field(3, ge=2, description="number of newest checkpoints to keep, beside the best")
    log_every: int = Field(50, ge=1, description="steps between records in metrics.jsonl")
    log_layers: bool = Field(False, description="log the gradient norm of each layer, too")
    samples: int = Field(
        3, ge=0, description="outputs to print at each validation, by greedy search, up to 128 tokens long"
    )
    stopping: Stopping = Field(Stopping(), description="early stopping, and the choice of the best weights")
    averaging: Averaging = Field(Averaging(), description="averages of weights over time")
    result: Literal["best", "last"] = Field(
        "best",
        description="weights of the finished model; with averaging.kind: checkpoints, it is the mean instead",
    )
    precision: Literal["auto", "float32", "bf16", "fp16"] = Field(
        "auto",
        description="of matrix products. auto: bf16 if the hardware has it (GPUs of compute capability 8.0 or more, "
        "CPUs with AVX512-BF16 or AMX), fp16 with loss scaling on GPUs of 7.x, else float32; the run stores the choice",
    )
    deterministic: bool = Field(
        False,
        description="use only deterministic kernels, so that a CUDA training can be repeated bit for bit; slower. On "
        "the CPU, trainings with the same number of threads always are",
    )
    gradient_checkpointing: bool = Field(
        False,
        description="store only the inputs of Transformer layers and recompute them in the backward pass (Chen "
        "et al. 2016): less memory, a third more work",
    )
    compile: bool | None = Field(None, description="torch.compile the step; by default on CUDA with static shapes")
    device: str = Field("auto", description="auto (cuda if there is one), cpu, cuda, cuda:N or mps (untested)")
    threads: int | None = Field(None, ge=1, description="CPU threads; by default chosen by PyTorch")
    tensorboard: bool = Field(False, description="write metrics for TensorBoard")
    optimizer: AnyOptimizer = Field(
        default_factory=lambda: default_of(AnyOptimizer), description="its name, or a section with its options"
    )
    loss: AnyLoss = Field(
        default_factory=lambda: default_of(AnyLoss),
        description="its name, or a section with its options; cross-entropy: that of the task",
    )
    callbacks: tuple[AnyCallback, ...] = Field(
        (), description="callbacks of plug-ins to call, by name or as sections; Sightline's own are always active"
    )
    loggers: tuple[AnyLogger, ...] = Field(
        (), description="loggers to write to beside metrics.jsonl, by name or as sections: tensorboard, or a plug-in's"
    )


def step_seed(seed: int, step: int, rank: int = 0) -> int:
    """The seed of all that is random inside one step, in the process of this rank."""
    import numpy as np  # not when recipes are only read or --help is printed

    entropy = [seed, step, rank] if rank else [seed, step]
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0] >> 1)
