"""Layers that are computed twice: the same gradients, the same of all that is left behind, and less memory."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from sightline.layers import attention
from sightline.layers.feedforward import collect
from sightline.layers.layout import Layout, Packed, Padded
from sightline.layers.tap import Tapped, on_taps
from sightline.models.gradient_checkpointing import enable_gradient_checkpointing
from sightline.models.language_model import LanguageModel
from sightline.models.seq2seq import Seq2Seq
from sightline.recipe import Recipe
from sightline.recipe.checks import check_trainable
from sightline.recipe.model import ModelConfig
from sightline.training import train as experiment

EXPERTS = {"count": 3, "top_k": 2, "every": 2, "capacity_factor": 1.0}


def body(**changes: Any) -> dict[str, Any]:
    plain = {"kind": "transformer", "layers": 3, "heads": 2, "feedforward": {"width": 12}, "dropout": 0.3}
    return plain | {"attention_dropout": 0.2} | changes


BODIES = {
    "plain": body(),
    "batch-norm": body(norm={"kind": "batch"}),
    "relative": body(positions={"kind": "shaw"}),
    "experts": body(feedforward={"width": 12, "experts": EXPERTS}),
    "spans": body(attention={"pattern": [{"kind": "local", "block": 2}, {"kind": "compressed"}]}),
}
LENGTHS = {"source": [5, 2, 4], "target": [3, 6, 2]}


def layouts(kind: str) -> list[Layout]:
    return [Packed.of(each) if kind == "packed" else Padded.of(each) for each in LENGTHS.values()]


def pass_once(model: Seq2Seq, kind: str) -> tuple[dict[str, Tensor], dict[str, Tensor], list[Tensor]]:
    """Gradients, buffers and what was counted, after a loss with dropout drawn from the same seed."""
    torch.manual_seed(5)
    sequences = [torch.randint(4, 13, (11,)) for _ in range(2)]
    sides = layouts(kind)
    if kind == "padded":
        sequences = [Packed.of(each).pad(part) for each, part in zip(LENGTHS.values(), sequences, strict=True)]
    with collect(model) as extra:
        features = model(sequences[0], sides[0], sequences[1], sides[1])
    mask = sides[1].key_mask() if kind == "padded" else None
    real = features if mask is None else features[mask]
    loss = model.logits(real).square().mean() + sum(extra.losses)
    names = [name for name, _ in model.named_parameters()]
    result = torch.autograd.grad(loss, list(model.parameters()))
    counts = [extra.counts[path] for path in extra.paths]
    return dict(zip(names, result, strict=True)), dict(model.named_buffers()), [*counts, *extra.losses]


@pytest.mark.parametrize("kind", ["packed", "padded"])
@pytest.mark.parametrize("name", BODIES)
def test_gradients_averages_and_counts_are_those_of_a_plain_step(
    name: str, kind: str, build_model: Callable[..., Seq2Seq]
) -> None:
    plain, twice = (build_model(BODIES[name], BODIES[name]).train() for _ in range(2))
    enable_gradient_checkpointing(twice)
    runs: list[list[Any]] = [[], []]
    for model, calls in zip((plain, twice), runs, strict=True):
        model.decoder.layers[0].register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
        model.encoder.layers[0].register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
    expected, result = pass_once(plain, kind), pass_once(twice, kind)
    for ours, theirs in zip(result[:2], expected[:2], strict=True):
        assert ours.keys() == theirs.keys()
        for key, value in theirs.items():
            torch.testing.assert_close(ours[key], value, rtol=0, atol=0, msg=key)
    for one, other in zip(result[2], expected[2], strict=True):
        assert torch.equal(one, other)
    assert len(runs[1]) == 2 * len(runs[0]) > 0


def test_a_tapped_checkpointed_layer_is_recorded_once(build_model: Callable[..., Seq2Seq]) -> None:
    model = build_model(BODIES["plain"], BODIES["plain"]).train()
    enable_gradient_checkpointing(model)
    taps: list[str] = []

    def hear(tapped: Tapped) -> None:
        taps.append(tapped.name)

    with on_taps(model, hear, only=["decoder.layers.1.cross_attention"]):
        gradients, _, _ = pass_once(model, "packed")
    assert taps.count("decoder.layers.1.cross_attention.weights") == 1
    assert all(torch.isfinite(gradient).all() for gradient in gradients.values())


def kept_bytes(model: Seq2Seq) -> int:
    """What a forward pass leaves for the backward pass, parameters aside."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    layout = Packed.of([64] * 8)
    tokens = torch.randint(4, 13, (512,))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        features = model(tokens, layout, tokens, layout)
    assert features.requires_grad
    return sum(kept.values())


