"""Time per sentence against its length: recurrent and self-attentive translators on random tokens.

Per layer, recurrent models take O(n · d²) in n steps that wait for one another, self-attention O(n² · d) in one
(Vaswani et al. 2017, table 1). All have the same width; reading is the encoder, writing is one token after the other as
a search does it (greedy, what follows does not matter), a training step is forward and backward. Rounds are
interleaved, medians are drawn with the fastest and slowest round around them. Where others use the machine,
`--clock cpu` counts processor time alone.

    python benchmarks/length_time.py --json docs/measurements/length_time.json --figure docs/length-time.png
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

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
    """How long a sentence of one length took: the median, the fastest and the slowest of some rounds."""

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

    Rounds are interleaved: each times every model at every length once, so that what else the machine does falls on all
    alike. A first round warms up and is not counted. On a machine that others use, `clock=time.process_time` with one
    thread counts only the time that the processor gave to this work.
    """
    found: dict[tuple[str, Work, int], list[float]] = {}
    for number in range(rounds + 1):
        for length in lengths:
            for name, model in models.items():
                for work in works:
                    doing = _work(model, work, length, vocabulary, batch)
                    seconds = _timed(doing, _device(model), clock) / batch
                    if number:
                        found.setdefault((name, work, length), []).append(seconds)
    return [Timing(*key, statistics.median(each), min(each), max(each)) for key, each in found.items()]


def _device(model: Any) -> torch.device:
    device: torch.device = next(model.parameters()).device
    return device


def _timed(work: Callable[[], None], device: torch.device, clock: Callable[[], float]) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = clock()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return clock() - start


def _work(model: Any, work: Work, length: int, vocabulary: int, batch: int) -> Callable[[], None]:
    device = _device(model)
    tokens = torch.randint(len(SPECIALS), vocabulary, (batch, length), device=device)
    layout = Padded.of([length] * batch, device)
    given = torch.cat([torch.full((batch, 1), START, device=device), tokens[:, :-1]], dim=1)
    doing = {"encode": _encode, "decode": _decode, "train": _train}[work]
    return lambda: doing(model, tokens, layout, given)


@torch.inference_mode()
def _encode(model: Any, tokens: Tensor, layout: Padded, given: Tensor) -> None:
    model.eval().encode(tokens, layout)


@torch.inference_mode()
def _decode(model: Any, tokens: Tensor, layout: Padded, given: Tensor) -> None:
    """One token after the other, with what a search would keep; which tokens follow does not change the time."""
    state = model.eval().begin(model.encode(tokens, layout))
    for t in range(given.shape[1]):
        features, state = model.advance(given[:, t : t + 1], state)
        model.logits(features)


def _train(model: Any, tokens: Tensor, layout: Padded, given: Tensor) -> None:
    model.train().zero_grad(set_to_none=True)
    features = model(tokens, layout, given, layout)
    torch.nn.functional.cross_entropy(model.logits(features).flatten(0, 1), tokens.flatten()).backward()


def draw_timings(timings: Sequence[Timing], path: Path, *, title: str | None = None) -> None:
    """A panel for each work; both scales logarithmic, so that a slope is a power of the length."""
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
        models[name] = Seq2Seq(ModelConfig.model_validate(section), VOCABULARY, VOCABULARY).to(options.device)
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
