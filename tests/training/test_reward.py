"""Expected reward: the estimate against the exact gradient, exact resume, and that fine-tuning raises it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import sightline
from sightline.data.collate import TrainingBatch, padded_batch, seq2seq_ids
from sightline.decoding.engine import decode
from sightline.decoding.request import make_requests
from sightline.evaluation.bleu import sentence_gleu
from sightline.layers.dropout import Dropout
from sightline.models.seq2seq import Seq2Seq
from sightline.models.transformer.modules import TransformerDecoder
from sightline.recipe import Recipe, Reward
from sightline.tasks.losses import batch_loss
from sightline.text.tokenizer import END, PAD, START
from sightline.training.dry_run import dry_run
from sightline.training.flops import count_flops
from sightline.training.resolve import open_recipe
from sightline.training.reward import (
    ExpectedReward,
    RewardScorer,
    advantages,
    expected_reward,
    pair_batch,
    sampling_flops,
    sampling_options,
    weighted_nll,
)
from sightline.training.train_step import StepRunner, TrainStep
from sightline.training.world import Interrupted
from tiny_recipes import GRU, sequences, training, write_recipe
from watched_runs import Silent, own_cache, records

CPU = torch.device("cpu")


def a_recipe(steps: int = 60, **changes: Any) -> dict[str, Any]:
    return {
        "data": sequences(200, 20),
        "tokenizer": {"kind": "character"},
        "model": {"width": 16, "encoder": GRU, "decoder": {**GRU, "attention": {"kind": "dot"}}},
        "training": training(
            steps, **{"lr": 5e-3, "batches": {"tokens": 150}, "validate_every": 20, "log_every": 5, **changes}
        ),
        "decoding": {"beam": 1, "max_length": 12},
        "evaluation": {"metrics": ["exact"]},
    }


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A partly trained model of the toy task."""
    with own_cache(tmp_path_factory.mktemp("cache")):
        folder = tmp_path_factory.mktemp("started")
        yield sightline.train(write_recipe(folder, a_recipe()), out=folder / "run", display=Silent()).folder


REWARD = {"samples": 6, "nll_weight": 0.017, "max_length": 8}


def fine_tuning(start: Path, steps: int = 20, **changes: Any) -> dict[str, Any]:
    own = {"reward": REWARD, "stopping": {"monitor": "reward"}, "lr": 3e-3, **changes}
    recipe = a_recipe(steps, **own)
    return {**recipe, "model": {**recipe["model"], "init_from": str(start)}}


# --- the estimate ------------------------------------------------------------------------------------------------


def test_the_baseline_of_an_output_is_the_mean_reward_of_the_others() -> None:
    found = advantages(np.array([[1.0, 0.0, 0.5], [0.2, 0.2, 0.2]]))
    np.testing.assert_allclose(found, [[1 - 0.25, 0 - 0.75, 0.5 - 0.5], [0, 0, 0]], atol=1e-12)


@pytest.mark.parametrize(("longest", "expected"), [(None, 30), (20, 20), (40, 30)])
def test_sampled_outputs_are_limited_by_recipe_and_model(longest: int | None, expected: int) -> None:
    options = sampling_options(Reward(samples=3, max_length=30, temperature=0.7), 1.5, 8, longest)
    assert (options.max_length, options.max_ratio, options.nbest, options.beam) == (expected, 1.5, 3, 1)
    assert options.sample is not None and (options.sample.temperature, options.sample.seed) == (0.7, 8)


@pytest.mark.parametrize(("marks", "temperature"), [(0, 1.0), (3, 1.0), (0, 0.5)])
def test_the_weighted_loss_equals_its_formula(marks: int, temperature: float) -> None:
    features, weight, bias = torch.randn(3, 4, 8), torch.randn(13, 8), torch.randn(13)
    targets, factors = torch.randint(4 + marks, 13, (3, 4)), torch.tensor([0.5, -1.0, 2.0])
    targets[0, 3], targets[1, 2:] = END, PAD
    logits = (features @ weight.T + bias) / temperature
    logits[..., [PAD, START, *range(4, 4 + marks)]] = float("-inf")  # never sampled
    logs = logits.log_softmax(-1)
    expected = 0.0
    for b, t in product(range(3), range(4)):
        if targets[b, t] != PAD:
            expected -= float(factors[b] * logs[b, t, targets[b, t]])
    found = weighted_nll(features, weight, bias, targets, factors, marks, temperature)
    assert found.item() == pytest.approx(expected, rel=1e-5)


