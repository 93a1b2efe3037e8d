"""What the benchmarks compute besides times."""

from __future__ import annotations

import importlib
import subprocess
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

from sightline.inspection.alignment import HeadSelection, select_heads
from sightline.models.seq2seq import CopyingSeq2Seq, Seq2Seq
from sightline.recipe import Recipe
from sightline.recipe.model import ModelConfig
from sightline.sweeps.plan import plan_sweep
from untrained_runs import LOOKING, untrained

TRANSFORMER = {"kind": "transformer", "layers": 2, "heads": 2}


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Import a benchmark by its name."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module


# --- exports.py ----------------------------------------------------------------------------------------------------


def test_a_copying_decoder_cannot_be_exported_to_marian(benchmark: Callable[[str], Any]) -> None:
    post = {"kind": "transformer", "layers": 1, "heads": 2, "norm": {"place": "post"}}
    recipe = Recipe.model_validate(
        {
            "data": {"train": [{"kind": "tsv", "file": "a.tsv"}], "validation": {"kind": "tsv", "file": "b.tsv"}},
            "model": {"width": 8, "encoder": post, "decoder": post, "tie": "all", "copying": True},
        }
    )
    model = CopyingSeq2Seq(recipe.model, 12)
    with pytest.raises(ValueError, match=r"copies words of its source \(model\.copying: true\).*model\.copying: false"):
        benchmark("exports").to_marian(model.state_dict(), 2)


# --- alignment_error.py --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LOOKING)
def test_candidates_are_all_heads_and_layers_with_both_offsets(benchmark: Callable[[str], Any], name: str) -> None:
    model = untrained(name).model
    candidates = benchmark("alignment_error").candidates(model)
    assert len(set(candidates)) == len(candidates) == {"transformer": 12, "convolutional": 4}.get(name, 2)
    assert all(select_heads(model, candidate.heads) for candidate in candidates)


def test_agreement_is_the_share_of_common_links(benchmark: Callable[[str], Any]) -> None:
    agreement = benchmark("alignment_error").agreement
    one, other = frozenset({(0, 0), (1, 1)}), frozenset({(0, 0), (1, 2), (2, 2), (3, 3)})
    assert agreement([one, frozenset()], [other, frozenset()]) == pytest.approx(2 / 6)
    assert agreement([frozenset()], [frozenset()]) == 0


def test_the_pair_of_heads_with_the_highest_agreement_is_chosen(benchmark: Callable[[str], Any]) -> None:
    same, different = [frozenset({(0, 0), (1, 1)})], [frozenset({(5, 5)})]
    heads = [HeadSelection((f"decoder.0.cross.{number}",)) for number in range(3)]
    choice = benchmark("alignment_error").choose_by_agreement(
        {heads[0]: different, heads[1]: same}, {heads[0]: [frozenset({(7, 7)})], heads[2]: [frozenset({(0, 0)})]}
    )
    assert (choice.forward, choice.backward) == (heads[1], heads[2])
    assert choice.agreement == pytest.approx(2 / 3)


# --- length_time.py ------------------------------------------------------------------------------------------------


def translator() -> Seq2Seq:
    torch.manual_seed(1)
    config = {"width": 8, "tie": "none", "encoder": TRANSFORMER, "decoder": TRANSFORMER}
    return Seq2Seq(ModelConfig.model_validate(config), 12, 12)


def test_longer_sentences_take_longer(benchmark: Callable[[str], Any], tmp_path: Path) -> None:
    length_time, models = benchmark("length_time"), {"a": translator(), "b": translator()}
    clock = time.process_time  # independent of other programs
    timings = length_time.time_lengths(models, [2, 64], vocabulary=12, rounds=2, clock=clock)
    expected = {(model, work, length) for model in models for work in length_time.WORKS for length in (2, 64)}
    assert {(t.model, t.work, t.length) for t in timings} == expected
    assert all(0 < t.fastest <= t.seconds <= t.slowest for t in timings)
    decoding = {t.length: t.fastest for t in timings if (t.model, t.work) == ("a", "decode")}
    assert decoding[64] > 4 * decoding[2]
    length_time.draw_timings(timings, tmp_path / "time.png")
    assert (tmp_path / "time.png").stat().st_size > 5_000


# --- translation_table.py ------------------------------------------------------------------------------------------


def test_runs_join_the_ensemble_one_by_one_while_the_score_rises(benchmark: Callable[[str], Any]) -> None:
    choose = benchmark("translation_table").choose
    values = {"a": 3.0, "b": 2.0, "c": -1.0}
    calls: list[tuple[str, ...]] = []

    def score(names: Sequence[str]) -> float:
        calls.append(tuple(names))
        return sum(values[name] for name in names)

    assert choose(list("cba"), score, most=5) == (["a", "b"], [3.0, 5.0])
    assert calls[-1] == ("a", "b", "c") and len(calls) == 3 + 2 + 1
    assert choose(list("cba"), score, most=1) == (["a"], [3.0])
    assert choose(["c"], score, most=5) == (["c"], [-1.0])
    assert choose(["a", "b"], lambda names: 1.0, most=2) == (["a"], [1.0])


