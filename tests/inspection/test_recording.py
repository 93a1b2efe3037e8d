"""Recording changes nothing, whatever the model is: the same tokens are found, from the same numbers."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch

from sightline.inspection.recorder import record
from sightline.layers.layout import Padded
from sightline.run import Run
from untrained_runs import MODELS, OTHERS, untrained

TEXT = "Zwei Männer spielen Schach, 漢字 und mehr 🙂."
NAMES = [*MODELS, *OTHERS, "bottleneck"]


def text_of(name: str) -> str:
    return "a b c d" if name == "tagger" else TEXT


def logits_alone(run: Run, trace: Any) -> torch.Tensor:
    """Those of the very tokens of a trace, while nobody listens."""
    read, given = (trace[name].clone() if name in trace else None for name in ("source.tokens", "target.tokens"))
    layouts = [None if tokens is None else Padded.of([tokens.shape[1]]) for tokens in (read, given)]
    with torch.inference_mode():
        found: torch.Tensor = run.model.logits(run.model(read, layouts[0], given, layouts[1]))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_search_finds_the_same_while_it_is_recorded(name: str) -> None:
    run, text = untrained(name), text_of(name)
    alone = run.predict_nbest([text])[0]
    with record(run.model) as trace:
        recorded = run.predict_nbest([text])[0]
    assert len(trace) > 5
    assert [guess.tokens for guess in recorded] == [guess.tokens for guess in alone]
    assert [guess.score for guess in recorded] == pytest.approx([guess.score for guess in alone], abs=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_recorded_logits_are_those_of_the_fast_kernels(name: str) -> None:
    run = untrained(name)
    trace = run.trace(text_of(name))
    torch.testing.assert_close(trace["logits"], logits_alone(run, trace), rtol=0, atol=1e-5)


@pytest.mark.parametrize("how", ["record", "trace"])
def test_a_recording_sees_nothing_of_another_thread_and_leaves_its_kernels_alone(how: str) -> None:
    run = untrained("transformer")
    expected = run.predict([TEXT])
    alone = run.trace(TEXT, target="Ein Hund").names if how == "trace" else record_alone(run)
    stop, predicted, failed = threading.Event(), [], []

    def predict() -> None:
        try:
            while not stop.is_set():
                predicted.append(run.predict([TEXT]))
        except Exception as error:
            failed.append(error)

    other = threading.Thread(target=predict)
    other.start()
    try:
        for _ in range(3):
            names = run.trace(TEXT, target="Ein Hund").names if how == "trace" else record_alone(run)
            assert names == alone
    finally:
        stop.set()
        other.join()
    assert not failed
    assert predicted
    assert all(found == expected for found in predicted)


def record_alone(run: Run) -> list[str]:
    with record(run.model) as trace, torch.inference_mode():
        run.model.encode(torch.tensor([[5, 6, 7, 3]]), Padded.of([4]))
        time.sleep(0.2)  # while the other thread predicts
    return [step.key for step in trace]
