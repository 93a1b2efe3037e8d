"""The sparsely-gated mixture of experts (Shazeer et al. 2017): many small nets, of which each token sees a few.

    y = Σ_{i in the top k of H(x)} G(x)_i E_i(x),    G(x) = softmax(H(x) over its top k)
    H(x) = x W_g + N(0, 1) · softplus(x W_noise)     (while training; at test x W_g alone)

All choices of a batch are sorted by expert and laid into (E, C, D), C slots for each expert, so that all experts are
one batched product. While training C is a function of the size of the tensor alone (static shapes); a choice that
finds its expert full is dropped, and what the token hands on is the residual around this layer. At test nothing is
dropped, so no token depends on its neighbours in the batch.

The objective teaches the gate by how the chosen share a token (§2.1: k > 1). With k = 1 that share is always one, and
only the balance of the load is learned; without noise, nothing at all.

Shapes beside the usual: E experts, k of them for each token, C slots of each, F their inner width, N tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sightline.layers.dropout import Dropout
from sightline.layers.tap import TapModule
from sightline.recipe.model import ExpertsConfig


@dataclass
class Collected:
    """What the layers of one forward pass handed over."""

    paths: tuple[str, ...]  # of the layers that may, in the order of the model
    losses: list[Tensor] = field(default_factory=list)  # each for the whole batch, its weight in it
    counts: dict[str, Tensor] = field(default_factory=dict)  # by path

    def row(self) -> Tensor | None:
        """All counts one after the other, in the order of the model; None where nothing was counted."""
        found = [self.counts[path] for path in self.paths if path in self.counts]
        return torch.cat(found) if found else None


class CollectedModule(TapModule):
    """A layer with a loss of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._collected: Collected | None = None
        self._collected_as = ""

    @property
    def collecting(self) -> bool:
        """Whether somebody wants the loss. Losses are for training: a layer that is being tested has none."""
        return self.training and self._collected is not None

    def add_loss(self, loss: Tensor, counts: Tensor) -> None:
        """Give what is to be minimized (weighted) and what was counted to the collector, if there is one."""
        if self._collected is not None:
            self._collected.losses.append(loss)
            before = self._collected.counts.get(self._collected_as)
            self._collected.counts[self._collected_as] = counts if before is None else before + counts


@contextmanager
def collect(model: nn.Module) -> Iterator[Collected]:
    """Collect what the layers of `model` hand over inside the block."""
    modules = [(path, module) for path, module in model.named_modules() if isinstance(module, CollectedModule)]
    collected = Collected(tuple(path for path, _ in modules))
    before = [(module, module._collected, module._collected_as) for _, module in modules]
    for path, module in modules:
        module._collected, module._collected_as = collected, path
    try:
        yield collected
    finally:
        for module, other, path in before:
            module._collected, module._collected_as = other, path


ACTIVATIONS = {"relu": nn.functional.relu, "gelu": nn.functional.gelu, "swiglu": nn.functional.silu}
_LEAST_SPREAD = 1e-4  # of the noise: a probability is a difference divided by it


class Choice(NamedTuple):
    """The experts of each token, best first."""

    experts: Tensor  # (N, k)
    gates: Tensor  # (N, k), each row sums to one
    last: Tensor  # (N, 1) the score of the worst that was chosen
    next: Tensor | None  # (N, 1) the score of the best that was not; None where all are chosen


def choose(scores: Tensor, top: int) -> Choice:
    """KeepTopK and softmax (equations 3 and 5): scores (N, E). Of equal scores the earlier expert is taken."""
    ordered, experts = scores.sort(dim=-1, descending=True, stable=True)
    gates = ordered[:, :top].softmax(-1)
    following = ordered[:, top : top + 1] if top < scores.shape[1] else None
    return Choice(experts[:, :top], gates, ordered[:, top - 1 : top], following)


def choice_probability(clean: Tensor, spread: Tensor, choice: Choice) -> Tensor:
    """P(x, i) (N, E): that expert i is chosen if its noise alone is drawn again (appendix A, equations 8 and 9).

    P(x, i) = Φ(((x W_g)_i − kth_excluding(H(x), k, i)) / softplus((x W_noise)_i)): the k-th best of the others is the
    (k+1)-th of all for an expert that was chosen, the k-th for one that was not.
    """
    if choice.next is None:
        return torch.ones_like(clean)
    chosen = torch.zeros_like(clean, dtype=torch.bool).scatter(1, choice.experts, True)
    threshold = torch.where(chosen, choice.next, choice.last)
    return torch.special.ndtr((clean - threshold) / spread)


def squared_variation(amounts: Tensor) -> Tensor:
    """CV(x)² = Var(x) / Mean(x)²: zero when all are equal (equations 7 and 11)."""
    return amounts.var(correction=0) / (amounts.mean() ** 2 + 1e-10)


