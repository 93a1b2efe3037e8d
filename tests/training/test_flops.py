"""Counting floating-point operations: against the formulas on paper, and against PyTorch's own counter."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import Tensor, library, nn
from torch.utils.flop_counter import FlopCounterMode

from sightline.data.collate import TrainingBatch, packed_batch, padded_batch, seq2seq_ids
from sightline.layers.attention import attend, explicit_attention
from sightline.layers.embedding import Output
from sightline.layers.layout import Packed, Padded
from sightline.layers.linear import Linear
from sightline.layers.losses import cross_entropy
from sightline.layers.multi_head import MultiHeadAttention
from sightline.layers.recurrent import Recurrence
from sightline.layers.scores import Additive, ScaledDot
from sightline.models.seq2seq import Seq2Seq
from sightline.tasks.losses import batch_loss
from sightline.text.tokenizer import PAD
from sightline.training.flops import FORMULAS, FlopCount, count_flops

GATES = {"elman": 1, "gru": 3, "lstm": 4}
FUSED = [
    f"{kernel}_backward"
    for kernel in ("flash_attention", "flash_attention_for_cpu", "efficient_attention", "cudnn_attention")
]


def forward_and_backward(compute: Callable[[], Tensor]) -> tuple[int, int]:
    """The count of each; nothing that multiplies may be unknown."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with count_flops() as forward:
            result = compute()
        with count_flops() as backward:
            result.sum().backward()
    return forward.total, backward.total


def theirs(compute: Callable[[], Tensor]) -> int:
    with FlopCounterMode(display=False) as counter:
        compute().sum().backward()
    return int(counter.get_total_flops())


