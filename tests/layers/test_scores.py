"""Each score function against its formula, written out one query and one key at a time."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from sightline.layers import scores
from sightline.layers.scores import Additive, AttentionScore, Bilinear, Dot, build_score
from sightline.layers.tap import on_taps

WIDTH = 6
KINDS = ("dot", "scaled-dot", "bilinear", "additive", "linear", "unnormalized")
EXACT = {"rtol": 0.0, "atol": 1e-14}  # float64 sums of six products of numbers near one: a few units of 2e-16


def formula(score: AttentionScore, kind: str) -> Callable[[Tensor, Tensor], Tensor]:
    """e(q, h) for one query and one key, as the papers write it."""
    if isinstance(score, Bilinear):
        matrix = score.weight.weight
        return lambda q, h: sum(q[i] * matrix[i, j] * h[j] for i in range(WIDTH) for j in range(WIDTH))
    if isinstance(score, Additive):
        w, b, u, v = score.query.weight, score.query.bias, score.key.weight, score.v
        g = torch.tanh if kind == "additive" else torch.clone
        return lambda q, h: sum(
            v[i] * g(sum(w[i, j] * q[j] + u[i, j] * h[j] for j in range(WIDTH)) + b[i]) for i in range(WIDTH)
        )
    scale = 1.0 if kind == "dot" else 1.0 / math.sqrt(WIDTH)
    return lambda q, h: sum(q[i] * h[i] for i in range(WIDTH)) * scale


def random_score(kind: str) -> AttentionScore:
    score = build_score(kind, WIDTH).double()
    with torch.no_grad():
        for parameter in score.parameters():
            parameter.copy_(torch.randn_like(parameter))  # a bias of zero would hide
    return score


@pytest.mark.parametrize("kind", KINDS)
def test_a_score_is_its_formula(kind: str) -> None:
    score = random_score(kind)
    query, key = torch.randn(2, 3, 4, WIDTH).double(), torch.randn(2, 3, 5, WIDTH).double()
    with torch.no_grad():
        result = score(query, score.prepare(key))
        one = formula(score, kind)
        expected = torch.empty(2, 3, 4, 5, dtype=torch.float64)
        for b, h, t, s in torch.cartesian_prod(*(torch.arange(n) for n in expected.shape)).tolist():
            expected[b, h, t, s] = one(query[b, h, t], key[b, h, s])
    torch.testing.assert_close(result, expected, **EXACT)


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_of_a_score_is_that_of_its_formula(kind: str) -> None:
    score = random_score(kind)
    query = torch.randn(1, 2, 3, WIDTH, dtype=torch.float64, requires_grad=True)
    key = torch.randn(1, 2, 2, WIDTH, dtype=torch.float64, requires_grad=True)
    parameters = tuple(score.parameters())
    assert torch.autograd.gradcheck(lambda q, k, *_: score(q, score.prepare(k)), (query, key, *parameters))


def test_the_dot_score_of_the_lecture_is_0_62() -> None:
    """(0.8, 0.2) · (0.7, 0.3) = 0.62."""
    query = torch.tensor([[[[0.8, 0.2]]]], dtype=torch.float64)
    key = torch.tensor([[[[0.7, 0.3]]]], dtype=torch.float64)
    torch.testing.assert_close(Dot()(query, key).item(), 0.62, **EXACT)


def test_the_vector_of_an_additive_score_starts_as_small_as_the_states_are_wide() -> None:
    v = Additive(6400).v.detach() * 80
    assert 0.99 < v.abs().max() <= 1
    assert float(v.std()) == pytest.approx(1 / math.sqrt(3), rel=0.05)  # uniform from −1 to 1


@pytest.mark.parametrize("kind", KINDS)
def test_only_linear_attention_has_no_softmax(kind: str) -> None:
    assert build_score(kind, WIDTH).softmax is (kind != "unnormalized")


@pytest.mark.parametrize("kind", KINDS)
def test_a_score_that_claims_a_fused_scale_is_the_dot_product_times_it(kind: str) -> None:
    score = random_score(kind)
    query, key = torch.randn(1, 1, 3, WIDTH).double(), torch.randn(1, 1, 4, WIDTH).double()
    prepared = score.prepare(key)
    if score.fused_scale is None:
        assert kind in ("additive", "linear", "unnormalized")
    else:
        torch.testing.assert_close(score(query, prepared), score.fused_scale * query @ prepared.mT, **EXACT)


def test_recordings_compute_additive_scores_by_the_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where a kernel of ours could make them at once: that would have nothing to show."""
    score, query, key = random_score("additive"), *torch.randn(2, 2, 1, 3, WIDTH, dtype=torch.float64)
    assert isinstance(score, Additive)
    expected, fused = score(query, score.prepare(key)), torch.full((2, 1, 3, 3), 7.0)
    monkeypatch.setattr(scores, "supports_triton", lambda x: True)
    monkeypatch.setattr(score, "_fused", lambda queries, keys: fused)
    assert score(query, score.prepare(key)) is fused
    with on_taps(score, lambda tapped: None):
        assert torch.equal(score(query, score.prepare(key)), expected)
    with on_taps(score, lambda tapped: None, points=("weights",)):
        assert score(query, score.prepare(key)) is fused


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_score_kernel_gets_one_head_and_keeps_the_dtype(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    def kernel(queries: Tensor, keys: Tensor, v: Tensor) -> Tensor:
        assert queries.shape == (6, 4, WIDTH) and keys.shape == (6, 5, WIDTH)
        return (torch.tanh(queries[:, :, None] + keys[:, None]) @ v).float()

    score = random_score("additive").to(dtype)
    query, key = (torch.randn(2, 3, size, WIDTH, dtype=dtype) for size in (4, 5))
    expected = score(query, score.prepare(key))
    monkeypatch.setattr(scores, "supports_triton", lambda x: True)
    monkeypatch.setitem(
        sys.modules, "sightline.layers.kernels.additive_scores", SimpleNamespace(additive_scores=kernel)
    )
    result = score(query, score.prepare(key))
    assert result.dtype == dtype
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-6)


