"""Small models of every kind for all tests, and settings for small machines."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from itertools import cycle, product
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

from installed_plugins import forget_plugins, install
from shared_models import own_copy, shared
from sightline.layers.norms import BatchNorm
from sightline.models.seq2seq import Seq2Seq
from sightline.recipe.model import ModelConfig

os.environ.setdefault("OMP_NUM_THREADS", "1")  # also for commands that tests start
torch.set_num_threads(1)  # tensors are tiny, and tests run in parallel
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read where kernels are defined, so before any is imported
os.environ["XDG_DATA_HOME"] = os.path.join(os.sep, "nonexistent")  # tests ignore the corpora of the user
settings.register_profile("here", deadline=None, derandomize=True)
settings.load_profile("here")

VOCABULARY = 13  # the four specials and nine words
WIDTH = 8

PLACES, NORMS = ("pre", "post"), ("layer", "rms")
POSITIONS, FEEDFORWARDS = ("sinusoidal", "learned", "rotary", "none"), ("relu", "gelu", "swiglu")
FARTHEST = {"t5": {"buckets": 8, "max_distance": 5}, "shaw": {"max_distance": 2}}  # so near that the tests go past it
CELLS = ("elman", "gru", "lstm")
SCORES = ("dot", "scaled-dot", "bilinear", "additive", "linear", "unnormalized")


def transformer(place: str, norm: str, positions: str, feedforward: str, layers: int = 2) -> dict[str, Any]:
    return {
        "kind": "transformer",
        "layers": layers,
        "heads": 2,
        "norm": {"kind": norm, "place": place},
        "positions": {"kind": positions, "max_positions": 32, **FARTHEST.get(positions, {})},
        "feedforward": {"kind": feedforward} | ({} if feedforward == "none" else {"width": 12}),
        "dropout": 0.0,
    }


def recurrent_encoder(cell: str, layers: int, bidirectional: bool) -> dict[str, Any]:
    return {"kind": "recurrent", "cell": cell, "layers": layers, "bidirectional": bidirectional, "dropout": 0.0}


def recurrent_decoder(cell: str, layers: int, attention: str, input_feeding: bool) -> dict[str, Any]:
    return {
        "kind": "recurrent",
        "cell": cell,
        "layers": layers,
        "attention": {"kind": attention},
        "input_feeding": input_feeding,
        "dropout": 0.0,
    }


def convolutional(layers: int, kernel: int, positions: str = "learned", channels: int | None = None) -> dict[str, Any]:
    return {
        "kind": "convolutional",
        "layers": layers,
        "channels": channels,
        "kernel": kernel,
        "positions": {"kind": positions, "max_positions": 32},
        "dropout": 0.0,
    }


def bytenet(layers: int, kernel: int, *dilations: int) -> dict[str, Any]:
    return {"kind": "bytenet", "layers": layers, "kernel": kernel, "dilations": dilations, "dropout": 0.0}


def window(size: int, layers: int) -> dict[str, Any]:
    return {"kind": "window", "size": size, "layers": layers, "dropout": 0.0}


def embedding(positions: str, **options: Any) -> dict[str, Any]:
    return {"kind": "embedding", "positions": {"kind": positions, **options}, "dropout": 0.0}


_OPTIONS = ("directions", "attention_from", "query", "readout", "init_hidden", "activation", "merge", "width")


def _name(body: dict[str, Any]) -> str:
    if body["kind"] == "embedding":
        return "-".join(["embedding", *map(str, body["positions"].values())])
    if body["kind"] == "window":
        return f"window{body['layers']}-{body['size']}"
    if body["kind"] in ("convolutional", "bytenet"):
        wide = f"-{body['channels']}" if body.get("channels") else ""
        return f"{body['kind']}{body['layers']}-{body['kernel']}{wide}"
    if body["kind"] == "transformer":
        parts = [body["norm"]["place"], body["norm"]["kind"], body["positions"]["kind"], body["feedforward"]["kind"]]
        options = [
            *(["beside"] if "combine" in body["positions"] else []),
            *(["unprojected"] if "project" in body["positions"] else []),
            *([f"gain-{body['norm']['gain']}".lower()] if "gain" in body["norm"] else []),
            *(["unconnected"] if "residual" in body else []),
            *(key for key in ("bias", "output_projection") if key in body.get("attention", {})),
            *([str(body["width"])] if "width" in body else []),
            *(span["kind"] for span in body.get("attention", {}).get("pattern", ())),
        ]
        return "-".join([*parts, *options])
    parts = [body["cell"] + str(body["layers"])]
    deep = [str(body[key]) for key in _OPTIONS if key in body]
    if "attention" in body:
        return "-".join([*parts, body["attention"]["kind"], *(["fed"] if body["input_feeding"] else []), *deep])
    return "-".join([*parts, "bi" if body["bidirectional"] else "uni", *deep])


TRANSFORMERS = [
    transformer(*parts, layers=1 + number % 2)
    for number, parts in enumerate(product(PLACES, NORMS, POSITIONS, FEEDFORWARDS))
]
LATER_TRANSFORMERS = [  # parts that came later, each where it might break: the full product would take minutes
    transformer("pre", "layer", "alibi", "relu"),
    transformer("post", "rms", "alibi", "swiglu"),
    transformer("pre", "rms", "t5", "gelu"),
    transformer("post", "layer", "t5", "relu"),
    transformer("pre", "layer", "shaw", "swiglu"),
    transformer("post", "rms", "shaw", "relu"),
    transformer("none", "layer", "shaw", "relu"),
    transformer("none", "layer", "sinusoidal", "gelu"),
    transformer("pre", "batch", "rotary", "relu"),
    transformer("post", "batch", "t5", "relu"),
    transformer("post", "layer", "learned", "relu") | {"norm": {"place": "post", "kind": "layer", "gain": False}},
    transformer("pre", "layer", "sinusoidal", "relu")
    | {"norm": {"kind": "layer", "place": "pre", "gain": False, "bias": False}},
    transformer("pre", "layer", "sinusoidal", "relu")
    | {"positions": {"kind": "sinusoidal", "combine": "concatenate", "width": 4}},
    transformer("post", "layer", "learned", "relu")
    | {"positions": {"kind": "learned", "combine": "concatenate", "max_positions": 32}},
]
LOCAL, COMPRESSED = {"kind": "local", "block": 2}, {"kind": "compressed"}  # so short that the tests have several


def spanned(body: dict[str, Any], *spans: dict[str, Any], **attention: Any) -> dict[str, Any]:
    """A Transformer whose layers see with these spans, in turns."""
    return body | {"attention": {"pattern": spans, **attention}}


LATER_TRANSFORMERS += [
    spanned(transformer("pre", "layer", "sinusoidal", "relu"), LOCAL),
    spanned(transformer("post", "layer", "rotary", "gelu"), LOCAL | {"look_back": 1}),
    spanned(transformer("pre", "rms", "learned", "relu"), COMPRESSED),
    spanned(transformer("pre", "batch", "rotary", "relu"), COMPRESSED | {"stride": 2}, kv_heads=1),
    spanned(transformer("post", "rms", "none", "swiglu"), COMPRESSED, {"kind": "full"}, kind="unnormalized"),
    spanned(transformer("pre", "layer", "sinusoidal", "relu", layers=5), LOCAL, COMPRESSED),
    spanned(
        transformer("pre", "layer", "rotary", "relu", layers=3), LOCAL | {"block": 3}, COMPRESSED, projections=False
    ),
]


def without(body: dict[str, Any], *names: str, **changes: Any) -> dict[str, Any]:
    """A Transformer without these parts of its attention, and with other keys changed."""
    return body | {"attention": dict.fromkeys(names, False)} | changes


BESIDE = {"combine": "concatenate", "width": 4, "project": False, "max_positions": 32}
SWITCHED = [  # the parts of the block that the lectures leave out or write otherwise
    without(transformer("post", "layer", "sinusoidal", "tanh"), "bias"),
    without(transformer("pre", "rms", "rotary", "none"), "bias", "output_projection"),
    without(transformer("none", "layer", "learned", "none"), "output_projection", residual=False),
    without(transformer("post", "layer", "sinusoidal", "relu"), residual=False)
    | {"norm": {"kind": "layer", "place": "post", "gain": "scalar"}},
    without(transformer("pre", "batch", "t5", "tanh"))
    | {"norm": {"kind": "batch", "place": "pre", "gain": "scalar", "bias": False}},
    transformer("pre", "layer", "sinusoidal", "relu") | {"positions": {"kind": "sinusoidal", **BESIDE}},
    transformer("post", "rms", "learned", "none") | {"positions": {"kind": "learned", **BESIDE}},
]
UNEQUAL = [  # encoders and decoders of different widths
    (TRANSFORMERS[0] | {"width": 12}, without(TRANSFORMERS[5], "bias") | {"width": 6}),
    (TRANSFORMERS[2] | {"width": 4}, spanned(TRANSFORMERS[8], {"kind": "full"}, kv_heads=1)),
]
RECURRENT_ENCODERS = [recurrent_encoder(*parts) for parts in product(CELLS, (1, 2), (True, False))]
RECURRENT_DECODERS = [
    recurrent_decoder(cell, layers, attention, feeding)
    for cell, layers in product(CELLS, (1, 2))
    for attention, feeding in [("none", False), *product(SCORES, (False, True))]
]
DEEP = [  # stacks with links; residual ones begin at the third layer
    (
        recurrent_encoder("lstm", 4, True) | {"directions": "bottom", "skip_connections": "residual"},
        recurrent_decoder("lstm", 4, "additive", feeding)
        | {"attention_from": "bottom", "skip_connections": "residual"},
    )
    for feeding in (True, False)
]
DEEP += [
    (
        recurrent_encoder("lstm", 3, True) | {"directions": "alternating", "skip_connections": "fast-forward"},
        recurrent_decoder("lstm", 3, "additive", True)
        | {"attention_from": "bottom", "skip_connections": "fast-forward"},
    ),
    (
        recurrent_encoder("gru", 2, True) | {"directions": "alternating"},
        recurrent_decoder("gru", 2, "dot", True) | {"skip_connections": "fast-forward"},
    ),
    (
        recurrent_encoder("elman", 3, False) | {"skip_connections": "residual"},
        recurrent_decoder("elman", 3, "none", False) | {"skip_connections": "residual"},
    ),
    (
        recurrent_encoder("gru", 1, True) | {"directions": "bottom", "skip_connections": "fast-forward"},
        recurrent_decoder("gru", 1, "bilinear", True) | {"attention_from": "bottom"},
    ),
]

LITERAL = [  # the forms of the textbooks beside the modern ones
    (
        recurrent_encoder("gru", 2, True) | {"bias": False},
        recurrent_decoder("gru", 2, "additive", False) | {"query": "previous", "init_hidden": "last"},
    ),
    (
        recurrent_encoder("lstm", 1, True) | {"merge": "sum", "width": 6},
        recurrent_decoder("lstm", 2, "bilinear", False) | {"query": "previous", "readout": "concatenate"},
    ),
    (
        recurrent_encoder("lstm", 3, True) | {"merge": "mean"},
        recurrent_decoder("lstm", 2, "dot", True) | {"init_hidden": "last", "readout": "concatenate"},
    ),
    (
        recurrent_encoder("elman", 2, True) | {"activation": "relu", "bias": False},
        recurrent_decoder("elman", 1, "linear", False) | {"activation": "sigmoid", "init_hidden": "learned"},
    ),
    (
        recurrent_encoder("elman", 2, True) | {"activation": "sigmoid", "width": 10},
        recurrent_decoder("elman", 2, "additive", True)
        | {"activation": "sigmoid", "bias": False, "init_hidden": "zero", "attention_from": "bottom"},
    ),
    (TRANSFORMERS[0] | {"width": 12}, recurrent_decoder("gru", 2, "additive", False) | {"init_hidden": "zero"}),
]
CONVOLUTIONAL = [
    (convolutional(2, 3), convolutional(2, 3)),
    (convolutional(1, 5, "none"), convolutional(3, 2, "none")),
    (convolutional(1, 1), convolutional(1, 1)),
    (convolutional(2, 3, channels=12), convolutional(2, 3, channels=20)),
    (TRANSFORMERS[0], convolutional(2, 4, channels=12)),
    (convolutional(1, 3, channels=6), RECURRENT_DECODERS[7]),
    (TRANSFORMERS[0], convolutional(2, 4)),
    (RECURRENT_ENCODERS[0], convolutional(1, 3)),
    (convolutional(2, 3), TRANSFORMERS[0]),
    (convolutional(2, 3), RECURRENT_DECODERS[7]),
    (bytenet(3, 3, 1, 2), bytenet(3, 3, 1, 2)),
    (bytenet(2, 5, 1, 4), bytenet(2, 2, 4, 1)),
    (convolutional(1, 3), bytenet(2, 3, 1, 2)),
    (TRANSFORMERS[0], bytenet(2, 3, 2)),
    (RECURRENT_ENCODERS[1], bytenet(1, 3, 1)),
    (bytenet(2, 3, 1, 2), TRANSFORMERS[5]),
    (bytenet(2, 3, 1, 2), convolutional(2, 3)),
    (bytenet(1, 1, 1), RECURRENT_DECODERS[2]),
]
WINDOWS = [
    (window(1, 1), window(3, 2)),
    (RECURRENT_ENCODERS[2], window(1, 1)),
    (window(2, 2), RECURRENT_DECODERS[7]),
]
EMBEDDINGS = [
    (embedding("none"), recurrent_decoder("lstm", 1, "dot", False)),
    (embedding("sinusoidal"), recurrent_decoder("gru", 2, "additive", True)),
    (embedding("learned", max_positions=32), TRANSFORMERS[5]),
    (embedding("sinusoidal", **{key: value for key, value in BESIDE.items() if key != "max_positions"}), window(2, 1)),
]


def _combinations() -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Every encoder and every decoder, each Transformer and recurrent one before or after both kinds of the other.

    A decoder knows of its encoder no more than the memory, so the full product would show nothing new.
    """
    pairs = [(body, body) for body in TRANSFORMERS + LATER_TRANSFORMERS + SWITCHED]
    pairs += list(zip(RECURRENT_ENCODERS, TRANSFORMERS[::4], strict=True))
    encoders = cycle([*RECURRENT_ENCODERS, *TRANSFORMERS[::7], *TRANSFORMERS[3::7]])  # 26 and 66 share no pattern
    pairs += [(next(encoders), body) for body in RECURRENT_DECODERS]
    pairs += CONVOLUTIONAL + WINDOWS + EMBEDDINGS
    pairs += DEEP + LITERAL + UNEQUAL
    pairs += [(recurrent_encoder("gru", 1, False) | {"width": 6}, TRANSFORMERS[1])]
    return {f"{_name(encoder)}:{_name(decoder)}": (encoder, decoder) for encoder, decoder in pairs}


