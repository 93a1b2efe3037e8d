"""Training speed, side by side: Sightline, transformers' MarianMTModel and torch.nn.Transformer.

    SIGHTLINE_CORPORA=... python benchmarks/train_speed.py --json train_speed.json
    SIGHTLINE_CORPORA=... python benchmarks/train_speed.py --device cuda --json train_speed_cuda.json

The same Transformer everywhere: on the CPU 3+3 layers, width 256, feed-forward 1,024, 4 heads, joint BPE of 8,000,
real Multi30k text in float32; on CUDA Transformer base, V = 32,000, bf16, 25,000 + 25,000 real Europarl tokens a step.
Post-norm, ReLU, sinusoidal positions, tied embeddings, dropout 0.1 on embeddings and residuals, label smoothing 0.1,
AdamW (fused), clipping. The rate is real (non-padding) target tokens a second through everything a training
step is made of: making the batch, forward, loss, backward, clipping, optimizer.

Every contestant has its own best batching and batch size (found with `--scan`). How they take turns: race.py.

On CUDA the peers get easier work than real training: both sides of the corpus are concatenated and cut into 768 rows of
32 tokens, so that there is one shape to compile and no padding, mask or bucketing; also replayed as a CUDA graph. This
bounds what any batching of sentence pairs could reach with the same compiled models. Real batches are available for
them with `--only`.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import corpus as text
from peers import BASE, SMALL, MarianStep, Size, TorchStep
from race import Worker, add_options, only, print_table, race, save, summarize

WIDTHS = (16, 24, 32, 48, 64, 128)  # static shapes for the compiled peers, each compiled once
EXPANDABLE = (("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),)  # for batches that are never of one size


@dataclass(frozen=True)
class Setting:
    """The settings of one contestant."""

    name: str
    model: str  # sightline, marian or torch
    tokens: int  # tokens a side of a batch
    device: str = "cpu"
    precision: str = "float32"
    compile: str = "no"  # no, dynamic (one graph for all shapes), static (one for each), graph (replayed by CUDA too)
    multiple: int = 1  # lengths of padded batches are rounded up to this
    widths: tuple[int, ...] = ()  # batches of a few static shapes instead; longer pairs are left out
    block: int = 0  # or concatenated text in rows of this length
    environment: tuple[tuple[str, str], ...] = ()  # variables of its process
    keep_memory: bool = False  # see race.keep_memory
    small: bool = False  # smallest sizes, to try the benchmark itself


def sizes(setting: Setting) -> Size:
    """The sizes of the Transformer for this device."""
    if setting.small:
        return Size(layers=1, width=32, feedforward=64, heads=2, vocabulary=SMALL.vocabulary)
    return BASE if setting.device == "cuda" else SMALL


def load_corpus(setting: Setting) -> text.Corpus:
    """The corpus for this device."""
    name, vocabulary = ("europarl-de-en", BASE.vocabulary) if setting.device == "cuda" else ("multi30k", 8_000)
    return text.load(name, "de", "en", SMALL.vocabulary if setting.small else vocabulary)


class Contestant:
    """One training loop: `prepare`, then repeated calls of `step`, which returns the number of real target tokens."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    def prepare(self, corpus: text.Corpus) -> None:
        raise NotImplementedError

    def step(self) -> int:
        raise NotImplementedError

    def run(self, after_step: Callable[[int], None]) -> None:
        """Train until `after_step`, called with the tokens of each step, raises."""
        while True:
            after_step(self.step())


