"""Our Transformer layers are torch.nn's with the same weights; without positions they are blind to order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sightline.layers.attention import causal_mask
from sightline.layers.layout import Packed, Padded
from sightline.layers.multi_head import MultiHeadAttention
from sightline.layers.positions import Buckets, RelativeKeys
from sightline.layers.tap import Tapped, on_taps
from sightline.models.protocol import Memory
from sightline.models.seq2seq import Seq2Seq
from sightline.models.transformer.config import HeadAttentionConfig, TransformerConfig
from sightline.models.transformer.kv_cache import StepContext
from sightline.models.transformer.modules import (
    DecoderLayer,
    EncoderLayer,
    TransformerDecoder,
    TransformerEncoder,
)

WIDTH, HEADS, INNER = 8, 2, 12
SIXTY_FOUR = {"rtol": 0.0, "atol": 1e-12}  # float64, two layers of sums of a dozen products of numbers near one
PLACES = {"pre": True, "post": False}


VARIANTS: dict[str, dict[str, Any]] = {
    "unscaled": {"kind": "dot"},
    "bare": {"projections": False},
    "bare-unscaled": {"kind": "dot", "projections": False},
    "linear": {"kind": "unnormalized"},
    "bare-linear": {"kind": "unnormalized-dot", "projections": False},
    "multi-query": {"kv_heads": 1},
    "linear-multi-query": {"kind": "unnormalized", "kv_heads": 1},
}


def body(
    place: str, activation: str, *, positions: str = "none", norm: str = "layer", attention: str | None = None
) -> TransformerConfig:
    return TransformerConfig.model_validate(
        {
            "layers": 2,
            "heads": HEADS,
            "feedforward": {"kind": activation, "width": INNER},
            "norm": {"kind": norm, "place": place},
            "positions": {"kind": positions, "max_positions": 16},
            "attention": {} if attention is None else VARIANTS[attention],
            "dropout": 0.0,
        }
    )


def randomized(module: nn.Module) -> nn.Module:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.5)
    return module.double().eval()


def copy(ours: nn.Module, theirs: nn.Module) -> None:
    with torch.no_grad():
        theirs.weight.copy_(ours.weight)
        theirs.bias.copy_(ours.bias)


def copy_attention(ours: MultiHeadAttention, theirs: nn.MultiheadAttention) -> None:
    with torch.no_grad():
        theirs.in_proj_weight.copy_(ours.qkv.weight)
        theirs.in_proj_bias.copy_(ours.qkv.bias)
    copy(ours.output, theirs.out_proj)


def torch_encoder_layer(ours: EncoderLayer, place: str, activation: str) -> nn.TransformerEncoderLayer:
    theirs = nn.TransformerEncoderLayer(
        WIDTH, HEADS, INNER, 0.0, activation, batch_first=True, norm_first=PLACES[place], dtype=torch.float64
    ).eval()
    copy_attention(ours.attention, theirs.self_attn)
    copy(ours.feedforward.up, theirs.linear1)
    copy(ours.feedforward.down, theirs.linear2)
    copy(ours.attention_residual.norm, theirs.norm1)
    copy(ours.feedforward_residual.norm, theirs.norm2)
    return theirs


def torch_decoder_layer(ours: DecoderLayer, place: str, activation: str) -> nn.TransformerDecoderLayer:
    theirs = nn.TransformerDecoderLayer(
        WIDTH, HEADS, INNER, 0.0, activation, batch_first=True, norm_first=PLACES[place], dtype=torch.float64
    ).eval()
    copy_attention(ours.attention, theirs.self_attn)
    copy_attention(ours.cross_attention, theirs.multihead_attn)
    copy(ours.feedforward.up, theirs.linear1)
    copy(ours.feedforward.down, theirs.linear2)
    copy(ours.attention_residual.norm, theirs.norm1)
    copy(ours.cross_attention_residual.norm, theirs.norm2)
    copy(ours.feedforward_residual.norm, theirs.norm3)
    return theirs


SOURCE, TARGET = Padded.of([5, 2, 4]), Padded.of([4, 4, 1])


def real(layout: Padded, x: Tensor) -> Tensor:
    """The rows that stand for something; what comes out behind a sentence is nobody's business."""
    return x[layout.key_mask()]


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("place", PLACES)
def test_an_encoder_layer_is_torchs(place: str, activation: str) -> None:
    ours = randomized(EncoderLayer(body(place, activation), WIDTH))
    theirs = torch_encoder_layer(ours, place, activation)
    x = torch.randn(3, 5, WIDTH, dtype=torch.float64, requires_grad=True)
    result = real(SOURCE, ours(x, SOURCE, None))
    expected = real(SOURCE, theirs(x, src_key_padding_mask=~SOURCE.key_mask()))
    torch.testing.assert_close(result, expected, **SIXTY_FOUR)
    pull = torch.randn_like(result)
    gradients = [torch.autograd.grad(output, x, pull)[0] for output in (result, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("place", PLACES)
def test_a_decoder_layer_is_torchs(place: str, activation: str) -> None:
    recipe = body(place, activation)
    decoder = randomized(TransformerDecoder(recipe, WIDTH))
    memory = torch.randn(3, 5, WIDTH, dtype=torch.float64)
    x = torch.randn(3, 4, WIDTH, dtype=torch.float64)
    state = decoder.begin(Memory(memory, SOURCE))
    mask = SOURCE.key_mask()
    assert mask is not None
    seen = StepContext(torch.arange(4)[None], used=0, past_mask=None, memory_mask=mask[:, None, None, :])
    for ours, cache in zip(decoder.layers, state.kv_cache, strict=True):
        theirs = torch_decoder_layer(ours, place, activation)
        expected = theirs(x, memory, tgt_mask=~causal_mask(4, 4, x.device), memory_key_padding_mask=~SOURCE.key_mask())
        result, _ = ours.step(x, cache, seen)
        torch.testing.assert_close(result, expected, **SIXTY_FOUR)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("place", PLACES)
def test_whole_stacks_are_torchs(place: str, activation: str) -> None:
    """Pre-norm stacks have a norm of their own at the end; post-norm ones need none."""
    recipe = body(place, activation)
    encoder = randomized(TransformerEncoder(recipe, WIDTH))
    decoder = randomized(TransformerDecoder(recipe, WIDTH))
    x = torch.randn(3, 5, WIDTH, dtype=torch.float64)
    y = torch.randn(3, 4, WIDTH, dtype=torch.float64)

    expected = x
    for layer in encoder.layers:
        expected = torch_encoder_layer(layer, place, activation)(expected, src_key_padding_mask=~SOURCE.key_mask())
    if PLACES[place]:
        expected = nn.functional.layer_norm(expected, (WIDTH,), encoder.norm.weight, encoder.norm.bias)
    memory = encoder(x, SOURCE)
    torch.testing.assert_close(real(SOURCE, memory.states), real(SOURCE, expected), **SIXTY_FOUR)

    masks = {"tgt_mask": ~causal_mask(4, 4, x.device), "memory_key_padding_mask": ~SOURCE.key_mask()}
    written = y
    for layer in decoder.layers:
        written = torch_decoder_layer(layer, place, activation)(written, expected, **masks)
    if PLACES[place]:
        written = nn.functional.layer_norm(written, (WIDTH,), decoder.norm.weight, decoder.norm.bias)
    result, _ = decoder.advance(y, decoder.begin(memory), TARGET)
    torch.testing.assert_close(real(TARGET, result), real(TARGET, written), **SIXTY_FOUR)


# --- order -------------------------------------------------------------------------------------------------------


def permuted_difference(place: str, norm: str, positions: str, attention: str | None = None) -> float:
    """How far encode(permute(x)) is from permute(encode(x))."""
    recipe = body(place, "relu", positions=positions, norm=norm, attention=attention)
    encoder = randomized(TransformerEncoder(recipe, WIDTH))
    x, layout = torch.randn(2, 6, WIDTH, dtype=torch.float64), Padded.of([6, 6])
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    before, after = encoder(x, layout).states, encoder(x[:, order], layout).states
    return (before[:, order] - after).abs().max().item()


@pytest.mark.parametrize("norm", ["layer", "rms", "batch"])
@pytest.mark.parametrize("place", [*PLACES, "none"])
def test_without_positions_permuting_the_input_permutes_the_output(place: str, norm: str) -> None:
    """self-attention is blind to order."""
    assert permuted_difference(place, norm, "none") < 1e-12  # float64; the order of sums changes


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary", "alibi", "t5", "shaw"])
@pytest.mark.parametrize("place", PLACES)
def test_with_positions_the_order_matters(place: str, positions: str) -> None:
    assert permuted_difference(place, "layer", positions) > 1e-3


@pytest.mark.parametrize("attention", VARIANTS)
def test_every_attention_of_a_body_is_of_the_variant_the_recipe_names(attention: str) -> None:
    """The formula of each is that of its score, of heads and of groups (test_scores.py, test_attention_variants.py)."""
    section = {"kind": "scaled-dot", "projections": True, "kv_heads": 2} | VARIANTS[attention]
    recipe = body("pre", "relu", attention=attention).model_copy(update={"attention_dropout": 0.25})
    encoder, decoder = TransformerEncoder(recipe, WIDTH), TransformerDecoder(recipe, WIDTH)
    every = [
        module for each in (encoder, decoder) for module in each.modules() if isinstance(module, MultiHeadAttention)
    ]
    assert len(every) == 2 + 2 * 2  # in each of two layers
    for result in every:
        assert result.score.softmax is (section["kind"] in ("dot", "scaled-dot"))
        assert result.score.scale == (
            result.head_width**-0.5 if section["kind"] in ("scaled-dot", "unnormalized") else 1.0
        )
        assert (result.qkv is not None) is section["projections"]
        assert result.shared_width == section["kv_heads"] * result.head_width
        assert result.dropout == 0.25


def test_who_writes_has_distances_to_the_past_alone_and_who_reads_to_both_sides() -> None:
    for kind, count in (("t5", 1), ("shaw", 2)):  # one for all layers, one for each
        recipe = body("pre", "relu", positions=kind)
        for stack, causal in ((TransformerEncoder(recipe, WIDTH), False), (TransformerDecoder(recipe, WIDTH), True)):
            result = [module for module in stack.modules() if isinstance(module, Buckets | RelativeKeys)]
            assert [each.causal for each in result] == [causal] * count


@torch.no_grad()
def test_taps_of_padded_sources_are_padded() -> None:
    """Though without a listener they may be packed on their way."""
    encoder, taps = TransformerEncoder(body("pre", "relu"), WIDTH).eval(), dict[str, Tensor]()

    def hear(tapped: Tapped) -> None:
        taps[tapped.name] = tapped.tensor

    x, layout = torch.randn(2, 4, WIDTH), Padded.of([4, 2])
    with on_taps(encoder, hear):
        result = encoder(x, layout).states
    assert taps["output"].shape == (2, 4, WIDTH) and taps["layers.0.attention.weights"].shape == (2, HEADS, 4, 4)
    torch.testing.assert_close(result[layout.mask], encoder(x, layout).states[layout.mask], rtol=0.0, atol=1e-6)


@pytest.mark.parametrize("positions", ["rotary", "sinusoidal"])
def test_compressed_keys_are_turned_once_they_are_made_where_positions_turn(positions: str) -> None:
    spans = HeadAttentionConfig.model_validate({"pattern": [{"kind": "compressed"}]})
    recipe = body("pre", "relu", positions=positions).model_copy(update={"attention": spans})
    for stack in (TransformerEncoder(recipe, WIDTH), TransformerDecoder(recipe, WIDTH)):
        result = [layer.attention.pattern.rotates_keys for layer in stack.layers]
        assert result == [positions == "rotary"] * 2


@pytest.mark.parametrize("attention", VARIANTS)
def test_variants_of_attention_are_blind_to_order_too_but_for_positions(attention: str) -> None:
    assert permuted_difference("pre", "layer", "none", attention) < 1e-12
    assert permuted_difference("pre", "layer", "sinusoidal", attention) > 1e-3


def test_a_decoder_past_its_learned_positions_raises(build_model: Callable[..., Seq2Seq]) -> None:
    recipe = body("pre", "relu", positions="learned").model_dump()
    model = build_model(recipe, recipe)
    state = model.begin(model.encode(torch.tensor([[5, 3]]), Padded.of([2])))
    _, state = model.advance(torch.full((1, 16), 5), state)
    with pytest.raises(ValueError, match="position 17 is past the 16 learned ones"):
        model.advance(torch.tensor([[5]]), state)


@pytest.mark.parametrize("layout", [Padded.of([17]), Packed.of([17])])
def test_a_source_past_the_learned_positions_is_refused(layout: Any, build_model: Callable[..., Seq2Seq]) -> None:
    recipe = body("pre", "relu", positions="learned").model_dump()
    model = build_model(recipe, recipe)
    tokens = torch.full((1, 17), 5) if isinstance(layout, Padded) else torch.full((17,), 5)
    with pytest.raises(ValueError, match="position 17 is past the 16 learned ones"):
        model.encode(tokens, layout)


@torch.no_grad()
@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "alibi", "t5", "shaw", "none"])
def test_cached_equals_uncached_past_the_maximum_distance(positions: str, build_model: Callable[..., Seq2Seq]) -> None:
    """Past `longest`, past the last bucket and past the farthest relative key: still cached = uncached."""
    recipe = body("pre", "relu", positions=positions).model_dump()
    recipe["positions"]["max_distance"] = 20
    model = build_model(recipe, recipe)
    tokens = torch.randint(4, 13, (2, 150))
    memory = model.encode(tokens, Padded.of([150, 70]))
    whole, _ = model.advance(tokens, model.begin(memory))
    _, state = model.advance(tokens[:, :148], model.begin(memory))
    for place in (148, 149):
        result, state = model.advance(tokens[:, place : place + 1], state)
        torch.testing.assert_close(result[:, 0], whole[:, place], rtol=0, atol=1e-5)