def toy(build_model: Callable[..., Seq2Seq], marks: int = 0, **reward: Any) -> tuple[Seq2Seq, StepRunner]:
    """A model that writes at most one of six words, although its bias favours padding.

    The first `marks` words are noise marks.
    """
    model = build_model(GRU, GRU)
    with torch.no_grad():
        model.output.bias[range(9, 13)] = -1e4
        model.output.bias[[PAD, START]] = 1.0
    recipe = Recipe.model_validate(
        a_recipe(
            reward={"nll_weight": 0.0, "max_length": 2, **reward}, stopping={"monitor": "reward"}, label_smoothing=0.0
        )
    )
    vocabulary: Any = SimpleNamespace(target=SimpleNamespace(marks=dict.fromkeys(range(marks))))
    objective = ExpectedReward(recipe, vocabulary, CPU)
    objective.flops = lambda batch: 3
    return model, StepRunner(TrainStep(model, recipe.training, CPU, objective))


@pytest.mark.parametrize(("marks", "temperature"), [(0, 1.0), (2, 1.0), (0, 0.5)])
def test_the_estimate_is_unbiased(build_model: Callable[..., Seq2Seq], marks: int, temperature: float) -> None:
    """Outputs have at most one word, so the exact gradient is a sum over all of them."""
    model, gradients = toy(build_model, marks, samples=20_000, temperature=temperature)
    source, reference = np.array([5, 6]), np.array([6])
    batch = padded_batch(seq2seq_ids([source], [reference]), np.arange(1))
    outputs = [[], *([word] for word in (1, 4, 5, 6, 7, 8) if word not in range(4, 4 + marks))]
    every = pair_batch([(source, output) for output in outputs])
    logits = model.logits(model(every.source, every.source_layout, every.decoder_input, every.decoder_layout))
    silent = torch.isin(torch.arange(logits.shape[-1]), torch.tensor([PAD, START, *range(4, 4 + marks)]))
    logs = (logits / temperature).masked_fill(silent, float("-inf")).log_softmax(-1)
    firsts = torch.stack([logs[row, 0, output[0] if output else END] for row, output in enumerate(outputs)])
    assert firsts.exp().sum().item() == pytest.approx(1.0, abs=1e-5)
    rewards = torch.tensor(sentence_gleu(outputs, [6]))
    model.zero_grad()
    (-(firsts.exp() * rewards).sum() / batch.tokens).backward()
    exact = {name: part.grad.clone() for name, part in model.named_parameters() if part.grad is not None}
    torch.manual_seed(3)
    gradients([batch])
    for name, expected in exact.items():
        found = dict(model.named_parameters())[name].grad
        # 20,000 samples; twice as many were 3% off at most over six seeds
        torch.testing.assert_close(found, expected, rtol=0, atol=0.06 * max(float(expected.abs().max()), 1e-3))


def test_the_gradient_equals_its_formula(build_model: Callable[..., Seq2Seq], monkeypatch: pytest.MonkeyPatch) -> None:
    """−1/N Σ_n (r_n − the mean of the others) ∇ log p(y_n | x) + mix · ∇ CE, over the tokens of the references."""
    model, gradients = toy(build_model, 2, samples=3, temperature=0.5, nll_weight=0.25)
    outputs, cut = [[6, 7], [8], [6, 8, 7]], [False, False, True]  # the last one reached the length limit
    monkeypatch.setattr(gradients.step.objective, "sample", lambda model, sources: ([outputs], [cut]))
    batch = padded_batch(seq2seq_ids([np.array([5, 6])], [np.array([6, 7])]), np.arange(1))
    factors = torch.tensor(advantages(np.array([sentence_gleu(outputs, [6, 7])])))[0] / 3
    every = pair_batch([([5, 6], output) for output in outputs])
    logits = model.logits(model(every.source, every.source_layout, every.decoder_input, every.decoder_layout)) / 0.5
    logits[..., [PAD, START, 4, 5]] = float("-inf")
    logs = logits.log_softmax(-1)
    loss = 0.25 * batch_loss(model, batch, 0.0).total
    for row, (output, ended) in enumerate(zip(outputs, [[END], [END], []], strict=True)):
        for step, word in enumerate([*output, *ended]):
            loss = loss - factors[row].float() * logs[row, step, word]
    model.zero_grad()
    (loss / 3).backward()  # [6, 7] and its end
    expected = {name: part.grad.clone() for name, part in model.named_parameters()}
    model.zero_grad()
    gradients([batch])
    for name, part in model.named_parameters():
        torch.testing.assert_close(part.grad, expected[name], rtol=1e-4, atol=1e-6)


def test_the_likelihood_is_mixed_in_and_reported(build_model: Callable[..., Seq2Seq]) -> None:
    model, gradients = toy(build_model, samples=2, nll_weight=0.5)
    batch = padded_batch(seq2seq_ids([np.array([5])], [np.array([4, 5, 6])]), np.arange(1))
    torch.manual_seed(3)
    loss = gradients([batch])
    with torch.no_grad():
        plain = batch_loss(model, batch, 0.0)
    torch.manual_seed(3)
    _, alone = toy(build_model, samples=2, nll_weight=0.0)
    alone.step.model.load_state_dict(model.state_dict())
    assert loss.nll.item() == pytest.approx(plain.nll.item(), rel=1e-5)
    assert (loss.total - alone([batch]).total).item() == pytest.approx(0.5 * plain.total.item(), rel=1e-4)


