"""The worked example of the lecture: a Transformer small enough to follow with a pencil.

Eleven words, width 6, two heads, one layer each; three source tokens [5, 8, 9], targets [6, 3, 4]. The weights are
fixed, with one digit behind the point, so that every number from embedding to loss can be checked by hand.
"""

from __future__ import annotations

import numpy as np
import torch

from sightline.inspection.axes import BATCH
from sightline.inspection.axes import SOURCE as SOURCE_AXIS
from sightline.inspection.axes import TARGET as TARGET_AXIS
from sightline.inspection.recorder import record_arithmetic
from sightline.inspection.trace import Trace
from sightline.layers.layout import Padded
from sightline.models.seq2seq import Seq2Seq
from sightline.recipe.model import ModelConfig

NAME = "lecture-example"
WORDS = ("I", "you", "we", "see", "hear", "learn", "a", "the", "dog", "cat", "song")
SOURCE, START, TARGET = (5, 8, 9), 2, (6, 3, 4)
_SEED = 11
_BODY = {
    "kind": "transformer",
    "layers": 1,
    "heads": 2,
    "feedforward": {"kind": "relu", "width": 8},
    "norm": {"kind": "layer", "place": "post"},
    "positions": {"kind": "sinusoidal", "max_positions": 8},
    "dropout": 0.0,
}


def lecture_model() -> Seq2Seq:
    """The original block (post-norm, ReLU, sinusoids), as any recipe would build it, with the fixed weights."""
    recipe = ModelConfig.model_validate({"width": 6, "encoder": _BODY, "decoder": _BODY, "tie": "none"})
    model = Seq2Seq(recipe, len(WORDS), len(WORDS)).eval()
    draw = np.random.default_rng(_SEED)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if "norm" in name:
                parameter.fill_(1.0 if name.endswith("weight") else 0.0)
            else:
                largest = 2 if name.endswith("bias") else 9
                tenths = draw.integers(-largest, largest, tuple(parameter.shape), endpoint=True)
                parameter.copy_(torch.from_numpy(tenths / 10.0))
    return model


def lecture_trace() -> Trace:
    """Every matrix of the example, and its loss."""
    model = lecture_model()
    source = torch.tensor([SOURCE])
    given, wanted = torch.tensor([[START, *TARGET[:-1]]]), torch.tensor([TARGET])
    with record_arithmetic(model) as recorder:
        model = recorder.model
        recorder.give("source.tokens", source, "tokens", (BATCH, SOURCE_AXIS))
        recorder.give("target.tokens", given, "tokens before each", (BATCH, TARGET_AXIS))
        features, _ = model.advance(given, model.begin(model.encode(source, Padded.of([len(SOURCE)]))))
        recorder.end(model.logits(features), wanted)
    trace = recorder.finish()
    trace.about = {
        "task": "seq2seq",
        "text": " ".join(WORDS[token] for token in SOURCE),
        "output": " ".join(WORDS[token] for token in TARGET),
        "forced": True,
        "source_tokens": [WORDS[token] for token in SOURCE],
        "given_tokens": [WORDS[token] for token in (START, *TARGET[:-1])],
        "target_tokens": [WORDS[token] for token in TARGET],
        "labels": list(WORDS),
        "loss": float(trace["loss"]),
        "notes": ["The lecture's example: untrained, with weights chosen to be followed by hand."],
    }
    return trace
