"""What taps cost while nobody listens: the same models with and without them.

Without: the methods of its modules are compiled again from their own source, `self.tap(name, tensor, …)` replaced by
`tensor`, `self.heard` by False; nothing of a tap is left to run. Both take turns, call by call, in changing order.
Whatever else a machine does only adds time, so the fastest quarter of the calls of each side is compared: the ratio of
their means, with a 95 % interval by bootstrap over the rounds. On a busy machine that interval is wider than what it
measures, so the taps that a call passes are counted, too, times the seconds that one takes. `--same` has taps on both
sides: what this finds where there is nothing to find.

    python benchmarks/tap_cost.py --json docs/measurements/tap_cost.json
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import platform
import textwrap
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import torch

from sightline.layers.layout import Padded
from sightline.layers.tap import TapModule, listen
from sightline.models.seq2seq import Seq2Seq
from sightline.recipe.model import Model

VOCABULARY = 8_000
_MARKS = ("self.tap(", "self.heard", "self.listened", "self.explicit_tap")


def bodies(layers: int) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Encoder and decoder of each system."""
    lstm = {"kind": "recurrent", "cell": "lstm", "layers": layers}
    transformer = {"kind": "transformer", "layers": layers, "heads": 8}
    convolutional = {"kind": "convolutional", "layers": layers}
    experts = {**transformer, "feedforward": {"experts": {"count": 8, "top": 2, "every": 2}}}
    return {
        "Transformer": (transformer, transformer),
        "LSTM + attention": (lstm, {**lstm, "attention": {"kind": "additive"}}),
        "ConvS2S": (convolutional, convolutional),
        "Transformer + experts": (experts, experts),
    }


# --- without taps ----------------------------------------------------------------------------------------------------


class _Remover(ast.NodeTransformer):
    """`self.tap(name, tensor, …)` → `tensor`; nobody is ever listening."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        return node.args[1] if ast.unparse(node.func) == "self.tap" else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        known = {"self.heard": False, "self.listened": False, "self.explicit_tap": None}
        text = ast.unparse(node)
        return ast.copy_location(ast.Constant(known[text]), node) if text in known else node


def untapped(method: FunctionType, owner: type) -> FunctionType:
    """The same method without taps; `super()` inside it finds its class."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(method)))
    made = ast.parse("def make(__class__):\n    return None")
    (maker,) = made.body
    assert isinstance(maker, ast.FunctionDef)
    (function,) = _Remover().visit(tree).body
    maker.body = [function, *ast.parse(f"def _():\n    return {method.__name__}").body[0].body]  # type: ignore[attr-defined]
    spaces: dict[str, Any] = {}
    exec(
        compile(ast.fix_missing_locations(made), f"<{method.__qualname__} without taps>", "exec"),
        method.__globals__,
        spaces,
    )
    result: FunctionType = spaces["make"](owner)
    return result


@cache
def bare_class(owner: type) -> type:
    """A subclass in which every method with a tap is there without."""
    found: dict[str, Any] = {}
    for base in reversed(owner.__mro__[: owner.__mro__.index(TapModule)]):
        for name, method in vars(base).items():
            if isinstance(method, FunctionType):
                tapped = any(mark in inspect.getsource(method) for mark in _MARKS)
                found[name] = untapped(method, base) if tapped else method
    return type(owner.__name__, (owner,), found)


class Dress:
    """A model's modules, with taps and without: the same tensors, other classes."""

    def __init__(self, model: Any, *, same: bool) -> None:
        modules = [module for module in model.modules() if isinstance(module, TapModule)]
        self.classes = [
            (module, type(module), type(module) if same else bare_class(type(module))) for module in modules
        ]

    def __call__(self, bare: int) -> None:
        for module, *sides in self.classes:
            module.__class__ = sides[bare]


class _Every:
    """The points of a listener that hears every tap the fast kernels pass."""

    def __contains__(self, name: object) -> bool:
        return True


def passed(model: Any, work: Callable[[], None]) -> int:
    """How many taps are passed by some work, as it runs while nobody listens."""
    heard = 0

    def hear(_: Any) -> None:
        nonlocal heard
        heard += 1

    with listen(model, hear, points=_Every()):  # type: ignore[arg-type]
        work()
    return heard


