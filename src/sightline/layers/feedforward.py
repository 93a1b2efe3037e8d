"""Position-wise networks: one net for all tokens, or a mixture of experts.

    FFN(x) = f(x W₁ + b₁) W₂ + b₂ (Vaswani et al. 2017, §3.3), SwiGLU (Shazeer 2020)

Sparsely-gated mixture of experts (Shazeer et al. 2017):

    y = Σ_{i in the top k of H(x)} G(x)_i E_i(x),    G(x) = softmax(H(x) over its top k)
    H(x) = x W_g + N(0, 1) · softplus(x W_noise)     (in training; x W_g in evaluation)

Tokens are sorted by expert and dispatched into (E, C, D), C slots per expert, so that all experts are one batched
product. In training C depends on the shape of the batch alone (static shapes); tokens for a full expert are dropped and
pass through the residual connection. In evaluation nothing is dropped, so that no token depends on the rest of the
batch. With k = 1 the gate is constant: only the noise and the balance losses train it (§2.1).

Additional shapes: E experts, k of them per token, C slots of each, F inner width, N tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sightline.layers.dropout import Dropout
from sightline.layers.linear import Linear
from sightline.layers.tap import TapModule
from sightline.recipe.model import ExpertsConfig, FeedForwardConfig
from sightline.registry import Implementations

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": nn.functional.relu,
    "gelu": nn.functional.gelu,
    "tanh": torch.tanh,
    "swiglu": nn.functional.silu,
}
FEEDFORWARDS = Implementations("feedforward")


class FeedForwardNet(TapModule):
    """f(x W₁ + b₁) W₂ + b₂; gated (SwiGLU, Shazeer 2020): (silu(x W₁) ∘ x W₃) W₂."""

    def __init__(self, width: int, hidden: int, *, kind: str = "relu", dropout: float = 0.0) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[kind]
        self.gated = kind == "swiglu"
        self.up = Linear(width, 2 * hidden if self.gated else hidden)
        self.down = Linear(hidden, width)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """(…, D) → (…, D). `valid` is ignored."""
        if self.gated:
            gate, value = self.up(x).chunk(2, dim=-1)  # (…, F) each
            hidden = self.activation(gate) * value
        elif self.activation is nn.functional.relu:
            hidden = self.up(x, "relu")  # fused with the product if possible
        else:
            hidden = self.activation(self.up(x))
        formula = "silu(x W₁ᵀ + b₁) ∘ (x W₃ᵀ + b₃)" if self.gated else f"{self.activation.__name__}(x W₁ᵀ + b₁)"
        hidden = self.tap("hidden", hidden, formula)
        return self.tap("output", self.down(self.dropout(hidden)), "hidden W₂ᵀ + b₂", ["hidden"])


@dataclass
class Collected:
    """Auxiliary losses and counts from the layers of one forward pass."""

    paths: tuple[str, ...]  # layers with auxiliary losses, in the order of the model
    losses: list[Tensor] = field(default_factory=list)  # weighted, each for the whole batch
    counts: dict[str, Tensor] = field(default_factory=dict)  # by path

    def row(self) -> Tensor | None:
        """All counts concatenated in the order of the model; None if there are none."""
        counts = [self.counts[path] for path in self.paths if path in self.counts]
        return torch.cat(counts) if counts else None


class CollectedModule(TapModule):
    """A layer with an auxiliary loss."""

    def __init__(self) -> None:
        super().__init__()
        self._collected: Collected | None = None
        self._collected_as = ""

    @property
    def collecting(self) -> bool:
        """True in training inside `collect`."""
        return self.training and self._collected is not None

    def add_loss(self, loss: Tensor, counts: Tensor) -> None:
        """Add a weighted loss and counts to the collector, if any."""
        if self._collected is not None:
            self._collected.losses.append(loss)
            before = self._collected.counts.get(self._collected_as)
            self._collected.counts[self._collected_as] = counts if before is None else before + counts


@contextmanager
def collect(model: nn.Module) -> Iterator[Collected]:
    """Collect the auxiliary losses of the layers of `model` inside the block."""
    modules = [(path, module) for path, module in model.named_modules() if isinstance(module, CollectedModule)]
    collected = Collected(tuple(path for path, _ in modules))
    before = [(module, module._collected, module._collected_as) for _, module in modules]
    for path, module in modules:
        module._collected, module._collected_as = collected, path
    try:
        yield collected
    finally:
        for module, previous, path in before:
            module._collected, module._collected_as = previous, path


_MIN_STD = 1e-4  # of the noise, because `choice_probability` divides by it


class GateChoice(NamedTuple):
    """The experts of each token, best first."""

    experts: Tensor  # (N, k)
    gates: Tensor  # (N, k); rows sum to one
    last: Tensor  # (N, 1) the k-th highest score
    next: Tensor | None  # (N, 1) the (k+1)-th highest score; None if k = E


def choose(scores: Tensor, top: int) -> GateChoice:
    """KeepTopK and softmax (equations 3 and 5) of scores (N, E). Ties go to the expert with the lower index."""
    ordered, experts = scores.sort(dim=-1, descending=True, stable=True)
    gates = ordered[:, :top].softmax(-1)
    following = ordered[:, top : top + 1] if top < scores.shape[1] else None
    return GateChoice(experts[:, :top], gates, ordered[:, top - 1 : top], following)


def choice_probability(clean: Tensor, std: Tensor, choice: GateChoice) -> Tensor:
    """P(x, i) (N, E): the probability of choosing expert i if only its noise is resampled (appendix A, eq. 8 and 9).

    P(x, i) = Φ(((x W_g)_i − kth_excluding(H(x), k, i)) / softplus((x W_noise)_i)). Excluding i, the k-th highest score
    is the (k+1)-th of all scores if i was chosen, else the k-th.
    """
    if choice.next is None:
        return torch.ones_like(clean)
    chosen = torch.zeros_like(clean, dtype=torch.bool).scatter(1, choice.experts, True)
    threshold = torch.where(chosen, choice.next, choice.last)
    return torch.special.ndtr((clean - threshold) / std)


def squared_variation(amounts: Tensor) -> Tensor:
    """CV(x)² = Var(x) / Mean(x)² (equations 7 and 11)."""
    return amounts.var(correction=0) / (amounts.mean() ** 2 + 1e-10)


def slots_each(factor: float, top: int, tokens: int, experts: int) -> int:
    """C = ⌈factor · k · N / E⌉, at most N."""
    return max(1, min(tokens, math.ceil(factor * top * tokens / experts)))


class Routes(NamedTuple):
    """The slot of each of the k · N choices: first choices of all tokens, then second choices, ..."""

    slots: Tensor  # (k·N,) index among the E · C slots; E · C: none
    kept: Tensor  # (k·N,) False: the expert is full, or the token is padding
    counts: Tensor  # (E,) number of real tokens that chose each expert, including dropped ones
    capacity: int  # C


def route(experts: Tensor, real: Tensor | None, count: int, capacity: int | None) -> Routes:
    """Assign each choice (N, k) a slot of its expert, in order, up to the capacity (None: unlimited)."""
    choices = experts.t().reshape(-1)  # (k·N,)
    if real is not None:
        choices = torch.where(real.repeat(experts.shape[1]), choices, count)  # padding: expert number E
    order = choices.argsort(stable=True)
    arranged = choices[order]
    bounds = torch.searchsorted(arranged, torch.arange(count + 1, device=choices.device))  # start of each expert
    ranks = torch.arange(len(choices), device=choices.device) - bounds[arranged]
    rank = torch.empty_like(ranks).scatter(0, order, ranks)  # number of earlier choices of the same expert
    counts = bounds.diff()
    if capacity is None:
        capacity = max(1, int(counts.max()))
    kept = (rank < capacity) & (choices < count)
    return Routes(torch.where(kept, choices * capacity + rank, count * capacity), kept, counts, capacity)


def dispatch(x: Tensor, routes: Routes, top: int, count: int) -> Tensor:
    """Tokens (N, D) → (E, C, D), zeros in empty slots. Dropped choices are written to an extra row."""
    rows = count * routes.capacity
    slots = x.new_zeros(rows + 1, x.shape[1]).index_copy(0, routes.slots, x.repeat(top, 1))
    return slots[:rows].view(count, routes.capacity, x.shape[1])


def combine(outputs: Tensor, gates: Tensor, routes: Routes) -> Tensor:
    """Outputs (E, C, D), gates (N, k) → Σ_i G(x)_i E_i(x) (N, D), summed in the precision of the gates.

    The backward pass is deterministic: every slot is read at most once, except that dropped choices read the last slot
    with weight zero.
    """
    flat = outputs.flatten(0, 1)
    picked = flat.index_select(0, routes.slots.clamp(max=len(flat) - 1))  # (k·N, D)
    weights = torch.where(routes.kept, gates.t().reshape(-1), 0.0)
    mixed = (weights[:, None] * picked).view(gates.shape[1], gates.shape[0], -1).sum(0)
    return mixed.to(outputs.dtype)


class ExpertNets(nn.Module):
    """E parallel nets f(x W₁ + b₁) W₂ + b₂, or gated: (silu(x W₁) ∘ x W₃) W₂."""

    def __init__(self, count: int, width: int, hidden: int, kind: str, dropout: float) -> None:
        super().__init__()
        self.kind, self.activation, self.gated = kind, ACTIVATIONS[kind], kind == "swiglu"
        inner = 2 * hidden if self.gated else hidden
        self.count = count
        self.up = nn.Parameter(torch.empty(count, width, inner))
        self.down = nn.Parameter(torch.empty(count, hidden, width))
        self.up_bias = nn.Parameter(torch.empty(count * inner))  # vectors, which have no weight decay
        self.down_bias = nn.Parameter(torch.empty(count * width))
        self.dropout = Dropout(dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for weights in (self.up, self.down):
            for weight in weights.data:
                nn.init.xavier_uniform_(weight)
        nn.init.zeros_(self.up_bias)
        nn.init.zeros_(self.down_bias)

    def forward(self, x: Tensor) -> Tensor:
        """(E, C, D) → (E, C, D)."""
        hidden = torch.baddbmm(self.up_bias.view(self.count, 1, -1), x, self.up)  # (E, C, F)
        if self.gated:
            gate, value = hidden.chunk(2, dim=-1)
            hidden = self.activation(gate) * value
        else:
            hidden = self.activation(hidden)
        return torch.baddbmm(self.down_bias.view(self.count, 1, -1), self.dropout(hidden), self.down)


class Experts(CollectedModule):
    """A mixture of experts instead of a position-wise net."""

    own_parameters_first = True

    def __init__(
        self,
        width: int,
        hidden: int,
        *,
        count: int = 8,
        top_k: int = 2,
        capacity_factor: float = 2.0,
        noise: bool = True,
        balance: tuple[float, float] = (0.1, 0.1),
        kind: str = "relu",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.count, self.top_k, self.capacity_factor = count, top_k, capacity_factor
        self.importance, self.load = balance  # weights of the auxiliary losses
        self.gate = nn.Parameter(torch.empty(count, width))
        self.noise = nn.Parameter(torch.empty(count, width)) if noise else None
        self.reset_parameters()
        self.nets = ExpertNets(count, width, hidden, kind, dropout)

    def reset_parameters(self) -> None:
        """Zero gates with noise (appendix A); without noise, zero gates would always choose the same k experts."""
        if self.noise is None:
            nn.init.xavier_uniform_(self.gate)
        else:
            nn.init.zeros_(self.gate)
            nn.init.zeros_(self.noise)

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """(…, D) → (…, D). `valid` (…): True at real tokens (None: all); padding is not routed and gives zeros."""
        flat, real = x.reshape(-1, x.shape[-1]), None if valid is None else valid.reshape(-1)  # (N, D), (N,)
        clean, std = self._scores(flat)  # (N, E)
        scores = clean if std is None else clean + torch.randn_like(clean) * std
        scores = self._tap_scores(scores, x.shape[:-1])
        choice, gates = self._tap_gates(choose(scores, self.top_k), scores, x.shape[:-1])
        limit = slots_each(self.capacity_factor, self.top_k, len(flat), self.count) if self.training else None
        routes = route(choice.experts, real, self.count, limit)
        outputs = self.nets(dispatch(flat, routes, self.top_k, self.count))
        mixed = combine(outputs, choice.gates, routes).view(x.shape)
        if self.collecting:
            self._balance(clean, std, choice, routes, real)
        return self._tap_output(mixed, x, valid, gates)

    def _scores(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """x W_g and the noise's standard deviation (None without noise), in full precision because of near ties."""
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(self.gate.dtype)
            clean = nn.functional.linear(x, self.gate)  # (N, E)
            if self.noise is None or not self.training:
                return clean, None
            return clean, nn.functional.softplus(nn.functional.linear(x, self.noise)).clamp(min=_MIN_STD)

    # Taps have one row per token, as in the formula, not slots by expert.

    def _tap_scores(self, scores: Tensor, shape: torch.Size) -> Tensor:
        """Tap H(x) (N, E) as (…, E)."""
        if not self.recorded:
            return scores
        formula = "x W_gᵀ" + (" + noise" if self.noise is not None and self.training else "")
        return self.tap("scores", scores.view(*shape, self.count), formula, axes={-1: "experts"}).view(-1, self.count)

    def _tap_gates(self, choice: GateChoice, scores: Tensor, shape: torch.Size) -> tuple[GateChoice, Tensor | None]:
        """Tap the gates as (…, E); returns the choice with replaced gates, and the gates."""
        if not self.recorded:
            return choice, None
        operands = {"x": scores.view(*shape, self.count), "top": self.top_k}
        gates = self._dense_gates(choice).view(*shape, self.count)
        formula = "softmax(top k of H(x))"
        gates = self.tap("gates", gates, formula, ["scores"], "top_k_softmax", operands, {-1: "experts"})
        return choice._replace(gates=gates.view(-1, self.count).gather(1, choice.experts)), gates

    def _tap_output(self, mixed: Tensor, x: Tensor, valid: Tensor | None, gates: Tensor | None) -> Tensor:
        """Tap the output; in training without the operation, which does not drop tokens."""
        nets, operation = self.nets, ""
        operands: dict[str, Any] = {}
        if gates is not None and not self.training:
            operation = "mixture_of_experts"
            operands = {"x": x, "gates": gates, "widen": nets.up, "narrow": nets.down, "real": valid}
            operands |= {"widen_bias": nets.up_bias, "narrow_bias": nets.down_bias, "kind": nets.kind}
        return self.tap("output", mixed, "Σ_i G_i E_i(x)", ["gates"], operation, operands)

    def _dense_gates(self, choice: GateChoice) -> Tensor:
        """G(x) (N, E), zeros for experts that were not chosen."""
        empty = choice.gates.new_zeros(len(choice.gates), self.count)
        return empty.scatter(1, choice.experts, choice.gates)

    def _balance(
        self, clean: Tensor, std: Tensor | None, choice: GateChoice, routes: Routes, real: Tensor | None
    ) -> None:
        """Add w_importance · CV(Σ_x G(x))² + w_load · CV(Σ_x P(x))², tokens per expert and dropped tokens."""

        def sum_over_tokens(values: Tensor) -> Tensor:
            return (values if real is None else torch.where(real[:, None], values, 0.0)).sum(0)

        loss = self.importance * squared_variation(sum_over_tokens(self._dense_gates(choice)))
        if std is not None and self.load:
            loss = loss + self.load * squared_variation(sum_over_tokens(choice_probability(clean, std, choice)))
        dropped = routes.counts.sum() - routes.kept.sum()
        self.add_loss(loss, torch.cat([routes.counts, dropped[None]]))