COMBINATIONS = _combinations()
FEW = {
    "transformer": (transformer("pre", "layer", "sinusoidal", "relu"),) * 2,
    "rotary-swiglu-rms-post": (transformer("post", "rms", "rotary", "swiglu"),) * 2,
    "shaw-to-t5": (transformer("pre", "layer", "shaw", "relu"), transformer("pre", "batch", "t5", "relu")),
    "local-compressed": (spanned(transformer("pre", "layer", "rotary", "relu", layers=3), LOCAL, COMPRESSED),) * 2,
    "alibi-to-shaw": (transformer("none", "layer", "alibi", "relu"), transformer("post", "rms", "shaw", "gelu")),
    "lstm-additive": (recurrent_encoder("lstm", 1, True), recurrent_decoder("lstm", 1, "additive", False)),
    "gru-bottleneck": (recurrent_encoder("gru", 1, False), recurrent_decoder("gru", 2, "none", False)),
    "deep-residual-lstm": DEEP[0],
    "deep-fast-forward-lstm": DEEP[2],
    "transformer-to-fed-lstm": (TRANSFORMERS[0], recurrent_decoder("lstm", 2, "bilinear", True)),
    "convolutional": (convolutional(2, 3), convolutional(2, 3)),
    "wider-convolutional": (convolutional(2, 3, channels=12), convolutional(2, 3, channels=20)),
    "bytenet": (bytenet(3, 3, 1, 2), bytenet(3, 3, 1, 2)),
}


