"""Alignments of tokens and of words."""

from __future__ import annotations

import io
import json
import sys
import warnings
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.cells import cell_len
from rich.console import Console

from sightline.decoding.ensemble import Ensemble
from sightline.inspection.alignment import (
    SYMMETRIES,
    Alignment,
    HeadSelection,
    WordAlignment,
    align_by_selections,
    align_outputs,
    align_pairs,
    grow_diag_final_and,
    intersection,
    pharaoh,
    select_heads,
    source_attention,
    union,
    word_weights,
)
from sightline.plots.figures import MissingGlyphs
from sightline.run import Run
from sightline.terminal import visible
from sightline.text.word_pieces import align_pieces, align_words
from untrained_runs import LOOKING, untrained

DATE = [*"Donnerstag, der 23. September 2021", "</s>"]


def sharp(source: list[str], target: list[str]) -> Alignment:
    weights = np.full((len(target), len(source)), 0.01)
    for row in range(len(target)):
        weights[row, row % len(source)] = 0.9
    return Alignment(source, target, weights)


def printed(alignment: Alignment, width: int, **options: object) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, **options).print(alignment.grid())  # type: ignore[arg-type]
    return out.getvalue().rstrip("\n").split("\n")


def test_an_alignment_survives_json() -> None:
    alignment = sharp(["ein", "Hund"], ["a", "dog", "</s>"])
    again = Alignment(**json.loads(json.dumps(alignment.to_dict())))
    assert (again.source, again.target) == (alignment.source, alignment.target)
    np.testing.assert_allclose(again.weights, alignment.weights, atol=1e-6)
    assert Alignment(**Alignment([], [], np.zeros((0, 0), np.float32)).to_dict()).weights.shape == (0, 0)


def test_weights_of_another_shape_or_not_finite_are_refused() -> None:
    with pytest.raises(ValueError, match=r"weights \(2, 1\) must be \(target tokens, source tokens\), here \(1, 2\)"):
        Alignment(["a", "b"], ["c"], np.zeros((2, 1), np.float32))
    with pytest.raises(ValueError, match="finite"):
        Alignment(["a"], ["c"], np.array([[np.nan]], np.float32))


def test_grid_without_colours_uses_shades() -> None:
    weights = np.array([[0.95, 0.05], [0.3, 0.7]], np.float32)
    assert printed(Alignment(["ein", "Hund"], ["a", "dog"], weights), 40)[:3] == [
        "    ein Hund",
        "  a ███ ░░░░ ",
        "dog ▒▒▒ ▓▓▓▓ ",
    ]


@pytest.mark.parametrize(("system", "code", "weight"), [("truecolor", "48;2;", 0.77), ("256", "48;5;", 0.66)])
def test_grid_with_colours_has_backgrounds(system: str, code: str, weight: float) -> None:
    # Two weights, because rich keeps the codes of a style it has met whatever console asks next.
    alignment = Alignment(["ein"], ["a"], np.array([[weight]], np.float32))
    assert code in printed(alignment, 40, force_terminal=True, color_system=system, no_color=False)[1]


def test_no_color_uses_shades() -> None:
    lines = printed(sharp(["ein"], ["a"]), 40, force_terminal=True, color_system="truecolor", no_color=True)
    assert "█" in lines[1]


def test_a_date_of_forty_characters_fits_in_a_hundred_columns_as_one_block() -> None:
    lines = printed(sharp([*"Mittwoch, der 22. September 2021 n. Chr.", "</s>"], list("2021-09-22")), 100)
    assert max(map(cell_len, lines)) <= 100
    assert sum(line.startswith("9 ") for line in lines) == 1


def test_wide_grid_is_split_into_blocks() -> None:
    lines = printed(sharp(DATE * 2, ["a"]), 60)
    rows = [line for line in lines if line.startswith("a ")]
    assert max(map(cell_len, lines)) <= 60
    assert sum(len(row[2:]) // 2 for row in rows) == 2 * len(DATE)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (["日本", "語"], ["日付", "a", "e\u0301e\u0301"]),
        (["e\u0301", "👨‍👩‍👧", "\u0301", " "], ["x", "\u0301"]),
        (["ولد", "صغير"], ["小さな", "boy"]),
    ],
)
def test_wide_combining_and_right_to_left_labels_keep_the_columns_aligned(source: list[str], target: list[str]) -> None:
    lines = printed(sharp(source, target), 80)[1 : 1 + len(target)]
    assert len({cell_len(line) for line in lines}) == 1


