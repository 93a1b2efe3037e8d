"""Language models of sentences, from <s> to </s>, against the formulas by hand."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from pydantic import ValidationError
from typer.testing import CliRunner

from sightline.cli.app import app
from sightline.decoding.next_words import next_words
from sightline.decoding.phrases import PhraseCutter
from sightline.models.language_model import LanguageModel
from sightline.models.ngram import NgramModel
from sightline.recipe import Recipe
from sightline.recipe.model import ModelConfig
from sightline.recipe.tokenizer import BpeTokenizer, CharacterTokenizer
from sightline.run import Run
from sightline.text.tokenizer import END, START, Tokenizer
from sightline.training.train import train

SENTENCES = ["I want to eat Chinese food", "I want to eat", "you want food", "I eat Chinese food", "you eat to want"]
HELD_OUT = ["I want food", "you want to eat Chinese food"]
BIGRAM = {"kind": "ngram", "order": 2, "smoothing": "none"}
RECURRENT = {"kind": "recurrent", "layers": 1, "attention": {"kind": "none"}, "dropout": 0.0}
DECODERS: dict[str, dict[str, Any]] = {
    "n-gram": {"kind": "ngram", "order": 3},
    "window": {"kind": "window", "size": 3, "dropout": 0.0},
    **{cell: {**RECURRENT, "cell": cell} for cell in ("elman", "gru", "lstm")},
    "transformer": {"kind": "transformer", "layers": 1, "heads": 2, "dropout": 0.0},
}


def recipe(decoder: dict[str, Any], **data: Any) -> dict[str, Any]:
    return {
        "task": "language-model",
        "data": {
            "context": "sentence",
            "train": [{"kind": "plain", "file": "train.txt"}],
            "validation": {"kind": "plain", "file": "valid.txt"},
            "tests": {"unseen": {"kind": "plain", "file": "unseen.txt"}},
            **data,
        },
        "tokenizer": {"kind": "word", "min_count": 1},
        "model": {"width": 8, "decoder": decoder, "tie": "none", "output_bias": False},
        "training": {
            "precision": "float32",
            "lr": 1e-2,
            "schedule": {"kind": "constant", "warmup": 0},
            "batches": {"tokens": 512},
            "limits": {"steps": 4},
            "samples": 1,
            "device": "cpu",
            "threads": 1,
        },
        "decoding": {"beam": 1, "max_length": 12},
        "evaluation": {"bootstrap": 10},
    }


def write(folder: Path, content: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "train.txt").write_text("".join(f"{line}\n" for line in SENTENCES))
    (folder / "valid.txt").write_text("".join(f"{line}\n" for line in HELD_OUT))
    (folder / "unseen.txt").write_text("I want food\nChinese I\n")
    (folder / "recipe.yaml").write_text(yaml.safe_dump(content))
    return folder / "recipe.yaml"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of each decoder, and the bigrams as they were counted."""
    folder = tmp_path_factory.mktemp("sentences")
    decoders = DECODERS | {"bigram": BIGRAM}
    return {
        name: train(write(folder / name, recipe(decoder)), out=folder / name / "run")
        for name, decoder in decoders.items()
    }


