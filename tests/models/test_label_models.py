"""Taggers and classifiers: pooling by naive loops, packed = padded, and no text sees another or its padding."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from silent_parameters import silent_parameters
from torch import Tensor

from shared_models import shared
from sightline.layers.layout import Packed, Padded
from sightline.models.heads import Classifier, LabelModel, Tagger, pool
from sightline.models.protocol import Memory
from sightline.recipe.model import ModelConfig

CLOSE = {"rtol": 0.0, "atol": 1e-5}  # as in test_decoders.py
LABELS, WIDTH = 7, 8
PIECES = ["<pad>", "<unk>", "<s>", "</s>", *"abcdefghi"]
TEXTS = [[2, 5, 9, 4, 7, 3], [2, 3], [2, 12, 8, 3], [6]]
POOLINGS = ("last", "mean", "max", "class")


def transformer(positions: str, **parts: Any) -> dict[str, Any]:
    positions_of = {"kind": positions, **({"max_distance": 2} if positions == "shaw" else {})}
    return {"kind": "transformer", "layers": 2, "heads": 2, "positions": positions_of, "dropout": 0.0, **parts}


def recurrent(cell: str, *, bidirectional: bool) -> dict[str, Any]:
    return {"kind": "recurrent", "cell": cell, "layers": 2, "bidirectional": bidirectional, "dropout": 0.0}


BODIES: dict[str, dict[str, Any]] = {
    "elman, one direction": recurrent("elman", bidirectional=False),
    "gru": recurrent("gru", bidirectional=True),
    "lstm": recurrent("lstm", bidirectional=True),
    "window": {"kind": "window", "size": 1, "layers": 2, "dropout": 0.0},
    "convolutional": {"kind": "convolutional", "layers": 2, "positions": {"max_positions": 32}, "dropout": 0.0},
    "wider convolutional": {"kind": "convolutional", "layers": 2, "channels": 12, "dropout": 0.0},
    "bytenet": {"kind": "bytenet", "layers": 3, "dilations": [1, 2], "dropout": 0.0},
    "window wider than a sentence": {"kind": "window", "size": 9, "dropout": 0.0},
    **{kind: transformer(kind) for kind in ("sinusoidal", "rotary", "alibi", "t5", "shaw", "none")},
    "learned": transformer("learned", norm={"kind": "batch", "place": "post"}),
}
HEADS = ("tagger", *POOLINGS)


@cache
def built(body: str, head: str) -> Any:
    """A model with no weight at a special value; shared, so not to be changed."""
    torch.manual_seed(0)
    pooling = None if head == "tagger" else {"kind": head, "hidden": 5, "dropout": 0.0}
    recipe = ModelConfig.model_validate({"width": WIDTH, "encoder": BODIES[body], "pooling": pooling})
    model = (Tagger if head == "tagger" else Classifier)(recipe, PIECES, LABELS).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.3 * torch.randn_like(parameter)
    return shared(model)


@pytest.fixture(params=[(body, head) for body in BODIES for head in HEADS], ids="-".join)
def model(request: pytest.FixtureRequest) -> LabelModel:
    return built(*request.param)


def padded(texts: list[list[int]], width: int | None = None, filler: int = 0) -> tuple[Tensor, Padded]:
    longest = width or max(map(len, texts))
    rows = [text + [filler] * (longest - len(text)) for text in texts]
    return torch.tensor(rows), Padded.of([len(text) for text in texts], longest=longest)


def packed(texts: list[list[int]], longest: int | None = None) -> tuple[Tensor, Packed]:
    return torch.tensor([token for text in texts for token in text]), Packed.of(list(map(len, texts)), longest=longest)


def answers(model: LabelModel, tokens: Tensor, layout: Padded | Packed, texts: list[list[int]] = TEXTS) -> list[Tensor]:
    """The logits of each text: (labels,), or (S, labels) of a tagger."""
    logits = model.logits(model(tokens, layout))
    if isinstance(model, Classifier):
        return list(logits)
    if isinstance(layout, Packed):
        return list(logits.split(list(map(len, texts))))
    return [row[: len(text)] for row, text in zip(logits, texts, strict=True)]


@torch.no_grad()
def test_a_text_sees_neither_its_neighbours_nor_its_padding(model: LabelModel) -> None:
    single = [answers(model, *padded([text]), [text])[0] for text in TEXTS]
    for tokens, layout in (padded(TEXTS), padded(TEXTS, 9), padded(TEXTS, filler=11)):
        for result, expected in zip(answers(model, tokens, layout), single, strict=True):
            torch.testing.assert_close(result, expected, **CLOSE)


@torch.no_grad()
def test_packed_is_padded(model: LabelModel) -> None:
    expected = answers(model, *padded(TEXTS))
    for longest in (None, 9):
        for ours, theirs in zip(answers(model, *packed(TEXTS, longest)), expected, strict=True):
            torch.testing.assert_close(ours, theirs, **CLOSE)


def test_with_gradients_the_answers_are_the_same(model: LabelModel) -> None:
    """Without them a Transformer on the CPU packs what it is given."""
    with torch.no_grad():
        expected = torch.cat(answers(model, *padded(TEXTS)))
    torch.testing.assert_close(torch.cat(answers(model, *padded(TEXTS))), expected, **CLOSE)


@pytest.mark.parametrize(
    ("body", "head"),
    # what reads forwards has read nothing else at the first token: its recurrent weights do not count there
    [(body, head) for body in BODIES for head in HEADS if head != "class" or "cell" not in BODIES[body]],
)
def test_the_gradient_reaches_every_parameter(body: str, head: str) -> None:
    model = built(body, head)
    logits = torch.cat([each.reshape(-1, LABELS) for each in answers(model, *padded(TEXTS))])
    loss = torch.nn.functional.cross_entropy(logits, torch.arange(len(logits)) % LABELS)
    assert silent_parameters(model, loss) == []


def naive_pool(states: Tensor, kind: str) -> Tensor:
    """(S, D) → (D,), one number after the other."""
    if kind == "class":
        return states[0]
    if kind == "last":
        return states[-1]
    columns = [[float(row[place]) for row in states] for place in range(states.shape[1])]
    return torch.tensor([max(column) if kind == "max" else sum(column) / len(column) for column in columns])


@pytest.mark.parametrize("kind", POOLINGS)
def test_pooling_is_a_loop_over_the_tokens_of_each_text(kind: str) -> None:
    lengths = [4, 1, 6, 2]
    texts = [torch.randn(length, WIDTH) - 3.0 for length in lengths]  # below zero: padding must not be the greatest
    expected = torch.stack([naive_pool(text, kind) for text in texts])
    rows = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=99.0)
    for memory in (
        Memory(rows, Padded.of(lengths)),
        Memory(torch.cat(texts), Packed.of(lengths)),
        Memory(torch.cat(texts), Packed.of(lengths, longest=9)),
    ):
        torch.testing.assert_close(pool(memory, kind), expected)
    full = Memory(torch.stack([texts[0], texts[0] + 1]), Padded.of([4, 4]))  # no padding, no mask
    torch.testing.assert_close(pool(full, kind), torch.stack([naive_pool(t, kind) for t in (texts[0], texts[0] + 1)]))


@torch.no_grad()
@pytest.mark.parametrize("body", ["elman, one direction", "gru", "lstm"])
def test_the_last_of_a_recurrent_encoder_is_where_each_direction_ended(body: str) -> None:
    model = built(body, "last")
    memory = model.encode(*padded(TEXTS))
    for result, text, states in zip(pool(memory, "last"), TEXTS, memory.states, strict=True):
        half = WIDTH // 2 if BODIES[body]["bidirectional"] else WIDTH
        torch.testing.assert_close(result[:half], states[len(text) - 1, :half])
        torch.testing.assert_close(result[half:], states[0, half:])


@torch.no_grad()
def test_a_window_encoder_sees_its_window_only() -> None:
    model = built("window", "tagger")
    (result,), (other,) = (answers(model, *padded([text]), [text]) for text in ([5, 9, 4, 7, 6], [5, 9, 4, 7, 8]))
    torch.testing.assert_close(result[:3], other[:3])
    assert (result[3:] - other[3:]).abs().amax(-1).min() > 1e-3


def test_a_classifier_answers_once_a_tagger_for_each_token() -> None:
    tokens, layout = padded(TEXTS)
    with torch.no_grad():
        assert built("lstm", "max").logits(built("lstm", "max")(tokens, layout)).shape == (4, LABELS)
        assert built("lstm", "tagger").logits(built("lstm", "tagger")(tokens, layout)).shape == (4, 6, LABELS)
