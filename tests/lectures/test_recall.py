"""A dependency longer than any window: the corpus, and accuracy by distance against a loop over lines."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from sightline.cli.app import app
from sightline.data.sources import read
from sightline.inspection.claims.bigrams import run_bigrams_claim
from sightline.inspection.claims.recall import measure_recall
from sightline.recipe.sources import RecallSource
from sightline.run import Run
from sightline.text.tokenizer import END, START


def test_lines_end_with_their_first_letter() -> None:
    lines = [pair.target.split() for pair in read(RecallSource(split="train", examples=2_000, fillers=(2, 5)), None)]
    assert all(line[0] == line[-1] and line[-2] == "=" and set(line[1:-2]) <= {"x", "y"} for line in lines)
    counts = Counter(len(line) - 3 for line in lines)
    assert set(counts) == {2, 3, 4, 5} and min(counts.values()) > 400
    assert {line[0] for line in lines} == set("abcdefgh")
    first = list(read(RecallSource(split="train", examples=3), None))
    assert first == list(read(RecallSource(split="train", examples=9), None))[:3]
    assert first != list(read(RecallSource(split="test", examples=3), None))


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A 5-gram model of lines with 1 to 8 fillers."""
    folder = tmp_path_factory.mktemp("runs") / "ngram"
    fillers = [f"data.{part}.fillers=[1,8]" for part in ("train.0", "validation", "tests.test")]
    sizes = ["data.train.0.examples=3000", "data.validation.examples=50", "data.tests.test.examples=400"]
    words = ["train", "lectures/long-dependency", "model.decoder={kind: ngram, order: 5}", *fillers, *sizes]
    result = CliRunner().invoke(app, [*words, "--out", str(folder)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return Run.load(folder, device="cpu")


def test_an_ngram_model_recalls_within_its_order_alone(counted: Run) -> None:
    texts = [example.target for example in counted.test_examples("test")]
    found = measure_recall(counted, "ngram", texts)
    right: Counter[int] = Counter()
    for text in texts:
        ids = counted.vocabulary.target.encode(text)
        guess = int(np.argmax(counted.model.trained.distribution([START, *ids[:-1]])))
        right[len(ids) - 3] += guess == ids[-1]
    assert dict(right) == found.right and sum(found.total.values()) == 400
    assert found.accuracy(1, 2) == 1.0  # a 5-gram sees four tokens: the letter, two fillers and "="
    assert found.accuracy(3, 8) < 0.4  # type: ignore[operator]


def test_bigrams_of_a_run_are_counted_in_its_training_data(counted: Run) -> None:
    claim = run_bigrams_claim(counted, "a x = a")
    lines = [pair.target.split() for pair in read(counted.recipe.data.train[0], None)]
    rows = claim.tables[0].rows
    pairs = [pair for line in lines for pair in pairwise(["<s>", *line, "</s>"])]
    chain = list(pairwise(["<s>", "a", "x", "=", "a", "</s>"]))
    assert [row[1] for row in rows] == [pairs.count(pair) for pair in chain]
    assert [row[2] for row in rows] == [sum(before == each for each, _ in pairs) for before, _ in chain]
    ids = [START, *counted.vocabulary.target.encode("a x = a"), END]
    chances = [counted.model.trained.distribution(ids[:place])[ids[place]] for place in range(1, len(ids))]
    assert [row[3] for row in rows] == pytest.approx(chances)


def test_the_command_compares_runs_and_refuses_others(counted: Run, tmp_path: Path) -> None:
    figure = tmp_path / "recall.png"
    words = ["inspect", "claims", "recall", str(counted.folder)]
    result = CliRunner().invoke(app, [*words, "--figure", str(figure)], catch_exceptions=False)
    assert result.exit_code == 0 and figure.stat().st_size > 5_000
    assert "1–5" in CliRunner().invoke(app, words, catch_exceptions=False).output
    with pytest.raises(ValueError, match="other has no lines to recall"):
        CliRunner().invoke(app, [*words, "--on", "other"], catch_exceptions=False)
