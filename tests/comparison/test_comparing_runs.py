"""`compare` on trained runs: values equal those of `evaluate` and sacreBLEU; seeds, notes and analysis."""

from __future__ import annotations

import json
import shutil
import statistics
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sacrebleu
from sacrebleu.significance import PairedTest
from typer.testing import CliRunner

import sightline
from sightline.cli.app import app
from sightline.comparison import ComparisonResult, read_comparison
from sightline.comparison.analysis import Frequencies, analyze
from sightline.comparison.export import html_page
from sightline.comparison.notes import group_values
from sightline.comparison.summary import conclusions, footnotes
from sightline.comparison.tables import differences_table, main_table, significance_table
from sightline.comparison.terminal import plain_text
from sightline.data.locate import MovedFolder
from sightline.evaluation import test_set
from sightline.evaluation.metrics import measure
from sightline.evaluation.significance import mcnemar
from sightline.files import checksum
from sightline.models.seq2seq import parameter_count
from sightline.progress import silent
from sightline.run import Run

Copy = Callable[..., Path]


# --- the numbers -------------------------------------------------------------------------------------------------


def test_values_intervals_and_outputs_equal_those_of_evaluate(trained: dict[str, Path], pair: ComparisonResult) -> None:
    for name, system in zip(("none-seed1", "dot-seed1"), pair.systems, strict=True):
        report = Run.load(trained[name], device="cpu").evaluate("test")
        (member,) = system.runs
        assert (system.name, member.outputs) == (name, report.outputs)
        assert list(member.scores.values()) == report.scores
        for score, quality in zip(report.scores, system.qualities.values(), strict=True):
            assert (quality.value, quality.low, quality.high) == (score.value, score.low, score.high)
            assert (quality.signature, quality.deviation) == (score.signature, None)


def test_a_row_shows_quality_significance_and_cost(pair: ComparisonResult) -> None:
    table = main_table(pair)
    heads = [column.title for column in table.columns]
    assert heads[:5] == ["system", "BLEU", "Δ BLEU (p)", "chrF2", "Δ chrF2 (p)"]
    assert heads[-6:] == ["parameters", "tokens", "FLOPs", "time", "sentences/s", "memory"]
    none, dot = (dict(zip(heads, row, strict=True)) for row in table.rows)
    bleu = pair.systems[1].qualities["bleu"]
    assert dot["BLEU"] == f"{bleu.value:.2f} [{bleu.low:.2f}, {bleu.high:.2f}]"
    assert (none["Δ BLEU (p)"], dot["Δ BLEU (p)"][-11:]) == ("baseline", "* (<0.0001)")
    model = Run.load(pair.systems[1].runs[0].folder, device="cpu").model
    assert dot["parameters"] == f"{parameter_count(model) / 1000:.1f}k"
    assert "·10^" in dot["FLOPs"] and dot["time"].endswith(" s") and dot["memory"].endswith("iB")
    assert float(dot["sentences/s"].replace(",", "")) > 0