class ExpertsBetween(nn.Module):
    """Experts below the top layer of a recurrent stack: x + dropout(experts(x)).

    (The paper's language models apply a sigmoid to the output of the experts.)
    """

    def __init__(self, experts: Experts | None, layers: int, dropout: float) -> None:
        super().__init__()
        self.experts = nn.ModuleDict({} if experts is None else {str(layers - 1): experts})  # by layer above them
        self.dropout = Dropout(dropout)

    def forward(self, layer: int, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """Apply the experts below layer number `layer`, if any, to its input (B, T, D)."""
        name = str(layer)
        if name not in self.experts:
            return x
        return self.dropout.add(x, self.experts[name](x, valid))


def build_feedforward(recipe: FeedForwardConfig, width: int, layer: int) -> nn.Module | None:
    """Build the net of layer `layer` (from 0): `Net(width, hidden, kind, dropout, **options)`, experts, or none."""
    if recipe.kind == "none":
        return None
    hidden = recipe.width or 4 * width
    if recipe.experts is not None and (layer + 1) % recipe.experts.every == 0:
        return build_experts(recipe.experts, width, hidden, kind=recipe.kind, dropout=recipe.dropout)
    options = recipe.options(FeedForwardConfig)
    return FEEDFORWARDS[recipe.kind](width, hidden, kind=recipe.kind, dropout=recipe.dropout, **options)


def build_experts(
    recipe: ExpertsConfig, width: int, hidden: int, *, kind: str = "relu", dropout: float = 0.0
) -> Experts:
    """Build a mixture of experts; `hidden` is the default inner width."""
    return Experts(
        width,
        recipe.hidden or hidden,
        count=recipe.count,
        top_k=recipe.top_k,
        capacity_factor=recipe.capacity_factor,
        noise=recipe.noise,
        balance=(recipe.importance, recipe.load),
        kind=kind,
        dropout=dropout,
    )
