"""Training speed, side by side: Sightline, transformers' MarianMTModel and torch.nn.Transformer.

    SIGHTLINE_CORPORA=... python benchmarks/train_speed.py --json train_speed.json
    SIGHTLINE_CORPORA=... python benchmarks/train_speed.py --device cuda --json train_speed_cuda.json

The same Transformer everywhere: on the CPU 3+3 layers, width 256, feed-forward 1,024, 4 heads, joint BPE of 8,000,
real Multi30k text in float32; on CUDA Transformer base, V = 32,000, bf16, 25,000 + 25,000 real Europarl tokens a step.
Post-norm, ReLU, sinusoidal positions, tied embeddings, dropout 0.1 on embeddings and residuals, label smoothing 0.1,
AdamW (fused), clipping. What is counted is real (non-padding) target tokens a second through everything a training
step is made of: making the batch, forward, loss, backward, clipping, optimizer.

Every contestant has its own best batching and batch size, and lives in a process of its own, so that none inherits
another's memory or settings. They take turns (A, B, C, A, B, C, ...) in short rounds, only one running at a time;
what is reported is the median over the rounds, and the median over the rounds of the ratio to the first contestant,
which cancels most of what else the machine is doing; a round in which other programs were busy is repeated.
`--scan` tries batch sizes instead.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import multiprocessing
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import nn

import corpus as text
from peers import BASE, SMALL, MarianStep, Size, TorchStep

WIDTHS = (16, 24, 32, 40, 48, 64, 80, 96, 128)  # static shapes for the compiled peers


@dataclass(frozen=True)
class Setting:
    """How one contestant runs."""

    name: str
    model: str  # sightline, marian or torch
    tokens: int  # tokens a side of a batch
    device: str = "cpu"
    precision: str = "float32"
    compile: str = "no"  # no, dynamic or static
    keep_memory: bool = False  # tell malloc not to give freed memory back, which saves page faults
    small: bool = False  # smallest sizes, to try the benchmark itself


def sizes(setting: Setting) -> Size:
    """The Transformer's sizes on this device."""
    if setting.small:
        return Size(layers=1, width=32, feedforward=64, heads=2, vocabulary=SMALL.vocabulary)
    return BASE if setting.device == "cuda" else SMALL


def load_corpus(setting: Setting) -> text.Corpus:
    """The corpus of this device."""
    name, vocabulary = ("europarl-de-en", BASE.vocabulary) if setting.device == "cuda" else ("multi30k", 8_000)
    return text.load(name, "de", "en", SMALL.vocabulary if setting.small else vocabulary)


class Contestant:
    """One way to train: `prepare` once, then `step` again and again, each returning its real target tokens."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    def prepare(self, corpus: text.Corpus) -> None:
        raise NotImplementedError

    def step(self) -> int:
        raise NotImplementedError

    def run(self, after_step: Callable[[int], None]) -> None:
        """Train for ever; `after_step` hears of each step's tokens and ends it all by raising."""
        while True:
            after_step(self.step())


class Peer(Contestant):
    """A PyTorch model trained by the loop an expert would write for it."""

    MODELS: dict[str, Callable[..., nn.Module]] = {"marian": MarianStep, "torch": TorchStep}

    def prepare(self, corpus: text.Corpus) -> None:
        setting = self.setting
        torch.manual_seed(1)
        self.corpus = corpus
        self.device = torch.device(setting.device)
        static = setting.compile != "no"
        self.model = self.MODELS[setting.model](sizes(setting), everywhere=static).to(self.device).train()
        self.parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)
        self.loss: Callable[..., torch.Tensor] = self.model
        if static:
            self.loss = torch.compile(self.model, dynamic=setting.compile == "dynamic")
        if setting.device == "cuda":
            torch.set_float32_matmul_precision("high")
        self.batches = self._batches()

    def _batches(self) -> Iterator[text.Batch]:
        setting, cuda = self.setting, self.setting.device == "cuda"
        if setting.compile == "static":
            for rows, width in text.endless(text.buckets(self.corpus, setting.tokens, WIDTHS), seed=1):
                yield text.assemble(self.corpus, rows, width)
        else:
            for rows in text.endless(text.plan(self.corpus, setting.tokens, real=cuda), seed=1):
                yield text.assemble(self.corpus, rows)

    def _move(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.device.type == "cpu":
            return tensor
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def _autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, torch.bfloat16) if self.setting.precision == "bf16" else nullcontext()

    def step(self) -> int:
        batch = next(self.batches)
        source, inputs, labels = (self._move(part) for part in (batch.source, batch.inputs, batch.labels))
        padded = batch.padded or self.setting.compile != "no"
        self.optimizer.zero_grad(set_to_none=True)
        with self._autocast():
            loss = self.loss(source, inputs, labels, padded)
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, 1.0, foreach=True)
        self.optimizer.step()
        return batch.tokens


