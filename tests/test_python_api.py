"""The Python API: every public method of a run with every task, what it returns or which clear error it raises."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import sightline
from sightline.recipe import Recipe
from sightline.run import Run
from task_cases import CASES, FILES, LSTM, TRANSFORMER, WRITER, case, write
from watched_runs import Silent, own_cache

NOISE: dict[str, Any] = {
    "train": [{"kind": "plain", "file": "train.txt"}],
    "validation": {"kind": "plain", "file": "valid.txt"},
}
BLIND = case("seq2seq", {"encoder": LSTM, "decoder": WRITER})
RECIPES: dict[str, dict[str, Any]] = {
    "translator": CASES["translator"],
    "no attention": BLIND,
    "decoder alone": CASES["decoder alone, lstm"],
    "denoising": {
        **case("seq2seq", {"encoder": LSTM, "decoder": LSTM}, {"kind": "word", "min_count": 1}),
        "data": {**NOISE, "noise": {"kind": "text-infilling", "rate": 0.2}},
    },
    "span corruption": {
        **case("seq2seq", {"encoder": LSTM, "decoder": LSTM}, {"kind": "word", "min_count": 1}),
        "data": {**NOISE, "noise": {"kind": "span-corruption", "rate": 0.2, "mean_span_length": 2.0, "sentinels": 4}},
    },
    "language model": CASES["language model, lstm"],
    "n-grams": CASES["language model, counted"],
    "masked words": {
        **case("masked-lm", {"encoder": TRANSFORMER}, {"kind": "word", "min_count": 1}),
        "data": {**NOISE, "noise": {"kind": "mask", "rate": 0.2}},
    },
    "classifier": CASES["classifier, lstm"],
    "tagger": CASES["tagger, lstm"],
}
TEXT = "the cat sat ."


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Run]]:
    """A run of each kind of task; shared, so not to be changed."""
    found = {}
    folder = tmp_path_factory.mktemp("api")
    with own_cache(folder / "cache"):
        for name, recipe in RECIPES.items():
            place = folder / name
            place.mkdir()
            FILES.setdefault("masked-lm", FILES["language-model"])
            if "noise" in recipe["data"]:
                recipe = {**recipe, "data": {**recipe["data"], "folder": str(place)}}
                write(place, {**recipe, "task": "language-model"})
            path = write(place, recipe) if "noise" not in recipe["data"] else place / "recipe.yaml"
            path.write_text(yaml.safe_dump(recipe))
            found[name] = sightline.train(path, out=place / "run", display=Silent())
        yield found


# --- every method with every task -----------------------------------------------------------------------------------

ALL = set(RECIPES)
WRITTEN = {"translator", "no attention", "decoder alone", "denoising", "span corruption"}
SCORED = (WRITTEN - {"span corruption"}) | {"classifier", "tagger"}
METHODS: dict[str, tuple[Callable[[Run], Any], set[str]]] = {
    "predict": (lambda run: run.predict([TEXT, ""]), ALL),
    "predict_nbest": (lambda run: run.predict_nbest([TEXT], beam=3, nbest=2), ALL),
    "align": (lambda run: run.align(TEXT), WRITTEN),
    "align an output": (lambda run: run.align(TEXT, "a"), WRITTEN),
    "alignment_of": (lambda run: run.alignment_of([5], [5]), WRITTEN),
    "trace": (lambda run: run.trace(*_traced(run)), ALL - {"n-grams"}),
    "embed": (lambda run: run.embed([TEXT]), ALL - {"n-grams"}),
    "embed_units": (lambda run: run.embed_units([TEXT]), ALL - {"n-grams"}),
    "score targets": (lambda run: run.score([TEXT], [_target(run)]), SCORED),
    "score texts": (lambda run: run.score([TEXT]), {"language model", "n-grams"}),
    "probabilities": (lambda run: run.probabilities([TEXT]), {"classifier", "tagger"}),
    "text_losses": (lambda run: run.text_losses(np.array([5, 6, 3])), {"language model", "n-grams"}),
    "stream": (lambda run: run.stream(TEXT, beam=1, write=lambda text: None), {"language model", "n-grams"}),
    "evaluate": (lambda run: run.evaluate("validation"), ALL),
    "encode_sources": (lambda run: run.encode_sources([TEXT]), ALL),
    "test_sets": (lambda run: run.test_sets(), ALL),
}  # fmt: skip
REMEDIES = r"use |needs|leave|give |put |predict_nbest|one by one|another run|--corpus"


def _traced(run: Run) -> tuple[str, ...]:
    return {"masked-lm": ("the [MASK] sat .",), "language-model": ("the ", "cat")}.get(run.recipe.task, (TEXT,))


def _target(run: Run) -> str:
    return {"classification": "one thing", "tagging": "DET NOUN VERB PUNCT"}.get(run.recipe.task, ". sat cat the")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", RECIPES)
def test_a_method_works_or_names_the_task_and_the_remedy(name: str, method: str, runs: dict[str, Run]) -> None:
    call, tasks = METHODS[method]
    if name in tasks:
        call(runs[name])
        return
    with pytest.raises((ValueError, TypeError), match=REMEDIES) as refused:
        call(runs[name])
    task = runs[name].recipe.task
    assert f"task: {task}" in str(refused.value) or name in ("n-grams", "span corruption"), refused.value


TEXTS: dict[str, Callable[[Run, Any], Any]] = {
    "predict": lambda run, texts: run.predict(texts),
    "predict_nbest": lambda run, texts: run.predict_nbest(texts),
    "embed": lambda run, texts: run.embed(texts),
    "embed_units": lambda run, texts: run.embed_units(texts),
    "score": lambda run, texts: run.score(texts, ["a"]),
    "probabilities": lambda run, texts: run.probabilities(texts),
}
WRONG = [
    ([TEXT, None], r"texts\[1\] must be a string, not None"),
    ([3], r"texts\[0\] must be a string, not int \(3\)"),
    ([["a"]], r"texts\[0\] must be a string, not list"),
    ("one text", r"takes a list of texts; put the one text into a list"),
    (b"bytes", r"takes a list of texts"),
    (None, r"takes a list of texts as texts, not None"),
    (7, r"takes a list of texts as texts, not int \(7\)"),
]


@pytest.mark.parametrize(("texts", "said"), WRONG)
@pytest.mark.parametrize("method", TEXTS)
def test_what_is_no_list_of_texts_is_named(method: str, texts: Any, said: str, runs: dict[str, Run]) -> None:
    for name in ("translator", "classifier"):
        with pytest.raises(TypeError, match=rf"^{method}\b.*{said}"):
            TEXTS[method](runs[name], texts)


def test_one_text_is_asked_for_where_one_is_taken(runs: dict[str, Run]) -> None:
    for call in (runs["translator"].align, runs["translator"].trace):
        with pytest.raises(TypeError, match="text must be one text, not a list of them"):
            call(["a"])  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="text must be a string, not None"):
            call(None)  # type: ignore[arg-type]


# --- predicting and scoring -----------------------------------------------------------------------------------------


def test_nbest_takes_the_keywords_of_predict(runs: dict[str, Run]) -> None:
    run = runs["translator"]
    found = run.predict_nbest([TEXT, "a dog ran ."], beam=5, nbest=3)
    assert [len(guesses) for guesses in found] == [3, 3]
    assert [guesses[0].text for guesses in found] == run.predict([TEXT, "a dog ran ."], beam=5)
    assert run.predict_nbest([TEXT]) == run.predict_nbest([TEXT], run.recipe.decoding)
    with pytest.raises(TypeError, match="decoding has no 'beams'"):
        run.predict_nbest([TEXT], beams=5)
    with pytest.raises(TypeError, match="options or keywords"):
        run.predict_nbest([TEXT], run.recipe.decoding, beam=5)


@pytest.mark.parametrize("name", ["translator", "no attention", "decoder alone", "denoising"])
def test_score_is_what_the_search_found_for_its_own_output(name: str, runs: dict[str, Run]) -> None:
    run = runs[name]
    (best,) = run.predict_nbest([TEXT], beam=1, length_penalty=0.0, max_length=60)[0]
    if run.vocabulary.target.encode(best.text) == best.tokens and len(best.tokens) < 60:
        (found,) = run.score([TEXT], [best.text])
        assert found.log_probability == pytest.approx(best.score, abs=1e-4)
        assert found.tokens == len(best.tokens) + 1
    short, longer = run.score([TEXT, TEXT], ["a", "a dog ran ."])
    assert short.nll == -short.log_probability > 0
    assert longer.perplexity == pytest.approx(np.exp(longer.nll / longer.tokens))


def test_a_language_model_scores_texts(runs: dict[str, Run]) -> None:
    for name in ("language model", "n-grams"):
        run = runs[name]
        alone, twice = run.score([TEXT, TEXT + " a dog"])
        assert twice.log_probability < alone.log_probability < 0
        ids = run.vocabulary.target.encode(TEXT)
        assert alone.tokens == len(ids) + 1
        assert run.score([TEXT])[0].log_probability == pytest.approx(alone.log_probability, abs=1e-4)
    counted = runs["n-grams"]
    stream = np.array([*counted.vocabulary.target.encode(TEXT), 3])
    assert counted.score([TEXT])[0].nll == pytest.approx(counted.text_losses(stream).sum(), rel=1e-4)
    with pytest.raises(ValueError, match="scores texts alone"):
        counted.score([TEXT], [TEXT])


def test_a_language_model_scores_its_own_continuation_as_the_search_did(runs: dict[str, Run]) -> None:
    run = runs["language model"]
    prompts = ["a", "the", "a dog", "that cat", TEXT]
    answers = [best for (best,) in run.predict_nbest(prompts, beam=1, length_penalty=0.0, max_length=200)]
    whole = [best for best in answers if not best.truncated and best.text == " ".join(best.text.split())]
    assert whole  # of the others, the text alone does not give the tokens back
    for best, found in zip(whole, run.score([best.text for best in whole]), strict=True):
        assert found.log_probability == pytest.approx(best.score, abs=1e-3)


def test_probabilities_of_a_classifier_are_its_n_best(runs: dict[str, Run]) -> None:
    run = runs["classifier"]
    found = run.probabilities([TEXT, "a dog ran ."])
    for own, guesses in zip(found, run.predict_nbest([TEXT, "a dog ran ."], nbest=2), strict=True):
        assert isinstance(own, dict)
        assert list(own) == [guess.text for guess in guesses]
        assert sum(own.values()) == pytest.approx(1.0)
        assert list(own.values()) == pytest.approx([np.exp(guess.score) for guess in guesses])
        scores = run.score([TEXT] * len(guesses), [guess.text for guess in guesses])
        assert len(scores) == len(guesses)
    (first, second) = run.score([TEXT, TEXT], ["one thing", "that thing"])
    assert np.exp(first.log_probability) + np.exp(second.log_probability) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="there is no label 'nothing'; there are"):
        run.score([TEXT], ["nothing"])


def test_probabilities_of_a_tagger_are_per_word(runs: dict[str, Run]) -> None:
    run = runs["tagger"]
    first, empty, other = run.probabilities([TEXT, "", "a naïve 🦉 ran ."])
    assert (len(first), len(empty), len(other)) == (4, 0, 5)
    for word in (*first, *other):
        assert isinstance(word, dict)
        assert sum(word.values()) == pytest.approx(1.0) and set(word) == {"DET", "NOUN", "VERB", "PUNCT"}
    tags = [next(iter(word)) for word in first if isinstance(word, dict)]
    assert run.predict([TEXT]) == [" ".join(tags)]
    (score,) = run.score([TEXT], [" ".join(tags)])
    assert score.log_probability == pytest.approx(run.predict_nbest([TEXT])[0][0].score, rel=1e-5)
    assert score.tokens == 4
    with pytest.raises(ValueError, match=r"targets\[0\] has 1 label for 4 words"):
        run.score([TEXT], ["DET"])


def test_pairs_must_be_pairs(runs: dict[str, Run]) -> None:
    with pytest.raises(ValueError, match="2 texts and 1 targets"):
        runs["translator"].score([TEXT, TEXT], ["a"])
    with pytest.raises(TypeError, match=r"targets\[0\] must be a string, not None"):
        runs["translator"].score([TEXT], [None])  # type: ignore[list-item]
    assert runs["translator"].score([], []) == []


# --- runs as values ---------------------------------------------------------------------------------------------------


def test_train_returns_a_run_that_is_loaded_at_its_first_use(runs: dict[str, Run], tmp_path: Path) -> None:
    path = write(tmp_path, CASES["translator"])
    with own_cache(tmp_path / "cache"):
        run = sightline.train(path, out=tmp_path / "run", display=Silent())
    assert isinstance(run, Run)
    assert "model" not in run.__dict__ and "not loaded yet" in repr(run)
    assert os.fspath(run) == str(tmp_path / "run") and Path(run) == run.folder
    assert (run / "metrics.jsonl").is_file() and Path(run, "recipe.yaml").is_file()
    assert not hasattr(run, "no_such_thing") and "model" not in run.__dict__
    output = run.predict([TEXT])
    assert "model" in run.__dict__
    assert sightline.load(run) is run
    assert sightline.load(tmp_path / "run").predict([TEXT]) == output
    assert sightline.load([run, run.folder]).predict([TEXT]) == output
    copy = sightline.load(run, precision="float32", device="cpu")
    assert copy is run


@pytest.mark.parametrize("name", RECIPES)
def test_repr_is_one_line_with_folder_task_architecture_parameters_and_device(name: str, runs: dict[str, Run]) -> None:
    run = sightline.load(runs[name].folder, device="cpu")
    shown = repr(run)
    assert "\n" not in shown and str(run.folder) in shown
    assert f"task: {run.recipe.task}" in shown and "device: cpu" in shown
    body = run.recipe.model.encoder or run.recipe.model.decoder
    assert getattr(body, "cell", body.kind) in shown  # type: ignore[union-attr]
    if name != "n-grams":
        parameters = sum(weight.numel() for weight in run.model.parameters())
        assert f"{parameters:,} parameters" in shown
    assert run.folder.name in repr(Run.lazy(run.folder)) and "not loaded yet" in repr(Run.lazy(run.folder))
    assert repr(Run.lazy(run.folder / "nothing")).endswith("not loaded yet)")


@pytest.mark.parametrize("name", ["translator", "n-grams", "tagger"])
def test_a_run_can_be_pickled(name: str, runs: dict[str, Run]) -> None:
    run = sightline.load(runs[name].folder, device="cpu")
    content = pickle.dumps(run)
    assert len(content) < 2_000  # where it is, not its weights
    copy = pickle.loads(content)
    assert repr(copy) == repr(run) and copy.predict([TEXT]) == run.predict([TEXT])
    waiting = pickle.loads(pickle.dumps(Run.lazy(run.folder, device="cpu")))
    assert "model" not in waiting.__dict__ and waiting.predict([TEXT]) == run.predict([TEXT])


def test_an_ensemble_can_be_pickled_and_shown(runs: dict[str, Run]) -> None:
    folder = runs["translator"].folder
    run = Run.ensemble([folder, folder], weights=[1, 3], mean="logs", device="cpu")
    assert "ensemble of 2" in repr(run)
    copy = pickle.loads(pickle.dumps(run))
    assert copy.model.weights == run.model.weights and copy.model.mean == "logs"
    assert copy.predict([TEXT]) == run.predict([TEXT])


def test_a_run_without_a_folder_cannot_be_pickled(runs: dict[str, Run], tmp_path: Path) -> None:
    run = sightline.load(runs["translator"].folder)
    alone = Run(tmp_path / "nowhere", run.recipe, run.vocabulary, run.model, torch.device("cpu"))
    with pytest.raises(pickle.PicklingError, match="no run folder that a copy could be loaded from"):
        pickle.dumps(alone)


def test_the_package_has_a_version_and_imports_pytorch_only_when_it_is_needed() -> None:
    program = (
        "import sys, sightline\n"
        "assert sightline.__version__[0].isdigit()\n"
        "assert {'Recipe', 'Run', 'Trace', 'load', 'train', 'compare', '__version__'} <= set(dir(sightline))\n"
        "sightline.Recipe\n"
        "assert 'torch' not in sys.modules\n"
        "assert sightline.Run.__name__ == 'Run' and sightline.Trace.__name__ == 'Trace'\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    assert sightline.Recipe is Recipe


# --- what is shown --------------------------------------------------------------------------------------------------


def test_a_trace_prints_a_summary(runs: dict[str, Run]) -> None:
    trace = runs["translator"].trace(TEXT)
    shown = repr(trace)
    assert len(shown) < 3_000 and shown.count("\n") < 20
    assert f"{len(trace)} steps" in shown and TEXT in shown
    steps = list(trace)
    for step in (steps[0], steps[-1]):
        assert step.key in shown
    assert "×".join(map(str, steps[0].shape)) in shown
    assert "trace.text()" in shown
    rows = trace.text()
    assert all(step.key in rows for step in steps)
    assert len(repr(steps[0])) < 200 and "×" in repr(steps[0])
    assert str(sightline.Trace()).startswith("Trace of 0 steps")


def test_an_alignment_is_drawn_into_a_figure_or_a_file(runs: dict[str, Run], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    alignment = runs["translator"].align(TEXT)
    assert alignment is not None
    figure = alignment.draw()
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert len(labels) == len(alignment.target)
    alignment.draw(tmp_path / "looks.png", title="where it looked")
    assert (tmp_path / "looks.png").read_bytes().startswith(b"\x89PNG")
    assert len(repr(alignment)) < 300 and "source tokens" in repr(alignment)
    assert all(token in alignment.text() for token in alignment.target if token.isalpha())
    with pytest.raises(ValueError, match=r"a figure is a \.png, \.svg, \.pdf file"):
        alignment.draw(tmp_path / "looks.jpg")