def test_less_is_kept_for_the_way_back(build_model: Callable[..., Seq2Seq]) -> None:
    deep = body(layers=6)
    plain, twice = (build_model(deep, deep).train() for _ in range(2))
    enable_gradient_checkpointing(twice)
    assert kept_bytes(twice) < kept_bytes(plain) / 4


def test_nothing_is_computed_twice_at_test(build_model: Callable[..., Seq2Seq]) -> None:
    model = build_model(BODIES["plain"], BODIES["plain"]).eval()
    enable_gradient_checkpointing(model)
    calls: list[int] = []
    model.decoder.layers[0].register_forward_pre_hook(lambda *_: calls.append(1))
    layout, tokens = Packed.of([4]), torch.tensor([5, 6, 7, 8])
    model(tokens, layout, tokens, layout).sum().backward()
    assert len(calls) == 1
    model.zero_grad()


def test_a_compiled_step_has_the_same_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one graph, which a CUDA graph asks for, with experts that hand something over."""
    monkeypatch.setattr(attention, "_SHORT_ON_CPU", -1)  # the explicit kernel's softmax cannot be compiled
    short = BODIES["plain"] | {"layers": 1, "dropout": 0.0, "attention_dropout": 0.0}
    short |= {"feedforward": {"width": 12, "experts": EXPERTS | {"noise": False, "load": 0, "every": 1}}}
    recipe = ModelConfig.model_validate({"width": 8, "decoder": short})
    plain = LanguageModel(recipe, 13).train().double()
    twice = copy.deepcopy(plain)
    enable_gradient_checkpointing(twice)
    layout, tokens = Packed.of([4, 5], longest=6), torch.randint(4, 13, (9,))

    def loss(model: LanguageModel) -> Tensor:
        with collect(model) as extra:
            features = model(None, None, tokens, layout)
        return features.square().mean() + sum(extra.losses)

    torch._dynamo.reset()
    compiled = torch.compile(lambda: loss(twice), backend="aot_eager", dynamic=False, fullgraph=True)
    with torch._dynamo.config.patch(skip_fwd_side_effects_in_bwd_under_checkpoint=True):  # as training/train_step.py
        result = compiled()
    results = [
        torch.autograd.grad(value, list(model.decoder.parameters()))
        for value, model in ((result, twice), (loss(plain), plain))
    ]
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


def recipe_of(**changes: Any) -> Recipe:
    source = {"kind": "text", "source": "a", "target": "b"}
    section = {"width": 8, "encoder": body(), "decoder": body()} | changes
    training = {"gradient_checkpointing": True}
    data = {"train": [source], "validation": source}
    return Recipe.model_validate({"data": data, "model": section, "training": training})


def test_a_recipe_asks_for_it() -> None:
    tokenizer = SimpleNamespace(size=13)
    model = experiment.build_model(recipe_of(), SimpleNamespace(source=tokenizer, target=tokenizer))  # type: ignore[arg-type]
    assert [stack.gradient_checkpointing for stack in (model.encoder, model.decoder)] == [True, True]


def test_a_recipe_without_transformers_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"training\.gradient_checkpointing: true .* is for Transformer layers, and this model"
    ):
        check_trainable(recipe_of(encoder={"kind": "recurrent"}, decoder={"kind": "recurrent"}))
