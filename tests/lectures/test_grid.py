"""Encoders and decoders made of feed-forward nets, recurrent networks and Transformers, in all nine combinations.

`sightline sweep phrases/lstm-additive model.encoder.kind=window,recurrent,transformer
model.decoder.kind=window,recurrent,transformer` trains them.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import sightline
from sightline.sweeps.plan import plan_sweep

KINDS = ("window", "recurrent", "transformer")


@pytest.mark.parametrize("decoder", KINDS)
@pytest.mark.parametrize("encoder", KINDS)
def test_every_encoder_and_decoder_of_the_grid_learns(encoder: str, decoder: str, tmp_path: Path) -> None:
    overrides = [
        f"model.encoder.kind={encoder}",
        f"model.decoder.kind={decoder}",
        "data.train=[{kind: phrases, split: train, examples: 200, clauses: [1, 1]}]",
        "data.validation.examples=20",
        "tokenizer={kind: word, shared: true}",
        "model.width=16",
        "training.device=cpu",
        "training.threads=1",
        "training.log_every=10",
        "training.samples=0",
        "training.schedule={kind: constant, warmup: 0}",
        "training.lr=1e-2",
        "training.batches.tokens=256",
        "training.limits.steps=50",
        "training.validate_every=50",
    ]
    sightline.train("phrases/lstm-additive", overrides, out=tmp_path / "run")
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [record["loss"] for record in records if record["kind"] == "train"]
    assert losses[-1] < losses[0] - 0.5


def test_one_command_makes_the_grid(tmp_path: Path) -> None:
    kinds = ",".join(KINDS)
    plan = plan_sweep(
        "phrases/lstm-additive", [f"model.encoder.kind={kinds}", f"model.decoder.kind={kinds}"], out=tmp_path / "grid"
    )
    bodies = [(run.recipe.model.encoder, run.recipe.model.decoder) for run in plan.runs]
    assert {(encoder.kind, decoder.kind) for encoder, decoder in bodies if encoder and decoder} == {
        (encoder, decoder) for encoder in KINDS for decoder in KINDS
    }
