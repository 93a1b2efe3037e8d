"""∂L_T/∂h₀ of a recurrent decoder as the product of its steps' Jacobians, factor by factor.

    ∂L_T/∂h₀ = ∂h₁/∂h₀ · ∂h₂/∂h₁ ⋯ ∂h_T/∂h_{T−1} · ∂L_T/∂h_T,    (∂h_t/∂h_{t−1})_ij = ∂h_t,j / ∂h_{t−1},i

h is the whole state of the decoder: the hidden states of all layers in a row, each followed by its cell c in an LSTM,
and the context or features that the next step reads with input feeding. For an Elman cell the factor is
W_hᵀ diag(1 − h_t²); in an LSTM the block ∂c_t/∂c_{t−1} is diag(f_t) (Hochreiter and Schmidhuber 1997).

With attention a state of the encoder has a second path to the loss, which is one step long (`shortcut`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sightline.inspection.attention import LoadedRun
from sightline.inspection.claims.table import Claim, ClaimTable, matrix_table
from sightline.inspection.gradients import differentiable, keep_states
from sightline.inspection.samples import example_batch
from sightline.layers.layout import Padded
from sightline.layers.recurrent import FastForwardConnection
from sightline.layers.tap import Tapped, on_taps
from sightline.models.build import build_model
from sightline.models.language_model import LanguageModel
from sightline.models.recurrent.modules import RecurrentDecoder, RecurrentState
from sightline.recipe.model import ModelConfig
from sightline.terminal import visible

_WIDEST = 8  # features of a state whose matrices are printed
CHAINS = ("elman", "gru", "lstm")  # cells of models without a run


@dataclass(frozen=True)
class JacobianChain:
    """The factors of ∂L_T/∂h₀, T of them, and the gradient at the last state."""

    label: str
    factors: Tensor  # (T, D, D), [t, i, j] = ∂h_{t+1},j / ∂h_t,i
    last: Tensor  # (D), ∂L_T/∂h_T
    autograd: Tensor  # (D), ∂L_T/∂h₀ by backpropagation through all steps
    parts: int = 1  # 2 for a single LSTM layer, whose state is [h ; c]

    def products(self) -> list[Tensor]:
        """∂L_T/∂h_t for t = T, T−1, …, 0, each one more factor."""
        gradients = [self.last]
        for factor in reversed(self.factors.unbind()):
            gradients.append(factor @ gradients[-1])
        return gradients

    @property
    def error(self) -> float:
        """The largest difference between the product and backpropagation."""
        return float((self.products()[-1] - self.autograd).abs().max())

    def table(self) -> ClaimTable:
        """One row for each factor, from the loss backwards."""
        count, gradients = len(self.factors), self.products()
        columns = ["factor", "‖factor‖₂", "Frobenius", *(["‖∂c/∂c‖₂"] if self.parts == 2 else []), "gives", "norm"]
        blank = [None] * (self.parts == 2)
        last = f"∂L{_below(count)}/∂h{_below(count)}"
        rows: list[list[Any]] = [[last, None, None, *blank, last, float(self.last.norm())]]
        for t in range(count, 0, -1):
            factor, half = self.factors[t - 1], self.factors.shape[1] // 2
            cells = [float(torch.linalg.matrix_norm(factor[half:, half:], 2))] if self.parts == 2 else []
            norms = [float(torch.linalg.matrix_norm(factor, 2)), float(factor.norm()), *cells]
            name, result = f"∂h{_below(t)}/∂h{_below(t - 1)}", f"∂L{_below(count)}/∂h{_below(t - 1)}"
            rows.append([name, *norms, result, float(gradients[count - t + 1].norm())])
        return ClaimTable(f"{self.label}: {self.factors.shape[1]} features in a state", columns, rows)

    def matrices(self) -> list[ClaimTable]:
        """Every factor in full, in the order of the product."""
        names = [str(number) for number in range(1, self.factors.shape[1] + 1)]
        tables = [
            matrix_table(f"{self.label}: ∂h{_below(t)}/∂h{_below(t - 1)}", factor, names, names)
            for t, factor in enumerate(self.factors, 1)
        ]
        count = _below(len(self.factors))
        ends = {f"∂L{count}/∂h{count}": self.last, "∂L/∂h₀ (product)": self.products()[-1], "∂L/∂h₀": self.autograd}
        return [*tables, matrix_table(f"{self.label}: gradients", list(ends.values()), list(ends), names)]


def _below(number: int) -> str:
    return str(number).translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))


def jacobian_chain(
    model: Any, inputs: Sequence[int], labels: Sequence[int], *, label: str = "", state: RecurrentState | None = None
) -> JacobianChain:
    """The chain of a language model, or of a translator from the `state` that it begins with.

    `inputs` are the T tokens that the decoder reads; the loss is −log p of the last of `labels`.
    """
    check_recurrent(model)
    start = model.begin_empty(1) if state is None else state
    flat = flatten(start)

    def step(before: Tensor, token: int) -> tuple[Tensor, Tensor]:
        features, after = model.advance(torch.tensor([[token]]), unflatten(before, start))
        return flatten(after), features[:, -1]

    def loss_of(features: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model.logits(features), torch.tensor([labels[-1]]))

    states, factors = [flat.detach()], []
    for token in inputs:
        rows = torch.autograd.functional.jacobian(lambda h, token=token: step(h, token)[0], states[-1])  # [j, i]
        factors.append(rows.T)
        states.append(step(states[-1], token)[0].detach())
    # L_T depends on h_T through the features that the last step computes from it
    before = states[-2].requires_grad_()
    first = flat.detach().requires_grad_()
    with torch.enable_grad():
        hidden, features = first, None
        for token in inputs:
            hidden, features = step(hidden, token)
        assert features is not None
        (whole,) = torch.autograd.grad(loss_of(features), first)
        last = _gradient_at_end(model, before, inputs[-1], start, loss_of)
    parts = 2 if len(start.hidden) == 1 and len(start.hidden[0]) == 2 and start.input_feed is None else 1
    return JacobianChain(label, torch.stack(factors).detach(), last, whole, parts)


def _gradient_at_end(
    model: Any, before: Tensor, token: int, start: RecurrentState, loss_of: Callable[[Tensor], Tensor]
) -> Tensor:
    """∂L_T/∂h_T: the features are recomputed from the final hidden state, which is a leaf."""
    kept: list[Tensor] = []
    layers = list(model.decoder.layers)
    originals = [layer.unrolled for layer in layers]

    def leaf(original: Callable[..., Any]) -> Callable[..., Any]:
        def unrolled(x: Tensor, hidden: Any) -> Any:
            _, after = original(x, hidden)
            after = tuple(part.detach().requires_grad_() for part in after)
            kept.extend(after)
            return after[0][:, None], after

        return unrolled

    for layer, original in zip(layers, originals, strict=True):
        layer.__dict__["unrolled"] = leaf(original)
    try:
        features, after = model.advance(torch.tensor([[token]]), unflatten(before, start))
    finally:
        for layer in layers:
            del layer.__dict__["unrolled"]
    gradients = torch.autograd.grad(loss_of(features[:, -1]), kept, allow_unused=True)
    rows = [torch.zeros_like(part) if each is None else each for part, each in zip(kept, gradients, strict=True)]
    if after.input_feed is not None:  # it is computed from the hidden state, and only the next step reads it
        rows.append(torch.zeros_like(after.input_feed[:, 0]))
    return torch.cat([row.flatten() for row in rows]).detach()


def check_recurrent(model: Any) -> None:
    """Refuse models whose decoder has no state that each step computes from the one before."""
    decoder = getattr(model, "decoder", None)
    if not isinstance(decoder, RecurrentDecoder):
        what = type(model).__name__ if decoder is None else f"a {type(decoder).__name__}"
        raise ValueError(
            f"{what} has no hidden state that is computed from the one before; give a run with a recurrent decoder "
            "(model.decoder.kind: recurrent): a language model or a translator"
        )
    fed_past = any(isinstance(each, FastForwardConnection) for each in decoder.skip_connections) and decoder.feed_width
    if decoder.query_previous or fed_past:
        key = "query: previous" if decoder.query_previous else "skip_connections: fast-forward with input_feeding"
        raise ValueError(
            f"model.decoder.{key}: the loss of a token depends on two hidden states, not on the last alone, so it is "
            "no product of the steps' Jacobians; give a run without it"
        )


def flatten(state: RecurrentState) -> Tensor:
    """All hidden states of one hypothesis as a vector (D), and what input feeding hands to the next step."""
    parts = [part.flatten() for layer in state.hidden for part in layer]
    return torch.cat([*parts, *([] if state.input_feed is None else [state.input_feed.flatten()])])


def unflatten(flat: Tensor, like: RecurrentState) -> RecurrentState:
    """The state of a vector (D)."""
    parts = [part for layer in like.hidden for part in layer]
    feeds = [] if like.input_feed is None else [like.input_feed]
    pieces = list(flat.split([part.numel() for part in (*parts, *feeds)]))
    shaped = iter(piece.view(part.shape) for piece, part in zip(pieces, (*parts, *feeds), strict=True))
    hidden = tuple(tuple(next(shaped) for _ in layer) for layer in like.hidden)
    return replace(like, hidden=hidden, input_feed=next(shaped) if feeds else None)


# --- the shortcut of attention ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shortcut:
    """Norms of ∂L_T/∂e_j for each state e_j of the top encoder layer, by path."""

    words: Sequence[str]
    recurrence: list[float]  # through the steps of the encoder and the initial state of the decoder
    attention: list[float]  # through the contexts alone: one step
    both: list[float]  # by backpropagation
    weights: list[float]  # of the last decoder step

    def table(self) -> ClaimTable:
        columns = ["source token", "by recurrence", "by attention", "all paths", "weight"]
        rows = zip(self.words, self.recurrence, self.attention, self.both, self.weights, strict=True)
        return ClaimTable("‖∂L_T/∂e_j‖ of each encoder state", columns, [list(row) for row in rows])


def shortcut(model: Any, source: Sequence[int], inputs: Sequence[int], label: int, words: Sequence[str]) -> Shortcut:
    """The paths from the loss of the last token of `inputs` to each encoder state."""
    tokens, answer, count = torch.tensor([list(inputs)]), torch.tensor([label]), len(source)

    def norms(detached: str) -> tuple[list[float], RecurrentState]:
        with keep_states(model) as kept:
            state = model.begin(model.encode(torch.tensor([list(source)]), Padded.of([count])))
            if detached == "attention":
                state = replace(state, **{name: getattr(state, name).detach() for name in ("keys", "values")})
        features, _ = model.advance(tokens, state)
        loss = nn.functional.cross_entropy(model.logits(features[:, -1]), answer)
        states = list(kept.layers("encoder").values())[-1]
        gradients = torch.autograd.grad(loss, states.tensors, allow_unused=True)
        return states.norms(list(gradients), count)[0].tolist(), state

    with differentiable(model):
        every, state = norms("")
        recurrence, _ = norms("attention")
        assert state.values is not None
        values = state.values.detach().requires_grad_()
        keys = model.decoder.attention.project_memory(values[:, 0])[:, None]
        hidden = tuple(tuple(part.detach() for part in layer) for layer in state.hidden)
        state = replace(state, hidden=hidden, keys=keys, values=values)
        weights: list[Tensor] = []
        features, _ = _with_weights(model, tokens, state, weights)
        loss = nn.functional.cross_entropy(model.logits(features[:, -1]), answer)
        (direct,) = torch.autograd.grad(loss, values)
    attention = direct[0, 0].norm(dim=-1).tolist()
    return Shortcut(words, recurrence, attention, every, weights[-1].flatten()[-count:].tolist())


def _with_weights(model: Any, tokens: Tensor, state: RecurrentState, kept: list[Tensor]) -> Any:
    """`advance`, keeping the attention weights of every step."""

    def keep(tapped: Tapped) -> None:
        if tapped.name.endswith(".weights"):
            kept.append(tapped.tensor.detach())

    with on_taps(model, keep, ["decoder.attention"]):
        return model.advance(tokens, state)


# --- models and the view --------------------------------------------------------------------------------------------


def fresh_model(cell: str, width: int, *, vocabulary: int = 11, seed: int = 1) -> LanguageModel:
    """An untrained language model with one layer of a cell."""
    decoder = {"kind": "recurrent", "cell": cell, "layers": 1, "attention": {"kind": "none"}, "dropout": 0.0}
    recipe = ModelConfig.model_validate({"width": width, "decoder": decoder, "tie": "none"})
    torch.manual_seed(seed)
    model: LanguageModel = in_double(LanguageModel(recipe, vocabulary))
    return model


def in_double(model: Any) -> Any:
    """A copy in double precision without dropout."""
    return copy.deepcopy(model).double().eval()


def run_claim(
    run: LoadedRun, text: str, target: str | None, *, steps: int, fresh: bool = False, matrices: bool = False
) -> Claim:
    """The chain of a run over the first `steps` tokens of its output, trained or at initialization."""
    check_recurrent(run.model)
    model = build_model(run.recipe, run.vocabulary) if fresh else run.model
    model, translates = in_double(model), not run.recipe.task_spec.continues_text
    if target is None:
        target = run.predict([text])[0] if translates else text
    batch = example_batch(run.recipe, run.vocabulary, text, target)
    assert batch.decoder_input is not None
    inputs, labels = batch.decoder_input[0, :steps].tolist(), batch.labels[0, :steps].tolist()
    label = f"{run.folder.name}, {'at initialization' if fresh else 'trained'}"
    if not translates:
        return jacobians_claim([jacobian_chain(model, inputs, labels, label=label)], matrices=matrices)
    assert batch.source is not None
    source = batch.source[0].tolist()
    with torch.no_grad():
        state = model.begin(model.encode(batch.source, Padded.of([len(source)])))
    chain = jacobian_chain(model, inputs, labels, label=label, state=state)
    attends = model.decoder.attention is not None
    words = [visible(piece) for piece in run.vocabulary.source.pieces(source)]
    paths = shortcut(model, source, inputs, labels[-1], words) if attends else None
    return jacobians_claim([chain], paths, matrices=matrices)


def fresh_chains(cells: Sequence[str], width: int, steps: int, seed: int = 1) -> list[JacobianChain]:
    """The chains of untrained language models, which read the same random tokens."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(4, 11, (steps + 1,), generator=generator).tolist()
    return [
        jacobian_chain(fresh_model(cell, width, seed=seed), tokens[:-1], tokens[1:], label=f"fresh {cell}")
        for cell in cells
    ]