@pytest.mark.parametrize("metric", ["bleu", "chrf"])
def test_p_values_equal_those_of_sacrebleu(
    pair: ComparisonResult, metric: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SACREBLEU_SEED", raising=False)
    streams = [[several[0] for several in pair.references]]
    named = [(system.name, system.runs[0].outputs) for system in pair.systems]
    (verdict,) = (system.verdicts[metric] for system in pair.others)  # type: ignore[index]
    for kind, ours in (("ar", verdict.approximate_randomization), ("bs", verdict.paired_bootstrap)):
        theirs = {"bleu": sacrebleu.BLEU(), "chrf": sacrebleu.CHRF()}[metric]
        comparison = PairedTest(named, {metric: theirs}, streams, test_type=kind, n_samples=ours.samples, n_jobs=1)()
        result = comparison[1][ours.metric][1]
        assert not isinstance(result, str)
        assert ours.p == pytest.approx(result.p_value, rel=1e-9)


def test_exact_match_gets_mcnemars_test(pair: ComparisonResult) -> None:
    (dot,) = pair.others
    rights = [
        [output in several for output, several in zip(system.runs[0].outputs, pair.references, strict=True)]
        for system in pair.systems
    ]
    assert dot.verdicts["exact"].mcnemar == mcnemar(*rights, metric="exact")
    assert dot.verdicts["bleu"].mcnemar is None
    table = significance_table(pair)
    assert "McNemar p" in [column.title for column in table.columns]


def test_perplexity_is_measured_on_the_references(trained: dict[str, Path]) -> None:
    runs = [trained["none-seed1"], trained["dot-seed1"]]
    result = sightline.compare(runs, device="cpu", metrics=["perplexity", "exact"])
    expected = [
        Run.load(trained[name], device="cpu").evaluate("test").scores[3] for name in ("none-seed1", "dot-seed1")
    ]
    assert [system.qualities["perplexity"].value for system in result.systems] == [each.value for each in expected]
    assert result.others[0].verdicts["perplexity"].better
    assert result.where.corpus_metric == "chrF2"  # perplexity says nothing about outputs


def test_nothing_is_decoded_if_no_metric_needs_outputs(
    trained: dict[str, Path], pair: ComparisonResult, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Run, "predict_nbest", lambda *a, **k: pytest.fail("decoded"))
    runs = [trained["none-seed1"], trained["dot-seed1"]]
    result = sightline.compare(runs, device="cpu", metrics=["perplexity"])
    for ours, theirs in zip(result.systems, pair.systems, strict=True):
        assert ours.qualities["perplexity"] == theirs.qualities["perplexity"]
        assert ours.runs[0].outputs == []
    table = main_table(result)
    at = [column.title for column in table.columns].index("sentences/s")
    assert [row[at] for row in table.rows] == ["–", "–"]
    message = plain_text(result)
    assert "nothing was decoded, and there is no decoding to time" in message and "Sentences/s:" not in message
    assert "test: 60 sentences." in message and "[95% interval over the test sentences]" in message
    assert "No metric here needs outputs, so nothing was decoded that could differ." in html_page(result)
    (tmp_path / "c.json").write_text(result.to_json())
    assert read_comparison(tmp_path / "c.json") == result
    for option in ({"beam": 3}, {"lowercase": True}):
        with pytest.raises(ValueError, match=r"is about outputs, and perplexity uses none; leave it out"):
            sightline.compare(runs, device="cpu", metrics=["perplexity"], **option)


def test_conclusion_states_difference_and_relative_cost(pair: ComparisonResult) -> None:
    (answer,) = conclusions(pair)
    difference = pair.others[0].verdicts["bleu"].difference
    assert answer.startswith(f"dot-seed1 is better than none-seed1 (BLEU {difference:+.2f}, p < 0.0001), at ")
    assert "× the parameters, " in answer and "× the training FLOPs" in answer


# --- the same, or nearly -----------------------------------------------------------------------------------------


def test_identical_runs_are_not_different(trained: dict[str, Path], copied: Copy) -> None:
    result = sightline.compare([trained["dot-seed1"], copied("dot-seed1", "again")], device="cpu")
    (again,) = result.others
    for verdict in again.verdicts.values():
        assert (verdict.difference, verdict.p, verdict.significant) == (0.0, 1.0, False)
        assert verdict.approximate_randomization.p == verdict.paired_bootstrap.p == 1.0
    assert conclusions(result)[0].startswith("again does not differ from dot-seed1: it has the same outputs")
    assert result.differences == [] and differences_table(result).notes == ["The recipes are the same."]
    contrast = result.where.contrasts[0]
    assert contrast.sentences.improved == contrast.sentences.worsened == []


def test_runs_with_equal_seeds_are_separate_systems(trained: dict[str, Path], copied: Copy) -> None:
    runs = [trained["none-seed1"], trained["dot-seed1"], copied("dot-seed1", "again")]
    result = sightline.compare(runs, device="cpu", metrics=["exact"])
    assert [system.name for system in result.systems] == ["none-seed1", "dot-seed1", "again"]
    assert result.notes[0].startswith("dot-seed1, again have the same recipe, some even the same seed")


def test_runs_that_differ_only_in_seed_are_compared_separately(trained: dict[str, Path]) -> None:
    result = sightline.compare([trained["dot-seed1"], trained["dot-seed2"]], device="cpu", metrics=["exact"])
    assert [system.name for system in result.systems] == ["dot-seed1", "dot-seed2"]
    assert "differ only in their seed" in result.notes[0]
    assert [(each.key, each.values) for each in result.differences] == [("seed", ["1", "2"])]


# --- seeds -------------------------------------------------------------------------------------------------------


def test_seeds_of_one_recipe_are_one_system(trained: dict[str, Path], seeded: ComparisonResult) -> None:
    assert [(system.name, [member.name for member in system.runs]) for system in seeded.systems] == [
        ("dot", ["dot-seed1", "dot-seed2"]),
        ("none", ["none-seed1", "none-seed2"]),
    ]
    for system in seeded.systems:
        reports = [Run.load(trained[member.name], device="cpu").evaluate("test") for member in system.runs]
        for place, metric in enumerate(seeded.metrics):
            values = [report.scores[place].value for report in reports]
            quality = system.qualities[metric]
            assert quality.value == pytest.approx(sum(values) / 2, rel=1e-12)
            assert quality.deviation == pytest.approx(statistics.stdev(values), rel=1e-9)
            assert quality.low == pytest.approx(sum(report.scores[place].low for report in reports) / 2)
    bleu = seeded.baseline.qualities["bleu"]
    assert main_table(seeded).rows[0][:3] == [
        "dot",
        "2",
        f"{bleu.value:.2f} ± {bleu.deviation:.2f} [{bleu.low:.2f}, {bleu.high:.2f}]",
    ]
    assert "mean ± standard deviation over the seeds" in " ".join(footnotes(seeded))


def test_the_cost_of_a_system_is_the_mean_over_its_seeds(seeded: ComparisonResult) -> None:
    for system in seeded.systems:
        costs = [member.cost for member in system.runs]
        assert system.cost.seconds == pytest.approx(sum(cost.seconds or 0 for cost in costs) / 2)
        assert system.cost.peak_memory == max(cost.peak_memory or 0 for cost in costs)


def test_runs_can_be_named(trained: dict[str, Path]) -> None:
    runs = {"ohne s1": trained["none-seed1"], "ohne s2": trained["none-seed2"], "mit": trained["dot-seed1"]}
    result = sightline.compare(runs, device="cpu", metrics=["exact"], baseline="mit")
    assert [system.name for system in result.systems] == ["mit", "ohne"]
    assert result.systems[1].verdicts["exact"].seeds is not None


# --- what is compared --------------------------------------------------------------------------------------------


def test_default_metrics_are_those_of_all_recipes(trained: dict[str, Path], copied: Copy) -> None:
    other = copied("none-seed1", "other", evaluation__metrics=["exact", "bleu", "ter"])
    result = sightline.compare([trained["dot-seed1"], other], device="cpu")
    assert result.metrics == ["bleu", "exact"]
    assert "Left out, because not every recipe has them: chrF2, perplexity, TER." in result.notes


def test_interrupted_trainings_are_noted(trained: dict[str, Path], copied: Copy) -> None:
    broken = copied("none-seed1", "broken", training__limits={"steps": 500})
    whole, half = (
        sightline.compare([trained["dot-seed1"], other], device="cpu", metrics=["exact"])
        for other in (trained["none-seed1"], broken)
    )
    assert not any("Training did not finish" in note for note in whole.notes)
    assert "Training did not finish: broken (step 90); continue it with --resume." in half.notes


def test_truncated_logs_are_noted_with_the_source_of_their_costs(trained: dict[str, Path], copied: Copy) -> None:
    saved, alone = copied("none-seed1", "saved"), copied("none-seed2", "alone", training__lr=0.016)
    shutil.rmtree(alone / "checkpoints")
    whole = sightline.compare([trained["dot-seed1"], alone], device="cpu", metrics=["exact"])
    assert not any("was cut off" in note for note in whole.notes) and "training FLOPs" in conclusions(whole)[0]
    for run in (saved, alone):
        path = run / "metrics.jsonl"
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2])[:-9])
    runs = [trained["dot-seed1"], saved, alone]
    result = sightline.compare(runs, device="cpu", metrics=["exact"])
    message = [note for note in result.notes if "was cut off" in note]
    assert [note.partition(". ")[0] for note in message] == [
        f"The log (metrics.jsonl) was cut off: {name} (step 30 of 90)" for name in ("saved", "alone")
    ]
    assert ["those of the newest checkpoint" in note for note in message] == [True, False]
    assert ["lower bounds" in note for note in message] == [False, True]
    costs = [system.cost for system in result.systems]
    assert [(cost.steps, cost.least) for cost in costs] == [(90, False), (90, False), (30, True)]
    assert ["training FLOPs" in answer for answer in conclusions(result)] == [True, False]


