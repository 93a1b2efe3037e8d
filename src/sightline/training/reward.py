"""Fine-tuning on expected sentence reward (Wu et al. 2016, §5).

    loss = Σ_x [ −E_{y ~ p(·|x)} r(y) + mix · CE(x) ]

over the sources x of a batch, r from 0 to 1 and CE the (label-smoothed) cross entropy of the reference, summed over its
tokens. The gradient of the expectation is estimated from N outputs y sampled for each source (Williams 1992), each
against the mean reward of the others, which leaves it unbiased:

    −1/N Σ_n (r_n − 1/(N−1) Σ_{m≠n} r_m) ∇ log p(y_n | x),

with p at the sampling temperature.

Outputs are sampled in evaluation mode, so from the model as it will be used; log p(y) is then computed in training
mode, with the dropout of the recipe (the paper fine-tunes without any). Losses of layers (the balance of experts) are
added to the cross entropy, at its weight. The seed of sampling comes from PyTorch's generator, which the trainer seeds
at each step: a resumed training samples what the uninterrupted one would have sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sightline.data.collate import TrainingBatch, padded_batch, seq2seq_ids
from sightline.data.target_lengths import TargetLengths
from sightline.decoding.engine import Engine, decode
from sightline.decoding.request import length_batches, make_requests, output_limits
from sightline.evaluation.bleu import sentence_gleu
from sightline.layers.devices import autocast, resolve_precision
from sightline.layers.linear import linear
from sightline.layers.losses import Loss
from sightline.recipe import Decoding, Recipe, Reward, Sampling
from sightline.tasks.losses import batch_loss
from sightline.text.tokenizer import END, PAD, SPECIALS, START
from sightline.text.vocabulary import Vocabulary
from sightline.training.objectives import Carried, Objective, TaskLoss

Ids = Sequence[int]
REWARDS: dict[str, Callable[[Sequence[Sequence[Hashable]], Sequence[Hashable]], list[float]]] = {"gleu": sentence_gleu}


def advantages(rewards: np.ndarray) -> np.ndarray:
    """(B, N) rewards of the outputs of each source, each less the mean of the others'."""
    count = rewards.shape[1]
    result: np.ndarray = (rewards - rewards.mean(1, keepdims=True)) * count / (count - 1)
    return result


def sampling_options(section: Reward, max_ratio: float | None, seed: int, longest: int | None) -> Decoding:
    """The options for sampling outputs, none longer than the model can take."""
    return Decoding(
        beam=1,
        nbest=section.samples,
        max_length=section.max_length if longest is None else min(section.max_length, longest),
        max_ratio=max_ratio,
        sample=Sampling(temperature=section.temperature, seed=seed),
    )


def ratio_of(recipe: Recipe, lengths: TargetLengths | None) -> float | None:
    """The most tokens sampled per source token: as the recipe says, or by the lengths of the training text."""
    if recipe.decoding.max_ratio is not None or lengths is None:
        return recipe.decoding.max_ratio
    return lengths.ratio_limit


def weighted_nll(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    factors: Tensor,
    marks: int = 0,
    temperature: float = 1.0,
) -> Tensor:
    """Σ_b factor_b Σ_t −log p(y_bt) of features (B, T, D), over targets (B, T) that are not PAD.

    p is the distribution that outputs are sampled from, at that temperature: tokens that a search never outputs have
    probability 0 in it (padding, start, and the `marks` ids behind the specials, marks of noise).
    """
    real = targets != PAD
    logits = linear(features[real], weight, bias).float() / temperature  # (real, V)
    logits[:, [PAD, START, *range(len(SPECIALS), len(SPECIALS) + marks)]] = float("-inf")
    right = logits.gather(1, targets[real][:, None])[:, 0]
    return ((logits.logsumexp(-1) - right) * factors[:, None].expand_as(targets)[real]).sum()


@dataclass(frozen=True)
class RewardScorer:
    """Scores outputs against references, both as ids."""

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
    """The mean reward of outputs sampled for held-out sources, always with the same seed."""
    section = recipe.training.reward
    assert section is not None
    options = sampling_options(section, ratio_of(recipe, lengths), recipe.seed, model.longest)
    outputs = decode(model, make_requests(sources, marks=len(vocabulary.target.marks)), options, device=device)
    scorer = RewardScorer(section, vocabulary)
    rewards = [
        float(scorer([[guess.tokens for guess in guesses]], [reference]).mean())  # an empty source has one output
        for guesses, reference in zip(outputs, references, strict=True)
    ]
    return float(np.mean(rewards))


@dataclass(frozen=True)
class RewardedBatch(TrainingBatch):
    """The batch itself, whose likelihood is part of the loss; `reward` is the sum of its sources' mean rewards."""

    reward: float = 0.0


@dataclass(frozen=True)
class SampledBatch(TrainingBatch):
    """Sampled outputs as targets; only the gradient of their weighted likelihood counts."""

    factors: Tensor | None = None  # (B,) the weight of each output