def slots_each(factor: float, top: int, tokens: int, experts: int) -> int:
    """C = ⌈factor · k · N / E⌉, and never more than there are tokens: none chooses an expert twice."""
    return max(1, min(tokens, math.ceil(factor * top * tokens / experts)))


class Routes(NamedTuple):
    """Where each of the k · N choices goes: the first choices of all tokens, then the second ones."""

    slots: Tensor  # (k·N,) place among the E · C; E · C where there is none
    kept: Tensor  # (k·N,) False: the expert is full, or the token is padding
    counts: Tensor  # (E,) choices of real tokens for each expert, those dropped included
    capacity: int  # C


def route(experts: Tensor, real: Tensor | None, count: int, capacity: int | None) -> Routes:
    """Give each choice (N, k) a slot at its expert, first come first served; without a capacity all find one."""
    choices = experts.t().reshape(-1)  # (k·N,)
    if real is not None:
        choices = torch.where(real.repeat(experts.shape[1]), choices, count)  # padding asks for one that is not there
    order = choices.argsort(stable=True)
    arranged = choices[order]
    bounds = torch.searchsorted(arranged, torch.arange(count + 1, device=choices.device))  # where each expert's begin
    ranks = torch.arange(len(choices), device=choices.device) - bounds[arranged]
    rank = torch.empty_like(ranks).scatter(0, order, ranks)  # how many asked for the same expert before
    counts = bounds.diff()
    if capacity is None:
        capacity = max(1, int(counts.max()))
    kept = (rank < capacity) & (choices < count)
    return Routes(torch.where(kept, choices * capacity + rank, count * capacity), kept, counts, capacity)


def dispatch(x: Tensor, routes: Routes, top: int, count: int) -> Tensor:
    """Tokens (N, D) → (E, C, D), zeros where a slot is empty. What has no slot is written behind the last one."""
    room = count * routes.capacity
    laid = x.new_zeros(room + 1, x.shape[1]).index_copy(0, routes.slots, x.repeat(top, 1))
    return laid[:room].view(count, routes.capacity, x.shape[1])


def combine(outputs: Tensor, gates: Tensor, routes: Routes) -> Tensor:
    """Outputs (E, C, D), gates (N, k) → Σ_i G(x)_i E_i(x) (N, D), summed in the precision of the gates.

    Every slot is read by one choice at most but for the last, which the dropped ones read with a weight of zero: sums
    of the backward pass do not depend on an order.
    """
    flat = outputs.flatten(0, 1)
    picked = flat.index_select(0, routes.slots.clamp(max=len(flat) - 1))  # (k·N, D)
    weights = torch.where(routes.kept, gates.t().reshape(-1), 0.0)
    mixed = (weights[:, None] * picked).view(gates.shape[1], gates.shape[0], -1).sum(0)
    return mixed.to(outputs.dtype)