def test_relative_training_cost_needs_a_complete_log_of_the_baseline(trained: dict[str, Path], copied: Copy) -> None:
    cut = copied("none-seed2", "cut", training__limits={"epochs": 500})
    shutil.rmtree(cut / "checkpoints")
    result = sightline.compare([cut, trained["dot-seed1"]], device="cpu", metrics=["exact"])
    assert any("was cut off: cut (step 90). Tokens" in note for note in result.notes)
    assert "training FLOPs" not in conclusions(result)[0] and "the parameters" in conclusions(result)[0]


def test_initialization_from_another_run_is_noted(trained: dict[str, Path], copied: Copy) -> None:
    begun = copied("none-seed1", "begun", model__init_from=str(trained["none-seed1"]))
    alone, after = (
        sightline.compare([trained["dot-seed1"], other], device="cpu", metrics=["exact"])
        for other in (trained["none-seed1"], begun)
    )
    note = "Initialized from other runs (model.init_from): begun. Tokens, FLOPs and time do not include"
    assert [sum(each.startswith(note) for each in result.notes) for result in (alone, after)] == [0, 1]
    message = [conclusions(result)[0] for result in (alone, after)]
    assert ["× the training FLOPs" in each for each in message] == [True, False]
    assert all("× the parameters" in each for each in message)


