"""A trained run, loaded: predict with it, score it, see where it looked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from sightline.allocation import keep_freed_memory
from sightline.data.sources import Example, read
from sightline.decoding.generate import generate
from sightline.decoding.scoring import attention_to_source, log_probabilities
from sightline.evaluation.metrics import Measurement, Score, measure, measure_perplexity
from sightline.experiment import build_model, choose_device
from sightline.inspection.alignment import Alignment
from sightline.layers.linear import pack
from sightline.models.seq2seq import Seq2Seq
from sightline.preparation import data_folder
from sightline.recipe import Decoding, MetricName, Recipe
from sightline.recipe_files import load_recipe
from sightline.recipe_model import TransformerBody
from sightline.run_folder import RunError, need, read_config
from sightline.text.tokenizer import Vocabulary
from sightline.training.checkpoints import load_parameters

_END = "</s>"  # how the end mark is shown beside the tokens of a sentence


@dataclass(frozen=True)
class Prediction:
    """One output for one input."""

    text: str
    score: float
    tokens: list[int]


@dataclass(frozen=True)
class TestSet:
    """Distinct sources, each with all its references."""

    name: str
    sources: list[str]
    references: list[list[str]]
    pairs: int

    @staticmethod
    def of(name: str, examples: Iterable[Example]) -> TestSet:
        """Examples with one source become one entry with several references."""
        grouped: dict[str, list[str]] = {}
        pairs = 0
        for example in examples:
            pairs += 1
            known = grouped.setdefault(example.source, [])
            if example.target not in known:
                known.append(example.target)
        return TestSet(name, list(grouped), list(grouped.values()), pairs)


@dataclass(frozen=True)
class Report:
    """How a run did on a test set."""

    on: str
    sentences: int
    scores: list[Score]
    outputs: list[str]

    def to_dict(self) -> dict[str, Any]:
        return {"on": self.on, "sentences": self.sentences, "scores": [found.to_dict() for found in self.scores]}


class Run:
    """A run folder with its model in memory."""

    def __init__(self, folder: Path, recipe: Recipe, vocabulary: Vocabulary, model: Seq2Seq, device: torch.device):
        self.folder, self.recipe, self.vocabulary, self.model, self.device = folder, recipe, vocabulary, model, device

    @staticmethod
    def load(folder: str | Path, *, device: str = "auto") -> Run:
        """Read a run folder; what it lacks is an error that says so."""
        run = Path(folder)
        read_config(run)
        recipe = load_recipe(need(run, "recipe.yaml", "it is part of every run folder; copy the whole folder"))
        vocabulary = Vocabulary.load(run)
        weights = need(run, "model.safetensors", f"finish its training with: sightline train {run} --resume")
        chosen = choose_device(device)
        model = build_model(recipe, vocabulary)
        try:
            load_parameters(model, load_file(weights))
        except SafetensorError as error:
            raise RunError(f"{weights} is damaged ({error}); copy it again, or resume the training") from error
        model = model.to(chosen).eval()
        if chosen.type == "cpu":
            keep_freed_memory()
        if torch.backends.mkldnn.is_available():
            pack(model)
        return Run(run, recipe, vocabulary, model, chosen)

    # --- predicting -----------------------------------------------------------------------------------------------

    def options(self, **changes: Any) -> Decoding:
        """The recipe's decoding section with some keys changed."""
        given = {key: value for key, value in changes.items() if value is not None}
        if "nbest" in given and "beam" not in given and "sample" not in given:
            given["beam"] = max(given["nbest"], self.recipe.decoding.beam)
        return Decoding.model_validate({**self.recipe.decoding.model_dump(), **given})

    def longest_source(self) -> int | None:
        """The most tokens a source may have, where the model has a limit."""
        body = self.recipe.model.encoder
        if isinstance(body, TransformerBody) and body.positions.kind == "learned":
            return body.positions.longest - 1
        return None

    def encode_sources(self, texts: Sequence[str], *, first: int = 0) -> list[list[int]]:
        """Token ids; a text longer than the model can take is an error that names it."""
        encoded = self.vocabulary.source.encode_many(list(texts))
        longest = self.longest_source()
        for number, tokens in enumerate(encoded, first + 1):
            if longest is not None and len(tokens) > longest:
                raise ValueError(
                    f"line {number} has {len(tokens)} tokens and this model takes {longest} (its learned positions); "
                    f"shorten or split it"
                )
        return encoded

    def predict_nbest(
        self,
        texts: Sequence[str],
        options: Decoding | None = None,
        *,
        prefixes: Sequence[str] | None = None,
        first: int = 0,
    ) -> list[list[Prediction]]:
        """For each text its best outputs, best first. An empty text gives one empty output."""
        sources = self.encode_sources(texts, first=first)
        forced = None if prefixes is None else self.vocabulary.target.encode_many(list(prefixes))
        found = generate(
            self.model, sources, options or self.recipe.decoding, device=self.device, prefixes=forced, first=first
        )
        flat = self.vocabulary.target.decode_many([guess.tokens for guesses in found for guess in guesses])
        texts_out: Iterator[str] = iter(flat)
        return [[Prediction(_one_line(next(texts_out)), g.score, g.tokens) for g in guesses] for guesses in found]

    def predict(self, texts: Sequence[str], **changes: Any) -> list[str]:
        """The best output for each text; keywords change the recipe's decoding, e.g. `beam=1`."""
        if isinstance(texts, str):
            raise TypeError("predict takes a list of texts; put the one text into a list: predict([text])")
        return [guesses[0].text for guesses in self.predict_nbest(texts, self.options(**changes))]

    def align(self, text: str, output: str | None = None) -> Alignment | None:
        """Where the model looked while it wrote `output` (its own prediction, if none is given)."""
        source = self.encode_sources([text])[0]
        own = output is None
        target = self.predict_nbest([text])[0][0].tokens if own else self.vocabulary.target.encode(output or "")
        return self.alignment_of(source, target)

    def alignment_of(self, source: list[int], target: list[int]) -> Alignment | None:
        """The same for token ids; None for a model without attention."""
        weights = attention_to_source(self.model, source, target, device=self.device)
        if weights is None:
            return None
        return Alignment(
            [*self.vocabulary.source.pieces(source), _END], [*self.vocabulary.target.pieces(target), _END], weights
        )

    # --- scoring --------------------------------------------------------------------------------------------------

    def test_sets(self) -> list[str]:
        """The names `evaluate` knows."""
        return [*self.recipe.data.tests, "validation"]

    def test_examples(self, name: str) -> Iterator[Example]:
        """The pairs of a test set of the recipe, as its files have them."""
        data = self.recipe.data
        if name != "validation" and name not in data.tests:
            raise ValueError(f"this run has no test set {name!r}; it has {', '.join(self.test_sets())}")
        source = data.validation if name == "validation" else data.tests[name]
        return read(source, data_folder(self.recipe), swap=data.swap)

    def test_set(self, name: str) -> TestSet:
        """A test set of the recipe."""
        return TestSet.of(name, self.test_examples(name))

    def evaluate(self, on: TestSet | str, options: Decoding | None = None) -> Report:
        """Decode a test set and score it with every metric of the recipe."""
        test = self.test_set(on) if isinstance(on, str) else on
        section = self.recipe.evaluation
        outputs = [guesses[0].text for guesses in self.predict_nbest(test.sources, options)]
        scores = [
            self.measure(name, test, outputs, lowercase=section.lowercase).score(bootstrap=section.bootstrap)
            for name in section.metrics
        ]
        return Report(test.name, len(test.sources), scores, outputs)

    def measure(self, metric: MetricName, test: TestSet, outputs: Sequence[str], *, lowercase: bool) -> Measurement:
        """One metric of this run on a test set, given its outputs there; perplexity looks only at the references."""
        if metric == "perplexity":
            return self._perplexity(test)
        return measure(metric, outputs, test.references, lowercase=lowercase)

    def _perplexity(self, test: TestSet) -> Measurement:
        pairs = [(s, t) for s, many in zip(test.sources, test.references, strict=True) for t in many]
        sources = self.encode_sources([source for source, _ in pairs])
        targets = self.vocabulary.target.encode_many([target for _, target in pairs])
        found = log_probabilities(self.model, sources, targets, device=self.device)
        return measure_perplexity(-found, [len(target) + 1 for target in targets])


def _one_line(text: str) -> str:
    """An output never breaks the line-by-line contract, whatever characters the vocabulary holds."""
    return text.replace("\r", " ").replace("\n", " ")