@pytest.mark.parametrize("place", PLACES)
def test_in_training_too_batch_norm_finds_the_same_padded_and_packed(
    place: str, build_model: Callable[..., Seq2Seq]
) -> None:
    recipe = body(place, "relu", positions="sinusoidal", norm="batch").model_dump()
    sources, targets = [5, 2, 4], [4, 6, 1]
    tokens = torch.randint(4, 13, (2, 11))
    packed = Packed.of(sources), Packed.of(targets)
    one, other = (build_model(recipe, recipe).train() for _ in range(2))
    flat = one(tokens[0], packed[0], tokens[1], packed[1])
    rows = [layout.pad(part).masked_fill(~layout.key_mask(), 9) for layout, part in zip(packed, tokens, strict=True)]
    padded = other(rows[0], Padded.of(sources), rows[1], Padded.of(targets))
    torch.testing.assert_close(packed[1].unpad(padded), flat, rtol=0, atol=1e-5)
    for (name, ours), theirs in zip(one.named_buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5, msg=name)


# --- variants of attention ---------------------------------------------------------------------------------------

PLACED = [
    (attention, positions)
    for attention in VARIANTS
    for positions in ("sinusoidal", "rotary", "alibi", "t5", "shaw")
    if not ("linear" in attention and positions == "alibi")
]
FLOAT = {"rtol": 0.0, "atol": 2e-5}  # features of order one, float32 kernels that add in different orders


