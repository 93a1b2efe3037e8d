"""`sightline align`: word links of sentence pairs, read from the attention of a model, and their error rate."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from sightline.cli.alignment_file import head_selection
from sightline.cli.lines import MOST, InputLength
from sightline.cli.options import Device, With, check_files, load_runs, refuse
from sightline.progress import shown
from sightline.terminal import plural

if TYPE_CHECKING:
    from sightline.evaluation.alignment_error import Gold, Links
    from sightline.inspection.alignment import HeadSelection
    from sightline.run import Run

_WINDOW = 2_048  # pairs aligned together
_CASING_LINES = 200_000  # lines of the training text from which --recase learns the case of words


def align(
    run: Annotated[Path, Argument(metavar="RUN", help="A run folder: a translator with attention.")],
    source: Annotated[Path | None, Option(metavar="FILE", help="Source texts, one per line.")] = None,
    target: Annotated[Path | None, Option(metavar="FILE", help="Their translations, line by line.")] = None,
    training: Annotated[bool, Option("--training", help="Align the run's training pairs instead.")] = False,
    gold: Annotated[Path | None, Option(metavar="FILE", help="Manual links (0-0 1-2): print AER.")] = None,
    swap: Annotated[bool, Option("--swap", help="The links of --gold are target-source.")] = False,
    recase: Annotated[bool, Option("--recase", help="With --gold: restore the case of lowercased text.")] = False,
    layer: Annotated[int | None, Option(metavar="N", help="Decoder layer, from 0; default: the last but one.")] = None,
    head: Annotated[int | None, Option(metavar="N", help="Head, from 0; default: the guided one, or the mean.")] = None,
    heads: Annotated[str | None, Option(metavar="NAMES", help="Heads or layers by name: decoder.2.cross.1,...")] = None,
    shift: Annotated[bool, Option("--shift", help="Read each target word's attention one step later.")] = False,
    reverse: Annotated[Path | None, Option(metavar="RUN", help="A run of the opposite direction.")] = None,
    symmetrize: Annotated[
        str | None, Option(metavar="HOW", help="With --reverse: intersection, union or grow-diag-final-and (default).")
    ] = None,
    out: Annotated[Path | None, Option("--out", "-o", metavar="FILE", help="Write the links there.")] = None,
    json_file: Annotated[Path | None, Option("--json", metavar="FILE", help="With --gold: write the scores.")] = None,
    others: With = None,
    device: Device = "auto",
) -> None:
    """Link the words of sentence pairs by attention.

    Prints one line per pair in Pharaoh format (0-0 1-2). Words are separated by spaces. Nothing is decoded. With
    --gold, source and target are tokenized files; the model reads them detokenized.

    Examples:
      sightline align runs/de-en --source test.de --target test.en --shift > links.txt
      sightline align runs/de-en --source test.de --target test.en --layer 3 --head 1 --reverse runs/en-de
      sightline align runs/de-en --source wa.de --target wa.en --gold de-en.wa --shift --recase
      sightline align runs/de-en --training --shift --reverse runs/en-de -o guide.txt
    """
    from sightline.files import check_writable

    if training == (source is not None or target is not None) or (source is None) != (target is None):
        raise ValueError("give the pairs as --source FILE and --target FILE, or the run's own with --training")
    if training and gold is not None:
        raise ValueError("--gold needs --source and --target; leave --training out")
    if gold is None:
        refuse({"--swap": swap, "--recase": recase, "--json": json_file}, "needs --gold FILE")
    for path in filter(None, (out, json_file)):
        check_writable(path)
    check_files({"--out": out, "--json": json_file}, {"--source": source, "--target": target, "--gold": gold})
    how = check_symmetrization(symmetrize, reverse)
    loaded = load_runs(run, others, "probabilities", device, "float32")
    other = load_reverse(reverse, loaded)
    selections = [select(each, layer, head, heads, shift) for each in (loaded, other or loaded)]
    aligner = Aligner(loaded, selections[0], other, selections[1], how)
    if gold is not None and source is not None and target is not None:
        report_error_rate(GoldFiles(source, target, gold, swap, recase), aligner, out=out, json_file=json_file)
        return
    pairs = training_pairs(loaded) if source is None or target is None else read_pairs(source, target)
    with _writing(out) as write, shown(interval=10.0) as progress:
        for done, line in enumerate(_lines(pairs, aligner), 1):
            write(line)
            progress("aligning, pairs", done, 0)


# --- the model ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Aligner:
    """A run, optionally one of the opposite direction, and the heads to read in each."""

    run: Run
    heads: HeadSelection
    reverse: Run | None
    reverse_heads: HeadSelection
    symmetrize: str  # a key of inspection.alignment.SYMMETRIES

    def links(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        source_words: Sequence[Sequence[str]] | None = None,
        target_words: Sequence[Sequence[str]] | None = None,
    ) -> list[Links]:
        """The links of each pair of texts; symmetrized if there is a reverse run."""
        from sightline.inspection.alignment import SYMMETRIES, align_pairs

        words = {"source_words": source_words, "target_words": target_words}
        links = [alignment.links for alignment in align_pairs(self.run, sources, targets, self.heads, **words)]
        if self.reverse is None:
            return links
        words = {"source_words": target_words, "target_words": source_words}
        backward = align_pairs(self.reverse, targets, sources, self.reverse_heads, **words)
        swapped = [frozenset((i, j) for j, i in alignment.links) for alignment in backward]
        return [SYMMETRIES[self.symmetrize](*both) for both in zip(links, swapped, strict=True)]


def select(run: Run, layer: int | None, head: int | None, heads: str | None, shift: bool) -> HeadSelection:
    """The heads of a run that the options choose; none: the default."""
    from sightline.inspection.alignment import HeadSelection, head_at

    if heads is not None or (layer is None and head is None):
        return head_selection(heads, shift)
    return HeadSelection((head_at(run.model, layer, head),), shift)


def check_symmetrization(method: str | None, reverse: Path | None) -> str:
    """The method, or its default; refuse an unknown method, and one without a second direction."""
    from sightline.inspection.alignment import SYMMETRIES

    if method is not None and method not in SYMMETRIES:
        raise ValueError(f"--symmetrize {method} is not one of {', '.join(SYMMETRIES)}")
    if method is not None and reverse is None:
        raise ValueError(f"--symmetrize {method} needs a second direction; add --reverse RUN")
    return method or "grow-diag-final-and"


def load_reverse(reverse: Path | None, run: Run) -> Run | None:
    """Load the run of the opposite direction; refuse one of the same direction."""
    from sightline.data.locate import is_same_direction
    from sightline.run import Run

    if reverse is None:
        return None
    other = Run.load(reverse, device=run.device.type)
    if is_same_direction(run.recipe, other.recipe):
        raise ValueError(
            f"--reverse {reverse} was trained in the same direction as {run.folder} (data.swap: "
            f"{str(other.recipe.data.swap).lower()}); give a run of the opposite direction"
        )
    return other


# --- pairs and links ----------------------------------------------------------------------------------------------


def read_pairs(source: Path, target: Path) -> Iterator[tuple[str, str]]:
    """The lines of two files, in pairs."""
    from sightline.data.text_files import LineLimit, read_lines

    limit = LineLimit(MOST)
    for number, (one, other) in enumerate(zip_longest(read_lines(source, limit), read_lines(target, limit)), 1):
        if one is None or other is None:
            short = source if one is None else target
            raise ValueError(f"{short} ends before line {number}; both files need the same number of lines")
        yield one, other


def training_pairs(run: Run) -> Iterator[tuple[str, str]]:
    """The training pairs before cleaning, in the order that training.guided_alignment expects.

    Pairs that cleaning drops as too long are empty, so that line numbers stay the same.
    """
    from sightline.data.sources import training_examples

    clean, vocabulary = run.recipe.data.clean, run.vocabulary
    for example in training_examples(run.recipe):
        source = vocabulary.source.encode(example.source)[: clean.truncate_source]
        long = max(len(source), len(vocabulary.target.encode(example.target))) > clean.max_tokens
        yield ("", "") if long else (example.source, example.target)


def _lines(pairs: Iterator[tuple[str, str]], aligner: Aligner) -> Iterator[str]:
    """The links of each pair in Pharaoh format, computed in blocks."""
    from sightline.inspection.alignment import pharaoh

    done, limit = 0, InputLength.of(aligner.run, None)
    while window := list(islice(pairs, _WINDOW)):
        limit.check([source for source, _ in window], "the sources", done)
        yield from map(pharaoh, aligner.links([pair[0] for pair in window], [pair[1] for pair in window]))
        done += len(window)


@contextmanager
def _writing(out: Path | None) -> Iterator[Callable[[str], object]]:
    """Write lines to standard output, or atomically to a file."""
    from sightline.files import atomic_file

    if out is None:
        yield print
        return
    with atomic_file(out) as file:
        yield lambda line: file.write(f"{line}\n".encode())


# --- alignment error rate -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GoldFiles:
    """Tokenized sentences and the manual links between their words."""

    source: Path
    reference: Path
    alignments: Path
    swap: bool = False  # links are target-source
    recase: bool = False  # restore the case of lowercased text


def read_gold_files(files: GoldFiles) -> tuple[list[list[str]], list[list[str]], list[Gold]]:
    """The words of both sides and the links of each line; links outside their sentence are dropped with a note."""
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


def report_error_rate(files: GoldFiles, aligner: Aligner, *, out: Path | None, json_file: Path | None) -> None:
    """Print AER, precision and recall with intervals; write links and scores to files."""
    from sightline.evaluation.alignment_error import measure_alignments
    from sightline.files import write_atomically, write_json
    from sightline.inspection.alignment import pharaoh

    run = aligner.run
    sources, targets, gold = read_gold_files(files)
    one, other = (natural_text(run, words, side, files.recase) for side, words in enumerate((sources, targets)))
    links = aligner.links(one, other, sources, targets)
    scores = [measured.score(bootstrap=run.recipe.evaluation.bootstrap) for measured in measure_alignments(links, gold)]
    how = ["word alignments by attention", *aligner.heads.heads, *(["shifted"] if aligner.heads.shift else [])]
    if run.members:
        how.append(f"ensemble of {plural(len(run.members), 'run')}")
    if aligner.reverse is not None:
        how.append(f"{aligner.symmetrize} with {aligner.reverse.folder}")
    print(f"{files.alignments.name}: {plural(len(links), 'sentence')}, {', '.join(how)}")
    for score in scores:
        print(f"  {score}  {score.signature}")
    if out is not None:
        write_atomically(out, "".join(f"{pharaoh(each)}\n" for each in links))
        print(f"wrote {out}", file=sys.stderr)
    if json_file is not None:
        values = [score.to_dict() for score in scores]
        record = {"run": str(run.folder), "on": str(files.alignments), "how": how, "scores": values}
        write_json(json_file, [record], indent=2)
        print(f"wrote {json_file}", file=sys.stderr)