class ExpectedReward(Objective):
    """Expected reward mixed with likelihood, over padded batches."""

    compiles = False

    def __init__(
        self,
        recipe: Recipe,
        vocabulary: Vocabulary,
        device: torch.device,
        lengths: TargetLengths | None = None,
        task_loss: TaskLoss = batch_loss,
    ) -> None:
        super().__init__(recipe.training, task_loss)
        section = recipe.training.reward
        assert section is not None
        self.recipe, self.section, self.device = recipe, section, device
        self.precision = resolve_precision(recipe.training.precision, device)
        self.max_ratio = ratio_of(recipe, lengths)
        self.score, self.marks = RewardScorer(section, vocabulary), len(vocabulary.target.marks)

    def __call__(self, model: Any, batch: TrainingBatch, carried: Carried | None = None) -> Loss:
        if isinstance(batch, SampledBatch):
            return self.sampled_loss(model, batch)
        loss = super().__call__(model, batch)
        reward = batch.reward if isinstance(batch, RewardedBatch) else 0.0
        return loss._replace(total=self.section.nll_weight * loss.total - reward)

    def microbatches(self, model: Any, batch: TrainingBatch) -> Iterator[TrainingBatch]:
        """Sample outputs and score them; then the batch itself, and the outputs in parts of limited size."""
        sources, references = rows_of(batch.source), rows_of(batch.labels)
        outputs, cut = self.sample(model, sources)
        rewards = self.score(outputs, references)  # (B, N)
        factors = advantages(rewards) / self.section.samples  # (B, N)
        flops = batch.flops + sampling_flops(self.flops, sources, outputs)
        yield RewardedBatch(**{**vars(batch), "flops": flops}, reward=float(rewards.mean(1).sum()))
        pairs = [pair for b in range(len(sources)) for pair in merged(sources[b], outputs[b], factors[b], cut[b])]
        lengths = [max(len(source), len(output)) + 1 for source, output, _, _ in pairs]
        for indices in length_batches(lengths, self.recipe.training.batches.tokens):
            yield self.sampled_batch([pairs[index] for index in indices])

    def sample(self, model: Any, sources: Sequence[Ids]) -> tuple[list[list[list[int]]], list[list[bool]]]:
        """N outputs for each source, and which of them the length limit cut off: those did not choose to end."""
        seed = int(torch.randint(2**62, ()))
        options = sampling_options(self.section, self.max_ratio, seed, model.longest)
        requests = make_requests(sources, marks=self.marks, options=options)
        engine = Engine(model, device=self.device)
        model.eval()
        with autocast(self.precision, self.device):
            numbers = [engine.add(request) for request in requests]
            samples = engine.drain()
        model.train()
        nothing: list[list[int]] = [[]] * self.section.samples  # a model without finite scores; its loss will say so
        outputs = [[guess.tokens for guess in samples[number]] or nothing for number in numbers]
        limits = output_limits(requests, engine.limits)
        cut = [[len(o) + 1 >= limit for o in several] for several, limit in zip(outputs, limits, strict=True)]
        return outputs, cut

    def sampled_batch(self, pairs: Sequence[tuple[Ids, Ids, float, bool]]) -> SampledBatch:
        """Some outputs with their factors; one that was cut off has no end mark to learn."""
        batch = pair_batch([(source, output) for source, output, _, _ in pairs])
        for row, (_, output, _, cut) in enumerate(pairs):
            if cut:
                batch.labels[row, len(output)] = PAD
        batch = replace(batch, flops=self.flops(batch))
        batch = batch.to(self.device) if self.device.type != "cpu" else batch
        factors = torch.tensor([factor for _, _, factor, _ in pairs], device=self.device)
        return SampledBatch(**vars(batch), factors=factors)

    def sampled_loss(self, model: Any, batch: SampledBatch) -> Loss:
        """A loss of value 0 with the gradient of the outputs' weighted likelihood."""
        assert batch.factors is not None
        features = model(batch.source, batch.source_layout, batch.decoder_input, batch.decoder_layout)
        output, temperature = model.output, self.section.temperature
        nll = weighted_nll(features, output.weight, output.bias, batch.labels, batch.factors, self.marks, temperature)
        return Loss(nll - nll.detach(), nll.new_zeros(()))


def sampling_flops(
    flops: Callable[[TrainingBatch], int], sources: Sequence[Ids], outputs: Sequence[Sequence[Ids]]
) -> int:
    """The operations of sampling; `flops` gives those of a step with a batch, of which the forward pass is a third.

    Sources are encoded once, with the first token of each output; all outputs of a source continue until the last ends.
    """
    whole = flops(pair_batch([(source, ()) for source in sources]))
    by_length: dict[int, list[Ids]] = {}
    for source, several in zip(sources, outputs, strict=True):
        by_length.setdefault(max(map(len, several)), []).extend([source] * len(several))
    for longest, repeated in by_length.items():
        long, short = (flops(pair_batch([(source, (END,) * length) for source in repeated])) for length in (longest, 0))
        whole += (long - short) * (longest + 1) // max(longest, 1)
    return whole // 3


def merged(
    source: Ids, outputs: Sequence[Ids], factors: np.ndarray, cut: Sequence[bool]
) -> list[tuple[Ids, Ids, float, bool]]:
    """Each output once, with the sum of its factors; outputs whose factors add up to 0 are left out."""
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
    """Sources and outputs as a padded batch."""
    sources, outputs = ([np.asarray(ids, np.int64) for ids in side] for side in zip(*pairs, strict=True))
    return padded_batch(seq2seq_ids(sources, outputs), np.arange(len(pairs)))
