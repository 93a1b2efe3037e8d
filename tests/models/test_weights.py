"""Names and layouts of weights: every rule can be undone, and old names are translated where runs are read."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from sightline.models import weights as module
from sightline.models.weights import Join, NameMap, Rename, Reshape, Split, Transpose, load_weights


def tensors(**shapes: tuple[int, ...]) -> dict[str, Tensor]:
    return {name.replace("__", "."): torch.randn(shape) for name, shape in shapes.items()}


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


RULES = {
    "rename": (
        Rename("layers.*.cross.**", "blocks.*.cross_attention.**"),
        ["blocks.0.cross_attention.output.weight"],
    ),
    "split": (Split("layers.*.qkv", ("layers.*.q", "layers.*.k", "layers.*.v")), ["layers.0.q", "layers.0.v"]),
    "uneven split": (Split("layers.*.qkv", ("layers.*.q", "layers.*.kv"), shares=(1, 2)), ["layers.0.kv"]),
    "join": (Join(("layers.*.w1", "layers.*.w3"), "layers.*.widen", dim=1), ["layers.0.widen", "layers.1.widen"]),
    "transpose": (Transpose("layers.*.qkv"), ["layers.0.qkv"]),
    "reshape": (Reshape("layers.*.qkv", (6, -1), (2, 3, -1)), ["layers.1.qkv"]),
}


@pytest.mark.parametrize("name", RULES)
def test_every_rule_can_be_undone(name: str) -> None:
    rule, names = RULES[name]
    own = tensors(norm=(4,), layers__0__cross__output__weight=(4, 4))
    for layer in range(2):
        own |= {f"layers.{layer}.{key}": torch.randn(6, 4) for key in ("qkv", "w1", "w3")}
    changed = NameMap(rule).apply(own)
    assert set(names) <= set(changed)
    assert not equal(changed, own)
    assert equal(NameMap(rule).inverse().apply(changed), own)


def test_rules_of_a_map_are_undone_in_reverse_order() -> None:
    name_map = NameMap(
        Split("*.qkv", ("*.query", "*.key", "*.value")), Transpose("*.value"), Rename("*.value", "*.values")
    )
    own = tensors(attention__qkv=(6, 4))
    changed = name_map.apply(own)
    assert changed["attention.values"].shape == (4, 2)
    assert equal(name_map.inverse().apply(changed), own)


def test_a_tensor_that_cannot_be_split_evenly_is_named() -> None:
    with pytest.raises(ValueError, match=r"weight qkv of shape \(5, 4\) cannot be split into 3 parts"):
        Split("qkv", ("q", "k", "v")).apply({"qkv": torch.zeros(5, 4)})


def test_a_part_that_is_missing_is_named() -> None:
    with pytest.raises(ValueError, match=r"weights b.v are missing, which b.kv is made of"):
        Join(("*.k", "*.v"), "*.kv").apply({"b.k": torch.zeros(2, 2)})


def test_old_names_are_translated_in_weights_and_optimizer_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "optimizer.safetensors"
    save_file(
        {"a.old.weight": torch.ones(2), "a.old.weight/exp_avg": torch.ones(2), "0.1/carried": torch.ones(1)}, file
    )
    monkeypatch.setattr(module, "OLD_NAMES", NameMap(Rename("*.old.**", "*.new.**")))
    assert set(load_weights(file)) == {"a.new.weight", "a.new.weight/exp_avg", "0.1/carried"}
