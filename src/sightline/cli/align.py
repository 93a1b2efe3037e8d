"""`sightline align`: which word of a text comes from which word of the other, for pairs that are given."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sightline.cli.alignments import Directions, Symmetrize, load_reverse, symmetry
from sightline.cli.input_length import InputLength
from sightline.cli.lines import MOST
from sightline.cli.options import Device
from sightline.cli.refusals import check_apart
from sightline.terminal import plural

if TYPE_CHECKING:
    from sightline.run import Run

_WINDOW = 2_048  # pairs aligned together


def align(
    run: Annotated[Path, typer.Argument(help="A run folder: a translator with attention.")],
    source: Annotated[Path | None, typer.Option(help="Source texts, one a line.")] = None,
    target: Annotated[Path | None, typer.Option(help="Their translations, line by line.")] = None,
    training: Annotated[
        bool,
        typer.Option("--training", help="Instead: the run's own training pairs, for training.guided_alignment."),
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Where to write the links; by default standard output.")] = None,
    layer: Annotated[
        int | None, typer.Option(help="Layer of the decoder to read, from 0; by default the last but one.")
    ] = None,
    head: Annotated[
        int | None, typer.Option(help="Head of that layer, from 0; by default the guided one, or the mean of all.")
    ] = None,
    shift: Annotated[
        bool, typer.Option("--shift", help="Align each word where it is read, a step after it is written.")
    ] = False,
    reverse: Annotated[
        Path | None, typer.Option(help="A run for the other direction, to symmetrize with (read in the same way).")
    ] = None,
    symmetrize: Symmetrize = None,
    device: Device = "auto",
) -> None:
    """Link the words of given translations by a model's attention, in Pharaoh format: `0-0 1-2`, a line for each pair.

    Words are what stands between spaces. The target is given, so nothing is searched for.

    Examples:

    - `sightline align runs/de-en --source test.de --target test.en --shift > links.txt`
    - `sightline align runs/de-en --source test.de --target test.en --layer 3 --head 1 --reverse runs/en-de`
    - `sightline align runs/de-en --training --shift --reverse runs/en-de --out guide.txt`
    """
    from sightline.inspection.word_alignment import Looking, head_at
    from sightline.run import Run

    if training == (source is not None or target is not None) or (source is None) != (target is None):
        raise ValueError("say which pairs: --source FILE and --target FILE, or --training for the run's own")
    check_apart({"--out": out}, {"--source": source, "--target": target})
    way = symmetry(symmetrize, reverse)
    loaded = Run.load(run, device=device)
    other = load_reverse(reverse, loaded)

    def how(each: Run) -> Looking:
        named = layer is not None or head is not None
        return Looking((head_at(each.model, layer, head),) if named else (), shift)

    directions = Directions(loaded, how(loaded), way, other, how(other or loaded))
    pairs = _training_pairs(loaded) if training else _pairs(source, target)
    with _writing(out) as write:
        for line in _aligned(pairs, directions, InputLength.of(loaded, None)):
            write(line)


def _aligned(pairs: Iterator[tuple[str, str]], directions: Directions, limit: InputLength) -> Iterator[str]:
    """A line for each pair, block by block."""
    from sightline.inspection.word_alignment import pharaoh

    done = 0
    while window := list(islice(pairs, _WINDOW)):
        limit.check([source for source, _ in window], "the sources", done)
        yield from map(pharaoh, directions.links([pair[0] for pair in window], [pair[1] for pair in window]))
        done += len(window)
        print(f"aligned {plural(done, 'pair')}", file=sys.stderr, flush=True)


def _pairs(source: Path | None, target: Path | None) -> Iterator[tuple[str, str]]:
    from itertools import zip_longest

    from sightline.data.text_lines import Bound, read_lines

    assert source is not None and target is not None
    bound = Bound(MOST)
    for number, (one, other) in enumerate(zip_longest(read_lines(source, bound), read_lines(target, bound)), 1):
        if one is None or other is None:
            short = source if one is None else target
            raise ValueError(f"{short} ends before line {number}, and the other file goes on; give pairs line by line")
        yield one, other


def _training_pairs(run: Run) -> Iterator[tuple[str, str]]:
    """As they are read, before any is cleaned away: in step with what guides a training.

    Those that would be dropped as too long are not aligned, but have their (empty) line.
    """
    from sightline.data.preparation import training_examples

    clean, vocabulary = run.recipe.data.clean, run.vocabulary
    for example in training_examples(run.recipe):
        sides = vocabulary.source.encode(example.source)[: clean.cut_source], vocabulary.target.encode(example.target)
        long = any(len(ids) > clean.max_tokens for ids in sides)
        yield ("", "") if long else (example.source, example.target)


@contextmanager
def _writing(out: Path | None) -> Iterator[Callable[[str], object]]:
    """Lines to standard output, or to a file that is there when all are written."""
    from sightline.files import atomic_file

    if out is None:
        yield print
        return
    with atomic_file(out) as file:
        yield lambda line: file.write(f"{line}\n".encode())
