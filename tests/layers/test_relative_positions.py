"""Order as distance, each kind against its formula."""

from __future__ import annotations

import math

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from sightline.layers.attention import attend, causal_mask, explicit_attention
from sightline.layers.layout import Packed, Padded
from sightline.layers.multi_head import MultiHeadAttention
from sightline.layers.positions import (
    Alibi,
    Buckets,
    Distances,
    Relative,
    RelativeKeys,
    buckets_of,
    build_bias,
    build_relative_keys,
    skew,
    slopes,
)
from sightline.layers.scores import ScaledDot
from sightline.recipe.model import ModelConfig, PositionsConfig

CPU = torch.device("cpu")
SIXTY_FOUR = {"rtol": 0.0, "atol": 1e-12}  # float64 sums of some eight products of numbers near one


def scattered() -> Distances:
    """Slots of a beam of two: the first token, then three steps of two hypotheses; now both stand at 4."""
    return Distances(torch.tensor([4, 4]), torch.tensor([0, 1, 1, 2, 2, 3, 3, 4, 4]))


# --- ALiBi -------------------------------------------------------------------------------------------------------


def test_slopes_are_those_of_the_paper() -> None:
    """Press et al. 2022, §3: for 8 heads 1/2, 1/4 … 1/256; for 16 heads they start at 2^(−1/2)."""
    assert slopes(8).tolist() == [2.0**-power for power in range(1, 9)]
    torch.testing.assert_close(slopes(16), torch.tensor([2 ** (-h / 2) for h in range(1, 17)]), rtol=1e-6, atol=0)


def test_alibi_takes_the_slope_times_the_distance_from_the_score() -> None:
    bias = Alibi(2)(Distances.within(3, CPU))
    expected = torch.tensor([[0.0, 1, 2], [1, 0, 1], [2, 1, 0]])
    assert torch.equal(bias, torch.stack([-expected / 16, -expected / 256])[None])


def test_alibi_counts_positions_and_not_slots() -> None:
    bias = Alibi(1)(scattered())
    assert torch.equal(bias[0, 0, 0] * 256, -torch.tensor([4.0, 3, 3, 2, 2, 1, 1, 0, 0]))


# --- T5 ----------------------------------------------------------------------------------------------------------


def bucket_by_hand(distance: int, buckets: int, farthest: int, causal: bool) -> int:
    """Raffel et al. 2020 in plain numbers."""
    first = 0
    if not causal:
        buckets //= 2
        first = buckets if distance > 0 else 0
        distance = -abs(distance)
    ago, exact = max(-distance, 0), buckets // 2
    if ago < exact:
        return first + ago
    far = exact + int(math.log(ago / exact) / math.log(farthest / exact) * (buckets - exact))
    return first + min(far, buckets - 1)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("buckets", "farthest"), [(32, 128), (8, 20), (4, 3)])
def test_buckets_are_their_formula(buckets: int, farthest: int, causal: bool) -> None:
    distances = range(-300, 301)
    result = buckets_of(torch.tensor(distances), buckets, farthest, causal).tolist()
    assert result == [bucket_by_hand(distance, buckets, farthest, causal) for distance in distances]
    assert set(result) <= set(range(buckets))


def test_buckets_of_t5_by_hand() -> None:
    """Both sides: 8 exact distances and 8 wider buckets each; 128 and all beyond share the last one."""
    result = buckets_of(torch.tensor([0, -1, -7, -8, -127, -128, -5000, 1, 7, 8, 5000]), 32, 128, False)
    assert result.tolist() == [0, 1, 7, 8, 15, 15, 15, 17, 23, 24, 31]
    ahead = buckets_of(torch.tensor([3, 0, -15, -16, -128]), 32, 128, True)
    assert ahead.tolist() == [0, 0, 15, 16, 31]


@pytest.mark.parametrize("causal", [True, False])
def test_each_head_and_bucket_has_its_own_bias(causal: bool) -> None:
    layer = Buckets(2, 8, 8, 20, causal=causal)
    for distances in (Distances.within(30, CPU), scattered()):
        bias, matrix = layer(distances), distances.matrix().tolist()
        assert bias.shape == (1, 2, len(matrix), len(matrix[0]))
        for t, row in enumerate(matrix):
            index = [bucket_by_hand(distance, 8, 20, causal) for distance in row]
            assert torch.equal(bias[0, :, t], layer.table[:, index])


