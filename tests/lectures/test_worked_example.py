"""The lecture's worked example, `inspect lecture-example`, computed again in NumPy without the model's code."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray
from typer.testing import CliRunner

from sightline.cli.app import app
from sightline.inspection.lecture_example import (
    DEFAULT,
    SENTENCES,
    WORDS,
    Pair,
    Settings,
    lecture_model,
    slide_weights,
    train,
)
from sightline.inspection.lecture_steps import lecture_example

Array = NDArray[np.float64]
SOURCE, GIVEN, LABELS = [5, 8, 9], [2, 6, 3], [6, 3, 4]
D = 6


def inspect(*arguments: Any) -> str:
    result = CliRunner().invoke(app, ["inspect", "lecture-example", *map(str, arguments)], env={"COLUMNS": "200"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


# --- by hand ----------------------------------------------------------------------------------------------------------


def softmax(scores: Array) -> Array:
    powers = np.exp(scores)
    return powers / powers.sum(1, keepdims=True)


def positions(count: int) -> Array:
    table = np.zeros((count, D))
    for pos in range(count):
        for i in range(3):
            table[pos, 2 * i] = math.sin(pos / 10000 ** (2 * i / D))
            table[pos, 2 * i + 1] = math.cos(pos / 10000 ** (2 * i / D))
    return table


class ByHand:
    """Every matrix of the example in order, as (step, name, numbers)."""

    def __init__(self, weights: dict[str, Array], settings: Settings) -> None:
        self.weights, self.settings, self.found = weights, settings, list[tuple[str, str, Array]]()
        self.axis = 0 if settings.normalize == "columns" else 1
        self.loss = self._forward()

    def note(self, step: str, **results: Array) -> None:
        self.found += [(step, name, numbers) for name, numbers in results.items()]

    def attention(
        self, steps: tuple[str, str], block: str, x: Array, memory: Array, mask: Array | None = None
    ) -> Array:
        w, heads = self.weights, self.settings.heads
        q, k, v = (
            each @ w[f"{block}.W_{letter}"] + w.get(f"{block}.b_{letter}", 0.0)
            for letter, each in (("Q", x), ("K", memory), ("V", memory))
        )
        self.note(steps[0], Q=q, K=k, V=v)
        contexts, width = [], D // heads
        parts = [slice(n * width, (n + 1) * width) for n in range(heads)]
        for part in parts:
            self.note(steps[0], QK=q[:, part] @ k[:, part].T, S=q[:, part] @ k[:, part].T / math.sqrt(width))
        for part in parts:
            scores = q[:, part] @ k[:, part].T / math.sqrt(width)
            if mask is not None:
                scores = scores + mask
            contexts.append(softmax(scores) @ v[:, part])
            self.note(steps[1], A=softmax(scores), Z=contexts[-1])
        joined = np.concatenate(contexts, 1)
        if f"{block}.W_O" not in w:
            return joined
        self.note(steps[1], C=joined, O=joined @ w[f"{block}.W_O"] + w.get(f"{block}.b_O", 0.0))
        return joined @ w[f"{block}.W_O"] + w.get(f"{block}.b_O", 0.0)

    def add_and_norm(self, step: str, x: Array, added: Array) -> Array:
        total = x + added
        mean = total.mean(self.axis, keepdims=True)
        deviation = np.sqrt(((total - mean) ** 2).mean(self.axis, keepdims=True) + 1e-5)
        normed = (total - mean) / deviation
        self.note(step, R=total, μ=mean.ravel(), σ=deviation.ravel(), N=normed)
        return normed

    def feed_forward(self, steps: tuple[str, str], side: str, x: Array) -> Array:
        w1, b1, w2, b2 = (self.weights[f"{side}.{name}"] for name in ("W_1", "b_1", "W_2", "b_2"))
        inner = x @ w1 + b1
        hidden = inner * (inner > 0)
        self.note(steps[0], F=inner, G=hidden)
        self.note(steps[1], H=hidden @ w2 + b2)
        return hidden @ w2 + b2

    def embed(self, step: str, tokens: list[int]) -> Array:
        rows = self.weights["embedding"][tokens]
        self.note(step, embedding=rows)
        return rows * (math.sqrt(D) if self.settings.scale_embeddings else 1.0)

    def _forward(self) -> float:
        source = self.embed("4", SOURCE)
        self.note("5", PE=positions(3))
        x = source + positions(3)
        self.note("6", X=x)
        normed = self.add_and_norm("8", x, self.attention(("7", "7"), "encoder", x, x))
        memory = self.add_and_norm("11", normed, self.feed_forward(("9", "10"), "encoder", normed))
        y = self.embed("decoder-1", GIVEN) + positions(3)
        self.note("decoder-1", PE=positions(3), Y=y)
        mask = np.array([[0, -np.inf, -np.inf], [0, 0, -np.inf], [0, 0, 0]])
        self.note("decoder-3", M=mask)
        after = self.attention(("decoder-2", "decoder-3"), "decoder.self", y, y, mask)
        first = self.add_and_norm("decoder-4", y, after)
        both = ("decoder-6", "decoder-6")
        second = self.add_and_norm("decoder-6", first, self.attention(both, "decoder.cross", first, memory))
        features = self.add_and_norm("decoder-6", second, self.feed_forward(both, "decoder", second))
        logits = features @ self.weights["linear.W"] + self.weights.get("linear.b", 0.0)
        probabilities = softmax(logits)
        self.note("decoder-5", L=logits, P=probabilities)
        losses = -np.log(probabilities[range(3), LABELS])
        self.note("loss", losses=losses, loss=losses.mean())
        return float(losses.mean())


def gradient(weights: dict[str, Array], settings: Settings, name: str, shift: float = 1e-5) -> Array:
    """Central differences of the loss."""
    slopes = np.zeros_like(weights[name])
    for cell in np.ndindex(slopes.shape):
        sides = []
        for sign in (1, -1):
            moved = {**weights, name: weights[name].copy()}
            moved[name][cell] += sign * shift
            sides.append(ByHand(moved, settings).loss)
        slopes[cell] = (sides[0] - sides[1]) / (2 * shift)
    return slopes


def matrices(settings: Settings, given: dict[str, Array] | None = None) -> dict[str, Array]:
    return {name: each.double().numpy().copy() for name, each in slide_weights(lecture_model(settings, given)).items()}


def shown(example: Any) -> dict[tuple[str, str], list[Array]]:
    """The results of the command by step and name; several of one name in order."""
    found: dict[tuple[str, str], list[Array]] = {}
    for step in example.steps:
        for result in step.results:
            if result.values is not None:
                name = result.name.partition(",")[0].replace("Q Kᵀ", "QK")
                found.setdefault((step.key, name), []).append(np.asarray(result.values, dtype=np.float64))
    return found


SETTINGS = {
    "slides": Settings(),
    "columns": Settings(normalize="columns"),
    "two heads": Settings(heads=2),
    "biases": Settings(biases=True),
    "scaled": Settings(scale_embeddings=True),
    "all": Settings(heads=3, biases=True, scale_embeddings=True, normalize="columns"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_every_matrix_and_the_loss_equal_the_computation_by_hand(name: str) -> None:
    settings = SETTINGS[name]
    expected = ByHand(matrices(settings), settings)
    found = shown(lecture_example(settings=settings))
    for step, result, numbers in expected.found:
        ours = found[step, result].pop(0)
        np.testing.assert_allclose(ours, numbers, rtol=0, atol=2e-5, err_msg=f"{step} {result}")
    assert len(expected.found) > 50


@pytest.mark.parametrize("name", ["slides", "columns", "all"])
def test_the_gradient_the_new_matrix_and_the_loss_after_the_step_equal_those_by_hand(name: str) -> None:
    settings = SETTINGS[name]
    weights = matrices(settings)
    gradients = {each: gradient(weights, settings, each) for each in weights}
    found = shown(lecture_example(settings=settings, every=True))
    for each, slopes in gradients.items():
        np.testing.assert_allclose(found["update", f"gradient of {each}"][0], slopes, atol=1e-4, err_msg=each)
        np.testing.assert_allclose(found["update", f"new {each}"][0], weights[each] - 0.1 * slopes, atol=1e-5)
    norms = found["update", "every weight"][0]
    np.testing.assert_allclose(norms[:, 0], [np.linalg.norm(each) for each in gradients.values()], atol=1e-3)
    after = ByHand({each: weights[each] - 0.1 * slopes for each, slopes in gradients.items()}, settings).loss
    assert found["update", "loss after the step"][0] == pytest.approx(after, abs=1e-3)
    assert after < ByHand(weights, settings).loss


# --- what the slides say ----------------------------------------------------------------------------------------------


def test_eleven_words_and_the_ids_of_the_lecture() -> None:
    assert len(WORDS) == 11 and {"<s>", "</s>"} < set(WORDS)
    assert [WORDS.index(word) for word in DEFAULT.source] == SOURCE
    assert [WORDS.index(word) for word in DEFAULT.decoder_input] == GIVEN
    assert [WORDS.index(word) for word in DEFAULT.labels] == LABELS
    used = {word for source, target in SENTENCES for word in (*source.split(), *target.split())}
    assert used == {word for word in WORDS if not word.startswith("<")}


def test_headings_are_the_steps_of_the_lecture() -> None:
    keys = [step.key for step in lecture_example().steps]
    encoder, decoder = [str(n) for n in range(1, 12)], [f"decoder-{n}" for n in (1, 2, 3, 4, 6, 5)]
    assert keys == [*encoder, *decoder, "loss", "update"]
    printed = inspect()
    assert "Encoder (7) Self-attention" in printed and "Decoder (5) Linear layer to 11 words and softmax" in printed


def test_all_33_probabilities_are_printed() -> None:
    printed = inspect("--digits", 6)
    probabilities = shown(lecture_example())["decoder-5", "P"][0]
    assert probabilities.shape == (3, 11)
    for probability in probabilities.ravel():
        assert f"{probability:.6f}" in printed


def test_there_is_one_table_no_bias_in_attention_and_no_output_matrix_in_the_encoder() -> None:
    weights = matrices(Settings())
    assert weights["embedding"].shape == (11, 6)
    assert not [name for name in weights if "embedding" in name and name != "embedding"]
    assert not [name for name in weights if name.split(".")[-1] in ("b_Q", "b_K", "b_V", "b_O", "b")]
    assert "encoder.W_O" not in weights and "decoder.self.W_O" in weights
    tenths = np.concatenate([each.ravel() for each in weights.values()]) * 10
    np.testing.assert_allclose(tenths, tenths.round(), atol=1e-5)


# --- options ----------------------------------------------------------------------------------------------------------


def test_matrices_of_ones_own_slides(tmp_path: Path) -> None:
    generator = np.random.default_rng(5)
    names = {"embedding": (11, 6), "encoder.W_Q": (6, 6), "encoder.W_1": (6, 4), "linear.W": (6, 11)}
    given = {name: generator.normal(size=shape).round(2) for name, shape in names.items()}
    (tmp_path / "slides.yaml").write_text(yaml.safe_dump({name: each.tolist() for name, each in given.items()}))
    inspect("--weights", tmp_path / "slides.yaml", "--json", tmp_path / "numbers.json")
    weights = matrices(Settings(), given)
    for name, each in given.items():
        np.testing.assert_allclose(weights[name], each, atol=1e-6)
    steps = json.loads((tmp_path / "numbers.json").read_text())["steps"]
    loss = next(step for step in steps if step["step"].startswith("Loss"))["results"][1]["values"]
    assert loss == pytest.approx(ByHand(weights, Settings()).loss, abs=1e-5)


def test_training_learns_the_data_set_and_shows_the_same_steps() -> None:
    model = lecture_model()
    losses = train(model)
    assert losses[0] > 1.5 and losses[-1] < 0.02
    example = lecture_example(trained=True, pair=Pair.of("time flies like"))
    assert [step.key for step in example.steps] == [step.key for step in lecture_example().steps]
    probabilities = shown(example)["decoder-5", "P"][0]
    assert [WORDS[int(row.argmax())] for row in probabilities] == ["a", "bird", "</s>"]
    weights = {name: each.double().numpy() for name, each in slide_weights(model).items()}
    assert ByHand(weights, Settings()).loss < 0.02


def test_stop_digits_and_other_words() -> None:
    printed = inspect("time flies", "like a bird", "--digits", 2, "--stop-at", 7)
    assert "[7, 8]" in printed and "Encoder (7)" in printed and "Encoder (8)" not in printed
    assert "decoder input <s> like a bird = [2, 9, 6, 10]" in printed
    assert "PE(1, 0) = sin(1 / 10000^(0/6)) = 0.84" in printed
    assert "Decoder (3)" in inspect("--stop-at", "decoder-3")


def test_both_axes_of_normalization_are_shown() -> None:
    found = shown(lecture_example(settings=Settings(normalize="columns")))
    for step in ("8", "11", "decoder-4"):
        normed, by_token = found[step, "N"][0], found[step, "N per token"][0]
        np.testing.assert_allclose(normed.mean(0), 0, atol=1e-5)
        np.testing.assert_allclose(by_token.mean(1), 0, atol=1e-5)
        np.testing.assert_allclose(found[step, "difference"][0], normed - by_token, atol=1e-6)
    by_token = ByHand(matrices(Settings()), Settings()).loss
    by_column = ByHand(matrices(Settings()), Settings(normalize="columns")).loss
    assert found["loss", "difference"][0] == pytest.approx(by_column - by_token, abs=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a zebra", "a bird"], "'zebra' is not in the vocabulary of the example"),
        (["a bird"], "no sentence of the example begins with 'a bird'; give a TARGET"),
        (["--heads", "4"], "--heads 4 does not divide the width, 6"),
        (["--stop-at", "12"], "--stop-at 12: there is no such step"),
        (["--matrix", "W_Q"], "--matrix W_Q: there is no such matrix"),
        (["--normalize", "rows"], "--normalize rows: use tokens, columns"),
    ],
)
def test_wrong_options_are_reported(arguments: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        inspect(*arguments)


def test_the_command_has_help_of_its_own() -> None:
    printed = inspect("--help")
    for option in ("--weights", "--digits", "--stop-at", "--train", "--all", "--normalize", "--heads", "--biases"):
        assert option in printed