@pytest.fixture(params=PLACED, ids="-".join)
def variant(request: pytest.FixtureRequest, build_model: Callable[..., Seq2Seq]) -> Seq2Seq:
    attention, positions = request.param
    recipe = body("pre", "relu", positions=positions, attention=attention).model_dump()
    return build_model(recipe, recipe)


def start_state(model: Seq2Seq, lengths: list[int], sources: Tensor) -> Any:
    return model.begin(model.encode(sources, Padded.of(lengths)))


@torch.no_grad()
def test_with_every_variant_cached_is_uncached(variant: Seq2Seq) -> None:
    lengths, sources, tokens = [5, 2, 4], torch.randint(4, 13, (3, 5)), torch.randint(4, 13, (3, 9))
    whole, _ = variant.advance(tokens, start_state(variant, lengths, sources))
    for cuts in ([1] * 9, [4, 1, 4]):
        state, result = start_state(variant, lengths, sources), []
        for part in tokens.split(cuts, dim=1):
            features, state = variant.advance(part, state)
            result.append(features)
        torch.testing.assert_close(torch.cat(result, dim=1), whole, **FLOAT)


@pytest.mark.parametrize("grad", [False, True])
def test_with_every_variant_packed_is_padded(variant: Seq2Seq, grad: bool) -> None:
    sources, targets = [5, 2, 4], [4, 6, 1]
    tokens, packed = torch.randint(4, 13, (2, 11)), (Packed.of(sources), Packed.of(targets))
    rows = [layout.pad(part).masked_fill(~layout.key_mask(), 9) for layout, part in zip(packed, tokens, strict=True)]
    with torch.set_grad_enabled(grad):
        flat = variant(tokens[0], packed[0], tokens[1], packed[1])
        padded = variant(rows[0], Padded.of(sources), rows[1], Padded.of(targets))
    torch.testing.assert_close(packed[1].unpad(padded), flat, **FLOAT)


