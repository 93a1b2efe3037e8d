"""Guided alignment: one head is trained towards links that are given, and the rest of the model stays what it is."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sightline.cli.align import align
from sightline.data.collate import alignment_targets, padded_batch, seq2seq_ids
from sightline.inspection.alignment import HeadSelection, align_pairs
from sightline.layers.layout import Packed, Padded
from sightline.layers.tap import Tapped, on_taps
from sightline.models.seq2seq import Seq2Seq
from sightline.recipe import Recipe, Training
from sightline.recipe.checks import check_trainable
from sightline.recipe.training import GuidedAlignment
from sightline.run import Run
from sightline.tasks.losses import batch_loss
from sightline.training.objectives import GuidedHead, alignment_loss, build_objective
from sightline.training.train import train
from watched_runs import Silent

WORDS = ["eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben"]
BODY = {"kind": "transformer", "layers": 2, "heads": 2, "dropout": 0.0, "feedforward": {"kind": "relu", "width": 32}}
READER = {"kind": "recurrent", "cell": "gru", "layers": 1, "dropout": 0.0}
WRITER = {**READER, "attention": {"kind": "additive"}}
MODELS: dict[str, dict[str, Any]] = {
    "transformer": {"encoder": BODY, "decoder": BODY},
    "recurrent": {"encoder": READER, "decoder": WRITER},
    "convolutional": {
        "encoder": {"kind": "convolutional", "layers": 2, "dropout": 0.0},
        "decoder": {"kind": "convolutional", "layers": 2, "dropout": 0.0},
    },
}


# --- the loss ---------------------------------------------------------------------------------------------------------


def test_the_alignment_loss_is_the_negative_log_of_linked_weights() -> None:
    weights = torch.tensor([[[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]], [[1.0, 0.0, 0.0], [0.2, 0.2, 0.6]]])
    guide = alignment_targets([np.array([[0, 0], [1, 0], [1, 1]]), np.array([[2, 1]])], shift=False)
    expected = -(0.5 * np.log(0.5) + 0.5 * np.log(0.25) + np.log(0.8) + np.log(0.6))
    assert float(alignment_loss(weights, guide)) == pytest.approx(expected)


def test_with_shift_a_piece_is_guided_one_step_later() -> None:
    plain, shifted = (alignment_targets([np.array([[3, 0], [4, 2]])], shift=shift) for shift in (False, True))
    assert plain.places.tolist() == [[0, 0], [0, 2], [3, 4]]
    assert shifted.places.tolist() == [[0, 0], [1, 3], [3, 4]]


def test_a_batch_without_links_has_no_alignment_loss() -> None:
    assert float(alignment_loss(torch.ones(2, 3, 4), alignment_targets([np.empty((0, 2))] * 2, shift=False))) == 0


@pytest.mark.parametrize("packed", [True, False])
def test_guided_head_weights_equal_the_explicit_kernel(looking_model: Seq2Seq, packed: bool) -> None:
    lengths, given = [4, 2], [3, 2]
    layouts = [(Packed if packed else Padded).of(each) for each in (lengths, given)]
    source, target = torch.tensor([[5, 6, 7, 3], [8, 3, 0, 0]]), torch.tensor([[2, 9, 4], [2, 12, 0]])
    if packed:
        source, target = (row[row != 0] for row in (source, target))
    head = GuidedHead(looking_model, GuidedAlignment(file="x", layer=0))
    heard: list[torch.Tensor] = []

    def hear(tapped: Tapped) -> None:
        if tapped.name.endswith(".weights"):
            heard.append(tapped.tensor)

    with torch.no_grad():
        with head.recording():
            looking_model(source, layouts[0], target, layouts[1])
        found = head.weights(layouts[0], layouts[1])
        with on_taps(looking_model, hear, (looking_model.cross_attention_paths[0],)):
            looking_model(source, layouts[0], target, layouts[1])
    expected = torch.cat(heard, dim=2)[:, 0]
    for row, (s, t) in enumerate(zip(lengths, given, strict=True)):
        torch.testing.assert_close(found[row, :t, :s], expected[row, :t, :s], rtol=0, atol=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_a_guided_step_adds_the_weighted_alignment_loss(looking_model: Seq2Seq, smoothing: float) -> None:
    sides = seq2seq_ids([np.array([5, 6, 7]), np.array([8])], [np.array([9, 4]), np.array([12])])
    guide = alignment_targets([np.array([[0, 0], [1, 1]]), np.array([[0, 0]])], shift=False)
    batch = replace(padded_batch(sides, np.arange(2)), alignment=guide)
    section = GuidedAlignment(file="x", layer=0, weight=0.25)
    head = GuidedHead(looking_model, section)
    with torch.no_grad():
        with head.recording():
            plain = batch_loss(looking_model, batch, smoothing)
        apart = alignment_loss(head.weights(batch.source_layout, batch.decoder_layout), guide)
        unguided = build_objective(Training(label_smoothing=smoothing))(looking_model, batch)
        found = build_objective(Training(label_smoothing=smoothing, guided_alignment=section))(looking_model, batch)
        twice = build_objective(Training(label_smoothing=smoothing, rdrop=3.0))(looking_model, batch)
    torch.testing.assert_close(unguided.total, plain.total)
    torch.testing.assert_close(found.total, plain.total + 0.25 * apart)
    torch.testing.assert_close(twice.total, plain.total)  # R-Drop without dropout: both passes say the same
    assert float(apart) > 0.1


# --- in a training ----------------------------------------------------------------------------------------------------


def corpus(folder: Path, pairs: int) -> None:
    """Each sentence is turned round, so that attention that goes along with the words is wrong."""
    draw = random.Random(1)
    sentences = [draw.choices(WORDS, k=draw.randint(2, 6)) for _ in range(pairs)]
    for name, rows in (("train", sentences[20:]), ("valid", sentences[:20])):
        lines = [f"{' '.join(row)}\t{' '.join(reversed(row))}\n" for row in rows]
        (folder / f"{name}.tsv").write_text("".join(lines), encoding="utf-8")
    links = [" ".join(f"{len(row) - 1 - j}-{j}" for j in range(len(row))) for row in sentences[20:]]
    (folder / "links.txt").write_text("\n".join(links) + "\n")


def recipe(folder: Path, model: dict[str, Any], **training: Any) -> Recipe:
    return Recipe.model_validate(
        {
            "data": {
                "folder": str(folder),
                "train": [{"kind": "tsv", "file": "train.tsv"}],
                "validation": {"kind": "tsv", "file": "valid.tsv"},
            },
            "tokenizer": {"kind": "bpe", "size": 24, "min_count": 1},
            "model": {"width": 16, **model},
            "training": {
                "precision": "float32",
                "lr": 1e-2,
                "schedule": {"kind": "constant", "warmup": 5},
                "batches": {"tokens": 256},
                "limits": {"steps": 80},
                "result": "last",
                "samples": 0,
                "device": "cpu",
                "threads": 1,
                **training,
            },
            "decoding": {"beam": 1, "max_length": 12},
        }
    )


def error(run: Run, folder: Path, looking: HeadSelection | None = None) -> float:
    """AER on the validation sentences, where every link is sure."""
    rows = [line.split("\t") for line in (folder / "valid.tsv").read_text(encoding="utf-8").splitlines()]
    found = align_pairs(run, [row[0] for row in rows], [row[1] for row in rows], looking)
    right = sum((len(each.source) - 1 - j, j) in each.links for each in found for j in range(len(each.target)))
    return 1 - 2 * right / sum(len(each.links) + len(each.target) for each in found)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("name", list(MODELS))
def test_a_guided_head_learns_its_alignments(name: str, tmp_path: Path) -> None:
    corpus(tmp_path, 320)
    errors = {}
    for kind, more in (("plain", {}), ("guided", {"guided_alignment": {"file": "links.txt", "weight": 0.5}})):
        run = Run.load(train(recipe(tmp_path, MODELS[name], **more), out=tmp_path / kind, display=Silent()))
        errors[kind] = error(run, tmp_path)
    assert errors["guided"] < 0.3
    assert errors["guided"] < errors["plain"] - 0.1
    assert "guided alignment | the last layer but one, head 0" in (tmp_path / "guided" / "README.md").read_text()


def test_a_head_guided_with_shift_is_read_with_shift(tmp_path: Path) -> None:
    corpus(tmp_path, 320)
    guide = {"file": "links.txt", "weight": 0.5, "layer": 1, "head": 1, "shift": True}
    made = recipe(tmp_path, MODELS["transformer"], guided_alignment=guide, batches={"tokens": 256, "layout": "padded"})
    run = Run.load(train(made, out=tmp_path / "run", display=Silent()))
    assert error(run, tmp_path) < 0.2
    assert error(run, tmp_path) == error(run, tmp_path, HeadSelection(("decoder.1.cross.1",), shift=True))
    assert error(run, tmp_path) < error(
        run, tmp_path, HeadSelection(("decoder.1.cross.1",))
    )  # as it is read, not written


def test_align_training_writes_alignments_for_guided_training(tmp_path: Path) -> None:
    corpus(tmp_path, 60)
    (tmp_path / "train.tsv").open("a", encoding="utf-8").write("eins " * 300 + "\tzwei\n\tdrei\n")  # to be cleaned away
    few = {"limits": {"steps": 3}}
    first = train(recipe(tmp_path, MODELS["transformer"], **few), out=tmp_path / "first", display=Silent())
    align(first, training=True, out=tmp_path / "made.txt")
    lines = (tmp_path / "made.txt").read_text().splitlines()
    assert len(lines) == 42
    assert lines[-2:] == ["", ""] and all(lines[:-2])
    made = recipe(tmp_path, MODELS["transformer"], guided_alignment={"file": "made.txt"}, limits={"epochs": 3})
    dropped = made.tokenizer.model_copy(update={"dropout": 0.2, "variants": 2})
    again = train(made.model_copy(update={"tokenizer": dropped}), out=tmp_path / "second", display=Silent())
    assert (again / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("guide", "more", "message"),
    [
        ({"layer": 2}, {}, "guided_alignment.layer is 2, and there are 2, counted from 0"),
        ({"head": 2}, {}, "guided_alignment.head is 2, and there are 2"),
        ({}, {"rdrop": 1.0}, "cannot be combined with training.rdrop"),
        ({}, {"compile": True}, "cannot be combined with training.compile: true"),
        ({"weight": 0}, {}, "weight"),
    ],
)
def test_settings_without_a_guidable_head_are_refused(
    tmp_path: Path, guide: dict[str, Any], more: dict[str, Any], message: str
) -> None:
    guided = {"guided_alignment": {"file": "links.txt", **guide}}
    with pytest.raises(ValueError, match=message):
        check_trainable(recipe(tmp_path, MODELS["transformer"], **guided, **more))


def test_attention_without_softmax_cannot_be_guided(tmp_path: Path) -> None:
    for kind in ("none", "unnormalized"):
        model = {"encoder": READER, "decoder": {**READER, "attention": {"kind": kind}}}
        with pytest.raises(ValueError, match=r"guided_alignment cannot be combined with .*attention"):
            check_trainable(recipe(tmp_path, model, guided_alignment={"file": "links.txt"}))