@pytest.mark.parametrize("causal", [True, False])
def test_bidirectional_stacks_have_separate_buckets_for_later_keys(causal: bool) -> None:
    layer = build_bias(PositionsConfig(kind="t5", buckets=8, max_distance=20), 1, 8, causal=causal)
    assert layer is not None
    _, row, _ = layer(Distances.within(3, CPU))[0, 0]  # at distances −1, 0, 1
    assert row[0] != row[1] and row[0] != row[2]
    assert (row[1] == row[2]) == causal  # where only the past is seen, nothing is kept for the future


def test_biases_start_as_small_as_the_model_is_wide() -> None:
    table = Buckets(100, 64, 200, 1000, causal=True).table.detach()
    assert table.shape == (100, 200)
    assert float(table.std()) == pytest.approx(1 / 8, rel=0.02)  # of 20,000 draws


# --- relative keys -----------------------------------------------------------------------------------------------


def naive(layer: RelativeKeys, query: Tensor, distances: Distances) -> Tensor:
    """Shaw et al. 2018, eq. 4 as it stands: a (T, S, K) tensor of vectors, one for each pair."""
    vectors = layer.table[layer.index(distances.matrix())]  # (T, S, K)
    return torch.einsum("bhtk,tsk->bhts", query, vectors)


def relative_keys(causal: bool, farthest: int = 3) -> RelativeKeys:
    return RelativeKeys(4, farthest, causal=causal).double()


@pytest.mark.parametrize(("causal", "rows"), [(True, 301), (False, 601)])
def test_every_distance_that_can_be_has_a_vector_of_a_length_near_one(causal: bool, rows: int) -> None:
    table = RelativeKeys(64, 300, causal=causal).table.detach()
    assert table.shape == (rows, 64)
    assert float(table.norm(dim=1).mean()) == pytest.approx(1, rel=0.02)


def test_skewing_moves_each_distance_to_its_column() -> None:
    columns = torch.arange(-2, 4).expand(3, 6)  # row t: the distances −2 … 3
    assert skew(columns, 3).tolist() == [[0, 1, 2], [-1, 0, 1], [-2, -1, 0]]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 9])
def test_skewed_is_naive(count: int, causal: bool) -> None:
    """Values and gradients; 9 is past the farthest distance, and a causal stack hides what is later."""
    layer, distances = relative_keys(causal), Distances.within(count, CPU)
    query = torch.randn(2, 3, count, 4, dtype=torch.float64, requires_grad=True)
    shown = causal_mask(count, count, CPU) if causal else torch.ones(count, count, dtype=torch.bool)
    pull = torch.randn(2, 3, count, count, dtype=torch.float64) * shown
    result, expected = layer(query, distances), naive(layer, query, distances)
    torch.testing.assert_close(result * shown, expected * shown, **SIXTY_FOUR)
    for inputs in (query, layer.table):
        gradients = [torch.autograd.grad(output, inputs, pull, retain_graph=True)[0] for output in (result, expected)]
        torch.testing.assert_close(*gradients, **SIXTY_FOUR)


@pytest.mark.parametrize("causal", [True, False])
def test_slots_of_a_beam_are_naive(causal: bool) -> None:
    layer, query = relative_keys(causal), torch.randn(2, 3, 2, 4, dtype=torch.float64)
    torch.testing.assert_close(layer(query, scattered()), naive(layer, query, scattered()), **SIXTY_FOUR)


def test_the_score_is_the_query_with_the_key_and_the_vector_of_their_distance() -> None:
    """e_ij = q_i·(k_j + a_{j−i}) / √K, by hand, through the whole attention."""
    attention = MultiHeadAttention(8, 2, relative_keys=RelativeKeys(4, 2, causal=False)).double().eval()
    query, key, value = (torch.randn(1, 2, 5, 4, dtype=torch.float64) for _ in range(3))
    result = attention(query, key, value, relative=Relative(Distances.within(5, CPU)))
    scores = torch.empty(1, 2, 5, 5, dtype=torch.float64)
    for i in range(5):
        for j in range(5):
            vector = attention.relative_keys.table[max(-2, min(2, j - i)) + 2]
            scores[:, :, i, j] = (query[:, :, i] * (key[:, :, j] + vector)).sum(-1) / 2
    expected = attention.output((scores.softmax(-1) @ value).transpose(1, 2).flatten(-2))
    torch.testing.assert_close(result, expected, **SIXTY_FOUR)