def invoke(*arguments: str, given: str | None = None) -> str:
    result = CliRunner().invoke(app, [*arguments, "--device", "cpu"], input=given, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


# --- sentences as examples ----------------------------------------------------------------------------------------


def test_the_first_input_is_s_and_the_last_label_is_end(tmp_path: Path) -> None:
    from sightline.data.preparation import prepare_data
    from sightline.recipe.loading import load_recipe
    from sightline.training.train import plan_for

    path = write(tmp_path, recipe(DECODERS["lstm"], folder=str(tmp_path)))
    prepared = prepare_data(load_recipe(path))
    plan = plan_for(prepared, torch.device("cpu"))
    target, seen = prepared.vocabulary.target, []
    for examples in plan.epoch(0):
        batch = plan.batch(0, examples)
        assert batch.source is None and batch.decoder_input is not None
        for inputs, labels in zip(batch.decoder_input.tolist(), batch.labels.tolist(), strict=True):
            length = labels.index(END)
            assert inputs[0] == START and inputs[1 : length + 1] == labels[:length] and not any(labels[length + 1 :])
            seen.append(target.decode(labels[:length]))
    assert sorted(seen) == sorted(SENTENCES)


@pytest.mark.parametrize("name", [*DECODERS, "bigram"])
def test_the_probability_of_a_sentence_is_a_product_over_its_words_and_its_end(
    runs: dict[str, Path], name: str
) -> None:
    """p(w_1 … w_n) = Π_t p(w_t | <s> w_1 … w_{t−1}) · p(</s> | <s> w_1 … w_n), one step at a time."""
    run = Run.load(runs[name], device="cpu")
    text, expected = HELD_OUT[1], []
    for tokens in itertools.accumulate([[START], *([number] for number in run.vocabulary.target.encode(text))]):
        features, _ = run.model.advance(
            torch.tensor([tokens]), run.model.begin(run.model.encode(torch.zeros(1, 1), None))
        )
        expected.append(run.model.logits(features)[0, -1].detach().double().log_softmax(-1))
    labels = [*run.vocabulary.target.encode(text), END]
    total = sum(float(step[label]) for step, label in zip(expected, labels, strict=True))
    (score,) = run.score([text])
    assert score.tokens == 7 and score.log_probability == pytest.approx(total, rel=1e-5)
    test = run.test_set("validation")
    report = run.evaluate(test)
    both = run.score(HELD_OUT)
    perplexity = math.exp(-sum(each.log_probability for each in both) / sum(each.tokens for each in both))
    assert report.scores[0].value == pytest.approx(perplexity, rel=1e-5)  # over words and </s>
    validation = json.loads((runs[name] / "metrics.jsonl").read_text().splitlines()[-1])
    assert validation["perplexity"] == pytest.approx(perplexity, rel=1e-4)


def test_a_sentence_does_not_depend_on_those_before_it(runs: dict[str, Path]) -> None:
    run = Run.load(runs["lstm"], device="cpu")
    ids = [[*run.vocabulary.target.encode(line), END] for line in HELD_OUT]
    alone = np.concatenate([run.text_losses(np.array(each)) for each in ids])
    np.testing.assert_allclose(run.text_losses(np.concatenate(ids)), alone, atol=1e-6)


@pytest.mark.parametrize("name", [*DECODERS, "bigram"])
def test_generation_starts_from_s_and_ends_at_the_end_or_the_limit(runs: dict[str, Path], name: str) -> None:
    run = Run.load(runs[name], device="cpu")
    outputs = run.continuations("", sample={"seed": 3}, nbest=40, max_length=5)
    lengths = [len(output.tokens) for output in outputs]
    assert max(lengths) <= 5 and min(lengths) < 5
    assert all(END not in output.tokens and START not in output.tokens for output in outputs)
    first = Counter(output.tokens[0] for output in outputs if output.tokens)
    allowed = {word.word for word in run.next_words("", 50)}
    assert {run.vocabulary.target.decode([number]) for number in first} <= allowed


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {"train": [{"kind": "plain", "file": "a", "document": "file"}]}}, "a file is no sentence"),
        ({"training": {"batches": {"carry": True}}}, "each sentence starts from the initial state"),
        ({"data": {"clean": {"max_ratio": 2}}}, "sentences have no other side"),
        ({"data": {"clean": {"deduplicate": "sources"}}}, "sentences have no source; set it to targets"),
    ],
)
def test_settings_that_sentences_do_not_have_are_refused(changes: dict[str, Any], message: str) -> None:
    from sightline.recipe.checks import check_trainable

    content = recipe(DECODERS["lstm"])
    for section, keys in changes.items():
        content[section] |= keys
    with pytest.raises(ValueError, match=message):
        check_trainable(Recipe.model_validate(content))


def test_other_tasks_have_no_sentences_of_their_own() -> None:
    content = recipe({**RECURRENT, "attention": {"kind": "dot"}}) | {"task": "seq2seq"}
    content["model"]["encoder"] = {"kind": "recurrent"}
    with pytest.raises(ValidationError, match=r"data\.context: sentence cannot be combined with another task than"):
        Recipe.model_validate(content)


def test_long_sentences_are_dropped_and_repeated_ones_if_asked(tmp_path: Path) -> None:
    clean = {"clean": {"max_tokens": 4, "deduplicate": "targets"}}
    path = write(tmp_path, recipe(DECODERS["window"], **clean))
    (tmp_path / "train.txt").write_text("".join(f"{line}\n" for line in [*SENTENCES, SENTENCES[2]]))
    run = train(path, out=tmp_path / "run")
    assert json.loads((run / "config.json").read_text())["training_text"] == {"examples": 4, "tokens": 15}


# --- counted bigrams ----------------------------------------------------------------------------------------------


def counted() -> tuple[NgramModel, list[str]]:
    words = ["<pad>", "<unk>", "<s>", "</s>", *sorted({word for line in SENTENCES for word in line.split()})]
    ids = [[words.index(word) for word in line.split()] for line in SENTENCES]
    return NgramModel.train(ids, order=2, vocabulary_size=len(words), start=2, end=3, smoothing="none"), words


