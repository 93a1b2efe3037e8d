"""The cost of taps outside a recording: the same models with taps, without, and with every tap repeated.

Without: the methods of all modules are recompiled from their source with `self.tap(name, tensor, …)` replaced by
`tensor` and `self.recorded` by False. Repeated: each tap is replaced by many. Calls are interleaved in changing order.
Other load only adds time, so the fastest quarter of the calls of each variant is compared: the ratio of their means,
with a 95 % interval by bootstrap over the rounds.

A single tap costs less than the noise of the machine, so its cost is estimated from many: (many / without − 1) / times,
with an interval narrower by the same factor. For comparison: the number of taps × the time of one tap in a loop.
`--same` runs three identical variants, as a check of the method.

    python benchmarks/tap_cost.py --json docs/measurements/tap_cost.json
"""

from __future__ import annotations

import argparse
import ast
import inspect
import textwrap
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import torch

from measuring import machine, write_json
from sightline.layers.layout import Padded
from sightline.layers.tap import TapModule, on_taps
from sightline.models.seq2seq import Seq2Seq
from sightline.recipe.model import ModelConfig

VOCABULARY = 8_000
_MARKS = ("self.tap(", "self.recorded", "self.any_recorded", "self.explicit_tap")


def bodies(layers: int) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Encoder and decoder of each system."""
    lstm = {"kind": "recurrent", "cell": "lstm", "layers": layers}
    transformer = {"kind": "transformer", "layers": layers, "heads": 8}
    convolutional = {"kind": "convolutional", "layers": layers}
    experts = {**transformer, "feedforward": {"experts": {"count": 8, "top_k": 2, "every": 2}}}
    return {
        "Transformer": (transformer, transformer),
        "LSTM + attention": (lstm, {**lstm, "attention": {"kind": "additive"}}),
        "ConvS2S": (convolutional, convolutional),
        "Transformer + experts": (experts, experts),
    }


# --- without taps, and with many -------------------------------------------------------------------------------------


class _Times(ast.NodeTransformer):
    """Repeat each tap and each check for a recording; with 0, `tap(name, tensor)` becomes `tensor`."""

    def __init__(self, times: int) -> None:
        self.times = times

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if ast.unparse(node.func) != "self.tap":
            return node
        tensor = node.args[1]
        if not self.times:
            return tensor
        node.args[1] = ast.Name("_tapped", ast.Load())
        return _last([ast.NamedExpr(ast.Name("_tapped", ast.Store()), tensor), *[node] * self.times])

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        known = {"self.recorded": False, "self.any_recorded": False, "self.explicit_tap": None}
        text = ast.unparse(node)
        if text not in known:
            return node
        return _last([node] * self.times) if self.times else ast.Constant(known[text])


def _last(parts: list[ast.expr]) -> ast.expr:
    """`(a, b, c)[-1]`: compute all, use the last."""
    return ast.Subscript(ast.Tuple(parts, ast.Load()), ast.Constant(-1), ast.Load())


def retapped(method: FunctionType, owner: type, times: int) -> FunctionType:
    """The method with its taps repeated; `super()` inside it works."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(method)))
    made = ast.parse("def make(__class__):\n    return None")
    (maker,) = made.body
    assert isinstance(maker, ast.FunctionDef)
    (function,) = _Times(times).visit(tree).body
    maker.body = [function, *ast.parse(f"def _():\n    return {method.__name__}").body[0].body]  # type: ignore[attr-defined]
    spaces: dict[str, Any] = {}
    exec(
        compile(ast.fix_missing_locations(made), f"<{method.__qualname__}, taps × {times}>", "exec"),
        method.__globals__,
        spaces,
    )
    result: FunctionType = spaces["make"](owner)
    return result


@cache
def class_with(owner: type, times: int) -> type:
    """A subclass whose methods have their taps repeated."""
    found: dict[str, Any] = {}
    for base in reversed(owner.__mro__[: owner.__mro__.index(TapModule)]):
        for name, method in vars(base).items():
            if isinstance(method, FunctionType):
                tapped = any(mark in inspect.getsource(method) for mark in _MARKS)
                found[name] = retapped(method, base, times) if tapped else method
    return type(owner.__name__, (owner,), found)


class Variants:
    """Switch the modules of a model between taps (0), no taps (1) and repeated taps (2); the tensors stay the same."""

    def __init__(self, model: Any, times: int, *, same: bool) -> None:
        self.classes = [
            (module, *(type(module) if same else class_with(type(module), count) for count in (1, 0, times)))
            for module in model.modules()
            if isinstance(module, TapModule)
        ]

    def __call__(self, side: int) -> None:
        for module, *sides in self.classes:
            module.__class__ = sides[side]


class _Every:
    """Matches every tap."""

    def __contains__(self, name: object) -> bool:
        return True


