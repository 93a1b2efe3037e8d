"""Which pieces make which words."""

from __future__ import annotations

import numpy as np

from sightline.text.word_pieces import align_pieces, word_groups


def test_pieces_are_grouped_into_words_and_marks_stand_alone() -> None:
    assert word_groups(["▁Ein", "▁Ap", "fel", "kuchen", ".", "</s>"]) == [[0], [1, 2, 3], [4], [5]]
    assert word_groups(["a", "b", "▁", "c"]) == [[0, 1], [2, 3]]
    assert word_groups([]) == []


def test_what_is_unknown_is_a_word_of_its_own_with_the_space_before_it() -> None:
    assert word_groups(["▁a", "▁", "<unk 犬>", "b", "<unk>", "▁c"]) == [[0], [1, 2], [3], [4], [5]]


def test_a_mark_of_noise_is_no_part_of_the_word_before_it() -> None:
    assert word_groups(["▁Two", "<mask>", "▁pl", "ay", "<gap-0>", "s"]) == [[0], [1], [2, 3], [4], [5]]


def test_where_there_are_no_marks_groups_are_the_words_that_the_pieces_spell() -> None:
    pieces = ["▁Ein", "▁Ap", "fel", "▁", "ku", "chen"]
    cut = align_pieces(list(range(6)), pieces)
    letters = [[place for place in group if pieces[place] != "▁"] for group in word_groups(pieces)]
    assert letters == [np.flatnonzero(column).tolist() for column in cut.members.T]
