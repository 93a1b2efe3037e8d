"""Alignments from cross-attention: weights between tokens, links between words, and their symmetrization.

Subword weights become word weights: summed over the pieces of a source word, averaged over those of a target word. Each
target word is linked to the source word with the largest weight; end marks are not words. Alignments of both directions
are combined as in Och & Ney (2003, §3.3) and Koehn et al. (2003).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from sightline.decoding.request import length_batches, pad_tokens
from sightline.decoding.scoring import initial_state
from sightline.inspection.attention import LoadedRun, attentions, find_head, head_names, rounded, short_name
from sightline.layers.tap import Tapped, on_taps
from sightline.text.tokenizer import SPACE, START, UNK, Tokenizer
from sightline.text.word_pieces import SegmentedText, align_pieces, align_words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from sightline.inspection.attention import Head
    from sightline.plots.terminal import TerminalGrid


@dataclass(frozen=True, eq=False, repr=False)
class Alignment:
    """Attention weights of each target token (row) on the source tokens (columns)."""

    source: list[str]
    target: list[str]
    weights: NDArray[np.float32]  # (T, S)

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", np.asarray(self.weights, dtype=np.float32))
        expected = (len(self.target), len(self.source))
        if self.weights.shape != expected and self.weights.size + expected[0] * expected[1]:
            raise ValueError(f"weights {self.weights.shape} must be (target tokens, source tokens), here {expected}")
        object.__setattr__(self, "weights", self.weights.reshape(expected))
        if not np.isfinite(self.weights).all():
            raise ValueError("weights must be finite numbers; nan or infinity means the model's attention went wrong")

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"source": list(self.source), "target": list(self.target), "weights": rounded(self.weights)}

    def draw(self, path: str | os.PathLike[str] | None = None, *, title: str | None = None) -> Figure:
        """Return a matplotlib figure of the weights, also written to `path` (.png, .svg or .pdf).

        To save the figure yourself without cutting labels: `figure.savefig(path, bbox_inches="tight")`. Needs
        matplotlib: `pip install 'sightline[viz]'`.
        """
        from sightline.plots.alignment import draw_alignment

        return draw_alignment(self, None if path is None else Path(path), title=title)

    def text(self, width: int = 100) -> str:
        """The weights as a grid of characters, a row for each target token."""
        from sightline.plots.terminal import plain_text

        return plain_text(self.grid(), width)

    def __repr__(self) -> str:
        size = f"{len(self.target)} target tokens × {len(self.source)} source tokens"
        both = f"{_beginning(self.target)} ← {_beginning(self.source)}"
        return f"Alignment({size}: {both}; .text() or .draw() shows it, .weights are the numbers)"

    def grid(self) -> TerminalGrid:
        """The weights for a terminal, a row for each target token."""
        from sightline.plots.terminal import TerminalGrid

        return TerminalGrid(self.target, self.source, self.weights)


def _beginning(tokens: list[str]) -> str:
    return repr(" ".join(tokens[:6]) + (" …" if len(tokens) > 6 else ""))


Link = tuple[int, int]
Links = frozenset[Link]
_NEIGHBOURS = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))


def intersection(forward: Links, backward: Links) -> Links:
    """Links in both directions: high precision."""
    return forward & backward


def union(forward: Links, backward: Links) -> Links:
    """Links in either direction: high recall."""
    return forward | backward


def grow_diag_final_and(forward: Links, backward: Links) -> Links:
    """Start from the intersection and add links of the union.

    grow-diag: repeatedly add links next to a link (diagonally too) of which at least one word has no link. final-and:
    add links, forward ones first, of which neither word has a link.
    """
    links = set(forward & backward)
    either = forward | backward
    sources, targets = {i for i, _ in links}, {j for _, j in links}

    def add(link: Link) -> None:
        links.add(link)
        sources.add(link[0])
        targets.add(link[1])

    grown = True
    while grown:
        grown = False
        for i, j in sorted(links):
            for down, across in _NEIGHBOURS:
                near = i + down, j + across
                if near in either and near not in links and (near[0] not in sources or near[1] not in targets):
                    add(near)
                    grown = True
    for direction in (forward, backward):
        for i, j in sorted(direction - links):
            if i not in sources and j not in targets:
                add((i, j))
    return frozenset(links)


SYMMETRIES: dict[str, Callable[[Links, Links], Links]] = {
    "intersection": intersection,
    "union": union,
    "grow-diag-final-and": grow_diag_final_and,
}


Weights = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class WordAlignment:
    """Attention weights of each target word on the source words."""

    source: list[str]
    target: list[str]
    weights: Weights  # (target words, source words)

    @property
    def links(self) -> Links:
        """(source word, target word): the source word with the largest weight above 0 of each target word."""
        if not self.source:
            return frozenset()
        best = self.weights.argmax(axis=1)
        return frozenset((int(i), j) for j, i in enumerate(best) if self.weights[j, i] > 0)

    def pharaoh(self) -> str:
        """The links in Pharaoh format."""
        return pharaoh(self.links)


def pharaoh(links: Links) -> str:
    """Links as `0-0 1-2`: source and target positions, in the order of the source."""
    return " ".join(f"{i}-{j}" for i, j in sorted(links))


@dataclass(frozen=True)
class HeadSelection:
    """Cross-attention heads to average, and at which step.

    By default the head that was guided in training, else the penultimate layer (Garg et al. 2019); of an ensemble,
    those of every model with cross-attention. At step t a decoder reads word t−1 and predicts word t. With `shift`,
    word t is aligned one step later, where it is the decoder's input (Chen et al. 2020, §3).
    """

    heads: tuple[str, ...] = ()
    shift: bool = False


def align_pairs(
    run: LoadedRun,
    sources: Sequence[str],
    targets: Sequence[str],
    selection: HeadSelection | None = None,
    *,
    source_words: Sequence[Sequence[str]] | None = None,
    target_words: Sequence[Sequence[str]] | None = None,
) -> list[WordAlignment]:
    """Align each pair of texts. Words are separated by spaces unless given as lists."""
    selections = [selection or HeadSelection()]
    return align_by_selections(run, sources, targets, selections, source_words=source_words, target_words=target_words)[
        0
    ]


def align_by_selections(
    run: LoadedRun,
    sources: Sequence[str],
    targets: Sequence[str],
    selections: Sequence[HeadSelection],
    *,
    source_words: Sequence[Sequence[str]] | None = None,
    target_words: Sequence[Sequence[str]] | None = None,
) -> list[list[WordAlignment]]:
    """Align each pair once for each selection of heads, in one pass."""
    if len(sources) != len(targets):
        raise ValueError(f"there are {len(sources)} sources and {len(targets)} targets; give each source one target")
    return _align(
        run,
        _segment_sources(run, sources, source_words),
        _segment(run.vocabulary.target, targets, target_words),
        selections,
    )


def align_outputs(
    run: LoadedRun, sources: Sequence[str], outputs: Sequence[Sequence[int]], selection: HeadSelection | None = None
) -> list[WordAlignment]:
    """Align sources with token ids that the model generated."""
    targets = [align_pieces(list(ids), _output_pieces(run, ids)) for ids in outputs]
    return _align(run, _segment_sources(run, sources, None), targets, [selection or HeadSelection()])[0]


# --- pieces and words --------------------------------------------------------------------------------------------


def _segment(tokenizer: Tokenizer, texts: Sequence[str], words: Sequence[Sequence[str]] | None) -> list[SegmentedText]:
    return [
        align_words(tokenizer, text, None if words is None else list(words[n]), n + 1) for n, text in enumerate(texts)
    ]


def _segment_sources(
    run: LoadedRun, texts: Sequence[str], words: Sequence[Sequence[str]] | None
) -> list[SegmentedText]:
    """Sources as the model reads them: words cut by data.clean.truncate_source have no pieces and no links."""
    most = run.recipe.data.clean.truncate_source
    every = _segment(run.vocabulary.source, texts, words)
    return [SegmentedText(each.ids[:most], each.words, each.members[:most]) for each in every]


def _output_pieces(run: LoadedRun, ids: Sequence[int]) -> list[str]:
    """The pieces of an output; a copied unknown word is a word of its own."""
    pieces = run.vocabulary.target.pieces(ids)
    if not run.recipe.copies_unknown:
        return pieces
    return [SPACE + piece if number == UNK else piece for number, piece in zip(ids, pieces, strict=True)]


def word_weights(weights: Weights, source: NDArray[np.bool_], target: NDArray[np.bool_]) -> Weights:
    """W_ji = mean over the pieces t of word j of Σ over the pieces s of word i of α_ts.

    weights (T, S), source (S, words), target (T, words) → (target words, source words).
    """
    summed = weights @ source.astype(np.float32)  # (T, source words)
    pieces = np.maximum(target.sum(axis=0), 1).astype(np.float32)[:, None]
    result: Weights = target.astype(np.float32).T @ summed / pieces
    return result


# --- attention ---------------------------------------------------------------------------------------------------


def select_heads(model: Any, names: Sequence[str]) -> dict[str, list[int]]:
    """Cross-attention heads by path, from names: `decoder.2.cross.1`, or all heads of `decoder.2.cross`."""
    names = names or [_head_name(layers, None, None) for layers in _cross_attention_paths(model)]
    counts = {path: count for path, count in attentions(model).items() if path in model.cross_attention_paths}
    chosen: dict[str, list[int]] = {}
    paths = {short_name(path): path for path in counts}
    for name in names:
        path = paths.get(short_name(name), "")
        if path:
            numbers = list(range(counts[path]))
        else:
            path, number = find_head(model, name)
            numbers = [number]
        if path not in counts:
            known = [each for each in head_names(model) if each.rpartition(".")[0] in counts]
            raise ValueError(f"{name} is no cross-attention head; {known[0]} … {known[-1]} are")
        chosen[path] = sorted({*chosen.get(path, []), *numbers})
    return chosen


def guided_selection(run: LoadedRun, selection: HeadSelection) -> HeadSelection:
    """The selection, or without names the head that was guided in training."""
    guide = run.recipe.training.guided_alignment
    if selection.heads or guide is None:
        return selection
    heads = tuple(_head_name(layers, guide.layer, guide.head) for layers in _cross_attention_paths(run.model))
    return HeadSelection(heads, guide.shift or selection.shift)


def head_at(model: Any, layer: int | None, head: int | None) -> str:
    """The name of a cross-attention head, or of its layer without `head`; numbers count from 0, None: the default."""
    (layers,) = _cross_attention_paths(model)
    return _head_name(layers, layer, head)


def _cross_attention_paths(model: Any) -> list[tuple[str, ...]]:
    """The paths of cross-attention layers, from the bottom, of the model or of each member of an ensemble."""
    members = getattr(model, "member_cross_attention_paths", (tuple(model.cross_attention_paths),))
    paths = [layers for layers in members if layers]
    if not paths:
        raise ValueError("this model has no cross-attention, so it aligns nothing")
    return paths


def _head_name(layers: Sequence[str], layer: int | None, head: int | None) -> str:
    place = max(len(layers) - 2, 0) if layer is None else layer
    if not 0 <= place < len(layers):
        raise ValueError(f"there is no layer {place} with cross-attention; there are {len(layers)}, counted from 0")
    return layers[place] if head is None else f"{layers[place]}.{head}"


@torch.inference_mode()
def source_attention(
    run: LoadedRun,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    *groups: dict[str, list[int]],
    tokens: int = 4096,
) -> list[list[Weights]]:
    """Mean attention (T + 1, S + 1) of each group of heads on each pair under teacher forcing, end marks included."""
    results = [[np.zeros((0, 0), np.float32)] * len(sources) for _ in groups]
    paths = tuple(dict.fromkeys(path for heads in groups for path in heads))
    lengths = [max(len(source), len(target)) + 1 for source, target in zip(sources, targets, strict=True)]
    for indices in length_batches(lengths, tokens):
        decoder_input = [[START, *targets[index]] for index in indices]
        recorded: dict[str, list[torch.Tensor]] = {}

        def on_tap(tapped: Tapped, recorded: dict[str, list[torch.Tensor]] = recorded) -> None:
            path, _, point = tapped.name.rpartition(".")
            if point == "weights":
                recorded.setdefault(path, []).append(tapped.tensor)  # (B, H, T or 1, S)

        with on_taps(run.model, on_tap, paths):
            state = initial_state(run.model, [sources[index] for index in indices], run.device)
            run.model.advance(pad_tokens(decoder_input, run.device), state)
        weights = {path: torch.cat(parts, dim=2).float() for path, parts in recorded.items()}  # (B, H, T, S)
        for heads, result in zip(groups, results, strict=True):
            chosen = torch.cat([weights[path][:, numbers] for path, numbers in heads.items()], dim=1)
            mean = chosen.mean(1).cpu().numpy()  # (B, T, S)
            for row, index in enumerate(indices):
                result[index] = mean[row, : len(targets[index]) + 1, : len(sources[index]) + 1]
    return results


def _align(
    run: LoadedRun,
    sources: Sequence[SegmentedText],
    targets: Sequence[SegmentedText],
    selections: Sequence[HeadSelection],
) -> list[list[WordAlignment]]:
    if not run.recipe.task_spec.maps_text:
        raise ValueError(f"alignments are between a source and a target, and this run is {run.recipe.task_spec}")
    selections = [guided_selection(run, selection) for selection in selections]
    groups = [select_heads(run.model, selection.heads) for selection in selections]
    pairs = [n for n, (one, other) in enumerate(zip(sources, targets, strict=True)) if one.words and other.words]
    attention = source_attention(run, [sources[n].ids for n in pairs], [targets[n].ids for n in pairs], *groups)
    alignments = []
    for selection, own in zip(selections, attention, strict=True):
        by_pair = dict(zip(pairs, own, strict=True))
        alignments.append(
            [
                _word_alignment(source, target, by_pair.get(number), selection.shift)
                for number, (source, target) in enumerate(zip(sources, targets, strict=True))
            ]
        )
    return alignments


def _word_alignment(
    source: SegmentedText, target: SegmentedText, attention: Weights | None, shift: bool
) -> WordAlignment:
    """The words of a pair aligned by the attention of their pieces; zeros if one side is empty."""
    if attention is None:
        return WordAlignment(source.words, target.words, np.zeros((len(target.words), len(source.words)), np.float32))
    rows = attention[1:] if shift else attention[:-1]  # (T, S + 1)
    return WordAlignment(source.words, target.words, word_weights(rows[:, :-1], source.members, target.members))


def alignment_of(heads: Sequence[Head]) -> Alignment | None:
    """The mean of all cross-attention heads; None if there are none."""
    cross = [head for head in heads if head.kind == "cross"]
    if not cross or cross[0].weights.shape != (len(cross[0].queries), len(cross[0].keys)):
        return None
    mean = np.mean([head.weights for head in cross], axis=0)  # (T, S)
    return Alignment(cross[0].keys, cross[0].queries, mean)
