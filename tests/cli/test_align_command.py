"""`sightline align`: links of given pairs, of training pairs, and their error rate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sightline.cli.app import app
from sightline.evaluation.alignment_error import measure_alignments, read_gold
from sightline.inspection.alignment import HeadSelection, align_pairs, intersection
from sightline.run import Run
from sightline.text.word_pieces import learn_casing
from untrained_runs import PAIRS, by_folder, untrained

GOLD = ["0-0 1-1 2-2 3-3 4-4", "0-0 1-2 2-1"]
TOKENIZED = {"de": ["ein hund bellt laut .", "die kinder lachen"], "en": ["a dog barks loudly .", "the children laugh"]}
WORDS = [[line.split() for line in side] for side in TOKENIZED.values()]
NATURAL = [[line.replace(" .", ".") for line in side] for side in TOKENIZED.values()]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files to align; run folders are untrained runs of the same name."""
    monkeypatch.setattr(Run, "load", staticmethod(by_folder))
    files = {"a": [pair[0] for pair in PAIRS], "b": [pair[1] for pair in PAIRS], **TOKENIZED, "gold": GOLD}
    for name, lines in files.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def align(arguments: str, code: int = 0) -> str:
    """The output of the command, or the message of its error."""
    result = CliRunner().invoke(app, ["align", *arguments.split()])
    assert result.exit_code == code, result.output
    return result.output if code == 0 else str(result.exception)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--gold c", "give the pairs as --source FILE and --target FILE, or the run's own with --training"),
        ("--source a", "give the pairs as --source FILE and --target FILE"),
        ("--source a --target b --training", "give the pairs as --source FILE and --target FILE"),
        ("--training --gold c", "--gold needs --source and --target; leave --training out"),
        ("--source a --target b --swap", "--swap needs --gold FILE"),
        ("--source a --target b --recase", "--recase needs --gold FILE"),
        ("--source a --target b --json s.json", "--json needs --gold FILE"),
        ("--source a --target b --out a", "--out a is also the file of --source"),
        ("--source a --target b --out b", "--out b is also the file of --target"),
        ("--source a --target b --symmetrize x", "--symmetrize x is not one of intersection, union"),
        ("--source a --target b --symmetrize union", "--symmetrize union needs a second direction; add --reverse RUN"),
        (
            "--source a --target b --reverse recurrent",
            "--reverse recurrent was trained in the same direction as untrained/transformer",
        ),
        ("--source a --target b --layer 7", "there is no layer 7 with cross-attention; there are 2"),
        ("--source a --target en", "en ends before line 3; both files need the same number of lines"),
    ],
)
def test_wording_of_errors(folder: Path, arguments: str, message: str) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert align(f"transformer {arguments}", code=1).startswith(message)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_pairs_are_aligned_by_a_chosen_head(folder: Path) -> None:
    align("transformer --source a --target b --layer 1 --head 0 --shift --out links")
    pairs = [pair[0] for pair in PAIRS], [pair[1] for pair in PAIRS]
    expected = align_pairs(untrained("transformer"), *pairs, HeadSelection(("decoder.1.cross.0",), True))
    assert (folder / "links").read_text().splitlines() == [each.pharaoh() for each in expected]
    assert align("transformer --source a --target b --heads decoder.1.cross.0 --shift").splitlines() == [
        each.pharaoh() for each in expected
    ]


def test_intersection_with_the_reverse_run_is_a_subset() -> None:
    pairs = "transformer --source a --target b"
    both = align(f"{pairs} --reverse recurrent-turned --symmetrize intersection").splitlines()
    alone = align(pairs).splitlines()
    assert len(both) == len(alone) == len(PAIRS)
    assert all(set(few.split()) <= set(many.split()) for few, many in zip(both, alone, strict=True))


# --- scores against manual links -----------------------------------------------------------------------------------

FILES = "transformer --source de --target en --gold"


def test_error_rate_of_attention(folder: Path) -> None:
    printed = align(f"{FILES} gold --out links --json scores.json")
    assert [line for line in printed.splitlines() if line.startswith("wrote")] == ["wrote links", "wrote scores.json"]
    alignments = align_pairs(untrained("transformer"), *NATURAL, source_words=WORDS[0], target_words=WORDS[1])
    expected = measure_alignments([each.links for each in alignments], read_gold(GOLD, "gold"))
    for measured in expected:
        assert f"  {measured.name} {measured.value:.3f} [" in printed
    (record,) = json.loads((folder / "scores.json").read_text())
    assert [score["value"] for score in record["scores"]] == [measured.value for measured in expected]
    assert (folder / "links").read_text().splitlines() == [each.pharaoh() for each in alignments]
    ensemble = align(f"{FILES} gold --with recurrent")
    assert ensemble.startswith("gold: 2 sentences, word alignments by attention, ensemble of 2 runs\n")


def test_swapped_gold_links_give_the_same_scores(folder: Path) -> None:
    swapped = [" ".join("-".join(link.split("-")[::-1]) for link in line.split()) for line in GOLD]
    (folder / "swapped").write_text("\n".join(swapped) + "\n")
    assert align(f"{FILES} gold").splitlines()[1:] == align(f"{FILES} swapped --swap").splitlines()[1:]


def test_gold_with_a_reverse_run_is_symmetrized(folder: Path) -> None:
    assert "intersection with" in align(
        f"{FILES} gold --reverse recurrent-turned --symmetrize intersection --out links"
    )
    forward = align_pairs(untrained("transformer"), *NATURAL, source_words=WORDS[0], target_words=WORDS[1])
    backward = align_pairs(untrained("recurrent"), *NATURAL[::-1], source_words=WORDS[1], target_words=WORDS[0])
    for line, one, other in zip((folder / "links").read_text().splitlines(), forward, backward, strict=True):
        both = intersection(one.links, frozenset((j, i) for i, j in other.links))
        assert line == " ".join(f"{i}-{j}" for i, j in sorted(both))


def test_recase_restores_the_case_of_the_training_text(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    monkeypatch.setattr("sightline.data.sources.training_examples", lambda recipe: iter(PAIRS))
    monkeypatch.setattr(
        "sightline.inspection.alignment.align_pairs",
        lambda run, one, other, *rest, **more: (
            read.extend([*one, *other]) or align_pairs(run, one, other, *rest, **more)
        ),
    )
    align(f"{FILES} gold --recase")
    assert read == ["Ein Hund bellt laut.", "Die Kinder lachen", "A dog barks loudly.", "The children laugh"]
    assert learn_casing(pair[0] for pair in PAIRS)["hund"] == "Hund"


def test_evaluate_alignments_is_align_gold() -> None:
    note = "sightline: evaluate --alignments is deprecated; write sightline align --gold\n"
    old = CliRunner().invoke(
        app,
        f"evaluate {FILES} gold --shift".replace("--target", "--reference").replace("--gold", "--alignments").split(),
    )
    assert old.output.replace(note, "") == align(f"{FILES} gold --shift")
