"""Parameters are used only inside `forward` or a declared method of every module from the root down to their owner.

So any module can be wrapped from outside (DDP, FSDP2), which hooks into these methods alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest
import torch
from test_initialization import OTHERS
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from sightline.layers.layout import Packed, Padded
from sightline.models.language_model import LanguageModel
from sightline.models.protocol import EncoderModel, entry_points
from sightline.models.seq2seq import CopyingSeq2Seq, Seq2Seq

SOURCES, TARGETS = [[5, 6, 4, 7, 3], [6, 3]], [[2, 7, 5], [2, 4, 8]]


class ParameterUses(TorchFunctionMode):
    """Asserts for every operation on a parameter that the modules it belongs to have been entered."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.entered: Counter[nn.Module] = Counter()
        self.chains: dict[int, list[list[nn.Module]]] = {}
        self.used: set[int] = set()
        modules = dict(model.named_modules())
        for path, owner in modules.items():
            steps = path.split(".") if path else []
            chain = [modules[".".join(steps[:count])] for count in range(len(steps) + 1)]
            ours = [module for module in chain if type(module).__module__.startswith("sightline.")]
            for parameter in owner._parameters.values():
                if parameter is not None:
                    self.chains.setdefault(id(parameter), []).append(ours)
        for module in modules.values():
            for name in entry_points(module):
                module.__dict__[name] = self._entering(module, getattr(module, name))

    def _entering(self, module: nn.Module, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def entered(*arguments: Any, **options: Any) -> Any:
            self.entered[module] += 1
            try:
                return method(*arguments, **options)
            finally:
                self.entered[module] -= 1

        return entered

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") != "__get__":  # shape, dtype, device
            for leaf in tree_leaves((args, kwargs)):
                if id(leaf) in self.chains:
                    chains = self.chains[id(leaf)]
                    missing = [[type(m).__name__ for m in chain if not self.entered[m]] for chain in chains]
                    assert [] in missing, f"{func} uses a parameter outside {missing[0]}"
                    self.used.add(id(leaf))
        return func(*args, **(kwargs or {}))


def padded(rows: list[list[int]]) -> tuple[Tensor, Padded]:
    longest = max(map(len, rows))
    return torch.tensor([row + [0] * (longest - len(row)) for row in rows]), Padded.of([len(row) for row in rows])


def packed(rows: list[list[int]]) -> tuple[Tensor, Packed]:
    return torch.tensor([token for row in rows for token in row]), Packed.of([len(row) for row in rows])


def run(model: Any) -> None:
    """Train, search and score with it: all tokens at once, and step by step with a beam of two."""
    if isinstance(model, LanguageModel):
        model.logits(model(None, None, *padded(TARGETS)))
    elif isinstance(model, Seq2Seq):
        model.logits(model(*padded(SOURCES), *padded(TARGETS)))
    else:
        assert isinstance(model, EncoderModel)
        model.logits(model(*padded(SOURCES)))
        model.logits(model(*packed(SOURCES)))
        return
    if not isinstance(model, CopyingSeq2Seq):
        sources = (None, None) if isinstance(model, LanguageModel) else packed(SOURCES)
        model(*sources, *packed(TARGETS))
    state = model.begin(model.encode(*padded(SOURCES)))
    state = model.advance(torch.tensor([[2], [2]]), state)[1].select(torch.tensor([[0, 0], [0, 0]]))
    for tokens in ([[4], [5], [6], [7]], [[7], [6], [5], [4]]):
        features, state = model.advance(torch.tensor(tokens), state)
    model.logits(features)
    model.advance(torch.tensor([[4], [5]]), state.keep(torch.tensor([1])))


@torch.no_grad()
def test_every_combination_is_entered_by_declared_methods(any_model: Seq2Seq) -> None:
    with ParameterUses(any_model) as uses:
        run(any_model)
    assert uses.used == set(uses.chains)


@pytest.mark.parametrize("name", OTHERS)
def test_every_other_model_is_entered_by_declared_methods(name: str) -> None:
    model = OTHERS[name]()
    with ParameterUses(model) as uses:
        run(model)
    assert uses.used == set(uses.chains)
