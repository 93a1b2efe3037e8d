"""The attention of all layers and heads of a model for one text: what each looks at, and what it is like.

    heads = attention_heads(run, "Ein Hund bellt.")
    rich.print(heads_table(heads))
    draw_head_grid([head for head in heads if head.kind == "cross"], Path("cross.png"))  # pictures/heads.py

All of it is read from the taps of one forward pass over the text and its output.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from sightline.answering.answerer import Answerer
from sightline.decoding.padding import pad_tokens
from sightline.decoding.scoring import begun
from sightline.inspection.head_measures import HeadMeasures, measure_head
from sightline.layers.layout import Padded
from sightline.layers.scores import Score
from sightline.layers.tap import TapModule, Tapped, listen
from sightline.models.language_model import DecoderOnly
from sightline.recipe import Recipe
from sightline.text.tokenizer import END, SPECIALS, START, Vocabulary
from sightline.training.batches import padded_batch
from sightline.training.sides import sides_of

if TYPE_CHECKING:
    from rich.table import Table

Kind = Literal["encoder", "decoder", "cross"]
KINDS: dict[Kind, str] = {
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "cross": "attention to the source",
}


class Loaded(Protocol):
    """What is looked into here; `sightline.run.Run` is one (it stands above this)."""

    recipe: Recipe
    vocabulary: Vocabulary
    model: Any
    device: torch.device
    answerer: Answerer

    def encode_sources(self, texts: Sequence[str]) -> list[list[int]]: ...
    def predict_nbest(self, texts: Sequence[str]) -> list[list[Any]]: ...


class Weighed(Protocol):
    """A recorded tensor with its name: what a tap told, or a step of a trace."""

    @property
    def name(self) -> str: ...
    @property
    def tensor(self) -> torch.Tensor: ...


@dataclass(frozen=True)
class Labels:
    """The tokens along the sides of each kind of attention: (queries, keys)."""

    encoder: tuple[list[str], list[str]]
    decoder: tuple[list[str], list[str]]
    cross: tuple[list[str], list[str]]


@dataclass(frozen=True, eq=False)
class Head:
    """One head's weights over one text."""

    kind: Kind
    path: str  # of its attention in the model
    number: int
    queries: list[str]
    keys: list[str]
    weights: NDArray[np.float32]  # (T, S)

    @property
    def name(self) -> str:
        """As `ablated` wants it: `decoder.layers.3.cross.7`."""
        return f"{self.path}.{self.number}"

    @cached_property
    def measures(self) -> HeadMeasures:
        """Entropy, diagonality, confidence."""
        return measure_head(self.weights, causal=self.kind == "decoder")

    def to_dict(self) -> dict[str, Any]:
        """For JSON; weights are kept to six digits."""
        rows = [[round(float(weight), 6) for weight in row] for row in self.weights]
        sides = {"queries": self.queries, "keys": self.keys}
        return {"name": self.name, "kind": self.kind, **sides, "weights": rows, **self.measures.to_dict()}


def attention_heads(run: Loaded, text: str, target: str | None = None) -> list[Head]:
    """Every head of the run's model over a text and its output (the model's own, if no `target` is given)."""
    heard: list[Tapped] = []

    def hear(tapped: Tapped) -> None:
        if tapped.name.endswith(".weights"):  # the rest would only take memory
            heard.append(replace(tapped, tensor=tapped.tensor.detach().clone()))  # later steps may write into it

    heads = []
    if attentions(run.model):
        source, output = _ids(run, text, target)
        with torch.inference_mode(), listen(run.model, hear):
            writes = run.recipe.task in ("seq2seq", "language-model")
            labels = _write(run, text, source, output) if writes else _label(run, text, source)
        heads = heads_of(heard, run.model, labels)
    if not heads:
        raise ValueError(f"this model (task: {run.recipe.task}) has no attention to look at; nothing in it has heads")
    return heads


def heads_of(trace: Iterable[Weighed], model: Any, labels: Labels) -> list[Head]:
    """The heads in a recorded pass over one text, in the order in which they were first computed."""
    found: dict[str, list[NDArray[np.float32]]] = {}
    for tapped in trace:
        if tapped.name.endswith(".weights"):
            found.setdefault(tapped.name.removesuffix(".weights"), []).append(tapped.tensor[0].float().cpu().numpy())
    heads = []
    for path, parts in found.items():
        kind = kind_of(path, getattr(model, "looks", ()))
        queries, keys = getattr(labels, kind)
        joined = _joined(parts)  # (H, T, S)
        keys = _standing(keys, joined.shape[2], model, path)
        heads += [Head(kind, path, number, queries, keys, weights) for number, weights in enumerate(joined)]
    return heads


def _standing(keys: list[str], count: int, model: Any, path: str) -> list[str]:
    """What stands at each of `count` keys. Compressed ones (layers/spans.py) are called by the token they stand at."""
    if count >= len(keys):
        return keys
    modules = dict(model.named_modules()) if isinstance(model, torch.nn.Module) else {}
    stride = getattr(getattr(modules.get(path), "span", None), "stride", None)
    return [f"{number + 1}." for number in range(count)] if stride is None else keys[::stride][:count]