def model_recipe(encoder: dict[str, Any], decoder: dict[str, Any], tie: str = "none") -> ModelConfig:
    return ModelConfig.model_validate({"width": WIDTH, "encoder": encoder, "decoder": decoder, "tie": tie})


def build(encoder: dict[str, Any], decoder: dict[str, Any], *, tie: str = "none", seed: int = 0) -> Seq2Seq:
    """A model with random weights, none of them at a special value (biases are zero and gains one at the start)."""
    torch.manual_seed(seed)
    model = Seq2Seq(model_recipe(encoder, decoder, tie), VOCABULARY, VOCABULARY).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.3 * torch.randn_like(parameter)
        for module in model.modules():
            if isinstance(module, BatchNorm):
                module.mean.normal_(std=0.3)
                module.variance.uniform_(0.5, 2.0)
    return model


@cache
def _cached(name: str) -> Seq2Seq:
    """A model of COMBINATIONS or FEW, built once; it refuses to be moved."""
    return shared(build(*({**COMBINATIONS, **FEW}[name])))


@pytest.fixture(params=list(COMBINATIONS))
def any_model(request: pytest.FixtureRequest) -> Seq2Seq:
    """A model of every combination of bodies, in evaluation mode; a copy for each test."""
    return own_copy(_cached(request.param))


