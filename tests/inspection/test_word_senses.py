"""The plane in which the places of a word are drawn, its picture, neighbours, and files of vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet

from sightline.inspection.embeddings import Nearest, cosines, vector_file
from sightline.inspection.word_senses import Occurrences
from sightline.plots.senses import draw_senses, principal_plane, turned_alike


def test_the_plane_holds_the_two_directions_of_most_variance() -> None:
    draw = np.random.default_rng(1)
    flat = draw.normal(size=(20, 2)) * [5.0, 1.0]
    turn = np.linalg.qr(draw.normal(size=(6, 6)))[0][:2]
    places, shares = principal_plane((flat @ turn + 3.0).astype(np.float32))
    centred = flat - flat.mean(0)
    apart = np.linalg.norm(places[:, None] - places[None], axis=-1)
    np.testing.assert_allclose(apart, np.linalg.norm(centred[:, None] - centred[None], axis=-1), atol=1e-4)
    assert shares.sum() == pytest.approx(1.0)
    assert shares[0] > 0.8


def test_vectors_that_are_all_the_same_stand_at_one_place() -> None:
    places, shares = principal_plane(np.full((5, 3), 0.1, np.float32))
    assert not places.any() and not shares.any()


def test_a_plane_is_turned_as_another_and_not_otherwise_changed() -> None:
    model = np.array([[1.0, 2.0], [-1.0, -2.0]])
    assert turned_alike(model * [-1, 1], model).tolist() == model.tolist()


def test_a_picture_is_drawn_for_places_in_any_script(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    contexts = ["at the [bank] of the river", "彼は[銀行]へ行く", "$a [बैंक] b$ 🙂"]
    layers = {"embedding": np.ones((3, 4), np.float32), "last": draw.normal(size=(3, 4)).astype(np.float32)}
    for name in ("a.png", "b.png", "c.svg"):
        draw_senses(Occurrences("bank", contexts, layers), tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert (tmp_path / "c.svg").stat().st_size > 1000


# --- neighbours -------------------------------------------------------------------------------------------------------


def test_blocks_give_the_neighbours_that_all_at_once_would() -> None:
    draw = np.random.default_rng(1)
    vectors, query = draw.normal(size=(50, 8)).astype(np.float32), draw.normal(size=8).astype(np.float32)
    near = Nearest(query, 5)
    for start in range(0, 50, 7):
        lines = list(range(start, min(start + 7, 50)))
        near.offer(lines, [f"t{line}" for line in lines], vectors[start : start + 7])
    expected = vectors @ query / np.linalg.norm(vectors, axis=1) / np.linalg.norm(query)
    assert [line for _, line, _ in near.best] == np.argsort(-expected)[:5].tolist()
    assert near.best[0][0] == pytest.approx(expected.max(), abs=1e-6)
    assert near.best[0][2] == f"t{near.best[0][1]}"


def test_a_vector_of_zeros_is_near_to_nothing() -> None:
    assert cosines(np.array([[0.0, 0.0], [2.0, 0.0]], np.float32), np.array([1.0, 0.0], np.float32)).tolist() == [0, 1]


# --- files ------------------------------------------------------------------------------------------------------------

BLOCKS = [([1, 1, 2], ["▁Ein", "x\ty", "漢"], np.arange(6, dtype=np.float32).reshape(3, 2))] * 2


@pytest.mark.parametrize("count", [0, 2])
def test_an_array_written_in_blocks_is_read_as_one_with_its_units_beside(tmp_path: Path, count: int) -> None:
    with vector_file(tmp_path / "v.npy", 2) as rows:
        for block in BLOCKS[:count]:
            rows.write(*block)
    found = np.load(tmp_path / "v.npy")
    assert found.dtype == np.float32
    assert found.tolist() == [row for _, _, vectors in BLOCKS[:count] for row in vectors.tolist()]
    assert (tmp_path / "v.tsv").read_text(encoding="utf-8") == "1\t▁Ein\n1\tx y\n2\t漢\n" * count


def test_a_table_written_in_blocks_has_line_unit_and_vector(tmp_path: Path) -> None:
    with vector_file(tmp_path / "v.parquet", 2) as rows:
        for block in BLOCKS:
            rows.write(*block)
    table = parquet.read_table(tmp_path / "v.parquet")
    assert table.column("line").to_pylist() == [1, 1, 2] * 2
    assert table.column("unit").to_pylist() == ["▁Ein", "x\ty", "漢"] * 2
    assert table.column("vector").to_pylist() == [[0, 1], [2, 3], [4, 5]] * 2


def test_nothing_is_left_of_a_file_that_was_not_finished(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="longer"), vector_file(tmp_path / "v.npy", 2) as rows:
        rows.write([1], ["one", "too many"], np.ones((1, 2), np.float32))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match=r"written as .npy or .parquet"), vector_file(tmp_path / "v.txt", 2):
        pass
