"""The decoding and evaluation sections of a recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from sightline.recipe.schema import Choice, Registered, Section, open_union

_NEW_TOKENS = 256  # of a language model, by default


class Sampling(Section):
    """Sampling instead of beam search."""

    temperature: float = Field(1.0, gt=0, description="of the softmax; below 1, likely tokens become more likely")
    top_k: int | None = Field(None, ge=1, description="sample from the k most likely tokens")
    top_p: float | None = Field(
        None, gt=0, le=1, description="sample from the most likely tokens with this total probability"
    )
    seed: int = Field(1, ge=0, description="the same seed samples the same outputs")


class Risk(Section):
    """Minimum Bayes risk: the output most similar to the others (Kumar and Byrne 2004)."""

    candidates: int = Field(32, ge=2, description="number of outputs, sampled or the best of a beam")
    utility: Literal["chrf", "bleu"] = Field(
        "chrf", description="similarity of two outputs: sentence scores of sacreBLEU"
    )
    weights: Literal["uniform", "probability"] = Field(
        "uniform", description="weight of each output: the same for all, or (with beam search) its probability"
    )

    @field_validator("weights", mode="before")
    @classmethod
    def _old_name(cls, value: Any) -> Any:
        return "uniform" if value == "alike" else value


LengthNormalization = Literal["gnmt", "length", "reward"]
StoppingRule = Literal["horizon", "bound", "present", "count"]


if TYPE_CHECKING:
    AnyProcessor = Choice
else:
    AnyProcessor = open_union("processor", base=Choice, short=True)


class Decoding(Section):
    """Search for outputs."""

    beam: int = Field(5, ge=1, description="beam size; 1: greedy search")
    nbest: int = Field(1, ge=1, description="outputs per line, with their scores")
    length_penalty: float = Field(1.0, ge=0, description="alpha of the length normalization; 0: none")
    length_normalization: LengthNormalization = Field(
        "length",
        description="score of a hypothesis. length: log p / length^alpha; gnmt: log p / ((5 + length) / 6)^alpha, the "
        "default if only length_penalty is given; reward: log p + alpha length",
    )
    stopping: StoppingRule = Field(
        "horizon",
        description="end of beam search. horizon: beam outputs are finished, and no live hypothesis can beat the "
        "n best within patience times its length; bound: nor at any length (exact); present: none beats the worst "
        "of beam outputs at its present length (as in transformers); count: patience times beam outputs are finished",
    )
    patience: float | None = Field(
        None, gt=0, description="by default 1.25 for stopping: horizon and 1 for count (Kasai et al. 2022)"
    )
    coverage_penalty: float = Field(
        0.0, ge=0, description="beta of the coverage penalty (Wu et al. 2016); needs attention weights"
    )
    max_length: int | None = Field(
        None,
        ge=1,
        description="most tokens of an output; without it and max_ratio, 1.5 times the longest training target for a "
        "source of this length, plus ten; language models: most new tokens, by default 256",
    )
    max_ratio: float | None = Field(None, gt=0, description="most output tokens per source token, plus ten")
    sample: Sampling | None = Field(None, description="sample outputs; sample: {} for the defaults")
    mbr: Risk | None = Field(None, description="choose by minimum Bayes risk; mbr: {} for the defaults")
    groups: int = Field(1, ge=1, description="groups of diverse beam search (Vijayakumar et al. 2016)")
    diversity: float = Field(
        0.5, ge=0, description="groups: penalty of a token for each earlier group that chose it in this step"
    )
    no_repeat: int = Field(0, ge=0, description="n: no n-gram of tokens occurs twice in an output; 0: no limit")
    min_length: int = Field(0, ge=0, description="least tokens of an output; language models: least new tokens")
    forbid: tuple[str, ...] = Field((), description="words and phrases that outputs must not contain")
    replace_unknown: Literal["none", "copy", "dictionary"] = Field(
        "none",
        description="replace an unknown word by the source word with most attention; dictionary: by its translation",
    )
    processors: tuple[AnyProcessor, ...] = Field((), description="logits processors of plug-ins, in order")
    batch_tokens: int | None = Field(
        None, ge=1, description="source tokens decoded at once, times beam; by default 8,192, on a GPU 131,072"
    )

    def tokens_at_once(self, device: str) -> int:
        """Source tokens decoded at once, times beam, on a type of device (`cpu`, `cuda`).

        A search step takes a GPU hardly longer for thousands of sentences than for fifty; a CPU depends on its caches.
        """
        return self.batch_tokens or (8_192 if device == "cpu" else 131_072)

    @property
    def new_tokens(self) -> int:
        """The most tokens that a language model generates."""
        return _NEW_TOKENS if self.max_length is None else self.max_length

    @property
    def candidates(self) -> int:
        """Number of outputs to find: the n best, or those that minimum Bayes risk chooses from."""
        return self.nbest if self.mbr is None else self.mbr.candidates

    def changed(self, changes: dict[str, Any]) -> dict[str, Any]:
        """This section with changes and what follows from them, as a mapping to be validated.

        A beam means a search: sampling, and minimum Bayes risk among samples, are off unless they are in `changes` too.
        `nbest` and `mbr.candidates` raise the beam to what they need. Without `nbest` there is one output.
        """
        changes = dict(changes)
        if "beam" in changes and "sample" not in changes:
            changes["sample"] = None
            if self.sample is not None:
                changes.setdefault("mbr", None)
        risk = changes.get("mbr")
        if isinstance(risk, dict):
            risk = Risk.model_construct(**risk)
        candidates = None if risk is None else getattr(risk, "candidates", None)
        counts = [count for count in (changes.get("nbest"), candidates) if isinstance(count, int)]
        if counts and "beam" not in changes and "sample" not in changes:
            changes["beam"] = max(*counts, self.beam)
        return {**self.model_dump(), "nbest": 1, **changes}

    @model_validator(mode="before")
    @classmethod
    def _form_of_penalty(cls, data: Any) -> Any:
        """`length_penalty` alone means the form of Wu et al. 2016, as in older recipes."""
        if isinstance(data, dict) and "length_normalization" not in data and "length_penalty" in data:
            return {**data, "length_normalization": "gnmt"}
        return data

    @model_validator(mode="after")
    def _fits(self) -> Decoding:
        if self.sample is None and self.nbest > self.beam:
            raise ValueError(f"nbest ({self.nbest}) is more than beam ({self.beam}); raise beam, or lower nbest")
        if self.groups > 1 and self.sample is not None:
            raise ValueError(f"groups ({self.groups}) are parts of a beam, and sample draws; leave one of them out")
        if self.length_normalization == "reward" and "length_penalty" not in self.model_fields_set:
            raise ValueError(
                "length_normalization: reward adds length_penalty for every token; name length_penalty, e.g. 0.2"
            )
        if self.patience is not None and self.stopping not in ("horizon", "count"):
            raise ValueError(
                f"patience ({self.patience:g}) is for stopping: horizon or count, not {self.stopping}; leave it out"
            )
        if self.beam % self.groups:
            raise ValueError(f"groups ({self.groups}) do not divide beam ({self.beam}) evenly; change one of them")
        if self.max_length is not None and self.min_length >= self.max_length:
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
                f"mbr.candidates ({mbr.candidates}) is more than beam ({self.beam}); raise beam to at least that, set "
                f"sample, or leave mbr out (decoding.mbr=null)"
            )
        if self.sample is not None and mbr.weights == "probability":
            raise ValueError(
                "mbr.weights: probability is for a beam; what is drawn comes as often as it is likely, so it would "
                "count twice: leave it out, or leave sample out"
            )
        if self.nbest > mbr.candidates:
            raise ValueError(f"nbest ({self.nbest}) is more than mbr.candidates ({mbr.candidates}); raise those")


MetricName = Annotated[str, Registered("metric")]


BleuTokenizer = Literal["auto", "13a", "zh", "char", "intl", "ja-mecab", "ko-mecab", "flores101", "flores200", "none"]


class Evaluation(Section):
    """How outputs are scored. Early stopping and tables use the first metric."""

    metrics: tuple[MetricName, ...] = Field(
        ("bleu", "chrf"), min_length=1, description="metrics; the default depends on the task"
    )
    lowercase: bool = Field(False, description="ignore case")
    bleu_tokenize: BleuTokenizer = Field(
        "auto",
        description="tokenizer of BLEU (sacreBLEU's names); auto: by the script of the references, zh for Chinese, "
        "char for Japanese, Korean, Thai, Lao, Khmer and Burmese, else 13a",
    )
    chrf_word_order: int = Field(0, ge=0, le=2, description="longest word n-grams of chrF; 2 is chrF++")
    bootstrap: int = Field(1_000, ge=2, description="resamples for the 95% interval")
