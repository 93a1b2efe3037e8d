"""`run.trace` for every task, and focused views."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import sightline
import task_runs
from sightline.decoding.scoring import log_probabilities
from sightline.inspection.numpy_script import export_script
from sightline.inspection.operations import recompute
from sightline.inspection.trace import Trace, layer_of
from sightline.inspection.tracing import _show_unknown
from sightline.inspection.views import (
    Subject,
    experts_view,
    heads_view,
    records_view,
    tokens_view,
    walkthrough_view,
)
from sightline.inspection.walkthrough import Walkthrough
from sightline.layers.layout import Padded
from sightline.recipe.tasks import task_spec
from sightline.recipe.tokenizer import WordTokenizer
from sightline.run import Run
from sightline.tasks.language_model import LanguageModelTask
from sightline.text.tokenizer import END, START, Tokenizer
from sightline.text.vocabulary import Vocabulary, label_tokenizer
from untrained_runs import untrained
from watched_runs import Silent

TRANSFORMER = {"kind": "transformer", "layers": 1, "heads": 2, "dropout": 0.0}
GRU_DECODER = {"kind": "recurrent", "cell": "gru", "layers": 1, "dropout": 0.0, "attention": {"kind": "additive"}}
PAIRS = {
    "translate-transformer": {"encoder": TRANSFORMER, "decoder": TRANSFORMER},
    "translate-gru": {"encoder": task_runs.GRU, "decoder": GRU_DECODER},
    "translate-alone": {"decoder": TRANSFORMER, "tie": "all"},
    "classify-class": {"encoder": TRANSFORMER, "pooling": {"kind": "class"}},
    "classify-spelled": {
        "encoder": task_runs.GRU,
        "pooling": {"kind": "max"},
        "character_cnn": {"width": 4, "channels": 6},
    },
    "tag-window": {"encoder": {"kind": "window", "size": 1, "dropout": 0.0}},
}
TASKS = ["lm-gru", "lm-transformer", "lm-lines", "lm-bpe", "classify-mean", "tag-gru"]
TEXTS = {
    "lm": "ANNA: the",
    "translate": "the dog sees good",
    "classify": "the dog sees good",
    "tag": "the old dog sees",
}


def _recipe(name: str) -> dict[str, Any]:
    if name.startswith("tag"):
        return task_runs.recipe("tagging", "conllu", "conllu", PAIRS[name])
    task = "classification" if name.startswith("classify") else "seq2seq"
    more = {} if task == "classification" else {"evaluation": {"metrics": ["exact"]}}
    return task_runs.recipe(task, "tsv", "tsv", PAIRS[name], **more)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Run]]:
    folder = tmp_path_factory.mktemp("tracing")
    with task_runs.trained_tasks(folder, TASKS) as trained:
        for name in PAIRS:
            path = folder / f"{name}.yaml"
            path.write_text(yaml.safe_dump(_recipe(name), sort_keys=False))
            trained[name] = sightline.train(path, out=folder / "runs" / name, display=Silent()).folder
        yield {name: Run.load(path, device="cpu") for name, path in trained.items()}


@pytest.fixture(params=[*TASKS, *PAIRS])
def case(request: pytest.FixtureRequest, runs: dict[str, Run]) -> tuple[Run, str]:
    return runs[request.param], TEXTS[request.param.split("-")[0]]


def test_the_trace_of_every_task_is_recomputed_by_its_script(case: tuple[Run, str], tmp_path: Path) -> None:
    run, text = case
    trace = run.trace(text)
    excluded = (
        "The first 4 logits are those of <pad>, <unk>, <s>, </s>, which are no labels: the softmax leaves them out."
    )
    labels = run.recipe.task_spec.labels != "none"
    assert [step.note for step in trace.records if step.note] == ([excluded] if labels else [])
    done = subprocess.run(
        [sys.executable, str(export_script(trace, tmp_path / "by-hand"))], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_recording_changes_no_output_and_traces_that_output(case: tuple[Run, str]) -> None:
    run, text = case
    before = run.predict_nbest([text])[0][0]
    trace = run.trace(text)
    after = run.predict_nbest([text])[0][0]
    assert before.tokens == after.tokens
    assert before.score == after.score
    assert trace.about["forced"] is False
    writes = run.recipe.task in ("seq2seq", "language-model")
    message = "The output was decoded first" if writes else "The labels were predicted first"
    assert message in trace.about["notes"][0]
    assert before.text.endswith(trace.about["output"].strip())


def test_a_trace_shows_what_an_unknown_token_stands_for(case: tuple[Run, str]) -> None:
    run, text = case
    about = run.trace(text + " 犬").about
    assert "<unk 犬>" in (about["source_tokens"] or about["given_tokens"])
    assert "<unk>" not in (about["source_tokens"] or about["given_tokens"])


@pytest.mark.parametrize("name", ["translate-gru", "translate-alone", "lm-gru"])
def test_a_trace_shows_what_an_unknown_token_of_a_forced_output_stands_for(runs: dict[str, Run], name: str) -> None:
    known = " a" if name == "lm-gru" else " negative"
    about = runs[name].trace(TEXTS[name.split("-")[0]] + " 犬", f" 猫{known}").about
    assert [each for each in about["given_tokens"] if "unk" in each] == (
        ["<unk 猫>"] if name == "translate-gru" else ["<unk 犬>", "<unk 猫>"]
    )
    assert [each for each in about["target_tokens"] if "unk" in each][-1] == "<unk 猫>"
    assert "<unk>" in about["output"]  # the model's own output


def test_unknown_tokens_are_shown_by_their_own_vocabulary() -> None:
    source, target = (Tokenizer.train(WordTokenizer(min_count=1), [text]) for text in ("ein Hund", "a dog"))
    recipe = SimpleNamespace(task_spec=task_spec("seq2seq"), model=SimpleNamespace(encoder="one"))
    case: Any = SimpleNamespace(recipe=recipe, vocabulary=Vocabulary(source, target, shared=False))
    about = {"source_tokens": ["ein", "<unk>"], "given_tokens": ["<s>", "a", "<unk>"], "target_tokens": ["a", "<unk>"]}
    assert _show_unknown(case, about, "ein dog", "a Hund") == {
        "source_tokens": ["ein", "<unk dog>"],
        "given_tokens": ["<s>", "a", "<unk Hund>"],
        "target_tokens": ["a", "<unk Hund>"],
    }


def continuation(run: Run, text: str, tokens: list[int]) -> tuple[float, int]:
    """log p of the continuation of a text under the search model, and its number of tokens."""
    assert isinstance(run.task, LanguageModelTask)
    writer, new = run.task.search_model, len(tokens) - len(run.encode_sources([text])[0])
    with torch.inference_mode():
        state = writer.begin(writer.encode(torch.tensor([[END]]), Padded.of([1])))
        logs = writer.logits(writer.advance(torch.tensor([[START, *tokens[:-1]]]), state)[0]).log_softmax(-1)
    return float(logs[0].gather(1, torch.tensor(tokens)[:, None])[-new:].sum()), new


def test_the_loss_of_the_trace_is_that_of_the_real_scoring(case: tuple[Run, str]) -> None:
    run, text = case
    guess, trace = run.predict_nbest([text])[0][0], run.trace(text)
    if run.recipe.task == "seq2seq":
        (source,) = run.encode_sources([text])
        total = log_probabilities(run.model, [source], [guess.tokens])[0]
        count = len(guess.tokens) + 1
    elif run.recipe.task == "language-model":
        total, count = continuation(run, text, guess.tokens)
    else:
        total, count = guess.score, max(len(guess.tokens), 1)
    assert float(trace["loss"]) == pytest.approx(-total / count, abs=1e-5)


def test_a_language_model_gives_its_own_next_token_the_highest_probability(runs: dict[str, Run]) -> None:
    for name in ("lm-gru", "lm-transformer", "lm-lines", "lm-bpe"):
        trace = runs[name].trace(TEXTS["lm"])
        best, expected = trace["probabilities"][0].argmax(-1), trace["labels"][0]
        prompt = len(runs[name].encode_sources([TEXTS["lm"]])[0])
        new = len(runs[name].predict_nbest([TEXTS["lm"]])[0][0].tokens) - prompt
        assert best[-new:].tolist() == expected[-new:].tolist()


def test_a_target_can_be_forced(runs: dict[str, Run]) -> None:
    trace = runs["translate-gru"].trace(TEXTS["translate"], "negative")
    assert trace.about["forced"] is True
    assert trace.about["target_tokens"] == [
        *runs["translate-gru"].vocabulary.target.pieces([trace["labels"][0, 0]]),
        "</s>",
    ]
    assert runs["lm-gru"].trace(TEXTS["lm"], " a犬").about["output"] == " a<unk>"
    label = runs["classify-mean"].trace(TEXTS["classify"], "negative")
    assert label.about["labels"][int(label["labels"])] == "negative"
    with pytest.raises(ValueError, match="no label 'blue'; there are"):
        runs["classify-mean"].trace("x", "blue")
    with pytest.raises(ValueError, match="1 label for 4 words"):
        runs["tag-gru"].trace(TEXTS["tag"], "NOUN")


def test_only_plain_spaces_separate_labels() -> None:
    run, labels = untrained("tagger"), label_tokenizer(["X\u00a0Y B"], whole=False)
    named = Run(run.folder, run.recipe, replace(run.vocabulary, target=labels), run.model, run.device)
    assert named.trace("a b", "X\u00a0Y  B").about["output"] == "X\u00a0Y B"


def test_a_step_ends_the_trace_at_that_token_with_the_same_numbers(runs: dict[str, Run]) -> None:
    run = runs["translate-transformer"]
    whole, first = run.trace(TEXTS["translate"], "negative"), run.trace(TEXTS["translate"], "negative", step=0)
    assert first["logits"].shape[1] == 1
    np.testing.assert_allclose(first["logits"], whole["logits"][:, :1], atol=1e-5)
    with pytest.raises(ValueError, match="the output has 2 tokens, its end included; there is no step 2"):
        run.trace(TEXTS["translate"], "negative", step=2)
    with pytest.raises(ValueError, match="labels come at once"):
        runs["tag-gru"].trace(TEXTS["tag"], step=0)


def test_decoder_only_loss_covers_the_output(runs: dict[str, Run]) -> None:
    trace = runs["translate-alone"].trace(TEXTS["translate"], "negative")
    assert float(trace["loss"]) == pytest.approx(float(trace["losses"][0, -2:].mean()), abs=1e-6)
    assert trace["losses"].shape[1] > 2


def test_a_trace_of_a_run_survives_the_disk(runs: dict[str, Run], tmp_path: Path) -> None:
    runs["tag-gru"].trace(TEXTS["tag"]).save(tmp_path / "saved")
    back = Trace.load(tmp_path / "saved")
    assert back.about["output"].split()[0] in task_runs.TAGS.values()
    assert np.allclose(recompute(back)["logits"], back["logits"], atol=1e-5)


TEXT, TARGET = "Zwei Männer", " spielen"


@pytest.mark.parametrize("name", ["decoder-only", "language-model"])
def test_tokens_shows_the_output_and_not_the_text_before_it(name: str) -> None:
    run = untrained(name)
    trace = run.trace(TEXT, TARGET)
    choices = tokens_view(Subject(run, TEXT, TARGET)).record()
    tokens = run.vocabulary.target.encode
    written = [*tokens(TARGET), END] if name == "decoder-only" else tokens(TEXT + TARGET)[len(tokens(TEXT)) :]
    assert [choice["token"] for choice in choices] == run.vocabulary.target.pieces(written)
    assert [choice["place"] for choice in choices] == list(range(len(choices)))
    assert len(choices) < trace["labels"].numel()
    assert sum(choice["loss"] for choice in choices) / len(choices) == pytest.approx(trace.about["loss"], rel=1e-5)
    assert tokens_view(Subject(run, TEXT, TARGET, step=1)).record() == [choices[1]]


@pytest.mark.parametrize("name", ["decoder-only", "language-model"])
def test_a_walk_narrowed_to_a_step_shows_that_token_of_the_output(name: str) -> None:
    run = untrained(name)
    trace = run.trace(TEXT, TARGET)
    choices = tokens_view(Subject(run, TEXT, TARGET)).record()
    (shown,) = [each for each in Walkthrough(trace).focus(step=1).records() if each.record.name == "losses"]
    assert shown.tensor.tolist() == [[pytest.approx(choices[1]["loss"])]]
    assert shown.columns == [trace.about["target_tokens"][-len(choices) :][1]]
    with pytest.raises(ValueError, match=f"steps are counted from 0 and there are {len(choices)}"):
        Walkthrough(trace).focus(step=len(choices))


def test_a_target_that_changes_the_tokens_before_it_is_refused() -> None:
    run = untrained("language-model")
    tokens = run.vocabulary.target.encode
    border = next(k for k in range(1, len(TEXT)) if tokens(TEXT)[: len(tokens(TEXT[:k]))] != tokens(TEXT[:k]))
    with pytest.raises(ValueError, match=r"changes how the text before it .* is cut into tokens"):
        run.trace(TEXT[:border], TEXT[border:])


@pytest.mark.parametrize("name", ["transformer", "convolutional", "recurrent"])
def test_steps_of_a_layer_are_those_of_the_walk(name: str) -> None:
    run = untrained(name)
    found = [each["name"] for each in records_view(Subject(run, TEXT, layer=0)).record()["steps"]]
    assert found == [step.key for step in run.trace(TEXT) if layer_of(step.name) == 0]
    with pytest.raises(ValueError, match=r"there is no layer 9; there are \[0"):
        records_view(Subject(run, TEXT, layer=9))


def test_a_narrowed_walk_is_written_as_narrowly_as_it_is_shown() -> None:
    subject = Subject(untrained("transformer"), TEXT, layer=1, head=0, step=1)
    steps = walkthrough_view(subject).record()["steps"]
    assert steps and all("layers.1." in step["name"] for step in steps)
    (weights,) = [step for step in steps if step["name"].endswith("cross_attention.weights")]
    assert weights["values"] == subject.trace["decoder.1.cross_attention.weights"][:, 0, 1:2].tolist()


def test_unknown_selection_lists_what_exists() -> None:
    with pytest.raises(ValueError, match=r"--layer 9: there are no experts in that layer; .* in encoder\.layers\."):
        experts_view(Subject(untrained("experts"), TEXT, layer=9))
    with pytest.raises(ValueError, match=r"--layer 9: there is no such head; there is decoder\.attention\.0$"):
        heads_view(Subject(untrained("recurrent"), TEXT, layer=9))