def test_bigram_probabilities_are_relative_frequencies() -> None:
    """P(want | I) = count(I want) / count(I) = 2/3, worked out from the five sentences."""
    model, words = counted()

    def probability(history: str, word: str) -> float:
        return float(model.distribution([words.index(history)])[words.index(word)])

    assert probability("<s>", "I") == pytest.approx(3 / 5)
    assert probability("I", "want") == pytest.approx(2 / 3)
    assert probability("want", "to") == pytest.approx(2 / 4)
    assert probability("want", "</s>") == pytest.approx(1 / 4)
    assert probability("eat", "Chinese") == pytest.approx(2 / 4)
    assert probability("food", "</s>") == 1
    assert probability("food", "eat") == 0
    chain = [3 / 5, 2 / 3, 2 / 4, 2 / 3, 2 / 4, 1, 1]  # <s> I, I want, want to, to eat, eat Chinese, ... food </s>
    (logs,) = model.log_probabilities([[words.index(word) for word in SENTENCES[0].split()]])
    np.testing.assert_allclose(np.exp(logs), chain)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_counts_without_smoothing_are_those_of_a_dictionary(order: int) -> None:
    generator = np.random.default_rng(order)
    sequences = [generator.integers(4, 7, generator.integers(1, 9)).tolist() for _ in range(30)]
    model = NgramModel.train(sequences, order=order, vocabulary_size=7, start=2, end=3, smoothing="none")
    grams: Counter[tuple[int, ...]] = Counter()
    for inner in sequences:
        full = (2, *inner, 3)
        for last, length in itertools.product(range(1, len(full)), range(1, order + 1)):
            if last + 1 >= length:
                grams[full[last + 1 - length : last + 1]] += 1
    for scored in sequences[:5]:
        full = (2, *scored, 3)
        expected = []
        for t in range(1, len(full)):
            history = full[max(0, t - order + 1) : t]
            following = {v: grams[(*history, v)] for v in range(7)}
            expected.append(following[full[t]] / sum(following.values()))
            np.testing.assert_allclose(
                model.distribution(full[:t]), np.array([*following.values()]) / sum(following.values())
            )
        np.testing.assert_allclose(np.exp(model.log_probabilities([scored])[0]), expected)


def test_an_unseen_bigram_has_probability_zero_and_the_perplexity_is_infinite(runs: dict[str, Path]) -> None:
    run = Run.load(runs["bigram"], device="cpu")
    seen, unseen = run.score(["I want to eat", "Chinese I"])
    assert seen.log_probability == pytest.approx(math.log(3 / 5 * 2 / 3 * 2 / 4 * 2 / 3 * 1 / 4))
    assert unseen.log_probability == -math.inf and unseen.perplexity == math.inf


