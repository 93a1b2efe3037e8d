"""Fine-tuning on expected sentence reward (Wu et al. 2016, §5).

    loss = Σ_x [ −E_{y ~ p(·|x)} r(y) + mix · CE(x) ]

over the sources x of a batch, r from 0 to 1 and CE the (label-smoothed) cross entropy of the reference, summed over its
tokens. The gradient of the expectation is estimated from N outputs y drawn for each source (Williams 1992), each
against the mean reward of the others, which leaves it unbiased:

    −1/N Σ_n (r_n − 1/(N−1) Σ_{m≠n} r_m) ∇ log p(y_n | x),

with p at the temperature of the drawing.

Outputs are drawn in evaluation mode, so from the model as it will be used; log p(y) is then computed in training mode,
with what dropout the recipe has (the paper fine-tunes without any); losses that layers have of their own (the balance
of experts) come with the cross entropy, at its weight. Luck is drawn from PyTorch's generator, which the
loop seeds at each step: a resumed training draws what the uninterrupted one would have drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sightline.data.collate import TrainingBatch, padded_batch, seq2seq_ids
from sightline.data.target_lengths import TargetLengths
from sightline.decoding.generate import generate
from sightline.decoding.padding import length_batches
from sightline.decoding.request import Request, make_batch
from sightline.decoding.search import walk
from sightline.evaluation.bleu import sentence_gleu
from sightline.layers.devices import autocast
from sightline.layers.linear import linear
from sightline.layers.losses import Loss
from sightline.recipe import Decoding, Recipe, Reward, Sampling
from sightline.text.tokenizer import END, PAD, SPECIALS, START
from sightline.text.vocabulary import Vocabulary
from sightline.training.objectives import batch_loss
from sightline.training.train_step import PlainGradients

Ids = Sequence[int]
REWARDS: dict[str, Callable[[Sequence[Sequence[Hashable]], Sequence[Hashable]], list[float]]] = {"gleu": sentence_gleu}


def advantages(rewards: np.ndarray) -> np.ndarray:
    """(B, N) rewards of the outputs of each source, each less the mean of the others'."""
    count = rewards.shape[1]
    found: np.ndarray = (rewards - rewards.mean(1, keepdims=True)) * count / (count - 1)
    return found


def drawing(section: Reward, max_ratio: float | None, seed: int, longest: int | None) -> Decoding:
    """The options of a search that draws the outputs, none longer than the model can take: nothing else is asked."""
    return Decoding(
        beam=1,
        nbest=section.samples,
        max_length=section.max_length if longest is None else min(section.max_length, longest),
        max_ratio=max_ratio,
        sample=Sampling(temperature=section.temperature, seed=seed),
    )


def ratio_of(recipe: Recipe, lengths: TargetLengths | None) -> float | None:
    """The most tokens drawn for each source token: as the recipe says, or by the lengths of the training text."""
    if recipe.decoding.max_ratio is not None or lengths is None:
        return recipe.decoding.max_ratio
    return lengths.ratio_limit


def weighted_nll(
    features: Tensor,
    weight: Tensor,
    bias: Tensor,
    targets: Tensor,
    factors: Tensor,
    marks: int = 0,
    temperature: float = 1.0,
) -> Tensor:
    """Σ_b factor_b Σ_t −log p(y_bt) of features (B, T, D), over targets (B, T) that are not PAD.

    p is what outputs are drawn from, at that temperature: what a search never says has no share in it (padding, start,
    and the `marks` ids behind the specials, marks of noise).
    """
    real = targets != PAD
    logits = linear(features[real], weight, bias).float() / temperature  # (real, V)
    logits[:, [PAD, START, *range(len(SPECIALS), len(SPECIALS) + marks)]] = float("-inf")
    right = logits.gather(1, targets[real][:, None])[:, 0]
    return ((logits.logsumexp(-1) - right) * factors[:, None].expand_as(targets)[real]).sum()


@dataclass(frozen=True)
class Judge:
    """Measures outputs against references, both as ids."""

    section: Reward
    vocabulary: Vocabulary

    def __call__(self, outputs: Sequence[Sequence[Ids]], references: Sequence[Ids]) -> np.ndarray:
        """(B, N) rewards of N outputs for each of B references."""
        measure = REWARDS[self.section.metric]
        rows = [
            measure(self._units(several), self._units([reference])[0])
            for several, reference in zip(outputs, references, strict=True)
        ]
        return np.array(rows, np.float64)

    def _units(self, sequences: Sequence[Ids]) -> Sequence[Sequence[Hashable]]:
        if self.section.unit == "tokens":
            return [tuple(sequence) for sequence in sequences]
        return [text.split() for text in self.vocabulary.target.decode_many(sequences)]


def expected_reward(
    model: Any,
    recipe: Recipe,
    vocabulary: Vocabulary,
    sources: Sequence[Ids],
    references: Sequence[Ids],
    device: Any,
    lengths: TargetLengths | None = None,
) -> float:
    """The mean reward of outputs drawn for held-out sources, always with the same luck."""
    section = recipe.training.reward
    assert section is not None
    options = drawing(section, ratio_of(recipe, lengths), recipe.seed, model.longest)
    found = generate(model, Request(sources, marks=len(vocabulary.target.marks)), options, device=device)
    judge = Judge(section, vocabulary)
    rewards = [
        float(judge([[guess.tokens for guess in guesses]], [reference]).mean())  # an empty source has one output
        for guesses, reference in zip(found, references, strict=True)
    ]
    return float(np.mean(rewards))


