"""Every task from a recipe file to a score: training, resuming, prediction and evaluation."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file

import sightline
from sightline.cli.train import print_dry_run
from sightline.evaluation.test_set import from_files
from sightline.recipe.sources import TsvSource
from sightline.run import Run
from sightline.training.dry_run import dry_run
from sightline.training.resolve import open_recipe
from task_cases import CASES, FILES, NEURAL, write
from watched_runs import Killed, Silent, own_cache, pull_the_plug, records


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Stores are built once for all tests here."""
    with own_cache(tmp_path_factory.mktemp("cache")) as folder:
        yield folder


@pytest.fixture(scope="module")
def trained(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The run folder of a case, its recipe in the folder above."""
    done: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in done:
            folder = tmp_path_factory.mktemp("task")
            done[name] = sightline.train(write(folder, CASES[name]), out=folder / "run", display=Silent()).folder
        return done[name]

    return get


@pytest.mark.parametrize("name", NEURAL)
def test_a_killed_and_resumed_training_equals_an_uninterrupted_one(
    name: str, trained: Callable[[str], Path], tmp_path: Path
) -> None:
    whole, run = trained(name), tmp_path / "run"
    with pytest.raises(Killed):
        sightline.train(whole.parent / "recipe.yaml", out=run, display=Silent({3: pull_the_plug}))
    display = Silent()
    sightline.train(whole.parent / "recipe.yaml", out=run, resume=True, display=display)
    assert any(note.startswith("resumed at step 2,") for note in display.notes)
    assert (run / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert records(run) == records(whole)


@pytest.mark.parametrize("name", ["language model, lstm", "language model, gru, accumulated"])
def test_a_carried_state_is_part_of_a_checkpoint(name: str, trained: Callable[[str], Path], tmp_path: Path) -> None:
    whole, run = trained(name), tmp_path / "run"
    with pytest.raises(Killed):
        sightline.train(whole.parent / "recipe.yaml", out=run, display=Silent({3: pull_the_plug}))
    progress = json.loads((run / "checkpoints" / "step-00000002" / "progress.json").read_text())
    assert progress["epoch"] == 0
    assert progress["batch"] > 0
    tensors = load_file(run / "checkpoints" / "step-00000002" / "optimizer.safetensors")
    carried = {key: tensor for key, tensor in tensors.items() if key.endswith("/carried")}
    assert sorted(carried) == ["0.0/carried", "0.1/carried" if "lstm" in name else "1.0/carried"]
    assert all(tensor.abs().max() > 0 for tensor in carried.values())


@pytest.mark.parametrize("name", NEURAL)
def test_validations_are_finite_and_have_samples(name: str, trained: Callable[[str], Path]) -> None:
    run = trained(name)
    validations = [record for record in records(run) if record["kind"] == "validation"]
    assert [record["step"] for record in validations] == [2, 4]
    for record in validations:
        assert record["perplexity"] == pytest.approx(math.exp(record["loss"]))
        (sample,) = record["samples"]
        assert sample["source"]
        if "language model" in name:
            assert sample["reference"].startswith(sample["source"])
        elif "tagger" in name:
            assert len(sample["output"].split(" ")) == len(sample["source"].split(" "))
        if CASES[name]["training"].get("stopping"):
            assert math.isfinite(record[CASES[name]["evaluation"]["metrics"][0]])
    assert all(record["flops"] > 0 for record in records(run))


def answer_fits(run: Run, text: str, answer: str) -> bool:
    task = run.recipe.task
    if not text:
        return answer == ""  # in every task
    if task == "tagging":
        words, labels = ([part for part in line.split(" ") if part] for line in (text, answer))
        return len(labels) == len(words) and set(labels) <= {"DET", "NOUN", "VERB", "PUNCT"}
    if task == "classification":
        return answer in ("one thing", "that thing")
    return task != "language-model" or answer.startswith(" ".join(text.split()))  # a prompt is shown as given


@pytest.mark.parametrize("name", CASES)
def test_a_run_predicts_and_is_scored_by_every_metric_of_its_task(name: str, trained: Callable[[str], Path]) -> None:
    run = Run.load(trained(name), device="cpu")
    texts = ["the cat sat .", "a dog", "", "the  naïve 🦉 zzz"]
    answers = run.predict(texts)
    assert all(answer_fits(run, text, answer) for text, answer in zip(texts, answers, strict=True)), answers
    alone = [run.predict([text])[0] for text in texts]
    assert answers == alone
    for on in ("other", "validation"):
        report = run.evaluate(on)
        assert len(report.scores) == len(run.recipe.evaluation.metrics)
        assert all(math.isfinite(score.value) for score in report.scores)
        assert len(report.outputs) == (0 if run.recipe.task == "language-model" else report.sentences)


@pytest.mark.parametrize("name", ["decoder alone, lstm", "decoder alone, transformer", "decoder alone, window"])
def test_validation_loss_and_perplexity_of_evaluation_agree(name: str, trained: Callable[[str], Path]) -> None:
    """One is computed as in training, source and target in one sequence, the other as in search."""
    run = trained(name)
    best = min((record for record in records(run) if record["kind"] == "validation"), key=lambda each: each["loss"])
    loaded = Run.load(run, device="cpu")
    scores = {score.name: score.value for score in loaded.evaluate("validation").scores}
    if loaded.recipe.training.stopping.monitor == "loss":
        assert scores["perplexity"] == pytest.approx(best["perplexity"], rel=1e-4)
    else:
        candidates = [record["perplexity"] for record in records(run) if record["kind"] == "validation"]
        assert any(scores["perplexity"] == pytest.approx(value, rel=1e-4) for value in candidates)


def test_bits_per_character_do_not_depend_on_the_tokenizer(trained: Callable[[str], Path]) -> None:
    run = trained("language model, gru, accumulated")
    encode = Run.load(run, device="cpu").vocabulary.target.encode
    texts = [line.rstrip("\n") for line in FILES["language-model"][::7]]
    tokens = sum(len(encode(text)) + 1 for text in texts)
    for record in records(run):
        if record["kind"] == "validation":
            bits = record["loss"] * tokens / math.log(2)
            characters = bits / record["bits-per-character"]
            assert characters == pytest.approx(sum(len(text) + 1 for text in texts), rel=1e-6)  # each with its end


def test_bits_per_character_of_training_and_evaluation_agree(trained: Callable[[str], Path]) -> None:
    run = trained("language model, gru, accumulated")
    scores = {score.name: score.value for score in Run.load(run, device="cpu").evaluate("validation").scores}
    found = [record["bits-per-character"] for record in records(run) if record["kind"] == "validation"]
    assert any(scores["bits/char"] == pytest.approx(value, rel=1e-4) for value in found), (scores, found)


def test_n_gram_models_score_the_same_after_loading(trained: Callable[[str], Path]) -> None:
    run = trained("language model, counted")
    (record,) = records(run)
    scores = {score.name: score.value for score in Run.load(run, device="cpu").evaluate("validation").scores}
    assert scores["perplexity"] == pytest.approx(record["perplexity"], rel=1e-6)
    again = sightline.train(run.parent / "recipe.yaml", out=run, resume=True, display=Silent()).folder
    assert records(again)[-1] == record


def test_a_classifier_has_nbest_labels(trained: Callable[[str], Path]) -> None:
    run = Run.load(trained("classifier, lstm"), device="cpu")
    (guesses,) = run.predict_nbest(["the cat"], run.options(nbest=5))
    assert sorted(guess.text for guess in guesses) == ["one thing", "that thing"]
    assert sum(math.exp(guess.score) for guess in guesses) == pytest.approx(1.0)
    assert guesses[0].score >= guesses[1].score


@pytest.mark.parametrize("name", ["classifier, lstm", "tagger, lstm", "language model, lstm"])
def test_prefixes_are_refused_by_tasks_without_them(name: str, trained: Callable[[str], Path]) -> None:
    run = Run.load(trained(name), device="cpu")
    with pytest.raises(ValueError, match="prefixes"):
        run.predict_nbest(["the cat"], prefixes=["a"])


@pytest.mark.parametrize("name", ["decoder alone, transformer", "classifier, transformer", "tagger, transformer"])
def test_a_text_longer_than_the_learned_positions_is_named(name: str, trained: Callable[[str], Path]) -> None:
    run = Run.load(trained(name), device="cpu")
    longest = run.task.longest_source()
    assert longest is not None
    apart = " " if name.startswith("decoder") else ""  # for BPE an unknown word is one piece
    just, past = (apart.join("🦉" * count) for count in (longest, longest + 1))
    assert run.predict([just])
    unit = "sentence" if name.startswith("tagger") else "line"  # a sentence of a tagged file has many lines
    with pytest.raises(ValueError, match=rf"{unit} 2 has \d+ tokens and this model takes {longest} "):
        run.predict(["the cat", past])


@pytest.mark.parametrize("name", NEURAL)
def test_a_dry_run_describes_the_training(name: str, tmp_path: Path) -> None:
    recipe, _ = open_recipe(write(tmp_path, CASES[name]))
    found = dry_run(recipe)
    assert found.step is not None
    assert math.isfinite(found.step.loss)
    assert 0.0 <= found.step.waste < 1.0
    assert sum(found.parts.values()) == found.parameters > 0  # a table that is shared counts once
    assert sum(count for part, count in found.trained.items() if part) == found.trained[""]


def test_a_dry_run_shows_shared_parameters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = open_recipe(write(tmp_path, CASES["decoder alone, transformer"]))[0]
    found = dry_run(recipe)
    shared = recipe.model.width * found.target_vocabulary
    assert found.shared["output"] == shared
    print_dry_run(found)
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("  output "))
    assert line.endswith(f"(and {shared:,} shared with a part above)")


def test_a_dry_run_of_an_n_gram_model_has_no_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, CASES["language model, counted"])
    before = sorted(tmp_path.iterdir())
    found = dry_run(open_recipe(path)[0])
    assert sorted(tmp_path.iterdir()) == before
    texts = FILES["language-model"]
    assert found.step is None and found.examples == len(texts)
    print_dry_run(found)
    shown = capsys.readouterr().out
    counted = f"{sum(map(len, texts))} tokens of text, end marks included, counted once in n-grams of up to 3 tokens"
    assert f"{len(texts)} (read {len(texts)}, kept {len(texts)}" in shown and counted in shown
    assert f"{found.target_vocabulary} target" in shown and "first step" not in shown


def test_training_an_n_gram_model_reports_counts(tmp_path: Path) -> None:
    display = Silent()
    sightline.train(write(tmp_path, CASES["language model, counted"]), out=tmp_path / "run", display=display)
    texts = FILES["language-model"]
    assert display.notes[0].startswith("by default, ")
    assert display.notes[1] == f"{len(texts)} training and {len(texts[::7])} validation examples"
    assert display.notes[2].startswith("vocabulary ")
    assert display.notes[3].startswith(f"{sum(map(len, texts))} tokens of text, end marks included, counted once")


@pytest.mark.parametrize(
    ("name", "long", "match"),
    [
        ("decoder alone, transformer", "ab " * 20 + "\t" + "ab " * 20 + "\n", r"its pair has \d+ tokens and two marks"),
        ("classifier, transformer", "c" * 33 + "\tone thing\n", r"its source has 33 tokens and two marks"),
        ("tagger, transformer", "c" * 34 + "\tNOUN\n", r"its source has 34 tokens and an end mark"),
    ],
)
def test_too_long_validation_texts_are_refused_before_training(
    name: str, long: str, match: str, tmp_path: Path
) -> None:
    recipe = write(tmp_path, CASES[name])
    with (tmp_path / "valid.txt").open("a", encoding="utf-8") as file:
        file.write(long)
    with pytest.raises(
        ValueError, match=rf"data\.validation, example \d+: {match}, more than positions\.max_positions"
    ):
        sightline.train(recipe, out=tmp_path / "run", display=Silent())


def test_a_too_large_minimum_length_is_refused_before_training(tmp_path: Path) -> None:
    recipe = write(tmp_path, CASES["decoder alone, transformer"])
    changes = ["decoding.min_length=60", "decoding.max_length=70"]
    with pytest.raises(ValueError, match=r"its source with decoding\.min_length \(60\) has \d+ tokens and two marks"):
        sightline.train(recipe, changes, out=tmp_path / "run", display=Silent())


# --- refused texts ----------------------------------------------------------------------------------------------


def test_too_little_text_is_refused_before_training(tmp_path: Path) -> None:
    recipe = write(tmp_path, CASES["language model, lstm"])
    (tmp_path / "train.txt").write_text("cat .\n")
    with pytest.raises(ValueError, match=r"6 tokens of text are too few for 3 rows; lower training\.batches\.tokens"):
        sightline.train(recipe, out=tmp_path / "run", display=Silent())


def test_training_lines_with_unequal_words_and_tags_are_named(tmp_path: Path) -> None:
    recipe = write(tmp_path, CASES["tagger, lstm"])
    with (tmp_path / "train.txt").open("a") as file:
        file.write("the cat sat\tDET NOUN\n")
    with pytest.raises(ValueError, match=r"train\.txt, line 25: 2 labels \('DET NOUN'\) for 3 words \('the cat sat'\)"):
        sightline.train(recipe, out=tmp_path / "run", display=Silent())


@pytest.mark.parametrize("kind", ["tsv", "jsonl", "text", "pattern"])
def test_validation_lines_with_unequal_words_and_tags_are_named(kind: str, tmp_path: Path) -> None:
    recipe = CASES["tagger, lstm"]
    pairs = [("the cat sat .", "DET NOUN VERB PUNCT"), ("a  dog", "DET NOUN"), ("the hen", "DET")]
    contents = {
        "tsv": "".join(f"{words}\t{tags}\n" for words, tags in pairs),
        "jsonl": "".join(json.dumps({"source": words, "target": tags}) + "\n" for words, tags in pairs),
        "text": "".join(f"{words}\n" for words, _ in pairs),
        "pattern": "# a comment\n" + "".join(f"{words} = {tags}\n" for words, tags in pairs),
    }
    own = {
        "tsv": {"file": "held-out"},
        "jsonl": {"file": "held-out"},
        "text": {"source": "held-out", "target": "tags"},
        "pattern": {"file": "held-out", "pattern": "(?P<source>.*) = (?P<target>.*)", "skip": "^#"},
    }
    validation = {"kind": kind, "share": None, **own[kind]}
    path = write(tmp_path, {**recipe, "data": {**recipe["data"], "validation": validation}})
    (tmp_path / "held-out").write_text(contents[kind])
    (tmp_path / "tags").write_text("".join(f"{tags}\n" for _, tags in pairs))
    where = {"text": r"held-out and .*tags, line 2", "pattern": "held-out, line 3"}.get(kind, "held-out, line 2")
    message = (
        r"2 labels \('DET NOUN'\) for 3 words \('a  dog'\); give each word one label, and set both apart by single"
    )
    with pytest.raises(ValueError, match=rf"{where}: {message}"):
        sightline.train(path, out=tmp_path / "run", display=Silent())


def test_test_lines_with_unequal_words_and_tags_are_named(trained: Callable[[str], Path], tmp_path: Path) -> None:
    run = Run.load(trained("tagger, lstm"), device="cpu")
    (tmp_path / "test.tsv").write_text("the cat sat .\tDET NOUN VERB PUNCT\nthe hen\tDET\n")
    held_out = TsvSource(kind="tsv", file=str(tmp_path / "test.tsv"))
    data = run.recipe.data.model_copy(update={"tests": {"held-out": held_out}})
    run.recipe = run.recipe.model_copy(update={"data": data})
    with pytest.raises(ValueError, match=r"test\.tsv, line 2: 1 label \('DET'\) for 2 words"):
        run.evaluate("held-out")
    for name, text in (("words", "the cat\nthe hen\n"), ("labels", "DET NOUN\nDET\n")):
        (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=r"words and .*labels, line 2: 1 label \('DET'\) for 2 words"):
        from_files(tmp_path / "words", tmp_path / "labels", run.recipe)
