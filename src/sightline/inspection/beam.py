"""A recorded beam search: every hypothesis of every step, and its fate.

    record = record_beam(run, "Ein Hund bellt.")
    record.nbest()            # the outputs, rebuilt from the record alone
    rich.print(record.tree())
    draw_beam(record, Path("beam.png"))  # plots/beam.py

The search reports each step (`on_step` of a request). If it is repeated because an output had forbidden text, the last
search is recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from sightline.decoding.request import BeamStep, Hypothesis, Request
from sightline.inspection.attention import LoadedRun
from sightline.recipe import Decoding
from sightline.terminal import plural, visible
from sightline.text.tokenizer import END

if TYPE_CHECKING:
    from rich.text import Text
    from rich.tree import Tree


Fate = Literal["continued", "finished", "outscored", "sentence done", "group done"]


@dataclass(frozen=True)
class Node:
    """One hypothesis at one step: its last token and its fate.

    `continued`: extended in the next step. `finished`: ended among the best W, as an output. `outscored`: not among the
    best W. `sentence done`, `group done`: live when the search ended; by the stopping rule (`decoding.stopping`) it
    could not beat the finished outputs.
    """

    number: int
    step: int
    parent: int | None  # the number of the hypothesis it extends; None: the start
    token: int  # past the end of the vocabulary for words copied from the source (text/copying.py)
    piece: str  # the text of the token
    log_probability: float
    score: float  # with length and coverage penalty, as if it ended here
    fate: Fate


Children = dict[int | None, list[Node]]  # by the number of the parent; None: the start


@dataclass
class BeamRecord:
    """All hypotheses for one sentence, step by step in order of rank."""

    beam: int
    nbest_size: int
    groups: int = 1
    nodes: list[Node] = field(default_factory=list)
    places: list[int] = field(default_factory=list)  # the node in each slot of the beam after the last step
    steps: int = 0

    def add(self, step: BeamStep) -> None:
        """Add one step of a search over one sentence."""
        if step.step == 0:  # the search was repeated
            self.nodes, self.places, self.steps = [], [], 0
        done, before = bool(step.done[0]), self.places
        live = dict(zip(step.slots[0].tolist(), step.alive[0].tolist(), strict=True))
        numbers: dict[int, int] = {}
        rows = (part[0].tolist() for part in (step.totals, step.scores, step.parents, step.words, step.finished))
        for place, (total, score, parent, word, finished) in enumerate(zip(*rows, strict=True)):
            if total == float("-inf"):
                continue
            fate: Fate = "finished" if finished else "outscored"
            if not finished and place in live and word != END:
                fate = "sentence done" if done else "continued" if live[place] else "group done"
            numbers[place] = len(self.nodes)
            origin = before[parent] if before else None
            self.nodes.append(Node(len(self.nodes), self.steps, origin, word, "", total, score, fate))
        self.places = [numbers.get(place, -1) for place in step.slots[0].tolist()]
        self.steps += 1

    def tokens(self, node: Node) -> list[int]:
        """All tokens of a hypothesis."""
        return [each.token for each in self.line(node)]

    def line(self, node: Node) -> list[Node]:
        """A hypothesis and all it extends, first step first."""
        line = [node]
        while line[-1].parent is not None:
            line.append(self.nodes[line[-1].parent])
        return line[::-1]

    def outputs(self) -> list[Node]:
        """The last nodes of the n best outputs, best first; duplicates among groups are listed once."""
        finished = sorted((node for node in self.nodes if node.fate == "finished"), key=lambda node: -node.score)
        different: dict[tuple[int, ...], Node] = {}
        for node in finished:
            different.setdefault(tuple(self.tokens(node)) if self.groups > 1 else (node.number,), node)
        return list(different.values())[: self.nbest_size]

    def best(self) -> set[int]:
        """The numbers of all nodes of the best output."""
        return {each.number for node in self.outputs()[:1] for each in self.line(node)}

    def nbest(self) -> list[Hypothesis]:
        """The outputs of the search."""
        return [Hypothesis(self.tokens(node)[:-1], node.score, node.log_probability) for node in self.outputs()]

    def named(self, pieces: Sequence[str]) -> BeamRecord:
        """Set the piece of each node."""
        nodes = [Node(**{**asdict(node), "piece": piece}) for node, piece in zip(self.nodes, pieces, strict=True)]
        return BeamRecord(self.beam, self.nbest_size, self.groups, nodes, list(self.places), self.steps)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        outputs = [node.number for node in self.outputs()]
        head = {"beam": self.beam, "nbest": self.nbest_size, "groups": self.groups, "steps": self.steps}
        return {**head, "outputs": outputs, "nodes": [asdict(node) for node in self.nodes]}

    def tree(self) -> Tree:
        """A terminal tree of the hypotheses that finished or reached the last step; unbranched ones share a line."""
        from rich.text import Text
        from rich.tree import Tree

        outputs, best = [node.number for node in self.outputs()], self.best()
        children = self.children()
        root = Tree(Text(f"beam {self.beam}, {plural(self.steps, 'step')}", style="bold"))
        waiting = [(root, node) for node in reversed(children.get(None, []))]
        while waiting:
            branch, node = waiting.pop()
            run = unbranched(node, children, best)
            grown = branch.add(_line(run, outputs, best))
            waiting += [(grown, child) for child in reversed(children.get(run[-1].number, []))]
        return root

    def children(self) -> Children:
        """The extensions of each node that lead to hypotheses that finished or were live at the end."""
        ends = [node for node in self.nodes if node.fate in ("finished", "sentence done", "group done")]
        kept = {each.number for node in ends for each in self.line(node)}
        children: Children = {}
        for node in self.nodes:
            if node.number in kept:
                children.setdefault(node.parent, []).append(node)
        return children


def unbranched(node: Node, children: Children, best: set[int]) -> list[Node]:
    """A node and its extensions up to the next branch, all or none of them in the best output."""
    run = [node]
    while len(below := children.get(run[-1].number, [])) == 1 and (below[0].number in best) == (node.number in best):
        run.append(below[0])
    return run


def ending(node: Node, outputs: Sequence[int]) -> str:
    """The end of a hypothesis in words; "" if it was continued."""
    if node.fate == "finished":
        place = f", output {outputs.index(node.number) + 1}" if node.number in outputs else ""
        return f"finished: score {node.score:.3f}{place}"
    return "" if node.fate == "continued" else node.fate


def _line(run: Sequence[Node], outputs: Sequence[int], best: set[int]) -> Text:
    """The tokens of a line, their log-probability and their end."""
    from rich.text import Text

    last = run[-1]
    line = Text(" ".join(visible(node.piece) for node in run), style="bold" if last.number in best else "")
    line.append(f"  {last.log_probability:.2f}", style="dim")
    if ended := ending(last, outputs):
        line.append(f"  {ended}", style="green" if last.fate == "finished" else "dim italic")
    return line


def record_beam(run: LoadedRun, text: str, options: Decoding | None = None, *, prefix: str | None = None) -> BeamRecord:
    """Record the search for the output of a text with an optional prefix; for MBR, the search for candidates."""
    if not run.recipe.task_spec.maps_text:
        raise ValueError(f"a beam is recorded for task: seq2seq, and this run is {run.recipe.task_spec}")
    options = options or run.recipe.decoding
    record = BeamRecord(options.beam, options.candidates, options.groups)
    run.task.predict([Request(text, options, prefix_text=prefix, on_step=record.add)])
    if not record.nodes:
        raise ValueError("nothing is searched for an empty text; give a sentence")
    target, source = run.vocabulary.target, run.task.read_source(text)
    known = target.pieces(source.known([node.token for node in record.nodes], target.size))
    pieces = zip([node.token for node in record.nodes], known, strict=True)
    return record.named([source.text_of(n, target.size) if n >= target.size else piece for n, piece in pieces])
