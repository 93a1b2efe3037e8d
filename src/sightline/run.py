"""A trained run: predict with it, score it, see where it looked."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from sightline.data.locate import data_folder, load_run_recipe
from sightline.data.sources import Example, line_limit, read
from sightline.data.target_lengths import TargetLengths
from sightline.decoding.ensemble import Mean, check_alike
from sightline.decoding.next_words import NextWord
from sightline.decoding.request import Phrases, Request
from sightline.decoding.scoring import attention_to_source
from sightline.decoding.unknown_words import read_dictionary
from sightline.evaluation.likelihood import ModelScores
from sightline.evaluation.measurement import Measurement
from sightline.evaluation.metrics import needs_outputs
from sightline.evaluation.test_set import Report, TestSet
from sightline.models.ngram import CountedModel
from sightline.models.seq2seq import parameter_count
from sightline.progress import Progress
from sightline.recipe import Decoding, MetricName, Recipe
from sightline.recipe.recipe import check_replacing
from sightline.recipe.tasks import suits
from sightline.run_folder import read_config
from sightline.tasks.arguments import check_text, check_texts, wrong_task
from sightline.tasks.base import Prediction, Probabilities, Score, Task, build_task
from sightline.tasks.load import NeverValidated, UnevenSources, ensemble_task, load_task
from sightline.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from sightline.inspection.alignment import Alignment
    from sightline.inspection.embeddings import Layer, Pooling, TextVectors, Vectors
    from sightline.inspection.trace import Trace

__all__ = ["NeverValidated", "Run", "UnevenSources"]

_END = "</s>"  # how the end mark is shown beside the tokens of a sentence
# what a run has only once it is loaded
_LOADED = frozenset(("recipe", "vocabulary", "model", "device", "task", "members", "precision", "scores"))


class Run:
    """A run folder with its model in memory, or (`Run.lazy`) with a model that is loaded at its first use.

    It is a path, too (`os.fspath(run)`, `open(run / "metrics.jsonl")`), and can be pickled: the copy is loaded from the
    run folder.
    """

    def __init__(
        self,
        folder: Path,
        recipe: Recipe,
        vocabulary: Vocabulary,
        model: Any,
        device: torch.device,
        lengths: TargetLengths | None = None,
    ):
        self.folder = folder
        self._use(build_task(recipe, vocabulary, model, device, read_dictionary(folder), lengths))

    def _use(self, task: Task, members: Sequence[Run] = (), precision: str = "float32") -> None:
        self.task, self.members, self.precision = task, list(members), precision
        self.recipe, self.vocabulary, self.model, self.device = task.recipe, task.vocabulary, task.model, task.device
        self.scores = ModelScores(task)

    @staticmethod
    def lazy(folder: str | os.PathLike[str], *, device: str = "auto", precision: str = "float32") -> Run:
        """The run of a folder whose model is loaded when something first needs it."""
        run = Run.__new__(Run)
        run.folder, run._pending = Path(folder), (device, precision)
        return run

    _pending: tuple[str, str] | None = None  # device and precision to load with, while nothing is loaded yet

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Load the run at the first use of what only a loaded one has."""
            if self._pending is None or name not in _LOADED:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            device, precision = self._pending
            self.__dict__.update(Run.load(self.folder, device=device, precision=precision).__dict__)
            self._pending = None
            return self.__dict__[name]

    def __fspath__(self) -> str:
        return str(self.folder)

    def __truediv__(self, name: str | os.PathLike[str]) -> Path:
        """The path of a file in the run folder."""
        return self.folder / name

    def __repr__(self) -> str:
        """`Run('runs/mine', task: seq2seq, transformer encoder, lstm decoder, 5,312,000 parameters, device: cpu)`."""
        if self._pending is not None:
            return f"Run({str(self.folder)!r}, {self._described_unloaded()})"
        rounded = "" if self.precision == "float32" else f", precision: {self.precision}"
        return f"Run({str(self.folder)!r}, {self._described()}, device: {self.device}{rounded})"

    def _described(self) -> str:
        """Task, architecture and size."""
        parameters = self._parameters()
        models = f"ensemble of {len(self.members)}" if self.members else _architecture(self.recipe)
        return f"{self.recipe.task_spec}, {models}" + (f", {parameters:,} parameters" if parameters else "")

    def _described_unloaded(self) -> str:
        """The same from the files of the folder."""
        try:
            recipe, parameters = load_run_recipe(self.folder), read_config(self.folder).get("parameters") or 0
        except (ValueError, OSError):
            return "not loaded yet"
        size = f", {parameters:,} parameters" if parameters else ""
        return f"{recipe.task_spec}, {_architecture(recipe)}{size}, not loaded yet"

    def _parameters(self) -> int:
        if self.members:
            return sum(member._parameters() for member in self.members)
        return 0 if isinstance(self.model, CountedModel) else parameter_count(self.model)

    def __copy__(self) -> Run:
        """A run that shares the model with this one; its recipe can be changed."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle where the run is, not its weights: the copy is loaded from the folder, on the same device."""
        if self._pending is not None:
            return _load_pickled, (self.folder.absolute(), *self._pending, True)
        if self.members:
            return _ensemble_pickled, (self.members, self.model.weights, self.model.mean)
        if not (self.folder / "recipe.yaml").is_file():
            raise pickle.PicklingError(f"{self!r} has no run folder that a copy could be loaded from")
        return _load_pickled, (self.folder.absolute(), str(self.device), self.precision, False)

    def on(self, device: str, precision: str) -> Run:
        """This run on that device, in that precision: itself if it is there, else loaded again from its folder."""
        if self._pending is None and device in ("auto", str(self.device)) and precision == self.precision:
            return self
        if self._pending is None and self.members:
            parts = [member.folder for member in self.members]
            how: Any = {"weights": self.model.weights, "mean": self.model.mean}
            return Run.ensemble(parts, device=device, precision=precision, **how)
        return Run.load(self.folder, device=device, precision=precision)

    @staticmethod
    def load(folder: str | os.PathLike[str], *, device: str = "auto", precision: str = "float32") -> Run:
        """Read a run folder; what it lacks is an error that says so.

        With `precision="bf16"` its matrix products are taken in bfloat16, on CPUs that have such: faster, and a word
        in some sentences differs.
        """
        run = Run.__new__(Run)
        run.folder = Path(folder)
        run._use(load_task(run.folder, device, precision), precision=precision)
        return run

    @staticmethod
    def ensemble(
        runs: Sequence[str | os.PathLike[str]],
        *,
        weights: Sequence[float] | None = None,
        mean: Mean = "probabilities",
        device: str = "auto",
        precision: str = "float32",
    ) -> Run:
        """Several runs of one task and one vocabulary, whatever their architectures, as one that averages them.

        Runs that are loaded already are shared. The recipe of all, with the decoding and the test sets, is that of the
        first; their dictionary for unknown words that of the first that has one.
        """
        if isinstance(runs, str | os.PathLike) or not runs:
            raise ValueError(f"an ensemble is made of a list of run folders, not of {runs!r}")
        members = [
            each if isinstance(each, Run) else Run.load(each, device=device, precision=precision) for each in runs
        ]
        for other in members[1:]:
            check_alike(members[0], other)
        together = Run.__new__(Run)
        together.folder = members[0].folder
        rounded = next((each.precision for each in members if each.precision != "float32"), "float32")
        together._use(ensemble_task([each.task for each in members], weights, mean), members, rounded)
        return together

    # --- predicting -----------------------------------------------------------------------------------------------

    def options(self, **changes: Any) -> Decoding:
        """The recipe's decoding section with some keys changed, and one output each unless `nbest` asks for more.

        A beam means search: the recipe's sampling and minimum Bayes risk are switched off. `mbr` may be
        a number of candidates, and 0 is none. What is None stays as it is.
        """
        own = self.recipe.decoding
        if wrong := [key for key in changes if key not in Decoding.model_fields]:
            raise TypeError(f"decoding has no {wrong[0]!r}; the keys are {', '.join(Decoding.model_fields)}")
        given = {key: value for key, value in changes.items() if value is not None}
        risk = given.get("mbr")
        if isinstance(risk, int):
            kept = {} if own.mbr is None else own.mbr.model_dump()
            given["mbr"] = {**kept, "candidates": risk} if risk else None
        options = Decoding.model_validate(own.changed(given))
        check_replacing([each.recipe for each in self.members or (self,)], options)
        return options

    def plain_search(self, beam: int | None) -> Decoding:
        """A search by that beam and nothing else: no drawing, groups or risk; without one, as the recipe says."""
        return self.options() if beam is None else self.options(beam=beam, mbr=0, groups=1)

    def encode_sources(self, texts: Sequence[str], *, first: int = 0) -> list[list[int]]:
        """Token ids; a text longer than the model can take is an error that names it."""
        return self.task.encode(texts, first=first)

    def predict_nbest(
        self,
        texts: Sequence[str],
        options: Decoding | None = None,
        *,
        prefixes: Sequence[str] | None = None,
        first: int = 0,
        phrases: Sequence[Phrases] | None = None,
        scored: bool = True,
        on_done: Callable[[int], None] | None = None,
        **changes: Any,
    ) -> list[list[Prediction]]:
        """For each text its best outputs, best first; `phrases` say what each must or must not contain.

        Keywords change the recipe's decoding as in `predict`, e.g. `beam=5, nbest=5`; or `options` are all of it.
        Without scores (they may be NaN then) a greedy search is faster. `on_done` is called with how many more texts
        are done.
        """
        check_texts("predict_nbest", texts)
        options = self._chosen("predict_nbest", options, changes)
        if prefixes is not None and len(prefixes) != len(texts):
            raise ValueError(
                f"predict_nbest has {len(texts)} texts and {len(prefixes)} prefixes; give one for each text"
            )
        if phrases is not None and len(phrases) != len(texts):
            raise ValueError(
                f"predict_nbest has {len(texts)} texts and {len(phrases)} phrases; give them for each text"
            )
        requests = [
            Request(
                text,
                options,
                prefix_text=None if prefixes is None else prefixes[index],
                phrases=None if phrases is None else phrases[index],
                number=first + index,
                scored=scored,
            )
            for index, text in enumerate(texts)
        ]
        return self.task.predict(requests, on_done)

    def _chosen(self, method: str, options: Decoding | None, changes: dict[str, Any]) -> Decoding:
        """The decoding that a call asks for: all of it, some changed keys, or that of the recipe."""
        if changes and options is not None:
            raise TypeError(f"{method} takes options or keywords ({', '.join(changes)}), not both")
        if changes:
            return self.options(**{"nbest": self.recipe.decoding.nbest, **changes})
        return options or self.recipe.decoding

    def predict(self, texts: Sequence[str], **changes: Any) -> list[str]:
        """The best output for each text (of an empty one, ""); keywords change the recipe's decoding: `beam=1`."""
        check_texts("predict", texts)
        return [guesses[0].text for guesses in self.predict_nbest(texts, self.options(**changes), scored=False)]

    def stream(
        self, text: str, options: Decoding | None = None, *, write: Callable[[str], None], **changes: Any
    ) -> Prediction:
        """Continue a text (or nothing: "") with a language model and `write` what is new at once.

        Keywords change the recipe's decoding as in `predict`.
        """
        self._check_continues("stream", text)
        return self.task.stream(text, self._chosen("stream", options, changes), write)

    def continuations(self, text: str, options: Decoding | None = None, **changes: Any) -> list[Prediction]:
        """A text (or nothing: "") as a language model continues it: the best outputs, best first."""
        self._check_continues("continuations", text)
        return self.task.continuations(text, self._chosen("continuations", options, changes))

    def next_words(self, text: str, count: int = 10) -> list[NextWord]:
        """The `count` most probable next words after a text by a language model, with P(word | text).

        A word may consist of several pieces, whose probabilities are multiplied (decoding/next_words.py).
        """
        self._check_continues("next_words", text)
        if count < 1:
            raise ValueError(f"next_words needs a count of at least 1, not {count}")
        return self.task.next_words(text, count)

    def _check_continues(self, method: str, text: str) -> None:
        check_text(method, text)
        if not self.recipe.task_spec.continues_text:
            raise wrong_task(self, method, "language-model", "use predict(texts)")

    def align(self, text: str, output: str | None = None) -> Alignment | None:
        """Where the model looked while it wrote `output` (its own prediction, if none is given).

        None for a model without attention to a source. `alignment.draw("looks.png")` makes a picture of it.
        """
        check_text("align", text)
        if output is not None:
            check_text("align", output, name="output")
        self._check_aligns("align")
        source = self.encode_sources([text])[0]
        own = output is None
        target = self.predict_nbest([text])[0][0].tokens if own else self.vocabulary.target.encode(output or "")
        return self.alignment_of(source, target)

    def alignment_of(self, source: list[int], target: list[int]) -> Alignment | None:
        """The same for token ids; None for a model without attention."""
        self._check_aligns("alignment_of")
        weights = attention_to_source(self.model, source, target, device=self.device)
        if weights is None:
            return None
        from sightline.inspection.alignment import Alignment

        return Alignment(
            [*self.vocabulary.source.pieces(source), _END], [*self.vocabulary.target.pieces(target), _END], weights
        )

    def _check_aligns(self, method: str) -> None:
        if not self.recipe.task_spec.maps_text:
            raise wrong_task(self, method, "seq2seq", "use trace(text) to see what its attention looks at")

    def trace(self, text: str, target: str | None = None, step: int | None = None) -> Trace:
        """What the model computed for a text and `target` (its own output, if none is given), to look inside.

        With `step`, no further than that token of the output, counted from 0. Recording changes no output.
        """
        from sightline.inspection.tracing import trace_text

        check_text("trace", text)
        if target is not None:
            check_text("trace", target, name="target")
        return trace_text(self.task, text, target, step)

    def embed(self, texts: Sequence[str], *, layer: Layer = "last", pooling: Pooling = "mean") -> Vectors:
        """One vector for each text, (texts, D), pooled (mean, max, first) over the states of its pieces."""
        check_texts("embed", texts)
        if pooling == "none":
            raise ValueError("embed gives one vector for each text of a list; for its words or pieces: embed_units")
        return np.concatenate([each.vectors for each in self.embed_units(texts, layer=layer, pooling=pooling)])

    def embed_units(
        self, texts: Sequence[str], *, layer: Layer = "last", pooling: Pooling = "none", words: bool = False
    ) -> list[TextVectors]:
        """The pieces of each text, each with its vector in this context; with `words` and a pooling, its words."""
        from sightline.inspection.embeddings import VectorOptions, embed_texts

        check_texts("embed_units", texts)
        return embed_texts(self.task, texts, VectorOptions(layer, pooling, words))

    # --- scoring --------------------------------------------------------------------------------------------------

    def score(self, texts: Sequence[str], targets: Sequence[str] | None = None) -> list[Score]:
        """How likely the model finds given outputs: for each pair log p(target | text), natural logarithm.

        Each `Score` has `log_probability`, `nll` (its negative), `tokens` (how many were predicted, the end mark
        included) and `perplexity`. Targets are labels for classifiers, and tags between spaces for taggers. A language
        model takes texts alone: log p(text). For outputs that the model finds itself, see `predict_nbest`.
        """
        check_texts("score", texts)
        if self.recipe.task_spec.fills_gaps:
            raise wrong_task(
                self,
                "score",
                "seq2seq, language-model, classification and tagging",
                "put [MASK] into the text, and predict_nbest(texts) gives each filling its log-probability",
            )
        if self.recipe.task_spec.continues_text:
            if targets is not None:
                raise ValueError(
                    f"{self.folder} is task: language-model, which scores texts alone; leave targets out, or join each "
                    f"to its text"
                )
        elif targets is None:
            raise ValueError(
                f"{self.folder} is {self.recipe.task_spec}, which scores targets; give one for each text: "
                f"score(texts, targets)"
            )
        else:
            check_texts("score", targets, name="targets")
            if len(targets) != len(texts):
                raise ValueError(f"score has {len(texts)} texts and {len(targets)} targets; give one for each text")
        return self.task.score(texts, targets)

    def probabilities(self, texts: Sequence[str]) -> list[Probabilities] | list[list[Probabilities]]:
        """The probability of every label, likeliest first: for each text a dictionary (classifiers), or for each text a
        list with a dictionary for each of its words (taggers)."""
        check_texts("probabilities", texts)
        if self.recipe.task_spec.labels != "none":
            return self.task.probabilities(texts)
        remedy = "predict_nbest(texts) gives each output its log-probability"
        if not self.recipe.task_spec.fills_gaps:
            remedy += ", score that of any text you give"
        raise wrong_task(self, "probabilities", "classification and tagging", remedy)

    def test_sets(self) -> list[str]:
        """The names `evaluate` knows."""
        return [*self.recipe.data.tests, "validation"]

    def test_examples(self, name: str) -> Iterator[Example]:
        """The pairs of a test set of the recipe, as its files have them."""
        data = self.recipe.data
        if name != "validation" and name not in data.tests:
            raise ValueError(f"this run has no test set {name!r}; it has {', '.join(self.test_sets())}")
        labelled = self.recipe.task_spec.labels == "words"
        bound = line_limit(self.recipe)
        return read(data.held_out(name), data_folder(self.recipe), swap=data.swap, labelled=labelled, limit=bound)

    def test_set(self, name: str) -> TestSet:
        """A test set of the recipe."""
        return TestSet.of(name, self.test_examples(name), gathered=self.recipe.gathers(name))

    @property
    def needs_outputs(self) -> bool:
        """True if some metric of the recipe needs decoded outputs."""
        return not self.recipe.of_text and needs_outputs(self.recipe.evaluation.metrics)

    def evaluate(
        self,
        on: TestSet | str,
        options: Decoding | None = None,
        *,
        keep_outputs: bool = False,
        progress: Progress | None = None,
    ) -> Report:
        """Score a test set with every metric of the recipe; `progress` reports how far it is.

        It is decoded where a metric needs outputs, or they are to be kept.
        """
        test = self.test_set(on) if isinstance(on, str) else on
        answers = self._answers(test, options, progress) if keep_outputs or self.needs_outputs else []
        for name in self.recipe.evaluation.metrics:
            self.check_metric(name)
        return self.scores.report(test, answers, self.recipe, options or self.recipe.decoding, progress)

    def _answers(self, test: TestSet, options: Decoding | None, progress: Progress | None) -> list[list[Prediction]]:
        """The outputs for each source of a test set, best first."""
        done = 0

        def count(more: int) -> None:
            nonlocal done
            done += more
            if progress is not None:
                progress(f"decoding {test.name}", done, len(test.sources))

        return self.predict_nbest(test.sources, options, scored=False, on_done=count)

    def check_metric(self, metric: MetricName) -> None:
        """Refuse a metric of another task."""
        if not suits(metric, self.recipe.task_spec):
            known = ", ".join(self.recipe.task_spec.metrics)
            raise ValueError(f"{metric} is not for {self.recipe.task_spec} ({self.folder}); use {known}")

    def measure(self, metric: MetricName, test: TestSet, outputs: Sequence[str], *, lowercase: bool) -> Measurement:
        """One metric of this run on a test set, given its outputs there; some look only at the references."""
        self.check_metric(metric)
        return self.scores.measure(metric, test, outputs, self.recipe.evaluation, lowercase=lowercase)

    def text_losses(self, stream: np.ndarray) -> np.ndarray:
        """−log p of each token of a text (ids with end marks), by a language model."""
        if not self.recipe.task_spec.continues_text:
            remedy = "use evaluate(test_set)" if self.recipe.task_spec.fills_gaps else "use score(texts, targets)"
            raise wrong_task(self, "text_losses", "language-model", remedy)
        return self.task.text_losses(stream)


def _architecture(recipe: Recipe) -> str:
    """The bodies of a model in a line: `transformer encoder, lstm decoder`."""
    return ", ".join(f"{getattr(body, 'cell', body.kind)} {side}" for side, body in recipe.model.bodies.items())


def _load_pickled(folder: Path, device: str, precision: str, lazy: bool) -> Run:
    return (Run.lazy if lazy else Run.load)(folder, device=device, precision=precision)


def _ensemble_pickled(members: Sequence[Run], weights: Sequence[float], mean: Mean) -> Run:
    return Run.ensemble(members, weights=weights, mean=mean)
