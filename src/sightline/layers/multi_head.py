"""Multi-head attention: projections and heads around `attend`."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, NamedTuple

from torch import Tensor

from sightline.layers.attention import attend, in_autocast
from sightline.layers.layout import Layout
from sightline.layers.linear import Linear
from sightline.layers.local_attention import CompressedAttention, Pattern
from sightline.layers.positions import Relative, RelativeKeys, Rotation
from sightline.layers.scores import AttentionScore, ScaledDot
from sightline.layers.tap import TapModule


class KeysValues(NamedTuple):
    """Projected keys and values, split into heads."""

    keys: Tensor
    values: Tensor


class MultiHeadAttention(TapModule):
    """MultiHead(Q, K, V) = [head_1 ; … ; head_H] W_O, head_h = attend(Q W_h^Q, K W_h^K, V W_h^V), Dh = D / H.

    (Vaswani et al. 2017, §3.2.2.) `groups`: H heads of queries share G heads of keys and values (Ainslie et al. 2023);
    G = 1 is multi-query attention (Shazeer 2019). `projections=False`: no parameters, y_i = Σ_j softmax(x_i·x_j) x_j
    in each head's slice of the features. `output_projection=False`: no W_O. `memory_width`: of the states that keys and
    values are projected from, in cross-attention. `pattern`: local or compressed self-attention (local_attention.py).
    """

    entry_points: ClassVar[tuple[str, ...]] = ("queries_keys_values", "queries", "keys_values")

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        dropout: float = 0.0,
        rotary: bool = False,
        relative_keys: RelativeKeys | None = None,
        score: AttentionScore | None = None,
        projections: bool = True,
        bias: bool = True,
        output_projection: bool = True,
        groups: int | None = None,
        memory_width: int | None = None,
        pattern: Pattern | None = None,
    ) -> None:
        super().__init__()
        groups = heads if groups is None else groups
        if width % heads:
            raise ValueError(f"width ({width}) is not divisible by heads ({heads})")
        if heads % groups:
            raise ValueError(f"heads ({heads}) is not divisible by groups ({groups})")
        if groups != heads and not projections:
            raise ValueError(f"without projections there are as many groups as heads ({heads}), not {groups}")
        self.width, self.heads, self.head_width = width, heads, width // heads
        self.shared_width = groups * self.head_width  # of keys and of values
        self.relative_keys = relative_keys
        self.pattern = pattern
        self.score = ScaledDot(self.head_width) if score is None else score
        self.projections, self.bias = projections, bias
        self.qkv: Linear | None = None
        self.q: Linear | None = None
        self.kv: Linear | None = None
        self.output: Linear | None = None
        if projections and memory_width in (None, width):
            # the range of initial weights does not depend on the number of groups; without groups, gain √½ for (3D, D)
            gain = ((width + self.shared_width) / (4 * width)) ** 0.5
            self.qkv = Linear(width, width + 2 * self.shared_width, bias, gain=gain)  # one product for all three
        elif projections and memory_width is not None:
            self.q = Linear(width, width, bias)
            self.kv = Linear(memory_width, 2 * self.shared_width, bias)
        if projections and output_projection:
            self.output = Linear(width, width, bias)
        self.dropout = dropout
        self.rotary = rotary

    def _split(self, x: Tensor, *widths: int) -> tuple[Tensor, ...]:
        """Split (…, sum of `widths`) into (…, H or G, Dh) for each width."""
        return tuple(part.unflatten(-1, (-1, self.head_width)) for part in x.split(widths, -1))

    def _unprojected(self, x: Tensor) -> Tensor:
        """(…, D) → (…, H, Dh)."""
        return self._split(in_autocast(x), self.width)[0]

    def queries_keys_values(self, x: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor, Tensor]:
        """Self-attention: x (…, D) → rotated query (…, H, Dh), prepared key and value (…, G, Dh)."""
        if self.qkv is None:
            query = key = value = self._unprojected(x)
            if rotation is not None:
                query = rotation(query)
            return query, self.score.prepare(query if self._rotates("key") else key), value
        if rotation is not None and self._rotates("key"):  # in one call, because decoding is bound by kernel launches
            both, value = self._split(self.qkv(x), self.width + self.shared_width, self.shared_width)
            query, key = rotation(both).split([self.heads, both.shape[-2] - self.heads], -2)
            return query, self.score.prepare(key), value
        query, key, value = self._split(self.qkv(x), self.width, self.shared_width, self.shared_width)
        return query if rotation is None else rotation(query), self.score.prepare(key), value

    def queries(self, x: Tensor) -> Tensor:
        """Cross-attention: (…, D) → (…, H, Dh)."""
        if self.q is not None:
            return self._split(self.q(x), self.width)[0]
        if self.qkv is None:
            return self._unprojected(x)
        return self._split(self.qkv.apply_rows(x, 0, self.width), self.width)[0]

    def keys_values(self, x: Tensor) -> KeysValues:
        """Cross-attention: (…, D) → prepared keys and values (…, G, Dh); one tensor if there are no projections."""
        if self.kv is not None:
            both = self.kv(x)
        elif self.qkv is not None:
            both = self.qkv.apply_rows(x, self.width, self.width + 2 * self.shared_width)
        else:
            states = self._unprojected(x)
            return KeysValues(self.score.prepare(states), states)
        key, value = self._split(both, self.shared_width, self.shared_width)
        return KeysValues(self.score.prepare(key), value)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        causal: bool = False,
        mask: Tensor | None = None,
        layout: tuple[Layout, Layout] | None = None,
        relative: Relative | None = None,
    ) -> Tensor:
        """Attend and project. With `layout` (…, H, Dh) → (…, D); without, (B, H, T, Dh) → (B, T, D)."""
        tap = self.explicit_tap
        if self.any_recorded:
            heads = (("query", query), ("key", key), ("value", value))
            query, key, value = (self._tap_heads(name, tensor, layout is not None) for name, tensor in heads)
        attention = partial(attend, score=self.score, dropout=self.dropout if self.training else 0.0, tap=tap)
        if self.pattern is not None and layout is not None:
            context = self.pattern(query, key, value, layout[0], attention, causal, tap)
        else:
            bias = None if relative is None else self._bias(query, relative, layout)
            context = attention(query, key, value, mask=mask, bias=bias, causal=causal, layout=layout)
        if layout is None:
            context = context.transpose(1, 2)
        joined = context.flatten(-2)  # (…, D)
        joined = self.tap("joined", joined, "[context_1 ; … ; context_H]", ["context"])
        if self.output is None:
            return self.tap("output", joined, "[context_1 ; … ; context_H]", ["context"])
        formula = "[context_1 ; … ; context_H] W_oᵀ" + (" + b" if self.bias else "")
        return self.tap("output", self.output(joined), formula, ["joined"])

    def _tap_heads(self, name: str, tensor: Tensor, tokens_first: bool) -> Tensor:
        """Tap as (B, H, T, Dh), transposing (B, T, H, Dh) back and forth."""
        transposed = tokens_first and tensor.dim() == 4
        axes: dict[int, str | int] = {1: "heads"}
        if name != "query" and isinstance(self.pattern, CompressedAttention):
            axes[2] = self.pattern.stride
        tapped = self.tap(name, tensor.transpose(1, 2) if transposed else tensor, self._formula(name), axes=axes)
        return tapped.transpose(1, 2) if transposed else tapped

    def _formula(self, name: str) -> str:
        plain = f"x W_{name[0]}ᵀ{' + b' if self.bias else ''}" if self.projections else "x"
        return f"R(position) ({plain})" if self._rotates(name) else plain

    def _rotates(self, name: str) -> bool:
        """True if `queries_keys_values` rotates these heads; compressed attention rotates its own keys."""
        if name == "key" and self.pattern is not None and self.pattern.rotates_keys:
            return False
        return self.rotary and name != "value"

    def _bias(self, query: Tensor, relative: Relative, layout: tuple[Layout, Layout] | None) -> Tensor | None:
        """(B or 1, H, T, S), added to the scores: q·a scaled as q·k, or the bias shared by all layers."""
        if self.relative_keys is None:
            return relative.bias
        heads = query if layout is None else layout[0].pad(query).transpose(1, 2)  # (B, H, T, Dh)
        return self.relative_keys(heads * self.score.scale, relative.distances)
