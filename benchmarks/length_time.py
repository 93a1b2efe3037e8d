"""Time per sentence against its length: recurrent and self-attentive translators on random tokens.

Per layer, recurrent models take O(n · d²) in n sequential steps, self-attention O(n² · d) in one (Vaswani et al. 2017,
table 1). All have the same width; decoding is greedy, and a training step is forward and backward. Rounds are
interleaved; the figure shows medians with the fastest and slowest round. On a busy machine use `--clock cpu`.

    python benchmarks/length_time.py --json docs/measurements/length_time.json --figure docs/length-time.png
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from measuring import machine, seconds_of, write_json
from sightline.layers.layout import Padded
from sightline.models.seq2seq import Seq2Seq
from sightline.plots.lines import Panel, Series, draw_lines
from sightline.recipe.model import ModelConfig
from sightline.text.tokenizer import SPECIALS, START

VOCABULARY = 8_000
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
Work = Literal["encode", "decode", "train"]
WORKS: dict[Work, str] = {
    "encode": "reading a sentence",
    "decode": "writing one, token by token",
    "train": "a training step on one",
}


@dataclass(frozen=True)
class Timing:
    """Seconds for a sentence of one length: median, fastest and slowest round."""

    model: str
    work: Work
    length: int
    seconds: float
    fastest: float
    slowest: float


def time_lengths(
    models: Mapping[str, Any],
    lengths: Sequence[int],
    *,
    vocabulary: int,
    works: Sequence[Work] = ("encode", "decode", "train"),
    rounds: int = 5,
    batch: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Timing]:
    """Time translators on random tokens, as many written as read.

    Each round times every model at every length once, so that other load affects all equally. The first round warms up.
    On a busy machine, `clock=time.process_time` with one thread counts only the time of this process.
    """
    found: dict[tuple[str, Work, int], list[float]] = {}
    for number in range(rounds + 1):
        for length in lengths:
            for name, model in models.items():
                for work in works:
                    doing = _work(model, work, length, vocabulary, batch)
                    seconds = seconds_of(doing, _device(model), clock) / batch
                    if number:
                        found.setdefault((name, work, length), []).append(seconds)
    return [Timing(*key, statistics.median(each), min(each), max(each)) for key, each in found.items()]


def _device(model: Any) -> torch.device:
    device: torch.device = next(model.parameters()).device
    return device


def _work(model: Any, work: Work, length: int, vocabulary: int, batch: int) -> Callable[[], None]:
    device = _device(model)
    tokens = torch.randint(len(SPECIALS), vocabulary, (batch, length), device=device)
    layout = Padded.of([length] * batch, device)
    decoder_input = torch.cat([torch.full((batch, 1), START, device=device), tokens[:, :-1]], dim=1)
    doing = {"encode": _encode, "decode": _decode, "train": _train}[work]
    return lambda: doing(model, tokens, layout, decoder_input)


@torch.inference_mode()
def _encode(model: Any, tokens: Tensor, layout: Padded, decoder_input: Tensor) -> None:
    model.eval().encode(tokens, layout)


@torch.inference_mode()
def _decode(model: Any, tokens: Tensor, layout: Padded, decoder_input: Tensor) -> None:
    """Decode step by step with a cache; which tokens follow does not change the time."""
    state = model.eval().begin(model.encode(tokens, layout))
    for t in range(decoder_input.shape[1]):
        features, state = model.advance(decoder_input[:, t : t + 1], state)
        model.logits(features)


def _train(model: Any, tokens: Tensor, layout: Padded, decoder_input: Tensor) -> None:
    model.train().zero_grad(set_to_none=True)
    features = model(tokens, layout, decoder_input, layout)
    torch.nn.functional.cross_entropy(model.logits(features).flatten(0, 1), tokens.flatten()).backward()


def draw_timings(timings: Sequence[Timing], path: Path, *, title: str | None = None) -> None:
    """One panel per kind of work; on logarithmic scales a slope is a power of the length."""
    names = list(dict.fromkeys(timing.model for timing in timings))
    panels = []
    for work in dict.fromkeys(timing.work for timing in timings):
        lines = []
        for look, name in enumerate(names):
            own = sorted((t for t in timings if (t.model, t.work) == (name, work)), key=lambda t: t.length)
            low, high = [t.fastest * 1000 for t in own], [t.slowest * 1000 for t in own]
            x, y = [t.length for t in own], [t.seconds * 1000 for t in own]
            lines.append(Series(name, x, y, look, low=low, high=high))
        panels.append(Panel(WORKS[work], "tokens read and written", "milliseconds a sentence", lines, log_x=True))
    draw_lines(panels, path, title=title)


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
    parser.add_argument("--batch", type=int, default=1, help="sentences at once; times are per sentence")
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
        models[name] = Seq2Seq(ModelConfig.model_validate(section), VOCABULARY, VOCABULARY).to(options.device)
    clock, rounds, batch = CLOCKS[options.clock], options.rounds, options.batch
    timings = time_lengths(models, options.lengths, vocabulary=VOCABULARY, rounds=rounds, batch=batch, clock=clock)
    for work, what in WORKS.items():
        print(f"{what}: milliseconds a sentence")
        print("tokens".rjust(8) + "".join(name.rjust(20) for name in models))
        for length in options.lengths:
            own = {t.model: t.seconds * 1000 for t in timings if (t.work, t.length) == (work, length)}
            print(f"{length:8d}" + "".join(f"{own[name]:20.2f}" for name in models))
    setting = {
        key: getattr(options, key) for key in ("device", "threads", "width", "layers", "batch", "rounds", "clock")
    }
    write_json(options.json, machine() | setting | {"timings": [asdict(timing) for timing in timings]})
    if options.figure is not None:
        how = "" if options.clock == "wall" else " (processor time)"
        title = f"Time per sentence, width {options.width}, {options.device}{how}"
        draw_timings(timings, options.figure, title=title)


if __name__ == "__main__":
    main()
