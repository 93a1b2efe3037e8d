"""`sightline align` and alignment files: links between words, by the attention of a model."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sightline.cli.lines import MOST, InputLength
from sightline.cli.options import Device, With, check_files, load_runs, refuse
from sightline.progress import shown
from sightline.terminal import plural

if TYPE_CHECKING:
    from sightline.evaluation.alignment_error import Gold, Links
    from sightline.evaluation.measurement import MetricScore
    from sightline.inspection.alignment import HeadSelection
    from sightline.run import Run
    from sightline.tasks.base import Prediction


_WINDOW = 2_048  # pairs aligned together


def align(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder: a translator with attention.")],
    source: Annotated[Path | None, typer.Option(metavar="FILE", help="Source texts, one per line.")] = None,
    target: Annotated[Path | None, typer.Option(metavar="FILE", help="Their translations, line by line.")] = None,
    training: Annotated[
        bool, typer.Option("--training", help="Align the run's training pairs, for training.guided_alignment.")
    ] = False,
    gold: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Manual links (0-0 1-2): print AER, precision and recall.")
    ] = None,
    swap: Annotated[bool, typer.Option("--swap", help="Links of --gold are target-source.")] = False,
    recase: Annotated[
        bool, typer.Option("--recase", help="With --gold: restore the case of lowercased text, as in training.")
    ] = False,
    layer: Annotated[
        int | None, typer.Option(metavar="N", help="Decoder layer, from 0; default: the last but one.")
    ] = None,
    head: Annotated[
        int | None, typer.Option(metavar="N", help="Head of the layer, from 0; default: the guided one, or the mean.")
    ] = None,
    heads: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Heads or layers by name: decoder.2.cross.1,decoder.3.cross.")
    ] = None,
    shift: Annotated[
        bool, typer.Option("--shift", help="Align each word at the step after it is written, where it is read.")
    ] = False,
    reverse: Annotated[
        Path | None, typer.Option(metavar="RUN", help="A run of the other direction, to symmetrize with.")
    ] = None,
    symmetrize: Annotated[
        str | None, typer.Option(metavar="HOW", help="intersection, union or grow-diag-final-and (default).")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write links there; default: standard output.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the scores there.")] = None,
    others: With = None,
    device: Device = "auto",
) -> None:
    """Link the words of translations by attention (0-0 1-2).

    One line per pair, in Pharaoh format. Words are separated by spaces. Nothing is decoded. Files beside --gold are
    tokenized; the model reads them detokenized, and its pieces are matched to the tokens letter by letter.

    Examples:
      sightline align runs/de-en --source test.de --target test.en --shift > links.txt
      sightline align runs/de-en --source test.de --target test.en --layer 3 --head 1 --reverse runs/en-de
      sightline align runs/de-en --source wa.de --target wa.en --gold de-en.wa --shift --recase
      sightline align runs/de-en --training --shift --reverse runs/en-de -o guide.txt
    """
    from sightline.files import check_writable
    from sightline.inspection.alignment import HeadSelection, head_at

    if training == (source is not None or target is not None) or (source is None) != (target is None):
        raise ValueError("say which pairs: --source FILE and --target FILE, or --training for the run's own")
    if training and gold is not None:
        raise ValueError("--gold links the words of two files: give them as --source and --target, not --training")
    if gold is None:
        refuse({"--swap": swap, "--recase": recase, "--json": json_file}, "is for scores; add --gold FILE")
    for path in filter(None, (out, json_file)):
        check_writable(path)
    check_files({"--out": out, "--json": json_file}, {"--source": source, "--target": target, "--gold": gold})
    way = symmetry(symmetrize, reverse)
    loaded = load_runs(run, others, "probabilities", device, "float32")
    other = load_reverse(reverse, loaded)

    def how(each: Run) -> HeadSelection:
        if heads is not None:
            return head_selection(heads, shift)
        named = layer is not None or head is not None
        return HeadSelection((head_at(each.model, layer, head),) if named else (), shift)

    directions = Directions(loaded, how(loaded), way, other, how(other or loaded))
    if gold is not None and source is not None and target is not None:
        report_alignments(GoldFiles(source, target, gold, swap, recase), directions, outputs=out, json_file=json_file)
        return
    pairs = _training_pairs(loaded) if training else _pairs(source, target)
    with _writing(out) as write, shown(interval=10.0) as progress:
        for done, line in enumerate(_aligned(pairs, directions, InputLength.of(loaded, None)), 1):
            write(line)
            progress("aligning, pairs", done, 0)


def _aligned(pairs: Iterator[tuple[str, str]], directions: Directions, limit: InputLength) -> Iterator[str]:
    """Links of each pair, computed in blocks."""
    from sightline.inspection.alignment import pharaoh

    done = 0
    while window := list(islice(pairs, _WINDOW)):
        limit.check([source for source, _ in window], "the sources", done)
        yield from map(pharaoh, directions.links([pair[0] for pair in window], [pair[1] for pair in window]))
        done += len(window)


def _pairs(source: Path | None, target: Path | None) -> Iterator[tuple[str, str]]:
    from itertools import zip_longest

    from sightline.data.text_files import LineLimit, read_lines

    assert source is not None and target is not None
    bound = LineLimit(MOST)
    for number, (one, other) in enumerate(zip_longest(read_lines(source, bound), read_lines(target, bound)), 1):
        if one is None or other is None:
            short = source if one is None else target
            raise ValueError(f"{short} ends before line {number}, and the other file goes on; give pairs line by line")
        yield one, other


def _training_pairs(run: Run) -> Iterator[tuple[str, str]]:
    """The training pairs before cleaning, in the order that training.guided_alignment expects.

    Those that would be dropped as too long are not aligned, but have their (empty) line.
    """
    from sightline.data.sources import training_examples

    clean, vocabulary = run.recipe.data.clean, run.vocabulary
    for example in training_examples(run.recipe):
        sides = (
            vocabulary.source.encode(example.source)[: clean.truncate_source],
            vocabulary.target.encode(example.target),
        )
        long = any(len(ids) > clean.max_tokens for ids in sides)
        yield ("", "") if long else (example.source, example.target)


@contextmanager
def _writing(out: Path | None) -> Iterator[Callable[[str], object]]:
    """Write lines to standard output, or atomically to a file."""
    from sightline.files import atomic_file

    if out is None:
        yield print
        return
    with atomic_file(out) as file:
        yield lambda line: file.write(f"{line}\n".encode())


FORMATS = ("json", "pharaoh")
_CASING_LINES = 200_000  # of the training text, to learn the case of words


# --- alignments of outputs (predict --alignments) ---------------------------------------------------------------


def check_alignments(path: Path | None, form: str | None, heads: str | None, shift: bool) -> None:
    """Refuse options without the ones they belong to."""
    if form is not None and form not in FORMATS:
        raise ValueError(f"--alignment-format {form} is none of {', '.join(FORMATS)}")
    if path is not None and path.suffix == ".pharaoh":
        form = form or "pharaoh"
    if form is not None and path is None:
        raise ValueError(f"--alignment-format {form} says how, not where; add --alignments FILE")
    if form != "pharaoh" and (heads is not None or shift):
        raise ValueError("--alignment-heads and --shift are for words; add --alignment-format pharaoh")


@dataclass(frozen=True)
class AlignmentFile:
    """The file of alignments, its format, and (pharaoh) the heads to read."""

    path: Path
    form: str
    how: HeadSelection

    def lines(self, run: Run, texts: list[str], best: list[Prediction]) -> Iterator[str]:
        """One line per text: pieces and weights as JSON, or links of words."""
        from sightline.inspection.alignment import align_outputs

        if self.form == "json":
            for text, guess in zip(texts, best, strict=True):
                yield json.dumps(_attention(run, text, guess), ensure_ascii=False)
        else:
            for found in align_outputs(run, texts, [guess.tokens for guess in best], self.how):
                yield found.pharaoh()


def alignment_file(
    run: Run, path: Path | None, form: str | None, heads: str | None, shift: bool
) -> AlignmentFile | None:
    """The alignment file, if one is given; heads that the model does not have are refused."""
    from sightline.files import check_writable
    from sightline.inspection.alignment import select_heads

    if path is None:
        return None
    check_writable(path)
    form = form or ("pharaoh" if path.suffix == ".pharaoh" else "json")
    how = head_selection(heads, shift)
    if form == "pharaoh":
        select_heads(run.model, how.heads)
    return AlignmentFile(path, form, how)


def head_selection(heads: str | None, shift: bool) -> HeadSelection:
    """The heads of `decoder.2.cross.1,decoder.2.cross.3`; with `shift`, read one step later."""
    from sightline.inspection.alignment import HeadSelection

    names = () if heads is None else tuple(name.strip() for name in heads.split(",") if name.strip())
    return HeadSelection(names, shift)


def _attention(run: Run, text: str, guess: Prediction) -> dict[str, Any]:
    (source,) = run.encode_sources([text])
    found = run.alignment_of(source, guess.tokens) if source else None
    return {"source": [], "target": [], "weights": []} if found is None else found.to_dict()


# --- scores by manual links --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GoldFiles:
    """Tokenized sentences and the links between their words."""

    source: Path
    reference: Path
    alignments: Path
    swap: bool = False  # links are target-source
    recase: bool = False  # restore the case of lowercased text


@dataclass(frozen=True)
class Directions:
    """The run (and one of the other direction) whose attention is read, and the heads of each."""

    run: Run
    how: HeadSelection
    symmetrize: str  # one of inspection.alignment.SYMMETRIES
    reverse: Run | None
    reverse_how: HeadSelection

    def links(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        source_words: Sequence[Sequence[str]] | None = None,
        target_words: Sequence[Sequence[str]] | None = None,
    ) -> list[Links]:
        """The links of each pair of texts, symmetrized."""
        from sightline.inspection.alignment import SYMMETRIES, align_pairs

        words = {"source_words": source_words, "target_words": target_words}
        links = [found.links for found in align_pairs(self.run, sources, targets, self.how, **words)]
        if self.reverse is None:
            return links
        words = {"source_words": target_words, "target_words": source_words}
        back = align_pairs(self.reverse, targets, sources, self.reverse_how, **words)
        turned = [frozenset((i, j) for j, i in found.links) for found in back]
        return [SYMMETRIES[self.symmetrize](*both) for both in zip(links, turned, strict=True)]


def symmetry(asked: str | None, reverse: Path | None) -> str:
    """The method of symmetrization; an error if it is unknown, or without --reverse."""
    from sightline.inspection.alignment import SYMMETRIES

    if asked is not None and asked not in SYMMETRIES:
        raise ValueError(f"--symmetrize {asked} is none of {', '.join(SYMMETRIES)}")
    if asked is not None and reverse is None:
        raise ValueError(f"--symmetrize {asked} is of two directions, and there is one; add --reverse RUN")
    return asked or "grow-diag-final-and"


def load_reverse(reverse: Path | None, run: Run) -> Run | None:
    """Load the run of the other direction; an error if it has the same direction as the first."""
    from sightline.data.locate import is_same_direction
    from sightline.run import Run

    if reverse is None:
        return None
    other = Run.load(reverse, device=run.device.type)
    if is_same_direction(run.recipe, other.recipe):
        raise ValueError(
            f"--reverse {reverse} learned the same direction as {run.folder} (data.swap: "
            f"{str(other.recipe.data.swap).lower()}); give a run of the other one"
        )
    return other


def score_alignments(files: GoldFiles, who: Directions) -> tuple[list[MetricScore], list[str]]:
    """AER, precision and recall with intervals, and the predicted links of each line."""
    from sightline.evaluation.alignment_error import measure_alignments
    from sightline.inspection.alignment import pharaoh

    sources, targets, gold = read_gold_files(files)
    one, other = (natural_text(who.run, words, side, files.recase) for words, side in ((sources, 0), (targets, 1)))
    links = who.links(one, other, sources, targets)
    bootstrap = who.run.recipe.evaluation.bootstrap
    scores = [measured.score(bootstrap=bootstrap) for measured in measure_alignments(links, gold)]
    return scores, [pharaoh(each) for each in links]


def read_gold_files(files: GoldFiles) -> tuple[list[list[str]], list[list[str]], list[Gold]]:
    """The words of both sides and the links of each line; mismatches are reported on standard error."""
    from sightline.data.text_files import read_lines
    from sightline.evaluation.alignment_error import read_gold, within

    sources, targets = ([line.split() for line in read_lines(path)] for path in (files.source, files.reference))
    gold = read_gold(read_lines(files.alignments), str(files.alignments))
    if files.swap:
        gold = [each.swapped() for each in gold]
    gold, notes = within(gold, sources, targets)
    for note in notes:
        print(f"sightline: {note}", file=sys.stderr)
    return sources, targets, gold


def natural_text(run: Run, sentences: list[list[str]], side: int, recase: bool) -> list[str]:
    """Detokenize sentences; with `recase`, in the case of the training text (side 0: source)."""
    from sightline.data.sources import training_examples
    from sightline.text.word_pieces import detokenize, learn_casing, restore_case

    if recase:
        casing = learn_casing(pair[side] for pair in islice(training_examples(run.recipe), _CASING_LINES))
        sentences = [restore_case(words, casing) for words in sentences]
    return [detokenize(words) for words in sentences]


def report_alignments(files: GoldFiles, who: Directions, *, outputs: Path | None, json_file: Path | None) -> None:
    """Print the scores; write links and scores to files."""
    from sightline.files import write_atomically, write_json

    scores, lines = score_alignments(files, who)
    how = ["word alignments by attention", *who.how.heads, *(["shifted"] if who.how.shift else [])]
    if who.run.members:
        how.append(f"ensemble of {plural(len(who.run.members), 'run')}")
    if who.reverse is not None:
        how.append(f"{who.symmetrize} with {who.reverse.folder}")
    print(f"{files.alignments.name}: {plural(len(lines), 'sentence')}, {', '.join(how)}")
    for score in scores:
        print(f"  {score}  {score.signature}")
    if outputs is not None:
        write_atomically(outputs, "".join(line + "\n" for line in lines))
        print(f"wrote {outputs}", file=sys.stderr)
    if json_file is not None:
        values = [score.to_dict() for score in scores]
        record = {"run": str(who.run.folder), "on": str(files.alignments), "how": how, "scores": values}
        write_json(json_file, [record], indent=2)
        print(f"wrote {json_file}", file=sys.stderr)
