"""Convolutional bodies against naive ones, written from the formulas: loops over places, one sentence, float64.

What layers of another width than the model's have beside them is in test_layer_widths.py, at which ratio ByteNet
unfolds a source in test_bytenet_ratio.py; what all owe to training and search, as every body does, in test_decoders.py,
test_language_models.py and test_label_models.py; what they cost in test_cost.py and test_task_costs.py.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import sightline
from sightline.layers.layout import Padded
from sightline.layers.tap import Tapped, on_taps
from sightline.models.convolutional.bytenet import fit_ratio
from sightline.models.convolutional.config import ConvolutionalConfig
from sightline.models.convolutional.convs2s import GatedBlock
from sightline.models.protocol import Memory
from sightline.models.seq2seq import Seq2Seq
from sightline.recipe import Recipe
from sightline.recipe.checks import check_trainable
from sightline.recipe.model import ModelConfig

WIDTH, END = 8, 3
SOURCES = [[5, 9, 4, 7, END], [6, END], [12, 8, 5, END]]
TARGETS = [[2, 7, 5, 11], [2, 4, 8, 8, 10, 6, 9], [2]]
EXACT = {"rtol": 0.0, "atol": 1e-10}  # float64, some layers of sums of tens of products
CONVOLUTIONAL = {"kind": "convolutional", "layers": 2, "positions": {"max_positions": 32}, "dropout": 0.0}
BYTENET = {"kind": "bytenet", "layers": 3, "dilations": [1, 2], "dropout": 0.0}


def padded(sequences: list[list[int]]) -> tuple[Tensor, Padded]:
    longest = max(map(len, sequences))
    rows = [sequence + [0] * (longest - len(sequence)) for sequence in sequences]
    return torch.tensor(rows), Padded.of([len(sequence) for sequence in sequences])


# --- the formulas --------------------------------------------------------------------------------------------------


def embed(table: Tensor, tokens: list[int]) -> list[Tensor]:
    return [table[token] * math.sqrt(WIDTH) for token in tokens]


def normalized(project: nn.Module) -> Tensor:
    """w = g · v / ‖v‖, row by row."""
    return torch.stack(
        [g * v / math.sqrt(float(v @ v)) for g, v in zip(project.length, project.direction, strict=True)]
    )


def convolve(x: list[Tensor], weight: Tensor, bias: Tensor, kernel: int, dilation: int, causal: bool) -> list[Tensor]:
    """y_t = b + Σ_j W_j x_{t + (j − k + 1) d} if causal, else t + (j − (k − 1)/2) d."""
    size, middle = len(x[0]), kernel - 1 if causal else (kernel - 1) // 2
    outputs = []
    for t in range(len(x)):
        y = bias.clone()
        for j in range(kernel):
            place = t + (j - middle) * dilation
            if 0 <= place < len(x):
                y = y + weight[:, j * size : (j + 1) * size] @ x[place]
        outputs.append(y)
    return outputs


def gated(h: list[Tensor], block: nn.Module, causal: bool) -> list[Tensor]:
    """√½ (a ⊗ σ(b) + h), [a ; b] = W ∗ h + bias."""
    project, kernel = block.convolution.project, block.convolution.kernel
    convolved = convolve(h, normalized(project), project.bias, kernel, 1, causal)
    half = len(h[0])
    return [(y[:half] / (1 + torch.exp(-y[half:])) + x) / math.sqrt(2) for x, y in zip(h, convolved, strict=True)]


def enter(body: nn.Module, vectors: list[Tensor]) -> list[Tensor]:
    """e_i = 0.1 x_i + p_i."""
    return [0.1 * x + body.embed_positions.positions.table[place] for place, x in enumerate(vectors)]


def mapped(vectors: list[Tensor], there: nn.Module, expected: int) -> list[Tensor]:
    """W x + b to the width that is wanted; what has it already stays as it is."""
    if len(vectors[0]) == expected:
        return vectors
    return [normalized(there.project) @ x + there.project.bias for x in vectors]


def channels_of(body: nn.Module) -> int:
    """Each layer has twice as many outputs as channels."""
    return len(body.layers[0].convolution.project.bias) // 2


def convolutional_encoder(body: nn.Module, vectors: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """z and e."""
    e = enter(body, vectors)
    h = mapped(e, body.input_projection, channels_of(body))
    for block in body.layers:
        h = gated(h, block, causal=False)
    return mapped(h, body.output_projection, WIDTH), e


def convolutional_decoder(
    body: nn.Module, vectors: list[Tensor], z: list[Tensor], e: list[Tensor]
) -> tuple[list[Tensor], list[list[list[float]]]]:
    """The features, and the weights of each layer at each place."""
    g, channels = enter(body, vectors), channels_of(body)
    h = mapped(g, body.input_projection, channels)
    weights: list[list[list[float]]] = []
    for block, attention in zip(body.layers, body.attentions, strict=True):
        h = gated(h, block, causal=True)
        weight, bias, after, layer = normalized(attention.project), attention.project.bias, [], []
        for h_i, g_i in zip(h, g, strict=True):
            d = weight @ h_i + bias + g_i
            scores = [math.exp(float(d @ z_j)) for z_j in z]
            alphas = [score / sum(scores) for score in scores]
            context = sum(alpha * (z_j + e_j) for alpha, z_j, e_j in zip(alphas, z, e, strict=True))
            (seen,) = mapped([len(z) * math.sqrt(1 / len(z)) * context], attention.output_projection, channels)
            after.append((h_i + seen) / math.sqrt(2))
            layer.append(alphas)
        h = after
        weights.append(layer)
    return mapped(h, body.output_projection, WIDTH), weights


def layer_norm(x: Tensor, norm: nn.Module) -> Tensor:
    mean = sum(x) / len(x)
    variance = sum((value - mean) ** 2 for value in x) / len(x)
    return (x - mean) / torch.sqrt(variance + 1e-5) * norm.weight + norm.bias


def dilated(x: list[Tensor], block: nn.Module, dilation: int, causal: bool) -> list[Tensor]:
    """x + W₂ r(C ∗ r(W₁ r(x))), r(x) = max(0, norm(x))."""

    def r(vector: Tensor, number: int) -> Tensor:
        return layer_norm(vector, block.norms[number]).clamp(min=0)

    inner = [r(block.input_projection.weight @ r(x_t, 0) + block.input_projection.bias, 1) for x_t in x]
    project = block.convolution.project
    convolved = convolve(inner, project.weight, project.bias, block.convolution.kernel, dilation, causal)
    outer = [block.output_projection.weight @ r(y, 2) + block.output_projection.bias for y in convolved]
    return [x_t + y for x_t, y in zip(x, outer, strict=True)]


def bytenet(body: nn.Module, vectors: list[Tensor], dilations: list[int], causal: bool) -> list[Tensor]:
    for number, block in enumerate(body.layers):
        vectors = dilated(vectors, block, dilations[number % len(dilations)], causal)
    return [layer_norm(x, body.norm) for x in vectors]


def bytenet_decoder(
    body: nn.Module, vectors: list[Tensor], z: list[Tensor], ratio: tuple[float, float], dilations: list[int]
) -> list[Tensor]:
    """Each step reads place t of t̂ = ⌈a S + b⌉, which is the state ⌊t / a⌋ or the last one; past them nothing."""
    places = math.ceil(ratio[0] * len(z) + ratio[1])
    entered = [
        x + body.source.weight @ z[min(math.floor(t / ratio[0]), len(z) - 1)] if t < places else x
        for t, x in enumerate(vectors)
    ]
    return bytenet(body, entered, dilations, causal=True)


# --- gated convolutions --------------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("channels", [(None, None), (12, 20), (20, 6), (None, 12), (12, WIDTH)], ids=str)
@pytest.mark.parametrize(("layers", "kernels"), [(1, (3, 3)), (2, (3, 3)), (3, (5, 2)), (2, (1, 4))])
def test_gated_convolutions_and_their_attention_are_their_formulas(
    build_model: Callable[..., Seq2Seq], layers: int, kernels: tuple[int, int], channels: tuple[int | None, int | None]
) -> None:
    own = {**CONVOLUTIONAL, "layers": layers}
    bodies = [own | {"kernel": kernel, "channels": wide} for kernel, wide in zip(kernels, channels, strict=True)]
    model = build_model(*bodies).double()
    taps: list[Tapped] = []
    with on_taps(model, taps.append, only=model.cross_attention_paths):
        result = model(*padded(SOURCES), *padded(TARGETS))
    weights = [tapped.tensor for tapped in taps if tapped.name.endswith(".weights")]
    assert len(weights) == layers
    torch.testing.assert_close(model(*padded(SOURCES), *padded(TARGETS)), result, **EXACT)  # the fused kernel
    for row, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        z, e = convolutional_encoder(model.encoder, embed(model.source_embedding.weight, source))
        expected, cross_attention = convolutional_decoder(
            model.decoder, embed(model.target_embedding.weight, target), z, e
        )
        torch.testing.assert_close(result[row, : len(target)], torch.stack(expected), **EXACT)
        for layer, look in zip(weights, cross_attention, strict=True):
            assert layer.shape[:2] == (3, 1)
            seen = layer[row, 0, : len(target), : len(source)]
            torch.testing.assert_close(seen, torch.tensor(look, dtype=torch.float64), **EXACT)


@torch.no_grad()
def test_states_of_other_encoders_are_scaled_by_a_tenth(build_model: Callable[..., Seq2Seq]) -> None:
    decoder = build_model(CONVOLUTIONAL, CONVOLUTIONAL).decoder
    states, x, layout = torch.randn(2, 5, WIDTH), torch.randn(2, 4, WIDTH), Padded.of([5, 3])
    memories = [
        Memory(states, layout),
        Memory(0.1 * states, layout, embeddings=torch.zeros(2, 5, WIDTH)),
        Memory(0.1 * states, layout, embeddings=torch.randn(2, 5, WIDTH)),
    ]
    result, zeros, other = (decoder.advance(x, decoder.begin(memory))[0] for memory in memories)
    torch.testing.assert_close(result, zeros)
    assert (result - other).abs().max() > 1e-3


@pytest.mark.parametrize("layers", [1, 3])
def test_encoder_gradients_are_divided_by_twice_the_attention_layers(
    build_model: Callable[..., Seq2Seq], layers: int
) -> None:
    """But not through its vectors; measured against differences of the loss itself."""
    decoder = build_model(CONVOLUTIONAL, {**CONVOLUTIONAL, "layers": layers}).decoder.double()
    states, vectors, x, pull = (torch.randn(2, count, WIDTH, dtype=torch.float64) for count in (5, 5, 4, 4))
    layout, step = Padded.of([5, 3]), 1e-5

    def loss(states: Tensor, vectors: Tensor) -> Tensor:
        return (decoder.advance(x, decoder.begin(Memory(states, layout, embeddings=vectors)))[0] * pull).sum()

    states.requires_grad_()
    vectors.requires_grad_()
    gradients = torch.autograd.grad(loss(states, vectors), [states, vectors])
    with torch.no_grad():
        along = torch.randn(2, 5, WIDTH, dtype=torch.float64)
        slopes = [
            (loss(states + step * along, vectors) - loss(states - step * along, vectors)) / (2 * step),
            (loss(states, vectors + step * along) - loss(states, vectors - step * along)) / (2 * step),
        ]
    result = [float((gradient * along).sum()) for gradient in gradients]
    assert result[0] == pytest.approx(float(slopes[0]) / (2 * layers), rel=1e-6)
    assert result[1] == pytest.approx(float(slopes[1]), rel=1e-6)


def test_the_gradients_of_gated_convolutions_are_those_of_their_values(build_model: Callable[..., Seq2Seq]) -> None:
    model = build_model({**CONVOLUTIONAL, "channels": 6}, {**CONVOLUTIONAL, "channels": 10}).double()
    layout = Padded.of([4, 2])
    x = torch.randn(2, 4, WIDTH, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: model.encoder(x, layout).states[layout.mask], [x])
    memory = Memory(torch.randn(2, 4, WIDTH, dtype=torch.float64), layout)
    assert torch.autograd.gradcheck(lambda x: model.decoder.advance(x, model.decoder.begin(memory))[0], [x])


@pytest.mark.parametrize("channels", [64, 192])
def test_deep_stacks_keep_the_variance_they_start_with(channels: int) -> None:
    """√½, √S and the first weights are chosen so that it neither grows nor fades: here over ten layers."""
    deep = {**CONVOLUTIONAL, "layers": 10, "channels": channels}
    model = Seq2Seq(ModelConfig.model_validate({"width": 64, "encoder": deep, "decoder": deep}), 99, 99).eval()
    tokens = torch.randint(4, 99, (8, 20))
    with torch.no_grad():
        memory = model.encode(tokens, Padded.of([20] * 8))
        features, _ = model.advance(tokens, model.begin(memory))
    entered = float(memory.embeddings.std())
    assert entered == pytest.approx(0.1 * math.sqrt(2), rel=0.1)  # words and positions
    assert 0.5 < float(memory.states.std()) / entered < 2
    # where all layers see the same context c, made of z + e, they add up to c / (√2 − 1): to √2 · 2.4 at most
    assert 0.5 < float(features.std()) / entered < 4


@pytest.mark.parametrize("dropout", [0.0, 0.75])
def test_weights_start_smaller_where_dropout_makes_their_inputs_larger(dropout: float) -> None:
    """Of variance 4 p / inputs for a share p that is kept (Gehring et al. 2017, §3.5)."""
    recipe = ConvolutionalConfig.model_validate({**CONVOLUTIONAL, "kernel": 4, "dropout": dropout})
    weight = GatedBlock(
        100, kernel=recipe.kernel, causal=True, dropout=recipe.dropout
    ).convolution.project.weight.detach()
    assert weight.shape == (200, 400)
    assert float(weight.std()) == pytest.approx(math.sqrt(4 * (1 - dropout) / 400), rel=0.02)  # of 80,000 draws


def test_inputs_longer_than_the_learned_positions_are_refused(build_model: Callable[..., Seq2Seq]) -> None:
    model = build_model(CONVOLUTIONAL, CONVOLUTIONAL)
    assert model.longest == 32
    with pytest.raises(ValueError, match="position 33 is past the 32 learned ones"):
        model(*padded([[5] * 33]), *padded([[2]]))
    with pytest.raises(ValueError, match="position 33 is past the 32 learned ones"):
        model(*padded([[5]]), *padded([[2] * 33]))


# --- ByteNet -------------------------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("ratio", [(1.0, 0.0), (1.5, 1.0), (0.7, -0.5), (2.0, 30.0)], ids=str)
@pytest.mark.parametrize(
    ("layers", "kernels", "dilations"), [(3, (3, 3), [1, 2]), (2, (5, 2), [4, 1]), (1, (1, 3), [1])]
)
def test_dilated_convolutions_over_an_unfolded_source_are_their_formulas(
    build_model: Callable[..., Seq2Seq],
    ratio: tuple[float, float],
    layers: int,
    kernels: tuple[int, int],
    dilations: list[int],
) -> None:
    bodies = [{**BYTENET, "layers": layers, "kernel": kernel, "dilations": dilations} for kernel in kernels]
    model = build_model(*bodies).double()
    model.decoder.ratio.copy_(torch.tensor(ratio))
    result = model(*padded(SOURCES), *padded(TARGETS))
    for row, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        z = bytenet(model.encoder, embed(model.source_embedding.weight, source), dilations, causal=False)
        vectors = embed(model.target_embedding.weight, target)
        expected = bytenet_decoder(model.decoder, vectors, z, ratio, dilations)
        torch.testing.assert_close(result[row, : len(target)], torch.stack(expected), **EXACT)


def test_gradients_of_bytenet_are_those_of_its_values(build_model: Callable[..., Seq2Seq]) -> None:
    model, layout = build_model(BYTENET, BYTENET).double(), Padded.of([4, 2])
    x, states = (torch.randn(2, 4, WIDTH, dtype=torch.float64, requires_grad=True) for _ in range(2))
    decoder = model.decoder
    decoder.ratio.copy_(torch.tensor([1.2, 0.5]))
    assert torch.autograd.gradcheck(lambda x: model.encoder(x, layout).states[layout.mask], [x])
    assert torch.autograd.gradcheck(lambda x, z: decoder.advance(x, decoder.begin(Memory(z, layout)))[0], [x, states])


# --- recipes and runs ----------------------------------------------------------------------------------------------


def written(folder: Path, decoder: dict[str, Any]) -> Recipe:
    """A corpus of dates, and a recipe of two steps on it."""
    days = [datetime.date(2000, 1, 1) + datetime.timedelta(days=37 * number) for number in range(60)]
    (folder / "dates.tsv").write_text("".join(f"{day.day} {day:%B} {day.year}\t{day.isoformat()}\n" for day in days))
    corpus = {"kind": "tsv", "file": "dates.tsv"}
    return Recipe.model_validate(
        {
            "data": {"folder": str(folder), "train": [corpus], "validation": corpus, "validation_limit": 2},
            "tokenizer": {"kind": "character"},
            "model": {"width": 8, "encoder": {**BYTENET, "layers": 1}, "decoder": decoder},
            "training": {
                "limits": {"steps": 2},
                "batches": {"tokens": 200},
                "device": "cpu",
                "averaging": {"kind": "ema"},
            },
        }
    )


def test_a_training_fits_the_ratio_and_a_loaded_run_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "cache"))
    run = sightline.train(written(tmp_path, {**BYTENET, "layers": 1}), out=tmp_path / "run").folder
    pairs = [line.split("\t") for line in (tmp_path / "dates.tsv").read_text().splitlines()]
    a, b = fit_ratio(*(np.array([len(pair[side]) + 1 for pair in pairs]) for side in (0, 1)))
    saved = load_file(run / "model.safetensors")["decoder.ratio"]
    assert saved.tolist() == pytest.approx([a, b], rel=1e-6)
    (tmp_path / "dates.tsv").unlink()  # what it was trained on is not asked again
    loaded = sightline.load(run)
    assert torch.equal(loaded.model.decoder.ratio, saved)
    assert len(loaded.predict(["3 May 2021"])) == 1
    card = (run / "README.md").read_text()
    assert "| decoder | ByteNet, 1 layer, kernel 3, dilations 1 |" in card


def test_the_model_card_describes_gated_convolutions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "cache"))
    body = {**CONVOLUTIONAL, "positions": {"max_positions": 300}}
    for channels, prefix in ((None, ""), (12, ", 12 channels")):
        run = sightline.train(written(tmp_path, {**body, "channels": channels}), out=tmp_path / f"run{channels}").folder
        card = (run / "README.md").read_text()
        assert f"| decoder | gated convolutions, 2 layers{prefix}, kernel 3, learned positions |" in card
        assert len(sightline.load(run).predict(["3 May 2021"])) == 1


@pytest.mark.parametrize(
    ("model", "prefix"),
    [
        ({"encoder": {**CONVOLUTIONAL, "kernel": 4}}, r"encoder\.kernel \(4\) must be odd: as many tokens on either"),
        (
            {"decoder": {**CONVOLUTIONAL, "channels": 0}},
            r"decoder\.channels\n.*greater than or equal to 1",
        ),
        ({"decoder": {**BYTENET, "channels": 12}}, r"decoder\.channels\n.*not permitted"),
        ({"encoder": {**BYTENET, "kernel": 2}}, r"encoder\.kernel \(2\) must be odd"),
        ({"width": 9, "decoder": BYTENET}, "a bytenet body convolves over half the width, and 9 is odd"),
        ({"decoder": {**BYTENET, "dilations": []}}, "at least 1 item"),
        ({"decoder": {**BYTENET, "dilations": [0]}}, "greater than or equal to 1"),
    ],
)
def test_invalid_convolutional_configs_are_refused(model: dict[str, Any], prefix: str) -> None:
    with pytest.raises(ValueError, match=prefix):
        ModelConfig.model_validate({"width": 8, **model})


def test_a_position_table_too_small_for_the_data_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"decoder\.positions\.max_positions \(32\) is less than the longest sentence"):
        check_trainable(written(tmp_path, CONVOLUTIONAL))


def test_coverage_needs_a_decoder_with_attention(tmp_path: Path) -> None:
    sections = written(tmp_path, BYTENET).model_dump()
    with pytest.raises(ValueError, match=r"coverage_penalty.* needs a decoder with attention"):
        Recipe.model_validate({**sections, "decoding": {"coverage_penalty": 0.2}})