def distilled(folder: Path, teacher: str | dict[str, Any], key: str = "teacher") -> list[dict[str, str]]:
    """A training text with a record of its teacher."""
    (folder / f"{key}.tsv.json").write_text(json.dumps({"counts": {"kept": 1}, "plan": {key: teacher}}))
    return [{"kind": "tsv", "file": str(folder / f"{key}.tsv")}]


def test_generated_training_text_is_noted(trained: dict[str, Path], copied: Copy, tmp_path: Path) -> None:
    teacher = trained["dot-seed1"]
    text = distilled(tmp_path, checksum(teacher / "model.safetensors"))
    text += distilled(tmp_path, {"models": ["one", "two"]}, "model")
    student = copied("none-seed1", "student", data__train=text)
    result = sightline.compare([teacher, student], device="cpu", metrics=["exact"])
    (note,) = (each for each in result.notes if each.startswith("Trained on text"))
    assert note == (
        "Trained on text that other models generated: student (distilled by dot-seed1, back-translated). Tokens, "
        "FLOPs and time do not include those models and the generation."
    )
    assert "× the training FLOPs" not in conclusions(result)[0] and "× the parameters" in conclusions(result)[0]


@pytest.mark.parametrize("beside", [None, "half {", "[]", '{"plan": {"lines": 3}}'])
def test_text_of_unknown_origin_is_not_noted(
    beside: str | None, trained: dict[str, Path], copied: Copy, tmp_path: Path
) -> None:
    if beside is not None:
        (tmp_path / "my.tsv.json").write_text(beside)
    other = copied("none-seed1", "other", data__train=[{"kind": "tsv", "file": str(tmp_path / "my.tsv")}])
    result = sightline.compare([trained["dot-seed1"], other], device="cpu", metrics=["perplexity"])
    assert not any("other models generated" in note for note in result.notes)
    assert "× the training FLOPs" in conclusions(result)[0]