def one_tap(times: int = 20_000) -> float:
    """Seconds that passing a tap takes while nobody listens: the best of ten tries."""
    module, tensor = TapModule(), torch.zeros(1)

    def tries(count: int) -> float:
        start = time.process_time()
        for _ in range(count):
            module.tap("output", tensor, "hidden W₂ᵀ + b₂", ["hidden"])
        return time.process_time() - start

    return min(tries(times) for _ in range(10)) / times


# --- measuring -------------------------------------------------------------------------------------------------------


def works(model: Any, tokens: int, rows: int) -> dict[str, Callable[[], None]]:
    """A forward pass over a batch, a training step, and writing token by token."""
    source, target = (torch.randint(4, VOCABULARY, (rows, tokens)) for _ in range(2))
    layout = Padded.of([tokens] * rows)

    @torch.inference_mode()
    def forward() -> None:
        model.eval()
        model(source, layout, target, layout)

    def training() -> None:
        model.train()
        model.logits(model(source, layout, target, layout)).logsumexp(-1).mean().backward()

    @torch.inference_mode()
    def writing() -> None:
        model.eval()
        state = model.begin(model.encode(source, layout))
        for place in range(12):
            features, state = model.advance(target[:, place : place + 1], state)
            model.logits(features)

    return {"forward": forward, "training step": training, "writing": writing}


def seconds(work: Callable[[], None]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def rounds_of(work: Callable[[], None], dress: Dress, count: int) -> np.ndarray:
    """(R, 2) seconds of one call with taps and one without, the first of a round in turn."""
    found = np.empty((count, 2))
    for number in range(-3, count):  # three to warm up
        for side in (0, 1) if number % 2 else (1, 0):
            dress(side)
            took = seconds(work)
            if number >= 0:
                found[number, side] = took
    dress(0)
    return found


def ratio(found: np.ndarray) -> np.ndarray:
    """Seconds (…, R, 2) → (…): the means of the fastest quarter of each side, one over the other."""
    fastest = np.sort(found, axis=-2)[..., : max(1, found.shape[-2] // 4), :].mean(-2)
    result: np.ndarray = fastest[..., 0] / fastest[..., 1]
    return result


def summary(found: np.ndarray, seed: int = 0) -> dict[str, Any]:
    """The ratio, and how far it may be off."""
    drawn = found[np.random.default_rng(seed).integers(len(found), size=(2_000, len(found)))]
    low, high = np.quantile(ratio(drawn), [0.025, 0.975])
    fastest = np.sort(found, axis=0)[: max(1, len(found) // 4)].mean(0)
    return {"ratio": float(ratio(found)), "low": float(low), "high": float(high), "seconds": fastest.tolist()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--only", nargs="+", help="names of models")
    parser.add_argument("--works", nargs="+", help="forward, training step, writing")
    parser.add_argument("--same", action="store_true", help="with taps on both sides")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    found: dict[str, dict[str, Any]] = {}
    each = one_tap()
    print(f"a tap that nobody hears: {each * 1e9:.0f} ns")
    print(f"{'model':22} {'work':14} {'with / without (95 %)':28} taps  taps × time of one, of the call")
    for name, (encoder, decoder) in bodies(options.layers).items():
        if options.only and name not in options.only:
            continue
        section = {"width": options.width, "tie": "none", "encoder": encoder, "decoder": decoder}
        model = Seq2Seq(Model.model_validate(section), VOCABULARY, VOCABULARY)
        dress = Dress(model, same=options.same)
        for what, work in works(model, options.tokens, options.rows).items():
            if options.works and what not in options.works:
                continue
            count = passed(model, work)
            dress(1)
            assert options.same or passed(model, work) == 0, "there are still taps"
            got = summary(rounds_of(work, dress, options.rounds))
            got |= {"taps": count, "share": count * each / got["seconds"][0]}
            found.setdefault(name, {})[what] = got
            told = f"{got['ratio']:.4f} ({got['low']:.4f} … {got['high']:.4f})"
            print(f"{name:22} {what:14} {told:28} {count:5d} {got['share']:.3%}", flush=True)
    if options.json is not None:
        settings = {key: value for key, value in vars(options).items() if key != "json"}
        about = {"torch": torch.__version__, "machine": platform.processor() or platform.machine(), **settings}
        options.json.write_text(json.dumps({"about": about, "models": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
