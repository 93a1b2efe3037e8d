"""What narrows a view: tokens of the output are counted from its first one, and layers that are not there are named."""

from __future__ import annotations

import pytest

from sightline.inspection.trace import layer_of
from sightline.inspection.views import Subject, look
from sightline.inspection.walkthrough import Walkthrough
from sightline.text.tokenizer import END
from untrained_runs import untrained

TEXT, TARGET = "Zwei Männer", " spielen"


@pytest.mark.parametrize("name", ["decoder-only", "language-model"])
def test_tokens_shows_the_output_and_not_the_text_before_it(name: str) -> None:
    run = untrained(name)
    trace = run.trace(TEXT, TARGET)
    choices = look("tokens", Subject(run, TEXT, TARGET)).record()
    tokens = run.vocabulary.target.encode
    written = [*tokens(TARGET), END] if name == "decoder-only" else tokens(TEXT + TARGET)[len(tokens(TEXT)) :]
    assert [choice["token"] for choice in choices] == run.vocabulary.target.pieces(written)
    assert [choice["place"] for choice in choices] == list(range(len(choices)))
    assert len(choices) < trace["labels"].numel()
    assert sum(choice["loss"] for choice in choices) / len(choices) == pytest.approx(trace.about["loss"], rel=1e-5)
    assert look("tokens", Subject(run, TEXT, TARGET, step=1)).record() == [choices[1]]


@pytest.mark.parametrize("name", ["decoder-only", "language-model"])
def test_a_walk_narrowed_to_a_step_shows_that_token_of_the_output(name: str) -> None:
    run = untrained(name)
    trace = run.trace(TEXT, TARGET)
    choices = look("tokens", Subject(run, TEXT, TARGET)).record()
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
    found = [each["name"] for each in look("steps", Subject(run, TEXT, layer=0)).record()["steps"]]
    assert found == [step.key for step in run.trace(TEXT) if layer_of(step.name) == 0]
    with pytest.raises(ValueError, match=r"there is no layer 9; there are \[0"):
        look("steps", Subject(run, TEXT, layer=9))


def test_a_narrowed_walk_is_written_as_narrowly_as_it_is_shown() -> None:
    subject = Subject(untrained("transformer"), TEXT, layer=1, head=0, step=1)
    steps = look("walk", subject).record()["steps"]
    assert steps and all("layers.1." in step["name"] for step in steps)
    (weights,) = [step for step in steps if step["name"].endswith("cross_attention.weights")]
    assert weights["values"] == subject.trace["decoder.1.cross_attention.weights"][:, 0, 1:2].tolist()


def test_a_search_for_a_given_output_is_refused() -> None:
    with pytest.raises(ValueError, match=r"--target a: --view beam shows a search, which needs none"):
        look("beam", Subject(untrained("transformer"), TEXT, "a"))


def test_what_is_not_there_is_answered_with_what_is() -> None:
    with pytest.raises(ValueError, match=r"--layer 9: there are no experts in that layer; .* in encoder\.layers\."):
        look("experts", Subject(untrained("experts"), TEXT, layer=9))
    with pytest.raises(ValueError, match=r"--layer 9: there is no such head; there is decoder\.attention\.0$"):
        look("heads", Subject(untrained("recurrent"), TEXT, layer=9))