def test_different_decoding_options_are_noted(trained: dict[str, Path], copied: Copy) -> None:
    greedy = copied("none-seed1", "greedy", decoding__beam=1)
    result = sightline.compare([trained["dot-seed1"], greedy], device="cpu", metrics=["exact"])
    assert any("beam 2 (dot-seed1), 1 (greedy)" in note for note in result.notes)
    result = sightline.compare([trained["dot-seed1"], greedy], device="cpu", metrics=["exact"], beam=3)
    assert not any("beam" in note for note in result.notes)
    assert {member.decoding["beam"] for system in result.systems for member in system.runs} == {3}


def test_group_values_names_the_most_common_value_last() -> None:
    assert group_values({"a": "none", "b": "none", "c": "dictionary", "d": "none", "e": "dictionary", "f": "copy"}) == (
        "dictionary (c, e), copy (f), all others: none"
    )
    assert group_values({"a": "2", "b": "5", "c": "1"}) == "2 (a), 5 (b), 1 (c)"
    assert group_values({"a": "1", "b": "5", "c": "5", "d": "1"}) == "5 (b, c), all others: 1"


def test_lowercase_applies_to_all_runs(trained: dict[str, Path], pair: ComparisonResult) -> None:
    loud_references = [[text.upper() for text in each] for each in pair.references]
    test = test_set.TestSet("loud", pair.sources, loud_references, pair.test.pairs)
    runs = [trained["none-seed1"], trained["dot-seed1"]]
    loud, quiet = (
        sightline.compare(runs, on=test, device="cpu", metrics=["bleu"], lowercase=lowercase)
        for lowercase in (False, True)
    )
    assert loud.systems[1].qualities["bleu"].value < 5 < quiet.systems[1].qualities["bleu"].value
    outputs = quiet.systems[1].runs[0].outputs
    assert quiet.systems[1].qualities["bleu"].value == measure("bleu", outputs, test.references, lowercase=True).value


def test_analysis_counts_words_of_the_training_text(pair: ComparisonResult) -> None:
    where = pair.where
    assert where.counted_in == "the 150 targets of the training text of none-seed1"
    assert sum(bucket.sentences for bucket in where.lengths) == 60
    assert where.lengths[0].scores.keys() == {"none-seed1", "dot-seed1"}
    (contrast,) = where.contrasts
    assert contrast.sentences.improved and where.sentence_metric == "chrF2"
    worst = contrast.sentences.improved[0]
    scores = [measure("chrf", [text], [worst.references]).value for text in (worst.baseline, worst.system)]
    assert scores == pytest.approx([worst.baseline_score, worst.system_score])


def test_without_training_text_words_of_the_references_are_counted(
    trained: dict[str, Path], copied: Copy, tmp_path: Path
) -> None:
    source, reference = tmp_path / "s", tmp_path / "r"
    source.write_text("hund alt\nkatze\n"), reference.write_text("dog old\ncat\n")
    moved = copied("none-seed1", "moved", data__folder=str(tmp_path / "gone"))
    from sightline.evaluation.test_set import from_files

    test = from_files(source, reference)
    result = sightline.compare([moved, trained["dot-seed1"]], on=test, device="cpu", metrics=["chrf"])
    assert "the references" in result.where.counted_in
    assert result.test.name == "s" and result.references == [["dog old"], ["cat"]]


