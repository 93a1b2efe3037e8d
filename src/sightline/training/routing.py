"""How the tokens of a training were shared out among experts: what the layers counted, as it is written down."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from sightline.layers.experts import Experts


def expert_layers(model: nn.Module) -> dict[str, int]:
    """How many experts the layers have that have some, by side and number (from 0): {"encoder.1": 8}."""
    found = {path: module.count for path, module in model.named_modules() if isinstance(module, Experts)}
    return {_short(path): count for path, count in found.items()}


def _short(path: str) -> str:
    """encoder.layers.1.feedforward → encoder.1"""
    side, *rest = path.split(".")
    return ".".join([side, *(part for part in rest if part.isdigit())])


def routing_record(model: nn.Module, counts: Sequence[float], steps: int) -> dict[str, Any]:
    """What goes into metrics.jsonl; nothing where nothing was counted.

    `counts` are, for each layer, the choices of each of its experts and, behind them, those that were dropped: means
    over so many `steps`.
    """
    if not counts:
        return {}
    shares, place, chosen, dropped = {}, 0, 0.0, 0.0
    for name, experts in expert_layers(model).items():
        each = counts[place : place + experts]
        shares[name] = [round(count / max(sum(each), 1e-9), 4) for count in each]
        chosen, dropped = chosen + sum(each), dropped + counts[place + experts]
        place += experts + 1
    share = round(dropped / max(chosen, 1e-9), 4)
    return {"experts": shares, "dropped": share, "dropped_choices": round(dropped * steps)}