class Sightline(Contestant):
    """Sightline's own training loop, as `sightline train` runs it, watched through its display."""

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

        def files(part: str) -> dict[str, str]:
            return {"kind": "text", "source": f"{part}.de.xz", "target": f"{part}.en.xz"}

        self.recipe = Recipe.model_validate(
            {
                "data": {
                    "folder": str(text.corpora() / corpus.name),
                    "train": [files("train")],
                    "validation": files("val" if corpus.name == "multi30k" else "valid"),
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
        from sightline.experiment import train

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


# --- the race ------------------------------------------------------------------------------------------------------


class Finished(Exception):
    """The parent has seen enough."""


@dataclass(frozen=True)
class Round:
    """What one contestant did in one turn."""

    tokens: int
    steps: int
    seconds: float
    others: float  # cores that other programs kept busy meanwhile

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def busy_seconds() -> float:
    """Processor seconds all programs have used since the machine started (0 where that cannot be known)."""
    try:
        fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except OSError:
        return 0.0
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def keep_memory() -> None:
    """glibc: serve large tensors from the heap and never give it back, so that a step does not fault its pages anew."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(-4, 0)  # M_MMAP_MAX
        libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD


def work(setting: Setting, threads: int, pipe: Connection) -> None:
    """A contestant's process: waits for its turn, trains for so many seconds, reports, waits again."""
    torch.set_num_threads(threads)
    if setting.keep_memory:
        keep_memory()
    contestant = CONTESTANTS[setting.model](setting)
    contestant.prepare(load_corpus(setting))
    sync = torch.cuda.synchronize if setting.device == "cuda" else lambda: None
    tokens, steps, seconds, started, others = 0, 0, 0.0, 0.0, 0.0

    def wait_for_turn() -> None:
        nonlocal tokens, steps, seconds, started, others
        seconds = pipe.recv()
        if seconds <= 0:
            raise Finished
        others = busy_seconds() - time.process_time()
        tokens, steps, started = 0, 0, time.perf_counter()

    def after_step(count: int) -> None:
        nonlocal tokens, steps
        tokens, steps = tokens + count, steps + 1
        if time.perf_counter() - started < seconds:
            return
        sync()
        took = time.perf_counter() - started
        pipe.send(Round(tokens, steps, took, max(0.0, busy_seconds() - time.process_time() - others) / took))
        wait_for_turn()

    try:
        wait_for_turn()
        contestant.run(after_step)
    except Finished:
        pass
    except BaseException as error:
        pipe.send(error if isinstance(error, Exception) else RuntimeError(repr(error)))
        raise


@dataclass
class Worker:
    """The parent's end of a contestant."""

    setting: Setting
    process: multiprocessing.process.BaseProcess
    pipe: Connection
    rounds: list[Round]

    @staticmethod
    def start(setting: Setting, threads: int) -> Worker:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=work, args=(setting, threads, there), daemon=True)
        process.start()
        there.close()
        return Worker(setting, process, here, [])

    def turn(self, seconds: float) -> Round:
        """Let it train for so long."""
        self.pipe.send(seconds)
        try:
            answer = self.pipe.recv()
        except EOFError:
            raise RuntimeError(f"{self.setting.name} died (exit code {self.process.exitcode})") from None
        if isinstance(answer, Exception):
            raise RuntimeError(f"{self.setting.name}: {answer}") from answer
        return answer

    def stop(self) -> None:
        """Let it go home."""
        try:
            self.pipe.send(0.0)
        except OSError:
            pass
        self.process.join(timeout=20)


def race(settings: list[Setting], options: argparse.Namespace) -> list[Worker]:
    """All contestants in turns; their workers hold the rounds."""
    load_corpus(settings[0])  # tokenized once, before anyone starts
    workers = [Worker.start(setting, options.threads) for setting in settings]
    runners = []
    for worker in workers:
        try:
            first = worker.turn(options.warmup)
            print(f"  ready: {worker.setting.name} ({first.steps} warm-up steps, {first.rate:,.0f} tokens/s)", flush=True)
            runners.append(worker)
        except RuntimeError as error:
            print(f"  out:   {error}", flush=True)
    disturbed = 0
    while len(runners[0].rounds) < options.rounds:
        turns = [worker.turn(options.seconds) for worker in runners]
        rates = "  ".join(f"{worker.setting.name} {turn.rate:,.0f}" for worker, turn in zip(runners, turns, strict=True))
        worst = max(turn.others for turn in turns)
        if worst > options.quiet and disturbed < options.patience:
            disturbed += 1
            print(f"  repeated, others used {worst:.1f} cores: {rates}", flush=True)
            continue
        for worker, turn in zip(runners, turns, strict=True):
            worker.rounds.append(turn)
        print(f"  round {len(runners[0].rounds)}/{options.rounds}: {rates}", flush=True)
    for worker in workers:
        worker.stop()
    return runners


def summarize(workers: list[Worker]) -> list[dict[str, Any]]:
    """For each contestant its speed, and the speed of the first relative to it."""
    rows = []
    for worker in workers:
        rates = [turn.rate for turn in worker.rounds]
        ratios = [ours.rate / theirs.rate for ours, theirs in zip(workers[0].rounds, worker.rounds, strict=True)]
        low, high = (sorted(ratios)[round(share * (len(ratios) - 1))] for share in (0.25, 0.75))
        rows.append(
            {
                "setting": asdict(worker.setting),
                "tokens_per_second": statistics.median(rates),
                "all_tokens_per_second": sum(r.tokens for r in worker.rounds) / sum(r.seconds for r in worker.rounds),
                "first_is_faster": statistics.median(ratios),
                "quartiles": [low, high],
                "tokens_a_step": sum(r.tokens for r in worker.rounds) / sum(r.steps for r in worker.rounds),
                "rounds": [asdict(turn) for turn in worker.rounds],
            }
        )
    return rows


def print_table(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="non-padding target tokens a second, median over the rounds")
    first = rows[0]["setting"]["name"]
    for heading in ("contestant", "batch", "tokens/step", "tokens/s", "best round", f"{first} is", "quartiles"):
        table.add_column(heading, justify="left" if heading == "contestant" else "right")
    for row in rows:
        low, high = row["quartiles"]
        best = max(turn["tokens"] / turn["seconds"] for turn in row["rounds"])
        table.add_row(
            row["setting"]["name"],
            f"{row['setting']['tokens']:,}",
            f"{row['tokens_a_step']:,.0f}",
            f"{row['tokens_per_second']:,.0f}",
            f"{best:,.0f}",
            f"{row['first_is_faster']:.2f}x",
            f"{low:.2f} - {high:.2f}",
        )
    Console(width=120).print(table)


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
]
CUDA = [
    Setting("sightline", "sightline", 25_000, "cuda", "bf16"),
    Setting("marian compiled, dynamic", "marian", 25_000, "cuda", "bf16", compile="dynamic"),
    Setting("torch compiled, dynamic", "torch", 25_000, "cuda", "bf16", compile="dynamic"),
    Setting("marian compiled, static", "marian", 25_000, "cuda", "bf16", compile="static"),
    Setting("torch compiled, static", "torch", 25_000, "cuda", "bf16", compile="static"),
    Setting("marian eager", "marian", 25_000, "cuda", "bf16"),
]


def chosen(options: argparse.Namespace) -> list[Setting]:
    """The settings asked for."""
    from dataclasses import replace

    settings = CUDA if options.device == "cuda" else CPU
    if options.only:
        known = {setting.name: setting for setting in settings}
        names = [name.strip() for name in options.only.split(";")]
        if unknown := [name for name in names if name not in known]:
            raise SystemExit(f"no contestant {unknown[0]!r}; there are: {'; '.join(known)}")
        settings = [known[name] for name in names]
    if options.scan:
        sizes_to_try = [int(size) for size in options.scan.split(",")]
        settings = [
            replace(setting, name=f"{setting.name} {size}", tokens=size) for setting in settings for size in sizes_to_try
        ]
    return [replace(setting, small=options.small) for setting in settings]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", help="names of contestants, separated by ';'; the first is what others are held to")
    parser.add_argument("--scan", help="batch sizes to try for each contestant, e.g. 1024,2048,4096")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=8.0, help="length of one turn")
    parser.add_argument("--warmup", type=float, help="seconds before it counts (by default 5, on CUDA 60)")
    parser.add_argument("--quiet", type=float, default=0.25, help="repeat a round while others use more cores than this")
    parser.add_argument("--patience", type=int, default=10, help="how many rounds may be repeated for that")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try the benchmark itself")
    parser.add_argument("--json", type=Path, help="where to save the result")
    options = parser.parse_args()
    if options.warmup is None:
        options.warmup = 60.0 if options.device == "cuda" else 5.0
    rows = summarize(race(chosen(options), options))
    print_table(rows)
    if options.json:
        machine = {"torch": torch.__version__, "python": platform.python_version(), "threads": options.threads}
        machine["device"] = torch.cuda.get_device_name() if options.device == "cuda" else platform.processor()
        options.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
