"""The exported script: it stands alone, recomputes everything and stops at a wrong number."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from traced_models import bodies, traced

from sightline.inspection.numpy_script import export_script
from sightline.inspection.operations import OPERATIONS
from sightline.inspection.trace import Trace

EXPERTS = {"count": 4, "top_k": 2, "noise": False, "load": 0.0}  # with noise, gates are initialized to zero


def with_experts(kind: str, **experts: Any) -> dict[str, Any]:
    body: dict[str, Any] = bodies.transformer("pre", "layer", "sinusoidal", kind, layers=1)
    body["feedforward"] |= {"experts": EXPERTS | {"every": 1} | experts}
    return body


BODIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    **{
        f"{place}-{norm}-{positions}": (bodies.transformer(place, norm, positions, feedforward, layers=1),) * 2
        for place, norm, positions, feedforward in [
            ("pre", "layer", "sinusoidal", "relu"),
            ("post", "layer", "learned", "gelu"),
            ("pre", "rms", "rotary", "swiglu"),
            ("post", "rms", "alibi", "relu"),
            ("pre", "batch", "t5", "relu"),
            ("none", "layer", "shaw", "gelu"),
        ]
    },
    **{
        f"{cell}-{score}": (bodies.RECURRENT_ENCODERS[place], bodies.recurrent_decoder(cell, 1, score, feeding))
        for place, (cell, score, feeding) in enumerate(
            [
                ("elman", bodies.SCORES[0], False),
                ("gru", bodies.SCORES[1], True),
                ("lstm", bodies.SCORES[2], False),
                ("lstm", bodies.SCORES[3], True),
                ("gru", bodies.SCORES[4], False),
                ("elman", "none", False),
            ]
        )
    },
    "deep-residual": bodies.FEW["deep-residual-lstm"],
    "fast-forward": bodies.FEW["deep-fast-forward-lstm"],
    "convolutional": bodies.FEW["convolutional"],
    "wider-convolutional": bodies.FEW["wider-convolutional"],
    "bytenet": bodies.FEW["bytenet"],
    **{f"experts-{kind}": (with_experts(kind),) * 2 for kind in ("relu", "gelu", "tanh", "swiglu")},
    **{f"switched-{number}": (body,) * 2 for number, body in enumerate(bodies.SWITCHED)},
    "elman-relu": bodies.LITERAL[3],
    "elman-sigmoid": bodies.LITERAL[4],
    "unequal-widths": bodies.UNEQUAL[0],
    "experts-equal": (with_experts("relu", noise=True),) * 2,  # all gates are zero: ties select the first experts
    "experts-recurrent": (
        bodies.recurrent_encoder("gru", 2, True) | {"experts": EXPERTS},
        bodies.recurrent_decoder("lstm", 2, "additive", False) | {"experts": EXPERTS},
    ),
    "window": ({"kind": "window", "size": 1, "dropout": 0.0}, {"kind": "window", "size": 2, "dropout": 0.0}),
}


def run_alone(script: Path) -> subprocess.CompletedProcess[str]:
    """Run without torch and this package: the script needs only NumPy and safetensors."""
    guard = (
        "import sys; sys.modules['torch'] = sys.modules['sightline'] = None; import runpy; runpy.run_path(sys.argv[1])"
    )
    command = [sys.executable, "-c", guard, str(script)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=script.parent.parent)


@pytest.mark.parametrize("name", BODIES)
def test_the_script_recomputes_every_step_of_a_model(name: str, build_model: Any, tmp_path: Path) -> None:
    trace = traced(build_model(*BODIES[name]))
    assert [step.note for step in trace.records if step.note] == []
    done = run_alone(export_script(trace, tmp_path / "by-hand"))
    assert done.returncode == 0, done.stderr
    made = [step for step in trace if step.operation != "given"]
    assert f"all {len(made)} steps are what the model computed" in done.stdout
    assert all(f" {step.key} (" in done.stdout for step in made)


@pytest.mark.parametrize("where", ["weights", "tensors"])
def test_the_script_stops_at_a_number_that_is_not_the_recorded_one(
    where: str, build_model: Any, tmp_path: Path
) -> None:
    script = export_script(traced(build_model(*bodies.FEW["transformer"])), tmp_path / "by-hand")
    file = script.parent / f"{where}.safetensors"
    numbers = load_file(file)
    name = (
        "decoder.layers.0.cross_attention.output.weight"
        if where == "weights"
        else "decoder.layers.0.cross_attention.output"
    )
    numbers[name].view(-1)[3] += 0.5
    save_file(numbers, file)
    done = run_alone(script)
    assert done.returncode != 0
    assert "AssertionError: decoder.layers.0.cross_attention.output" in done.stderr


def test_sampled_trace_is_compared_where_kept(build_model: Any, tmp_path: Path) -> None:
    trace = traced(build_model(*bodies.FEW["lstm-additive"])).sampled(10)
    assert any("sampled" in step.note for step in trace)
    done = run_alone(export_script(trace, tmp_path / "by-hand"))
    assert done.returncode == 0, done.stderr


def test_a_title_cannot_break_out_of_the_script(build_model: Any, tmp_path: Path) -> None:
    trace = traced(build_model(*bodies.FEW["lstm-additive"]))
    trace.about = {"text": '"""\nraise SystemExit(3)\n"""\\', "output": "'''", "loss": 1.0}
    done = run_alone(export_script(trace, tmp_path / "by-hand"))
    assert done.returncode == 0, done.stderr


def test_a_trace_without_arithmetic_cannot_be_exported(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no arithmetic to export"):
        export_script(Trace(), tmp_path / "by-hand")


def test_fully_masked_rows_weigh_nothing() -> None:
    scores = torch.tensor([[0.0, 1.0], [-torch.inf, -torch.inf]])
    weights = OPERATIONS["softmax"].compute({"x": scores.numpy()})
    assert weights[1].tolist() == [0, 0]
    assert weights[0].sum() == pytest.approx(1)