class ExpertNets(nn.Module):
    """E nets side by side: f(x W₁ + b₁) W₂ + b₂ each, or gated: (silu(x W₁) ∘ x W₃) W₂."""

    def __init__(self, count: int, width: int, hidden: int, kind: str, dropout: float) -> None:
        super().__init__()
        self.kind, self.activation, self.gated = kind, ACTIVATIONS[kind], kind == "swiglu"
        inner = 2 * hidden if self.gated else hidden
        self.count = count
        self.up = nn.Parameter(torch.empty(count, width, inner))
        self.down = nn.Parameter(torch.empty(count, hidden, width))
        self.up_bias = nn.Parameter(torch.empty(count * inner))  # vectors: weight decay is for matrices
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
    """A mixture of experts in place of a position-wise net."""

    own_parameters_first = True

    def __init__(
        self, recipe: ExpertsConfig, width: int, *, hidden: int, kind: str = "relu", dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.recipe, self.count, self.top = recipe, recipe.count, recipe.top_k
        self.gate = nn.Parameter(torch.empty(recipe.count, width))
        self.noise = nn.Parameter(torch.empty(recipe.count, width)) if recipe.noise else None
        self.reset_parameters()
        self.nets = ExpertNets(recipe.count, width, recipe.hidden or hidden, kind, dropout)

    def reset_parameters(self) -> None:
        """With noise all experts start equal (appendix A); without it, equal gates would pick the same k for ever."""
        if self.noise is None:
            nn.init.xavier_uniform_(self.gate)
        else:
            nn.init.zeros_(self.gate)
            nn.init.zeros_(self.noise)

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """x (…, D); `valid` (…), True at real tokens, None: all are. What is not real is not routed: zeros."""
        flat, real = x.reshape(-1, x.shape[-1]), None if valid is None else valid.reshape(-1)  # (N, D), (N,)
        clean, spread = self._scores(flat)
        scores = clean if spread is None else clean + torch.randn_like(clean) * spread
        scores = self._shown_scores(scores, x.shape[:-1])
        choice, gates = self._shown(choose(scores, self.top), scores, x.shape[:-1])
        limit = slots_each(self.recipe.capacity_factor, self.top, len(flat), self.count) if self.training else None
        routes = route(choice.experts, real, self.count, limit)
        outputs = self.nets(dispatch(flat, routes, self.top, self.count))
        mixed = combine(outputs, choice.gates, routes).view(x.shape)
        if self.collecting:
            self._balance(clean, spread, choice, routes, real)
        return self._shown_output(mixed, x, valid, gates)

    def _scores(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """x W_g and, while training with noise, how wide that is. In full precision: near ties decide everything."""
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(self.gate.dtype)
            clean = nn.functional.linear(x, self.gate)  # (N, E)
            if self.noise is None or not self.training:
                return clean, None
            return clean, nn.functional.softplus(nn.functional.linear(x, self.noise)).clamp(min=_LEAST_SPREAD)

    # What is shown is told by the formula: each token alone, not sorted by expert and laid into slots.

    def _shown_scores(self, scores: Tensor, shape: torch.Size) -> Tensor:
        """H(x) (N, E), after those who listen saw it as (…, E)."""
        if not self.recorded:
            return scores
        formula = "x W_gᵀ" + (" + noise" if self.noise is not None and self.training else "")
        return self.tap("scores", scores.view(*shape, self.count), formula, axes={-1: "experts"}).view(-1, self.count)

    def _shown(self, choice: Choice, scores: Tensor, shape: torch.Size) -> tuple[Choice, Tensor | None]:
        """The choice, and its gates (…, E) after those who listen saw them and maybe switched some experts off."""
        if not self.recorded:
            return choice, None
        told = {"x": scores.view(*shape, self.count), "top": self.top}
        gates = self._spread_out(choice).view(*shape, self.count)
        gates = self.tap("gates", gates, "softmax(top k of H(x))", ["scores"], "top_k_softmax", told, {-1: "experts"})
        return choice._replace(gates=gates.view(-1, self.count).gather(1, choice.experts)), gates

    def _shown_output(self, mixed: Tensor, x: Tensor, valid: Tensor | None, gates: Tensor | None) -> Tensor:
        """What goes on. (While training some choices find no slot, and the formula alone does not tell which.)"""
        nets, operation = self.nets, ""
        told: dict[str, Any] = {}
        if gates is not None and not self.training:
            operation = "mixture_of_experts"
            told = {"x": x, "gates": gates, "widen": nets.up, "narrow": nets.down, "real": valid}
            told |= {"widen_bias": nets.up_bias, "narrow_bias": nets.down_bias, "kind": nets.kind}
        return self.tap("output", mixed, "Σ_i G_i E_i(x)", ["gates"], operation, told)

    def _spread_out(self, choice: Choice) -> Tensor:
        """G(x) (N, E), zeros where an expert was not chosen."""
        empty = choice.gates.new_zeros(len(choice.gates), self.count)
        return empty.scatter(1, choice.experts, choice.gates)

    def _balance(
        self, clean: Tensor, spread: Tensor | None, choice: Choice, routes: Routes, real: Tensor | None
    ) -> None:
        """w_importance · CV(Σ_x G(x))² + w_load · CV(Σ_x P(x))²; choices for each expert, and how many were dropped."""

        def summed(amounts: Tensor) -> Tensor:
            return (amounts if real is None else torch.where(real[:, None], amounts, 0.0)).sum(0)

        loss = self.recipe.importance * squared_variation(summed(self._spread_out(choice)))
        if spread is not None and self.recipe.load:
            loss = loss + self.recipe.load * squared_variation(summed(choice_probability(clean, spread, choice)))
        dropped = routes.counts.sum() - routes.kept.sum()
        self.add_loss(loss, torch.cat([routes.counts, dropped[None]]))


class ExpertsBetween(nn.Module):
    """Experts in a stack of recurrent layers, below the top one, as in the paper: x + dropout(experts(x)).

    (Its language models take a sigmoid of what experts say; here a token that was dropped goes on unchanged.) Without
    a recipe nothing stands between the layers.
    """

    def __init__(self, recipe: ExpertsConfig | None, layers: int, width: int, dropout: float) -> None:
        super().__init__()
        placed = {} if recipe is None else {str(layers - 1): Experts(recipe, width, hidden=4 * width)}
        self.experts = nn.ModuleDict(placed)  # by the number of the layer above them
        self.dropout = Dropout(dropout)

    def forward(self, layer: int, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """x (B, T, D) on its way into layer number `layer`."""
        name = str(layer)
        if name not in self.experts:
            return x
        return self.dropout.add(x, self.experts[name](x, valid))