@contextmanager
def plain_kernels() -> Iterator[None]:
    """No oneDNN: products are PyTorch's, and the loss has all its logits at once."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


# --- on paper ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(7,), (3, 5)])
def test_a_linear_layer_is_two_operations_a_weight_and_row_and_twice_that_backward(shape: tuple[int, ...]) -> None:
    layer, x = Linear(11, 13), torch.randn(*shape, 11, requires_grad=True)
    forward = 2 * x[..., 0].numel() * 11 * 13
    assert forward_and_backward(lambda: layer(x)) == (forward, 2 * forward)
    with plain_kernels():
        assert forward_and_backward(lambda: layer(x)) == (forward, 2 * forward)


def test_frozen_inputs_save_one_product_backward() -> None:
    layer, x = Linear(11, 13), torch.randn(7, 11)
    forward = 2 * 7 * 11 * 13
    assert forward_and_backward(lambda: layer(x)) == (forward, forward)


@pytest.mark.parametrize(
    ("compute", "expected"),
    [
        (lambda: torch.randn(3, 4) @ torch.randn(4, 5), 2 * 3 * 4 * 5),
        (lambda: torch.randn(2, 3, 4) @ torch.randn(2, 4, 5), 2 * 2 * 3 * 4 * 5),
        (lambda: torch.randn(3, 4) @ torch.randn(4), 2 * 3 * 4),
        (lambda: torch.randn(4) @ torch.randn(4), 2 * 4),
        (lambda: torch.addmm(torch.randn(5), torch.randn(3, 4), torch.randn(4, 5)), 2 * 3 * 4 * 5),
        (lambda: torch.zeros(3, 5).addmm_(torch.randn(3, 4), torch.randn(4, 5)), 2 * 3 * 4 * 5),
        (lambda: torch.zeros(2, 3, 5).baddbmm_(torch.randn(2, 3, 4), torch.randn(2, 4, 5)), 2 * 2 * 3 * 4 * 5),
        (lambda: torch.addbmm(torch.zeros(3, 5), torch.randn(2, 3, 4), torch.randn(2, 4, 5)), 2 * 2 * 3 * 4 * 5),
        (lambda: torch.einsum("bik,bjk->bij", torch.randn(2, 3, 4), torch.randn(2, 5, 4)), 2 * 2 * 3 * 4 * 5),
        (lambda: torch.randn(3, 4).exp().softmax(-1).norm(), 0),  # element by element
        (lambda: torch.randn(0, 4) @ torch.randn(4, 5), 0),
    ],
)
@pytest.mark.parametrize("inference", [False, True])
def test_a_matrix_product_is_2mkn_operations(compute: Callable[[], Tensor], expected: int, inference: bool) -> None:
    with torch.inference_mode(inference), count_flops() as count:
        compute()
    assert count.total == expected


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("queries", "keys"), [(50, 50), (7, 45), (45, 7), (9, 9)])
def test_fused_attention_counts_as_the_explicit_kernel(causal: bool, masked: bool, queries: int, keys: int) -> None:
    """Above 40 keys the fused kernel runs; what a mask hides is counted as if it were seen."""
    if causal and queries > keys:
        pytest.skip("a query must see something")
    query, key, value = (torch.randn(2, 3, length, 8, requires_grad=True) for length in (queries, keys, keys))
    score = ScaledDot(8)
    mask = torch.rand(2, 1, 1, keys) < 0.8 if masked else None
    seen = None if mask is None else mask.expand(2, 3, queries, keys)
    forward = 2 * 2 * 3 * queries * keys * (8 + 8)  # q·k and Σ α v
    ran: list[FlopCount] = []

    def fused() -> Tensor:
        with count_flops() as count:
            result = attend(query, key, value, score=score, mask=mask, causal=causal)
        ran.append(count)
        return result

    assert forward_and_backward(fused) == (forward, 2 * forward)
    assert any("scaled_dot_product" in name for name in ran[0].by_operator) == (keys > 40)
    explicit = forward_and_backward(lambda: explicit_attention(query, key, value, score, seen))
    assert explicit == (forward, 2 * forward)


def test_additive_scores_count_the_vector_that_sums_them_up() -> None:
    """vᵀ tanh(W q + U h): W, U, then v for every query and key; the gradient of the sum is an outer product."""
    score = Additive(8)
    query, key = torch.randn(2, 1, 5, 8, requires_grad=True), torch.randn(2, 1, 7, 8, requires_grad=True)
    projections, sums = 2 * 2 * (5 + 7) * 8 * 8, 2 * 2 * 5 * 7 * 8
    counted = forward_and_backward(lambda: score(query, score.prepare(key)))
    assert counted == (projections + sums, 2 * projections + sums)


@pytest.mark.parametrize("layout", [Padded.of([5, 3]), Packed.of([5, 3])])
def test_multi_head_attention_is_four_projections_and_two_rectangles(layout: Padded | Packed) -> None:
    """On the CPU packed sequences are padded for their scores, never for their projections."""
    layer = MultiHeadAttention(8, 2)
    rows = (2, 5) if isinstance(layout, Padded) else (8,)
    x = torch.randn(*rows, 8, requires_grad=True)
    places = torch.tensor(rows).prod().item()

    def compute() -> Tensor:
        heads = layer.queries_keys_values(x, None)
        result: Tensor = layer(*heads, layout=(layout, layout))
        return result

    forward = 2 * places * 8 * 8 * 4 + 2 * 2 * 5 * 5 * (8 + 8)
    assert forward_and_backward(compute) == (forward, 2 * forward)


@pytest.mark.parametrize("cell", GATES)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_recurrent_encoder_multiplies_each_weight_with_each_real_token(cell: str, bidirectional: bool) -> None:
    layer = Recurrence(cell, 6, 5, bidirectional=bidirectional)
    x, lengths = torch.randn(3, 7, 6, requires_grad=True), [7, 2, 4]
    directions, rows = 1 + bidirectional, GATES[cell] * 5
    forward = directions * 2 * sum(lengths) * rows * (6 + 5)
    # the zeros it starts from need no gradient: all three forward; backward only the longest starts with nothing else
    start = 2 * (3 + bidirectional) * rows * 5
    assert forward_and_backward(lambda: layer.read(x, Padded.of(lengths))[0]) == (forward, 2 * forward - start)


@pytest.mark.parametrize("cell", GATES)
@pytest.mark.parametrize("how", ["forward", "unrolled"])
def test_a_recurrent_decoder_counts_the_same_fused_or_step_by_step(cell: str, how: str) -> None:
    layer = Recurrence(cell, 6, 5)
    x = torch.randn(3, 7, 6, requires_grad=True)
    hidden = tuple(torch.randn(3, 5, requires_grad=True) for _ in range(layer.parts))
    forward = 2 * 3 * 7 * GATES[cell] * 5 * (6 + 5)
    assert forward_and_backward(lambda: getattr(layer, how)(x, hidden)[0]) == (forward, 2 * forward)
    with plain_kernels():
        assert forward_and_backward(lambda: getattr(layer, how)(x, hidden)[0]) == (forward, 2 * forward)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_output_layer_and_its_loss_multiply_three_times_over(smoothing: float) -> None:
    """Without oneDNN that is one time forward and two backward; with it gradients are made on the way forward.

    It multiplies real tokens only, and with smoothing each of them once with the sum of the weights.
    """
    layer = Output(17, 8, None)
    features, targets = torch.randn(4, 5, 8, requires_grad=True), torch.randint(4, 17, (4, 5))
    targets[1:, 4] = PAD
    once = 2 * 8 * 17

    def compute() -> Tensor:
        return cross_entropy(features, layer.weight, layer.bias, targets, smoothing).total

    assert forward_and_backward(compute) == (17 * (3 * once + (2 * 8 if smoothing else 0)), 0)
    with plain_kernels():
        assert forward_and_backward(compute) == (20 * once, 20 * 2 * once)


# --- kernels of CUDA devices, as far as they can be seen without one ------------------------------------------------


@pytest.mark.parametrize("kernel", ["flash", "efficient", "cudnn"])
def test_all_fused_attention_kernels_count_the_same(kernel: str) -> None:
    query, key, value = (torch.empty(2, 3, length, 8, device="meta") for length in (5, 7, 7))
    rest = () if kernel == "flash" else (None, True)
    with count_flops() as count:
        getattr(torch.ops.aten, f"_scaled_dot_product_{kernel}_attention")(query, key, value, *rest)
    assert count.total == 2 * 2 * 3 * 5 * 7 * (8 + 8)


def test_packed_attention_counts_the_pairs_inside_each_sequence() -> None:
    import torch.nn.attention.varlen  # registers the operator

    query, key = torch.empty(6, 3, 8, device="meta"), torch.empty(9, 3, 8, device="meta")
    queries, keys = (torch.tensor(offsets, dtype=torch.int32) for offsets in ([0, 2, 6], [0, 5, 9]))
    with count_flops() as count:
        torch.ops.torch_attn._varlen_attn(query, key, key, queries, keys, 4, 5)
    assert count.total == 2 * 3 * (2 * 5 + 4 * 4) * (8 + 8)


@pytest.mark.parametrize("packed", [False, True])
def test_cudnn_multiplies_each_weight_with_each_token(packed: bool) -> None:
    weights = [torch.empty(*shape, device="meta") for shape in ((20, 6), (20, 5), (20,), (20,))]
    x = torch.empty(*((13, 6) if packed else (4, 3, 6)), device="meta")
    start, sizes = torch.empty(1, 3, 5, device="meta"), [5, 4, 4] if packed else []
    with count_flops() as count:
        torch.ops.aten._cudnn_rnn(x, weights, 4, None, start, start, 2, 5, 0, 1, False, 0.0, True, False, sizes, None)
    assert count.total == 2 * (13 if packed else 12) * 20 * (6 + 5)


def test_cudnn_biases_under_autocast_are_not_counted() -> None:
    sizes = (120, 100, 20, 20)  # as a flat buffer has them: W (20, 6), U (20, 5) and two biases
    weights = [torch.empty(size, 1, device="meta") for size in sizes]
    x, start = torch.empty(4, 3, 6, device="meta"), torch.empty(1, 3, 5, device="meta")
    with count_flops() as count:
        torch.ops.aten._cudnn_rnn(x, weights, 4, None, start, start, 2, 5, 0, 1, False, 0.0, True, False, [], None)
    assert count.total == 2 * 12 * 20 * (6 + 5)


@pytest.mark.parametrize(
    ("operator", "names"),
    [
        *((f"aten._scaled_dot_product_{kernel}", {1: "query", 2: "key", 3: "value"}) for kernel in FUSED),
        ("torch_attn._varlen_attn_backward", {1: "query", 2: "key", 3: "value", 6: "cu_seq_q", 7: "cu_seq_k"}),
        ("aten._cudnn_rnn_backward", {0: "input", 1: "weight", 2: "weight_stride0"}),
        ("aten.mkldnn_rnn_layer_backward", {0: "input", 1: "weight1", 2: "weight2"}),
    ],
)
def test_backward_formulas_read_the_right_arguments(operator: str, names: dict[int, str]) -> None:
    import torch.nn.attention.varlen  # registers an operator

    space, name = operator.split(".")
    arguments = getattr(getattr(torch.ops, space), name).default._schema.arguments
    assert {place: arguments[place].name for place in names} == names
    assert f"{space}::{name}" in FORMULAS


# --- PyTorch's own counter ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Linear(6, 4), (3, 5, 6)),
        (nn.Conv1d(6, 4, 3, padding=1), (2, 6, 9)),
        (nn.Conv1d(6, 4, 3, stride=2, dilation=2), (2, 6, 9)),
        (nn.ConvTranspose1d(6, 4, 3), (2, 6, 9)),
        (nn.TransformerEncoderLayer(6, 2, 10, batch_first=True), (2, 9, 6)),
        (nn.LSTM(6, 4, bidirectional=True), (5, 2, 6)),
        (nn.GRU(6, 4, num_layers=2), (5, 2, 6)),
        (nn.RNN(6, 4), (5, 2, 6)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_plain_modules_count_as_pytorch_counts_them(module: nn.Module, shape: tuple[int, ...]) -> None:
    x = torch.randn(*shape, requires_grad=True)

    def compute() -> Tensor:
        result = module(x)
        return result[0] if isinstance(result, tuple) else result

    with plain_kernels():
        assert sum(forward_and_backward(compute)) == theirs(compute)


def some_batch(make: Callable[..., TrainingBatch]) -> TrainingBatch:
    random = np.random.default_rng(3)
    sources, targets = ([random.integers(4, 13, random.integers(1, 6)) for _ in range(4)] for _ in range(2))
    return make(seq2seq_ids(sources, targets), np.arange(4))


def assert_counted_as_by_pytorch(model: Seq2Seq, batch: TrainingBatch) -> None:
    """With explicit kernels, where PyTorch's counter sees everything but products with vectors (additive scores)."""

    def compute() -> Tensor:
        return batch_loss(model, batch, 0.1).total

    with plain_kernels():
        with count_flops() as ours:
            compute().backward()
        assert ours.total - ours.by_operator["aten::mv"] == theirs(compute)
    model.zero_grad(set_to_none=True)


