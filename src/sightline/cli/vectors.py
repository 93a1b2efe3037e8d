"""`sightline vectors`: word vectors learned from plain text, and a look at who is near whom."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sightline.cli.options import Device, Threads, use_threads
from sightline.cli.searching import check_apart
from sightline.terminal import plural

if TYPE_CHECKING:
    from sightline.training.skipgram import Report, SkipgramProgress


def vectors(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE", help="Text (may be compressed), a sentence a line."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The file to write; binary if it ends with .bin, else text.")] = None,
    dim: Annotated[int, typer.Option(help="Values of each vector; a model that reads them needs this width.")] = 100,
    window: Annotated[int, typer.Option(help="How far a neighbour may stand from a word.")] = 5,
    epochs: Annotated[int, typer.Option(help="Passes over the text.")] = 5,
    min_count: Annotated[int, typer.Option(help="Words that occur less often are left out.")] = 5,
    size: Annotated[int, typer.Option(help="Most words that get a vector.")] = 50_000,
    negatives: Annotated[int, typer.Option(help="Noise words for each pair of neighbours.")] = 5,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Read all text in lower case.")] = False,
    seed: Annotated[int, typer.Option(help="The same seed and threads, the same vectors.")] = 1,
    device: Device = "auto",
    threads: Threads = None,
    near: Annotated[str | None, typer.Option(metavar="WORD", help="Print the ten words nearest to this one.")] = None,
    read: Annotated[Path | None, typer.Option("--in", help="With --near: the file of vectors to look into.")] = None,
) -> None:
    """Learn a vector for each word of a text (skip-gram with negative sampling), or look at vectors.

    Examples:

    - `sightline vectors news.txt wiki.txt.xz --out vectors.txt --lowercase`
    - `sightline vectors train.en --out vectors.bin --dim 256 --epochs 10`
    - `sightline vectors --near king --in vectors.txt`
    """
    if near is not None:
        if read is None or files or out is not None:
            raise ValueError(f"--near {near} looks into one file of vectors and learns none; give just --in FILE")
        _show_nearest(near, read)
        return
    if read is not None:
        raise ValueError(f"--in {read} is for looking at vectors; say at which word with --near WORD")
    if not files or out is None:
        raise ValueError("text files and --out are needed, as in: sightline vectors train.en --out vectors.txt")
    from sightline.files import check_place
    from sightline.layers.devices import choose_device
    from sightline.training.skipgram import SkipgramOptions, learn_word_vectors

    check_place(out)
    check_apart({"--out": out}, {f"the text {path}": path for path in files})
    use_threads(threads)
    options = SkipgramOptions(
        dim=dim,
        window=window,
        epochs=epochs,
        min_count=min_count,
        size=size,
        negatives=negatives,
        lowercase=lowercase,
        seed=seed,
    )
    with _display() as report:
        learned = learn_word_vectors(files, options, device=choose_device(device), progress=report)
    learned.write(out)
    print(
        f"done: {plural(len(learned.words), 'vector')} at {learned.words_per_second:,.0f} words/s: {out}",
        file=sys.stderr,
    )


def _show_nearest(word: str, path: Path) -> None:
    from sightline.text.word_vectors import nearest_words, read_all_word_vectors

    for neighbour, cosine in nearest_words(*read_all_word_vectors(path), word):
        print(f"{cosine:.3f}\t{neighbour}")


@contextmanager
def _display() -> Iterator[Report]:
    """A bar in a terminal, and occasional lines elsewhere."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from sightline.terminal import console

    columns = (BarColumn(bar_width=32), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console(stderr=True)) as bar:
        task = bar.add_task("reading", total=None)

        def show(progress: SkipgramProgress) -> None:
            bar.update(task, completed=progress.done, total=progress.total, description=_line(progress))

        yield show


class _Lines:
    """A line for each stage and each twentieth of the learning."""

    def __init__(self) -> None:
        self.last: tuple[str, int] = ("", 0)

    def __call__(self, progress: SkipgramProgress) -> None:
        part = progress.done // 200_000 if progress.total is None else 20 * progress.done // progress.total
        if self.last != (progress.stage, part):
            self.last = (progress.stage, part)
            print(_line(progress), file=sys.stderr, flush=True)


def _line(progress: SkipgramProgress) -> str:
    if progress.total is None:
        return f"{progress.stage}: {plural(progress.done, 'line')}"
    return (
        f"epoch {progress.epoch}  {progress.done / progress.total:.0%}  loss {progress.loss:.3f}  "
        f"{progress.words_per_second:,.0f} words/s"
    )
