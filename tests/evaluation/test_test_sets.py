"""What counts as one sentence of a test set."""

import pytest

from sightline.data.sources import Example
from sightline.evaluation.test_set import Report, from_files
from sightline.evaluation.test_set import TestSet as HeldOut
from sightline.recipe import Recipe

LIST = [Example("ja", "yes"), Example("nein", "no"), Example("ja", "yeah"), Example("ja", "yes")]
TEXT = {"kind": "text", "source": "a.de", "target": "a.en"}
PAIRS = {"kind": "tsv", "file": "pairs.tsv"}


def test_a_list_of_pairs_gathers_the_translations_of_a_source() -> None:
    result = HeldOut.of("pairs", LIST, gathered=True)
    assert (result.sources, result.references, result.pairs) == (["ja", "nein"], [["yes", "yeah"], ["no"]], 4)


def test_of_files_line_by_line_every_line_counts(tmp_path) -> None:
    (tmp_path / "a.de").write_text("".join(f"{each.source}\n" for each in LIST))
    (tmp_path / "a.en").write_text("".join(f"{each.target}\n" for each in LIST))
    result = from_files(tmp_path / "a.de", tmp_path / "a.en")
    assert result.sources == ["ja", "nein", "ja", "ja"]
    assert result.references == [["yes"], ["no"], ["yeah"], ["yes"]]


@pytest.mark.parametrize(("source", "gathers"), [(TEXT, False), (PAIRS, True)], ids=["text", "tsv"])
def test_a_recipe_gathers_by_the_kind_of_its_test_set(source: dict[str, str], gathers: bool) -> None:
    data = {"train": [TEXT], "validation": TEXT, "tests": {"held-out": source}}
    body = {"kind": "transformer"}
    recipe = Recipe.model_validate({"data": data, "model": {"encoder": body, "decoder": body}})
    assert recipe.gathers("held-out") is gathers
    assert not recipe.gathers("validation")


def test_reports_leave_out_empty_counts() -> None:
    report = Report("test", sentences=2, scores=[], outputs=["a", "b"], unknown=3)
    assert report.to_dict() == {"on": "test", "sentences": 2, "scores": [], "unknown": 3}