class RewardGradients(PlainGradients):
    """`Gradients` of expected reward mixed with likelihood, over padded batches."""

    def __init__(
        self,
        model: Any,
        recipe: Recipe,
        vocabulary: Vocabulary,
        device: torch.device,
        flops: Callable[[TrainingBatch], int],
        lengths: TargetLengths | None = None,
    ) -> None:
        super().__init__(model, recipe.training, device)
        section = recipe.training.reward
        assert section is not None
        self.writer, self.recipe, self.section, self.flops = model, recipe, section, flops
        self.max_ratio = ratio_of(recipe, lengths)
        self.judge, self.marks = Judge(section, vocabulary), len(vocabulary.target.marks)

    def _add(self, batch: TrainingBatch, tokens: int) -> Loss:
        sources, references = rows_of(batch.source), rows_of(batch.labels)
        outputs, cut = self.draw(sources)
        rewards = self.judge(outputs, references)  # (B, N)
        factors = advantages(rewards) / self.section.samples  # (B, N)
        with autocast(self.precision, self.device):
            likelihood = batch_loss(self.model, batch, self.recipe.training.label_smoothing)
        self.backward(self.section.nll_weight * likelihood.total / tokens)
        likelihood = likelihood.detached()
        total = self.section.nll_weight * likelihood.total - float(rewards.mean(1).sum())  # what the gradients lower
        pairs = [pair for b in range(len(sources)) for pair in merged(sources[b], outputs[b], factors[b], cut[b])]
        lengths = [max(len(source), len(output)) + 1 for source, output, _, _ in pairs]
        for indices in length_batches(lengths, self.recipe.training.batches.tokens):
            self._learn([pairs[index] for index in indices], tokens)
        return likelihood._replace(total=total)

    def draw(self, sources: Sequence[Ids]) -> tuple[list[list[list[int]]], list[list[bool]]]:
        """N outputs for each source, and which of them were cut off by the limit: those did not choose to end."""
        seed = int(torch.randint(2**62, ()))
        options = drawing(self.section, self.max_ratio, seed, self.writer.longest)
        batch = make_batch(Request(sources, marks=self.marks), options, self.device)
        self.model.eval()
        with autocast(self.precision, self.device):
            found = walk(self.writer, batch, options)
        self.model.train()
        nothing: list[list[int]] = [[]] * self.section.samples  # said where the model has no numbers, as its loss tells
        outputs = [[guess.tokens for guess in guesses] or nothing for guesses in found]
        limits = batch.limits.tolist()
        cut = [[len(o) + 1 >= limit for o in several] for several, limit in zip(outputs, limits, strict=True)]
        self.spent += drawing_flops(self.flops, sources, outputs)
        return outputs, cut

    def _learn(self, pairs: Sequence[tuple[Ids, Ids, float, bool]], tokens: int) -> None:
        """Forward and backward over some outputs; what is differentiated is no part of the loss, its gradient is."""
        batch = pair_batch([(source, output) for source, output, _, _ in pairs])
        self.spent += self.flops(batch)
        for row, (_, output, _, cut) in enumerate(pairs):
            if cut:
                batch.labels[row, len(output)] = PAD
        batch = batch.to(self.device) if self.device.type != "cpu" else batch
        factors = torch.tensor([factor for _, _, factor, _ in pairs], device=self.device)
        with autocast(self.precision, self.device):
            features = self.writer(batch.source, batch.source_layout, batch.decoder_input, batch.decoder_layout)
            output, temperature = self.writer.output, self.section.temperature
            loss = weighted_nll(features, output.weight, output.bias, batch.labels, factors, self.marks, temperature)
        self.backward(loss / tokens)


def drawing_flops(
    flops: Callable[[TrainingBatch], int], sources: Sequence[Ids], outputs: Sequence[Sequence[Ids]]
) -> int:
    """What drawing took: `flops` says what a step over a batch would, of which the pass forwards is a third.

    Sources are read once, with the first token of each output; all outputs of a source go on until its last one ends.
    """
    whole = flops(pair_batch([(source, ()) for source in sources]))
    by_steps: dict[int, list[Ids]] = {}
    for source, several in zip(sources, outputs, strict=True):
        by_steps.setdefault(max(map(len, several)), []).extend([source] * len(several))
    for longest, read in by_steps.items():
        long, short = (flops(pair_batch([(source, (END,) * length) for source in read])) for length in (longest, 0))
        whole += (long - short) * (longest + 1) // max(longest, 1)
    return whole // 3


def merged(
    source: Ids, outputs: Sequence[Ids], factors: np.ndarray, cut: Sequence[bool]
) -> list[tuple[Ids, Ids, float, bool]]:
    """Each output once, with the sum of its factors; where those add up to nothing there is nothing to learn."""
    sums: dict[tuple[int, ...], float] = {}
    flags = {}
    for output, factor, flag in zip(outputs, factors.tolist(), cut, strict=True):
        sums[tuple(output)] = sums.get(tuple(output), 0.0) + factor
        flags[tuple(output)] = flag
    return [(source, output, total, flags[output]) for output, total in sums.items() if total]


def rows_of(table: Tensor | None) -> list[list[int]]:
    """The ids of each row (B, T) before its end mark."""
    assert table is not None
    return [row[: row.index(END)] for row in table.tolist()]


def pair_batch(pairs: Sequence[tuple[Ids, Ids]]) -> TrainingBatch:
    """Sources and outputs as a translator is shown them."""
    sources, outputs = ([np.asarray(ids, np.int64) for ids in side] for side in zip(*pairs, strict=True))
    return padded_batch(seq2seq_ids(sources, outputs), np.arange(len(pairs)))