def test_the_ensemble_is_made_of_listed_systems(benchmark: Callable[[str], Any]) -> None:
    table = benchmark("translation_table")
    names = {entry["name"] for entry in yaml.safe_load(table.SYSTEMS.read_text())}
    assert {*table.TRANSFORMERS, "gnmt"} <= names


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that are started, without running them."""
    started: list[list[str]] = []

    def run(command: list[str], **options: Any) -> Any:
        started.append(command[3:])
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", run)
    return started


def test_fine_tuning_starts_from_the_trained_gnmt_and_resumes(
    benchmark: Callable[[str], Any], commands: list[list[str]], tmp_path: Path
) -> None:
    gnmt, out = tmp_path / "gnmt", tmp_path / "gnmt-rl"
    gnmt.mkdir()
    (gnmt / "model.safetensors").touch()
    fine_tuning = benchmark("translation_table").FineTuning
    fine_tuning(gnmt, out, ["training.limits.minutes=2"]).run()
    ((verb, recipe, *rest),) = commands
    assert (verb, recipe, rest[-2:]) == ("train", "multi30k/gnmt", ["--out", str(out)])
    assert f"model.init_from={gnmt}" in rest and "training.limits.minutes=2" in rest
    out.mkdir()
    (out / "recipe.yaml").touch()
    fine_tuning(gnmt, out, []).run()
    assert commands[1] == ["train", str(out), "--resume"]


def test_no_fine_tuning_without_gnmt(
    benchmark: Callable[[str], Any], commands: list[list[str]], tmp_path: Path
) -> None:
    tuning = benchmark("translation_table").FineTuning(tmp_path / "gnmt", tmp_path / "rl", [])
    tuning.no_more.set()
    tuning.run()
    assert not commands and tuning.code is None


# --- ladder.py -----------------------------------------------------------------------------------------------------


def test_each_rung_of_the_ladder_changes_one_part(benchmark: Callable[[str], Any], tmp_path: Path) -> None:
    ladder = benchmark("ladder")
    plan = plan_sweep("lectures/rnn-attention", ["seed=1"], variants=ladder.RUNGS, out=tmp_path / "ladder")
    assert [run.name for run in plan.runs] == list(ladder.CHANGES)
    models = [run.recipe.model for run in plan.runs]
    *lstms, transformer = [model.decoder for model in models]
    assert lstms[0].attention.kind == "none"
    assert all(decoder == lstms[1] for decoder in lstms[1:])  # one LSTM, from the second rung on
    encoders = [model.encoder for model in models]
    assert all(getattr(encoder, "layers", 1) == 1 for encoder in encoders)
    assert encoders[0] == encoders[1] and encoders[10] == encoders[11] == transformer
    for before, after in pairwise(encoders[4:11]):  # within Transformer encoders
        changed = {key for key in type(before).model_fields if getattr(before, key) != getattr(after, key)}
        assert changed <= {"attention", "heads"} or len(changed) == 1


def test_each_rung_of_the_ladder_keeps_its_best_learning_rate(
    benchmark: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ladder = benchmark("ladder")
    trained: list[tuple[tuple[str, ...], tuple[str, ...], tuple[int, ...]]] = []

    def train(options: Any, rungs: Any, rates: Sequence[str], seeds: Sequence[int]) -> dict[Any, Path]:
        names = tuple(rung["name"] for rung in rungs)
        trained.append((names, tuple(rates), tuple(seeds)))
        return {
            (name, rate, seed): tmp_path / f"{name}@{rate}@{seed}" for name in names for rate in rates for seed in seeds
        }

    def best_validation(run: Path) -> float:
        name, rate, _ = run.name.split("@")
        return float(rate) if name in ("03-no-recursion", "04-positions") else -float(rate)

    monkeypatch.setattr(ladder, "train", train)
    monkeypatch.setattr(ladder, "best_validation", best_validation)
    rates, runs = ladder.train_all(SimpleNamespace(rates=["1e-3", "2e-3"], seeds=[1, 2, 3]))
    assert {name for name, rate in rates.items() if rate == "2e-3"} == {"03-no-recursion", "04-positions"}
    assert [run.name for run in runs["04-positions"]] == [f"04-positions@2e-3@{seed}" for seed in (1, 2, 3)]
    assert trained[1:] == [
        (tuple(name for name in ladder.CHANGES if rates[name] == "1e-3"), ("1e-3",), (2, 3)),
        (("03-no-recursion", "04-positions"), ("2e-3",), (2, 3)),
    ]


def test_the_best_validation_of_a_log_counts(benchmark: Callable[[str], Any], tmp_path: Path) -> None:
    lines = [
        '{"kind": "train", "loss": 1.0}',
        '{"kind": "validation", "bleu": 7.5}',
        '{"kind": "validation", "bleu": 6.0}',
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    assert benchmark("ladder").best_validation(tmp_path) == 7.5
