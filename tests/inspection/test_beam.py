"""A recorded search: its n best, the fate of each hypothesis, tree and figure."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from sightline.decoding.engine import decode
from sightline.decoding.phrases import occurrences
from sightline.decoding.request import BeamStep, Hypothesis, Request, make_requests
from sightline.inspection.beam import BeamRecord, Fate, Node, record_beam
from sightline.models.build import build_model
from sightline.plots.beam import draw_beam
from sightline.recipe import Decoding, Recipe
from sightline.run import Run
from sightline.tasks.base import Prediction
from sightline.tasks.seq2seq import Seq2SeqTask
from sightline.text.copying import ReadSource
from sightline.text.tokenizer import END, Tokenizer
from sightline.text.vocabulary import Vocabulary
from untrained_runs import READER, WRITER, untrained

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


def printed(record: BeamRecord) -> str:
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(record.tree())
    return console.export_text()


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("changes", SEARCHES, ids=str)
@pytest.mark.parametrize("name", ["transformer", "recurrent", "decoder-only"])
def test_nbest_is_rebuilt_from_record(name: str, changes: dict[str, Any], text: str) -> None:
    if name == "decoder-only" and "coverage_penalty" in changes:
        pytest.skip("it has no attention to the source alone")
    run, options = untrained(name), search(name, **changes)
    (real,) = decode(run.model, make_requests(run.encode_sources([text])), options)
    data = json.loads(json.dumps(record_beam(run, text, options).to_dict()))
    nodes = [Node(**node) for node in data["nodes"]]
    rebuilt = BeamRecord(data["beam"], data["nbest"], data["groups"], nodes).nbest()
    assert [found.tokens for found in rebuilt] == [found.tokens for found in real]
    tolerance = {"rel": 1e-5, "abs": 1e-5}  # greedy search adds in another order
    assert [found.score for found in rebuilt] == pytest.approx([found.score for found in real], **tolerance)
    assert [found.log_probability for found in rebuilt] == pytest.approx(
        [found.log_probability for found in real], **tolerance
    )


def same(
    record: BeamRecord, predicted: list[Prediction], tokenizer: Tokenizer, source: ReadSource | None = None
) -> None:
    """The outputs of a record are those of a prediction: tokens, texts and scores."""
    outputs = record.outputs()
    tokens = [found.tokens for found in record.nbest()]
    if source is None:
        assert [tokenizer.decode(ids) for ids in tokens] == [found.text for found in predicted]
        assert tokens == [found.tokens for found in predicted]
    else:
        known = [source.known(ids, tokenizer.size) for ids in tokens]
        assert known == [found.tokens for found in predicted]
    assert [node.score for node in outputs] == pytest.approx([found.score for found in predicted], rel=1e-6, abs=1e-6)


PREDICTED: list[dict[str, Any]] = [
    {"beam": 4, "nbest": 4},
    {"beam": 4, "nbest": 3, "no_repeat": 1},
    {"beam": 4, "nbest": 2, "min_length": 7},
    {"beam": 6, "nbest": 6, "groups": 3},
    {"beam": 3, "nbest": 3, "coverage_penalty": 0.7},
]


@pytest.mark.parametrize("prefix", [None, "A dog"])
@pytest.mark.parametrize("changes", PREDICTED, ids=str)
@pytest.mark.parametrize("name", ["transformer", "recurrent"])
def test_recorded_beam_equals_prediction(name: str, changes: dict[str, Any], prefix: str | None) -> None:
    run, options = untrained(name), search(name, **changes)
    (predicted,) = run.predict_nbest(TEXTS[:1], options, prefixes=None if prefix is None else [prefix])
    same(record_beam(run, TEXTS[0], options, prefix=prefix), predicted, run.vocabulary.target)


@pytest.mark.parametrize(("word", "searches"), [(0, 1), (-1, 2)])
def test_last_of_repeated_searches_is_recorded(word: int, searches: int) -> None:
    run, steps = untrained("transformer"), list[BeamStep]()
    (free,) = run.predict_nbest(TEXTS[:1], search("transformer", beam=4))
    forbidden = free[0].text.split()[word]
    options = search("transformer", beam=4, nbest=4, forbid=[forbidden])
    predicted = run.task.predict([Request(TEXTS[0], options, on_step=steps.append)])[0]
    assert sum(step.step == 0 for step in steps) == searches  # the last search spells the word with other pieces
    record = record_beam(run, TEXTS[0], options)
    same(record, predicted, run.vocabulary.target)
    assert predicted and not any(occurrences(forbidden, found.text) for found in predicted)
    assert {node.step for node in record.nodes} == set(range(record.steps))
    assert all((node.parent is None) == (node.step == 0) for node in record.nodes)


@cache
def copier() -> Run:
    """A copying model with random weights; half of the source words are not in the vocabulary."""
    torch.manual_seed(5)
    recipe = Recipe.model_validate(
        {
            "data": {"train": [{"kind": "tsv", "file": "a.tsv"}], "validation": {"kind": "tsv", "file": "b.tsv"}},
            "tokenizer": {"kind": "word", "min_count": 2},
            "model": {
                "width": 16,
                "encoder": READER,
                "decoder": {**WRITER, "attention": {"kind": "additive"}},
                "copying": True,
            },
            "decoding": {"beam": 3, "max_length": 12},
        }
    )
    vocabulary = Vocabulary.train(recipe.tokenizer, lambda: iter([("we call me zed", "hello me zed")] * 2), "none")
    return Run(Path("copier"), recipe, vocabulary, build_model(recipe, vocabulary).eval(), torch.device("cpu"))


@pytest.mark.parametrize("prefix", [None, "hello zorb"])
@pytest.mark.parametrize("changes", PREDICTED, ids=str)
def test_copied_words_are_recorded(changes: dict[str, Any], prefix: str | None) -> None:
    run = copier()
    text, options = "we call quux me zorb quux", run.options(max_length=12, **changes)
    (predicted,) = run.predict_nbest([text], options, prefixes=None if prefix is None else [prefix])
    record = record_beam(run, text, options, prefix=prefix)
    assert isinstance(run.task, Seq2SeqTask)
    same(record, predicted, run.vocabulary.target, run.task.read_source(text))
    texts = [
        "".join(node.piece for node in record.line(last)[:-1]).replace("▁", " ").strip() for last in record.outputs()
    ]
    assert texts == [found.text for found in predicted]
    recorded = {node.piece for node in record.nodes if node.token >= run.vocabulary.target.size}
    assert recorded & {"▁quux", "▁zorb", "quux", "zorb"}
    assert {piece.removeprefix("▁") for piece in recorded} <= set(text.split())
    if prefix is not None:
        assert all(found.text.startswith("hello zorb") for found in predicted)


def test_mbr_records_all_candidates() -> None:
    run = untrained("transformer")
    chosen = search("transformer", beam=4, mbr={"candidates": 4})
    (candidates,) = run.predict_nbest(TEXTS[:1], search("transformer", beam=4, nbest=4))
    same(record_beam(run, TEXTS[0], chosen), candidates, run.vocabulary.target)


def test_recording_changes_no_output() -> None:
    run, options, steps = untrained("transformer"), search("transformer", beam=4, nbest=4), []
    sources = run.encode_sources(TEXTS[:1])
    recorded = make_requests(sources, on_step=steps.append)
    assert decode(run.model, recorded, options) == decode(run.model, make_requests(sources), options)
    assert steps


def test_each_step_continues_at_most_beam_size_hypotheses() -> None:
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


def test_continued_hypotheses_beat_outscored() -> None:
    record = record_beam(untrained("recurrent"), TEXTS[0], search("recurrent", beam=4))
    for step in range(record.steps):
        here = [node for node in record.nodes if node.step == step and node.token != END]
        going = [node.log_probability for node in here if node.fate != "outscored"]
        dropped = [node.log_probability for node in here if node.fate == "outscored"]
        assert not going or not dropped or min(going) >= max(dropped)


def test_tree_shows_finished_and_no_outscored() -> None:
    record = record_beam(untrained("transformer"), TEXTS[0], search("transformer", beam=4, nbest=2))
    tree = printed(record)
    assert "output 1" in tree and "output 2" in tree
    assert "outscored" not in tree
    assert tree.count("finished: score") == sum(node.fate == "finished" for node in record.nodes)


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_a_record_is_drawn_in_any_script(suffix: str, tmp_path: Path) -> None:
    record = record_beam(untrained("transformer"), TEXTS[0], search("transformer", beam=3))
    path = tmp_path / f"beam{suffix}"
    draw_beam(record, path, title=f"$ {TEXTS[0]} $")
    assert path.read_bytes().startswith({".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[suffix])
    if suffix == ".svg":
        assert "outscored" in path.read_text()


def chain(steps: int, *, first: int = 1) -> BeamRecord:
    """One continued hypothesis, beside others at the first step."""
    nodes = [Node(number, 0, None, 5, "a", -1.0, -1.0, "outscored") for number in range(first - 1)]
    for step in range(steps):
        fate: Fate = "finished" if step == steps - 1 else "continued"
        nodes.append(Node(len(nodes), step, len(nodes) - 1 if step else None, 5, "b", -1.0, -1.0, fate))
    return BeamRecord(1, 1, nodes=nodes, steps=steps)


def drawn(record: BeamRecord, path: Path) -> tuple[int, str]:
    """The width of a figure, and its texts."""
    draw_beam(record, path)
    text = path.read_text()
    return int(re.findall(r'viewBox="0 0 (\d+)', text)[0]), "\n".join(re.findall("<!-- (.*) -->", text))


def test_a_long_search_is_drawn_in_bands(tmp_path: Path) -> None:
    (wide, _), (long, words) = (drawn(chain(steps), tmp_path / f"{steps}.svg") for steps in (12, 40))
    assert long <= wide
    assert [f"{step}" in words.splitlines() for step in (1, 40, 41)] == [True, True, False]
    assert "left out" not in words


@pytest.mark.parametrize(
    ("steps", "message"), [(12, None), (13, "left out: step 13"), (15, "left out: steps 13 to 15")]
)
def test_figure_names_omitted_steps(steps: int, message: str | None, tmp_path: Path) -> None:
    _, words = drawn(chain(steps, first=110), tmp_path / "beam.svg")
    assert [line for line in words.splitlines() if "left out" in line] == ([message] if message else [])


def test_record_beam_refuses_unsuitable_runs(tmp_path: Path) -> None:
    run = untrained("transformer")
    with pytest.raises(ValueError, match="sampling has no beam to record"):
        record_beam(run, TEXTS[0], run.options(sample={"seed": 1}))
    with pytest.raises(ValueError, match="empty text"):
        record_beam(run, "")
    with pytest.raises(ValueError, match="task: tagging"):
        record_beam(untrained("tagger"), "a b")
    with pytest.raises(ValueError, match="the record has no hypotheses"):
        draw_beam(BeamRecord(1, 1), tmp_path / "a.png")
    assert BeamRecord(2, 1).nbest() == list[Hypothesis]()
