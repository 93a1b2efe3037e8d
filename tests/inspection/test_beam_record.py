"""A recorded search: the n best rebuilt from it, what became of each hypothesis, tree and picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from sightline.decoding.batch import Hypothesis
from sightline.decoding.generate import generate
from sightline.decoding.request import Request
from sightline.inspection.beam_record import BeamRecord, record_beam
from sightline.inspection.pictures.beam import draw_beam
from sightline.recipe import Decoding
from sightline.text.tokenizer import END
from untrained_runs import untrained

TEXTS = ["Ein Hund lacht über 漢字 🙂.", "Zwei Männer", "Die Kinder spielen Schach und der Hund bellt laut."]
SEARCHES: list[dict[str, Any]] = [
    {"beam": 1},
    {"beam": 4},
    {"beam": 4, "nbest": 4, "min_length": 0},
    {"beam": 5, "nbest": 3, "length_penalty": 0.0},
    {"beam": 3, "nbest": 2, "coverage_penalty": 0.4},
    {"beam": 6, "groups": 3, "nbest": 6},
    {"beam": 4, "nbest": 2, "min_length": 5, "no_repeat": 2},
]


def search(name: str, **changes: Any) -> Decoding:
    return untrained(name).options(max_length=12, **changes)


def printed(record: BeamRecord, *, dropped: bool) -> str:
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(record.tree(dropped=dropped))
    return console.export_text()


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("changes", SEARCHES, ids=str)
@pytest.mark.parametrize("name", ["transformer", "recurrent", "decoder-only"])
def test_the_n_best_are_rebuilt_from_the_record_alone(name: str, changes: dict[str, Any], text: str) -> None:
    if name == "decoder-only" and "coverage_penalty" in changes:
        pytest.skip("it has no attention to the source alone")
    run, options = untrained(name), search(name, **changes)
    (real,) = generate(run.model, Request(run.encode_sources([text])), options)
    data = json.loads(json.dumps(record_beam(run, text, options).to_dict()))
    rebuilt = BeamRecord.from_dict(data).nbest()
    assert [found.tokens for found in rebuilt] == [found.tokens for found in real]
    tolerance = {"rel": 1e-5, "abs": 1e-5}  # a beam of 1 is walked in another order of additions
    assert [found.score for found in rebuilt] == pytest.approx([found.score for found in real], **tolerance)
    assert [found.log_probability for found in rebuilt] == pytest.approx(
        [found.log_probability for found in real], **tolerance
    )


def test_watching_changes_nothing() -> None:
    run, options, steps = untrained("transformer"), search("transformer", beam=4, nbest=4), []
    request = Request(run.encode_sources(TEXTS[:1]))
    assert generate(run.model, request, options, watch=steps.append) == generate(run.model, request, options)
    assert steps


def test_each_step_goes_on_with_as_many_as_the_beam_is_wide_and_each_has_its_parent_there() -> None:
    record = record_beam(untrained("transformer"), TEXTS[0], search("transformer", beam=3))
    for step in range(record.steps):
        nodes = [node for node in record.nodes if node.step == step]
        going = [node for node in nodes if node.fate in ("continued", "sentence done")]
        assert len(going) <= 3 and len(nodes) <= 6
        assert len({node.fate for node in going}) <= 1
        for node in nodes:
            if step == 0:
                assert node.parent is None
            else:
                parent = record.nodes[node.parent or 0]
                assert (parent.step, parent.fate) == (step - 1, "continued")
                assert node.log_probability <= parent.log_probability
            assert (node.fate == "finished") <= (node.token == END)
    assert {node.fate for node in record.nodes if node.step == record.steps - 1} & {"finished", "sentence done"}


def test_whoever_goes_on_was_better_than_all_that_are_outscored() -> None:
    record = record_beam(untrained("recurrent"), TEXTS[0], search("recurrent", beam=4))
    for step in range(record.steps):
        here = [node for node in record.nodes if node.step == step and node.token != END]
        going = [node.log_probability for node in here if node.fate != "outscored"]
        dropped = [node.log_probability for node in here if node.fate == "outscored"]
        assert not going or not dropped or min(going) >= max(dropped)


def test_the_tree_shows_every_output_and_on_demand_what_was_dropped() -> None:
    record = record_beam(untrained("transformer"), TEXTS[0], search("transformer", beam=4, nbest=2))
    short, whole = printed(record, dropped=False), printed(record, dropped=True)
    assert "output 1" in short and "output 2" in short
    assert "outscored" not in short and whole.count("  outscored") == sum(n.fate == "outscored" for n in record.nodes)
    assert whole.count("finished: score") == sum(node.fate == "finished" for node in record.nodes)


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
@pytest.mark.parametrize("dropped", [True, False])
def test_a_record_is_drawn_in_any_script(suffix: str, dropped: bool, tmp_path: Path) -> None:
    record = record_beam(untrained("transformer"), TEXTS[0], search("transformer", beam=3))
    path = tmp_path / f"beam{suffix}"
    draw_beam(record, path, title=f"$ {TEXTS[0]} $", dropped=dropped)
    assert path.read_bytes().startswith({".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[suffix])
    if suffix == ".svg":
        assert ("outscored" in path.read_text()) == dropped


def test_what_cannot_be_recorded_is_an_error(tmp_path: Path) -> None:
    run = untrained("transformer")
    with pytest.raises(ValueError, match="no beam to watch where words are drawn"):
        record_beam(run, TEXTS[0], run.options(sample={"seed": 1}))
    with pytest.raises(ValueError, match="empty text"):
        record_beam(run, "")
    with pytest.raises(ValueError, match="task: tag"):
        record_beam(untrained("tagger"), "a b")
    with pytest.raises(ValueError, match="the record has no hypotheses"):
        draw_beam(BeamRecord(1, 1), tmp_path / "a.png")
    with pytest.raises(ValueError, match="one by one"):
        generate(run.model, Request(run.encode_sources(TEXTS)), search("transformer", beam=2), watch=lambda told: None)
    assert BeamRecord(2, 1).nbest() == list[Hypothesis]()