def test_the_reported_loss_is_the_expected_reward(build_model: Callable[..., Seq2Seq]) -> None:
    """It is not the surrogate that is differentiated."""
    model, gradients = toy(build_model, samples=8, nll_weight=0.5)
    batch = padded_batch(seq2seq_ids([np.array([5]), np.array([6])], [np.array([4]), np.array([6])]), np.arange(2))
    torch.manual_seed(3)
    drawn, _ = gradients.step.objective.sample(model, [[5], [6]])
    rewards = [sentence_gleu(several, [right]) for several, right in zip(drawn, (4, 6), strict=True)]
    assert 0.0 < np.mean(rewards) < 1.0
    torch.manual_seed(3)
    loss = gradients([batch])
    assert loss.total.item() == pytest.approx(0.5 * loss.nll.item() - np.mean(rewards, 1).sum(), rel=1e-5)


def test_the_loss_of_a_model_with_nan_weights_is_nan(build_model: Callable[..., Seq2Seq]) -> None:
    """Losses are checked only now and then, so such a model may be sampled from."""
    model, gradients = toy(build_model, samples=4, nll_weight=0.5)
    with torch.no_grad():
        model.output.bias.fill_(float("nan"))
    batch = padded_batch(seq2seq_ids([np.array([5]), np.array([6])], [np.array([4]), np.array([6])]), np.arange(2))
    assert torch.isnan(gradients([batch]).total)


