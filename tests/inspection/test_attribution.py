"""Attribution: completeness, agreement of methods, words, figures."""

from __future__ import annotations

import json
from itertools import starmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sightline.data.collate import classification_ids, language_model_ids, padded_batch, seq2seq_ids, tagging_ids
from sightline.data.sources import Example
from sightline.inspection.attribution import Attribution, AttributionInput, Method, TokenNames, attribute
from sightline.inspection.samples import example_batch, sample_batches
from sightline.layers.embedding import Embedding
from sightline.models.heads import Classifier, Tagger
from sightline.models.language_model import LanguageModel
from sightline.models.seq2seq import Seq2Seq
from sightline.plots.alignment import draw_attribution
from sightline.recipe.model import ModelConfig
from sightline.text.tokenizer import END
from untrained_runs import PAIRS, untrained

SIZE = 12
METHODS: tuple[Method, ...] = ("input-gradient", "integrated-gradients", "occlusion")


class Copier(nn.Module):
    """Copies the source: ŷ_t = softmax(8 E x_t)."""

    def __init__(self, *, backwards: bool = False) -> None:
        super().__init__()
        self.source_embedding, self.target_embedding = Embedding(SIZE, SIZE), Embedding(SIZE, SIZE)
        self.backwards = backwards
        for embedding in (self.source_embedding, self.target_embedding):
            embedding.weight.data = torch.eye(SIZE) / SIZE**0.5

    def forward(self, source: Tensor, source_layout: Any, given: Tensor, layout: Any) -> Tensor:
        x, y = self.source_embedding(source), self.target_embedding(given)
        x = x[:, :-1].flip(1) if self.backwards else x
        return nn.functional.pad(x, (0, 0, 0, y.shape[1]))[:, : y.shape[1]] + 0 * y

    def logits(self, features: Tensor) -> Tensor:
        return 8 * features


def question(source: list[int], target: list[int]) -> AttributionInput:
    return AttributionInput.of(padded_batch(seq2seq_ids([np.array(source)], [np.array(target)]), np.arange(1)))


def numbered(case: AttributionInput) -> TokenNames:
    reads, given = case.sizes
    outputs = [f"o{number}" for number in range(len(case.places))]
    return TokenNames([f"s{number}" for number in range(reads)], [f"t{number}" for number in range(given)], outputs)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("backwards", [False, True])
def test_copy_model_is_attributed_to_copied_token(method: Method, backwards: bool) -> None:
    words = [4, 7, 5, 9, 6]
    case = question(words, words[::-1] if backwards else words)
    found = attribute(Copier(backwards=backwards), case, numbered(case), method=method)
    copied = np.arange(len(words))[::-1] if backwards else np.arange(len(words))
    for answer, place in enumerate(copied):
        row = found.from_source[answer]
        assert row.argmax() == place
        assert row[place] > 0
        assert np.allclose(np.delete(row, place), 0, atol=1e-6)
    assert np.allclose(found.from_target, 0, atol=1e-6)
    own = found.shares()[0][np.arange(len(words)), copied]
    assert np.allclose(own, 1)


def test_integrated_gradients_of_copy_model_are_complete() -> None:
    case = question([4, 7], [4, 7])
    found = attribute(Copier(), case, numbered(case), steps=64)
    right = torch.log_softmax(torch.tensor([8.0] + [0.0] * (SIZE - 1)), 0)[0]
    change = float(right) + np.log(SIZE)  # at the baseline all words are equally likely
    assert found.from_source[0, 0] == pytest.approx(change, rel=1e-5)
    assert found.scores[0] == pytest.approx(float(right), rel=1e-5)


RECURRENT = {"kind": "recurrent", "cell": "gru", "layers": 2, "bidirectional": True}
WRITER = {"kind": "recurrent", "cell": "lstm", "layers": 1, "attention": {"kind": "additive"}, "input_feeding": True}
TRANSFORMER = {  # smooth, so that few steps approximate the integral
    "kind": "transformer",
    "layers": 2,
    "heads": 2,
    "feedforward": {"kind": "gelu"},
}


