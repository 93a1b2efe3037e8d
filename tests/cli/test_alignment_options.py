"""Word alignments out of `predict` and into `evaluate`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sightline.cli.app import app
from sightline.evaluation.alignment_error import measure_alignments, read_gold
from sightline.inspection.alignment import HeadSelection, align_outputs, align_pairs, intersection
from sightline.run import Run
from sightline.text.word_pieces import learn_casing
from untrained_runs import PAIRS, by_folder, untrained

TEXTS = ["Ein Hund bellt laut.", "", "Die Kinder lachen über den Hund 🙂."]
GOLD = ["0-0 1-1 2-2 3-3 4-4", "0-0 1-2 2-1"]
TOKENIZED = ["ein hund bellt laut .", "die kinder lachen"], ["a dog barks loudly .", "the children laugh"]


@pytest.fixture(autouse=True)
def loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders named as the untrained runs are these."""
    monkeypatch.setattr(Run, "load", staticmethod(by_folder))


def command(*arguments: str | Path, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.output if code == 0 else str(result.exception)


def written(folder: Path, **contents: list[str]) -> dict[str, Path]:
    paths = {name: folder / name for name in contents}
    for name, lines in contents.items():
        paths[name].write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return paths


@pytest.mark.parametrize("name", ["transformer", "recurrent"])
def test_predict_writes_links_of_words_a_line_for_each_input(name: str, tmp_path: Path) -> None:
    paths, out, run = written(tmp_path, texts=TEXTS), tmp_path / "links", untrained(name)
    more = ["--alignments", out, "--alignment-format", "pharaoh", "--shift"]
    printed = command("predict", name, paths["texts"], *more)
    tokens = [guesses[0].tokens for guesses in run.predict_nbest(TEXTS)]
    expected = [each.pharaoh() for each in align_outputs(run, TEXTS, tokens, HeadSelection(shift=True))]
    assert out.read_text(encoding="utf-8").splitlines() == expected
    assert expected[0] and not expected[1]
    assert printed == command("predict", name, paths["texts"])


def test_without_a_format_it_is_pieces_and_weights_as_json(tmp_path: Path) -> None:
    paths, out, run = written(tmp_path, texts=TEXTS), tmp_path / "looks", untrained("transformer")
    command("predict", "transformer", paths["texts"], "--alignments", out)
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    first = run.align(TEXTS[0])
    assert first is not None and rows[0] == first.to_dict()
    assert rows[1] == {"source": [], "target": [], "weights": []} and len(rows) == 3


def test_given_targets_are_aligned_and_scored_not_searched_for(tmp_path: Path) -> None:
    targets = ["A dog barks loudly.", "nothing", "The children laugh about the dog 🙂."]
    paths, out, run = written(tmp_path, texts=TEXTS, targets=targets), tmp_path / "links", untrained("transformer")
    arguments = ["--target", paths["targets"], "--alignments", out, "--alignment-format", "pharaoh", "--nbest", "1"]
    printed = command("predict", "transformer", paths["texts"], *arguments, "--alignment-heads", "decoder.1.cross.0")
    assert [line.split("\t")[1] for line in printed.splitlines()] == targets
    assert command("predict", "transformer", paths["texts"], "--target", paths["targets"]) == printed  # scores too
    found = align_pairs(run, TEXTS, targets, HeadSelection(("decoder.1.cross.0",)))
    assert out.read_text(encoding="utf-8").splitlines() == [each.pharaoh() for each in found]
    paths = written(tmp_path, texts=TEXTS, targets=targets[:2])
    told = command("predict", "transformer", paths["texts"], "--target", paths["targets"], code=1)
    assert "has 2 lines, fewer than the input; give one target a line" in told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--alignment-format", "giza", "--alignments", "x"], "--alignment-format giza is none of json, pharaoh"),
        (["--alignment-format", "pharaoh"], "add --alignments FILE"),
        (["--alignments", "x", "--shift"], "add --alignment-format pharaoh"),
        (["--alignments", "x", "--alignment-heads", "decoder.0.cross"], "add --alignment-format pharaoh"),
    ],
)
def test_what_would_be_left_undone_is_refused(arguments: list[str], told: str, tmp_path: Path) -> None:
    paths = written(tmp_path, texts=TEXTS)
    assert told in command("predict", "transformer", paths["texts"], *arguments, code=1)


def test_targets_are_for_translators(tmp_path: Path) -> None:
    paths = written(tmp_path, texts=["a b"])
    told = command("predict", "tagger", paths["texts"], "--target", paths["texts"], code=1)
    assert "--target is for task: seq2seq" in told


