"""The parts of a Transformer block as results: projections, scores, softmax, values, add and normalize, feed-forward.

Every matrix is read from a recording of the model; what a fused operation leaves out (a mean and a deviation, the sums
before ReLU, exponentials) is computed from the recorded numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.inspection.arithmetic import number, products
from sightline.inspection.lecture_example import WIDTH, Pair, Settings, lecture_trace, slide_weights
from sightline.inspection.trace import Trace
from sightline.inspection.worked_steps import Result
from sightline.models.seq2seq import Seq2Seq

Array = NDArray[Any]
Names = Sequence[str]


@dataclass
class Blocks:
    """The results of each part of a block for one sentence, with the arithmetic of their first entries."""

    model: Seq2Seq
    pair: Pair
    settings: Settings

    def __post_init__(self) -> None:
        self.trace: Trace = lecture_trace(self.model, self.pair)
        self.weights: dict[str, Array] = {name: each.numpy() for name, each in slide_weights(self.model).items()}
        self.source, self.given = self.pair.source, self.pair.decoder_input

    def of(self, key: str) -> Array:
        """A recorded tensor without its batch axis."""
        record = next(each for each in self.trace if each.key == key)
        return np.asarray(record.tensor[0])

    def sum(self, name: str, key: str, first: Array, formula: str) -> Result:
        total, words = self.of(key), self.given if key.startswith("decoder") else self.source
        second = total - first
        line = f"{number(float(first[0, 0]))} + {bracket(second[0, 0])} = {number(float(total[0, 0]))}"
        return Result(name, formula, total, words, arithmetic=[first_entry(line)])

    def projections(self, block: str, path: str, inputs: tuple[str, str], arrays: tuple[Array, Array]) -> list[Result]:
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
            line = linear(array, weight, bias, result)
            every.append(Result(letter, f"{x} W_{letter}" + plus(bias, letter), result, words, arithmetic=[line]))
        return every

    def scores(self, block: str, path: str) -> list[Result]:
        rows = self.source if block == "encoder" else self.given
        columns = self.given if block == "decoder.self" else self.source
        width, every = WIDTH // self.settings.heads, []
        query, key = self.of(f"{path}.query"), self.of(f"{path}.key")
        for head, (product, scaled) in enumerate(
            zip(self.of(f"{path}.products"), self.of(f"{path}.scores"), strict=True)
        ):
            of = self._head(head)
            line = f"{products(query[head, 0], key[head, 0])} = {number(float(product[0, 0]))}"
            every.append(Result(f"Q Kᵀ{of}", "", product, rows, columns, [first_entry(line)]))
            line = f"{number(float(product[0, 0]))} / √{width} = {number(float(scaled[0, 0]))}"
            every.append(Result(f"S{of}", f"Q Kᵀ / √{width}", scaled, rows, columns, [first_entry(line)]))
        return every

    def mask(self) -> list[Result]:
        count, every = len(self.given), []
        mask = np.where(np.tri(count, dtype=bool), 0.0, -np.inf)
        every.append(Result("M", "0 for words up to the own one, −∞ for later ones", mask, self.given, self.given))
        for head, masked in enumerate(self.of("decoder.layers.0.attention.masked")):
            every.append(Result(f"S + M{self._head(head)}", "", masked, self.given, self.given))
        return every

    def context(self, block: str, path: str, masked: bool = False) -> list[Result]:
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
            every.append(Result(f"A{of}", f"softmax({name})", weights, rows, columns, [first_entry(line)]))
            context = contexts[head]
            line = f"{products(weights[0], values[head, :, 0])} = {number(float(context[0, 0]))}"
            every.append(Result(f"Z{of}", "A V", context, rows, arithmetic=[first_entry(line)]))
        joined = self.of(f"{path}.joined")
        output = self.weights.get(f"{block}.W_O")
        if self.settings.heads > 1 or output is not None:
            heads = "only one head: the same matrix" if self.settings.heads == 1 else ""
            every.append(Result("C", "[Z of every head]", joined, rows, note=heads))
        if output is not None:
            bias, result = self.weights.get(f"{block}.b_O"), self.of(f"{path}.output")
            every.append(Result("W_O", "", output, note=f"{block}.W_O"))
            every.append(
                Result("O", "C W_O" + plus(bias, "O"), result, rows, arithmetic=[linear(joined, output, bias, result)])
            )
        return every

    def add_and_norm(self, path: str, before: str, added: str, first: Array) -> list[Result]:
        """The sum, its mean and deviation, and the normalized matrix."""
        total, normed = self.of(f"{path}.sum"), self.of(f"{path}.normed")
        words = self.given if path.startswith("decoder") else self.source
        by_column = self.settings.normalize == "columns"
        means = total.mean(0 if by_column else 1)
        deviations = np.sqrt(total.var(0 if by_column else 1) + 1e-5)
        line = total[:, 0] if by_column else total[0]
        unit = "column" if by_column else "row"
        share = f"({' + '.join(bracket(each) for each in line)}) / {len(line)} = {number(float(means[0]))}"
        root = f"√(mean of (x − {bracket(means[0])})² + 0.00001) = {number(float(deviations[0]))}"
        cell = f"({number(float(total[0, 0]))} − {bracket(means[0])}) / {number(float(deviations[0]))}"
        cell = f"{cell} = {number(float(normed[0, 0]))}"
        every = [
            self.sum("R", f"{path}.sum", first, f"{before} + {added}"),
            Result("μ", f"mean of each {unit}", means, arithmetic=[first_entry(share)]),
            Result("σ", f"deviation of each {unit}", deviations, arithmetic=[first_entry(root)]),
            Result("N", "(R − μ) / σ", normed, words, arithmetic=[first_entry(cell)]),
        ]
        if by_column:
            by_token = (total - total.mean(1, keepdims=True)) / np.sqrt(total.var(1, keepdims=True) + 1e-5)
            every.append(Result("N per token", "the mean and deviation of each row instead", by_token, words))
            every.append(Result("difference", "N − N per token", normed - by_token, words))
        return every

    def feed_forward(self, side: str, name: str, x: Array) -> tuple[list[Result], list[Result]]:
        """The first layer and ReLU; the second layer."""
        path, words = f"{side}.layers.0.feedforward", self.given if side == "decoder" else self.source
        w1, b1, w2, b2 = (self.weights[f"{side}.{each}"] for each in ("W_1", "b_1", "W_2", "b_2"))
        inner, hidden, output = x @ w1 + b1, self.of(f"{path}.hidden"), self.of(f"{path}.output")
        line = f"max(0, {number(float(inner[0, 0]))}) = {number(float(hidden[0, 0]))}"
        first = [
            Result("W_1", "", w1, note=f"{side}.W_1"),
            Result("b_1", "", b1),
            Result("F", f"{name} W_1 + b_1", inner, words, arithmetic=[linear(x, w1, b1, inner)]),
            Result("G", "ReLU(F), negative numbers become 0", hidden, words, arithmetic=[first_entry(line)]),
        ]
        second = [
            Result("W_2", "", w2, note=f"{side}.W_2"),
            Result("b_2", "", b2),
            Result("H", "G W_2 + b_2", output, words, arithmetic=[linear(hidden, w2, b2, output)]),
        ]
        return first, second

    def _head(self, head: int) -> str:
        return "" if self.settings.heads == 1 else f", head {head + 1}"


# --- arithmetic of first entries --------------------------------------------------------------------------------------


def first_entry(line: str) -> str:
    return f"first entry: {line}"


def bracket(value: Any) -> str:
    """A number, in brackets if it is negative."""
    text = number(float(value))
    return f"({text})" if text.startswith("−") else text


def _joined(heads: Array) -> Array:
    """(H, T, Dh) → (T, D)."""
    result: Array = heads.transpose(1, 0, 2).reshape(heads.shape[1], -1)
    return result


def plus(bias: Array | None, letter: str = "") -> str:
    return "" if bias is None else f" + b_{letter}" if letter else " + b"


def linear(x: Array, weight: Array, bias: Array | None, result: Array) -> str:
    line = products(x[0], weight[:, 0]) + ("" if bias is None else f" + {bracket(bias[0])}")
    return first_entry(f"{line} = {number(float(result[0, 0]))}")
