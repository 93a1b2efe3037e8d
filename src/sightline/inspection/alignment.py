"""Which source token each target token attends to: attention weights and word links, to keep, print and draw.

Subword weights become word weights: summed over the pieces of a source word, averaged over those of a target word. Each
target word is linked to the source word with the most weight. End marks are no words (text/word_pieces.py groups pieces
into words). Alignments of both directions are combined as in Och & Ney (2003, §3.3) and Koehn et al. (2003).
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
from sightline.decoding.scoring import begun
from sightline.inspection.attention import LoadedRun, attentions, find_head, head_names, short_name
from sightline.layers.tap import Tapped, on_taps
from sightline.text.tokenizer import SPACE, START, UNK
from sightline.text.word_pieces import SegmentedText, align_pieces, align_words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from sightline.inspection.attention import Head
    from sightline.plots.terminal import TerminalGrid


@dataclass(frozen=True, eq=False, repr=False)
class Alignment:
    """Attention weights between two token sequences; row t holds what target token t gave to each source token."""

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
        """For JSON; weights are kept to six digits."""
        rows = [[round(float(weight), 6) for weight in row] for row in self.weights]
        return {"source": list(self.source), "target": list(self.target), "weights": rows}

    def draw(self, path: str | os.PathLike[str] | None = None, *, title: str | None = None) -> Figure:
        """A matplotlib figure of the weights; with a path (.png, .svg or .pdf) it is written to that file, too.

        Labels may be of any script for which a font is installed. To save the figure yourself, without cutting labels:
        `figure.savefig(path, bbox_inches="tight")`. Needs matplotlib: `pip install 'sightline[viz]'`.
        """
        from sightline.plots.alignment import draw_alignment

        return draw_alignment(self, None if path is None else Path(path), title=title)

    def text(self, width: int = 100) -> str:
        """The weights as a grid of characters: target tokens downwards, source tokens across."""
        from sightline.plots.terminal import plain_text

        return plain_text(self.grid(), width)

    def __repr__(self) -> str:
        size = f"{len(self.target)} target tokens × {len(self.source)} source tokens"
        both = f"{_beginning(self.target)} ← {_beginning(self.source)}"
        return f"Alignment({size}: {both}; .text() or .draw() shows it, .weights are the numbers)"

    def grid(self) -> TerminalGrid:
        """The weights for a terminal: target tokens downwards, source tokens across."""
        from sightline.plots.terminal import TerminalGrid

        return TerminalGrid(self.target, self.source, self.weights)


def _beginning(tokens: list[str]) -> str:
    return repr(" ".join(tokens[:6]) + (" …" if len(tokens) > 6 else ""))


Link = tuple[int, int]
Links = frozenset[Link]
_NEIGHBOURS = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))


def intersection(forward: Links, backward: Links) -> Links:
    """What both say: few links, mostly right."""
    return forward & backward


def union(forward: Links, backward: Links) -> Links:
    """What either says: most of the right links, and wrong ones."""
    return forward | backward


def grow_diag_final_and(forward: Links, backward: Links) -> Links:
    """From what both say outwards to what either says.

    grow-diag: as long as there are any, links of either that touch one already there (diagonally too), and of whose
    words at least one has no link yet. final-and: links of either, the first one's first, of whose words neither has.
    """
    found = set(forward & backward)
    either = forward | backward
    sources, targets = {i for i, _ in found}, {j for _, j in found}

    def add(link: Link) -> None:
        found.add(link)
        sources.add(link[0])
        targets.add(link[1])

    grown = True
    while grown:
        grown = False
        for i, j in sorted(found):
            for down, across in _NEIGHBOURS:
                near = i + down, j + across
                if near in either and near not in found and (near[0] not in sources or near[1] not in targets):
                    add(near)
                    grown = True
    for links in (forward, backward):
        for i, j in sorted(links - found):
            if i not in sources and j not in targets:
                add((i, j))
    return frozenset(found)


SYMMETRIES: dict[str, Callable[[Links, Links], Links]] = {
    "intersection": intersection,
    "union": union,
    "grow-diag-final-and": grow_diag_final_and,
}


Weights = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class WordAlignment:
    """What each target word gave to each source word."""

    source: list[str]
    target: list[str]
    weights: Weights  # (target words, source words)

    @property
    def links(self) -> Links:
        """(source word, target word): for each target word the source word with most weight, if any has some."""
        if not self.source:
            return frozenset()
        best = self.weights.argmax(axis=1)
        return frozenset((int(i), j) for j, i in enumerate(best) if self.weights[j, i] > 0)

    def pharaoh(self) -> str:
        """The links as `source-target` pairs from 0, in the order of the source."""
        return pharaoh(self.links)


def pharaoh(links: Links) -> str:
    """`0-0 1-2`, the format word aligners write."""
    return " ".join(f"{i}-{j}" for i, j in sorted(links))


@dataclass(frozen=True)
class HeadSelection:
    """Which heads are read, and when. If none are named: the one that was guided in training (and as it was), or all of
    the last layer but one (Garg et al. 2019); of an ensemble, those of every model that looks.

    At step t a decoder reads word t−1 and writes word t. With `shift`, word t is aligned where it is read, one step
    later, when it is known and need not be guessed (Chen et al. 2020, §3).
    """

    heads: tuple[str, ...] = ()
    shift: bool = False


def align_pairs(
    run: LoadedRun,
    sources: Sequence[str],
    targets: Sequence[str],
    looking: HeadSelection | None = None,
    *,
    source_words: Sequence[Sequence[str]] | None = None,
    target_words: Sequence[Sequence[str]] | None = None,
) -> list[WordAlignment]:
    """The alignment of each pair of texts, with the target given. Words are what stands between spaces, or as told."""
    every = [looking or HeadSelection()]
    (found,) = align_in_ways(run, sources, targets, every, source_words=source_words, target_words=target_words)
    return found


def align_in_ways(
    run: LoadedRun,
    sources: Sequence[str],
    targets: Sequence[str],
    ways: Sequence[HeadSelection],
    *,
    source_words: Sequence[Sequence[str]] | None = None,
    target_words: Sequence[Sequence[str]] | None = None,
) -> list[list[WordAlignment]]:
    """The same for several ways of looking, all read in one pass: for each of them the alignment of each pair."""
    if len(sources) != len(targets):
        raise ValueError(f"there are {len(sources)} sources and {len(targets)} targets; give each source one target")
    second = [
        align_words(run.vocabulary.target, text, _words_of(target_words, n), n + 1) for n, text in enumerate(targets)
    ]
    return _align(run, _read(run, sources, source_words), second, ways)


def align_outputs(
    run: LoadedRun, sources: Sequence[str], outputs: Sequence[Sequence[int]], looking: HeadSelection | None = None
) -> list[WordAlignment]:
    """The same for tokens that the model wrote, as it wrote them."""
    second = [align_pieces(list(ids), _written(run, ids)) for ids in outputs]
    return _align(run, _read(run, sources, None), second, [looking or HeadSelection()])[0]


# --- pieces and words --------------------------------------------------------------------------------------------


def _read(run: LoadedRun, texts: Sequence[str], words: Sequence[Sequence[str]] | None) -> list[SegmentedText]:
    """Sources as the model reads them: what stands behind data.clean.truncate_source has no pieces, and so no links."""
    most = run.recipe.data.clean.truncate_source
    cuts = (align_words(run.vocabulary.source, text, _words_of(words, n), n + 1) for n, text in enumerate(texts))
    return [SegmentedText(cut.ids[:most], cut.words, cut.members[:most]) for cut in cuts]


def _written(run: LoadedRun, ids: Sequence[int]) -> list[str]:
    """The pieces of an output; one that was copied, and so is unknown here, was written as a word by itself."""
    pieces = run.vocabulary.target.pieces(ids)
    if not run.recipe.copies_unknown:
        return pieces
    return [SPACE + piece if number == UNK else piece for number, piece in zip(ids, pieces, strict=True)]


def _words_of(words: Sequence[Sequence[str]] | None, number: int) -> list[str] | None:
    return None if words is None else list(words[number])


def word_weights(weights: Weights, source: NDArray[np.bool_], target: NDArray[np.bool_]) -> Weights:
    """W_ji = mean over the pieces t of word j of Σ over the pieces s of word i of α_ts.

    weights (T, S), source (S, words), target (T, words) → (target words, source words).
    """
    summed = weights @ source.astype(np.float32)  # (T, source words)
    pieces = np.maximum(target.sum(axis=0), 1).astype(np.float32)[:, None]
    result: Weights = target.astype(np.float32).T @ summed / pieces
    return result


# --- attention ---------------------------------------------------------------------------------------------------


def chosen_heads(model: Any, names: Sequence[str]) -> dict[str, list[int]]:
    """The heads that look at the source, by path: those named (`decoder.2.cross.1`, or all of `decoder.2.cross`)."""
    every = _looks(model)
    names = names or [_head_among(looks, None, None) for looks in every]
    counts = {path: count for path, count in attentions(model).items() if path in model.cross_attention_paths}
    chosen: dict[str, list[int]] = {}
    layers = {short_name(path): path for path in counts}
    for name in names:
        whole = layers.get(short_name(name))
        if whole is not None:
            path, numbers = whole, list(range(counts[whole]))
        else:
            path, number = find_head(model, name)
            numbers = [number]
        if path not in counts:
            known = [each for each in head_names(model) if each.rpartition(".")[0] in counts]
            raise ValueError(f"{name} does not look at the source; {known[0]} … {known[-1]} do")
        chosen[path] = sorted({*chosen.get(path, []), *numbers})
    return chosen


def guided_selection(run: LoadedRun, looking: HeadSelection) -> HeadSelection:
    """As told; where no head is named and one was guided in training, at that one, shifted if it was (or is told)."""
    guide = run.recipe.training.guided_alignment
    if looking.heads or guide is None:
        return looking
    heads = tuple(_head_among(looks, guide.layer, guide.head) for looks in _looks(run.model))
    return HeadSelection(heads, guide.shift or looking.shift)


def head_at(model: Any, layer: int | None, head: int | None) -> str:
    """The name of a head that looks at the source, or of all of its layer; both counted from 0, None: the default."""
    (looks,) = _looks(model)
    return _head_among(looks, layer, head)


def _looks(model: Any) -> list[tuple[str, ...]]:
    """The paths of what looks at the source, from the bottom: of the model, or of each of an ensemble that looks."""
    found = [
        looks
        for looks in getattr(model, "member_cross_attention_paths", (tuple(model.cross_attention_paths),))
        if looks
    ]
    if not found:
        raise ValueError("this model has no attention to the source, so it aligns nothing")
    return found


def _head_among(looks: Sequence[str], layer: int | None, head: int | None) -> str:
    place = max(len(looks) - 2, 0) if layer is None else layer
    if not 0 <= place < len(looks):
        raise ValueError(f"there is no layer {place} that looks at the source; there are {len(looks)}, counted from 0")
    return looks[place] if head is None else f"{looks[place]}.{head}"


@torch.inference_mode()
def source_attention(
    run: LoadedRun,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    *groups: dict[str, list[int]],
    tokens: int = 4096,
) -> list[list[Weights]]:
    """(T + 1, S + 1) of each pair, end marks included: the mean of these heads while the target is written.

    For several groups of heads all of that in one pass: a list of pairs for each group.
    """
    results = [[np.zeros((0, 0), np.float32)] * len(sources) for _ in groups]
    paths = tuple(dict.fromkeys(path for heads in groups for path in heads))
    lengths = [max(len(source), len(target)) + 1 for source, target in zip(sources, targets, strict=True)]
    for indices in length_batches(lengths, tokens):
        given = [[START, *targets[index]] for index in indices]
        heard: dict[str, list[torch.Tensor]] = {}

        def hear(tapped: Tapped, heard: dict[str, list[torch.Tensor]] = heard) -> None:
            path, _, point = tapped.name.rpartition(".")
            if point == "weights":
                heard.setdefault(path, []).append(tapped.tensor)  # (B, H, T or 1, S)

        with on_taps(run.model, hear, paths):
            state = begun(run.model, [sources[index] for index in indices], run.device)
            run.model.advance(pad_tokens(given, run.device), state)
        every = {path: torch.cat(parts, dim=2).float() for path, parts in heard.items()}  # (B, H, T, S)
        for heads, own in zip(groups, results, strict=True):
            chosen = torch.cat([every[path][:, numbers] for path, numbers in heads.items()], dim=1)
            mean = chosen.mean(1).cpu().numpy()  # (B, T, S)
            for place, index in enumerate(indices):
                own[index] = mean[place, : len(targets[index]) + 1, : len(sources[index]) + 1]
    return results


def _align(
    run: LoadedRun, sources: Sequence[SegmentedText], targets: Sequence[SegmentedText], ways: Sequence[HeadSelection]
) -> list[list[WordAlignment]]:
    if not run.recipe.task_spec.maps_text:
        raise ValueError(f"alignments are between a source and a target, and this run is {run.recipe.task_spec}")
    ways = [guided_selection(run, looking) for looking in ways]
    groups = [chosen_heads(run.model, looking.heads) for looking in ways]
    pairs = [n for n, (one, other) in enumerate(zip(sources, targets, strict=True)) if one.words and other.words]
    looks = source_attention(run, [sources[n].ids for n in pairs], [targets[n].ids for n in pairs], *groups)
    return [
        _word_alignments(sources, targets, dict(zip(pairs, own, strict=True)), looking.shift)
        for looking, own in zip(ways, looks, strict=True)
    ]


def _word_alignments(
    sources: Sequence[SegmentedText], targets: Sequence[SegmentedText], found: dict[int, Weights], shift: bool
) -> list[WordAlignment]:
    """From pieces to words, for each pair; nothing looks at nothing where one side is empty."""
    results = []
    for number, (source, target) in enumerate(zip(sources, targets, strict=True)):
        weights = np.zeros((len(target.words), len(source.words)), np.float32)
        if number in found:
            rows = found[number][1:] if shift else found[number][:-1]  # (T, S + 1)
            weights = word_weights(rows[:, :-1], source.members, target.members)
        results.append(WordAlignment(source.words, target.words, weights))
    return results


def alignment_of(heads: Sequence[Head]) -> Alignment | None:
    """What each token of the output looked at in the source: the mean of all heads that do; None where none does."""
    cross = [head for head in heads if head.kind == "cross"]
    if not cross or cross[0].weights.shape != (len(cross[0].queries), len(cross[0].keys)):
        return None
    mean = np.mean([head.weights for head in cross], axis=0)  # (T, S)
    return Alignment(cross[0].keys, cross[0].queries, mean)