@pytest.fixture(params=list(COMBINATIONS))
def any_recipe(request: pytest.FixtureRequest) -> ModelConfig:
    """The recipe of every combination of bodies."""
    return model_recipe(*COMBINATIONS[request.param])


@pytest.fixture(params=list(FEW))
def model(request: pytest.FixtureRequest) -> Seq2Seq:
    """One model of each family, in evaluation mode; a copy for each test."""
    return own_copy(_cached(request.param))


def _looks(decoder: dict[str, Any]) -> bool:
    return decoder["kind"] != "bytenet" and decoder.get("attention") != {"kind": "none"}


@pytest.fixture(params=[name for name, (_, decoder) in FEW.items() if _looks(decoder)])
def looking_model(request: pytest.FixtureRequest) -> Seq2Seq:
    """Those of `model` that look at the source."""
    return own_copy(_cached(request.param))


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The example plug-in, installed."""
    forget_plugins(monkeypatch)
    (tmp_path / "site").mkdir()
    install(tmp_path / "site", "example-plugin", "example_plugin", monkeypatch)
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "plugins"))
    yield
    forget_plugins(monkeypatch)


@pytest.fixture
def build_model() -> Callable[..., Seq2Seq]:
    """`build`, for tests that want a model of their own."""
    return build


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    """Every test draws the same numbers whatever ran before it, and leaves no gradient mode behind."""
    torch.manual_seed(0)
    yield
    assert torch.is_grad_enabled()


@pytest.fixture
def cuda() -> torch.device:
    """The CUDA device; without one the test is skipped. Tests that ask for it are marked `cuda`."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return torch.device("cuda")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On a CUDA device `-m cuda` chooses the tests of our kernels, too."""
    for item in items:
        if torch.cuda.is_available() and item.get_closest_marker("kernels"):
            item.add_marker("cuda")


@pytest.fixture
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """Where our Triton kernels run: the CUDA device or, without one, the CPU, where Triton interprets them.

    Tests that ask for it are marked `kernels`, and those of their parameters that are for a device alone `cuda`, too:
    PyTorch's kernels, what the interpreter cannot do, and what would take it long and tell nothing new.
    """
    if torch.cuda.is_available() or request.node.get_closest_marker("cuda"):
        yield request.getfixturevalue("cuda")
        return
    if find_spec("triton") is None:
        pytest.skip("no CUDA device, and no Triton to interpret our kernels; pip install triton")
    monkeypatch.setattr("sightline.layers.kernels.DEVICE", "cpu")
    monkeypatch.setattr("sightline.layers.kernels.TRITON", True)  # a compiler is not needed
    torch.use_deterministic_algorithms(True)  # new memory is full of NaN: what a kernel leaves unwritten is seen
    yield torch.device("cpu")
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def half(kernels: torch.device) -> torch.dtype:
    """For kernels that multiply matrices: of bfloat16 Triton's interpreter (3.9) multiplies the bits, as integers."""
    return torch.bfloat16 if kernels.type == "cuda" else torch.float16
