"""Text in windows: every token once an epoch, cut elsewhere in others; and rows that go on where they ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sightline.data.windows import WindowPlan, token_stream
from sightline.models.recurrent.config import RecurrentDecoderConfig
from sightline.recipe import Recipe
from sightline.recipe.recipe import carries

START, END = 2, 3
BODIES: dict[str, dict[str, Any]] = {
    "transformer": {"kind": "transformer", "layers": 1, "heads": 2},
    "recurrent": {"kind": "recurrent", "attention": {"kind": "none"}},
    "window": {"kind": "window"},
}


class Documents:
    """A store of documents."""

    def __init__(self, documents: list[list[int]], folder: str = "documents") -> None:
        self.documents, self.folder = [np.array(document, np.uint16) for document in documents], Path(folder)
        self.target_lengths = np.array([len(document) for document in documents], np.int32)
        self.origin = np.zeros(len(documents), np.uint16)
        offsets = np.append(0, np.cumsum(self.target_lengths))
        self.targets = [(offsets, np.concatenate([*self.documents, np.empty(0, np.uint16)]))]

    def __len__(self) -> int:
        return len(self.documents)

    def take(self, indices: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
        return [np.empty(0, np.uint16)] * len(indices), [self.documents[index] for index in indices]


def plan_of(
    length: int,
    context: int,
    tokens: int,
    *,
    body: str = "transformer",
    layout: str = "padded",
    seed: int = 1,
    **more: Any,
) -> WindowPlan:
    """Windows over a text of so many tokens, all different but for the end mark."""
    plain = {"kind": "plain", "file": "text"}
    recipe = Recipe.model_validate(
        {
            "task": "language-model",
            "seed": seed,
            "data": {"train": [plain], "validation": plain},
            "model": {"width": 8, "decoder": BODIES[body]},
            "training": {"batches": {"tokens": tokens, "context": context, **more}},
        }
    )
    store: Any = Documents([list(range(4, length + 3))])
    return WindowPlan(recipe, None, layout, lambda epoch: store)  # type: ignore[arg-type]


def test_weighted_sources_are_repeated_by_weight() -> None:
    plain = {"kind": "plain", "file": "text"}
    train = [{**plain, "weight": weight} for weight in (2.0, 0.5)]
    recipe = Recipe.model_validate(
        {
            "task": "language-model",
            "data": {"train": train, "validation": plain},
            "model": {"width": 8, "decoder": BODIES["transformer"]},
            "training": {"batches": {"tokens": 24, "context": 8}},
        }
    )
    store: Any = Documents([[5] * 79, [6] * 79])
    store.origin = np.array([0, 1], np.uint16)
    plan = WindowPlan(recipe, None, "packed", lambda epoch: store)  # type: ignore[arg-type]
    expected = np.concatenate([plan.batch(1, examples).labels.numpy() for examples in plan.epoch(1)])
    assert len(expected) == 160 + 40
    assert np.isin(expected, [5, END]).sum() - np.count_nonzero(expected == END) == 158
    carried = recipe.model_copy(update={"model": recipe.model.model_copy(update={"decoder": recurrent()})})
    with pytest.raises(ValueError, match=r"weights \(2\.0, 0\.5\).*carry: false"):
        WindowPlan(carried, None, "packed", lambda epoch: store)  # type: ignore[arg-type]


def recurrent() -> Any:
    """The decoder of a model whose windows go on from those before them."""
    return RecurrentDecoderConfig.model_validate(BODIES["recurrent"])


def sizes() -> st.SearchStrategy[tuple[int, int, int]]:
    """Length of the text, context, tokens of a batch."""
    return st.integers(2, 12).flatmap(
        lambda context: st.tuples(st.integers(1, 90), st.just(context), st.integers(context, 40))
    )


def text_of(plan: WindowPlan, epoch: int) -> list[int]:
    """All tokens of an epoch's text."""
    stream = plan.full.text(epoch)
    return stream.between(0, len(stream)).tolist()