def attentions(model: Any) -> dict[str, int]:
    """The paths of everything in a model that attends, with the number of its heads; in the model's order."""
    modules = model.named_modules() if isinstance(model, torch.nn.Module) else ()
    return {
        path: int(getattr(module, "heads", 1))
        for path, module in modules
        if isinstance(module, TapModule) and isinstance(getattr(module, "score", None), Score)
    }


def head_names(model: Any) -> list[str]:
    """Every head of a model, by its full name."""
    return [f"{path}.{number}" for path, count in attentions(model).items() for number in range(count)]


def find_head(model: Any, name: str) -> tuple[str, int]:
    """(path, number) of a head: `decoder.layers.3.cross.7`, or shorter `decoder.3.cross.7`, `encoder.0.self.2`."""
    known = {short_name(each): each for each in head_names(model)}
    full = known.get(short_name(name))
    if full is None:
        place = short_name(name).rpartition(".")[0]
        have = [each for short, each in known.items() if short.rpartition(".")[0] == place] or list(known.values())
        shown = f"{have[0]} … {have[-1]}" if have else "none: nothing in it attends"
        raise ValueError(f"this model has no head {name!r}; it has {shown}")
    path, _, number = full.rpartition(".")
    return path, int(number)


def short_name(name: str) -> str:
    """Without the parts that every name has."""
    words = {"layers": None, "attentions": None, "attention": "self", "cross": "cross"}
    parts = [words.get(part, part) for part in name.split(".")]
    return ".".join(part for part in parts if part is not None)


def kind_of(path: str, looks: Sequence[str]) -> Kind:
    """Which attention a module's is."""
    if path in looks:
        return "cross"
    return "encoder" if path.startswith("encoder") else "decoder"


def _joined(parts: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    """(H, t, s) each, one after the other → (H, T, S): queries that came later may have seen more keys."""
    keys = max(part.shape[2] for part in parts)
    wide = [np.pad(part, ((0, 0), (0, 0), (0, keys - part.shape[2]))) for part in parts]
    return np.concatenate(wide, axis=1)


# --- the pass ----------------------------------------------------------------------------------------------------


def _ids(run: Loaded, text: str, target: str | None) -> tuple[list[int], list[int]]:
    """What is read and what is written, without marks. (A language model writes the text itself.)"""
    task = run.recipe.task
    if target is not None and task != "seq2seq":
        raise ValueError(f"a target is for task: seq2seq, and this run is task: {task}; leave it out")
    if task == "language-model":
        return [], run.vocabulary.target.encode(text)
    if task == "tag":
        return [piece for word in run.vocabulary.encode_words([text])[0] for piece in word], []
    source = run.encode_sources([text])[0]
    if task in ("classify", "masked-words"):
        return source, []
    if not source:
        raise ValueError("there is nothing to look at in an empty text; give a sentence")
    return source, run.predict_nbest([text])[0][0].tokens if target is None else run.vocabulary.target.encode(target)


def _write(run: Loaded, text: str, source: list[int], output: list[int]) -> Labels:
    """All tokens of the output at once, behind the source."""
    model, device = run.model, run.device
    model.advance(pad_tokens([[START, *output]], device), begun(model, [source], device))
    read = [*run.vocabulary.source.show_unknown(run.vocabulary.source.pieces(source), text), SPECIALS[END]]
    written = run.vocabulary.target.pieces(output)
    given = [SPECIALS[START], *written]
    if isinstance(model, DecoderOnly):
        given = [*read, *given]
    return Labels((read, read), (given, given), ([*written, SPECIALS[END]], read))


def _label(run: Loaded, text: str, source: list[int]) -> Labels:
    """What an encoder with labels reads."""
    ids = np.asarray(source, np.int64)
    batch = padded_batch(sides_of(run.recipe)([ids], [np.ones_like(ids)]), np.zeros(1, np.int64))
    assert batch.source is not None
    tokens = batch.source.to(run.device)
    run.model(tokens, Padded.of([tokens.shape[1]], run.device))
    read = run.vocabulary.source.show_unknown(run.vocabulary.source.pieces(tokens[0].tolist()), text)
    return Labels((read, read), ([], []), ([], []))


# --- the table ---------------------------------------------------------------------------------------------------


def heads_table(heads: Sequence[Head]) -> Table:
    """Every head with its measures (entropy in nats), for a terminal."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("head", no_wrap=True)
    for name in ("entropy", "of log S", "diagonality", "confidence"):
        table.add_column(name, justify="right", no_wrap=True)
    before = None
    for head in heads:
        if before not in (None, head.path):
            table.add_section()
        before, found = head.path, head.measures
        values = (found.entropy, found.entropy_share, found.diagonality, found.confidence)
        table.add_row(head.name, *("–" if value != value else f"{value:.2f}" for value in values))
    return table
