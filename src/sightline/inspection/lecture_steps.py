"""The steps of the lecture's worked example, with the lecture's own numbers as headings.

Every matrix is read from a recording of the model; what a fused operation leaves out (a mean and a deviation, the sums
before ReLU, exponentials) is computed from the recorded numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sightline.inspection.arithmetic import decimals, number, products
from sightline.inspection.given_weights import Matrix
from sightline.inspection.lecture_example import (
    DEFAULT,
    SENTENCES,
    WIDTH,
    WORDS,
    Pair,
    Settings,
    ids,
    lecture_model,
    lecture_trace,
    pair_loss,
    slide_weights,
    train,
)
from sightline.inspection.trace import Trace
from sightline.inspection.update import Update, one_update
from sightline.inspection.worked_steps import Result, WorkedExample, WorkedStep
from sightline.models.seq2seq import Seq2Seq

Array = NDArray[Any]
Names = Sequence[str]


def lecture_example(
    pair: Pair = DEFAULT,
    settings: Settings | None = None,
    *,
    given: dict[str, Matrix] | None = None,
    place: object = "--weights",
    trained: bool = False,
    matrix: str = "encoder.W_Q",
    every: bool = False,
    stop_at: str | None = None,
    digits: int = 3,
) -> WorkedExample:
    """Work through one sentence, from the data set to the loss after one update.

    `matrix` names the weight whose gradient and new value are shown in full, `every`: all of them. `stop_at`: the last
    step, `7` of the encoder or `decoder-3` of the decoder.
    """
    settings = settings or Settings()
    model = lecture_model(settings, given, place)
    losses = train(model) if trained else []
    slides = Slides(model, pair, settings, matrix, every)
    if matrix not in slides.weights:
        raise ValueError(f"--matrix {matrix}: there is no such matrix; there are {', '.join(slides.weights)}")
    with decimals(digits):
        steps = slides.steps(losses)
    keys = [step.key for step in steps]
    if stop_at is not None:
        if stop_at not in keys:
            raise ValueError(f"--stop-at {stop_at}: there is no such step; there are {', '.join(keys)}")
        steps = steps[: keys.index(stop_at) + 1]
    title = f"{' '.join(pair.source)} → {' '.join(pair.labels[:-1])}: a Transformer of width {WIDTH}, step by step"
    about = {"source": list(pair.source), "labels": list(pair.labels), "words": list(WORDS), "losses": losses}
    return WorkedExample(title, steps, digits, about)


@dataclass
class Slides:
    """The steps of one sentence."""

    model: Seq2Seq
    pair: Pair
    settings: Settings
    matrix: str
    every: bool

    def __post_init__(self) -> None:
        self.trace: Trace = lecture_trace(self.model, self.pair)
        self.weights: dict[str, Array] = {name: each.numpy() for name, each in slide_weights(self.model).items()}
        self.source, self.given = self.pair.source, self.pair.decoder_input

    def of(self, key: str) -> Array:
        """A recorded tensor without its batch axis."""
        record = next(each for each in self.trace if each.key == key)
        return np.asarray(record.tensor[0])

    def steps(self, losses: Sequence[float]) -> list[WorkedStep]:
        """Encoder (1) to (11), decoder (1) to (4), (6), (5), as the lecture counts them, then loss and update."""
        return [*self._data(losses), *self._encoder(), *self._decoder(), *self._learning()]

    # --- (1) to (6): words to vectors ---------------------------------------------------------------------------------

    def _data(self, losses: Sequence[float]) -> list[WorkedStep]:
        sentences = [f"{source} → {target}" for source, target in SENTENCES]
        learned = ""
        if losses:
            shown = ", ".join(f"{losses[k]:.3f}" for k in range(0, len(losses), 50))
            learned = f" The model has learned them: loss {shown} after 0, 50, 100, … steps."
        pairs = [
            f"source {' '.join(self.source)} = {ids(self.source)}",
            f"decoder input {' '.join(self.given)} = {ids(self.given)}",
            f"labels {' '.join(self.pair.labels)} = {ids(self.pair.labels)}",
        ]
        return [
            WorkedStep(
                "Encoder (1) Data set",
                f"Each sentence is cut in two: the model reads its beginning and writes the rest.{learned}",
                [Result("sentences", "", arithmetic=sentences, shown=False)],
                "1",
            ),
            WorkedStep(
                f"Encoder (2) Vocabulary: {len(WORDS)} words",
                "Every word, in order of first appearance; <s> begins an output and </s> ends it.",
                [Result("words", "", arithmetic=[" ".join(WORDS)], shown=False)],
                "2",
            ),
            WorkedStep(
                "Encoder (3) A number for each word",
                "",
                [
                    Result(
                        "ids", "", arithmetic=[", ".join(f"{n} {word}" for n, word in enumerate(WORDS))], shown=False
                    ),
                    Result("tokens", "", np.array(ids(self.source)), arithmetic=pairs, shown=False),
                ],
                "3",
            ),
            WorkedStep(
                f"Encoder (4) Word embedding: rows {ids(self.source)} of an {len(WORDS)}×{WIDTH} table",
                "One table for source and target; random at first, then learned.",
                [
                    Result("E", "", self.weights["embedding"], [f"{n} {word}" for n, word in enumerate(WORDS)]),
                    *self._embedded("target_embedding.rows", self.source),
                ],
                "4",
            ),
            WorkedStep(
                "Encoder (5) Positional encoding",
                "PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(pos / 10000^(2i/d)), "
                f"d = {WIDTH}, i = 0, 1, 2",
                [self._positions("encoder", self.source)],
                "5",
            ),
            WorkedStep(
                "Encoder (6) X = embedding + positional encoding",
                "",
                [self._sum("X", "encoder.positions.output", self._vectors("target_embedding.rows"), "embedding + PE")],
                "6",
            ),
        ]

    def _vectors(self, rows: str) -> Array:
        """Embeddings, times √6 if the setting says so."""
        return self.of(rows) * (math.sqrt(WIDTH) if self.settings.scale_embeddings else 1.0)

    def _embedded(self, rows: str, words: Names) -> list[Result]:
        every = [Result("embedding", f"E[{', '.join(map(str, ids(words)))}]", self.of(rows), words)]
        if self.settings.scale_embeddings:
            every.append(Result("scaled", f"embedding · √{WIDTH}", self._vectors(rows), words))
        return every

    def _positions(self, side: str, words: Names) -> Result:
        table, lines = self.of(f"{side}.positions.vectors"), []
        for position in range(len(words)):
            for feature in range(WIDTH):
                function, exponent = ("sin", "cos")[feature % 2], feature - feature % 2
                value = number(float(table[position, feature]))
                lines.append(
                    f"PE({position}, {feature}) = {function}({position} / 10000^({exponent}/{WIDTH})) = {value}"
                )
        return Result("PE", "", table, [f"pos {n} {word}" for n, word in enumerate(words)], arithmetic=lines)

    def _sum(self, name: str, key: str, first: Array, formula: str) -> Result:
        total, words = self.of(key), self.given if key.startswith("decoder") else self.source
        second = total - first
        line = f"{number(float(first[0, 0]))} + {_bracket(second[0, 0])} = {number(float(total[0, 0]))}"
        return Result(name, formula, total, words, arithmetic=[_first(line)])

    # --- blocks -------------------------------------------------------------------------------------------------------

    def _projections(self, block: str, path: str, inputs: tuple[str, str], arrays: tuple[Array, Array]) -> list[Result]:
        """Q, K and V with their matrices; `inputs` are the names of what Q, and what K and V are computed from."""
        every = []
        keys = self.source if block != "decoder.self" else self.given
        for letter, name, x, array, words in (
            ("Q", "query", inputs[0], arrays[0], self.source if block == "encoder" else self.given),
            ("K", "key", inputs[1], arrays[1], keys),
            ("V", "value", inputs[1], arrays[1], keys),
        ):
            weight, bias = self.weights[f"{block}.W_{letter}"], self.weights.get(f"{block}.b_{letter}")
            every.append(Result(f"W_{letter}", "", weight, note=f"{block}.W_{letter}, {WIDTH}×{WIDTH}"))
            if bias is not None:
                every.append(Result(f"b_{letter}", "", bias))
            result = _joined(self.of(f"{path}.{name}"))
            line = _linear(array, weight, bias, result)
            every.append(Result(letter, f"{x} W_{letter}" + _plus(bias, letter), result, words, arithmetic=[line]))
        return every

    def _scores(self, block: str, path: str) -> list[Result]:
        rows = self.source if block == "encoder" else self.given
        columns = self.given if block == "decoder.self" else self.source
        width, every = WIDTH // self.settings.heads, []
        query, key = self.of(f"{path}.query"), self.of(f"{path}.key")
        for head, (product, scaled) in enumerate(
            zip(self.of(f"{path}.products"), self.of(f"{path}.scores"), strict=True)
        ):
            of = self._head(head)
            line = f"{products(query[head, 0], key[head, 0])} = {number(float(product[0, 0]))}"
            every.append(Result(f"Q Kᵀ{of}", "", product, rows, columns, [_first(line)]))
            line = f"{number(float(product[0, 0]))} / √{width} = {number(float(scaled[0, 0]))}"
            every.append(Result(f"S{of}", f"Q Kᵀ / √{width}", scaled, rows, columns, [_first(line)]))
        return every

    def _mask(self) -> list[Result]:
        count, every = len(self.given), []
        mask = np.where(np.tri(count, dtype=bool), 0.0, -np.inf)
        every.append(Result("M", "0 for words up to the own one, −∞ for later ones", mask, self.given, self.given))
        for head, masked in enumerate(self.of("decoder.layers.0.attention.masked")):
            every.append(Result(f"S + M{self._head(head)}", "", masked, self.given, self.given))
        return every

    def _context(self, block: str, path: str, masked: bool = False) -> list[Result]:
        """softmax and · V of each head, concatenation, and the output matrix if there is one."""
        rows = self.source if block == "encoder" else self.given
        columns = self.given if block == "decoder.self" else self.source
        scores = self.of(f"{path}.masked" if masked else f"{path}.scores")
        values, every = self.of(f"{path}.value"), []
        contexts = self.of(f"{path}.context")
        for head, weights in enumerate(self.of(f"{path}.weights")):
            of, name = self._head(head), "S + M" if masked else "S"
            shown = [f"exp({number(float(each))})" for each in scores[head, 0]]
            line = f"{shown[0]} / ({' + '.join(shown)}) = {number(float(weights[0, 0]))}"
            every.append(Result(f"A{of}", f"softmax({name})", weights, rows, columns, [_first(line)]))
            context = contexts[head]
            line = f"{products(weights[0], values[head, :, 0])} = {number(float(context[0, 0]))}"
            every.append(Result(f"Z{of}", "A V", context, rows, arithmetic=[_first(line)]))
        joined = self.of(f"{path}.joined")
        output = self.weights.get(f"{block}.W_O")
        if self.settings.heads > 1 or output is not None:
            heads = "only one head: the same matrix" if self.settings.heads == 1 else ""
            every.append(Result("C", "[Z of every head]", joined, rows, note=heads))
        if output is not None:
            bias, result = self.weights.get(f"{block}.b_O"), self.of(f"{path}.output")
            every.append(Result("W_O", "", output, note=f"{block}.W_O"))
            every.append(
                Result(
                    "O", "C W_O" + _plus(bias, "O"), result, rows, arithmetic=[_linear(joined, output, bias, result)]
                )
            )
        return every

    def _add_and_norm(self, path: str, before: str, added: str, first: Array) -> list[Result]:
        """The sum, its mean and deviation, and the normalized matrix."""
        total, normed = self.of(f"{path}.sum"), self.of(f"{path}.normed")
        words = self.given if path.startswith("decoder") else self.source
        by_column = self.settings.normalize == "columns"
        means = total.mean(0 if by_column else 1)
        deviations = np.sqrt(total.var(0 if by_column else 1) + 1e-5)
        line = total[:, 0] if by_column else total[0]
        unit = "column" if by_column else "row"
        share = f"({' + '.join(_bracket(each) for each in line)}) / {len(line)} = {number(float(means[0]))}"
        root = f"√(mean of (x − {_bracket(means[0])})² + 0.00001) = {number(float(deviations[0]))}"
        cell = f"({number(float(total[0, 0]))} − {_bracket(means[0])}) / {number(float(deviations[0]))}"
        every = [
            self._sum("R", f"{path}.sum", first, f"{before} + {added}"),
            Result("μ", f"mean of each {unit}", means, arithmetic=[_first(share)]),
            Result("σ", f"deviation of each {unit}", deviations, arithmetic=[_first(root)]),
            Result("N", "(R − μ) / σ", normed, words, arithmetic=[_first(f"{cell} = {number(float(normed[0, 0]))}")]),
        ]
        if by_column:
            by_token = (total - total.mean(1, keepdims=True)) / np.sqrt(total.var(1, keepdims=True) + 1e-5)
            every.append(Result("N per token", "the mean and deviation of each row instead", by_token, words))
            every.append(Result("difference", "N − N per token", normed - by_token, words))
        return every

    def _feed_forward(self, side: str, name: str, x: Array) -> tuple[list[Result], list[Result]]:
        """The first layer and ReLU; the second layer."""
        path, words = f"{side}.layers.0.feedforward", self.given if side == "decoder" else self.source
        w1, b1, w2, b2 = (self.weights[f"{side}.{each}"] for each in ("W_1", "b_1", "W_2", "b_2"))
        inner, hidden, output = x @ w1 + b1, self.of(f"{path}.hidden"), self.of(f"{path}.output")
        line = f"max(0, {number(float(inner[0, 0]))}) = {number(float(hidden[0, 0]))}"
        first = [
            Result("W_1", "", w1, note=f"{side}.W_1"),
            Result("b_1", "", b1),
            Result("F", f"{name} W_1 + b_1", inner, words, arithmetic=[_linear(x, w1, b1, inner)]),
            Result("G", "ReLU(F), negative numbers become 0", hidden, words, arithmetic=[_first(line)]),
        ]
        second = [
            Result("W_2", "", w2, note=f"{side}.W_2"),
            Result("b_2", "", b2),
            Result("H", "G W_2 + b_2", output, words, arithmetic=[_linear(hidden, w2, b2, output)]),
        ]
        return first, second

    def _head(self, head: int) -> str:
        return "" if self.settings.heads == 1 else f", head {head + 1}"

    # --- (7) to (11): the encoder -------------------------------------------------------------------------------------

    def _encoder(self) -> list[WorkedStep]:
        layer = "encoder.layers.0"
        x, normed = self.of("encoder.positions.output"), self.of(f"{layer}.attention_residual.normed")
        attention = [
            *self._projections("encoder", f"{layer}.attention", ("X", "X"), (x, x)),
            *self._scores("encoder", f"{layer}.attention"),
            *self._context("encoder", f"{layer}.attention"),
        ]
        first, second = self._feed_forward("encoder", "N", normed)
        by = "each column, over the words" if self.settings.normalize == "columns" else "each row, the vector of a word"
        axis = f"Mean and deviation are those of {by}. The slides say “for each column”"
        axis += "." if self.settings.normalize == "columns" else ": --normalize columns shows that form."
        return [
            WorkedStep("Encoder (7) Self-attention", "softmax(Q Kᵀ / √d) V; no mask in the encoder.", attention, "7"),
            WorkedStep(
                "Encoder (8) Add and normalize",
                axis,
                self._add_and_norm(f"{layer}.attention_residual", "X", "Z" if self.settings.heads == 1 else "C", x),
                "8",
            ),
            WorkedStep("Encoder (9) Feed-forward net: first layer and ReLU", "", first, "9"),
            WorkedStep("Encoder (10) Feed-forward net: second layer", "", second, "10"),
            WorkedStep(
                "Encoder (11) Add and normalize: the output of the encoder",
                "",
                self._add_and_norm(f"{layer}.feedforward_residual", "N of (8)", "H", normed),
                "11",
            ),
        ]

    # --- the decoder --------------------------------------------------------------------------------------------------

    def _decoder(self) -> list[WorkedStep]:
        layer = "decoder.layers.0"
        y, memory = self.of("decoder.positions.output"), self.of("encoder.layers.0.feedforward_residual.normed")
        after_self = self.of(f"{layer}.attention_residual.normed")
        after_cross = self.of(f"{layer}.cross_attention_residual.normed")
        first, second = self._feed_forward("decoder", "N", after_cross)
        cross = f"{layer}.cross_attention"
        steps = [
            (
                "1",
                "Embedding and positional encoding of the output so far",
                "The same table and the same positions as in the encoder.",
                [
                    *self._embedded("target_embedding.rows#2", self.given),
                    Result("PE", "as in the encoder", self.of("decoder.positions.vectors"), self.given),
                    self._sum(
                        "Y", "decoder.positions.output", self._vectors("target_embedding.rows#2"), "embedding + PE"
                    ),
                ],
            ),
            (
                "2",
                "Masked self-attention: scores",
                "",
                [
                    *self._projections("decoder.self", f"{layer}.attention", ("Y", "Y"), (y, y)),
                    *self._scores("decoder.self", f"{layer}.attention"),
                ],
            ),
            (
                "3",
                "Masking, softmax, values and output matrix",
                "A word must not see those after it: −∞ becomes 0 in the softmax.",
                [*self._mask(), *self._context("decoder.self", f"{layer}.attention", masked=True)],
            ),
            ("4", "Add and normalize", "", self._add_and_norm(f"{layer}.attention_residual", "Y", "O", y)),
            (
                "6",
                "Cross-attention, feed-forward net, each with add and normalize",
                "K and V come from the output of the encoder, Q from step (4). (The slides count this before (5).)",
                [
                    *self._projections("decoder.cross", cross, ("N of (4)", "N of encoder (11)"), (after_self, memory)),
                    *self._scores("decoder.cross", cross),
                    *self._context("decoder.cross", cross),
                    *self._add_and_norm(f"{layer}.cross_attention_residual", "N of (4)", "O", after_self),
                    *first,
                    *second,
                    *self._add_and_norm(f"{layer}.feedforward_residual", "N", "H", after_cross),
                ],
            ),
            ("5", f"Linear layer to {len(WORDS)} words and softmax", "", self._output()),
        ]
        return [
            WorkedStep(f"Decoder ({key}) {title}", text, results, f"decoder-{key}")
            for key, title, text, results in steps
        ]

    def _output(self) -> list[Result]:
        normed = self.of("decoder.layers.0.feedforward_residual.normed")
        weight, bias = self.weights["linear.W"], self.weights.get("linear.b")
        logits, probabilities = self.of("logits"), self.of("probabilities")
        total = float(np.exp(logits[0]).sum())
        line = f"exp({number(float(logits[0, 0]))}) / {number(total)} = {number(float(probabilities[0, 0]))}"
        likeliest = [
            f"after {word!r}: {WORDS[int(row.argmax())]!r}" for word, row in zip(self.given, probabilities, strict=True)
        ]
        return [
            Result("W", "", weight, None, WORDS, note="linear.W"),
            *([] if bias is None else [Result("b", "", bias[None], None, WORDS)]),
            Result("L", "N W" + _plus(bias), logits, self.given, WORDS, [_linear(normed, weight, bias, logits)]),
            Result("P", "softmax(L)", probabilities, self.given, WORDS, [_first(line)]),
            Result("likeliest words", "", arithmetic=[f"likeliest {', '.join(likeliest)}"], shown=False),
        ]

    # --- learning -----------------------------------------------------------------------------------------------------

    @cached_property
    def update(self) -> Update:
        """One step of gradient descent on this sentence."""

        def loss_of(model: Any) -> tuple[torch.Tensor, torch.Tensor]:
            loss = pair_loss(model, self.pair)
            return loss, loss

        lr = self.settings.lr
        return one_update(self.model, loss_of, lambda model: torch.optim.SGD(model.parameters(), lr=lr))

    def _learning(self) -> list[WorkedStep]:
        probabilities, labels = self.of("probabilities"), ids(self.pair.labels)
        losses = self.of("losses")
        lines = [
            f"−log P({label} | {' '.join(self.given[: n + 1])}) = "
            f"−log {number(float(probabilities[n, token]))} = {number(float(losses[n]))}"
            for n, (label, token) in enumerate(zip(self.pair.labels, labels, strict=True))
        ]
        mean = (
            f"({' + '.join(number(float(each)) for each in losses)}) / {len(losses)} = {number(float(losses.mean()))}"
        )
        loss = [
            Result("losses", "−log p(label)", losses, arithmetic=lines, shown=False),
            Result("loss", "mean of the losses", float(losses.mean()), arithmetic=[mean], shown=False),
        ]
        if self.settings.normalize == "columns":
            model = lecture_model(Settings(**{**self.settings.__dict__, "normalize": "tokens"}))
            own = slide_weights(self.model)
            for name, each in slide_weights(model).items():
                each.copy_(own[name])
            other = float(lecture_trace(model, self.pair)["loss"])
            line = f"{number(float(losses.mean()))} − {number(other)} = {number(float(losses.mean()) - other)}"
            loss.append(
                Result(
                    "difference", "loss per column − loss per token", float(losses.mean()) - other, arithmetic=[line]
                )
            )
        return [
            WorkedStep(f"Loss: cross-entropy with the labels {labels}", "", loss, "loss"),
            WorkedStep(
                f"Backpropagation and update: W − {self.settings.lr:g} · ∂loss/∂W",
                "Every weight of every layer changes." + ("" if self.every else " --all shows all of them in full."),
                self._gradients(),
                "update",
            ),
        ]

    def _gradients(self) -> list[Result]:
        gradients, new = self.gradients()
        rows, norms = [], []
        shown = []
        for name, gradient in gradients.items():
            rows.append(name)
            norms.append(
                [np.linalg.norm(gradient), np.abs(gradient).max(), np.linalg.norm(new[name] - self.weights[name])]
            )
            if self.every or name == self.matrix:
                old, g, after = (float(each.flat[0]) for each in (self.weights[name], gradient, new[name]))
                line = _first(f"{number(old)} − {self.settings.lr:g} · {_bracket(g)} = {number(after)}")
                shown.append(Result(f"gradient of {name}", f"∂loss/∂{name}", gradient))
                shown.append(Result(f"new {name}", "", new[name], arithmetic=[line]))
        columns = ["‖gradient‖", "largest", "‖change‖"]
        after = self.update.loss_after
        line = f"{number(self.update.loss)} before the step, {number(after)} after it"
        return [
            *shown,
            Result(
                "every weight",
                "norm and largest entry of its gradient, norm of its change",
                np.array(norms),
                rows,
                columns,
            ),
            Result("loss after the step", "", after, arithmetic=[line], shown=False),
        ]

    def gradients(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """The gradient and the new value of each matrix, by its name on the slides."""
        updates = {each.name: each for each in self.update.weights}
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        gradients, new = (
            slide_weights(self.model, lambda parameter, what=what: getattr(updates[names[id(parameter)]], what))  # type: ignore[misc]
            for what in ("gradient", "after")
        )
        return {name: each.numpy() for name, each in gradients.items()}, {
            name: each.numpy() for name, each in new.items()
        }


# --- arithmetic of first entries --------------------------------------------------------------------------------------


def _first(line: str) -> str:
    return f"first entry: {line}"


def _bracket(value: Any) -> str:
    """A number, in brackets if it is negative."""
    text = number(float(value))
    return f"({text})" if text.startswith("−") else text


def _joined(heads: Array) -> Array:
    """(H, T, Dh) → (T, D)."""
    result: Array = heads.transpose(1, 0, 2).reshape(heads.shape[1], -1)
    return result


def _plus(bias: Array | None, letter: str = "") -> str:
    return "" if bias is None else f" + b_{letter}" if letter else " + b"


def _linear(x: Array, weight: Array, bias: Array | None, result: Array) -> str:
    line = products(x[0], weight[:, 0]) + ("" if bias is None else f" + {_bracket(bias[0])}")
    return _first(f"{line} = {number(float(result[0, 0]))}")
