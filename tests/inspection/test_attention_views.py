"""The heads of every model that has some: weights, labels, tables, pictures."""

from __future__ import annotations

import html
import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from sightline.inspection.attention import Head, find_head, head_names, heads_table, short_name, trace_heads
from sightline.layers.tap import TapModule
from sightline.plots.heads import draw_head_grid
from sightline.terminal import visible
from untrained_runs import MODELS, untrained

TEXT = "Ein Hund lacht über 漢字 🙂."
HEADS = {
    "transformer": {"encoder": 4, "decoder": 4, "cross": 4},
    "recurrent": {"cross": 1},
    "linear": {"encoder": 4, "cross": 1},
    "convolutional": {"cross": 2},
    "decoder-only": {"decoder": 4},
    "language-model": {"decoder": 4},
    "classifier": {"encoder": 4},
    "tagger": {"encoder": 4},
}


def heads(name: str) -> list[Head]:
    texts = {"classifier": "a b c d", "tagger": "a b c d", "language-model": "Zwei Männer"}
    target = " spielen" if name == "language-model" else None
    return trace_heads(untrained(name).trace(texts.get(name, TEXT), target))


@pytest.mark.parametrize("name", MODELS)
def test_every_head_of_every_kind_is_there_with_a_label_for_each_row_and_column(name: str) -> None:
    found = heads(name)
    assert {kind: sum(head.kind == kind for head in found) for kind in HEADS[name]} == HEADS[name]
    assert len(found) == sum(HEADS[name].values())
    assert sorted(head.name for head in found) == sorted(head_names(untrained(name).model))
    for head in found:
        assert head.weights.shape == (len(head.queries), len(head.keys))
        if name != "linear" or head.kind == "encoder":
            np.testing.assert_allclose(head.weights.sum(1), 1.0, atol=1e-5)  # float32 sums of a few
        if head.kind == "decoder":
            assert not np.triu(head.weights, 1).any()


@pytest.mark.parametrize("name", MODELS)
def test_nobody_listens_afterwards(name: str) -> None:
    heads(name)
    assert not any(part.recorded for part in untrained(name).model.modules() if isinstance(part, TapModule))


def test_rows_are_what_was_written_and_columns_what_was_read() -> None:
    found = trace_heads(untrained("transformer").trace("Ein Hund", "A dog"))
    sides = {head.kind: ("".join(head.queries), "".join(head.keys)) for head in found}
    assert sides["encoder"] == ("▁Ein▁Hund</s>", "▁Ein▁Hund</s>")
    assert sides["decoder"] == ("<s>▁A▁dog", "<s>▁A▁dog")
    assert sides["cross"] == ("▁A▁dog</s>", "▁Ein▁Hund</s>")


def test_the_output_looked_at_is_the_model_s_own_if_none_is_given() -> None:
    run = untrained("transformer")
    own = run.vocabulary.target.pieces(run.predict_nbest([TEXT])[0][0].tokens)
    assert next(head for head in heads("transformer") if head.kind == "cross").queries == [*own, "</s>"]


def test_attention_to_the_source_is_what_alignments_are_made_of() -> None:
    run = untrained("transformer")
    alignment = run.align("Ein Hund", "A dog")
    found = trace_heads(run.trace("Ein Hund", "A dog"))
    lower = [
        head.weights for head in found if head.path == "decoder.layers.0.cross_attention"
    ]  # the last layer but one of two
    assert alignment is not None
    np.testing.assert_allclose(np.mean(lower, axis=0), alignment.weights, atol=1e-6)


def test_a_model_without_attention_has_no_heads() -> None:
    assert heads("bottleneck") == []


def test_heads_have_short_names_too() -> None:
    model = untrained("transformer").model
    assert find_head(model, "decoder.layers.1.cross_attention.0") == ("decoder.layers.1.cross_attention", 0)
    assert find_head(model, "decoder.1.cross_attention.0") == ("decoder.layers.1.cross_attention", 0)
    assert find_head(model, "encoder.0.self.1") == ("encoder.layers.0.attention", 1)
    assert find_head(untrained("recurrent").model, "decoder.attention.0") == ("decoder.attention", 0)
    with pytest.raises(
        ValueError, match=r"no head 'decoder.7.cross_attention.0'; it has encoder.layers.0.attention.0 … "
    ):
        find_head(model, "decoder.7.cross_attention.0")


def test_the_table_has_a_line_for_each_head_at_eighty_columns() -> None:
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(heads_table(heads("transformer")))
    text = console.export_text()
    for head in heads("transformer"):
        assert short_name(head.name) in text
    assert f"{heads('transformer')[0].measures.entropy:.2f}" in text


def test_heads_are_data() -> None:
    head = heads("transformer")[0]
    data = json.loads(json.dumps(head.to_dict()))
    assert data["name"] == head.name and data["keys"] == head.keys
    np.testing.assert_allclose(data["weights"], head.weights, atol=1e-6)


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_a_grid_is_drawn_in_any_script(suffix: str, tmp_path: Path) -> None:
    found = [head for head in heads("transformer") if head.kind == "cross"]
    path = tmp_path / f"heads{suffix}"
    draw_head_grid(found, path, title=f"$ {TEXT} $")
    magic = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}
    assert path.read_bytes().startswith(magic[suffix])
    if suffix == ".svg":
        draw_head_grid(found, tmp_path / "again.svg", title=f"$ {TEXT} $")
        assert path.read_text() == (tmp_path / "again.svg").read_text()


def test_a_grid_shows_every_kind_of_attention_with_every_token(tmp_path: Path) -> None:
    found = heads("transformer")
    draw_head_grid(found, tmp_path / "heads.svg", title=TEXT)
    text = (tmp_path / "heads.svg").read_text()
    comments = [html.unescape(comment) for comment in re.findall(r"<!-- (.*?) -->", text, flags=re.S)]
    shown = "\n".join(comments)
    for kind in ("encoder self-attention", "decoder self-attention", "attention to the source"):
        assert kind in shown
    first = {head.kind: head for head in reversed(found)}
    layers = {kind: len({head.path for head in found if head.kind == kind}) for kind in first}
    wanted: Counter[str] = Counter()
    for kind, head in first.items():  # above the first row of panels, and beside the first panel of each row
        wanted.update(map(visible, head.keys))
        for _ in range(layers[kind]):
            wanted.update(map(visible, head.queries))
    assert all(comments.count(token) >= count for token, count in wanted.items() if len(token) <= 16)
    assert comments.count("layer 0") == len(first)


def test_a_grid_needs_heads_and_a_known_format(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no head at all"):
        draw_head_grid([], tmp_path / "heads.png")
    with pytest.raises(ValueError, match=r"heads.jpg: a figure is a .png, .svg, .pdf file"):
        draw_head_grid(heads("recurrent"), tmp_path / "heads.jpg")
    assert not list(tmp_path.iterdir())


def test_tokens_without_room_for_a_label_are_counted(tmp_path: Path) -> None:
    tokens = [f"wort{number}" for number in range(150)]
    weights = np.eye(150, dtype=np.float32)
    found = [Head("encoder", "encoder.layers.0.attention", number, tokens, tokens, weights) for number in range(8)]
    draw_head_grid(found, tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    assert "wort0" in text and "of 150 columns, 150 of 150 rows named" in text
