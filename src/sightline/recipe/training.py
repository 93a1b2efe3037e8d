"""The sections of a recipe that say how a model is trained."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from sightline.recipe.schema import Probability, Registered, Section


class Schedule(Section):
    """How the learning rate moves; `lr` is its peak."""

    kind: Annotated[str, Registered("schedule")] = Field("cosine", description="how it falls after the warm-up")
    warmup: int | float = Field(
        0.1,
        ge=0,
        description="linear rise from 0 to lr: a number of steps, or, below 1, a share of the training (0.1: its first "
        "tenth, by whichever limit comes first, but never in fewer than 10 steps)",
    )
    decay: float = Field(0.2, gt=0, le=1, description="warmup-stable-decay: share of all steps spent decaying")
    floor: float = Field(0.0, ge=0, le=1, description="cosine and warmup-stable-decay: where to end, as share of lr")

    @field_validator("warmup")
    @classmethod
    def _whole_steps(cls, value: float) -> int | float:
        if value < 1 and value != 0:
            return value
        if value != int(value):
            raise ValueError(f"{value} is neither a number of steps nor a share of the training below 1")
        return int(value)


class Batches(Section):
    """How examples are put together."""

    tokens: int = Field(
        4_096,
        ge=1,
        description="most tokens on the longer side of a batch; by default by the size of the training text",
    )
    accumulate: int = Field(1, ge=1, description="batches per optimizer step")
    context: int = Field(256, ge=2, description="language models, data.noise: tokens in a window of text")
    carry: bool | None = Field(
        None,
        description="language models: each window goes on from the state of the one before; by default if recurrent",
    )
    layout: Literal["auto", "packed", "padded"] = Field("auto", description="see layers/layout.py")

    def windows(self) -> int:
        """How many windows of text a batch has."""
        if self.context > self.tokens:
            raise ValueError(
                f"training.batches.context ({self.context}) is more than training.batches.tokens ({self.tokens}); "
                f"raise that to a multiple of it"
            )
        return self.tokens // self.context


class LimitsConfig(Section):
    """When training ends: at the first of these."""

    steps: int | None = Field(None, ge=1, description="optimizer steps")
    epochs: int | None = Field(
        None,
        ge=1,
        description="by default, where steps is not set either, by the size of the training text; null for no limit",
    )
    minutes: float | None = Field(None, gt=0, description="of training, validations included")

    @model_validator(mode="after")
    def _some_limit(self) -> LimitsConfig:
        if self.steps is None and self.epochs is None and self.minutes is None:
            raise ValueError("training needs an end: set limits.steps, limits.epochs or limits.minutes")
        return self


class Stopping(Section):
    """Early stopping, and which checkpoint is the best."""

    monitor: Literal["loss", "metric", "reward"] = Field(
        "loss", description="metric: decode the validation set, use the first metric; reward: see training.reward"
    )
    beam: int = Field(1, ge=1, description="beam of that decoding")
    patience: int | None = Field(None, ge=1, description="validations without a new best before stopping")


class Averaging(Section):
    """Averages of weights over time, which are often better than any one of them."""

    kind: Literal["none", "ema", "checkpoints"] = Field(
        "none",
        description="ema: running average, validated and saved; checkpoints: mean of the newest ones, at the end, "
        "whatever training.result says",
    )
    decay: float = Field(0.999, gt=0, lt=1, description="ema: how much of the average is kept each step")
    count: int = Field(5, ge=1, description="checkpoints: how many")


class Reward(Section):
    """Fine-tuning on expected sentence reward (Wu et al. 2016, §5): loss = −E[reward] + nll_weight · (−log-likelihood).

    The expectation is over outputs drawn from the model, without dropout, each measured against the reference. To run
    it: train a model by likelihood, then the same recipe from its weights, with a small lr and, as the paper does, no
    dropout: `sightline train RECIPE model.init_from=runs/NAME training.reward.samples=15
    training.stopping.monitor=reward training.lr=1e-5 training.schedule.kind=constant training.schedule.warmup=0 --out
    runs/NAME-reward`. Validations show the expected `reward` on held-out text, the first one before any step.
    """

    metric: Literal["gleu"] = Field("gleu", description="min of precision and recall of 1- to 4-grams, from 0 to 1")
    unit: Literal["tokens", "words"] = Field("tokens", description="n-grams of what: tokens, or words between spaces")
    samples: int = Field(15, ge=2, description="outputs drawn for each source; the others' mean is each one's baseline")
    nll_weight: float = Field(
        0.017, ge=0, description="weight of the log-likelihood of a reference beside the reward of 0 to 1"
    )
    temperature: float = Field(1.0, gt=0, description="of the drawing; only 1 draws from the model itself")
    max_length: int = Field(
        128,
        ge=1,
        description="most tokens drawn; decoding.max_ratio applies too, by default 1.5 times that of the training text",
    )


class GuidedAlignment(Section):
    """Loss = cross entropy of the words + weight · cross entropy of one head's attention (Garg et al. 2019, §4.2).

    The file has a line for each example of data.train in the order they are read, before cleaning: `0-0 1-2`, source
    word and target word from 0, words being what stands between spaces. `sightline align RUN --training --out FILE`
    writes one from a run that is there.
    """

    file: str = Field(description="word alignments in Pharaoh format; relative names start at data.folder")
    weight: float = Field(0.05, gt=0, description="of the alignment loss beside that of the words")
    layer: int | None = Field(None, ge=0, description="of the decoder, from 0; by default the last but one")
    head: int = Field(0, ge=0, description="of that layer, from 0; recurrent and convolutional decoders have one")
    shift: bool = Field(
        False, description="guide a word's attention where it is read, a step after it is written (Chen et al. 2020)"
    )

    def place(self, layers: int) -> int:
        """The layer whose head is guided, of so many that look at the source."""
        return max(layers - 2, 0) if self.layer is None else self.layer


class Training(Section):
    """The loop."""

    lr: float = Field(
        5e-4, gt=0, description="peak of the learning rate; by default by the kind and width of the model"
    )
    schedule: Schedule = Field(Schedule(), description="how the learning rate moves")
    betas: tuple[Probability, Probability] = Field((0.9, 0.98), description="of Adam")
    eps: float = Field(1e-9, gt=0, description="of Adam")
    weight_decay: float = Field(0.0, ge=0, description="decoupled, as in AdamW; of matrices alone")
    clip: float | None = Field(1.0, gt=0, description="largest norm of the gradient")
    label_smoothing: Probability = Field(0.1, description="by default 0 for what learns from plain text")
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
    batches: Batches = Field(Batches(), description="how examples are put together")
    limits: LimitsConfig = Field(
        LimitsConfig.model_construct(_fields_set=set(), epochs=10),  # none of it set: see defaults.py
        description="when training ends",
    )
    validate_every: int | None = Field(
        None,
        ge=1,
        description="steps between validations; null: once an epoch; by default that, unless epochs are short or long",
    )
    save_every: int | None = Field(None, ge=1, description="steps between checkpoints; by default at each validation")
    keep: int = Field(3, ge=2, description="newest checkpoints kept, beside the best")
    log_every: int = Field(50, ge=1, description="steps between records in metrics.jsonl")
    log_layers: bool = Field(False, description="write down the gradient norm of each layer too, at every log_every")
    samples: int = Field(3, ge=0, description="outputs shown at each validation, by greedy search, of up to 128 tokens")
    stopping: Stopping = Field(Stopping(), description="when to stop early, and which weights are best")
    averaging: Averaging = Field(Averaging(), description="averages of weights over time")
    result: Literal["best", "last"] = Field(
        "best",
        description="which weights the finished model has; beside averaging.kind: checkpoints neither, but their mean",
    )
    precision: Literal["auto", "float32", "bf16", "fp16"] = Field(
        "auto",
        description="of matrix products. auto: bf16 where the hardware has it (GPUs from compute capability 8.0, CPUs "
        "with AVX512-BF16 or AMX), fp16 with loss scaling on GPUs of 7.x, else float32; the run stores which",
    )
    deterministic: bool = Field(
        False,
        description="use only deterministic kernels, so that a training on CUDA can be repeated bit for bit; slower. "
        "On the CPU a training with the same number of threads always can",
    )
    gradient_checkpointing: bool = Field(
        False,
        description="Transformer layers keep only their inputs and are computed again on the way back (gradient "
        "checkpointing, Chen et al. 2016): less memory, a third more work",
    )
    compile: bool | None = Field(None, description="torch.compile the step; by default on CUDA where shapes are static")
    device: str = Field("auto", description="auto (cuda if there is one), cpu, cuda, cuda:N or mps (untested)")
    threads: int | None = Field(None, ge=1, description="CPU threads; by default what PyTorch chooses")
    tensorboard: bool = Field(False, description="write metrics for TensorBoard, too")
    optimizer: Annotated[str, Registered("optimizer")] = Field("adamw", description="how gradients change the weights")
    loss: Annotated[str, Registered("loss")] = Field("cross-entropy", description="cross-entropy: that of the task")


def step_seed(seed: int, step: int, rank: int = 0) -> int:
    """The seed of all that is random inside one step, in the process of this rank."""
    import numpy as np  # not when recipes are only read or --help is printed

    entropy = [seed, step, rank] if rank else [seed, step]
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0] >> 1)