def built(kind: str) -> tuple[nn.Module, AttributionInput]:
    torch.manual_seed(2)

    def section(**parts: Any) -> ModelConfig:
        return ModelConfig.model_validate({"width": 8, "tie": "none", **parts})

    pieces = [str(number) for number in range(SIZE)]
    source, target = [np.array([4, 5, 6, 7])], [np.array([8, 9, 10])]
    if kind == "lm":
        model: nn.Module = LanguageModel(section(decoder=TRANSFORMER), SIZE)
        sides = language_model_ids([], [np.array([2, 4, 5, 6, 7, 8])])
    elif kind == "tagger":
        model, sides = Tagger(section(encoder=RECURRENT), pieces, SIZE), tagging_ids(source, [np.array([4, 0, 5, 6])])
    elif kind == "classifier":
        model = Classifier(section(encoder=TRANSFORMER, pooling={"kind": "mean"}), pieces, SIZE)
        sides = classification_ids(source, [np.array([5])])
    else:
        bodies = {"tied": (TRANSFORMER, TRANSFORMER), "lstm": (RECURRENT, WRITER)}[kind]
        recipe = section(encoder=bodies[0], decoder=bodies[1], tie="all" if kind == "tied" else "none")
        model, sides = Seq2Seq(recipe, SIZE, SIZE), seq2seq_ids(source, target)
    return model, AttributionInput.of(padded_batch(sides, np.arange(1)))


KINDS = ("tied", "lstm", "lm", "tagger", "classifier")


@pytest.mark.parametrize("kind", KINDS)
def test_integrated_gradients_are_complete(kind: str) -> None:
    """Σ a = f(x) − f(x') (Sundararajan et al. 2017, proposition 1)."""
    model, case = built(kind)
    found = attribute(model, case, numbered(case), steps=32)
    total = found.from_source.sum(1) + found.from_target.sum(1)
    assert np.abs(total).max() > 1e-3
    assert found.gaps is not None and np.abs(found.gaps).max() < 1e-4
    rough = attribute(model, case, numbered(case), steps=2)
    assert rough.gaps is not None and np.abs(found.gaps).max() <= np.abs(rough.gaps).max() + 1e-6


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", METHODS)
def test_later_target_tokens_have_no_attribution(kind: str, method: Method) -> None:
    model, case = built(kind)
    found = attribute(model, case, numbered(case), method=method, steps=4)
    assert found.from_source.shape == (len(case.places), case.sizes[0])
    assert np.allclose(np.triu(found.from_target, 1), 0, atol=1e-6)
    if case.decoder_input is not None:
        assert np.abs(np.tril(found.from_target)).max() > 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_log_probabilities_of_outputs(kind: str) -> None:
    model, case = built(kind)
    every = [attribute(model, case, numbered(case), method=method, steps=4).scores for method in METHODS]
    np.testing.assert_allclose(every[0], every[1], atol=1e-5)
    np.testing.assert_allclose(every[0], every[2], atol=1e-5)
    assert (every[0] < 0).all()


def test_input_gradient_equals_finite_differences() -> None:
    model, case = built("lstm")
    model = model.double()
    found = attribute(model, case, numbered(case), method="input-gradient")
    table, token = model.source_embedding.weight, int(case.source[1])  # type: ignore[union-attr, index]
    with torch.no_grad():
        table[token] *= 1 + 1e-6  # type: ignore[index, operator]
    moved = attribute(model, case, numbered(case), method="input-gradient").scores
    np.testing.assert_allclose((moved - found.scores) / 1e-6, found.from_source[:, 1], rtol=1e-2, atol=1e-5)


def test_occluded_token_is_unk() -> None:
    model, case = built("lstm")
    masked = attribute(model, case, numbered(case), method="occlusion")
    unknown = attribute(model, question([4, 1, 6, 7], [8, 9, 10]), numbered(case), method="input-gradient").scores
    np.testing.assert_allclose(masked.from_source[:, 1], masked.scores - unknown, atol=1e-5)


def test_a_batch_of_two_is_refused() -> None:
    with pytest.raises(ValueError, match="this batch has 2"):
        AttributionInput.of(padded_batch(seq2seq_ids([np.array([4])] * 2, [np.array([5])] * 2), np.arange(2)))