def jacobians_claim(
    chains: Sequence[JacobianChain], attention: Shortcut | None = None, *, matrices: bool = False
) -> Claim:
    """Factors and products as tables; matrices where they are small, or always."""
    tables = [chain.table() for chain in chains]
    for chain in chains:
        if matrices or (len(chains) == 1 and chain.factors.shape[1] <= _WIDEST):
            tables += chain.matrices()
    tables += [attention.table()] if attention is not None else []
    notes = [f"{chain.label}: product − autograd is at most {chain.error:.1e}" for chain in chains]

    def draw(path: Path) -> None:
        from sightline.plots.lines import Panel, Series, draw_lines

        lines = []
        for style, chain in enumerate(chains):
            norms = [float(gradient.norm()) for gradient in chain.products()]
            lines.append(Series(chain.label, list(range(len(norms))), norms, style))
        panels = [Panel("product of the last n factors", "n", "‖∂L_T/∂h_{T−n}‖", lines)]
        if attention is not None:
            names = ("by recurrence", "by attention", "all paths")
            paths = (attention.recurrence, attention.attention, attention.both)
            places = list(range(1, len(attention.words) + 1))
            rows = [Series(name, places, row, k) for k, (name, row) in enumerate(zip(names, paths, strict=True), 2)]
            panels.append(Panel("paths to the encoder states", "source token", "‖∂L_T/∂e_j‖", rows))
        draw_lines(panels, path)

    numbers = {
        "chains": [
            {"label": c.label, "factors": c.factors.tolist(), "last": c.last.tolist(), "error": c.error} for c in chains
        ]
    }
    claim = "∂L_T/∂h₀ = ∂h₁/∂h₀ · ∂h₂/∂h₁ ⋯ ∂h_T/∂h_T−1 · ∂L_T/∂h_T, from the loss backwards"
    return Claim(claim, tables, notes, numbers, draw)