def test_a_dry_run_samples_outputs(started: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    sample = ExpectedReward.sample

    def watched(objective: ExpectedReward, model: Any, sources: Any) -> Any:
        drawn.append(len(sources))
        return sample(objective, model, sources)

    monkeypatch.setattr(ExpectedReward, "sample", watched)
    found = dry_run(open_recipe(write_recipe(tmp_path, fine_tuning(started)))[0])
    assert found.step is not None and np.isfinite(found.step.loss)
    assert len(drawn) == 1 and drawn[0] > 1


def test_equal_rewards_give_no_gradient(
    build_model: Callable[..., Seq2Seq],
) -> None:
    model, gradients = toy(build_model, samples=4)
    batch = padded_batch(seq2seq_ids([np.array([5])], [np.array([11, 12])]), np.arange(1))  # never written
    gradients([batch])
    assert all(part.grad is None or not part.grad.any() for part in model.parameters())
    assert gradients.flops == 1  # sampling alone: a third of the 3 that a step costs here


def test_counted_flops_of_sampling_are_close_to_the_real_ones(model: Seq2Seq) -> None:
    """Sources are encoded once, finished outputs leave the batch, and a backward pass costs two forward passes."""

    def step(batch: TrainingBatch) -> int:
        with count_flops() as count:
            batch_loss(model, batch, 0.0).total.backward()
        model.zero_grad()
        return count.total

    sources = [[int(word) for word in torch.randint(4, 13, (3 + number % 4,))] for number in range(8)]
    options = sampling_options(Reward(samples=4, max_length=12), 3.0, 1, model.longest)
    with count_flops() as count:
        found = decode(model, make_requests(sources), options, device=CPU)
    outputs = [[guess.tokens for guess in guesses] for guesses in found]
    told = sampling_flops(step, sources, outputs) / count.total
    # a Transformer's queries meet the keys of the other outputs of their source too, masked: here up to a seventh more
    assert (0.84 if isinstance(model.decoder, TransformerDecoder) else 0.98) < told < 1.03


def test_sampling_is_reproducible_and_without_dropout(build_model: Callable[..., Seq2Seq]) -> None:
    model, gradients = toy(build_model, samples=5, max_length=6)
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outputs, cut = gradients.step.objective.sample(model, [[5, 6, 7], [8]])
        assert model.training
        assert cut == [[len(output) == 5 for output in several] for several in outputs]
        drawn.append(outputs)
    assert drawn[0] == drawn[1] != drawn[2]
    for part in model.modules():
        if isinstance(part, Dropout):
            part.probability = 0.9
    torch.manual_seed(1)
    assert gradients.step.objective.sample(model, [[5, 6, 7], [8]])[0] == drawn[0]


def test_noise_marks_are_never_sampled(build_model: Callable[..., Seq2Seq]) -> None:
    model, gradients = toy(build_model, 2, samples=50, max_length=6)
    with torch.no_grad():
        model.output.bias[[4, 5]] = 50.0  # by far the likeliest
    outputs, _ = gradients.step.objective.sample(model, [[6, 7, 8], [8]])
    tokens = {token for several in outputs for output in several for token in output}
    assert tokens and not tokens & {4, 5}


def test_validation_samples_without_noise_marks_and_with_the_seed(
    started: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, asked = sightline.load(started, device="cpu"), []

    def listed(model: Any, requests: Any, options: Any, device: Any) -> list[list[Any]]:
        asked.append((requests[0].marks, options.sample.seed))
        return [[SimpleNamespace(tokens=[5]), SimpleNamespace(tokens=[6])]]

    monkeypatch.setattr("sightline.training.reward.decode", listed)
    recipe = Recipe.model_validate({**a_recipe(reward=REWARD, stopping={"monitor": "reward"}), "seed": 7})
    vocabulary: Any = SimpleNamespace(target=SimpleNamespace(marks=dict.fromkeys(range(2))))
    assert expected_reward(run.model, recipe, vocabulary, [[5]], [[5]], CPU) == 0.5
    assert asked == [(2, 7)]


def test_the_reward_can_be_of_words_instead_of_tokens(started: Path) -> None:
    run = sightline.load(started, device="cpu")
    reward = Recipe.model_validate(a_recipe(reward={"unit": "words"}, stopping={"monitor": "reward"})).training.reward
    encode = run.vocabulary.target.encode
    found = RewardScorer(reward, run.vocabulary)([[encode("a b"), encode("a")]], [encode("a b")])  # type: ignore[arg-type]
    np.testing.assert_allclose(found, [[1.0, 1 / 3]])


# --- whole trainings ---------------------------------------------------------------------------------------------


def test_fine_tuning_raises_the_reward_on_held_out_text(started: Path, tmp_path: Path) -> None:
    display = Silent()
    run = sightline.train(
        write_recipe(tmp_path, fine_tuning(started, 24, validate_every=12)), out=tmp_path / "run", display=display
    ).folder
    found = records(run, "validation")
    assert [record["step"] for record in found] == [0, 12, 24]
    assert found[-1]["reward"] > found[0]["reward"] + 0.05
    assert any("expected gleu of 6 outputs" in note for note in display.notes)
    loaded = sightline.load(run, device="cpu")
    sources, references = zip(*loaded.test_examples("validation"), strict=True)
    encoded = loaded.encode_sources(sources), loaded.vocabulary.target.encode_many(references)
    again = expected_reward(loaded.model, loaded.recipe, loaded.vocabulary, *encoded, CPU)
    assert again == pytest.approx(max(record["reward"] for record in found), abs=1e-3)  # the best was kept


def test_flops_include_sampling(started: Path, tmp_path: Path) -> None:
    runs = []
    for name, changes in (("reward", {}), ("plain", {"reward": None, "stopping": {"monitor": "loss"}})):
        (tmp_path / name).mkdir()
        recipe = write_recipe(tmp_path / name, fine_tuning(started, 5, **changes))
        runs.append(sightline.train(recipe, out=tmp_path / name / "run", display=Silent()).folder)
    reward, plain = (records(run, "train")[-1] for run in runs)
    assert reward["tokens"] == plain["tokens"]
    assert 3 * plain["flops"] < reward["flops"] < 30 * plain["flops"]  # six outputs a source, drawn and learned from


def test_resumed_fine_tuning_equals_uninterrupted_fine_tuning(started: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, fine_tuning(started, 6, save_every=2))
    whole = sightline.train(recipe, out=tmp_path / "whole", display=Silent()).folder
    stop = Silent({3: lambda: os.kill(os.getpid(), signal.SIGINT)})
    with pytest.raises(Interrupted):
        sightline.train(recipe, out=tmp_path / "run", display=stop)
    run = sightline.train(recipe, out=tmp_path / "run", resume=True, display=Silent()).folder
    assert (run / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert records(run, "train") == records(whole, "train")
    assert records(run, "validation") == records(whole, "validation")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("model.encoder.layers=2", r"fine-tunes a model that can do its task.*encoder\.layers\.1\..* is not there"),
        ("model.init_from.parts=[encoder]", r"fine-tunes a model.*target_embedding\.weight is not there"),
        ("model.width=12", r"nothing of .* fits this model"),
    ],
)
def test_fine_tuning_on_reward_needs_all_weights_of_a_model(
    change: str, message: str, started: Path, tmp_path: Path
) -> None:
    recipe = fine_tuning(started, 1)
    recipe["model"]["init_from"] = {"run": str(started)}
    with pytest.raises(ValueError, match=message):
        sightline.train(write_recipe(tmp_path, recipe), [change], out=tmp_path / "run", display=Silent())
    assert not (tmp_path / "run" / "recipe.yaml").exists()