def saved_numbers(layer: RelativeKeys, form: str, count: int) -> int:
    """How many numbers autograd keeps for the backward pass."""
    kept: list[int] = []
    query, distances = (
        torch.randn(1, 1, count, 4, dtype=torch.float64, requires_grad=True),
        Distances.within(count, CPU),
    )

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        (layer(query, distances) if form == "skewed" else naive(layer, query, distances)).sum()
    return sum(kept)


def test_the_skewed_form_keeps_memory_that_grows_with_the_length_and_not_its_square() -> None:
    layer = relative_keys(causal=True)
    skewed, plain = ([saved_numbers(layer, form, count) for count in (100, 200)] for form in ("skewed", "naive"))
    assert skewed[1] < 2.1 * skewed[0]
    assert plain[1] > 3.8 * plain[0]
    assert skewed[1] < plain[1] / 50


# --- in attention ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_with_a_bias_the_fused_kernel_is_the_explicit_one(causal: bool, masked: bool) -> None:
    query, key, value = (torch.randn(2, 3, 5, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    bias = torch.randn(1, 3, 5, 5, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]], dtype=torch.bool)[:, None, None] if masked else None
    score = ScaledDot(4)
    result = attend(query, key, value, score=score, mask=mask, bias=bias, causal=causal)
    shown = causal_mask(5, 5, CPU) if causal else torch.ones(5, 5, dtype=torch.bool)
    expected = explicit_attention(query, key, value, score, shown if mask is None else shown & mask, bias)
    torch.testing.assert_close(result, expected, **SIXTY_FOUR)
    pull, inputs = torch.randn_like(result), (query, key, value, bias)
    for ours, theirs in zip(*(torch.autograd.grad(x, inputs, pull) for x in (result, expected)), strict=True):
        torch.testing.assert_close(ours, theirs, **SIXTY_FOUR)


@pytest.mark.parametrize("gradients", [True, False])
def test_with_a_bias_a_query_that_may_see_nothing_gets_zeros(gradients: bool) -> None:
    query, key, value = (torch.randn(1, 1, 3, 4) for _ in range(3))
    mask = torch.tensor([[1, 1, 1], [0, 0, 0], [1, 0, 0]], dtype=torch.bool)
    with torch.set_grad_enabled(gradients):
        result = attend(query, key, value, score=ScaledDot(4), mask=mask, bias=torch.randn(1, 1, 3, 3))
    assert torch.equal(result[0, 0, 1], torch.zeros(4))
    assert torch.isfinite(result).all()


@pytest.mark.parametrize("kind", ["alibi", "t5", "shaw"])
@pytest.mark.parametrize("causal", [True, False])
def test_packed_is_padded_with_distances(kind: str, causal: bool) -> None:
    recipe, lengths = PositionsConfig(kind=kind, max_distance=20), [4, 1, 6]
    keys = build_relative_keys(recipe, 4, causal=causal)
    attention = MultiHeadAttention(8, 2, relative_keys=keys)
    bias, distances = build_bias(recipe, 2, 8, causal=causal), Distances.within(6, CPU)
    relative = Relative(distances, None if bias is None else bias(distances))
    packed, padded = Packed.of(lengths), Padded.of(lengths)
    heads = [torch.randn(11, 2, 4) for _ in range(3)]
    result = attention(*heads, causal=causal, layout=(packed, packed), relative=relative)
    expected = attention(*map(packed.pad, heads), causal=causal, layout=(padded, padded), relative=relative)
    torch.testing.assert_close(result, packed.unpad(expected), rtol=0, atol=1e-6)


# --- recipes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"kind": "t5", "buckets": 7}, r"positions\.buckets \(7\) must be even"),
        ({"kind": "t5", "buckets": 32, "max_distance": 16}, r"positions\.max_distance \(16\) must be more than half"),
        ({"kind": "alibi", "combine": "concatenate"}, r"nothing to put beside the embedding with alibi"),
        ({"width": 4}, r"positions\.width \(4\) is only for positions\.combine: concatenate"),
    ],
)
def test_parts_that_do_not_fit_the_kind_are_refused(section: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        PositionsConfig.model_validate(section)


def test_concatenated_sinusoids_need_an_even_width() -> None:
    def model(width: int) -> ModelConfig:
        positions = {"combine": "concatenate", "width": width}
        body = {"kind": "transformer", "heads": 1, "positions": positions}
        return ModelConfig.model_validate({"width": 9, "encoder": body, "decoder": body})

    assert model(4).width == 9
    with pytest.raises(ValidationError, match="sinusoidal positions need an even width, not 5"):
        model(5)