def test_a_step_of_every_model_counts_as_pytorch_counts_it(any_model: Seq2Seq) -> None:
    assert_counted_as_by_pytorch(any_model, some_batch(packed_batch))


def test_a_padded_step_counts_as_pytorch_counts_it(model: Seq2Seq) -> None:
    assert_counted_as_by_pytorch(model, some_batch(padded_batch))


def test_a_step_counts_the_same_with_fast_kernels(model: Seq2Seq) -> None:
    batch = some_batch(packed_batch)
    with count_flops() as fast:
        batch_loss(model, batch, 0.0).total.backward()
    with plain_kernels(), count_flops() as plain:
        batch_loss(model, batch, 0.0).total.backward()
    assert fast.total == plain.total
    assert not fast.unknown | plain.unknown
    model.zero_grad(set_to_none=True)


# --- what is not known -------------------------------------------------------------------------------------------


def test_a_product_that_is_not_known_is_named_in_a_warning() -> None:
    one = torch.ones(17, 32, dtype=torch.int8)
    told = r"without those of aten::_int_mm, which may multiply matrices; add a formula"
    with pytest.warns(UserWarning, match=told), count_flops() as count:
        torch._int_mm(one, one.t()[:, :8].contiguous())
    assert count.unknown == {"aten::_int_mm"}


def test_unknown_third_party_operators_are_named_in_a_warning() -> None:
    @library.custom_op("sightline_test::innocent", mutates_args=())
    def innocent(x: Tensor) -> Tensor:
        return x @ x.mT

    with pytest.warns(UserWarning, match="sightline_test::innocent"), count_flops():
        innocent(torch.randn(3, 4))
