"""The sections of a report, except the walkthrough."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import torch

from sightline.inspection.attention import Head, first_seen
from sightline.inspection.beam import BeamRecord, Children, Node, ending, unbranched
from sightline.inspection.trace import Axis, Record
from sightline.plots.heads import KINDS
from sightline.plots.matrices import HeatMap, Scale, palette
from sightline.report.heat_maps import Page, name, scale_bar, short
from sightline.terminal import visible

if TYPE_CHECKING:
    from sightline.report.page import ReportParts


_GRID, _HEAD = 128, 64  # most rows and columns of an alignment, of a head; larger ones are sampled
_LISTED = 60  # most rows of a table that is open
_NODES = 2_000  # most rows of a beam's table


def output_section(parts: ReportParts, page: Page) -> str:
    """Each output token with its probability and alternatives."""
    chips = "".join(
        f'<li style="border-bottom:4px solid {_colour(choice.probability)}" title="p = {choice.probability:.6f}">'
        f"{name(choice.token)}<small>{choice.probability:.2f}</small></li>"
        for choice in parts.choices
    )
    rows = "".join(
        f'<tr><td class="number">{choice.place}</td><td>{name(choice.token)}</td>'
        f'<td class="number">{choice.probability:.4f}</td><td class="number">{choice.loss:.3f}</td><td>'
        + " ".join(f"{name(token)}&nbsp;{share:.3f}&ensp;" for token, share in choice.likeliest)
        + "</td></tr>"
        for choice in parts.choices
    )
    listed = _table(["place", "token", "p", "−log p", "likeliest"], rows)
    opened = " open" if len(parts.choices) <= _LISTED else ""
    scale = scale_bar(HeatMap.of(np.array([[0.0, 1.0]]), scale=Scale(0.0, 1.0)))
    summary = "<summary>Alternative tokens</summary>"
    return f'<ol class="chips">{chips}</ol>{scale}<details{opened}>{summary}{listed}</details>'


def _colour(share: float) -> str:
    level = int(Scale(0.0, 1.0).levels(np.array([[share]]))[0, 0])
    return "#{:02x}{:02x}{:02x}".format(*palette(False)[level])


def _table(names: Sequence[str], rows: str, kind: str = "list") -> str:
    """A table with column names."""
    head = "".join(f'<th scope="col">{escape(each)}</th>' for each in names)
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>' if text else ""


def _grid(whole: HeatMap, page: Page) -> str:
    """A heat map, sampled with a note if it is large."""
    shown, note = whole.within(_GRID)
    return _note(note) + page.heat_map(shown)


def alignment_section(parts: ReportParts, page: Page) -> str:
    """The mean of all cross-attention heads."""
    if parts.alignment is None:
        return ""
    alignment = parts.alignment
    whole = HeatMap.of(alignment.weights, alignment.target, alignment.source, label="alignment of output and source")
    intro = "<p>Which source tokens (across) each output token (down) attends to: the mean of all heads.</p>"
    return intro + _grid(whole, page)


def heads_section(parts: ReportParts, page: Page) -> str:
    """Every head of every layer as a small heat map with its measures."""
    html = []
    for kind, title in KINDS.items():
        heads = [head for head in parts.heads if head.kind == kind]
        if not heads:
            continue
        scale = Scale.of(*(head.weights.astype(np.float64) for head in heads))
        html.append(f"<h3>{escape(title)}</h3>")
        html.append(scale_bar(HeatMap.of(np.zeros((1, 1)), scale=scale)))
        note = _head_map(heads[0], scale).within(_HEAD)[1]
        html.append(_note(note))
        for path, some in groupby(heads, key=lambda head: head.path):
            figures = "".join(_head_figure(head, scale, page) for head in some)
            html.append(f'<p><code>{escape(path)}</code></p><div class="heads">{figures}</div>')
    if not html:
        return ""
    intro = (
        "<p>Rows are queries, columns are keys. Entropy is a share of that of uniform attention; diagonality is 1 on "
        "the diagonal and 0 for uniform attention; confidence is the mean of the largest weights.</p>"
    )
    return intro + "".join(html)


def _head_map(head: Head, scale: Scale) -> HeatMap:
    return HeatMap.of(head.weights, head.queries, head.keys, label=f"head {head.name}", scale=scale)


def _head_figure(head: Head, scale: Scale, page: Page) -> str:
    shown, _ = _head_map(head, scale).within(_HEAD)
    measured = head.measures
    measures = (
        ("entropy", measured.entropy_share),
        ("diagonality", measured.diagonality),
        ("confidence", measured.confidence),
    )
    intro = "<br>".join(
        f"{what} {'–' if value != value else f'{value:.2f}'}".replace("-", "−") for what, value in measures
    )
    picture = page.heat_map(shown, labels=False, most=200)
    return f"<figure>{picture}<figcaption><strong>head {head.number}</strong><br>{intro}</figcaption></figure>"


def attribution_section(parts: ReportParts, page: Page) -> str:
    """The attribution of each output to each token."""
    attribution = parts.attribution
    if attribution is None:
        return "".join(_note(each) for each in parts.left_out if each.startswith("Attribution"))
    both = np.concatenate([attribution.from_source, attribution.from_target], axis=1)
    scale, maps = Scale.of(np.asarray(both, np.float64)), []
    for title, values, tokens in (
        ("the source", attribution.from_source, attribution.source),
        ("the output before it", attribution.from_target, attribution.target),
    ):
        if values.size:
            whole = HeatMap.of(values, attribution.outputs, tokens, label=f"attribution to {title}", scale=scale)
            maps.append(f"<h3>To {title}</h3>{_grid(whole, page)}")
    intro = (
        f"<p>{escape(attribution.method)}: the attribution of each output (down) to each token (across), in nats of "
        f"its log-probability. Blue is for it, orange against it.</p>"
    )
    return intro + "".join(maps)


def experts_section(parts: ReportParts, page: Page) -> str:
    """Which experts each token was routed to."""
    html = []
    for routing in parts.routings:
        names = [f"expert {number}" for number in range(routing.gates.shape[1])]
        rows = "".join(
            f'<tr><td>{each}</td><td class="number">{share:.1%}</td><td class="number">{routed}</td>'
            f'<td><span class="share" style="width:{share:.2%}"></span></td></tr>'
            for each, share, routed in zip(names, routing.shares, routing.routed, strict=True)
        )
        listed = _table(["expert", "share of the gates", "tokens sent", ""], rows, "list bars")
        gates = HeatMap.of(routing.gates, routing.tokens, names, label=f"gates of {routing.path}")
        html.append(f"<h3><code>{escape(routing.path)}</code></h3>{_grid(gates, page)}{listed}")
    return "".join(html)


def gates_section(parts: ReportParts, page: Page) -> str:
    """The mean opening of recurrent gates at each token."""
    by_path: dict[str, dict[str, list[Record]]] = {}
    for record in parts.trace:
        if record.point.endswith("_gate"):
            by_path.setdefault(record.path, {}).setdefault(record.point.removesuffix("_gate"), []).append(record)
    maps = []
    for path, gates in by_path.items():
        means = [torch.cat([each.tensor.float().mean(-1).reshape(-1) for each in some]) for some in gates.values()]
        values = torch.stack(means, dim=1).cpu().numpy()  # (T, gates)
        axes = [_tokens_axis(record) for record in next(iter(gates.values()))]
        kind, places = axes[0].kind, [axis.place(k) for axis in axes for k in range(len(values) // len(axes))]
        order = np.argsort(places, kind="stable")  # a layer that reads from the end is shown in reading order
        backward = places != sorted(places)
        tokens = parts.trace.labels(Axis(kind, tuple(sorted(places))), len(values))
        path += " (reads from the end)" if backward else ""
        heat = HeatMap.of(values[order], tokens, list(gates), label=f"gates of {path}", scale=Scale(0.0, 1.0))
        maps.append(f"<figure><figcaption>{escape(path)}</figcaption>{_grid(heat, page)}</figure>")
    if not maps:
        return ""
    intro = "<p>How far each gate is open at each token: 0 closed, 1 open, the mean over its units.</p>"
    return f'{intro}<div class="several">{"".join(maps)}</div>'


def _tokens_axis(record: Record) -> Axis:
    """The tokens of a record (B, T, D), or the token of a record (B, D)."""
    if record.token is not None:
        return Axis("target", (record.token,))
    return record.axes[-2] if len(record.axes) > 1 else Axis()


def windows_section(parts: ReportParts, page: Page) -> str:
    """The receptive field of each convolution; the layer at which each position first sees each token."""
    html = []
    for side in ("encoder", "decoder"):
        windows = [window for window in parts.windows if window.side == side]
        tokens = windows[0].tokens if windows else []
        if not tokens:
            continue
        rows = "".join(
            f"<tr><td><code>{escape(window.path)}</code></td>"
            f"<td>{', '.join(_offset(offset) for offset in window.offsets)}</td>"
            f"<td>{short(window.reach[0])} … {short(window.reach[1])}</td></tr>"
            for window in windows
        )
        listed = _table(["convolution", "reads the offsets", "reaches through all layers"], rows)
        label = f"layer at which a place of the {side} first sees a token"
        seen = HeatMap.of(first_seen(windows, len(tokens)), tokens, tokens, label=label)
        intro = "<p>The layer, from 1, at which each position (down) first sees each token (across); 0: never.</p>"
        html.append(f"<h3>{side}</h3>{listed}{intro}{_grid(seen, page)}")
    return "".join(html)


def _offset(places: int) -> str:
    return f"{places:+d}".replace("-", "−") if places else "0"


# --- beam ------------------------------------------------------------------------------------------------------------


def beam_section(parts: ReportParts, page: Page) -> str:
    """The search as a tree, and all its hypotheses."""
    record = parts.beam
    if record is None or not record.nodes:
        return "".join(_note(each) for each in parts.left_out if each.startswith("Beam"))
    children, outputs, best = record.children(), [node.number for node in record.outputs()], record.best()
    tree = "".join(_branch(node, children, outputs, best) for node in children.get(None, []))
    own = " The output above was given; this is the search of the run." if parts.trace.about.get("forced") else ""
    intro = f"<p>Beam {record.beam}, {record.steps} steps; numbers are log-probabilities.{own}</p>"
    return f'{intro}<ul class="beam">{tree}</ul>{_hypotheses(record)}'


def _branch(node: Node, children: Children, outputs: Sequence[int], best: set[int]) -> str:
    """A line of unbranched tokens, then its branches."""
    run = unbranched(node, children, best)
    last, tokens = run[-1], " ".join(name(each.piece) for each in run)
    intro = " · ".join(filter(None, (f"{last.log_probability:.2f}", ending(last, outputs)))).replace("-", "−")
    inside = "".join(_branch(each, children, outputs, best) for each in children.get(last.number, []))
    marked = ' class="best"' if last.number in best else ""
    return f"<li><span{marked}>{tokens}</span> <small>{intro}</small>{f'<ul>{inside}</ul>' if inside else ''}</li>"


def _hypotheses(record: BeamRecord) -> str:
    nodes, note = record.nodes, ""
    if len(nodes) > _NODES:
        stride = -(-len(nodes) // _NODES)
        nodes = [node for node in nodes if node.fate != "outscored" or node.number % stride == 0]
        note = f"sampled: of those that were outscored 1 in {stride}; {len(nodes)} of {len(record.nodes)} are listed"
    rows = "".join(
        f'<tr><td class="number">{node.step}</td><td class="number">{node.number}</td>'
        f'<td class="number">{"" if node.parent is None else node.parent}</td><td>{name(node.piece)}</td>'
        f'<td class="number">{short(node.log_probability)}</td><td class="number">{short(node.score)}</td>'
        f"<td>{node.fate}</td></tr>"
        for node in nodes
    )
    listed = _table(["step", "hypothesis", "continues", "token", "log p", "score", "fate"], rows)
    summary = f"<summary>Every hypothesis at every step ({len(record.nodes)})</summary>"
    return f"<details>{summary}{_note(note)}{listed}</details>"


def about_section(parts: ReportParts) -> str:
    """Text, output, task, loss and notes."""
    about = parts.trace.about
    intro = {
        "text": about.get("text", ""),
        "output": about.get("output", ""),
        "how": "the output was given" if about.get("forced") else "the model's own output",
        "task": about.get("task", ""),
        "loss": f"{about['loss']:.4f} nats a token" if "loss" in about else "",
        "steps": f"{len(parts.trace):,}",
    }
    rows = "".join(f'<dt>{key}</dt><dd dir="auto">{escape(str(value))}</dd>' for key, value in intro.items() if value)
    notes = "".join(f'<p class="soft" dir="auto">{escape(visible(note))}</p>' for note in about.get("notes", ()))
    return f"<dl>{rows}</dl>{notes}"