def blocks(corpus: text.Corpus, rows: int, width: int) -> Iterator[text.Batch]:
    """Endless batches (rows, width) of concatenated sentences, each followed by `</s>`, without padding.

    Source and target rows are not translations of each other: this measures speed only.
    """
    size = rows * width
    sides = (corpus.source, corpus.target)
    count = min(len(corpus), 1 + 40 * size // max(1, int(min(side.lengths.mean() for side in sides))))
    source, target = (
        np.concatenate([np.append(side.sentence(index), text.END) for index in range(count)]).astype(np.int64)
        for side in sides
    )
    steps = min(len(source) // size, (len(target) - 1) // size)
    while True:
        for start in range(0, steps * size, size):
            cut = (source[start : start + size], target[start : start + size], target[start + 1 : start + size + 1])
            given, inputs, labels = (torch.from_numpy(part.reshape(rows, width)) for part in cut)
            yield text.Batch(given, inputs, labels, size, padded=False)


MODELS: dict[str, Callable[..., nn.Module]] = {"marian": MarianStep, "torch": TorchStep}


class Peer(Contestant):
    """A PyTorch model trained by the loop an expert would write for it."""

    def prepare(self, corpus: text.Corpus) -> None:
        setting = self.setting
        torch.manual_seed(1)
        self.corpus = corpus
        self.device = torch.device(setting.device)
        static = setting.compile != "no"
        self.model = MODELS[setting.model](sizes(setting), everywhere=static).to(self.device).train()
        self.parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)
        self.loss: Callable[..., torch.Tensor] = self.model
        if setting.compile == "dynamic":
            # otherwise equal source and target lengths in the first batch become one symbol, and the next recompiles
            torch.fx.experimental._config.use_duck_shape = False  # type: ignore[attr-defined]
        if static:
            mode = "reduce-overhead" if setting.compile == "graph" else None
            self.loss = torch.compile(self.model, dynamic=setting.compile == "dynamic", mode=mode)
        if setting.device == "cuda":
            torch.set_float32_matmul_precision("high")
            # cuDNN's attention plans anew for every shape, which took a second on a B200 (modelscope/FunASR#3704)
            torch.backends.cuda.enable_cudnn_sdp(bool(setting.widths or setting.block))
        self.batches = self._batches()

    def _batches(self) -> Iterator[text.Batch]:
        setting, cuda = self.setting, self.setting.device == "cuda"
        if setting.block:
            yield from blocks(self.corpus, setting.tokens // setting.block, setting.block)
        elif setting.widths:
            for rows, width in text.endless(text.buckets(self.corpus, setting.tokens, setting.widths), seed=1):
                yield text.assemble(self.corpus, rows, width)
        else:
            plan = text.plan(self.corpus, setting.tokens, multiple=setting.multiple, real=cuda)
            for rows in text.endless(plan, seed=1):
                yield text.assemble(self.corpus, rows, multiple=setting.multiple)

    def _move(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.device.type == "cpu":
            return tensor
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def _autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, torch.bfloat16) if self.setting.precision == "bf16" else nullcontext()

    def step(self) -> int:
        batch = next(self.batches)
        source, inputs, labels = (self._move(part) for part in (batch.source, batch.inputs, batch.labels))
        padded = not self.setting.block and (batch.padded or self.setting.compile != "no")
        self.optimizer.zero_grad(set_to_none=True)
        if self.setting.compile == "graph":
            torch.compiler.cudagraph_mark_step_begin()
        with self._autocast():
            loss = self.loss(source, inputs, labels, padded)
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, 1.0, foreach=True)
        self.optimizer.step()
        return batch.tokens


class Sightline(Contestant):
    """Sightline's training loop as `sightline train` runs it."""

    def prepare(self, corpus: text.Corpus) -> None:
        from sightline.recipe import Recipe

        setting, size = self.setting, sizes(self.setting)
        body = {
            "kind": "transformer",
            "layers": size.layers,
            "heads": size.heads,
            "feedforward": {"kind": "relu", "width": size.feedforward, "dropout": 0.0},
            "norm": {"kind": "layer", "place": "post"},
            "positions": {"kind": "sinusoidal"},
            "dropout": size.dropout,
        }

        self.recipe = Recipe.model_validate(
            {
                "data": {
                    "folder": str(text.corpora() / corpus.name),
                    "train": [text.pairs("train")],
                    "validation": text.pairs("val" if corpus.name == "multi30k" else "valid"),
                    "clean": {"max_tokens": 127},
                },
                "tokenizer": {"kind": "bpe", "size": size.vocabulary},
                "model": {"width": size.width, "encoder": body, "decoder": body, "tie": "all"},
                "training": {
                    "lr": 1e-4,
                    "batches": {"tokens": setting.tokens},
                    "limits": {"steps": 10**9},
                    "validate_every": 10**9,
                    "precision": setting.precision,
                    "device": setting.device,
                    "log_every": 50,
                },
            }
        )

    def run(self, after_step: Callable[[int], None]) -> None:
        from sightline.training.train import train

        class Counter:
            """A display that shows nothing and counts tokens."""

            tokens = 0

            def step(self, progress: Any, record: dict[str, Any]) -> None:
                tokens, self.tokens = progress.tokens - self.tokens, progress.tokens
                after_step(tokens)

            def validation(self, progress: Any, record: dict[str, Any]) -> None: ...

            def note(self, text: str) -> None: ...

        with tempfile.TemporaryDirectory() as folder:
            train(self.recipe, out=Path(folder) / "run", display=Counter())


CONTESTANTS: dict[str, type[Contestant]] = {"sightline": Sightline, "marian": Peer, "torch": Peer}


def build(setting: Setting) -> Contestant:
    """A contestant, ready to run."""
    contestant = CONTESTANTS[setting.model](setting)
    contestant.prepare(load_corpus(setting))
    return contestant


# --- who takes part --------------------------------------------------------------------------------------------------

CPU = [
    Setting("sightline", "sightline", 2_048),
    Setting("marian", "marian", 2_048),
    Setting("torch", "torch", 2_048),
    Setting("marian keep-memory", "marian", 4_096, keep_memory=True),
    Setting("torch keep-memory", "torch", 4_096, keep_memory=True),
    Setting("marian compiled", "marian", 2_048, compile="dynamic"),
    Setting("torch compiled", "torch", 2_048, compile="dynamic"),
    Setting("sightline bf16", "sightline", 2_048, precision="bf16"),
    Setting("marian bf16", "marian", 2_048, precision="bf16"),
    Setting("torch bf16", "torch", 2_048, precision="bf16"),
    Setting("marian bf16 keep-memory", "marian", 4_096, precision="bf16", keep_memory=True),
    Setting("torch bf16 keep-memory", "torch", 4_096, precision="bf16", keep_memory=True),
]
CUDA = [
    Setting("sightline", "sightline", 25_000, "cuda", "bf16"),
    Setting("marian compiled, unpadded", "marian", 24_576, "cuda", "bf16", "static", block=32),
    Setting("torch compiled, unpadded", "torch", 24_576, "cuda", "bf16", "static", block=32),
    Setting("marian compiled, unpadded, CUDA graph", "marian", 24_576, "cuda", "bf16", "graph", block=32),
    Setting("torch compiled, unpadded, CUDA graph", "torch", 24_576, "cuda", "bf16", "graph", block=32),
]
# With --only, real batches: pairs of up to 48 tokens in one shape, all pairs in a few shapes (minutes to compile), or
# sorted by length with little padding and many shapes.
CUDA_MORE = [
    replace(setting, name=f"{model} {setting.name}".strip(), model=model)
    for model in ("marian", "torch")
    for setting in (
        Setting("compiled, one width", model, 25_000, "cuda", "bf16", "static", widths=(48,)),
        Setting("compiled, few widths", model, 25_000, "cuda", "bf16", "static", widths=WIDTHS),
        Setting("compiled, lengths x8", model, 25_000, "cuda", "bf16", "dynamic", multiple=8, environment=EXPANDABLE),
        Setting("compiled", model, 25_000, "cuda", "bf16", "dynamic", environment=EXPANDABLE),
        Setting("", model, 25_000, "cuda", "bf16", environment=EXPANDABLE),
    )
]


def chosen(options: argparse.Namespace) -> list[Setting]:
    """The settings asked for."""
    known = CUDA + (CUDA_MORE if options.only else []) if options.device == "cuda" else CPU
    settings: list[Setting] = only(known, options.only)
    if options.scan:
        tokens = [int(size) for size in options.scan.split(",")]
        settings = [replace(each, name=f"{each.name} {size}", tokens=size) for each in settings for size in tokens]
    if options.small and options.device == "cuda" and not torch.cuda.is_available():  # the same, to be tried here
        settings = [replace(each, device="cpu", precision="float32", tokens=each.tokens // 16) for each in settings]
    return [replace(setting, small=options.small) for setting in settings]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--scan", help="batch sizes to try for each contestant, e.g. 1024,2048,4096")
    parser.add_argument("--warmup", type=float, help="seconds before it counts (by default 5, on CUDA 60)")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try the benchmark itself")
    add_options(parser, rounds=9, seconds=8.0)
    options = parser.parse_args()
    if options.warmup is None:
        options.warmup = 60.0 if options.device == "cuda" else 5.0
    settings = chosen(options)
    load_corpus(settings[0])  # tokenize once, before the contestants start

    def keep(workers: Sequence[Worker]) -> None:
        """Save intermediate results."""
        save(options.json, summarize(workers), options, benchmark="train_speed")

    rows = summarize(race(build, settings, options, keep))
    more = {
        "batch": lambda row: f"{row['setting']['tokens']:,}",
        "tokens/step": lambda row: f"{row['units_a_step']:,.0f}",
    }
    print_table("non-padding target tokens a second in training, median over the rounds", "tokens/s", rows, more)


if __name__ == "__main__":
    main()
