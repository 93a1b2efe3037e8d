"""Convert Sightline's Transformer to a MarianMTModel and to a CTranslate2 model.

Marian is a post-norm Transformer with ReLU, sinusoidal positions, scaled and tied embeddings, as Sightline trains with
`norm.place: post`. Three differences are converted: Sightline's sinusoids are interleaved (its table is copied),
queries, keys and values are one matrix (split in three), and the output layer has a bias (Marian's final_logits_bias).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from corpus import END, PAD, SPECIALS, START, UNKNOWN
from peers import Size, marian

Weights = Mapping[str, Tensor]


def sinusoids(longest: int, width: int) -> Tensor:
    """(T, D): sin and cos interleaved."""
    rates = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000.0) / width))
    angles = torch.arange(longest)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


def size_of(weights: Weights, heads: int, longest: int) -> Size:
    """The sizes of a Transformer, from the shapes of its weights."""
    vocabulary, width = weights["target_embedding.weight"].shape
    layers = 1 + max(int(name.split(".")[2]) for name in weights if name.startswith("decoder.layers."))
    feedforward = weights["decoder.layers.0.feedforward.up.weight"].shape[0]
    return Size(layers, width, feedforward, heads, vocabulary, longest)


def to_marian(weights: Weights, heads: int, longest: int = 512) -> Any:
    """Sightline's post-norm Transformer (tie: all) as a MarianMTModel that computes the same logits.

    `<pad>` and `<s>` get a bias of -1e4, so that they are never generated.
    """
    if any(name.startswith("copying.") for name in weights):
        raise ValueError(
            "this model copies words of its source (model.copying: true), and Marian and CTranslate2 have no such "
            "decoder; train with model.copying: false"
        )
    if "encoder.norm.weight" in weights or "source_embedding.weight" in weights or "output.weight" in weights:
        raise ValueError("Marian is post-norm with one embedding: train with norm.place: post and tie: all")
    size = size_of(weights, heads, longest)
    model = marian(size, training=False)
    model.config.use_cache = model.generation_config.use_cache = True
    with torch.no_grad():
        model.model.shared.weight.copy_(weights["target_embedding.weight"])
        model.final_logits_bias.copy_(weights["output.bias"][None])
        model.final_logits_bias[:, [PAD, START]] = -1e4
        for side, body in (("encoder", model.model.encoder), ("decoder", model.model.decoder)):
            body.embed_positions.weight.copy_(sinusoids(longest, size.width))
            for number, layer in enumerate(body.layers):
                _fill_layer(layer, weights, f"{side}.layers.{number}")
    model.tie_weights()
    return model.eval()


def _fill_layer(layer: Any, weights: Weights, name: str) -> None:
    blocks = [("attention", layer.self_attn, layer.self_attn_layer_norm)]
    if f"{name}.cross_attention.qkv.weight" in weights:
        blocks.append(("cross_attention", layer.encoder_attn, layer.encoder_attn_layer_norm))
    for part, attention, norm in blocks:
        for kind in ("weight", "bias"):
            pieces = weights[f"{name}.{part}.qkv.{kind}"].chunk(3)
            for projection, piece in zip((attention.q_proj, attention.k_proj, attention.v_proj), pieces, strict=True):
                getattr(projection, kind).copy_(piece)
            getattr(attention.out_proj, kind).copy_(weights[f"{name}.{part}.output.{kind}"])
            getattr(norm, kind).copy_(weights[f"{name}.around_{part}.norm.{kind}"])
    for kind in ("weight", "bias"):
        getattr(layer.fc1, kind).copy_(weights[f"{name}.feedforward.up.{kind}"])
        getattr(layer.fc2, kind).copy_(weights[f"{name}.feedforward.down.{kind}"])
        getattr(layer.final_layer_norm, kind).copy_(weights[f"{name}.feedforward_residual.norm.{kind}"])


def to_ctranslate2(model: Any, tokens: Sequence[str], folder: Path) -> None:
    """A MarianMTModel made by `to_marian` as a CTranslate2 model in float32; `tokens` is the vocabulary in order."""
    from ctranslate2.converters.transformers import BartLoader

    model.config.normalize_before = model.config.normalize_embedding = False
    spec = BartLoader().get_model_spec(model)  # MarianMTLoader would start from a zero vector; here <s> is a real token
    spec.register_source_vocabulary(list(tokens))
    spec.register_target_vocabulary(list(tokens))
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = (
        SPECIALS[number] for number in (START, END, UNKNOWN)
    )
    spec.config.decoder_start_token = SPECIALS[START]
    spec.validate()
    spec.optimize(quantization=None)
    folder.mkdir(parents=True, exist_ok=True)
    spec.save(str(folder))