def test_keys_that_many_queries_share_are_left_to_the_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    score = random_score("additive")
    query, key = (torch.randn(rows, 1, 3, WIDTH, dtype=torch.float64) for rows in (4, 1))
    expected = score(query, score.prepare(key))
    monkeypatch.setattr(scores, "supports_triton", lambda x: True)
    assert torch.equal(score(query, score.prepare(key)), expected)


def assert_additive(a: Tensor, b: Tensor, v: Tensor, rtol: float = 0.0) -> None:
    """The kernel and its gradients, of numbers a (B, T, K), b (B, S, K) and v (K,) where they lie."""
    from sightline.layers.kernels.additive_scores import additive_scores

    parts = [part.detach().requires_grad_() for part in (a, b, v)]
    exact = [part.detach().double().requires_grad_() for part in (a, b, v)]
    result = additive_scores(*parts)
    expected = torch.tanh(exact[0][:, :, None] + exact[1][:, None]) @ exact[2]
    pull = torch.ones((), device=a.device).expand_as(result)
    gradients = torch.autograd.grad(result, parts, pull), torch.autograd.grad(expected, exact, pull.double())
    for mine, other in zip((result, *gradients[0]), (expected, *gradients[1]), strict=True):
        torch.testing.assert_close(mine.double(), other, rtol=rtol, atol=1e-5)


@pytest.mark.kernels
def test_the_kernel_for_additive_scores_takes_numbers_that_lie_apart(kernels: torch.device) -> None:
    a, b = (torch.randn(size, 2, 16, device=kernels).transpose(0, 1) for size in (3, 5))
    assert_additive(a, b, torch.randn(32, device=kernels)[::2])


@pytest.mark.kernels
@pytest.mark.parametrize("keys", [0, 5, 40])
def test_the_kernel_for_additive_scores_reads_nothing_behind_the_numbers(kernels: torch.device, keys: int) -> None:
    whole = [torch.randn(*shape, device=kernels) for shape in ((4, 3, 24), (4, keys, 24), (48,))]
    for part in whole:
        part[len(part) // 2 :] = torch.nan
    front = (part[: len(part) // 2] for part in whole)
    assert_additive(*front, rtol=1e-5)  # float32 sums of up to 240 numbers near one


@pytest.mark.kernels
@pytest.mark.filterwarnings("ignore:overflow")  # which the interpreter tells; e^2x is meant to
def test_the_kernel_for_additive_scores_takes_numbers_whose_exponential_is_none(kernels: torch.device) -> None:
    a, b = (100 * torch.randn(2, size, 16, device=kernels) for size in (3, 5))
    assert_additive(a, b, torch.randn(16, device=kernels))


@pytest.mark.kernels
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sizes", [(3, 1, 5, 7, 16), (2, 2, 1, 70, 40), (1, 1, 9, 130, 512), (2, 1, 4, 64, 32)])
def test_the_additive_scores_of_our_kernel_and_their_gradients_are_those_of_the_formula(
    sizes: tuple[int, ...], dtype: torch.dtype, mixed: bool, kernels: torch.device
) -> None:
    batch, heads, queries, keys, width = sizes
    score = Additive(width).to(kernels, dtype)
    exact = Additive(width).to(kernels, torch.float64)
    exact.load_state_dict(score.state_dict())
    query, key = torch.randn(batch, heads, queries, width), torch.randn(batch, heads, keys, width)
    pull = torch.randn(batch, heads, queries, keys, device=kernels)

    def run(score: Additive, kind: torch.dtype) -> tuple[Tensor, list[Tensor]]:
        mine = [part.to(kernels, dtype).to(kind).requires_grad_() for part in (query, key)]
        scores = score(mine[0], score.prepare(mine[1]))
        parts = [*mine, score.v, score.query.weight, score.key.weight]
        return scores, list(torch.autograd.grad(scores, parts, pull.to(scores.dtype)))

    with torch.autocast(kernels.type, torch.bfloat16, enabled=mixed):
        result, gradients = run(score, dtype)
    assert result.dtype == (torch.float32 if mixed else dtype)
    expected, exact_gradients = run(exact, torch.float64)
    half = mixed or dtype == torch.bfloat16
    torch.testing.assert_close(result.double(), expected, rtol=0, atol=0.05 if half else 1e-5)
    for mine, other in zip(gradients, exact_gradients, strict=True):
        off = (mine.double() - other).abs().max() / other.abs().max()
        assert off < (0.03 if half else 1e-5)