def passed(model: Any, work: Callable[[], None]) -> int:
    """The number of taps called by some work."""
    count = 0

    def on_tap(_: Any) -> None:
        nonlocal count
        count += 1

    with on_taps(model, on_tap, points=_Every()):  # type: ignore[arg-type]
        work()
    return count


def check_sides(model: Any, work: Callable[[], None], variants: Variants, times: int, *, same: bool) -> int:
    """Check the number of taps of all three variants, and return that of the first."""
    counts = []
    for side in (0, 1, 2):
        variants(side)
        counts.append(passed(model, work))
    expected = [counts[0], counts[0] if same else 0, counts[0] * times]
    assert counts == expected, f"{counts} taps in the three variants, not {expected}"
    variants(0)
    return counts[0]


def one_tap(times: int = 20_000) -> float:
    """Seconds of one tap outside a recording: the best of ten attempts."""
    module, tensor = TapModule(), torch.zeros(1)

    def tries(count: int) -> float:
        start = time.process_time()
        for _ in range(count):
            module.tap("output", tensor, "hidden W₂ᵀ + b₂", ["hidden"])
        return time.process_time() - start

    return min(tries(times) for _ in range(10)) / times


# --- measuring -------------------------------------------------------------------------------------------------------


def works(model: Any, tokens: int, rows: int) -> dict[str, Callable[[], None]]:
    """A forward pass over a batch, a training step, and decoding token by token."""
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


def rounds_of(work: Callable[[], None], variants: Variants, count: int) -> np.ndarray:
    """(R, 3) seconds of a call of each variant; the order changes every round."""
    found = np.empty((count, 3))
    for number in range(-3, count):  # three rounds of warm-up
        for side in np.roll([0, 1, 2], number):
            variants(side)
            took = seconds(work)
            if number >= 0:
                found[number, side] = took
    variants(0)
    return found


def fastest(found: np.ndarray) -> np.ndarray:
    """Seconds (…, R, 3) → (…, 3): the mean of the fastest quarter of each side."""
    result: np.ndarray = np.sort(found, axis=-2)[..., : max(1, found.shape[-2] // 4), :].mean(-2)
    return result


def summary(found: np.ndarray, times: int, seed: int = 0) -> dict[str, Any]:
    """The ratio of taps to no taps and the cost estimated from many, each with its interval."""
    drawn = found[np.random.default_rng(seed).integers(len(found), size=(2_000, len(found)))]
    sides = np.concatenate([fastest(found)[None], fastest(drawn)])  # (1 + draws, 3)
    once, many = sides[:, 0] / sides[:, 1], (sides[:, 2] / sides[:, 1] - 1) / times
    result: dict[str, Any] = {"seconds": sides[0].tolist()}
    for name, values in {"ratio": once, "cost": many}.items():
        low, high = np.quantile(values[1:], [0.025, 0.975])
        result[name] = {"value": float(values[0]), "low": float(low), "high": float(high)}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--times", type=int, default=40, help="repetitions of each tap in the third variant")
    parser.add_argument("--only", nargs="+", help="names of models")
    parser.add_argument("--works", nargs="+", help="forward, training step, writing")
    parser.add_argument("--same", action="store_true", help="use the same taps in all variants")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    found: dict[str, dict[str, Any]] = {}
    each = one_tap()
    print(f"one tap outside a recording: {each * 1e9:.0f} ns")
    print(f"{'model':22} {'work':14} {'with / without (95 %)':28} {'cost by many (95 %)':28} taps  taps × time of one")
    for name, (encoder, decoder) in bodies(options.layers).items():
        if options.only and name not in options.only:
            continue
        section = {"width": options.width, "tie": "none", "encoder": encoder, "decoder": decoder}
        model = Seq2Seq(ModelConfig.model_validate(section), VOCABULARY, VOCABULARY)
        variants = Variants(model, options.times, same=options.same)
        for what, work in works(model, options.tokens, options.rows).items():
            if options.works and what not in options.works:
                continue
            count = check_sides(model, work, variants, 1 if options.same else options.times, same=options.same)
            got = summary(rounds_of(work, variants, options.rounds), options.times)
            got |= {"taps": count, "share": count * each / got["seconds"][1]}
            found.setdefault(name, {})[what] = got
            ratio, cost = got["ratio"], got["cost"]
            first = f"{ratio['value']:.4f} ({ratio['low']:.4f} … {ratio['high']:.4f})"
            second = f"{cost['value']:.3%} ({cost['low']:.3%} … {cost['high']:.3%})"
            print(f"{name:22} {what:14} {first:28} {second:28} {count:5d} {got['share']:.3%}", flush=True)
            write_found(options, found)  # after every row, so that results survive an interruption


def write_found(options: argparse.Namespace, found: dict[str, dict[str, Any]]) -> None:
    settings = {key: value for key, value in vars(options).items() if key != "json"}
    write_json(options.json, {"about": machine() | settings, "models": found})


if __name__ == "__main__":
    main()
