"""Long sequences in one body (Transformer-D): sources of any length taken in at once, then written on step by step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from random_beams import joined_at_random
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sightline.layers.layout import Packed, Padded
from sightline.layers.tap import on_taps
from sightline.models.language_model import DecoderOnly
from sightline.models.transformer.compressed_kv_cache import CompressedKVCache
from sightline.models.transformer.kv_cache import LocalKVCache
from sightline.recipe.model import ModelConfig

WIDTH, CLOSE = 8, {"rtol": 0.0, "atol": 1e-5}  # features of order one, float32, up to five layers deep
LOCAL, COMPRESSED = {"kind": "local", "block": 4}, {"kind": "compressed"}
SPANS: dict[str, list[dict[str, Any]]] = {
    "full": [{"kind": "full"}],
    "local": [LOCAL],
    "look-back": [LOCAL | {"look_back": 1}],
    "compressed": [COMPRESSED],
    "overlapping": [COMPRESSED | {"kernel": 4, "stride": 2}],
    "dmca": [LOCAL, COMPRESSED],
}
LENGTHS = [17, 3, 1, 8, 12]  # some at the edge of a block, some at that of a stride


def build(spans: list[Any], positions: str = "sinusoidal", layers: int = 2, **feedforward: Any) -> DecoderOnly:
    torch.manual_seed(3)
    decoder = {"kind": "transformer", "layers": layers, "heads": 2, "positions": {"kind": positions}}
    section = decoder | {"attention": {"pattern": spans}, "feedforward": {"width": 12, **feedforward}, "dropout": 0.0}
    return DecoderOnly(ModelConfig.model_validate({"width": WIDTH, "decoder": section}), 13).eval()


def sources(lengths: list[int] = LENGTHS) -> tuple[list[list[int]], Tensor, Padded]:
    rows = [torch.randint(4, 13, (length,)).tolist() for length in lengths]
    padded = [row + [0] * (max(lengths) - len(row)) for row in rows]
    return rows, torch.tensor(padded), Padded.of(lengths)


def at_once(model: DecoderOnly, row: list[int]) -> Tensor:
    """(T, D) features of a whole sequence alone."""
    return model(None, None, torch.tensor(row), Packed.of([len(row)]))


@torch.no_grad()
@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
@pytest.mark.parametrize("name", SPANS)
def test_hypotheses_are_independent_for_sources_of_any_length(name: str, positions: str) -> None:
    model = build(SPANS[name], positions, layers=3)
    rows, tokens, layout = sources()
    state = model.begin(model.encode(tokens, layout))
    histories = [[row] for row in rows]
    generator = torch.Generator().manual_seed(1)
    for step, width in enumerate([1, 1, 3, 2, 3, 3, 2, 2, 3, 1, 1, 1]):
        parents = torch.randint(0, len(histories[0]), (len(histories), width), generator=generator)
        words = torch.randint(4, 13, (len(histories), width), generator=generator)
        state = state.select(parents)
        histories = [
            [[*beam[parent], word] for parent, word in zip(chosen, new, strict=True)]
            for beam, chosen, new in zip(histories, parents.tolist(), words.tolist(), strict=True)
        ]
        features, state = model.advance(words.reshape(-1, 1), state)
        expected = torch.stack([at_once(model, past)[-1] for beam in histories for past in beam])
        torch.testing.assert_close(features[:, 0], expected, **CLOSE)
        if step == 5:
            kept = [4, 1, 0]
            state, histories = state.keep(torch.tensor(kept)), [histories[row] for row in kept]


@torch.no_grad()
@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "learned"])
@pytest.mark.parametrize("name", SPANS)
def test_a_sentence_that_joins_a_running_batch_continues_as_if_alone(name: str, positions: str) -> None:
    model = build(SPANS[name], positions, layers=3)
    rows, _, _ = sources([6, 3, 9])

    def begin(numbers: list[int]) -> Any:
        chosen = [rows[number] for number in numbers]
        longest = max(map(len, chosen))
        padded = torch.tensor([row + [0] * (longest - len(row)) for row in chosen])
        return model.begin(model.encode(padded, Padded.of([len(row) for row in chosen])))

    for features, number, past in joined_at_random(model.advance, begin):
        torch.testing.assert_close(features, at_once(model, rows[number] + past)[-1], **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("name", SPANS)
def test_several_tokens_can_be_appended_for_sources_of_any_length(name: str) -> None:
    model = build(SPANS[name])
    rows, tokens, layout = sources()
    state, result, words = model.begin(model.encode(tokens, layout)), [], torch.randint(4, 13, (len(rows), 7))
    for part in words.split([2, 1, 4], dim=1):
        features, state = model.advance(part, state)
        result.append(features)
    for features, row, more in zip(torch.cat(result, dim=1), rows, words.tolist(), strict=True):
        torch.testing.assert_close(features, at_once(model, row + more)[-7:], **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("name", SPANS)
def test_recording_does_not_change_the_results(name: str) -> None:
    model, shown = build(SPANS[name]), []
    _, tokens, layout = sources()

    def run() -> list[Tensor]:
        result = [Packed.of(LENGTHS).unpad(model(None, None, tokens, layout))]
        state = model.begin(model.encode(tokens, layout))
        for word in (5, 6, 7):
            features, state = model.advance(torch.full((len(LENGTHS), 1), word), state)
            result.append(features)
        return result

    plain = run()
    with on_taps(model, lambda tapped: shown.append(tapped.name)):
        recorded = run()
    for one, other in zip(plain, recorded, strict=True):
        torch.testing.assert_close(other, one, **CLOSE)
    assert "decoder.layers.0.attention.weights" in shown


@torch.no_grad()
def test_caches_keep_visible_keys_and_one_key_per_stride() -> None:
    model = build(SPANS["dmca"])
    tokens = torch.randint(4, 13, (2, 60))
    state = model.begin(model.encode(tokens, Padded.of([60, 60])))
    for _ in range(60):
        _, state = model.advance(tokens[:, :1], state)
    local, compressed = (cache.self_attention for cache in state.kv_cache)
    assert isinstance(local, LocalKVCache) and isinstance(compressed, CompressedKVCache)
    assert local.buffers is not None and compressed.buffers is not None
    assert local.buffers.keys.shape[2] <= 16  # of 120 tokens: a block of 4, and room to grow
    assert compressed.count == 120 // 3


def test_experts_stand_inside_and_every_parameter_learns() -> None:
    model = build(SPANS["dmca"], layers=4, experts={"count": 3, "top_k": 1, "every": 2, "noise": False, "load": 0})
    _, tokens, layout = sources()
    packed = Packed.of(LENGTHS)
    features = model.train()(None, None, packed.unpad(tokens), packed)
    logits = model.logits(features)
    loss = torch.nn.functional.cross_entropy(logits, torch.arange(len(logits)) % 13)
    names = [name for name, _ in model.named_parameters()]
    gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    silent = [
        name for name, result in zip(names, gradients, strict=True) if result is None or not result.abs().max() > 0
    ]
    # a token's only expert has weight 1 whatever its score, so the gates learn from the balance alone
    assert [name for name in silent if not name.endswith("feedforward.gate")] == []
    assert isinstance(layout, Padded)


@torch.no_grad()
@pytest.mark.parametrize("name", ["full", "local", "dmca"])
def test_a_long_source_is_taken_in_without_a_tensor_for_every_pair_of_tokens(name: str) -> None:
    """Of sources of different lengths none needs a mask: each is moved to the left, where no query sees padding."""
    count = 3_000
    model, tokens = build(SPANS[name]), torch.randint(4, 13, (2, count))
    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            result = func(*args, **(kwargs or {}))
            sizes = [part.numel() for part in tree_leaves(result) if isinstance(part, Tensor)]
            largest = max([largest, *sizes])
            return result

    with Watch():
        model.begin(model.encode(tokens, Padded.of([count, count - 7])))
    assert largest < 100 * count  # H·K and the features of every token; its square is 3,000 times as much


def test_spans_take_turns_from_the_bottom_layer_on() -> None:
    model = build(SPANS["dmca"], layers=5)
    kinds = [type(layer.attention.pattern).__name__ for layer in model.decoder.layers]
    assert kinds == ["LocalAttention", "CompressedAttention", "LocalAttention", "CompressedAttention", "LocalAttention"]


@pytest.mark.parametrize(
    ("attention", "positions", "message"),
    [
        (
            {"pattern": [{"kind": "compressed", "kernel": 2}]},
            "none",
            r"pattern.kernel \(2\) is less than pattern.stride \(3\)",
        ),
        (
            {"pattern": [{"kind": "full"}, {"kind": "local"}]},
            "alibi",
            "attention.pattern: local skips most of them",
        ),
        ({"pattern": []}, "none", "at least 1 item"),
    ],
)
def test_incompatible_settings_are_refused(attention: dict[str, Any], positions: str, message: str) -> None:
    body = {"kind": "transformer", "heads": 2, "attention": attention, "positions": {"kind": positions}}
    with pytest.raises(ValueError, match=message):
        ModelConfig.model_validate({"width": WIDTH, "decoder": body})


@pytest.mark.parametrize("spans", SPANS)
def test_taps_record_the_first_tokens_of_each_text(spans: str) -> None:
    """Not in one row of all of them, as they are looked at where nobody listens."""
    model, taps = build(SPANS[spans], layers=1), dict[str, tuple[int, ...]]()
    with torch.no_grad(), on_taps(model, lambda tapped: taps.update({tapped.name: tuple(tapped.tensor.shape)})):
        model.begin(model.encode(*sources([5, 5])[1:]))
    (path,) = {name.rpartition(".")[0] for name in taps if name.endswith("attention.query")}
    assert taps[f"{path}.query"] == (2, 2, 5, WIDTH // 2)
    assert taps[f"{path}.output"] == (2, 5, WIDTH)