@torch.no_grad()
@pytest.mark.parametrize("steps", [1, 2])  # before and after the caches first grew
def test_with_every_variant_sentences_and_hypotheses_find_their_own_past(variant: Seq2Seq, steps: int) -> None:
    """Two sentences change places and one leaves; then each goes on as two hypotheses."""
    lengths, sources, tokens = [5, 2, 4], torch.randint(4, 13, (3, 5)), torch.randint(4, 13, (3, 4))
    memory = variant.encode(sources, Padded.of(lengths))
    before = memory.states.clone()
    state = variant.begin(memory)
    for place in range(steps):
        _, state = variant.advance(tokens[:, place : place + 1], state)
    kept = torch.tensor([2, 0])
    state = state.keep(kept).select(torch.zeros(2, 2, dtype=torch.int64))
    new = torch.tensor([[7], [8], [9], [10]])
    result, _ = variant.advance(new, state)
    assert torch.equal(memory.states, before)  # the caches have a memory of their own

    rows = kept.repeat_interleave(2)
    states = torch.cat([tokens[rows, :steps], new], dim=1)
    alone = start_state(variant, [lengths[row] for row in rows.tolist()], sources[rows])
    torch.testing.assert_close(result[:, 0], variant.advance(states, alone)[0][:, -1], **FLOAT)


