"""Attribute the log-probability of each output token to the input tokens.

    input-gradient          x_k · ∂f/∂x_k (Shrikumar et al. 2016)
    integrated-gradients    (x_k − x'_k) · ∫₀¹ ∂f/∂x_k(x' + a (x − x')) da (Sundararajan et al. 2017), baseline x' = 0
    occlusion               f(x) − f(x with token k replaced by <unk>)

f is log p of an output token and x_k the embedding of input token k.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from sightline.data.collate import TrainingBatch
from sightline.inspection.alignment import Alignment
from sightline.inspection.attention import rounded
from sightline.inspection.gradients import differentiable
from sightline.layers.embedding import Embedding
from sightline.layers.layout import Padded
from sightline.plots.matrices import Numbers, row_shares
from sightline.text.tokenizer import PAD, SPACE, UNK
from sightline.text.vocabulary import Vocabulary
from sightline.text.word_pieces import word_groups


@dataclass(frozen=True, eq=False)
class Attribution:
    """Attributions of A outputs to S source and T target tokens, in nats."""

    method: str
    outputs: list[str]
    scores: Numbers  # (A,) log p
    source: list[str]
    from_source: Numbers  # (A, S)
    target: list[str]  # decoder input: <s>, then all outputs but the last
    from_target: Numbers  # (A, T); 0 for later tokens
    gaps: Numbers | None = None  # (A,) of integrated gradients: f(x) − f(x') − Σ attributions, ideally 0

    def __post_init__(self) -> None:
        for what, tokens, result in (
            ("source", self.source, self.from_source),
            ("target", self.target, self.from_target),
        ):
            if result.shape != (len(self.outputs), len(tokens)):
                raise ValueError(
                    f"the attributions to the {what} are {result.shape} and must be (outputs, tokens), here "
                    f"{(len(self.outputs), len(tokens))}"
                )

    def shares(self) -> tuple[Numbers, Numbers]:
        """(A, S) and (A, T): absolute values, normalized by row."""
        both = row_shares(np.concatenate([self.from_source, self.from_target], axis=1))
        return both[:, : len(self.source)], both[:, len(self.source) :]

    def alignment(self) -> Alignment:
        """The shares as one grid: source tokens, then target tokens (marked with » if there are both)."""
        mark = "»" if self.source else ""
        columns = [*self.source, *(mark + token for token in self.target)]
        return Alignment(columns, self.outputs, np.concatenate(self.shares(), axis=1).astype(np.float32))

    def words(self) -> Attribution:
        """Sum log p and attributions over the pieces of each word."""
        outputs, source, target = (word_groups(tokens) for tokens in (self.outputs, self.source, self.target))

        def summed(result: Numbers, columns: list[list[int]]) -> Numbers:
            rows = [result[group].sum(0) for group in outputs]
            return np.array([[row[group].sum() for group in columns] for row in rows]).reshape(len(rows), len(columns))

        return replace(
            self,
            outputs=_joined_pieces(self.outputs, outputs),
            scores=np.array([self.scores[group].sum() for group in outputs]),
            source=_joined_pieces(self.source, source),
            from_source=summed(self.from_source, source),
            target=_joined_pieces(self.target, target),
            from_target=summed(self.from_target, target),
            gaps=None if self.gaps is None else np.array([self.gaps[group].sum() for group in outputs]),
        )

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "method": self.method,
            "outputs": self.outputs,
            "scores": rounded(self.scores),
            "source": self.source,
            "from_source": rounded(self.from_source),
            "target": self.target,
            "from_target": rounded(self.from_target),
            **({} if self.gaps is None else {"gaps": rounded(self.gaps)}),
        }


def _joined_pieces(pieces: Sequence[str], groups: Sequence[Sequence[int]]) -> list[str]:
    return ["".join(pieces[place] for place in group).lstrip(SPACE) or SPACE for group in groups]


Method = Literal["input-gradient", "integrated-gradients", "occlusion"]
_TOKENS = 4_096  # of a batch


@dataclass(frozen=True)
class AttributionInput:
    """One example: source tokens (S,), decoder input (T,), and the labels whose log-probability is attributed."""

    source: Tensor | None
    decoder_input: Tensor | None
    labels: Tensor  # (T,), (S,) or (1,); PAD where nothing is attributed

    @staticmethod
    def of(batch: TrainingBatch) -> AttributionInput:
        """The example of a padded batch of one."""
        if len(batch.labels) != 1:
            raise ValueError(f"attribution takes one example at a time, and this batch has {len(batch.labels)}")
        source, decoder_input = (None if part is None else part[0] for part in (batch.source, batch.decoder_input))
        return AttributionInput(source, decoder_input, batch.labels[0])

    @property
    def places(self) -> Tensor:
        """(A,) the positions of the labels."""
        return (self.labels != PAD).nonzero()[:, 0]

    @property
    def sizes(self) -> tuple[int, int]:
        """The number of source tokens and of decoder inputs."""
        source, target = (0 if part is None else len(part) for part in (self.source, self.decoder_input))
        return source, target

    def to(self, device: torch.device) -> AttributionInput:
        source, target = (None if part is None else part.to(device) for part in (self.source, self.decoder_input))
        return AttributionInput(source, target, self.labels.to(device))


@dataclass(frozen=True)
class TokenNames:
    """The names of tokens and outputs."""

    source: Sequence[str]
    target: Sequence[str]
    outputs: Sequence[str]

    @staticmethod
    def of(example: AttributionInput, vocabulary: Vocabulary, text: str | None = None) -> TokenNames:
        """The pieces of an example; with `text`, unknown tokens are shown with their text."""
        source = [] if example.source is None else vocabulary.source.pieces(example.source.tolist())
        target = [] if example.decoder_input is None else vocabulary.target.pieces(example.decoder_input.tolist())
        if text is not None:
            source = vocabulary.source.show_unknown(source, text)
        places = example.places.tolist()
        outputs = vocabulary.target.pieces(example.labels[example.places].tolist())
        if vocabulary.labels == "words":
            outputs = [f"{source[place]} {label}" for place, label in zip(places, outputs, strict=True)]
        return TokenNames(source, target, outputs)


# --- log p as a function of tokens or of their embeddings -------------------------------------------------------------


@contextmanager
def _embeddings(model: nn.Module, hook: Callable[[Tensor], Tensor | None]) -> Iterator[None]:
    """Call `hook` with the result of each embedding, source before target; a returned tensor replaces it."""
    modules = [module for module in model.modules() if isinstance(module, Embedding)]
    if not modules:
        raise ValueError(f"{type(model).__name__} has no embedding, so there are no vectors to attribute to")
    handles = [module.register_forward_hook(lambda _, __, vectors: hook(vectors)) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _log_probabilities(
    model: Any, example: AttributionInput, sources: Tensor | None, decoder_input: Tensor | None
) -> Tensor:
    """(R, A): log p of every output for R rows of tokens (R, S) and (R, T)."""
    layouts = [None if part is None else Padded.of([part.shape[1]] * len(part)) for part in (sources, decoder_input)]
    features = model(sources, layouts[0], decoder_input, layouts[1])
    features = features[:, None] if features.ndim == 2 else features[:, example.places]  # (R, A, D)
    scores = model.logits(features)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32)).log_softmax(-1)
    labels = example.labels[example.places].expand(len(features), -1)
    result: Tensor = scores.gather(-1, labels[..., None])[..., 0]
    return result


def _rows(tokens: Tensor | None, count: int) -> Tensor | None:
    return None if tokens is None else tokens.expand(count, -1)


def _vectors(model: nn.Module, example: AttributionInput) -> list[Tensor]:
    """The embeddings (1, S, D) of the source and (1, T, D) of the decoder input, if present."""
    result: list[Tensor] = []
    with torch.no_grad(), _embeddings(model, lambda vectors: result.append(vectors.detach())):
        _log_probabilities(model, example, _rows(example.source, 1), _rows(example.decoder_input, 1))
    return result


def _from_vectors(model: nn.Module, example: AttributionInput, vectors: Sequence[Tensor]) -> Tensor:
    """(R, A): log p of every output for R rows of embeddings (R, S, D) and (R, T, D)."""
    replacements, count = iter(vectors), len(vectors[0])
    with _embeddings(model, lambda _: next(replacements)):
        return _log_probabilities(model, example, _rows(example.source, count), _rows(example.decoder_input, count))


# --- methods ---------------------------------------------------------------------------------------------------------


def attribute(
    model: nn.Module,
    example: AttributionInput,
    names: TokenNames,
    *,
    method: Method = "integrated-gradients",
    steps: int = 64,
) -> Attribution:
    """Attribute every output to every token; `steps` of integrated gradients."""
    with differentiable(model):
        gaps: Numbers | None = None
        if method == "occlusion":
            scores, result = _occlude(model, example)
        elif method == "integrated-gradients":
            scores, result, gaps = _integrate(model, example, steps)
        else:
            scores, result = _input_gradient(model, example)
    reads, _ = example.sizes
    return Attribution(
        method=method,
        outputs=list(names.outputs),
        scores=scores,
        source=list(names.source),
        from_source=result[:, :reads],
        target=list(names.target),
        from_target=result[:, reads:],
        gaps=gaps,
    )


def _chunks(example: AttributionInput) -> Iterator[Tensor]:
    """The indices of the outputs in batches."""
    count, tokens = len(example.places), max(1, sum(example.sizes))
    numbers = torch.arange(count, device=example.labels.device)
    yield from numbers.split(max(1, _TOKENS // tokens))


def _gradients(
    model: nn.Module, example: AttributionInput, vectors: Sequence[Tensor], outputs: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """(R,) log p of the outputs, and their gradients (R, ·, D) with respect to the embeddings (1, ·, D)."""
    leaves = [part.expand(len(outputs), -1, -1).clone().requires_grad_() for part in vectors]
    result = _from_vectors(model, example, leaves)[torch.arange(len(outputs), device=outputs.device), outputs]
    gradients = torch.autograd.grad(result.sum(), leaves, allow_unused=True)
    return result.detach(), [
        torch.zeros_like(leaf) if gradient is None else gradient
        for leaf, gradient in zip(leaves, gradients, strict=True)
    ]


def _input_gradient(model: nn.Module, example: AttributionInput) -> tuple[Numbers, Numbers]:
    vectors = _vectors(model, example)
    scores, rows = [], []
    for outputs in _chunks(example):
        result, gradients = _gradients(model, example, vectors, outputs)
        scores.append(result)
        rows.append(_dot(vectors, gradients))
    return _numbers(scores), _numbers(rows)


def _integrate(model: nn.Module, example: AttributionInput, steps: int) -> tuple[Numbers, Numbers, Numbers]:
    ends = _vectors(model, example)  # the baseline is 0
    along = _along(model, example, ends, 4 * steps)
    nodes = _nodes(along, steps)
    rows = []
    for outputs in _chunks(example):
        sums = [torch.zeros(1, device=part.device) for part in ends]
        for node, weight in nodes:
            _, gradients = _gradients(model, example, [node * end for end in ends], outputs)
            sums = [total + weight * gradient for total, gradient in zip(sums, gradients, strict=True)]
        rows.append(_dot(ends, sums))
    result = _numbers(rows)
    return along[-1], result, along[-1] - along[0] - result.sum(1)


def _along(model: nn.Module, example: AttributionInput, ends: Sequence[Tensor], parts: int) -> Numbers:
    """(parts + 1, A): log p of the outputs along the path from the baseline to the input."""
    shares = torch.linspace(0, 1, parts + 1, device=ends[0].device)
    with torch.no_grad():
        return _numbers(
            [
                _from_vectors(model, example, [some[:, None, None] * end for end in ends])
                for some in shares.split(max(1, _TOKENS // max(1, sum(example.sizes))))
            ]
        )


def _nodes(along: Numbers, steps: int) -> list[tuple[float, float]]:
    """Nodes and weights of the quadrature along the path.

    The outputs of a trained model change on a short part of the path, which even steps would miss. The path is divided
    into parts of equal change, with two Gauss points in each.
    """
    places = np.linspace(0, 1, len(along))
    change = np.abs(np.diff(along, axis=0)).sum(1)
    share = 0.75 * change / max(change.sum(), 1e-12) + 0.25 / len(change)  # > 0 everywhere
    gone = np.concatenate([[0.0], np.cumsum(share) / share.sum()])
    cuts = np.interp(np.linspace(0, 1, max(1, steps // 2) + 1), gone, places)
    middle, half = (cuts[1:] + cuts[:-1]) / 2, np.diff(cuts) / 2
    return [(float(m + sign * h / 3**0.5), float(h)) for m, h in zip(middle, half, strict=True) for sign in (-1, 1)]


def _occlude(model: nn.Module, example: AttributionInput) -> tuple[Numbers, Numbers]:
    source, target = example.source, example.decoder_input
    whole = _batched_log_probabilities(model, example, _rows(source, 1), _rows(target, 1))  # (1, A)
    drops = []
    if source is not None:
        masked = _masked(source)
        drops.append(whole - _batched_log_probabilities(model, example, masked, _rows(target, len(masked))))
    if target is not None:
        masked = _masked(target)
        drops.append(whole - _batched_log_probabilities(model, example, _rows(source, len(masked)), masked))
    return _numbers([whole[0]]), _numbers([torch.cat(drops).T])  # (A,), (A, S + T)


def _batched_log_probabilities(
    model: nn.Module, example: AttributionInput, sources: Tensor | None, decoder_input: Tensor | None
) -> Tensor:
    """`_log_probabilities` without gradients, in batches."""
    count = max(len(part) for part in (sources, decoder_input) if part is not None)
    size = max(1, _TOKENS // max(1, sum(example.sizes)))
    result = []
    with torch.no_grad():
        for at in range(0, count, size):
            parts = (None if part is None else part[at : at + size] for part in (sources, decoder_input))
            result.append(_log_probabilities(model, example, *parts))
    return torch.cat(result)


def _masked(tokens: Tensor) -> Tensor:
    """(N,) → (N, N): row n has <unk> at position n."""
    return torch.where(torch.eye(len(tokens), dtype=torch.bool, device=tokens.device), UNK, tokens)


def _dot(vectors: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
    """(R, S + T): x · g, summed over the width."""
    return torch.cat([(x * g).sum(-1) for x, g in zip(vectors, gradients, strict=True)], dim=1)


def _numbers(parts: Sequence[Tensor]) -> Numbers:
    return torch.cat(list(parts)).detach().double().cpu().numpy()