def texts_of(plan: WindowPlan, epoch: int) -> list[list[int]]:
    """What is wanted in each window of an epoch, in the order of training."""
    found = []
    for examples in plan.epoch(epoch):
        batch = plan.batch(epoch, examples)
        rows = zip(batch.decoder_input, batch.labels, batch.decoder_layout.lengths.tolist(), strict=True)
        for given_, expected, length in rows:
            assert given_[:length].tolist() == [START, *expected[: length - 1].tolist()]
            found.append(expected[:length].tolist())
    return found


def test_the_stream_joins_documents_with_end_marks() -> None:
    store: Any = Documents([[5, 6], [], [7]])
    assert token_stream(store).tolist() == [5, 6, END, END, 7, END]


def test_an_empty_stream_has_no_tokens() -> None:
    store: Any = Documents([])
    with pytest.raises(ValueError, match=r"there is no text to model; check data\.train and data\.validation"):
        token_stream(store)


# --- windows in random order -----------------------------------------------------------------------------------------


@given(size=sizes(), epoch=st.integers(0, 5), seed=st.integers(0, 3))
def test_every_token_is_a_label_once_an_epoch(size: tuple[int, int, int], epoch: int, seed: int) -> None:
    plan = plan_of(*size, seed=seed)
    found = texts_of(plan, epoch)
    assert sorted(token for text in found for token in text) == sorted(text_of(plan, epoch))
    assert max(map(len, found)) <= size[1]
    assert sum(len(text) < size[1] for text in found) <= 2  # the first and the last
    assert all(len(examples) <= size[2] // size[1] for examples in plan.epoch(epoch))


def test_each_window_is_a_piece_of_the_text() -> None:
    plan = plan_of(60, 8, 32)
    stream = text_of(plan, 1)
    for text in texts_of(plan, 1):
        at = stream.index(text[0])
        assert text == stream[at : at + len(text)]


def test_epochs_have_other_offsets_and_orders() -> None:
    plan = plan_of(900, 64, 128)
    begins = [{text[0] for text in texts_of(plan, epoch)} for epoch in range(4)]
    assert len({frozenset(each) for each in begins}) == 4
    assert sorted(begins[0]) == list(range(4, 903, 64))  # the first epoch cuts from the beginning
    assert texts_of(plan, 0) != sorted(texts_of(plan, 0))


@pytest.mark.parametrize("body", ["transformer", "recurrent"])
def test_an_epoch_is_a_function_of_seed_and_number_alone(body: str) -> None:
    one, same, other = (plan_of(300, 8, 32, body=body, seed=seed) for seed in (1, 1, 2))
    same.epoch(0), same.epoch(3)  # whatever was asked before
    for epoch in (2, 0):
        assert [each.tolist() for each in one.epoch(epoch)] == [each.tolist() for each in same.epoch(epoch)]
        for mine, theirs in zip(one.epoch(epoch), same.epoch(epoch), strict=True):
            assert torch.equal(one.batch(epoch, mine).labels, same.batch(epoch, theirs).labels)
    if body == "transformer":
        assert texts_of(one, 2) != texts_of(other, 2)


@given(size=sizes(), epoch=st.integers(0, 3))
def test_a_static_shape_takes_every_batch(size: tuple[int, int, int], epoch: int) -> None:
    static, packed = (plan_of(*size, layout=layout) for layout in ("static", "packed"))
    shape = static.shape
    assert shape is not None
    for examples in static.epoch(epoch):
        batch, plain = static.batch(epoch, examples), packed.batch(epoch, examples)
        assert batch.decoder_input.shape == batch.labels.shape == (shape.tokens,)
        assert batch.decoder_layout.batch == shape.sequences
        assert int(batch.decoder_layout.lengths.max()) <= shape.longest
        assert batch.tokens == plain.tokens == int(batch.labels.count_nonzero())
        for ours, real in ((batch.decoder_input, plain.decoder_input), (batch.labels, plain.labels)):
            assert torch.equal(ours[: len(real)], real)
            assert not ours[len(real) :].any()


@given(size=sizes())
def test_waste_is_a_share(size: tuple[int, int, int]) -> None:
    for layout in ("padded", "static"):
        assert 0.0 <= plan_of(*size, layout=layout).waste() < 1.0
    assert plan_of(*size, layout="packed").waste() == 0.0


# --- rows that go on -------------------------------------------------------------------------------------------------


@given(size=sizes(), epoch=st.integers(0, 7))
def test_a_row_continues_in_the_next_batch(size: tuple[int, int, int], epoch: int) -> None:
    length, context, tokens = size
    rows = tokens // context
    if length <= 2 * rows:
        return
    plan = plan_of(*size, body="recurrent")
    stream = text_of(plan, epoch)
    batches = [plan.batch(epoch, examples) for examples in plan.epoch(epoch)]
    assert [batch.continues for batch in batches] == [False] + [True] * (len(batches) - 1)
    given_ = torch.cat([batch.decoder_input for batch in batches], dim=1).tolist()
    expected = torch.cat([batch.labels for batch in batches], dim=1).tolist()
    assert len(expected) == rows
    whole = [token for row in expected for token in row]
    at = stream.index(whole[0])
    assert whole == stream[at : at + len(whole)]  # contiguous in a row, and from row to row
    assert [token for row in given_ for token in row] == stream[at - 1 : at - 1 + len(whole)]
    assert len(stream) - 1 - len(whole) < rows  # no more is left over than one token a row
    assert all(batch.labels.shape[1] == context for batch in batches[:-1])
    assert sum(batch.tokens for batch in batches) == len(whole)


def test_each_epoch_leaves_out_another_part() -> None:
    plan = plan_of(40, 3, 12, body="recurrent")  # 39 tokens in four rows: three too many
    firsts = [int(plan.batch(epoch, plan.epoch(epoch)[0]).labels[0, 0]) for epoch in range(5)]
    assert firsts == [5, 6, 7, 8, 5]


def test_rows_are_decoded_to_text() -> None:
    class Spelled:
        def decode(self, ids: list[int]) -> str:
            return " ".join(map(str, ids))

    for body in ("recurrent", "transformer"):
        plan = plan_of(30, 4, 8, body=body)
        plan.vocabulary = type("Vocabulary", (), {"target": Spelled()})()
        examples = plan.epoch(1)[1]
        shown = [row["text"] for row in plan.texts(1, examples)]
        assert shown == [" ".join(map(str, row)) for row in plan.batch(1, examples).labels.tolist()]


@pytest.mark.parametrize(
    ("body", "carry", "expected"),
    [("recurrent", None, True), ("recurrent", False, False), ("recurrent", True, True), ("transformer", None, False)],
)
def test_recurrent_models_carry_their_state_by_default(body: str, carry: bool | None, expected: bool) -> None:
    assert carries(plan_of(50, 4, 8, body=body, carry=carry).recipe) is expected


@pytest.mark.parametrize("body", ["transformer", "window"])
def test_models_without_a_state_cannot_carry_it(body: str) -> None:
    with pytest.raises(ValueError, match=r"training\.batches\.carry: true needs a recurrent decoder"):
        plan_of(50, 4, 8, body=body, carry=True)


def test_too_little_text_for_the_rows_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"8 tokens of text are too few for 4 rows; lower training\.batches\.tokens"):
        plan_of(8, 2, 8, body="recurrent")
    plan_of(9, 2, 8, body="recurrent")


@pytest.mark.parametrize("body", ["transformer", "recurrent"])
def test_a_window_larger_than_a_batch_is_an_error(body: str) -> None:
    with pytest.raises(
        ValueError, match=r"training\.batches\.context \(9\) is more than training\.batches\.tokens \(8\)"
    ):
        plan_of(100, 9, 8, body=body)
