"""The worked example of the lecture: a data set of five sentences, and a Transformer of width 6 that learns it.

One layer, one head, one embedding table for both sides, no √D on embeddings, no biases but those of the feed-forward
nets, norms without gain and bias, no output matrix in the encoder's attention: the ordinary model with these switches.
Words are numbered in order of first appearance, `<s>` and `</s>` among them: 11 ids, no padding, no unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sightline.inspection.given_weights import Matrix, assign, draw_tenths
from sightline.inspection.trace import Trace
from sightline.inspection.tracing import trace_pair
from sightline.layers.layout import Padded
from sightline.layers.norms import Residual
from sightline.models.seq2seq import Seq2Seq
from sightline.recipe.model import ModelConfig
from sightline.tasks.losses import sum_of
from sightline.text.tokenizer import SPECIALS, START

LECTURE = "lecture-example"
SENTENCES = (  # how each begins, and how it goes on
    ("eat your", "banana"),
    ("your fruit", "a banana"),
    ("time flies like", "a bird"),
    ("eat like", "a bird"),
    ("fruit flies like", "a banana"),
)
END = "</s>"
WIDTH, SEED = 6, 11


def _in_order_of_appearance() -> tuple[str, ...]:
    words: dict[str, None] = {}
    for source, target in SENTENCES:
        words |= dict.fromkeys([*source.split(), SPECIALS[START], *target.split(), END])
    return tuple(words)


WORDS = _in_order_of_appearance()  # eat your <s> banana </s> fruit a time flies like bird


@dataclass(frozen=True)
class Pair:
    """Words of the source and of the labels, which end in </s>."""

    source: tuple[str, ...]
    labels: tuple[str, ...]

    @staticmethod
    def of(source: str, target: str | None = None) -> Pair:
        """From two texts; without a target, the sentence of the data set that begins so."""
        if target is None:
            known = dict(SENTENCES)
            if source not in known:
                raise ValueError(f"no sentence of the example begins with {source!r}; give a TARGET, too")
            target = known[source]
        for word in (*source.split(), *target.split()):
            if word not in WORDS or word in (SPECIALS[START], END):
                names = ", ".join(word for word in WORDS if not word.startswith("<"))
                raise ValueError(f"{word!r} is not in the vocabulary of the example; its words are {names}")
        if not source.split():
            raise ValueError(f"the source is empty; its words are {', '.join(WORDS)}")
        return Pair(tuple(source.split()), (*target.split(), END))

    @property
    def decoder_input(self) -> tuple[str, ...]:
        return (SPECIALS[START], *self.labels[:-1])


DEFAULT = Pair.of(*SENTENCES[-1])  # ids 5, 8, 9 → 6, 3, 4


def ids(words: Sequence[str]) -> list[int]:
    return [WORDS.index(word) for word in words]


# --- the model --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Settings:
    """The switches of the example; by default as on the slides, normalized per token."""

    heads: int = 1
    biases: bool = False  # in Q, K, V, the output matrices and the last linear layer
    scale_embeddings: bool = False  # embeddings times √6
    normalize: Literal["tokens", "columns"] = "tokens"
    lr: float = 0.1  # of the one update


class ColumnNorm(nn.Module):
    """(x − μ) / σ with μ and σ of each column: over the tokens of the sentence, as the slides put it.

    A position of the decoder then depends on later ones, so this is for the example alone.
    """

    formula = "(x − μ) / σ of each column"

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """(1, T, D) → (1, T, D)."""
        centred = x - x.mean(-2, keepdim=True)
        return centred / ((centred * centred).mean(-2, keepdim=True) + 1e-5).sqrt()


def lecture_model(
    settings: Settings | None = None, given: Mapping[str, Matrix] | None = None, place: object = "--weights"
) -> Seq2Seq:
    """Build the example with weights of one digit after the point; `given` replaces some of them, by name.

    A given W_1 sets the inner width of the feed-forward nets.
    """
    settings, given = settings or Settings(), given or {}
    widths = {matrix.shape[1] for name, matrix in given.items() if name.endswith(".W_1") and matrix.ndim == 2}
    if len(widths) > 1:
        raise ValueError(f"{place}: W_1 of encoder and decoder have different widths; give both the same")
    if WIDTH % settings.heads:
        raise ValueError(f"--heads {settings.heads} does not divide the width, {WIDTH}; use 1, 2, 3 or 6")
    body = {
        "kind": "transformer",
        "layers": 1,
        "heads": settings.heads,
        "feedforward": {"kind": "relu", "width": widths.pop() if widths else 8},
        "norm": {"kind": "layer", "place": "post", "gain": False, "bias": False},
        "positions": {"kind": "sinusoidal", "max_positions": 8},
        "dropout": 0.0,
    }
    config = {
        "width": WIDTH,
        "tie": "none",
        "scale_embeddings": settings.scale_embeddings,
        "output_bias": settings.biases,
        "encoder": {**body, "attention": {"bias": settings.biases, "output_projection": False}},
        "decoder": {**body, "attention": {"bias": settings.biases}},
    }
    model = Seq2Seq(ModelConfig.model_validate(config), len(WORDS), len(WORDS)).eval()
    model.source_embedding = model.target_embedding  # one table for both sides
    if settings.normalize == "columns":
        for module in model.modules():
            if isinstance(module, Residual):
                module.norm = ColumnNorm()
    weights = slide_weights(model)
    draw_tenths(weights, SEED)
    assign(weights, given, str(place))
    return model


def slide_weights(
    model: Seq2Seq, of: Callable[[nn.Parameter], Tensor] = lambda parameter: parameter.data
) -> dict[str, Tensor]:
    """Weights (or `of` them) by their names on the slides, as matrices of X W: inputs down, outputs across."""
    weights = {"embedding": of(model.target_embedding.weight)}
    layers: list[Any] = [model.get_submodule(f"{side}.layers.0") for side in ("encoder", "decoder")]
    encoder, decoder = layers
    blocks = {"encoder": encoder.attention, "decoder.self": decoder.attention, "decoder.cross": decoder.cross_attention}
    for block, attention in blocks.items():
        for number, letter in enumerate("QKV"):
            rows = slice(number * WIDTH, (number + 1) * WIDTH)
            weights[f"{block}.W_{letter}"] = of(attention.qkv.weight)[rows].T
            if attention.qkv.bias is not None:
                weights[f"{block}.b_{letter}"] = of(attention.qkv.bias)[rows]
        if attention.output is not None:
            weights |= _linear(f"{block}.W_O", f"{block}.b_O", attention.output, of)
    for block, layer in (("encoder", encoder), ("decoder", decoder)):
        weights |= _linear(f"{block}.W_1", f"{block}.b_1", layer.feedforward.up, of)
        weights |= _linear(f"{block}.W_2", f"{block}.b_2", layer.feedforward.down, of)
    return weights | _linear("linear.W", "linear.b", model.output, of)


def _linear(weight: str, bias: str, layer: Any, of: Callable[[nn.Parameter], Tensor]) -> dict[str, Tensor]:
    return {weight: of(layer.weight).T} | ({} if layer.bias is None else {bias: of(layer.bias)})


# --- loss, update, training -------------------------------------------------------------------------------------------


def pair_loss(model: Seq2Seq, *pairs: Pair) -> Tensor:
    """−log p of each label from the words before it (teacher forcing), averaged; of pairs of the same lengths."""
    source, tokens, labels = (
        torch.tensor([ids(words) for words in side])  # (B, S), (B, T), (B, T)
        for side in zip(*((each.source, each.decoder_input, each.labels) for each in pairs), strict=True)
    )
    memory = model.encode(source, Padded.of([source.shape[1]] * len(pairs)))
    features, _ = model.advance(tokens, model.begin(memory))
    return nn.functional.cross_entropy(model.logits(features).flatten(0, 1), labels.flatten())


def train(model: Seq2Seq, steps: int = 150, lr: float = 0.03) -> list[float]:
    """Learn the five sentences with Adam; the mean loss of a sentence before each step, and after the last.

    On one thread: several would wait for one another longer than these matrices take.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _train(model, steps, lr)
    finally:
        torch.set_num_threads(threads)