def test_invisible_labels_get_a_sign() -> None:
    assert [visible(token) for token in (" ", "\n", "", "\u0301", "a\x1bb")] == ["␣", "⏎", "∅", "◌\u0301", "a�b"]


def test_empty_alignment_has_empty_text() -> None:
    assert len(printed(Alignment([], [], np.zeros((0, 0), np.float32)), 80)) >= 1


@pytest.mark.parametrize("tokens", [["Mädchen", "$x$", "a_b^2", "\\frac"], ["ولد", "小さな", " "]])
def test_figure_has_no_warnings_for_any_label(tmp_path: Path, tokens: list[str]) -> None:
    pytest.importorskip("matplotlib")
    before = "matplotlib.pyplot" in sys.modules
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", MissingGlyphs)  # tests/inspection/test_fonts.py
        sharp(tokens, tokens[::-1]).draw(tmp_path / "picture.png", title="$ " + tokens[0])
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert [file.name for file in tmp_path.iterdir()] == ["picture.png"]
    assert ("matplotlib.pyplot" in sys.modules) == before


def test_negative_weights_of_linear_attention_are_drawn_and_printed(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    alignment = Alignment(["a", "b"], ["c"], np.array([[-3.0, 6.0]], np.float32))
    alignment.draw(tmp_path / "picture.png")
    assert "█" in printed(alignment, 40)[1]


def test_an_empty_alignment_cannot_be_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(ValueError, match="nothing to draw: 0 source and 1 target"):
        Alignment([], ["a"], np.zeros((1, 0), np.float32)).draw(tmp_path / "picture.png")


CPU = torch.device("cpu")
SOURCES = ["Ein Hund bellt laut.", "", "Die Kinder lachen über den Hund 🙂.", "Zwei Männer"]
TARGETS = ["A dog barks loudly.", "nothing", "The children laugh about the dog 🙂.", ""]


# --- pieces and words --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [*SOURCES, "  Zwei   Männer,\tdie  漢字 ü 🙂", "Don't 'go'", "a\u0301 b"])
def test_pieces_belong_to_their_words(text: str) -> None:
    tokenizer = untrained("transformer").vocabulary.source
    cut = align_words(tokenizer, text)
    assert cut.words == text.split()
    assert cut.ids == tokenizer.encode(text)
    assert cut.members.shape == (len(cut.ids), len(cut.words))
    assert cut.members.any(axis=0).all()  # every word has a piece
    assert (cut.members.sum(axis=1) <= 1).all()
    assert (np.diff(cut.members.nonzero()[1]) >= 0).all()  # in order


def test_words_may_differ_in_segmentation_and_case() -> None:
    tokenizer = untrained("transformer").vocabulary.source
    cut = align_words(tokenizer, "Ein Hund bellt laut.", ["ein", "hund", "bellt", "la", "ut", "."])
    pieces = tokenizer.pieces(cut.ids)
    last = [piece for piece, own in zip(pieces, cut.members, strict=True) if own[5]]
    assert last == ["."]
    with pytest.raises(ValueError, match="line 7: the words 'ein katze' do not spell the text 'Ein Hund'"):
        align_words(tokenizer, "Ein Hund", ["ein", "katze"], 7)


def test_piece_across_two_words_belongs_to_both() -> None:
    tokenizer = untrained("transformer").vocabulary.source
    cut = align_words(tokenizer, "Hund", list("Hund"))
    assert len(cut.ids) < 4
    assert cut.members.any(axis=0).all() and (cut.members.sum(axis=1) > 1).any()


def test_align_pieces_spells_words() -> None:
    cut = align_pieces([4, 5, 6, 7, 8], ["▁A", "▁d", "og", "▁", "!"])
    assert cut.words == ["A", "dog", "!"]
    expected = [[1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 0], [0, 0, 1]]
    assert cut.members.astype(int).tolist() == expected


def test_weights_are_summed_over_source_pieces_and_averaged_over_target_pieces() -> None:
    weights = np.array([[0.5, 0.25, 0.25], [0.125, 0.125, 0.75], [0.0, 1.0, 0.0]], dtype=np.float32)
    source = np.array([[1, 0], [1, 0], [0, 1]], dtype=bool)  # two words, the first of two pieces
    target = np.array([[1, 0], [1, 0], [0, 1]], dtype=bool)
    found = word_weights(weights, source, target)
    assert found.tolist() == [[0.5, 0.5], [1.0, 0.0]]


def test_target_words_link_to_largest_weight_or_nothing() -> None:
    weights = np.array([[0.1, 0.7], [0.6, 0.2], [0.0, 0.0]], dtype=np.float32)
    found = WordAlignment(["a", "b"], ["x", "y", "z"], weights)
    assert found.links == {(1, 0), (0, 1)}
    assert found.pharaoh() == "0-1 1-0"
    assert WordAlignment([], ["x"], np.zeros((1, 0), np.float32)).pharaoh() == ""


# --- attention ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LOOKING)
def test_batched_alignment_equals_single(name: str) -> None:
    run = untrained(name)
    together = align_pairs(run, SOURCES, TARGETS)
    for number, found in enumerate(together):
        (alone,) = align_pairs(run, [SOURCES[number]], [TARGETS[number]])
        assert (found.source, found.target) == (SOURCES[number].split(), TARGETS[number].split())
        np.testing.assert_allclose(found.weights, alone.weights, atol=1e-5)
        assert found.weights.any() == bool(SOURCES[number] and TARGETS[number])


@pytest.mark.parametrize("name", LOOKING)
def test_alignment_uses_recorded_attention(name: str) -> None:
    run = untrained(name)
    source, target = run.vocabulary.source.encode(SOURCES[0]), run.vocabulary.target.encode(TARGETS[0])
    ((weights,),) = source_attention(run, [source], [target], select_heads(run.model, ()))
    expected = run.alignment_of(source, target)
    assert expected is not None
    np.testing.assert_allclose(weights, expected.weights, atol=1e-6)


def test_shift_uses_weights_of_next_step() -> None:
    run = untrained("transformer")
    source = align_words(run.vocabulary.source, SOURCES[0])
    target = align_words(run.vocabulary.target, TARGETS[0])
    ((weights,),) = source_attention(run, [source.ids], [target.ids], select_heads(run.model, ()))
    (plain,) = align_pairs(run, SOURCES[:1], TARGETS[:1])
    (shifted,) = align_pairs(run, SOURCES[:1], TARGETS[:1], HeadSelection(shift=True))
    np.testing.assert_allclose(plain.weights, word_weights(weights[:-1, :-1], source.members, target.members))
    np.testing.assert_allclose(shifted.weights, word_weights(weights[1:, :-1], source.members, target.members))
    assert np.abs(plain.weights - shifted.weights).max() > 1e-3


def test_heads_and_layers_can_be_chosen_by_name() -> None:
    run = untrained("transformer")
    assert select_heads(run.model, ()) == {"decoder.layers.0.cross_attention": [0, 1]}
    assert select_heads(run.model, ["decoder.1.cross"]) == {"decoder.layers.1.cross_attention": [0, 1]}
    named = ("decoder.layers.1.cross_attention.1", "decoder.0.cross", "decoder.0.cross.1")
    assert select_heads(run.model, named) == {
        "decoder.layers.1.cross_attention": [1],
        "decoder.layers.0.cross_attention": [0, 1],
    }
    one, other, both = (
        align_pairs(run, SOURCES[:1], TARGETS[:1], HeadSelection(names))[0].weights
        for names in (("decoder.1.cross.0",), ("decoder.1.cross.1",), ("decoder.1.cross",))
    )
    np.testing.assert_allclose((one + other) / 2, both, atol=1e-6)
    assert np.abs(one - other).max() > 1e-3


def test_ensemble_averages_models_with_cross_attention() -> None:
    members = [untrained(name) for name in ("transformer", "recurrent", "bottleneck")]
    first = members[0]
    together = Run(Path("none"), first.recipe, first.vocabulary, Ensemble([each.model for each in members]), CPU)
    assert list(select_heads(together.model, ())) == [
        "models.0.decoder.layers.0.cross_attention",
        "models.1.decoder.attention",
    ]
    (found,) = align_pairs(together, SOURCES[:1], TARGETS[:1])
    heads = [("models.0.decoder.0.cross",), ("models.1.decoder.attention",)]
    parts = [align_pairs(together, SOURCES[:1], TARGETS[:1], HeadSelection(each))[0].weights for each in heads]
    np.testing.assert_allclose(found.weights, (2 * parts[0] + parts[1]) / 3, atol=1e-6)  # two heads and one


def test_truncated_source_words_have_no_links() -> None:
    run = untrained("transformer")
    clean = run.recipe.data.clean.model_copy(update={"truncate_source": len(run.vocabulary.source.encode("Ein Hund"))})
    data = run.recipe.data.model_copy(update={"clean": clean})
    cut = Run(Path("none"), run.recipe.model_copy(update={"data": data}), run.vocabulary, run.model, CPU)
    (short,) = align_pairs(cut, ["Ein Hund"], TARGETS[:1])
    (long,) = align_pairs(cut, SOURCES[:1], TARGETS[:1])
    assert long.source == SOURCES[0].split() and not long.weights[:, 2:].any()
    np.testing.assert_array_equal(long.weights[:, :2], short.weights)


def test_outputs_are_aligned_with_generated_pieces() -> None:
    run = untrained("transformer")
    texts = [text for text in SOURCES if text]
    tokens = [guesses[0].tokens for guesses in run.predict_nbest(texts)]
    for text, ids, found in zip(texts, tokens, align_outputs(run, texts, tokens), strict=True):
        assert found.source == text.split()
        assert found.target == run.vocabulary.target.decode(ids).split()


def test_alignment_refuses_unsuitable_runs() -> None:
    run = untrained("transformer")
    with pytest.raises(
        ValueError, match=r"encoder.0.self.1 is no cross-attention head; decoder.layers.0.cross_attention.0 … "
    ):
        align_pairs(run, SOURCES[:1], TARGETS[:1], HeadSelection(("encoder.0.self.1",)))
    with pytest.raises(ValueError, match="no cross-attention"):
        align_pairs(untrained("bottleneck"), SOURCES[:1], TARGETS[:1])
    with pytest.raises(ValueError, match="task: language-model"):
        align_pairs(untrained("language-model"), SOURCES[:1], TARGETS[:1])
    with pytest.raises(ValueError, match="4 sources and 1 targets"):
        align_pairs(run, SOURCES, TARGETS[:1])


# --- both directions ---------------------------------------------------------------------------------------------


def links(text: str) -> frozenset[tuple[int, int]]:
    return frozenset((int(i), int(j)) for i, j in (word.split("-") for word in text.split()))


def test_grow_diag_adds_neighbours_of_unlinked_words() -> None:
    forward, backward = links("0-0 1-1 2-1 4-4"), links("0-0 1-1 1-2 3-3")
    assert intersection(forward, backward) == links("0-0 1-1")
    assert union(forward, backward) == links("0-0 1-1 1-2 2-1 3-3 4-4")
    # 1-2 and 2-1 touch 1-1; 3-3 and 4-4 touch none before, and final-and takes them
    assert grow_diag_final_and(forward, backward) == links("0-0 1-1 1-2 2-1 3-3 4-4")


def test_grow_diag_skips_links_between_linked_words() -> None:
    forward, backward = links("0-0 1-1 0-1"), links("0-0 1-1 1-0")
    assert grow_diag_final_and(forward, backward) == links("0-0 1-1")


def test_final_and_adds_links_of_unlinked_words() -> None:
    forward, backward = links("0-0 5-0 7-7"), links("0-0 0-5 7-5")
    assert grow_diag_final_and(forward, backward) == links("0-0 7-7")


def test_symmetrizations_lie_between_intersection_and_union() -> None:
    points = list(product(range(3), range(3)))
    draw = np.random.default_rng(0)
    for _ in range(300):
        one, other = (frozenset(p for p in points if draw.random() < 0.3) for _ in range(2))
        for symmetrize in SYMMETRIES.values():
            assert one & other <= symmetrize(one, other) <= one | other
            assert symmetrize(one, one) == one


def test_links_are_written_in_order() -> None:
    assert pharaoh(frozenset({(10, 2), (2, 10), (2, 1)})) == "2-1 2-10 10-2"


@pytest.mark.parametrize("name", LOOKING)
def test_several_selections_need_one_pass(name: str) -> None:
    run = untrained(name)
    ways = [HeadSelection((path,), shift) for path in run.model.cross_attention_paths for shift in (False, True)]
    for how, found in zip(ways, align_by_selections(run, SOURCES, TARGETS, ways), strict=True):
        for one, other in zip(found, align_pairs(run, SOURCES, TARGETS, how), strict=True):
            np.testing.assert_allclose(one.weights, other.weights, atol=1e-6)
