"""The gradient norm of each layer over a training, from metrics.jsonl (training.log_layers: true)."""

from __future__ import annotations

from pathlib import Path

from sightline.plots.lines import Line, Panel, draw_lines
from sightline.run_folder import journal

Norms = dict[str, list[tuple[int, float]]]  # part → (step, norm) in order


def read_layer_norms(run: Path) -> Norms:
    """What a training wrote down; a run without it is an error that says how to have it."""
    found: Norms = {}
    for record in journal(run):
        for part, norm in record.get("layers", {}).items():
            found.setdefault(part, []).append((int(record["step"]), float(norm)))
    if not found:
        raise ValueError(
            f"{run / 'metrics.jsonl'} has no gradient norms of layers; train with training.log_layers=true to have them"
        )
    return found


def draw_layer_norms(norms: Norms, path: Path, *, title: str | None = None) -> None:
    """A panel for each side and one for what stands beside them; steps across, norms on a logarithmic scale."""
    groups: dict[str, list[str]] = {}
    for part in norms:
        side = part.split(".")[0]
        groups.setdefault(side if side in ("encoder", "decoder") else "beside", []).append(part)
    names = {"encoder": "encoder", "decoder": "decoder", "beside": "embeddings and output"}
    looks = {label: look for look, label in enumerate(dict.fromkeys(map(_label, norms)))}
    panels = [
        Panel(names[side], "step", "‖∂L/∂θ‖ before clipping", [_line(norms, part, looks) for part in groups[side]])
        for side in ("encoder", "decoder", "beside")
        if side in groups
    ]
    draw_lines(panels, path, title=title)


def _label(part: str) -> str:
    """Layers of both sides by one name, so that one legend serves both panels."""
    return part.removeprefix("encoder.").removeprefix("decoder.").replace("layers.", "layer ")


def _line(norms: Norms, part: str, looks: dict[str, int]) -> Line:
    steps, values = ([pair[index] for pair in norms[part]] for index in (0, 1))
    return Line(_label(part), steps, values, looks[_label(part)])