def test_an_infinite_perplexity_is_reported(runs: dict[str, Path], tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    shown = invoke("evaluate", str(runs["bigram"]), "--json", str(report))
    assert "perplexity inf [inf, inf]" in shown and "3 of 7 tokens have probability 0" in shown
    (score,) = json.loads(report.read_text(), parse_constant=pytest.fail)[0]["scores"]
    assert score["value"] == "Infinity"


def test_bigrams_are_drawn_by_their_counts(runs: dict[str, Path]) -> None:
    """Random bigrams (<s>, w), (w, x), ... until </s>, as often as they were counted."""
    run = Run.load(runs["bigram"], device="cpu")
    drawn: Counter[tuple[str, str]] = Counter()
    for output in run.continuations("", sample={"seed": 5}, nbest=3_000, max_length=40):
        words = ["<s>", *output.text.split(), "</s>"]
        drawn.update(itertools.pairwise(words))
    counts: Counter[tuple[str, str]] = Counter()
    for line in SENTENCES:
        counts.update(itertools.pairwise(["<s>", *line.split(), "</s>"]))
    assert set(drawn) == set(counts)
    for history in {first for first, _ in counts}:
        total = sum(count for (first, _), count in counts.items() if first == history)
        times = sum(count for (first, _), count in drawn.items() if first == history)
        for (first, word), count in counts.items():
            if first == history:
                share = count / total
                assert drawn[first, word] / times == pytest.approx(share, abs=4 * math.sqrt(share / times) + 1e-9)


# --- the next word ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*DECODERS, "bigram"])
def test_the_next_words_are_those_of_the_softmax(runs: dict[str, Path], name: str) -> None:
    run = Run.load(runs[name], device="cpu")
    tokens = [START, *run.vocabulary.target.encode("you want to")]
    features, _ = run.model.advance(torch.tensor([tokens]), run.model.begin(run.model.encode(torch.zeros(1, 1), None)))
    probabilities = run.model.logits(features)[0, -1].detach().softmax(-1)
    found = run.next_words("you want to", 4)
    names = run.vocabulary.target.pieces(range(run.vocabulary.target.size))
    best = [n for n in probabilities.argsort(descending=True).tolist() if n not in (0, START) and probabilities[n]][:4]
    assert [word.probability for word in found] == pytest.approx([float(probabilities[n]) for n in best], rel=1e-5)
    for word in found:
        number = next(n for n, piece in enumerate(names) if piece.lstrip("▁") == word.word)
        assert word.probability == pytest.approx(float(probabilities[number]), rel=1e-5)


def test_the_next_words_of_a_bigram_model_are_its_counts(runs: dict[str, Path]) -> None:
    found = Run.load(runs["bigram"], device="cpu").next_words("you want", 10)
    assert [word.word for word in found] == ["to", "</s>", "food"]
    assert [word.probability for word in found] == pytest.approx([2 / 4, 1 / 4, 1 / 4])


@pytest.mark.parametrize("section", [BpeTokenizer(size=24, min_count=1), CharacterTokenizer(spaces="keep")])
def test_a_word_of_several_pieces_has_the_product_of_their_probabilities(section: Any) -> None:
    """Σ over pieces of P(pieces) · P(no piece continues the word), by trying every sequence of up to five pieces."""
    tokenizer = Tokenizer.train(section, ["aba bab ab, ba"] * 3)
    torch.manual_seed(0)
    config = ModelConfig.model_validate({"width": 8, "decoder": {**RECURRENT, "cell": "elman"}, "tie": "none"})
    model = LanguageModel(config, tokenizer.size).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.8)
        model.output.bias[END] += 4.0  # so that words of over five pieces are rare
    prompt = tokenizer.encode("ab")
    pieces = tokenizer.pieces(range(tokenizer.size))

    def after(tokens: list[int]) -> list[float]:
        with torch.no_grad():
            features, _ = model.advance(torch.tensor([[START, *prompt, *tokens]]), model.begin_empty(1))
            return model.logits(features)[0, -1].double().softmax(-1).tolist()

    letters = [number for number, piece in enumerate(pieces) if number > END and piece[0] in "ab"]
    expected: Counter[str] = Counter()

    def extend(tokens: list[int], probability: float) -> None:
        row = after(tokens)
        if pieces[tokens[-1]] != "▁":
            word = "</s>" if tokens == [END] else tokenizer.decode(tokens).strip(" ")
            ends = pieces[tokens[-1]][-1] in "ab"
            expected[word] += probability * (1 - sum(row[n] for n in letters) if ends else 1)
            following = letters if ends else []
        else:
            following = [n for n in range(END + 1, tokenizer.size) if not pieces[n].startswith("▁")]
        for number in following if len(tokens) < 5 else []:
            extend([*tokens, number], probability * row[number])

    first = after([])
    share = 1 - sum(first[n] for n in letters)
    for number in range(tokenizer.size):
        if number not in (0, START, *letters):
            extend([number], first[number] / share)
    found = next_words(model, tokenizer, PhraseCutter(tokenizer).edges, prompt, 6)
    assert [word.word for word in found] == [word for word, _ in expected.most_common(6)]
    assert [word.probability for word in found] == pytest.approx([p for _, p in expected.most_common(6)], rel=1e-2)


def test_the_command_lists_the_next_words_of_a_prompt_or_of_lines(runs: dict[str, Path]) -> None:
    run = str(runs["bigram"])
    assert invoke("predict", run, "--prompt", "you want", "--next", "2") == "0.5000\tto\n0.2500\t</s>\n"
    lines = invoke("predict", run, "--next", "2", given="you want\n\nI\n").splitlines()
    assert lines == ["0.5000\tto\t0.2500\t</s>", "", "0.6667\twant\t0.3333\teat"]
    (record,) = map(json.loads, invoke("predict", run, "--next", "1", "--json", given="food\n").splitlines())
    assert record == {"text": "food", "next": [{"word": "</s>", "probability": 1.0}]}


@pytest.mark.parametrize("more", [["--sample"], ["--beam", "2"], ["--nbest", "2"], ["decoding.beam=2"]])
def test_next_words_exclude_options_of_a_search(runs: dict[str, Path], more: list[str]) -> None:
    command = ["predict", str(runs["lstm"]), "--prompt", "I", "--next", "2", *more]
    with pytest.raises(ValueError, match="--next lists words; leave one of them out"):
        CliRunner().invoke(app, command, catch_exceptions=False)


def test_an_infinite_perplexity_is_compared_without_a_test(runs: dict[str, Path]) -> None:
    for systems in (["bigram", "n-gram"], ["lstm", "bigram"]):
        shown = invoke("compare", *(str(runs[name]) for name in systems), "--on", "unseen")
        assert "inf" in shown and "no difference was tested" in shown.replace("\n", " ")