def test_example_batch_has_no_length_limit() -> None:
    run = untrained("transformer")
    texts = {"long": ("Ein Hund bellt. " * 60, "A dog"), "no output": ("Ein Hund", ""), "no text": ("", "A dog")}
    found = {
        name: AttributionInput.of(example_batch(run.recipe, run.vocabulary, *pair)) for name, pair in texts.items()
    }
    assert found["long"].sizes[0] > 256
    assert found["no output"].labels.tolist() == [END]
    assert found["no text"].sizes[0] == 1
    assert len(sample_batches(run.recipe, run.vocabulary, [Example(*PAIRS[0]), *starmap(Example, texts.values())])) == 1
    with pytest.raises(ValueError, match="every example is empty on a side or has over 256 tokens"):
        sample_batches(run.recipe, run.vocabulary, list(starmap(Example, texts.values())))
    tagger = untrained("tagger")
    with pytest.raises(ValueError, match="an empty text has no words to look at"):
        example_batch(tagger.recipe, tagger.vocabulary, " ", "")


def test_attribution_restores_model_state() -> None:
    model, case = built("tied")
    model.train()
    attribute(model, case, numbered(case), method="occlusion")
    assert all(module.training for module in model.modules())
    assert all(not module._forward_hooks for module in model.modules())


PIECES = ["▁Ein", "▁Ap", "fel", "kuchen", ".", "</s>"]


def attribution() -> Attribution:
    draw = np.random.default_rng(1)
    return Attribution(
        "occlusion", PIECES, -draw.random(6), ["▁An", "▁apple"], draw.normal(size=(6, 2)), ["<s>", *PIECES[:-1]],
        np.tril(draw.normal(size=(6, 6))), np.zeros(6),
    )  # fmt: skip


def test_words_keep_the_sums_of_their_pieces() -> None:
    found = attribution()
    words = found.words()
    assert words.outputs == ["Ein", "Apfelkuchen", ".", "</s>"]
    assert words.from_source[1, 1] == pytest.approx(found.from_source[1:4, 1].sum())
    assert words.from_target[2, 2] == pytest.approx(found.from_target[4, 2:5].sum())
    assert words.from_source.sum() + words.from_target.sum() == pytest.approx(
        found.from_source.sum() + found.from_target.sum()
    )
    assert words.scores.sum() == pytest.approx(found.scores.sum())


def test_attribution_to_dict() -> None:
    found = attribution()
    data = json.loads(json.dumps(found.to_dict()))
    assert (data["outputs"], data["source"], data["target"]) == (found.outputs, found.source, found.target)
    for name in ("scores", "from_source", "from_target", "gaps"):
        np.testing.assert_allclose(data[name], getattr(found, name), atol=1e-6)


def test_shares_sum_to_one() -> None:
    grid = attribution().alignment()
    assert np.allclose(grid.weights.sum(1), 1, atol=1e-6)
    assert grid.source[:3] == ["▁An", "▁apple", "»<s>"]


def test_mismatched_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"source are \(1, 2\)"):
        Attribution("x", ["a"], np.zeros(1), ["b"], np.zeros((1, 2)), [], np.zeros((1, 0)))


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_an_attribution_is_drawn_in_any_script(tmp_path: Path, suffix: str) -> None:
    found = Attribution(
        "occlusion", ["猫", "नमस्ते", "🙂$x$"], np.zeros(3), ["Größe", "a$b$"], np.eye(3, 2) * 30, [], np.zeros((3, 0))
    )
    draw_attribution(found, tmp_path / f"grid.{suffix}", title="猫 → cat")
    assert (tmp_path / f"grid.{suffix}").stat().st_size > 3_000
    with pytest.raises(ValueError, match="nothing to draw"):
        draw_attribution(
            Attribution("x", [], *[np.zeros(0), [], np.zeros((0, 0))], [], np.zeros((0, 0))), tmp_path / "a.png"
        )


@pytest.mark.parametrize(
    ("values", "written"),
    [
        ([-0.03, -0.02, -0.16], ["−0.03", "−0.02", "−0.16"]),
        ([30.12, -8.04, 1.0], ["30.1", "−8.0"]),
        ([240.4, -31.2, 5.0], ["240", "−31"]),
    ],
)
def test_numbers_are_drawn_with_needed_digits(tmp_path: Path, values: list[float], written: list[str]) -> None:
    source, none = ["good", "movie", "</s>"], np.zeros((1, 0))
    found = Attribution("occlusion", ["0"], np.zeros(1), source, np.array([values]), [], none)
    draw_attribution(found, tmp_path / "a.svg")
    drawn = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert [f"<!-- {number} -->" in drawn for number in written] == [True] * len(written)
