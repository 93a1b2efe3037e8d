"""Ensembles: of one, of equals, of different architectures against an average written out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from sightline.decoding.engine import decode
from sightline.decoding.ensemble import Ensemble, mean_log_probabilities, model_limits
from sightline.decoding.request import make_requests
from sightline.decoding.scoring import attention_to_source, log_probabilities, strongest_links
from sightline.layers.layout import Padded
from sightline.layers.tap import Tapped, on_taps
from sightline.models.language_model import DecoderOnly
from sightline.models.seq2seq import Seq2Seq
from sightline.recipe import Decoding
from sightline.recipe.model import ModelConfig

END, START = 3, 2
SOURCES = [[5, 9, 4], [6], [12, 8, 5, 7, 10], [4, 4, 11, 5]]
WAYS = [
    {"beam": 1},
    {"beam": 4, "nbest": 3},
    {"beam": 4, "groups": 2, "nbest": 4},
    {"beam": 1, "nbest": 3, "sample": {"seed": 7}},
    {"beam": 3, "no_repeat": 2, "min_length": 3},
]
LSTM = (
    {"kind": "recurrent", "cell": "lstm", "layers": 1, "dropout": 0.0},
    {"kind": "recurrent", "cell": "lstm", "layers": 2, "attention": {"kind": "additive"}, "dropout": 0.0},
)
BLIND = (LSTM[0], {"kind": "recurrent", "cell": "gru", "layers": 1, "attention": {"kind": "none"}, "dropout": 0.0})
TRANSFORMER = ({"kind": "transformer", "layers": 2, "heads": 2, "dropout": 0.0},) * 2


def options(**changes: Any) -> Decoding:
    return Decoding.model_validate({"max_length": 9, **changes})


@pytest.fixture
def mixed(build_model: Callable[..., Seq2Seq]) -> list[Seq2Seq]:
    return [build_model(*bodies, seed=seed) for seed, bodies in enumerate([LSTM, TRANSFORMER, BLIND])]


def average(models: list[Seq2Seq], source: list[int], past: list[int], weights: list[float], logs: bool) -> np.ndarray:
    """p of every next word, from whole passes of each model, in double precision."""
    rows = []
    with torch.no_grad():
        for model in models:
            state = model.begin(model.encode(torch.tensor([[*source, END]]), Padded.of([len(source) + 1])))
            features, _ = model.advance(torch.tensor([[START, *past]]), state)
            rows.append(model.logits(features[0, -1]).double().softmax(-1).numpy())
    if logs:
        product = np.exp(sum(weight * np.log(row) for weight, row in zip(weights, rows, strict=True)))
        return np.asarray(product / product.sum())
    return np.asarray(sum(weight * row for weight, row in zip(weights, rows, strict=True)))


@pytest.mark.parametrize("changes", WAYS)
def test_an_ensemble_of_one_is_the_model_itself(model: Seq2Seq, changes: dict[str, Any]) -> None:
    one, itself = (decode(each, make_requests(SOURCES), options(**changes)) for each in (Ensemble([model]), model))
    assert one == itself


@pytest.mark.parametrize(("changes", "mean"), [(WAYS[1], "probabilities"), (WAYS[3], "logs")])
def test_an_ensemble_of_equals_is_any_of_them(model: Seq2Seq, changes: dict[str, Any], mean: Any) -> None:
    both = decode(Ensemble([model, model], mean=mean), make_requests(SOURCES), options(**changes))
    alone = decode(model, make_requests(SOURCES), options(**changes))
    assert [[h.tokens for h in beams] for beams in both] == [[h.tokens for h in beams] for beams in alone]
    for ours, theirs in zip(both, alone, strict=True):
        assert [h.score for h in ours] == pytest.approx([h.score for h in theirs], abs=1e-5)


@pytest.mark.parametrize("logs", [False, True])
def test_different_models_are_averaged_word_by_word(mixed: list[Seq2Seq], logs: bool) -> None:
    weights = [0.5, 0.3, 0.2]
    together = Ensemble(mixed, weights=[5, 3, 2], mean="logs" if logs else "probabilities")
    for source, (result,) in zip(SOURCES, decode(together, make_requests(SOURCES), options(beam=1)), strict=True):
        total, past = 0.0, list[int]()
        for word in [*result.tokens, END]:
            shares = average(mixed, source, past, weights, logs)
            if len(past) < 8:
                assert word == max([1, *range(3, 13)], key=lambda each: shares[each])
            total, past = total + float(np.log(shares[word])), [*past, word]
        assert result.log_probability == pytest.approx(total, abs=1e-4)  # nine float32 log-probabilities


def test_a_given_output_is_scored_by_the_average(mixed: list[Seq2Seq]) -> None:
    target = [7, 7, 4]
    (result,) = log_probabilities(Ensemble(mixed), SOURCES[:1], [target])
    words = [*target, END]
    expected = sum(np.log(average(mixed, SOURCES[0], words[:k], [1 / 3] * 3, False)[words[k]]) for k in range(4))
    assert result == pytest.approx(expected, abs=1e-5)


def test_an_average_of_probabilities_is_not_one_of_logs() -> None:
    logs = [torch.tensor([0.9, 0.1]).log(), torch.tensor([0.2, 0.8]).log()]
    result = mean_log_probabilities(logs, [0.5, 0.5], "probabilities").exp().tolist()
    assert result == pytest.approx([0.55, 0.45])
    roots = [(0.9 * 0.2) ** 0.5, (0.1 * 0.8) ** 0.5]
    result = mean_log_probabilities(logs, [0.5, 0.5], "logs").exp().tolist()
    assert result == pytest.approx([root / sum(roots) for root in roots])


def test_coverage_is_the_mean_over_the_models_that_look(mixed: list[Seq2Seq]) -> None:
    """The Transformer has two layers that look and the LSTM one, and both count the same."""
    together = Ensemble(mixed)
    chosen = options(beam=4, nbest=4, coverage_penalty=0.4, length_penalty=0.7, max_length=6)
    for guess in decode(together, make_requests(SOURCES[:1]), chosen)[0]:
        covered = np.mean([looked(model, SOURCES[0], guess.tokens) for model in mixed[:2]], axis=0).sum(0)
        penalty = 0.4 * np.log(np.minimum(covered, 1.0)).sum()
        expected = guess.log_probability / ((5 + len(guess.tokens) + 1) / 6) ** 0.7 + penalty
        assert guess.score == pytest.approx(expected, abs=1e-4)


def looked(model: Seq2Seq, source: list[int], target: list[int]) -> np.ndarray:
    """(T + 1, S + 1) the mean over all layers and heads."""
    taps: dict[str, list[torch.Tensor]] = {}

    def hear(tapped: Tapped) -> None:
        if tapped.name.endswith(".weights"):
            taps.setdefault(tapped.name, []).append(tapped.tensor[0].mean(0))

    with torch.no_grad(), on_taps(model, hear, model.cross_attention_paths):
        state = model.begin(model.encode(torch.tensor([[*source, END]]), Padded.of([len(source) + 1])))
        model.advance(torch.tensor([[START, *target]]), state)
    return np.mean([torch.cat(parts).numpy() for parts in taps.values()], axis=0)


def test_where_an_ensemble_looked_is_the_mean_of_those_that_look(mixed: list[Seq2Seq]) -> None:
    result = attention_to_source(Ensemble(mixed), SOURCES[0], [5, 6])
    parts = [attention_to_source(model, SOURCES[0], [5, 6]) for model in mixed[:2]]
    np.testing.assert_allclose(result, np.mean(parts, axis=0))
    assert attention_to_source(Ensemble(mixed[2:]), SOURCES[0], [5]) is None
    (links,) = strongest_links(Ensemble(mixed), SOURCES[:1], [[5, 6]])
    assert links.tolist() == np.mean(parts, axis=0)[:2, : len(SOURCES[0])].argmax(1).tolist()


@pytest.mark.parametrize("changes", WAYS)
def test_ensemble_outputs_do_not_depend_on_the_batch(mixed: list[Seq2Seq], changes: dict[str, Any]) -> None:
    sources = SOURCES * 4
    one, all_ = (
        decode(Ensemble(mixed), make_requests(sources), options(**changes, batch_tokens=size)) for size in (1, 9999)
    )
    assert [[h.tokens for h in beams] for beams in one] == [[h.tokens for h in beams] for beams in all_]


def test_prefixes_hold_for_all_models(mixed: list[Seq2Seq]) -> None:
    result = decode(Ensemble(mixed), make_requests(SOURCES, prefixes=[[8, 8], [], [4], [9]]), options(beam=3))
    assert result[0][0].tokens[:2] == [8, 8]
    assert result[2][0].tokens[0] == 4 and result[3][0].tokens[0] == 9


def test_an_ensemble_has_no_more_room_than_any_of_its_models(
    mixed: list[Seq2Seq], build_model: Callable[..., Seq2Seq]
) -> None:
    """And only what reads a source and its target as one text gives the source some of its room."""
    bodies = [
        {**TRANSFORMER[0], "positions": {"kind": "learned", "max_positions": longest}} for longest in (32, 20, 40)
    ]
    both = [build_model(body, body) for body in bodies[:2]]
    alone = DecoderOnly(ModelConfig.model_validate({"width": 8, "decoder": bodies[2]}), 13)
    assert model_limits(Ensemble([*both, alone, *mixed])) == [(32, False), (20, False), (40, True)]
    assert Ensemble([*both, *mixed]).longest == 20
    assert Ensemble(mixed).longest is None


@pytest.mark.parametrize("weights", [[1.0], [1.0, 0.0, 1.0], [1.0, -1.0, 1.0]])
def test_weights_that_do_not_fit_are_refused(mixed: list[Seq2Seq], weights: list[float]) -> None:
    with pytest.raises(ValueError, match="do not fit 3 models; give each one a number above 0"):
        Ensemble(mixed, weights=weights)


def test_another_mean_is_refused(mixed: list[Seq2Seq]) -> None:
    with pytest.raises(ValueError, match="not of 'max'"):
        Ensemble(mixed, mean="max")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one model"):
        Ensemble([])
