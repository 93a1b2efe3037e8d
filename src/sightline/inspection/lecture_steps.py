"""The steps of the lecture's worked example, with the lecture's own numbers as headings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from sightline.inspection.arithmetic import decimals, number
from sightline.inspection.given_weights import Matrix
from sightline.inspection.lecture_blocks import Array, Blocks, Names, bracket, first_entry, linear, plus
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
from sightline.inspection.update import Update, one_update
from sightline.inspection.worked_steps import Result, WorkedExample, WorkedStep


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
class Slides(Blocks):
    """The steps of one sentence; `matrix` is updated in full, with `every` all of them."""

    matrix: str = "encoder.W_Q"
    every: bool = False

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
                [self.sum("X", "encoder.positions.output", self._vectors("target_embedding.rows"), "embedding + PE")],
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

    # --- (7) to (11): the encoder -------------------------------------------------------------------------------------

    def _encoder(self) -> list[WorkedStep]:
        layer = "encoder.layers.0"
        x, normed = self.of("encoder.positions.output"), self.of(f"{layer}.attention_residual.normed")
        attention = [
            *self.projections("encoder", f"{layer}.attention", ("X", "X"), (x, x)),
            *self.scores("encoder", f"{layer}.attention"),
            *self.context("encoder", f"{layer}.attention"),
        ]
        first, second = self.feed_forward("encoder", "N", normed)
        by = "each column, over the words" if self.settings.normalize == "columns" else "each row, the vector of a word"
        axis = f"Mean and deviation are those of {by}. The slides say “for each column”"
        axis += "." if self.settings.normalize == "columns" else ": --normalize columns shows that form."
        return [
            WorkedStep("Encoder (7) Self-attention", "softmax(Q Kᵀ / √d) V; no mask in the encoder.", attention, "7"),
            WorkedStep(
                "Encoder (8) Add and normalize",
                axis,
                self.add_and_norm(f"{layer}.attention_residual", "X", "Z" if self.settings.heads == 1 else "C", x),
                "8",
            ),
            WorkedStep("Encoder (9) Feed-forward net: first layer and ReLU", "", first, "9"),
            WorkedStep("Encoder (10) Feed-forward net: second layer", "", second, "10"),
            WorkedStep(
                "Encoder (11) Add and normalize: the output of the encoder",
                "",
                self.add_and_norm(f"{layer}.feedforward_residual", "N of (8)", "H", normed),
                "11",
            ),
        ]

    # --- the decoder --------------------------------------------------------------------------------------------------

    def _decoder(self) -> list[WorkedStep]:
        layer = "decoder.layers.0"
        y, memory = self.of("decoder.positions.output"), self.of("encoder.layers.0.feedforward_residual.normed")
        after_self = self.of(f"{layer}.attention_residual.normed")
        after_cross = self.of(f"{layer}.cross_attention_residual.normed")
        first, second = self.feed_forward("decoder", "N", after_cross)
        cross = f"{layer}.cross_attention"
        steps = [
            (
                "1",
                "Embedding and positional encoding of the output so far",
                "The same table and the same positions as in the encoder.",
                [
                    *self._embedded("target_embedding.rows#2", self.given),
                    Result("PE", "as in the encoder", self.of("decoder.positions.vectors"), self.given),
                    self.sum(
                        "Y", "decoder.positions.output", self._vectors("target_embedding.rows#2"), "embedding + PE"
                    ),
                ],
            ),
            (
                "2",
                "Masked self-attention: scores",
                "",
                [
                    *self.projections("decoder.self", f"{layer}.attention", ("Y", "Y"), (y, y)),
                    *self.scores("decoder.self", f"{layer}.attention"),
                ],
            ),
            (
                "3",
                "Masking, softmax, values and output matrix",
                "A word must not see those after it: −∞ becomes 0 in the softmax.",
                [*self.mask(), *self.context("decoder.self", f"{layer}.attention", masked=True)],
            ),
            ("4", "Add and normalize", "", self.add_and_norm(f"{layer}.attention_residual", "Y", "O", y)),
            (
                "6",
                "Cross-attention, feed-forward net, each with add and normalize",
                "K and V come from the output of the encoder, Q from step (4). (The slides count this before (5).)",
                [
                    *self.projections("decoder.cross", cross, ("N of (4)", "N of encoder (11)"), (after_self, memory)),
                    *self.scores("decoder.cross", cross),
                    *self.context("decoder.cross", cross),
                    *self.add_and_norm(f"{layer}.cross_attention_residual", "N of (4)", "O", after_self),
                    *first,
                    *second,
                    *self.add_and_norm(f"{layer}.feedforward_residual", "N", "H", after_cross),
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
            Result("L", "N W" + plus(bias), logits, self.given, WORDS, [linear(normed, weight, bias, logits)]),
            Result("P", "softmax(L)", probabilities, self.given, WORDS, [first_entry(line)]),
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
                line = first_entry(f"{number(old)} − {self.settings.lr:g} · {bracket(g)} = {number(after)}")
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
