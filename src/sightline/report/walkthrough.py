"""The walkthrough in a report: a card for each step, with formula, inputs and coloured numbers.

Records of one name, from a decoder that runs token by token, share one card.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sightline.inspection.formulas import mathml
from sightline.inspection.trace import Axis, Trace
from sightline.inspection.walkthrough import ShownRecord, value_range
from sightline.plots.matrices import HeatMap, Numbers, Scale
from sightline.report.heat_maps import Page, exact, name

if TYPE_CHECKING:
    from sightline.report.page import ReportParts


_NUMBERS = 4_096  # most numbers of a step
_TOKENS = 2_000  # most tokens listed one by one
_OPEN = 80  # most steps of a walkthrough with open sections


@dataclass(frozen=True)
class Card:
    """One step, or all steps of one name."""

    shown: ShownRecord  # the first
    tensor: Tensor
    rows: Sequence[str] | None
    times: int = 1
    note: str = ""


def walk_section(parts: ReportParts, page: Page) -> str:
    """All steps in focus, by part of the model."""
    cards = list(_cards(parts.walk.records(), parts.trace))
    numbers = {card.shown.record.name: card.shown.number for card in cards}
    groups: dict[str, list[Card]] = {}
    for card in cards:
        groups.setdefault(_part(card.shown.record.name), []).append(card)
    opened = " open" if len(cards) <= _OPEN else ""
    html = []
    for group, some in groups.items():
        inside = "".join(_card(card, numbers, page) for card in some)
        count = f"{len(some)} step{'s' if len(some) > 1 else ''}"
        html.append(f"<details{opened}><summary>{escape(group)}: {count}</summary>{inside}</details>")
    return "".join(html)


def _part(name: str) -> str:
    """`encoder.layers.0.attention.weights` → `encoder layer 0`."""
    words = name.split(".")
    if "layers" in words[:-1] or "attentions" in words[:-1]:
        at = words.index("layers") if "layers" in words else words.index("attentions")
        if at + 1 < len(words) and words[at + 1].isdigit():
            return f"{' '.join(words[:at])} layer {words[at + 1]}"
    return "the ending" if len(words) == 1 else words[0].replace("_", " ")


def _cards(records: Iterator[ShownRecord], trace: Trace) -> Iterator[Card]:
    by_name: dict[str, list[ShownRecord]] = {}
    for shown in records:
        by_name.setdefault(shown.record.name, []).append(shown)
    for several in by_name.values():
        first = several[0]
        yield Card(first, first.tensor, first.rows) if len(several) == 1 else _joined(several, trace)


def _joined(several: list[ShownRecord], trace: Trace) -> Card:
    """Join records of one name; if their shapes differ, show the last."""
    first, tensors = several[0], [shown.tensor for shown in several]
    axis = 2 if first.tensor.dim() == 4 else 1
    try:
        tensor = torch.stack(tensors, 1) if first.tensor.dim() < 3 else torch.cat(tensors, axis)
    except RuntimeError:  # keys that grow with every token
        note = f"sampled: the last of {len(several)} records of this name, which differ in shape"
        return Card(first, tensors[-1], several[-1].rows, len(several), note)
    tokens = tuple(shown.record.token for shown in several if shown.record.token is not None)
    rows = trace.labels(Axis("predicted", tokens), len(tokens)) if len(tokens) == tensor.shape[-2] else None
    return Card(first, tensor, rows, len(several))


def _card(card: Card, numbers: Mapping[str, int], page: Page) -> str:
    record, number = card.shown.record, card.shown.number
    shape = "×".join(map(str, card.tensor.shape)) or "1"  # as shown: heads first
    facts = [shape, value_range(card.tensor)]
    facts += [f"computed {card.times} times"] if card.times > 1 else []
    facts += [card.shown.focus] if card.shown.focus else []
    formula = f"{mathml(record.formula)}<p><code>{escape(record.formula)}</code></p>" if record.formula else ""
    inputs = ", ".join(_link(name, numbers) for name in record.inputs)
    values, notes = _values(card, page)
    notes = [note for note in (record.note, card.note, *notes) if note]
    return (
        f'<section class="step" id="step-{number}"><h3>{number}. <code>{escape(record.name)}</code></h3>'
        f'<p class="soft">{escape(" · ".join(each for each in facts if each))}</p>{formula}'
        + (f'<p class="soft">from {inputs}</p>' if inputs else "")
        + "".join(f'<p class="note">{escape(note)}</p>' for note in notes)
        + f"{values}</section>"
    )


def _link(name: str, numbers: Mapping[str, int]) -> str:
    number = numbers.get(name.split("#")[0])
    code = f"<code>{escape(name)}</code>"
    return code if number is None else f'<a href="#step-{number}">{code}</a>'


def _values(card: Card, page: Page) -> tuple[str, list[str]]:
    """The numbers as matrices of the last two axes, sampled if many."""
    if card.tensor.dim() == 0:
        return f"<p><strong>{exact(float(card.tensor))}</strong></p>", []
    if not card.tensor.is_floating_point() and card.tensor.numel() <= _TOKENS:
        return _tokens(card), []
    whole = card.tensor[None] if card.tensor.dim() == 1 else card.tensor
    thin = replace(card.shown.record, tensor=whole, whole=(), strides=(), note="").sampled(_NUMBERS)
    down, across = thin.strides[-2:] if thin.strides else (1, 1)
    rows, columns = card.rows, card.shown.columns
    if whole.dim() == 2 and whole.shape[0] == 1 and rows is not None:  # one number for each token
        rows, columns = None, rows
    sides = [
        None if names is None or len(names) != size else list(names)[::stride]
        for names, size, stride in ((rows, whole.shape[-2], down), (columns, whole.shape[-1], across))
    ]
    flat = thin.tensor.reshape(-1, *thin.tensor.shape[-2:]).double().cpu().numpy()  # (M, R, C)
    return _matrices(card, flat, sides, page), [thin.note] if thin.note else []


def _tokens(card: Card) -> str:
    """Token ids, without colours."""
    numbers = card.tensor.reshape(-1).tolist()
    names = card.rows if card.rows is not None and len(card.rows) == len(numbers) else [""] * len(numbers)
    parts = (
        f"<li>{name(each) if each else ''}<small>{number}</small></li>"
        for each, number in zip(names, numbers, strict=True)
    )
    return f'<ol class="chips">{"".join(parts)}</ol>'


def _matrices(card: Card, flat: Numbers, sides: Sequence[Sequence[str] | None], page: Page) -> str:
    name, scale = card.shown.record.name, Scale.of(flat)
    if len(flat) == 1:
        return page.heat_map(HeatMap.of(flat[0], *sides, label=name, scale=scale), most=480)
    what = "head" if any(axis.kind == "heads" for axis in card.shown.axes) else "part"
    figures = [
        f"<figure>{page.heat_map(HeatMap.of(matrix, *sides, label=f'{name}, {what} {at}', scale=scale), most=220)}"
        f"<figcaption>{what} {at}</figcaption></figure>"
        for at, matrix in enumerate(flat)
    ]
    return f'<div class="several">{"".join(figures)}</div>'
