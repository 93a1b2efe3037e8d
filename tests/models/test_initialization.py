"""A model built on the meta device and initialized afterwards has the weights of one built on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from sightline.layers.adapters import add_adapters
from sightline.layers.initialization import initialize, materialize, reset_buffers
from sightline.models.heads import Classifier, MaskedLM, Tagger
from sightline.models.language_model import DecoderOnly, LanguageModel
from sightline.models.seq2seq import CopyingSeq2Seq, Seq2Seq
from sightline.recipe.model import AdaptersConfig, ModelConfig
from sightline.text.copying import CopyForms

PIECES = ["<pad>", "<unk>", "<s>", "</s>", "▁the", "▁cat", "s", "ing", "▁unbelievably"]
SIZE = len(PIECES)
TRANSFORMER = {"kind": "transformer", "layers": 2, "heads": 2}
EXPERTS = {"feedforward": {"experts": {"count": 3}}}
SILENT_EXPERTS = {"feedforward": {"kind": "swiglu", "experts": {"count": 3, "noise": False, "load": 0}}}


def recipe(**parts: Any) -> ModelConfig:
    return ModelConfig.model_validate({"width": 8, "tie": "none", **parts})


def adapted() -> nn.Module:
    model = Seq2Seq(recipe(encoder=TRANSFORMER, decoder=TRANSFORMER, tie="all"), SIZE, SIZE)
    add_adapters(model, AdaptersConfig(rank=2, target_modules=("query", "value", "output", "feedforward")))
    return model


def copier() -> nn.Module:
    forms = CopyForms.of(PIECES)
    return CopyingSeq2Seq(recipe(encoder={"kind": "recurrent"}, decoder={"kind": "recurrent"}), SIZE, forms)


OTHERS: dict[str, Callable[[], nn.Module]] = {
    "tied": lambda: Seq2Seq(recipe(encoder=TRANSFORMER, decoder=TRANSFORMER, tie="all"), SIZE, SIZE),
    "tied output": lambda: Seq2Seq(recipe(encoder=TRANSFORMER, decoder=TRANSFORMER, tie="output"), SIZE, SIZE),
    "experts": lambda: Seq2Seq(recipe(encoder=TRANSFORMER | EXPERTS, decoder=TRANSFORMER | SILENT_EXPERTS), SIZE, SIZE),
    "recurrent experts": lambda: LanguageModel(
        recipe(decoder={"kind": "recurrent", "layers": 2, "attention": {"kind": "none"}, "experts": {"count": 3}}), SIZE
    ),
    "adapters": adapted,
    "copying": copier,
    "decoder only": lambda: DecoderOnly(recipe(decoder=TRANSFORMER, tie="all"), SIZE),
    "masked": lambda: MaskedLM(recipe(encoder=TRANSFORMER, tie="output"), SIZE),
    "tagger": lambda: Tagger(
        recipe(encoder={"kind": "recurrent"}, character_cnn={"width": 4, "channels": 6}), PIECES, 5
    ),
    "classifier": lambda: Classifier(recipe(encoder=TRANSFORMER, pooling={"kind": "mean"}), PIECES, 3),
}


def tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}


def check(build: Callable[[], nn.Module]) -> None:
    torch.manual_seed(3)
    direct = build()
    after = torch.random.get_rng_state()
    before = torch.random.get_rng_state()
    with torch.device("meta"):
        model = build()
    assert torch.equal(torch.random.get_rng_state(), before)  # nothing was drawn
    assert all(parameter.is_meta for parameter in model.parameters())
    materialize(model)
    for tensor in tensors(model).values():  # as memory may be: anything
        tensor.detach().fill_(7)
    torch.manual_seed(3)
    initialize(model)
    assert torch.equal(torch.random.get_rng_state(), after)
    expected, result = tensors(direct), tensors(model)
    assert expected.keys() == result.keys()
    assert [name for name in expected if not torch.equal(expected[name], result[name])] == []
    assert len(set(map(id, expected.values()))) == len(set(map(id, result.values())))  # what is tied, is tied


def test_every_combination_is_initialized_as_it_is_built(any_recipe: ModelConfig) -> None:
    check(lambda: Seq2Seq(any_recipe, SIZE, SIZE))


@pytest.mark.parametrize("name", OTHERS)
def test_every_other_model_is_initialized_as_it_is_built(name: str) -> None:
    check(OTHERS[name])


@pytest.mark.parametrize("name", OTHERS)
def test_loading_restores_every_buffer_and_weight(name: str) -> None:
    torch.manual_seed(3)
    direct = OTHERS[name]()
    with torch.device("meta"):
        model = OTHERS[name]()
    materialize(model)
    reset_buffers(model)
    model.load_state_dict(direct.state_dict())
    expected, result = tensors(direct), tensors(model)
    assert [key for key in expected if not torch.equal(expected[key], result[key])] == []