def test_with_every_variant_the_gradient_reaches_every_parameter(variant: Seq2Seq) -> None:
    tokens = torch.randint(4, 13, (2, 11))
    features = variant(tokens[0], Packed.of([5, 2, 4]), tokens[1], Packed.of([4, 6, 1]))
    loss = nn.functional.cross_entropy(variant.logits(features), torch.arange(11))
    for name, parameter in variant.named_parameters():
        (gradient,) = torch.autograd.grad(loss, parameter, retain_graph=True, allow_unused=True)
        assert gradient is not None and gradient.abs().max() > 0, name


@torch.no_grad()
def test_caches_hold_the_heads_that_are_shared_and_no_more(build_model: Callable[..., Seq2Seq]) -> None:
    recipe = body("pre", "relu", positions="rotary", attention="multi-query").model_dump()
    model = build_model(recipe, recipe)
    _, state = model.advance(torch.full((3, 1), 5), start_state(model, [5, 2, 4], torch.full((3, 5), 6)))
    for cache in state.kv_cache:
        for part in (*cache.self_attention.buffers, *cache.cross_attention):
            assert part.shape[1] == 1 and part.shape[3] == WIDTH // HEADS


def test_without_a_variant_the_weights_have_the_names_and_shapes_they_always_had() -> None:
    decoder = TransformerDecoder(body("pre", "relu"), WIDTH)
    shapes = {name: tuple(tensor.shape) for name, tensor in decoder.layers[0].state_dict().items()}
    for part in ("attention", "cross_attention"):
        result = {name: shape for name, shape in shapes.items() if name.startswith(part + ".")}
        assert result == {
            f"{part}.qkv.weight": (3 * WIDTH, WIDTH),
            f"{part}.qkv.bias": (3 * WIDTH,),
            f"{part}.output.weight": (WIDTH, WIDTH),
            f"{part}.output.bias": (WIDTH,),
        }