def test_lowercase_analysis_ignores_case() -> None:
    test = test_set.TestSet("test", ["a", "b"] * 5, [["The Dog"], ["the dog"]] * 5, 10)
    outputs = {"one": ["the dog"] * 10, "two": ["THE DOG"] * 10}
    systems: Any = {name: SimpleNamespace(name=name, outputs=texts) for name, texts in outputs.items()}  # runs
    seen = Frequencies({"The": 40, "the": 70, "dog": 5, "Dog": 4}, "a text")
    where = {folds: analyze(test, systems, "bleu", seen, lowercase=folds, progress=silent) for folds in (False, True)}
    assert [part.systems["two"].recall for part in where[True].positions] == [1.0, 1.0]
    assert [part.systems["two"].recall for part in where[False].positions] == [0.0, 0.0]
    assert [(bucket.label, bucket.systems["two"].count) for bucket in where[True].frequencies] == [
        ("1-9", 10),
        ("100-999", 10),
    ]
    assert [contrast.differs for contrast in (*where[True].contrasts, *where[False].contrasts)] == [False, True]


# --- runs of another machine -------------------------------------------------------------------------------------


def test_runs_of_another_machine_use_local_corpora(
    trained: dict[str, Path], seeded: ComparisonResult, copied: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpora = trained["dot-seed1"].parents[1]  # the recipes lie beside their texts
    moved = {name: copied(name, name, data__folder=f"/server/{corpora.name}") for name in ("dot-seed1", "none-seed2")}
    monkeypatch.setenv("SIGHTLINE_CORPORA", str(corpora.parent))
    with pytest.warns(MovedFolder, match=rf"/server/{corpora.name} is not here; its files are read from {corpora} "):
        result = sightline.compare(list({**trained, **moved}.values()), device="cpu")
    assert result.test == seeded.test
    names_and_bleu = [[row[:4] for row in main_table(each).rows] for each in (result, seeded)]
    assert names_and_bleu[0] == names_and_bleu[1]  # seeds are one system, wherever each was trained


# --- validation sets, unknown words -----------------------------------------------------------------


def test_validation_on_a_part_of_the_text_is_noted(trained: dict[str, Path], copied: Copy) -> None:
    part = copied("dot-seed1", "part", data__validation_limit=4)
    whole = copied("none-seed1", "whole", data__validation_limit=10)  # all there are
    result = sightline.compare([part, whole], on="validation", device="cpu", metrics=["exact"])
    message = "Training validated on a part of this text only (data.validation_limit): part (the first 4 examples)."
    assert message in result.notes
    assert not any("validation_limit" in note for note in sightline.compare([part, whole], device="cpu").notes)
    shown = CliRunner().invoke(app, ["evaluate", str(part), "--on", "validation", "--device", "cpu"])
    head = (
        "validation: 10 sentences, validations in training saw but the first 4 examples (data.validation_limit), beam"
    )
    assert shown.stdout.startswith(head)
    assert Run.load(whole, device="cpu").evaluate("validation").validated is None


def test_perplexity_signature_counts_unknown_words(trained: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "in.de").write_text("hund katze\nalt\n", encoding="utf-8")
    (tmp_path / "out.en").write_text("dog zebra\nquagga quagga\n", encoding="utf-8")
    files = ["--source", str(tmp_path / "in.de"), "--reference", str(tmp_path / "out.en")]

    def evaluated(metrics: str) -> str:
        command = ["evaluate", str(trained["dot-seed1"]), *files, "--metrics", metrics, "--device", "cpu"]
        return CliRunner().invoke(app, command, catch_exceptions=False).stdout

    message = "in.de: 2 sentences, 3 tokens of the references unknown (<unk>, which is what perplexity counts)\n"
    assert evaluated("perplexity").startswith(message)
    assert "unknown" not in evaluated("bleu")


def test_validated_examples_are_counted_in_pairs(copied: Copy) -> None:
    run = Run.load(copied("dot-seed1", "part", data__validation_limit=2), device="cpu")
    for pairs, seen in ((2, None), (3, 2)):
        gathered = test_set.TestSet("validation", ["hund", "katze"], [["dog", "a dog"][: pairs - 1], ["cat"]], pairs)
        assert run.evaluate(gathered).validated == seen
