"""Where sequences begin and end."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from sightline.layers.layout import Packed, Padded

LENGTHS = st.lists(st.integers(0, 7), min_size=1, max_size=9).filter(any)


@given(lengths=LENGTHS, more=st.integers(0, 3), features=st.sampled_from([(), (1,), (2, 3)]))
def test_unpadding_undoes_padding(lengths: list[int], more: int, features: tuple[int, ...]) -> None:
    layout = Packed.of(lengths, longest=max(lengths) + more)
    x = torch.randn(sum(lengths), *features)
    padded = layout.pad(x)
    assert padded.shape == (len(lengths), max(lengths) + more, *features)
    assert torch.equal(layout.unpad(padded), x)


@given(lengths=LENGTHS, more=st.integers(0, 3))
def test_a_padded_row_is_its_sequence_and_zeros(lengths: list[int], more: int) -> None:
    layout = Packed.of(lengths, longest=max(lengths) + more)
    x = 1 + torch.rand(sum(lengths), 2)
    for row, sequence in zip(layout.pad(x), x.split(lengths), strict=True):
        assert torch.equal(row[: len(sequence)], sequence)
        assert not row[len(sequence) :].any()


@given(lengths=LENGTHS, more=st.integers(0, 3), features=st.sampled_from([(), (1,), (2, 3)]))
def test_without_gradients_padding_is_the_same(lengths: list[int], more: int, features: tuple[int, ...]) -> None:
    layout = Packed.of(lengths, longest=max(lengths) + more)
    x = torch.randn(sum(lengths), 2, *features)[:, 1]  # rows with something between them
    with torch.no_grad():
        fetched = layout.pad(x)
    assert torch.equal(fetched, layout.pad(x))


def test_without_gradients_sequences_of_nothing_are_all_zeros() -> None:
    with torch.no_grad():
        assert torch.equal(Packed.of([0, 0], longest=3).pad(torch.empty(0, 2)), torch.zeros(2, 3, 2))


@given(lengths=LENGTHS, more=st.integers(0, 3))
def test_padded_heads_are_the_same_with_and_without_gradients(lengths: list[int], more: int) -> None:
    layout = Packed.of(lengths, longest=max(lengths) + more)
    x = torch.randn(sum(lengths), 3, 2, 4)[:, 1]  # queries, keys and values come out of one product
    with torch.no_grad():
        fetched = layout.pad_heads(x)
    assert torch.equal(fetched, layout.pad(x).transpose(1, 2))
    assert torch.equal(layout.pad_heads(x), fetched)


def test_without_gradients_a_product_takes_padded_heads_as_they_lie() -> None:
    layout = Packed.of([3, 1, 2])
    with torch.no_grad():
        fetched = layout.pad_heads(torch.randn(6, 2, 4))  # (B, H, longest, K)
    assert fetched.reshape(3 * 2, 3, 4).data_ptr() == fetched.data_ptr()


@given(lengths=LENGTHS, more=st.integers(0, 3))
def test_packed_and_padded_layouts_agree(lengths: list[int], more: int) -> None:
    longest = max(lengths) + more
    packed, padded = Packed.of(lengths, longest=longest), Padded.of(lengths, longest=longest)
    real = torch.tensor([[t < length for t in range(longest)] for length in lengths])
    for layout in (packed, padded):
        assert layout.batch == len(lengths)
        assert layout.longest == longest
        assert layout.lengths.tolist() == lengths
        mask = layout.key_mask()
        assert torch.equal(torch.ones_like(real) if mask is None else mask, real)
        assert (mask is None) == bool(real.all())
    assert packed.positions(torch.device("cpu")).tolist() == [t for length in lengths for t in range(length)]
    assert padded.positions(torch.device("cpu")).tolist() == [list(range(longest))]


@given(lengths=LENGTHS)
def test_the_offsets_are_where_sequences_begin_and_end(lengths: list[int]) -> None:
    offsets = Packed.of(lengths).offsets
    assert offsets.dtype == torch.int32  # what the variable-length kernel wants
    assert offsets.tolist() == [sum(lengths[:n]) for n in range(len(lengths) + 1)]


def test_a_packed_batch_is_full_only_when_every_sequence_is_the_longest() -> None:
    assert Packed.of([3, 3]).full
    assert not Packed.of([3, 3], longest=4).full
    assert not Packed.of([3, 2]).full


def test_padding_a_full_batch_copies_nothing() -> None:
    x = torch.randn(6, 2)
    layout = Packed.of([3, 3])
    assert layout.pad(x).data_ptr() == x.data_ptr()
    assert layout.unpad(layout.pad(x)).data_ptr() == x.data_ptr()


@pytest.mark.parametrize("lengths", [[2, 3, 1], [2, 2, 2]])
def test_the_gradient_flows_through_padding_and_back(lengths: list[int]) -> None:
    layout = Packed.of(lengths)
    x = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: layout.unpad(layout.pad(t).square()), (x,))


def test_the_layout_of_some_rows_is_that_of_their_lengths() -> None:
    chosen = Padded.of([3, 1, 2, 3]).select(torch.tensor([2, 0]))
    assert chosen.lengths.tolist() == [2, 3]
    assert chosen.key_mask().tolist() == [[True, True, False], [True, True, True]]
    assert Padded.of([2, 2]).select(torch.tensor([1])).key_mask() is None


@pytest.mark.parametrize("lengths", [[3, 1, 4, 1, 5], [2, 2], [0, 3], [1], [4, 6, 0, 6]])
@pytest.mark.parametrize("more", [0, 2])
def test_a_recurrence_goes_through_a_batch_as_torch_packs_it(lengths: list[int], more: int) -> None:
    longest = max(*lengths, 1) + more
    x = torch.randn(len(lengths), longest, 3)
    expected = pack_padded_sequence(x, torch.tensor(lengths).clamp(min=1), batch_first=True, enforce_sorted=False)
    for layout in (Padded.of(lengths, longest=longest), Packed.of(lengths, longest=longest)):
        steps = layout.steps
        assert steps.sizes.tolist() == expected.batch_sizes.tolist()
        first = steps.places[: len(lengths)] // longest  # the sequences in the order they are gone through
        assert first[steps.ranks].tolist() == list(range(len(lengths)))
        order = torch.tensor(lengths).clamp(min=1)[first].tolist()
        assert order == sorted(order, reverse=True)
        packed = PackedSequence(x.flatten(0, 1)[steps.places], steps.sizes, first, steps.ranks)
        for mine, other in zip(*(pad_packed_sequence(each) for each in (packed, expected)), strict=True):
            assert torch.equal(mine, other)