def test_attention_is_scored_by_gold_links(tmp_path: Path) -> None:
    paths = written(tmp_path, de=TOKENIZED[0], en=TOKENIZED[1], gold=GOLD)
    files = ["--source", paths["de"], "--target", paths["en"], "--gold", paths["gold"]]
    out, scores, run = tmp_path / "links", tmp_path / "scores.json", untrained("transformer")
    printed = command("align", "transformer", *files, "--out", out, "--json", scores)
    assert [line for line in printed.splitlines() if line.startswith("wrote")] == [f"wrote {out}", f"wrote {scores}"]
    words = [[line.split() for line in side] for side in TOKENIZED]
    naturally = [[" ".join(each).replace(" .", ".") for each in side] for side in words]
    found = align_pairs(run, *naturally, source_words=words[0], target_words=words[1])  # type: ignore[arg-type]
    expected = measure_alignments([each.links for each in found], read_gold(GOLD, "gold"))
    for measured in expected:
        assert f"  {measured.name} {measured.value:.3f} [" in printed
    assert [score["value"] for score in json.loads(scores.read_text())[0]["scores"]] == [m.value for m in expected]
    assert out.read_text().splitlines() == [each.pharaoh() for each in found]
    together = command("align", "transformer", *files, "--with", "recurrent")
    assert together.startswith("gold: 2 sentences, word alignments by attention, ensemble of 2 runs\n")


def test_links_may_stand_target_source(tmp_path: Path) -> None:
    turned = [" ".join("-".join(link.split("-")[::-1]) for link in line.split()) for line in GOLD]
    paths = written(tmp_path, de=TOKENIZED[0], en=TOKENIZED[1], gold=GOLD, turned=turned)
    files = ["--source", paths["de"], "--target", paths["en"], "--gold"]
    plain = command("align", "transformer", *files, paths["gold"])
    swapped = command("align", "transformer", *files, paths["turned"], "--swap")
    assert plain.splitlines()[1:] == swapped.splitlines()[1:]


def test_a_run_for_the_other_direction_symmetrizes(tmp_path: Path) -> None:
    paths = written(tmp_path, de=TOKENIZED[0], en=TOKENIZED[1], gold=GOLD)
    files = ["--source", paths["de"], "--target", paths["en"], "--gold", paths["gold"]]
    out = tmp_path / "links"
    more = ["--reverse", "recurrent-turned", "--symmetrize", "intersection", "--out", out]
    assert "intersection with" in command("align", "transformer", *files, *more)
    words = [[line.split() for line in side] for side in TOKENIZED]
    texts = [[" ".join(each).replace(" .", ".") for each in side] for side in words]
    one = align_pairs(untrained("transformer"), texts[0], texts[1], source_words=words[0], target_words=words[1])
    other = align_pairs(untrained("recurrent"), texts[1], texts[0], source_words=words[1], target_words=words[0])
    for line, forward, back in zip(out.read_text().splitlines(), one, other, strict=True):
        both = intersection(forward.links, frozenset((j, i) for i, j in back.links))
        assert line == " ".join(f"{i}-{j}" for i, j in sorted(both))
    assert "none of intersection, union" in command("align", "transformer", *files, "--symmetrize", "x", code=1)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--symmetrize", "union"], "--symmetrize union is of two directions, and there is one; add --reverse RUN"),
        (["--reverse", "recurrent"], "--reverse recurrent learned the same direction as untrained/transformer"),
    ],
)
def test_one_direction_is_not_two(given: list[str], told: str, tmp_path: Path) -> None:
    paths = written(tmp_path, de=TOKENIZED[0], en=TOKENIZED[1])
    files = ["--source", paths["de"], "--target", paths["en"]]
    assert command("align", "transformer", *files, *given, code=1).startswith(told)


def test_recasing_shows_the_model_words_as_its_training_text_writes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    monkeypatch.setattr("sightline.data.sources.training_examples", lambda recipe: iter(PAIRS))
    whole = align_pairs
    monkeypatch.setattr(
        "sightline.inspection.alignment.align_pairs",
        lambda run, one, other, *rest, **more: shown.extend([*one, *other]) or whole(run, one, other, *rest, **more),
    )
    paths = written(tmp_path, de=TOKENIZED[0], en=TOKENIZED[1], gold=GOLD)
    files = ["--source", paths["de"], "--target", paths["en"], "--gold", paths["gold"], "--recase"]
    command("align", "transformer", *files)
    assert shown == ["Ein Hund bellt laut.", "Die Kinder lachen", "A dog barks loudly.", "The children laugh"]
    assert learn_casing(pair[0] for pair in PAIRS)["hund"] == "Hund"


def test_evaluate_with_alignments_is_align_with_gold(tmp_path: Path) -> None:
    paths = written(tmp_path, de=TOKENIZED[0], en=TOKENIZED[1], gold=GOLD)
    old = ["--source", paths["de"], "--reference", paths["en"], "--alignments", paths["gold"], "--shift"]
    new = ["--source", paths["de"], "--target", paths["en"], "--gold", paths["gold"], "--shift"]
    note = "sightline: evaluate --alignments is deprecated; write sightline align --gold\n"
    assert command("evaluate", "transformer", *old).replace(note, "") == command("align", "transformer", *new)