def _train(model: Seq2Seq, steps: int, lr: float) -> list[float]:
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=lr), []
    groups: dict[tuple[int, int], list[Pair]] = {}  # by length, so that nothing is padded
    for pair in (Pair.of(*each) for each in SENTENCES):
        groups.setdefault((len(pair.source), len(pair.labels)), []).append(pair)
    for step in range(steps + 1):
        optimizer.zero_grad()
        loss = sum_of(len(group) * pair_loss(model, *group) for group in groups.values()) / len(SENTENCES)
        losses.append(loss.item())
        if step < steps:
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return losses


def lecture_trace(model: Seq2Seq | None = None, pair: Pair = DEFAULT) -> Trace:
    """Trace the example up to its loss."""
    formulas = ("tokens", "tokens before each")
    trace = trace_pair(model or lecture_model(), ids(pair.source), ids(pair.labels), torch.device("cpu"), formulas)
    trace.about = {
        "task": "seq2seq",
        "text": " ".join(pair.source),
        "output": " ".join(pair.labels[:-1]),
        "forced": True,
        "source_tokens": list(pair.source),
        "given_tokens": list(pair.decoder_input),
        "target_tokens": list(pair.labels),
        "labels": list(WORDS),
        "loss": float(trace["loss"]),
        "notes": ["The lecture's example: untrained, with weights chosen to be followed by hand."],
    }
    return trace
