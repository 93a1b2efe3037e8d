"""Which weights fit where."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from sightline.models.heads import Classifier, Tagger
from sightline.models.language_model import LanguageModel
from sightline.models.protocol import DECODERS, body_classes
from sightline.models.seq2seq import Seq2Seq
from sightline.models.transfer import ModelWeights, not_taken, plan_transfer, summary, transfer
from sightline.models.weights import weights_of
from sightline.recipe.model import ModelConfig as Recipe

WORDS = ["<pad>", "<unk>", "<s>", "</s>", "a", "b", "c"]
LABELS = ["<pad>", "<unk>", "<s>", "</s>", "NOUN", "VERB", "ADJ"]  # as many, and others
TEXT = {"source": WORDS, "target": WORDS}
TAGS = {"source": WORDS, "target": LABELS}


def body(layers: int = 2, **more: Any) -> dict[str, Any]:
    return {"kind": "transformer", "layers": layers, "heads": 2, "feedforward": {"width": 12}, **more}


def recipe(**model: Any) -> Recipe:
    return Recipe.model_validate({"width": 8, **model})


def seq2seq(tie: str = "all", **model: Any) -> Seq2Seq:
    return Seq2Seq(recipe(encoder=body(), decoder=body(), tie=tie, **model), len(WORDS), len(WORDS))


def tagger(layers: int = 2) -> Tagger:
    return Tagger(recipe(encoder=body(layers)), WORDS, len(LABELS))


def seen(model: nn.Module, pieces: dict[str, list[str]]) -> ModelWeights:
    bodies = {side: part for side, part in model.named_children() if side in ("encoder", "decoder")}
    return ModelWeights(weights_of(model), pieces, bodies)


def test_a_tagger_takes_encoder_and_embeddings_of_a_translator_and_no_output() -> None:
    own, theirs = tagger(), seq2seq()
    plan = plan_transfer(seen(own, TAGS), seen(theirs, TEXT))
    assert plan.new == ("output.weight", "output.bias")  # of the same shape, but for labels
    assert plan.taken["source_embedding.weight"] == "target_embedding.weight"  # all are tied there
    assert all(name.startswith(("decoder.", "output.")) for name in plan.left)
    transfer(plan, weights_of(own), weights_of(theirs))
    for name, weight in own.encoder.state_dict().items():
        assert torch.equal(weight, theirs.encoder.state_dict()[name])
    assert torch.equal(own.source_embedding.weight, theirs.target_embedding.weight)


def test_a_decoder_takes_a_language_model_and_keeps_its_own_look_at_the_source() -> None:
    own = seq2seq()
    theirs = LanguageModel(recipe(decoder=body(), tie="output"), len(WORDS))
    plan = plan_transfer(seen(own, TEXT), seen(theirs, TEXT), ["decoder", "embeddings"])
    decoder_new = {name.split(".")[3] for name in plan.new if name.startswith("decoder.")}
    assert decoder_new == {"cross_attention", "cross_attention_residual"}
    assert plan.taken["target_embedding.weight"] == "embedding.weight"
    assert not any(name.startswith("encoder.") for name in plan.taken)
    for part in ("decoder", "embeddings"):
        assert not_taken(plan, seen(own, TEXT), seen(theirs, TEXT), part) == []  # type: ignore[arg-type]
    assert not_taken(plan, seen(own, TEXT), seen(theirs, TEXT), "encoder")


@pytest.mark.parametrize(
    ("kind", "own"),
    [("recurrent", {}), ("convolutional", {}), ("convolutional", {"channels": 12}), ("bytenet", {}), ("window", {})],
    ids=str,
)
def test_every_decoder_kind_can_gain_attention_to_a_source(kind: str, own: dict[str, Any]) -> None:
    alone = {"kind": kind, "layers": 1, **own} | ({"attention": {"kind": "none"}} if kind == "recurrent" else {})
    looking = alone | ({"attention": {"kind": "additive"}} if kind == "recurrent" else {})
    theirs = seen(LanguageModel(recipe(decoder=alone, tie="output"), len(WORDS)), TEXT)
    own = seen(Seq2Seq(recipe(encoder=body(), decoder=looking), len(WORDS), len(WORDS)), TEXT)
    plan = plan_transfer(own, theirs, ["decoder"])
    assert not_taken(plan, own, theirs, "decoder") == []
    assert any(name.startswith("decoder.") for name in plan.new)
    assert all(name.startswith("decoder.") for name in plan.taken)


@pytest.mark.parametrize("kind", sorted(set(DECODERS) - {"ngram"}))
def test_weights_that_see_a_source_are_declared_correctly(kind: str) -> None:
    """The names of its weights say the same, so what a new body says is held to what it does."""
    section = recipe(decoder={"kind": kind, "layers": 2} | ({"heads": 2} if kind == "transformer" else {})).decoder
    assert section is not None
    reading, alone = (DECODERS[kind](section, 8, source=source) for source in (True, False))
    own, without = (seen(nn.ModuleDict({"decoder": body}), TEXT) for body in (reading, alone))
    seeing = {name for name in own.weights if own.sees_source(name)}
    attention = {name for name in seeing if kind == "recurrent" and not name.startswith("decoder.bridges.")}
    assert seeing - attention == set(own.weights) - set(without.weights)  # its attention is the recipe's to leave out
    assert bool(attention) == (kind == "recurrent")
    classes = body_classes(recipe(decoder=section))
    assert classes == {"decoder": type(reading)}  # which say the same as those that were built
    assert {name for name in own.weights if ModelWeights(own.weights, TEXT, classes).sees_source(name)} == seeing


def test_from_layers_of_another_width_only_parts_of_the_model_width_are_taken() -> None:
    def translator(channels: int) -> ModelWeights:
        body = {"kind": "convolutional", "layers": 1, "channels": channels}
        return seen(Seq2Seq(recipe(encoder=body, decoder=body), len(WORDS), len(WORDS)), TEXT)

    own, theirs = translator(12), translator(20)
    plan = plan_transfer(own, theirs, ["encoder"])
    assert list(plan.taken) == ["encoder.embed_positions.positions.table"]
    reasons = not_taken(plan, own, theirs, "encoder")
    assert "encoder.input_projection.project.direction is (20, 8) there and (12, 8) here" in reasons
    assert "encoder.output_projection.project.direction is (8, 20) there and (8, 12) here" in reasons
    same = plan_transfer(own, translator(12), ["encoder", "decoder"])
    assert not any(name.startswith(("encoder.", "decoder.")) for name in same.new)


class House(nn.Module):
    """A body that transfers know nothing of but what it says."""

    by_layer, below, sees_source = ("floors", "stairs.down"), (), ("floors.*.window", "door")

    def __init__(self, *widths: int, source: bool) -> None:
        super().__init__()
        parts = ("wall", "window") if source else ("wall",)
        self.floors = nn.ModuleList(
            nn.ModuleDict({part: nn.Linear(width, 2, bias=False) for part in parts}) for width in widths
        )
        self.stairs = nn.ModuleDict({"down": nn.ModuleList(nn.Linear(width, 1) for width in widths)})
        if source:
            self.door = nn.Linear(2, 2)


def test_a_new_body_is_transferred_by_its_declarations() -> None:
    own = seen(nn.ModuleDict({"encoder": nn.Linear(2, 2), "decoder": House(3, 4, source=True)}), TEXT)
    theirs = seen(nn.ModuleDict({"decoder": House(3, 5, source=False)}), TEXT)
    plan = plan_transfer(own, theirs, ["decoder"])
    assert list(plan.taken) == [
        "decoder.floors.0.wall.weight",
        "decoder.stairs.down.0.weight",
        "decoder.stairs.down.0.bias",
    ]
    assert not_taken(plan, own, theirs, "decoder")[:2] == [
        "decoder.floors.1.wall.weight is (2, 5) there and (2, 4) here",
        "decoder.stairs.down.1.weight is (1, 5) there and (1, 4) here",
    ]
    assert own.unit("decoder.stairs.down.1.bias") == "decoder.stairs.down.1"
    assert own.unit("decoder.door.weight") == "decoder.door"
    assert summary(theirs.weights) == "decoder.floors.0, decoder.floors.1, decoder.stairs.down.0, decoder.stairs.down.1"


def test_cross_attention_is_left_out_without_a_source() -> None:
    own = seen(nn.ModuleDict({"decoder": House(3, source=False)}), TEXT)
    theirs = seen(nn.ModuleDict({"encoder": nn.Linear(2, 2), "decoder": House(3, source=True)}), TEXT)
    plan = plan_transfer(own, theirs, ["decoder"])
    assert plan.new == ()
    assert {"decoder.floors.0.window.weight", "decoder.door.weight"} <= set(plan.left)
    assert not_taken(plan, own, theirs, "decoder") == []


def test_the_same_model_is_taken_whole() -> None:
    own, theirs = seq2seq("none"), seq2seq("none")
    plan = plan_transfer(seen(own, TEXT), seen(theirs, TEXT))
    assert plan.new == plan.left == ()
    transfer(plan, weights_of(own), weights_of(theirs))
    assert all(torch.equal(weight, weights_of(theirs)[name]) for name, weight in weights_of(own).items())


def test_a_layer_is_taken_whole_or_not_at_all() -> None:
    own = Seq2Seq(recipe(encoder=body(3), decoder=body(feedforward={"width": 16})), len(WORDS), len(WORDS))
    plan = plan_transfer(seen(own, TEXT), seen(seq2seq(), TEXT))
    taken = summary(plan.taken)
    assert taken == "target_embedding, encoder.layers.0, encoder.layers.1, encoder.norm, decoder.norm, output"
    assert summary(plan.new) == "encoder.layers.2, decoder.layers.0, decoder.layers.1"


def test_partly_fitting_parts_are_reported() -> None:
    own, theirs = seen(tagger(3), TAGS), seen(seq2seq(), TEXT)
    plan = plan_transfer(own, theirs, ["encoder"])
    assert not_taken(plan, own, theirs, "encoder")[0] == "encoder.layers.2.attention.qkv.weight is not there"
    plan = plan_transfer(seen(tagger(1), TAGS), theirs, ["encoder"])
    message = not_taken(plan, seen(tagger(1), TAGS), theirs, "encoder")
    assert message[0] == "encoder.layers.1.attention.qkv.weight has no place here"
    assert not_taken(plan, own, theirs, "decoder") == ["this model has no decoder"]


def test_embeddings_of_other_tokens_do_not_fit() -> None:
    other = {"source": ["<pad>", "<unk>", "<s>", "</s>", "a", "c", "b"], "target": LABELS}
    plan = plan_transfer(seen(tagger(), TAGS), seen(tagger(), other))
    assert summary(plan.new) == "source_embedding"
    assert summary(plan.taken) == "encoder.layers.0, encoder.layers.1, encoder.norm, output"


@pytest.mark.parametrize("tie", ["none", "all"])
def test_more_tokens_are_new_rows(tie: str) -> None:
    more = {"source": [*WORDS, "d", "e"], "target": [*WORDS, "d", "e"]}
    own = Seq2Seq(recipe(encoder=body(), decoder=body(), tie=tie), 9, 9)
    theirs = seq2seq(tie)
    before = own.target_embedding.weight.detach().clone()
    plan = plan_transfer(seen(own, more), seen(theirs, TEXT))
    assert plan.new == plan.left == ()
    assert plan.rows["target_embedding.weight"] == plan.rows["output.bias"] == 2
    transfer(plan, weights_of(own), weights_of(theirs))
    assert torch.equal(own.target_embedding.weight[:7], theirs.target_embedding.weight)
    assert torch.equal(own.target_embedding.weight[7:], before[7:])


def test_an_untied_output_layer_starts_from_the_tied_embeddings() -> None:
    own, theirs = seq2seq("none"), seq2seq("all")
    plan = plan_transfer(seen(own, TEXT), seen(theirs, TEXT))
    assert plan.new == plan.left == ()
    assert plan.taken["output.weight"] == plan.taken["source_embedding.weight"] == "target_embedding.weight"


def test_a_classifier_takes_the_encoder_of_a_tagger() -> None:
    own = Classifier(recipe(encoder=body(), pooling={"kind": "mean"}), WORDS, 3)
    plan = plan_transfer(seen(own, {"source": WORDS, "target": LABELS[:3]}), seen(tagger(), TAGS))
    assert summary(plan.new) == "output, pooling"
    assert summary(plan.left) == "output"
