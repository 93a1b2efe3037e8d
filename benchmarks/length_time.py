"""Time per sentence against its length: recurrent and self-attentive translators on random tokens.

All have the same width; reading is the encoder, writing is one token after the other as a search does it (greedy, what
follows does not matter), a training step is forward and backward. Rounds are interleaved, medians are drawn with the
fastest and slowest round around them. Where others use the machine, `--clock cpu` counts processor time alone.

    python benchmarks/length_time.py --json docs/measurements/length_time.json --figure docs/length-time.png
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from sightline.inspection.length_time import WORKS, draw_timings, time_lengths
from sightline.models.seq2seq import Seq2Seq
from sightline.recipe.model import Model

VOCABULARY = 8_000
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def bodies(layers: int) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Encoder and decoder of each system."""
    reader = {"kind": "recurrent", "cell": "lstm", "layers": layers}

    def writer(attention: str) -> dict[str, Any]:
        return {"kind": "recurrent", "cell": "lstm", "layers": layers, "attention": {"kind": attention}}

    transformer = {"kind": "transformer", "layers": layers, "heads": 4}
    return {
        "LSTM": (reader, writer("none")),
        "LSTM + attention": (reader, writer("additive")),
        "Transformer": (transformer, transformer),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[8, 16, 32, 64, 128, 256, 512])
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=1, help="sentences at once; times are for each of them")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: processor time; take it with one thread")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    models = {}
    for name, (encoder, decoder) in bodies(options.layers).items():
        section = {"width": options.width, "tie": "none", "encoder": encoder, "decoder": decoder}
        models[name] = Seq2Seq(Model.model_validate(section), VOCABULARY, VOCABULARY).to(options.device)
    clock, rounds, batch = CLOCKS[options.clock], options.rounds, options.batch
    timings = time_lengths(models, options.lengths, vocabulary=VOCABULARY, rounds=rounds, batch=batch, clock=clock)
    for work, what in WORKS.items():
        print(f"{what}: milliseconds a sentence")
        print("tokens".rjust(8) + "".join(name.rjust(20) for name in models))
        for length in options.lengths:
            own = {t.model: t.seconds * 1000 for t in timings if (t.work, t.length) == (work, length)}
            print(f"{length:8d}" + "".join(f"{own[name]:20.2f}" for name in models))
    if options.json is not None:
        machine = {"device": options.device, "threads": options.threads, "processor": platform.processor()}
        setting = {key: getattr(options, key) for key in ("width", "layers", "batch", "rounds", "clock")}
        record = {"torch": torch.__version__, **machine, **setting, "timings": [asdict(timing) for timing in timings]}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    if options.figure is not None:
        how = "" if options.clock == "wall" else " (processor time)"
        title = f"Time per sentence, width {options.width}, {options.device}{how}"
        draw_timings(timings, options.figure, title=title)


if __name__ == "__main__":
    main()
